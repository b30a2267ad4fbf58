//! Bursts of random calls by several callers at once, a restart after each, and a model of
//! what must hold then. Every store must open again, whatever was called when it ended.
//!
//! `GAPLESS_BURSTS=10000 cargo test --profile sim -p gapless-broker --test bursts` runs more of
//! them, `GAPLESS_BURSTS_SEED` from another seed on. Threads are real, so a seed says what is
//! called and how the run ends, not the order in which calls meet.

mod acts;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use acts::{Caller, GROUPS, Shared, group_name};
use calls::{Call, KINDS};
use common::{Dice, PATIENCE, World, until};
use gapless_broker::{Broker, Clock, GroupDoing, Handed, Join, rehearse};
use gapless_core::{Durability, Position};
use gapless_journal::faulty::CrashKind;
use gapless_journal::layout::Folder;
use model::{Found, Model};

/// Bursts of the regular run.
const BURSTS: u64 = 120;
/// Bursts of one store, then another begins: a short history is checked more often.
const BURSTS_OF_A_STORE: u64 = 24;
/// Callers at the same time.
const CALLERS: u64 = 4;
/// Things that one caller does in a burst, at most.
const ACTS_MAX: u64 = 160;
/// One burst in this many, all groups are worked off.
const DRAIN_ONE_IN: u64 = 3;

/// How a burst ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Close,
    Drop,
    Kill,
    Power,
}

impl End {
    /// What survives for sure.
    fn kept(self) -> Durability {
        match self {
            Self::Close => Durability::Memory,
            Self::Drop | Self::Kill => Durability::Written,
            Self::Power => Durability::Flushed,
        }
    }
}

struct Store {
    world: World,
    model: Model,
    stamps: Arc<AtomicU64>,
    bodies: Arc<AtomicU64>,
    dice: Dice,
    letters: bool,
}

