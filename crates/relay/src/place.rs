//! Where a relay stands: the outbox offset as the broker keeps it, in a cell.

use bytes::Bytes;
use gapless_core::ExpectCell;
use gapless_outbox::{EpochId, Place};
use serde::{Deserialize, Serialize};

/// Longest event id that is remembered to be compared, in bytes.
const EVENT_ID_MAX: usize = 200;

/// The value of the cell. The event of the last row is kept too: a database that was replaced
/// by another copy has another one there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    epoch: Option<String>,
    pub(crate) seq: u64,
    pub(crate) event_seq: u64,
    pub(crate) event_id: String,
}

impl Kept {
    pub(crate) fn place(&self) -> Place {
        let epoch = self.epoch.as_deref().and_then(|text| u128::from_str_radix(text, 16).ok());
        Place { epoch: epoch.map(EpochId), seq: self.seq }
    }

    /// One step further.
    pub(crate) fn moved(&self, epoch: EpochId, seq: u64, last: Option<(u64, &str)>) -> Self {
        let (event_seq, event_id) = match last {
            Some((seq, id)) => (seq, shortened(id).to_owned()),
            None => (self.event_seq, self.event_id.clone()),
        };
        Self { epoch: Some(format!("{:032x}", epoch.0)), seq, event_seq, event_id }
    }

    /// Whether the row that it remembers has this id.
    pub(crate) fn remembers(&self, id: &str) -> bool {
        self.event_id == shortened(id)
    }

    pub(crate) fn to_cell(&self) -> Bytes {
        serde_json::to_vec(self).expect("it holds nothing that JSON cannot").into()
    }
}

fn shortened(id: &str) -> &str {
    let mut end = id.len().min(EVENT_ID_MAX);
    while !id.is_char_boundary(end) {
        end -= 1;
    }
    &id[..end]
}

/// A place as it was read, and the condition under which it may be moved.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) kept: Kept,
    pub(crate) expect: ExpectCell,
    /// The seq that the cell has; `kept` may be further, by numbers that no row has.
    pub(crate) stored: u64,
}

impl Standing {
    /// From the value of a cell; `None` if that is not a valid place.
    pub(crate) fn read(cell: Option<Bytes>) -> Option<Self> {
        match cell {
            None => Some(Self { kept: Kept::default(), expect: ExpectCell::Absent, stored: 0 }),
            Some(value) => {
                let kept: Kept = serde_json::from_slice(&value).ok()?;
                let stored = kept.seq;
                Some(Self { kept, expect: ExpectCell::Value(value), stored })
            }
        }
    }

    /// The cell has this value now, or will have it before the next is compared.
    pub(crate) fn moved(&mut self, kept: Kept, value: Bytes) {
        *self = Self { stored: kept.seq, kept, expect: ExpectCell::Value(value) };
    }
}
