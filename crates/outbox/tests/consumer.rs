//! Consumers: offsets, take-over, replay, retention, epochs.

mod support;

use std::time::Duration;

use gapless_outbox::{
    Batch, BatchLimits, Consumer, ConsumerOptions, Database, Event, FenceOptions, From,
    InstallOptions, Op, OutboxError, PlaceError, VERSION, emit, processed_once, reset, run_fence,
    status,
};
use support::{DEADLINE, Postgres, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

async fn world(options: &InstallOptions) -> (Postgres, JoinHandle<()>) {
    let server = Postgres::start().await;
    gapless_outbox::install(&server.database(), options).await.expect("installed");
    let fence = fence(server.database());
    (server, fence)
}

fn fence(database: Database) -> JoinHandle<()> {
    tokio::spawn(async move {
        let never = std::future::pending();
        run_fence(database, FenceOptions::default(), never).await.expect("the fence runs");
    })
}

fn open(server: &Postgres, name: &str, from: From) -> Consumer {
    let options = ConsumerOptions { from, ..ConsumerOptions::default() };
    Consumer::open(server.database(), name, options).expect("a good name")
}

async fn next(consumer: &mut Consumer) -> Result<Batch, OutboxError> {
    timeout(DEADLINE, consumer.next()).await.expect("in time")
}

async fn rows(server: &Postgres, count: u32) {
    let sql = format!(
        "SELECT gapless.emit('t', i::text, 'upsert', 'e' || i) FROM generate_series(1, {count}) i"
    );
    server.client().await.batch_execute(&sql).await.expect("rows");
}

async fn settled(server: &Postgres, seq: u64) {
    eventually("the rows are settled", async || {
        status(&server.database()).await.is_ok_and(|state| state.safe >= seq)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_the_offset_moves_after_the_work_or_in_its_transaction() {
    let (server, _fence) = world(&Default::default()).await;
    rows(&server, 3).await;
    settled(&server, 3).await;
    let mut consumer = open(&server, "c", From::Beginning);
    let batch = next(&mut consumer).await.expect("rows");
    assert_eq!(batch.rows.len(), 3);
    assert_eq!(next(&mut consumer).await.expect("the same"), batch, "nothing was done yet");
    consumer.done(&batch).await.expect("moved");

    // The work is rolled back, and the offset with it; then it is committed.
    let mut client = server.client().await;
    client.batch_execute("CREATE TABLE done (id text)").await.expect("a table");
    rows(&server, 1).await;
    for commits in [false, true] {
        let batch = next(&mut consumer).await.expect("rows");
        assert_eq!(batch.rows.len(), 1, "the row of before");
        let transaction = client.transaction().await.expect("a transaction");
        transaction.batch_execute("INSERT INTO done VALUES ('x')").await.expect("a row");
        consumer.done_in(&transaction, &batch).await.expect("moved");
        if commits {
            transaction.commit().await.expect("committed");
        } else {
            transaction.rollback().await.expect("rolled back");
        }
    }
    let row = client.query_one("SELECT count(*) FROM done", &[]).await.expect("a number");
    assert_eq!(row.get::<_, i64>(0), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b4_an_event_that_comes_again_is_counted_once() {
    let (server, _fence) = world(&Default::default()).await;
    let mut client = server.client().await;
    let schema = "gapless".parse().expect("a name");
    let event = Event { topic: "t", op: Op::Delete, event_id: Some("e"), ..Event::default() };
    let mut first = 0;
    for _ in 0..2 {
        let transaction = client.transaction().await.expect("a transaction");
        let new = processed_once(&transaction, &schema, "counter", "e").await.expect("an answer");
        first += u32::from(new);
        emit(&transaction, &schema, &event).await.expect("a row from Rust");
        transaction.commit().await.expect("committed");
    }
    assert_eq!(first, 1);
    let sql = "SELECT count(*) FROM gapless.outbox WHERE op = 'delete' AND event_id = 'e'";
    assert_eq!(client.query_one(sql, &[]).await.expect("a number").get::<_, i64>(0), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_b8_a_second_instance_waits_takes_over_and_follows_a_replay() {
    let (server, _fence) = world(&Default::default()).await;
    rows(&server, 5).await;
    settled(&server, 5).await;
    let mut first = open(&server, "c", From::Beginning);
    let batch = next(&mut first).await.expect("rows");
    first.done(&batch).await.expect("moved");
    let mut second = open(&server, "c", From::Beginning);
    rows(&server, 1).await;
    let short = Duration::from_secs(2);
    assert!(timeout(short, second.next()).await.is_err(), "the first one works");
    first.close().await;
    let batch = next(&mut second).await.expect("rows");
    assert_eq!(batch.rows.len(), 1, "it goes on where the first was");
    assert_eq!(reset(&server.database(), "c", From::After(2)).await.expect("reset"), 2);
    let late = second.done(&batch).await;
    assert!(matches!(late, Err(OutboxError::Taken { .. })), "{late:?}");
    let again = next(&mut second).await.expect("rows");
    assert_eq!(again.rows.first().map(|row| row.seq), Some(3), "the replay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_old_partitions_go_and_a_consumer_behind_them_is_told() {
    let options = InstallOptions {
        partition_rows: 10,
        retention: Duration::from_secs(1),
        ..InstallOptions::default()
    };
    let (server, fence) = world(&options).await;
    rows(&server, 35).await;
    let client = server.client().await;
    settled(&server, 35).await;
    fence.abort();
    client.batch_execute("SELECT pg_sleep(1.1)").await.expect("time passes");
    let keep = "SELECT gapless.make_partitions(); SELECT gapless.remove_old()";
    for _ in 0..20 {
        client.batch_execute(keep).await.expect("kept");
    }
    let left = client.query_one("SELECT min(seq), max(seq) FROM gapless.outbox", &[]).await;
    let left = left.expect("numbers");
    let (least, most): (Option<i64>, Option<i64>) = (left.get(0), left.get(1));
    let state = status(&server.database()).await.expect("a state");
    assert!(state.floor >= 29, "{state:?}");
    assert!(least.is_none_or(|least| least.cast_unsigned() > state.floor), "{least:?} {most:?}");
    let mut late = open(&server, "late", From::Beginning);
    let told = next(&mut late).await.expect_err("rows are gone");
    let expected = PlaceError::BehindRetention { seq: 0, floor: state.floor };
    assert!(matches!(told, OutboxError::Place(error) if error == expected), "{told}");
    assert!(told.to_string().contains("rebuild"), "{told}");
    let shown = status(&server.database()).await.expect("a state");
    assert!(shown.consumers.iter().any(|consumer| consumer.behind_retention));
    // Writers go on, wherever their numbers fall.
    rows(&server, 200).await;
    let count = client.query_one("SELECT count(*) FROM gapless.outbox", &[]).await.expect("rows");
    assert!(count.get::<_, i64>(0) >= 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b6_the_culprit_and_the_lag_are_named() {
    let (server, _fence) = world(&Default::default()).await;
    rows(&server, 4).await;
    settled(&server, 4).await;
    let mut consumer = open(&server, "slow", From::Beginning);
    next(&mut consumer).await.expect("rows");
    let open = server.client().await;
    let sql = "SET application_name = 'billing'; BEGIN; SELECT gapless.emit('t', 'k', 'upsert')";
    open.batch_execute(sql).await.expect("an open transaction");
    rows(&server, 2).await;
    let mut state = status(&server.database()).await.expect("a state");
    eventually("the culprit is named", async || {
        state = status(&server.database()).await.expect("a state");
        state.culprit.is_some()
    })
    .await;
    let culprit = state.culprit.expect("it was just there").to_string();
    assert!(culprit.contains("billing") && culprit.contains("idle in transaction"), "{culprit}");
    assert_eq!((state.safe, state.drawn), (4, 7));
    assert_eq!(state.consumers[0].backlog, 4);
    assert!(state.fence_owner.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_and_a_new_epoch_are_told_to_those_who_were_further() {
    let (server, fence) = world(&Default::default()).await;
    rows(&server, 5).await;
    settled(&server, 5).await;
    let mut ahead = open(&server, "ahead", From::Beginning);
    let batch = next(&mut ahead).await.expect("rows");
    ahead.done(&batch).await.expect("moved");
    ahead.close().await;
    fence.abort();
    // As after a restore: the database says less than the consumer has done.
    let client = server.client().await;
    let sql = "UPDATE gapless.fence SET safe_seq = 3; SELECT gapless.begin_epoch('restored')";
    client.batch_execute(sql).await.expect("a new epoch");
    let mut again = open(&server, "ahead", From::Beginning);
    let told = next(&mut again).await.expect_err("rows are gone");
    let expected = PlaceError::Rewound { seq: 5, kept: 3 };
    assert!(matches!(told, OutboxError::Place(error) if error == expected), "{told}");
    // A sequence that went back is refused by the fence.
    client.batch_execute("SELECT setval('gapless.outbox_seq_seq', 1)").await.expect("set back");
    let never = std::future::pending();
    let refused = run_fence(server.database(), FenceOptions::default(), never);
    let refused = timeout(DEADLINE, refused).await.expect("in time").expect_err("it went back");
    assert!(refused.to_string().contains("went back"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_changes_of_an_attached_table_are_rows_and_it_can_all_be_removed() {
    let (server, _fence) = world(&Default::default()).await;
    let client = server.client().await;
    let sql = "CREATE TABLE orders (id bigint PRIMARY KEY, item text);
               SELECT gapless.attach('orders', 'shop.orders', 'id', 'order');
               INSERT INTO orders VALUES (1, 'tea'), (2, 'milk');
               UPDATE orders SET id = 3 WHERE id = 2; DELETE FROM orders WHERE id = 1;";
    client.batch_execute(sql).await.expect("changes");
    let sql = "BEGIN; INSERT INTO orders VALUES (9, 'no'); ROLLBACK;";
    client.batch_execute(sql).await.expect("rolled back");
    let sql = "SELECT op, effective_key, kind FROM gapless.outbox ORDER BY seq";
    let found = client.query(sql, &[]).await.expect("rows");
    let found: Vec<(String, String)> = found.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected =
        [("upsert", "1"), ("upsert", "2"), ("delete", "2"), ("upsert", "3"), ("delete", "1")];
    let expected: Vec<_> = expected.map(|(op, key)| (op.to_owned(), key.to_owned())).into();
    assert_eq!(found, expected);
    let database = server.database();
    let told = gapless_outbox::uninstall(&database).await.expect_err("a table emits");
    assert!(told.to_string().contains("detach"), "{told}");
    client.batch_execute("SELECT gapless.detach('orders')").await.expect("detached");
    let twice = gapless_outbox::install(&database, &Default::default()).await;
    assert!(matches!(twice, Err(OutboxError::Installed { version: VERSION, .. })));
    assert_eq!(gapless_outbox::upgrade(&database).await.expect("nothing to do"), VERSION);
    gapless_outbox::uninstall(&database).await.expect("removed");
    let gone = status(&database).await;
    assert!(matches!(gone, Err(OutboxError::NotInstalled { .. })), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_schema_and_tables_have_the_names_they_were_given() {
    let server = Postgres::start().await;
    let database = server.database().in_schema("shop_events".parse().expect("a name"));
    let options = InstallOptions {
        outbox: "events".parse().expect("a name"),
        offsets: "places".parse().expect("a name"),
        ..InstallOptions::default()
    };
    gapless_outbox::install(&database, &options).await.expect("installed");
    let _fence = fence(database.clone());
    let client = server.client().await;
    let sql = "CREATE TABLE orders (id bigint PRIMARY KEY);
               SELECT shop_events.attach('orders', 'shop.orders', 'id');
               INSERT INTO orders VALUES (7); SELECT shop_events.emit('t', 'k', 'upsert');";
    client.batch_execute(sql).await.expect("rows");
    let consumer = Consumer::open(database.clone(), "c", ConsumerOptions::default());
    let mut consumer = consumer.expect("a good name");
    let mut keys = Vec::new();
    while keys.len() < 2 {
        let batch = next(&mut consumer).await.expect("rows");
        keys.extend(batch.rows.iter().filter_map(|row| row.key.clone()));
        consumer.done(&batch).await.expect("moved");
    }
    assert_eq!(keys, ["k", "7"], "the trigger writes its row at commit");
    let count = "SELECT (SELECT count(*) FROM shop_events.events),
                        (SELECT last_seq FROM shop_events.places WHERE consumer = 'c')";
    let row = client.query_one(count, &[]).await.expect("numbers");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_every_size_are_all_read_though_few_fit_a_batch() {
    let (server, _fence) = world(&Default::default()).await;
    let client = server.client().await;
    // Small ones, a run of large ones; numbers without rows; small ones.
    let large = "SELECT gapless.emit_bytes('t', i::text, 'upsert', NULL,
                     decode(repeat('ab', CASE WHEN i BETWEEN 31 AND 60 THEN 4000 ELSE 10 END), 'hex'))
                 FROM generate_series(1, 100) i";
    let none =
        "BEGIN; SELECT gapless.emit('t', 'no', 'upsert') FROM generate_series(1, 7); ROLLBACK";
    let small = "SELECT gapless.emit('t', i::text, 'upsert') FROM generate_series(101, 130) i";
    for sql in [large, none, small] {
        client.batch_execute(sql).await.expect("rows");
    }
    settled(&server, 137).await;
    let limits = BatchLimits { rows_max: 20, bytes_max: 10_000, payload_bytes_max: 1 << 20 };
    let options = ConsumerOptions { limits, ..ConsumerOptions::default() };
    let mut consumer = Consumer::open(server.database(), "c", options).expect("a good name");
    let mut keys = Vec::new();
    while keys.len() < 130 {
        let batch = next(&mut consumer).await.expect("rows");
        assert!(batch.rows.len() <= 20, "{} rows", batch.rows.len());
        keys.extend(batch.rows.iter().map(|row| row.key.clone().expect("a key")));
        consumer.done(&batch).await.expect("moved");
    }
    let expected: Vec<String> = (1..=130).map(|key: u32| key.to_string()).collect();
    assert_eq!(keys, expected);
}

/// PostgreSQL that last looked at the table when it was small reads and sorts all that is left,
/// for each batch, if it is asked for the first of all that is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_is_read_once_also_without_fresh_statistics() {
    const ROWS: i64 = 30_000;
    let server = Postgres::start_with(&["autovacuum=off"]).await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let client = server.client().await;
    let sql = format!(
        "INSERT INTO gapless.outbox (op, event_id, topic_id)
             SELECT 'upsert', i::text, 't' FROM generate_series(1, 1000) i;
         ANALYZE gapless.outbox;
         INSERT INTO gapless.outbox (op, event_id, topic_id)
             SELECT 'upsert', i::text, 't' FROM generate_series(1001, {ROWS}) i;
         UPDATE gapless.fence SET safe_seq = {ROWS};"
    );
    client.batch_execute(&sql).await.expect("rows");
    let mut consumer = open(&server, "c", From::Beginning);
    let mut seen = 0;
    while seen < ROWS.cast_unsigned() {
        let batch = next(&mut consumer).await.expect("rows");
        seen += batch.rows.len() as u64;
        consumer.done(&batch).await.expect("moved");
    }
    consumer.close().await;
    // What a connection read is counted when it ends.
    let read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
                FROM pg_stat_user_tables
                WHERE relid IN (SELECT relid FROM pg_partition_tree('gapless.outbox'))";
    let mut count = 0;
    eventually("it is counted", async || {
        count = client.query_one(read, &[]).await.expect("a count").get::<_, i64>(0);
        count >= ROWS
    })
    .await;
    assert!(count < 4 * ROWS, "{count} rows were read for {ROWS}");
}
