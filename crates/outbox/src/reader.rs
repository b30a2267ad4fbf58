//! Reading settled rows: from the primary, through a pooler, or from a standby.
//!
//! The bound is read first and on the same server as the rows, never from a notification: a
//! notification can run ahead of a standby. After the rows the floor is read: partitions are
//! dropped in the transaction that raises it, so rows that were dropped in between are noticed.
//! The three statements go out together and are answered one after the other, so that a batch
//! takes one round trip.
//!
//! Losing every notification loses nothing: they only end a wait that ends by itself.

use std::time::Duration;

use futures_util::TryStreamExt;
use gapless_core::backoff::{Backoff, Retries};
use gapless_core::outbox::pace::Pace;
use gapless_core::outbox::place::{Begun, EpochId, Place, Source, Standing};
use tokio::time::timeout;
use tokio_postgres::types::Type;

use crate::clock::pause;
use crate::database::Database;
use crate::error::OutboxError;
use crate::install::Names;
use crate::lease::random;
use crate::row::{COLUMNS, Row};
use crate::session::Session;

/// How often the bound is looked at right after it moved.
const LOOK_LEAST: Duration = Duration::from_millis(5);
/// How often it is looked at when notifications do not come.
const LOOK_MOST: Duration = Duration::from_millis(250);
/// How often it is looked at when they do: only in case one is lost.
const LOOK_MOST_HEARING: Duration = Duration::from_secs(1);
/// How long the first notification, to ourselves, may take before we say that none come.
const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Numbers that are looked at for few rows.
const SPAN_LEAST: u32 = 100;
/// How long rows of one batch may take to arrive.
const BATCH_WAIT: Duration = Duration::from_secs(60);

/// How much is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most rows.
    pub rows_max: u32,
    /// Most bytes, unless a single row has more.
    pub bytes_max: usize,
    /// The largest payload that is read, in bytes; of a larger one only the size is.
    pub payload_bytes_max: u64,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { rows_max: 1_000, bytes_max: 4 << 20, payload_bytes_max: 64 << 20 }
    }
}

/// Settled rows, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The epoch in which they were read.
    pub epoch: EpochId,
    /// After this number.
    pub after: u64,
    /// Up to this number: every settled row between is here.
    pub through: u64,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A place in an outbox from which rows are read, over as many connections as it takes.
pub struct Reader {
    database: Database,
    limits: BatchLimits,
    connected: Option<Connected>,
    retries: Retries,
    pace: Pace,
    /// The bound as it was last seen.
    safe: u64,
    /// How many rows are asked for: fewer than the limit while rows are large, since what is
    /// beyond the bytes of a batch was sent for nothing.
    ask: u32,
    /// Whether the numbers that were looked at last had no rows.
    sparse: bool,
    told_deaf: bool,
}

struct Connected {
    session: Session,
    names: Names,
    listens: bool,
}

impl Reader {
    /// Connects when it is first used.
    pub fn new(database: Database, limits: BatchLimits) -> Self {
        let backoff = Backoff { first: Duration::from_millis(100), ..Backoff::default() };
        let retries = Retries::new(backoff, random("reader")).expect("a good schedule");
        let pace = Pace::new(LOOK_LEAST, LOOK_MOST);
        let (ask, sparse, told_deaf) = (limits.rows_max, false, false);
        Self { database, limits, connected: None, retries, pace, safe: 0, ask, sparse, told_deaf }
    }

    /// The database it reads.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Changes how much is read at once.
    pub fn set_limits(&mut self, limits: BatchLimits) {
        self.limits = limits;
        self.ask = limits.rows_max;
    }

    /// Every row up to it is settled, as far as was read.
    pub fn safe(&self) -> u64 {
        self.safe
    }

    /// The next settled rows after a place; waits until there are some, or until the bound has
    /// moved over numbers that no row has. Trouble that passes is waited out.
    ///
    /// # Errors
    /// When reading on would skip something, or the database needs an operator's attention.
    pub async fn next(&mut self, place: Place) -> Result<Batch, OutboxError> {
        loop {
            match self.try_next(place).await {
                Ok(Some(batch)) => {
                    self.retries.succeeded();
                    self.pace.found();
                    return Ok(batch);
                }
                Ok(None) => {
                    self.retries.succeeded();
                    self.wait().await;
                }
                Err(error) if error.passes() => self.trouble(&error).await,
                Err(error) => {
                    self.connected = None;
                    return Err(error);
                }
            }
        }
    }

