//! Groups through the client over a real listener: consumers, members and atomic steps, while
//! connections are cut without a word.
//!
//! Between client and server is a relay that can be cut, so that a connection ends as it does
//! when a cable is pulled: neither side says goodbye.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless_broker::{Broker, BrokerOptions};
use gapless_client::{
    Atomic, Backoff, Client, ConnectOptions, Consumer, ConsumerOptions, Failed, GroupEvent,
    GroupSettings, LetterFilter, MemberError, MemberOptions, Message, Mode, Position, PublishError,
    RejectReason, RetryPolicy, Seq, TopicName, TopicSettings, Waits,
};
use gapless_core::{Pattern, PublishOptions};
use gapless_server::native::{NativeListener, NativeOptions};
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::time::{interval, timeout};

/// Only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often it is looked at what a test waits for.
const LOOK_EVERY: Duration = Duration::from_millis(2);

struct World {
    broker: Broker,
    folder: TempDir,
    cut: watch::Sender<u64>,
    _native: NativeListener,
}

fn name(text: &str) -> TopicName {
    text.parse().expect("a name")
}

impl World {
    async fn open() -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        let broker =
            Broker::open(BrokerOptions::new(folder.path().join("data"))).expect("a broker");
        let socket = folder.path().join("listener");
        let open =
            NativeListener::open(broker.clone(), NativeOptions::default(), None, Some(&socket));
        let native = open.await.expect("a listener");
        let listener = UnixListener::bind(folder.path().join("relay")).expect("a relay");
        let (cut, cuts) = watch::channel(0);
        tokio::spawn(relay(listener, socket, cuts));
        for topic in ["orders", "bills"] {
            broker.create_topic(&name(topic), TopicSettings::default()).expect("a topic");
        }
        Self { broker, folder, cut, _native: native }
    }

    /// A client whose connection can be cut.
    async fn client(&self) -> Client {
        let address = format!("unix:{}", self.folder.path().join("relay").display());
        let (first, most) = (Duration::from_millis(5), Duration::from_millis(50));
        let backoff = Backoff { first, most, ..Backoff::default() };
        let options = ConnectOptions::new([address]).backoff(backoff);
        Client::connect(options).await.expect("a client")
    }

    /// Ends every connection without a word.
    fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    fn publish(&self, count: usize) {
        for number in 0..count {
            let message = Message::new(format!("{number}")).with_key(format!("key-{}", number % 7));
            let sent = self.broker.publish(&name("orders"), &message, &PublishOptions::default());
            assert!(sent.wait().expect("an ack").accepted().is_some());
        }
    }

    fn group(&self, change: impl FnOnce(&mut GroupSettings)) -> TopicName {
        let mut settings = GroupSettings::new(Pattern::parse("orders").expect("a pattern"));
        settings.retry = RetryPolicy { waits: Waits::Steps(Vec::new()), jitter_percent: 0 };
        settings.attempts_max = 1000;
        change(&mut settings);
        self.broker.create_group(&name("work"), settings).expect("a group");
        name("work")
    }

    async fn until(&self, what: &str, mut is: impl FnMut(&Broker) -> bool) {
        let reached = async {
            let mut look = interval(LOOK_EVERY);
            while !is(&self.broker) {
                look.tick().await;
            }
        };
        timeout(DEADLINE, reached).await.unwrap_or_else(|_| panic!("it did not happen: {what}"));
    }

    fn lag(&self) -> u64 {
        self.broker.describe_group(&name("work")).expect("a group").lag
    }

    fn bodies(&self, topic: &str) -> Vec<String> {
        let last = self.broker.describe_topic(&name(topic)).expect("a topic").next;
        let body = |seq| {
            let found = self.broker.read(&name(topic), Seq(seq)).expect("it is read");
            let body = found.expect("it is there").message.body.expect("a body");
            String::from_utf8(body.to_vec()).expect("text")
        };
        (1..last.0).map(body).collect()
    }
}

