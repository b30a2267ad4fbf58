//! The rules of a group in their simplest form: one record per message, and every question looks at
//! all of them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::super::*;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    Unread,
    Open,
    Leased { member: MemberId, deadline: Timestamp },
    Dying,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) position: Position,
    pub(super) key: Option<NonZeroU128>,
    pub(super) fate: Fate,
    pub(super) attempts: u32,
    pub(super) failed: u32,
    pub(super) due: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) settings: GroupSettings,
    pub(super) messages: Vec<Message>,
    pub(super) members: BTreeMap<MemberId, u32>,
    pub(super) active: Option<MemberId>,
    pub(super) standbys: Vec<MemberId>,
    pub(super) heard: Timestamp,
    pub(super) paused: bool,
}

impl Model {
    pub(super) fn new(settings: GroupSettings, messages: Vec<Message>) -> Self {
        let heard = Timestamp(0);
        let (members, standbys) = (BTreeMap::new(), Vec::new());
        Self { settings, messages, members, active: None, standbys, heard, paused: false }
    }

    fn ordered(&self) -> bool {
        self.settings.mode == Mode::Ordered
    }

    pub(super) fn held(&self, member: MemberId) -> Vec<(Position, u32)> {
        let of = |message: &&Message| matches!(message.fate, Fate::Leased { member: id, .. } if id == member);
        self.messages.iter().filter(of).map(|each| (each.position, each.attempts)).collect()
    }

    pub(super) fn leased(&self) -> u64 {
        let leased = |message: &&Message| matches!(message.fate, Fate::Leased { .. });
        self.messages.iter().filter(leased).count() as u64
    }

    pub(super) fn open(&self) -> u64 {
        let open = |message: &&Message| !matches!(message.fate, Fate::Unread | Fate::Done);
        self.messages.iter().filter(open).count() as u64
    }

    /// Whether a message may be handed out now.
    fn is_free(&self, at: usize, now: Timestamp) -> bool {
        let message = &self.messages[at];
        if message.fate != Fate::Open || message.due > now {
            return false;
        }
        let before = &self.messages[..at];
        match self.settings.mode {
            Mode::Shared => true,
            Mode::Keyed => !before.iter().any(|other| {
                message.key.is_some()
                    && other.key == message.key
                    && matches!(other.fate, Fate::Open | Fate::Leased { .. })
            }),
            Mode::Ordered => !before.iter().any(|other| other.fate == Fate::Open),
        }
    }

    pub(super) fn join(&mut self, member: MemberId, window: u32) {
        self.members.insert(member, window);
        if self.ordered() {
            if self.active.is_none() {
                self.active = Some(member);
            } else {
                self.standbys.push(member);
            }
        }
    }

    pub(super) fn offer(&mut self, through: Position) {
        for message in &mut self.messages {
            if message.position <= through && message.fate == Fate::Unread {
                let dead = message.failed >= DEAD;
                message.fate = if dead { Fate::Dying } else { Fate::Open };
            }
        }
    }

    pub(super) fn take(
        &mut self,
        now: Timestamp,
        member: MemberId,
        max: u64,
    ) -> Vec<(Position, u32)> {
        let Some(&window) = self.members.get(&member) else { return Vec::new() };
        if self.paused || (self.ordered() && self.active != Some(member)) {
            return Vec::new();
        }
        let own = self.held(member).len() as u64;
        let room = u64::from(window).saturating_sub(own).min(max);
        let all = u64::from(self.settings.in_flight_max).saturating_sub(self.leased());
        let mut taken = Vec::new();
        for at in 0..self.messages.len() {
            if taken.len() as u64 == room.min(all) {
                break;
            }
            if self.is_free(at, now) {
                let deadline = now.after(self.settings.lease);
                if self.ordered() && self.held(member).is_empty() {
                    self.heard = now;
                }
                let message = &mut self.messages[at];
                message.attempts += 1;
                message.fate = Fate::Leased { member, deadline };
                taken.push((message.position, message.attempts));
            }
        }
        taken
    }

    /// The messages of these leases that the member holds, and how many it does not.
    fn named(&self, member: MemberId, leases: &[Lease]) -> (Vec<usize>, u64) {
        let mut found = Vec::new();
        let mut refused = 0;
        for lease in leases {
            for position in lease.first.0..=lease.last.0 {
                let held = self.messages.iter().position(|message| {
                    message.position.0 == position
                        && message.attempts == lease.attempt
                        && matches!(message.fate, Fate::Leased { member: id, .. } if id == member)
                });
                match held.filter(|at| !found.contains(at)) {
                    Some(at) => found.push(at),
                    None => refused += 1,
                }
            }
        }
        (found, refused)
    }

    pub(super) fn hears(&mut self, now: Timestamp, member: MemberId) {
        if self.active == Some(member) {
            self.heard = now;
        }
    }

