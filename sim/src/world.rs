//! A world: a broker on a faulty disk, those who use it, and the model of what must hold.
//!
//! Everything happens in one thread and in the order the seed says. Futures are polled by
//! hand with wakers that note whether they were called; the flusher and the keeper do their
//! work when the world calls `turn`. So the same seed gives the same run.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use gapless_broker::{Broker, BrokerOptions, BrokerState, Clock, ManualClock};
use gapless_core::{
    Durability, Message, Pattern, PubSubError, PublishAck, PublishOptions, Timestamp, TopicName,
    TopicSettings,
};
use gapless_journal::faulty::FaultyFs;

use crate::follower::{Follower, Place};
use crate::hook::Hook;
use crate::model::{Accepted, Change, Commit, State, TopicKey};
use crate::plan::Plan;
use crate::random::Random;
use crate::trace::Trace;

/// Something that must hold does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) type Checked<T = ()> = Result<T, Violation>;

/// Says what does not hold.
pub(crate) fn broken<T>(story: impl Into<String>) -> Checked<T> {
    Err(Violation(story.into()))
}

/// Checks that something holds.
pub(crate) fn ensure(holds: bool, story: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { broken(story()) }
}

/// A waker that notes that it was called.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    /// Whether it was called since it was last asked.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a waiting caller is answered in the end.
pub(crate) enum Outcome {
    Acks(Vec<PublishAck>),
    Cancelled(bool),
}

pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Outcome, PubSubError>>>>;

/// What an ack must say.
#[derive(Clone, Debug)]
pub(crate) enum ExpectedAck {
    /// New messages with these numbers.
    Accepted {
        topic: TopicKey,
        first: u64,
        last: u64,
    },
    /// Messages that were there before.
    Known {
        topic: TopicKey,
        first: u64,
        last: u64,
    },
    Scheduled {
        id: u64,
        due: Timestamp,
    },
    /// Only cells, or a cancelled message.
    Nothing,
}

/// A caller that waits for an ack.
pub(crate) struct Asked {
    pub answer: Answer,
    pub flag: Arc<Flag>,
    pub polled: bool,
    pub commit: Option<u64>,
    pub wanted: Durability,
    pub expected: Vec<ExpectedAck>,
}

/// A publish that may be sent again.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub topic: TopicName,
    pub messages: Vec<Message>,
    pub options: PublishOptions,
}

/// A token that a client has kept, and where it stands by the model.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub token: gapless_broker::Token,
    pub pattern: Pattern,
    pub place: Place,
    /// How many crashes there had been.
    pub crashes: u64,
    /// Whether a crash took back what it had seen.
    pub lost: bool,
}

/// The world of one seed.
pub(crate) struct World {
    pub seed: u64,
    pub step: u64,
    pub random: Random,
    pub plan: Plan,
    pub trace: Trace,
    pub clock: Arc<ManualClock>,
    pub fs: FaultyFs,
    pub hook: Arc<Hook>,
    pub broker: Option<Broker>,
    /// The state at the last opening; all of it is durable.
    pub base: State,
    /// What happened since.
    pub log: Vec<Commit>,
    /// What that comes to.
    pub now: State,
    pub next_serial: u64,
    pub next_offer: u64,
    pub next_topic: u32,
    pub next_follower: u64,
    /// The message at each position, for ever.
    pub positions: BTreeMap<u64, u64>,
    /// The topic of each number, for ever.
    pub topic_ids: BTreeMap<u64, TopicKey>,
    /// The first seq that may be read, as it was last seen.
    pub floors: BTreeMap<TopicKey, u64>,
    /// The last seq that may be read.
    pub visible: BTreeMap<TopicKey, u64>,
    pub followers: Vec<Follower>,
    pub saved: Vec<Saved>,
    pub asked: Vec<Asked>,
    pub sent: Vec<Sent>,
    pub crashes: u64,
    /// The count of writes at which the disk goes down, if it was told to.
    pub down_at: Option<u64>,
    /// Whether the disk was made to misbehave since the last opening.
    pub faulty: bool,
    pub disk_limited: bool,
    /// Whether few or no files more can be opened.
    pub files_limited: bool,
    /// Settings that were in force until just now: they may have let something go.
    pub settings_before: Option<TopicSettings>,
    /// Whether the journal may have refused what was published within a sync.
    pub was_busy: bool,
    /// Files can be opened again, and no turn has come since.
    pub may_be_held: bool,
    /// Whether the last run tried to close.
    pub closing: bool,
    pub counts: Counts,
}

