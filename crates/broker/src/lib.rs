//! The broker of gapless, to be embedded: topics, subscriptions, and nothing lost between.
//!
//! ```
//! use gapless_broker::{Broker, BrokerOptions, Delivery, From, block_on};
//! use gapless_core::{Message, Pattern, PublishOptions, TopicName, TopicSettings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let broker = Broker::open(BrokerOptions::new(folder.path()))?;
//! let orders = TopicName::parse("orders.created")?;
//! broker.create_topic(&orders, TopicSettings::default())?;
//!
//! // When this returns, the message survives power loss.
//! broker.publish(&orders, &Message::new("first"), &PublishOptions::default()).wait()?;
//!
//! let mut follower = broker.subscribe(&Pattern::parse("orders.>")?, From::Beginning)?;
//! let message = loop {
//!     if let Delivery::Messages(messages) = block_on(follower.next())? {
//!         break messages.iter().next().expect("a message was published");
//!     }
//! };
//! assert_eq!(message.message.body.as_deref(), Some(&b"first"[..]));
//! broker.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything is synchronous inside; what waits is a future of no particular runtime.

mod blocking;
mod broker;
mod checked;
mod clock;
mod error;
mod figures;
mod group;
mod keep;
mod limits;
mod publish;
mod read;
mod subsystem;
mod topic;
mod trace;
mod volatile;

pub use blocking::block_on;
pub use broker::{Broker, BrokerOptions, BrokerState};
pub use clock::{Clock, ManualClock, SystemClock, random_epoch, random_secret};
pub use error::{
    BrokerOpenError, CloseError, FollowError, GroupError, MemberError, SubscribeError, TopicError,
};
pub use figures::counts::{DeliveryCounts, TopicCounts};
pub use figures::metrics::{ACK_SECONDS_BUCKETS, DELIVERY_SECONDS_BUCKETS};
pub use figures::totals::{FlowCounts, GroupCounts};
pub use gapless_core::StartFrom as From;
pub use gapless_core::{DeadLetter, GroupTotals, LetterFilter, Token, TokenError};
pub use gapless_core::{
    Delivered, DeliveredRef, GapNotice, GroupDoing, GroupInfo, MemberInfo, TopicInfo,
};
pub use gapless_journal::blobs::BlobError;
pub use gapless_journal::{
    FlushTimes, JournalOptions, JournalStats, Opened, ReadError, Snapshot, SnapshotError, Sum,
    checksum, sum_of,
};
pub use group::admin::Join;
pub use group::dead_letters::{LETTERS_MAX, Redriven};
pub use group::member::{AckOutcome, Acking, Extended, Handed, Leased, Member, MemberHandle};
pub use keep::rebuild::{Recovered, rebuild};
pub use keep::recover::{check_snapshot, rehearse};
pub use limits::Limits;
pub use publish::{Atomic, Publishing};
pub use read::delivery::{Delivery, Messages};
pub use read::explain::{Explained, GroupExplained, GroupFate, MessageState};
pub use read::subscription::{SubscriberInfo, SubscriberState, Subscription};
pub use subsystem::Subsystem;
pub use topic::admin::{CreatingTopic, TopicPlace};
pub use trace::{Span, Step, TraceSink};
pub use volatile::report::Reporting;
pub use volatile::spread::{Incoming, NamedRefused, Spread, SpreadIsSet, Unseen};
