//! Verbs of the connection itself: hello and welcome, errors, pings, and its end.
//!
//! A hello and an error must be readable by every version that ever was or will be, so their
//! layouts are frozen: what a later version adds to a hello comes after its last field, where
//! this one keeps it without a look. Everything else is in the layout of the version that the
//! welcome names.

use alloc::string::String;
use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::{Epoch, Fate};

use crate::errors::ErrorCode;
use crate::field::Field;
use crate::verb::{Fields, VerbError, no_subject};
use crate::wire::{Reader, at_most, ensure, fate_number, put_bytes};

/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;
/// Longest name of a client, a server or its version, in bytes.
pub const NAME_TEXT_BYTES_MAX: usize = 255;
/// Longest token by which a client proves who it is, in bytes: room for a signed token.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Most bytes that a later version may add to a hello.
pub const EXTENSION_BYTES_MAX: usize = 1024;
/// Longest text of an error, in bytes.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;
/// Most bytes of a ping that come back.
pub const ECHO_BYTES_MAX: usize = 64;

/// What a peer can do beyond the version. A bit that one side does not know is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u64);

impl Features {
    /// Nothing beyond the version.
    pub const NONE: Self = Self(0);
    /// Groups: kinds 80 to 95 and 112 to 127.
    pub const GROUPS: Self = Self(1);
    /// Jobs: kinds 96 to 111. No server of version 1 offers it yet.
    pub const JOBS: Self = Self(2);
    /// An [`ErrorAnswer`] may say after how long trying again makes sense.
    pub const RETRY_AFTER: Self = Self(4);

    /// Whether frames of this kind are a part of it.
    pub fn holds(self, kind: u8) -> bool {
        let groups = self.has(Self::GROUPS) && matches!(kind, 80..=95 | 112..=127);
        groups || (self.has(Self::JOBS) && matches!(kind, 96..=111))
    }

    /// What both can do.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` is on.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Field for Features {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        payload.u64(field).map(Self)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.0);
    }
}

/// The first frame of a connection. Its layout is frozen.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version the client speaks.
    pub version_min: u16,
    /// The highest version the client speaks.
    pub version_max: u16,
    /// What the client can do beyond it.
    pub features: Features,
    /// How the client calls itself, for people.
    pub client_name: String,
    /// The client's credential, if it needs one.
    pub token: Option<Bytes>,
    /// What a later version says besides; empty in version 1.
    pub extension: Bytes,
}

/// Without the token, which is a secret.
impl core::fmt::Debug for Hello {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Hello")
            .field("version_min", &self.version_min)
            .field("version_max", &self.version_max)
            .field("features", &self.features)
            .field("client_name", &self.client_name)
            .field("has_token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

impl Hello {
    /// The version both speak; `None` when there is none.
    pub fn common_version(&self) -> Option<u16> {
        (self.version_min..=self.version_max).contains(&VERSION).then_some(VERSION)
    }
}

impl Fields for Hello {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let (version_min, version_max) = (payload.u16("version_min")?, payload.u16("version_max")?);
        let features = Features(payload.u64("features")?);
        let client_name = payload.text("client_name")?;
        let token = if payload.flag("token")? { Some(payload.bytes("token")?) } else { None };
        let extension = payload.rest();
        Ok(Self { version_min, version_max, features, client_name, token, extension })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u16_le(self.version_min);
        out.put_u16_le(self.version_max);
        out.put_u64_le(self.features.0);
        put_bytes(out, self.client_name.as_bytes());
        out.put_u8(u8::from(self.token.is_some()));
        if let Some(token) = &self.token {
            put_bytes(out, token);
        }
        out.put_slice(&self.extension);
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(1 <= self.version_min && self.version_min <= self.version_max, "version_min")?;
        at_most(NAME_TEXT_BYTES_MAX, self.client_name.len(), "client_name")?;
        at_most(TOKEN_BYTES_MAX, self.token.as_ref().map_or(0, Bytes::len), "token")?;
        at_most(EXTENSION_BYTES_MAX, self.extension.len(), "extension")
    }
}

/// What a connection may ask of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Most bytes of a whole frame, in both directions.
    pub frame_bytes: u32,
    /// Most bytes of frames that were sent and not yet answered.
    pub in_flight_bytes: u64,
    /// Most subscriptions of this connection.
    pub subscriptions: u32,
    /// Most messages of credit that a subscription may hold.
    pub credit_messages: u32,
    /// Most bytes of credit that a subscription may hold.
    pub credit_bytes: u64,
    /// After how many ms without a frame the server ends the connection; zero is never.
    pub idle_ms: u32,
}

row! { Limits {
    frame_bytes, in_flight_bytes, subscriptions, credit_messages, credit_bytes, idle_ms,
}; }

