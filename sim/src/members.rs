//! Members of a group that work, fail, hang, die and come back, while the broker crashes: a
//! world of its own, since its model is about messages and not about topics.
//!
//! What must hold: nothing that was durably acked comes again, nothing that was not is
//! forgotten, a key goes in order and one at a time, an ordered group goes in order, attempts
//! are counted, and an atomic step is there whole or not at all: each input has at most one
//! output, and exactly one if it was never acked without.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gapless_broker::{Atomic, Broker, Delivery, From, Handed, Join, ManualClock, Member};
use gapless_core::{
    Durability, GroupSettings, Lease, Message, Mode, Pattern, PublishAck, PublishOptions,
    RejectReason, RetryPolicy, Timestamp, TopicName, TopicSettings, Waits,
};
use gapless_journal::faulty::{CrashKind, FaultyFs};

use crate::plan::Plan;
use crate::random::Random;
use crate::world::{Checked, Violation, broken, ensure};

/// Steps of a run.
const STEPS: u64 = 250;
/// Members at the same time.
const MEMBERS_MAX: usize = 5;
/// How long a lease is.
const LEASE: Duration = Duration::from_millis(1_000);
/// Rounds after which everything that is left must be done.
const ROUNDS_MAX: usize = 3_000;

/// A message with a member.
#[derive(Clone, Copy, Debug)]
struct Held {
    seq: u64,
    lease: Lease,
    until: Timestamp,
}

/// A member and what it was handed.
struct Worker {
    member: Member,
    held: Vec<Held>,
}

/// What is known of an input.
#[derive(Clone, Debug, Default)]
struct Input {
    key: Option<u64>,
    /// Acked and flushed: it never comes again.
    done: bool,
    /// Acked in this run of the broker: it does not come again before a crash.
    acked: bool,
    /// Acked without an output at any time.
    plain: bool,
    /// Failures that were counted, and those of them that were flushed.
    failures: u32,
    flushed_failures: u32,
    /// A crash may have taken failures back.
    unsure_failures: bool,
    /// Acked plainly before a crash, not flushed: done or not, nobody was told.
    unsure: bool,
}

struct World {
    random: Random,
    plan: Plan,
    seed: u64,
    fs: FaultyFs,
    clock: Arc<ManualClock>,
    broker: Option<Broker>,
    mode: Mode,
    workers: Vec<Worker>,
    inputs: BTreeMap<u64, Input>,
}

