//! Verbs about topics: create, configure, describe, list, purge, delete.
//!
//! The topic is the frame's subject in questions, and a field in answers. Settings are core's
//! own bytes, so that a setting is described once; one that is left out gets its default.

use alloc::vec::Vec;
use bytes::{BufMut, BytesMut};
use gapless_core::batch::put_varint;
use gapless_core::{Pattern, Seq, TopicInfo, TopicName, TopicSettings};

use crate::verb::{Fields, VerbError, no_subject};
use crate::wire::{List, Reader, ensure, exists, put_bytes};

/// Most topics of one page.
pub const TOPICS_PAGE_MAX: usize = 1024;

const TOPICS: List = List { field: "topics", item_bytes_min: 35, count_max: TOPICS_PAGE_MAX };

with_settings! { topic: TopicSettings,
    /// Creates a topic. Succeeds if it exists with equal settings. Answered by
    /// [`TopicInfo`].
    TopicCreate
    /// Gives a topic other settings, all of them. Answered by [`TopicInfo`].
    TopicConfigure
}

name_only! { topic,
    /// Asks what a topic is and holds. Answered by [`TopicInfo`].
    TopicDescribe
    /// Removes a topic with all its messages. Answered by [`Done`].
    TopicDelete
}

/// Asks for topics by name, page by page. Answered by [`TopicInfos`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicList {
    /// Which topics.
    pub pattern: Pattern,
    /// The last name of the page before; `None` for the first page.
    pub after: Option<TopicName>,
    /// Most topics of the page; the server may send fewer.
    pub limit: u32,
}

impl Fields for TopicList {
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

/// Removes the messages of a topic below a seq, for ever. Answered by [`Done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPurge {
    /// Which topic.
    pub topic: TopicName,
    /// The first seq that stays.
    pub below: Seq,
}

impl Fields for TopicPurge {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { topic: TopicName::parse(subject)?, below: payload.seq("below")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.below.0);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.below.0, "below")
    }
}

impl Fields for TopicInfo {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        take_topic(payload)
    }

    fn put(&self, out: &mut BytesMut) {
        put_bytes(out, self.name.as_str().as_bytes());
        out.put_u64_le(self.id);
        out.put_u64_le(self.first.0);
        out.put_u64_le(self.next.0);
        out.put_u64_le(self.bytes);
        put_bytes(out, &settings_bytes(&self.settings));
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.first.0, "first")?;
        exists(self.next.0, "next")?;
        Ok(self.settings.validate()?)
    }
}

fn take_topic(payload: &mut Reader) -> Result<TopicInfo, VerbError> {
    Ok(TopicInfo {
        name: payload.name("name")?,
        id: payload.u64("id")?,
        first: payload.seq("first")?,
        next: payload.seq("next")?,
        bytes: payload.u64("bytes")?,
        settings: TopicSettings::decode(&payload.bytes("settings")?)?,
    })
}

/// A page of topics, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicInfos {
    /// The topics.
    pub topics: Vec<TopicInfo>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

impl Fields for TopicInfos {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let more = payload.flag("more")?;
        let count = payload.count(&TOPICS)?;
        let mut topics = Vec::with_capacity(count);
        for _ in 0..count {
            topics.push(take_topic(payload)?);
        }
        Ok(Self { topics, more })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.more));
        put_varint(out, self.topics.len() as u64);
        self.topics.iter().for_each(|topic| topic.put(out));
    }

    fn check(&self) -> Result<(), VerbError> {
        TOPICS.check(self.topics.len())?;
        self.topics.iter().try_for_each(TopicInfo::check)
    }
}

/// What was asked for is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done;

impl Fields for Done {
    fn take(subject: &str, _: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self)
    }

    fn put(&self, _: &mut BytesMut) {}
}

fn settings_bytes(settings: &TopicSettings) -> Vec<u8> {
    let mut bytes = Vec::new();
    settings.encode(&mut bytes);
    bytes
}
