//! The outbox, beside what PostgreSQL can do at best: rows per second into topics beside a plain
//! `SELECT` in batches and beside `COPY`; how late a row is in its topic; what it costs writers.
//!
//! All of it is in one run on one database, which is given. Its outbox must not be there yet; it
//! is removed at the end.

mod writers;

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::{Atomic, Broker, Delivery, From};
use gapless_core::{Pattern, PublishOptions, TopicName, TopicSettings};
use gapless_outbox::tokio_postgres::{self, Client, NoTls};
use gapless_outbox::{Database, FenceOptions, run_fence, status};
use gapless_relay::{Relay, RelayOptions, Target};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

use super::store::{Folder, Result, open};

/// Rows that a plain reader takes at a time: as many as the relay.
const BATCH: i64 = 2_000;
/// Commits per second for the measurement of latency.
const COMMITS_PER_SECOND: u64 = 1_000;
/// Writers for the measurement of latency.
const WRITERS: u64 = 8;
/// How often rows are moved, in turn with what they are compared with: the machine is not the same
/// all the time.
const ROUNDS: usize = 3;
/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(300);

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The database.
    pub(crate) dsn: String,
    /// Rows that flow into topics.
    pub(crate) rows: u64,
    /// Seconds for each of the other cases.
    pub(crate) seconds: f64,
    /// Which cases; all if there are none.
    pub(crate) only: Vec<Case>,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Case {
    /// What it costs writers.
    Writers,
    /// Rows per second into topics.
    Rows,
    /// From commit to delivery.
    Latency,
}

/// Every case, as a table.
///
/// # Errors
/// When the database or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let database = Database::parse(&options.dsn)?;
        gapless_outbox::install(&database, &Default::default()).await?;
        let client = connect(&options.dsn).await?;
        client.batch_execute(DATA).await?;
        let measured = measure(dir, options, &database, &client).await;
        client.batch_execute("DROP TABLE bench_data, bench_triggered, bench_second").await?;
        gapless_outbox::uninstall(&database).await?;
        measured
    })
}

/// Tables that writers write to, one of them with the trigger.
const DATA: &str = "DROP TABLE IF EXISTS bench_data, bench_triggered, bench_second;
    CREATE TABLE bench_data (id bigserial PRIMARY KEY, body text);
    CREATE TABLE bench_triggered (id bigserial PRIMARY KEY, body text);
    CREATE TABLE bench_second (LIKE gapless.outbox INCLUDING IDENTITY INCLUDING DEFAULTS
                               INCLUDING INDEXES);
    SELECT gapless.attach('bench_triggered', 'late', 'id');";
/// What writers do with the outbox, in both ways.
const EMITTED: &str = "WITH new AS (INSERT INTO bench_data (body) VALUES ('some text of an order') \
    RETURNING id) SELECT gapless.emit('late', id::text, 'upsert') FROM new";
const TRIGGERED: &str =
    "INSERT INTO bench_triggered (body) VALUES ('some text of an order') RETURNING id";

