//! The Rust client of gapless.
//!
//! A [`Client`] has one connection to one of several servers. When it is lost the client
//! reconnects, after 0.5 s to 30 s with jitter; what was published and not answered is sent again
//! under the same message ids, and subscriptions go on where they were.
//!
//! ```no_run
//! use gapless_client::{Client, ConnectOptions, Event, From, Message, TopicName};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(ConnectOptions::new(["127.0.0.1:4281"]).name("shop")).await?;
//! let orders: TopicName = "orders".parse()?;
//!
//! // Three on their way at once; each future is an ack.
//! let acks = ["a", "b", "c"].map(|body| client.publish(&orders, Message::new(body)));
//! for ack in acks {
//!     println!("stored as {:?}", ack.await?.seq());
//! }
//!
//! // From the beginning, then live, over every lost connection.
//! let mut follow = client.subscribe("orders", From::Beginning).await?;
//! while let Some(event) = follow.next().await {
//!     match event? {
//!         Event::Messages(messages) => {
//!             for each in messages.iter() {
//!                 println!("{}: {:?}", each.seq, each.message.body);
//!             }
//!         }
//!         Event::Gap(gap) => println!("missing: {gap:?}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The rules of reconnecting, resending and batching are machines in `gapless-core`, tested
//! there without sockets. Here is one task per client, the driver, which owns the socket.
//! Everything is bounded ([`ClientLimits`]): a user that publishes too fast waits, one that reads
//! too slowly is sent no more than a window.

mod address;
mod ask;
mod batching;
mod client;
mod clock;
mod connection;
mod consumer;
mod driver;
mod error;
mod feed;
mod following;
mod group_ask;
mod inbox;
mod leased;
mod member;
mod membership;
mod options;
mod publish;
mod receive;
mod request;
mod seat;
mod sending;
mod socket;
mod subscription;
mod tls;
pub mod typed;

pub use address::{Address, AddressError, DEFAULT_ADDRESS, DEFAULT_PORT};
pub use batching::{BatchingProducer, OnStop, Sending, Sent, StopReport};
pub use client::{Client, CloseReport, State};
pub use consumer::{Consumer, ConsumerOptions, ConsumerReport, Failed};
pub use error::{
    AskError, ConnectError, GaveUp, MemberError, PublishError, SubscriptionError, Trouble,
    TypedError,
};
pub use gapless_core::StartFrom as From;
pub use gapless_core::{Token, TokenError};
pub use leased::{Leased, LeasedMessage, Leases};
pub use member::{Answering, GroupEvent, Member, MemberHandle, MemberOptions, Outcome, Stepping};
pub use options::{ClientLimits, ConnectOptions, Ids};
pub use publish::{Ack, Atomic, Committing, Publishing, ReportError, Reporting};
pub use request::{REPLIES, REPLY_TO, RequestError, reply_subject, reply_to};
pub use subscription::{Event, Messages, Subscription};
pub use tls::{TlsError, TlsOptions};
pub use typed::{Json, MessagePack, RegistryExt};

pub use gapless_core::cluster::{
    ClusterNameError, DeliveryReport, DeliveryStatus, Identity, NodeName, SubscriberName,
    SubscriberResult,
};
pub use gapless_core::{
    Amount, Backoff, BatcherLimits, BatcherLimitsError, DeadLetter, Delivered, DeliveredRef,
    DeliveryPolicy, Durability, Epoch, Expect, Fate, GapNotice, GapReason, GroupDoing, GroupInfo,
    GroupSettings, GroupStart, GroupTotals, LetterFilter, MemberInfo, Message, MessageError, Mode,
    NameError, OnGap, Pattern, PatternError, Position, PublishOptions, RegisterError, Registry,
    RejectReason, RetryPolicy, Seq, Serializer, Timestamp, TopicInfo, TopicName, TopicSettings,
    Waits,
};
pub use gapless_protocol::{
    ClientInfo, ClientList, ClientState, ErrorCode, GroupInfos, Known, LettersMoved, PartAccepted,
    PlaceRange, TopicInfos, Visible,
};
