//! A work that one does at a time: asks for a lease and keeps it, in a task of its own.
//!
//! The task has its own connection, so that a lease outlives long statements and long work of
//! its owner. Leases are rows, not locks of a session: those do not work through a pooler.

use std::time::Duration;

use gapless_core::Timestamp;
use gapless_core::backoff::{Backoff, Retries};
use gapless_core::outbox::owner::{Effect, Input, Owner};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::types::Type;

use crate::clock::{Clock, pause};
use crate::database::Database;
use crate::error::OutboxError;
use crate::session::Session;

/// How long a lease lasts: a standby takes over this long after an owner died.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// A lease that is asked for until this is dropped.
#[derive(Debug)]
pub struct Lease {
    owned: watch::Receiver<bool>,
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
}

impl Lease {
    /// Begins to ask for the lease of a role.
    pub fn ask(database: Database, role: String) -> Self {
        let (owns, owned) = watch::channel(false);
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(keep(database, role, owns, stopped));
        Self { owned, task, stop }
    }

    /// Whether it is ours.
    pub fn is_owned(&self) -> bool {
        *self.owned.borrow()
    }

    /// Resolves when it is ours.
    pub async fn owned(&mut self) {
        // The sender lives as long as the task, and that as long as this.
        let _ = self.owned.wait_for(|owned| *owned).await;
    }

    /// Gives it back, so that another can take it at once.
    pub async fn release(mut self) {
        self.stop.send_replace(true);
        let _ = (&mut self.task).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

async fn keep(
    database: Database,
    role: String,
    owns: watch::Sender<bool>,
    mut stopped: watch::Receiver<bool>,
) {
    let clock = Clock::start();
    let seed = random(&role);
    let holder = uuid_text(seed, std::process::id());
    let mut owner = Owner::new(LEASE);
    let mut session = None;
    let quick = Backoff { most: LEASE / 3, ..Backoff::default() };
    let mut retries = Retries::new(quick, seed).expect("the schedule is a good one");
    let mut effects = Vec::new();
    let mut input = Input::Tick;
    while !*stopped.borrow() {
        owner.step(clock.now(), input, &mut effects);
        input = Input::Tick;
        for effect in effects.drain(..) {
            match effect {
                Effect::Began => {
                    tracing::debug!(role, "the work is ours");
                    owns.send_replace(true);
                }
                Effect::Ended => {
                    tracing::warn!(role, "the lease ended; another may take over");
                    owns.send_replace(false);
                }
                Effect::Ask => match ask(&database, &mut session, &role, &holder).await {
                    Ok(answer) => {
                        retries.succeeded();
                        input = answer;
                    }
                    Err(error) => {
                        tracing::debug!(role, %error, "no answer about the lease");
                        session = None;
                        pause(retries.failed()).await;
                        input = Input::Failed;
                    }
                },
            }
        }
        if input == Input::Tick {
            let wait = until(owner.deadline(), clock.now());
            tokio::select! {
                () = pause(wait) => {}
                _ = stopped.changed() => {}
            }
        }
    }
    if let Some(session) = &session
        && owner.owns(clock.now())
    {
        let sql = format!(
            "UPDATE {}.leases SET until = '-infinity' WHERE role = $1 AND holder::text = $2",
            database.schema()
        );
        // If this fails the lease simply ends by itself.
        let _ = session.rows(&sql, &[(&role, Type::TEXT), (&holder, Type::TEXT)]).await;
    }
}

fn until(deadline: Timestamp, now: Timestamp) -> Duration {
    deadline.since(now).clamp(Duration::from_millis(1), LEASE)
}

async fn ask(
    database: &Database,
    session: &mut Option<Session>,
    role: &str,
    holder: &str,
) -> Result<Input, OutboxError> {
    let session = match session {
        Some(session) => session,
        None => session.insert(database.connect().await?),
    };
    let schema = database.schema();
    let ms = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
    let taken = session
        .rows(
            &format!(
                "INSERT INTO {schema}.leases AS l (role, holder, application, until)
                 VALUES ($1, $2::text::uuid, $3, clock_timestamp() + $4 * interval '1 ms')
                 ON CONFLICT (role) DO UPDATE
                 SET holder = excluded.holder, application = excluded.application,
                     until = excluded.until
                 WHERE l.holder = excluded.holder OR l.until < clock_timestamp()
                 RETURNING true"
            ),
            &[
                (&role, Type::TEXT),
                (&holder, Type::TEXT),
                (&database.application(), Type::TEXT),
                (&ms, Type::INT8),
            ],
        )
        .await?;
    if !taken.is_empty() {
        return Ok(Input::Granted);
    }
    let sql = format!(
        "SELECT ceil(greatest(0, extract(epoch FROM until - clock_timestamp())) * 1000)::bigint
         FROM {schema}.leases WHERE role = $1"
    );
    let left: i64 = match session.rows(&sql, &[(&role, Type::TEXT)]).await?.first() {
        Some(row) => row.get(0),
        None => 0,
    };
    Ok(Input::Refused { left: Duration::from_millis(u64::try_from(left).unwrap_or(0)) })
}

/// A number that no other process is likely to have.
pub(crate) fn random(salt: &str) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(salt)
}

/// An id of a holder, as the text of a UUID.
fn uuid_text(seed: u64, process: u32) -> String {
    let more = random("holder");
    format!(
        "{process:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        seed >> 48,
        (seed >> 36) & 0xfff,
        (seed >> 24) & 0xfff,
        more & 0xffff_ffff_ffff
    )
}
