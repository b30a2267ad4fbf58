//! The promise, over the wire and over the end of the server: a subscriber sees every seq
//! once, in order, or a gap notice that is true (D3, D4, D8, D10, D11, F2).
//!
//! Publishers run all the while. A hundred subscribers join at random positions, are cut off
//! and come back at random, some too slow, half of them over TCP and half over the Unix
//! socket; the server is killed twice and stopped once in the middle. At the end what each of
//! them saw is compared with what was acknowledged.
//!
//! Everything random comes from one seed, which a failure prints; `GAPLESS_SEED` sets it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gapless_client::{
    Amount, Backoff, Client, ClientLimits, ConnectOptions, Event, From, GapNotice, GapReason,
    Message, Messages, Seq, Subscription, Token, TopicName, TopicSettings,
};
use tokio::sync::watch;
use tokio::time::timeout;

/// Only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(120);
const SUBSCRIBERS: u64 = 100;
const PUBLISHERS: u64 = 4;
const IN_FLIGHT: usize = 8;
/// Acks after which the server is killed, killed again, and stopped in order.
const ENDS: [(u64, How); 3] = [(800, How::Kill), (2000, How::Kill), (3200, How::Stop)];
/// When the publishers stop: so many acks, and so many subscribers cut off.
const ACKS: u64 = 4500;
const CUTS: u64 = 200;
const PURGE_EVERY: u64 = 400;
/// One keeps everything; of the other the older messages are purged again and again.
const TOPICS: [&str; 2] = ["kept", "purged"];

#[derive(Clone, Copy, Debug)]
enum How {
    Kill,
    Stop,
}

struct Dice(u64);

