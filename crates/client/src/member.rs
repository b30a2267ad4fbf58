//! A member of a group as its user sees it: takes messages, and says what became of them.
//!
//! It joins again by itself after a lost connection. What it held then is no longer its own and is
//! redelivered, to it or to another member; its acks and nacks for that are not sent.
//! [`crate::Consumer`] does all of this around a handler.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use gapless_core::{Fate, GapNotice, Mode, Position, PublishOptions, Timestamp, TopicName};
use gapless_protocol::{
    Confirm, GroupAck, GroupCredit, GroupExtend, GroupLeave, GroupNack, GroupStep, GroupTerminate,
    PublishAck, StepAck, Verb, Which,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::client::Client;
use crate::error::{AskError, MemberError, PublishError};
use crate::inbox::Command;
use crate::leased::{Leased, Leases};
use crate::membership::{NewMember, Saying};
use crate::publish::{Ack, Atomic};
use crate::seat::Seat;

/// How a member joins a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// What the member is called, for people; need not be unique.
    pub name: String,
    /// Most messages in flight with it.
    pub window: u32,
}

impl Default for MemberOptions {
    /// Without a name, with at most a thousand messages.
    fn default() -> Self {
        Self { name: String::new(), window: 1_000 }
    }
}

/// What happens to a member.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GroupEvent {
    /// Messages to work on.
    Messages(Leased),
    /// Messages of the group's source are gone that it had not done.
    Gap(GapNotice),
    /// Of an ordered group: this member gets the messages now.
    Active,
    /// Of an ordered group: another member gets the messages.
    Standby,
    /// The connection was lost and the group is joined again. What was held before is lost
    /// to this member and comes again.
    Rejoined,
}

/// What became of what a member said, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Counted.
    pub taken: u64,
    /// Not with this member any more, so not counted.
    pub refused: u64,
    /// Of an extension: until when the leases last now, by the server's clock.
    pub deadline: Option<Timestamp>,
}

impl Client {
    /// Becomes a member of a group, and waits until the server has taken it.
    ///
    /// ```no_run
    /// use gapless_client::{Client, GroupEvent, MemberOptions, TopicName};
    ///
    /// # async fn example(client: Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let billing: TopicName = "billing".parse()?;
    /// let mut member = client.join_group(&billing, MemberOptions::default()).await?;
    /// while let Some(event) = member.next().await {
    ///     if let GroupEvent::Messages(leased) = event? {
    ///         for each in leased.iter() {
    ///             println!("{} of {}: attempt {}", each.seq, each.topic, each.attempt);
    ///         }
    ///         member.ack(leased.leases()).await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there is no such group, or the server refuses or does not answer in time.
    pub async fn join_group(
        &self,
        group: &TopicName,
        options: MemberOptions,
    ) -> Result<Member, MemberError> {
        let seat = Arc::new(Seat::default());
        let key = self.next_member();
        let MemberOptions { name, window } = options;
        let (group, put) = (group.clone(), Arc::clone(&seat));
        if !self.inbox().send(Command::Join(NewMember { key, seat: put, group, name, window })) {
            return Err(MemberError::Closed);
        }
        let handle = MemberHandle { key, seat, client: self.clone() };
        let member = Member { handle };
        let joined = poll_fn(|context| member.handle.seat.poll_joined(context));
        match timeout(self.limits().answer_wait, joined).await {
            Ok(Ok(())) => Ok(member),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(MemberError::TimedOut),
        }
    }
}

/// A member. Dropping it leaves the group: what it held goes to others.
#[derive(Debug)]
pub struct Member {
    handle: MemberHandle,
}

