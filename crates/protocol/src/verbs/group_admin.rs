//! Verbs about groups: create, configure, describe, pause, reset, delete; and their dead letters.
//!
//! The group is the frame's subject in questions, and a field in answers. Settings are core's
//! own bytes, so that a setting is described once. What members do is in `group.rs`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::time::Duration;
use gapless_core::batch::put_varint;
use gapless_core::group::Counts;
use gapless_core::message::KEY_BYTES_MAX;
use gapless_core::time::whole_ms;
use gapless_core::{
    GroupDoing, GroupInfo, GroupSettings, GroupStart, GroupTotals, LetterFilter, MemberInfo,
    Pattern, Position, Records, Seq, Timestamp, TopicName,
};

use crate::verb::{Fields, VerbError, no_subject};
use crate::verbs::group::{REASON_BYTES_MAX, check_lost, put_lost, take_lost};
use crate::verbs::session::NAME_TEXT_BYTES_MAX;
use crate::wire::{List, Reader, at_most, ensure, exists, put_bytes, text};

/// Most groups of one page.
pub const GROUPS_PAGE_MAX: usize = 1024;
/// Most members shown of one group.
pub const MEMBERS_SHOWN_MAX: usize = 1024;
/// Most dead letters of one page.
pub const LETTERS_PAGE_MAX: usize = 1024;
/// Longest explanation why a group does not move, in bytes.
pub const WHY_BYTES_MAX: usize = 1024;

const GROUPS: List = List { field: "groups", item_bytes_min: 160, count_max: GROUPS_PAGE_MAX };
const MEMBERS: List = List { field: "members", item_bytes_min: 22, count_max: MEMBERS_SHOWN_MAX };
const LETTERS: List = List { field: "letters", item_bytes_min: 40, count_max: LETTERS_PAGE_MAX };

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

/// Asks for groups by name, page by page. Answered by [`GroupInfos`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupList {
    /// Which groups.
    pub pattern: Pattern,
    /// The last name of the page before; `None` for the first page.
    pub after: Option<TopicName>,
    /// Most groups of the page; the server may send fewer.
    pub limit: u32,
}

impl Fields for GroupList {
    fn subject(&self) -> &str {
        self.pattern.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let pattern = Pattern::parse(subject)?;
        let limit = payload.u32("limit")?;
        let after = if payload.flag("after")? { Some(payload.name("after")?) } else { None };
        Ok(Self { pattern, after, limit })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.limit);
        out.put_u8(u8::from(self.after.is_some()));
        if let Some(after) = &self.after {
            put_bytes(out, after.as_str().as_bytes());
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(self.limit > 0, "limit")
    }
}

/// Lets a group start again somewhere else. Answered by [`GroupInfo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReset {
    /// Which group.
    pub group: TopicName,
    /// Where.
    pub to: GroupStart,
    /// Whether to do it though the group has members.
    pub force: bool,
}

impl Fields for GroupReset {
    fn subject(&self) -> &str {
        self.group.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let group = TopicName::parse(subject)?;
        let force = payload.flag("force")?;
        let to = match payload.u8("to")? {
            1 => GroupStart::Beginning,
            2 => GroupStart::Now,
            3 => GroupStart::Seq(payload.seq("to")?),
            4 => GroupStart::Position(payload.position("to")?),
            5 => GroupStart::Time(Timestamp(payload.u64("to")?)),
            _ => return Err(VerbError::Value { field: "to" }),
        };
        Ok(Self { group, to, force })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.force));
        let (code, number) = match self.to {
            GroupStart::Beginning => (1, None),
            GroupStart::Now => (2, None),
            GroupStart::Seq(seq) => (3, Some(seq.0)),
            GroupStart::Position(position) => (4, Some(position.0)),
            GroupStart::Time(time) => (5, Some(time.0)),
        };
        out.put_u8(code);
        number.into_iter().for_each(|number| out.put_u64_le(number));
    }

    fn check(&self) -> Result<(), VerbError> {
        match self.to {
            GroupStart::Seq(Seq(number)) | GroupStart::Position(Position(number)) => {
                exists(number, "to")
            }
            _ => Ok(()),
        }
    }
}

