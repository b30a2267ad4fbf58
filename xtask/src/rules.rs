//! House rules for Rust text: what may stand in which file.
//!
//! Each rule is one function from a file to findings. Exceptions are data: a path (or the
//! beginning of one) with the reason it is there. Paths use forward slashes and begin at the
//! workspace's root. Limits are ratchets: they may be lowered, never raised.

use crate::finding::Finding;
use crate::source::{Source, has_word, in_tests_folder, is_test_file, word_ends};

/// No file under `crates/*/src` is longer. A ratchet: lower it when the longest file shrinks.
const FILE_LINES_MAX: usize = 900;

/// No line of Rust is wider, counted in characters.
const LINE_COLUMNS_MAX: usize = 110;

/// A file (or all files below a folder, if the path ends in `/`) that a rule leaves alone.
pub(crate) struct Exception {
    path: &'static str,
    reason: &'static str,
}

/// Files that may sleep. Empty: waiting has a condition and a deadline, and tests move the
/// clock.
const MAY_SLEEP: &[Exception] = &[
    Exception {
        path: "crates/server/src/native/connection.rs",
        reason: "the timer of a connection's deadlines",
    },
    Exception {
        path: "crates/server/src/native/server.rs",
        reason: "pauses when the system refuses connections",
    },
    Exception {
        path: "crates/server/src/http/listener/server.rs",
        reason: "pauses when the system refuses connections",
    },
    Exception {
        path: "crates/server/src/http/listener/body.rs",
        reason: "the timer of a body that has to arrive",
    },
    Exception {
        path: "crates/server/src/http/access/authorization.rs",
        reason: "answers to failed proofs wait",
    },
    Exception {
        path: "crates/server/src/http/listener/wire.rs",
        reason: "the timer of a peer that takes nothing",
    },
    Exception {
        path: "crates/outbox/src/clock.rs",
        reason: "the pauses between looks at a database",
    },
    Exception {
        path: "crates/gapless/src/cmd/serve.rs",
        reason: "tries again while the lock of a killed process is freed",
    },
    Exception {
        path: "crates/jobs/src/clock.rs",
        reason: "the timers of leases, attempts and looks at the machine",
    },
    Exception {
        path: "crates/cluster/src/clock.rs",
        reason: "the timers of links, attempts and the machine",
    },
    Exception {
        path: "crates/server/src/forward.rs",
        reason: "tries an owner again that cannot be reached yet",
    },
    Exception {
        path: "crates/gapless/tests/wire_recovery.rs",
        reason: "plays slow readers, for which no test waits",
    },
    Exception {
        path: "crates/engine/src/clock.rs",
        reason: "the pauses between two tries of a request",
    },
    Exception { path: "crates/engine/src/faulty.rs", reason: "plays a slow store" },
    Exception {
        path: "crates/journal/tests/far_engine.rs",
        reason: "plays an engine behind a network",
    },
];

/// Files that may read a clock.
const MAY_READ_CLOCK: &[Exception] = &[
    Exception { path: "crates/broker/src/clock.rs", reason: "the one place that reads time" },
    Exception { path: "crates/gapless/src/cmd/bench", reason: "measures" },
    Exception { path: "crates/gapless/src/trace.rs", reason: "when spans begin and end" },
    Exception { path: "crates/gapless/src/log.rs", reason: "how many lines there were of late" },
    Exception { path: "bench/", reason: "measures" },
    Exception {
        path: "crates/server/src/session/fairness.rs",
        reason: "its tests need a moment to count from",
    },
    Exception {
        path: "crates/server/src/session/awake.rs",
        reason: "it does nothing until a moment has come",
    },
    Exception {
        path: "crates/server/src/native/server.rs",
        reason: "the moment from which a listener counts",
    },
    Exception {
        path: "crates/server/src/native/connection.rs",
        reason: "the deadlines of a connection",
    },
    Exception {
        path: "crates/server/src/http/listener/wire.rs",
        reason: "since when a peer takes nothing",
    },
    Exception {
        path: "crates/server/src/http/watch/requests.rs",
        reason: "how long a request took",
    },
    Exception {
        path: "crates/server/src/http/listener/http2.rs",
        reason: "since when an answer waits",
    },
    Exception { path: "crates/gapless/src/tls.rs", reason: "when a certificate is warned about" },
    Exception {
        path: "crates/gapless/src/cmd/init.rs",
        reason: "from when to when a certificate is",
    },
    Exception {
        path: "crates/client/src/clock.rs",
        reason: "the one place of the client that reads time",
    },
    Exception {
        path: "crates/outbox/src/clock.rs",
        reason: "the one place of the outbox that reads time",
    },
    Exception { path: "crates/jobs/src/clock.rs", reason: "the one place of jobs that reads time" },
    Exception {
        path: "crates/engine/src/clock.rs",
        reason: "the one place of the engine that reads time",
    },
    Exception {
        path: "crates/cluster/src/clock.rs",
        reason: "the one place of the cluster that reads time",
    },
    Exception {
        path: "crates/server/src/forward.rs",
        reason: "until when a connection waits for an owner",
    },
    Exception {
        path: "crates/gapless/src/shared/clock.rs",
        reason: "the one place of a shared node that reads time",
    },
];

