//! What happens: the plan of a seed, what is asked for, and what goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gapless_core::job::JobId;
use gapless_core::job::leader::{Input, Limits, Outcome};
use gapless_core::job::multi::{self, MultiOptions, Policy};
use gapless_core::job::record::{PRIORITY_MAX, Spec};
use gapless_core::retry::{RetryPolicy, Waits};
use gapless_core::{Pattern, Timestamp};

use super::World;
use super::client::Client;
use super::links::{Peer, Up};
use super::worker::Worker;
use crate::random::Random;
use crate::world::{Checked, ensure};

/// Longest time that the end may take, in milliseconds.
const REST_MAX: u64 = 3_600_000;
/// Most jobs of a seed.
const JOBS_MAX: u64 = 150;

/// Schedules: `12` is every 12 seconds, everything else never.
pub(super) fn calendar(text: &str, after: Timestamp) -> Option<Timestamp> {
    let every: u64 = text.parse::<u64>().ok()? * 1_000;
    Some(Timestamp((after.0 / every + 1) * every))
}

/// What is drawn once.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) leaders: usize,
    pub(super) execs: u32,
    clients: usize,
    pub(super) limits: Limits,
    /// No faults, and each executable runs equally long: clients must share evenly.
    pub(super) is_fair: bool,
    /// One leader may go for good.
    one_may_go: bool,
}

impl Plan {
    pub(super) fn draw(random: &mut Random) -> Self {
        let is_fair = random.chance(20);
        let leaders = if is_fair { 1 } else { random.between(1, 3) as usize };
        let keep =
            if random.chance(30) { random.ms(5_000, 60_000) } else { random.ms(300_000, 600_000) };
        let limits = Limits {
            lease: random.ms(3_000, 15_000),
            margin: Duration::from_secs(2),
            keep,
            jobs_max: if random.chance(10) { 25 } else { 1_000 },
            ..Limits::default()
        };
        let execs = random.between(1, 4) as u32;
        let clients = random.between(2, 4) as usize;
        let one_may_go = leaders > 1 && random.chance(40);
        Self { leaders, execs, clients, limits, is_fair, one_may_go }
    }

    fn exec(number: u64) -> Arc<str> {
        format!("e{number}").into()
    }

    /// For each leader a worker that runs everything, and others that run some of it.
    pub(super) fn workers(&self, random: &mut Random) -> Vec<Worker> {
        let mut workers = Vec::new();
        let all: BTreeSet<Arc<str>> = (0..u64::from(self.execs)).map(Self::exec).collect();
        for leader in 0..self.leaders {
            for number in 0..random.between(1, 4) {
                let (pattern, execs) = if number == 0 {
                    ("job.assign.*".to_owned(), all.clone())
                } else {
                    let exec = Self::exec(random.below(u64::from(self.execs)));
                    (format!("job.assign.{exec}"), BTreeSet::from([exec]))
                };
                let pattern = Pattern::parse(&pattern).expect("a pattern");
                let parallel = random.between(1, 4) as usize;
                let place = (leader, workers.len());
                workers.push(Worker::new(place, (pattern, execs), parallel));
            }
        }
        workers
    }
}

/// What happens later by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A side of a connection notices that it broke.
    PeerNotices(u64),
    LeaderNotices(u64),
    /// A client could not connect to a leader.
    NotConnected(usize, usize),
    Heal(Peer, usize),
    /// A stopped process goes on.
    ThawLeader(usize),
    ThawPeer(Peer),
    StartLeader(usize),
    StartPeer(Peer),
}

/// All of that, by time.
#[derive(Debug, Default)]
pub(super) struct Later {
    events: BTreeMap<(u64, u64), Event>,
    count: u64,
}