    /// Whether notifications wake it, over the connection that it has now.
    pub fn hears(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| connected.listens)
    }

    /// What the database says about itself now.
    ///
    /// # Errors
    /// When it cannot be reached, or is not an outbox.
    pub async fn source(&mut self) -> Result<Source, OutboxError> {
        let connected = self.connect().await?;
        let source = read_source(&connected.session, &connected.names).await;
        if source.is_err() {
            self.connected = None;
        }
        source
    }

    /// The event id of a row, if it is still there: a place outside the database is compared
    /// with it.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn event_id(&mut self, seq: u64) -> Result<Option<String>, OutboxError> {
        let Connected { session, names, .. } = self.connect().await?;
        let sql = format!("SELECT event_id FROM {}.{} WHERE seq = $1", names.schema, names.outbox);
        let rows = session.rows(&sql, &[(&signed(seq), Type::INT8)]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// The next settled rows after a place, if there are any now.
    ///
    /// # Errors
    /// As [`Reader::next`], and when the database cannot be reached.
    pub async fn poll(&mut self, place: Place) -> Result<Option<Batch>, OutboxError> {
        let polled = self.try_next(place).await;
        if polled.is_err() {
            self.connected = None;
        }
        polled
    }

    async fn try_next(&mut self, place: Place) -> Result<Option<Batch>, OutboxError> {
        let (limits, ask) = (self.limits, self.ask.min(self.limits.rows_max));
        let upto = place.seq.saturating_add(self.span(ask));
        let Connected { session, names, .. } = self.connect().await?;
        // Boxed, since three answers being read are large.
        let all = Box::pin(async {
            tokio::join!(
                read_source(session, names),
                read_rows(session, names, (place.seq, upto), ask, limits),
                read_floor(session, names),
            )
        });
        let (source, read, floor) = match timeout(BATCH_WAIT, session.driving(all)).await {
            Ok(answers) => answers,
            Err(_) => return Err(OutboxError::TimedOut(BATCH_WAIT.as_secs())),
        };
        let mut source = source?;
        let epoch = match source.standing(place)? {
            Standing::Ready(epoch) => epoch,
            Standing::Wait => return Ok(None),
        };
        self.safe = source.safe;
        if source.safe == place.seq {
            return Ok(None);
        }
        let (mut rows, end) = read?;
        source.floor = floor?;
        source.standing(place)?;
        self.ask = match end {
            End::Bytes => u32::try_from(rows.len()).unwrap_or(u32::MAX),
            End::Asked | End::All => ask.saturating_mul(2).min(limits.rows_max),
        };
        // The rows were read a moment later than the bound, up to a bound that may be higher.
        let bound = source.safe.min(upto);
        let settled = rows.partition_point(|row| row.seq <= bound);
        let complete = end == End::All || settled < rows.len();
        rows.truncate(settled);
        let last = rows.last().map_or(bound, |row| row.seq);
        let through = if complete { bound } else { last };
        self.sparse = rows.is_empty();
        Ok(Some(Batch { epoch, after: place.seq, through, rows }))
    }

    /// Over how many numbers rows are looked for: not over all that are settled, because PostgreSQL
    /// may choose to read and sort all of those for each batch while it has no fresh statistics.
    /// Where numbers have no rows there is nothing to sort.
    fn span(&self, ask: u32) -> u64 {
        if self.sparse { u64::MAX } else { u64::from(ask.max(SPAN_LEAST)) * 2 }
    }

    /// Reports a temporary error, and waits a little longer each time.
    pub async fn trouble(&mut self, error: &OutboxError) {
        let wait = self.retries.failed();
        let server = self.database.server().to_owned();
        tracing::warn!(%error, server, ?wait, "the outbox cannot be read; trying again");
        self.connected = None;
        pause(wait).await;
    }

    /// Waits for a notification, or for the time of the next look.
    async fn wait(&mut self) {
        let wait = self.pace.nothing();
        let Some(connected) = &self.connected else { return pause(wait).await };
        if connected.listens {
            let _ = timeout(wait, connected.session.notified()).await;
        } else {
            pause(wait).await;
        }
    }

    async fn connect(&mut self) -> Result<&Connected, OutboxError> {
        if self.connected.is_none() {
            let session = self.database.connect().await?;
            let names = Names::read(&session, &self.database).await?;
            let listens = self.listen(&session, &names).await;
            let most = if listens { LOOK_MOST_HEARING } else { LOOK_MOST };
            self.pace = Pace::new(LOOK_LEAST, most);
            self.connected = Some(Connected { session, names, listens });
        }
        Ok(self.connected.as_ref().expect("it was just put there"))
    }

    /// Listens, and returns whether notifications come: through a pooler that gives each
    /// transaction another connection `LISTEN` succeeds and nothing ever comes.
    async fn listen(&mut self, session: &Session, names: &Names) -> bool {
        let probe = format!("{}_probe_{:016x}", names.schema, random("probe"));
        let sql = format!("LISTEN {}; LISTEN {probe}", names.channel);
        // A standby refuses to listen. That does no harm: it is polled often enough.
        let asked = session.run(&sql).await.is_ok();
        if asked {
            // From another connection: a pooler hands on what comes while a statement runs.
            let other = self.database.connect().await;
            if let Ok(other) = other
                && other.run(&format!("SELECT pg_notify('{probe}', '')")).await.is_ok()
            {
                let _ = timeout(PROBE_WAIT, session.notified()).await;
            }
            let _ = session.run(&format!("UNLISTEN {probe}")).await;
        }
        let hears = asked && session.hears();
        if asked && !hears && !std::mem::replace(&mut self.told_deaf, true) {
            tracing::warn!(
                server = self.database.server(),
                "notifications do not arrive (a pooler in transaction mode?); the outbox is \
                 looked at every {} ms instead",
                LOOK_MOST.as_millis()
            );
        }
        hears
    }
}

