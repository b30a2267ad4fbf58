//! A member of a group: takes messages, and acks or nacks them.
//!
//! A message is leased when its member asks for the next; its body comes from the group's
//! shared buffers, or is read again. What cannot be read any more is given up with a notice, so
//! that no member waits for it for ever.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use gapless_core::group::op::Stop;
use gapless_core::group::{Effect, Granted, Input};
use gapless_core::{
    Durability, GapNotice, GapReason, Kept, Lease, MemberId, MemberInfo, Position, PubSubError,
    Seq, Timestamp, TopicName,
};
use gapless_journal::{Pending, ReadError, Ticket};

use crate::broker::{Inner, Owner};
use crate::error::{FollowError, MemberError, unconfirmed};
use crate::figures::metrics::Sample;
use crate::group::reread::Reread;
use crate::group::{GroupState, LiveGroup, Notice, Stepped};
use crate::publish::poll_ticket;
use crate::read::delivery::Messages;

/// Messages leased in one go, at most: large enough to be efficient, small enough that
/// others get their turn.
const TAKE_MAX: u64 = 4096;

/// One step of a member.
#[derive(Clone, Debug)]
pub enum Handed {
    /// Messages to work on.
    Messages(Leased),
    /// Messages of the source are gone (D10); the group's description says whether it goes on.
    Gap(GapNotice),
    /// In mode ordered: this member gets the messages now.
    Active,
    /// In mode ordered: another member gets the messages; this one will when that one goes.
    Standby,
}

/// Messages of one topic and one attempt that a member has to ack.
#[derive(Clone, Debug)]
pub struct Leased {
    messages: Messages,
    leases: Vec<Lease>,
    attempt: u32,
    deadline: Timestamp,
    term: u64,
}

impl Leased {
    /// The messages.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// What to ack them by, all of them.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Which attempt it is; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The term of the broker that leased them. Attempts are counted again after a crash, so an
    /// attempt of a message is named for ever only together with it.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Until when they must be acked or extended.
    pub fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// What to ack one of them by.
    pub fn lease_of(&self, position: Position) -> Lease {
        Lease { first: position, last: position, attempt: self.attempt }
    }
}

/// What became of what a member said, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckOutcome {
    /// Counted.
    pub taken: u64,
    /// Not held by this member any more, so not counted.
    pub refused: u64,
}

/// What became of asking for more time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Messages that have more time now.
    pub taken: u64,
    /// Messages that this member does not hold any more.
    pub refused: u64,
    /// Until when.
    pub deadline: Timestamp,
}

/// An ack under way: await it, or block on it with [`Acking::wait`]. It counts already; what
/// is left is that it becomes as durable as the group's settings ask. Dropping it takes
/// nothing back.
#[must_use = "an ack that failed must be repeated"]
pub struct Acking {
    outcome: Result<AckOutcome, PubSubError>,
    ticket: Option<Ticket>,
}

impl Acking {
    fn new(stepped: Result<Stepped, PubSubError>) -> Self {
        match stepped {
            Ok(Stepped { taken, refused, ticket, .. }) => {
                Self { outcome: Ok(AckOutcome { taken, refused }), ticket }
            }
            Err(error) => Self { outcome: Err(error), ticket: None },
        }
    }

    /// What is known at once; durability is still to come.
    ///
    /// # Errors
    /// When the system is in trouble; nothing was changed then. With
    /// [`PubSubError::Unavailable`] too much waits to be written: wait for
    /// [`Broker::room`](crate::Broker::room) and say it again.
    pub fn outcome(&self) -> Result<AckOutcome, PubSubError> {
        self.outcome.clone()
    }

    /// Blocks until it is durable. Flushes in this thread if no other thread does.
    ///
    /// # Errors
    /// When the system is in trouble; [`PubSubError::fate`] says what became of it.
    pub fn wait(mut self) -> Result<AckOutcome, PubSubError> {
        let reached = self.ticket.take().map(Ticket::wait);
        self.finish(reached)
    }

    fn finish(
        &self,
        reached: Option<Result<Durability, gapless_journal::Failure>>,
    ) -> Result<AckOutcome, PubSubError> {
        if let Some(Err(failure)) = reached {
            return Err(unconfirmed(&failure));
        }
        self.outcome.clone()
    }
}

