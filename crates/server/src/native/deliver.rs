//! From a subscription's steps to frames, as far as credit goes.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use gapless_auth::Held;
use gapless_broker::{Delivery, Subscription, checksum};
use gapless_core::cluster::Identity;
use gapless_core::{Pattern, Position};
use gapless_protocol::{
    Ended, ErrorCode, FrameLimit, Ids, Messages, Output, PlaceRange, RecoveryComplete,
    RecoveryResponse, SplitError, SplitLimit, SubscriptionGap, Token, Verb, cut_messages,
};

use crate::answers::{error, follow_error};
use crate::session::ready::{Ready, SubscriptionWaker};

/// Bytes of a `Messages` frame before its batches, at most.
const MESSAGES_FIELDS_BYTES: usize = 64;

/// A subscription of a connection.
pub(crate) struct Followed {
    number: u64,
    subscription: Subscription,
    /// What it follows.
    pattern: Pattern,
    /// Its place among the subscriptions of its identity.
    _held: Held,
    by_topic: bool,
    /// Whether what it is sent is history.
    recovering: bool,
    waker: Waker,
    credit_messages: u64,
    /// Below zero after a message that was larger than what was left: it is paid back first.
    credit_bytes: i64,
    /// What was taken from the broker and waits for credit; boxed, as mostly there is nothing.
    rest: Option<Box<Messages>>,
    /// The position of the token after what was sent.
    sent: Position,
}

/// Why nothing more was sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// There is nothing yet; its waker will be called.
    Waits,
    /// It needs credit.
    NoCredit,
    /// The connection's output is full; it should be asked again.
    Full,
    /// It has ended, and the client was notified.
    Ended,
}

impl Followed {
    pub(crate) fn new(
        number: u64,
        (subscription, pattern, held): (Subscription, Pattern, Held),
        (credit_messages, credit_bytes): (u64, u64),
        ready: &Arc<Ready>,
    ) -> Self {
        let waker = SubscriptionWaker { ready: Arc::clone(ready), subscription: number };
        let sent = subscription.token().position;
        let by_topic = subscription.follows_topic();
        Self {
            number,
            subscription,
            pattern,
            _held: held,
            by_topic,
            recovering: false,
            waker: Waker::from(Arc::new(waker)),
            credit_messages,
            credit_bytes: i64::try_from(credit_bytes).unwrap_or(i64::MAX),
            rest: None,
            sent,
        }
    }

