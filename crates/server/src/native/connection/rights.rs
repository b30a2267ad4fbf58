//! Which rights each verb needs, and what becomes of a connection when rights change.
//!
//! A verb that is not in the match is refused, and a test fails until it is.

use std::sync::Arc;

use gapless_auth::{Caller, Denied, OverQuota, Proof};
use gapless_core::rights::Right;
use gapless_core::{Pattern, RejectReason, TopicName};
use gapless_protocol::link::UnixPeer;
use gapless_protocol::{
    Commit, Ended, ErrorCode, GroupLeft, Ids, PartAck, PublishAck, Rejection, Verb,
};

use super::{Connection, Stage};
use crate::answers::error;
use crate::cluster;

/// Why a verb is not done.
pub(super) enum Refusal {
    Denied(Denied),
    Over(OverQuota),
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl From<OverQuota> for Refusal {
    fn from(over: OverQuota) -> Self {
        Self::Over(over)
    }
}

/// Whether the caller may do what a verb asks for.
pub(super) fn check(caller: &mut Caller, verb: &Verb) -> Result<(), Refusal> {
    let group = |caller: &Caller, name: &TopicName| caller.may(Right::Group, name);
    let dlq = |caller: &Caller, name: &TopicName| caller.may(Right::Dlq, name);
    match verb {
        // About the connection itself, and about what it holds already.
        Verb::Hello(_)
        | Verb::Ping(_)
        | Verb::Pong(_)
        | Verb::Bye(_)
        | Verb::Unsubscribe(_)
        | Verb::Credit(_)
        | Verb::AwaitVisible(_)
        | Verb::GroupLeave(_)
        | Verb::GroupAck(_)
        | Verb::GroupNack(_)
        | Verb::GroupExtend(_)
        | Verb::GroupTerminate(_)
        | Verb::GroupCredit(_) => {}
        // Each command names its identity itself.
        Verb::Auth(_) => {}
        // The list is cut to what the caller may see.
        Verb::TopicList(_) | Verb::GroupList(_) => {}
        // Where the message wants to go is looked up where blocking does no harm.
        Verb::CancelDelayed(_) => {}
        Verb::Publish(publish) => {
            caller.may_publish(&publish.topic)?;
            caller.charge(u64::from(publish.records.count), publish.records.bytes.len() as u64)?;
        }
        Verb::Commit(commit) => check_commit(caller, commit)?,
        Verb::GroupStep(step) => check_commit(caller, &step.commit)?,
        Verb::TopicCreate(asked) => {
            caller.may(Right::Create, &asked.topic)?;
            caller.may_add_topic()?;
        }
        Verb::TopicConfigure(asked) => caller.may(Right::Configure, &asked.topic)?,
        Verb::TopicDescribe(asked) => caller.may(Right::Read, &asked.topic)?,
        Verb::TopicDelete(asked) => caller.may(Right::Delete, &asked.topic)?,
        Verb::TopicPurge(asked) => caller.may(Right::Delete, &asked.topic)?,
        Verb::Subscribe(asked) => caller.may_all(Right::Subscribe, &asked.pattern)?,
        Verb::Get(asked) => caller.may(Right::Read, &asked.topic)?,
        Verb::Read(asked) => caller.may(Right::Read, &asked.topic)?,
        Verb::Explain(asked) => caller.may(Right::Read, &asked.topic)?,
        Verb::CellRead(asked) => caller.may_cell(Right::Read, &asked.name)?,
        Verb::Clients(_) => caller.may_area("clients")?,
        Verb::ClientClose(_) => caller.may_area("clients.close")?,
        Verb::Stats(_) => caller.may_area("server")?,
        Verb::Cluster(asked) => caller.may_area(cluster::area(&asked.json))?,
        // What its source is, is looked at where the group is joined.
        Verb::GroupJoin(asked) => group(caller, &asked.group)?,
        Verb::GroupCreate(asked) => {
            group(caller, &asked.group)?;
            caller.may_all(Right::Subscribe, &asked.settings.source)?;
        }
        Verb::GroupConfigure(asked) => {
            group(caller, &asked.group)?;
            caller.may_all(Right::Subscribe, &asked.settings.source)?;
        }
        Verb::GroupDescribe(asked) => group(caller, &asked.group)?,
        Verb::GroupDelete(asked) => group(caller, &asked.group)?,
        Verb::GroupPause(asked) => group(caller, &asked.group)?,
        Verb::GroupResume(asked) => group(caller, &asked.group)?,
        Verb::GroupReset(asked) => group(caller, &asked.group)?,
        Verb::LetterList(asked) => dlq(caller, &asked.group)?,
        Verb::LetterRead(asked) => dlq(caller, &asked.group)?,
        Verb::LetterRedrive(asked) => dlq(caller, &asked.group)?,
        Verb::LetterRemove(asked) => dlq(caller, &asked.group)?,
        // The server's own; a client that sends them was refused before.
        Verb::Welcome(_)
        | Verb::Error(_)
        | Verb::Drain(_)
        | Verb::TopicInfo(_)
        | Verb::TopicInfos(_)
        | Verb::Done(_)
        | Verb::PublishAck(_)
        | Verb::Cancelled(_)
        | Verb::DeliveryReport(_)
        | Verb::Subscribed(_)
        | Verb::Unsubscribed(_)
        | Verb::Messages(_)
        | Verb::RecoveryResponse(_)
        | Verb::RecoveryComplete(_)
        | Verb::Gap(_)
        | Verb::Ended(_)
        | Verb::Visible(_)
        | Verb::Found(_)
        | Verb::NotFound(_)
        | Verb::CellValue(_)
        | Verb::ClientList(_)
        | Verb::StatsText(_)
        | Verb::AuthAnswer(_)
        | Verb::ClusterAnswer(_)
        | Verb::Explained(_)
        | Verb::GroupJoined(_)
        | Verb::GroupLeft(_)
        | Verb::GroupMessages(_)
        | Verb::GroupDone(_)
        | Verb::GroupRole(_)
        | Verb::GroupGap(_)
        | Verb::GroupInfo(_)
        | Verb::GroupInfos(_)
        | Verb::Letters(_)
        | Verb::LettersMoved(_) => {}
        // The list is open; what is not in it is for no one. A test finds what is missing.
        _ => caller.may_area("unknown")?,
    }
    Ok(())
}

fn check_commit(caller: &mut Caller, commit: &Commit) -> Result<(), Refusal> {
    let (mut messages, mut bytes) = (0, 0);
    for part in &commit.parts {
        caller.may_publish(&part.topic)?;
        messages += u64::from(part.records.count);
        bytes += part.records.bytes.len() as u64;
    }
    for cell in &commit.cells {
        caller.may_cell(Right::Publish, &cell.name)?;
    }
    Ok(caller.charge(messages, bytes)?)
}

impl Connection {
    /// Answers a verb that is not done: a publish is rejected, anything else is an error (A4).
    pub(super) fn not_allowed(&mut self, verb: &Verb, refusal: &Refusal, ids: Ids) {
        let publishes = matches!(verb, Verb::Publish(_) | Verb::Commit(_) | Verb::GroupStep(_));
        match refusal {
            Refusal::Denied(_) if publishes => {
                let reason = Rejection::Reason(RejectReason::NotAuthorised);
                self.ack(PublishAck { parts: vec![PartAck::Rejected(reason)] }, ids);
            }
            Refusal::Denied(denied) => self.refuse(ErrorCode::NotAuthorised, denied, ids),
            Refusal::Over(over) => {
                self.refuse_for(ErrorCode::QuotaExceeded, over, over.retry_after, ids);
            }
        }
    }

