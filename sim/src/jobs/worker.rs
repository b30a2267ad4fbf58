//! A worker: its connection, its leases (the real machine), and the programs it runs.
//!
//! Programs are stopped by their runners when their time is over, also while the worker itself is
//! stopped; they die with it when it is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gapless_core::backoff::{Backoff, Retries};
use gapless_core::job::Token;
use gapless_core::job::leader::Outcome;
use gapless_core::job::lease::Leases;
use gapless_core::job::record::{Spec, WorkerId};
use gapless_core::{Pattern, Timestamp};

use super::links::{Down, Peer, Up};
use super::{JobMutation, World};
use crate::world::{Checked, ensure};

/// How long a hello may take to be answered, in milliseconds.
pub(super) const HELLO_WAIT: u64 = 5_000;
/// Longest time in which a program that is stopped is gone.
const KILL_MAX: u64 = 300;

#[derive(Debug)]
enum Program {
    /// Until when it may run, when it ends by itself and as what.
    Runs { until: u64, ends: u64, as_what: Outcome },
    /// It is being killed.
    Stops { at: u64, as_what: Outcome },
    /// It is over; whether that was sent over this connection.
    Over { as_what: Outcome, is_sent: bool },
}

#[derive(Debug)]
enum Connection {
    None { retry_at: u64 },
    Hello { link: u64, sent: u64 },
    Up { link: u64, renew_at: u64 },
}

/// A worker of one leader.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) leader: usize,
    name: Arc<str>,
    instance: u64,
    pub(super) pattern: Pattern,
    execs: BTreeSet<Arc<str>>,
    parallel: usize,
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
    /// It gives back what it has, and takes nothing more.
    is_ending: bool,
    connection: Connection,
    retries: Retries,
    leases: Leases<Token>,
    attempts: BTreeMap<Token, Program>,
    finished: BTreeSet<Token>,
    owed: i32,
}

impl Worker {
    pub(super) fn new(
        (leader, number): (usize, usize),
        (pattern, execs): (Pattern, BTreeSet<Arc<str>>),
        parallel: usize,
    ) -> Self {
        let retries = Retries::new(Backoff::default(), number as u64);
        Self {
            leader,
            // Names are for people: some are the same.
            name: format!("w{}", number / 2).into(),
            instance: number as u64,
            pattern,
            execs,
            parallel,
            is_up: true,
            is_frozen: false,
            is_ending: false,
            connection: Connection::None { retry_at: 0 },
            retries: retries.expect("the usual waits make sense"),
            leases: Leases::new(std::time::Duration::from_secs(1), true, Timestamp(0)),
            attempts: BTreeMap::new(),
            finished: BTreeSet::new(),
            owed: 0,
        }
    }

    pub(super) fn id(&self) -> WorkerId {
        let origin = format!("{}", self.instance);
        WorkerId { name: Arc::clone(&self.name), origin: origin.into() }
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    /// When something happens here by itself.
    pub(super) fn due(&self) -> Option<u64> {
        let programs = self.attempts.values().filter_map(|program| match program {
            Program::Runs { until, ends, .. } => Some(*until.min(ends)),
            Program::Stops { at, .. } => Some(*at),
            Program::Over { .. } => None,
        });
        let connection = match &self.connection {
            Connection::None { retry_at } => *retry_at,
            Connection::Hello { sent, .. } => sent + HELLO_WAIT,
            Connection::Up { renew_at, .. } => {
                self.leases.gives_up().map_or(*renew_at, |at| at.0.min(*renew_at))
            }
        };
        let connection = Some(connection).filter(|_| self.is_running());
        programs.chain(connection).min().filter(|_| self.is_up)
    }

    fn link(&self) -> Option<u64> {
        match &self.connection {
            Connection::None { .. } => None,
            Connection::Hello { link, .. } | Connection::Up { link, .. } => Some(*link),
        }
    }
}

impl World {
    /// What is due at a worker.
    pub(super) fn worker_turn(&mut self, at: usize) -> Checked {
        self.programs_turn(at);
        let worker = &self.workers[at];
        if !worker.is_running() {
            return Ok(());
        }
        match worker.connection {
            Connection::None { retry_at } if retry_at <= self.now => self.worker_connects(at),
            Connection::Hello { sent, .. } if sent + HELLO_WAIT <= self.now => {
                self.worker_hangs_up(at);
            }
            Connection::Up { link, renew_at } => {
                let now = Timestamp(self.now);
                if worker.leases.gives_up().is_some_and(|gives_up| gives_up <= now) {
                    self.worker_hangs_up(at);
                    return Ok(());
                }
                if renew_at <= self.now {
                    self.renew(at, link);
                }
                self.report(at, link);
            }
            _ => {}
        }
        let worker = &self.workers[at];
        if worker.is_ending && worker.attempts.is_empty() {
            self.stop_worker(at);
        }
        Ok(())
    }