impl Future for Acking {
    type Output = Result<AckOutcome, PubSubError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reached = ready!(poll_ticket(&mut self.ticket, context));
        Poll::Ready(self.finish(reached))
    }
}

/// What a member says, from anywhere. Clones speak for the same member.
#[derive(Clone)]
pub struct MemberHandle {
    pub(crate) inner: Arc<Owner>,
    pub(crate) group: Arc<LiveGroup>,
    pub(crate) id: MemberId,
}

impl fmt::Debug for MemberHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} of {}", self.id.0, self.group.name)
    }
}

impl MemberHandle {
    /// Its group.
    pub fn group(&self) -> &TopicName {
        &self.group.name
    }

    /// How the member stands; `None` when it is gone.
    pub fn info(&self) -> Option<MemberInfo> {
        let state = self.group.lock();
        let view = state.machine.member(self.id)?;
        let name = state.members.get(&self.id)?.name.clone();
        Some(MemberInfo {
            id: view.id.0,
            name,
            window: view.window,
            in_flight: view.in_flight,
            active: view.active,
        })
    }

    /// These are done.
    pub fn ack(&self, leases: &[Lease]) -> Acking {
        self.say(leases, Said::Done)
    }

    /// Everything that it was handed up to here is done.
    pub fn commit(&self, through: Position) -> Acking {
        self.say(&[], Said::DoneThrough(through))
    }

    /// These could not be done and are tried again: after the delay, or by the group's
    /// schedule; after the last attempt they are dead letters.
    pub fn nack(&self, leases: &[Lease], delay: Option<Duration>, reason: &str) -> Acking {
        self.say(leases, Said::Failed { delay, reason })
    }

    /// These can never be done: they are dead letters now.
    pub fn terminate(&self, leases: &[Lease], reason: &str) -> Acking {
        self.say(leases, Said::Never { reason })
    }

    /// These need more time: the group's lease from now on. None named means all it holds.
    pub fn extend(&self, leases: &[Lease]) -> Extended {
        let mut state = self.group.lock();
        let now = self.inner.clock.now();
        if state.deleted {
            let refused = leases.iter().map(Lease::count).sum();
            return Extended { taken: 0, refused, deadline: now };
        }
        let mut effects = state.step(now, Input::Extend { member: self.id, leases });
        self.inner.note_deadline(&self.group, &mut state);
        let deadline = now.after(state.machine.settings().lease);
        let (mut taken, mut refused) = (0, 0);
        if let Some(Effect::Counted { taken: held, refused: lost }) = effects.pop() {
            (taken, refused) = (held, lost);
        }
        Extended { taken, refused, deadline }
    }

    fn say(&self, leases: &[Lease], said: Said<'_>) -> Acking {
        let (mut state, member) = (self.group.lock(), self.id);
        if state.deleted {
            let refused = leases.iter().map(Lease::count).sum();
            return Acking::new(Ok(Stepped { refused, ..Stepped::default() }));
        }
        // What was not handed out yet cannot be done: this is said of an earlier lease.
        let (mut leases, mut refused, mut passed) = (Cow::Borrowed(leases), 0, Vec::new());
        if let Some(own) = state.members.get(&member) {
            if let Said::DoneThrough(through) = said {
                passed = own.unread.through(through);
            } else if state.has_unread(member, &leases) {
                let (kept, unread) = own.unread.without(&leases);
                (leases, refused) = (Cow::Owned(kept), unread);
            }
        }
        let leases = &*leases;
        let bytes = match said {
            Said::DoneThrough(_) => state.machine.commit_bytes_max(member, passed.len()),
            _ => state.machine.record_bytes_max(leases),
        };
        let (input, is_ack) = match said {
            Said::Done => (Input::Ack { member, leases }, true),
            Said::DoneThrough(through) => {
                (Input::Commit { member, through, unread: &passed }, true)
            }
            Said::Failed { delay, reason } => {
                (Input::Nack { member, leases, delay, reason }, false)
            }
            Said::Never { reason } => (Input::Terminate { member, leases, reason }, false),
        };
        let mut stepped = self.inner.group_step(&self.group, &mut state, (input, bytes));
        if !is_ack {
            // More than what was named may have ended: what was leased and not handed out yet.
            state.void();
        }
        if let (Ok(_), Some(traces)) = (&stepped, self.inner.traces.get()) {
            match said {
                Said::DoneThrough(through) => traces.said_through(self.group.id, member, through),
                said => traces.said(self.group.id, member, leases, said.outcome()),
            }
        }
        if let Ok(stepped) = &mut stepped {
            stepped.refused += refused;
            self.inner.count_said(&mut state, member, (is_ack, stepped.taken));
        }
        drop(state);
        if self.inner.journal.wants_keeping() {
            self.inner.keeper.wake();
        }
        Acking::new(stepped)
    }
}

