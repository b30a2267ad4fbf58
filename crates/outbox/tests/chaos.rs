//! Many writers of every kind, and consumers that must see every committed row once, in the
//! order of its key. A reader that follows `seq > last` naively runs beside them and loses
//! rows: so it is shown that these are the conditions under which rows get lost.

mod support;

use std::sync::Arc;
use std::time::Duration;

use gapless_outbox::{Consumer, ConsumerOptions, Database, FenceOptions, Payload, run_fence};
use support::writers::{KeyOrder, Writers, all_seqs, finish_prepared, prepare};
use support::{DEADLINE, Postgres, meanwhile};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

/// Rows as a consumer got them.
type Seen = Arc<Mutex<Vec<u64>>>;

/// Runs the fence until the handle is aborted.
fn fence(database: Database) -> JoinHandle<()> {
    tokio::spawn(async move {
        let never = std::future::pending();
        run_fence(database, FenceOptions::default(), never).await.expect("the fence runs");
    })
}

/// Runs a consumer that notes what it sees, until the handle is aborted.
fn consumer(
    database: Database,
    name: &'static str,
    options: ConsumerOptions,
) -> (Seen, JoinHandle<()>) {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let task = tokio::spawn(async move {
        let mut consumer = Consumer::open(database, name, options).expect("a good name");
        let mut order = KeyOrder::default();
        loop {
            let batch = consumer.next().await.expect("nothing is skipped");
            for row in &batch.rows {
                let Payload::Bytes(payload) = &row.payload else { panic!("a payload") };
                order.saw(row.key.as_deref().expect("a key"), payload);
                noted.lock().await.push(row.seq);
            }
            // After trouble of unknown outcome the same rows would come again; the offset tells
            // which, so what is noted is cut back to it.
            if let Err(error) = consumer.done(&batch).await {
                assert!(error.passes(), "{error}");
                panic!("this test has no trouble");
            }
        }
    });
    (seen, task)
}

/// What a reader sees that follows the largest seq it saw.
fn naive(dsn: String) -> (watch::Sender<bool>, JoinHandle<Vec<u64>>) {
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(async move {
        let client = support::connect(&dsn).await.expect("PostgreSQL answers");
        let (mut last, mut seen) = (0_i64, Vec::new());
        let sql = "SELECT seq FROM gapless.outbox WHERE seq > $1 ORDER BY seq LIMIT 1000";
        let mut ended = false;
        loop {
            let rows = client.query(sql, &[&last]).await.expect("a table");
            for row in &rows {
                last = row.get(0);
                seen.push(last.cast_unsigned());
            }
            if rows.is_empty() && std::mem::replace(&mut ended, *stopped.borrow()) {
                return seen;
            }
        }
    });
    (stop, task)
}

async fn all_of(seen: &Seen, expected: &[u64]) {
    support::eventually("every committed row arrives", async || {
        seen.lock().await.len() >= expected.len()
    })
    .await;
    assert_eq!(*seen.lock().await, expected, "every row once, in the order of seq");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_every_committed_row_arrives_in_order_while_a_naive_reader_loses_rows() {
    let server = Postgres::start().await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let client = server.client().await;
    prepare(&client).await;
    let fence = fence(server.database());
    let (seen, task) = consumer(server.database(), "careful", ConsumerOptions::default());
    let (stop, naive) = naive(server.dsn());
    let writers = Writers::start(&server.dsn(), 16, 1);
    meanwhile(Duration::from_secs(8)).await;
    writers.stop().await;
    finish_prepared(&client).await;
    stop.send_replace(true);
    let naive = tokio::time::timeout(DEADLINE, naive).await.expect("it ends").expect("it works");
    let all = all_seqs(&client).await;
    all_of(&seen, &all).await;
    let lost = all.len() - naive.len();
    println!("{} rows; the naive reader lost {lost}", all.len());
    assert!(all.len() > 200, "only {} rows were written", all.len());
    assert!(lost > 0, "the naive reader lost nothing, so this shows nothing");
    assert!(!task.is_finished() && !fence.is_finished());
}
