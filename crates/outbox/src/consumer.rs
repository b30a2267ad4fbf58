//! A consumer: catches up, then follows; its offset moves only after its work is done.
//!
//! The offset is a row of the database, moved by compare-and-set: two instances can never both
//! move it. Only the one with the lease reads; another waits and takes over. Work and offset
//! can share a transaction ([`Consumer::done_in`]), which makes it exactly-once; without one it is
//! at-least-once, and [`processed_once`] recognises repeats.

use std::str::FromStr;

use gapless_core::outbox::place::{EpochId, Place};
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::error::OutboxError;
use crate::install::{Names, writable};
use crate::lease::Lease;
use crate::names::Name;
use crate::reader::{Batch, BatchLimits, Reader, signed, unsigned};
use crate::row::Row;
use crate::session::Session;

/// After how many numbers without rows the offset is moved all the same.
const EMPTY_NUMBERS_MAX: u64 = 1_000;

/// Where a consumer begins that was never there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// With the first row there ever was; refused if retention removed some.
    #[default]
    Beginning,
    /// With the oldest row that is kept.
    Oldest,
    /// With what comes from now on.
    Now,
    /// After this seq.
    After(u64),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "beginning" => Ok(Self::Beginning),
            "oldest" => Ok(Self::Oldest),
            "now" => Ok(Self::Now),
            seq => seq
                .parse()
                .map(Self::After)
                .map_err(|_| "use beginning, oldest, now, or the seq to go on after".to_owned()),
        }
    }
}

/// How a consumer works.
#[derive(Clone, Debug, Default)]
pub struct ConsumerOptions {
    /// How much is read at once: larger batches let a slow consumer move its offset less often.
    pub limits: BatchLimits,
    /// Where it begins if it was never there.
    pub from: From,
    /// Where rows are read, if not where the offset is: a standby.
    pub read_from: Option<Database>,
}

/// One of the readers of an outbox, known by its name.
pub struct Consumer {
    name: String,
    database: Database,
    from: From,
    reader: Reader,
    lease: Lease,
    session: Option<(Session, Names)>,
    /// The offset as the database has it; read again when that is not sure.
    stored: Option<Place>,
    /// Up to where there was nothing to do since then.
    seen: u64,
}

