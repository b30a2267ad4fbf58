//! One of several callers who know nothing of each other: it does random things and notes
//! what it was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gapless_broker::{Atomic, Broker, Handed, Join, LetterFilter, ManualClock, Member, block_on};
use gapless_core::{
    Durability, GroupSettings, GroupStart, Lease, Message, Mode, Position, PublishAck,
    PublishOptions, Retention, RetryPolicy, Seq, Timestamp, TopicSettings, Waits,
};

use crate::calls::{Call, Fate, Place, What, fate_of, group_fate, topic_fate};
use crate::common::{Dice, name, pattern};

pub(crate) const TOPICS: usize = 4;
pub(crate) const GROUPS: usize = 3;
pub(crate) const CELLS: usize = 3;
/// Members that one caller has at the same time.
const MEMBERS_MAX: usize = 3;
/// Messages that one poll is asked for at most, so that a burst has an end.
const POLLS_MAX: usize = 8;

/// What all callers of a burst share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) broker: Broker,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) stamps: Arc<AtomicU64>,
    pub(crate) bodies: Arc<AtomicU64>,
    /// Ids of delayed messages that may still wait.
    pub(crate) scheduled: Vec<u64>,
    /// Whether dead letters are redriven; without, no message is in its topic twice.
    pub(crate) letters: bool,
}

pub(crate) fn topic_name(topic: usize) -> gapless_core::TopicName {
    name(&format!("t{topic}"))
}

pub(crate) fn group_name(group: usize) -> gapless_core::TopicName {
    name(&format!("g{group}"))
}

pub(crate) fn cell_name(cell: usize) -> String {
    format!("c{cell}")
}

/// What a group reads, and how, never changes.
pub(crate) fn source(group: usize) -> (&'static str, Mode) {
    [("t0", Mode::Shared), (">", Mode::Keyed), ("t1", Mode::Ordered)][group]
}

struct Worker {
    group: usize,
    member: Member,
    held: Vec<Lease>,
}

/// A caller.
pub(crate) struct Caller {
    shared: Shared,
    dice: Dice,
    workers: Vec<Worker>,
    calls: Vec<Call>,
    scheduled: Vec<u64>,
}

impl Caller {
    pub(crate) fn new(shared: Shared, seed: u64) -> Self {
        let scheduled = shared.scheduled.clone();
        let dice = Dice::new(seed);
        Self { shared, dice, workers: Vec::new(), calls: Vec::new(), scheduled }
    }

    /// Makes so many calls. Returns the answers, and lets its members go as the seed says.
    pub(crate) fn run(mut self, acts: usize) -> Vec<Call> {
        for _ in 0..acts {
            self.act();
        }
        for worker in std::mem::take(&mut self.workers) {
            if self.dice.roll(2) == 0 {
                worker.member.leave();
            }
        }
        self.calls
    }

    fn stamp(&self) -> u64 {
        self.shared.stamps.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&mut self, from: u64, fate: Fate, what: What) {
        let to = self.stamp();
        self.calls.push(Call { from, to, fate, what });
    }

    fn pick(&mut self, sides: usize) -> usize {
        self.dice.roll(sides as u64) as usize
    }

    fn body(&self) -> u64 {
        self.shared.bodies.fetch_add(1, Ordering::Relaxed)
    }

    fn message(&mut self, topic: usize, body: u64) -> Message {
        let message = Message::new(format!("{topic}:{body}"));
        match self.dice.roll(3) {
            0 => message,
            _ => message.with_key(self.dice.roll(4).to_string()),
        }
    }

    fn act(&mut self) {
        match self.pick(100) {
            0..6 => self.create_topic(),
            6..8 => self.configure_topic(),
            8 => self.delete_topic(),
            9 => self.purge(),
            10..27 => self.publish(),
            27..32 => self.commit(),
            32..36 => self.schedule(),
            36..38 => self.cancel(),
            38..43 => self.create_group(),
            43 => self.configure_group(),
            44..46 => self.delete_group(),
            46..50 => self.pause(),
            50..52 => self.reset(),
            52..60 => self.join(),
            60..76 => self.poll(),
            76..84 => self.end(),
            84..87 => self.fail(),
            87..89 => self.step(),
            89..91 => self.go(),
            91..94 if self.shared.letters => self.letters(),
            94..96 => {
                // The answer is not part of any promise; the call must not disturb.
                let _ = self.shared.broker.seal();
            }
            96 => {
                let _ = self.shared.broker.compact();
            }
            97 => drop(self.shared.broker.list_groups()),
            _ => self.shared.clock.advance(Duration::from_millis(self.dice.roll(400))),
        }
    }

