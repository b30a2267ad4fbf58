//! Verbs of subscriptions: ask, recover, go live, receive gap notices, grant credit.
//!
//! The recovery of requirement D4 on the wire: subscribe is the request; then come recovery
//! response, messages, recovery complete, and live messages. Messages are the batches as they
//! are stored, so that one buffer serves every subscriber; `from` and `to` say which seqs they
//! account for, and every verb of a subscription leads to a token from which another one goes
//! on. A client that adds up all messages and gaps of a topic has every seq exactly once.

use bytes::{BufMut, Bytes, BytesMut};
use gapless_core::cluster::Identity;
use gapless_core::{
    Batches, Checksum, Entry, EntryError, GapNotice, GapReason, Pattern, Position, Seq, StartFrom,
    Token, TopicName,
};

use crate::field::Field;
use crate::verb::{Fields, VerbError, no_subject};
use crate::verbs::session::ErrorAnswer;
use crate::wire::{Reader, ensure, exists, put_bytes};

/// Bytes of [`Messages`] before the first batch.
pub const MESSAGES_HEAD_BYTES: usize = 32;

impl Field for StartFrom {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        Ok(match payload.u8(field)? {
            1 => Self::Beginning,
            2 => Self::Seq(payload.seq(field)?),
            3 => Self::Token(Field::take(payload, "token")?),
            4 => Self::Time(Field::take(payload, field)?),
            5 => Self::Now,
            6 => Self::LastPerKey,
            _ => return Err(VerbError::Value { field }),
        })
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Beginning => out.put_u8(1),
            Self::Seq(seq) => {
                out.put_u8(2);
                seq.put(out);
            }
            Self::Token(token) => {
                out.put_u8(3);
                token.put(out);
            }
            Self::Time(time) => {
                out.put_u8(4);
                time.put(out);
            }
            Self::Now => out.put_u8(5),
            Self::LastPerKey => out.put_u8(6),
        }
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        match self {
            Self::Seq(seq) => seq.check(field),
            Self::Token(token) => token.check("token"),
            _ => Ok(()),
        }
    }
}

/// Follows a topic or a pattern. Answered by [`Subscribed`], then the recovery begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// What to follow.
    pub pattern: Pattern,
    /// How many messages may be sent to begin with.
    pub credit_messages: u32,
    /// How many bytes may be sent to begin with.
    pub credit_bytes: u64,
    /// Where to begin.
    pub from: StartFrom,
    /// The name under which it follows, if it has one: then it outlives its connection.
    pub identity: Option<Identity>,
}

impl Fields for Subscribe {
    fn subject(&self) -> &str {
        self.pattern.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let pattern = Pattern::parse(subject)?;
        let credit_messages = payload.u32("credit_messages")?;
        let credit_bytes = payload.u64("credit_bytes")?;
        let from = Field::take(payload, "from")?;
        let mut identity = None;
        if payload.has_more() {
            let bad = |_| VerbError::Value { field: "identity" };
            identity = Some(Identity::parse(&payload.text("identity")?).map_err(bad)?);
        }
        Ok(Self { pattern, credit_messages, credit_bytes, from, identity })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.credit_messages);
        out.put_u64_le(self.credit_bytes);
        self.from.put(out);
        if let Some(identity) = &self.identity {
            put_bytes(out, identity.as_str().as_bytes());
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        self.from.check("from")
    }
}

/// Ends a subscription. Answered by [`Unsubscribed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    /// Which subscription.
    pub subscription: u64,
    /// Whether what a named one has not been sent is held, as after a lost connection.
    pub hold: bool,
}

impl Fields for Unsubscribe {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let subscription = payload.u64("subscription")?;
        let hold = payload.has_more();
        if hold {
            ensure(payload.u8("hold")? == 1, "hold")?;
        }
        Ok(Self { subscription, hold })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.subscription);
        if self.hold {
            out.put_u8(1);
        }
    }
}