impl Dice {
    fn new(seed: u64, who: u64) -> Self {
        let mut dice = Self((seed ^ (who + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..10).for_each(|_| _ = dice.next());
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// A process that ends with the test, however that ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Server {
    process: Guard,
    tcp: String,
    unix: String,
}

impl Server {
    fn start(data: &Path, listen: &str) -> Self {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let child = Command::new(env!("CARGO_BIN_EXE_gapless"))
                .args(["serve", "--json", "--listen", listen, "--http", "127.0.0.1:0", "--data"])
                .arg(data)
                .args(["--set", "journal.tail_bytes=65536"])
                .args(["--set", "journal.seal_bytes=1048576"])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn();
            let mut process = Guard(child.expect("the server starts"));
            let out = process.0.stdout.take().expect("it has an output");
            let mut line = String::new();
            let read = BufReader::new(out).read_line(&mut line);
            let ready = read.ok().and_then(|_| serde_json::from_str(&line).ok());
            if let Some::<serde_json::Value>(ready) = ready {
                let text = |key: &str| ready[key].as_str().expect("an address").to_owned();
                return Self { process, tcp: text("native"), unix: text("unix") };
            }
            // The port may be taken for a moment.
            assert!(Instant::now() < deadline, "the server does not get ready: {line:?}");
        }
    }

    /// Ends it, and begins another in its place.
    fn again(mut self, how: How, data: &Path) -> Self {
        match how {
            How::Kill => self.process.0.kill().expect("it can be killed"),
            How::Stop => {
                let id = self.process.0.id().to_string();
                let sent = Command::new("kill").args(["-TERM", &id]).status();
                assert!(sent.expect("kill runs").success());
                let ended = self.process.0.wait().expect("it ends");
                assert!(ended.success(), "it ends well: {ended}");
            }
        }
        let tcp = self.tcp.clone();
        drop(self);
        Self::start(data, &tcp)
    }
}

/// What all share.
struct World {
    seed: u64,
    tcp: String,
    unix: String,
    /// What was acknowledged: body by seq, for each topic.
    acked: [Mutex<BTreeMap<u64, String>>; 2],
    acks: watch::Sender<u64>,
    cuts: AtomicU64,
    /// Places of subscribers: the token, and the seq after it.
    places: [Mutex<Vec<(Token, u64)>>; 2],
    stop: watch::Sender<bool>,
    /// The last seq of each topic, when nothing more comes.
    last: watch::Sender<Option<[u64; 2]>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn client(&self, who: u64, window: Amount) -> Client {
        let address = if who.is_multiple_of(2) { &self.tcp } else { &self.unix };
        let (first, most) = (Duration::from_millis(20), Duration::from_millis(200));
        let limits = ClientLimits { window, ..ClientLimits::default() };
        let options = ConnectOptions::new([address])
            .name(format!("{who}"))
            .backoff(Backoff { first, most, ..Backoff::default() })
            .limits(limits);
        Client::connect_lazy(options).expect("good options")
    }

    async fn until_acks(&self, count: u64) {
        let mut acks = self.acks.subscribe();
        let reached = timeout(DEADLINE, acks.wait_for(|acks| *acks >= count)).await;
        reached.expect("the publishers go on").expect("the world is there");
    }
}

fn topic(index: usize) -> TopicName {
    TOPICS[index].parse().expect("a name")
}

async fn publisher(world: Arc<World>, who: u64) {
    let client = world.client(who, ClientLimits::default().window);
    let mut dice = Dice::new(world.seed, 1_000 + who);
    let mut waiting = VecDeque::new();
    let mut number = 0;
    let mut stopped = false;
    while !stopped || !waiting.is_empty() {
        stopped = *world.stop.borrow();
        if !stopped && waiting.len() < IN_FLIGHT {
            let index = dice.below(2) as usize;
            let body = format!("{who} {number} {}", "x".repeat(dice.below(400) as usize));
            number += 1;
            waiting.push_back((
                index,
                client.publish(&topic(index), Message::new(body.clone())),
                body,
            ));
            continue;
        }
        let Some((index, ack, body)) = waiting.pop_front() else { continue };
        let ack = ack.await.expect("every publish is acknowledged, over every end of the server");
        let seq = ack.seq().expect("a seq").0;
        let before = locked(&world.acked[index]).insert(seq, body);
        assert_eq!(before, None, "seq {seq} of {} is given once", TOPICS[index]);
        world.acks.send_modify(|acks| *acks += 1);
    }
    client.close(DEADLINE).await;
}

/// Removes the older messages of the second topic, again and again.
async fn purger(world: Arc<World>) {
    let client = world.client(1, ClientLimits::default().window);
    for count in 1.. {
        world.until_acks((count * PURGE_EVERY).min(ACKS)).await;
        if *world.stop.borrow() || count * PURGE_EVERY >= ACKS {
            break;
        }
        if let Ok(info) = client.describe_topic(&topic(1)).await {
            let below = Seq(info.next.0.saturating_sub(100).max(1));
            // A server that ends in the middle may have done it or not.
            let _ = client.purge_topic(&topic(1), below).await;
        }
    }
    client.close(DEADLINE).await;
}

/// What a subscriber saw.
#[derive(Default)]
struct Seen {
    topic: usize,
    /// The first seq it was owed, and the next.
    first: Option<u64>,
    next: Option<u64>,
    /// Whether it has just come back with a token.
    resumed: bool,
    bodies: BTreeMap<u64, String>,
    gaps: Vec<(u64, u64, GapReason)>,
}

impl Seen {
    fn messages(&mut self, messages: &Messages) {
        let (from, to) = (messages.from().0, messages.to().0);
        assert_eq!(from, *self.next.get_or_insert(from), "no hole and no overlap");
        self.first.get_or_insert(from);
        for (seq, each) in (from..).zip(messages.records()) {
            assert_eq!(each.seq.0, seq, "each seq once, in order");
            let body = String::from_utf8_lossy(each.record.body.unwrap_or_default());
            assert_eq!(self.bodies.insert(seq, body.into_owned()), None);
        }
        assert_eq!(messages.count() as u64, to + 1 - from, "nothing is missing between");
        self.next = Some(to + 1);
        self.resumed = false;
    }

    fn gap(&mut self, gap: &GapNotice) {
        let from = gap.from.map(|seq| seq.0);
        let to = gap.to.expect("a gap of a topic has an end").0;
        if let Some(next) = self.next {
            // A token is a position. When the messages around it are purged, the broker no
            // longer knows its seq and tells of the gap from a bound below it: what was seen
            // may be reported again there, but only right after a resume, and never less.
            let resumed = self.resumed && from.is_none_or(|from| from <= next);
            assert!(from == Some(next) || resumed, "no hole and no overlap: {gap:?}, {next}");
            assert!(next <= to, "a gap is ahead: {gap:?}, {next}");
        }
        let begin = self.next.or(from).unwrap_or(to);
        self.gaps.push((begin, to, gap.reason));
        self.next = Some(to + 1);
        self.resumed = false;
    }
}

async fn subscriber(world: Arc<World>, who: u64) -> Seen {
    let mut dice = Dice::new(world.seed, who);
    let index = dice.below(2) as usize;
    let slow = dice.below(4) == 0;
    let mut seen = Seen { topic: index, ..Seen::default() };
    world.until_acks(1 + dice.below(ACKS * 2 / 3)).await;
    let mut from = start(&world, &mut dice, &mut seen);
    let window =
        if slow { Amount { messages: 8, bytes: 4096 } } else { ClientLimits::default().window };
    let mut last = world.last.subscribe();
    loop {
        let client = world.client(who, window);
        let mut follow = client.subscribe_lazy(TOPICS[index], from).expect("a pattern");
        let patience = if dice.below(5) == 0 { u64::MAX } else { 20 + dice.below(400) };
        let wait = if slow { Duration::from_millis(1 + dice.below(15)) } else { Duration::ZERO };
        let done = visit(&mut follow, &mut seen, &mut last, (patience, wait)).await;
        if let Some(token) = follow.token() {
            from = From::Token(token);
            if let Some(next) = seen.next {
                locked(&world.places[index]).push((token, next));
            }
        }
        drop(follow);
        if dice.below(2) == 0 {
            client.close(DEADLINE).await;
        }
        if done {
            return seen;
        }
        world.cuts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a subscriber joins.
fn start(world: &World, dice: &mut Dice, seen: &mut Seen) -> From {
    let known = locked(&world.acked[seen.topic]).keys().next_back().copied();
    match (dice.below(4), known) {
        (0, Some(known)) => {
            let seq = 1 + dice.below(known);
            (seen.first, seen.next) = (Some(seq), Some(seq));
            From::Seq(Seq(seq))
        }
        (1, _) => From::Now,
        (2, _) => {
            let places = locked(&world.places[seen.topic]);
            if places.is_empty() {
                return From::Beginning;
            }
            let (token, next) = places[dice.below(places.len() as u64) as usize];
            (seen.first, seen.next) = (Some(next), Some(next));
            From::Token(token)
        }
        _ => From::Beginning,
    }
}

/// Follows until it has seen the last message, or for so many messages. Tells which.
async fn visit(
    follow: &mut Subscription,
    seen: &mut Seen,
    last: &mut watch::Receiver<Option<[u64; 2]>>,
    (patience, wait): (u64, Duration),
) -> bool {
    let mut count = 0;
    seen.resumed = true;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let end = last.borrow_and_update().map(|last| last[seen.topic]);
        if end.is_some_and(|end| seen.next.is_some_and(|next| next > end)) {
            return true;
        }
        tokio::select! {
            event = follow.next() => {
                match event.expect("it goes on").expect("it does not fail") {
                    Event::Messages(messages) => {
                        seen.messages(&messages);
                        count += messages.count() as u64;
                        if end.is_none() {
                            // A slow reader is slow; nothing waits for it.
                            tokio::time::sleep(wait).await;
                        }
                    }
                    Event::Gap(gap) => seen.gap(&gap),
                    Event::Resumed => seen.resumed = true,
                    _ => {}
                }
                if count >= patience && end.is_none() {
                    return false;
                }
            }
            changed = last.changed() => changed.expect("the world is there"),
            () = tokio::time::sleep_until(deadline) => {
                panic!("nothing came: {:?} of {end:?}, {:?}", seen.next, follow.token());
            }
        }
    }
}

#[test]
fn d3_a_hundred_subscribers_see_every_seq_once_in_order_or_a_true_gap_over_two_kills() {
    let seed = std::env::var("GAPLESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(20_261_115);
    println!("GAPLESS_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let server = Server::start(&data, "127.0.0.1:0");
    let world = Arc::new(World {
        seed,
        tcp: server.tcp.clone(),
        unix: server.unix.clone(),
        acked: Default::default(),
        acks: watch::Sender::new(0),
        cuts: AtomicU64::new(0),
        places: Default::default(),
        stop: watch::Sender::new(false),
        last: watch::Sender::new(None),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(story(&world, server, &data));
}

async fn story(world: &Arc<World>, mut server: Server, data: &Path) {
    let client = world.client(0, ClientLimits::default().window);
    for index in 0..2 {
        client.create_topic(&topic(index), TopicSettings::default()).await.expect("a topic");
    }
    let publishers: Vec<_> =
        (0..PUBLISHERS).map(|who| tokio::spawn(publisher(Arc::clone(world), who))).collect();
    let purger = tokio::spawn(purger(Arc::clone(world)));
    let subscribers: Vec<_> =
        (0..SUBSCRIBERS).map(|who| tokio::spawn(subscriber(Arc::clone(world), who))).collect();
    for (acks, how) in ENDS {
        world.until_acks(acks).await;
        let data = data.to_owned();
        let again = tokio::task::spawn_blocking(move || server.again(how, &data));
        server = again.await.expect("the server comes back");
    }
    world.until_acks(ACKS).await;
    let mut more = ACKS;
    while world.cuts.load(Ordering::Relaxed) < CUTS {
        more += 1;
        world.until_acks(more).await;
    }
    world.stop.send_replace(true);
    for publisher in publishers {
        publisher.await.expect("a publisher ends well");
    }
    purger.await.expect("the purger ends well");
    // What joined with `now` and saw nothing yet shall see something.
    let mut truth = Vec::new();
    let mut last = [0; 2];
    for (index, last) in last.iter_mut().enumerate() {
        let ack = client.publish(&topic(index), Message::new(format!("the last of {index}"))).await;
        let seq = ack.expect("an ack").seq().expect("a seq").0;
        let mut acked = locked(&world.acked[index]).clone();
        acked.insert(seq, format!("the last of {index}"));
        assert!(acked.keys().copied().eq(1..=seq), "every seq was acknowledged exactly once");
        let bodies: BTreeSet<&String> = acked.values().collect();
        assert_eq!(bodies.len(), acked.len(), "and every message has one seq");
        let first = client.describe_topic(&topic(index)).await.expect("a topic").first.0;
        truth.push((first, acked));
        *last = seq;
    }
    world.last.send_replace(Some(last));
    let (mut gaps, mut messages) = (0, 0);
    for (who, subscriber) in subscribers.into_iter().enumerate() {
        let ended = timeout(DEADLINE, subscriber).await.expect("it comes to the end");
        let seen = ended.unwrap_or_else(|error| panic!("subscriber {who}: {error}"));
        compare(who, &seen, &truth[seen.topic], last[seen.topic]);
        gaps += seen.gaps.len();
        messages += seen.bodies.len();
    }
    let cuts = world.cuts.load(Ordering::Relaxed);
    println!("{messages} messages, {gaps} gaps, {cuts} cuts, last seqs {last:?}");
    client.close(DEADLINE).await;
    drop(server);
}

fn compare(who: usize, seen: &Seen, (first, acked): &(u64, BTreeMap<u64, String>), last: u64) {
    assert_eq!(seen.next, Some(last + 1), "subscriber {who} is at the end");
    for (seq, body) in &seen.bodies {
        assert_eq!(acked.get(seq), Some(body), "subscriber {who}, seq {seq}");
    }
    for (from, to, reason) in &seen.gaps {
        assert_eq!(seen.topic, 1, "subscriber {who}: of {} nothing was removed", TOPICS[0]);
        assert_eq!(*reason, GapReason::Purge, "subscriber {who}: {from} to {to}");
        assert!(to < first, "subscriber {who}: {from} to {to} is gone, the first is {first}");
    }
    let Some(begin) = seen.first else { return };
    for seq in begin..=last {
        let told = seen.gaps.iter().any(|(from, to, _)| *from <= seq && seq <= *to);
        let came = seen.bodies.contains_key(&seq);
        assert!(came != told, "subscriber {who}, seq {seq}: came {came}, told missing {told}");
    }
}
