//! The rules of the outbox under random orders of events, in worlds larger than a model checker
//! can search: more transactions, numbers, crashes, owners and epochs.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::fence::{Effect, Fence, Holder, HolderId, Input, Life};
use super::owner::{self, Owner};
use super::pace::Pace;
use super::place::{Begun, EpochId, Place, Source, Standing};
use crate::time::Timestamp;

/// Transactions at the same time.
const TXS: usize = 6;

/// What may become of a number that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its transaction may still commit.
    Unseen(usize),
    Settled,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tx {
    id: u64,
    locked: bool,
    prepared: bool,
    ended: bool,
}

/// A server: numbers, transactions, the published bound, and an owner of the fence.
struct World {
    life: u128,
    fates: Vec<Fate>,
    flushed: usize,
    txs: [Tx; TXS],
    ids: u64,
    published: u64,
    fence: Fence,
    /// The first half of a poll: the life and the last number drawn.
    read: Option<(u128, u64)>,
    /// A bound that is on its way to the database.
    publishing: Option<(u128, u64)>,
}

impl World {
    fn new() -> Self {
        Self {
            life: 1,
            fates: Vec::new(),
            flushed: 0,
            txs: [Tx::default(); TXS],
            ids: 0,
            published: 0,
            fence: Fence::new(0),
            read: None,
            publishing: None,
        }
    }

    /// Does what a number stands for, if it is possible.
    fn act(&mut self, what: u8, which: usize) {
        let tx = self.txs[which];
        let open = tx.locked && !tx.ended;
        match what {
            // An insert: the lock first, then a number.
            0..4 if !tx.prepared && !tx.ended => {
                if !tx.locked {
                    self.ids += 1;
                    self.txs[which] = Tx { id: self.ids, locked: true, ..Tx::default() };
                } else {
                    self.fates.push(Fate::Unseen(which));
                }
            }
            4 if open => {
                self.end(which);
                self.flushed = self.fates.len();
            }
            // A rollback frees the lock at once.
            5 if open => {
                self.end(which);
                self.txs[which] = Tx::default();
            }
            6 if open && !tx.prepared => {
                self.ids += 1;
                self.txs[which] = Tx { prepared: true, id: self.ids, ..tx };
                self.flushed = self.fates.len();
            }
            // After a commit the lock goes last.
            7 if tx.ended => self.txs[which] = Tx::default(),
            8 if which == 0 => self.crash(),
            9 => self.read = Some((self.life, self.fates.len() as u64)),
            10 => self.poll(),
            11 => self.publish(),
            // Another owner takes over: it knows only what is published.
            12 => self.restart(),
            _ => {}
        }
    }

    fn end(&mut self, which: usize) {
        for fate in &mut self.fates {
            if *fate == Fate::Unseen(which) {
                *fate = Fate::Settled;
            }
        }
        self.txs[which].ended = true;
    }

    /// What was not flushed is drawn again; only prepared transactions stay.
    fn crash(&mut self) {
        for which in 0..TXS {
            if !self.txs[which].prepared || self.txs[which].ended {
                self.end(which);
                self.txs[which] = Tx::default();
            }
        }
        self.fates.truncate(self.flushed);
        self.life += 1;
    }

    fn poll(&mut self) {
        let Some((life, drawn)) = self.read.take() else { return };
        if life != self.life {
            return self.restart();
        }
        let held = self.txs.iter().filter(|tx| tx.locked);
        let holders =
            held.map(|tx| Holder { id: HolderId(tx.id), prepared: tx.prepared }).collect();
        let mut effects = Vec::new();
        let input = Input::Polled { life: Life(life), drawn, holders };
        self.fence.step(Timestamp(0), input, &mut effects);
        self.fence.check();
        for effect in effects {
            match effect {
                Effect::Publish { safe, life } => self.publishing = Some((life.0, safe)),
                Effect::Restore => self.restart(),
                Effect::Refused(error) => panic!("the sequence never went back: {error}"),
            }
        }
    }

    fn publish(&mut self) {
        let Some((life, safe)) = self.publishing.take() else { return };
        if life != self.life {
            return self.restart();
        }
        self.published = self.published.max(safe);
        self.flushed = self.fates.len();
    }