    fn topic_settings(&mut self) -> TopicSettings {
        let mut settings = TopicSettings::default();
        match self.dice.roll(6) {
            0 => settings.retention = Retention { count: Some(40), ..Retention::default() },
            1 => settings.durability = Some(Durability::Memory),
            2 => settings.durability = Some(Durability::Written),
            _ => {}
        }
        settings
    }

    fn create_topic(&mut self) {
        let (topic, settings) = (self.pick(TOPICS), self.topic_settings());
        let from = self.stamp();
        let made = self.shared.broker.create_topic(&topic_name(topic), settings);
        let id = made.as_ref().ok().map(|info| info.id);
        self.note(from, topic_fate(&made), What::Topic { topic, id, settings: Some(settings) });
    }

    fn configure_topic(&mut self) {
        let (topic, settings) = (self.pick(TOPICS), self.topic_settings());
        let from = self.stamp();
        let made = self.shared.broker.configure_topic(&topic_name(topic), settings);
        self.note(
            from,
            topic_fate(&made),
            What::Topic { topic, id: None, settings: Some(settings) },
        );
    }

    fn delete_topic(&mut self) {
        let topic = self.pick(TOPICS);
        let from = self.stamp();
        let deleted = self.shared.broker.delete_topic(&topic_name(topic));
        self.note(from, topic_fate(&deleted), What::Topic { topic, id: None, settings: None });
    }

    fn purge(&mut self) {
        let topic = self.pick(TOPICS);
        let from = self.stamp();
        let below = match self.shared.broker.topic_place(&topic_name(topic)) {
            Ok(place) => Seq(place.first.0 + self.dice.roll(place.next.0 - place.first.0 + 1)),
            Err(_) => return,
        };
        let purged = self.shared.broker.purge(&topic_name(topic), below);
        self.note(from, topic_fate(&purged), What::Purge { topic });
    }

    fn publish(&mut self) {
        let (topic, body, from) = (self.pick(TOPICS), self.body(), self.stamp());
        let message = self.message(topic, body);
        let options = PublishOptions::default();
        let told = self.shared.broker.publish(&topic_name(topic), &message, &options).wait();
        let (fate, place) = published(told);
        self.note(from, fate, What::Publish { topic, body, place, commit: None });
    }

    /// Messages of one or two topics and a cell, together.
    fn commit(&mut self) {
        let (first, cell, value) = (self.pick(TOPICS), self.pick(CELLS), self.body());
        let second = (first + 1 + self.pick(TOPICS - 1)) % TOPICS;
        let topics: &[usize] = match self.pick(3) {
            0 => &[],
            1 => &[first],
            _ => &[first, second],
        };
        let parts: Vec<(usize, u64)> = topics.iter().map(|topic| (*topic, self.body())).collect();
        let removes = self.dice.roll(4) == 0;
        let mut atomic = match removes {
            true => Atomic::new().remove_cell(cell_name(cell)),
            false => Atomic::new().set_cell(cell_name(cell), value.to_string()),
        };
        for (topic, body) in &parts {
            let message = self.message(*topic, *body);
            atomic = atomic.publish(&topic_name(*topic), &[message]);
        }
        let from = self.stamp();
        let told = self.shared.broker.commit(atomic, &PublishOptions::default()).wait_all();
        self.committed(from, &told, &parts, Some((cell, (!removes).then_some(value))));
    }

    /// Notes what became of a commit.
    fn committed(
        &mut self,
        from: u64,
        told: &Result<Vec<PublishAck>, gapless_core::PubSubError>,
        parts: &[(usize, u64)],
        cell: Option<(usize, Option<u64>)>,
    ) -> Fate {
        let commit = Some(self.body());
        let mut acks = told.as_ref().map(|acks| acks.iter()).unwrap_or_default();
        let accepted: Vec<_> = acks.clone().filter_map(PublishAck::accepted).collect();
        let reached = accepted.iter().map(|ack| ack.durability).min();
        let reached = reached.unwrap_or(Durability::Memory);
        let all = match told {
            Ok(acks) if accepted.len() < acks.len() => Fate::Nothing,
            Ok(_) => Fate::Done,
            Err(error) => fate_of(error),
        };
        for (topic, body) in parts {
            let place = acks.next().and_then(place_of).filter(|_| all == Fate::Done);
            self.note(from, all, What::Publish { topic: *topic, body: *body, place, commit });
        }
        if let Some((cell, value)) = cell {
            self.note(from, all, What::Cell { cell, value, reached });
        }
        all
    }

