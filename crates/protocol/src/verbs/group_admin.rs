//! Verbs about groups: create, configure, describe, pause, reset, delete; and their dead letters.
//!
//! The group is the frame's subject in questions, and a field in answers. Settings are core's
//! own bytes, so that a setting is described once. What members do is in `group.rs`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::time::Duration;
use gapless_core::group::Counts;
use gapless_core::message::KEY_BYTES_MAX;
use gapless_core::time::whole_ms;
use gapless_core::{
    GroupDoing, GroupInfo, GroupSettings, GroupStart, GroupTotals, LetterFilter, MemberInfo,
    Pattern, Position, Records, Seq, Timestamp, TopicName,
};

use crate::field::{Field, Item};
use crate::verb::{Fields, VerbError};
use crate::verbs::group::{REASON_BYTES_MAX, check_lost, put_lost, take_lost};
use crate::verbs::session::NAME_TEXT_BYTES_MAX;
use crate::wire::{List, Reader, at_most, ensure, exists, put_bytes};

/// Most groups of one page.
pub const GROUPS_PAGE_MAX: usize = 1024;
/// Most members shown of one group.
pub const MEMBERS_SHOWN_MAX: usize = 1024;
/// Most dead letters of one page.
pub const LETTERS_PAGE_MAX: usize = 1024;
/// Longest explanation why a group does not move, in bytes.
pub const WHY_BYTES_MAX: usize = 1024;

with_settings! { group: GroupSettings,
    /// Creates a group. Succeeds if it exists with equal settings. Answered by
    /// [`GroupInfo`].
    GroupCreate
    /// Gives a group other settings, all of them; source, mode and start stay what they are.
    /// Answered by [`GroupInfo`].
    GroupConfigure
}

name_only! { group,
    /// Asks what a group is and how it stands. Answered by [`GroupInfo`].
    GroupDescribe
    /// Removes a group with its dead letters. Answered by [`Done`](crate::Done).
    GroupDelete
    /// Lets a group hand out nothing more; acks still count. Answered by [`GroupInfo`].
    GroupPause
    /// Lets a group go on, after a pause or over a gap. Answered by [`GroupInfo`].
    GroupResume
}

plain! {
    /// Asks for groups by name, page by page. Answered by [`GroupInfos`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupList[
        /// Which groups.
        pattern: Pattern
    ] {
        /// Most groups of the page; the server may send fewer.
        limit: u32,
        /// The last name of the page before; `None` for the first page.
        after: Option<TopicName>,
    } |it: &Self| ensure(it.limit > 0, "limit");

    /// Lets a group start again somewhere else. Answered by [`GroupInfo`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    GroupReset[
        /// Which group.
        group: TopicName
    ] {
        /// Whether to do it though the group has members.
        force: bool,
        /// Where.
        to: GroupStart,
    };

    /// A page of groups, by name.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    GroupInfos {
        /// Whether there are more behind the last one.
        more: bool,
        /// The groups.
        groups: Vec<GroupInfo>,
    };

    /// Asks for dead letters of a group, page by page. Answered by [`Letters`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    LetterList[
        /// Which group.
        group: TopicName
    ] {
        /// The first number that is wanted.
        from: Seq,
        /// Most letters of the page; the server may send fewer.
        limit: u32,
    } |it: &Self| ensure(it.limit > 0, "limit");

    /// Asks for one dead letter. Answered by [`Letters`] with one, or
    /// [`NotFound`](crate::NotFound).
    #[derive(Clone, Debug, PartialEq, Eq)]
    LetterRead[
        /// Which group.
        group: TopicName
    ] {
        /// Which letter.
        seq: Seq,
    };

    /// Puts dead letters back into the topics they came from. Answered by [`LettersMoved`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    LetterRedrive[
        /// Which group.
        group: TopicName
    ] {
        /// How many per second, in the background, where zero ends the redrive that is under way;
        /// at once if it does not say.
        rate: Option<u32>,
        /// Which letters.
        filter: LetterFilter,
    };

    /// Removes dead letters for ever. Answered by [`LettersMoved`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    LetterRemove[
        /// Which group.
        group: TopicName
    ] {
        /// Which letters.
        filter: LetterFilter,
    };

    /// Dead letters, by their numbers.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    Letters {
        /// Whether there are more behind the last one.
        more: bool,
        /// The letters.
        letters: Vec<Letter>,
    };

    /// How many dead letters were redriven or removed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    LettersMoved {
        /// How many.
        count: u64,
        /// Whether more go in the background.
        goes_on: bool,
    };
}

impl Field for GroupStart {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(match payload.u8(field)? {
            1 => Self::Beginning,
            2 => Self::Now,
            3 => Self::Seq(payload.seq(field)?),
            4 => Self::Position(payload.position(field)?),
            5 => Self::Time(Timestamp(payload.u64(field)?)),
            _ => return Err(VerbError::Value { field }),
        })
    }

    fn put(&self, out: &mut BytesMut) {
        let (code, number) = match self {
            Self::Beginning => (1, None),
            Self::Now => (2, None),
            Self::Seq(seq) => (3, Some(seq.0)),
            Self::Position(position) => (4, Some(position.0)),
            Self::Time(time) => (5, Some(time.0)),
        };
        out.put_u8(code);
        number.into_iter().for_each(|number| out.put_u64_le(number));
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        match self {
            Self::Seq(Seq(number)) | Self::Position(Position(number)) => exists(*number, field),
            _ => Ok(()),
        }
    }
}

