//! What an outbox costs writers: commits per second with and without it.
//!
//! Beside both is what PostgreSQL takes for any second row: the same columns, written by hand
//! into a table without partitions. A goal above that cannot be reached here, and is marked so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gapless_bench::table::{Goal, Row, Table};
use gapless_outbox::tokio_postgres;
use tokio::task::JoinSet;

use super::{EMITTED, Options, ROUNDS, Result, TRIGGERED, connect, median};

/// Of the commits without an outbox, as many are to be left with it.
const LEFT: f64 = 0.85;
const PLAIN: &str = "INSERT INTO bench_data (body) VALUES ('some text of an order') RETURNING id";
const SECOND: &str = "WITH new AS (INSERT INTO bench_data (body) VALUES ('some text of an order') \
    RETURNING id) INSERT INTO bench_second (op, event_id, topic_id, effective_key) \
    SELECT 'upsert', gen_random_uuid()::text, 'late', id::text FROM new RETURNING seq";

/// Commits per second of clients that do nothing else, in every way.
pub(super) async fn cost(options: &Options, clients: u64, table: &mut Table) -> Result<()> {
    let ways = [PLAIN, SECOND, EMITTED, TRIGGERED];
    let mut measured = ways.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (way, figures) in ways.iter().zip(&mut measured) {
            figures.push(commits(options, clients, way).await?);
        }
    }
    let [plain, second, emitted, triggered] = measured.map(median);
    let row = |name: &str, figure| Row::new(format!("{clients} writers, {name}"), figure);
    table.push(row("nothing else", plain));
    let by_hand = row("a second row by hand", second).against(plain);
    let possible = by_hand.ratio().unwrap_or_default();
    table.push(by_hand.notes("what PostgreSQL takes for it"));
    for (name, figure) in [("emit in the statement", emitted), ("deferred trigger", triggered)] {
        let with = row(name, figure).against(plain).goal(Goal::AtLeast(LEFT));
        let with = with.beside("by hand", second);
        let forbidden = with.is_ok() == Some(false) && possible < LEFT;
        table.push(if forbidden { with.notes("PostgreSQL forbids it here") } else { with });
    }
    Ok(())
}

async fn commits(options: &Options, clients: u64, statement: &'static str) -> Result<f64> {
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let client = connect(&options.dsn).await?;
        let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
        tasks.spawn(async move {
            let statement = client.prepare(statement).await?;
            while !stop.load(Ordering::Relaxed) {
                client.query(&statement, &[]).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, tokio_postgres::Error>(())
        });
    }
    let (began, before) = (Instant::now(), count.load(Ordering::Relaxed));
    let time = Duration::from_secs_f64(options.seconds);
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
    let done = count.load(Ordering::Relaxed) - before;
    let took = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(done as f64 / took)
}