    fn schedule(&mut self) {
        let (topic, body, from) = (self.pick(TOPICS), self.body(), self.stamp());
        let delay = [20, 300, 2_000][self.pick(3)];
        let now = self.shared.broker.now();
        let due = now.0 + 1 + self.dice.roll(delay);
        let message = Message { not_before: Some(Timestamp(due)), ..self.message(topic, body) };
        let options = PublishOptions::default();
        match self.shared.broker.publish(&topic_name(topic), &message, &options).wait() {
            Ok(PublishAck::Scheduled { id, .. }) => {
                self.scheduled.push(id.0);
                self.note(from, Fate::Done, What::Schedule { topic, body, id: Some(id.0), due });
            }
            // It was due before it got there.
            told @ Ok(PublishAck::Accepted(_)) => {
                let (fate, place) = published(told);
                self.note(from, fate, What::Publish { topic, body, place, commit: None });
            }
            Ok(PublishAck::Rejected(_)) => {}
            Err(error) => {
                let what = What::Schedule { topic, body, id: None, due };
                self.note(from, fate_of(&error), what);
            }
        }
    }

    fn cancel(&mut self) {
        if self.scheduled.is_empty() {
            return;
        }
        let at = self.pick(self.scheduled.len());
        let id = self.scheduled[at];
        let from = self.stamp();
        let told = block_on(self.shared.broker.cancel_delayed(Position(id)));
        let fate = match told {
            Ok(true) => Fate::Done,
            Ok(false) => Fate::Nothing,
            Err(error) => fate_of(&error),
        };
        self.note(from, fate, What::Cancel { id });
    }

    fn group_settings(&mut self, group: usize) -> GroupSettings {
        let (source, mode) = source(group);
        let waits = Waits::Steps(vec![Duration::from_millis(50)]);
        GroupSettings {
            mode,
            lease: Duration::from_millis([500, 1_000][self.pick(2)]),
            attempts_max: [2, 3][self.pick(2)],
            retry: RetryPolicy { waits, jitter_percent: 0 },
            start: GroupStart::Beginning,
            ..GroupSettings::new(pattern(source))
        }
    }

    fn create_group(&mut self) {
        let group = self.pick(GROUPS);
        let settings = self.group_settings(group);
        let from = self.stamp();
        let made = self.shared.broker.create_group(&group_name(group), settings.clone());
        let id = made.as_ref().ok().map(|info| info.id);
        self.note(from, group_fate(&made), What::Group { group, id, settings: Some(settings) });
    }

    fn configure_group(&mut self) {
        let group = self.pick(GROUPS);
        let settings = self.group_settings(group);
        let from = self.stamp();
        let made = self.shared.broker.configure_group(&group_name(group), settings.clone());
        let what = What::Group { group, id: None, settings: Some(settings) };
        self.note(from, group_fate(&made), what);
    }

    fn delete_group(&mut self) {
        let group = self.pick(GROUPS);
        let from = self.stamp();
        let deleted = self.shared.broker.delete_group(&group_name(group));
        self.note(from, group_fate(&deleted), What::Group { group, id: None, settings: None });
    }

    fn pause(&mut self) {
        let (group, paused) = (self.pick(GROUPS), self.dice.roll(3) == 0);
        let from = self.stamp();
        let told = match paused {
            true => self.shared.broker.pause_group(&group_name(group)),
            false => self.shared.broker.resume_group(&group_name(group)),
        };
        self.note(from, group_fate(&told), What::Paused { group, paused });
    }

    fn reset(&mut self) {
        let (group, force) = (self.pick(GROUPS), self.dice.roll(2) == 0);
        let from = self.stamp();
        let name = group_name(group);
        let told = self.shared.broker.reset_group(&name, GroupStart::Beginning, force);
        self.note(from, group_fate(&told), What::Reset { group });
    }

    fn join(&mut self) {
        let group = self.pick(GROUPS);
        if self.workers.len() == MEMBERS_MAX {
            return;
        }
        let join = Join { name: "m".to_owned(), window: 1 + self.dice.roll(20) as u32 };
        if let Ok(member) = self.shared.broker.join_group(&group_name(group), &join) {
            self.workers.push(Worker { group, member, held: Vec::new() });
        }
    }

