//! What a leader counts: jobs by how they ended, attempts, and how long jobs wait and run.
//!
//! Only for people and their graphs; nothing is decided by it, and it begins at zero when the
//! leader starts.

use std::collections::{BTreeMap, BTreeSet};

use gapless_core::Timestamp;
use gapless_core::job::leader::{Effect, Leader as Machine};
use gapless_core::job::record::{End, Record, Stage};
use gapless_core::job::{JobId, Token};
use serde_json::{Value, json};

use crate::shown::{Times, Totals};

/// Something to be said on `$events`: the kind, and its fields.
pub(crate) type Event = (&'static str, Vec<(&'static str, Value)>);

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) totals: Totals,
    wait: Spread,
    run: Spread,
    /// Since when the jobs run that a worker has now.
    running: BTreeMap<JobId, Timestamp>,
    /// Since when a job waits for its next attempt.
    again: BTreeMap<JobId, Timestamp>,
}

impl Tally {
    pub(crate) fn wait(&self) -> Times {
        self.wait.times()
    }

    pub(crate) fn run(&self) -> Times {
        self.run.times()
    }

    /// Counts what a turn of the leader did, and says what others may want to hear of it.
    pub(crate) fn note(
        &mut self,
        now: Timestamp,
        machine: &Machine,
        effects: &[Effect],
    ) -> Vec<Event> {
        let (mut events, mut saved) = (Vec::new(), BTreeSet::new());
        for effect in effects {
            match effect {
                Effect::Submitted { job, known: false, .. } => {
                    self.totals.submitted += 1;
                    events.extend(machine.record(*job).map(|job| event("job.submitted", &job)));
                }
                Effect::Assign { token, .. } => {
                    let Some(record) = machine.record(token.job) else { continue };
                    self.started(now, *token, &record);
                    events.push(event("job.started", &record));
                }
                Effect::Stale { .. } => self.totals.stale += 1,
                // The newest record counts, however often a job changed in this turn.
                Effect::Save(job) if saved.insert(*job) => {
                    let Some(record) = machine.record(*job) else { continue };
                    events.extend(self.saved(now, &record));
                }
                Effect::Forget(job) => {
                    self.again.remove(job);
                }
                _ => {}
            }
        }
        events
    }

    fn started(&mut self, now: Timestamp, token: Token, record: &Record) {
        if token.attempt > 1 {
            self.totals.resends += 1;
        }
        let not_before = record.spec.not_before.max(record.submitted);
        let since = self.again.remove(&token.job).unwrap_or(not_before);
        self.wait.note(now.since(since).as_millis() as u64);
        self.running.insert(token.job, now);
    }

    /// A change of a job: an attempt may be over, or the whole job.
    fn saved(&mut self, now: Timestamp, record: &Record) -> Option<Event> {
        let id = record.spec.id;
        match &record.stage {
            Stage::Running { .. } => None,
            Stage::Open { until } => {
                self.attempt_over(now, id);
                if record.attempt == 0 {
                    return None;
                }
                self.again.insert(id, now.max(*until));
                Some(event("job.again", record))
            }
            Stage::Ended { how, .. } => {
                self.attempt_over(now, id);
                self.again.remove(&id);
                let (count, kind) = match how {
                    End::Succeeded => (&mut self.totals.succeeded, "job.ended"),
                    End::Failed => (&mut self.totals.failed, "job.ended"),
                    End::Cancelled => (&mut self.totals.cancelled, "job.ended"),
                    _ => (&mut self.totals.dead, "job.dead"),
                };
                *count += 1;
                let mut event = event(kind, record);
                event.1.push(("how", how.name().into()));
                Some(event)
            }
        }
    }

    fn attempt_over(&mut self, now: Timestamp, job: JobId) {
        if let Some(started) = self.running.remove(&job) {
            self.run.note(now.since(started).as_millis() as u64);
        }
    }
}

fn event(kind: &'static str, record: &Record) -> Event {
    let spec = &record.spec;
    let fields = vec![
        ("job", json!(spec.id.to_string())),
        ("exec", json!(&*spec.exec)),
        ("client", json!(&*spec.client)),
        ("attempt", json!(record.attempt)),
    ];
    (kind, fields)
}

/// Buckets per power of two.
const STEPS: u64 = 4;
/// Powers of two: up to 24 days, in milliseconds. What is longer counts as that.
const POWERS: usize = 31;
/// The longest time that is told apart.
const MS_MAX: u64 = (1 << POWERS) - 1;

/// How often something took how long. Buckets grow by a quarter of a power of two.
#[derive(Clone, Debug)]
struct Spread {
    buckets: [u64; POWERS * STEPS as usize],
    count: u64,
    sum_ms: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { buckets: [0; POWERS * STEPS as usize], count: 0, sum_ms: 0 }
    }
}

impl Spread {
    fn note(&mut self, ms: u64) {
        let least = ms.clamp(1, MS_MAX);
        let power = least.ilog2();
        let quarter = ((least - (1 << power)) * STEPS) >> power;
        let at = (u64::from(power) * STEPS + quarter) as usize;
        self.buckets[at] += 1;
        self.count += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    /// The time that so many of a hundred did not exceed.
    fn quantile(&self, percent: u64) -> Option<u64> {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut passed = 0;
        let at = self.buckets.iter().position(|bucket| {
            passed += bucket;
            passed >= wanted
        })?;
        let (power, quarter) = (at as u64 / STEPS, at as u64 % STEPS);
        let begin = 1_u64 << power;
        Some(begin + (begin * (quarter + 1)).div_ceil(STEPS) - 1)
    }

    fn times(&self) -> Times {
        Times {
            count: self.count,
            sum_ms: self.sum_ms,
            p50_ms: self.quantile(50),
            p95_ms: self.quantile(95),
            p99_ms: self.quantile(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e10_quantiles_are_right_to_within_a_quarter() {
        let mut spread = Spread::default();
        assert_eq!(spread.times(), Times::default());
        (1..=1000).for_each(|ms| spread.note(ms));
        for (percent, exact) in [(50, 500), (95, 950), (99, 990)] {
            let told = spread.quantile(percent).expect("there are some");
            assert!((exact..=exact * 5 / 4).contains(&told), "{percent}: {told}");
        }
        assert_eq!((spread.count, spread.sum_ms), (1000, 500_500));
        spread.note(u64::MAX);
        spread.note(0);
        assert_eq!(spread.count, 1002);
    }
}
