//! What subscribers of this node do.

use alloc::vec::Vec;

use super::{Effect, NamedError, Node};
use crate::cluster::event::{ClusterEvent, LostReason, LostTarget};
use crate::cluster::frame::ItemResult;
use crate::cluster::name::{Claim, Named, Sender};
use crate::cluster::peer::ME;
use crate::cluster::report::{RESULTS_MAX, SubscriberResult};
use crate::name::TopicName;
use crate::pattern::Pattern;
use crate::subscriber::FailReason;
use crate::time::Timestamp;

impl Node {
    /// An anonymous subscription came; the version of the interest in which others see it. One
    /// whose pattern begins with `$` is not spread, nor one past `interest_max`.
    pub fn subscribe(&mut self, pattern: &Pattern) -> u64 {
        let is_spread = is_system(pattern) || self.interest.add(pattern, self.config.interest_max);
        if !is_spread {
            self.events.push(ClusterEvent::InterestRefused { node: self.me.node.clone() });
        }
        self.interest.version()
    }

    /// An anonymous subscription went.
    pub fn unsubscribe(&mut self, pattern: &Pattern) {
        self.interest.remove(pattern);
    }

    /// A named subscription came. `session` is the number of its stay here: one that was never
    /// used before in this life of the node. If it was here already, the earlier stay ends.
    ///
    /// # Errors
    /// Says why it is refused.
    pub fn subscribe_named(
        &mut self,
        now: Timestamp,
        named: &Named,
        session: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<u64, NamedError> {
        if self.has_left {
            return Err(NamedError::Left);
        }
        if is_system(&named.pattern) {
            return Err(NamedError::SystemName);
        }
        let max = self.config.interest_max;
        if self.interest.total() >= max {
            return Err(NamedError::TooMany { max });
        }
        debug_assert!(self.interest.session(session).is_none(), "a session has its own number");
        let known = self.named.id(named).and_then(|id| self.named.get(id));
        let last = known.and_then(|holding| holding.best()).map(|(claim, _)| claim.time);
        let time = last.map_or(now, |last| now.max(Timestamp(last.0.saturating_add(1))));
        self.interest.add_session(session, named, time);
        let version = self.interest.version();
        let claim = Claim { time, node: self.me.node.clone(), session };
        self.claim(now, (ME, named), claim, effects);
        Ok(version)
    }

    /// A named subscription lost its connection: what it has not taken is held for it.
    pub fn away(&mut self, now: Timestamp, session: u64, effects: &mut Vec<Effect>) {
        let Some(named) = self.end_session(now, session, false) else { return };
        let reason = FailReason::SubscriberUnreachable;
        self.unclaim(now, (ME, &named), session, reason, effects);
    }

    /// A named subscription ended: nothing is held for it.
    pub fn unsubscribe_named(&mut self, now: Timestamp, session: u64, effects: &mut Vec<Effect>) {
        let Some(named) = self.end_session(now, session, true) else { return };
        self.end(now, (ME, &named), session, effects);
    }

    /// Everything that `from` sent to a session up to place `upto` in its order is out of its
    /// mailbox. Of it, `lost` overflowed: subject and messages, each said once.
    pub fn taken(
        &mut self,
        now: Timestamp,
        session: u64,
        from: &Sender,
        upto: u64,
        lost: &[(TopicName, u64)],
    ) {
        let Some(named) = self.interest.session(session).cloned() else { return };
        let mut messages = 0;
        for (subject, count) in lost {
            messages += count;
            let target = LostTarget::Named(named.clone());
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            self.lose(target, LostReason::Overflow, subject, count);
        }
        if *from == self.me {
            let Some(id) = self.named.id(&named) else { return };
            let lost = self.named.get(id).map_or(0, |holding| holding.lost) + messages;
            self.release(now, id, session, (upto, lost));
        } else if let Some(id) = self.ids.get(&from.node)
            && let Some(peer) = self.peers.get_mut(id)
            && peer.incarnation == from.incarnation
        {
            peer.inbound.taken(session, upto, messages);
        }
    }

    /// What became of an item that came with `report`, at the anonymous subscribers of this node:
    /// once, at the latest `subscriber_timeout` after it came.
    pub fn settled(&mut self, from: &Sender, order: u64, mut results: Vec<SubscriberResult>) {
        results.truncate(RESULTS_MAX);
        if let Some(id) = self.ids.get(&from.node)
            && let Some(peer) = self.peers.get_mut(id)
            && peer.incarnation == from.incarnation
        {
            peer.inbound.settled(ItemResult { order, results });
        }
    }

    fn end_session(&mut self, now: Timestamp, session: u64, ended: bool) -> Option<Named> {
        let named = self.interest.session(session).cloned()?;
        self.interest.remove_session(now, session, ended);
        self.peers.values_mut().for_each(|peer| peer.inbound.session_gone(session));
        Some(named)
    }
}

/// Whether a pattern is about the system's own names, which belong to one node.
pub(super) fn is_system(pattern: &Pattern) -> bool {
    pattern.as_str().starts_with('$')
}
