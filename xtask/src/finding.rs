//! One thing that is not as it should be, and where.

use std::fmt;

/// A broken rule: printed as `path:line: rule: what`, so that editors can jump to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path from the workspace's root, with forward slashes.
    pub(crate) path: String,
    /// Line, counted from 1; 0 when the file as a whole is meant.
    pub(crate) line: usize,
    /// Short name of the rule.
    pub(crate) rule: &'static str,
    /// What is wrong and what would be right.
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn at(path: &str, line: usize, rule: &'static str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, what: what.into() }
    }

    pub(crate) fn whole_file(path: &str, rule: &'static str, what: impl Into<String>) -> Self {
        Self::at(path, 0, rule, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}: {}", self.path, self.rule, self.what),
            line => write!(f, "{}:{line}: {}: {}", self.path, self.rule, self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_printed_the_way_compilers_print() {
        let at_line = Finding::at("a/b.rs", 7, "columns", "too long");
        assert_eq!(at_line.to_string(), "a/b.rs:7: columns: too long");
        let whole = Finding::whole_file("a/b.rs", "length", "too long");
        assert_eq!(whole.to_string(), "a/b.rs: length: too long");
    }
}
