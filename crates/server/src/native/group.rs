//! A connection's memberships of groups: leased messages out, what became of them in.
//!
//! The broker hands a member no more than its window, so that nothing is kept here but one
//! delivery that waits for room in the output. Batches go out as they are stored; nothing is
//! done per message. A connection that is lost drops its members, which counts as a failed
//! attempt of what they held; leaving, saying bye and the server's own end do not.
//!
//! Answers wait in the connection's one line, so that they come in the order of the
//! questions. What groups are and how they stand is in `group_requests.rs`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gapless_auth::{Caller, Held};
use gapless_broker::{Acking, Handed, Join, Member, MemberHandle, checksum};
use gapless_core::rights::Right;
use gapless_core::{Lease, Mode, Pattern, Position, PubSubError, Seq, TopicName};
use gapless_protocol::{
    Confirm, ErrorAnswer, ErrorCode, FrameLimit, GroupDone, GroupGap, GroupJoin, GroupJoined,
    GroupLeft, GroupMessages, GroupRole, Ids, Output, SplitError, StepAck, Verb, Which, cut_leased,
};

use crate::answers::{error, group_error, member_error};
use crate::native::deliver::{Stop, put_with};
use crate::session::numbered::Numbered;
use crate::session::ready::{Ready, SubscriptionWaker};
use crate::session::sessions::{Listed, Session};

/// Bytes of a `GroupMessages` frame before its leases, at most.
const MESSAGES_FIELDS_BYTES: usize = 32;

/// The memberships of a connection.
#[derive(Default)]
pub(crate) struct Memberships {
    all: Numbered<Box<Membership>>,
}

/// A member, and what it receives about its group.
pub(crate) struct NewMember {
    member: Member,
    mode: Mode,
    lease: Duration,
    group: TopicName,
    /// What its group reads.
    source: Pattern,
    held: Held,
}

impl NewMember {
    pub(crate) fn group(&self) -> &TopicName {
        &self.group
    }

    pub(crate) fn source(&self) -> &Pattern {
        &self.source
    }
}

/// Joins a group; may block, as it looks at how the group stands.
pub(crate) fn join(
    caller: &Caller,
    held: Held,
    asked: GroupJoin,
) -> Result<NewMember, ErrorAnswer> {
    let broker = caller.broker();
    let settings =
        broker.describe_group(&asked.group).map_err(|error| group_error(&error))?.settings;
    let source = settings.source.clone();
    caller
        .may_all(Right::Subscribe, &source)
        .map_err(|denied| error(ErrorCode::NotAuthorised, &denied))?;
    let join = Join { name: asked.name, window: asked.window };
    let member = broker.join_group(&asked.group, &join).map_err(|error| group_error(&error))?;
    let GroupJoin { group, .. } = asked;
    Ok(NewMember { member, mode: settings.mode, lease: settings.lease, group, source, held })
}

/// What a member is answered, now or when it is durable.
pub(crate) enum Said {
    /// Known already.
    Done(GroupDone),
    /// Known when it is durable.
    Acking(Acking),
}

impl Said {
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<GroupDone, PubSubError>> {
        match self {
            Self::Done(done) => Poll::Ready(Ok(*done)),
            Self::Acking(acking) => Pin::new(acking).poll(context).map(|done| {
                let outcome = done?;
                let (taken, refused) = (outcome.taken, outcome.refused);
                Ok(GroupDone { taken, refused, deadline: None })
            }),
        }
    }
}

impl Memberships {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Takes a new member under this number.
    pub(crate) fn add(
        &mut self,
        new: NewMember,
        number: u64,
        (ready, session): (&Arc<Ready>, &Arc<Session>),
    ) -> GroupJoined {
        let NewMember { member, mode, lease, source, held, .. } = new;
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let id = member.id();
        let waker = SubscriptionWaker { ready: Arc::clone(ready), subscription: number };
        let waker = Waker::from(Arc::new(waker));
        let handle = member.handle();
        let _listed = session.note_member(number, handle.clone());
        let (rest, _held) = (None, held);
        let membership = Membership { number, member, handle, source, waker, rest, _listed, _held };
        self.all.add(number, Box::new(membership));
        GroupJoined { member: number, id, mode, lease_ms }
    }

