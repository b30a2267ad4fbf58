//! A client of one or several leaders: the real machine, and its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gapless_core::Timestamp;
use gapless_core::job::JobId;
use gapless_core::job::multi::{Effect, Input, Multi, MultiOptions};
use gapless_core::job::record::Spec;

use super::acts::Event;
use super::links::{Down, Peer, Up};
use super::worker::HELLO_WAIT;
use super::{JobMutation, World};
use crate::world::{Checked, broken, ensure};

#[derive(Clone, Copy, Debug, Default)]
struct Side {
    link: Option<u64>,
    /// Whether the leader has welcomed it, and until when it must have.
    is_online: bool,
    hello_by: u64,
    lost_since: Option<u64>,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: Arc<str>,
    /// How many of its jobs may run at each leader.
    pub(super) share: u32,
    pub(super) weight: u32,
    /// Its leaders, as numbers of the world's.
    pub(super) leaders: Vec<usize>,
    pub(super) options: MultiOptions,
    multi: Multi,
    /// Jobs that have no result yet.
    pub(super) jobs: BTreeMap<JobId, Arc<Spec>>,
    done: BTreeSet<JobId>,
    sides: Vec<Side>,
    /// Where each job was written to.
    written: BTreeMap<JobId, usize>,
    pub(super) is_up: bool,
    pub(super) is_frozen: bool,
}

impl Client {
    /// A client, and what it does first.
    pub(super) fn new(
        name: Arc<str>,
        (share, weight): (u32, u32),
        leaders: Vec<usize>,
        options: MultiOptions,
    ) -> (Self, Vec<Effect>) {
        let mut effects = Vec::new();
        let multi = Multi::new(leaders.len(), options, &mut effects);
        let client = Self {
            name,
            share,
            weight,
            sides: vec![Side::default(); leaders.len()],
            leaders,
            options,
            multi,
            jobs: BTreeMap::new(),
            done: BTreeSet::new(),
            written: BTreeMap::new(),
            is_up: true,
            is_frozen: false,
        };
        (client, effects)
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_up && !self.is_frozen
    }

    /// When something happens here by itself.
    pub(super) fn due(&self) -> Option<u64> {
        let hello = |side: &Side| side.link.filter(|_| !side.is_online).map(|_| side.hello_by);
        let hellos = self.sides.iter().filter_map(hello);
        let machine = self.multi.deadline().map(|at| at.0);
        hellos.chain(machine).min().filter(|_| self.is_running())
    }

    pub(super) fn open(&self) -> usize {
        self.multi.open()
    }

    /// The connections to leaders that are up, and the leaders' numbers.
    pub(super) fn online(&self) -> Vec<(u64, usize)> {
        let online = self.sides.iter().zip(&self.leaders).filter(|(side, _)| side.is_online);
        online.filter_map(|(side, leader)| side.link.map(|link| (link, *leader))).collect()
    }

    fn side_of(&self, link: u64) -> Option<usize> {
        self.sides.iter().position(|side| side.link == Some(link))
    }
}

impl World {
    pub(super) fn client_turn(&mut self, at: usize) -> Checked {
        if !self.clients[at].is_running() {
            return Ok(());
        }
        for side in 0..self.clients[at].sides.len() {
            let each = self.clients[at].sides[side];
            if each.link.is_some() && !each.is_online && each.hello_by <= self.now {
                self.client_lost(at, side)?;
            }
        }
        let due = self.clients[at].multi.deadline();
        if due.is_some_and(|due| due.0 <= self.now) {
            self.client_step(at, Input::Tick)?;
        }
        Ok(())
    }

    pub(super) fn submit(&mut self, at: usize, spec: Spec) -> Checked {
        let (id, spec) = (spec.id, Arc::new(spec));
        self.clients[at].jobs.insert(id, spec);
        self.client_step(at, Input::Submit(id))
    }

    /// Gives a client's machine an input and carries out what it says.
    pub(super) fn client_step(&mut self, at: usize, input: Input) -> Checked {
        let mut effects = Vec::new();
        let client = &mut self.clients[at];
        client.multi.step(Timestamp(self.now), input, &mut effects);
        client.multi.check();
        self.client_effects(at, effects)
    }

    pub(super) fn client_effects(&mut self, at: usize, effects: Vec<Effect>) -> Checked {
        for effect in effects {
            self.trace.line(format_args!("{} c{at} {effect:?}", self.now));
            match effect {
                Effect::Connect(side) => self.client_connects(at, side)?,
                Effect::Send(side, job) => self.client_sends(at, side, job)?,
                Effect::Done(job) => {
                    let client = &mut self.clients[at];
                    client.written.remove(&job);
                    ensure(client.done.insert(job), || format!("{job} is done twice"))?;
                }
                Effect::Duplicate(_) => self.counts.duplicates += 1,
            }
        }
        Ok(())
    }

