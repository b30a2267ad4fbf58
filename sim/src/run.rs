//! A run from beginning to end: what the seed says, then calm, then everything is there.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use gapless_core::{Durability, Message, PublishOptions};
use gapless_journal::faulty::{CrashKind, Times};

use crate::crash::End;
use crate::plan::Action;
use crate::world::{Checked, Counts, Violation, World, broken, ensure};

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// How many steps it has.
    pub steps: u64,
    /// Whether every line of the trace is printed.
    pub print: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { steps: 400, print: false }
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The hash of everything that happened.
    pub hash: u64,
    /// How many lines that were.
    pub lines: u64,
    /// What was done.
    pub counts: Counts,
}

/// Runs a seed.
///
/// # Errors
/// Tells seed, step and story of what did not hold.
pub fn run(seed: u64, options: RunOptions) -> Result<Report, String> {
    let mut world = World::new(seed, options.print);
    let result = catch_unwind(AssertUnwindSafe(|| world.run(options.steps)));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("panic: {}", text.unwrap_or_default())))
    });
    let report =
        Report { seed, hash: world.trace.hash(), lines: world.trace.lines(), counts: world.counts };
    let Err(violation) = result else {
        // Members of groups have a world of their own, of the same seed.
        let members = crate::members::run(seed, options.print)?;
        let hash = report.hash.rotate_left(1) ^ members.hash;
        return Ok(Report { hash, lines: report.lines + members.lines, ..report });
    };
    let recent: Vec<&str> = world.trace.recent().collect();
    let story = format!(
        "seed {seed}, step {}: {violation}\n  the last lines of the trace:\n    {}",
        world.step,
        recent.join("\n    ")
    );
    // A broker in an unknown state is not to touch anything while it goes.
    world.fs.crash(CrashKind::Process);
    Err(story)
}

impl World {
    fn run(&mut self, steps: u64) -> Checked {
        self.open(End::Closed, true)?;
        for _ in 0..self.random.between(1, 3) {
            self.create()?;
        }
        for _ in 0..steps {
            self.step += 1;
            let action = self.plan.next(&mut self.random);
            self.note(format_args!("{action:?}"));
            self.act(action)?;
            self.settle_trouble()?;
            self.check_machines();
            self.trace_numbers();
        }
        self.step += 1;
        self.come_to_rest()
    }

    /// Every machine is as it must be.
    fn check_machines(&self) {
        if let Some(broker) = &self.broker {
            broker.check();
        }
        self.followers.iter().for_each(|follower| follower.subscription.check());
    }

    fn act(&mut self, action: Action) -> Checked {
        match action {
            Action::Publish => self.publish(),
            Action::Atomic => self.publish_atomically(),
            Action::Retry => self.retry(),
            Action::Delay => self.delay(),
            Action::Cancel => self.cancel(),
            Action::Turn => self.turn(),
            Action::Flush => self.work_slowly(
                |broker| {
                    broker.flush();
                    true
                },
                "flush",
            ),
            Action::Seal => self.work_slowly(|broker| broker.seal().is_ok(), "seal"),
            Action::Compact => self.work_slowly(|broker| broker.compact().is_ok(), "compact"),
            Action::Poll => self.poll_some(),
            Action::Subscribe => self.subscribe(),
            Action::Leave => self.leave(),
            Action::Resume => self.resume(),
            Action::Lookup => self.look_up(),
            Action::Clock => {
                let by = *self.random.pick(&[1, 50, 1_000, 10_000, 40_000]);
                self.advance(by);
                Ok(())
            }
            Action::Create => self.create(),
            Action::Configure => self.configure(),
            Action::Delete => self.delete(),
            Action::Purge => self.purge(),
            Action::Kill => self.crash(CrashKind::Process),
            Action::PowerLoss => self.crash(CrashKind::Power),
            Action::Close => self.close(),
            Action::ArmCrash
            | Action::ArmWriteFault
            | Action::ArmSyncFault
            | Action::FillDisk
            | Action::MakeRoom => {
                self.break_disk(action);
                Ok(())
            }
        }
    }

    fn advance(&mut self, ms_max: u64) {
        let by = self.random.ms(0, ms_max);
        self.clock.advance(by);
        let now = self.time();
        self.note(format_args!("time is {now}"));
    }

