//! Members of a group that work, fail, hang, die and come back, over a disk that tears, loses,
//! fails and fills up: a world of its own, since its model is about messages and not about
//! topics.
//!
//! What must hold: nothing that was durably acked comes again, nothing that was not is
//! forgotten (it is with a member, waits for its next attempt, is to be handed out, or is a
//! dead letter), a key goes in order and one at a time, an ordered group goes in order,
//! attempts are counted, and an atomic step is there whole or not at all: each message has at
//! most one output, however often it was tried, died and was redriven.
//!
//! `model` says what may be, `acts` is what members do, `side` is a second group that comes and
//! goes under its members, `disk` breaks and reopens.

mod acts;
mod disk;
mod model;
mod side;

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use gapless_broker::{Broker, BrokerState, GroupInfo, ManualClock, Member};
use gapless_core::{
    Durability, Fate as Happened, GroupSettings, Lease, Mode, Pattern, PubSubError, RetryPolicy,
    Timestamp, TopicName, TopicSettings, Waits,
};
use gapless_journal::faulty::{CrashKind, FaultyFs};

use crate::hook::Hook;
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;
use crate::world::{Checked, Violation, broken, ensure};
use model::{Change, Failed, Fate, Model};
use side::Side;

/// Steps of a run.
const STEPS: u64 = 250;
/// Members at the same time.
const MEMBERS_MAX: usize = 5;
/// How long a lease is.
const LEASE: Duration = Duration::from_millis(1_000);
/// Rounds after which everything that is left must be done.
const ROUNDS_MAX: usize = 3_000;

/// What happened in a run, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) hash: u64,
    pub(crate) lines: u64,
    handed: u64,
    again: u64,
    crashes: u64,
    doubtful: u64,
    troubles: u64,
    buried: u64,
    redriven: u64,
    deleted_under_leases: u64,
}

/// A message with a member.
#[derive(Clone, Copy, Debug)]
struct Held {
    number: u64,
    seq: u64,
    lease: Lease,
    until: Timestamp,
}

/// A member and what it was handed, in the order of seqs.
struct Worker {
    member: Member,
    held: Vec<Held>,
}

struct World {
    random: Random,
    plan: Plan,
    seed: u64,
    step: u64,
    fs: FaultyFs,
    clock: Arc<ManualClock>,
    hook: Arc<Hook>,
    broker: Option<Broker>,
    settings: GroupSettings,
    workers: Vec<Worker>,
    side: Side,
    model: Model,
    next_number: u64,
    /// Messages whose lease ran out in this run of the broker, as far as the model knows.
    expired: u64,
    down_at: Option<u64>,
    faulty: bool,
    disk_limited: bool,
    trace: Trace,
    tally: Tally,
}

/// Runs a seed.
///
/// # Errors
/// Tells what did not hold.
pub(crate) fn run(seed: u64, print: bool) -> Result<Tally, String> {
    let mut world = World::new(seed, print);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("panic: {}", text.unwrap_or_default())))
    });
    // A broker in an unknown state is not to touch anything while it goes.
    world.fs.crash(CrashKind::Process);
    let (hash, lines) = (world.trace.hash(), world.trace.lines());
    let deleted_under_leases = world.side.deleted_under_leases();
    let tally = Tally { hash, lines, deleted_under_leases, ..world.tally };
    result.map(|()| tally).map_err(|violation| {
        let recent: Vec<&str> = world.trace.recent().collect();
        format!(
            "seed {seed}, members of a {} group, step {}: {violation}\n  the last lines of the \
             trace:\n    {}",
            world.settings.mode,
            world.step,
            recent.join("\n    ")
        )
    })
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("the names are well formed")
}

