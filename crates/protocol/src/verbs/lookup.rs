//! Verbs that look things up: single messages, cells, connected clients, numbers about the server.
//!
//! A single message comes as a record, in the same bytes as in a batch, so that a client has
//! one reader for both. Lists come in pages that fit into a frame.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::batch::put_varint;
use gapless_core::message::KEY_BYTES_MAX;
use gapless_core::{Pattern, Position, Records, Seq, Timestamp, TopicName};

use crate::field::{Field, Item};
use crate::verb::{Fields, VerbError, no_subject};
use crate::verbs::follow::Place;
use crate::verbs::publish::check_cell_name;
use crate::verbs::session::NAME_TEXT_BYTES_MAX;
use crate::wire::{List, Reader, at_most, ensure, exists, text};

/// Most clients of one page.
pub const CLIENTS_PAGE_MAX: usize = 1024;
/// Most subscriptions shown of one client.
pub const FOLLOWS_SHOWN_MAX: usize = 1024;
/// Most memberships shown in one page.
pub const MEMBERSHIPS_SHOWN_MAX: usize = 1_048_576;

const MEMBERSHIPS: List =
    List { field: "memberships", item_bytes_min: 33, count_max: MEMBERSHIPS_SHOWN_MAX };

/// Asks for the newest message of a key. Answered by [`Found`] or [`NotFound`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// Of which topic.
    pub topic: TopicName,
    /// Of which key.
    pub key: Bytes,
}

impl Fields for Get {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { topic: TopicName::parse(subject)?, key: payload.rest() })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_slice(&self.key);
    }

    fn check(&self) -> Result<(), VerbError> {
        at_most(KEY_BYTES_MAX, self.key.len(), "key")
    }
}

plain! {
    /// Asks for the message of a seq. Answered by [`Found`] or [`NotFound`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Read[
        /// Of which topic.
        topic: TopicName
    ] {
        /// Which one.
        seq: Seq,
    };

    /// Asks where a message is, and how far groups are with it. Answered by [`Explained`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    Explain[
        /// Of which topic.
        topic: TopicName
    ] {
        /// Which one.
        seq: Seq,
    };

    /// Asks who is connected, page by page. Answered by [`ClientList`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Clients {
        /// The last session of the page before; zero for the first page.
        after: u64,
        /// Most clients of the page; the server may send fewer.
        limit: u32,
    } |it: &Self| ensure(it.limit > 0, "limit");
}

/// A message with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its place in its topic.
    pub seq: Seq,
    /// Its place in the journal.
    pub position: Position,
    /// When it was accepted.
    pub time: Timestamp,
    /// The message: exactly one record.
    pub records: Records,
}

impl Fields for Found {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let (seq, position) = (payload.seq("seq")?, payload.position("position")?);
        let time = Timestamp(payload.u64("time")?);
        Ok(Self { seq, position, time, records: Records::parse(payload.rest())? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.seq.0);
        out.put_u64_le(self.position.0);
        out.put_u64_le(self.time.0);
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        each(&self.records.bytes);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.seq.0, "seq")?;
        exists(self.position.0, "position")?;
        ensure(self.records.count == 1, "records")
    }
}

empty! {
    /// There is no such message: it is gone, removed, or not there yet.
    NotFound
    /// Asks for numbers about the server. Answered by [`StatsText`].
    Stats
}

/// Asks for the value of a cell. Answered by [`CellValue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellRead {
    /// Its name; not empty.
    pub name: Bytes,
}

impl Fields for CellRead {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { name: payload.rest() })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_slice(&self.name);
    }

    fn check(&self) -> Result<(), VerbError> {
        check_cell_name(&self.name)
    }
}

/// The value of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellValue {
    /// Its value; `None` when there is no such cell.
    pub value: Option<Bytes>,
}

impl Fields for CellValue {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let value = if payload.flag("value")? { Some(payload.rest()) } else { None };
        Ok(Self { value })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.value.is_some()));
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        self.value.iter().for_each(each);
    }
}

/// Ends the connection of a client. Answered by `Done` once it is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientClose {
    /// Its session, as [`ClientList`] shows it; not zero.
    pub session: u64,
}

impl Fields for ClientClose {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { session: payload.u64("session")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.session);
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(self.session > 0, "session")
    }
}

/// What a client or one of its subscriptions is doing (D5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ClientState {
    /// It is there but has not been sent anything yet.
    Connected = 1,
    /// It reads history.
    Recovering = 2,
    /// It is live.
    Online = 3,
    /// It is gone, or about to be.
    Offline = 4,
}

impl ClientState {
    /// The word users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Recovering => "recovering",
            Self::Online => "online",
            Self::Offline => "offline",
        }
    }
}

impl Field for ClientState {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(match payload.u8(field)? {
            1 => Self::Connected,
            2 => Self::Recovering,
            3 => Self::Online,
            4 => Self::Offline,
            _ => return Err(VerbError::Value { field }),
        })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(*self as u8);
    }
}

/// A client as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// The number of its connection.
    pub session: u64,
    /// When it came.
    pub since: Timestamp,
    /// What it is doing, all subscriptions together.
    pub state: ClientState,
    /// How it calls itself.
    pub name: String,
    /// Where it comes from; `unix` for the Unix socket.
    pub address: String,
    /// What it follows; the first of them if there are more than can be shown.
    pub follows: Vec<FollowInfo>,
    /// The groups it is a member of; the first of them if there are more than can be shown.
    pub memberships: Vec<MembershipInfo>,
}

