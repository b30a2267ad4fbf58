//! Idempotent producers: whether an append is new, known, stale or too early.
//!
//! A producer counts its appends from 0 in each of its epochs, and begins a new epoch when it
//! restarts. The rule is a pure function of the known state and the request; the stream's lock and
//! the journal's atomic append make check and change one step.

use axum::http::HeaderMap;
use gapless_protocol::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::http::values::problem::Problem;

/// Most bytes of a producer's id: it is the name of a cell.
const ID_BYTES_MAX: usize = 256;

/// The largest number that every client can count to.
const NUMBER_MAX: u64 = (1 << 53) - 1;

pub(super) const ID: &str = "producer-id";
pub(super) const EPOCH: &str = "producer-epoch";
pub(super) const SEQ: &str = "producer-seq";
pub(super) const EXPECTED: &str = "producer-expected-seq";
pub(super) const RECEIVED: &str = "producer-received-seq";

/// The epoch of a producer, and its newest append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) epoch: u64,
    pub(super) seq: u64,
}

/// A producer as it names itself in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) id: String,
    pub(super) place: Place,
}

/// What an append is, seen from what is known of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    New,
    /// It was accepted before; the answer names the newest that was.
    Duplicate(Place),
    /// A later epoch has begun.
    Stale {
        epoch: u64,
    },
    /// One before it is missing.
    Gap {
        expected: u64,
    },
    /// A new epoch must begin with 0.
    NotZero,
}

impl Producer {
    /// The producer of a request, if it names one.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let bad = |why: &str| Problem::new(ErrorCode::BadRequest, why);
        let (id, epoch, seq) = match [ID, EPOCH, SEQ].map(|name| headers.get(name)) {
            [None, None, None] => return Ok(None),
            [Some(id), Some(epoch), Some(seq)] => (id, epoch, seq),
            _ => return Err(bad("Producer-Id, Producer-Epoch and Producer-Seq go together")),
        };
        let id = id.to_str().unwrap_or_default();
        if id.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(bad("Producer-Id is 1 to 256 visible ASCII characters"));
        }
        let number = |value: &axum::http::HeaderValue| {
            let text = value
                .to_str()
                .ok()
                .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
            let number = text.and_then(|text| text.parse().ok());
            number.filter(|number| *number <= NUMBER_MAX).ok_or_else(|| {
                bad("Producer-Epoch and Producer-Seq are whole numbers, at most 2^53 - 1")
            })
        };
        let place = Place { epoch: number(epoch)?, seq: number(seq)? };
        Ok(Some(Self { id: id.to_owned(), place }))
    }
}

/// Judges an append of a producer.
pub(super) fn judge(known: Option<Place>, came: Place) -> Verdict {
    match known {
        None if came.seq == 0 => Verdict::New,
        None => Verdict::Gap { expected: 0 },
        Some(known) if came.epoch < known.epoch => Verdict::Stale { epoch: known.epoch },
        Some(known) if came.epoch > known.epoch && came.seq == 0 => Verdict::New,
        Some(known) if came.epoch > known.epoch => Verdict::NotZero,
        Some(known) if came.seq <= known.seq => Verdict::Duplicate(known),
        Some(known) if came.seq == known.seq + 1 => Verdict::New,
        Some(known) => Verdict::Gap { expected: known.seq + 1 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_append_of_an_epoch_is_taken_once_and_in_order() {
        let at = |epoch, seq| Place { epoch, seq };
        for (known, came, verdict) in [
            (None, at(0, 0), Verdict::New),
            (None, at(7, 0), Verdict::New),
            (None, at(0, 1), Verdict::Gap { expected: 0 }),
            (Some(at(1, 4)), at(1, 5), Verdict::New),
            (Some(at(1, 4)), at(1, 4), Verdict::Duplicate(at(1, 4))),
            (Some(at(1, 4)), at(1, 0), Verdict::Duplicate(at(1, 4))),
            (Some(at(1, 4)), at(1, 6), Verdict::Gap { expected: 5 }),
            (Some(at(1, 4)), at(2, 0), Verdict::New),
            (Some(at(1, 4)), at(2, 1), Verdict::NotZero),
            (Some(at(1, 4)), at(0, 5), Verdict::Stale { epoch: 1 }),
        ] {
            assert_eq!(judge(known, came), verdict, "{known:?} {came:?}");
        }
    }

    #[test]
    fn headers_go_together_and_hold_whole_numbers() {
        let headers = |values: [&str; 3]| {
            let mut headers = HeaderMap::new();
            for (name, value) in [ID, EPOCH, SEQ].into_iter().zip(values) {
                if value != "-" {
                    headers.insert(name, value.parse().unwrap());
                }
            }
            headers
        };
        assert_eq!(Producer::of(&headers(["-", "-", "-"])).unwrap(), None);
        let place = Place { epoch: 2, seq: 9_007_199_254_740_991 };
        let producer = Producer { id: "p".to_owned(), place };
        assert_eq!(Producer::of(&headers(["p", "2", "9007199254740991"])).unwrap(), Some(producer));
        for bad in [
            ["p", "-", "-"],
            ["-", "0", "-"],
            ["p", "0", "-"],
            ["", "0", "0"],
            ["p", "+1", "0"],
            ["p", "0", "1abc"],
            ["p", "1e3", "0"],
            ["p", "0", ""],
            ["p", "0", "9007199254740992"],
        ] {
            assert!(Producer::of(&headers(bad)).is_err(), "{bad:?}");
        }
    }
}