impl Store {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut world = World::new(seed);
        world.options.threads = true;
        world.options.limits.keep_interval = Duration::from_millis(1);
        world.options.journal.recovery_threads = 1;
        world.options.journal.recovery_queue_max = 4096;
        world.options.journal.seal_bytes = [4, 16, 64][dice.roll(3) as usize] * 1024;
        world.options.journal.tail_bytes = 4 * 1024;
        Self {
            world,
            model: Model::default(),
            // Nothing that was known before has a stamp.
            stamps: Arc::new(AtomicU64::new(1)),
            bodies: Arc::default(),
            dice,
            letters: seed.is_multiple_of(2),
        }
    }

    fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }

    fn shared(&self, broker: &Broker) -> Shared {
        Shared {
            broker: broker.clone(),
            clock: Arc::clone(&self.world.clock),
            stamps: Arc::clone(&self.stamps),
            bodies: Arc::clone(&self.bodies),
            scheduled: self.model.waiting(),
            letters: self.letters,
        }
    }

    /// One burst: calls, an end, and a look at what is there.
    fn burst(&mut self) -> Vec<Call> {
        let broker = self.world.open();
        let end = [End::Close, End::Drop, End::Kill, End::Power][self.dice.roll(4) as usize];
        let abrupt = self.dice.roll(2) == 0;
        let calls = self.calls(&broker, end, abrupt);
        if !abrupt {
            self.end(&broker, end);
        }
        drop(broker);
        let fs = Arc::new(self.world.fs.clone());
        let options = &self.world.options;
        let folder = Folder { log: options.log, ..Folder::new(fs, &options.folder) };
        rehearse(&folder).expect("the replay goes through");
        let broker = self.world.open();
        let now = self.world.clock.now().0;
        self.model.note_delayed(&calls);
        until("what is due is published", || {
            self.model.overdue(&Found::look(&broker), now).is_none()
        });
        broker.flush();
        self.model.check(&calls, Found::look(&broker), end.kept(), now);
        if self.dice.roll(DRAIN_ONE_IN) == 0 {
            (0..GROUPS).for_each(|group| self.drain(&broker, group));
        }
        // What happens by itself until then is part of what is found at the next opening.
        broker.close().expect("the store closes");
        let broker = self.world.open();
        self.model.found = Found::look(&broker);
        broker.close().expect("the store closes");
        calls
    }

    /// Lets callers do their part; an abrupt end comes while they are at it.
    fn calls(&mut self, broker: &Broker, end: End, abrupt: bool) -> Vec<Call> {
        let mut threads = Vec::new();
        let most = 1 + self.dice.roll(ACTS_MAX);
        for _ in 0..CALLERS {
            let caller = Caller::new(self.shared(broker), self.dice.roll(u64::MAX));
            let acts = 1 + self.dice.roll(most) as usize;
            threads.push(std::thread::spawn(move || caller.run(acts)));
        }
        if abrupt {
            let some = self.stamps.load(Ordering::SeqCst) + self.dice.roll(most * CALLERS);
            let done = |stamps: &AtomicU64| stamps.load(Ordering::SeqCst) >= some;
            while !done(&self.stamps) && !threads.iter().all(|thread| thread.is_finished()) {
                std::thread::yield_now();
            }
            self.end(broker, end);
        }
        let join = |thread: std::thread::JoinHandle<Vec<Call>>| match thread.join() {
            Ok(calls) => calls,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().flat_map(join).collect()
    }

    fn end(&self, broker: &Broker, end: End) {
        match end {
            End::Close => broker.clone().close().expect("the store closes"),
            End::Drop => {}
            End::Kill => self.world.fs.crash(CrashKind::Process),
            End::Power => self.world.fs.crash(CrashKind::Power),
        }
    }

    /// Works a group off, until it says that nothing is left.
    fn drain(&mut self, broker: &Broker, group: usize) {
        let name = group_name(group);
        let join = Join { name: "drain".to_owned(), window: 10_000 };
        let Ok(mut member) = broker.join_group(&name, &join) else { return };
        let before = Found::look(broker);
        let mut handed = Vec::new();
        let end = Instant::now() + PATIENCE;
        loop {
            let from = self.stamp();
            match member.poll_next(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(Handed::Messages(leased))) => {
                    for each in leased.messages().records() {
                        let lease = leased.lease_of(Position(each.position.0));
                        let outcome = member.ack(&[lease]).wait().expect("the broker is well");
                        assert_eq!(outcome.taken, 1, "no other member has it");
                        handed.push((each.position.0, from, self.stamp()));
                    }
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => panic!("g{group} is told {error}"),
                Poll::Pending => {
                    let info = broker.describe_group(&name).expect("the group is there");
                    if info.lag == 0 {
                        break;
                    }
                    if info.state != GroupDoing::Running {
                        broker.resume_group(&name).expect("the broker is well");
                    }
                    assert!(Instant::now() < end, "g{group} is not worked off: {info:?}");
                    self.world.advance(100);
                    std::thread::yield_now();
                }
            }
        }
        member.leave();
        self.model.drained((group, &before), broker, &handed);
    }
}

/// A number from the environment.
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.replace('_', "").parse().ok()
}

#[test]
fn c1_whatever_bursts_of_calls_wrote_can_be_opened_again_and_holds_what_was_promised() {
    let bursts = given("GAPLESS_BURSTS").unwrap_or(BURSTS);
    let first = given("GAPLESS_BURSTS_SEED").unwrap_or(0);
    let began = Instant::now();
    let mut done = 0;
    let mut counts = [0_u64; KINDS.len()];
    for seed in first.. {
        let mut store = Store::new(seed);
        for burst in 0..BURSTS_OF_A_STORE.min(bursts - done) {
            let run = std::panic::AssertUnwindSafe(|| store.burst());
            match std::panic::catch_unwind(run) {
                Ok(calls) => calls.iter().filter_map(Call::kind).for_each(|kind| counts[kind] += 1),
                Err(panic) => {
                    eprintln!("seed {seed}, burst {burst}");
                    std::panic::resume_unwind(panic);
                }
            }
            done += 1;
        }
        if done == bursts {
            break;
        }
    }
    let counts: Vec<_> = KINDS.iter().zip(counts).collect();
    println!("{done} bursts in {:?}: {counts:?}", began.elapsed());
    // Callers that do nothing find nothing.
    assert!(counts.iter().all(|(_, count)| *count * 8 >= bursts), "{counts:?}");
}