    pub(super) fn ack(&mut self, now: Timestamp, member: MemberId, leases: &[Lease]) -> (u64, u64) {
        self.hears(now, member);
        let (found, refused) = self.named(member, leases);
        found.iter().for_each(|at| self.messages[*at].fate = Fate::Done);
        (found.len() as u64, refused)
    }

    pub(super) fn commit(
        &mut self,
        now: Timestamp,
        member: MemberId,
        through: Position,
        unread: &[Lease],
    ) -> u64 {
        self.hears(now, member);
        let is_unread =
            |at: Position| unread.iter().any(|lease| lease.first <= at && at <= lease.last);
        let mut taken = 0;
        for message in &mut self.messages {
            let own = matches!(message.fate, Fate::Leased { member: id, .. } if id == member);
            if own && message.position <= through && !is_unread(message.position) {
                message.fate = Fate::Done;
                taken += 1;
            }
        }
        taken
    }

    pub(super) fn give_back(
        &mut self,
        now: Timestamp,
        member: MemberId,
        leases: &[Lease],
        delay: Option<Duration>,
        dead: bool,
    ) -> (u64, u64) {
        self.hears(now, member);
        let (found, refused) = self.named(member, leases);
        let mut again: Option<usize> = None;
        for at in &found {
            if !self.fail(now, *at, delay, dead) {
                again = Some(again.map_or(*at, |first| first.min(*at)));
            }
        }
        if let (Some(first), true) = (again, self.ordered()) {
            self.release(member, first);
        }
        (found.len() as u64, refused)
    }

    fn fail(&mut self, now: Timestamp, at: usize, delay: Option<Duration>, dead: bool) -> bool {
        let message = &mut self.messages[at];
        let dead = dead || message.attempts >= self.settings.attempts_max;
        let wait = self.settings.retry.wait(message.attempts, 0);
        message.due = now.after(delay.unwrap_or(wait));
        message.failed = if dead { DEAD } else { message.attempts };
        message.fate = match (dead, self.settings.dead_letters) {
            (true, true) => Fate::Dying,
            (true, false) => Fate::Done,
            (false, _) => Fate::Open,
        };
        dead
    }

    fn release(&mut self, member: MemberId, from: usize) {
        for message in &mut self.messages[from..] {
            if matches!(message.fate, Fate::Leased { member: id, .. } if id == member) {
                message.attempts -= 1;
                message.fate = Fate::Open;
            }
        }
    }

    pub(super) fn extend(
        &mut self,
        now: Timestamp,
        member: MemberId,
        leases: &[Lease],
    ) -> (u64, u64) {
        self.hears(now, member);
        let (mut found, mut refused) = self.named(member, leases);
        if leases.is_empty() {
            let held = self.held(member);
            let place = |at: &usize| self.messages[*at].position;
            let is_held = |at: &usize| held.iter().any(|(position, _)| *position == place(at));
            (found, refused) = ((0..self.messages.len()).filter(is_held).collect(), 0);
        }
        for at in &found {
            let deadline = now.after(self.settings.lease);
            self.messages[*at].fate = Fate::Leased { member, deadline };
        }
        (found.len() as u64, refused)
    }

    fn fail_all(&mut self, now: Timestamp, member: MemberId) {
        let of = member;
        let held =
            |each: &Message| matches!(each.fate, Fate::Leased { member, .. } if member == of);
        while let Some(at) = self.messages.iter().position(held) {
            self.fail(now, at, Some(Duration::ZERO), false);
            if self.ordered() {
                return self.release(member, 0);
            }
        }
    }

    pub(super) fn leave(&mut self, now: Timestamp, member: MemberId, failed: bool) {
        if failed {
            self.fail_all(now, member);
        } else {
            self.release(member, 0);
        }
        self.members.remove(&member);
        self.standbys.retain(|id| *id != member);
        if self.active == Some(member) {
            self.active = (!self.standbys.is_empty()).then(|| self.standbys.remove(0));
        }
    }

    pub(super) fn tick(&mut self, now: Timestamp) {
        if let Some(member) = self.active {
            let over = self.heard.after(self.settings.lease) <= now;
            if over && !self.held(member).is_empty() {
                self.fail_all(now, member);
                if !self.standbys.is_empty() {
                    self.standbys.push(member);
                    self.active = Some(self.standbys.remove(0));
                }
            }
            return;
        }
        for at in 0..self.messages.len() {
            if matches!(self.messages[at].fate, Fate::Leased { deadline, .. } if deadline <= now) {
                self.fail(now, at, Some(Duration::ZERO), false);
            }
        }
    }

    pub(super) fn bury(&mut self) {
        for message in &mut self.messages {
            if message.fate == Fate::Dying {
                message.fate = Fate::Done;
            }
        }
    }

    pub(super) fn crash(&mut self) {
        for message in &mut self.messages {
            if message.fate != Fate::Done {
                message.fate = Fate::Unread;
                message.attempts = message.failed;
            }
        }
        self.members.clear();
        self.standbys.clear();
        self.active = None;
    }
}

/// More attempts than any test makes: stands for one that is to be buried.
pub(super) const DEAD: u32 = 1_000_000;
