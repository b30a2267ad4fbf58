//! A subscription's steps as events for followers over HTTP, one after the other.
//!
//! Every seq of a topic is accounted for by exactly one event: its message, a `skipped` (it was
//! compacted away or has expired) or a `gap` (it is gone). Every event that moves the place
//! has a token; a stream that begins with it goes on right behind that event, also in the
//! middle of a batch.
//!
//! How events look as bytes is not here.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use gapless_broker::{Delivery, FollowError, GapNotice, Messages, Subscription};
use gapless_core::{Batch, Epoch, Position, Seq, Token, TopicName};
use gapless_protocol::{ErrorCode, Visible};
use serde_json::{Value, json};

use crate::answers::follow_error;
use crate::json::{self as shown, Shown};
use gapless_auth::Held;

use crate::session::sessions::{CLOSED_BY_ADMIN, Seat};

/// One event of a follower.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A message.
    Message(Shown<'a>),
    /// Seqs of a topic that were compacted away or have expired; the token is there when
    /// nothing follows that would have one.
    Skipped { topic: &'a TopicName, from: Seq, to: Seq, token: Option<Token> },
    /// Messages that will not come, and why.
    Gap(&'a GapNotice, Token),
    /// History follows: seqs if one topic is followed, else positions.
    Recovering { from: u64, to: u64, by_topic: bool },
    /// History is done; what follows is live.
    Live(Token),
    /// Which nodes of the cluster do not know yet what is followed, for a client that asked.
    Visible(&'a Visible),
    /// The end.
    Ended(&'a FollowError),
    /// The end, because an administrator closed it.
    Closed,
}

impl Event<'_> {
    /// What it is called, on every kind of stream the same.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Message(_) => "message",
            Self::Skipped { .. } => "skipped",
            Self::Gap(..) => "gap",
            Self::Recovering { .. } => "recovering",
            Self::Live(_) => "live",
            Self::Visible(_) => "visible",
            Self::Ended(FollowError::Deleted(_)) => "deleted",
            // Not `error`, which is what a browser calls a lost connection.
            Self::Ended(_) | Self::Closed => "failed",
        }
    }

    /// The place behind it, if it moves the place.
    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Message(message) => message.token,
            Self::Gap(_, token) | Self::Live(token) => Some(*token),
            Self::Skipped { token, .. } => *token,
            Self::Recovering { .. } | Self::Visible(_) | Self::Ended(_) | Self::Closed => None,
        }
    }

    /// What it says, as JSON. Messages write themselves, which is faster.
    pub(crate) fn facts(&self) -> Value {
        match self {
            Self::Message(_) => Value::Null,
            Self::Skipped { topic, from, to, .. } => {
                json!({"topic": topic.as_str(), "from": from.0, "to": to.0})
            }
            Self::Gap(gap, _) => shown::gap(gap),
            Self::Recovering { from, to, by_topic } => {
                json!({"from": from, "to": to, "by": if *by_topic { "seq" } else { "position" }})
            }
            Self::Live(token) => json!({"cursor": token.to_string()}),
            Self::Visible(visible) => {
                let nodes: Vec<&str> = visible.nodes.iter().map(|node| node.as_str()).collect();
                json!({"unseen": visible.unseen, "nodes": nodes})
            }
            Self::Ended(failed) => {
                let answer = follow_error(failed);
                json!({"code": answer.code, "detail": answer.message})
            }
            Self::Closed => {
                json!({"code": ErrorCode::ClosedByAdmin.number(), "detail": CLOSED_BY_ADMIN})
            }
        }
    }
}

/// What came of asking for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Some were handed out.
    Some,
    /// It is over.
    Over,
}

/// A wait until all nodes know what is followed.
pub(crate) type Awaited = Pin<Box<dyn Future<Output = Visible> + Send>>;

/// A subscription, and what of its last step was not handed out yet.
pub(crate) struct Events {
    subscription: Subscription,
    rest: Option<Rest>,
    /// Whose end is an event of its own.
    awaited: Option<Awaited>,
    ended: bool,
    /// Its entry in the list of connected clients.
    seat: (Seat, Held),
}

/// Messages of one topic that are being handed out.
struct Rest {
    messages: Messages,
    batches: VecDeque<Batch>,
    /// The seq that must be accounted for next.
    next: Seq,
    epoch: Epoch,
}

