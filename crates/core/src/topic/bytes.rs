//! The state of a topic as bytes, for checkpoints: a version, the numbers, then the ids
//! oldest first.
//!
//! Reading refuses what could not have been written, so that a damaged checkpoint is
//! noticed here and not by a hole in the numbers later.

use alloc::vec::Vec;
use core::time::Duration;

use super::Topic;
use crate::gap::GapReason;
use crate::id::Seq;
use crate::settings::DedupWindow;
use crate::time::{Timestamp, whole_ms};

const VERSION: u8 = 1;

/// A `next` beyond this cannot have been counted up to; it is damage.
const NEXT_MAX: u64 = u64::MAX / 2;

/// Why bytes are not a valid state of a topic. No topic was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicStateError {
    /// Another program wrote them.
    #[error("topic state has format {version}, not {VERSION}: use the program that wrote it")]
    Version {
        /// The format found.
        version: u8,
    },
    /// The bytes end too early or too late.
    #[error("topic state is cut short or too long: open without this checkpoint")]
    Length,
    /// The numbers contradict one another.
    #[error("topic state contradicts itself: open without this checkpoint")]
    Inconsistent,
}

impl Topic {
    /// Appends the whole state.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let window = self.window();
        out.push(VERSION);
        out.push(self.floor_reason.code());
        for number in [self.first.0, self.next.0, self.settled.0, whole_ms(window.time)] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&window.count.to_le_bytes());
        for (seq, time, id) in self.dedup.iter().flat_map(|dedup| dedup.iter()) {
            let length = u32::try_from(id.len()).expect("a message id is shorter than 4 GiB");
            out.extend_from_slice(&seq.0.to_le_bytes());
            out.extend_from_slice(&time.0.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(id);
        }
    }

    /// Reads a whole state back.
    pub fn decode(bytes: &[u8]) -> Result<Self, TopicStateError> {
        let mut bytes = Bytes(bytes);
        let [version] = bytes.array()?;
        if version != VERSION {
            return Err(TopicStateError::Version { version });
        }
        let [reason] = bytes.array()?;
        let floor_reason = GapReason::known(reason).ok_or(TopicStateError::Inconsistent)?;
        let [first, next, settled, time_ms] =
            [bytes.long()?, bytes.long()?, bytes.long()?, bytes.long()?];
        let count = bytes.int()?;
        let mut topic = Self::new(DedupWindow { time: Duration::from_millis(time_ms), count });
        topic.floor_reason = floor_reason;
        (topic.first, topic.next, topic.settled) = (Seq(first), Seq(next), Seq(settled));
        if first == 0 || first > next || settled >= next || next > NEXT_MAX {
            return Err(TopicStateError::Inconsistent);
        }
        let mut newest = Timestamp(0);
        while !bytes.0.is_empty() {
            let (seq, time) = (Seq(bytes.long()?), Timestamp(bytes.long()?));
            let length = usize::try_from(bytes.int()?).map_err(|_| TopicStateError::Length)?;
            let id = bytes.take(length)?;
            let fits = topic.remembers() && seq < topic.next && seq > Seq(0) && time >= newest;
            if !fits || topic.find(Timestamp(0), id).is_some() {
                return Err(TopicStateError::Inconsistent);
            }
            topic.insert(time, id, seq);
            newest = time;
        }
        Ok(topic)
    }
}

/// What is left to read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], TopicStateError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(TopicStateError::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TopicStateError> {
        self.take(N)?.try_into().map_err(|_| TopicStateError::Length)
    }

    fn int(&mut self) -> Result<u32, TopicStateError> {
        self.array().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, TopicStateError> {
        self.array().map(u64::from_le_bytes)
    }
}
