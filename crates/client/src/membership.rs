//! Memberships as the driver keeps them: joined on every connection, and spoken for.
//!
//! What a member says names leases of one connection, so it is sent on that one or not at
//! all, and never again: what was held when a connection was lost comes again anyway.

use std::sync::Arc;
use std::time::Duration;

use gapless_core::{Fate, TopicName};
use gapless_protocol::{
    ErrorAnswer, ErrorCode, GroupGap, GroupJoin, GroupJoined, GroupLeave, GroupLeft, GroupMessages,
    GroupRole, Verb,
};
use tokio::sync::oneshot;
use tracing::warn;

use crate::connection::Corr;
use crate::driver::{Driver, Line};
use crate::error::{AskError, Lost, MemberError};
use crate::leased::{Leased, Leases};
use crate::member::GroupEvent;
use crate::seat::{Joined, Seat};

/// A membership to be requested.
#[derive(Debug)]
pub(crate) struct NewMember {
    pub(crate) key: u64,
    pub(crate) seat: Arc<Seat>,
    pub(crate) group: TopicName,
    pub(crate) name: String,
    pub(crate) window: u32,
}

/// Something a member says, and where the answer goes.
#[derive(Debug)]
pub(crate) struct Saying {
    pub(crate) key: u64,
    /// On which connection; `None` on whichever there is.
    pub(crate) session: Option<u64>,
    pub(crate) verb: Verb,
    pub(crate) reply: Option<oneshot::Sender<Result<Verb, AskError>>>,
}

/// A membership.
pub(crate) struct Membership {
    new: NewMember,
    /// The server's number of it on this connection.
    server: Option<u64>,
    session: u64,
}

impl Driver {
    pub(crate) fn join(&mut self, new: NewMember) {
        let key = new.key;
        self.members.insert(key, Membership { new, server: None, session: 0 });
        if self.parts.link.status() == gapless_core::link::Status::Online {
            self.send_join(key);
        }
    }

    /// On a new connection: requests every membership again.
    pub(crate) fn join_all(&mut self) {
        let keys: Vec<u64> = self.members.keys().copied().collect();
        keys.into_iter().for_each(|key| self.send_join(key));
    }

    fn send_join(&mut self, key: u64) {
        let Some(membership) = self.members.get(&key) else { return };
        let NewMember { group, name, window, .. } = &membership.new;
        let (group, name, window) = (group.clone(), name.clone(), *window);
        self.send(&GroupJoin { group, name, window }.into(), Corr::Join(key).ids());
    }

    /// The user of a membership is gone.
    pub(crate) fn leave(&mut self, key: u64) {
        if let Some(membership) = self.members.remove(&key)
            && let Some(member) = membership.server
        {
            if let Line::Up(connection) = &mut self.line {
                connection.members.remove(&member);
            }
            self.send(&GroupLeave { member }.into(), Corr::Other.ids());
        }
    }

    pub(crate) fn joined(&mut self, key: u64, joined: GroupJoined) {
        let GroupJoined { member, id, mode, lease_ms } = joined;
        let (Some(membership), Line::Up(connection)) = (self.members.get_mut(&key), &mut self.line)
        else {
            // Its user went away before the answer.
            return self.send(&GroupLeave { member }.into(), Corr::Other.ids());
        };
        connection.members.insert(member, key);
        membership.server = Some(member);
        membership.session += 1;
        let (session, lease) = (membership.session, Duration::from_millis(lease_ms));
        membership.new.seat.joined(Joined { session, id, mode, lease });
    }

    pub(crate) fn join_failed(&mut self, key: u64, error: ErrorAnswer) {
        if let Some(membership) = self.members.remove(&key) {
            membership.new.seat.end(Err(MemberError::Refused(error.into())));
        }
    }

    fn seat(&self, member: u64) -> Option<&Membership> {
        let Line::Up(connection) = &self.line else { return None };
        connection.members.get(&member).and_then(|key| self.members.get(key))
    }

    pub(crate) fn leased(&self, messages: GroupMessages) {
        let Some(membership) = self.seat(messages.member) else { return };
        let leases = Leases { session: membership.session, ranges: messages.leases };
        let (topic, deadline, batches) = (messages.topic, messages.deadline, messages.batches);
        let leased = Leased { topic, deadline, leases, batches };
        membership.new.seat.push(GroupEvent::Messages(leased));
    }

