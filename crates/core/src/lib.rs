//! The rules of gapless, without clock, IO, threads or randomness.
//!
//! Everything here is plain data and plain functions: time and seeds are arguments. Each
//! rule that has states is a machine with one calling shape: `step(now, input, &mut
//! effects)`, `deadline()` and `check()`. So the same code runs in the broker, under the
//! simulator, in a golden script, and without `std`.
#![no_std]

extern crate alloc;

pub mod ack;
pub mod backoff;
pub mod batch;
pub mod batcher;
pub mod batches;
pub mod calendar;
pub mod cluster;
pub mod credential;
pub mod credit;
pub mod cursor;
mod dedup;
pub mod entry;
pub mod gap;
pub mod group;
pub mod id;
pub mod job;
pub mod link;
pub mod local;
pub mod message;
pub mod name;
pub mod openings;
pub mod options;
pub mod outbox;
pub mod owner;
pub mod pattern;
pub mod ranges;
pub mod rate;
pub mod reach;
pub mod registry;
pub mod retry;
pub mod reused;
pub mod rights;
pub mod settings;
pub mod shown;
pub mod subscriber;
pub mod sweep;
pub mod time;
pub mod token;
pub mod topic;
pub mod trace;
pub mod trie;

pub use ack::{Accepted, Fate, PubSubError, PublishAck, RejectReason, TotalLimit};
pub use backoff::{Backoff, BackoffError, Retries};
pub use batch::{Batch, BatchError, BatchRef, Record, Records, RecordsBuilder};
pub use batcher::{Batcher, BatcherLimits, BatcherLimitsError};
pub use batches::{Batches, Tally};
pub use credit::Amount;
pub use cursor::{Cursor, Start, StartError, View};
pub use entry::{Checksum, Entry, EntryError, EntryHeader, EntryKind};
pub use gap::{Gap, GapReason};
pub use group::{
    DeadLetter, Group, GroupSettings, GroupSettingsError, GroupStart, GroupTotals, Lease,
    LetterFilter, MemberId, Mode, OnGap,
};
pub use id::{Epoch, Position, Seq, TopicId};
pub use link::{Link, LinkError, LinkLimits};
pub use local::{Delivery, Local, LocalLimits, SubscriberId};
pub use message::{Message, MessageError};
pub use name::{NAME_BYTES_MAX, NameError, TopicName};
pub use options::{
    DeliveryPolicy, Durability, Expect, ExpectCell, PartitionBehavior, PublishOptions, Resolved,
    SystemDefaults, TopicDefaults, resolve,
};
pub use pattern::{Pattern, PatternError};
pub use ranges::Ranges;
pub use reach::{Kept, Reach};
pub use registry::{DecodeError, EncodeError, Envelope, RegisterError, Registry, Serializer};
pub use retry::{RetryError, RetryPolicy, Waits};
pub use reused::{Reuse, ReusedNames};
pub use settings::{
    Compaction, DEDUP_COUNT_MAX, DedupWindow, Retention, SettingsError, Storage, TopicSettings,
};
pub use shown::{
    Delivered, DeliveredRef, GapNotice, GroupDoing, GroupInfo, MemberInfo, StartFrom, TopicInfo,
};
pub use subscriber::{FailReason, Status, Subscriber};
pub use sweep::Sweep;
pub use time::{AHEAD_MAX, Timestamp};
pub use token::{Token, TokenError};
pub use topic::{Topic, TopicStateError};
pub use trie::{SubscribeError, SubscriptionIndex, UnsubscribeError};
