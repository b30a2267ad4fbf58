//! Verbs about topics: create, configure, describe, list, purge, delete.
//!
//! The topic is the frame's subject in questions, and a field in answers. Settings are core's
//! own bytes, so that a setting is described once; one that is left out gets its default.

use alloc::vec::Vec;
use bytes::BytesMut;
use gapless_core::{Pattern, Seq, TopicInfo, TopicName, TopicSettings};

use crate::field::{Field, Item};
use crate::verb::{Fields, VerbError};
use crate::wire::{List, Reader, ensure};

/// Most topics of one page.
pub const TOPICS_PAGE_MAX: usize = 1024;

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

plain! {
    /// Asks for topics by name, page by page. Answered by [`TopicInfos`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    TopicList[
        /// Which topics.
        pattern: Pattern
    ] {
        /// Most topics of the page; the server may send fewer.
        limit: u32,
        /// The last name of the page before; `None` for the first page.
        after: Option<TopicName>,
    } |it: &Self| ensure(it.limit > 0, "limit");

    /// Removes the messages of a topic below a seq, for ever. Answered by [`Done`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    TopicPurge[
        /// Which topic.
        topic: TopicName
    ] {
        /// The first seq that stays.
        below: Seq,
    };

    /// A page of topics, by name.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    TopicInfos {
        /// Whether there are more behind the last one.
        more: bool,
        /// The topics.
        topics: Vec<TopicInfo>,
    };
}

row! { TopicInfo { name, id, first, next, bytes, settings }; }

row_is_verb! { TopicInfo }

impl Item for TopicInfo {
    const LIST: List = List { field: "topics", item_bytes_min: 35, count_max: TOPICS_PAGE_MAX };
}

empty! {
    /// What was asked for is done.
    Done
}