async fn relay(listener: UnixListener, to: PathBuf, mut cuts: watch::Receiver<u64>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let to = to.clone();
        cuts.mark_unchanged();
        let mut cut = cuts.clone();
        tokio::spawn(async move {
            let Ok(mut far) = UnixStream::connect(to).await else { return };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = cut.changed() => {}
            }
        });
    }
}

/// How often each message was handled.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Seen {
    fn note(&self, seq: Seq) -> u32 {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = seen.entry(seq.0).or_default();
        *times += 1;
        *times
    }

    fn all(&self) -> BTreeMap<u64, u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_consumer_handles_every_message_once_and_drains_when_it_is_stopped() {
    let world = World::open().await;
    world.publish(500);
    let group = world.group(|_| ());
    let client = world.client().await;
    let (seen, running, most) = (Seen::default(), Arc::new(AtomicU64::new(0)), Arc::default());
    let options = ConsumerOptions { concurrency: 8, prefetch: 32, ..Default::default() };
    let consumer = {
        let (seen, running, most) = (seen.clone(), Arc::clone(&running), Arc::clone(&most));
        let most: Arc<AtomicU64> = most;
        Consumer::start(&client, &group, options, move |each| {
            let (seen, running, most) = (seen.clone(), Arc::clone(&running), Arc::clone(&most));
            async move {
                let now = running.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                tokio::task::yield_now().await;
                seen.note(each.seq);
                running.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        })
        .await
        .expect("a consumer")
    };
    world.until("all is done", |_| world.lag() == 0).await;
    let report = consumer.stop(DEADLINE).await.expect("it ends well");
    assert_eq!((report.acked, report.failed, report.lost), (500, 0, 0));
    assert!(seen.all().len() == 500 && seen.all().values().all(|times| *times == 1));
    let most = most.load(Ordering::Relaxed);
    assert!((1..=8).contains(&most), "at most so many at once: {most}");
    let info = world.broker.describe_group(&group).expect("a group");
    assert!(info.members.is_empty(), "it has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_stops_finishes_what_runs_and_gives_back_the_rest_uncounted() {
    let world = World::open().await;
    world.publish(20);
    let group = world.group(|_| ());
    let client = world.client().await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let consumer = {
        let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
        let options = ConsumerOptions { concurrency: 1, prefetch: 10, ..Default::default() };
        Consumer::start(&client, &group, options, move |_| {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            async move {
                begun.notify_one();
                go.notified().await;
                Ok(())
            }
        })
        .await
        .expect("a consumer")
    };
    timeout(DEADLINE, begun.notified()).await.expect("one began");
    let mut stopping = Box::pin(consumer.stop(DEADLINE));
    tokio::select! {
        biased;
        _ = &mut stopping => panic!("it waits for what runs"),
        () = std::future::ready(()) => {}
    }
    go.notify_one();
    let report = stopping.await.expect("it ends well");
    assert_eq!((report.acked, world.lag()), (1, 19));
    let mut member = client.join_group(&group, MemberOptions::default()).await.expect("a member");
    let leased = member.next_messages().await.expect("goes on").expect("messages");
    assert!(leased.iter().all(|each| each.attempt == 1), "nothing failed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_extends_the_leases_of_what_takes_long() {
    let world = World::open().await;
    world.publish(3);
    let lease = Duration::from_millis(600);
    let group = world.group(|settings| settings.lease = lease);
    let client = world.client().await;
    let seen = Seen::default();
    let handled = seen.clone();
    let options = ConsumerOptions { concurrency: 1, prefetch: 2, ..Default::default() };
    let consumer = Consumer::start(&client, &group, options, move |each| {
        let seen = handled.clone();
        async move {
            // Much longer than a lease.
            let long = timeout(Duration::from_millis(1500), std::future::pending::<()>());
            assert!(long.await.is_err());
            assert_eq!(each.attempt, 1);
            seen.note(each.seq);
            Ok(())
        }
    })
    .await
    .expect("a consumer");
    world.until("all is done", |_| world.lag() == 0).await;
    let report = consumer.stop(DEADLINE).await.expect("it ends well");
    assert_eq!((report.acked, report.failed), (3, 0));
    assert!(seen.all().values().all(|times| *times == 1), "{:?}", seen.all());
    assert_eq!(world.broker.describe_group(&group).expect("a group").totals.expired, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_retried_with_their_delay_and_the_hopeless_are_dead_letters() {
    let world = World::open().await;
    world.publish(4);
    let group = world.group(|_| ());
    let client = world.client().await;
    let seen = Seen::default();
    let handled = seen.clone();
    let consumer = Consumer::start(&client, &group, ConsumerOptions::default(), move |each| {
        let seen = handled.clone();
        async move {
            let times = seen.note(each.seq);
            assert!(each.seq != Seq(4) || times > 1, "a panic is a failure of its message");
            match (each.seq.0, times) {
                (1, 1) => Err(Failed::retry_after(Duration::from_millis(20), "not yet")),
                (2, _) => Err(Failed::dead("no such customer")),
                (3, 1..=2) => {
                    "no number".parse::<u64>()?;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    })
    .await
    .expect("a consumer");
    world
        .until("all is done", |broker| {
            world.lag() == 0
                && broker.describe_group(&name("work")).expect("a group").dead_letters == 1
        })
        .await;
    consumer.stop(DEADLINE).await.expect("it ends well");
    assert_eq!(seen.all(), BTreeMap::from([(1, 2), (2, 1), (3, 3), (4, 2)]));

    let (letters, more) = client.dead_letters(&group, Seq(1), 10).await.expect("letters");
    assert_eq!((letters.len(), more), (1, false));
    assert_eq!((letters[0].error.as_str(), letters[0].origin), ("no such customer", Seq(2)));
    let one = client.dead_letter(&group, letters[0].seq).await.expect("an answer");
    assert_eq!(one.as_ref(), Some(&letters[0]));
    let moved = client.redrive(&group, LetterFilter::default(), None).await.expect("an answer");
    assert_eq!((moved.count, world.lag()), (1, 1));
    assert_eq!(client.dead_letter(&group, letters[0].seq).await.expect("an answer"), None);
    let removed = client.remove_dead_letters(&group, LetterFilter::default()).await;
    assert_eq!(removed.expect("an answer"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_consumers_keep_the_order_of_keys_over_lost_connections() {
    let world = World::open().await;
    world.publish(300);
    let group = world.group(|settings| settings.mode = Mode::Keyed);
    let last: Arc<Mutex<BTreeMap<Vec<u8>, u64>>> = Arc::default();
    let mut consumers = Vec::new();
    let handled = Arc::new(AtomicU64::new(0));
    for number in 0..4 {
        let client = world.client().await;
        let (last, handled) = (Arc::clone(&last), Arc::clone(&handled));
        let options = ConsumerOptions {
            name: format!("c{number}"),
            concurrency: 4,
            ..ConsumerOptions::default()
        };
        let consumer = Consumer::start(&client, &group, options, move |each| {
            let (last, handled) = (Arc::clone(&last), Arc::clone(&handled));
            async move {
                let key = each.message.key.clone().expect("a key").to_vec();
                {
                    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                    let before = last.entry(key).or_default();
                    // One that was done and not acked comes again; never one before it.
                    assert!(each.seq.0 >= *before, "{} after {before}", each.seq);
                    *before = each.seq.0;
                }
                handled.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok(())
            }
        });
        let consumer = consumer.await.expect("a consumer");
        consumers.push((client, consumer));
    }
    for cut in 1..=4 {
        world.until("it goes on", |_| handled.load(Ordering::Relaxed) >= cut * 50).await;
        world.cut();
    }
    world.until("all is done", |_| world.lag() == 0).await;
    for (_, consumer) in consumers {
        let report = consumer.stop(DEADLINE).await.expect("it ends well");
        assert_eq!(report.failed, 0, "no handler saw its key out of order");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn atomic_steps_copy_a_topic_exactly_once_over_lost_connections() {
    const MESSAGES: usize = 400;
    let world = Arc::new(World::open().await);
    world.publish(MESSAGES);
    let group = world.group(|_| ());
    let steps = Arc::new(AtomicU64::new(0));
    let mut members = Vec::new();
    for _ in 0..3 {
        let (client, group) = (world.client().await, group.clone());
        let steps = Arc::clone(&steps);
        members.push(tokio::spawn(async move {
            let options = MemberOptions { window: 10, ..MemberOptions::default() };
            let mut member = client.join_group(&group, options).await.expect("a member");
            while let Some(event) = member.next().await {
                let GroupEvent::Messages(leased) = event.expect("it goes on") else { continue };
                for each in leased.iter() {
                    let body =
                        String::from_utf8(each.message.body.clone().unwrap_or_default().to_vec());
                    let copy = Message::new(format!("copy of {}", body.expect("text")));
                    let step = Atomic::new().message(&name("bills"), copy);
                    match member.step(&each.leases(), step).await {
                        Ok(acks) => assert_eq!(acks.len(), 1),
                        // It happened or not; if not, it comes again.
                        Err(PublishError::Disconnected { .. }) => {}
                        Err(PublishError::Rejected(RejectReason::LeaseLost)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for cut in 1..=8 {
        world.until("it goes on", |_| steps.load(Ordering::Relaxed) >= cut * 30).await;
        world.cut();
    }
    // What is acked is there at once; what was published with it, when it is durable.
    let copied = |broker: &Broker| {
        world.lag() == 0
            && broker.describe_topic(&name("bills")).expect("a topic").next.0 > MESSAGES as u64
    };
    world.until("all is done", copied).await;
    members.iter().for_each(tokio::task::JoinHandle::abort);
    let mut copies = world.bodies("bills");
    copies.sort_unstable();
    let mut wanted: Vec<String> = (0..MESSAGES).map(|number| format!("copy of {number}")).collect();
    wanted.sort_unstable();
    assert_eq!(copies, wanted, "each exactly once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_commits_extends_leaves_and_knows_what_it_lost() {
    let world = World::open().await;
    world.publish(10);
    let group = world.group(|settings| settings.mode = Mode::Ordered);
    let client = world.client().await;
    let options = MemberOptions { name: "first".into(), window: 5 };
    let mut first = client.join_group(&group, options).await.expect("a member");
    assert_eq!((first.mode(), first.lease()), (Mode::Ordered, Duration::from_secs(30)));
    assert!(first.id() > 0);
    let event = first.next().await.expect("an event").expect("it goes on");
    assert!(matches!(event, GroupEvent::Active));
    let leased = first.next_messages().await.expect("an event").expect("messages");
    assert_eq!((leased.count(), leased.topic().as_str()), (5, "orders"));
    let third: Position = leased.iter().nth(2).expect("a third").position;
    assert_eq!(first.commit_through(third).await.expect("an answer").taken, 3);
    let extended = first.extend(leased.leases()).await.expect("an answer");
    assert_eq!((extended.taken, extended.refused), (2, 3));
    assert!(extended.deadline.is_some());

    let mut second = client.join_group(&group, MemberOptions::default()).await.expect("a member");
    let event = second.next().await.expect("an event").expect("it goes on");
    assert!(matches!(event, GroupEvent::Standby));
    first.leave().await;
    let event = second.next().await.expect("an event").expect("it goes on");
    assert!(matches!(event, GroupEvent::Active));
    let leased = second.next_messages().await.expect("an event").expect("messages");
    assert_eq!(leased.iter().next().map(|each| (each.seq, each.attempt)), Some((Seq(4), 1)));

    world.cut();
    let lost = loop {
        let event = second.next().await.expect("an event").expect("it goes on");
        if matches!(event, GroupEvent::Rejoined) {
            break second.ack(leased.leases()).await;
        }
    };
    assert!(matches!(lost, Err(MemberError::Lost { .. })), "{lost:?}");
    client.delete_group(&group).await.expect("it is deleted");
    let end = loop {
        match second.next().await {
            Some(Ok(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Some(Err(MemberError::Ended(_)))), "{end:?}");
    let refused = client.join_group(&group, MemberOptions::default()).await;
    assert!(matches!(refused, Err(MemberError::Refused(_))));
}