    fn restart(&mut self) {
        let stored = Input::Stored { safe: self.published };
        self.fence.step(Timestamp(0), stored, &mut Vec::new());
        (self.read, self.publishing) = (None, None);
    }

    fn check(&self) {
        let settled = |fate: &Fate| *fate == Fate::Settled;
        let published = usize::try_from(self.published).expect("a small world");
        assert!(published <= self.fates.len(), "published beyond what is drawn");
        assert!(self.fates[..published].iter().all(settled), "published and not settled");
    }
}

/// A database that keeps one lease, and owners that ask it over slow connections.
struct Leases {
    lease: Duration,
    now: u64,
    /// Who has it, and until when.
    row: Option<(usize, u64)>,
    owners: Vec<Owner>,
    /// Questions on their way, and answers on theirs.
    asked: Vec<bool>,
    answered: Vec<Option<owner::Input>>,
}

impl Leases {
    fn new(owners: usize) -> Self {
        let lease = Duration::from_millis(900);
        Self {
            lease,
            now: 0,
            row: None,
            owners: vec![Owner::new(lease); owners],
            asked: vec![false; owners],
            answered: vec![None; owners],
        }
    }

    /// Each owner's clock began at another time.
    fn clock(&self, which: usize) -> Timestamp {
        Timestamp(self.now + 1_000 * which as u64)
    }

    fn step(&mut self, which: usize, input: owner::Input) {
        let mut effects = Vec::new();
        let now = self.clock(which);
        self.owners[which].step(now, input, &mut effects);
        if effects.contains(&owner::Effect::Ask) {
            assert!(!self.asked[which] && self.answered[which].is_none(), "one question at a time");
            self.asked[which] = true;
        }
    }

    /// The question arrives at the database.
    fn decide(&mut self, which: usize) {
        if !core::mem::take(&mut self.asked[which]) {
            return;
        }
        let lease = u64::try_from(self.lease.as_millis()).expect("short");
        let answer = match self.row {
            Some((holder, until)) if holder != which && until >= self.now => {
                let left = Duration::from_millis(until - self.now);
                owner::Input::Refused { left }
            }
            _ => {
                self.row = Some((which, self.now + lease));
                owner::Input::Granted
            }
        };
        self.answered[which] = Some(answer);
    }

    /// The answer arrives, or the connection is lost.
    fn answer(&mut self, which: usize, arrives: bool) {
        if let Some(answer) = self.answered[which].take() {
            self.step(which, if arrives { answer } else { owner::Input::Failed });
        }
    }

    fn check(&self) {
        let owns = |which: &usize| self.owners[*which].owns(self.clock(*which));
        assert!((0..self.owners.len()).filter(owns).count() <= 1, "two do the work");
    }
}

#[test]
fn b9_a_bound_that_was_lost_in_a_crash_is_not_used_after_it() {
    let mut fence = Fence::new(0);
    let mut step = |input| {
        let mut effects = Vec::new();
        fence.step(Timestamp(0), input, &mut effects);
        effects
    };
    let polled = |life, drawn, holders| Input::Polled { life: Life(life), drawn, holders };
    let settled = Effect::Publish { safe: 2, life: Life(1) };
    assert_eq!(step(polled(1, 2, Vec::new())), [settled]);
    // It crashes before that is written: 1 is drawn again, and its transaction is open.
    let open = || vec![Holder { id: HolderId(9), prepared: false }];
    assert_eq!(step(polled(2, 1, open())), [Effect::Restore]);
    assert_eq!(step(Input::Stored { safe: 0 }), []);
    assert_eq!(step(polled(2, 3, open())), []);
    assert_eq!(step(polled(2, 3, Vec::new())), [Effect::Publish { safe: 3, life: Life(2) }]);
}

