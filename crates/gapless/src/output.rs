//! Where a command prints: results to stdout, everything said besides to stderr.
//!
//! Colours are for terminals only, and off when `NO_COLOR` is set. Programs read
//! stdout, so that notes, progress and questions never go there.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use serde_json::{Value, json};

use crate::exit::Failure;

/// Puts colours on words, or does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

macro_rules! colours {
    ($($name:ident $code:literal),+) => {
        $(pub(crate) fn $name(self, text: impl fmt::Display) -> String {
            self.with($code, text)
        })+
    };
}

impl Paint {
    #[cfg(test)]
    pub(crate) const OFF: Self = Self { on: false };

    fn new(is_terminal: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        Self { on: is_terminal && !dumb && set("NO_COLOR").is_none() }
    }

    fn with(self, code: &str, text: impl fmt::Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    colours!(bold "1", dim "2", red "31", green "32", yellow "33", cyan "36");
}

/// Stdout and stderr of a command, and how to write to them.
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// Colours of stdout.
    pub(crate) paint: Paint,
    /// Colours of stderr.
    pub(crate) paint_notes: Paint,
    stdout: BufWriter<Stdout>,
}

impl Output {
    /// Whether a user can be asked: on a terminal, and without `--json`.
    pub(crate) fn can_ask(&self) -> bool {
        !self.json && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Self {
            json,
            quiet,
            paint: Paint::new(io::stdout().is_terminal()),
            paint_notes: Paint::new(io::stderr().is_terminal()),
            stdout: BufWriter::new(io::stdout()),
        }
    }

    pub(crate) fn line(&mut self, text: impl fmt::Display) -> io::Result<()> {
        writeln!(self.stdout, "{text}")
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)
    }

    /// One JSON value on a line of its own.
    pub(crate) fn json_line(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.stdout, "{value}")
    }

    /// One JSON value that is written already, on a line of its own.
    pub(crate) fn json_bytes(&mut self, json: &[u8]) -> io::Result<()> {
        self.stdout.write_all(json)?;
        self.stdout.write_all(b"\n")
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }

    /// The result of something that was done: JSON for programs, a line for people unless
    /// they want quiet.
    pub(crate) fn result(&mut self, value: &Value, text: impl fmt::Display) -> io::Result<()> {
        match (self.json, self.quiet) {
            (true, _) => self.json_line(value),
            (false, true) => Ok(()),
            (false, false) => self.line(text),
        }
    }

    /// A table for people, as wide as the terminal at most.
    pub(crate) fn table(&mut self, table: &Table) -> io::Result<()> {
        let width = if io::stdout().is_terminal() { terminal_width() } else { None };
        let text = table.render(self.paint, width);
        self.stdout.write_all(text.as_bytes())
    }

    /// Something said besides, dim, to stderr. What was printed before comes before it.
    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        // A note that cannot be written is not a reason to fail.
        let _ = self.stdout.flush();
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", self.paint_notes.dim(text));
        }
    }

    /// Says why a command failed, and what to do.
    pub(crate) fn failure(&mut self, failure: &Failure) {
        let _ = self.stdout.flush();
        let mut stderr = io::stderr().lock();
        if self.json {
            let error = json!({
                "error": failure.message,
                "hint": failure.hint,
                "code": failure.code,
                "exit": failure.exit as u8,
            });
            let _ = writeln!(stderr, "{error}");
            return;
        }
        let paint = self.paint_notes;
        let _ = writeln!(stderr, "{} {}", paint.red("gapless:"), failure.message);
        for line in failure.hint.iter().flat_map(|hint| hint.lines()) {
            let _ = writeln!(stderr, "  {line}");
        }
    }
}

/// Asks a question that is answered by yes or no; no when no user can be asked.
pub(crate) fn ask(question: &str) -> io::Result<bool> {
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
}

/// The columns of the terminal; `None` when it does not say. `stty` is asked because the
/// system call needs unsafe code or one more dependency.
fn terminal_width() -> Option<usize> {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    set.or_else(|| {
        let tty = std::fs::File::open("/dev/tty").ok()?;
        let asked = std::process::Command::new("stty").arg("size").stdin(tty).output().ok()?;
        let text = String::from_utf8(asked.stdout).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    })
    .filter(|columns| *columns >= 20)
}