/// Files of the layers below the listeners that may touch the file system.
const MAY_TOUCH_FILES: &[Exception] = &[
    Exception { path: "crates/journal/src/fs.rs", reason: "the one narrow place" },
    Exception { path: "crates/journal/src/fs/", reason: "the one narrow place" },
];

/// Folders in which the file system is reached only through the narrow place.
const FILES_ARE_FENCED: &[&str] =
    &["crates/core/src/", "crates/journal/src/", "crates/broker/src/"];

/// Files that may block on a future.
const MAY_BLOCK_ON: &[Exception] = &[
    Exception { path: "crates/broker/src/blocking.rs", reason: "blocking forms, for embedders" },
    Exception { path: "crates/broker/src/lib.rs", reason: "hands them on" },
];

/// Files that may search segments in the thread they run in.
const MAY_SEARCH_SEGMENTS: &[Exception] = &[
    Exception { path: "crates/journal/src/", reason: "the searches themselves" },
    Exception {
        path: "crates/broker/src/read/lookup.rs",
        reason: "called where waiting does no harm",
    },
    Exception { path: "crates/broker/src/keep/retention.rs", reason: "the keeper's" },
    Exception {
        path: "crates/broker/src/publish/commit.rs",
        reason: "for a publish that names a key",
    },
];

/// What searches segments in the thread that calls it.
const SEARCHES: &[&str] = &[
    "journal.bytes_of",
    "journal.find_bytes",
    "journal.find_position",
    "journal.find_time",
    "journal.latest_of_key",
    "journal.read_topic_here",
];

/// Folders of code that runs inside polls.
const POLLS_ARE_FENCED: &[&str] = &[
    "crates/auth/src/",
    "crates/broker/src/",
    "crates/client/src/",
    "crates/server/src/",
    "crates/journal/src/",
    "crates/relay/src/",
];

/// Files that may be `unsafe`.
const MAY_BE_UNSAFE: &[Exception] = &[Exception {
    path: "crates/core/no_std_proof/",
    reason: "a target without OS needs its own allocator",
}];

/// A Rust file and what the rules want to know about it.
pub(crate) struct RustFile<'a> {
    path: &'a str,
    text: &'a str,
    source: Source,
}

impl<'a> RustFile<'a> {
    pub(crate) fn new(path: &'a str, text: &'a str) -> Self {
        Self { path, text, source: Source::parse(text) }
    }
}

/// Every rule over one Rust file.
pub(crate) fn check(file: &RustFile<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(sleep(file, MAY_SLEEP));
    findings.extend(clock(file));
    findings.extend(files(file));
    findings.extend(unsafety(file));
    findings.extend(polls(file));
    findings.extend(to_do(file.path, file.source.comment_lines()));
    findings.extend(plain_words(file));
    findings.extend(length(file));
    findings.extend(columns(file));
    findings.extend(header(file));
    findings
}

fn sleep(file: &RustFile<'_>, may_sleep: &[Exception]) -> Vec<Finding> {
    if excepted(file.path, may_sleep) {
        return Vec::new();
    }
    let sleeps = |line: &str| {
        has_word(line, "thread::sleep")
            || has_word(line, "time::sleep")
            || has_word(line, "time::sleep_until")
            || imports(line, "thread::{", "sleep")
            || imports(line, "time::{", "sleep")
    };
    let what =
        "no sleeping: wait on a condition with a deadline, and in tests move the clock".to_owned();
    each_code_line(file, "sleep", sleeps, &(what + &list(may_sleep)))
}

fn clock(file: &RustFile<'_>) -> Vec<Finding> {
    // Tests outside the product may bound a wait on a real thread or process by a deadline.
    if excepted(file.path, MAY_READ_CLOCK) || in_tests_folder(file.path) {
        return Vec::new();
    }
    let reads = |line: &str| has_word(line, "SystemTime::now") || has_word(line, "Instant::now");
    let what = format!("time is an argument; clocks are read only in{}", list(MAY_READ_CLOCK));
    each_code_line(file, "clock", reads, &what)
}

