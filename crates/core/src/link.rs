//! What a client's connection owes its server, and how it comes back (issue 3).
//!
//! A link has at most one connection at a time. When that is lost, refused or too slow, it
//! waits as its [`Backoff`] says and tries the next address, round and round. It remembers
//! two things for the time in between: the publishes that were not answered, and how far
//! the user has come in each subscription.
//!
//! The rules it keeps:
//!
//! - Nothing is sent while it is not online, and each publish at most once per connection.
//! - Publishes are sent in the order of their numbers. After each welcome all that were not
//!   answered go first; one that was sent before is sent [`Effect::Send`] `again`, under the
//!   same number and so under the same message id, by which the server knows it.
//! - A publish that was queued is acked exactly once, or counted as unacked when the link
//!   ends. A link ends once: [`Effect::Stopped`] or [`Effect::GaveUp`].
//! - A subscription goes on after the last token the user has reached, so that nothing is
//!   missed and nothing comes twice.
//! - A wait for the server has a deadline, and what is remembered has a maximum.
//!
//! Not here: bytes, sockets, timers and message ids, which are the shell's; which tokens
//! are still good, which the server says by gap notices; and for how long the server knows
//! a message id: a link that was away for longer than the topic's window sends again what
//! the server may no longer recognise.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::ack::RejectReason;
use crate::backoff::{Backoff, BackoffError, Retries};
use crate::id::Epoch;
use crate::time::Timestamp;
pub use crate::token::Token;

/// The number of a publish on its link: 1, 2, 3 … in the order they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishNumber(pub u64);

impl PublishNumber {
    const FIRST: Self = Self(1);

    fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("numbers of 64 bits do not run out"))
    }
}

impl fmt::Display for PublishNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which subscription of a link is meant. The caller chooses the number, and uses none
/// twice, so that late news about an old one are not taken for news about a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What kind of place a subscription was asked to begin at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// One that stays where it is, such as the beginning, a seq or a token: as long as
    /// nothing came, it can be asked for again.
    Fixed,
    /// With the next message to come. This place moves: asked for again, it would miss what
    /// came in between, so the server's first answer fixes it.
    Now,
}

/// Where the server is asked to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Where the subscription was asked to begin at first.
    Start,
    /// After this token.
    After(Token),
}

/// Why there is no connection, or no welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// No server answers at the address, or the connection ended before the welcome.
    Unreachable,
    /// The server answers but accepts no clients at the moment.
    Busy,
    /// The same, and it says after how long trying again makes sense.
    BusyFor(Duration),
    /// The server speaks no version that the client speaks.
    VersionMismatch,
    /// The server does not let this client in.
    NotAuthorised,
    /// What answers speaks another protocol.
    OtherProtocol,
    /// One side does not trust the other.
    NotTrusted,
}

impl Failure {
    /// Whether trying again would fail in the same way.
    pub fn is_final(self) -> bool {
        match self {
            Self::Unreachable | Self::Busy | Self::BusyFor(_) => false,
            Self::VersionMismatch
            | Self::NotAuthorised
            | Self::OtherProtocol
            | Self::NotTrusted => true,
        }
    }
}

/// How much a link may remember, and how long it waits for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// The most publishes without an answer.
    pub publish_count_max: u32,
    /// The most bytes of publishes without an answer.
    pub publish_bytes_max: u64,
    /// The most subscriptions.
    pub subscription_count_max: u32,
    /// How long connecting and the greeting may take together, before the next address is
    /// tried: a server that accepts and says nothing must not hold a client for ever.
    pub welcome_wait: Duration,
}

impl Default for LinkLimits {
    /// Enough to keep a server busy over a long line, well below the number of message ids
    /// that a topic remembers, and a wait that outlasts a lost packet or two.
    fn default() -> Self {
        Self {
            publish_count_max: 10_000,
            publish_bytes_max: 64 << 20,
            subscription_count_max: 10_000,
            welcome_wait: Duration::from_secs(10),
        }
    }
}

