//! The state of an outbox: what is settled, which consumers lag, and what holds them up.

use std::fmt;
use std::time::Duration;

use metrics::{describe_gauge, gauge};

use crate::database::Database;
use crate::error::OutboxError;
use crate::install::Names;
use crate::reader::unsigned;
use crate::session::Session;

/// How an outbox stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Every row up to it is settled.
    pub safe: u64,
    /// The last number drawn; not known on a standby.
    pub drawn: u64,
    /// Rows up to it are removed by retention.
    pub floor: u64,
    /// The newest epoch.
    pub epoch: String,
    /// Whether this server follows another.
    pub standby: bool,
    /// How long rows are kept.
    pub retention: Duration,
    /// The process that runs the fence, if there is one.
    pub fence_owner: Option<String>,
    /// All readers, by name.
    pub consumers: Vec<ConsumerStatus>,
    /// What keeps rows from being settled.
    pub culprit: Option<Culprit>,
}

/// How a consumer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerStatus {
    /// Its name.
    pub name: String,
    /// The last row it is done with.
    pub last_seq: u64,
    /// Numbers it has not reached, those of rolled back transactions included.
    pub backlog: u64,
    /// How long its next row has waited.
    pub age: Duration,
    /// Whether an instance runs.
    pub running: bool,
    /// Whether rows that it has not read are removed.
    pub behind_retention: bool,
    /// Rows it gave up on.
    pub dead_letters: u64,
}

/// A transaction that has written to the outbox and is still open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Its process; `None` if it is prepared.
    pub pid: Option<i32>,
    /// Its application, or the id of a prepared transaction.
    pub name: String,
    /// What its session does.
    pub state: String,
    /// Since when it is open.
    pub held: Duration,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, name) = (self.held.as_secs(), &self.name);
        match self.pid {
            Some(pid) => {
                write!(f, "held {seconds} s by pid {pid}, application {name:?}, {}", self.state)
            }
            None => write!(f, "held {seconds} s by the prepared transaction {name:?}"),
        }
    }
}

/// Reads how the outbox of a database stands.
///
/// # Errors
/// When it cannot be reached, or has no outbox.
pub async fn status(database: &Database) -> Result<Status, OutboxError> {
    Observer::new(database.clone()).status().await
}

/// Looks at an outbox again and again, over one connection while it lasts.
pub struct Observer {
    database: Database,
    session: Option<(Session, Names)>,
}

impl Observer {
    /// Connects when it first looks.
    pub fn new(database: Database) -> Self {
        Self { database, session: None }
    }

    /// How the outbox stands now.
    ///
    /// # Errors
    /// When it cannot be reached, or is not an outbox.
    pub async fn status(&mut self) -> Result<Status, OutboxError> {
        if self.session.is_none() {
            let session = self.database.connect().await?;
            let names = Names::read(&session, &self.database).await?;
            self.session = Some((session, names));
        }
        let (session, names) = self.session.as_ref().expect("it was just put there");
        let state = read(session, names).await;
        if state.is_err() {
            self.session = None;
        }
        state
    }
}

/// A time in milliseconds, as SQL returns it.
fn ms(row: &tokio_postgres::Row, at: usize) -> Duration {
    Duration::from_millis(row.get::<_, Option<i64>>(at).map_or(0, unsigned))
}

pub(crate) async fn read(session: &Session, names: &Names) -> Result<Status, OutboxError> {
    let Names { schema, outbox, .. } = names;
    let row = session
        .one(
            &format!(
                "SELECT safe_seq, floor_seq, pg_is_in_recovery(),
                        (SELECT CASE WHEN is_called THEN last_value ELSE 0 END
                         FROM {schema}.{outbox}_seq_seq),
                        (SELECT id::text FROM {schema}.epochs ORDER BY number DESC LIMIT 1),
                        (SELECT (extract(epoch FROM retention) * 1000)::bigint FROM {schema}.meta),
                        (SELECT application FROM {schema}.leases
                         WHERE role = 'fence' AND until > clock_timestamp())
                 FROM {schema}.fence"
            ),
            &[],
        )
        .await?;
    let safe = unsigned(row.get(0));
    let mut state = Status {
        safe,
        floor: unsigned(row.get(1)),
        standby: row.get(2),
        // A standby logs sequences ahead.
        drawn: if row.get(2) { safe } else { unsigned(row.get(3)).max(safe) },
        epoch: row.get::<_, Option<String>>(4).unwrap_or_default(),
        retention: ms(&row, 5),
        fence_owner: row.get(6),
        consumers: Vec::new(),
        culprit: None,
    };
    state.consumers = consumers(session, names, &state).await?;
    if state.drawn > state.safe {
        state.culprit = culprit(session, names).await?;
    }
    Ok(state)
}