    /// Of each membership its number, its group, and what that reads.
    pub(crate) fn sources(&self) -> Vec<(u64, TopicName, Pattern)> {
        let row = |(number, member): &(u64, Box<Membership>)| {
            (*number, member.handle.group().clone(), member.source.clone())
        };
        self.all.iter().map(row).collect()
    }

    /// Ends a membership on its own request. Returns whether there was one.
    pub(crate) fn leave(&mut self, number: u64) -> bool {
        self.all.remove(number).map(|membership| membership.member.leave()).is_some()
    }

    /// Lets all of them leave, and returns their numbers.
    pub(crate) fn leave_all(&mut self) -> Vec<u64> {
        let all = std::mem::take(&mut self.all);
        let leave = |(number, membership): (u64, Box<Membership>)| {
            membership.member.leave();
            number
        };
        all.into_iter().map(leave).collect()
    }

    /// Ends all of them as lost: what they held counts as failed.
    pub(crate) fn lose_all(&mut self) {
        self.all.clear();
    }

    /// Does what a member says; `None` when it is not such a verb, or one that is not answered.
    pub(crate) fn say(&mut self, verb: &Verb) -> Result<Option<Said>, ErrorAnswer> {
        let (acking, confirm) = match verb {
            Verb::GroupAck(asked) => {
                let handle = self.handle(asked.member)?;
                let acking = match &asked.which {
                    Which::Leases(leases) => handle.ack(leases),
                    Which::Through(position) => handle.commit(*position),
                };
                (acking, asked.confirm)
            }
            Verb::GroupNack(asked) => {
                let delay = asked.delay_ms.map(Duration::from_millis);
                let handle = self.handle(asked.member)?;
                (handle.nack(&asked.leases, delay, &asked.reason), asked.confirm)
            }
            Verb::GroupTerminate(asked) => {
                let handle = self.handle(asked.member)?;
                (handle.terminate(&asked.leases, &asked.reason), asked.confirm)
            }
            Verb::GroupExtend(asked) => {
                let extended = self.handle(asked.member)?.extend(&asked.leases);
                let (taken, refused) = (extended.taken, extended.refused);
                let done = GroupDone { taken, refused, deadline: Some(extended.deadline) };
                let asked_for = asked.confirm != Confirm::Nothing;
                return Ok(asked_for.then_some(Said::Done(done)));
            }
            Verb::GroupCredit(asked) => {
                // It may have ended while this was on its way.
                if let Some(membership) = self.all.get_mut(asked.member) {
                    membership.member.set_window(asked.window);
                }
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let outcome = acking.outcome().map_err(|failed| crate::answers::trouble(&failed))?;
        Ok(match confirm {
            Confirm::Nothing => None,
            Confirm::Counted => {
                let (taken, refused) = (outcome.taken, outcome.refused);
                Some(Said::Done(GroupDone { taken, refused, deadline: None }))
            }
            Confirm::Durable => Some(Said::Acking(acking)),
        })
    }

    /// The handle of the member whose acks are part of a step.
    pub(crate) fn handle_of(&self, ack: &StepAck) -> Result<&MemberHandle, ErrorAnswer> {
        self.handle(ack.member)
    }

    fn handle(&self, number: u64) -> Result<&MemberHandle, ErrorAnswer> {
        let unknown = || error(ErrorCode::UnknownMember, &"this connection has no such membership");
        self.all.get(number).map(|membership| &membership.handle).ok_or_else(unknown)
    }

    /// Sends a member what there is; `None` when there is no such membership.
    pub(crate) fn send(
        &mut self,
        number: u64,
        output: &mut Output,
        output_bytes_max: usize,
        limit: FrameLimit,
    ) -> Option<Stop> {
        let stop = self.all.get_mut(number)?.send(output, output_bytes_max, limit);
        if stop == Stop::Ended {
            self.all.remove(number);
        }
        Some(stop)
    }
}

struct Membership {
    number: u64,
    member: Member,
    handle: MemberHandle,
    /// What its group reads.
    source: Pattern,
    waker: Waker,
    /// What was taken from the broker and waits for room.
    rest: Option<GroupMessages>,
    _listed: Listed,
    /// Its place among the subscriptions of its identity.
    _held: Held,
}

impl Membership {
    /// Sends until there is nothing, the window is used up, or the output is full.
    fn send(&mut self, output: &mut Output, output_bytes_max: usize, limit: FrameLimit) -> Stop {
        let member = self.number;
        loop {
            if output.bytes() >= output_bytes_max {
                return Stop::Full;
            }
            if let Some(messages) = self.rest.take() {
                self.send_messages(messages, output, limit);
                continue;
            }
            let mut context = Context::from_waker(&self.waker);
            let verb: Verb = match self.member.poll_next(&mut context) {
                Poll::Pending => return Stop::Waits,
                Poll::Ready(Ok(Handed::Messages(leased))) => {
                    self.rest = Some(GroupMessages {
                        member,
                        topic: leased.messages().topic().clone(),
                        deadline: leased.deadline(),
                        leases: leased.leases().to_vec(),
                        batches: leased.messages().stored(),
                    });
                    continue;
                }
                Poll::Ready(Ok(Handed::Active)) => GroupRole { member, active: true }.into(),
                Poll::Ready(Ok(Handed::Standby)) => GroupRole { member, active: false }.into(),
                Poll::Ready(Ok(Handed::Gap(gap))) => GroupGap { member, gap }.into(),
                Poll::Ready(Err(failed)) => {
                    let left = GroupLeft { member, error: Some(member_error(&failed)) };
                    put_with(output, &left.into(), Ids::NONE, limit);
                    return Stop::Ended;
                }
            };
            put_with(output, &verb, Ids::NONE, limit);
        }
    }

    fn send_messages(&mut self, messages: GroupMessages, output: &mut Output, limit: FrameLimit) {
        let room = limit.payload_bytes(messages.topic.as_str()) - MESSAGES_FIELDS_BYTES;
        // Kept for the rare case that something in it cannot be sent; it shares its bytes.
        let kept = (messages.batches.bytes() > room).then(|| messages.clone());
        match cut_leased(messages, room, checksum) {
            Ok((front, rest)) => {
                self.rest = rest;
                put_with(output, &front.into(), Ids::NONE, limit);
            }
            Err(failed) => {
                if let Some(kept) = kept {
                    self.give_back(kept, &failed);
                }
            }
        }
    }

    /// A message that cannot be sent on this connection fails, so that it goes to the dead letters
    /// in the end instead of getting lost; the others go on.
    fn give_back(&mut self, messages: GroupMessages, failed: &SplitError) {
        let named = match failed {
            SplitError::MessageTooLarge { seq, .. } => position_of(&messages, *seq),
            _ => None,
        };
        let (lost, leases): (Vec<Lease>, Vec<Lease>) = match named {
            None => (messages.leases.clone(), Vec::new()),
            Some(position) => without(&messages.leases, position),
        };
        tracing::warn!(topic = messages.topic.as_str(), %failed, "a message cannot be handed out");
        drop(self.handle.nack(&lost, None, &failed.to_string()));
        if !leases.is_empty() {
            self.rest = Some(GroupMessages { leases, ..messages });
        }
    }
}

fn position_of(messages: &GroupMessages, seq: Seq) -> Option<Position> {
    let inside = |batch: &gapless_core::Batch| (batch.first()..=batch.last()).contains(&seq);
    let batch = messages.batches.iter().find(inside)?;
    Some(batch.header().position.plus(seq.distance(batch.first())))
}

/// The lease of one position, and the leases without it.
fn without(leases: &[Lease], position: Position) -> (Vec<Lease>, Vec<Lease>) {
    let (mut lost, mut rest) = (Vec::new(), Vec::new());
    for lease in leases {
        if !(lease.first..=lease.last).contains(&position) {
            rest.push(*lease);
            continue;
        }
        lost.push(Lease { first: position, last: position, ..*lease });
        if lease.first < position {
            rest.push(Lease { last: position.prev(), ..*lease });
        }
        if position < lease.last {
            rest.push(Lease { first: position.next(), ..*lease });
        }
    }
    (lost, rest)
}
