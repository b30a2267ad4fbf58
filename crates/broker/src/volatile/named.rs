//! Named subscriptions: a mailbox for as long as its connection lasts, and a name that outlives it.
//!
//! What a named subscription has not taken is held by the nodes that sent it, so nothing is lost
//! when its mailbox is dropped: the cluster sends it again, to the place where the name appears
//! next. A stay at one place is a session; its number is that of the subscription.
//!
//! Volatile subjects only: a durable topic keeps its messages anyway, for cursors and groups.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use gapless_core::cluster::{DeliveryStatus, EndReason, Identity, Named, Sender};
use gapless_core::{GapNotice, GapReason, Pattern, Position, TopicName};

use crate::broker::{Broker, Inner};
use crate::error::{FollowError, SubscribeError};
use crate::read::delivery::{Delivery, Messages};
use crate::read::subscription::{Follower, Shared, Subscription};
use crate::topic::live_topic::lock;
use crate::volatile::report::Receipt;
use crate::volatile::router::{Mail, Mailbox, Overflow, Taken};
use crate::volatile::spread::Spread;

/// Messages of one sender that a session lost, since its last notice.
#[derive(Debug)]
pub(crate) struct Lost {
    from: Sender,
    upto: u64,
    subjects: Vec<(TopicName, u64)>,
}

impl Lost {
    pub(crate) fn new(from: Sender, upto: u64) -> Self {
        Self { from, upto, subjects: Vec::new() }
    }

    /// Adds the loss of so many messages of a subject.
    pub(crate) fn add_to(self, all: &mut Vec<Self>, subject: TopicName, count: u64) {
        let at = match all.iter().position(|lost| lost.from == self.from) {
            Some(at) => at,
            None => {
                all.push(Self::new(self.from, 0));
                all.len() - 1
            }
        };
        let lost = &mut all[at];
        lost.upto = self.upto;
        match lost.subjects.iter_mut().find(|(of, _)| *of == subject) {
            Some((_, messages)) => *messages += count,
            None => lost.subjects.push((subject, count)),
        }
    }
}

/// The mailboxes of the sessions of this node.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<u64, Arc<Mailbox>>>);

impl Sessions {
    pub(crate) fn find(&self, session: u64) -> Option<Arc<Mailbox>> {
        lock(&self.0).get(&session).map(Arc::clone)
    }

    pub(crate) fn wake_all(&self) {
        lock(&self.0).values().for_each(|mailbox| mailbox.wake());
    }
}

/// A session of a named subscription.
pub(crate) struct NamedFollower {
    identity: Identity,
    mailbox: Arc<Mailbox>,
    spread: Arc<dyn Spread>,
    /// Where it stands in the journal, of which it gets nothing.
    position: Position,
    told_live: bool,
    /// Whether its user wants nothing to be held for it.
    unsubscribed: bool,
}

impl Broker {
    /// Follows volatile subjects under a name. It goes on where the last session of the name
    /// stopped, on any node of the cluster, unless that was too long ago. A session that the name
    /// has elsewhere ends.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn subscribe_named(
        &self,
        identity: &Identity,
        pattern: &Pattern,
    ) -> Result<Subscription, SubscribeError> {
        let spread = self.inner.spread.get().ok_or(SubscribeError::NeedsCluster)?;
        if pattern.as_str().starts_with('$') {
            return Err(SubscribeError::NotSpread(pattern.clone()));
        }
        if self.topic_of(pattern).is_some_and(|cell| cell.lock().is_durable()) {
            return Err(SubscribeError::Durable(pattern.clone()));
        }
        let named = Named { identity: identity.clone(), pattern: pattern.clone() };
        self.list(self.new_shared(pattern), |inner, shared| {
            let mailbox = Mailbox::new(&inner.router.mailbox_bytes);
            lock(&inner.sessions.0).insert(shared.id, Arc::clone(&mailbox));
            match spread.subscribed_named(&named, shared.id) {
                Ok(version) => inner.interest.fetch_max(version, Ordering::AcqRel),
                Err(refused) => {
                    lock(&inner.sessions.0).remove(&shared.id);
                    return Err(SubscribeError::Named(refused));
                }
            };
            let position = inner.journal.last_settled();
            let spread = Arc::clone(spread);
            Ok(Follower::Named(Box::new(NamedFollower {
                identity: identity.clone(),
                mailbox,
                spread,
                position,
                told_live: false,
                unsubscribed: false,
            })))
        })
    }

    /// Ends a session: its subscriber gets the reason as the next and last thing.
    pub fn end_named(&self, session: u64, reason: EndReason) {
        if let Some(mailbox) = self.inner.sessions.find(session) {
            mailbox.end(reason);
        }
    }
}

impl Subscription {
    /// The name under which it follows, if it has one.
    pub fn identity(&self) -> Option<&Identity> {
        match &self.follower {
            Follower::Named(follower) => Some(&follower.identity),
            _ => None,
        }
    }

    /// Ends it for good. The same as dropping it, but that nothing is held for a named one.
    pub fn unsubscribe(mut self) {
        if let Follower::Named(follower) = &mut self.follower {
            follower.unsubscribed = true;
        }
    }
}

impl NamedFollower {
    pub(crate) fn handed_out(&self) -> Position {
        self.position
    }

    pub(crate) fn leave(&self, inner: &Inner, shared: &Shared) {
        lock(&inner.sessions.0).remove(&shared.id);
        if self.unsubscribed {
            self.spread.unsubscribed_named(shared.id);
        } else {
            self.spread.away(shared.id);
        }
    }

    pub(crate) fn poll(
        &mut self,
        inner: &Inner,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delivery, FollowError>> {
        if !self.told_live {
            self.told_live = true;
            return Poll::Ready(Ok(Delivery::Live));
        }
        let taken = self.mailbox.take(context.waker());
        Poll::Ready(match taken {
            None if inner.is_closed() => Err(FollowError::Closed),
            None => return Poll::Pending,
            Some(Taken::Ended(EndReason::TakenOver { by })) => Err(FollowError::TakenOver { by }),
            Some(Taken::Overflow(overflow)) => {
                for lost in &overflow.lost {
                    self.spread.taken(shared.id, &lost.from, lost.upto, &lost.subjects);
                }
                Ok(slow(&overflow))
            }
            Some(Taken::Mail(mut mail)) => {
                if let Some(Receipt::Numbered { from, number }) = mail.receipt.take().as_deref() {
                    self.spread.taken(shared.id, from, *number, &[]);
                }
                Ok(mailed(inner, mail, self.position))
            }
        })
    }
}

/// A mail as a delivery to a subscriber that stands at a position.
pub(crate) fn mailed(inner: &Inner, mail: Mail, position: Position) -> Delivery {
    if let Some(Receipt::Ticket(ticket)) = mail.receipt.map(|receipt| *receipt) {
        ticket.settle(DeliveryStatus::Delivered);
    }
    let header = mail.batch.header();
    let (range, now) = ((header.seq, header.last_seq()), inner.clock.now());
    let parts = vec![mail.batch.bytes().clone()];
    Delivery::Messages(Messages::new(mail.subject, range, position, now, parts, None).mailed())
}

/// The notice that a mailbox was full.
pub(crate) fn slow(overflow: &Overflow) -> Delivery {
    Delivery::Gap(GapNotice {
        topic: None,
        from: None,
        to: None,
        positions: Some((overflow.from, overflow.to)),
        reason: GapReason::Slow,
    })
}
