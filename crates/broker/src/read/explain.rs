//! Where one message is: kept or gone, and how far each group is with it.
//!
//! What is done leaves no trace in a group but its place, so that an ack and a message before the
//! group's beginning look the same; a dead letter is found among the letters that are kept.

use gapless_core::group::{OpenMessage, OpenState};
use gapless_core::{
    DeadLetter, Delivered, Durability, GapReason, LetterFilter, Pattern, PubSubError, Seq,
    Timestamp, TopicName,
};

use crate::broker::{Broker, Inner};
use crate::error::{GroupError, TopicError};
use crate::group::LiveGroup;
use crate::group::dead_letters::LETTERS_MAX;
use crate::topic::live_topic::LiveTopic;

/// What there is to say about one message.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Its topic.
    pub topic: TopicName,
    /// Its seq.
    pub seq: Seq,
    /// Whether it is kept.
    pub state: MessageState,
    /// How safe messages of the topic are when they are acked and visible, unless a publish asks
    /// for more.
    pub durability: Durability,
    /// Every group whose source matches the topic.
    pub groups: Vec<GroupExplained>,
}

/// Whether a message is kept.
#[derive(Clone, Debug)]
pub enum MessageState {
    /// No message had this seq yet; the next one will have this one.
    NotYet {
        /// The next seq of the topic.
        next: Seq,
    },
    /// It can be read.
    Kept {
        /// The message with its numbers.
        found: Delivered,
        /// Whether it is flushed: survives a power loss.
        flushed: bool,
        /// When it is gone by its own ttl or the topic's age, whichever comes first.
        until: Option<Timestamp>,
    },
    /// It cannot be read any more.
    Gone {
        /// Why.
        reason: GapReason,
        /// The first seq that can be read.
        first: Seq,
    },
}

/// How far a group is with a message.
#[derive(Clone, Debug)]
pub struct GroupExplained {
    /// The group.
    pub group: TopicName,
    /// What it is doing: running, paused or stopped.
    pub doing: &'static str,
    /// How far it is.
    pub fate: GroupFate,
}

/// How far a group is with a message.
#[derive(Clone, Debug)]
pub enum GroupFate {
    /// It was not read yet.
    Ahead,
    /// It was read and is not done; with the name of the member that has it.
    Open(OpenMessage, Option<String>),
    /// It failed for the last time; the message in it is left out.
    Dead(Box<DeadLetter>),
    /// It is done: acked, let go, or before the group's beginning.
    Done,
    /// It is gone from its topic, and the group does not have it: done or lost.
    Gone,
}

impl Broker {
    /// What there is to say about one message. It may search history, and dead letters.
    ///
    /// # Errors
    /// When there is no such topic or it is volatile, or history cannot be read.
    pub fn explain(&self, topic: &TopicName, seq: Seq) -> Result<Explained, TopicError> {
        let inner = &self.inner;
        let cell = inner.live_topic(topic)?;
        let state = inner.message_state(&cell, seq)?;
        let durability = cell.lock().settings.durability.unwrap_or(inner.defaults.durability);
        let mut groups = Vec::new();
        if !matches!(state, MessageState::NotYet { .. }) {
            for group in inner.groups.all() {
                if group.lock().machine.settings().source.matches(topic) {
                    groups.push(inner.group_fate(&group, &cell, seq, &state).map_err(topic_error)?);
                }
            }
        }
        Ok(Explained { topic: topic.clone(), seq, state, durability, groups })
    }
}

/// Only reading letters can fail, and that is a failure of reading.
fn topic_error(error: GroupError) -> TopicError {
    match error {
        GroupError::Read(error) => error.into(),
        GroupError::Topic(error) => error,
        GroupError::System(error) => error.into(),
        _ => PubSubError::Stopped.into(),
    }
}

impl Inner {
    fn message_state(&self, cell: &LiveTopic, seq: Seq) -> Result<MessageState, TopicError> {
        let next = cell.lock().next();
        if seq >= next {
            return Ok(MessageState::NotYet { next });
        }
        if let Some(found) = self.read_one(cell, seq)? {
            let age = cell.lock().settings.retention.age;
            let ends = [found.message.ttl, age].into_iter().flatten();
            let until = ends.map(|after| found.time.after(after)).min();
            let flushed = found.position <= self.journal.flushed_position();
            return Ok(MessageState::Kept { found, flushed, until });
        }
        let now = self.clock.now();
        let kept = cell.lock().kept();
        // What is stored and cannot be read is past its age or its ttl.
        let time = self.batch_at(cell, seq)?.map(|batch| batch.time());
        let aged = time.and_then(|time| kept.gone(seq, Some(time), now));
        let reason = aged.or_else(|| kept.gone(seq, None, now)).unwrap_or(kept.hole_reason());
        Ok(MessageState::Gone { reason, first: kept.first })
    }

    fn group_fate(
        &self,
        group: &LiveGroup,
        cell: &LiveTopic,
        seq: Seq,
        state: &MessageState,
    ) -> Result<GroupExplained, GroupError> {
        let position = match state {
            MessageState::Kept { found, .. } => Some(found.position),
            _ => None,
        };
        let (doing, known) = {
            let state = group.lock();
            let machine = &state.machine;
            let doing = match (machine.stopped(), machine.is_paused()) {
                (Some(_), _) => "stopped",
                (None, true) => "paused",
                (None, false) => "running",
            };
            let open = match position {
                Some(at) => machine.open_at(cell.id, at),
                None => machine.open_seq(cell.id, seq),
            };
            let known = match (open, position) {
                (Some(open), _) => {
                    let name = match open.state {
                        OpenState::Leased(id, _) => state.members.get(&id),
                        _ => None,
                    };
                    Some(GroupFate::Open(open, name.map(|member| member.name.clone())))
                }
                (None, Some(at)) if at > machine.frontier() => Some(GroupFate::Ahead),
                (None, _) => None,
            };
            (doing, known)
        };
        let fate = match known {
            Some(fate) => fate,
            None => match self.letter_of(group, &cell.name, seq)? {
                Some(letter) => GroupFate::Dead(Box::new(letter)),
                None if position.is_some() => GroupFate::Done,
                None => GroupFate::Gone,
            },
        };
        Ok(GroupExplained { group: group.name.clone(), doing, fate })
    }

    /// The dead letter that a message became, if it is kept and among the first ones.
    fn letter_of(
        &self,
        group: &LiveGroup,
        topic: &TopicName,
        seq: Seq,
    ) -> Result<Option<DeadLetter>, GroupError> {
        // A name is a pattern that matches itself only.
        let topic = Pattern::parse(topic.as_str()).ok();
        let which = LetterFilter { topic, ..LetterFilter::all() };
        let letters = self.find_letters(group, &which, LETTERS_MAX)?;
        Ok(letters.into_iter().rfind(|letter| letter.origin == seq))
    }
}