/// Rows under headings.
#[derive(Debug, Default)]
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A heading that begins with `>` is of a column of numbers, set to the right.
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.headings.len());
        self.rows.push(cells);
    }

    /// The table as text. The last column gives way when the terminal is too narrow.
    pub(crate) fn render(&self, paint: Paint, width: Option<usize>) -> String {
        let name = |at: usize| self.headings[at].trim_start_matches('>');
        let columns = self.headings.len();
        let wide = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = (0..columns).map(|at| wide(name(at))).collect();
        for row in &self.rows {
            for (at, cell) in row.iter().enumerate() {
                widths[at] = widths[at].max(wide(cell));
            }
        }
        let before: usize = widths[..columns - 1].iter().map(|width| width + 2).sum();
        let last = width.map(|width| width.saturating_sub(before).max(8));
        let render = |cell: &str, at: usize| {
            let width = widths[at];
            match (at + 1 == columns, self.headings[at].starts_with('>')) {
                (true, _) => cut(cell, last),
                (false, true) => format!("{cell:>width$}  "),
                (false, false) => format!("{cell:<width$}  "),
            }
        };
        let line = |cells: Vec<String>| cells.concat().trim_end().to_owned() + "\n";
        let heading = line((0..columns).map(|at| render(name(at), at)).collect());
        let mut text = paint.dim(heading.trim_end()) + "\n";
        for row in &self.rows {
            text += &line(row.iter().enumerate().map(|(at, cell)| render(cell, at)).collect());
        }
        text
    }
}

fn cut(text: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if text.chars().count() > width => {
            text.chars().take(width - 1).chain(['…']).collect()
        }
        _ => text.to_owned(),
    }
}

/// A size for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A duration for people, in its largest whole unit, so that it can be typed again.
pub(crate) fn human_duration(duration: std::time::Duration) -> String {
    let ms = duration.as_millis();
    for (unit, each) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms >= each && ms.is_multiple_of(each) {
            return format!("{}{unit}", ms / each);
        }
    }
    format!("{ms}ms")
}

/// How long something took or is there, in its two largest units or so.
pub(crate) fn human_span(duration: std::time::Duration) -> String {
    match duration.as_secs() {
        0 => format!("{}ms", duration.as_millis()),
        seconds @ 1..60 => format!("{seconds}.{}s", duration.subsec_millis() / 100),
        seconds @ 60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds @ 3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Thousands apart, as `1 234 567`.
pub(crate) fn human_number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn durations_can_be_typed_again() {
        for text in ["3d", "36h", "90m", "5s", "1500ms", "0ms"] {
            assert_eq!(human_duration(crate::values::duration(text).unwrap()), text);
        }
        assert_eq!(human_span(Duration::from_millis(12)), "12ms");
        assert_eq!(human_span(Duration::from_millis(1_250)), "1.2s");
        assert_eq!(human_span(Duration::from_secs(3_725)), "1h02m");
        assert_eq!(human_span(Duration::from_secs(90_000)), "1d01h");
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(human_number(0), "0");
        assert_eq!(human_number(999), "999");
        assert_eq!(human_number(1_234_567), "1 234 567");
    }

    #[test]
    fn a_table_lines_up_and_fits_the_terminal() {
        let mut table = Table::new(&["NAME", ">SEQ", "WHAT"]);
        table.row(vec!["a".into(), "7".into(), "short".into()]);
        table.row(vec!["orders".into(), "1234".into(), "a rather long text".into()]);
        let whole = table.render(Paint::OFF, None);
        assert_eq!(
            whole,
            "NAME     SEQ  WHAT\na          7  short\norders  1234  a rather long text\n"
        );
        let narrow = table.render(Paint::OFF, Some(24));
        assert!(narrow.contains("orders  1234  a rather …\n"), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 24), "{narrow}");
    }

    #[test]
    fn colours_are_put_on_only_when_they_are_on() {
        assert_eq!(Paint::OFF.red("x"), "x");
        assert_eq!(Paint { on: true }.red("x"), "\x1b[31mx\x1b[0m");
        assert!(!Paint::new(false).on);
    }
}
