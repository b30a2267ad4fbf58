//! A leader: the real machine, its disk, and what waits for the disk.
//!
//! What one input changes is one append. Appends become durable in their order, some time later; only
//! then are the effects carried out. A crash takes the end of what is not durable, or none of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gapless_core::Timestamp;
use gapless_core::job::leader::{Effect, Input, Leader, Session};
use gapless_core::job::record::{Record, Stage, WorkerId};
use gapless_core::job::{JobId, Token};

use super::acts::{Event, Plan, calendar};
use super::links::{Down, Peer, Up};
use super::turns::Turns;
use super::{JobMutation, World};
use crate::world::{Checked, broken, ensure};

/// What is done when an append is durable.
#[derive(Debug)]
enum Todo {
    Effect(Effect),
    /// A renewal is answered.
    Heard(u64, u64),
    /// A result, as it was when the job ended.
    Result(u64, JobId, gapless_core::job::record::End),
}

#[derive(Debug)]
struct Append {
    due: u64,
    records: Vec<(JobId, Option<Vec<u8>>)>,
    todo: Vec<Todo>,
}

/// What is on disk.
#[derive(Debug, Default)]
struct Disk {
    records: BTreeMap<JobId, Vec<u8>>,
    /// How many messages were ever written.
    written: u64,
}

impl Disk {
    fn write(&mut self, records: &[(JobId, Option<Vec<u8>>)]) {
        self.written += records.len() as u64;
        for (job, record) in records {
            match record {
                Some(record) => drop(self.records.insert(*job, record.clone())),
                None => drop(self.records.remove(job)),
            }
        }
    }
}

/// A leader.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) machine: Leader,
    disk: Disk,
    appends: VecDeque<Append>,
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
    /// It never comes back.
    pub(super) is_gone: bool,
    skew: u64,
    /// The connections that have introduced themselves in this life.
    sessions: BTreeSet<u64>,
    /// Where each worker is, for mutations.
    seats: BTreeMap<WorkerId, u64>,
    pub(super) turns: Turns,
}

