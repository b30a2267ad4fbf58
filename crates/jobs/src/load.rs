//! How busy the machine is, as the share of processor time that was used lately.

use std::time::Duration;

use crate::clock::{self, Instant};

/// A share is measured over at least this time.
const MEASURE: Duration = Duration::from_millis(100);

/// Looks at the machine's processor time.
#[derive(Debug, Default)]
pub(crate) struct Load {
    last: Option<(Instant, Times)>,
    share: f64,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    busy: u64,
    all: u64,
}

impl Load {
    /// The share of all processors that was used since the last look: 0 to 1. On a system that
    /// does not tell, 0.
    pub(crate) fn busy_share(&mut self) -> f64 {
        let now = clock::now();
        if self.last.is_some_and(|(at, _)| now - at < MEASURE) {
            return self.share;
        }
        let Some(times) = read_times() else { return 0.0 };
        if let Some((_, before)) = self.last {
            let all = times.all.saturating_sub(before.all);
            let busy = times.busy.saturating_sub(before.busy);
            if all > 0 {
                self.share = busy as f64 / all as f64;
            }
        }
        self.last = Some((now, times));
        self.share
    }
}

/// The first line of `/proc/stat`: `cpu user nice system idle iowait …`.
fn read_times() -> Option<Times> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let numbers = text.lines().next()?.split_whitespace().skip(1);
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4)?;
    let all = numbers.iter().take(8).sum();
    Some(Times { busy: all - idle, all })
}
