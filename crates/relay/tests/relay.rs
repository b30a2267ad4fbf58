//! Rows into the topics of a broker in this process, from a real PostgreSQL.

#[path = "../../outbox/tests/support/mod.rs"]
mod support;

use std::time::Duration;

use gapless_broker::{Broker, BrokerOptions};
use gapless_core::{Message, Seq, TopicName, TopicSettings};
use gapless_outbox::{Consumer, ConsumerOptions, FenceOptions, run_fence};
use gapless_relay::{Relay, RelayError, RelayOptions, Target};
use support::writers::{KeyOrder, Writers, all_seqs, finish_prepared, prepare};
use support::{DEADLINE, Postgres, eventually, meanwhile};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

struct World {
    server: Postgres,
    broker: Broker,
    _folder: TempDir,
}

impl World {
    async fn start(settings: &[&str]) -> Self {
        let server = Postgres::start_with(settings).await;
        gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::open(BrokerOptions::new(folder.path())).expect("a broker");
        let database = server.database();
        tokio::spawn(async move {
            let never = std::future::pending();
            run_fence(database, FenceOptions::default(), never).await.expect("the fence runs");
        });
        Self { server, broker, _folder: folder }
    }

    fn relay(&self, database: gapless_outbox::Database) -> JoinHandle<Result<(), RelayError>> {
        let mut options = RelayOptions::new("relay", "db.").expect("a good prefix");
        options.create_topics = true;
        let relay = Relay::new(database, Target::Broker(self.broker.clone()), options);
        tokio::spawn(relay.run(std::future::pending()))
    }

    /// All messages of a topic.
    fn messages(&self, topic: &str) -> Vec<Message> {
        let topic = name(topic);
        let Ok(info) = self.broker.describe_topic(&topic) else { return Vec::new() };
        let read = |seq| self.broker.read(&topic, Seq(seq)).expect("readable").expect("there");
        (1..info.next.0).map(|seq| read(seq).message).collect()
    }
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a good name")
}

fn header(message: &Message, name: &str) -> String {
    let found = message.headers.iter().find(|(known, _)| known == name);
    String::from_utf8(found.expect("a header").1.to_vec()).expect("a text")
}

