//! What workers say about their attempts, and what a failure or a lost worker leads to.

use super::*;

impl Leader {
    /// The run of this attempt, if it is the one that counts and this connection has it.
    pub(super) fn run_of(&mut self, session: Session, token: Token) -> Option<&mut Run> {
        let Some(Role::Worker(worker)) = self.sessions.get(&session).copied() else { return None };
        let job = self.jobs.get_mut(&token.job)?;
        if job.token() != token {
            return None;
        }
        match &mut job.phase {
            Phase::Running(run) if run.worker == worker => Some(run),
            _ => None,
        }
    }

    pub(super) fn renew(
        &mut self,
        now: Timestamp,
        session: Session,
        token: Token,
        effects: &mut Vec<Effect>,
    ) {
        let lease_ends = now.after(self.limits.lease + self.limits.margin);
        let Some(run) = self.run_of(session, token) else {
            effects.push(Effect::Stale { session, token });
            return;
        };
        let (before, cancel) = (run.lease_ends, run.cancel);
        run.lease_ends = lease_ends;
        self.deadlines.remove(&(before, token.job));
        self.deadlines.insert((lease_ends, token.job));
        effects.push(if cancel {
            Effect::Revoke { session, token }
        } else {
            Effect::Renewed { session, token }
        });
    }

    pub(super) fn ack(
        &mut self,
        now: Timestamp,
        (session, token): (Session, Token),
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let Some(run) = self.run_of(session, token) else {
            effects.push(Effect::Stale { session, token });
            return;
        };
        let cancel = run.cancel;
        let job = token.job;
        match outcome {
            Outcome::Succeeded => self.end(now, job, End::Succeeded, effects),
            Outcome::Returned => {
                self.void_credit(session);
                self.returned(now, job, effects);
            }
            _ if cancel => self.end(now, job, End::Cancelled, effects),
            Outcome::Failed { again: false } => self.end(now, job, End::Failed, effects),
            Outcome::Failed { again: true } | Outcome::NotStarted | Outcome::Cancelled => {
                self.failed(now, job, effects);
            }
        }
        effects.push(Effect::Taken { session, token });
    }

    /// An attempt came back as if it had never begun: its job is ready again.
    pub(super) fn returned(&mut self, now: Timestamp, job: JobId, effects: &mut Vec<Effect>) {
        let Phase::Running(run) = &self.jobs[&job].phase else { return };
        if run.cancel {
            self.end(now, job, End::Cancelled, effects);
            return;
        }
        self.leave_worker(now, job);
        self.jobs.get_mut(&job).expect("it ran").until = now;
        effects.push(Effect::Save(job));
        self.admit(now, job);
    }

    /// An attempt failed: the job is tried again later, or is dead.
    pub(super) fn failed(&mut self, now: Timestamp, job: JobId, effects: &mut Vec<Effect>) {
        let known = self.jobs.get_mut(&job).expect("a running job is known");
        known.failures += 1;
        if known.failures >= known.spec.attempts_max {
            self.end(now, job, End::TooManyFailures, effects);
        } else {
            self.again(now, job, effects);
        }
    }

    /// The worker of a job is lost, or its lease ran out.
    pub(super) fn lost(&mut self, now: Timestamp, job: JobId, effects: &mut Vec<Effect>) {
        let known = self.jobs.get_mut(&job).expect("a running job is known");
        let Phase::Running(run) = &known.phase else { return };
        let token = known.token();
        known.deaths += 1;
        let dead = known.deaths >= known.spec.deaths_max;
        if let Some(session) = self.workers[&run.worker].session {
            effects.push(Effect::Stale { session, token });
        }
        if run.cancel {
            self.end(now, job, End::Cancelled, effects);
        } else if dead {
            self.end(now, job, End::TooManyDeaths, effects);
        } else {
            self.again(now, job, effects);
        }
    }

    pub(super) fn again(&mut self, now: Timestamp, job: JobId, effects: &mut Vec<Effect>) {
        self.leave_worker(now, job);
        let known = self.jobs.get_mut(&job).expect("a running job is known");
        let tries = known.failures + known.deaths;
        let seed = (job.0 as u64) ^ (u64::from(known.attempt) << 32);
        known.until = now.after(known.spec.retry.wait(tries, seed));
        effects.push(Effect::Save(job));
        self.admit(now, job);
    }
}
