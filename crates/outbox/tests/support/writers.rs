//! Transactions as applications make them: short and long, rolled back, with savepoints,
//! prepared. Each changes the row of a key and writes an outbox row that carries the key's new
//! version, so that the order of a key can be checked wherever the row arrives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gapless_outbox::tokio_postgres::{Client, Error};
use tokio::task::JoinSet;

use super::connect;

/// Keys that writers fight over.
const KEYS: u64 = 20;

/// Writers at work.
pub(crate) struct Writers {
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
    pub(crate) commits: Arc<AtomicU64>,
}

/// Numbers that look random and are the same for the same seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// The table the transactions are about.
pub(crate) async fn prepare(client: &Client) {
    let sql = format!(
        "CREATE TABLE thing (id bigint PRIMARY KEY, version bigint NOT NULL);
         INSERT INTO thing SELECT id, 0 FROM generate_series(0, {}) id;",
        KEYS - 1
    );
    client.batch_execute(&sql).await.expect("an empty database");
}

impl Writers {
    /// Starts writers; each makes a connection again whenever it is lost.
    pub(crate) fn start(dsn: &str, count: u64, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let commits = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for writer in 0..count {
            let (dsn, stop, commits) = (dsn.to_owned(), Arc::clone(&stop), Arc::clone(&commits));
            let mut dice = Dice(seed.wrapping_mul(1_000).wrapping_add(writer));
            tasks.spawn(async move {
                let mut client = None;
                let mut number = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let Some(connected) = &client else {
                        client = connect(&dsn).await;
                        tokio::task::yield_now().await;
                        continue;
                    };
                    number += 1;
                    match transaction(connected, writer, number, &mut dice).await {
                        Ok(committed) => {
                            commits.fetch_add(u64::from(committed), Ordering::Relaxed);
                        }
                        Err(error) if error.as_db_error().is_some() && !error.is_closed() => {
                            let _ = connected.batch_execute("ROLLBACK").await;
                        }
                        Err(_) => client = None,
                    }
                }
            });
        }
        Self { tasks, stop, commits }
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Ends them after the transaction each is in.
    pub(crate) async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// One transaction; tells whether it was committed.
async fn transaction(
    client: &Client,
    writer: u64,
    number: u64,
    dice: &mut Dice,
) -> Result<bool, Error> {
    let key = dice.below(KEYS);
    let change = format!(
        "WITH new AS (UPDATE thing SET version = version + 1 WHERE id = {key} RETURNING version)
         SELECT gapless.emit('things', '{key}', 'upsert', '{writer}-{number}',
                             jsonb_build_object('version', version)) FROM new;"
    );
    // Long ones are rare, and long enough that many short ones pass them.
    let nap = if dice.below(20) == 0 { 60 } else { dice.below(6) };
    let nap = format!("SELECT pg_sleep({});", nap as f64 / 1_000.0);
    let (begin, commit) = ("BEGIN;", "COMMIT;");
    match dice.below(20) {
        0..8 => client.batch_execute(&change).await.map(|()| true),
        8..14 => {
            client.batch_execute(&format!("{begin}{change}{nap}{commit}")).await.map(|()| true)
        }
        14..16 => {
            client.batch_execute(&format!("{begin}{change}{nap}ROLLBACK;")).await.map(|()| false)
        }
        16..19 => {
            let part = format!("SAVEPOINT s;{change}ROLLBACK TO s;{nap}{change}");
            client.batch_execute(&format!("{begin}{part}{commit}")).await.map(|()| true)
        }
        _ => {
            let id = format!("{writer}-{number}-{:x}", dice.below(u64::MAX));
            let sql = format!("{begin}{change}PREPARE TRANSACTION '{id}'");
            client.batch_execute(&sql).await?;
            client.batch_execute(&nap).await?;
            client.batch_execute(&format!("COMMIT PREPARED '{id}'")).await.map(|()| true)
        }
    }
}

/// Commits what was left prepared by writers that lost their connection.
pub(crate) async fn finish_prepared(client: &Client) {
    let rows = client.query("SELECT gid FROM pg_prepared_xacts", &[]).await.expect("a view");
    for row in rows {
        let id: String = row.get(0);
        // It may be gone by now, which is as well.
        let _ = client.batch_execute(&format!("COMMIT PREPARED '{id}'")).await;
    }
}

/// All seqs there are.
pub(crate) async fn all_seqs(client: &Client) -> Vec<u64> {
    let rows = client.query("SELECT seq FROM gapless.outbox ORDER BY seq", &[]).await;
    let rows = rows.expect("the outbox is there");
    rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect()
}

/// Checks that the versions of each key rise.
#[derive(Default)]
pub(crate) struct KeyOrder {
    versions: BTreeMap<String, u64>,
}

impl KeyOrder {
    /// A payload as the writers make it: `{"version": 7}`.
    pub(crate) fn saw(&mut self, key: &str, payload: &[u8]) {
        let text = std::str::from_utf8(payload).expect("JSON is text");
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let version: u64 = digits.parse().expect("a version");
        let before = self.versions.insert(key.to_owned(), version).unwrap_or(0);
        assert!(version > before, "key {key}: version {version} came after {before}");
    }
}