impl Events {
    pub(crate) fn new(subscription: Subscription, seat: (Seat, Held)) -> Self {
        Self { subscription, rest: None, awaited: None, ended: false, seat }
    }

    /// Says, once that is known or the wait is over, which nodes do not know what is followed.
    pub(crate) fn awaiting(mut self, awaited: Option<Awaited>) -> Self {
        self.awaited = awaited;
        self
    }

    /// The place it begins at, before any event was handed out.
    pub(crate) fn token(&self) -> Token {
        self.subscription.token()
    }

    /// Hands events to `take` until it wants no more (false), or there are no more now.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        take: &mut dyn FnMut(Event<'_>) -> bool,
    ) -> Poll<Asked> {
        let mut any = false;
        if !self.ended && self.seat.0.session().poll_closed(context) {
            (self.ended, self.rest) = (true, None);
            take(Event::Closed);
            return Poll::Ready(Asked::Some);
        }
        if let Some(awaited) = &mut self.awaited
            && self.rest.is_none()
            && let Poll::Ready(visible) = awaited.as_mut().poll(context)
        {
            self.awaited = None;
            any = true;
            if !take(Event::Visible(&visible)) {
                return Poll::Ready(Asked::Some);
            }
        }
        loop {
            if let Some(rest) = &mut self.rest {
                any = true;
                if !rest.hand_out(take) {
                    return Poll::Ready(Asked::Some);
                }
                self.rest = None;
            }
            if self.ended {
                return Poll::Ready(if any { Asked::Some } else { Asked::Over });
            }
            let wants_more = match self.subscription.poll_next(context) {
                Poll::Pending if any => return Poll::Ready(Asked::Some),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(delivery)) => self.tell(delivery, take),
                Poll::Ready(Err(failed)) => {
                    self.ended = true;
                    take(Event::Ended(&failed))
                }
            };
            any = true;
            if !wants_more {
                return Poll::Ready(Asked::Some);
            }
        }
    }

    /// Hands out what is one event; messages are kept to be handed out one by one.
    fn tell(&mut self, delivery: Delivery, take: &mut dyn FnMut(Event<'_>) -> bool) -> bool {
        let token = self.subscription.token();
        match delivery {
            Delivery::Messages(messages) => {
                let batches = messages.batches().collect();
                let (next, epoch) = (messages.from(), token.epoch);
                self.rest = Some(Rest { messages, batches, next, epoch });
                true
            }
            Delivery::Gap(gap) => take(Event::Gap(&gap, token)),
            Delivery::Recovering { from, to } => {
                let by_topic = self.subscription.follows_topic();
                take(Event::Recovering { from, to, by_topic })
            }
            Delivery::Live => take(Event::Live(token)),
        }
    }
}

impl Rest {
    fn token(&self, position: Position) -> Token {
        Token { epoch: self.epoch, position: self.messages.place_after(position) }
    }

    /// True when all were handed out and more is wanted.
    fn hand_out(&mut self, take: &mut dyn FnMut(Event<'_>) -> bool) -> bool {
        while let Some(batch) = self.batches.front() {
            let topic = self.messages.topic();
            let mut next = self.next;
            let mut wants_more = true;
            for record in batch.records() {
                let seq = batch.seq_of(&record);
                if seq < next || seq > self.messages.to() {
                    continue;
                }
                if !wants_more {
                    self.next = next;
                    return false;
                }
                if next < seq {
                    let token = None;
                    take(Event::Skipped { topic, from: next, to: seq.prev(), token });
                }
                let headers: Vec<(String, Bytes)> = match record.headers {
                    [] => Vec::new(),
                    _ => batch.message(&record).headers,
                };
                let position = batch.position_of(&record);
                let message = Shown {
                    topic: topic.as_str(),
                    seq,
                    position,
                    token: Some(self.token(position)),
                    time: batch.time(),
                    key: record.key,
                    id: record.id,
                    ttl_ms: record.ttl_ms.map(u64::from),
                    headers: &headers,
                    body: record.body,
                    whole: Some(batch.bytes()),
                };
                wants_more = take(Event::Message(message));
                next = seq.next();
            }
            self.next = next;
            self.batches.pop_front();
            if !wants_more {
                return false;
            }
        }
        let (topic, from, to) = (self.messages.topic(), self.next, self.messages.to());
        if to < from {
            return true;
        }
        self.next = to.next();
        let token = Some(self.token(self.messages.last_position()));
        take(Event::Skipped { topic, from, to, token })
    }
}
