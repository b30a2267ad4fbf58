//! What the stories share: a store to open again and again, and waits that end.
#![allow(dead_code, reason = "every story uses another part of it")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use gapless_broker::{
    Broker, BrokerOptions, Delivered, Delivery, FollowError, GapNotice, JournalOptions,
    ManualClock, Messages, Subscription, block_on,
};
use gapless_core::{
    Accepted, Message, Pattern, PublishAck, PublishOptions, RejectReason, Seq, Storage, Timestamp,
    TopicName, TopicSettings,
};
use gapless_journal::faulty::{CrashKind, FaultyFs};

/// How long anything in a test may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("tests use good names")
}

pub(crate) fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("tests use good patterns")
}

pub(crate) fn volatile() -> TopicSettings {
    TopicSettings { storage: Storage::Volatile, ..TopicSettings::default() }
}

/// A store on a disk in memory, with a clock that stands still and no threads.
pub(crate) struct World {
    pub(crate) fs: FaultyFs,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) options: BrokerOptions,
}

pub(crate) const START: Timestamp = Timestamp(1_000_000);

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let fs = FaultyFs::new(seed);
        let clock = Arc::new(ManualClock::new(START));
        let mut options = BrokerOptions::new(PathBuf::from("/store"));
        options.fs = Arc::new(fs.clone());
        options.clock = Arc::clone(&clock) as _;
        options.journal = JournalOptions::small();
        options.threads = false;
        options.log.first_file_bytes = 256 * 1024;
        options.log.file_bytes_max = 1024 * 1024;
        Self { fs, clock, options }
    }

    pub(crate) fn open(&self) -> Broker {
        Broker::open(self.options.clone()).expect("the store opens")
    }

    /// Ends the run without a word and begins the next.
    pub(crate) fn crash(&self, broker: Broker, kind: CrashKind) -> Broker {
        self.fs.crash(kind);
        drop(broker);
        self.open()
    }

    pub(crate) fn close(&self, broker: Broker) -> Broker {
        broker.close().expect("the store closes");
        self.open()
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }
}

/// Options for a real folder and real threads, everything small.
pub(crate) fn on_disk(folder: &std::path::Path) -> BrokerOptions {
    let mut options = BrokerOptions::new(folder);
    options.journal = JournalOptions { recovery_threads: 2, ..JournalOptions::small() };
    options.journal.recovery_queue_max = 4096;
    options.log.first_file_bytes = 256 * 1024;
    options.log.file_bytes_max = 1024 * 1024;
    options.limits.keep_interval = Duration::from_millis(2);
    options
}

/// Publishes one message and tells where it stands.
pub(crate) fn publish(broker: &Broker, topic: &str, message: &Message) -> Accepted {
    accepted(when_there_is_room(broker, || {
        broker.publish(&name(topic), message, &PublishOptions::default())
    }))
}

/// Publishes, and again when there is room: small journals are busy at times.
pub(crate) fn when_there_is_room(
    broker: &Broker,
    publish: impl Fn() -> gapless_broker::Publishing,
) -> PublishAck {
    loop {
        match publish().wait().expect("the system is well") {
            PublishAck::Rejected(RejectReason::QueueFull) => block_on(broker.room()),
            ack => return ack,
        }
    }
}

pub(crate) fn text(broker: &Broker, topic: &str, body: impl Into<String>) -> Accepted {
    publish(broker, topic, &Message::new(body.into()))
}

/// Publishes `body-<n>` for every `n`.
pub(crate) fn texts(broker: &Broker, topic: &str, range: std::ops::RangeInclusive<u64>) {
    for n in range {
        text(broker, topic, format!("body-{n}"));
    }
}

pub(crate) fn accepted(ack: PublishAck) -> Accepted {
    match ack {
        PublishAck::Accepted(accepted) => accepted,
        other => panic!("not accepted: {other:?}"),
    }
}

