//! Which messages of a topic may go, by age, by bytes and by count.
//!
//! Pure decisions: given the runs of messages a topic keeps, where should its floor be?
//! Age and bytes are judged by whole runs, since that is how messages are stored; count is
//! exact. The floor answered never lies below the runs' own beginning and never beyond
//! `next`.
//!
//! Nothing is deleted here: the topic raises its floor, the collector frees.

use crate::id::Seq;
use crate::settings::Retention;
use crate::time::Timestamp;

/// Messages stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The seq of the first of them.
    pub first: Seq,
    /// The seq of the last of them.
    pub last: Seq,
    /// The bytes they take.
    pub bytes: u64,
    /// When the last of them was accepted, so that none goes before its time.
    pub time: Timestamp,
}

/// The first seq that should still be kept. `runs` come oldest first; `next` is the seq the
/// topic's next message gets.
///
/// By bytes, the newest run stays even if it alone is too large: a message that was
/// accepted and gone in one breath would be loss, not retention.
pub fn retained_floor(
    retention: &Retention,
    now: Timestamp,
    runs: impl Iterator<Item = Run> + Clone,
    next: Seq,
) -> Seq {
    let Some(oldest) = runs.clone().next() else {
        return next;
    };
    let mut floor = oldest.first;
    if let Some(age) = retention.age {
        let gone = runs.clone().take_while(|run| run.time.after(age) <= now).last();
        floor = floor.max(gone.map_or(floor, |run| run.last.next()));
    }
    if let Some(bytes_max) = retention.bytes {
        floor = floor.max(floor_by_bytes(bytes_max, runs, floor));
    }
    if let Some(count) = retention.count {
        floor = floor.max(Seq(next.0.saturating_sub(count)));
    }
    floor.min(next)
}

fn floor_by_bytes(bytes_max: u64, runs: impl Iterator<Item = Run> + Clone, floor: Seq) -> Seq {
    let mut bytes = runs.clone().fold(0_u64, |sum, run| sum.saturating_add(run.bytes));
    let mut runs = runs.peekable();
    let mut kept = floor;
    while let Some(run) = runs.next() {
        if bytes <= bytes_max || runs.peek().is_none() {
            break;
        }
        bytes -= run.bytes.min(bytes);
        kept = run.last.next();
    }
    kept
}

/// When the oldest run will be past its age, if it can be.
pub fn next_deadline(oldest_time: Timestamp, retention: &Retention) -> Option<Timestamp> {
    retention.age.map(|age| oldest_time.after(age))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn runs(parts: &[(u64, u64, u64)]) -> Vec<Run> {
        let mut first = Seq(1);
        let run = |&(count, bytes, time): &(u64, u64, u64)| {
            let run = Run { first, last: first.plus(count).prev(), bytes, time: Timestamp(time) };
            first = first.plus(count);
            run
        };
        parts.iter().map(run).collect()
    }

    fn floor(retention: Retention, now: u64, parts: &[(u64, u64, u64)]) -> u64 {
        let runs = runs(parts);
        let next = runs.last().map_or(Seq(1), |run| run.last.next());
        retained_floor(&retention, Timestamp(now), runs.iter().copied(), next).0
    }

    const PARTS: [(u64, u64, u64); 3] = [(10, 100, 1_000), (5, 50, 2_000), (5, 60, 3_000)];

    #[test]
    fn without_limits_everything_stays() {
        assert_eq!(floor(Retention::default(), u64::MAX, &PARTS), 1);
    }

    #[test]
    fn c4_past_its_time_a_message_is_gone() {
        let age = Retention { age: Some(Duration::from_secs(1)), ..Retention::default() };
        assert_eq!(floor(age, 1_999, &PARTS), 1);
        assert_eq!(floor(age, 2_000, &PARTS), 11);
        assert_eq!(floor(age, 9_000, &PARTS), 21);
        assert_eq!(next_deadline(Timestamp(1_000), &age), Some(Timestamp(2_000)));
        assert_eq!(next_deadline(Timestamp(1_000), &Retention::default()), None);
    }

    #[test]
    fn c4_by_bytes_whole_runs_go_and_the_newest_stays() {
        let bytes = |bytes| Retention { bytes: Some(bytes), ..Retention::default() };
        assert_eq!(floor(bytes(210), 0, &PARTS), 1);
        assert_eq!(floor(bytes(209), 0, &PARTS), 11);
        assert_eq!(floor(bytes(109), 0, &PARTS), 16);
        assert_eq!(floor(bytes(1), 0, &PARTS), 16);
    }

    #[test]
    fn c4_by_count_the_floor_is_exact() {
        let count = |count| Retention { count: Some(count), ..Retention::default() };
        assert_eq!(floor(count(7), 0, &PARTS), 14);
        assert_eq!(floor(count(20), 0, &PARTS), 1);
        assert_eq!(floor(count(21), 0, &PARTS), 1);
    }

    proptest! {
        #[test]
        fn more_time_never_lowers_the_floor(
            parts in proptest::collection::vec((1_u64..20, 0_u64..100, 0_u64..50), 0..10),
            limits in (proptest::option::of(1_u64..50), proptest::option::of(1_u64..300),
                proptest::option::of(1_u64..100)),
            now in 0_u64..100,
        ) {
            let mut parts = parts;
            parts.sort_by_key(|part| part.2);
            let retention = Retention {
                age: limits.0.map(Duration::from_millis),
                bytes: limits.1,
                count: limits.2,
            };
            let total: u64 = parts.iter().map(|part| part.0).sum();
            let (early, late) = (floor(retention, now, &parts), floor(retention, now + 10, &parts));
            prop_assert!(1 <= early && early <= late && late <= total + 1);
            if let Some(count) = limits.2 {
                prop_assert!(total + 1 - early <= count);
            }
            if let Some(age) = limits.0 {
                let kept = runs(&parts).into_iter().filter(|run| run.last.0 >= early);
                prop_assert!(kept.into_iter().all(|run| run.time.0 + age > now));
            }
        }
    }
}
