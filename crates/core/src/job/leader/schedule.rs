//! Schedules: jobs that do not run themselves, but have a job run whenever their time comes.
//!
//! A schedule is an open job that waits for its next time. Then a job like it is made, under an
//! id that follows from the schedule and the time: the same time never makes a second one, also
//! after a crash. Times that pass while no leader is there make one job, not many. A job that
//! cannot be made, as another one of its unique value is not ended, is left out.
//!
//! The calendar is handed in: when a text like `0 3 * * *` comes next is no matter of leading.

use super::*;
use crate::backoff::splitmix;

/// When the time of a schedule comes next, after this time; `None` if it never does.
pub type Calendar = fn(&str, Timestamp) -> Option<Timestamp>;

impl Leader {
    /// When a job may run first: for a schedule, when its time comes first.
    pub(super) fn first_time(&self, spec: &Spec, now: Timestamp) -> Option<Timestamp> {
        match &spec.cron {
            None => Some(spec.not_before),
            Some(cron) => (self.calendar)(cron, now.max(spec.not_before)),
        }
    }

    /// The time of a schedule has come.
    pub(super) fn fire(&mut self, now: Timestamp, schedule: JobId, effects: &mut Vec<Effect>) {
        let known = &self.jobs[&schedule];
        let (spec, due) = (Arc::clone(&known.spec), known.until);
        let id = id_at(schedule, due);
        let made = Spec {
            id,
            cron: None,
            not_before: due,
            digest: spec.digest ^ u128::from(due.0),
            ..(*spec).clone()
        };
        let taken = made.unique.as_ref().is_some_and(|unique| self.unique.contains_key(unique));
        let room = self.jobs.len() < self.limits.jobs_max;
        if !taken && room && !self.jobs.contains_key(&id) {
            self.insert(Record {
                spec: Arc::new(made),
                number: self.next_number,
                submitted: now,
                attempt: 0,
                failures: 0,
                deaths: 0,
                origin: Some(schedule),
                cap: None,
                stage: Stage::Open { until: due },
            });
            effects.push(Effect::Save(id));
            self.admit(now, id);
            if self.failed_dependency(id) {
                self.end(now, id, End::Dependency, effects);
            }
        }
        let cron = spec.cron.as_ref().expect("only a schedule fires");
        match (self.calendar)(cron, now) {
            Some(next) => {
                self.jobs.get_mut(&schedule).expect("it is known").until = next;
                self.set_phase(schedule, Phase::Delayed(next));
                effects.push(Effect::Save(schedule));
            }
            None => self.end(now, schedule, End::Succeeded, effects),
        }
    }
}

/// The id of the job that a schedule makes at this time.
fn id_at(schedule: JobId, due: Timestamp) -> JobId {
    let (high, low) = ((schedule.0 >> 64) as u64, schedule.0 as u64);
    let mixed = |half: u64| u128::from(splitmix(half ^ splitmix(due.0)));
    JobId((mixed(high) << 64) | mixed(low.rotate_left(1)))
}
