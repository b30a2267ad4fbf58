//! The context of a trace, as the W3C header `traceparent` carries it.
//!
//! A message has it in a header of that name, as its publisher put it there. Text that is not
//! exactly that is no context: a message with a bad one is published and delivered as any other.
//!
//! Not here: what is recorded, and where it goes.

use alloc::string::String;
use core::fmt::Write as _;

use crate::batch::{Record, headers_of};

/// The name of the header.
pub const TRACEPARENT: &str = "traceparent";

/// Bytes of version 00: `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const BYTES: usize = 55;

/// The flag that says that the trace is recorded.
const SAMPLED: u8 = 1;

/// Which trace something belongs to, and which span caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; never zero.
    pub trace_id: [u8; 16],
    /// The span that this is a child of; never zero.
    pub span_id: [u8; 8],
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads the value of the header; `None` if it is not one. Later versions may be longer.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (fixed, rest) = text.split_at_checked(BYTES)?;
        let version = byte(&fixed[..2])?;
        let is_known = version == 0 && rest.is_empty();
        let is_later = version != 0 && version != 0xff && rest.first().is_none_or(|b| *b == b'-');
        let dashes = [2, 35, 52].iter().all(|at| fixed[*at] == b'-');
        if !dashes || !(is_known || is_later) {
            return None;
        }
        let (mut trace_id, mut span_id) = ([0; 16], [0; 8]);
        read(&fixed[3..35], &mut trace_id)?;
        read(&fixed[36..52], &mut span_id)?;
        let sampled = byte(&fixed[53..])? & SAMPLED != 0;
        let is_zero = trace_id == [0; 16] || span_id == [0; 8];
        (!is_zero).then_some(Self { trace_id, span_id, sampled })
    }

    /// The context of a message, if it has one.
    pub fn of_record(record: &Record<'_>) -> Option<Self> {
        if record.headers.is_empty() {
            return None;
        }
        let found = headers_of(record.headers).find(|(name, _)| *name == TRACEPARENT.as_bytes());
        found.and_then(|(_, value)| Self::parse(value))
    }

    /// The value of the header.
    pub fn header(&self) -> String {
        let mut text = String::with_capacity(BYTES);
        text.push_str("00-");
        put(&self.trace_id, &mut text);
        text.push('-');
        put(&self.span_id, &mut text);
        text.push_str(if self.sampled { "-01" } else { "-00" });
        text
    }
}

fn put(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

fn read(digits: &[u8], into: &mut [u8]) -> Option<()> {
    for (pair, each) in digits.chunks(2).zip(into) {
        *each = byte(pair)?;
    }
    Some(())
}

/// Two digits; capital letters are not allowed.
fn byte(pair: &[u8]) -> Option<u8> {
    let digit = |of: u8| match of {
        b'0'..=b'9' => Some(of - b'0'),
        b'a'..=b'f' => Some(of - b'a' + 10),
        _ => None,
    };
    Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, RecordsBuilder};

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read_and_written_as_it_was() {
        let context = TraceContext::parse(GOOD.as_bytes()).unwrap();
        assert!(context.sampled);
        assert_eq!(context.header(), GOOD);
        let off = GOOD.replace("-01", "-00");
        assert_eq!(TraceContext::parse(off.as_bytes()).unwrap().header(), off);
        assert!(TraceContext::parse(GOOD.replace("-01", "-03").as_bytes()).unwrap().sampled);
    }

    #[test]
    fn what_is_not_exactly_a_context_is_none() {
        let bad = [
            "",
            "00",
            &GOOD[..54],
            &GOOD.to_uppercase(),
            &GOOD.replace("00f067aa0ba902b7", "0000000000000000"),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &GOOD.replace("00-4b", "ff-4b"),
            &GOOD.replace('-', "_"),
            &GOOD.replace("4bf9", "4bg9"),
            &alloc::format!("{GOOD}-more"),
            &alloc::format!("{GOOD}0"),
        ];
        for text in bad {
            assert_eq!(TraceContext::parse(text.as_bytes()), None, "{text}");
        }
        // A later version may say more, behind a dash.
        assert!(TraceContext::parse(alloc::format!("01{}-more", &GOOD[2..]).as_bytes()).is_some());
        assert!(TraceContext::parse(alloc::format!("01{}more", &GOOD[2..]).as_bytes()).is_none());
    }

    #[test]
    fn the_context_of_a_message_is_in_its_header() {
        let of = |message: Message| {
            let mut records = RecordsBuilder::default();
            records.push(&message).unwrap();
            let records = records.finish();
            records.iter().next().and_then(|record| TraceContext::of_record(&record))
        };
        assert_eq!(of(Message::new("x")), None);
        assert_eq!(of(Message::new("x").with_header("a", "b")), None);
        let traced = Message::new("x").with_header("a", "b").with_header(TRACEPARENT, GOOD);
        assert_eq!(of(traced).unwrap().header(), GOOD);
        assert_eq!(of(Message::new("x").with_header(TRACEPARENT, "nonsense")), None);
    }
}
