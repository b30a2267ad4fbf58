//! Which other users of this machine may read the data: none, unless a setting says otherwise.
//!
//! The process's umask does it, so that it holds for every file, folder and socket that any part of
//! the process creates. What exists already is left as it is, and reported.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;

use crate::config::{Config, ConfigError};

/// Sets the process's umask as the key `permissions` says.
pub(crate) fn apply(config: &Config) -> Result<(), ConfigError> {
    if let Some(mask) = mask(config)? {
        umask(mask);
    }
    Ok(())
}

/// Warns if others may read the folder, though the setting does not allow it.
pub(crate) fn warn_if_open(config: &Config, data: &Path) {
    let Ok(Some(mask)) = mask(config) else { return };
    let Ok(folder) = std::fs::metadata(data) else { return };
    let mode = folder.permissions().mode() & 0o777;
    if mode & mask.bits() != 0 {
        let (path, mode) = (data.display(), format!("{mode:o}"));
        tracing::warn!(
            %path, mode,
            "others on this machine may read the data folder; chmod -R go= closes it, or set permissions"
        );
    }
}

/// The bits that nothing may have.
fn mask(config: &Config) -> Result<Option<Mode>, ConfigError> {
    match config.text("permissions") {
        "owner" => Ok(Some(Mode::RWXG | Mode::RWXO)),
        "group" => Ok(Some(Mode::RWXO)),
        "umask" => Ok(None),
        _ => Err(config.bad("permissions", "use owner, group or umask")),
    }
}