    /// Whether publishes that came one by one may be taken together.
    pub(super) fn may_run(&mut self, topic: &TopicName, messages: usize, bytes: usize) -> bool {
        self.caller.may_publish(topic).is_ok()
            && self.caller.charge(messages as u64, bytes as u64).is_ok()
    }

    /// Authenticates the client. If that fails the client gets the reason, after a pause if it
    /// failed often, and the connection ends.
    pub(super) fn introduce(&mut self, token: Option<&[u8]>, ids: Ids) -> bool {
        let certificate = self.stream.certificate();
        // Bytes that are not text cannot be a token.
        let token = token.map(|token| std::str::from_utf8(token).unwrap_or(""));
        let proof = match (token, certificate.as_deref(), self.stream.peer()) {
            (Some(token), _, _) => Proof::Token(token),
            (None, Some(name), _) => Proof::Certificate(name),
            (None, None, Some(UnixPeer { uid, own })) => Proof::Peer { uid, own },
            (None, None, None) => Proof::Nothing,
        };
        match self.shared.auth.caller(proof, Arc::clone(&self.session.address)) {
            Ok(caller) => match caller.connect() {
                Ok(held) => {
                    (self.caller, self.counted) = (caller, Some(held));
                    true
                }
                Err(over) => {
                    self.refuse_for(ErrorCode::QuotaExceeded, &over, over.retry_after, ids);
                    self.finish();
                    false
                }
            },
            Err(refused) => {
                // This answer waits as long; the next attempt that fails waits at least so long.
                self.refuse_for(ErrorCode::NotAuthenticated, &refused, refused.delay, ids);
                self.finish();
                self.rest_for(refused.delay);
                false
            }
        }
    }

    /// Roles, identities or tokens changed: ends what is not allowed any more.
    pub(super) fn check_again(&mut self) {
        if self.stage == Stage::New || self.stage == Stage::Ending {
            return;
        }
        if let Err(refused) = self.caller.refresh() {
            return self.end_with(ErrorCode::NotAuthenticated, refused, Ids::NONE);
        }
        let lost = |caller: &Caller, right: Right, pattern: &Pattern| {
            caller.may_all(right, pattern).err().map(|denied| denied.to_string())
        };
        let follows = self.follows.iter().filter_map(|(number, followed)| {
            let why = lost(&self.caller, Right::Subscribe, followed.pattern())?;
            Some((*number, followed.token(), why))
        });
        for (subscription, token, why) in follows.collect::<Vec<_>>() {
            self.follows.remove(subscription);
            self.forget(subscription);
            let error = error(ErrorCode::NotAuthorised, &why);
            self.put(Ended { subscription, token, error }, Ids::NONE);
        }
        let members = self.members.sources().into_iter().filter_map(|(number, group, source)| {
            let group = Pattern::literal(&group);
            let why = lost(&self.caller, Right::Group, &group)
                .or_else(|| lost(&self.caller, Right::Subscribe, &source))?;
            Some((number, why))
        });
        for (member, why) in members.collect::<Vec<_>>() {
            self.members.leave(member);
            let error = Some(error(ErrorCode::NotAuthorised, &why));
            self.put(GroupLeft { member, error }, Ids::NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use gapless_protocol::Kind;

    #[test]
    fn every_kind_has_its_line_in_the_match() {
        let source = include_str!("rights.rs");
        let begin = source.find("match verb {").expect("the match");
        let end = source.find("The list is open").expect("its end");
        for kind in Kind::ALL.iter().filter(|kind| !kind.is_of_jobs()) {
            let line = format!("Verb::{}(", kind.name());
            assert!(source[begin..end].contains(&line), "{} has no check", kind.name());
        }
    }
}
