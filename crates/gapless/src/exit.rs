//! How a command ends: an exit code of one list, or a failure that says what to do.

use std::fmt;
use std::io;

/// Every exit code. Programs rely on them: a number once given keeps its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Words = 2,
    Damage = 3,
    NoConnection = 4,
    Rejected = 5,
    NotFound = 6,
    Fenced = 7,
}

impl Exit {
    pub(crate) const ALL: [Self; 8] = [
        Self::Ok,
        Self::Failed,
        Self::Words,
        Self::Damage,
        Self::NoConnection,
        Self::Rejected,
        Self::NotFound,
        Self::Fenced,
    ];

    /// What it means, for help texts and `docs/cli.md`.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "all is well",
            Self::Failed => "it did not work; the message says why",
            Self::Words => "the words, the configuration or a value were wrong; nothing was done",
            Self::Damage => "`doctor` found damage",
            Self::NoConnection => "no server could be reached",
            Self::Rejected => "the server refused it; nothing was written",
            Self::NotFound => "there is no such topic, message or store",
            Self::Fenced => "another server has taken the store over; this one stopped serving it",
        }
    }
}

/// What a command gives back.
pub(crate) type Done = Result<Exit, Failure>;

/// Why a command failed, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// What to do next; several lines are fine.
    pub(crate) hint: Option<String>,
    /// The number in the one list of errors, if the server gave one.
    pub(crate) code: Option<u16>,
    /// The reader of our output has closed it, as `head` does: nothing is wrong.
    pub(crate) reader_left: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { exit, message, hint: None, code: None, reader_left: false }
    }

    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub(crate) fn words(message: impl fmt::Display) -> Self {
        Self::new(Exit::Words, message)
    }

    /// What the parser of the command line says: the first paragraph is what is wrong, the rest
    /// is what to do.
    pub(crate) fn of_words(text: &str) -> Self {
        let (wrong, rest) = text.trim_end().split_once("\n\n").unwrap_or((text.trim_end(), ""));
        let wrong = wrong.strip_prefix("error: ").unwrap_or(wrong);
        let wrong: Vec<&str> = wrong.lines().map(str::trim).collect();
        let rest: Vec<&str> = rest.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let failure = Self::words(wrong.join(" "));
        if rest.is_empty() { failure } else { failure.hint(rest.join("\n")) }
    }

    pub(crate) fn not_found(message: impl fmt::Display) -> Self {
        Self::new(Exit::NotFound, message)
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn code(mut self, code: u16) -> Self {
        self.code = Some(code);
        self
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let reader_left = error.kind() == io::ErrorKind::BrokenPipe;
        Self { reader_left, ..Self::failed(error) }
    }
}

impl From<crate::config::ConfigError> for Failure {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::words(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_0_to_7_and_explained() {
        for (number, exit) in Exit::ALL.iter().enumerate() {
            assert_eq!(*exit as usize, number);
            assert!(!exit.meaning().is_empty());
        }
    }

    #[test]
    fn what_the_parser_says_is_a_failure_with_a_hint() {
        let text = "error: these were not provided:\n  <TOPIC>\n\nUsage: gapless pub\n\nMore.\n";
        let failure = Failure::of_words(text);
        assert_eq!(failure.message, "these were not provided: <TOPIC>");
        assert_eq!(failure.hint.as_deref(), Some("Usage: gapless pub\nMore."));
        assert_eq!(failure.exit, Exit::Words);
        assert_eq!(Failure::of_words("error: short").hint, None);
    }

    #[test]
    fn a_reader_that_left_is_told_from_other_trouble() {
        let left = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(left.reader_left);
        assert!(!Failure::from(io::Error::from(io::ErrorKind::NotFound)).reader_left);
    }
}
