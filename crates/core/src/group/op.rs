//! What a group writes down: the changes that must survive.
//!
//! One format serves the journal and checkpoints: an entry holds the changes of one call, a
//! checkpoint those that would lead to the state as it is. Positions are encoded as the distance
//! from the one before, so that an ack of neighbours takes a few bytes.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use bytes::Bytes;

use super::letter::{LetterFilter, Redrive};
use super::settings::GroupSettings;
use crate::batch::{put_varint, take_bytes, take_varint};
use crate::gap::GapReason;
use crate::id::{Position, Seq};
use crate::name::TopicName;
use crate::pattern::Pattern;
use crate::time::Timestamp;

/// Most bytes of an error that is kept; what is longer is cut.
pub const ERROR_BYTES_MAX: usize = 1024;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The group was created.
    Created {
        /// Its name.
        name: TopicName,
        /// Its settings.
        settings: Box<GroupSettings>,
        /// Everything up to here counts as done.
        floor: Position,
        /// What was gone up to here when it began does not count as a gap.
        forgiven: Position,
    },
    /// It was given other settings.
    Configured(Box<GroupSettings>),
    /// It is gone.
    Deleted,
    /// Everything of its source between these, both included, is done.
    Done {
        /// The first.
        first: Position,
        /// The last.
        last: Position,
    },
    /// Deliveries of these neighbours failed.
    Failed {
        /// The first.
        first: Position,
        /// The last.
        last: Position,
        /// What became of them.
        failure: Failure,
    },
    /// It hands out nothing.
    Paused,
    /// It hands out again, and gaps up to here do not stop it any more.
    Resumed {
        /// Up to where.
        forgiven: Position,
    },
    /// It starts again after this position.
    Reset {
        /// Everything up to here counts as done.
        floor: Position,
        /// What was gone up to here does not count as a gap.
        forgiven: Position,
    },
    /// A gap stopped it.
    Stopped(Stop),
    /// These dead letters were redriven or removed.
    LettersEnded {
        /// The first.
        first: Seq,
        /// The last.
        last: Seq,
    },
    /// Dead letters are redriven gradually; or no more of them.
    Redrive(Option<Box<Redrive>>),
}

/// How often a message failed, and what is to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Deliveries that were counted.
    pub attempts: u32,
    /// It is not tried again but buried.
    pub dead: bool,
    /// When it may be tried again.
    pub due: Timestamp,
    /// When it failed for the first time.
    pub first_at: Timestamp,
    /// The error of the last failure.
    pub error: Arc<str>,
}

/// A gap that stopped a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The topic; `None` when it is not of one topic.
    pub topic: Option<TopicName>,
    /// The first seq that is missing, if it is known.
    pub from: Option<Seq>,
    /// The last one.
    pub to: Option<Seq>,
    /// No message that is missing lies beyond.
    pub through: Position,
    /// Why they are missing.
    pub reason: GapReason,
}

mod tag {
    pub(super) const CREATED: u8 = 1;
    pub(super) const CONFIGURED: u8 = 2;
    pub(super) const DELETED: u8 = 3;
    pub(super) const DONE: u8 = 4;
    pub(super) const FAILED: u8 = 5;
    pub(super) const PAUSED: u8 = 6;
    pub(super) const RESUMED: u8 = 7;
    pub(super) const RESET: u8 = 8;
    pub(super) const STOPPED: u8 = 9;
    pub(super) const LETTERS_ENDED: u8 = 10;
    pub(super) const REDRIVE: u8 = 11;
}

