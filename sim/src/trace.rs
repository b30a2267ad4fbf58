//! What happened, as text and as a number: the same seed must give the same.

use std::fmt::{self, Write as _};

/// Lines of the trace that are kept for the story of a failure.
const RECENT_LINES: usize = 40;

/// A running hash of every step and result, and the newest lines.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    lines: u64,
    recent: std::collections::VecDeque<String>,
    print: bool,
    buffer: String,
}

impl Trace {
    /// An empty trace; `print` shows every line as it comes.
    #[must_use]
    pub(crate) fn new(print: bool) -> Self {
        let recent = std::collections::VecDeque::new();
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: 0, recent, print, buffer: String::new() }
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, line: fmt::Arguments<'_>) {
        self.buffer.clear();
        self.buffer.write_fmt(line).expect("writing to a string does not fail");
        for byte in self.buffer.bytes().chain(*b"\n") {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.print {
            println!("{}", self.buffer);
        }
        if self.recent.len() == RECENT_LINES {
            self.recent.pop_front();
        }
        self.recent.push_back(self.buffer.clone());
    }

    /// What all lines so far come to.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// How many lines there were.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// The newest lines, oldest first.
    pub(crate) fn recent(&self) -> impl Iterator<Item = &str> {
        self.recent.iter().map(String::as_str)
    }
}
