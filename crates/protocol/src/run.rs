//! Runs: single publishes joined into one batch.
//!
//! A busy client sends many publishes of one message each, and they arrive many at a time. Those
//! that are for one topic under the same options become the records of one batch, so that
//! what a batch costs is paid once; each still has its own ack. A run never fails: what is not
//! a plain publish ends it, and is decoded as any other frame.

use alloc::vec::Vec;
use gapless_core::{PublishOptions, Record, Records, RecordsBuilder, TopicName};

use crate::frame::{Decoder, FrameLimit};
use crate::kind::Kind;
use crate::verbs::publish::{check_record, plain_options, plain_options_bytes};

/// Most publishes of a run.
pub const RUN_PUBLISHES_MAX: usize = 512;
/// Largest payload of a publish in a run, in bytes: larger ones are not worth their copy.
pub const RUN_PAYLOAD_BYTES_MAX: usize = 4 * 1024;

/// Publishes of one message each, for one topic and under the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishRun {
    /// Where they go.
    pub topic: TopicName,
    /// What the publisher asks for; it expects nothing.
    pub options: PublishOptions,
    /// One message of each.
    pub records: Records,
    /// The id of each, for its ack.
    pub msg_ids: Vec<[u8; 16]>,
    /// How many bytes of the input they are.
    pub bytes: usize,
}

impl PublishRun {
    /// The run at the front of what was read; `None` if there are not two of its kind.
    pub fn look(input: &[u8], limit: FrameLimit) -> Option<Self> {
        let first = Plain::look(input, limit)?;
        let second = Plain::look(&input[first.bytes..], limit)?;
        if !second.goes_with(&first) {
            return None;
        }
        let topic = TopicName::parse(core::str::from_utf8(first.subject).ok()?).ok()?;
        let options = plain_options(first.options)?;
        let mut records = RecordsBuilder::with_capacity(input.len().min(RUN_BYTES_EXPECTED));
        let mut msg_ids = Vec::new();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(publish) = next {
            records.push_record(&Record { offset: records.count(), ..publish.record });
            msg_ids.push(publish.msg_id);
            bytes += publish.bytes;
            next = (msg_ids.len() < RUN_PUBLISHES_MAX)
                .then(|| Plain::look(&input[bytes..], limit))
                .flatten()
                .filter(|next| next.goes_with(&first));
        }
        Some(Self { topic, options, records: records.finish(), msg_ids, bytes })
    }
}

/// Room taken for the records of a run at first.
const RUN_BYTES_EXPECTED: usize = 64 * 1024;

/// A publish of one message, borrowed from what was read.
#[derive(Clone, Copy)]
struct Plain<'a> {
    msg_id: [u8; 16],
    subject: &'a [u8],
    options: &'a [u8],
    record: Record<'a>,
    bytes: usize,
}

impl<'a> Plain<'a> {
    fn look(input: &'a [u8], limit: FrameLimit) -> Option<Self> {
        let frame = Decoder::new(limit).peek(input).ok()??;
        if frame.kind != Kind::Publish.number() || frame.payload.len() > RUN_PAYLOAD_BYTES_MAX {
            return None;
        }
        let (options, record) =
            frame.payload.split_at_checked(plain_options_bytes(frame.payload)?)?;
        let record = Record::only(record).ok()?;
        check_record(&record).ok()?;
        let (msg_id, subject) = (frame.ids.msg_id, frame.subject);
        Some(Self { msg_id, subject, options, record, bytes: frame.bytes })
    }

    fn goes_with(&self, other: &Self) -> bool {
        self.subject == other.subject && self.options == other.options
    }
}
