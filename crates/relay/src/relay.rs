//! The loop: read settled rows, append them with the offset, again.
//!
//! While a batch is being appended the next one is read. What the broker refuses because of a
//! single row is halved until that row is alone; it goes to the dead letters with its reason,
//! and the flow goes on. An append whose outcome is not known is looked up in the cell.

use std::time::Duration;

use gapless_core::backoff::{Backoff, Retries};
use gapless_core::{RejectReason, TopicName};
use gapless_outbox::{
    Batch, BatchLimits, Database, EpochId, Lease, Mirror, OutboxError, Place, Reader, Row,
    Standing as May,
};
use metrics::{counter, describe_counter};
use tokio::time::timeout;

use crate::message::{Naming, Parts, Refusal, dead_letter};
use crate::place::Standing;
use crate::target::{Step, Target, TargetError};

/// Most topics of one append: all are locked at the same time.
const TOPICS_MAX: usize = 256;
/// After how many numbers without rows the offset is moved all the same.
const EMPTY_NUMBERS_MAX: u64 = 1_000;
/// Largest payload of a dead letter, in bytes: it has to fit under any limit.
const DEAD_PAYLOAD_MAX: usize = 64 * 1024;
/// How often the database is informed how far the relay is.
const MIRROR_EVERY: Duration = Duration::from_secs(1);

/// How a relay works.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Its name: the offset is kept under it, so it is the same after a restart.
    pub name: String,
    /// How topics are named.
    pub naming: Naming,
    /// Whether topics that do not exist are created.
    pub create_topics: bool,
    /// How much is appended at once.
    pub limits: BatchLimits,
}

impl RelayOptions {
    /// A relay of this name.
    ///
    /// # Errors
    /// When the prefix gives no valid topic names.
    pub fn new(name: &str, prefix: &str) -> Result<Self, gapless_core::NameError> {
        let dead_letters = TopicName::parse(&format!("{prefix}outbox.dead"))?;
        let naming = Naming { prefix: prefix.to_owned(), dead_letters };
        let limits =
            BatchLimits { rows_max: 2_000, bytes_max: 1 << 20, payload_bytes_max: 8 << 20 };
        Ok(Self { name: name.to_owned(), naming, create_topics: false, limits })
    }
}

/// Why a relay ended. What was appended is in the topics, and the offset says how much.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The outbox needs an operator's attention.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// Topics that rows are for do not exist.
    #[error(
        "there is no topic {0}: create it with `gapless topic create {0}`, or let the relay \
         create topics with --create-topics"
    )]
    UnknownTopic(TopicName),
    /// A topic keeps nothing.
    #[error("a topic that rows are for is volatile: rows can only go into durable topics")]
    Volatile,
    /// The cell holds something else.
    #[error("the cell {0} holds no place in an outbox: another program uses the name")]
    NoPlace(String),
    /// The row that was appended last is another one in the database.
    #[error(
        "row {seq} of the outbox is not the one that was relayed: the database was replaced by \
         another copy; begin a new epoch with `gapless outbox epoch`, and look which messages \
         the topics have too many"
    )]
    OtherHistory {
        /// Which row.
        seq: u64,
    },
    /// The broker refuses what it should take.
    #[error(transparent)]
    Target(TargetError),
}

/// Moves rows of one outbox into topics.
pub struct Relay {
    database: Database,
    reader: Reader,
    target: Target,
    options: RelayOptions,
    cell: String,
    retries: Retries,
}

/// A part of a batch that is appended in one step.
struct Part<'a> {
    rows: &'a [Row],
    epoch: EpochId,
    /// Up to where the offset moves with it.
    through: u64,
}

impl Relay {
    /// A relay from a database to a broker.
    pub fn new(database: Database, target: Target, options: RelayOptions) -> Self {
        describe_counter!("gapless_outbox_relayed_rows_total", "Rows moved into topics.");
        describe_counter!("gapless_outbox_dead_letters_total", "Rows that cannot be messages.");
        let backoff = Backoff { first: Duration::from_millis(100), ..Backoff::default() };
        let seed = u64::from(std::process::id());
        Self {
            reader: Reader::new(database.clone(), options.limits),
            cell: format!("$outbox/{}", options.name),
            retries: Retries::new(backoff, seed).expect("a good schedule"),
            database,
            target,
            options,
        }
    }