    /// Programs end by themselves, or when their time is over.
    fn programs_turn(&mut self, at: usize) {
        let goes_on = self.mutated(JobMutation::WorkerGoesOn);
        let worker = &mut self.workers[at];
        if !worker.is_up {
            return;
        }
        for (token, program) in &mut worker.attempts {
            if let Program::Runs { until, ends, as_what } = program {
                if *ends <= self.now {
                    *program = Program::Over { as_what: *as_what, is_sent: false };
                } else if *until <= self.now && goes_on {
                    *until = u64::MAX;
                    continue;
                } else if *until <= self.now {
                    self.counts.stopped += 1;
                    let at = self.now + self.random.below(KILL_MAX);
                    *program = Program::Stops { at, as_what: Outcome::NotStarted };
                    continue;
                } else {
                    continue;
                }
            } else if let Program::Stops { at, as_what } = program {
                if *at > self.now {
                    continue;
                }
                *program = Program::Over { as_what: *as_what, is_sent: false };
            } else {
                continue;
            }
            if let Program::Over { as_what, .. } = program {
                worker.finished.insert(*token);
                self.ledger.ended(worker.leader, *token, Some(*as_what));
                self.trace.line(format_args!("{} w{at} {token:?} is {as_what:?}", self.now));
            }
        }
    }

    fn renew(&mut self, at: usize, link: u64) {
        let worker = &mut self.workers[at];
        let tokens: Vec<Token> = worker.attempts.keys().copied().collect();
        let every = worker.leases.renew_every().as_millis() as u64;
        worker.connection = Connection::Up { link, renew_at: self.now + every };
        if let Some(number) = worker.leases.ask(Timestamp(self.now), tokens.clone()) {
            self.send_up(link, Up::Renew(number, tokens));
        }
    }

    /// Sends what is over and not sent yet, and gives credit back.
    fn report(&mut self, at: usize, link: u64) {
        let mut acks = Vec::new();
        let worker = &mut self.workers[at];
        for (token, program) in &mut worker.attempts {
            if let Program::Over { as_what, is_sent } = program
                && !std::mem::replace(is_sent, true)
            {
                acks.push(Up::Ack(*token, *as_what));
            }
        }
        let owed = std::mem::take(&mut worker.owed);
        if owed > 0 && !worker.is_ending {
            acks.push(Up::Credit(owed));
        }
        acks.into_iter().for_each(|ack| self.send_up(link, ack));
    }

    fn worker_connects(&mut self, at: usize) {
        let worker = &self.workers[at];
        let (leader, peer) = (worker.leader, Peer::Worker(at));
        let is_cut = self.links.is_cut(peer, leader);
        if is_cut || !self.hosts[leader].is_up {
            let wait = if is_cut { HELLO_WAIT } else { 0 };
            let wait = wait + self.workers[at].retries.failed().as_millis() as u64;
            self.workers[at].connection = Connection::None { retry_at: self.now + wait };
            return;
        }
        let link = self.links.open(peer, leader);
        let tokens = self.workers[at].attempts.keys().copied().collect();
        self.workers[at].connection = Connection::Hello { link, sent: self.now };
        self.send_up(link, Up::Hello(tokens));
    }

    /// A worker gives its connection up, or finds it gone.
    pub(super) fn worker_hangs_up(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        let wait = worker.retries.failed().as_millis() as u64;
        let link = worker.link();
        worker.connection = Connection::None { retry_at: self.now + wait };
        link.into_iter().for_each(|link| self.break_link(link));
    }

    pub(super) fn worker_notices(&mut self, at: usize, id: u64) {
        if self.workers[at].link() == Some(id) {
            self.worker_hangs_up(at);
        }
    }

