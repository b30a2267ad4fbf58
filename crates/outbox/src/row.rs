//! A row of the outbox, as consumers get it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use gapless_core::Timestamp;

use crate::error::OutboxError;
use crate::reader::unsigned;

/// What happened to what the key names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Op {
    /// It is there, as the payload or the data says.
    #[default]
    Upsert,
    /// It is gone.
    Delete,
}

impl Op {
    /// As the table has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upsert => "upsert",
            Self::Delete => "delete",
        }
    }

    fn from_name(name: &str) -> Result<Self, OutboxError> {
        match name {
            "upsert" => Ok(Self::Upsert),
            "delete" => Ok(Self::Delete),
            other => Err(OutboxError::Unknown(format!("op {other:?}"))),
        }
    }
}

/// The content of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none: what the row describes is in the data.
    None,
    /// These bytes.
    Bytes(Bytes),
    /// So many bytes, above the reader's limit; they were not read.
    TooLarge(u64),
}

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub seq: u64,
    /// What happened.
    pub op: Op,
    /// The id by which it is known again.
    pub event_id: String,
    /// The topic.
    pub topic: String,
    /// What kind of thing it is.
    pub kind: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// Why it happened.
    pub reason: Option<String>,
    /// When what it describes was created.
    pub created_at: Timestamp,
    /// When the row was written.
    pub ingested_at: Timestamp,
    /// Its content.
    pub payload: Payload,
}

/// The columns of a row, in the order in which [`Row::read`] takes them; `$3` is the largest
/// payload that is read.
pub(crate) const COLUMNS: &str = "seq, op, event_id, topic_id, kind, effective_key, reason, \
     created_at, ingested_at, octet_length(payload), \
     CASE WHEN octet_length(payload) <= $3 THEN payload END";

impl Row {
    pub(crate) fn read(row: &tokio_postgres::Row) -> Result<Self, OutboxError> {
        let bytes: Option<&[u8]> = row.get(10);
        let size: Option<i32> = row.get(9);
        let payload = match (bytes, size) {
            (Some(bytes), _) => Payload::Bytes(Bytes::copy_from_slice(bytes)),
            (None, Some(size)) => Payload::TooLarge(u64::try_from(size).unwrap_or(0)),
            (None, None) => Payload::None,
        };
        Ok(Self {
            seq: unsigned(row.get(0)),
            op: Op::from_name(row.get(1))?,
            event_id: row.get(2),
            topic: row.get(3),
            kind: row.get(4),
            key: row.get(5),
            reason: row.get(6),
            created_at: since_1970(row.get(7)),
            ingested_at: since_1970(row.get(8)),
            payload,
        })
    }

    /// How much memory it takes, about.
    pub fn bytes(&self) -> usize {
        let payload = match &self.payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::None | Payload::TooLarge(_) => 0,
        };
        let texts = [&self.kind, &self.key, &self.reason].into_iter().flatten().map(String::len);
        size_of::<Self>() + payload + self.event_id.len() + self.topic.len() + texts.sum::<usize>()
    }
}

/// A time as the driver has it, from 1970 on; PostgreSQL knows earlier ones, and infinity.
fn since_1970(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