fn files(file: &RustFile<'_>) -> Vec<Finding> {
    let fenced = FILES_ARE_FENCED.iter().any(|folder| file.path.starts_with(folder));
    if !fenced || is_test_file(file.path) || excepted(file.path, MAY_TOUCH_FILES) {
        return Vec::new();
    }
    let touches = |line: &str| {
        has_word(line, "std::fs")
            || has_word(line, "tokio::fs")
            || has_word(line, "File::")
            || has_word(line, "OpenOptions")
            || imports(line, "std::{", "fs")
    };
    let what = format!("files are reached only through{}", list(MAY_TOUCH_FILES));
    let mut findings = each_code_line(file, "files", touches, &what);
    findings.retain(|finding| !file.source.is_test(finding.line));
    findings
}

/// No poll waits: futures are blocked on, and segments searched, only where listed.
fn polls(file: &RustFile<'_>) -> Vec<Finding> {
    let fenced = POLLS_ARE_FENCED.iter().any(|folder| file.path.starts_with(folder));
    if !fenced || is_test_file(file.path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !excepted(file.path, MAY_BLOCK_ON) {
        let what = format!("futures are blocked on only in{}", list(MAY_BLOCK_ON));
        findings.extend(each_code_line(file, "block", |line| has_word(line, "block_on"), &what));
    }
    if !excepted(file.path, MAY_SEARCH_SEGMENTS) {
        let searches = |line: &str| SEARCHES.iter().any(|search| has_word(line, search));
        let what = format!("segments are searched only in{}", list(MAY_SEARCH_SEGMENTS));
        findings.extend(each_code_line(file, "segments", searches, &what));
    }
    findings.retain(|finding| !file.source.is_test(finding.line));
    findings
}

fn unsafety(file: &RustFile<'_>) -> Vec<Finding> {
    if excepted(file.path, MAY_BE_UNSAFE) {
        return Vec::new();
    }
    let what = format!("allowed only in{}", list(MAY_BE_UNSAFE));
    each_code_line(file, "unsafe", |line| has_word(line, "unsafe"), &what)
}

/// Words that leave open which caller, client or thread is meant, and words of this project alone,
/// with what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("nobody", "name the caller, client or thread"),
    ("somebody", "name the caller, client or thread"),
    ("anybody", "name the caller, client or thread"),
    ("whoever", "name the caller, client or thread"),
    ("anew", "again"),
    ("drive again", "redrive"),
    ("driven again", "redriven"),
    ("door", "API or listener"),
    ("doors", "APIs or listeners"),
    ("is no json", "is not valid JSON"),
];

/// In product code comments and texts are read; in tests, where names are free, only comments.
fn plain_words(file: &RustFile<'_>) -> Vec<Finding> {
    if is_test_file(file.path) || !file.path.starts_with("crates/") {
        return words(file.path, file.source.comment_lines());
    }
    let lines = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    words(file.path, lines.filter(|(number, _)| !file.source.is_test(*number)))
}

/// Sentences are understood at first reading: see `WORDS`.
pub(crate) fn words<'t>(path: &str, lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in lines {
        let line = line.to_lowercase();
        for (word, instead) in WORDS.iter().filter(|(word, _)| has_word(&line, word)) {
            let what = format!("\"{word}\" is not plain: {instead}");
            findings.push(Finding::at(path, number, "words", what));
        }
    }
    findings
}

/// A note about work left to do names its issue: the word, then `(#12)`.
pub(crate) fn to_do<'t>(path: &str, lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<Finding> {
    const WORD: &str = concat!("TO", "DO");
    let mut findings = Vec::new();
    for (number, line) in lines {
        if word_ends(line, WORD).any(|end| !begins_with_issue(&line[end..])) {
            let what = format!("a {WORD} names its issue: {WORD}(#12)");
            findings.push(Finding::at(path, number, "to-do", what));
        }
    }
    findings
}