/// Cuts a text to what is kept of an error.
pub fn short_error(text: &str) -> &str {
    let mut end = text.len().min(ERROR_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes changes one after the other.
#[derive(Debug, Default)]
pub struct OpWriter {
    out: Vec<u8>,
    at: u64,
    error: Option<Arc<str>>,
}

impl OpWriter {
    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// Adds a change.
    pub fn put(&mut self, op: &Op) {
        match op {
            Op::Created { name, settings, floor, forgiven } => {
                self.out.push(tag::CREATED);
                self.text(name.as_str());
                self.settings(settings);
                self.number(floor.0);
                self.number(forgiven.0);
            }
            Op::Configured(settings) => {
                self.out.push(tag::CONFIGURED);
                self.settings(settings);
            }
            Op::Deleted => self.out.push(tag::DELETED),
            Op::Done { first, last } => {
                self.out.push(tag::DONE);
                self.range(first.0, last.0);
            }
            Op::Failed { first, last, failure } => {
                self.out.push(tag::FAILED);
                self.range(first.0, last.0);
                self.number(u64::from(failure.attempts));
                // The error of the failure before is not encoded again.
                let same = self.error.as_ref() == Some(&failure.error);
                self.out.push(u8::from(failure.dead) | u8::from(same) << 1);
                self.number(failure.due.0);
                self.number(failure.first_at.0);
                if !same {
                    self.text(&failure.error);
                    self.error = Some(Arc::clone(&failure.error));
                }
            }
            Op::Paused => self.out.push(tag::PAUSED),
            Op::Resumed { forgiven } => {
                self.out.push(tag::RESUMED);
                self.number(forgiven.0);
            }
            Op::Reset { floor, forgiven } => {
                self.out.push(tag::RESET);
                self.number(floor.0);
                self.number(forgiven.0);
            }
            Op::Stopped(stop) => {
                self.out.push(tag::STOPPED);
                self.text(stop.topic.as_ref().map_or("", TopicName::as_str));
                // Zero stands for none: seqs begin at one.
                self.number(stop.from.map_or(0, |seq| seq.0));
                self.number(stop.to.map_or(0, |seq| seq.0));
                self.number(stop.through.0);
                self.out.push(stop.reason.code());
            }
            Op::LettersEnded { first, last } => {
                self.out.push(tag::LETTERS_ENDED);
                self.number(first.0);
                self.number(last.0 - first.0);
            }
            Op::Redrive(redrive) => {
                self.out.push(tag::REDRIVE);
                self.redrive(redrive.as_deref());
            }
        }
    }

    /// The rate, zero for none; then of which letters.
    fn redrive(&mut self, redrive: Option<&Redrive>) {
        let Some(Redrive { which, rate }) = redrive else { return self.number(0) };
        self.number(u64::from(*rate));
        // Zero stands for none, by one more for what may be zero.
        self.number(which.from.map_or(0, |seq| seq.0));
        self.number(which.to.map_or(0, |seq| seq.0.saturating_add(1)));
        self.text(which.topic.as_ref().map_or("", Pattern::as_str));
        self.text(which.error.as_deref().unwrap_or_default());
        self.out.push(u8::from(which.key.is_some()));
        let key = which.key.as_deref().unwrap_or_default();
        self.number(key.len() as u64);
        self.out.extend_from_slice(key);
    }

    fn number(&mut self, number: u64) {
        put_varint(&mut self.out, number);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.out.extend_from_slice(text.as_bytes());
    }

    fn settings(&mut self, settings: &GroupSettings) {
        let mut bytes = Vec::new();
        settings.encode(&mut bytes);
        self.number(bytes.len() as u64);
        self.out.extend_from_slice(&bytes);
    }

    /// Both ends, the first as its distance from the last one encoded, forwards or back.
    fn range(&mut self, first: u64, last: u64) {
        let distance = first.wrapping_sub(self.at).cast_signed();
        let folded = ((distance << 1) ^ (distance >> 63)).cast_unsigned();
        self.number(folded);
        self.number(last - first);
        self.at = last;
    }
}

/// Why bytes are not valid changes of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("change {index} of a group cannot be read: {why}")]
pub struct OpError {
    /// Which change.
    pub index: usize,
    /// What is wrong.
    pub why: String,
}

/// Reads changes one after the other.
#[derive(Clone, Debug)]
pub struct OpReader<'a> {
    rest: &'a [u8],
    at: u64,
    error: Option<Arc<str>>,
    index: usize,
}

impl<'a> OpReader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0, error: None, index: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        take_varint(&mut self.rest)
    }

    fn part(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        take_bytes(&mut self.rest, len)
    }

    fn text(&mut self) -> Option<&'a str> {
        core::str::from_utf8(self.part()?).ok()
    }

    fn position(&mut self) -> Option<Position> {
        self.number().map(Position)
    }

    fn range(&mut self) -> Option<(Position, Position)> {
        let folded = self.number()?;
        let distance = (folded >> 1).cast_signed() ^ -((folded & 1).cast_signed());
        let first = self.at.wrapping_add(distance.cast_unsigned());
        let last = first.checked_add(self.number()?)?;
        self.at = last;
        Some((Position(first), Position(last)))
    }

    fn settings(&mut self) -> Option<Box<GroupSettings>> {
        GroupSettings::decode(self.part()?).ok().map(Box::new)
    }

    fn failure(&mut self) -> Option<Failure> {
        let attempts = u32::try_from(self.number()?).ok()?;
        let flags = self.byte()?;
        let (due, first_at) = (Timestamp(self.number()?), Timestamp(self.number()?));
        if flags & 2 == 0 {
            self.error = Some(Arc::from(self.text()?));
        }
        let error = self.error.clone()?;
        Some(Failure { attempts, dead: flags & 1 == 1, due, first_at, error })
    }

    fn redrive(&mut self) -> Option<Option<Box<Redrive>>> {
        let rate = u32::try_from(self.number()?).ok()?;
        if rate == 0 {
            return Some(None);
        }
        let from = Some(self.number()?).filter(|from| *from != 0).map(Seq);
        let to = self.number()?.checked_sub(1).map(Seq);
        let topic = match self.text()? {
            "" => None,
            text => Some(Pattern::parse(text).ok()?),
        };
        let error = Some(self.text()?).filter(|text| !text.is_empty()).map(String::from);
        let has_key = self.byte()? == 1;
        let key = Some(self.part()?).filter(|_| has_key).map(Bytes::copy_from_slice);
        let which = LetterFilter { from, to, topic, error, key };
        Some(Some(Box::new(Redrive { which, rate })))
    }

    fn stop(&mut self) -> Option<Stop> {
        let topic = self.text()?;
        let topic = if topic.is_empty() { None } else { Some(TopicName::parse(topic).ok()?) };
        let seq = |number: u64| (number != 0).then_some(Seq(number));
        Some(Stop {
            topic,
            from: seq(self.number()?),
            to: seq(self.number()?),
            through: self.position()?,
            reason: GapReason::known(self.byte()?)?,
        })
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.byte()? {
            tag::CREATED => Op::Created {
                name: TopicName::parse(self.text()?).ok()?,
                settings: self.settings()?,
                floor: self.position()?,
                forgiven: self.position()?,
            },
            tag::CONFIGURED => Op::Configured(self.settings()?),
            tag::DELETED => Op::Deleted,
            tag::DONE => {
                let (first, last) = self.range()?;
                Op::Done { first, last }
            }
            tag::FAILED => {
                let (first, last) = self.range()?;
                Op::Failed { first, last, failure: self.failure()? }
            }
            tag::PAUSED => Op::Paused,
            tag::RESUMED => Op::Resumed { forgiven: self.position()? },
            tag::RESET => Op::Reset { floor: self.position()?, forgiven: self.position()? },
            tag::STOPPED => Op::Stopped(self.stop()?),
            tag::LETTERS_ENDED => {
                let first = self.number()?;
                let last = first.checked_add(self.number()?)?;
                Op::LettersEnded { first: Seq(first), last: Seq(last) }
            }
            tag::REDRIVE => Op::Redrive(self.redrive()?),
            _ => return None,
        })
    }
}

impl Iterator for OpReader<'_> {
    type Item = Result<Op, OpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (index, tag) = (self.index, self.rest[0]);
        self.index += 1;
        let op = self.op();
        if op.is_none() {
            // What follows cannot be distinguished from it.
            self.rest = &[];
        }
        let why = || alloc::format!("kind {tag} is unknown, or it is damaged");
        Some(op.ok_or_else(|| OpError { index, why: why() }))
    }
}