/// Why a link was refused. There is none then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is nowhere to connect to.
    #[error("the list of addresses is empty: give at least one")]
    NoAddress,
    /// A limit of zero would let nothing through.
    #[error("{limit} is zero: give at least one")]
    Zero {
        /// Which limit it is.
        limit: &'static str,
    },
    /// The backoff cannot be used.
    #[error(transparent)]
    Backoff(#[from] BackoffError),
}

/// Why a subscription was refused. Nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriptionError {
    /// There is a subscription with this id.
    #[error("subscription {id} is there already: choose another id")]
    Known {
        /// The id.
        id: SubscriptionId,
    },
    /// The link has as many as it may.
    #[error("the link has {max} subscriptions: end one, or raise the limit")]
    TooMany {
        /// How many it may have.
        max: u32,
    },
}

/// How a link is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not started.
    Idle,
    /// A connection is being established.
    Connecting {
        /// Until when it waits for the welcome.
        by: Timestamp,
    },
    /// The hello is on its way.
    Greeting {
        /// Until when it waits for the welcome.
        by: Timestamp,
    },
    /// The server has said welcome.
    Online,
    /// The server asked to leave: what was sent may still be answered, nothing new is sent.
    Leaving {
        /// Until when it waits for answers.
        by: Timestamp,
    },
    /// There is no connection, and none is tried yet.
    Waiting {
        /// When the next is tried.
        until: Timestamp,
    },
    /// It was stopped or has given up. Nothing changes any more.
    Ended,
}

impl Status {
    /// Whether there is a server that listens.
    fn is_welcome(self) -> bool {
        matches!(self, Self::Online | Self::Leaving { .. })
    }

    /// Whether there is a connection, or one is being established.
    fn has_connection(self) -> bool {
        self.is_welcome() || matches!(self, Self::Connecting { .. } | Self::Greeting { .. })
    }
}

/// A client's connection to one of several servers, over all its losses.
///
/// The shell performs the effects in their order and reports the results. It has at most one
/// connection: it has closed one that it reports as failed or lost, and reports nothing more about
/// one that it was asked to disconnect. Inputs that do not fit the status are late, and are passed
/// over. It steps with [`Input::Tick`] at the deadline or soon after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    limits: LinkLimits,
    /// How many addresses there are.
    addresses: usize,
    /// Which of them is used, or tried next.
    address: usize,
    retries: Retries,
    status: Status,
    /// The store of the last server; none before the first welcome.
    epoch: Option<Epoch>,
    /// Publishes without an answer, and how large they are.
    publishes: BTreeMap<PublishNumber, u64>,
    /// How large they are together.
    bytes: u64,
    /// The number the next publish gets.
    next: PublishNumber,
    /// Publishes below this were sent, on this connection or an earlier one.
    sent: PublishNumber,
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    /// It was asked to stop, and waits for answers until then.
    stop_by: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subscription {
    origin: Origin,
    /// Where it goes on after a lost connection.
    place: Place,
    /// Whether this connection's server was asked for it.
    asked: bool,
}

