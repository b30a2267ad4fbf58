//! Reading and writing the fields of a payload.
//!
//! Numbers are little-endian; lengths and counts are varints in their shortest form, so that
//! a value has one encoding and no other. Every read names its field, for the error. A count
//! is believed only as far as the bytes behind it reach ([`Reader::count`]): that is the one
//! place where memory is taken for a number from outside.
//!
//! What fields a verb has is in `verbs/`.

use alloc::string::String;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use gapless_core::batch::{put_varint, take_varint};
use gapless_core::{Durability, Fate, Position, Seq, TopicName};

use crate::verb::VerbError;

/// The largest seq or position on the wire. The upper half of the numbers does not exist, so
/// that no sum of a number and a count can overflow, even if a peer sends invalid numbers.
pub const NUMBER_MAX: u64 = u64::MAX / 2;

/// What is known of a list before it is read.
pub(crate) struct List {
    pub(crate) field: &'static str,
    /// The fewest bytes of an item; at least one.
    pub(crate) item_bytes_min: usize,
    /// The most items.
    pub(crate) count_max: usize,
}

impl List {
    /// Whether a list may have so many items.
    pub(crate) fn check(&self, count: usize) -> Result<(), VerbError> {
        at_most(self.count_max, count, self.field)
    }
}

/// What is left of a payload.
pub(crate) struct Reader {
    rest: Bytes,
}

impl Reader {
    pub(crate) fn new(payload: &Bytes) -> Self {
        Self { rest: payload.clone() }
    }

