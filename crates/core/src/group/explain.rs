//! What a group knows of one message, for people who ask where it is.

use alloc::string::String;

use super::open::{Run, State, len};
use super::{Group, MemberId};
use crate::id::{Position, Seq, TopicId};
use crate::time::Timestamp;

/// What is to happen with a message of a group next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenState {
    /// It may be handed out.
    Ready,
    /// It waits behind another of its key.
    Waiting,
    /// It failed, and is tried again at this time.
    Parked(Timestamp),
    /// A member has it, until this time.
    Leased(MemberId, Timestamp),
    /// It failed for the last time and is about to be a dead letter.
    Dying,
}

/// A message that a group has read and that is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenMessage {
    /// What is to happen with it.
    pub state: OpenState,
    /// Deliveries that count, that of now included.
    pub attempts: u32,
    /// The error of its last failure.
    pub error: Option<String>,
    /// When it failed for the first time.
    pub first_failed: Option<Timestamp>,
}

impl Group {
    /// The message at this position, if it was read and is not done.
    pub fn open_at(&self, topic: TopicId, at: Position) -> Option<OpenMessage> {
        let (_, run) = self.open.next_from(at)?;
        (run.first <= at && run.topic == topic).then(|| shown(run))
    }

    /// The same by seq, for a message that is gone from its topic, so that its position is not
    /// known any more. It looks at every run.
    pub fn open_seq(&self, topic: TopicId, seq: Seq) -> Option<OpenMessage> {
        let holds = |last: Position, run: &Run| {
            run.topic == topic && run.seq <= seq && seq.distance(run.seq) < len(run, last)
        };
        let mut runs = self.open.iter();
        runs.find(|(last, run)| holds(*last, run)).map(|(_, run)| shown(run))
    }
}

fn shown(run: &Run) -> OpenMessage {
    let state = match run.state {
        State::Ready => OpenState::Ready,
        State::Waiting => OpenState::Waiting,
        State::Parked { due } => OpenState::Parked(due),
        State::Leased { member, deadline } => OpenState::Leased(member, deadline),
        State::Dying => OpenState::Dying,
    };
    let failure = run.failure.as_deref();
    OpenMessage {
        state,
        attempts: run.attempts,
        error: failure.map(|failure| failure.error.as_ref().into()),
        first_failed: failure.map(|failure| failure.first_at),
    }
}