/// What a member says of messages.
#[derive(Clone, Copy)]
enum Said<'a> {
    Done,
    DoneThrough(Position),
    Failed { delay: Option<Duration>, reason: &'a str },
    Never { reason: &'a str },
}

impl Said<'_> {
    /// What became of the messages, for their traces, and whether it is a failure.
    fn outcome(self) -> (&'static str, bool) {
        match self {
            Self::Done | Self::DoneThrough(_) => ("acked", false),
            Self::Failed { .. } => ("nacked", true),
            Self::Never { .. } => ("terminated", true),
        }
    }
}

impl Inner {
    /// Counts acks or nacks, and lets the member have more.
    pub(crate) fn count_said(
        &self,
        state: &mut GroupState,
        id: MemberId,
        (acks, taken): (bool, u64),
    ) {
        if acks {
            state.totals.acked += taken;
        } else {
            state.totals.nacked += taken;
        }
        if taken > 0
            && let Some(waker) = state.members.get_mut(&id).and_then(|each| each.full.take())
        {
            waker.wake();
        }
    }
}

/// A member. Dropping it is going away without a word: what it held counts as failed.
pub struct Member {
    handle: MemberHandle,
    name: String,
    left: bool,
    /// The group's place in its source, while the recovery pool looks for it.
    opening: Option<Pending<Result<Result<(), FollowError>, ReadError>>>,
    /// Which of its deliveries are timed.
    sample: Sample,
}

impl Member {
    pub(crate) fn new(handle: MemberHandle, name: String) -> Self {
        Self { handle, name, left: false, opening: None, sample: Sample::default() }
    }

    /// Its number in the group.
    pub fn id(&self) -> u64 {
        self.handle.id.0
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its group.
    pub fn group(&self) -> &TopicName {
        &self.handle.group.name
    }

    /// For acks from elsewhere.
    pub fn handle(&self) -> MemberHandle {
        self.handle.clone()
    }

    /// Changes how many messages may be in flight with it.
    pub fn set_window(&mut self, window: u32) {
        let mut state = self.handle.group.lock();
        let input = Input::Window { member: self.handle.id, window };
        state.step(self.handle.inner.clock.now(), input);
        let member = state.members.get_mut(&self.handle.id);
        if let Some(waker) = member.and_then(|member| member.full.take()) {
            waker.wake();
        }
    }

    /// As [`MemberHandle::ack`].
    pub fn ack(&self, leases: &[Lease]) -> Acking {
        self.handle.ack(leases)
    }

    /// As [`MemberHandle::commit`].
    pub fn commit(&self, through: Position) -> Acking {
        self.handle.commit(through)
    }

    /// As [`MemberHandle::nack`].
    pub fn nack(&self, leases: &[Lease], delay: Option<Duration>, reason: &str) -> Acking {
        self.handle.nack(leases, delay, reason)
    }

    /// As [`MemberHandle::terminate`].
    pub fn terminate(&self, leases: &[Lease], reason: &str) -> Acking {
        self.handle.terminate(leases, reason)
    }

    /// As [`MemberHandle::extend`].
    pub fn extend(&self, leases: &[Lease]) -> Extended {
        self.handle.extend(leases)
    }

    /// Goes. What it held goes to others, and does not count as failed.
    pub fn leave(mut self) {
        self.go(false);
    }

    fn go(&mut self, failed: bool) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        let MemberHandle { inner, group, id } = &self.handle;
        let mut state = group.lock();
        let bytes = state.machine.leave_bytes_max(*id);
        let leave = |failed| Input::Leave { member: *id, failed };
        if inner.group_step(group, &mut state, (leave(failed), bytes)).is_err() {
            // It cannot be written down that they failed; then they did not.
            state.step(inner.clock.now(), leave(false));
        }
        state.members.remove(id);
        if state.members.is_empty() {
            // No member is reading, so the memory is released for those that do.
            inner.leave_source(&mut state);
            state.ahead.clear();
            state.rereading = None;
        }
        drop(state);
        group.stop_waiting(*id);
        group.wake_one();
        let fields = [("group", group.name.as_str().into()), ("member", self.name.as_str().into())];
        inner.emit("group.left", &fields);
    }