/// A [`GroupInfo`] as a verb, which should not be large for the sake of one of its kind.
pub type BoxedGroupInfo = Box<GroupInfo>;

row! {
    GroupInfo {
        name, id, settings, state = "doing", floor, frontier, lag, lag_exact, counts,
        oldest_age = "oldest_ms", next_retry, dead_letters, redriving, totals, members, why,
    } |it: &Self| at_most(WHY_BYTES_MAX, it.why.len(), "why");
    Counts { ready, waiting, parked, in_flight, dying };
    MemberInfo { id, window, in_flight, active, name }
        |it: &Self| at_most(NAME_TEXT_BYTES_MAX, it.name.len(), "name");
    Letter { seq, topic, origin, attempts, error, first_failed, died, records } |it: &Self| {
        at_most(REASON_BYTES_MAX, it.error.len(), "error")?;
        ensure(it.records.count == 1, "records")
    };
}

row_is_verb! { GroupInfo }

impl Item for GroupInfo {
    const LIST: List = List { field: "groups", item_bytes_min: 160, count_max: GROUPS_PAGE_MAX };
}

impl Item for MemberInfo {
    const LIST: List = List { field: "members", item_bytes_min: 22, count_max: MEMBERS_SHOWN_MAX };
}

impl Item for Letter {
    const LIST: List = List { field: "letters", item_bytes_min: 40, count_max: LETTERS_PAGE_MAX };
}

impl Field for GroupDoing {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        match payload.u8(field)? {
            1 => Ok(Self::Running),
            2 => Ok(Self::Paused),
            3 => {
                let topic = Field::take(payload, "topic")?;
                take_lost(topic, payload).map(Self::Stopped)
            }
            _ => Err(VerbError::Value { field }),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Running => out.put_u8(1),
            Self::Paused => out.put_u8(2),
            Self::Stopped(gap) => {
                out.put_u8(3);
                gap.topic.put(out);
                put_lost(gap, out);
            }
        }
    }

    fn check(&self, _: &'static str) -> Result<(), VerbError> {
        if let Self::Stopped(gap) = self { check_lost(gap) } else { Ok(()) }
    }
}

impl Field for GroupTotals {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        let mut numbers = Self::default().numbers();
        for number in &mut numbers {
            *number = payload.u64(field)?;
        }
        Ok(Self::from_numbers(numbers))
    }

    fn put(&self, out: &mut BytesMut) {
        self.numbers().into_iter().for_each(|number| out.put_u64_le(number));
    }
}

/// In whole milliseconds.
impl Field for Duration {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        payload.u64(field).map(Self::from_millis)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(whole_ms(*self));
    }
}

/// One record, with its length before it.
impl Field for Records {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(Self::parse(payload.bytes(field)?)?)
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, &self.bytes);
    }
}

impl Field for LetterFilter {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        let flags = payload.u8(field)?;
        ensure(flags & !31 == 0, field)?;
        let mut filter = Self::default();
        if flags & 1 != 0 {
            filter.from = Some(payload.seq("from")?);
        }
        if flags & 2 != 0 {
            filter.to = Some(payload.seq("to")?);
        }
        if flags & 4 != 0 {
            filter.topic = Some(Field::take(payload, "topic")?);
        }
        if flags & 8 != 0 {
            filter.error = Some(payload.text("error")?);
        }
        if flags & 16 != 0 {
            filter.key = Some(payload.bytes("key")?);
        }
        Ok(filter)
    }

    fn put(&self, out: &mut BytesMut) {
        let has = [
            self.from.is_some(),
            self.to.is_some(),
            self.topic.is_some(),
            self.error.is_some(),
            self.key.is_some(),
        ];
        let flags = has.into_iter().rev().fold(0, |flags, is| flags << 1 | u8::from(is));
        out.put_u8(flags);
        for seq in [self.from, self.to].into_iter().flatten() {
            seq.put(out);
        }
        if let Some(topic) = &self.topic {
            topic.put(out);
        }
        if let Some(error) = &self.error {
            error.put(out);
        }
        if let Some(key) = &self.key {
            put_bytes(out, key);
        }
    }

    fn check(&self, _: &'static str) -> Result<(), VerbError> {
        for seq in [self.from, self.to].into_iter().flatten() {
            seq.check("from")?;
        }
        at_most(REASON_BYTES_MAX, self.error.as_ref().map_or(0, String::len), "error")?;
        at_most(KEY_BYTES_MAX, self.key.as_ref().map_or(0, Bytes::len), "key")
    }
}

/// A message that failed for the last time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
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
    /// The message as it was sent: exactly one record.
    pub records: Records,
}