/// The rows that a topic holds, checked to be in the order of each key.
fn rows_of(messages: &[Message]) -> Vec<u64> {
    let mut order = KeyOrder::default();
    let row = |message: &Message| {
        let key = std::str::from_utf8(message.key.as_ref().expect("a key")).expect("a text");
        order.saw(key, message.body.as_ref().expect("a body"));
        header(message, "outbox-seq").parse().expect("a number")
    };
    messages.iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_rows_become_messages_and_what_cannot_goes_to_the_dead_letters() {
    let world = World::start(&[]).await;
    let client = world.server.client().await;
    let rows = "SELECT gapless.emit('a', 'k1', 'upsert', 'e1', '{\"n\": 1}', 'order', 'why');
                SELECT gapless.emit('not a name', 'k2', 'upsert', 'e2', '{\"n\": 2}');
                SELECT gapless.emit_bytes('a', 'k3', 'upsert', 'e3', decode(repeat('00', 5000000), 'hex'));
                SELECT gapless.emit('a', 'k1', 'delete', 'e4');
                SELECT gapless.emit('c', 'k5', 'upsert', 'e5', created_at => 'infinity');
                SELECT gapless.emit('c', 'k6', 'upsert', 'e6', created_at => '-infinity');
                SELECT gapless.emit('b', NULL, 'upsert');";
    client.batch_execute(rows).await.expect("rows");
    let relay = world.relay(world.server.database());
    eventually("the last row arrives", async || world.messages("db.b").len() == 1).await;
    let a = world.messages("db.a");
    assert_eq!(a.len(), 2);
    assert_eq!(a[0].key.as_deref(), Some(&b"k1"[..]));
    assert_eq!(a[0].body.as_deref(), Some(&b"{\"n\": 1}"[..]));
    assert_eq!(header(&a[0], "outbox-kind"), "order");
    assert_eq!((a[1].body.as_ref(), header(&a[1], "outbox-op")), (None, "delete".to_owned()));
    let dead = world.messages("db.outbox.dead");
    let ids: Vec<String> = dead.iter().map(|each| header(each, "outbox-event-id")).collect();
    assert_eq!(ids, ["e2", "e3"]);
    assert!(header(&dead[0], "outbox-error").contains("not a name"));
    assert!(
        header(&dead[1], "outbox-error").contains("too large")
            || header(&dead[1], "outbox-error").contains("bytes")
    );
    // No time that PostgreSQL knows stops the flow.
    let c = world.messages("db.c");
    let created: Vec<String> = c.iter().map(|each| header(each, "outbox-created-ms")).collect();
    assert!(created[0].len() > 15 && created[1] == "0", "{created:?}");
    assert!(!relay.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_a_topic_that_does_not_exist_is_told_and_nothing_is_passed_over() {
    let world = World::start(&[]).await;
    let client = world.server.client().await;
    client.batch_execute("SELECT gapless.emit('missing', 'k', 'upsert')").await.expect("a row");
    let options = RelayOptions::new("relay", "").expect("a good prefix");
    let start = || {
        let target = Target::Broker(world.broker.clone());
        Relay::new(world.server.database(), target, options.clone()).run(std::future::pending())
    };
    let ended = tokio::time::timeout(DEADLINE, Box::pin(start())).await.expect("it ends");
    let told = ended.expect_err("there is no topic").to_string();
    assert!(told.contains("gapless topic create missing"), "{told}");
    world.broker.create_topic(&name("missing"), TopicSettings::default()).expect("created");
    let _relay = tokio::spawn(start());
    eventually("the row arrives", async || world.messages("missing").len() == 1).await;
}

/// Small batches, so that several are on their way when the broker refuses one: for a topic that
/// is not there yet, or for a row that is too large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_a_refused_append_among_several_loses_and_doubles_nothing() {
    let world = World::start(&[]).await;
    let client = world.server.client().await;
    let rows = "SELECT gapless.emit_bytes(
                    CASE WHEN i % 37 = 0 THEN 'not a name' ELSE 't' || i / 50 END, i::text, 'upsert',
                    payload => CASE WHEN i % 61 = 0 THEN decode(repeat('00', 5000000), 'hex') END)
                FROM generate_series(1, 300) i";
    client.batch_execute(rows).await.expect("rows");
    client.batch_execute("ANALYZE gapless.outbox").await.expect("analysed");
    let mut options = RelayOptions::new("relay", "").expect("a good prefix");
    options.create_topics = true;
    options.limits.rows_max = 7;
    let relay = || {
        let target = Target::Broker(world.broker.clone());
        let relay = Relay::new(world.server.database(), target, options.clone());
        tokio::spawn(relay.run(std::future::pending()))
    };
    // A second one, and a first that is given up on the way.
    let first = relay();
    eventually("some arrive", async || !world.messages("t2").is_empty()).await;
    first.abort();
    let _second = relay();
    eventually("the last row arrives", async || {
        world.messages("t6").iter().any(|message| header(message, "outbox-seq") == "300")
    })
    .await;
    let is_dead = |seq: &u64| seq.is_multiple_of(37) || seq.is_multiple_of(61);
    let seqs = |topic: &str| -> Vec<u64> {
        let seq = |message| header(message, "outbox-seq").parse().expect("a number");
        world.messages(topic).iter().map(seq).collect()
    };
    for topic in 0..=6_u64 {
        let all = (topic * 50).max(1)..(topic * 50 + 50).min(301);
        let expected: Vec<u64> = all.filter(|seq| !is_dead(seq)).collect();
        assert_eq!(seqs(&format!("t{topic}")), expected);
    }
    assert_eq!(seqs("outbox.dead"), (1..=300).filter(is_dead).collect::<Vec<_>>());
}

/// On a standby there are no leases: the condition on the cell alone keeps the relays apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_b10_from_a_standby_two_relays_append_every_row_once_and_a_consumer_gets_all() {
    let world = World::start(&["wal_level=replica", "max_wal_senders=4"]).await;
    let mut standby = Postgres::new(&["hot_standby=on"]);
    let copied = standby
        .tool("pg_basebackup")
        .args(["-h"])
        .arg(world.server.folder.path())
        .args(["-U", "postgres", "-R", "--checkpoint=fast", "--no-sync", "-D"])
        .arg(&standby.data)
        .output()
        .expect("pg_basebackup starts");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    standby.run().await;
    let client = world.server.client().await;
    prepare(&client).await;
    let relays = [world.relay(standby.database()), world.relay(standby.database())];
    // A consumer beside them, with its offset on the primary.
    let read_from = Some(standby.database());
    let consuming = ConsumerOptions { read_from, ..ConsumerOptions::default() };
    let mut consumer =
        Consumer::open(world.server.database(), "c", consuming).expect("a good name");
    let (send, mut consumed) = mpsc::unbounded_channel();
    let consumer = tokio::spawn(async move {
        loop {
            let batch = consumer.next().await.expect("nothing is skipped");
            batch.rows.iter().for_each(|row| send.send(row.seq).expect("the test is there"));
            consumer.done(&batch).await.expect("moved");
        }
    });
    let writers = Writers::start(&world.server.dsn(), 12, 3);
    meanwhile(Duration::from_secs(6)).await;
    writers.stop().await;
    finish_prepared(&client).await;
    let all = all_seqs(&client).await;
    eventually("every row arrives", async || {
        let found = world.broker.describe_topic(&name("db.things"));
        found.is_ok_and(|info| info.next.0 > all.len() as u64)
    })
    .await;
    assert_eq!(rows_of(&world.messages("db.things")), all);
    let mut found = Vec::new();
    while found.len() < all.len() {
        let seq = tokio::time::timeout(DEADLINE, consumed.recv()).await.expect("in time");
        found.push(seq.expect("the consumer runs"));
    }
    assert_eq!(found, all);
    assert!(!consumer.is_finished());
    assert!(relays.iter().all(|relay| !relay.is_finished()));
    println!("{} rows", all.len());
}