async fn consumers(
    session: &Session,
    names: &Names,
    state: &Status,
) -> Result<Vec<ConsumerStatus>, OutboxError> {
    let Names { schema, outbox, offsets, .. } = names;
    let rows = session
        .rows(
            &format!(
                "SELECT o.consumer, o.last_seq,
                        (extract(epoch FROM clock_timestamp() - first.ingested_at) * 1000)::bigint,
                        EXISTS (SELECT 1 FROM {schema}.leases l
                                WHERE l.role = 'consumer ' || o.consumer
                                  AND l.until > clock_timestamp()),
                        (SELECT count(*) FROM {schema}.dead_letters d
                         WHERE d.consumer = o.consumer)
                 FROM {schema}.{offsets} o LEFT JOIN LATERAL (
                     SELECT ingested_at FROM {schema}.{outbox}
                     WHERE seq > o.last_seq AND seq <= {} ORDER BY seq LIMIT 1
                 ) first ON true
                 ORDER BY 1",
                state.safe
            ),
            &[],
        )
        .await?;
    let consumer = |row: &tokio_postgres::Row| {
        let last_seq = unsigned(row.get(1));
        ConsumerStatus {
            name: row.get(0),
            last_seq,
            backlog: state.safe.saturating_sub(last_seq),
            age: ms(row, 2),
            running: row.get(3),
            behind_retention: last_seq < state.floor,
            dead_letters: unsigned(row.get(4)),
        }
    };
    Ok(rows.iter().map(consumer).collect())
}

async fn culprit(session: &Session, names: &Names) -> Result<Option<Culprit>, OutboxError> {
    let Names { schema, outbox, .. } = names;
    let rows = session
        .rows(
            &format!(
                "SELECT held.pid, coalesce(a.application_name, p.gid, ''),
                        CASE WHEN a.pid IS NULL THEN 'unknown'
                             ELSE coalesce(a.state, 'its state is hidden (GRANT pg_read_all_stats)')
                        END,
                        (extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))
                         * 1000)::bigint AS ms
                 FROM (SELECT DISTINCT pid, virtualtransaction FROM pg_locks
                       WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
                         AND database = (SELECT oid FROM pg_database
                                         WHERE datname = current_database())
                         AND relation = '{schema}.{outbox}'::regclass) held
                 LEFT JOIN pg_stat_activity a ON a.pid = held.pid
                 LEFT JOIN LATERAL (
                     SELECT gid, prepared FROM pg_prepared_xacts
                     WHERE held.pid IS NULL AND database = current_database()
                     ORDER BY prepared LIMIT 1) p ON true
                 ORDER BY ms DESC NULLS LAST LIMIT 1"
            ),
            &[],
        )
        .await?;
    Ok(rows.first().map(|row| Culprit {
        pid: row.get(0),
        name: row.get(1),
        state: row.get(2),
        held: ms(row, 3),
    }))
}

/// Describes each metric to the recorder.
pub(crate) fn describe() {
    describe_gauge!("gapless_outbox_safe_seq", "Rows of the outbox up to it are settled.");
    describe_gauge!("gapless_outbox_unsettled", "Numbers drawn that are not settled.");
    describe_gauge!("gapless_outbox_held_seconds", "Age of the transaction that all wait for.");
    describe_gauge!("gapless_outbox_backlog", "Settled numbers a consumer has not reached.");
    describe_gauge!("gapless_outbox_age_seconds", "How long its next row has waited.");
}

/// Gives the numbers to the recorder of metrics.
#[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
pub fn measure(state: &Status) {
    gauge!("gapless_outbox_safe_seq").set(state.safe as f64);
    gauge!("gapless_outbox_unsettled").set((state.drawn - state.safe) as f64);
    let held = state.culprit.as_ref().map_or(0.0, |culprit| culprit.held.as_secs_f64());
    gauge!("gapless_outbox_held_seconds").set(held);
    for consumer in &state.consumers {
        let label = consumer.name.clone();
        gauge!("gapless_outbox_backlog", "consumer" => label.clone()).set(consumer.backlog as f64);
        gauge!("gapless_outbox_age_seconds", "consumer" => label).set(consumer.age.as_secs_f64());
    }
}
