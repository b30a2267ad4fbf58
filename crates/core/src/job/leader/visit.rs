//! Connections that are no client's and no worker's own: those that look and manage, and the
//! requests of workers that have no connection between them.
//!
//! A worker of the second kind takes jobs by one request, and speaks of its attempts by others.
//! It has credit only while a request waits for a job, and its leases go on when it is silent:
//! it extends each by itself, and one that it does not extend runs out.

use super::*;

impl Leader {
    /// An observer, which lists and manages jobs.
    pub(super) fn observer_came(&mut self, session: Session) {
        if self.sessions.contains_key(&session) {
            self.gone(session);
        }
        self.sessions.insert(session, Role::Observer);
    }

    /// A request of a worker. With a pattern it waits for a job, and an earlier one that does so
    /// gives way; without one it speaks of attempts.
    pub(super) fn visit(
        &mut self,
        session: Session,
        worker: &WorkerId,
        pattern: Option<Pattern>,
        effects: &mut Vec<Effect>,
    ) {
        match pattern {
            Some(pattern) => drop(self.seat_worker(session, worker, pattern, effects)),
            None => {
                let no = self.worker_no(worker);
                self.sessions.insert(session, Role::Worker(no));
            }
        }
    }

    /// A worker takes no more jobs: what is left of its credit is void.
    pub(super) fn withdraw(&mut self, session: Session, effects: &mut Vec<Effect>) {
        let unspent = self.void_credit(session);
        effects.push(Effect::Withdrawn { session, unspent });
    }

    /// An attempt did not reach its worker: the job is ready again, and nothing is counted.
    pub(super) fn give_back(
        &mut self,
        now: Timestamp,
        session: Session,
        token: Token,
        effects: &mut Vec<Effect>,
    ) {
        if self.run_of(session, token).is_some() {
            self.returned(now, token.job, effects);
        }
    }

    /// An ended job is not to be remembered any more.
    pub(super) fn forget(&mut self, session: Session, job: JobId, effects: &mut Vec<Effect>) {
        let why = match self.jobs.get(&job) {
            None => Refusal::Unknown(job),
            // Jobs that a schedule made share its request: it is kept as long as they are.
            Some(known) if known.is_open() || self.made_by.contains_key(&job) => Refusal::NotEnded,
            Some(_) => {
                self.remove(job);
                effects.push(Effect::Forget(job));
                effects.push(Effect::Done { session, job });
                return;
            }
        };
        effects.push(Effect::Refused { session, job, why });
    }
}
