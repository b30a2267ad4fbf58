//! `kill -9` of gapless and of PostgreSQL at random while rows flow into a topic: every
//! committed row is there once, in the order of its key.

#[path = "../../outbox/tests/support/mod.rs"]
mod support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gapless_client::{Client, ConnectOptions};
use gapless_core::{Seq, TopicName};
use support::writers::{Dice, KeyOrder, Writers, all_seqs, finish_prepared, prepare};
use support::{DEADLINE, Postgres, eventually, meanwhile};

/// How often each of the two is killed.
const KILLS: u64 = 3;

/// Starts a server whose outbox is that database.
fn serve(data: &std::path::Path, dsn: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_gapless"))
        .args(["serve", "--listen", "", "--http", "", "--log", "warn", "--data"])
        .arg(data)
        .args(["--set", &format!("outbox.dsn={dsn}"), "--set", "outbox.create_topics=true"])
        .stdout(Stdio::null())
        .spawn()
        .expect("gapless starts")
}

async fn client(data: &std::path::Path) -> Client {
    let address = format!("unix:{}", data.join("gapless.sock").display());
    let connected = Client::connect(ConnectOptions::new([address]));
    tokio::time::timeout(DEADLINE, connected).await.expect("it answers").expect("a client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_rows_are_in_the_topic_exactly_once_whatever_is_killed() {
    let mut server = Postgres::start().await;
    let database = server.database();
    gapless_outbox::install(&database, &Default::default()).await.expect("installed");
    prepare(&server.client().await).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut gapless = serve(folder.path(), &server.dsn());
    let writers = Writers::start(&server.dsn(), 10, 7);
    let mut dice = Dice(7);
    for _ in 0..KILLS {
        meanwhile(Duration::from_millis(500 + dice.below(1_000))).await;
        gapless.kill().expect("it runs");
        gapless.wait().expect("it is our child");
        gapless = serve(folder.path(), &server.dsn());
        meanwhile(Duration::from_millis(500 + dice.below(1_000))).await;
        server.kill();
        server.run().await;
        // What a crash left prepared holds locks that all writers want.
        finish_prepared(&server.client().await).await;
    }
    meanwhile(Duration::from_secs(1)).await;
    writers.stop().await;
    let sql = server.client().await;
    finish_prepared(&sql).await;
    let all = all_seqs(&sql).await;
    assert!(all.len() > 100, "only {} rows were written", all.len());
    let client = client(folder.path()).await;
    let topic = TopicName::parse("things").expect("a name");
    eventually("every row arrives", async || {
        client.describe_topic(&topic).await.is_ok_and(|info| info.next.0 > all.len() as u64)
    })
    .await;
    let (mut rows, mut order) = (Vec::new(), KeyOrder::default());
    for seq in 1..=all.len() as u64 {
        let delivered = client.read(&topic, Seq(seq)).await.expect("an answer").expect("a message");
        let message = &delivered.message;
        let key = std::str::from_utf8(message.key.as_ref().expect("a key")).expect("a text");
        order.saw(key, message.body.as_ref().expect("a body"));
        let seq = message.headers.iter().find(|(name, _)| name == "outbox-seq").expect("a seq");
        rows.push(std::str::from_utf8(&seq.1).expect("a text").parse::<u64>().expect("a number"));
    }
    let next = client.describe_topic(&topic).await.expect("an answer").next;
    assert_eq!(next.0 - 1, all.len() as u64, "no row is there twice");
    assert_eq!(rows, all, "each row once, in the order of seq");
    println!("{} rows, {KILLS} kills of each", all.len());
    gapless.kill().expect("it runs");
    gapless.wait().expect("it is our child");
}
