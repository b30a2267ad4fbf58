//! What the program says about its work: to stderr, for people or as JSON lines.
//!
//! No one can fill a disk with it: each kind of line (a place in the code) has a share of lines for
//! each [`SPAN`], and what is beyond it is counted and left out. So a flood of refused requests
//! hides neither an error nor itself: how many were left out is a line of its own. Values from
//! outside are fields of type string, which the text form quotes and escapes.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt as lines};

use crate::exit::Failure;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What a server logs at a terminal: everything but who comes, goes and asks for what.
pub(crate) const AT_A_TERMINAL: &str = "info,clients=warn,audit=warn";

/// How long a share of lines is for: long enough for a burst at the start, short enough that what
/// was left out is soon reported.
pub(crate) const SPAN: Duration = Duration::from_secs(10);

/// Where lines of the access log go; they have a limit of their own.
const ACCESS: &str = "access";

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
    let all = tracing_subscriber::registry().with(filter).with(Limited);
    let lines = lines::layer().with_writer(io::stderr);
    // If logging was set up before, it stays so.
    let _ = if as_json {
        all.with(lines.json().flatten_event(true)).try_init()
    } else {
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        all.with(lines.with_ansi(colours).with_target(false)).try_init()
    };
    Ok(())
}

/// How many lines there may be for each second; zero is any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of one kind.
    pub(crate) lines: u32,
    /// Of the access log.
    pub(crate) access: u32,
}

static LINES: AtomicU32 = AtomicU32::new(0);
static ACCESS_LINES: AtomicU32 = AtomicU32::new(0);
static KINDS: Mutex<Option<Kinds>> = Mutex::new(None);

/// Limits it from now on. Commands that end by themselves have no limit.
pub(crate) fn limit(limits: Limits) {
    metrics::describe_counter!(LEFT_OUT, "Lines of the log left out, because there were too many.");
    metrics::counter!(LEFT_OUT).increment(0);
    LINES.store(limits.lines, Ordering::Relaxed);
    ACCESS_LINES.store(limits.access, Ordering::Relaxed);
}

/// Says how many lines were left out, every [`SPAN`].
pub(crate) async fn report_left_out() {
    let mut due = tokio::time::interval(SPAN);
    loop {
        due.tick().await;
        say_left_out();
    }
}

/// Says how many lines were left out since this was last said.
pub(crate) fn say_left_out() {
    // Taken first: what is said here is a line too.
    let all = kinds().as_mut().map(Kinds::take_left_out).unwrap_or_default();
    for (lines, of) in all {
        tracing::warn!(lines, of = &*of, "lines of the log were left out");
    }
}

const LEFT_OUT: &str = "gapless_log_lines_left_out_total";

fn kinds() -> MutexGuard<'static, Option<Kinds>> {
    KINDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The layer that leaves lines out.
struct Limited;

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let per_second = match metadata.target() {
            ACCESS => ACCESS_LINES.load(Ordering::Relaxed),
            _ => LINES.load(Ordering::Relaxed),
        };
        if per_second == 0 {
            return true;
        }
        let mut kinds = kinds();
        let kinds = kinds.get_or_insert_default();
        let share = per_second.saturating_mul(SPAN.as_secs() as u32);
        let admitted = kinds.admit(metadata.callsite(), share, Instant::now(), || words_of(event));
        if !admitted {
            metrics::counter!(LEFT_OUT).increment(1);
        }
        admitted
    }
}

/// What is said of each kind of line: as many as the program has places that log.
#[derive(Default)]
struct Kinds(HashMap<Identifier, Kind>);

struct Kind {
    /// When its share began.
    since: Instant,
    /// Lines since then.
    lines: u32,
    left_out: u64,
    /// The words of it that was left out.
    words: String,
}

impl Kinds {
    fn admit(
        &mut self,
        of: Identifier,
        share: u32,
        now: Instant,
        words: impl FnOnce() -> String,
    ) -> bool {
        let new = || Kind { since: now, lines: 0, left_out: 0, words: String::new() };
        let kind = self.0.entry(of).or_insert_with(new);
        if now.saturating_duration_since(kind.since) >= SPAN {
            (kind.since, kind.lines) = (now, 0);
        }
        if kind.lines < share {
            kind.lines += 1;
            return true;
        }
        if kind.left_out == 0 {
            kind.words = words();
        }
        kind.left_out += 1;
        false
    }

    fn take_left_out(&mut self) -> Vec<(u64, String)> {
        let left_out = self.0.values_mut().filter(|kind| kind.left_out > 0);
        left_out
            .map(|kind| (std::mem::take(&mut kind.left_out), std::mem::take(&mut kind.words)))
            .collect()
    }
}

/// The words of a line, without its values.
fn words_of(event: &Event<'_>) -> String {
    struct Words(String);
    impl Visit for Words {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }
    let mut words = Words(String::new());
    event.record(&mut words);
    words.0
}

#[cfg(test)]
mod tests {
    use tracing::Callsite as _;

    use super::*;

    #[test]
    fn a_kind_of_line_has_a_share_for_each_span_and_what_is_beyond_is_counted() {
        let (mut kinds, begin) = (Kinds::default(), Instant::now());
        let (one, other) = (identifier(), other_identifier());
        let mut admit = |of: &Identifier, at| kinds.admit(of.clone(), 2, begin + at, || "x".into());
        let second = Duration::from_secs(1);
        assert!(admit(&one, second) && admit(&one, 2 * second));
        assert!(!admit(&one, 3 * second) && !admit(&one, 10 * second));
        assert!(admit(&other, 3 * second), "another kind has its own share");
        assert!(admit(&one, 11 * second), "a new span began");
        assert_eq!(kinds.take_left_out(), [(2, "x".to_owned())]);
        assert_eq!(kinds.take_left_out(), []);
    }

    fn identifier() -> Identifier {
        tracing::callsite!(name: "one", kind: tracing::metadata::Kind::EVENT, fields: "message")
            .metadata()
            .callsite()
    }

    fn other_identifier() -> Identifier {
        tracing::callsite!(name: "two", kind: tracing::metadata::Kind::EVENT, fields: "message")
            .metadata()
            .callsite()
    }
}
