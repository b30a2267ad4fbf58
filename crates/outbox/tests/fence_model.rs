//! The fence, model-checked: every order of what transactions, a crash and the fence owner can
//! do in a small world, with the machine of `core` as the owner.
//!
//! The world knows what the machine cannot: which numbers are drawn and not visible yet. What
//! must always hold is that nothing at or below the published bound can still become visible,
//! for then a reader that has passed it would lose a row. The same worlds with one rule of the
//! protocol left out must break that, or the model would prove nothing.

use gapless_core::Timestamp;
use gapless_core::outbox::fence::{Effect, Fence, Holder, HolderId, Input, Life};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// Numbers that can be drawn.
const SEQS: usize = 3;
/// Transactions.
const TXS: usize = 2;
/// Polls of the owner.
const POLLS_MAX: u8 = 3;
/// What is added to the id of a transaction when it is prepared.
const PREPARED_ID: u64 = 10;

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// No holders are looked at: the bound is the last number drawn.
    Holders,
    /// Holders are read before the last number drawn, not after it.
    Order,
    /// What is remembered outlives a crash of the server.
    Life,
    /// Both reads of a poll may be of different lives.
    LifeOfPoll,
    /// A bound of a life before may be published.
    LifeOfPublish,
    /// A prepared transaction is taken for a new one.
    Prepared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Undrawn,
    /// Drawn by this transaction, which may still commit.
    Unseen(u8),
    Visible,
    Dead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Tx {
    locked: bool,
    prepared: bool,
    /// Its rows are visible, or dead; the lock may still be held.
    ended: bool,
}

/// What the owner has read of a poll so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Poll {
    Idle,
    Drawn { life: u8, drawn: u64 },
    Held { life: u8, holders: Vec<Holder> },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    life: u8,
    fates: [Fate; SEQS],
    drawn: usize,
    flushed: usize,
    txs: [Tx; TXS],
    /// The bound in the database.
    published: u64,
    fence: Fence,
    poll: Poll,
    polls: u8,
    /// The life and the bound that is on its way to the database, while polls go on.
    publishing: Option<(u8, u64)>,
    crashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Lock(usize),
    Draw(usize),
    Commit(usize),
    Prepare(usize),
    /// The lock goes after the commit is visible.
    Unlock(usize),
    /// To the beginning or to a savepoint: the transaction may lock and draw again.
    RollBack(usize),
    Crash,
    ReadDrawn,
    ReadHolders,
    Publish,
}

struct Worlds(Without);

impl Worlds {
    fn holders(&self, world: &World) -> Vec<Holder> {
        let held = world.txs.iter().zip(0..).filter(|(tx, _)| tx.locked);
        let holder = |(tx, index): (&Tx, u64)| {
            let id = HolderId(index + if tx.prepared { PREPARED_ID } else { 0 });
            Holder { id, prepared: tx.prepared && self.0 != Without::Prepared }
        };
        if self.0 == Without::Holders { Vec::new() } else { held.map(holder).collect() }
    }

    fn polled(&self, world: &mut World, drawn: u64, holders: Vec<Holder>) {
        let life = if self.0 == Without::Life { 0 } else { world.life };
        let input = Input::Polled { life: Life(u128::from(life)), drawn, holders };
        let mut effects = Vec::new();
        world.fence.step(Timestamp(0), input, &mut effects);
        world.fence.check();
        world.poll = Poll::Idle;
        if let Some(Effect::Publish { safe, .. }) = effects.first() {
            world.publishing = Some((world.life, *safe));
        }
    }

    /// The last number drawn and the holders, in the order of the protocol or in the other.
    fn read(&self, world: &mut World, action: Action) -> bool {
        let drawn = world.drawn as u64;
        let same = |life: u8| life == world.life || self.0 == Without::LifeOfPoll;
        let reversed = self.0 == Without::Order;
        match (action, world.poll.clone(), reversed) {
            (Action::ReadDrawn, Poll::Idle, false) => {
                world.polls += 1;
                world.poll = Poll::Drawn { life: world.life, drawn };
            }
            (Action::ReadHolders, Poll::Drawn { life, drawn }, false) if same(life) => {
                let holders = self.holders(world);
                self.polled(world, drawn, holders);
            }
            (Action::ReadHolders, Poll::Idle, true) => {
                world.polls += 1;
                world.poll = Poll::Held { life: world.life, holders: self.holders(world) };
            }
            (Action::ReadDrawn, Poll::Held { life, holders }, true) if same(life) => {
                self.polled(world, drawn, holders);
            }
            (Action::ReadHolders, Poll::Drawn { .. }, false)
            | (Action::ReadDrawn, Poll::Held { .. }, true) => restart(world),
            _ => return false,
        }
        true
    }

    fn publish(&self, world: &mut World) -> bool {
        let Some((life, safe)) = world.publishing.take() else { return false };
        if life == world.life || self.0 == Without::LifeOfPublish {
            world.published = world.published.max(safe);
            world.flushed = world.drawn;
        } else {
            restart(world);
        }
        true
    }
}