impl Later {
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.insert((time, self.count), event);
    }

    pub(super) fn due(&self) -> Option<u64> {
        self.events.keys().next().map(|(time, _)| *time)
    }

    pub(super) fn pop(&mut self, now: u64) -> Option<Event> {
        let first = self.events.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

impl World {
    pub(super) fn begin(&mut self) -> Checked {
        for at in 0..self.hosts.len() {
            self.lead(at, Input::Restored, None)?;
        }
        for number in 0..self.plan.clients {
            let all: Vec<usize> = (0..self.plan.leaders).collect();
            let leaders = if self.plan.one_may_go || self.random.chance(60) {
                all
            } else {
                vec![self.random.index(self.plan.leaders)]
            };
            let cap = self.random.between(1, 6) as u32;
            let share = (cap / leaders.len() as u32).max(1);
            let weight = self.random.between(1, 3) as u32;
            let policies = [Policy::Home, Policy::RoundRobin, Policy::FewestInFlight];
            let policy = *self.random.pick(&policies);
            let seed = self.random.draw();
            let options = MultiOptions { policy, seed, ..MultiOptions::default() };
            let name: Arc<str> = format!("c{number}").into();
            self.ledger.caps.insert(Arc::clone(&name), share);
            let (client, effects) = Client::new(name, (share, weight), leaders, options);
            self.clients.push(client);
            self.client_effects(number, effects)?;
        }
        Ok(())
    }

    /// One thing that people, programs or the world do.
    pub(super) fn act(&mut self) -> Checked {
        let weights = if self.plan.is_fair {
            [80, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        } else {
            [60, 6, 4, 3, 6, 5, 5, 4, 6, 3]
        };
        match self.random.weighted(&weights) {
            0 => self.submit_some(),
            1 => self.manage(Up::Cancel, false),
            2 => self.manage(Up::Retry, true),
            3 => match self.random.chance(50) {
                true => self.manage(Up::Forget, true),
                false => self.manage(Up::Watch, true),
            },
            4 => self.worker_fault(),
            5 => self.leader_fault(),
            6 => {
                let all = self.links.of(|_| true);
                let picked = self.random.pick_any(&all).copied();
                picked.into_iter().for_each(|link| self.break_link(link));
                Ok(())
            }
            7 => {
                self.cut();
                Ok(())
            }
            8 => {
                self.freeze();
                Ok(())
            }
            _ => {
                let at = self.random.index(self.clients.len());
                if self.clients[at].is_up {
                    self.stop_client(at);
                    let wait = self.random.below(20_000);
                    self.later.at(self.now + wait, Event::StartPeer(Peer::Client(at)));
                }
                Ok(())
            }
        }
    }

    fn submit_some(&mut self) -> Checked {
        let most = if self.plan.is_fair { 4 } else { 3 };
        for _ in 0..self.random.between(1, most) {
            let at = self.random.index(self.clients.len());
            if self.clients[at].is_running() && self.next_job < JOBS_MAX {
                let spec = self.draw_spec(at);
                self.submit(at, spec)?;
            }
        }
        Ok(())
    }

    fn draw_spec(&mut self, at: usize) -> Spec {
        self.next_job += 1;
        let id = (u128::from(self.random.draw()) << 64) | u128::from(self.next_job);
        let random = &mut self.random;
        let exec = Plan::exec(random.below(u64::from(self.plan.execs)));
        let client = Arc::clone(&self.clients[at].name);
        let waits = (0..random.between(1, 3)).map(|_| random.ms(0, 3_000)).collect();
        let mut spec = Spec {
            id: JobId(id),
            client,
            exec,
            priority: random.below(u64::from(PRIORITY_MAX) + 1) as u8,
            not_before: Timestamp(0),
            key: None,
            unique: None,
            after: Vec::new(),
            attempts_max: random.between(1, 4) as u32,
            deaths_max: random.between(2, 5) as u32,
            retry: Arc::new(RetryPolicy { waits: Waits::Steps(waits), jitter_percent: 0 }),
            cron: None,
            digest: id,
        };
        if self.plan.is_fair {
            return spec;
        }
        if random.chance(10) {
            spec.not_before = Timestamp(self.now + random.below(20_000));
        }
        if random.chance(15) {
            spec.key = Some(format!("k{}", random.below(2)).into());
        }
        if random.chance(10) {
            spec.unique = Some(format!("u{}", random.below(2)).into());
        }
        if random.chance(15) {
            let mine: Vec<JobId> = self.clients[at].jobs.keys().copied().collect();
            for _ in 0..random.between(1, 2) {
                spec.after.extend(random.pick_any(&mine).copied());
            }
            spec.after.dedup();
        }
        if random.chance(3) {
            spec.cron = Some(format!("{}", random.between(2, 15)).into());
        }
        spec
    }

    /// How long a program runs, and what it comes to.
    pub(super) fn program(&mut self, spec: &Spec) -> (u64, Outcome) {
        if self.plan.is_fair {
            let number: u64 = spec.exec.trim_start_matches('e').parse().unwrap_or(0);
            return (self.now + 100 * (number + 1), Outcome::Succeeded);
        }
        let random = &mut self.random;
        let long = !self.is_calm && random.chance(10);
        let ms = if long { random.between(5_000, 40_000) } else { random.between(5, 2_000) };
        let outcome = match random.below(100) {
            _ if self.is_calm => Outcome::Succeeded,
            0..74 => Outcome::Succeeded,
            74..86 => Outcome::Failed { again: true },
            86..97 => Outcome::Failed { again: false },
            _ => Outcome::NotStarted,
        };
        (self.now + ms, outcome)
    }

    /// Something is asked for about a job, open or over.
    fn manage(&mut self, what: fn(JobId) -> Up, is_over: bool) -> Checked {
        let at = self.random.index(self.clients.len());
        let online = self.clients[at].online();
        let Some(&(link, leader)) = self.random.pick_any(&online) else { return Ok(()) };
        let jobs: Vec<JobId> = match is_over {
            true => self.ledger.over(leader),
            false => self.ledger.open(leader).map(|(job, _)| job).collect(),
        };
        if let Some(job) = self.random.pick_any(&jobs).copied() {
            self.send_up(link, what(job));
        }
        Ok(())
    }

    fn worker_fault(&mut self) -> Checked {
        let at = self.random.index(self.workers.len());
        if !self.workers[at].is_up {
            return Ok(());
        }
        if self.random.chance(25) && self.workers[at].is_running() {
            self.end_worker(at);
        } else {
            self.counts.kills += 1;
            self.stop_worker(at);
        }
        let wait = self.random.below(30_000);
        self.later.at(self.now + wait, Event::StartPeer(Peer::Worker(at)));
        Ok(())
    }

    fn leader_fault(&mut self) -> Checked {
        let at = self.random.index(self.hosts.len());
        if !self.hosts[at].is_up {
            return Ok(());
        }
        self.crash(at)?;
        let is_any_gone = self.hosts.iter().any(|host| host.is_gone);
        if self.plan.one_may_go && !is_any_gone && self.random.chance(30) {
            self.hosts[at].is_gone = true;
            return Ok(());
        }
        let slow = self.random.chance(30);
        let wait = self.random.below(if slow { 40_000 } else { 2_000 });
        self.later.at(self.now + wait, Event::StartLeader(at));
        Ok(())
    }

    fn any_peer(&mut self) -> Peer {
        let at = self.random.index(self.workers.len() + self.clients.len());
        match at.checked_sub(self.workers.len()) {
            Some(at) => Peer::Client(at),
            None => Peer::Worker(at),
        }
    }

    fn cut(&mut self) {
        let peer = self.any_peer();
        let leader = match peer {
            Peer::Worker(at) => self.workers[at].leader,
            Peer::Client(at) => *self.random.pick(&self.clients[at].leaders),
        };
        if self.links.cut(peer, leader) {
            self.counts.cuts += 1;
            let wait = self.random.below(40_000);
            self.later.at(self.now + wait, Event::Heal(peer, leader));
        }
    }

    fn freeze(&mut self) {
        self.counts.freezes += 1;
        let wait = self.random.below(30_000);
        if self.random.chance(30) {
            let at = self.random.index(self.hosts.len());
            self.hosts[at].is_frozen = self.hosts[at].is_up;
            self.later.at(self.now + wait, Event::ThawLeader(at));
            return;
        }
        let peer = self.any_peer();
        match peer {
            Peer::Worker(at) => self.workers[at].is_frozen = self.workers[at].is_up,
            Peer::Client(at) => self.clients[at].is_frozen = self.clients[at].is_up,
        }
        self.later.at(self.now + wait, Event::ThawPeer(peer));
    }

    pub(super) fn later(&mut self, event: Event) -> Checked {
        match event {
            Event::PeerNotices(link) => match self.links.get(link).map(|link| link.peer) {
                Some(peer) if !self.is_peer_running(peer) => {
                    let wait = 200 + self.random.below(1_000);
                    self.later.at(self.now + wait, event);
                }
                Some(Peer::Worker(at)) => {
                    self.links.noticed(link);
                    self.worker_notices(at, link);
                }
                Some(Peer::Client(at)) => {
                    self.links.noticed(link);
                    self.client_notices(at, link)?;
                }
                None => {}
            },
            Event::LeaderNotices(link) => self.leader_notices(link)?,
            Event::NotConnected(at, side) => {
                if self.clients[at].is_up {
                    self.client_step(at, multi::Input::Lost(side))?;
                }
            }
            Event::Heal(peer, leader) => self.links.heal(peer, leader),
            Event::ThawLeader(at) => self.hosts[at].is_frozen = false,
            Event::ThawPeer(Peer::Worker(at)) => self.workers[at].is_frozen = false,
            Event::ThawPeer(Peer::Client(at)) => self.clients[at].is_frozen = false,
            Event::StartLeader(at) => self.start_leader(at)?,
            Event::StartPeer(Peer::Worker(at)) => self.start_worker(at),
            Event::StartPeer(Peer::Client(at)) => self.start_client(at)?,
        }
        Ok(())
    }

    fn is_peer_running(&self, peer: Peer) -> bool {
        match peer {
            // One that is down has nothing to notice.
            Peer::Worker(at) => !self.workers[at].is_frozen,
            Peer::Client(at) => !self.clients[at].is_frozen,
        }
    }

    /// All faults stop: then every job ends, and every client has its results.
    pub(super) fn come_to_rest(&mut self) -> Checked {
        self.is_calm = true;
        self.links.heal_all();
        for at in 0..self.hosts.len() {
            self.hosts[at].is_frozen = false;
            self.start_leader(at)?;
        }
        for at in 0..self.workers.len() {
            self.workers[at].is_frozen = false;
            self.start_worker(at);
        }
        for at in 0..self.clients.len() {
            self.clients[at].is_frozen = false;
            self.start_client(at)?;
        }
        let began = self.now;
        loop {
            self.end_schedules()?;
            self.pass(5_000)?;
            let open = self.clients.iter().map(Client::open).sum::<usize>();
            let led = (0..self.hosts.len()).filter(|at| !self.hosts[*at].is_gone);
            let unfinished: usize = led.clone().map(|at| self.ledger.open(at).count()).sum();
            if open == 0 && unfinished == 0 {
                return led.into_iter().try_for_each(|at| self.ledger.check_ended(at));
            }
            let story = || {
                let jobs: Vec<_> = self.clients.iter().map(|client| client.jobs.keys()).collect();
                format!("clients wait for {open} jobs, leaders have {unfinished}: {jobs:?}")
            };
            ensure(self.now < began + REST_MAX, story)?;
        }
    }

    /// Schedules have no end of their own.
    fn end_schedules(&mut self) -> Checked {
        for at in 0..self.clients.len() {
            for (link, leader) in self.clients[at].online() {
                let schedules = self.ledger.open(leader).filter(|(_, spec)| spec.cron.is_some());
                let schedules: Vec<JobId> = schedules.map(|(job, _)| job).collect();
                schedules.into_iter().for_each(|job| self.send_up(link, Up::Cancel(job)));
            }
        }
        Ok(())
    }
}