/// A [`GroupInfo`] as a verb, which should not be large for the sake of one of its kind.
pub type BoxedGroupInfo = Box<GroupInfo>;

fn take_group(payload: &mut Reader) -> Result<GroupInfo, VerbError> {
    let name = payload.name("name")?;
    let id = payload.u64("id")?;
    let settings = GroupSettings::decode(&payload.bytes("settings")?)?;
    let state = match payload.u8("doing")? {
        1 => GroupDoing::Running,
        2 => GroupDoing::Paused,
        3 => {
            let one = payload.flag("topic")?;
            let topic = if one { Some(payload.name("topic")?) } else { None };
            GroupDoing::Stopped(take_lost(topic, payload)?)
        }
        _ => return Err(VerbError::Value { field: "doing" }),
    };
    let (floor, frontier) = (payload.position("floor")?, payload.position("frontier")?);
    let (lag, lag_exact) = (payload.u64("lag")?, payload.flag("lag_exact")?);
    let [ready, waiting, parked, in_flight, dying] = take_numbers(payload, "counts")?;
    let counts = Counts { ready, waiting, parked, in_flight, dying };
    let oldest_age = take_some(payload, "oldest_ms")?.map(Duration::from_millis);
    let next_retry = take_some(payload, "next_retry")?.map(Timestamp);
    let (dead_letters, redriving) = (payload.u64("dead_letters")?, payload.flag("redriving")?);
    let totals = GroupTotals::from_numbers(take_numbers(payload, "totals")?);
    let count = payload.count(&MEMBERS)?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        members.push(MemberInfo {
            id: payload.u64("id")?,
            window: payload.u32("window")?,
            in_flight: payload.u64("in_flight")?,
            active: payload.flag("active")?,
            name: payload.text("name")?,
        });
    }
    let why = payload.text("why")?;
    Ok(GroupInfo {
        name,
        id,
        settings,
        state,
        floor,
        frontier,
        lag,
        lag_exact,
        counts,
        oldest_age,
        next_retry,
        dead_letters,
        redriving,
        totals,
        members,
        why,
    })
}

impl Fields for GroupInfo {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        take_group(payload)
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.name.as_str().as_bytes());
        out.put_u64_le(self.id);
        put_bytes(out, &settings_bytes(&self.settings));
        match &self.state {
            GroupDoing::Running => out.put_u8(1),
            GroupDoing::Paused => out.put_u8(2),
            GroupDoing::Stopped(gap) => {
                out.put_u8(3);
                out.put_u8(u8::from(gap.topic.is_some()));
                if let Some(topic) = &gap.topic {
                    put_bytes(out, topic.as_str().as_bytes());
                }
                put_lost(gap, out);
            }
        }
        out.put_u64_le(self.floor.0);
        out.put_u64_le(self.frontier.0);
        out.put_u64_le(self.lag);
        out.put_u8(u8::from(self.lag_exact));
        let Counts { ready, waiting, parked, in_flight, dying } = self.counts;
        let counts = [ready, waiting, parked, in_flight, dying];
        counts.into_iter().for_each(|number| out.put_u64_le(number));
        put_some(out, self.oldest_age.map(whole_ms));
        put_some(out, self.next_retry.map(|time| time.0));
        out.put_u64_le(self.dead_letters);
        out.put_u8(u8::from(self.redriving));
        self.totals.numbers().into_iter().for_each(|number| out.put_u64_le(number));
        put_varint(out, self.members.len() as u64);
        for member in &self.members {
            out.put_u64_le(member.id);
            out.put_u32_le(member.window);
            out.put_u64_le(member.in_flight);
            out.put_u8(u8::from(member.active));
            put_bytes(out, member.name.as_bytes());
        }
        put_bytes(out, self.why.as_bytes());
    }

    fn check(&self) -> Result<(), VerbError> {
        self.settings.validate()?;
        if let GroupDoing::Stopped(gap) = &self.state {
            check_lost(gap)?;
        }
        exists(self.floor.0, "floor")?;
        exists(self.frontier.0, "frontier")?;
        MEMBERS.check(self.members.len())?;
        for member in &self.members {
            at_most(NAME_TEXT_BYTES_MAX, member.name.len(), "name")?;
        }
        at_most(WHY_BYTES_MAX, self.why.len(), "why")
    }
}