async fn read_source(session: &Session, names: &Names) -> Result<Source, OutboxError> {
    let sql = format!("SELECT safe, floor, standby, epochs FROM {}.source()", names.schema);
    let row = session.one(&sql, &[]).await?;
    let epochs: Option<String> = row.get(3);
    let begun = |text: &str| {
        let (id, after) = text.split_once(':')?;
        let id = EpochId(u128::from_str_radix(id, 16).ok()?);
        Some(Begun { id, after: after.parse().ok()? })
    };
    let epochs = epochs.unwrap_or_default().split(',').filter_map(begun).collect();
    let (safe, floor) = (unsigned(row.get(0)), unsigned(row.get(1)));
    Ok(Source { epochs, safe, floor, standby: row.get(2) })
}

async fn read_floor(session: &Session, names: &Names) -> Result<u64, OutboxError> {
    let sql = format!("SELECT floor_seq FROM {}.fence", names.schema);
    Ok(unsigned(session.one(&sql, &[]).await?.get(0)))
}

/// Why there are no more rows in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There are no more that are settled.
    All,
    /// No more were asked for.
    Asked,
    /// The next ones do not fit into the batch.
    Bytes,
}

/// Settled rows after a number, as many as the limits allow, and why they end there.
async fn read_rows(
    session: &Session,
    names: &Names,
    (after, upto): (u64, u64),
    ask: u32,
    limits: BatchLimits,
) -> Result<(Vec<Row>, End), OutboxError> {
    let Names { schema, outbox, .. } = names;
    let sql = format!(
        "SELECT {COLUMNS} FROM {schema}.{outbox}
         WHERE seq > $1 AND seq <= $4 AND seq <= (SELECT safe_seq FROM {schema}.fence)
         ORDER BY seq LIMIT $2"
    );
    let payload_max = i64::try_from(limits.payload_bytes_max).unwrap_or(i64::MAX);
    let numbers = [signed(after), i64::from(ask), payload_max, signed(upto)];
    let values = numbers.iter().map(|number| (number, Type::INT8));
    let stream = session.shared().query_typed_raw(&sql, values).await;
    let stream = stream.map_err(|error| session.error(&error))?;
    let mut stream = std::pin::pin!(stream);
    let mut rows = Vec::new();
    let mut bytes = 0;
    while let Some(row) = stream.try_next().await.map_err(|error| session.error(&error))? {
        let row = Row::read(&row)?;
        bytes += row.bytes();
        rows.push(row);
        if bytes >= limits.bytes_max {
            return Ok((rows, End::Bytes));
        }
    }
    let end = if rows.len() < ask as usize { End::All } else { End::Asked };
    Ok((rows, end))
}

pub(crate) fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(seq: i64) -> u64 {
    u64::try_from(seq).unwrap_or(0)
}
