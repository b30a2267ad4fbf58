//! Offsets and cursors: the tokens that readers hand back.
//!
//! An offset is the number of the topic and the next seq, in hexadecimal digits of fixed
//! width, so that offsets of one stream sort as its messages do. The topic's number is given
//! once: an offset of a stream that was deleted is never mistaken for one of its successor.

use std::fmt;

use gapless_core::{Seq, Timestamp};
use gapless_protocol::ErrorCode;

use crate::http::values::problem::Problem;

/// How long a cursor stays the same, in milliseconds, as the protocol proposes.
const CURSOR_MS: u64 = 20_000;

/// From when cursors count: 9 October 2024, as the protocol proposes.
const CURSOR_EPOCH_MS: u64 = 1_728_432_000_000;

/// How many cursors a repeated one is moved on at most: an hour.
const CURSOR_JITTER: u64 = 180;

const DIGITS: usize = 16;

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offset {
    pub(super) topic: u64,
    pub(super) next: Seq,
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}_{:016x}", self.topic, self.next.0)
    }
}

impl Offset {
    fn parse(text: &str) -> Option<Self> {
        let (topic, next) = text.split_once('_')?;
        let number = |part: &str| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            let well_formed = part.len() == DIGITS && part.bytes().all(is_digit);
            well_formed.then(|| u64::from_str_radix(part, 16).ok())?
        };
        Some(Self { topic: number(topic)?, next: Seq(number(next)?) })
    }
}

/// Where a reader wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Beginning,
    Now,
    At(Offset),
}

/// How long a reader stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Live {
    No,
    LongPoll,
    Sse,
}

/// What a reader asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) start: Start,
    pub(super) live: Live,
    pub(super) cursor: Option<u64>,
}

impl Asked {
    pub(super) fn parse(query: &str) -> Result<Self, Problem> {
        let (mut offset, mut live, mut cursor) = (None, Live::No, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "offset" if offset.is_some() => return Err(bad("offset is given twice")),
                "offset" => offset = Some(value),
                "live" => {
                    live = match &*value {
                        "long-poll" => Live::LongPoll,
                        "sse" => Live::Sse,
                        _ => return Err(bad("live is neither `long-poll` nor `sse`")),
                    }
                }
                // One that is not a number is of another server and is ignored.
                "cursor" => cursor = value.parse().ok(),
                _ => {}
            }
        }
        let start = match offset.as_deref() {
            None if live == Live::No => Start::Beginning,
            None => {
                return Err(bad("a live read needs an offset: `-1`, `now`, or one it was given"));
            }
            Some("-1") => Start::Beginning,
            Some("now") => Start::Now,
            Some(text) => Offset::parse(text).map(Start::At).ok_or_else(|| {
                bad("the offset is none of this server's: use one that an answer gave")
            })?,
        };
        Ok(Self { start, live, cursor })
    }
}

fn bad(why: &str) -> Problem {
    Problem::new(ErrorCode::BadRequest, why)
}

/// The cursor of a live answer: it rises with time, and always past the one that came in, so
/// that no cache answers the same request for ever.
pub(super) fn cursor(now: Timestamp, asked: Option<u64>) -> u64 {
    let current = now.0.saturating_sub(CURSOR_EPOCH_MS) / CURSOR_MS;
    match asked {
        // The milliseconds of the moment scatter readers well enough.
        Some(asked) if asked >= current => asked.saturating_add(1 + now.0 % CURSOR_JITTER),
        _ => current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_sort_as_text_like_their_numbers_and_are_read_back() {
        let offsets = [(1, 1), (1, 9), (1, 10), (1, 1 << 40), (2, 1), (16, 1)]
            .map(|(topic, next)| Offset { topic, next: Seq(next) });
        let texts = offsets.map(|offset| offset.to_string());
        assert!(texts.windows(2).all(|pair| pair[0] < pair[1]), "{texts:?}");
        for (offset, text) in offsets.iter().zip(&texts) {
            assert_eq!(Offset::parse(text), Some(*offset));
        }
    }

    #[test]
    fn what_is_no_offset_is_refused() {
        let good = Offset { topic: 1, next: Seq(1) }.to_string();
        for text in [
            "",
            "0",
            "0,1",
            "a b",
            "../x",
            "now\n",
            "-2",
            &good.to_uppercase().replace('0', "A"),
            &good[1..],
            &format!("{good}0"),
        ] {
            let query: String = form_urlencoded::Serializer::new(String::new())
                .append_pair("offset", text)
                .finish();
            assert!(Asked::parse(&query).is_err(), "{text:?}");
        }
        for query in ["offset=-1&offset=-1", "live=sse", "live=long-poll", "offset=-1&live=no"] {
            assert!(Asked::parse(query).is_err(), "{query:?}");
        }
        assert_eq!(Asked::parse("x=1").unwrap().start, Start::Beginning);
        assert_eq!(Asked::parse("offset=now&live=sse&cursor=5").unwrap().cursor, Some(5));
    }

    #[test]
    fn cursors_rise_with_time_and_past_the_reader_s() {
        let now = Timestamp(CURSOR_EPOCH_MS + 7 * CURSOR_MS + 1);
        assert_eq!(cursor(now, None), 7);
        assert_eq!(cursor(now, Some(6)), 7);
        assert!(cursor(now, Some(7)) > 7);
        assert!(cursor(now, Some(900)) > 900);
        assert_eq!(cursor(now, Some(u64::MAX)), u64::MAX);
    }
}