macro_rules! with_token {
    ($($(#[$doc:meta])* $name:ident)+) => {
        plain! {$(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            $name {
                /// Which subscription; a number of this connection.
                subscription: u64,
                /// Where it stands: another that begins with it misses nothing and repeats nothing.
                token: Token,
            };
        )+}
    };
}

with_token! {
    /// A subscription is accepted; everything of it comes after this.
    Subscribed
    /// A subscription is ended; nothing of it comes after this.
    Unsubscribed
    /// History is done; what comes now is live.
    RecoveryComplete
}

/// Messages of one topic that account for the seqs `from` to `to`: a seq between them that
/// does not come was compacted away or has expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Which subscription.
    pub subscription: u64,
    /// Where they were published.
    pub topic: TopicName,
    /// The first seq they account for.
    pub from: Seq,
    /// The last seq they account for.
    pub to: Seq,
    /// The position of the token after them.
    pub last_position: Position,
    /// The batches as stored. The first may hold messages before `from`, the last some after
    /// `to`; those are not part of it.
    pub batches: Batches,
}

impl Messages {
    /// What they take from the credit: the messages that the batches say they hold.
    pub fn credit_messages(&self) -> u64 {
        self.batches.messages()
    }

    /// What they take from the credit: the bytes of the batches.
    pub fn credit_bytes(&self) -> u64 {
        self.batches.bytes() as u64
    }

    /// Whether every batch is what was stored, and whole.
    ///
    /// # Errors
    /// Names what is wrong with the first that is not.
    pub fn verify(&self, checksum: Checksum) -> Result<(), EntryError> {
        for batch in self.batches.views() {
            Entry::verify(batch.bytes(), checksum)?;
            if batch.records().count() != batch.header().count as usize {
                return Err(EntryError::Short);
            }
        }
        Ok(())
    }
}

impl Fields for Messages {
    fn subject(&self) -> &str {
        self.topic.as_str()
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let topic = TopicName::parse(subject)?;
        let subscription = payload.u64("subscription")?;
        let (from, to) = (payload.seq("from")?, payload.seq("to")?);
        let last_position = payload.position("last_position")?;
        let batches = Batches::parse(payload.rest()).map_err(|error| match error {
            EntryError::Short => VerbError::Short { field: "batches" },
            _ => VerbError::Value { field: "batches" },
        })?;
        Ok(Self { subscription, topic, from, to, last_position, batches })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.subscription);
        out.put_u64_le(self.from.0);
        out.put_u64_le(self.to.0);
        out.put_u64_le(self.last_position.0);
    }

    fn tail(&self, each: &mut dyn FnMut(&Bytes)) {
        self.batches.parts().for_each(each);
    }

    fn check(&self) -> Result<(), VerbError> {
        exists(self.from.0, "from")?;
        exists(self.to.0, "to")?;
        exists(self.last_position.0, "last_position")?;
        ensure(self.from <= self.to, "to")?;
        ensure(self.batches.are_within(self.from, self.to), "batches")?;
        Ok(())
    }
}

/// A place, in the unit in which a subscription counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A seq: the subscription follows one topic.
    Seq(Seq),
    /// A position: the subscription follows a pattern.
    Position(Position),
}

impl Field for Place {
    fn take(payload: &mut Reader, field: &'static str) -> Result<Self, VerbError> {
        match payload.u8(field)? {
            1 => payload.seq(field).map(Self::Seq),
            2 => payload.position(field).map(Self::Position),
            _ => Err(VerbError::Value { field }),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        let (unit, number) = match self {
            Self::Seq(seq) => (1, seq.0),
            Self::Position(position) => (2, position.0),
        };
        out.put_u8(unit);
        out.put_u64_le(number);
    }

    fn check(&self, field: &'static str) -> Result<(), VerbError> {
        match self {
            Self::Seq(seq) => seq.check(field),
            Self::Position(position) => position.check(field),
        }
    }
}

/// A stretch of history, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaceRange {
    /// Seqs of the one topic that is followed.
    Seqs(Seq, Seq),
    /// Positions of the journal.
    Positions(Position, Position),
}

