//! Subscriptions as the driver keeps them: asked for, given credit, parked, ended.

use std::sync::Arc;

use gapless_core::cluster::Identity;
use gapless_core::link::{Input, Origin, Place, SubscriptionId};
use gapless_core::{Amount, Pattern};
use gapless_protocol::{Credit, Ids, Limits, StartFrom, Subscribe, Unsubscribe};
use tracing::{debug, warn};

use crate::connection::Corr;
use crate::driver::{Driver, Line};
use crate::error::SubscriptionError;
use crate::feed::{Feed, Wish};
use gapless_core::Token;

/// A subscription.
pub(crate) struct Follow {
    pub(crate) feed: Arc<Feed>,
    pub(crate) pattern: Pattern,
    pub(crate) from: StartFrom,
    /// The name under which it follows.
    pub(crate) identity: Option<Identity>,
    /// The server's number of it on this connection.
    pub(crate) server: Option<u64>,
    /// What the server may still send.
    pub(crate) left: Amount,
    /// Where it stands after what was put into the feed.
    pub(crate) last: Option<Token>,
    /// Whether its user knows that it was accepted.
    pub(crate) confirmed: bool,
}

impl Follow {
    pub(crate) fn is_from_now(&self) -> bool {
        self.from == StartFrom::Now
    }
}

impl Driver {
    pub(crate) fn follow(&mut self, follow: Follow) {
        let id = SubscriptionId(self.next_follow);
        self.next_follow += 1;
        if !follow.feed.set_id(id) {
            return;
        }
        let origin = if follow.from == StartFrom::Now { Origin::Now } else { Origin::Fixed };
        self.follows.insert(id, follow);
        self.step(Input::Subscribe { id, origin });
    }

    /// Acts on what the user of a subscription did.
    pub(crate) fn look_at(&mut self, id: SubscriptionId) {
        let Some(feed) = self.follows.get(&id).or_else(|| self.parked.get(&id)) else { return };
        match feed.feed.take_note() {
            Wish::Drop => {
                self.parked.remove(&id);
                self.step(Input::Unsubscribe { id });
                self.follows.remove(&id);
            }
            Wish::Unpark => {
                if let Some(follow) = self.parked.remove(&id) {
                    self.follow(follow);
                }
            }
            Wish::Credit => self.grant(id),
        }
    }

    /// Allows as much more as the user has taken.
    pub(crate) fn grant(&mut self, id: SubscriptionId) {
        let (Some(follow), Line::Up(connection)) = (self.follows.get_mut(&id), &mut self.line)
        else {
            return;
        };
        let Some(subscription) = follow.server else { return };
        let may = follow.feed.allowance();
        let bytes = may.bytes.saturating_sub(follow.left.bytes);
        let messages = u32::try_from(may.messages.saturating_sub(follow.left.messages));
        let messages = messages.unwrap_or(u32::MAX);
        if messages == 0 && bytes == 0 {
            return;
        }
        follow.left.messages += u64::from(messages);
        follow.left.bytes += bytes;
        let credit = Credit { subscription, messages, bytes };
        if let Err(error) = connection.put(&credit.into(), Ids::NONE) {
            warn!(%error, "a credit was not sent");
        }
    }

    /// Ends a subscription on the server until its user has caught up.
    pub(crate) fn park(&mut self, id: SubscriptionId) {
        debug!(%id, "a subscription waits for its user");
        self.step(Input::Unsubscribe { id });
        let Some(mut follow) = self.follows.remove(&id) else { return };
        if let Some(last) = follow.last {
            follow.from = StartFrom::Token(last);
        }
        follow.server = None;
        self.parked.insert(id, follow);
    }

    pub(crate) fn subscribe(&mut self, id: SubscriptionId, from: Place) {
        let (Some(follow), Line::Up(connection)) = (self.follows.get_mut(&id), &mut self.line)
        else {
            return;
        };
        let Some(limits) = connection.welcome else { return };
        let own = self.parts.limits.window;
        follow.feed.set_window(window(own, &limits));
        let from = match from {
            Place::Start => follow.from,
            Place::After(token) => StartFrom::Token(token),
        };
        let may = follow.feed.allowance();
        let credit_messages = u32::try_from(may.messages).unwrap_or(u32::MAX);
        let credit_bytes = may.bytes;
        follow.server = None;
        follow.left = Amount { messages: u64::from(credit_messages), bytes: credit_bytes };
        let pattern = follow.pattern.clone();
        let identity = follow.identity.clone();
        let subscribe = Subscribe { pattern, credit_messages, credit_bytes, from, identity };
        if let Err(error) = connection.put(&subscribe.into(), Corr::Follow(id).ids()) {
            warn!(%error, "a subscription was not asked for");
        }
    }

    pub(crate) fn unsubscribe(&mut self, subscription: u64, hold: bool) {
        if let Line::Up(connection) = &mut self.line {
            connection.follows.remove(&subscription);
        }
        self.send(&Unsubscribe { subscription, hold }.into(), Corr::Other.ids());
    }

    /// The subscription that was just handed to the link is refused.
    pub(crate) fn refuse_follow(&mut self, error: &SubscriptionError) {
        let newest = SubscriptionId(self.next_follow - 1);
        if let Some(follow) = self.follows.remove(&newest) {
            follow.feed.end(Err(error.clone()));
        }
    }
}

/// How much may be sent ahead of a user: as much as the client likes and the server allows.
pub(crate) fn window(own: Amount, limits: &Limits) -> Amount {
    Amount {
        messages: own.messages.min(u64::from(limits.credit_messages.max(1))),
        bytes: own.bytes.min(limits.credit_bytes.max(1)),
    }
}