/// What a run came to; to see that it is not idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages accepted.
    pub accepted: u64,
    /// Messages that were delivered and compared.
    pub delivered: u64,
    /// Gap notices.
    pub gaps: u64,
    /// Crashes.
    pub crashes: u64,
    /// Commits that a crash took back.
    pub lost: u64,
    /// Publishes that were refused.
    pub refused: u64,
    /// Publishes that were known already.
    pub duplicates: u64,
    /// Delayed messages that came due.
    pub delayed: u64,
}

impl Counts {
    /// Adds what another run came to.
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.delivered += other.delivered;
        self.gaps += other.gaps;
        self.crashes += other.crashes;
        self.lost += other.lost;
        self.refused += other.refused;
        self.duplicates += other.duplicates;
        self.delayed += other.delayed;
    }
}

impl World {
    /// A world with an empty disk.
    pub(crate) fn new(seed: u64, print: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        let fs = FaultyFs::new(random.draw());
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
        let hook = Hook::install(&fs, &clock);
        Self {
            seed,
            step: 0,
            plan,
            trace: Trace::new(print),
            clock,
            fs,
            hook,
            random,
            broker: None,
            base: State::default(),
            log: Vec::new(),
            now: State::default(),
            next_serial: 0,
            next_offer: 0,
            next_topic: 0,
            next_follower: 0,
            positions: BTreeMap::new(),
            topic_ids: BTreeMap::new(),
            floors: BTreeMap::new(),
            visible: BTreeMap::new(),
            followers: Vec::new(),
            saved: Vec::new(),
            asked: Vec::new(),
            sent: Vec::new(),
            crashes: 0,
            down_at: None,
            faulty: false,
            disk_limited: false,
            files_limited: false,
            closing: true,
            was_busy: false,
            may_be_held: false,
            settings_before: None,
            counts: Counts::default(),
        }
    }

    pub(crate) fn options(&self) -> BrokerOptions {
        self.plan.options(self.seed, &self.fs, &self.clock)
    }

    pub(crate) fn time(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn broker(&self) -> Broker {
        self.broker.clone().expect("a step begins with an open broker")
    }

    /// Whether every call to the disk fails.
    pub(crate) fn is_down(&self) -> bool {
        self.down_at.is_some_and(|at| self.fs.writes() >= at) || self.hook.is_dead()
    }

    /// Whether the journal takes nothing any more.
    pub(crate) fn is_failed(&self) -> bool {
        self.broker.as_ref().is_none_or(|broker| broker.state() == BrokerState::Error)
    }

    /// Whether an answer may be that the system is in trouble.
    pub(crate) fn in_trouble(&self) -> bool {
        self.is_down() || self.is_failed() || self.is_limited() || self.faulty
    }

    /// Whether the disk has little room, or few files can be opened.
    pub(crate) fn is_limited(&self) -> bool {
        self.disk_limited || self.files_limited
    }

    /// Whether a call that waits for the disk may wait for long, or be refused.
    pub(crate) fn may_block(&self) -> bool {
        self.is_limited() || self.broker.as_ref().is_some_and(|each| each.journal_stats().full)
    }

    /// Whether the disk refused what was let in, since others took its room.
    pub(crate) fn is_blocked(&self) -> bool {
        self.broker.as_ref().is_some_and(|each| each.journal_stats().blocked)
    }

    /// Lets the disk have room, and files be opened, again.
    pub(crate) fn lift_limits(&mut self) {
        // The journal tries to make a file in its turns only. Room it sees at once.
        self.may_be_held |= self.files_limited;
        (self.disk_limited, self.files_limited) = (false, false);
        self.fs.set_capacity(None);
        self.fs.set_open_files_max(None);
    }

    pub(crate) fn note(&mut self, line: fmt::Arguments<'_>) {
        let step = self.step;
        self.trace.line(format_args!("{step}: {line}"));
    }

    /// Writes a change into the model's log.
    pub(crate) fn commit(&mut self, change: Change, required: Durability) -> u64 {
        self.commit_at(change, required, self.time())
    }

    /// Writes a change of a moment ago into the model's log.
    pub(crate) fn commit_at(
        &mut self,
        change: Change,
        required: Durability,
        time: Timestamp,
    ) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        let commit = Commit { serial, time, change, acked: None, required, seen: false };
        self.now.apply(&commit);
        self.log.push(commit);
        serial
    }