async fn connect(dsn: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn measure(
    dir: &Path,
    options: &Options,
    database: &Database,
    client: &Client,
) -> Result<Table> {
    let mut table = Table::new("outbox: PostgreSQL into topics");
    let wanted = |case| options.only.is_empty() || options.only.contains(&case);
    for clients in if wanted(Case::Writers) { &[8, 32, 128][..] } else { &[] } {
        writers::cost(options, *clients, &mut table).await?;
    }
    let fence =
        tokio::spawn(run_fence(database.clone(), FenceOptions::default(), std::future::pending()));
    if wanted(Case::Rows) {
        throughput(dir, options, database, client, &mut table).await?;
    }
    let ways = [("emit", EMITTED), ("deferred trigger", TRIGGERED)];
    for (name, statement) in ways.into_iter().filter(|_| wanted(Case::Latency)) {
        latency(dir, options, database, (name, statement), &mut table).await?;
    }
    fence.abort();
    Ok(table)
}

/// All rows that are there, read plainly, copied, and moved into topics.
async fn throughput(
    dir: &Path,
    options: &Options,
    database: &Database,
    client: &Client,
    table: &mut Table,
) -> Result<()> {
    let insert = format!(
        "INSERT INTO gapless.outbox (op, event_id, topic_id, effective_key, payload)
         SELECT 'upsert', gen_random_uuid()::text, 'rows', i::text,
                convert_to(jsonb_build_object('id', i, 'item', 'tea', 'pieces', i % 7)::text, 'UTF8')
         FROM generate_series(1, {}) i",
        options.rows
    );
    client.batch_execute(&insert).await?;
    client.batch_execute("VACUUM ANALYZE gapless.outbox").await?;
    let last = "SELECT max(seq) FROM gapless.outbox";
    let through: i64 = client.query_one(last, &[]).await?.get(0);
    wait(async || status(database).await.is_ok_and(|state| state.safe >= through.cast_unsigned()))
        .await?;
    let mut measured = [Vec::new(), Vec::new(), Vec::new()];
    let mut bytes = 0;
    for round in 0..ROUNDS {
        // Only the rows of this case: one statement drew their numbers, one after the other.
        let after = through - options.rows.cast_signed();
        measured[0].push(selected(client, after).await?);
        let copied = copied(client, after).await?;
        bytes = copied.0;
        measured[1].push(options.rows as f64 / copied.1);
        measured[2].push(moved(dir, options.rows, database, round).await?);
    }
    let [selected, copied, moved] = measured.map(median);
    table.push(Row::new("SELECT … ORDER BY seq, 2,000 at a time", selected));
    table.push(Row::new("COPY … TO STDOUT", copied).beside("bytes", Figure::bytes(bytes as f64)));
    table.push(
        Row::new("rows into topics, each flushed", moved)
            .against(selected)
            .goal(Goal::AtLeast(0.7))
            .notes("beside the plain SELECT of the same rows"),
    );
    Ok(())
}

/// Of several figures the middle one, per second.
fn median(mut figures: Vec<f64>) -> Figure {
    figures.sort_by(f64::total_cmp);
    Figure::per_second(figures[figures.len() / 2])
}

/// Rows per second of a plain reader.
async fn selected(client: &Client, after: i64) -> Result<f64> {
    let (mut last, mut count) = (after, 0_u64);
    let sql = "SELECT seq, op, event_id, topic_id, kind, effective_key, reason, created_at::text, \
               ingested_at::text, payload FROM gapless.outbox WHERE seq > $1 ORDER BY seq LIMIT $2";
    let statement = client.prepare(sql).await?;
    let began = Instant::now();
    loop {
        let rows = client.query(&statement, &[&last, &BATCH]).await?;
        let Some(row) = rows.last() else { break };
        last = row.get(0);
        count += rows.len() as u64;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Bytes and seconds of a copy of all rows.
async fn copied(client: &Client, after: i64) -> Result<(usize, f64)> {
    let began = Instant::now();
    let copy =
        format!("COPY (SELECT * FROM gapless.outbox WHERE seq > {after} ORDER BY seq) TO STDOUT");
    let mut bytes = 0;
    let mut stream = pin!(client.copy_out(&copy).await?);
    while let Some(part) = stream.try_next().await? {
        bytes += part.len();
    }
    Ok((bytes, began.elapsed().as_secs_f64()))
}

/// Rows per second into the topics of a fresh broker.
async fn moved(dir: &Path, rows: u64, database: &Database, round: usize) -> Result<f64> {
    let folder = Folder::fresh(dir, "outbox-rows")?;
    let broker = open(folder.path())?;
    let topic = TopicName::parse("rows")?;
    let relay = relay(database, &broker, &format!("bench-rows-{round}"))?;
    let there = || broker.describe_topic(&topic).map_or(0, |info| info.next.0.saturating_sub(1));
    // From its first batch on: how long it takes to connect is not a rate.
    wait(async || there() > 0).await?;
    let (began, first) = (Instant::now(), there());
    wait(async || there() >= rows).await?;
    // What is acknowledged after them is on disk after them.
    let last = Atomic::new().set_cell("bench".to_owned(), Bytes::from_static(b"last"));
    broker.commit(last, &PublishOptions::default()).all().await?;
    let moved = (rows - first) as f64 / began.elapsed().as_secs_f64();
    relay.abort();
    // Its broker ends with it, before the next one begins.
    let _ = relay.await;
    Ok(moved)
}

fn relay(
    database: &Database,
    broker: &Broker,
    name: &str,
) -> Result<JoinHandle<std::result::Result<(), gapless_relay::RelayError>>> {
    let mut options = RelayOptions::new(name, "")?;
    options.create_topics = true;
    let relay = Relay::new(database.clone(), Target::Broker(broker.clone()), options);
    Ok(tokio::spawn(async move {
        let ended = Box::pin(relay.run(std::future::pending())).await;
        if let Err(error) = &ended {
            eprintln!("the relay ended: {error}");
        }
        ended
    }))
}

async fn wait(mut is_so: impl AsyncFnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let mut often = tokio::time::interval(Duration::from_millis(2));
    while !is_so().await {
        if Instant::now() > deadline {
            return Err("it took too long".into());
        }
        often.tick().await;
    }
    Ok(())
}

/// From when a commit was answered to when the message reaches a follower of its topic.
async fn latency(
    dir: &Path,
    options: &Options,
    database: &Database,
    (name, statement): (&'static str, &'static str),
    table: &mut Table,
) -> Result<()> {
    let folder = Folder::fresh(dir, "outbox-latency")?;
    let broker = open(folder.path())?;
    broker.create_topic(&TopicName::parse("late")?, TopicSettings::default())?;
    let relay = relay(database, &broker, &format!("bench-{}", name.len()))?;
    // The rows of the cases before go first.
    let client = connect(&options.dsn).await?;
    for topic in ["late", "rows"] {
        let count = "SELECT count(*) FROM gapless.outbox WHERE topic_id = $1";
        let before = client.query_one(count, &[&topic]).await?.get::<_, i64>(0).cast_unsigned();
        let topic = TopicName::parse(topic)?;
        wait(async || {
            before == 0 || broker.describe_topic(&topic).is_ok_and(|info| info.next.0 > before)
        })
        .await?;
    }

    let committed: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
    let mut follower = broker.subscribe(&Pattern::parse("late")?, From::Now)?;
    let total = (COMMITS_PER_SECOND as f64 * options.seconds) as u64;
    let mut tasks = JoinSet::new();
    for _ in 0..WRITERS {
        let (client, committed) = (connect(&options.dsn).await?, Arc::clone(&committed));
        tasks.spawn(async move {
            let statement = client.prepare(statement).await?;
            let each = Duration::from_secs(1) * u32::try_from(WRITERS).unwrap_or(1)
                / u32::try_from(COMMITS_PER_SECOND).unwrap_or(1);
            let mut pace = tokio::time::interval(each);
            for _ in 0..total / WRITERS {
                pace.tick().await;
                let rows = client.query(&statement, &[]).await?;
                let now = Instant::now();
                let key = rows.first().map(|row| row.get::<_, i64>(0).to_string());
                let mut committed = committed.lock().unwrap_or_else(PoisonError::into_inner);
                committed.insert(key.unwrap_or_default(), now);
            }
            Ok::<_, tokio_postgres::Error>(())
        });
    }
    let began = Instant::now();
    let (mut arrived, mut seen) = (Vec::new(), 0);
    while seen < total / WRITERS * WRITERS {
        let next = tokio::time::timeout(DEADLINE, follower.next()).await??;
        let Delivery::Messages(messages) = next else { continue };
        let now = Instant::now();
        for each in messages.iter() {
            seen += 1;
            // What `emit` returned is the row's seq; a trigger's row is known by its key.
            let by_seq = each.message.headers.iter().find(|(name, _)| name == "outbox-seq");
            let id = match (statement == EMITTED, by_seq, &each.message.key) {
                (true, Some((_, seq)), _) => seq.clone(),
                (_, _, Some(key)) => key.clone(),
                _ => continue,
            };
            arrived.push((String::from_utf8_lossy(&id).into_owned(), now));
        }
    }
    let rate = seen as f64 / began.elapsed().as_secs_f64();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    relay.abort();
    let committed = committed.lock().unwrap_or_else(PoisonError::into_inner);
    let late =
        |(id, at): &(String, Instant)| Some(at.saturating_duration_since(*committed.get(id)?));
    let mut times: Vec<Duration> = arrived.iter().filter_map(late).collect();
    times.sort();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len().saturating_sub(1))).map_or(0.0, Duration::as_secs_f64) * 1e6
    };
    let row = |percent: &str, share: f64, goal: f64| {
        Row::new(format!("commit to delivery, {name}, {percent}"), Figure::micros(at(share)))
            .goal(Goal::FigureAtMost(goal))
            .beside("commits", Figure::per_second(rate))
    };
    table.push(row("p50", 0.5, 10_000.0));
    table.push(row("p99", 0.99, 40_000.0));
    Ok(())
}
