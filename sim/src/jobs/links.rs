//! Connections between the processes: frames in order, each way, until it breaks.
//!
//! A link that is cut carries nothing until it heals or breaks. One that breaks loses the end of what is
//! in flight; both sides notice some time later, each on its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gapless_core::job::leader::Outcome;
use gapless_core::job::record::Spec;
use gapless_core::job::{JobId, Token};

use super::World;
use super::acts::Event;
use crate::world::Checked;

/// Who talks to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Worker(usize),
    Client(usize),
}

/// What a leader hears.
#[derive(Clone, Debug)]
pub(super) enum Up {
    Hello(Vec<Token>),
    Submit(Arc<Spec>),
    Watch(JobId),
    Cancel(JobId),
    Retry(JobId),
    Forget(JobId),
    Credit(i32),
    Renew(u64, Vec<Token>),
    Ack(Token, Outcome),
}

/// What a leader says.
#[derive(Clone, Debug)]
pub(super) enum Down {
    Welcome,
    Submitted,
    Refused(JobId),
    Assign(Token, Arc<Spec>),
    Revoke(Token),
    Stale(Token),
    Taken(Token),
    Heard(u64),
    Result(JobId),
    Close,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) leader: usize,
    pub(super) is_broken: bool,
    /// How many sides know that it is broken.
    noticed: u8,
    up: VecDeque<(u64, Up)>,
    down: VecDeque<(u64, Down)>,
}

/// All connections by number, and which pairs are cut.
#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<u64, Link>,
    cut: std::collections::BTreeSet<(Peer, usize)>,
    next: u64,
}

impl Links {
    pub(super) fn get(&self, id: u64) -> Option<&Link> {
        self.links.get(&id)
    }

    pub(super) fn is_cut(&self, peer: Peer, leader: usize) -> bool {
        self.cut.contains(&(peer, leader))
    }

    pub(super) fn cut(&mut self, peer: Peer, leader: usize) -> bool {
        self.cut.insert((peer, leader))
    }

    pub(super) fn heal(&mut self, peer: Peer, leader: usize) {
        self.cut.remove(&(peer, leader));
    }

    pub(super) fn heal_all(&mut self) {
        self.cut.clear();
    }

    pub(super) fn open(&mut self, peer: Peer, leader: usize) -> u64 {
        self.next += 1;
        let link = Link {
            peer,
            leader,
            is_broken: false,
            noticed: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
        };
        self.links.insert(self.next, link);
        self.next
    }

    /// The links of a process, or of all with a leader, that are not broken yet.
    pub(super) fn of(&self, with: impl Fn(&Link) -> bool) -> Vec<u64> {
        let whole = self.links.iter().filter(|(_, link)| !link.is_broken && with(link));
        whole.map(|(id, _)| *id).collect()
    }

    /// A side knows that it is over; then so does the other one, and it is forgotten.
    pub(super) fn noticed(&mut self, id: u64) {
        if let Some(link) = self.links.get_mut(&id) {
            link.noticed += 1;
            if link.noticed == 2 {
                self.links.remove(&id);
            }
        }
    }

    /// When the next frame can be received.
    pub(super) fn due(&self, can: impl Fn(&Link) -> (bool, bool)) -> Option<u64> {
        let next = self.links.values().flat_map(|link| {
            let (up, down) = can(link);
            let up = link.up.front().filter(|_| up).map(|(at, _)| *at);
            let down = link.down.front().filter(|_| down).map(|(at, _)| *at);
            [up, down]
        });
        next.flatten().min()
    }
}

impl World {
    /// Whether the leader, and the peer, can read from this link.
    pub(super) fn can_receive(&self, link: &Link) -> (bool, bool) {
        let carries = !self.links.is_cut(link.peer, link.leader);
        let peer = match link.peer {
            Peer::Worker(at) => self.workers[at].is_running(),
            Peer::Client(at) => self.clients[at].is_running(),
        };
        (carries && self.hosts[link.leader].is_running(), carries && peer)
    }

    pub(super) fn send_up(&mut self, id: u64, frame: Up) {
        let at = self.arrival();
        let Some(link) = self.links.links.get_mut(&id).filter(|link| !link.is_broken) else {
            return;
        };
        let at = link.up.back().map_or(at, |(last, _)| at.max(*last));
        link.up.push_back((at, frame));
    }

    pub(super) fn send_down(&mut self, id: u64, frame: Down) {
        let at = self.arrival();
        let Some(link) = self.links.links.get_mut(&id).filter(|link| !link.is_broken) else {
            return;
        };
        let at = link.down.back().map_or(at, |(last, _)| at.max(*last));
        link.down.push_back((at, frame));
    }

    fn arrival(&mut self) -> u64 {
        let slow = !self.plan.is_fair && self.random.chance(5);
        self.now + if slow { self.random.below(1_500) } else { self.random.below(4) }
    }

    /// A connection breaks; both sides notice it later, and what had arrived is read until then.
    pub(super) fn break_link(&mut self, id: u64) {
        let random = &mut self.random;
        let Some(link) = self.links.links.get_mut(&id).filter(|link| !link.is_broken) else {
            return;
        };
        link.is_broken = true;
        self.counts.resets += 1;
        let up = random.below(link.up.len() as u64 + 1) as usize;
        let down = random.below(link.down.len() as u64 + 1) as usize;
        link.up.truncate(up);
        link.down.truncate(down);
        for event in [Event::PeerNotices(id), Event::LeaderNotices(id)] {
            let slow = self.random.chance(20);
            let wait = self.random.below(if slow { 4_000 } else { 50 });
            self.later.at(self.now + wait, event);
        }
    }

    /// Hands over every frame that has arrived.
    pub(super) fn carry_frames(&mut self) -> Checked {
        for id in self.links.links.keys().copied().collect::<Vec<_>>() {
            while let Some(link) = self.links.links.get(&id)
                && self.can_receive(link).0
                && link.up.front().is_some_and(|(at, _)| *at <= self.now)
            {
                let link = self.links.links.get_mut(&id).expect("it is there");
                let (_, frame) = link.up.pop_front().expect("it was looked at");
                self.leader_hears(id, frame)?;
            }
            while let Some(link) = self.links.links.get(&id)
                && self.can_receive(link).1
                && link.down.front().is_some_and(|(at, _)| *at <= self.now)
            {
                let peer = link.peer;
                let link = self.links.links.get_mut(&id).expect("it is there");
                let (_, frame) = link.down.pop_front().expect("it was looked at");
                match peer {
                    Peer::Worker(at) => self.worker_hears(at, id, frame)?,
                    Peer::Client(at) => self.client_hears(at, id, frame)?,
                }
            }
        }
        Ok(())
    }
}