    /// Works until `stop` resolves. A second relay of the same name waits for its turn.
    ///
    /// # Errors
    /// When going on needs an operator's attention; trouble that passes is waited out.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), RelayError> {
        tokio::select! {
            () = stop => Ok(()),
            ended = self.work() => ended,
        }
    }

    async fn work(&mut self) -> Result<(), RelayError> {
        let standby = loop {
            match self.reader.source().await {
                Ok(source) => break source.standby,
                Err(error) if error.passes() => self.reader.trouble(&error).await,
                Err(error) => return Err(error.into()),
            }
        };
        self.prepare_dead_letters().await?;
        if standby {
            // A standby cannot be written, so there is no lease: the condition on the cell is
            // what keeps two relays apart in any case.
            return self.relay(None).await;
        }
        let mut lease =
            Lease::ask(self.database.clone(), format!("consumer {}", self.options.name));
        let (tell, told) = tokio::sync::watch::channel(None);
        let mirroring = keep_mirror(self.database.clone(), self.options.name.clone(), told);
        let work = async {
            loop {
                lease.owned().await;
                self.relay(Some((&lease, &tell))).await?;
            }
        };
        tokio::select! {
            ended = work => ended,
            () = mirroring => Ok(()),
        }
    }

    /// Relays while the lease is ours.
    async fn relay(
        &mut self,
        leased: Option<(&Lease, &tokio::sync::watch::Sender<Option<Place>>)>,
    ) -> Result<(), RelayError> {
        let mut standing = self.stand().await?;
        let mut ahead: Option<Batch> = None;
        while leased.is_none_or(|(lease, _)| lease.is_owned()) {
            let place = standing.kept.place();
            let batch = match ahead.take().filter(|batch| batch.after == place.seq) {
                Some(batch) => batch,
                None => self.reader.next(place).await?,
            };
            let next = Place { epoch: Some(batch.epoch), seq: batch.through };
            if batch.rows.is_empty() && batch.through - batch.after < EMPTY_NUMBERS_MAX {
                // Numbers of transactions that were rolled back: the offset moves over them
                // together with the next rows.
                standing.kept = standing.kept.moved(batch.epoch, batch.through, None);
                continue;
            }
            let Self { reader, target, options, cell, .. } = &mut *self;
            let appending = Appending { target, options, cell };
            // What is known to be there is read meanwhile; else a notification says when.
            let more = batch.through < reader.safe();
            let read = async { if more { reader.poll(next).await } else { Ok(None) } };
            let (appended, read) = tokio::join!(appending.append(&batch, &mut standing), read);
            match appended {
                Ok(()) => {
                    self.retries.succeeded();
                    ahead = read.ok().flatten();
                    if let Some((_, tell)) = leased {
                        tell.send_replace(Some(standing.kept.place()));
                    }
                }
                Err(RelayError::Target(error)) => {
                    self.wait_out(error).await?;
                    standing = self.stand().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits before the next try, if a next try may help.
    async fn wait_out(&mut self, error: TargetError) -> Result<(), RelayError> {
        match &error {
            // Another relay was faster, or this one was without noticing.
            TargetError::Rejected(RejectReason::ExpectedCell) => Ok(()),
            TargetError::Rejected(RejectReason::QueueFull) => {
                self.target.room().await;
                Ok(())
            }
            TargetError::Trouble(_) => {
                let wait = self.retries.failed();
                tracing::warn!(%error, ?wait, "rows cannot be appended; trying again");
                let _ = timeout(wait, std::future::pending::<()>()).await;
                Ok(())
            }
            TargetError::Rejected(RejectReason::NotDurable) => Err(RelayError::Volatile),
            TargetError::Rejected(_) => Err(RelayError::Target(error)),
        }
    }

    /// Where the cell says that we stand, compared with the database.
    async fn stand(&mut self) -> Result<Standing, RelayError> {
        let standing = loop {
            match self.target.cell(&self.cell).await {
                Ok(cell) => {
                    let standing = Standing::read(cell);
                    break standing.ok_or_else(|| RelayError::NoPlace(self.cell.clone()))?;
                }
                Err(error) => self.wait_out(error).await?,
            }
        };
        let (seq, kept) = (standing.kept.event_seq, &standing.kept);
        loop {
            match self.compare(kept).await {
                Ok(true) => return Ok(standing),
                Ok(false) => return Err(RelayError::OtherHistory { seq }),
                Err(error) if error.passes() => self.reader.trouble(&error).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the last row that was relayed is the one that the database has.
    async fn compare(&mut self, kept: &crate::place::Kept) -> Result<bool, OutboxError> {
        let source = self.reader.source().await?;
        let waits = source.standing(kept.place())? == May::Wait;
        if kept.event_seq <= source.floor || waits {
            return Ok(true);
        }
        let found = self.reader.event_id(kept.event_seq).await?;
        Ok(found.is_some_and(|id| kept.remembers(&id)))
    }

    async fn prepare_dead_letters(&mut self) -> Result<(), RelayError> {
        let topic = self.options.naming.dead_letters.clone();
        loop {
            let has = match self.target.has(&topic).await {
                Ok(true) => return Ok(()),
                Ok(false) => self.target.create(&topic).await,
                Err(error) => Err(error),
            };
            if let Err(error) = has {
                self.wait_out(error).await?;
            }
        }
    }
}

/// Records in the database now and then how far the relay is, for the list of consumers.
async fn keep_mirror(
    database: Database,
    name: String,
    mut told: tokio::sync::watch::Receiver<Option<Place>>,
) {
    let mut mirror = Mirror::new(database, &name);
    while told.changed().await.is_ok() {
        let place = *told.borrow_and_update();
        if let Some(place) = place
            && let Err(error) = mirror.tell(place).await
        {
            tracing::debug!(%error, "the list of consumers is late");
        }
        let _ = timeout(MIRROR_EVERY, std::future::pending::<()>()).await;
    }
    std::future::pending::<()>().await;
}

/// What appending needs of a relay.
struct Appending<'a> {
    target: &'a Target,
    options: &'a RelayOptions,
    cell: &'a str,
}

impl Appending<'_> {
    /// Appends a batch, in as many steps as it takes.
    async fn append(&self, batch: &Batch, standing: &mut Standing) -> Result<(), RelayError> {
        let whole = Part { rows: &batch.rows, epoch: batch.epoch, through: batch.through };
        let mut left = vec![whole];
        while let Some(part) = left.pop() {
            let halved = match self.step(&part, standing, None).await {
                Ok(()) => continue,
                Err(Stepped::Halve(why)) => why,
                Err(Stepped::Failed(error)) => return Err(error),
            };
            match part.rows {
                [row] => match self.step(&part, standing, Some(&halved)).await {
                    Ok(()) => {
                        tracing::warn!(seq = row.seq, why = %halved, "a row is a dead letter");
                        counter!("gapless_outbox_dead_letters_total").increment(1);
                    }
                    Err(Stepped::Halve(why)) => {
                        return Err(RelayError::Target(TargetError::Trouble(why.to_string())));
                    }
                    Err(Stepped::Failed(error)) => return Err(error),
                },
                rows => {
                    let (first, second) = rows.split_at(rows.len() / 2);
                    let middle = first.last().map_or(batch.after, |row| row.seq);
                    left.push(Part { rows: second, ..part });
                    left.push(Part { rows: first, epoch: part.epoch, through: middle });
                }
            }
        }
        counter!("gapless_outbox_relayed_rows_total").increment(batch.rows.len() as u64);
        Ok(())
    }

    /// Appends a part, as messages or as a dead letter.
    async fn step(
        &self,
        part: &Part<'_>,
        standing: &mut Standing,
        dead: Option<&Refusal>,
    ) -> Result<(), Stepped> {
        let naming = &self.options.naming;
        let mut parts = Parts::default();
        for row in part.rows {
            match dead {
                None => parts.push(row, naming),
                Some(why) => {
                    let letter = dead_letter(row, why, DEAD_PAYLOAD_MAX);
                    parts.push_message(&naming.dead_letters, &letter)
                }
            }
            .map_err(Stepped::Halve)?;
        }
        if parts.topics() > TOPICS_MAX {
            return Err(Stepped::Halve(Refusal::Limit("too many topics at once".to_owned())));
        }
        let last = part.rows.last().map(|row| (row.seq, row.event_id.as_str()));
        let kept = standing.kept.moved(part.epoch, part.through, last);
        let value = kept.to_cell();
        let step = Step { parts: parts.finish(), expect: &standing.expect, value: value.clone() };
        loop {
            match self.target.commit(self.cell, &step).await {
                Ok(()) => break,
                Err(TargetError::Rejected(RejectReason::UnknownTopic)) => {
                    self.create_missing(step.topics()).await.map_err(Stepped::Failed)?;
                }
                Err(error) if error.is_the_messages() => {
                    return Err(Stepped::Halve(Refusal::Broker(error.to_string())));
                }
                Err(error) => return Err(Stepped::Failed(RelayError::Target(error))),
            }
        }
        standing.kept = kept;
        standing.expect = gapless_core::ExpectCell::Value(value);
        Ok(())
    }

    async fn create_missing(
        &self,
        topics: impl Iterator<Item = &TopicName>,
    ) -> Result<(), RelayError> {
        for topic in topics {
            if self.target.has(topic).await.map_err(RelayError::Target)? {
                continue;
            }
            if !self.options.create_topics && *topic != self.options.naming.dead_letters {
                return Err(RelayError::UnknownTopic(topic.clone()));
            }
            self.target.create(topic).await.map_err(RelayError::Target)?;
            tracing::info!(%topic, "created for the outbox");
        }
        Ok(())
    }
}

/// Why a step was not taken.
enum Stepped {
    /// Because of one of its rows.
    Halve(Refusal),
    Failed(RelayError),
}
