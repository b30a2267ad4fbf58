//! A crash that takes numbers back, and a standby that is promoted without all rows.

mod support;

use gapless_outbox::{
    Consumer, ConsumerOptions, Database, FenceOptions, OutboxError, PlaceError, run_fence, status,
};
use support::{DEADLINE, Postgres, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

fn fence(database: Database) -> JoinHandle<()> {
    tokio::spawn(async move {
        let never = std::future::pending();
        run_fence(database, FenceOptions::default(), never).await.expect("the fence runs");
    })
}

async fn number(server: &Postgres, sql: &str) -> i64 {
    server.client().await.query_one(sql, &[]).await.expect("a number").get(0)
}

/// Shows what the argument about lives rests on: after a crash numbers that were drawn, and read
/// by others, are drawn again; the life, an unlogged row, is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_a_crash_takes_drawn_numbers_back_and_ends_the_life() {
    // Nothing but commits flushes the log here.
    let settings = ["wal_writer_delay=10000", "wal_writer_flush_after=0", "checkpoint_timeout=1h"];
    let mut server = Postgres::start_with(&settings).await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let drawn = "SELECT last_value FROM gapless.outbox_seq_seq";
    let mut took_back = 0;
    for _ in 0..5 {
        let client = server.client().await;
        let sql = "SELECT gapless.emit('t', i::text, 'upsert') FROM generate_series(1, 100) i";
        client.batch_execute(&format!("BEGIN; {sql}")).await.expect("an open transaction");
        let before = number(&server, drawn).await;
        server.kill();
        server.run().await;
        took_back += i32::from(number(&server, drawn).await < before);
        assert_eq!(number(&server, "SELECT count(*) FROM gapless.life").await, 0, "a new life");
        let begin = "INSERT INTO gapless.life DEFAULT VALUES";
        server.client().await.batch_execute(begin).await.expect("a life");
    }
    println!("the sequence went back after {took_back} of 5 crashes");
    assert!(took_back > 0, "the sequence never went back, so this shows nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_promoted_without_all_rows_tells_those_who_saw_more() {
    let mut primary = Postgres::start_with(&["wal_level=replica", "max_wal_senders=4"]).await;
    gapless_outbox::install(&primary.database(), &Default::default()).await.expect("installed");
    let running = fence(primary.database());
    let row = "SELECT gapless.emit('t', 'k', 'upsert')";
    let emit = async |server: &Postgres, count: u64| {
        let client = server.client().await;
        for _ in 0..count {
            client.batch_execute(row).await.expect("a row");
        }
    };
    emit(&primary, 3).await;
    let settled = async |server: &Postgres, seq: u64| {
        eventually("it is settled", async || {
            status(&server.database()).await.is_ok_and(|state| state.safe >= seq)
        })
        .await;
    };
    settled(&primary, 3).await;
    let mut standby = Postgres::new(&["hot_standby=on"]);
    let mut copy = standby.tool("pg_basebackup");
    copy.arg("-h").arg(primary.folder.path()).args(["-U", "postgres", "-R", "--no-sync"]);
    let copied = copy.arg("--checkpoint=fast").arg("-D").arg(&standby.data).output();
    let copied = copied.expect("pg_basebackup starts");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    standby.run().await;
    settled(&standby, 3).await;
    // From here on the standby follows no more, and the primary goes on.
    standby.stop();
    emit(&primary, 4).await;
    settled(&primary, 7).await;
    let seen = async |server: &Postgres, name: &str| {
        let options = ConsumerOptions::default();
        let consumer = Consumer::open(server.database(), name, options);
        let mut consumer = consumer.expect("a good name");
        let batch = timeout(DEADLINE, consumer.next()).await.expect("in time")?;
        consumer.done(&batch).await?;
        consumer.close().await;
        Ok::<_, OutboxError>(batch)
    };
    let batch = seen(&primary, "outside").await.expect("rows");
    assert_eq!(batch.through, 7);
    running.abort();
    primary.kill();
    std::fs::remove_file(standby.data.join("standby.signal")).expect("it was a standby");
    standby.write("recovery.signal", "", false);
    standby.settings.push("restore_command=false".to_owned());
    standby.settings.push("recovery_target_timeline=latest".to_owned());
    standby.run().await;
    eventually("it is promoted", async || {
        number(&standby, "SELECT pg_is_in_recovery()::int::bigint").await == 0
    })
    .await;
    let _fence = fence(standby.database());
    eventually("a new epoch begins", async || {
        number(&standby, "SELECT count(*) FROM gapless.epochs").await == 2
    })
    .await;
    // A place that was kept elsewhere, as a broker keeps it, and one that had come no further.
    let epoch = format!("{:032x}", batch.epoch.0);
    let sql = format!(
        "INSERT INTO gapless.consumer_offsets (consumer, last_seq, epoch)
         VALUES ('outside', 7, '{epoch}'), ('slow', 3, '{epoch}')"
    );
    standby.client().await.batch_execute(&sql).await.expect("offsets");
    emit(&standby, 1).await;
    let told = seen(&standby, "outside").await.expect_err("it saw rows that are gone");
    let expected = PlaceError::Rewound { seq: 7, kept: 3 };
    assert!(matches!(told, OutboxError::Place(error) if error == expected), "{told}");
    let batch = seen(&standby, "slow").await.expect("rows");
    assert!(batch.rows[0].seq > 1_000_000, "numbers of the lost server are not given again");
}

/// A plain `SELECT` from the sequence reads it without its lock and can see numbers that are not
/// drawn yet, for an instant; a bound made of them would pass over rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b9_the_last_number_drawn_never_goes_back_while_writers_draw() {
    let server = Postgres::start().await;
    gapless_outbox::install(&server.database(), &Default::default()).await.expect("installed");
    let looking = server.client().await;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let client = server.client().await;
        writers.spawn(async move {
            let draw = "SELECT count(nextval('gapless.outbox_seq_seq'))
                        FROM generate_series(1, 2000000)";
            client.batch_execute(draw).await.expect("numbers");
        });
    }
    // Within the server, so that there are many looks: the instant is short.
    let look = "CREATE FUNCTION went_back(looks int) RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE known bigint := 0; now bigint; back bigint := 0;
        BEGIN
            FOR i IN 1..looks LOOP
                now := gapless.drawn();
                back := greatest(back, known - now);
                known := now;
            END LOOP;
            RETURN back;
        END $$";
    looking.batch_execute(look).await.expect("a function");
    let drawn = "SELECT gapless.drawn()";
    let mut rounds = 0;
    while writers.try_join_next().is_none() {
        let row = looking.query_one("SELECT went_back(20000)", &[]).await.expect("looks");
        assert_eq!(row.get::<_, i64>(0), 0, "the last number drawn went back");
        rounds += 1;
    }
    let known: i64 = looking.query_one(drawn, &[]).await.expect("a look").get(0);
    assert!(rounds > 0 && known > 0, "{rounds} rounds, {known} numbers");
}