    pub(crate) fn role(&self, role: GroupRole) {
        if let Some(membership) = self.seat(role.member) {
            let event = if role.active { GroupEvent::Active } else { GroupEvent::Standby };
            membership.new.seat.push(event);
        }
    }

    pub(crate) fn group_gap(&self, gap: GroupGap) {
        if let Some(membership) = self.seat(gap.member) {
            membership.new.seat.push(GroupEvent::Gap(gap.gap));
        }
    }

    /// The server has ended a membership.
    pub(crate) fn left(&mut self, left: GroupLeft) -> Result<(), Lost> {
        let Line::Up(connection) = &mut self.line else { return Ok(()) };
        let Some(key) = connection.members.remove(&left.member) else { return Ok(()) };
        if left.error.as_ref().and_then(ErrorAnswer::known) == Some(ErrorCode::ShuttingDown) {
            if let Some(membership) = self.members.get_mut(&key) {
                membership.server = None;
            }
            return self.shuts_down();
        }
        if let Some(membership) = self.members.remove(&key) {
            let end = left.error.map_or(Ok(()), |error| Err(MemberError::Ended(error.into())));
            membership.new.seat.end(end);
        }
        Ok(())
    }

    pub(crate) fn say(&mut self, saying: Saying) {
        let Saying { key, session, mut verb, reply } = saying;
        let held = self.members.get(&key);
        let held = held.filter(|it| session.is_none_or(|session| it.session == session));
        let (Some(member), Line::Up(connection)) = (held.and_then(|it| it.server), &mut self.line)
        else {
            let gone = AskError::Disconnected { fate: Fate::DidNotHappen };
            return reply.into_iter().for_each(|reply| drop(reply.send(Err(gone.clone()))));
        };
        put_member(&mut verb, member);
        if matches!(verb, Verb::GroupLeave(_)) {
            connection.members.remove(&member);
            self.members.remove(&key);
        }
        let number = self.next_ask;
        self.next_ask += 1;
        let corr = if reply.is_some() { Corr::Say(number) } else { Corr::Other };
        match (connection.put(&verb, corr.ids()), reply) {
            (Ok(()), Some(reply)) => drop(self.says.insert(number, reply)),
            (Ok(()), None) => {}
            (Err(error), Some(reply)) => drop(reply.send(Err(AskError::Invalid(error)))),
            (Err(error), None) => warn!(%error, "what a member says was not sent"),
        }
    }

    pub(crate) fn said(&mut self, number: u64, answer: Result<Verb, AskError>) {
        if let Some(reply) = self.says.remove(&number) {
            // A caller that no longer waits has dropped the receiver.
            let _ = reply.send(answer);
        }
    }

    /// The connection is gone: what was said has no answer, and nothing is held any more.
    pub(crate) fn lose_members(&mut self) {
        for reply in std::mem::take(&mut self.says).into_values() {
            let _ = reply.send(Err(AskError::Disconnected { fate: Fate::Unknown }));
        }
        for membership in self.members.values_mut() {
            membership.server = None;
            membership.new.seat.lost();
        }
    }

    /// The client ends.
    pub(crate) fn end_members(&mut self, end: &Result<(), MemberError>) {
        self.lose_members();
        for membership in std::mem::take(&mut self.members).into_values() {
            membership.new.seat.end(end.clone());
        }
    }
}

/// Puts the number of the membership on this connection into a verb of members.
fn put_member(verb: &mut Verb, member: u64) {
    match verb {
        Verb::GroupAck(asked) => asked.member = member,
        Verb::GroupNack(asked) => asked.member = member,
        Verb::GroupExtend(asked) => asked.member = member,
        Verb::GroupTerminate(asked) => asked.member = member,
        Verb::GroupLeave(asked) => asked.member = member,
        Verb::GroupCredit(asked) => asked.member = member,
        Verb::GroupStep(asked) => {
            asked.acks.iter_mut().for_each(|ack| ack.member = member);
        }
        _ => {}
    }
}