    /// The commit of this number, if a crash could still take it.
    pub(crate) fn commit_mut(&mut self, serial: u64) -> Option<&mut Commit> {
        let at = self.log.binary_search_by_key(&serial, |commit| commit.serial).ok()?;
        self.log.get_mut(at)
    }

    pub(crate) fn acked(&mut self, serial: u64, durability: Durability) {
        if let Some(commit) = self.commit_mut(serial) {
            commit.acked = commit.acked.max(Some(durability));
        }
    }

    pub(crate) fn saw(&mut self, serial: u64) {
        if let Some(commit) = self.commit_mut(serial) {
            commit.seen = true;
        }
    }

    /// The first seq of a topic that may be read, as far as is known.
    pub(crate) fn floor(&self, topic: TopicKey) -> u64 {
        self.floors.get(&topic).copied().unwrap_or(1)
    }

    /// The first seq of a topic that may be handed out: past its age a message is gone before
    /// the floor rises over it. What is missing, and so is as old as the next message, counts too.
    pub(crate) fn first_kept(&self, key: TopicKey) -> u64 {
        let (topic, now) = (&self.now.topics[&key], self.time());
        let (floor, visible) = (self.floor(key), self.visible[&key]);
        let described = self.broker.as_ref().and_then(|each| each.describe_topic(&topic.name).ok());
        let first = described.map_or(floor, |info| info.first.0);
        let may_go = |seq: &u64| {
            let age = topic.settings.retention.age;
            let aged =
                topic.at(*seq).zip(age).is_some_and(|(each, age)| each.time.after(age) <= now);
            aged || topic.may_be_absent(*seq, now)
        };
        let is_right = (floor..first).all(|seq| may_go(&seq)) && first <= visible + 1;
        if is_right { first } else { floor }
    }

