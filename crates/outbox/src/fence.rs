//! The fence owner: one loop that turns the list of lock holders into a number, publishes it
//! and notifies. The only notification of the whole system comes from here.
//!
//! A look reads the last number drawn and then the holders, in one transaction. It, and the
//! publishing, carry the life of the server in which they began (an unlogged row, which a crash
//! empties): what was read in another life is thrown away. A bound waits for the disk on a
//! connection of its own, while the fence looks on: only the newest is published then.
//!
//! What is settled is decided by `gapless_core::outbox::fence`. Beside the loop, partitions are
//! created ahead and old ones dropped, and the state is measured.

use std::time::Duration;

use gapless_core::backoff::{Backoff, Retries};
use gapless_core::outbox::fence::{Effect, Fence, Holder, HolderId, Input, Life};
use gapless_core::outbox::pace::Pace;
use tokio::sync::watch;
use tokio_postgres::types::Type;

use crate::clock::{Clock, pause};
use crate::database::Database;
use crate::epoch;
use crate::error::OutboxError;
use crate::install::{Names, writable};
use crate::lease::{Lease, random};
use crate::reader::{signed, unsigned};
use crate::session::Session;
use crate::status;

/// How often the state is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How often partitions are looked after, counted in measurements.
const KEEP_EVERY: u32 = 15;
/// How long dropping a partition may wait for a lock: writers wait behind it.
const LOCK_WAIT_MS: u32 = 200;
/// Most partitions, or batches of rows, removed in one go.
const REMOVE_MAX: u32 = 1_000;
/// After how long a transaction that holds everything up is logged.
const HELD_LONG: Duration = Duration::from_secs(10);

/// How often the fence looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceOptions {
    /// The pause after a look that found something: lower is faster, and more work.
    pub pause_least: Duration,
    /// The longest pause when nothing happens.
    pub pause_most: Duration,
}

impl Default for FenceOptions {
    fn default() -> Self {
        Self { pause_least: Duration::from_millis(1), pause_most: Duration::from_millis(40) }
    }
}

/// Runs the fence until `stop` resolves. Another one that runs is stood by for.
///
/// # Errors
/// When the database needs an operator's attention; trouble that passes is waited out.
pub async fn run_fence(
    database: Database,
    options: FenceOptions,
    stop: impl Future<Output = ()>,
) -> Result<(), OutboxError> {
    status::describe();
    let mut lease = Lease::ask(database.clone(), "fence".to_owned());
    let ended = tokio::select! {
        () = stop => Ok(()),
        // Boxed, since callers hold this future in theirs.
        error = Box::pin(run(&database, options, &mut lease)) => Err(error),
    };
    lease.release().await;
    ended
}

async fn run(database: &Database, options: FenceOptions, lease: &mut Lease) -> OutboxError {
    let backoff = Backoff { first: Duration::from_millis(100), ..Backoff::default() };
    let mut retries = Retries::new(backoff, random("fence")).expect("a good schedule");
    // Before it waits for the lease: a standby says what is wrong too.
    if let Err(error) = examine(database).await
        && !error.passes()
    {
        return error;
    }
    loop {
        lease.owned().await;
        tracing::debug!(server = database.server(), "the fence is ours");
        let (own, tend) = (own(database, options, lease, &mut retries), tend(database, lease));
        let ended = tokio::select! {
            ended = own => ended,
            ended = tend => ended,
        };
        match ended {
            Ok(()) => {}
            Err(error) if error.passes() => {
                let wait = retries.failed();
                tracing::warn!(%error, ?wait, "the fence stands still; trying again");
                pause(wait).await;
            }
            Err(error) => return error,
        }
    }
}

/// Connects and checks what the argument rests on.
async fn examine(database: &Database) -> Result<(Session, Names), OutboxError> {
    let session = writable(database).await?;
    let names = Names::read(&session, database).await?;
    let Names { schema, outbox, .. } = &names;
    let sql = format!(
        "SELECT seqcache, seqincrement, seqcycle FROM pg_sequence
         WHERE seqrelid = '{schema}.{outbox}_seq_seq'::regclass"
    );
    let row = session.one(&sql, &[]).await?;
    let (cache, step, cycles): (i64, i64, bool) = (row.get(0), row.get(1), row.get(2));
    let wrong = match (cache, step, cycles) {
        (1, 1.., false) => return Ok((session, names)),
        (2.., _, _) => "it has a cache, so numbers are not drawn in order: set CACHE 1",
        (_, ..=0, _) => "it does not rise: set INCREMENT BY 1",
        _ => "it begins again at its end: set NO CYCLE",
    };
    Err(OutboxError::Sequence(wrong.to_owned()))
}

/// Polls while the lease is ours.
async fn own(
    database: &Database,
    options: FenceOptions,
    lease: &Lease,
    retries: &mut Retries,
) -> Result<(), OutboxError> {
    let (session, names) = examine(database).await?;
    if epoch::notice(&session, &names).await? {
        tracing::warn!(server = database.server(), "a new epoch began: this is another server");
    }
    let schema = &names.schema;
    let mut fence = Fence::new(stored(&session, schema).await?);
    let (want, wanted) = watch::channel(None);
    let publisher = writable(database).await?;
    let looking = async {
        let clock = Clock::start();
        let mut pace = Pace::new(options.pause_least, options.pause_most);
        let mut drawn_before = None;
        let mut effects = Vec::new();
        while lease.is_owned() {
            let Some((life, drawn, holders)) = look(&session, schema).await? else {
                let sql =
                    format!("INSERT INTO {schema}.life DEFAULT VALUES ON CONFLICT DO NOTHING");
                session.rows(&sql, &[]).await?;
                continue;
            };
            let mut moved = drawn_before.replace(drawn) != Some(drawn);
            fence.step(clock.now(), Input::Polled { life, drawn, holders }, &mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Publish { safe, life } => {
                        moved = true;
                        want.send_replace(Some((safe, life)));
                    }
                    Effect::Restore => return Ok(()),
                    Effect::Refused(error) => return Err(error.into()),
                }
            }
            retries.succeeded();
            pause(if moved { pace.found() } else { pace.nothing() }).await;
        }
        Ok(())
    };
    tokio::select! {
        ended = looking => ended,
        ended = publish(&publisher, schema, wanted) => ended,
    }
}