fn begins_with_issue(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("(#") else {
        return false;
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits > 0 && rest[digits..].starts_with(')')
}

fn length(file: &RustFile<'_>) -> Option<Finding> {
    let lines = file.text.lines().count();
    let counted = file.path.starts_with("crates/") && file.path.contains("/src/");
    (counted && lines > FILE_LINES_MAX).then(|| {
        let what = format!("{lines} lines, at most {FILE_LINES_MAX}: look for the second story");
        Finding::whole_file(file.path, "length", what)
    })
}

fn columns(file: &RustFile<'_>) -> Vec<Finding> {
    let wide = |line: &str| line.chars().count() > LINE_COLUMNS_MAX;
    let lines = file.text.lines().enumerate().filter(|(_, line)| wide(line));
    lines
        .map(|(index, line)| {
            let what = format!("{} columns, at most {LINE_COLUMNS_MAX}", line.chars().count());
            Finding::at(file.path, index + 1, "columns", what)
        })
        .collect()
}

fn header(file: &RustFile<'_>) -> Option<Finding> {
    let under_src = file.path.starts_with("src/") || file.path.contains("/src/");
    (under_src && !file.text.starts_with("//!")).then(|| {
        let what = "begins with `//!`: what it is, the rule it keeps, what is not here";
        Finding::at(file.path, 1, "header", what)
    })
}

fn each_code_line(
    file: &RustFile<'_>,
    rule: &'static str,
    is_broken: impl Fn(&str) -> bool,
    what: &str,
) -> Vec<Finding> {
    let lines = file.source.code_lines().filter(|(_, line)| is_broken(line));
    lines.map(|(number, _)| Finding::at(file.path, number, rule, what)).collect()
}

/// Whether a line imports `name` from a group such as `std::{`.
fn imports(line: &str, group: &str, name: &str) -> bool {
    word_ends(line, group).any(|end| has_word(&line[end..], name))
}

fn excepted(path: &str, exceptions: &[Exception]) -> bool {
    exceptions.iter().any(|exception| path.starts_with(exception.path))
}

/// The exceptions for a message, with their reasons.
fn list(exceptions: &[Exception]) -> String {
    exceptions
        .iter()
        .map(|exception| format!(" {} ({})", exception.path, exception.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "//! A file.\n";

    /// Names of the rules a file breaks, with the lines.
    fn broken(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        let findings = check(&RustFile::new(path, text));
        findings.iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    fn broken_below_header(path: &str, text: &str) -> Vec<(&'static str, usize)> {
        broken(path, &format!("{HEADER}{text}"))
    }

    #[test]
    fn sleeping_is_found_in_product_and_test_code() {
        for text in [
            "std::thread::sleep(d);",
            "tokio::time::sleep(d).await;",
            "use std::thread::sleep;",
            "use tokio::time::{Duration, sleep};",
            "#[cfg(test)]\nmod tests { fn f() { thread::sleep(d) } }",
        ] {
            for path in [
                "crates/broker/src/broker.rs",
                "crates/broker/tests/follow.rs",
                "bench/src/main.rs",
            ] {
                let rules = broken_below_header(path, text);
                assert_eq!(rules.len(), 1, "{path}: {text}");
                assert_eq!(rules[0].0, "sleep");
            }
        }
    }

    #[test]
    fn sleeping_is_not_seen_in_comments_strings_and_other_names() {
        for text in ["// thread::sleep", "let a = \"thread::sleep\";", "thread::sleeper();"] {
            assert_eq!(broken_below_header("crates/broker/src/broker.rs", text), []);
        }
    }

    #[test]
    fn a_file_on_the_list_may_sleep() {
        let listed = [Exception { path: "crates/jobs/src/cpu.rs", reason: "samples the load" }];
        let text = "thread::sleep(d);";
        assert_eq!(sleep(&RustFile::new("crates/jobs/src/cpu.rs", text), &listed), []);
        assert_eq!(sleep(&RustFile::new("crates/jobs/src/run.rs", text), &listed).len(), 1);
    }

    #[test]
    fn clocks_are_read_only_where_listed() {
        for text in ["let now = Instant::now();", "let now = std::time::SystemTime::now();"] {
            for path in [
                "crates/core/src/topic.rs",
                "crates/journal/src/fs.rs",
                "crates/broker/src/broker.rs",
                "crates/gapless/src/cmd/serve.rs",
            ] {
                assert_eq!(broken_below_header(path, text), [("clock", 2)], "{path}");
            }
            for path in [
                "crates/broker/src/clock.rs",
                "crates/broker/tests/follow.rs",
                "crates/gapless/src/cmd/bench.rs",
                "crates/gapless/src/cmd/bench_disk.rs",
                "bench/src/hardware.rs",
            ] {
                assert_eq!(broken_below_header(path, text), [], "{path}");
            }
        }
    }

    #[test]
    fn files_are_touched_only_in_the_narrow_place() {
        for text in ["use std::fs;", "File::open(path)", "use std::{fs, io};", "OpenOptions::new()"]
        {
            for path in
                ["crates/core/src/a.rs", "crates/journal/src/log.rs", "crates/broker/src/a.rs"]
            {
                assert_eq!(broken_below_header(path, text), [("files", 2)], "{path}: {text}");
            }
            for path in [
                "crates/journal/src/fs.rs",
                "crates/journal/tests/torn.rs",
                "crates/journal/src/tests.rs",
                "crates/journal/src/log_tests.rs",
                "crates/gapless/src/main.rs",
                "bench/src/main.rs",
            ] {
                assert_eq!(broken_below_header(path, text), [], "{path}: {text}");
            }
        }
    }

    #[test]
    fn tests_inside_a_file_may_touch_files_but_the_code_beside_them_may_not() {
        let text = "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\nuse std::fs;\n";
        assert_eq!(broken_below_header("crates/journal/src/log.rs", text), [("files", 6)]);
    }

    #[test]
    fn files_of_our_own_are_not_the_system_s() {
        for text in ["LogFile::open(path)", "use crate::fs::Disk;"] {
            assert_eq!(broken_below_header("crates/journal/src/log.rs", text), []);
        }
    }

    #[test]
    fn polls_neither_block_on_futures_nor_search_segments() {
        let path = "crates/broker/src/read/follow_topic.rs";
        for (text, rule) in [
            ("use crate::blocking::block_on;", "block"),
            ("let read = block_on(pending)?;", "block"),
            ("let found = inner.journal.find_time(topic, from, times)?;", "segments"),
            ("let newest = self.journal.latest_of_key(id, hash)?;", "segments"),
        ] {
            assert_eq!(broken_below_header(path, text), [(rule, 2)], "{text}");
        }
        let text = "let newest = self.journal.latest_of_key(id, hash)?;";
        assert_eq!(broken_below_header("crates/broker/src/read/lookup.rs", text), []);
        let text = "let newest = inner.latest_of_key(&cell, key)?; // block_on";
        assert_eq!(broken_below_header(path, text), []);
        let text = "#[cfg(test)]\nmod tests { fn f() { block_on(a) } }";
        assert_eq!(broken_below_header(path, text), []);
        assert_eq!(broken_below_header("crates/broker/tests/a.rs", "block_on(a);"), []);
    }

    #[test]
    fn unsafe_stays_in_the_proof() {
        let text = "unsafe { f() }";
        assert_eq!(broken_below_header("crates/core/src/id.rs", text), [("unsafe", 2)]);
        assert_eq!(broken_below_header("bench/src/main.rs", text), [("unsafe", 2)]);
        assert_eq!(broken_below_header("crates/core/no_std_proof/src/main.rs", text), []);
        assert_eq!(broken_below_header("crates/core/src/id.rs", "#![forbid(unsafe_code)]"), []);
    }

    #[test]
    fn a_note_of_work_left_names_its_issue() {
        let path = "crates/core/src/id.rs";
        assert_eq!(broken_below_header(path, "// TODO later"), [("to-do", 2)]);
        assert_eq!(broken_below_header(path, "// TODO(me): later"), [("to-do", 2)]);
        assert_eq!(broken_below_header(path, "// TODO(#): later"), [("to-do", 2)]);
        assert_eq!(broken_below_header(path, "// TODO(#12): later"), []);
        assert_eq!(broken_below_header(path, "const TODOS: u8 = 1;"), []);
    }

    #[test]
    fn long_files_are_found_under_crates_only() {
        let at_limit = HEADER.repeat(FILE_LINES_MAX);
        let over = HEADER.repeat(FILE_LINES_MAX + 1);
        assert_eq!(broken("crates/broker/src/broker.rs", &at_limit), []);
        assert_eq!(broken("crates/broker/src/broker.rs", &over), [("length", 0)]);
        assert_eq!(broken("crates/broker/tests/all.rs", &over), []);
    }

    #[test]
    fn wide_lines_are_counted_in_characters() {
        let at_limit = format!("// {}", "ü".repeat(LINE_COLUMNS_MAX - 3));
        assert_eq!(broken_below_header("crates/core/src/id.rs", &at_limit), []);
        let over = format!("{at_limit}ü");
        assert_eq!(broken_below_header("crates/core/src/id.rs", &over), [("columns", 2)]);
        assert_eq!(broken_below_header("crates/core/tests/id.rs", &over), [("columns", 2)]);
    }

    #[test]
    fn a_file_under_src_begins_with_its_story() {
        assert_eq!(broken("crates/core/src/id.rs", "use core::fmt;\n"), [("header", 1)]);
        assert_eq!(broken("crates/core/tests/id.rs", "use core::fmt;\n"), []);
        assert_eq!(broken("crates/core/src/id.rs", "//! Numbers.\n"), []);
    }
}