impl World {
    fn new(seed: u64, print: bool) -> Self {
        let mut random = Random::new(seed ^ 0x6d65_6d62_6572_7321);
        let plan = Plan::draw(&mut random);
        let mode = *random.pick(&[Mode::Shared, Mode::Keyed, Mode::Ordered]);
        let waits = Waits::Steps(vec![random.ms(0, 500)]);
        let settings = GroupSettings {
            mode,
            lease: LEASE,
            attempts_max: *random.pick(&[2, 4, 1_000_000]),
            retry: RetryPolicy { waits, jitter_percent: 20 },
            durability: *random.pick(&[
                Durability::Flushed,
                Durability::Flushed,
                Durability::Written,
            ]),
            ..GroupSettings::new(Pattern::parse("in").expect("it is a pattern"))
        };
        let fs = FaultyFs::new(seed);
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
        let hook = Hook::install(&fs, &clock);
        Self {
            random,
            plan,
            seed,
            step: 0,
            fs,
            clock,
            hook,
            broker: None,
            settings,
            workers: Vec::new(),
            side: Side::default(),
            model: Model::new(),
            next_number: 1,
            expired: 0,
            down_at: None,
            faulty: false,
            disk_limited: false,
            trace: Trace::new(print),
            tally: Tally::default(),
        }
    }

    fn broker(&self) -> Broker {
        self.broker.clone().expect("the broker is open")
    }

    fn now(&self) -> Timestamp {
        self.broker().now()
    }

    fn is_ordered(&self) -> bool {
        self.settings.mode == Mode::Ordered
    }

    fn note(&mut self, line: fmt::Arguments<'_>) {
        let step = self.step;
        self.trace.line(format_args!("m{step}: {line}"));
    }

    fn group(&self) -> Checked<GroupInfo> {
        let info = self.broker().describe_group(&name("g"));
        info.map_err(|error| Violation(format!("the group is gone: {error}")))
    }

    fn run(&mut self) -> Checked {
        self.open(None)?;
        let broker = self.broker();
        for topic in ["in", "out"] {
            let made = broker.create_topic(&name(topic), TopicSettings::default());
            ensure(made.is_ok(), || format!("{topic} is not made: {made:?}"))?;
        }
        let made = broker.create_group(&name("g"), self.settings.clone());
        ensure(made.is_ok(), || format!("the group is not made: {made:?}"))?;
        drop(broker);
        for _ in 0..STEPS {
            self.step += 1;
            self.act()?;
            self.settle_trouble()?;
            self.broker().check();
            let (writes, syncs, ways) = (self.fs.writes(), self.fs.syncs(), self.model.ways());
            self.note(format_args!("  disk {writes} {syncs}, ways {ways}"));
        }
        self.step += 1;
        self.come_to_rest()
    }

    fn act(&mut self) -> Checked {
        if self.random.chance(5) {
            // Time goes on within flushes.
            let by = self.random.ms(1, 700);
            self.hook.slow(by);
        }
        let weights =
            [40, 14, 8, 4, 80, 40, 20, 30, 8, 12, 24, 24, 4, 10, 3, 2, 2, 3, 2, 2, 8, 18, 60];
        let done = match self.random.weighted(&weights) {
            0 => self.publish(),
            1 => self.join(),
            2 => self.die(),
            3 => {
                if let Some(worker) = self.take_worker() {
                    worker.member.leave();
                }
                Ok(())
            }
            4 => self.poll(),
            5 => self.step_atomically(),
            6 => self.ack(),
            7 => self.fail(false),
            8 => self.fail(true),
            9 => self.extend(),
            10 => {
                let by = self.random.ms(0, 600);
                self.clock.advance(by);
                Ok(())
            }
            11 => self.turn(),
            12 => self.seal(),
            13 => self.end_letters(true),
            14 => self.end_letters(false),
            15 => self.pause(true),
            16 => self.crash(CrashKind::Process),
            17 => self.crash(CrashKind::Power),
            18 => self.close(),
            19 => self.compact(),
            20 => self.pause(false),
            22 => self.act_aside(),
            _ => {
                self.break_disk();
                Ok(())
            }
        };
        drop(self.hook.take());
        done
    }