/// What happens to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Connect, now and from now on.
    Start,
    /// The connection is there.
    Connected,
    /// The server has answered the hello.
    Welcomed {
        /// The store it serves.
        epoch: Epoch,
    },
    /// Connecting or the greeting failed, or the server has ended the connection saying why.
    Failed {
        /// Why.
        why: Failure,
    },
    /// The connection ended.
    Lost,
    /// The server asks to leave.
    Drain {
        /// How long it still answers.
        grace: Duration,
    },
    /// Time has passed.
    Tick,
    /// Take nothing new, wait for answers, end. A second stop may shorten the wait.
    Stop {
        /// How long to wait for answers; meanwhile lost connections are replaced.
        grace: Duration,
    },
    /// The user publishes something.
    Publish {
        /// How large it is.
        bytes: u64,
    },
    /// The server has answered a publish, with an ack or an error.
    Acked {
        /// Which.
        number: PublishNumber,
    },
    /// The user wants to follow something.
    Subscribe {
        /// Under which number.
        id: SubscriptionId,
        /// What kind of place it is to begin at; the shell keeps the place.
        origin: Origin,
    },
    /// The user wants no more of it.
    Unsubscribe {
        /// Which.
        id: SubscriptionId,
    },
    /// The server has taken a subscription.
    Subscribed {
        /// Which.
        id: SubscriptionId,
        /// What comes is what lies after this.
        token: Token,
    },
    /// Everything up to this token was handed to the user, gap notices included. To be reported at
    /// once: what was handed over but not reported is delivered again after a loss. The last one
    /// reported counts, even if it is lower: a restored store may go on below.
    Progress {
        /// In which subscription.
        id: SubscriptionId,
        /// Up to where.
        token: Token,
    },
    /// The server has ended a subscription for good; it is forgotten.
    Ended {
        /// Which.
        id: SubscriptionId,
    },
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect, and report [`Input::Connected`] or [`Input::Failed`].
    Connect {
        /// The index of the address.
        address: usize,
    },
    /// Send the hello, and report [`Input::Welcomed`] or [`Input::Failed`].
    SendHello,
    /// Close the connection, or stop connecting, and report nothing more about it.
    Disconnect,
    /// The server listens. Each of these is followed by one [`Effect::Offline`].
    Online {
        /// Whether the link was online before.
        resumed: bool,
    },
    /// The server has another store than the one before: tokens and message ids of the old
    /// one mean nothing to it. Resuming goes on; the server reports the gaps.
    StoreChanged {
        /// The store before.
        from: Epoch,
        /// The store now.
        to: Epoch,
    },
    /// No server listens any more.
    Offline,
    /// The next connection is tried at this time.
    RetryAt {
        /// When.
        at: Timestamp,
    },
    /// The publish is taken, and will be sent as soon as it can.
    Queued {
        /// Its number.
        number: PublishNumber,
    },
    /// The publish is refused; nothing is changed.
    Rejected(RejectReason),
    /// Send this publish.
    Send {
        /// Which.
        number: PublishNumber,
        /// Whether it was sent on an earlier connection, so that the server may know it.
        again: bool,
    },
    /// The publish is answered: forget it and pass the answer to the user.
    Acked {
        /// Which.
        number: PublishNumber,
    },
    /// An answer to something that was not asked, or was answered before: a server may
    /// answer both sendings of a publish. Nothing is changed.
    AckUnknown {
        /// The number in it.
        number: PublishNumber,
    },
    /// Ask the server for this subscription. What of it was received before and not handed
    /// to the user must be dropped first: it comes again.
    Subscribe {
        /// Which.
        id: SubscriptionId,
        /// Where it begins.
        from: Place,
    },
    /// Notify the server that this subscription is over.
    Unsubscribe {
        /// Which.
        id: SubscriptionId,
    },
    /// The subscription is refused; nothing is changed.
    Refused(SubscriptionError),
    /// The publish or subscription is refused because the link ends or has ended; nothing
    /// is changed.
    Closed,
    /// Trying again would not help: the link has ended by itself.
    GaveUp {
        /// Why.
        why: Failure,
        /// How many publishes were not answered. They may have happened or not, unless they
        /// were never sent.
        unacked: u32,
    },
    /// The link has ended as it was asked to.
    Stopped {
        /// How many publishes were not answered. They may have happened or not, unless they
        /// were never sent.
        unacked: u32,
    },
}

