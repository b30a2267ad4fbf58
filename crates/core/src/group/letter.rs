//! A dead letter, and a filter that selects some of them: the same for broker, wire and client.

use alloc::string::String;
use bytes::Bytes;

use crate::id::Seq;
use crate::message::Message;
use crate::name::TopicName;
use crate::pattern::Pattern;
use crate::time::Timestamp;

/// A message that failed for the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number among the dead letters of its group.
    pub seq: Seq,
    /// Where it was published.
    pub topic: TopicName,
    /// Its seq there.
    pub origin: Seq,
    /// How often it was tried.
    pub attempts: u32,
    /// The error of the last attempt.
    pub error: String,
    /// When it failed for the first time.
    pub first_failed: Timestamp,
    /// When it failed for the last time.
    pub died: Timestamp,
    /// The message as it was sent.
    pub message: Message,
}

/// Which dead letters: those for which everything that it says is true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// Those from this number on.
    pub from: Option<Seq>,
    /// Those up to and with this number.
    pub to: Option<Seq>,
    /// Those whose topic matches.
    pub topic: Option<Pattern>,
    /// Those whose error contains this text.
    pub error: Option<String>,
    /// Those with this key.
    pub key: Option<Bytes>,
}

/// Dead letters that are redriven gradually.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redrive {
    /// Which.
    pub which: LetterFilter,
    /// How many per second, at least one.
    pub rate: u32,
}

impl LetterFilter {
    /// All of them.
    pub fn all() -> Self {
        Self::default()
    }

    /// This one.
    pub fn one(seq: Seq) -> Self {
        Self { from: Some(seq), to: Some(seq), ..Self::default() }
    }

    /// How many bytes its texts have.
    pub fn bytes(&self) -> usize {
        let topic = self.topic.as_ref().map_or(0, |topic| topic.as_str().len());
        let error = self.error.as_ref().map_or(0, String::len);
        topic + error + self.key.as_ref().map_or(0, Bytes::len)
    }

    /// Whether it means this one.
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        self.to.is_none_or(|to| letter.seq <= to)
            && self.from.is_none_or(|from| letter.seq >= from)
            && self.topic.as_ref().is_none_or(|topic| topic.matches(&letter.topic))
            && self.error.as_ref().is_none_or(|error| letter.error.contains(error.as_str()))
            && self.key.as_ref().is_none_or(|key| letter.message.key.as_ref() == Some(key))
    }
}