/// A page of groups, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupInfos {
    /// The groups.
    pub groups: Vec<GroupInfo>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

impl Fields for GroupInfos {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let more = payload.flag("more")?;
        let count = payload.count(&GROUPS)?;
        let mut groups = Vec::with_capacity(count);
        for _ in 0..count {
            groups.push(take_group(payload)?);
        }
        Ok(Self { groups, more })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.more));
        put_varint(out, self.groups.len() as u64);
        self.groups.iter().for_each(|group| group.put(out));
    }

    fn check(&self) -> Result<(), VerbError> {
        GROUPS.check(self.groups.len())?;
        self.groups.iter().try_for_each(GroupInfo::check)
    }
}

/// Asks for dead letters of a group, page by page. Answered by [`Letters`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterList {
    /// Which group.
    pub group: TopicName,
    /// The first number that is wanted.
    pub from: Seq,
    /// Most letters of the page; the server may send fewer.
    pub limit: u32,
}

impl Fields for LetterList {
    fn subject(&self) -> &str {
        self.group.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let group = TopicName::parse(subject)?;
        Ok(Self { group, from: payload.seq("from")?, limit: payload.u32("limit")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.from.0);
        out.put_u32_le(self.limit);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.from.0, "from")?;
        ensure(self.limit > 0, "limit")
    }
}

/// Asks for one dead letter. Answered by [`Letters`] with one, or
/// [`NotFound`](crate::NotFound).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterRead {
    /// Which group.
    pub group: TopicName,
    /// Which letter.
    pub seq: Seq,
}

impl Fields for LetterRead {
    fn subject(&self) -> &str {
        self.group.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { group: TopicName::parse(subject)?, seq: payload.seq("seq")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.seq.0);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.seq.0, "seq")
    }
}

fn take_filter(payload: &mut Reader) -> Result<LetterFilter, VerbError> {
    let flags = payload.u8("filter")?;
    ensure(flags & !31 == 0, "filter")?;
    let mut filter = LetterFilter::default();
    if flags & 1 != 0 {
        filter.from = Some(payload.seq("from")?);
    }
    if flags & 2 != 0 {
        filter.to = Some(payload.seq("to")?);
    }
    if flags & 4 != 0 {
        filter.topic = Some(Pattern::parse(text(&payload.bytes("topic")?, "topic")?)?);
    }
    if flags & 8 != 0 {
        filter.error = Some(payload.text("error")?);
    }
    if flags & 16 != 0 {
        filter.key = Some(payload.bytes("key")?);
    }
    Ok(filter)
}

fn put_filter(filter: &LetterFilter, out: &mut BytesMut) {
    let has = [
        filter.from.is_some(),
        filter.to.is_some(),
        filter.topic.is_some(),
        filter.error.is_some(),
        filter.key.is_some(),
    ];
    let flags = has.into_iter().rev().fold(0, |flags, is| flags << 1 | u8::from(is));
    out.put_u8(flags);
    for seq in [filter.from, filter.to].into_iter().flatten() {
        out.put_u64_le(seq.0);
    }
    if let Some(topic) = &filter.topic {
        put_bytes(out, topic.as_str().as_bytes());
    }
    if let Some(error) = &filter.error {
        put_bytes(out, error.as_bytes());
    }
    if let Some(key) = &filter.key {
        put_bytes(out, key);
    }
}

fn check_filter(filter: &LetterFilter) -> Result<(), VerbError> {
    for seq in [filter.from, filter.to].into_iter().flatten() {
        exists(seq.0, "from")?;
    }
    at_most(REASON_BYTES_MAX, filter.error.as_ref().map_or(0, String::len), "error")?;
    at_most(KEY_BYTES_MAX, filter.key.as_ref().map_or(0, Bytes::len), "key")
}

