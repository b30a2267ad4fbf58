//! A line on the terminal that shows the progress of something long.
//!
//! It shows itself only on a terminal, only after a moment, and is gone when the work is
//! done: nothing of it ends up in a file.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use gapless_broker::{Clock, SystemClock};

use crate::output::human_bytes;

/// What is done sooner needs no progress.
const SHOW_AFTER: Duration = Duration::from_millis(400);
/// Often enough to look alive.
const DRAW_EVERY: Duration = Duration::from_millis(100);
const BAR_COLUMNS: usize = 24;

/// See the head of the file.
pub(crate) struct Progress {
    clock: SystemClock,
    shown: bool,
    on: bool,
    last: Duration,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let on = !quiet && io::stderr().is_terminal();
        Self { clock: SystemClock::default(), shown: false, on, last: Duration::ZERO }
    }

    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Shows how far it is; the text is created only when it is shown.
    pub(crate) fn update(&mut self, text: impl FnOnce(Duration) -> String) {
        if !self.on {
            return;
        }
        let now = self.clock.monotonic();
        if now < SHOW_AFTER || (self.shown && now - self.last < DRAW_EVERY) {
            return;
        }
        (self.shown, self.last) = (true, now);
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "\r\x1b[2K{}", text(now));
        let _ = stderr.flush();
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[2K");
            let _ = io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A bar with bytes, share and speed.
pub(crate) fn bytes_bar(label: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let share = if total == 0 { 1.0 } else { done as f64 / total as f64 };
    let full = ((share * BAR_COLUMNS as f64) as usize).min(BAR_COLUMNS);
    let bar = "█".repeat(full) + &"░".repeat(BAR_COLUMNS - full);
    let speed = done as f64 / elapsed.as_secs_f64().max(0.001);
    let (done, total, speed) = (human_bytes(done), human_bytes(total), human_bytes(speed as u64));
    format!("{label} {bar} {:3.0} %  {done} of {total}  {speed}/s", share * 100.0)
}

/// A bar with how many are done, and how many of these went wrong.
pub(crate) fn count_bar(label: &str, done: u64, total: u64, failed: u64) -> String {
    let share = if total == 0 { 0.0 } else { done as f64 / total as f64 };
    let full = ((share * BAR_COLUMNS as f64) as usize).min(BAR_COLUMNS);
    let bar = "█".repeat(full) + &"░".repeat(BAR_COLUMNS - full);
    let failed = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("{label} {bar} {done} of {total}{failed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_tells_how_many_are_done_and_failed() {
        let bar = count_bar("jobs", 5, 10, 0);
        assert_eq!(bar, format!("jobs {}{} 5 of 10", "█".repeat(12), "░".repeat(12)));
        assert!(count_bar("jobs", 10, 10, 2).ends_with("10 of 10, 2 failed"));
    }

    #[test]
    fn a_bar_tells_share_and_speed() {
        let bar = bytes_bar("checking", 512, 1024, Duration::from_secs(1));
        assert_eq!(
            bar,
            format!(
                "checking {}{}  50 %  512 B of 1.0 KiB  512 B/s",
                "█".repeat(12),
                "░".repeat(12)
            )
        );
        assert!(bytes_bar("x", 0, 0, Duration::ZERO).contains("100 %"));
        assert!(bytes_bar("x", 9, 3, Duration::ZERO).contains('█'));
    }
}