    pub(crate) fn token(&self) -> Token {
        Token { epoch: self.subscription.token().epoch, position: self.sent }
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Whether it follows this pattern under this name.
    pub(crate) fn is_named(&self, identity: &Identity, pattern: &Pattern) -> bool {
        self.subscription.identity() == Some(identity) && self.pattern == *pattern
    }

    /// Ends it for good.
    pub(crate) fn unsubscribe(self) {
        self.subscription.unsubscribe();
    }

    pub(crate) fn broker_id(&self) -> u64 {
        self.subscription.id()
    }

    pub(crate) fn by_topic(&self) -> bool {
        self.by_topic
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// Adds credit; false when that is nothing, or more than may be held.
    pub(crate) fn grant(&mut self, messages: u64, bytes: u64, max: (u64, u64)) -> bool {
        let bytes_after =
            i64::try_from(bytes).ok().and_then(|more| self.credit_bytes.checked_add(more));
        let messages_after = self.credit_messages + messages;
        let fits =
            |after: &i64| u64::try_from(*after).is_ok_and(|after| after <= max.1) || *after < 0;
        match bytes_after.filter(fits) {
            Some(bytes_after) if (messages > 0 || bytes > 0) && messages_after <= max.0 => {
                (self.credit_messages, self.credit_bytes) = (messages_after, bytes_after);
                true
            }
            _ => false,
        }
    }

    /// Sends until there is nothing, no credit, or the output is full.
    pub(crate) fn send(
        &mut self,
        output: &mut Output,
        output_bytes_max: usize,
        limit: FrameLimit,
    ) -> Stop {
        loop {
            if output.bytes() >= output_bytes_max {
                return Stop::Full;
            }
            if let Some(messages) = self.rest.take() {
                match self.send_messages(*messages, output, limit) {
                    Ok(()) => continue,
                    Err(stop) => return stop,
                }
            }
            if self.credit_messages == 0 || self.credit_bytes <= 0 {
                return Stop::NoCredit;
            }
            let mut context = Context::from_waker(&self.waker);
            match self.subscription.poll_next(&mut context) {
                Poll::Pending => return Stop::Waits,
                Poll::Ready(Ok(Delivery::Messages(messages))) => {
                    let messages = Messages {
                        subscription: self.number,
                        topic: messages.topic().clone(),
                        from: messages.from(),
                        to: messages.to(),
                        last_position: messages.last_position(),
                        batches: messages.stored(),
                    };
                    if let Err(stop) = self.send_messages(messages, output, limit) {
                        return stop;
                    }
                }
                Poll::Ready(Ok(delivery)) => {
                    if let Some(verb) = self.translate(&delivery) {
                        put(output, &verb, limit);
                    }
                }
                Poll::Ready(Err(failed)) => {
                    self.end(follow_error(&failed), output, limit);
                    return Stop::Ended;
                }
            }
        }
    }

    /// A step as a verb, unless it is messages.
    fn translate(&mut self, delivery: &Delivery) -> Option<Verb> {
        let subscription = self.number;
        let after = self.subscription.token().position;
        Some(match delivery {
            Delivery::Messages(_) => return None,
            &Delivery::Recovering { from, to } => {
                self.recovering = true;
                let range = if self.by_topic {
                    PlaceRange::Seqs(gapless_core::Seq(from), gapless_core::Seq(to))
                } else {
                    PlaceRange::Positions(Position(from), Position(to))
                };
                RecoveryResponse { subscription, range }.into()
            }
            Delivery::Live => {
                self.recovering = false;
                self.sent = after;
                RecoveryComplete { subscription, token: self.token() }.into()
            }
            Delivery::Gap(gap) => {
                self.sent = after;
                let gap = gap.clone();
                SubscriptionGap { subscription, gap, token: self.token() }.into()
            }
        })
    }

    fn send_messages(
        &mut self,
        messages: Messages,
        output: &mut Output,
        limit: FrameLimit,
    ) -> Result<(), Stop> {
        if self.credit_messages == 0 || self.credit_bytes <= 0 {
            self.rest = Some(Box::new(messages));
            return Err(Stop::NoCredit);
        }
        let room = limit.payload_bytes(messages.topic.as_str()) - MESSAGES_FIELDS_BYTES;
        let bytes = room.min(usize::try_from(self.credit_bytes).unwrap_or(usize::MAX));
        let count = u32::try_from(self.credit_messages).unwrap_or(u32::MAX);
        let within = |bytes| SplitLimit { bytes, messages: count };
        // Only when credit is the tighter limit may the next message be larger than it.
        let kept = (bytes < room).then(|| messages.clone());
        let cut = cut_messages(messages, self.sent, within(bytes), checksum);
        let cut = match (cut, kept) {
            // Too little credit for the next message: it is sent alone.
            (Err(SplitError::MessageTooLarge { .. }), Some(kept)) => {
                let alone = SplitLimit { bytes: room, messages: 1 };
                cut_messages(kept, self.sent, alone, checksum)
            }
            (cut, _) => cut,
        };
        match cut {
            Ok((front, rest)) => {
                self.credit_messages = self.credit_messages.saturating_sub(front.credit_messages());
                self.credit_bytes -= i64::try_from(front.credit_bytes()).unwrap_or(i64::MAX);
                self.sent = front.last_position;
                self.rest = rest.map(Box::new);
                put(output, &front.into(), limit);
                Ok(())
            }
            Err(failed) => {
                let code = match failed {
                    SplitError::MessageTooLarge { .. } => ErrorCode::TooLargeToDeliver,
                    _ => ErrorCode::Damaged,
                };
                self.end(error(code, &failed), output, limit);
                Err(Stop::Ended)
            }
        }
    }

    fn end(&mut self, why: gapless_protocol::ErrorAnswer, output: &mut Output, limit: FrameLimit) {
        let (subscription, token) = (self.number, self.token());
        put(output, &Ended { subscription, token, error: why }.into(), limit);
    }
}

/// Writes a verb about a subscription.
fn put(output: &mut Output, verb: &Verb, limit: FrameLimit) {
    put_with(output, verb, Ids::NONE, limit);
}

/// Writes a verb of the server; its payload is not copied.
pub(crate) fn put_with(output: &mut Output, verb: &Verb, ids: Ids, limit: FrameLimit) {
    let mut bulk = Vec::new();
    let done =
        output.encode(|out| verb.encode_head(ids, limit, out, &mut |part| bulk.push(part.clone())));
    match done {
        Ok(()) => bulk.into_iter().for_each(|part| output.put(part)),
        // What the server encodes is within the limits; if not, the client gets an error.
        Err(failed) => {
            tracing::error!(kind = verb.kind().name(), %failed, "cannot encode an answer");
            let told = Verb::Error(error(ErrorCode::Internal, &failed));
            let _ = output.encode(|out| told.encode(ids, limit, out));
        }
    }
}
