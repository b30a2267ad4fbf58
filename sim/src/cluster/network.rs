//! The network: for each pair of nodes and each direction connections that keep their order and
//! may break, and a wire that may be cut.
//!
//! A connection that breaks loses what is in flight, or only the end of it: what had reached the
//! other side's socket is still read, possibly after the first frames of the next connection. Its
//! sender notices some time later. A cut wire carries nothing; a connection over it breaks after a
//! while, unless the wire heals before.

use std::collections::{BTreeMap, VecDeque};

use gapless_core::cluster::{Frame, Incarnation, NodeName, Sender};

use super::World;
use super::host::{Host, name};
use crate::random::Random;
use crate::world::Checked;

/// One connection.
#[derive(Debug)]
struct Connection {
    id: u64,
    from: Sender,
    /// The life of the node that accepted it.
    to: Incarnation,
    /// What is in flight, and when it arrives at the earliest.
    frames: VecDeque<(u64, Frame)>,
}

/// One direction between two nodes.
#[derive(Debug, Default)]
struct Wire {
    is_cut: bool,
    /// The connection that the sender uses.
    current: Option<u64>,
    /// Whether it is broken, and the sender does not know yet.
    is_broken: bool,
    connections: Vec<Connection>,
}

/// What will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    /// The sender notices that its connection broke.
    Notice(usize, usize, u64),
    /// The sender tries to connect.
    Connect(usize, usize),
    /// A connection over a cut wire breaks.
    CutTimeout(usize, usize, u64),
    /// A connection to a frozen node breaks.
    Silent(usize, usize, u64),
    /// A cut wire heals.
    Heal(usize, usize),
    /// A frozen node goes on.
    Thaw(usize),
    /// A node that is down starts.
    Start(usize),
    /// The membership tells a node who is there.
    Topology(usize),
    /// An item's anonymous subscribers have answered: node, and the number of the answer.
    Settle(usize, u64),
}

/// All wires, and what will happen when.
#[derive(Debug)]
pub(super) struct Network {
    wires: BTreeMap<(usize, usize), Wire>,
    later: BTreeMap<(u64, u64), Later>,
    scheduled: u64,
    connections: u64,
    /// Frames of a thousand that vanish from a connection that stays.
    loss: u64,
}

impl Network {
    pub(super) fn new(hosts: usize, loss: u64) -> Self {
        let pairs = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to)));
        let wires = pairs.filter(|(from, to)| from != to).map(|pair| (pair, Wire::default()));
        let wires = wires.collect();
        Self { wires, later: BTreeMap::new(), scheduled: 0, connections: 0, loss }
    }

    pub(super) fn schedule(&mut self, at: u64, later: Later) {
        self.scheduled += 1;
        self.later.insert((at, self.scheduled), later);
    }

    pub(super) fn send(
        &mut self,
        random: &mut Random,
        now: u64,
        pair: (usize, usize),
        frame: Frame,
    ) {
        let wire = self.wires.get_mut(&pair).expect("a pair of hosts");
        if wire.is_broken || random.below(1_000) < self.loss {
            return;
        }
        let current = wire.current;
        let found = wire.connections.iter_mut().find(|connection| Some(connection.id) == current);
        let Some(connection) = found else { return };
        let delay = if random.chance(90) { random.below(10) } else { random.below(400) };
        let last = connection.frames.back().map_or(0, |(at, _)| *at);
        connection.frames.push_back(((now + delay).max(last), frame));
    }

    /// When something happens next.
    pub(super) fn due(&self, now: u64, hosts: &[Host]) -> Option<u64> {
        let later = self.later.keys().next().map(|(at, _)| *at);
        let open =
            self.wires.iter().filter(|((_, to), wire)| !wire.is_cut && hosts[*to].is_running());
        let frames = open.flat_map(|(_, wire)| &wire.connections);
        let frames = frames.filter_map(|connection| connection.frames.front().map(|(at, _)| *at));
        frames.chain(later).min().map(|at| at.max(now))
    }

    /// Whether nothing is on its way, and everyone is connected.
    pub(super) fn is_quiet(&self) -> bool {
        self.wires.values().all(|wire| {
            let flying = wire.connections.iter().any(|connection| !connection.frames.is_empty());
            !flying && wire.current.is_some() && !wire.is_broken
        })
    }

    fn pop_later(&mut self, now: u64) -> Option<Later> {
        let entry = self.later.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    /// The next frame that arrives: at which node, from whom.
    fn pop_frame(&mut self, now: u64, hosts: &[Host]) -> Option<(usize, Sender, Frame)> {
        for ((_, to), wire) in &mut self.wires {
            if wire.is_cut || !hosts[*to].is_running() {
                continue;
            }
            let current = wire.current;
            let life = hosts[*to].me().incarnation;
            wire.connections.retain(|connection| {
                let is_over = connection.frames.is_empty() && Some(connection.id) != current;
                connection.to == life && !is_over
            });
            for connection in &mut wire.connections {
                if connection.frames.front().is_some_and(|(at, _)| *at <= now)
                    && let Some((_, frame)) = connection.frames.pop_front()
                {
                    return Some((*to, connection.from.clone(), frame));
                }
            }
        }
        None
    }
}

