//! Contexts: named servers with what is needed to reach them, in a file of the user.
//!
//! A context is used as a whole. A server that is named by flag or environment is not the one of the
//! current context: then nothing of it is used, so that its token goes to no other server. One that
//! is named by `--context` or `GAPLESS_CONTEXT` fills in what flags and environment leave open.
//! The file and its folder are for their owner alone.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cmd::{Global, SERVER_DEFAULT};
use crate::exit::Failure;
use crate::values::nearest;

/// The file, below the user's folder of configurations.
const FILE: &str = "gapless/contexts.toml";
/// Letters of a name, at most.
const NAME_MAX: usize = 64;
/// Contexts in the file, at most.
const CONTEXTS_MAX: usize = 1_000;

/// How a server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    pub(crate) server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tls: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// All contexts of the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The one that is used unless another is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// Reads the user's file; without one there are none.
    pub(crate) fn load() -> Result<Self, Failure> {
        match file() {
            Some(path) => Self::read(&path),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|error| {
                Failure::words(format!("cannot read {}: {error}", path.display()))
            })?,
        };
        toml::from_str(&text).map_err(|error| {
            let why = error.message().to_owned();
            Failure::words(format!("{}: {why}", path.display()))
                .hint("correct the file, or remove it and add the contexts again")
        })
    }

    pub(crate) fn save(&self) -> Result<PathBuf, Failure> {
        let path = file().ok_or_else(|| {
            Failure::failed(
                "there is no folder for contexts: neither XDG_CONFIG_HOME nor HOME is set",
            )
        })?;
        self.write(&path).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
        })?;
        Ok(path)
    }

    /// The file is whole at any time: it is written aside and put in place.
    fn write(&self, path: &Path) -> io::Result<()> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let aside = path.with_extension("toml.new");
        // One that a crash has left may have other permissions.
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, path)
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let near = nearest(name, self.contexts.keys().map(String::as_str));
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            Failure::not_found(format!("there is no context {name}{near}"))
                .hint("see what there is: gapless context ls")
        })
    }

    pub(crate) fn add(&mut self, name: &str, context: Context) -> Result<(), Failure> {
        if self.contexts.len() >= CONTEXTS_MAX && !self.contexts.contains_key(name) {
            return Err(Failure::failed(format!("there are {CONTEXTS_MAX} contexts already")));
        }
        self.contexts.insert(name.to_owned(), context);
        Ok(())
    }
}

/// A name of a context, as `prod` or `eu-1`.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NAME_MAX || !text.chars().all(good) {
        return Err(format!(
            "a context's name has 1 to {NAME_MAX} letters, digits, dots and dashes, as prod or eu-1"
        ));
    }
    Ok(text.to_owned())
}

/// Where the contexts are.
pub(crate) fn file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".config")))?;
    Some(folder.join(FILE))
}

/// Where the address of the server came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Source {
    #[default]
    Default,
    Flag,
    Environment,
    Context(String),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Flag => f.write_str("flag --server"),
            Self::Environment => f.write_str("environment GAPLESS_SERVER"),
            Self::Context(name) => write!(f, "context {name}"),
        }
    }
}

/// Fills in what flags and environment leave open; see the head of the file. `given` says where the
/// address came from if it was given.
pub(crate) fn apply(global: &mut Global, given: Source) -> Result<(), Failure> {
    let named = global.context.clone();
    let wants = named.is_some() || global.server.is_none();
    let contexts = if wants { Contexts::load()? } else { Contexts::default() };
    let name = named.or_else(|| contexts.current.clone());
    global.source = given;
    if let Some(name) = name {
        let context = contexts.get(&name)?;
        fill(global, &name, context);
    }
    if global.server.is_none() {
        global.source = Source::Default;
        global.server = Some(SERVER_DEFAULT.to_owned());
    }
    Ok(())
}

fn fill(global: &mut Global, name: &str, context: &Context) {
    if global.server.is_none() {
        global.source = Source::Context(name.to_owned());
        global.server = Some(context.server.clone());
    }
    if global.token.is_none() && global.token_file.is_none() {
        global.token_file.clone_from(&context.token_file);
    }
    if !global.tls && global.tls_ca.is_none() {
        global.tls = context.tls;
        global.tls_ca.clone_from(&context.tls_ca);
    }
    if global.tls_cert.is_none() && global.tls_key.is_none() {
        global.tls_cert.clone_from(&context.tls_cert);
        global.tls_key.clone_from(&context.tls_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn contexts_read_back_and_only_their_owner_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config/gapless/contexts.toml");
        assert_eq!(Contexts::read(&path).unwrap(), Contexts::default());
        let mut contexts = Contexts { current: Some("prod".into()), ..Contexts::default() };
        let context = Context {
            server: "broker:4281".into(),
            token_file: Some("/etc/token".into()),
            ..Context::default()
        };
        contexts.add("prod", context).unwrap();
        contexts.write(&path).unwrap();
        contexts.write(&path).unwrap();
        assert_eq!(Contexts::read(&path).unwrap(), contexts);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert!(contexts.get("pro").unwrap_err().message.contains("did you mean prod?"));
        fs::write(&path, "[contexts.x]\nservr = 'y'\n").unwrap();
        assert!(Contexts::read(&path).is_err());
    }

    #[test]
    fn names_are_plain() {
        assert!(name("eu-1.prod").is_ok());
        for wrong in ["", "a b", "a/b", "ü", &"x".repeat(65)] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