    /// Lets it have this many more messages than it holds now.
    pub fn allow_more(&mut self, more: u32) {
        let held = self.handle.group.lock().machine.in_flight_of(self.handle.id);
        self.set_window(u32::try_from(held).unwrap_or(u32::MAX).saturating_add(more));
    }

    /// Whether something is leased to it that [`Member::next`] has not handed out yet.
    pub fn has_unread(&self) -> bool {
        let state = self.handle.group.lock();
        state.members.get(&self.handle.id).is_some_and(|member| !member.unread.is_empty())
    }

    /// Whether the group has messages that wait for a member, beyond what this one has. Of a
    /// pattern it may have: whether what was written last is its would take a look at all topics.
    pub fn may_have_more(&self) -> bool {
        let MemberHandle { inner, group, .. } = &self.handle;
        let (source, frontier) = {
            let state = group.lock();
            if state.machine.counts().ready > 0 {
                return true;
            }
            (state.machine.settings().source.clone(), state.machine.frontier())
        };
        let Some(name) = source.as_name() else {
            return inner.journal.last_settled() > frontier;
        };
        inner.topics.find(&name).is_some_and(|cell| {
            let state = cell.lock();
            state.is_durable() && state.visible > frontier
        })
    }

    /// The next step. Waits if there is nothing yet. Dropping the future loses nothing: what
    /// it was woken for goes to another member, and what it had leased comes next time.
    ///
    /// # Errors
    /// When the group is deleted, the broker closed, or history damaged.
    pub async fn next(&mut self) -> Result<Handed, MemberError> {
        let mut place = Place { handle: self.handle.clone(), taken: false };
        let handed = poll_fn(|context| {
            let polled = self.poll_next(context);
            place.taken = polled.is_pending();
            polled
        });
        handed.await
    }