impl World {
    /// What is due on the network happens.
    pub(super) fn network_turn(&mut self) -> Checked {
        while let Some(later) = self.network.pop_later(self.now) {
            self.happen(later)?;
        }
        while let Some((to, from, frame)) = self.network.pop_frame(self.now, &self.hosts) {
            self.arrive(to, &from, frame)?;
        }
        Ok(())
    }

    pub(super) fn after(&mut self, from: u64, to: u64, later: Later) {
        let at = self.now + self.random.between(from, to);
        self.network.schedule(at, later);
    }

    fn happen(&mut self, later: Later) -> Checked {
        match later {
            Later::Notice(from, to, id) => self.notice(from, to, id),
            Later::Connect(from, to) => self.connect(from, to),
            Later::CutTimeout(from, to, id) => {
                let wire = &self.network.wires[&(from, to)];
                if wire.is_cut && wire.current == Some(id) {
                    self.break_connection(from, to, 0);
                }
                Ok(())
            }
            Later::Silent(from, to, id) => {
                let is_current = self.network.wires[&(from, to)].current == Some(id);
                if is_current && self.hosts[to].is_frozen {
                    self.break_connection(from, to, usize::MAX);
                }
                Ok(())
            }
            Later::Heal(from, to) => {
                self.wire(from, to).is_cut = false;
                Ok(())
            }
            Later::Thaw(index) => {
                self.hosts[index].is_frozen = false;
                for other in self.others(index) {
                    if self.random.chance(50) {
                        self.break_connection(index, other, usize::MAX);
                    }
                }
                Ok(())
            }
            Later::Start(index) => {
                self.hosts[index].is_up = true;
                self.others(index).into_iter().for_each(|other| {
                    self.after(1, 200, Later::Connect(index, other));
                });
                Ok(())
            }
            Later::Topology(index) => self.topology(index),
            Later::Settle(index, answer) => self.settle_now(index, answer),
        }
    }

    fn wire(&mut self, from: usize, to: usize) -> &mut Wire {
        self.network.wires.get_mut(&(from, to)).expect("a pair of hosts")
    }

    pub(super) fn others(&self, index: usize) -> Vec<usize> {
        (0..self.hosts.len()).filter(|other| *other != index).collect()
    }

    /// A connection breaks; so many frames of it have arrived at the other side's socket.
    pub(super) fn break_connection(&mut self, from: usize, to: usize, kept: usize) {
        let wire = self.wire(from, to);
        let Some(id) = wire.current.filter(|_| !wire.is_broken) else { return };
        wire.is_broken = true;
        if let Some(found) = wire.connections.iter_mut().find(|found| found.id == id) {
            found.frames.truncate(kept);
        }
        self.counts.resets += 1;
        self.after(0, 60, Later::Notice(from, to, id));
    }

    /// What is in flight is kept up to some place.
    pub(super) fn reset(&mut self, from: usize, to: usize) {
        let kept = self.random.below(4) as usize;
        self.break_connection(from, to, kept);
    }