/// A membership of a group as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipInfo {
    /// Its number on the connection.
    pub membership: u64,
    /// The number of the member in its group.
    pub id: u64,
    /// How many messages are with it.
    pub in_flight: u64,
    /// Most messages that may be.
    pub window: u32,
    /// Whether it gets messages; a standby of an ordered group does not.
    pub active: bool,
    /// The group.
    pub group: TopicName,
    /// How the member is called.
    pub name: String,
}

/// A subscription as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowInfo {
    /// Its number.
    pub subscription: u64,
    /// What it is doing.
    pub state: ClientState,
    /// The last place it was handed.
    pub place: Place,
    /// How many steps of history it was handed.
    pub recovery_steps: u64,
    /// What it follows.
    pub pattern: Pattern,
}

row! {
    MembershipInfo { membership, id, in_flight, window, active, group, name }
        |it: &Self| at_most(NAME_TEXT_BYTES_MAX, it.name.len(), "name");
    FollowInfo { subscription, state, place, recovery_steps, pattern };
}

impl Item for FollowInfo {
    const LIST: List = List { field: "follows", item_bytes_min: 28, count_max: FOLLOWS_SHOWN_MAX };
}

impl Item for ClientInfo {
    const LIST: List = List { field: "clients", item_bytes_min: 20, count_max: CLIENTS_PAGE_MAX };
}

/// Without its memberships, which come behind all clients.
impl Field for ClientInfo {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(Self {
            session: payload.u64("session")?,
            since: Field::take(payload, "since")?,
            state: Field::take(payload, "state")?,
            name: payload.text("name")?,
            address: payload.text("address")?,
            follows: Field::take(payload, field)?,
            memberships: Vec::new(),
        })
    }

    fn put(&self, out: &mut BytesMut) {
        self.session.put(out);
        self.since.put(out);
        self.state.put(out);
        self.name.put(out);
        self.address.put(out);
        self.follows.put(out);
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        at_most(NAME_TEXT_BYTES_MAX, self.name.len(), "name")?;
        at_most(NAME_TEXT_BYTES_MAX, self.address.len(), "address")?;
        self.memberships.iter().try_for_each(|each| each.check("memberships"))?;
        self.follows.check(field)
    }
}

/// A page of clients, by session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientList {
    /// The clients.
    pub clients: Vec<ClientInfo>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

impl Fields for ClientList {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let more = payload.flag("more")?;
        let mut clients: Vec<ClientInfo> = Field::take(payload, "clients")?;
        if payload.has_more() {
            take_memberships(&mut clients, payload)?;
        }
        Ok(Self { clients, more })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.more));
        self.clients.put(out);
        // Behind everything else, and only if there are any, as in the time before groups.
        let count: usize = self.clients.iter().map(|client| client.memberships.len()).sum();
        if count > 0 {
            put_varint(out, count as u64);
        }
        for (at, client) in self.clients.iter().enumerate() {
            for membership in &client.memberships {
                put_varint(out, at as u64);
                membership.put(out);
            }
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        MEMBERSHIPS.check(self.clients.iter().map(|client| client.memberships.len()).sum())?;
        self.clients.check("clients")
    }
}

/// Gives clients their memberships, which come in the order of the clients.
fn take_memberships(clients: &mut [ClientInfo], payload: &mut Reader) -> Result<(), VerbError> {
    let count = payload.count(&MEMBERSHIPS)?;
    ensure(count > 0, "memberships")?;
    let mut last = 0;
    for _ in 0..count {
        let at = payload.varint("client")?;
        let client = usize::try_from(at).ok().and_then(|at| clients.get_mut(at));
        let client = client.filter(|_| at >= last).ok_or(VerbError::Value { field: "client" })?;
        client.memberships.push(Field::take(payload, "memberships")?);
        last = at;
    }
    Ok(())
}

/// Numbers about the server, as a JSON object; what is in it is not part of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsText {
    /// The text.
    pub json: String,
}

/// A command about identities, roles and tokens, as a JSON object with a `do`.
#[derive(Clone, PartialEq, Eq)]
pub struct Auth {
    /// The text. It may hold a password, so debugging does not show it.
    pub json: String,
}

/// The answer to a command, as a JSON object.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthAnswer {
    /// The text. It may hold a new token, so debugging does not show it.
    pub json: String,
}

/// A question about the cluster, as a JSON object: `{"do":"status"}` or `{"do":"leave"}`. Answered by
/// [`ClusterAnswer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The text.
    pub json: String,
}

/// How the cluster stands, as a JSON object; `docs/cluster.md` has its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAnswer {
    /// The text.
    pub json: String,
}

/// Where a message is, as a JSON object; `docs/http.md` has its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The text.
    pub json: String,
}

/// Verbs whose payload is one JSON text.
macro_rules! json_only {
    ($($name:ident)+) => {$(
        impl Fields for $name {
            fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
                no_subject(subject)?;
                Ok(Self { json: text(&payload.rest(), "json")?.into() })
            }

            fn put(&self, out: &mut BytesMut) {
                out.put_slice(self.json.as_bytes());
            }
        }
    )+};
}

json_only! { StatsText Auth AuthAnswer Cluster ClusterAnswer Explained }

/// Verbs that may hold a secret: debugging shows only their name.
macro_rules! secret {
    ($($name:ident)+) => {$(
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(concat!(stringify!($name), " { … }"))
            }
        }
    )+};
}

secret! { Auth AuthAnswer }
