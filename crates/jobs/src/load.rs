//! How busy the machine is: the share of processor time that was used lately or, where the system
//! tells it, the share of time in which something waited for a processor, if that is more. The
//! latter sees limits of a container too.

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
    /// Microseconds in which something waited for a processor.
    stalled: u64,
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
        if let Some((at, before)) = self.last {
            let all = times.all.saturating_sub(before.all);
            let busy = times.busy.saturating_sub(before.busy);
            if all > 0 {
                let stalled = times.stalled.saturating_sub(before.stalled);
                let waited = stalled as f64 / (now - at).as_micros() as f64;
                self.share = (busy as f64 / all as f64).max(waited.min(1.0));
            }
        }
        self.last = Some((now, times));
        self.share
    }
}

fn read_times() -> Option<Times> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let pressure = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let (busy, all) = parse_stat(&stat)?;
    Some(Times { busy, all, stalled: parse_pressure(&pressure).unwrap_or(0) })
}

/// The first line of `/proc/stat`: `cpu user nice system idle iowait …`. What was used, and all.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let numbers = text.lines().next()?.split_whitespace().skip(1);
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4)?;
    let all: u64 = numbers.iter().take(8).sum();
    Some((all - idle, all))
}

/// The first line of `/proc/pressure/cpu`: `some avg10=… avg60=… avg300=… total=<microseconds>`.
fn parse_pressure(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e6_what_the_system_says_of_its_processors_is_understood() {
        let stat = "cpu  10 1 5 70 14 0 0 0 0 0\ncpu0 1 1 1 1 1\n";
        assert_eq!(parse_stat(stat), Some((16, 100)));
        let pressure = "some avg10=32.21 avg60=7.78 avg300=10.16 total=8659744\nfull total=1\n";
        assert_eq!(parse_pressure(pressure), Some(8_659_744));
        assert_eq!((parse_stat(""), parse_pressure("")), (None, None));
    }
}
