//! The fence owner: one loop that turns the list of lock holders into a number, publishes it
//! and notifies. The only notification of the whole system comes from here.
//!
//! A poll is two statements, each its own transaction, in this order: the last number drawn,
//! then the holders. Both, and the publishing, carry the life of the server they were made in
//! (an unlogged row, which a crash empties): what was read in another life is thrown away.
//!
//! What is settled is decided by `gapless_core::outbox::fence`. Beside the loop, partitions are
//! made ahead and old ones dropped, and the state is measured.

use std::time::Duration;

use gapless_core::backoff::{Backoff, Retries};
use gapless_core::outbox::fence::{Effect, Fence, Holder, HolderId, Input, Life};
use gapless_core::outbox::pace::Pace;
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
        Self { pause_least: Duration::from_millis(3), pause_most: Duration::from_millis(40) }
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
        error = run(&database, options, &mut lease) => Err(error),
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
    let polls = Polls::new(&session, &names);
    let clock = Clock::start();
    let mut fence = Fence::new(polls.stored().await?);
    let mut pace = Pace::new(options.pause_least, options.pause_most);
    let mut drawn_before = None;
    let mut moved = true;
    let mut effects = Vec::new();
    while lease.is_owned() {
        let (drawn, holders) = polls.poll(moved).await?;
        let Some((life, drawn)) = drawn else {
            polls.begin_life().await?;
            continue;
        };
        if fence.wants_holders(life, drawn) {
            let holders = match holders {
                Some(holders) => holders,
                None => polls.holders().await?,
            };
            let input = match holders {
                Some((later, holders)) if later == life => Input::Polled { life, drawn, holders },
                _ => Input::Stored { safe: polls.stored().await? },
            };
            fence.step(clock.now(), input, &mut effects);
        }
        moved = drawn_before.replace(drawn) != Some(drawn);
        for effect in effects.drain(..) {
            match effect {
                Effect::Publish { safe, life } => {
                    moved = true;
                    if !polls.publish(safe, life).await? {
                        // Another life, or another owner was further: begin with what is there.
                        fence = Fence::new(polls.stored().await?);
                    }
                }
                Effect::Refused(error) => return Err(error.into()),
            }
        }
        retries.succeeded();
        pause(if moved { pace.found() } else { pace.nothing() }).await;
    }
    Ok(())
}

/// A life and the holders in it; `None` if the life is new.
type Held = Option<(Life, Vec<Holder>)>;

/// The statements of the loop.
struct Polls<'a> {
    session: &'a Session,
    drawn: String,
    holders: String,
    publish: String,
    stored: String,
    begin_life: String,
    channel: &'a str,
}

impl<'a> Polls<'a> {
    fn new(session: &'a Session, names: &'a Names) -> Self {
        let Names { schema, outbox, channel, .. } = names;
        Self {
            session,
            drawn: format!(
                "SELECT replace(life.id::text, '-', ''), CASE WHEN is_called THEN last_value ELSE 0 END
                 FROM {schema}.{outbox}_seq_seq, {schema}.life"
            ),
            holders: format!(
                "SELECT replace(life.id::text, '-', ''), held.virtualtransaction, held.prepared
                 FROM {schema}.life LEFT JOIN (
                     SELECT DISTINCT virtualtransaction, pid IS NULL AS prepared FROM pg_locks
                     WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
                       AND database = (SELECT oid FROM pg_database
                                       WHERE datname = current_database())
                       AND relation IN (SELECT relid FROM pg_partition_tree('{schema}.{outbox}'))
                 ) held ON true"
            ),
            // Committed to disk before it can be seen, whatever the default is: what is settled
            // must survive a crash, and with it every row and number before it.
            publish: format!(
                "WITH moved AS (
                     UPDATE {schema}.fence SET safe_seq = $1, updated_at = clock_timestamp()
                     WHERE safe_seq < $1
                       AND EXISTS (SELECT 1 FROM {schema}.life WHERE id = $2::text::uuid)
                     RETURNING safe_seq)
                 SELECT pg_notify($3, safe_seq::text),
                        set_config('synchronous_commit',
                                   CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local'
                                   ELSE current_setting('synchronous_commit') END, true)
                 FROM moved"
            ),
            stored: format!("SELECT safe_seq FROM {schema}.fence"),
            begin_life: format!("INSERT INTO {schema}.life DEFAULT VALUES ON CONFLICT DO NOTHING"),
            channel,
        }
    }

    async fn stored(&self) -> Result<u64, OutboxError> {
        Ok(unsigned(self.session.one(&self.stored, &[]).await?.get(0)))
    }

    async fn begin_life(&self) -> Result<(), OutboxError> {
        self.session.rows(&self.begin_life, &[]).await.map(|_| ())
    }

    /// The last number drawn and, if they will be wanted, the holders in the same round trip:
    /// the server answers one statement after the other.
    async fn poll(&self, both: bool) -> Result<(Option<(Life, u64)>, Option<Held>), OutboxError> {
        if !both {
            return Ok((self.drawn().await?, None));
        }
        let (drawn, holders) = tokio::join!(self.drawn(), self.holders());
        Ok((drawn?, Some(holders?)))
    }

    /// The life of the server and the last number drawn; `None` if the life is new.
    async fn drawn(&self) -> Result<Option<(Life, u64)>, OutboxError> {
        let rows = self.session.rows(&self.drawn, &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((life(row.get(0))?, unsigned(row.get(1)))))
    }

    /// The life of the server and who holds the lock; `None` if the life is new.
    async fn holders(&self) -> Result<Held, OutboxError> {
        let rows = self.session.rows(&self.holders, &[]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let mut holders = Vec::new();
        for row in &rows {
            let (id, prepared): (Option<&str>, Option<bool>) = (row.get(1), row.get(2));
            if let (Some(id), Some(prepared)) = (id, prepared) {
                holders.push(Holder { id: holder(id)?, prepared });
            }
        }
        Ok(Some((life(first.get(0))?, holders)))
    }

    /// Writes the bound; returns whether it was written.
    async fn publish(&self, safe: u64, life: Life) -> Result<bool, OutboxError> {
        let (safe, life) = (signed(safe), format!("{:032x}", life.0));
        let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&safe, Type::INT8), (&life, Type::TEXT), (&self.channel, Type::TEXT)];
        Ok(!self.session.rows(&self.publish, &values).await?.is_empty())
    }
}

fn life(text: &str) -> Result<Life, OutboxError> {
    let life = u128::from_str_radix(text, 16);
    life.map(Life).map_err(|_| OutboxError::Unknown(format!("life {text:?}")))
}

/// `3/1234`, or `-1/1234` for some prepared transactions, as a number.
fn holder(text: &str) -> Result<HolderId, OutboxError> {
    let parts = text.split_once('/').and_then(|(backend, local)| {
        let backend: i32 = backend.parse().ok()?;
        let local: u32 = local.parse().ok()?;
        Some(HolderId(u64::from(backend.cast_unsigned()) << 32 | u64::from(local)))
    });
    parts.ok_or_else(|| OutboxError::Unknown(format!("transaction {text:?}")))
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

/// Makes partitions ahead and removes what is older than the retention.
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
        let prepared = holder("-1/77").expect("a prepared one");
        assert_ne!(ordinary, prepared);
        assert!(holder("77").is_err());
    }
}
