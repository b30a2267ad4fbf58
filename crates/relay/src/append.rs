//! Appending: batches one after the other, several on their way to the disk at a time.
//!
//! Each append is conditional on the cell as the one before it left it. So they need not wait for
//! each other: if one is refused, so are all after it, and the cell says where to go on.

use std::collections::VecDeque;

use gapless_core::{RejectReason, TopicName};
use gapless_outbox::{Batch, EpochId, OutboxError, Place, Row};
use metrics::counter;
use tokio::sync::mpsc;

use crate::message::{Parts, Refusal, dead_letter};
use crate::place::{Kept, Standing};
use crate::relay::{RelayError, RelayOptions};
use crate::target::{Answer, Step, Target, TargetError};

/// Appends that wait for the disk at a time: reading goes on during a slow flush.
const IN_FLIGHT_MAX: usize = 4;
/// Most topics of one append: all are locked at the same time.
const TOPICS_MAX: usize = 256;
/// After how many numbers without rows the offset is moved all the same.
const EMPTY_NUMBERS_MAX: u64 = 1_000;
/// Largest payload of a dead letter, in bytes: it has to fit under any limit.
const DEAD_PAYLOAD_MAX: usize = 64 * 1024;

/// Why appending ended. What became of appends that were under way is in the cell.
pub(crate) enum Ended {
    /// The lease is another's now.
    Lease,
    /// The broker refused an append because of what is in it: its batch is to be read again, and
    /// appended step by step.
    Careful,
    /// It cannot go on like this.
    Failed(RelayError),
}

/// A part of a batch that is appended in one step.
struct Part<'a> {
    rows: &'a [Row],
    epoch: EpochId,
    /// Up to where the offset moves with it.
    through: u64,
}

/// An append that was handed to the broker.
struct Flight {
    answer: Answer,
    rows: usize,
    place: Place,
}

/// What appending needs of a relay.
pub(crate) struct Appending<'a> {
    target: &'a Target,
    options: &'a RelayOptions,
    cell: &'a str,
    /// Called with the place up to which everything is in the topics, whenever that moves.
    landed: &'a mut (dyn FnMut(Place) + Send + Sync),
}

impl<'a> Appending<'a> {
    pub(crate) fn new(
        target: &'a Target,
        options: &'a RelayOptions,
        cell: &'a str,
        landed: &'a mut (dyn FnMut(Place) + Send + Sync),
    ) -> Self {
        Self { target, options, cell, landed }
    }

    /// Appends what comes, while it may; the first batch step by step if care is asked for.
    pub(crate) async fn run(
        &mut self,
        mut standing: Standing,
        mut batches: mpsc::Receiver<Result<Batch, OutboxError>>,
        mut careful: bool,
        may: impl Fn() -> bool,
    ) -> Ended {
        let mut flying = VecDeque::new();
        loop {
            let batch = tokio::select! {
                biased;
                ended = self.land(&mut flying), if !flying.is_empty() => match ended {
                    Ok(()) => continue,
                    Err(ended) => return ended,
                },
                batch = batches.recv(), if flying.len() < IN_FLIGHT_MAX => batch,
            };
            if !may() {
                return Ended::Lease;
            }
            // The reader ends after this does.
            let Some(batch) = batch else { return Ended::Lease };
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    return match self.land_all(&mut flying).await {
                        Ok(()) => Ended::Failed(error.into()),
                        Err(ended) => ended,
                    };
                }
            };
            if batch.rows.is_empty() && batch.through - standing.stored < EMPTY_NUMBERS_MAX {
                // Numbers of transactions that were rolled back: the offset moves over them
                // together with the next rows.
                standing.kept = standing.kept.moved(batch.epoch, batch.through, None);
                continue;
            }
            let part = Part { rows: &batch.rows, epoch: batch.epoch, through: batch.through };
            let parts = if careful { None } else { self.encode(&part, None).ok() };
            let Some(parts) = parts else {
                if let Err(ended) = self.land_all(&mut flying).await {
                    return ended;
                }
                if let Err(error) = self.append(&batch, &mut standing).await {
                    return Ended::Failed(error);
                }
                careful = false;
                (self.landed)(standing.kept.place());
                continue;
            };
            let (step, kept) = step_of(&part, parts, &standing);
            let answer = self.target.commit(self.cell, &step);
            standing.moved(kept, step.value);
            let (rows, place) = (batch.rows.len(), standing.kept.place());
            flying.push_back(Flight { answer, rows, place });
        }
    }

    /// Waits for the oldest append. It stays where it is until its answer came, so that this can
    /// be given up and called again.
    async fn land(&mut self, flying: &mut VecDeque<Flight>) -> Result<(), Ended> {
        let Some(flight) = flying.front_mut() else { return Ok(()) };
        let answer = (&mut flight.answer).await;
        let flight = flying.pop_front().expect("it was just there");
        match answer {
            Ok(()) => {
                counter!("gapless_outbox_relayed_rows_total").increment(flight.rows as u64);
                (self.landed)(flight.place);
                Ok(())
            }
            Err(TargetError::Rejected(RejectReason::UnknownTopic)) => Err(Ended::Careful),
            Err(error) if error.is_the_messages() => Err(Ended::Careful),
            Err(error) => Err(Ended::Failed(RelayError::Target(error))),
        }
    }

    async fn land_all(&mut self, flying: &mut VecDeque<Flight>) -> Result<(), Ended> {
        while !flying.is_empty() {
            self.land(flying).await?;
        }
        Ok(())
    }

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
        let parts = self.encode(part, dead).map_err(Stepped::Halve)?;
        let (step, kept) = step_of(part, parts, standing);
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
        standing.moved(kept, step.value);
        Ok(())
    }

    /// The messages of a part, or the dead letters.
    fn encode(&self, part: &Part<'_>, dead: Option<&Refusal>) -> Result<Parts, Refusal> {
        let naming = &self.options.naming;
        let mut parts = Parts::default();
        for row in part.rows {
            match dead {
                None => parts.push(row, naming)?,
                Some(why) => {
                    let letter = dead_letter(row, why, DEAD_PAYLOAD_MAX);
                    parts.push_message(&naming.dead_letters, &letter)?;
                }
            }
        }
        if parts.topics() > TOPICS_MAX {
            return Err(Refusal::Limit("too many topics at once".to_owned()));
        }
        Ok(parts)
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

/// What is appended for a part, and where the relay stands then.
fn step_of(part: &Part<'_>, parts: Parts, standing: &Standing) -> (Step, Kept) {
    let last = part.rows.last().map(|row| (row.seq, row.event_id.as_str()));
    let kept = standing.kept.moved(part.epoch, part.through, last);
    let value = kept.to_cell();
    (Step { parts: parts.finish(), expect: standing.expect.clone(), value }, kept)
}

/// Why a step was not taken.
enum Stepped {
    /// Because of one of its rows.
    Halve(Refusal),
    Failed(RelayError),
}
