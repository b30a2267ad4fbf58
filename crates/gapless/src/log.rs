//! What the program says about its work: to stderr, for people or as JSON lines.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::exit::Failure;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Begins to log what the filter lets through.
pub(crate) fn begin(level: &str, as_json: bool) -> Result<(), Failure> {
    let wrong = || {
        Failure::words(format!("`{level}` is not a log level"))
            .hint("use error, warn, info, debug or trace, or as in info,gapless_server=debug")
    };
    // A filter takes any word for the name of a module; alone it is a slip of the keyboard.
    let known = |word: &str| word.contains('=') || LEVELS.contains(&word);
    if !level.split(',').all(known) {
        return Err(wrong());
    }
    let filter = EnvFilter::try_new(level).map_err(|_| wrong())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // If logging was set up before, it stays so.
    let _ = if as_json {
        builder.json().flatten_event(true).try_init()
    } else {
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        builder.with_ansi(colours).with_target(false).try_init()
    };
    Ok(())
}
