//! The loop: read settled rows, append them with the offset, again.
//!
//! Reading goes on while batches are appended (`append.rs`). What the broker refuses because of a
//! single row is halved until that row is alone; it goes to the dead letters with its reason,
//! and the flow goes on. An append whose outcome is not known is looked up in the cell.

use std::time::Duration;

use gapless_core::backoff::{Backoff, Retries};
use gapless_core::{RejectReason, TopicName};
use gapless_outbox::{
    Batch, BatchLimits, Database, Lease, Mirror, OutboxError, Place, Reader, Standing as May,
};
use metrics::describe_counter;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::append::{Appending, Ended};
use crate::message::Naming;
use crate::place::Standing;
use crate::target::{Target, TargetError};

/// Batches that were read and wait to be appended; one more is being read.
const READ_AHEAD_MAX: usize = 1;
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
        let (tell, told) = watch::channel(None);
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
        leased: Option<(&Lease, &watch::Sender<Option<Place>>)>,
    ) -> Result<(), RelayError> {
        let mut careful = false;
        loop {
            let standing = self.stand().await?;
            let place = standing.kept.place();
            let (hand, batches) = mpsc::channel(READ_AHEAD_MAX);
            let Self { reader, target, options, cell, retries, .. } = &mut *self;
            let mut landed = |place| {
                retries.succeeded();
                if let Some((_, tell)) = leased {
                    tell.send_replace(Some(place));
                }
            };
            let may = || leased.is_none_or(|(lease, _)| lease.is_owned());
            let mut appending = Appending::new(target, options, cell, &mut landed);
            let ended = tokio::select! {
                ended = appending.run(standing, batches, careful, may) => ended,
                () = read(reader, place, hand) => continue,
            };
            careful = matches!(ended, Ended::Careful);
            match ended {
                Ended::Lease => return Ok(()),
                Ended::Careful => {}
                Ended::Failed(RelayError::Target(error)) => self.wait_out(error).await?,
                Ended::Failed(error) => return Err(error),
            }
        }
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

/// Reads on and on from a place; what cannot be waited out is the last that is handed over.
async fn read(
    reader: &mut Reader,
    mut place: Place,
    hand: mpsc::Sender<Result<Batch, OutboxError>>,
) {
    loop {
        let batch = reader.next(place).await;
        let next = batch.as_ref().ok().map(|batch| (batch.epoch, batch.through));
        // The other end is there as long as this is polled.
        let _ = hand.send(batch).await;
        match next {
            Some((epoch, seq)) => place = Place { epoch: Some(epoch), seq },
            None => return std::future::pending().await,
        }
    }
}

/// Records in the database now and then how far the relay is, for the list of consumers.
async fn keep_mirror(database: Database, name: String, mut told: watch::Receiver<Option<Place>>) {
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
