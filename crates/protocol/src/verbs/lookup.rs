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

use crate::verb::{Fields, VerbError, no_subject};
use crate::verbs::follow::Place;
use crate::verbs::publish::check_cell_name;
use crate::verbs::session::NAME_TEXT_BYTES_MAX;
use crate::wire::{List, Reader, at_most, ensure, exists, put_bytes, text};

/// Most clients of one page.
pub const CLIENTS_PAGE_MAX: usize = 1024;
/// Most subscriptions shown of one client.
pub const FOLLOWS_SHOWN_MAX: usize = 1024;
/// Most memberships shown in one page.
pub const MEMBERSHIPS_SHOWN_MAX: usize = 1_048_576;

const CLIENTS: List = List { field: "clients", item_bytes_min: 20, count_max: CLIENTS_PAGE_MAX };
const FOLLOWS: List = List { field: "follows", item_bytes_min: 28, count_max: FOLLOWS_SHOWN_MAX };
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

/// Asks for the message of a seq. Answered by [`Found`] or [`NotFound`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Of which topic.
    pub topic: TopicName,
    /// Which one.
    pub seq: Seq,
}

impl Fields for Read {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { topic: TopicName::parse(subject)?, seq: payload.seq("seq")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.seq.0);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.seq.0, "seq")
    }
}

/// Asks where a message is, and how far groups are with it. Answered by [`Explained`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// Of which topic.
    pub topic: TopicName,
    /// Which one.
    pub seq: Seq,
}

impl Fields for Explain {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self { topic: TopicName::parse(subject)?, seq: payload.seq("seq")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.seq.0);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.seq.0, "seq")
    }
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

macro_rules! empty {
    ($($(#[$doc:meta])* $name:ident)+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl Fields for $name {
            fn take(subject: &str, _: &mut Reader) -> Result<Self, VerbError> {
                no_subject(subject)?;
                Ok(Self)
            }

            fn put(&self, _: &mut BytesMut) {}
        })+
    };
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

/// Asks who is connected, page by page. Answered by [`ClientList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The last session of the page before; zero for the first page.
    pub after: u64,
    /// Most clients of the page; the server may send fewer.
    pub limit: u32,
}

impl Fields for Clients {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { after: payload.u64("after")?, limit: payload.u32("limit")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.after);
        out.put_u32_le(self.limit);
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(self.limit > 0, "limit")
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

    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(match payload.u8("state")? {
            1 => Self::Connected,
            2 => Self::Recovering,
            3 => Self::Online,
            4 => Self::Offline,
            _ => return Err(VerbError::Value { field: "state" }),
        })
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

impl MembershipInfo {
    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self {
            membership: payload.u64("membership")?,
            id: payload.u64("id")?,
            in_flight: payload.u64("in_flight")?,
            window: payload.u32("window")?,
            active: payload.flag("active")?,
            group: payload.name("group")?,
            name: payload.text("name")?,
        })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.membership);
        out.put_u64_le(self.id);
        out.put_u64_le(self.in_flight);
        out.put_u32_le(self.window);
        out.put_u8(u8::from(self.active));
        put_bytes(out, self.group.as_str().as_bytes());
        put_bytes(out, self.name.as_bytes());
    }
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

impl FollowInfo {
    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        Ok(Self {
            subscription: payload.u64("subscription")?,
            state: ClientState::take(payload)?,
            place: Place::take(payload)?,
            recovery_steps: payload.u64("recovery_steps")?,
            pattern: Pattern::parse(text(&payload.bytes("pattern")?, "pattern")?)?,
        })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.subscription);
        out.put_u8(self.state as u8);
        self.place.put(out);
        out.put_u64_le(self.recovery_steps);
        put_bytes(out, self.pattern.as_str().as_bytes());
    }
}

impl ClientInfo {
    fn take(payload: &mut Reader) -> Result<Self, VerbError> {
        let session = payload.u64("session")?;
        let since = Timestamp(payload.u64("since")?);
        let state = ClientState::take(payload)?;
        let (name, address) = (payload.text("name")?, payload.text("address")?);
        let count = payload.count(&FOLLOWS)?;
        let mut follows = Vec::with_capacity(count);
        for _ in 0..count {
            follows.push(FollowInfo::take(payload)?);
        }
        Ok(Self { session, since, state, name, address, follows, memberships: Vec::new() })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.session);
        out.put_u64_le(self.since.0);
        out.put_u8(self.state as u8);
        put_bytes(out, self.name.as_bytes());
        put_bytes(out, self.address.as_bytes());
        put_varint(out, self.follows.len() as u64);
        self.follows.iter().for_each(|follow| follow.put(out));
    }

    fn check(&self) -> Result<(), VerbError> {
        at_most(NAME_TEXT_BYTES_MAX, self.name.len(), "name")?;
        at_most(NAME_TEXT_BYTES_MAX, self.address.len(), "address")?;
        FOLLOWS.check(self.follows.len())?;
        let named = |each: &MembershipInfo| at_most(NAME_TEXT_BYTES_MAX, each.name.len(), "name");
        self.memberships.iter().try_for_each(named)?;
        self.follows.iter().try_for_each(|follow| follow.place.check())
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
        let count = payload.count(&CLIENTS)?;
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(ClientInfo::take(payload)?);
        }
        if payload.has_more() {
            take_memberships(&mut clients, payload)?;
        }
        Ok(Self { clients, more })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.more));
        put_varint(out, self.clients.len() as u64);
        self.clients.iter().for_each(|client| client.put(out));
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
        CLIENTS.check(self.clients.len())?;
        MEMBERSHIPS.check(self.clients.iter().map(|client| client.memberships.len()).sum())?;
        self.clients.iter().try_for_each(ClientInfo::check)
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
        client.memberships.push(MembershipInfo::take(payload)?);
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