proptest! {
    #[test]
    fn b9_whatever_transactions_do_what_is_published_is_settled(
        script in prop::collection::vec((0_u8..13, 0..TXS), 0..400),
    ) {
        let mut world = World::new();
        for (what, which) in script {
            world.act(what, which);
            world.check();
        }
        // And it is not for ever: when all have ended two polls settle all of it.
        for which in 0..TXS {
            world.end(which);
            world.txs[which] = Tx::default();
        }
        for what in [9, 10, 11, 9, 10, 11] {
            world.act(what, 0);
            world.check();
        }
        prop_assert_eq!(world.published, world.fates.len() as u64);
    }

    #[test]
    fn b8_at_most_one_owner_works_however_late_answers_are(
        script in prop::collection::vec((0_u8..4, 0_usize..3, 1_u64..400), 0..300),
    ) {
        let mut world = Leases::new(3);
        for (what, which, ms) in script {
            match what {
                0 => world.now += ms,
                1 => world.decide(which),
                2 => world.answer(which, true),
                _ => world.answer(which, false),
            }
            world.check();
            for which in 0..3 {
                world.step(which, owner::Input::Tick);
            }
            world.check();
        }
        // When answers come again, one of them works soon.
        let deadline = world.now + 3 * 900;
        while world.now < deadline {
            for which in 0..3 {
                world.step(which, owner::Input::Tick);
                world.decide(which);
                world.answer(which, true);
            }
            world.check();
            world.now += 10;
        }
        let working = (0..3).filter(|which| world.owners[*which].owns(world.clock(*which)));
        prop_assert_eq!(working.count(), 1);
    }

    #[test]
    fn waits_between_looks_grow_within_their_bounds_until_something_is_found(
        least in 0_u64..50,
        most in 0_u64..2_000,
        script in prop::collection::vec(any::<bool>(), 1..100),
    ) {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(ms(least), ms(most));
        let least = ms(least.max(1));
        let mut before = least;
        for found in script {
            let wait = if found { pace.found() } else { pace.nothing() };
            prop_assert!(wait >= least && wait <= ms(most).max(least));
            let grows = found || wait >= before;
            prop_assert!(grows && (!found || wait == least));
            before = wait;
        }
    }

    /// Histories are real here: each row has an identity, and a restore takes rows away.
    #[test]
    fn b5_a_consumer_goes_on_only_if_all_it_saw_is_still_so(
        script in prop::collection::vec((0_u8..6, 1_u64..8), 0..60),
        stood in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        standby in any::<bool>(),
    ) {
        let mut source = Source {
            epochs: vec![Begun { id: EpochId(1), after: 0 }], safe: 0, floor: 0, standby: false,
        };
        let mut rows: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut next, mut identity) = (1, 0);
        // Every place at which a consumer can have stood, with the rows that it had seen.
        let mut places = vec![(EpochId(1), 0, rows.clone())];
        for (what, count) in script {
            let epoch = source.epochs.last().expect("there is one").id;
            match what {
                0..3 => {
                    for _ in 0..count {
                        identity += 1;
                        rows.insert(next, identity);
                        next += 1;
                    }
                    source.safe = next - 1;
                    places.push((epoch, source.safe, rows.clone()));
                }
                // Numbers of a transaction that was rolled back.
                3 => next += count,
                4 => {
                    let after = source.safe.saturating_sub(count).max(source.floor);
                    rows.retain(|seq, _| *seq <= after);
                    source.safe = after;
                    // Sometimes numbers are given again, as by a server that did not jump.
                    next = if count % 2 == 0 { after + 1 } else { next + 100 };
                    source.epochs.push(Begun { id: EpochId(epoch.0 + 1), after });
                }
                _ => source.floor = source.safe.saturating_sub(count).max(source.floor),
            }
        }
        source.standby = standby;
        let (epoch, top, seen) = stood.0.get(&places);
        let seq = stood.1.index(usize::try_from(top + 1).expect("small")) as u64;
        let same = seen.range(..=seq).eq(rows.range(..=seq));
        let later = source.epochs.iter().skip_while(|begun| begun.id != *epoch).skip(1);
        let common = later.map(|begun| begun.after).min().unwrap_or(u64::MAX);
        match source.standing(Place { epoch: Some(*epoch), seq }) {
            Ok(Standing::Ready(_)) => {
                prop_assert!(same, "it goes on although rows that it saw are others now");
                prop_assert!(seq >= source.floor, "it goes on although rows are gone");
            }
            Ok(Standing::Wait) => prop_assert!(standby && seq > source.safe),
            Err(_) => prop_assert!(
                seq > common || seq < source.floor || seq > source.safe,
                "it is refused without need"
            ),
        }
    }
}