    fn need(&self, bytes: usize, field: &'static str) -> Result<(), VerbError> {
        if self.rest.len() < bytes { Err(VerbError::Short { field }) } else { Ok(()) }
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, VerbError> {
        self.need(1, field)?;
        Ok(self.rest.get_u8())
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, VerbError> {
        self.need(2, field)?;
        Ok(self.rest.get_u16_le())
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, VerbError> {
        self.need(4, field)?;
        Ok(self.rest.get_u32_le())
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, VerbError> {
        self.need(8, field)?;
        Ok(self.rest.get_u64_le())
    }

    fn number(&mut self, field: &'static str) -> Result<u64, VerbError> {
        let number = self.u64(field)?;
        if number > NUMBER_MAX { Err(VerbError::Value { field }) } else { Ok(number) }
    }

    pub(crate) fn seq(&mut self, field: &'static str) -> Result<Seq, VerbError> {
        self.number(field).map(Seq)
    }

    pub(crate) fn position(&mut self, field: &'static str) -> Result<Position, VerbError> {
        self.number(field).map(Position)
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, VerbError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(VerbError::Value { field }),
        }
    }

    pub(crate) fn durability(&mut self, field: &'static str) -> Result<Durability, VerbError> {
        Durability::from_code(self.u8(field)?).ok_or(VerbError::Value { field })
    }

    pub(crate) fn fate(&mut self, field: &'static str) -> Result<Fate, VerbError> {
        match self.u8(field)? {
            1 => Ok(Fate::DidNotHappen),
            2 => Ok(Fate::Unknown),
            _ => Err(VerbError::Value { field }),
        }
    }

    pub(crate) fn varint(&mut self, field: &'static str) -> Result<u64, VerbError> {
        let mut rest = &self.rest[..];
        let value = take_varint(&mut rest).ok_or(VerbError::Short { field })?;
        let taken = self.rest.len() - rest.len();
        if taken > 1 && self.rest[taken - 1] == 0 {
            return Err(VerbError::Overlong { field });
        }
        self.rest.advance(taken);
        Ok(value)
    }

    pub(crate) fn varint_u32(&mut self, field: &'static str) -> Result<u32, VerbError> {
        u32::try_from(self.varint(field)?).map_err(|_| VerbError::Value { field })
    }

    /// Bytes with their length before them, shared and not copied.
    pub(crate) fn bytes(&mut self, field: &'static str) -> Result<Bytes, VerbError> {
        let len = self.varint(field)?;
        match usize::try_from(len) {
            Ok(len) if len <= self.rest.len() => Ok(self.rest.split_to(len)),
            _ => Err(VerbError::Short { field }),
        }
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<String, VerbError> {
        text(&self.bytes(field)?, field).map(String::from)
    }

    pub(crate) fn name(&mut self, field: &'static str) -> Result<TopicName, VerbError> {
        Ok(TopicName::parse(text(&self.bytes(field)?, field)?)?)
    }

    /// How many items of a list follow: never more than the list may have, nor than the bytes
    /// that are there can hold, so that room may be taken for all of them.
    pub(crate) fn count(&mut self, list: &List) -> Result<usize, VerbError> {
        let field = list.field;
        let count = self.varint(field)?;
        let most = self.rest.len() / list.item_bytes_min;
        match usize::try_from(count) {
            Ok(count) if count <= most => {
                list.check(count)?;
                Ok(count)
            }
            _ => Err(VerbError::Short { field }),
        }
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.rest.split_off(0)
    }

    /// Whether something is left.
    pub(crate) fn has_more(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Whether everything was read.
    pub(crate) fn finish(&self) -> Result<(), VerbError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(VerbError::Trailing { bytes: self.rest.len() })
        }
    }
}

/// The text in some bytes.
pub(crate) fn text<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, VerbError> {
    core::str::from_utf8(bytes).map_err(|_| VerbError::Text { field })
}

/// Refuses what is longer than it may be.
pub(crate) fn at_most(max: usize, bytes: usize, field: &'static str) -> Result<(), VerbError> {
    if bytes > max { Err(VerbError::TooLong { field, bytes, max }) } else { Ok(()) }
}

/// Refuses what must not be.
pub(crate) fn ensure(holds: bool, field: &'static str) -> Result<(), VerbError> {
    if holds { Ok(()) } else { Err(VerbError::Value { field }) }
}

/// Refuses a number of the half that does not exist.
pub(crate) fn exists(number: u64, field: &'static str) -> Result<(), VerbError> {
    ensure(number <= NUMBER_MAX, field)
}

/// Writes bytes with their length before them.
pub(crate) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// The number of a fate.
pub(crate) fn fate_number(fate: Fate) -> u8 {
    match fate {
        Fate::DidNotHappen => 1,
        Fate::Unknown => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &'static [u8]) -> Reader {
        Reader::new(&Bytes::from_static(bytes))
    }

    #[test]
    fn a_varint_has_one_form() {
        assert_eq!(reader(&[0x80, 0x01]).varint("x"), Ok(128));
        assert_eq!(reader(&[0x00]).varint("x"), Ok(0));
        assert_eq!(reader(&[0x80, 0x00]).varint("x"), Err(VerbError::Overlong { field: "x" }));
        assert_eq!(reader(&[0x80]).varint("x"), Err(VerbError::Short { field: "x" }));
    }

    #[test]
    fn f3_a_count_is_believed_as_far_as_the_bytes_reach() {
        let list = List { field: "x", item_bytes_min: 2, count_max: 4 };
        let short = Err(VerbError::Short { field: "x" });
        assert_eq!(reader(&[2, 0, 0, 0, 0]).count(&list), Ok(2));
        assert_eq!(reader(&[3, 0, 0, 0, 0]).count(&list), short);
        let too_long = VerbError::TooLong { field: "x", bytes: 5, max: 4 };
        assert_eq!(reader(&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).count(&list), Err(too_long));
        let huge = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0];
        assert_eq!(reader(huge).count(&list), short);
        assert_eq!(reader(huge).bytes("x"), Err(VerbError::Short { field: "x" }));
    }

    #[test]
    fn numbers_of_the_upper_half_do_not_exist() {
        let mut last = reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(last.seq("x"), Ok(Seq(NUMBER_MAX)));
        let mut beyond = reader(&[0, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(beyond.seq("x"), Err(VerbError::Value { field: "x" }));
    }
}