/// Runs a seed.
///
/// # Errors
/// Tells what did not hold.
pub(crate) fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("panic: {}", text.unwrap_or_default())))
    });
    world.fs.crash(CrashKind::Process);
    result
        .map_err(|violation| format!("seed {seed}, members of a {} group: {violation}", world.mode))
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("the names are well formed")
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6d65_6d62_6572_7321);
        let plan = Plan::draw(&mut random);
        let mode = *random.pick(&[Mode::Shared, Mode::Keyed, Mode::Ordered]);
        Self {
            random,
            plan,
            seed,
            fs: FaultyFs::new(seed),
            clock: Arc::new(ManualClock::new(Timestamp(1_000_000))),
            broker: None,
            mode,
            workers: Vec::new(),
            inputs: BTreeMap::new(),
        }
    }

    fn broker(&self) -> Broker {
        self.broker.clone().expect("the broker is open")
    }

    fn now(&self) -> Timestamp {
        self.broker().now()
    }

    fn open(&mut self) -> Checked {
        let options = self.plan.options(self.seed, &self.fs, &self.clock);
        match Broker::open(options) {
            Ok(broker) => self.broker = Some(broker),
            Err(error) => return broken(format!("it does not open: {error}")),
        }
        Ok(())
    }

    fn run(&mut self) -> Checked {
        self.open()?;
        let broker = self.broker();
        for topic in ["in", "out"] {
            let made = broker.create_topic(&name(topic), TopicSettings::default());
            ensure(made.is_ok(), || format!("{topic} is not made: {made:?}"))?;
        }
        let waits = Waits::Steps(vec![self.random.ms(0, 500)]);
        let settings = GroupSettings {
            mode: self.mode,
            lease: LEASE,
            attempts_max: 1_000_000,
            retry: RetryPolicy { waits, jitter_percent: 20 },
            ..GroupSettings::new(Pattern::parse("in").expect("it is a pattern"))
        };
        let made = broker.create_group(&name("g"), settings);
        ensure(made.is_ok(), || format!("the group is not made: {made:?}"))?;
        drop(broker);
        for _ in 0..STEPS {
            self.step()?;
        }
        self.come_to_rest()
    }

    fn step(&mut self) -> Checked {
        match self.random.weighted(&[20, 6, 3, 3, 40, 25, 10, 8, 12, 12, 3, 3, 2]) {
            0 => self.publish(),
            1 => self.join(),
            2 => {
                // It dies without a word: what it holds counts as failed.
                if let Some(worker) = self.take_worker() {
                    let held = worker.held.clone();
                    drop(worker.member);
                    self.failed(&held, self.mode == Mode::Ordered);
                }
                Ok(())
            }
            3 => {
                if let Some(worker) = self.take_worker() {
                    worker.member.leave();
                }
                Ok(())
            }
            4 => self.poll(),
            5 => self.finish(false),
            6 => self.finish(true),
            7 => self.nack(),
            8 => {
                let by = self.random.ms(0, 600);
                self.clock.advance(by);
                Ok(())
            }
            9 => {
                self.broker().turn();
                self.expire();
                Ok(())
            }
            10 => {
                let sealed = self.broker().seal();
                ensure(sealed.is_ok(), || format!("it is not sealed: {sealed:?}"))
            }
            11 => self.crash(CrashKind::Process),
            _ => self.crash(CrashKind::Power),
        }
    }

    fn take_worker(&mut self) -> Option<Worker> {
        if self.workers.is_empty() {
            return None;
        }
        let at = self.random.index(self.workers.len());
        Some(self.workers.remove(at))
    }

    fn publish(&mut self) -> Checked {
        for _ in 0..self.random.between(1, 6) {
            let key = self.random.chance(70).then(|| self.random.below(4));
            let seq = self.inputs.len() as u64 + 1;
            let mut message = Message::new(seq.to_string());
            message.key = key.map(|key| key.to_string().into());
            let options = PublishOptions::default();
            let ack = self.broker().publish(&name("in"), &message, &options).wait();
            match ack {
                Ok(PublishAck::Accepted(accepted)) => {
                    ensure(accepted.first.0 == seq, || format!("{seq} is {accepted:?}"))?;
                }
                other => return broken(format!("a publish was answered {other:?}")),
            }
            self.inputs.insert(seq, Input { key, ..Input::default() });
        }
        Ok(())
    }

    fn join(&mut self) -> Checked {
        if self.workers.len() < MEMBERS_MAX {
            let window = self.random.between(1, 8) as u32;
            let join = Join { name: "m".to_owned(), window };
            match self.broker().join_group(&name("g"), &join) {
                Ok(member) => self.workers.push(Worker { member, held: Vec::new() }),
                Err(error) => return broken(format!("nobody can join: {error}")),
            }
        }
        Ok(())
    }

    /// Forgets what ran out of time.
    fn expire(&mut self) {
        let now = self.now();
        let ordered = self.mode == Mode::Ordered;
        for at in 0..self.workers.len() {
            let held = std::mem::take(&mut self.workers[at].held);
            let over = |held: &Held| held.until <= now;
            // An ordered member has one lease for all, renewed by whatever it says.
            let all = ordered && held.iter().any(over);
            let (gone, kept): (Vec<_>, Vec<_>) =
                held.into_iter().partition(|held| over(held) || all);
            self.workers[at].held = kept;
            self.failed(&gone, ordered);
        }
    }

    /// Counts failures: of an ordered member only the first.
    fn failed(&mut self, held: &[Held], only_first: bool) {
        let mut held: Vec<Held> = held.to_vec();
        held.sort_unstable_by_key(|held| held.seq);
        let count = if only_first { 1 } else { held.len() };
        for each in held.iter().take(count) {
            let input = self.inputs.get_mut(&each.seq).expect("it was published");
            input.failures = input.failures.max(each.lease.attempt);
        }
    }

    fn poll(&mut self) -> Checked {
        if self.workers.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.workers.len());
        // So that a look does not end leases of which the model knows nothing.
        self.broker().turn();
        self.expire();
        loop {
            let context = &mut Context::from_waker(Waker::noop());
            match self.workers[at].member.poll_next(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(Handed::Active | Handed::Standby)) => {}
                Poll::Ready(Ok(Handed::Messages(leased))) => {
                    let count = leased.messages().count() as u64;
                    let leases: u64 = leased.leases().iter().map(Lease::count).sum();
                    ensure(count == leases, || format!("{count} messages, {leases} leased"))?;
                    for each in leased.messages().records() {
                        let (seq, until) = (each.seq.0, leased.deadline());
                        let lease = leased.lease_of(each.position);
                        self.handed(at, Held { seq, lease, until })?;
                    }
                }
                Poll::Ready(other) => return broken(format!("a member was told {other:?}")),
            }
        }
    }

    /// Checks that a message may be handed out.
    fn handed(&mut self, at: usize, held: Held) -> Checked {
        let seq = held.seq;
        let Some(input) = self.inputs.get(&seq) else {
            return broken(format!("{seq} was never published"));
        };
        ensure(!input.done && !input.acked, || format!("{seq} comes again: {input:?}"))?;
        let attempts = (input.flushed_failures + 1)..=(input.failures + 1);
        let attempt = held.lease.attempt;
        ensure(attempts.contains(&attempt), || {
            format!("{seq} comes in attempt {attempt}, not in {attempts:?}")
        })?;
        let in_flight = self.workers.iter().flat_map(|worker| &worker.held);
        let in_flight: BTreeSet<u64> = in_flight.map(|held| held.seq).collect();
        ensure(!in_flight.contains(&seq), || format!("{seq} is with two members"))?;
        let open = |other: &Input| !other.acked && !other.done && !other.unsure;
        let before = self.inputs.range(..seq).filter(|(_, other)| open(other));
        for (other, state) in before {
            let same_key = input.key.is_some() && input.key == state.key;
            let wrong = match self.mode {
                Mode::Shared => false,
                Mode::Keyed => same_key,
                Mode::Ordered => !self.workers[at].held.iter().any(|held| held.seq == *other),
            };
            ensure(!wrong, || format!("{seq} comes before {other}: {state:?}"))?;
        }
        let input = self.inputs.get_mut(&seq).expect("it was just found");
        (input.unsure, input.unsure_failures) = (false, false);
        input.failures = attempt - 1;
        self.workers[at].held.push(held);
        if self.mode == Mode::Ordered {
            let until = self.workers[at].held.iter().map(|held| held.until).max();
            self.renew(at, until.unwrap_or(held.until), false);
        }
        Ok(())
    }

    /// An ordered member has said something.
    fn renew(&mut self, at: usize, until: Timestamp, said: bool) {
        let first = self.workers[at].held.first().map(|held| held.until);
        for held in &mut self.workers[at].held {
            // What it was handed later does not prolong what it had.
            held.until = if said { until } else { first.unwrap_or(until) };
        }
    }

    /// Some of what a member holds.
    fn some_of(&mut self) -> Option<(usize, Vec<Held>)> {
        let busy: Vec<usize> =
            (0..self.workers.len()).filter(|at| !self.workers[*at].held.is_empty()).collect();
        let at = *self.random.pick_any(&busy)?;
        let count = self.random.between(1, self.workers[at].held.len() as u64) as usize;
        let held = if self.mode == Mode::Ordered {
            self.workers[at].held[..count].to_vec()
        } else {
            let mut held = self.workers[at].held.clone();
            let skip = self.random.index(held.len() - count + 1);
            held.drain(skip..skip + count).collect()
        };
        Some((at, held))
    }

    fn drop_held(&mut self, at: usize, done: &[Held]) {
        let gone: BTreeSet<u64> = done.iter().map(|held| held.seq).collect();
        self.workers[at].held.retain(|held| !gone.contains(&held.seq));
        if self.mode == Mode::Ordered {
            let until = self.now().after(LEASE);
            self.renew(at, until, true);
        }
    }

    /// A member is done: with an output in the same step, or plainly.
    fn finish(&mut self, plain: bool) -> Checked {
        let Some((at, some)) = self.some_of() else { return Ok(()) };
        let leases: Vec<Lease> = some.iter().map(|held| held.lease).collect();
        let flushed = self.random.chance(60);
        let handle = self.workers[at].member.handle();
        if plain {
            let acking = handle.ack(&leases);
            let outcome = acking.outcome();
            let taken = outcome.as_ref().is_ok_and(|outcome| outcome.refused == 0);
            // Nothing ticks but at a look, so what the model holds the machine holds too.
            ensure(taken, || format!("an ack of {some:?} was answered {outcome:?}"))?;
            if flushed {
                let waited = acking.wait();
                ensure(waited.is_ok(), || format!("an ack is not flushed: {waited:?}"))?;
            } else {
                drop(acking);
            }
        } else {
            let outputs: Vec<Message> =
                some.iter().map(|held| Message::new(held.seq.to_string())).collect();
            let atomic = Atomic::new().publish(&name("out"), &outputs).ack(&handle, &leases);
            let durability = Some(if flushed { Durability::Flushed } else { Durability::Memory });
            let options = PublishOptions { durability, ..PublishOptions::default() };
            let publishing = self.broker().commit(atomic, &options);
            if publishing.rejected_with() == Some(RejectReason::QueueFull) {
                self.broker().turn();
                self.expire();
                return Ok(());
            }
            let ack = publishing.wait();
            ensure(matches!(ack, Ok(PublishAck::Accepted(_))), || {
                format!("a step with {some:?} was answered {ack:?}")
            })?;
        }
        for held in &some {
            let input = self.inputs.get_mut(&held.seq).expect("it was published");
            input.acked = true;
            input.plain |= plain;
            input.done |= flushed;
        }
        if flushed {
            self.all_flushed();
        }
        self.drop_held(at, &some);
        Ok(())
    }

    /// A flush covers everything before it.
    fn all_flushed(&mut self) {
        for input in self.inputs.values_mut() {
            input.done |= input.acked;
            if !input.unsure_failures {
                input.flushed_failures = input.failures;
            }
        }
    }

    fn nack(&mut self) -> Checked {
        let Some((at, mut some)) = self.some_of() else { return Ok(()) };
        if self.mode == Mode::Ordered {
            some.truncate(1);
        }
        let leases: Vec<Lease> = some.iter().map(|held| held.lease).collect();
        let delay = self.random.chance(50).then(|| self.random.ms(0, 300));
        let acking = self.workers[at].member.nack(&leases, delay, "no");
        let outcome = acking.outcome();
        let taken = outcome.as_ref().is_ok_and(|outcome| outcome.refused == 0);
        ensure(taken, || format!("a nack of {some:?} was answered {outcome:?}"))?;
        drop(acking);
        self.failed(&some, false);
        self.drop_held(at, &some);
        if self.mode == Mode::Ordered {
            // What came after it comes back too, and does not count.
            self.workers[at].held.retain(|held| held.seq < some[0].seq);
        }
        Ok(())
    }

    fn crash(&mut self, kind: CrashKind) -> Checked {
        self.fs.crash(kind);
        self.broker = None;
        self.workers.clear();
        if self.random.chance(30) {
            self.plan.resize(&mut self.random);
        }
        self.open()?;
        // What was only accepted may be lost, so what the outputs say counts.
        let outputs = self.outputs()?;
        for (seq, input) in &mut self.inputs {
            ensure(!input.done || input.plain || outputs.contains_key(seq), || {
                format!("the output of {seq} was flushed and is gone")
            })?;
            input.done |= outputs.contains_key(seq);
            input.unsure |= input.acked && input.plain && !input.done;
            input.unsure_failures = input.failures > input.flushed_failures;
            input.acked = input.done;
        }
        Ok(())
    }

    /// How often each input has an output.
    fn outputs(&self) -> Checked<BTreeMap<u64, u64>> {
        let pattern = Pattern::parse("out").expect("it is a pattern");
        let subscribed = self.broker().subscribe(&pattern, From::Beginning);
        let Ok(mut follower) = subscribed else { return broken("out cannot be followed") };
        let mut outputs = BTreeMap::new();
        while let Poll::Ready(step) = follower.poll_next(&mut Context::from_waker(Waker::noop())) {
            let Ok(step) = step else { return broken("out cannot be read") };
            let Delivery::Messages(messages) = step else { continue };
            for each in messages.iter() {
                let body = each.message.body.unwrap_or_default();
                let seq = std::str::from_utf8(&body).ok().and_then(|text| text.parse().ok());
                let Some(seq) = seq else { return broken("an output is none") };
                *outputs.entry(seq).or_insert(0) += 1;
            }
        }
        let twice = outputs.iter().find(|(_, count)| **count > 1);
        ensure(twice.is_none(), || format!("an input has two outputs: {twice:?}"))?;
        Ok(outputs)
    }

    /// In the end everything is done.
    fn come_to_rest(&mut self) -> Checked {
        for _ in 0..ROUNDS_MAX {
            self.join()?;
            self.poll()?;
            self.finish(false)?;
            self.clock.advance(Duration::from_millis(20));
            self.broker().turn();
            self.expire();
            let info = self.broker().describe_group(&name("g"));
            let Ok(info) = info else { return broken("the group is gone") };
            if info.lag == 0 {
                break;
            }
        }
        let info = self.broker().describe_group(&name("g"));
        let lag = info.as_ref().map_or(u64::MAX, |info| info.lag);
        ensure(lag == 0, || format!("something is left: {info:?}"))?;
        let outputs = self.outputs()?;
        for (seq, input) in &self.inputs {
            ensure(input.plain || outputs.contains_key(seq), || {
                format!("{seq} is done without an output: {input:?}")
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    /// Without optimisation only a smoke test.
    const SEEDS: u64 = if cfg!(debug_assertions) { 60 } else { 600 };

    #[test]
    fn members_of_every_seed_hold() {
        let stories: Vec<String> = (0..SEEDS).filter_map(|seed| super::run(seed).err()).collect();
        assert!(stories.is_empty(), "{} failed:\n{}", stories.len(), stories.join("\n"));
    }
}