    fn break_disk(&mut self, action: Action) {
        let nth = self.random.between(1, 12);
        self.note(format_args!("{action:?} {nth}"));
        match action {
            Action::ArmCrash if self.down_at.is_none() => {
                self.faulty = true;
                if self.random.chance(40) {
                    self.hook.die_within(nth / 2);
                } else {
                    self.down_at = Some(self.fs.writes() + nth);
                    self.fs.crash_after_writes(nth);
                }
            }
            Action::ArmWriteFault => {
                self.faulty = true;
                self.fs.fail_write(nth, ErrorKind::Other, Times::Once);
            }
            Action::ArmSyncFault => {
                self.faulty = true;
                self.fs.fail_sync(nth, ErrorKind::Other, Times::Once);
            }
            Action::FillDisk => {
                let room = self.random.below(40_000);
                if room.is_multiple_of(3) {
                    self.files_limited = true;
                    self.fs.set_open_files_max(Some(self.fs.open_files() + room % 4));
                } else {
                    self.disk_limited = true;
                    self.fs.set_capacity(Some(self.fs.used_bytes() + room));
                }
            }
            Action::MakeRoom if self.is_limited() => {
                self.lift_limits();
                // What waits is tried again.
                self.broker().flush();
            }
            _ => {}
        }
    }

    /// Sooner or later it is noticed that nothing works any more.
    fn settle_trouble(&mut self) -> Checked {
        // A full disk, or one without a descriptor left, ends nothing.
        ensure(!self.is_failed() || self.faulty || self.is_down(), || {
            "the journal failed on a disk that did not".into()
        })?;
        if (self.is_down() || self.is_failed()) && self.random.chance(40) {
            let kind = self.crash_kind();
            if self.random.chance(20) && !self.is_down() {
                return self.close();
            }
            return self.crash(kind);
        }
        Ok(())
    }

    /// Numbers that tell early when two runs of a seed part.
    fn trace_numbers(&mut self) {
        let Some(broker) = &self.broker else { return };
        let stats = broker.journal_stats();
        let (writes, syncs, used) = (self.fs.writes(), self.fs.syncs(), self.fs.used_bytes());
        let (frames, bytes, tail) = (stats.frames, stats.bytes, stats.tail_bytes);
        let segments = (stats.segments, stats.segment_bytes, stats.waiting_bytes);
        self.note(format_args!(
            "  disk {writes} {syncs} {used}, journal {frames} {bytes} {tail} {segments:?}"
        ));
    }

    /// Without faults everything comes to an end: acks are given, followers see all.
    fn come_to_rest(&mut self) -> Checked {
        self.note(format_args!("rest"));
        self.fs.disarm();
        self.lift_limits();
        if self.faulty || self.is_failed() || self.is_down() {
            let kind = self.crash_kind();
            self.crash(kind)?;
            self.fs.disarm();
            self.hook.revive();
            if self.is_down() || self.is_failed() {
                self.crash(CrashKind::Process)?;
                self.fs.disarm();
                self.hook.revive();
            }
            self.down_at = None;
            self.faulty = false;
        }
        self.broker().flush();
        self.turn()?;
        self.clock.advance(Duration::from_secs(120));
        self.turn()?;
        self.turn()?;
        ensure(self.broker().delayed_len() == 0, || "delayed messages are left".into())?;
        self.publish_everywhere()?;
        self.drain_followers()?;
        self.audit()?;
        self.close()?;
        self.audit()
    }

    fn publish_everywhere(&mut self) -> Checked {
        let names: Vec<_> = self.now.names.keys().cloned().collect();
        for name in names {
            let options = PublishOptions {
                durability: Some(Durability::Flushed),
                ..PublishOptions::default()
            };
            self.publish_last(&name, &options)?;
        }
        self.turn()?;
        ensure(self.asked.is_empty(), || "a publish was not acked in the end".into())
    }

    fn publish_last(
        &mut self,
        name: &gapless_core::TopicName,
        options: &PublishOptions,
    ) -> Checked {
        let refused = self.counts.refused;
        let message = Message::new(format!("last of {name}"));
        self.publish_one(name, message, *options)?;
        if self.counts.refused > refused {
            return broken(format!("{name} takes nothing in the end"));
        }
        Ok(())
    }
}