/// The bound that the database has.
async fn stored(session: &Session, schema: &str) -> Result<u64, OutboxError> {
    let sql = format!("SELECT safe_seq FROM {schema}.fence");
    Ok(unsigned(session.one(&sql, &[]).await?.get(0)))
}

/// The life of the server, the last number drawn and the holders of the lock; `None` if the life is
/// new.
async fn look(
    session: &Session,
    schema: &str,
) -> Result<Option<(Life, u64, Vec<Holder>)>, OutboxError> {
    let sql = format!("SELECT life, drawn, holders FROM {schema}.look()");
    let row = session.one(&sql, &[]).await?;
    let Some(text) = row.get::<_, Option<&str>>(0) else { return Ok(None) };
    let life = u128::from_str_radix(text, 16);
    let life = life.map_err(|_| OutboxError::Unknown(format!("life {text:?}")))?;
    let holders: Option<&str> = row.get(2);
    let holders = holders.into_iter().flat_map(|all| all.split(',')).map(holder);
    Ok(Some((Life(life), unsigned(row.get(1)), holders.collect::<Result<_, _>>()?)))
}

/// Writes the newest bound again and again; ends when one was refused: in another life, or
/// because another owner was further. Then the fence begins with what is there.
async fn publish(
    session: &Session,
    schema: &str,
    mut wanted: watch::Receiver<Option<(u64, Life)>>,
) -> Result<(), OutboxError> {
    let sql = format!("SELECT {schema}.publish($1, $2)");
    loop {
        // The sender lives as long as this does.
        let _ = wanted.changed().await;
        let Some((safe, life)) = *wanted.borrow_and_update() else { continue };
        let (safe, life) = (signed(safe), format!("{:032x}", life.0));
        let row = session.one(&sql, &[(&safe, Type::INT8), (&life, Type::TEXT)]).await?;
        if !row.get::<_, bool>(0) {
            return Ok(());
        }
    }
}

/// `3/1234`, or `prepared -1/1234`.
fn holder(text: &str) -> Result<Holder, OutboxError> {
    let (prepared, id) = match text.strip_prefix("prepared ") {
        Some(id) => (true, id),
        None => (false, text),
    };
    let parts = id.split_once('/').and_then(|(backend, local)| {
        let backend: i32 = backend.parse().ok()?;
        let local: u32 = local.parse().ok()?;
        Some(HolderId(u64::from(backend.cast_unsigned()) << 32 | u64::from(local)))
    });
    let id = parts.ok_or_else(|| OutboxError::Unknown(format!("transaction {text:?}")))?;
    Ok(Holder { id, prepared })
}

/// Looks after partitions and measures, beside the loop, while the lease is ours.
async fn tend(database: &Database, lease: &Lease) -> Result<(), OutboxError> {
    let (session, names) = examine(database).await?;
    let mut round = 0_u32;
    while lease.is_owned() {
        if round.is_multiple_of(KEEP_EVERY) {
            keep(&session, &names).await?;
        }
        let state = status::read(&session, &names).await?;
        status::measure(&state);
        if let Some(culprit) = &state.culprit
            && culprit.held >= HELD_LONG
            && round.is_multiple_of(KEEP_EVERY)
        {
            tracing::warn!(unsettled = state.drawn - state.safe, "the outbox is {culprit}");
        }
        round = round.wrapping_add(1);
        pause(MEASURE_EVERY).await;
    }
    Ok(())
}

/// Creates partitions ahead and removes what is older than the retention.
async fn keep(session: &Session, names: &Names) -> Result<(), OutboxError> {
    let schema = &names.schema;
    let bounded = |call: &str| {
        format!("BEGIN; SET LOCAL lock_timeout = {LOCK_WAIT_MS}; SELECT {schema}.{call}; COMMIT")
    };
    let try_later = |result: Result<(), OutboxError>| match result {
        // Another transaction holds a lock: the partition waits, not the writers.
        Err(OutboxError::Sql { code, .. }) if code == "55P03" => Ok(false),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    };
    if !try_later(session.run(&bounded("make_partitions()")).await)? {
        session.run("ROLLBACK").await?;
    }
    for _ in 0..REMOVE_MAX {
        let floor = format!("SELECT floor_seq FROM {schema}.fence");
        let before: i64 = session.one(&floor, &[]).await?.get(0);
        if !try_later(session.run(&bounded("remove_old()")).await)? {
            return session.run("ROLLBACK").await;
        }
        let after: i64 = session.one(&floor, &[]).await?.get(0);
        if before == after {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_of_both_kinds_have_numbers_of_their_own() {
        let ordinary = holder("3/77").expect("an ordinary one");
        let prepared = holder("prepared -1/77").expect("a prepared one");
        assert!(prepared.prepared && !ordinary.prepared);
        assert_ne!(ordinary.id, prepared.id);
        assert!(holder("77").is_err());
    }
}