    fn notice(&mut self, from: usize, to: usize, id: u64) -> Checked {
        if self.network.wires[&(from, to)].current != Some(id) {
            return Ok(());
        }
        if self.hosts[from].is_frozen {
            self.after(10, 50, Later::Notice(from, to, id));
            return Ok(());
        }
        let wire = self.wire(from, to);
        (wire.current, wire.is_broken) = (None, false);
        self.after(1, 300, Later::Connect(from, to));
        self.input(from, |node, now, effects| node.link_down(now, &name(to), effects))
    }

    fn connect(&mut self, from: usize, to: usize) -> Checked {
        let can = self.hosts[from].is_running() && self.hosts[to].is_running();
        let wire = &self.network.wires[&(from, to)];
        if !self.hosts[from].is_up || wire.current.is_some() {
            return Ok(());
        }
        if !can || wire.is_cut {
            self.after(20, 300, Later::Connect(from, to));
            return Ok(());
        }
        self.network.connections += 1;
        let id = self.network.connections;
        let (sender, life) = (self.hosts[from].me().clone(), self.hosts[to].me().incarnation);
        let frames = VecDeque::new();
        let wire = self.wire(from, to);
        wire.current = Some(id);
        wire.connections.push(Connection { id, from: sender, to: life, frames });
        self.input(from, |node, now, effects| node.link_up(now, &name(to), life, effects))
    }

    /// Cuts a wire for a while.
    pub(super) fn cut(&mut self, from: usize, to: usize) {
        let ttl = u64::try_from(self.config.suspended_ttl.as_millis()).expect("a short time");
        let wire = self.wire(from, to);
        if wire.is_cut {
            return;
        }
        wire.is_cut = true;
        let current = wire.current;
        self.counts.cuts += 1;
        let most = if self.random.chance(80) { ttl / 2 } else { ttl * 2 };
        self.after(50, most, Later::Heal(from, to));
        if let Some(id) = current {
            self.after(100, 2_000, Later::CutTimeout(from, to, id));
        }
    }

    pub(super) fn freeze(&mut self, index: usize) {
        let ttl = u64::try_from(self.config.suspended_ttl.as_millis()).expect("a short time");
        self.hosts[index].is_frozen = true;
        self.counts.freezes += 1;
        let most = if self.random.chance(80) { ttl / 2 } else { ttl * 2 };
        self.after(50, most, Later::Thaw(index));
        for other in self.others(index) {
            let current = self.network.wires[&(other, index)].current;
            if let Some(id) = current.filter(|_| self.random.chance(70)) {
                self.after(500, 2_500, Later::Silent(other, index, id));
            }
        }
    }

    /// A node dies, and starts again later in a new life.
    pub(super) fn restart(&mut self, index: usize) {
        let ttl = u64::try_from(self.config.suspended_ttl.as_millis()).expect("a short time");
        self.ledger.died(&self.hosts[index].me().clone());
        self.hosts[index].restart(index, self.config);
        for other in self.others(index) {
            self.break_connection(other, index, 0);
            let kept = self.random.below(4) as usize;
            let wire = self.wire(index, other);
            let current = wire.current.take();
            wire.is_broken = false;
            if let Some(found) = wire.connections.iter_mut().find(|found| Some(found.id) == current)
            {
                found.frames.truncate(kept);
            }
        }
        let most = if self.random.chance(80) { 1_000 } else { ttl * 2 };
        self.after(1, most, Later::Start(index));
    }

    /// The membership tells a node who is there; now and then it is wrong.
    fn topology(&mut self, index: usize) -> Checked {
        self.after(300, 1_500, Later::Topology(index));
        if !self.hosts[index].is_running() {
            return Ok(());
        }
        let mut live: Vec<(NodeName, Incarnation)> = Vec::new();
        for host in &self.hosts {
            let is_missed = !self.is_calm && self.random.chance(5);
            if host.is_up && !is_missed {
                live.push((host.me().node.clone(), host.me().incarnation));
            }
        }
        self.input(index, |node, now, effects| node.topology(now, &live, effects))
    }

    /// Everything is mended; what is broken is noticed.
    pub(super) fn mend(&mut self) {
        self.network.loss = 0;
        self.network.wires.values_mut().for_each(|wire| wire.is_cut = false);
        for index in 0..self.hosts.len() {
            self.hosts[index].is_frozen = false;
            if !self.hosts[index].is_up {
                self.network.schedule(self.now, Later::Start(index));
            }
        }
    }
}
