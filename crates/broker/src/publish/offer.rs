//! Offering messages to a topic: it numbers them, knows them already, or refuses them.

use gapless_core::batch::FLAG_IDS;
use gapless_core::topic::{Effect, Input};
use gapless_core::{
    Accepted, Durability, Expect, Position, PublishAck, Record, Records, RecordsBuilder,
    RejectReason, Seq, Timestamp,
};

use crate::checked::after_topic_step;
use crate::publish::Publishing;
use crate::topic::live_topic::LiveTopicState;

/// What the records of a publish are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// All of them with one ack.
    Together,
    /// Each with its own: they were published one by one, and gathered.
    Each,
}

/// The numbers that a topic gave to messages.
#[derive(Debug)]
pub(crate) struct Numbers {
    count: u32,
    /// That of the first message that is new.
    pub(crate) first: Seq,
    /// Which messages were there already, by their index, and under what seq.
    known: Vec<(u32, Seq)>,
}

/// Offers records to a topic, all or none; those that it knows already are passed over.
pub(crate) fn offer(
    records: &Records,
    (expect, key_last): (Option<Expect>, Option<Seq>),
    state: &mut LiveTopicState,
    now: Timestamp,
) -> Result<Numbers, RejectReason> {
    let ids: Vec<(u32, &[u8])> =
        if records.flags & FLAG_IDS == 0 { Vec::new() } else { ids_of(records) };
    let mut effects = Vec::new();
    let input = Input::Offer { count: records.count, ids: &ids, expect, key_last };
    state.machine.step(now, input, &mut effects);
    after_topic_step(&state.machine);
    let mut numbers = Numbers { count: records.count, first: Seq(0), known: Vec::new() };
    for effect in effects {
        match effect {
            Effect::Accepted { first, .. } => numbers.first = first,
            Effect::Rejected(reason) => return Err(reason),
            Effect::Duplicate { index, seq } => numbers.known.push((index, seq)),
            Effect::Trimmed(_) | Effect::Visible { .. } | Effect::Mismatch { .. } => {}
        }
    }
    Ok(numbers)
}

/// Which of these messages an offer would find to be known; `None` if nothing of it can be new.
/// Nothing is changed.
pub(crate) fn preview(
    records: &Records,
    (expect, key_last): (Option<Expect>, Option<Seq>),
    state: &LiveTopicState,
    now: Timestamp,
) -> Option<Numbers> {
    let ids = if records.flags & FLAG_IDS == 0 { Vec::new() } else { ids_of(records) };
    let known = state.machine.preview(now, &ids, expect, key_last)?;
    let known = known.into_iter().map(|index| (index, Seq(0))).collect();
    let numbers = Numbers { count: records.count, first: Seq(0), known };
    (!numbers.all_known()).then_some(numbers)
}

impl Numbers {
    /// Numbers of messages none of which was there.
    pub(crate) fn fresh(first: Seq, count: u32) -> Self {
        Self { count, first, known: Vec::new() }
    }

    /// How many were there already.
    pub(crate) fn known(&self) -> u32 {
        self.known.len() as u32
    }

    /// Whether all were.
    pub(crate) fn all_known(&self) -> bool {
        self.known() == self.count
    }

    /// The records that are new; `None` if that is all of them.
    pub(crate) fn only_new(&self, records: &Records) -> Option<Records> {
        if self.known.is_empty() {
            return None;
        }
        let mut fresh = RecordsBuilder::with_capacity(records.bytes.len());
        for record in records.iter() {
            if self.known.binary_search_by_key(&record.offset, |(index, _)| *index).is_err() {
                fresh.push_record(&Record { offset: fresh.count(), ..record });
            }
        }
        Some(fresh.finish())
    }

    /// Adds the acks. `position` is that of the first new message, if there is one and it is
    /// in the journal. What durability they reach is put in later.
    pub(crate) fn put_acks(self, acks: Acks, position: Position, out: &mut Publishing) {
        let place = |at: u64| if position == Position(0) { position } else { position.plus(at) };
        let ack = |first: Seq, last: Seq, position: Position, duplicate: bool| {
            let durability = Durability::Memory;
            PublishAck::Accepted(Accepted { first, last, position, durability, duplicate })
        };
        if acks == Acks::Together {
            let seqs = || self.known.iter().map(|(_, seq)| *seq);
            let ack = match (seqs().min(), seqs().max()) {
                (Some(first), Some(last)) if self.all_known() => ack(first, last, place(0), true),
                _ => {
                    let more = u64::from(self.count - self.known()) - 1;
                    ack(self.first, self.first.plus(more), place(more), false)
                }
            };
            if !self.known.is_empty() {
                out.known.push((out.acks.len(), self.known));
            }
            out.acks.push(ack);
            return;
        }
        let (mut known, mut fresh) = (self.known.iter().peekable(), 0);
        out.acks.extend((0..self.count).map(|index| {
            match known.next_if(|(known, _)| *known == index) {
                Some((_, seq)) => ack(*seq, *seq, Position(0), true),
                None => {
                    let seq = self.first.plus(fresh);
                    fresh += 1;
                    ack(seq, seq, place(fresh - 1), false)
                }
            }
        }));
    }
}

/// The ids of records, each with the index of its message.
fn ids_of(records: &Records) -> Vec<(u32, &[u8])> {
    records.iter().filter_map(|record| Some((record.offset, record.id?))).collect()
}