    /// Whether an answer may be that the system is in trouble.
    fn in_trouble(&self) -> bool {
        self.is_down() || self.is_failed() || self.disk_limited || self.faulty
    }

    /// Whether every call to the disk fails.
    fn is_down(&self) -> bool {
        self.down_at.is_some_and(|at| self.fs.writes() >= at) || self.hook.is_dead()
    }

    /// Whether the journal takes nothing any more.
    fn is_failed(&self) -> bool {
        self.broker.as_ref().is_none_or(|broker| broker.state() == BrokerState::Error)
    }

    /// Whether a call that waits for the disk could wait for ever.
    fn may_block(&self) -> bool {
        self.disk_limited || self.broker().journal_stats().full
    }

    /// A call that was answered with trouble: it must be told when there is, or that too much
    /// waits to be written. Tells whether nothing happened.
    fn troubled(&mut self, what: &str, error: &PubSubError) -> Checked<bool> {
        self.note(format_args!("{what}: {error}"));
        self.tally.troubles += 1;
        let busy = *error == PubSubError::Unavailable;
        ensure(busy || self.in_trouble(), || format!("{what} was answered {error}"))?;
        Ok(error.fate() == Happened::DidNotHappen)
    }

    /// Without faults everything comes to an end.
    fn come_to_rest(&mut self) -> Checked {
        self.note(format_args!("rest"));
        self.fs.disarm();
        self.fs.set_capacity(None);
        self.disk_limited = false;
        // Until then the journal does not know that there is room.
        self.broker().flush();
        if self.in_trouble() {
            self.crash(CrashKind::Process)?;
        }
        self.calm();
        self.pause(false)?;
        for _ in 0..ROUNDS_MAX {
            self.join()?;
            self.poll()?;
            self.step_atomically()?;
            self.clock.advance(Duration::from_millis(20));
            self.turn()?;
            if self.group()?.lag == 0 {
                break;
            }
        }
        self.check_end()?;
        self.workers.clear();
        self.close()?;
        self.check_end()
    }

    /// Everything is done or a dead letter, with at most one output each.
    fn check_end(&mut self) -> Checked {
        let info = self.group()?;
        ensure(info.lag == 0, || format!("something is left: {info:?}"))?;
        self.observe()?;
        self.model.see("nothing is left", |state| {
            let left = state.with(Fate::Open).chain(state.with(Fate::Dying)).next();
            left.map_or(Ok(()), |left| Err(format!("but {left}: {:?}", state.inputs[&left])))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without optimisation only a smoke test.
    const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 600 };

    #[test]
    fn members_of_every_seed_hold() {
        let mut all = Tally::default();
        let mut stories = Vec::new();
        for seed in 0..SEEDS {
            match run(seed, false) {
                Ok(tally) => {
                    all.handed += tally.handed;
                    all.again += tally.again;
                    all.crashes += tally.crashes;
                    all.doubtful += tally.doubtful;
                    all.troubles += tally.troubles;
                    all.buried += tally.buried;
                    all.redriven += tally.redriven;
                    all.deleted_under_leases += tally.deleted_under_leases;
                }
                Err(story) => stories.push(story),
            }
        }
        assert!(stories.is_empty(), "{} failed:\n{}", stories.len(), stories.join("\n"));
        // A simulator that does nothing finds nothing.
        let least = [
            (all.handed, 50),
            (all.again, 5),
            (all.crashes, 2),
            (all.doubtful, 1),
            (all.troubles, 1),
            (all.buried, 1),
            (all.redriven, 1),
            (all.deleted_under_leases, 1),
        ];
        let enough = |(count, half): &(u64, u64)| *count * 2 >= half * SEEDS;
        assert!(least.iter().all(enough), "{all:?}");
        println!("{all:?}");
    }
}