impl Field for PlaceRange {
    fn take(payload: &mut Reader, _: &'static str) -> Result<Self, VerbError> {
        match payload.u8("unit")? {
            1 => Ok(Self::Seqs(payload.seq("from")?, payload.seq("to")?)),
            2 => Ok(Self::Positions(payload.position("from")?, payload.position("to")?)),
            _ => Err(VerbError::Value { field: "unit" }),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        let (unit, from, to) = match self {
            Self::Seqs(from, to) => (1, from.0, to.0),
            Self::Positions(from, to) => (2, from.0, to.0),
        };
        out.put_u8(unit);
        out.put_u64_le(from);
        out.put_u64_le(to);
    }

    fn check(&self, _: &'static str) -> Result<(), VerbError> {
        let (from, to) = match self {
            Self::Seqs(from, to) => (from.0, to.0),
            Self::Positions(from, to) => (from.0, to.0),
        };
        exists(from, "from")?;
        exists(to, "to")
    }
}

plain! {
    /// History from here to there comes next; it may be followed by more, and some of it may come
    /// as gaps.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    RecoveryResponse {
        /// Which subscription.
        subscription: u64,
        /// What comes.
        range: PlaceRange,
    };

    /// Allows more to be sent to a subscription, on top of what is left. Not answered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Credit {
        /// Which subscription.
        subscription: u64,
        /// How many messages more.
        messages: u32,
        /// How many bytes more.
        bytes: u64,
    };

    /// The server ended a subscription; nothing of it comes after this.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Ended {
        /// Which subscription.
        subscription: u64,
        /// Where it stood: if the error passes, another may begin with it.
        token: Token,
        /// Why.
        error: ErrorAnswer,
    };
}

/// A notice for a subscription: numbers that will not come, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionGap {
    /// Which subscription.
    pub subscription: u64,
    /// What will not come.
    pub gap: GapNotice,
    /// Where the subscription stands after the gap.
    pub token: Token,
}

impl Fields for SubscriptionGap {
    fn subject(&self) -> &str {
        self.gap.topic.as_ref().map_or("", TopicName::as_str)
    }

    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        let topic = if subject.is_empty() { None } else { Some(TopicName::parse(subject)?) };
        let subscription = payload.u64("subscription")?;
        let reason = GapReason::from_code(payload.u8("reason")?);
        let token = Field::take(payload, "token")?;
        let flags = payload.u8("flags")?;
        ensure(flags & !7 == 0, "flags")?;
        let from = if flags & 1 != 0 { Some(payload.seq("from")?) } else { None };
        let to = if flags & 2 != 0 { Some(payload.seq("to")?) } else { None };
        let mut positions = None;
        if flags & 4 != 0 {
            positions = Some((payload.position("positions")?, payload.position("positions")?));
        }
        let gap = GapNotice { topic, from, to, positions, reason };
        Ok(Self { subscription, gap, token })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.subscription);
        out.put_u8(self.gap.reason.code());
        self.token.put(out);
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let flags = flag(self.gap.from.is_some(), 1) | flag(self.gap.to.is_some(), 2);
        out.put_u8(flags | flag(self.gap.positions.is_some(), 4));
        for seq in [self.gap.from, self.gap.to].into_iter().flatten() {
            out.put_u64_le(seq.0);
        }
        if let Some((first, last)) = self.gap.positions {
            out.put_u64_le(first.0);
            out.put_u64_le(last.0);
        }
    }

    fn check(&self) -> Result<(), VerbError> {
        for seq in [self.gap.from, self.gap.to].into_iter().flatten() {
            exists(seq.0, "from")?;
        }
        if let (Some(from), Some(to)) = (self.gap.from, self.gap.to) {
            ensure(from <= to, "to")?;
        }
        if let Some((first, last)) = self.gap.positions {
            exists(first.0, "positions")?;
            exists(last.0, "positions")?;
        }
        ensure(self.gap.reason.code() != 0, "reason")?;
        self.token.check("token")
    }
}