impl Host {
    pub(super) fn new(skew: u64, plan: &Plan) -> Self {
        Self {
            machine: Leader::new(plan.limits).with_calendar(calendar),
            disk: Disk::default(),
            appends: VecDeque::new(),
            is_up: true,
            is_frozen: false,
            is_gone: false,
            skew,
            sessions: BTreeSet::new(),
            seats: BTreeMap::new(),
            turns: Turns::default(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    pub(super) fn time(&self, now: u64) -> Timestamp {
        Timestamp(now + self.skew)
    }

    /// When something happens here by itself.
    pub(super) fn due(&self) -> Option<u64> {
        let machine = self.machine.deadline().map(|at| at.0.saturating_sub(self.skew));
        let disk = self.appends.front().map(|append| append.due);
        [machine, disk].into_iter().flatten().min().filter(|_| self.is_running())
    }
}

impl World {
    /// What is due at a leader.
    pub(super) fn host_turn(&mut self, at: usize) -> Checked {
        while self.hosts[at].is_running()
            && self.hosts[at].appends.front().is_some_and(|append| append.due <= self.now)
        {
            let append = self.hosts[at].appends.pop_front().expect("it was looked at");
            self.durable(at, &append.records)?;
            self.carry_out(at, append.todo)?;
        }
        let host = &self.hosts[at];
        let now = host.time(self.now);
        if host.is_running() && host.machine.deadline().is_some_and(|due| due <= now) {
            self.lead(at, Input::Tick, None)?;
        }
        Ok(())
    }

    pub(super) fn leader_hears(&mut self, id: u64, frame: Up) -> Checked {
        let Some(link) = self.links.get(id) else { return Ok(()) };
        let (at, peer, session) = (link.leader, link.peer, Session(id));
        self.trace.line(format_args!("{} l{at} <- {id} {frame:?}", self.now));
        if let Up::Hello(running) = frame {
            self.hosts[at].sessions.insert(id);
            let input = match peer {
                Peer::Worker(no) => {
                    let worker = self.workers[no].id();
                    self.hosts[at].seats.insert(worker.clone(), id);
                    let pattern = self.workers[no].pattern.clone();
                    Input::Worker { session, worker, pattern, running }
                }
                Peer::Client(no) => {
                    let client = &self.clients[no];
                    let (name, cap, weight) =
                        (Arc::clone(&client.name), client.share, client.weight);
                    Input::Client { session, name, cap, weight }
                }
            };
            self.lead(at, input, None)?;
            self.send_down(id, Down::Welcome);
            return Ok(());
        }
        if !self.hosts[at].sessions.contains(&id) {
            return Ok(());
        }
        let input = match frame {
            Up::Hello(_) => return broken("a hello is handled above"),
            Up::Submit(spec) => Input::Submit(session, spec),
            Up::Watch(job) => Input::Watch(session, job),
            Up::Cancel(job) => {
                self.ledger.cancel_asked(at, job);
                Input::Cancel(session, job)
            }
            Up::Retry(job) => {
                self.ledger.retry_asked(at, job);
                Input::Retry(session, job)
            }
            Up::Forget(job) => {
                self.ledger.forget_asked(at, job);
                Input::Forget(session, job)
            }
            Up::Credit(more) => {
                let extra = i32::from(self.mutated(JobMutation::CreditNotCounted));
                Input::Credit(session, more + extra)
            }
            Up::Renew(number, tokens) => {
                for token in tokens {
                    self.lead(at, Input::Renew(session, token), None)?;
                }
                return self.lead(at, Input::Heard(session), Some((id, number)));
            }
            Up::Ack(token, outcome) => {
                let (session, token) = self.late_taken(at, session, token);
                Input::Ack(session, token, outcome)
            }
        };
        self.lead(at, input, None)
    }

    /// With the defect, the newest attempt stands for one that is over.
    fn late_taken(&self, at: usize, session: Session, token: Token) -> (Session, Token) {
        let host = &self.hosts[at];
        if !self.mutated(JobMutation::LateResultTaken) || host.machine.has(session, token) {
            return (session, token);
        }
        let newest = host.machine.record(token.job).and_then(|record| match record.stage {
            Stage::Running { worker, .. } => {
                let (job, number) = (token.job, record.number);
                let seat = host.seats.get(&worker)?;
                Some((Session(*seat), Token { job, number, attempt: record.attempt }))
            }
            _ => None,
        });
        newest.unwrap_or((session, token))
    }

    /// Gives a leader an input; what follows waits for the disk.
    pub(super) fn lead(&mut self, at: usize, input: Input, heard: Option<(u64, u64)>) -> Checked {
        let mut effects = Vec::new();
        let host = &mut self.hosts[at];
        let now = host.time(self.now);
        host.machine.step(now, input, &mut effects);
        host.machine.check();
        self.check_turns(at, &effects)?;
        let host = &self.hosts[at];
        let (mut records, mut todo) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Save(job) => {
                    let record = host.machine.record(job);
                    // An append is whole or not there: what counts is how each job is at its end.
                    let is_forgotten = records.contains(&(job, None));
                    records.retain(|(other, _)| is_forgotten || *other != job);
                    // It may have been forgotten in the same step.
                    records.extend(record.map(|record| (job, Some(record.encode()))));
                }
                Effect::Forget(job) => records.push((job, None)),
                Effect::Result { session, job } => {
                    let record = host.machine.record(job);
                    match record.map(|record| record.stage) {
                        Some(Stage::Ended { how, .. }) => {
                            todo.push(Todo::Result(session.0, job, how));
                        }
                        other => return broken(format!("a result of {job}, which is {other:?}")),
                    }
                }
                other => todo.push(Todo::Effect(other)),
            }
        }
        todo.extend(heard.map(|(link, number)| Todo::Heard(link, number)));
        if self.mutated(JobMutation::SentBeforeDurable) {
            let todo = std::mem::take(&mut todo);
            self.carry_out(at, todo)?;
        }
        let host = &mut self.hosts[at];
        if records.is_empty() {
            match host.appends.back_mut() {
                Some(last) => last.todo.extend(todo),
                None => return self.carry_out(at, todo),
            }
            return Ok(());
        }
        let slow = self.random.chance(10);
        let due = self.now + self.random.between(1, if slow { 300 } else { 6 });
        let due = host.appends.back().map_or(due, |last| due.max(last.due));
        host.appends.push_back(Append { due, records, todo });
        Ok(())
    }

    fn durable(&mut self, at: usize, records: &[(JobId, Option<Vec<u8>>)]) -> Checked {
        self.hosts[at].disk.write(records);
        let now = self.hosts[at].time(self.now);
        for (job, bytes) in records {
            match bytes {
                Some(bytes) => {
                    let record = Record::decode(bytes)
                        .map_err(|error| crate::world::Violation(format!("{job}: {error}")))?;
                    self.trace.line(format_args!(
                        "{} l{at} saved {job} {} {:?}",
                        self.now, record.attempt, record.stage
                    ));
                    self.ledger.saved(at, &record, &mut self.counts)?;
                }
                None => {
                    self.counts.forgotten += 1;
                    self.trace.line(format_args!("{} l{at} forgot {job}", self.now));
                    self.ledger.forgotten(at, *job, now, self.plan.limits.keep)?;
                }
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, at: usize, todo: Vec<Todo>) -> Checked {
        let known = todo.iter().find_map(|each| match each {
            Todo::Effect(Effect::Submitted { job, known: true, .. }) => Some(*job),
            _ => None,
        });
        for each in todo {
            let effect = match each {
                Todo::Heard(link, number) => {
                    self.send_down(link, Down::Heard(number));
                    continue;
                }
                Todo::Result(link, job, how) => {
                    self.ledger.result_told(at, job, how)?;
                    if !self.mutated(JobMutation::ResultNotResent) || known != Some(job) {
                        self.send_down(link, Down::Result(job));
                    }
                    continue;
                }
                Todo::Effect(effect) => effect,
            };
            self.trace.line(format_args!("{} l{at} {effect:?}", self.now));
            match effect {
                Effect::Submitted { session, job, known } => {
                    let count =
                        if known { &mut self.counts.resent } else { &mut self.counts.accepted };
                    *count += 1;
                    self.ledger.told_accepted(at, job)?;
                    self.send_down(session.0, Down::Submitted);
                }
                Effect::Refused { session, job, .. } => {
                    self.send_down(session.0, Down::Refused(job));
                }
                Effect::Assign { session, token } => {
                    let spec = self.ledger.assigned(at, token)?;
                    self.send_down(session.0, Down::Assign(token, spec));
                }
                Effect::Revoke { session, token } => {
                    self.send_down(session.0, Down::Revoke(token));
                }
                Effect::Taken { session, token } => {
                    self.counts.taken += 1;
                    self.ledger.taken(at, token)?;
                    self.send_down(session.0, Down::Taken(token));
                }
                Effect::Stale { session, token } => {
                    self.counts.stale += 1;
                    self.send_down(session.0, Down::Stale(token));
                }
                Effect::Close { session, .. } => {
                    self.send_down(session.0, Down::Close);
                    self.hosts[at].sessions.remove(&session.0);
                }
                Effect::Renewed { .. } | Effect::Withdrawn { .. } | Effect::Done { .. } => {}
                Effect::Save(_) | Effect::Forget(_) | Effect::Result { .. } => {
                    return broken("these are handled when they are decided");
                }
            }
        }
        Ok(())
    }

    /// A leader notices that a connection is gone.
    pub(super) fn leader_notices(&mut self, id: u64) -> Checked {
        let Some(link) = self.links.get(id) else { return Ok(()) };
        let at = link.leader;
        if !self.hosts[at].is_running() {
            let wait = 200 + self.random.below(1_000);
            match self.hosts[at].is_up {
                true => self.later.at(self.now + wait, Event::LeaderNotices(id)),
                false => self.links.noticed(id),
            }
            return Ok(());
        }
        self.links.noticed(id);
        if self.hosts[at].sessions.remove(&id) {
            self.lead(at, Input::Gone(Session(id)), None)?;
        }
        Ok(())
    }

    /// A leader dies: what is not durable may be on its disk or not, from some place on.
    pub(super) fn crash(&mut self, at: usize) -> Checked {
        self.trace.line(format_args!("{} l{at} dies", self.now));
        let pending = std::mem::take(&mut self.hosts[at].appends);
        let kept = self.random.below(pending.len() as u64 + 1) as usize;
        self.counts.torn += (pending.len() - kept) as u64;
        for append in pending.iter().take(kept) {
            self.durable(at, &append.records)?;
        }
        let host = &mut self.hosts[at];
        host.is_up = false;
        host.is_frozen = false;
        host.sessions.clear();
        host.seats.clear();
        for id in self.links.of(|link| link.leader == at) {
            self.break_link(id);
        }
        Ok(())
    }

    /// A leader starts from what is on its disk.
    pub(super) fn start_leader(&mut self, at: usize) -> Checked {
        let host = &mut self.hosts[at];
        if host.is_up || host.is_gone {
            return Ok(());
        }
        self.counts.restarts += 1;
        host.is_up = true;
        host.turns = Turns::default();
        let now = host.time(self.now);
        let machine = Leader::new(self.plan.limits).with_calendar(calendar);
        host.machine = machine.numbered_from(host.disk.written + 1);
        let forgets = self.options.mutation == Some(JobMutation::RestartForgetsRuns);
        for bytes in host.disk.records.values() {
            let mut record = Record::decode(bytes)
                .map_err(|error| crate::world::Violation(error.to_string()))?;
            if forgets && matches!(record.stage, Stage::Running { .. }) {
                record.stage = Stage::Open { until: Timestamp(0) };
            }
            let mut effects = Vec::new();
            host.machine.step(now, Input::Restore(record), &mut effects);
            ensure(effects.is_empty(), || format!("restoring does {effects:?}"))?;
        }
        self.trace.line(format_args!("{} l{at} starts", self.now));
        self.lead(at, Input::Restored, None)?;
        self.ledger.check_known(at, &self.hosts[at].machine)
    }
}