    fn client_connects(&mut self, at: usize, side: usize) -> Checked {
        let leader = self.clients[at].leaders[side];
        let peer = Peer::Client(at);
        let is_there = self.hosts[leader].is_up && !self.links.is_cut(peer, leader);
        if !is_there {
            let wait = 1 + self.random.below(100);
            self.later.at(self.now + wait, Event::NotConnected(at, side));
            return Ok(());
        }
        let link = self.links.open(peer, leader);
        let each = &mut self.clients[at].sides[side];
        ensure(each.link.is_none(), || format!("client {at} connects to {side} twice"))?;
        (each.link, each.is_online, each.hello_by) = (Some(link), false, self.now + HELLO_WAIT);
        self.send_up(link, Up::Hello(Vec::new()));
        Ok(())
    }

    fn client_sends(&mut self, at: usize, side: usize, job: JobId) -> Checked {
        let client = &mut self.clients[at];
        let Some(spec) = client.jobs.get(&job).cloned() else { return Ok(()) };
        if let Some(before) = client.written.get(&job).copied().filter(|before| *before != side) {
            // From now on it may go anywhere, also if it cannot be written here.
            client.written.remove(&job);
            self.counts.moved += 1;
            let since = client.sides[before].lost_since;
            let grace = client.options.grace.as_millis() as u64;
            ensure(since.is_some_and(|since| since + grace <= self.now), || {
                format!("{job} goes from {before} to {side}, which is lost since {since:?}")
            })?;
        }
        let Some(link) = client.sides[side].link else {
            return self.client_not_written(at, side, job);
        };
        let is_broken = self.links.get(link).is_none_or(|link| link.is_broken);
        if is_broken && self.random.chance(50) {
            return self.client_not_written(at, side, job);
        }
        self.clients[at].written.insert(job, side);
        self.send_up(link, Up::Submit(spec));
        Ok(())
    }

    /// A connection is found to be gone when a job is written to it.
    fn client_not_written(&mut self, at: usize, side: usize, job: JobId) -> Checked {
        self.client_lost(at, side)?;
        self.client_step(at, Input::NotWritten(side, job))
    }

    /// A client gives a connection up, or finds it gone.
    pub(super) fn client_lost(&mut self, at: usize, side: usize) -> Checked {
        let each = &mut self.clients[at].sides[side];
        let link = each.link.take();
        each.lost_since = each.lost_since.or(Some(self.now));
        each.is_online = false;
        link.into_iter().for_each(|link| self.break_link(link));
        self.client_step(at, Input::Lost(side))?;
        if self.mutated(JobMutation::NoGrace) {
            for job in self.clients[at].jobs.keys().copied().collect::<Vec<_>>() {
                self.client_step(at, Input::NotWritten(side, job))?;
            }
        }
        Ok(())
    }

    pub(super) fn client_notices(&mut self, at: usize, link: u64) -> Checked {
        match self.clients[at].side_of(link) {
            Some(side) => self.client_lost(at, side),
            None => Ok(()),
        }
    }

    pub(super) fn client_hears(&mut self, at: usize, link: u64, frame: Down) -> Checked {
        let Some(side) = self.clients[at].side_of(link) else { return Ok(()) };
        self.trace.line(format_args!("{} c{at} <- {link} {frame:?}", self.now));
        match frame {
            Down::Welcome => {
                let each = &mut self.clients[at].sides[side];
                (each.is_online, each.lost_since) = (true, None);
                self.client_step(at, Input::Connected(side))
            }
            Down::Submitted => Ok(()),
            Down::Refused(job) => match self.clients[at].jobs.remove(&job) {
                Some(_) => {
                    self.counts.refused += 1;
                    self.client_step(at, Input::Ended(side, job))
                }
                None => Ok(()),
            },
            Down::Result(job) => {
                self.counts.delivered += u64::from(self.clients[at].jobs.remove(&job).is_some());
                self.client_step(at, Input::Ended(side, job))
            }
            Down::Close => self.client_lost(at, side),
            other => broken(format!("a client hears {other:?}")),
        }
    }

    /// A client dies; it asks again for what it has no result of when it starts.
    pub(super) fn stop_client(&mut self, at: usize) {
        let client = &mut self.clients[at];
        (client.is_up, client.is_frozen) = (false, false);
        let links: Vec<u64> = client.sides.iter_mut().filter_map(|side| side.link.take()).collect();
        links.into_iter().for_each(|link| self.break_link(link));
    }

    pub(super) fn start_client(&mut self, at: usize) -> Checked {
        let old = &self.clients[at];
        if old.is_up {
            return Ok(());
        }
        let (name, shares) = (Arc::clone(&old.name), (old.share, old.weight));
        let (mut new, effects) = Client::new(name, shares, old.leaders.clone(), old.options);
        (new.jobs, new.done) = (old.jobs.clone(), old.done.clone());
        let jobs: Vec<JobId> = new.jobs.keys().copied().collect();
        self.clients[at] = new;
        self.client_effects(at, effects)?;
        jobs.into_iter().try_for_each(|job| self.client_step(at, Input::Submit(job)))
    }
}