impl Member {
    /// The next thing; `None` when the client was closed. It can be dropped at any time
    /// without losing anything.
    ///
    /// # Errors
    /// Why the membership has ended.
    pub async fn next(&mut self) -> Option<Result<GroupEvent, MemberError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Member::next`], for callers that poll.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<GroupEvent, MemberError>>> {
        self.handle.seat.poll_next(context)
    }

    /// The next messages, passing over how the membership is doing; `None` at the end.
    ///
    /// # Errors
    /// As [`Member::next`].
    pub async fn next_messages(&mut self) -> Option<Result<Leased, MemberError>> {
        loop {
            match self.next().await? {
                Ok(GroupEvent::Messages(leased)) => return Some(Ok(leased)),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// For saying things from elsewhere.
    pub fn handle(&self) -> MemberHandle {
        self.handle.clone()
    }

    /// Its number in the group, on this connection.
    pub fn id(&self) -> u64 {
        self.handle.seat.now().map_or(0, |joined| joined.id)
    }

    /// Which member gets which message.
    pub fn mode(&self) -> Mode {
        self.handle.seat.now().map_or(Mode::Shared, |joined| joined.mode)
    }

    /// How long a message may be worked on before it must be acked or extended.
    pub fn lease(&self) -> Duration {
        self.handle.seat.now().map_or(Duration::ZERO, |joined| joined.lease)
    }

    /// As [`MemberHandle::ack`].
    pub fn ack(&self, leases: &Leases) -> Answering {
        self.handle.ack(leases)
    }

    /// As [`MemberHandle::commit_through`].
    pub fn commit_through(&self, position: Position) -> Answering {
        self.handle.commit_through(position)
    }

    /// As [`MemberHandle::nack`].
    pub fn nack(&self, leases: &Leases, delay: Option<Duration>, reason: &str) -> Answering {
        self.handle.nack(leases, delay, reason)
    }

    /// As [`MemberHandle::terminate`].
    pub fn terminate(&self, leases: &Leases, reason: &str) -> Answering {
        self.handle.terminate(leases, reason)
    }

    /// As [`MemberHandle::extend`].
    pub fn extend(&self, leases: &Leases) -> Answering {
        self.handle.extend(leases)
    }

    /// As [`MemberHandle::step`].
    pub fn step(&self, leases: &Leases, atomic: Atomic) -> Stepping {
        self.handle.step(leases, atomic)
    }

    /// Leaves, and waits until the server knows: what it held goes to others and does not
    /// count as failed.
    pub async fn leave(self) {
        let (reply, answer) = oneshot::channel();
        let verb = GroupLeave { member: 0 }.into();
        self.handle.send(None, verb, Some(reply));
        // A member that is not connected has left already.
        let _ = timeout(self.handle.client.limits().answer_wait, answer).await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A client that is closed has left.
        let _ = self.handle.client.inbox().send(Command::Leave(self.handle.key));
    }
}

/// What a member says, from anywhere. Clones speak for the same member.
#[derive(Clone, Debug)]
pub struct MemberHandle {
    key: u64,
    seat: Arc<Seat>,
    client: Client,
}

impl MemberHandle {
    fn send(
        &self,
        session: Option<u64>,
        verb: Verb,
        reply: Option<oneshot::Sender<Result<Verb, AskError>>>,
    ) {
        let saying = Saying { key: self.key, session, verb, reply };
        // If the client is closed, the answer's other end is dropped with it.
        let _ = self.client.inbox().send(Command::Say(saying));
    }

    fn say(&self, session: Option<u64>, verb: Verb) -> Answering {
        let (reply, answer) = oneshot::channel();
        self.send(session, verb, Some(reply));
        Answering { answer, arrived: None }
    }

    /// These are done. It is sent whether this is awaited or not; awaited, it is as durable
    /// as the group's settings ask.
    pub fn ack(&self, leases: &Leases) -> Answering {
        let which = Which::Leases(leases.rising());
        let verb = GroupAck { member: 0, confirm: Confirm::Durable, which };
        self.say(Some(leases.session), verb.into())
    }

    /// As [`MemberHandle::ack`], without an answer.
    pub fn ack_quietly(&self, leases: &Leases) {
        let which = Which::Leases(leases.rising());
        let verb = GroupAck { member: 0, confirm: Confirm::Nothing, which };
        self.send(Some(leases.session), verb.into(), None);
    }

    /// Everything that it holds up to here is done.
    pub fn commit_through(&self, position: Position) -> Answering {
        let which = Which::Through(position);
        let verb = GroupAck { member: 0, confirm: Confirm::Durable, which };
        self.say(self.seat.now().map(|joined| joined.session), verb.into())
    }

    /// These could not be done and come again: after the delay, or by the group's schedule.
    pub fn nack(&self, leases: &Leases, delay: Option<Duration>, reason: &str) -> Answering {
        let delay_ms = delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        let (confirm, reason) = (Confirm::Durable, short(reason));
        let verb = GroupNack { member: 0, confirm, delay_ms, reason, leases: leases.rising() };
        self.say(Some(leases.session), verb.into())
    }

    /// These can never be done: they are dead letters now.
    pub fn terminate(&self, leases: &Leases, reason: &str) -> Answering {
        let (confirm, reason) = (Confirm::Durable, short(reason));
        let verb = GroupTerminate { member: 0, confirm, reason, leases: leases.rising() };
        self.say(Some(leases.session), verb.into())
    }

    /// These need more time: the group's lease from now on.
    pub fn extend(&self, leases: &Leases) -> Answering {
        let verb = GroupExtend { member: 0, confirm: Confirm::Counted, leases: leases.rising() };
        self.say(Some(leases.session), verb.into())
    }

    /// All that it holds needs more time. Not answered.
    pub fn extend_all(&self) {
        let leases = Vec::new();
        let verb = GroupExtend { member: 0, confirm: Confirm::Nothing, leases };
        self.send(None, verb.into(), None);
    }

    /// Changes how many messages may be in flight with it, on this connection.
    pub fn set_window(&self, window: u32) {
        self.send(None, GroupCredit { member: 0, window }.into(), None);
    }

    /// Acks these, publishes and writes cells: after a crash all of it is there, or none. If
    /// one of the messages is not with this member any more, it is rejected
    /// ([`gapless_core::RejectReason::LeaseLost`]) and nothing happened. So the result of each
    /// message is written exactly once, even if connections are lost in between.
    pub fn step(&self, leases: &Leases, atomic: Atomic) -> Stepping {
        self.step_with(leases, atomic, &PublishOptions::default())
    }

    /// As [`MemberHandle::step`], with options of its own.
    pub fn step_with(&self, leases: &Leases, atomic: Atomic, options: &PublishOptions) -> Stepping {
        let (reply, answer) = oneshot::channel();
        match atomic.into_commit(options) {
            Ok(commit) => {
                let acks = vec![StepAck { member: 0, leases: leases.rising() }];
                let verb = GroupStep { acks, commit }.into();
                self.send(Some(leases.session), verb, Some(reply));
                Stepping { answer, refused: None }
            }
            Err(error) => Stepping { answer, refused: Some(error) },
        }
    }
}

/// The answer to what a member said. It is sent whether this is awaited or not.
#[derive(Debug)]
#[must_use = "await it to learn what became of it"]
pub struct Answering {
    answer: oneshot::Receiver<Result<Verb, AskError>>,
    arrived: Option<Result<Verb, MemberError>>,
}

impl Answering {
    /// Ready when the answer is there; it stays for all tasks that await it.
    pub(crate) fn poll_arrived(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.arrived.is_some() {
            return Poll::Ready(());
        }
        poll_answer(&mut self.answer, context).map(|answer| self.arrived = Some(answer))
    }
}

impl Future for Answering {
    type Output = Result<Outcome, MemberError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.poll_arrived(context).is_pending() {
            return Poll::Pending;
        }
        // Polled again after its end it has nothing to say.
        let answer = self.arrived.take().unwrap_or(Err(MemberError::Closed));
        Poll::Ready(answer.and_then(|answer| match answer {
            Verb::GroupDone(done) => {
                let (taken, refused, deadline) = (done.taken, done.refused, done.deadline);
                Ok(Outcome { taken, refused, deadline })
            }
            _ => Err(MemberError::Unexpected),
        }))
    }
}

/// The acks of an atomic step that is on its way, one for each topic.
#[derive(Debug)]
#[must_use = "await it to learn what became of the step"]
pub struct Stepping {
    answer: oneshot::Receiver<Result<Verb, AskError>>,
    refused: Option<PublishError>,
}

impl Future for Stepping {
    type Output = Result<Vec<Ack>, PublishError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(Err(refused));
        }
        poll_answer(&mut self.answer, context).map(|answer| match answer {
            Ok(Verb::PublishAck(PublishAck { parts })) => parts.into_iter().map(Ack::new).collect(),
            Ok(_) => Err(PublishError::Disconnected { fate: Fate::Unknown }),
            Err(MemberError::Lost { fate }) => Err(PublishError::Disconnected { fate }),
            Err(MemberError::Server(trouble)) => Err(PublishError::System(trouble)),
            Err(_) => Err(PublishError::Closed),
        })
    }
}

fn poll_answer(
    answer: &mut oneshot::Receiver<Result<Verb, AskError>>,
    context: &mut Context<'_>,
) -> Poll<Result<Verb, MemberError>> {
    Pin::new(answer).poll(context).map(|answer| match answer {
        Ok(Ok(verb)) => Ok(verb),
        Ok(Err(AskError::Disconnected { fate })) => Err(MemberError::Lost { fate }),
        Ok(Err(AskError::Server(trouble))) => Err(MemberError::Server(trouble)),
        Ok(Err(AskError::Invalid(error))) => Err(MemberError::Invalid(error)),
        Ok(Err(_)) | Err(_) => Err(MemberError::Closed),
    })
}

/// A reason that fits into a frame, cut between characters.
fn short(reason: &str) -> String {
    let mut end = reason.len().min(gapless_protocol::verbs::group::REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
