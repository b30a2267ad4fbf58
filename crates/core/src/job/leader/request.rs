//! What clients ask for: submit, watch, cancel, retry.

use super::*;

impl Leader {
    pub(super) fn submit(
        &mut self,
        now: Timestamp,
        session: Session,
        spec: Arc<Spec>,
        effects: &mut Vec<Effect>,
    ) {
        let id = spec.id;
        if let Some(known) = self.jobs.get(&id) {
            if known.spec.digest != spec.digest || known.spec.client != spec.client {
                effects.push(Effect::Refused { session, job: id, why: Refusal::IdTaken });
                return;
            }
            effects.push(Effect::Submitted { session, job: id, known: true });
            self.watch(session, id, effects);
            return;
        }
        if let Err(why) = self.may_submit(session, &spec) {
            effects.push(Effect::Refused { session, job: id, why });
            return;
        }
        let Some(until) = self.first_time(&spec, now) else {
            effects.push(Effect::Refused { session, job: id, why: Refusal::NoTime });
            return;
        };
        let number = self.next_number;
        let record = Record {
            spec,
            number,
            submitted: now,
            attempt: 0,
            failures: 0,
            deaths: 0,
            origin: None,
            cap: None,
            stage: Stage::Open { until },
        };
        self.insert(record);
        self.jobs.get_mut(&id).expect("it was just made").watchers.push(session);
        effects.push(Effect::Save(id));
        effects.push(Effect::Submitted { session, job: id, known: false });
        self.admit(now, id);
        let failed = self.failed_dependency(id);
        if failed {
            self.end(now, id, End::Dependency, effects);
        }
    }

    pub(super) fn may_submit(&self, session: Session, spec: &Spec) -> Result<(), Refusal> {
        if !matches!(self.sessions.get(&session), Some(Role::Client(_) | Role::Observer)) {
            return Err(Refusal::NoHello);
        }
        if self.jobs.len() >= self.limits.jobs_max {
            return Err(Refusal::TooMany { what: "jobs", most: self.limits.jobs_max });
        }
        let new_exec = !self.turn.knows(&spec.exec);
        if new_exec && self.turn.exec_count() >= EXECS_MAX {
            return Err(Refusal::TooMany { what: "executables", most: EXECS_MAX });
        }
        let unique = spec.unique.as_ref().filter(|_| spec.cron.is_none());
        if let Some(other) = unique.and_then(|unique| self.unique.get(unique)) {
            return Err(Refusal::NotUnique(*other));
        }
        match spec.after.iter().find(|job| !self.jobs.contains_key(job)) {
            Some(job) => Err(Refusal::Unknown(*job)),
            None => Ok(()),
        }
    }

    pub(super) fn watch(&mut self, session: Session, job: JobId, effects: &mut Vec<Effect>) {
        match self.jobs.get_mut(&job) {
            None => {
                let why = Refusal::Unknown(job);
                effects.push(Effect::Refused { session, job, why });
            }
            Some(known) if !known.is_open() => effects.push(Effect::Result { session, job }),
            Some(known) => {
                // Connections that are gone leave here, so that the list stays short.
                let sessions = &self.sessions;
                known.watchers.retain(|each| *each != session && sessions.contains_key(each));
                known.watchers.push(session);
            }
        }
    }

    pub(super) fn cancel(
        &mut self,
        now: Timestamp,
        session: Session,
        job: JobId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.jobs.get_mut(&job) else {
            effects.push(Effect::Refused { session, job, why: Refusal::Unknown(job) });
            return;
        };
        let token = known.token();
        match &mut known.phase {
            Phase::Ended { .. } => {
                effects.push(Effect::Refused { session, job, why: Refusal::AlreadyEnded });
            }
            Phase::Running(run) => {
                let worker = run.worker;
                if !run.cancel {
                    run.cancel = true;
                    effects.push(Effect::Save(job));
                }
                if let Some(to) = self.workers[&worker].session {
                    effects.push(Effect::Revoke { session: to, token });
                }
                effects.push(Effect::Done { session, job });
            }
            _ => {
                self.end(now, job, End::Cancelled, effects);
                effects.push(Effect::Done { session, job });
            }
        }
    }

    pub(super) fn retry(
        &mut self,
        now: Timestamp,
        session: Session,
        job: JobId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.jobs.get(&job) else {
            effects.push(Effect::Refused { session, job, why: Refusal::Unknown(job) });
            return;
        };
        let unique = known.spec.unique.as_ref().filter(|_| known.spec.cron.is_none());
        let other = unique.and_then(|unique| self.unique.get(unique));
        let why = match (&known.phase, other) {
            (Phase::Ended { how: End::Succeeded, .. }, _) => Refusal::NotRetryable,
            (Phase::Ended { .. }, Some(other)) => Refusal::NotUnique(*other),
            (Phase::Ended { .. }, None) => {
                let mut record = self.record(job).expect("it is known");
                self.remove(job);
                record.failures = 0;
                record.deaths = 0;
                let until = match record.spec.cron {
                    Some(_) => self.first_time(&record.spec, now).unwrap_or(now),
                    None => now,
                };
                record.stage = Stage::Open { until };
                self.insert(record);
                effects.push(Effect::Save(job));
                effects.push(Effect::Done { session, job });
                self.admit(now, job);
                if self.failed_dependency(job) {
                    self.end(now, job, End::Dependency, effects);
                }
                return;
            }
            _ => Refusal::NotRetryable,
        };
        effects.push(Effect::Refused { session, job, why });
    }
}