    /// As [`Member::next`], for callers that poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Handed, MemberError>> {
        let MemberHandle { inner, group, id } = self.handle.clone();
        loop {
            if let Some(opening) = &mut self.opening {
                let opened = ready!(Pin::new(opening).poll(context));
                self.opening = None;
                opened.and_then(|done| done).map_err(closed_or_read)?.map_err(member_error)?;
            }
            let mut state = group.lock();
            if state.deleted {
                return Poll::Ready(Err(MemberError::Deleted(group.name.clone())));
            }
            if inner.is_closed() {
                return Poll::Ready(Err(MemberError::Closed));
            }
            if let Some(leased) = ready!(self.find(&mut state, context))? {
                return Poll::Ready(Ok(Handed::Messages(leased)));
            }
            let notice = state.members.get_mut(&id).and_then(|each| each.notices.pop_front());
            if let Some(notice) = notice {
                return Poll::Ready(Ok(match notice {
                    Notice::Gap(gap) => Handed::Gap(gap),
                    Notice::Active => Handed::Active,
                    Notice::Standby => Handed::Standby,
                }));
            }
            let now = inner.clock.now();
            inner.tick_group(&group, &mut state, now);
            if state.machine.has_for(id) {
                self.take(&mut state, now);
                continue;
            }
            if state.machine.room_of(id) == 0 {
                if let Some(member) = state.members.get_mut(&id) {
                    member.full = Some(context.waker().clone());
                }
                if state.machine.counts().ready > 0 || state.machine.wants_more() {
                    drop(state);
                    group.wake_one();
                }
                return Poll::Pending;
            }
            if state.machine.counts().open() == 0 {
                state.ahead.clear();
            }
            // Before the source is asked: it may wake between the question and the wait.
            group.wait(id, context.waker());
            if !state.machine.wants_more() {
                return Poll::Pending;
            }
            if state.needs_source() {
                drop(state);
                group.stop_waiting(id);
                let group = Arc::clone(&group);
                self.opening = Some(inner.look_up(move |inner| inner.open_source(&group)));
                continue;
            }
            match inner.read_source(&group, &mut state) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(read) => {
                    group.stop_waiting(id);
                    // Another member may look for what comes after this.
                    group.wake_one();
                    read.map_err(member_error)?;
                }
            }
        }
    }

    fn take(&mut self, state: &mut GroupState, now: Timestamp) {
        let MemberHandle { inner, group, id } = &self.handle;
        let effects = state.step(now, Input::Take { member: *id, max: TAKE_MAX });
        let mut taken = 0;
        let mut again = 0;
        let mut grants = VecDeque::new();
        for effect in effects {
            if let Effect::Deliver(granted) = effect {
                taken += granted.lease.count();
                again += if granted.lease.attempt > 1 { granted.lease.count() } else { 0 };
                grants.push_back(granted);
            }
        }
        let voided = state.voided;
        if let Some(member) = state.members.get_mut(id) {
            member.unread.fill(grants, voided);
        }
        state.totals.delivered += taken;
        state.totals.redelivered += again;
        inner.note_deadline(group, state);
        group.stop_waiting(*id);
        if state.machine.counts().ready > 0 {
            group.wake_one();
        }
    }

    /// The next of what is leased: from memory, or read again.
    fn find(
        &mut self,
        state: &mut GroupState,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Leased>, MemberError>> {
        let MemberHandle { inner, group, id } = self.handle.clone();
        loop {
            let GroupState { members, machine, ahead, voided, .. } = &mut *state;
            let Some(member) = members.get_mut(&id) else { return Poll::Ready(Ok(None)) };
            let unread = &mut member.unread;
            // Some may have run out, or been reset, since they were leased.
            unread.keep_held(*voided, |lease| machine.holds(id, &[*lease]));
            if ahead.pick(&mut unread.grants, &mut unread.picking) {
                let picked = std::mem::take(&mut unread.picking).finish(inner.clock.now());
                let Some((messages, grants)) = picked else { return Poll::Ready(Ok(None)) };
                if let Some(leased) = self.hand_out(state, &grants, messages) {
                    return Poll::Ready(Ok(Some(leased)));
                }
                continue;
            }
            let Some(&grant) = unread.grants.front() else { continue };
            let reread = inner.poll_reread(&group, state, &grant, (id, context));
            match ready!(reread).map_err(closed_or_read)? {
                Reread::Look => {}
                Reread::Gone { count, reason, topic } => {
                    let member = state.members.get_mut(&id);
                    let gone = member.and_then(|member| member.unread.drop_first(count));
                    if let Some(gone) = gone {
                        self.gone(state, gone, reason, topic);
                    }
                }
            }
        }
    }

    /// Checks that what is handed out may be: what is trimmed or has expired is given up.
    fn hand_out(
        &mut self,
        state: &mut GroupState,
        grants: &[Granted],
        messages: Messages,
    ) -> Option<Leased> {
        let inner = Arc::clone(&self.handle.inner);
        let first = grants.first()?;
        let now = inner.clock.now();
        let cell = inner.topics.by_id(first.topic);
        let kept = cell.as_ref().map(|cell| cell.lock().kept());
        let all_kept = |kept: &Kept| first.seq >= kept.first && kept.age.is_none();
        let mut leases = Vec::with_capacity(grants.len());
        // What is gone is the oldest of them.
        let mut from = first.seq;
        if kept.as_ref().is_some_and(all_kept) && messages.is_alive() {
            leases.extend(grants.iter().map(|grant| grant.lease));
        } else {
            let name = messages.topic().clone();
            let alive: Vec<(Seq, Timestamp)> =
                messages.records().map(|each| (each.seq, each.time)).collect();
            for grant in grants {
                for offset in 0..grant.lease.count() {
                    let (seq, at) = (grant.seq.plus(offset), grant.lease.first.plus(offset));
                    let lease = Lease { first: at, last: at, attempt: grant.lease.attempt };
                    let found = alive.binary_search_by_key(&seq, |(seq, _)| *seq);
                    let time = found.ok().map(|at| alive[at].1);
                    let one = Granted { lease, seq, ..*grant };
                    // With its topic all of it is gone.
                    let gone =
                        kept.map_or(Some(GapReason::Purge), |kept| kept.gone(seq, time, now));
                    let Some(reason) = gone else {
                        leases.push(lease);
                        continue;
                    };
                    if !is_no_loss(reason) {
                        from = from.max(seq.next());
                    }
                    self.gone(state, one, reason, Some(name.clone()));
                }
            }
        }
        let messages = messages.beginning_at(from);
        let (attempt, deadline) = (first.lease.attempt, first.deadline);
        let term = inner.term();
        if leases.is_empty() {
            return None;
        }
        let count = leases.iter().map(|lease| lease.count()).sum();
        inner.flow.add_out(count);
        cell.iter().for_each(|cell| cell.count_out(count));
        if attempt == 1 && self.sample.is_due() {
            inner.metrics.delivery_group_seconds.record(messages.age());
        }
        if let Some(traces) = inner.traces.get() {
            let group = (self.handle.group.id, &self.handle.group.name);
            traces.leased(group, self.handle.id, (&messages, attempt));
        }
        Some(Leased { messages, leases, attempt, deadline, term })
    }

    /// Gives up messages that cannot be read any more. Those whose time to live is over are not
    /// reported; what retention removed is a gap.
    fn gone(
        &self,
        state: &mut GroupState,
        Granted { lease, seq, .. }: Granted,
        reason: GapReason,
        topic: Option<TopicName>,
    ) {
        let MemberHandle { inner, group, id } = &self.handle;
        let bytes = state.machine.record_bytes_max(&[lease]);
        let gone = Input::Gone { member: *id, lease };
        if let Err(error) = inner.group_step(group, state, (gone, bytes)) {
            tracing::warn!(group = group.name.as_str(), %error, "a gap must wait");
            return;
        }
        if is_no_loss(reason) {
            return;
        }
        state.totals.lost += lease.count();
        // Everything below the floor is gone with it: one resume goes over all of that.
        let cell = topic.as_ref().and_then(|name| inner.topics.find(name));
        let mut stop = Stop {
            topic,
            from: Some(seq),
            to: Some(seq.plus(lease.count() - 1)),
            through: lease.last,
            reason,
        };
        if let Some(cell) = cell {
            let topic = cell.lock();
            let kept = topic.kept();
            if seq < kept.first {
                stop.to = stop.to.max(Some(kept.first.prev()));
                stop.through = stop.through.max(topic.floor_position);
                stop.reason = kept.floor_reason;
            }
        }
        if let Err(error) = inner.group_gap(group, state, &stop) {
            tracing::warn!(group = group.name.as_str(), %error, "a gap must wait");
        }
    }
}

/// Whether messages that are gone for this reason do not count as a gap for a group: what its
/// publisher or the topic's compaction removed is not to be processed.
fn is_no_loss(reason: GapReason) -> bool {
    matches!(reason, GapReason::Expiry | GapReason::Compaction)
}

/// A place in the queue of waiting members, given up when its member no longer waits.
struct Place {
    handle: MemberHandle,
    taken: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let MemberHandle { group, id, .. } = &self.handle;
        if self.taken && !group.stop_waiting(*id) {
            // It was woken and did not come: the next one must.
            group.wake_one();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.go(true);
    }
}

fn member_error(error: FollowError) -> MemberError {
    match error {
        FollowError::Read(error) => closed_or_read(error),
        _ => MemberError::Closed,
    }
}

fn closed_or_read(error: ReadError) -> MemberError {
    match error {
        ReadError::Closed => MemberError::Closed,
        other => MemberError::Read(other),
    }
}