/// Puts dead letters back into the topics they came from. Answered by [`LettersMoved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterRedrive {
    /// Which group.
    pub group: TopicName,
    /// Which letters.
    pub filter: LetterFilter,
    /// How many per second, in the background, where zero ends the redrive that is under way;
    /// at once if it does not say.
    pub rate: Option<u32>,
}

impl Fields for LetterRedrive {
    fn subject(&self) -> &str {
        self.group.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let group = TopicName::parse(subject)?;
        let rate = if payload.flag("rate")? { Some(payload.u32("rate")?) } else { None };
        Ok(Self { group, filter: take_filter(payload)?, rate })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.rate.is_some()));
        if let Some(rate) = self.rate {
            out.put_u32_le(rate);
        }
        put_filter(&self.filter, out);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_filter(&self.filter)
    }
}

/// Removes dead letters for ever. Answered by [`LettersMoved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterRemove {
    /// Which group.
    pub group: TopicName,
    /// Which letters.
    pub filter: LetterFilter,
}

impl Fields for LetterRemove {
    fn subject(&self) -> &str {
        self.group.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { group: TopicName::parse(subject)?, filter: take_filter(payload)? })
    }

    fn put(&self, out: &mut BytesMut) {
        put_filter(&self.filter, out);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_filter(&self.filter)
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

/// Dead letters, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Letters {
    /// The letters.
    pub letters: Vec<Letter>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

impl Fields for Letters {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let more = payload.flag("more")?;
        let count = payload.count(&LETTERS)?;
        let mut letters = Vec::with_capacity(count);
        for _ in 0..count {
            letters.push(Letter {
                seq: payload.seq("seq")?,
                topic: payload.name("topic")?,
                origin: payload.seq("origin")?,
                attempts: payload.u32("attempts")?,
                error: payload.text("error")?,
                first_failed: Timestamp(payload.u64("first_failed")?),
                died: Timestamp(payload.u64("died")?),
                records: Records::parse(payload.bytes("records")?)?,
            });
        }
        Ok(Self { letters, more })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.more));
        put_varint(out, self.letters.len() as u64);
        for letter in &self.letters {
            out.put_u64_le(letter.seq.0);
            put_bytes(out, letter.topic.as_str().as_bytes());
            out.put_u64_le(letter.origin.0);
            out.put_u32_le(letter.attempts);
            put_bytes(out, letter.error.as_bytes());
            out.put_u64_le(letter.first_failed.0);
            out.put_u64_le(letter.died.0);
            put_bytes(out, &letter.records.bytes);
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        LETTERS.check(self.letters.len())?;
        for letter in &self.letters {
            exists(letter.seq.0, "seq")?;
            exists(letter.origin.0, "origin")?;
            at_most(REASON_BYTES_MAX, letter.error.len(), "error")?;
            ensure(letter.records.count == 1, "records")?;
        }
        Ok(())
    }
}

/// How many dead letters were redriven or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LettersMoved {
    /// How many.
    pub count: u64,
    /// Whether more go in the background.
    pub goes_on: bool,
}

impl Fields for LettersMoved {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { count: payload.u64("count")?, goes_on: payload.flag("goes_on")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.count);
        out.put_u8(u8::from(self.goes_on));
    }
}

fn settings_bytes(settings: &GroupSettings) -> Vec<u8> {
    let mut bytes = Vec::new();
    settings.encode(&mut bytes);
    bytes
}

fn take_numbers<const N: usize>(
    payload: &mut Reader,
    field: &'static str,
) -> Result<[u64; N], VerbError> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = payload.u64(field)?;
    }
    Ok(numbers)
}

fn take_some(payload: &mut Reader, field: &'static str) -> Result<Option<u64>, VerbError> {
    if payload.flag(field)? { payload.u64(field).map(Some) } else { Ok(None) }
}

fn put_some(out: &mut BytesMut, number: Option<u64>) {
    out.put_u8(u8::from(number.is_some()));
    number.into_iter().for_each(|number| out.put_u64_le(number));
}
