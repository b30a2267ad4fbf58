//! What a user sends: an optional key, headers, a body, and a few options.
//!
//! A message is checked here once; the code below trusts it. It is encoded in
//! [`batch`](crate::batch), and numbered by its topic.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;

use crate::time::Timestamp;

/// Longest key, in bytes: a key names a thing, it does not carry one.
pub const KEY_BYTES_MAX: usize = 4 * 1024;
/// Longest message id, in bytes: room for any UUID, hash or composed id.
pub const ID_BYTES_MAX: usize = 255;
/// Most headers of one message.
pub const HEADERS_MAX: usize = 64;
/// Most bytes of all header names and values of one message together.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Longest time to live, so that it fits the 32 bits it is stored in (about 49 days).
pub const TTL_MAX: Duration = Duration::from_millis(u32::MAX as u64 - 1);

/// A message on its way in, or on its way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What the message is about; compaction keeps the latest of each key.
    pub key: Option<Bytes>,
    /// Names and values that travel with the body.
    pub headers: Vec<(String, Bytes)>,
    /// The content. A keyed message without a body removes its key.
    pub body: Option<Bytes>,
    /// The publisher's own id; a second message of the same id is not stored again.
    pub id: Option<Bytes>,
    /// How long after its acceptance the message may still be delivered.
    pub ttl: Option<Duration>,
    /// When the message should appear in its topic, if not at once.
    pub not_before: Option<Timestamp>,
}

/// Why a message is not one. Nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The key has too many bytes.
    #[error("the key has {bytes} bytes, at most {KEY_BYTES_MAX} are allowed")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The id is empty or has too many bytes.
    #[error("the message id has {bytes} bytes, 1 to {ID_BYTES_MAX} are allowed")]
    IdLength {
        /// Its length.
        bytes: usize,
    },
    /// There are too many headers, or they are too long.
    #[error(
        "{count} headers of {bytes} bytes: at most {HEADERS_MAX} headers of {HEADER_BYTES_MAX} \
         bytes together are allowed"
    )]
    Headers {
        /// How many.
        count: usize,
        /// How long, names and values together.
        bytes: usize,
    },
    /// A message needs a body, or a key to remove.
    #[error("the message has neither body nor key; send a body, or a key to remove")]
    Empty,
    /// The time to live is zero or longer than can be stored.
    #[error("the time to live must be between 1 ms and {} days", TTL_MAX.as_secs() / 86_400)]
    Ttl,
}

impl Message {
    /// A message with this body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: Some(body.into()), ..Self::default() }
    }

    /// A message that removes `key`: compaction drops all its messages, in time this too.
    pub fn tombstone(key: impl Into<Bytes>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// The same message with a key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same message with an id for deduplication.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<Bytes>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same message with one more header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same message, deliverable for `ttl` after its acceptance.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The same message, to appear in its topic at `time`.
    #[must_use]
    pub fn with_not_before(mut self, time: Timestamp) -> Self {
        self.not_before = Some(time);
        self
    }

    /// The value of the first header called `name`.
    pub fn header(&self, name: &str) -> Option<&Bytes> {
        self.headers.iter().find(|(each, _)| each == name).map(|(_, value)| value)
    }

    /// Whether every part keeps its limit.
    ///
    /// # Errors
    /// Names the first part that does not.
    pub fn validate(&self) -> Result<(), MessageError> {
        if let Some(key) = &self.key
            && key.len() > KEY_BYTES_MAX
        {
            return Err(MessageError::KeyTooLong { bytes: key.len() });
        }
        if let Some(id) = &self.id
            && !(1..=ID_BYTES_MAX).contains(&id.len())
        {
            return Err(MessageError::IdLength { bytes: id.len() });
        }
        let (count, bytes) = (self.headers.len(), self.header_bytes());
        if count > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            return Err(MessageError::Headers { count, bytes });
        }
        if self.body.is_none() && self.key.is_none() {
            return Err(MessageError::Empty);
        }
        if let Some(ttl) = self.ttl
            && (ttl < Duration::from_millis(1) || ttl > TTL_MAX)
        {
            return Err(MessageError::Ttl);
        }
        Ok(())
    }

    fn header_bytes(&self) -> usize {
        self.headers.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}
