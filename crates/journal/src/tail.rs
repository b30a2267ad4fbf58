//! The newest frames, in memory, shared by all readers.
//!
//! Every settled frame is here until it is in a segment, and longer while the budget lasts.
//! So whatever is not in the tail is in a segment: a reader needs no third place. Of a frame
//! without messages only the numbers stay: its bytes are for replay, and that reads the log.

use std::collections::VecDeque;

use bytes::Bytes;
use gapless_core::Position;

use crate::frame::extent;
use crate::gather::Frame;
use crate::log::Lsn;

/// What a frame costs in memory beside its bytes, roughly: its places in topics and here.
const OVERHEAD_BYTES: u64 = 256;

/// A frame that can be read.
#[derive(Clone, Debug)]
pub(crate) struct TailFrame {
    pub(crate) lsn: Lsn,
    pub(crate) last: Position,
    /// What it holds; nothing if no messages are among that.
    pub(crate) bytes: Bytes,
    /// How many bytes it takes in the log.
    log_bytes: u64,
}

impl TailFrame {
    pub(crate) fn new(lsn: Lsn, last: Position, bytes: Bytes, has_messages: bool) -> Self {
        let log_bytes = extent(bytes.len());
        let bytes = if has_messages { bytes } else { Bytes::new() };
        Self { lsn, last, bytes, log_bytes }
    }

    fn memory_bytes(&self) -> u64 {
        self.bytes.len() as u64 + OVERHEAD_BYTES
    }
}

#[derive(Debug)]
pub(crate) struct Tail {
    frames: VecDeque<TailFrame>,
    /// The last position that is in a segment.
    sealed: Position,
    /// The first position that may be here; all below is in segments only.
    first: Position,
    memory_bytes: u64,
    unsealed_memory_bytes: u64,
    unsealed_log_bytes: u64,
}

impl Tail {
    pub(crate) fn new(sealed: Position) -> Self {
        Self {
            frames: VecDeque::new(),
            sealed,
            first: sealed.next(),
            memory_bytes: 0,
            unsealed_memory_bytes: 0,
            unsealed_log_bytes: 0,
        }
    }

    pub(crate) fn push_settled(&mut self, frame: &Frame) {
        let (bytes, has_messages) = (frame.bytes.clone(), frame.has_messages());
        self.push(TailFrame::new(frame.lsn, frame.last, bytes, has_messages));
    }

    pub(crate) fn push(&mut self, frame: TailFrame) {
        self.memory_bytes += frame.memory_bytes();
        self.unsealed_memory_bytes += frame.memory_bytes();
        self.unsealed_log_bytes += frame.log_bytes;
        self.frames.push_back(frame);
    }

    /// The last position that is in a segment.
    pub(crate) fn sealed(&self) -> Position {
        self.sealed
    }