impl Consumer {
    /// Creates a consumer; it connects when it is first used.
    ///
    /// # Errors
    /// When the name is empty or too long.
    pub fn open(
        database: Database,
        name: &str,
        options: ConsumerOptions,
    ) -> Result<Self, OutboxError> {
        if name.is_empty() || name.len() > 200 {
            let why = format!("{name:?} cannot be the name of a consumer: use 1 to 200 bytes");
            return Err(OutboxError::Dsn(why));
        }
        let lease = Lease::ask(database.clone(), format!("consumer {name}"));
        let source = options.read_from.unwrap_or_else(|| database.clone());
        Ok(Self {
            name: name.to_owned(),
            reader: Reader::new(source, options.limits),
            from: options.from,
            database,
            lease,
            session: None,
            stored: None,
            seen: 0,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next rows; waits for its turn and for rows. Trouble that passes is waited out.
    /// Asked again before [`Consumer::done`], it gives the same rows again.
    ///
    /// # Errors
    /// When reading on would skip something, or the database needs an operator's attention.
    pub async fn next(&mut self) -> Result<Batch, OutboxError> {
        loop {
            if !self.lease.is_owned() {
                self.stored = None;
                self.lease.owned().await;
            }
            let stored = match self.stored {
                Some(stored) => stored,
                None => match self.load().await {
                    Ok(stored) => stored,
                    Err(error) if error.passes() => {
                        self.session = None;
                        self.reader.trouble(&error).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            let batch = self.reader.next(Place { seq: self.seen, ..stored }).await?;
            if !batch.rows.is_empty() {
                return Ok(batch);
            }
            // Numbers of transactions that were rolled back: nothing to do.
            self.seen = batch.through;
            if self.seen - stored.seq >= EMPTY_NUMBERS_MAX {
                self.done(&batch).await?;
            }
        }
    }

    /// Moves the offset over a batch, after its work is done.
    ///
    /// # Errors
    /// When another instance has moved it, or when it is not known whether it is moved; then
    /// the same rows come again.
    pub async fn done(&mut self, batch: &Batch) -> Result<(), OutboxError> {
        let stored = self.stored.take().ok_or_else(|| self.taken())?;
        if self.session.is_none() {
            self.session = Some(self.connect().await?);
        }
        let (session, names) = self.session.as_ref().expect("it was just put there");
        let moved = session.within(move_offset(session.shared(), names, &self.name, stored, batch));
        match moved.await {
            Ok(true) => {
                self.stored = Some(Place { epoch: Some(batch.epoch), seq: batch.through });
                self.seen = batch.through;
                Ok(())
            }
            Ok(false) => Err(self.taken()),
            Err(error) => {
                self.session = None;
                Err(error)
            }
        }
    }

    /// Moves the offset in a transaction of the caller's, which also does the work. The caller
    /// commits it; what came of that is looked up before the next batch.
    ///
    /// # Errors
    /// When another instance has moved it: then the transaction is to be rolled back.
    pub async fn done_in(
        &mut self,
        transaction: &impl GenericClient,
        batch: &Batch,
    ) -> Result<(), OutboxError> {
        let stored = self.stored.take().ok_or_else(|| self.taken())?;
        if self.session.is_none() {
            self.session = Some(self.connect().await?);
        }
        let (session, names) = self.session.as_ref().expect("it was just put there");
        let moved = move_offset(transaction, names, &self.name, stored, batch).await;
        let moved = moved.map_err(|error| session.error(&error))?;
        if moved { Ok(()) } else { Err(self.taken()) }
    }

    /// Puts a row aside that cannot be dealt with, with why; once, however often it is called.
    /// Then the batch it is in can be done.
    ///
    /// # Errors
    /// When it is not known whether it is put aside.
    pub async fn bury(&mut self, row: &Row, attempts: u32, why: &str) -> Result<(), OutboxError> {
        if self.session.is_none() {
            self.session = Some(self.connect().await?);
        }
        let (session, names) = self.session.as_ref().expect("it was just put there");
        let sql = format!(
            "INSERT INTO {schema}.dead_letters (consumer, seq, op, event_id, topic_id, kind,
                 effective_key, reason, payload, attempts, error)
             SELECT $1, seq, op, event_id, topic_id, kind, effective_key, reason, payload, $3, $4
             FROM {schema}.{outbox} WHERE seq = $2
             ON CONFLICT DO NOTHING",
            schema = names.schema,
            outbox = names.outbox
        );
        let attempts = i32::try_from(attempts).unwrap_or(i32::MAX);
        let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] = [
            (&self.name, Type::TEXT),
            (&signed(row.seq), Type::INT8),
            (&attempts, Type::INT4),
            (&why, Type::TEXT),
        ];
        let buried = session.rows(&sql, &values).await;
        if buried.is_err() {
            self.session = None;
        }
        buried.map(|_| ())
    }

    /// Stops, and lets another instance take over at once.
    pub async fn close(self) {
        self.lease.release().await;
    }

    fn taken(&self) -> OutboxError {
        OutboxError::Taken { consumer: self.name.clone() }
    }

    async fn connect(&self) -> Result<(Session, Names), OutboxError> {
        let session = writable(&self.database).await?;
        let names = Names::read(&session, &self.database).await?;
        Ok((session, names))
    }

    /// Reads the offset; creates it if the consumer was never there.
    async fn load(&mut self) -> Result<Place, OutboxError> {
        if self.session.is_none() {
            self.session = Some(self.connect().await?);
        }
        let (session, names) = self.session.as_ref().expect("it was just put there");
        let place = match read_offset(session, names, &self.name).await? {
            Some(place) => place,
            None => {
                create_offset(session, names, &self.name, self.from).await?;
                let place = read_offset(session, names, &self.name).await?;
                place.ok_or_else(|| OutboxError::NoConsumer { consumer: self.name.clone() })?
            }
        };
        self.stored = Some(place);
        self.seen = place.seq;
        Ok(place)
    }
}

async fn read_offset(
    session: &Session,
    names: &Names,
    consumer: &str,
) -> Result<Option<Place>, OutboxError> {
    let Names { schema, offsets, .. } = names;
    let sql = format!(
        "SELECT last_seq, replace(epoch::text, '-', '') FROM {schema}.{offsets} WHERE consumer = $1"
    );
    let rows = session.rows(&sql, &[(&consumer, Type::TEXT)]).await?;
    Ok(rows.first().map(|row| {
        let epoch: Option<&str> = row.get(1);
        let epoch = epoch.and_then(|text| u128::from_str_radix(text, 16).ok()).map(EpochId);
        Place { epoch, seq: unsigned(row.get(0)) }
    }))
}

async fn create_offset(
    session: &Session,
    names: &Names,
    consumer: &str,
    from: From,
) -> Result<(), OutboxError> {
    let Names { schema, offsets, .. } = names;
    let seq = seq_of(from);
    let sql = format!(
        "INSERT INTO {schema}.{offsets} (consumer, last_seq)
         SELECT $1, {seq} FROM {schema}.fence ON CONFLICT DO NOTHING"
    );
    session.rows(&sql, &[(&consumer, Type::TEXT)]).await.map(|_| ())
}

/// The seq after which to begin, as an expression over the fence's row.
fn seq_of(from: From) -> String {
    match from {
        From::Beginning => "0".to_owned(),
        From::Oldest => "floor_seq".to_owned(),
        From::Now => "safe_seq".to_owned(),
        From::After(seq) => signed(seq).to_string(),
    }
}

/// Compare-and-set: moves the offset if it still is where it was; returns whether it did.
async fn move_offset(
    client: &impl GenericClient,
    names: &Names,
    consumer: &str,
    stored: Place,
    batch: &Batch,
) -> Result<bool, tokio_postgres::Error> {
    let Names { schema, offsets, .. } = names;
    let sql = format!(
        "UPDATE {schema}.{offsets}
         SET last_seq = $3, epoch = $4::text::uuid, updated_at = clock_timestamp()
         WHERE consumer = $1 AND last_seq = $2 AND epoch IS NOT DISTINCT FROM $5::text::uuid
         RETURNING true"
    );
    let text = |epoch: EpochId| format!("{:032x}", epoch.0);
    let (old, new) = (stored.epoch.map(text), text(batch.epoch));
    let moved = client
        .query_typed(
            &sql,
            &[
                (&consumer, Type::TEXT),
                (&signed(stored.seq), Type::INT8),
                (&signed(batch.through), Type::INT8),
                (&new, Type::TEXT),
                (&old, Type::TEXT),
            ],
        )
        .await?;
    Ok(!moved.is_empty())
}

/// Records in the database a reader whose offset is kept elsewhere, for the list of consumers.
/// It may be late or lost: nothing but the list depends on it.
pub struct Mirror {
    database: Database,
    consumer: String,
    session: Option<(Session, Names)>,
}

impl Mirror {
    /// For a reader of this name.
    pub fn new(database: Database, consumer: &str) -> Self {
        Self { database, consumer: consumer.to_owned(), session: None }
    }

    /// Records how far the reader is.
    ///
    /// # Errors
    /// When the database cannot be reached or written.
    pub async fn tell(&mut self, place: Place) -> Result<(), OutboxError> {
        if self.session.is_none() {
            let session = writable(&self.database).await?;
            let names = Names::read(&session, &self.database).await?;
            self.session = Some((session, names));
        }
        let (session, names) = self.session.as_ref().expect("it was just put there");
        let Names { schema, offsets, .. } = names;
        let sql = format!(
            "INSERT INTO {schema}.{offsets} AS o (consumer, last_seq, epoch)
             VALUES ($1, $2, $3::text::uuid)
             ON CONFLICT (consumer) DO UPDATE
             SET last_seq = excluded.last_seq, epoch = excluded.epoch,
                 updated_at = clock_timestamp()
             WHERE o.last_seq <> excluded.last_seq"
        );
        let epoch = place.epoch.map(|epoch| format!("{:032x}", epoch.0));
        let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&self.consumer, Type::TEXT), (&signed(place.seq), Type::INT8), (&epoch, Type::TEXT)];
        let told = session.rows(&sql, &values).await;
        if told.is_err() {
            self.session = None;
        }
        told.map(|_| ())
    }
}

/// Puts a consumer somewhere else: back for a replay, to the beginning for a rebuild. A running
/// instance notices at its next step and goes on from there. Returns the seq.
///
/// # Errors
/// When there is no such consumer, or the place was removed by retention or does not exist yet.
pub async fn reset(database: &Database, consumer: &str, to: From) -> Result<u64, OutboxError> {
    let session = writable(database).await?;
    let names = Names::read(&session, database).await?;
    let mut reader = Reader::new(database.clone(), BatchLimits::default());
    let source = reader.source().await?;
    if let From::After(seq) = to {
        source.standing(Place { epoch: None, seq })?;
    }
    let Names { schema, offsets, .. } = &names;
    let sql = format!(
        "UPDATE {schema}.{offsets} SET last_seq = (SELECT {} FROM {schema}.fence), epoch = NULL,
                updated_at = clock_timestamp()
         WHERE consumer = $1 RETURNING last_seq",
        seq_of(to)
    );
    let moved = session.rows(&sql, &[(&consumer, Type::TEXT)]).await?;
    let no_consumer = || OutboxError::NoConsumer { consumer: consumer.to_owned() };
    Ok(unsigned(moved.first().ok_or_else(no_consumer)?.get(0)))
}

/// Whether this is the first time that a consumer does an event; in the transaction of what it
/// does. For work that must not be done twice, such as counting.
///
/// # Errors
/// When PostgreSQL refuses it.
pub async fn processed_once(
    transaction: &impl GenericClient,
    schema: &Name,
    consumer: &str,
    event_id: &str,
) -> Result<bool, tokio_postgres::Error> {
    let sql = format!("SELECT {schema}.processed_once($1, $2)");
    let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&consumer, Type::TEXT), (&event_id, Type::TEXT)];
    let rows = transaction.query_typed(&sql, &values).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