/// The owner begins again with what the database has.
fn restart(world: &mut World) {
    world.fence.step(Timestamp(0), Input::Stored { safe: world.published }, &mut Vec::new());
    (world.poll, world.publishing) = (Poll::Idle, None);
}

fn end(world: &mut World, index: usize, fate: Fate) {
    for each in &mut world.fates {
        if *each == Fate::Unseen(index as u8) {
            *each = fate;
        }
    }
}

fn crash(world: &mut World) {
    for index in 0..TXS {
        let Tx { locked, prepared, ended } = world.txs[index];
        if locked && (!prepared || ended) {
            end(world, index, Fate::Dead);
            world.txs[index] = Tx { ended: true, ..Tx::default() };
        }
    }
    for fate in &mut world.fates[world.flushed..] {
        *fate = Fate::Undrawn;
    }
    world.drawn = world.flushed;
    world.life += 1;
    world.crashed = true;
}

impl Model for Worlds {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            life: 0,
            fates: [Fate::Undrawn; SEQS],
            drawn: 0,
            flushed: 0,
            txs: [Tx::default(); TXS],
            published: 0,
            fence: Fence::new(0),
            poll: Poll::Idle,
            polls: 0,
            publishing: None,
            crashed: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for index in 0..TXS {
            actions.extend([
                Action::Lock(index),
                Action::Draw(index),
                Action::Commit(index),
                Action::Prepare(index),
                Action::Unlock(index),
                Action::RollBack(index),
            ]);
        }
        if !world.crashed {
            actions.push(Action::Crash);
        }
        if world.polls < POLLS_MAX || world.poll != Poll::Idle {
            actions.extend([Action::ReadDrawn, Action::ReadHolders]);
        }
        if world.publishing.is_some() {
            actions.push(Action::Publish);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        let possible = match action {
            Action::Lock(index) => {
                let tx = &mut world.txs[index];
                let possible = !tx.locked && !tx.ended;
                tx.locked = true;
                possible
            }
            Action::Draw(index) => {
                let tx = world.txs[index];
                let possible = tx.locked && !tx.ended && !tx.prepared && world.drawn < SEQS;
                if possible {
                    world.fates[world.drawn] = Fate::Unseen(index as u8);
                    world.drawn += 1;
                }
                possible
            }
            Action::Commit(index) => {
                let possible = world.txs[index].locked && !world.txs[index].ended;
                end(&mut world, index, Fate::Visible);
                world.txs[index].ended = true;
                world.flushed = world.drawn;
                possible
            }
            Action::Prepare(index) => {
                let tx = &mut world.txs[index];
                let possible = tx.locked && !tx.ended && !tx.prepared;
                tx.prepared = true;
                world.flushed = world.drawn;
                possible
            }
            Action::Unlock(index) => {
                let possible = world.txs[index].locked && world.txs[index].ended;
                world.txs[index].locked = false;
                possible
            }
            Action::RollBack(index) => {
                let possible = world.txs[index].locked && !world.txs[index].ended;
                end(&mut world, index, Fate::Dead);
                world.txs[index].ended = world.txs[index].prepared;
                world.txs[index].locked = false;
                possible
            }
            Action::Crash => {
                crash(&mut world);
                true
            }
            Action::ReadDrawn | Action::ReadHolders => self.read(&mut world, action),
            Action::Publish => self.publish(&mut world),
        };
        possible.then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what is published is settled", |_, world: &World| {
                let settled = |fate: &Fate| matches!(fate, Fate::Visible | Fate::Dead);
                world.fates[..world.published as usize].iter().all(settled)
            }),
            Property::sometimes("everything can be published", |_, world: &World| {
                world.published == SEQS as u64
            }),
        ]
    }
}

#[test]
fn b9_nothing_published_can_still_become_visible_whatever_the_order() {
    let checker = Worlds(Without::Nothing).checker().spawn_bfs().join();
    assert!(checker.is_done(), "the worlds are few enough to see them all");
    // That it is reachable at all shows that the bound moves; that there is no other discovery,
    // that it never moves too far.
    checker.assert_any_discovery("everything can be published");
    checker.assert_no_discovery("what is published is settled");
}

#[test]
fn b9_without_any_one_rule_of_the_fence_the_model_finds_a_lost_row() {
    use Without::{Holders, Life, LifeOfPoll, LifeOfPublish, Order, Prepared};
    for without in [Holders, Order, Life, LifeOfPoll, LifeOfPublish, Prepared] {
        let end = HasDiscoveries::AnyFailures;
        let checker = Worlds(without).checker().finish_when(end).spawn_bfs().join();
        let lost = checker.discovery("what is published is settled");
        assert!(lost.is_some(), "leaving out {without:?} does no harm in the model");
    }
}