    /// The last position that can be served from here, or the sealed one when it is empty.
    pub(crate) fn last(&self) -> Position {
        self.frames.back().map_or(self.sealed, |frame| frame.last)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn unsealed_memory_bytes(&self) -> u64 {
        self.unsealed_memory_bytes
    }

    pub(crate) fn unsealed_log_bytes(&self) -> u64 {
        self.unsealed_log_bytes
    }

    /// How many frames are in no segment yet.
    pub(crate) fn unsealed_frames(&self) -> usize {
        self.frames.len() - self.frames.partition_point(|frame| frame.last <= self.sealed)
    }

    /// The frames that hold `from` and what comes after it, up to `bytes_max` but at least
    /// one. `None` when `from` lies before the tail.
    pub(crate) fn read(&self, from: Position, bytes_max: usize) -> Option<Vec<TailFrame>> {
        if from < self.first {
            return None;
        }
        let start = self.frames.partition_point(|frame| frame.last < from);
        let mut bytes = 0;
        let taken = self.frames.iter().skip(start).take_while(|frame| {
            let before = bytes;
            bytes += frame.bytes.len();
            before == 0 || bytes <= bytes_max
        });
        Some(taken.cloned().collect())
    }

    /// The frames that are in no segment yet, oldest first, until they take at least so many bytes
    /// of the log.
    pub(crate) fn unsealed(&self, log_bytes_min: u64) -> Vec<TailFrame> {
        let start = self.frames.partition_point(|frame| frame.last <= self.sealed);
        let mut bytes = 0;
        let is_wanted = |frame: &&TailFrame| {
            let before = bytes;
            bytes += frame.log_bytes;
            before < log_bytes_min
        };
        self.frames.iter().skip(start).take_while(is_wanted).cloned().collect()
    }

    /// Notes that everything through `position` is in a segment now.
    pub(crate) fn seal(&mut self, position: Position) {
        for frame in self.frames.iter().filter(|each| each.last > self.sealed) {
            if frame.last > position {
                break;
            }
            self.unsealed_memory_bytes -= frame.memory_bytes();
            self.unsealed_log_bytes -= frame.log_bytes;
        }
        self.sealed = self.sealed.max(position);
    }

    /// Drops sealed frames from the old end until at most `bytes_max` are left.
    pub(crate) fn evict(&mut self, bytes_max: u64) -> Vec<TailFrame> {
        let mut evicted = Vec::new();
        while self.memory_bytes > bytes_max {
            let Some(frame) = self.pop_through(self.sealed) else { break };
            evicted.push(frame);
        }
        evicted
    }

    /// Drops sealed frames from the old end up to a position.
    pub(crate) fn evict_through(&mut self, position: Position) -> Vec<TailFrame> {
        let through = position.min(self.sealed);
        std::iter::from_fn(|| self.pop_through(through)).collect()
    }

    /// Takes the oldest frame out if all of it lies up to a position.
    fn pop_through(&mut self, position: Position) -> Option<TailFrame> {
        let frame = self.frames.pop_front_if(|frame| frame.last <= position)?;
        self.memory_bytes -= frame.memory_bytes();
        self.first = frame.last.next();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(lsn: u64, last: u64) -> TailFrame {
        let bytes = Bytes::from(vec![0; 100]);
        TailFrame::new(Lsn(lsn), Position(last), bytes, true)
    }

    #[test]
    fn only_sealed_frames_are_evicted_and_a_read_before_the_tail_is_told() {
        let mut tail = Tail::new(Position(10));
        for lsn in 0..4 {
            tail.push(frame(lsn, 20 + lsn * 10));
        }
        assert!(tail.evict(0).is_empty());
        tail.seal(Position(30));
        assert_eq!(tail.unsealed(u64::MAX).len(), 2);
        assert_eq!(tail.unsealed_frames(), 2);
        assert_eq!(tail.unsealed(1).len(), 1);
        assert_eq!(tail.evict(0).len(), 2);
        assert_eq!(tail.first, Position(31));
        assert!(tail.read(Position(30), 1000).is_none());
        assert_eq!(tail.read(Position(35), 1).unwrap().len(), 1);
        assert_eq!(tail.read(Position(35), 1000).unwrap().len(), 2);
        assert!(tail.read(Position(51), 1000).unwrap().is_empty());
        tail.seal(Position(50));
        tail.evict(0);
        assert_eq!((tail.memory_bytes(), tail.unsealed_log_bytes()), (0, 0));
        assert_eq!(tail.last(), Position(50));
    }

    #[test]
    fn a_frame_without_messages_holds_its_place_and_no_memory() {
        let mut tail = Tail::new(Position(10));
        tail.push(TailFrame::new(Lsn(1), Position(20), Bytes::from(vec![0; 5000]), false));
        assert_eq!((tail.memory_bytes(), tail.unsealed_log_bytes()), (OVERHEAD_BYTES, 8192));
        assert_eq!((tail.last(), tail.read(Position(11), 1).unwrap().len()), (Position(20), 1));
    }
}