pub(crate) fn reason(ack: PublishAck) -> RejectReason {
    match ack {
        PublishAck::Rejected(reason) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

/// The reason why one message is not taken.
pub(crate) fn refusal(
    broker: &Broker,
    topic: &str,
    message: &Message,
    options: &PublishOptions,
) -> RejectReason {
    let ack = broker.publish(&name(topic), message, options).wait();
    reason(ack.expect("a refusal is not an error"))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next step of a subscription; panics if none comes.
pub(crate) fn step(subscription: &mut Subscription) -> Result<Delivery, FollowError> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let end = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(done) = subscription.poll_next(&mut context) {
            return done;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no delivery came to {:?}", subscription.pattern());
        std::thread::park_timeout(left);
    }
}

pub(crate) fn next(subscription: &mut Subscription) -> Delivery {
    step(subscription).expect("the subscription goes on")
}

/// The next step if there is one at this moment.
pub(crate) fn now(subscription: &mut Subscription) -> Option<Result<Delivery, FollowError>> {
    match subscription.poll_next(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Every step there is at this moment, for worlds without threads.
pub(crate) fn drain(subscription: &mut Subscription) -> Vec<Delivery> {
    std::iter::from_fn(|| now(subscription))
        .map(|done| done.expect("the subscription goes on"))
        .collect()
}

/// Every step up to and with `Live`.
pub(crate) fn until_live(subscription: &mut Subscription) -> Vec<Delivery> {
    let mut all = Vec::new();
    loop {
        all.push(next(subscription));
        if matches!(all.last(), Some(Delivery::Live)) {
            return all;
        }
    }
}

pub(crate) fn delivered(deliveries: &[Delivery]) -> Vec<Delivered> {
    deliveries.iter().filter_map(messages_of).flat_map(|messages| messages.iter()).collect()
}

pub(crate) fn messages_of(delivery: &Delivery) -> Option<&Messages> {
    match delivery {
        Delivery::Messages(messages) => Some(messages),
        _ => None,
    }
}

pub(crate) fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    delivered(deliveries).iter().map(|each| body(&each.message)).collect()
}

pub(crate) fn seqs(deliveries: &[Delivery]) -> Vec<u64> {
    delivered(deliveries).iter().map(|each| each.seq.0).collect()
}

pub(crate) fn gaps(deliveries: &[Delivery]) -> Vec<GapNotice> {
    let gap = |delivery: &Delivery| match delivery {
        Delivery::Gap(gap) => Some(gap.clone()),
        _ => None,
    };
    deliveries.iter().filter_map(gap).collect()
}

pub(crate) fn body(message: &Message) -> String {
    String::from_utf8_lossy(message.body.as_deref().unwrap_or_default()).into_owned()
}

/// Awaits something in a world without threads, where the caller must do the work.
pub(crate) fn drive<T>(broker: &Broker, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        broker.turn();
    }
}

/// Waits until something is true; panics if it never is.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Runs a story that must end: if it hangs, the test fails instead of waiting for ever.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    story: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let told = story();
        // The receiver is gone when it took too long.
        let _ = done.send(());
        told
    });
    match wait.recv_timeout(patience) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the story hangs"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Ok(told) => told,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

/// Checks what a reader is handed: every seq of every topic once, in order, or reported as gone.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The next seq of each topic, once it is known.
    pub(crate) next: BTreeMap<String, u64>,
    pub(crate) seen: u64,
    pub(crate) gaps: Vec<GapNotice>,
}

impl Ledger {
    /// A ledger of a reader of one topic that begins at `next`.
    pub(crate) fn from(topic: &str, next: u64) -> Self {
        Self { next: BTreeMap::from([(topic.to_owned(), next)]), ..Self::default() }
    }

    pub(crate) fn note(&mut self, delivery: &Delivery) {
        match delivery {
            Delivery::Messages(messages) => self.note_messages(messages),
            Delivery::Gap(gap) => {
                if let (Some(topic), Some(Seq(to))) = (&gap.topic, gap.to) {
                    let next = self.next.entry(topic.as_str().to_owned()).or_insert(1);
                    if let Some(Seq(from)) = gap.from {
                        assert_eq!(from, *next, "a gap begins where the reader stands: {gap:?}");
                    }
                    *next = (*next).max(to + 1);
                }
                self.gaps.push(gap.clone());
            }
            Delivery::Recovering { .. } | Delivery::Live => {}
        }
    }

    fn note_messages(&mut self, messages: &Messages) {
        let topic = messages.topic().as_str();
        let next = self.next.entry(topic.to_owned()).or_insert(1);
        assert_eq!(messages.from().0, *next, "{topic} goes on without gap or repeat");
        let mut at = messages.from().0;
        for each in messages.iter() {
            assert!(
                each.seq.0 >= at && each.seq <= messages.to(),
                "{topic}: {} out of order",
                each.seq
            );
            at = each.seq.0 + 1;
            self.seen += 1;
        }
        *next = messages.to().0 + 1;
    }

    pub(crate) fn next_of(&self, topic: &str) -> u64 {
        self.next.get(topic).copied().unwrap_or(1)
    }
}

/// Tells threads to end, also when the one that watches them panics.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}