    pub(super) fn worker_hears(&mut self, at: usize, id: u64, frame: Down) -> Checked {
        if self.workers[at].link() != Some(id) {
            return Ok(());
        }
        self.trace.line(format_args!("{} w{at} <- {id} {frame:?}", self.now));
        let kill = self.now + self.random.below(KILL_MAX);
        let worker = &mut self.workers[at];
        match frame {
            Down::Welcome => {
                let Connection::Hello { sent, .. } = worker.connection else { return Ok(()) };
                let lease = self.plan.limits.lease;
                worker.leases = Leases::new(lease, true, Timestamp(sent));
                worker.connection = Connection::Up { link: id, renew_at: self.now };
                worker.retries.succeeded();
                worker.owed = worker.parallel.saturating_sub(worker.attempts.len()) as i32;
                for program in worker.attempts.values_mut() {
                    if let Program::Over { is_sent, .. } = program {
                        *is_sent = false;
                    }
                }
            }
            Down::Assign(token, spec) => self.begin_program(at, id, token, &spec)?,
            Down::Revoke(token) | Down::Stale(token) => match worker.attempts.get_mut(&token) {
                Some(Program::Over { .. }) => {
                    worker.attempts.remove(&token);
                    worker.owed += 1;
                }
                Some(program @ Program::Runs { .. }) => {
                    *program = Program::Stops { at: kill, as_what: Outcome::Cancelled };
                }
                Some(Program::Stops { .. }) | None => {}
            },
            Down::Taken(token) => {
                if worker.attempts.remove(&token).is_some() {
                    worker.owed += 1;
                }
            }
            Down::Heard(number) => {
                if let Some((tokens, may_until)) = worker.leases.answered(number) {
                    for token in tokens {
                        if let Some(Program::Runs { until, .. }) = worker.attempts.get_mut(&token) {
                            *until = may_until.0;
                        }
                    }
                }
            }
            Down::Close => self.worker_hangs_up(at),
            Down::Submitted | Down::Refused(_) | Down::Result(_) => {
                return ensure(false, || format!("a worker hears {frame:?}"));
            }
        }
        Ok(())
    }

    fn begin_program(&mut self, at: usize, link: u64, token: Token, spec: &Spec) -> Checked {
        let (ends, as_what) = self.program(spec);
        let leader_now = self.hosts[self.workers[at].leader].time(self.now);
        let worker = &mut self.workers[at];
        let leader = worker.leader;
        let until = worker.leases.until_of_new(Timestamp(self.now)).0;
        let runs = worker.attempts.contains_key(&token);
        ensure(!runs && !worker.finished.contains(&token), || format!("{token:?} came twice"))?;
        let refused = if worker.is_ending {
            Some(Outcome::Returned)
        } else if until <= self.now {
            worker.owed += 1;
            Some(Outcome::NotStarted)
        } else {
            None
        };
        if let Some(outcome) = refused {
            self.ledger.ended(leader, token, Some(outcome));
            self.send_up(link, Up::Ack(token, outcome));
            return Ok(());
        }
        ensure(worker.execs.contains(&spec.exec), || format!("worker {at} cannot {}", spec.exec))?;
        let (has, most) = (worker.attempts.len(), worker.parallel);
        ensure(has < most, || format!("worker {at} has {has} jobs of {most} and gets {token:?}"))?;
        worker.attempts.insert(token, Program::Runs { until, ends, as_what });
        self.counts.started += 1;
        self.ledger.began((leader, leader_now), token, at)
    }

    /// A worker is told to end: it gives its jobs back.
    pub(super) fn end_worker(&mut self, at: usize) {
        let kill = self.now + self.random.below(KILL_MAX);
        let worker = &mut self.workers[at];
        worker.is_ending = true;
        for program in worker.attempts.values_mut() {
            if let Program::Runs { .. } = program {
                *program = Program::Stops { at: kill, as_what: Outcome::Returned };
            }
        }
    }

    /// A worker dies, and its programs with it.
    pub(super) fn stop_worker(&mut self, at: usize) {
        self.trace.line(format_args!("{} w{at} dies", self.now));
        let worker = &mut self.workers[at];
        worker.is_up = false;
        worker.is_frozen = false;
        for (token, program) in std::mem::take(&mut worker.attempts) {
            if !matches!(program, Program::Over { .. }) {
                self.ledger.ended(worker.leader, token, None);
            }
        }
        let link = worker.link();
        link.into_iter().for_each(|link| self.break_link(link));
    }

    /// A worker starts: in the same folder, or as another one.
    pub(super) fn start_worker(&mut self, at: usize) {
        let is_other = self.random.chance(25);
        if self.workers[at].is_ending {
            self.stop_worker(at);
        }
        let worker = &mut self.workers[at];
        if worker.is_up {
            return;
        }
        worker.is_up = true;
        worker.is_ending = false;
        worker.finished.clear();
        worker.instance += if is_other { 1_000 } else { 0 };
        worker.connection = Connection::None { retry_at: self.now };
    }
}