    /// Notes where a message lies; no two ever lie at the same place.
    pub(crate) fn learn_position(&mut self, message: &Rc<Accepted>, position: u64) -> Checked {
        match message.position.get() {
            Some(known) => ensure(known == position, || {
                format!("message {} was at position {known} and is at {position}", message.offer)
            }),
            None => {
                message.position.set(Some(position));
                match self.positions.insert(position, message.offer) {
                    Some(other) if other != message.offer => broken(format!(
                        "position {position} was given to message {other} and to {}",
                        message.offer
                    )),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Asks whether an answer is there.
    pub(crate) fn poll_asked(&mut self, mut asked: Asked) -> Checked<Option<Asked>> {
        let waker = Waker::from(Arc::clone(&asked.flag));
        let woken = asked.flag.take();
        match asked.answer.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                asked.polled = true;
                Ok(Some(asked))
            }
            Poll::Ready(answer) => {
                ensure(woken || !asked.polled, || {
                    "an ack came but its waiter was not woken".into()
                })?;
                self.answered(&asked, answer)?;
                Ok(None)
            }
        }
    }

    fn answered(&mut self, asked: &Asked, answer: Result<Outcome, PubSubError>) -> Checked {
        let acks = match answer {
            Ok(Outcome::Acks(acks)) => acks,
            Ok(Outcome::Cancelled(was)) => {
                self.note(format_args!("  cancelled {was}"));
                if let Some(commit) = asked.commit {
                    self.acked(commit, Durability::Flushed);
                }
                return ensure(was == asked.commit.is_some(), || format!("cancelling said {was}"));
            }
            Err(error) => {
                self.note(format_args!("  unconfirmed: {error}"));
                // What others took from the disk may be missing for long.
                let late = error == PubSubError::TimedOut && self.is_blocked();
                return ensure(self.is_failed() || late, || {
                    format!("an accepted publish ended with {error}, but the journal works")
                });
            }
        };
        self.note(format_args!("  {acks:?}"));
        ensure(acks.len() == asked.expected.len(), || {
            format!("{} acks instead of {}", acks.len(), asked.expected.len())
        })?;
        let mut reached = None;
        for (ack, expected) in acks.iter().zip(&asked.expected) {
            self.check_ack(ack, expected, asked.wanted)?;
            if let PublishAck::Accepted(accepted) = ack {
                reached = reached.max(Some(accepted.durability));
            }
        }
        let reached = reached.unwrap_or(asked.wanted);
        if let Some(commit) = asked.commit {
            self.acked(commit, reached);
        }
        Ok(())
    }

    fn check_ack(
        &mut self,
        ack: &PublishAck,
        expected: &ExpectedAck,
        wanted: Durability,
    ) -> Checked {
        let wrong = || broken(format!("{ack:?} instead of {expected:?}"));
        match (ack, expected) {
            (PublishAck::Accepted(ack), ExpectedAck::Accepted { topic, first, last }) => {
                let fits = ack.first.0 == *first && ack.last.0 == *last && !ack.duplicate;
                if !fits || ack.durability < wanted {
                    return wrong();
                }
                let Some(model) = self.now.topics.get(topic) else { return Ok(()) };
                let messages: Vec<_> =
                    (*first..=*last).filter_map(|seq| model.at(seq).cloned()).collect();
                for (back, message) in messages.iter().rev().enumerate() {
                    self.learn_position(message, ack.position.0 - back as u64)?;
                }
                Ok(())
            }
            (PublishAck::Accepted(ack), ExpectedAck::Known { topic, first, last }) => {
                let fits = ack.first.0 == *first && ack.last.0 == *last && ack.duplicate;
                if !fits || ack.durability < wanted {
                    return wrong();
                }
                self.counts.duplicates += 1;
                // What it tells of is as durable as the ack says, too.
                let model = &self.now.topics[topic];
                let known = [*first, *last].map(|seq| model.at(seq).map(|each| each.commit));
                for serial in known.into_iter().flatten() {
                    self.acked(serial, ack.durability);
                }
                Ok(())
            }
            (PublishAck::Scheduled { id, due }, ExpectedAck::Scheduled { id: seq, due: at }) => {
                if id.0 == *seq && due == at {
                    Ok(())
                } else {
                    wrong()
                }
            }
            (PublishAck::Accepted(_), ExpectedAck::Nothing) => Ok(()),
            _ => wrong(),
        }
    }

    /// Asks all who wait whether their answer is there.
    pub(crate) fn poll_all_asked(&mut self) -> Checked {
        for asked in std::mem::take(&mut self.asked) {
            if let Some(asked) = self.poll_asked(asked)? {
                self.asked.push(asked);
            }
        }
        Ok(())
    }

    /// The names of all cells there may be.
    pub(crate) fn cell_names() -> impl Iterator<Item = Bytes> {
        (0..4_u8).map(|number| Bytes::from(format!("cell-{number}")))
    }
}
