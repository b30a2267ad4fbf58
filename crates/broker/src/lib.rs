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

mod admin;
mod blocking;
mod broker;
mod checked;
mod clock;
mod commit;
mod counts;
mod dead_letters;
mod delayed;
mod delivery;
mod error;
mod events;
mod follow_pattern;
mod follow_topic;
mod group;
mod group_admin;
mod group_info;
mod groups;
mod keeper;
mod keys;
mod limits;
mod live_topic;
mod lookup;
mod member;
mod metrics;
mod named;
mod offer;
mod publish;
mod read_ahead;
mod rebuild;
mod recover;
mod recovery_memory;
mod report;
mod reread;
mod retention;
mod router;
mod slices;
mod spread;
mod subscribe;
mod subscription;
mod subsystem;
mod timers;
mod topics;
mod turns;
mod unread;
mod volatile;

pub use admin::{CreatingTopic, TopicPlace};
pub use blocking::block_on;
pub use broker::{Broker, BrokerOptions, BrokerState};
pub use clock::{Clock, ManualClock, SystemClock, random_epoch};
pub use counts::{DeliveryCounts, TopicCounts};
pub use dead_letters::{LETTERS_MAX, Redriven};
pub use delivery::{Delivery, Messages};
pub use error::{
    BrokerOpenError, CloseError, FollowError, GroupError, MemberError, SubscribeError, TopicError,
};
pub use gapless_core::{DeadLetter, GroupTotals, LetterFilter, Token, TokenError};
pub use gapless_core::{
    Delivered, DeliveredRef, GapNotice, GroupDoing, GroupInfo, MemberInfo, TopicInfo,
};
pub use gapless_journal::{FlushTimes, JournalOptions, JournalStats, Opened, ReadError, checksum};
pub use group_admin::Join;
pub use limits::Limits;
pub use member::{AckOutcome, Acking, Extended, Handed, Leased, Member, MemberHandle};
pub use metrics::ACK_SECONDS_BUCKETS;
pub use publish::{Atomic, Publishing};
pub use rebuild::{Recovered, rebuild};
pub use recover::rehearse;
pub use report::Reporting;
pub use spread::{Incoming, NamedRefused, Spread, SpreadIsSet, Unseen};
pub use subscription::{From, SubscriberInfo, SubscriberState, Subscription};
pub use subsystem::Subsystem;