    fn poll(&mut self) {
        if self.workers.is_empty() {
            return;
        }
        let at = self.pick(self.workers.len());
        for _ in 0..POLLS_MAX {
            let from = self.stamp();
            let worker = &mut self.workers[at];
            let group = worker.group;
            match worker.member.poll_next(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => return,
                Poll::Ready(Ok(Handed::Messages(leased))) => {
                    let positions: Vec<u64> =
                        leased.messages().records().map(|each| each.position.0).collect();
                    let leases = positions.iter().map(|at| leased.lease_of(Position(*at)));
                    worker.held.extend(leases);
                    for position in positions {
                        self.note(from, Fate::Done, What::Handed { group, position });
                    }
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => {
                    self.workers.swap_remove(at);
                    return;
                }
            }
        }
    }

    /// A member and one of the messages it was handed, which it then forgets.
    fn held(&mut self) -> Option<(usize, usize, Lease)> {
        let busy: Vec<usize> =
            (0..self.workers.len()).filter(|at| !self.workers[*at].held.is_empty()).collect();
        if busy.is_empty() {
            return None;
        }
        let at = busy[self.pick(busy.len())];
        let which = self.pick(self.workers[at].held.len());
        let lease = self.workers[at].held.swap_remove(which);
        Some((at, self.workers[at].group, lease))
    }

    /// Acks, commits or terminates.
    fn end(&mut self) {
        let Some((at, group, lease)) = self.held() else { return };
        let from = self.stamp();
        let handle = self.workers[at].member.handle();
        let kind = self.pick(6);
        let acking = match kind {
            0 => handle.terminate(&[lease], "never"),
            1 => handle.commit(lease.last),
            _ => handle.ack(&[lease]),
        };
        let fate = match acking.wait() {
            Ok(outcome) if outcome.taken == 0 => Fate::Nothing,
            // Everything up to there is done, whatever that was.
            Ok(_) if kind == 1 => Fate::Unknown,
            Ok(_) => Fate::Done,
            Err(error) => fate_of(&error),
        };
        if kind != 1 {
            return self.note(from, fate, What::Ended { group, position: lease.first.0 });
        }
        let held = std::mem::take(&mut self.workers[at].held);
        let (done, left) = held.into_iter().partition(|each| each.last <= lease.last);
        self.workers[at].held = left;
        let done: Vec<Lease> = done;
        for each in done.into_iter().chain([lease]) {
            self.note(from, fate, What::Ended { group, position: each.first.0 });
        }
    }

    fn fail(&mut self) {
        let Some((at, _, lease)) = self.held() else { return };
        let handle = self.workers[at].member.handle();
        if self.dice.roll(3) == 0 {
            handle.extend(&[lease]);
            self.workers[at].held.push(lease);
        } else {
            // Whether it failed or is asked for again later is all the same.
            let _ = handle.nack(&[lease], Some(Duration::from_millis(10)), "no").wait();
        }
    }

    /// Done, with an output in the same step.
    fn step(&mut self) {
        let Some((at, group, lease)) = self.held() else { return };
        let (topic, body, from) = (self.pick(TOPICS), self.body(), self.stamp());
        let handle = self.workers[at].member.handle();
        let message = self.message(topic, body);
        let atomic = Atomic::new().publish(&topic_name(topic), &[message]).ack(&handle, &[lease]);
        let told = self.shared.broker.commit(atomic, &PublishOptions::default()).wait_all();
        let fate = self.committed(from, &told, &[(topic, body)], None);
        self.note(from, fate, What::Ended { group, position: lease.first.0 });
    }

    fn go(&mut self) {
        if self.workers.is_empty() {
            return;
        }
        let at = self.pick(self.workers.len());
        let worker = self.workers.swap_remove(at);
        if self.dice.roll(2) == 0 {
            worker.member.leave();
        }
    }

    fn letters(&mut self) {
        let group = self.pick(GROUPS);
        let (name, all) = (group_name(group), LetterFilter::all());
        let from = self.stamp();
        let broker = &self.shared.broker;
        let fate = match self.dice.roll(4) {
            0 => group_fate(&broker.redrive(&name, &all, None)),
            1 => group_fate(&broker.redrive(&name, &all, Some(1_000))),
            2 => group_fate(&broker.remove_dead_letters(&name, &all)),
            _ => return drop(broker.dead_letters(&name, Seq(1), 10)),
        };
        // What was moved before an error is moved.
        let fate = if fate == Fate::Nothing { Fate::Unknown } else { fate };
        self.note(from, fate, What::Letters);
    }
}

/// What became of a publish, and where it stands.
fn published(told: Result<PublishAck, gapless_core::PubSubError>) -> (Fate, Option<Place>) {
    match told {
        Ok(ack) => match place_of(&ack) {
            Some(place) => (Fate::Done, Some(place)),
            None => (Fate::Nothing, None),
        },
        Err(error) => (fate_of(&error), None),
    }
}

fn place_of(ack: &PublishAck) -> Option<Place> {
    let ack = ack.accepted()?;
    // The topic does not exist: it was routed as a subject, and kept nowhere.
    if ack.position.0 == 0 {
        return None;
    }
    Some(Place { seq: ack.first.0, position: ack.position.0, reached: ack.durability })
}