impl Link {
    /// A link to as many addresses, not started. The seed spreads its retries: give each
    /// client another.
    pub fn new(
        addresses: usize,
        backoff: Backoff,
        seed: u64,
        limits: LinkLimits,
    ) -> Result<Self, LinkError> {
        if addresses == 0 {
            return Err(LinkError::NoAddress);
        }
        let zeroes = [
            ("publish count", limits.publish_count_max == 0),
            ("publish bytes", limits.publish_bytes_max == 0),
            ("subscription count", limits.subscription_count_max == 0),
            ("welcome wait", limits.welcome_wait.is_zero()),
        ];
        if let Some((limit, _)) = zeroes.into_iter().find(|(_, zero)| *zero) {
            return Err(LinkError::Zero { limit });
        }
        Ok(Self {
            limits,
            addresses,
            address: 0,
            retries: Retries::new(backoff, seed)?,
            status: Status::Idle,
            epoch: None,
            publishes: BTreeMap::new(),
            bytes: 0,
            next: PublishNumber::FIRST,
            sent: PublishNumber::FIRST,
            subscriptions: BTreeMap::new(),
            stop_by: None,
        })
    }

    /// How it is doing.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The publishes without an answer, in their order.
    pub fn unacked(&self) -> impl Iterator<Item = PublishNumber> + '_ {
        self.publishes.keys().copied()
    }

    /// Takes one step.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Start => {
                if self.status == Status::Idle {
                    self.connect(now, effects);
                }
            }
            Input::Connected => {
                if let Status::Connecting { by } = self.status {
                    self.status = Status::Greeting { by };
                    effects.push(Effect::SendHello);
                }
            }
            Input::Welcomed { epoch } => {
                if matches!(self.status, Status::Greeting { .. }) {
                    self.welcomed(epoch, effects);
                }
            }
            Input::Failed { why } => {
                if self.status.has_connection() {
                    self.failed(now, why, effects);
                }
            }
            Input::Lost => {
                if self.status.has_connection() {
                    self.retry_later(now, Duration::ZERO, effects);
                }
            }
            Input::Drain { grace } => self.drain(now, grace, effects),
            Input::Tick => self.tick(now, effects),
            Input::Stop { grace } => self.stop(now, grace, effects),
            Input::Publish { bytes } => self.publish(bytes, effects),
            Input::Acked { number } => self.acked(now, number, effects),
            Input::Subscribe { id, origin } => self.subscribe(id, origin, effects),
            Input::Unsubscribe { id } => self.unsubscribe(id, effects),
            Input::Subscribed { id, token } => self.subscribed(id, token),
            Input::Progress { id, token } => {
                if let Some(subscription) = self.subscriptions.get_mut(&id) {
                    subscription.place = Place::After(token);
                }
            }
            Input::Ended { id } => {
                self.subscriptions.remove(&id);
            }
        }
    }

    /// When the link must be ticked: it tries again, stops waiting for a server, or ends.
    pub fn deadline(&self) -> Option<Timestamp> {
        let of_status = match self.status {
            Status::Idle | Status::Online | Status::Ended => None,
            Status::Connecting { by } | Status::Greeting { by } | Status::Leaving { by } => {
                Some(by)
            }
            Status::Waiting { until } => Some(until),
        };
        of_status.into_iter().chain(self.stop_by).min()
    }

    /// Asserts what must always be true.
    pub fn check(&self) {
        let limits = self.limits;
        assert!(self.address < self.addresses, "the address is in the list");
        assert_eq!(self.bytes, self.publishes.values().sum::<u64>(), "the sum counts all");
        assert!(self.bytes <= limits.publish_bytes_max, "publishes are bounded");
        assert!(self.unacked_count() <= limits.publish_count_max, "publishes are bounded");
        assert!(
            count(self.subscriptions.len()) <= limits.subscription_count_max,
            "subscriptions are bounded"
        );
        assert!(self.sent <= self.next, "what is sent has a number");
        assert!(
            self.publishes.last_key_value().is_none_or(|(last, _)| *last < self.next),
            "what is owed has a number"
        );
        match self.status {
            Status::Online => {
                assert_eq!(self.sent, self.next, "online, nothing is held back");
                assert!(self.subscriptions.values().all(|s| s.asked), "online, all are asked for");
            }
            Status::Leaving { .. } => {
                assert!(self.awaits_acks(), "a link that waits for nothing leaves");
            }
            _ => {
                assert!(
                    self.subscriptions.values().all(|s| !s.asked),
                    "offline, none is asked for"
                );
            }
        }
        if self.status == Status::Ended {
            assert!(self.publishes.is_empty(), "an ended link owes nothing");
            assert_eq!(self.stop_by, None, "an ended link waits for nothing");
        }
        if self.stop_by.is_some() {
            assert!(!self.publishes.is_empty(), "a link without publishes has stopped");
        }
        if self.is_closed() {
            assert!(self.subscriptions.is_empty(), "a link that stops has no subscriptions");
        }
    }

    fn connect(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.status = Status::Connecting { by: now.after(self.limits.welcome_wait) };
        effects.push(Effect::Connect { address: self.address });
    }

    /// Subscriptions go before publishes, so that one made before a publish sees it.
    fn welcomed(&mut self, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.status = Status::Online;
        self.retries.succeeded();
        let before = self.epoch.replace(epoch);
        effects.push(Effect::Online { resumed: before.is_some() });
        if let Some(from) = before.filter(|before| before.store() != epoch.store()) {
            effects.push(Effect::StoreChanged { from, to: epoch });
        }
        for (id, subscription) in &mut self.subscriptions {
            subscription.asked = true;
            effects.push(Effect::Subscribe { id: *id, from: subscription.place });
        }
        for number in self.publishes.keys().copied() {
            effects.push(Effect::Send { number, again: number < self.sent });
        }
        self.sent = self.next;
    }

    fn failed(&mut self, now: Timestamp, why: Failure, effects: &mut Vec<Effect>) {
        if why.is_final() {
            self.offline(effects);
            let unacked = self.end();
            effects.push(Effect::GaveUp { why, unacked });
        } else {
            let at_least = match why {
                Failure::BusyFor(wait) => wait,
                _ => Duration::ZERO,
            };
            self.retry_later(now, at_least, effects);
        }
    }

    /// Even a client that was asked to leave waits before connecting to the next server: two
    /// servers that both drain would otherwise pass a client to and fro without pause.
    fn retry_later(&mut self, now: Timestamp, at_least: Duration, effects: &mut Vec<Effect>) {
        self.offline(effects);
        self.address = (self.address + 1) % self.addresses;
        let until = now.after(self.retries.failed().max(at_least));
        self.status = Status::Waiting { until };
        effects.push(Effect::RetryAt { at: until });
    }

    fn offline(&mut self, effects: &mut Vec<Effect>) {
        if self.status.is_welcome() {
            self.subscriptions.values_mut().for_each(|subscription| subscription.asked = false);
            effects.push(Effect::Offline);
        }
    }

    fn drain(&mut self, now: Timestamp, grace: Duration, effects: &mut Vec<Effect>) {
        let by = match self.status {
            Status::Online => now.after(grace),
            Status::Leaving { by } => by.min(now.after(grace)),
            _ => return,
        };
        self.status = Status::Leaving { by };
        if by <= now || !self.awaits_acks() {
            self.leave(now, effects);
        }
    }

    fn leave(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        effects.push(Effect::Disconnect);
        self.retry_later(now, Duration::ZERO, effects);
    }

    fn tick(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.stop_by.is_some_and(|by| by <= now) {
            self.stopped(effects);
            return;
        }
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.status.has_connection() {
            self.leave(now, effects);
        } else {
            self.connect(now, effects);
        }
    }

    fn stop(&mut self, now: Timestamp, grace: Duration, effects: &mut Vec<Effect>) {
        if self.status == Status::Ended {
            return;
        }
        for (id, subscription) in core::mem::take(&mut self.subscriptions) {
            if subscription.asked {
                effects.push(Effect::Unsubscribe { id });
            }
        }
        let by = self.stop_by.unwrap_or(Timestamp::NEVER).min(now.after(grace));
        self.stop_by = Some(by);
        // A link that was never started has no server that could answer.
        if by <= now || self.publishes.is_empty() || self.status == Status::Idle {
            self.stopped(effects);
        }
    }

    fn stopped(&mut self, effects: &mut Vec<Effect>) {
        if self.status.has_connection() {
            effects.push(Effect::Disconnect);
        }
        self.offline(effects);
        let unacked = self.end();
        effects.push(Effect::Stopped { unacked });
    }

    /// Forgets everything and returns how much was unanswered.
    fn end(&mut self) -> u32 {
        let unacked = self.unacked_count();
        self.status = Status::Ended;
        self.stop_by = None;
        self.publishes.clear();
        self.bytes = 0;
        self.subscriptions.clear();
        unacked
    }

    fn publish(&mut self, bytes: u64, effects: &mut Vec<Effect>) {
        let max = self.limits.publish_bytes_max;
        if self.is_closed() {
            effects.push(Effect::Closed);
        } else if bytes > max {
            effects.push(Effect::Rejected(RejectReason::TooLarge { bytes, max }));
        } else if self.unacked_count() >= self.limits.publish_count_max || bytes > max - self.bytes
        {
            effects.push(Effect::Rejected(RejectReason::QueueFull));
        } else {
            let number = self.next;
            self.next = number.next();
            self.publishes.insert(number, bytes);
            self.bytes += bytes;
            effects.push(Effect::Queued { number });
            if self.status == Status::Online {
                self.sent = self.next;
                effects.push(Effect::Send { number, again: false });
            }
        }
    }

    fn acked(&mut self, now: Timestamp, number: PublishNumber, effects: &mut Vec<Effect>) {
        let known = if number < self.sent { self.publishes.remove(&number) } else { None };
        let Some(bytes) = known else {
            effects.push(Effect::AckUnknown { number });
            return;
        };
        self.bytes -= bytes;
        effects.push(Effect::Acked { number });
        if self.stop_by.is_some() && self.publishes.is_empty() {
            self.stopped(effects);
        } else if matches!(self.status, Status::Leaving { .. }) && !self.awaits_acks() {
            self.leave(now, effects);
        }
    }

    /// One that comes while the link leaves is asked for on the next connection.
    fn subscribe(&mut self, id: SubscriptionId, origin: Origin, effects: &mut Vec<Effect>) {
        let max = self.limits.subscription_count_max;
        if self.is_closed() {
            effects.push(Effect::Closed);
        } else if self.subscriptions.contains_key(&id) {
            effects.push(Effect::Refused(SubscriptionError::Known { id }));
        } else if count(self.subscriptions.len()) >= max {
            effects.push(Effect::Refused(SubscriptionError::TooMany { max }));
        } else {
            let asked = self.status == Status::Online;
            let place = Place::Start;
            self.subscriptions.insert(id, Subscription { origin, place, asked });
            if asked {
                effects.push(Effect::Subscribe { id, from: place });
            }
        }
    }

    fn unsubscribe(&mut self, id: SubscriptionId, effects: &mut Vec<Effect>) {
        if self.subscriptions.remove(&id).is_some_and(|subscription| subscription.asked) {
            effects.push(Effect::Unsubscribe { id });
        }
    }

    fn subscribed(&mut self, id: SubscriptionId, token: Token) {
        if let Some(subscription) = self.subscriptions.get_mut(&id)
            && subscription.origin == Origin::Now
            && subscription.place == Place::Start
        {
            subscription.place = Place::After(token);
        }
    }

    /// Whether anything was sent that may still be answered.
    fn awaits_acks(&self) -> bool {
        self.publishes.first_key_value().is_some_and(|(first, _)| *first < self.sent)
    }

    fn is_closed(&self) -> bool {
        self.stop_by.is_some() || self.status == Status::Ended
    }

    fn unacked_count(&self) -> u32 {
        count(self.publishes.len())
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a limit of 32 bits bounds it")
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