plain! {
    /// The answer to a hello.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    Welcome {
        /// The version that holds from now on.
        version: u16,
        /// What both can do beyond it.
        features: Features,
        /// How the server calls itself, for people.
        server_name: String,
        /// The server's own version, for people.
        server_version: String,
        /// The store's own id, part of every token.
        epoch: Epoch,
        /// The number of this connection, as in the list of clients.
        session: u64,
        /// What this connection may ask for.
        limits: Limits,
    } |it: &Self| {
        at_most(NAME_TEXT_BYTES_MAX, it.server_name.len(), "server_name")?;
        at_most(NAME_TEXT_BYTES_MAX, it.server_version.len(), "server_version")
    };
}

/// Something was refused or failed. Its layout is frozen; what is behind the text is sent only to
/// peers that offer [`Features::RETRY_AFTER`]. With a `corr_id` it answers that frame; without one
/// it concerns the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorAnswer {
    /// The number in the one list; a newer peer may send one that is not in it here.
    pub code: u16,
    /// What became of what was asked for.
    pub fate: Fate,
    /// What happened and what to do, for people.
    pub message: String,
    /// After how many milliseconds trying again makes sense, if that is known.
    pub retry_after_ms: Option<u32>,
}

impl ErrorAnswer {
    /// An error of the list, with its own fate. A text that is too long is cut.
    pub fn new(code: ErrorCode, message: &str) -> Self {
        let mut end = message.len().min(ERROR_TEXT_BYTES_MAX);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let message = message[..end].into();
        Self { code: code.number(), fate: code.fate(), message, retry_after_ms: None }
    }

    /// The same, with the time after which trying again makes sense: whole milliseconds, at least
    /// one.
    #[must_use]
    pub fn retry_after(mut self, wait: core::time::Duration) -> Self {
        let ms = wait.as_micros().div_ceil(1_000).max(1);
        self.retry_after_ms = Some(u32::try_from(ms).unwrap_or(u32::MAX));
        self
    }

    /// The error in the list, if this version knows it.
    pub fn known(&self) -> Option<ErrorCode> {
        ErrorCode::from_number(self.code)
    }
}

/// As a part of other verbs it is without the time to wait.
impl Field for ErrorAnswer {
    fn take(payload: &mut Reader, _: &'static str) -> Result<Self, VerbError> {
        let (code, fate) = (payload.u16("code")?, payload.fate("fate")?);
        Ok(Self { code, fate, message: payload.text("message")?, retry_after_ms: None })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u16_le(self.code);
        out.put_u8(fate_number(self.fate));
        put_bytes(out, self.message.as_bytes());
    }

    fn check(&self, _: &'static str) -> Result<(), VerbError> {
        at_most(ERROR_TEXT_BYTES_MAX, self.message.len(), "message")
    }
}

impl Fields for ErrorAnswer {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let mut error: Self = Field::take(payload, "error")?;
        if payload.has_more() {
            error.retry_after_ms = Some(payload.u32("retry_after_ms")?);
        }
        Ok(error)
    }

    fn put(&self, out: &mut BytesMut) {
        Field::put(self, out);
        if let Some(ms) = self.retry_after_ms {
            out.put_u32_le(ms);
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        Field::check(self, "error")
    }
}

macro_rules! echoes {
    ($($(#[$doc:meta])* $name:ident)+) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            /// What comes back, or came back.
            pub echo: Bytes,
        }

        impl Fields for $name {
            fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
                no_subject(subject)?;
                Ok(Self { echo: payload.rest() })
            }

            fn put(&self, out: &mut BytesMut) {
                out.put_slice(&self.echo);
            }

            fn check(&self) -> Result<(), VerbError> {
                at_most(ECHO_BYTES_MAX, self.echo.len(), "echo")
            }
        })+
    };
}

echoes! {
    /// Asks whether the other side is alive; also keeps a connection from being idle.
    Ping
    /// The answer to a ping.
    Pong
}

/// Why a server wants to be left. A later one may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DrainReason(pub u8);

impl DrainReason {
    /// The server ends; come back later, or elsewhere.
    pub const SHUTDOWN: Self = Self(1);
    /// The server restarts; reconnect in a moment.
    pub const RESTART: Self = Self(2);
    /// Another server should have this connection.
    pub const REBALANCE: Self = Self(3);
}

impl Field for DrainReason {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        payload.u8(field).map(Self)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.0);
    }
}

plain! {
    /// The server wants the connection to end: finish what is under way, then say bye.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Drain {
        /// Why.
        reason: DrainReason,
        /// After how many ms the server ends the connection itself.
        grace_ms: u32,
    };
}

empty! {
    /// The last frame of a connection.
    Bye
}
