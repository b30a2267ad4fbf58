//! A group as the broker holds it: its machine, its place in the source, and its waiting members.
//!
//! One short lock around plain code; topics and the gathering frame are locked inside it,
//! never the other way round. What the machine wants recorded is appended to the journal under the
//! lock, so that the journal has the changes in the order in which they were made.
//!
//! Members pull. A member that finds nothing leaves its waker and is woken when there may be more:
//! one at a time, each waking the next while something is left. A member whose window is full waits
//! for its own acks only.

pub(crate) mod admin;
pub(crate) mod dead_letters;
pub(crate) mod groups;
pub(crate) mod info;
pub(crate) mod member;
pub(crate) mod read_ahead;
pub(crate) mod reread;
pub(crate) mod unread;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker};

use gapless_core::entry::ENTRY_HEADER_BYTES;
use gapless_core::group::op::{Op, OpWriter, Stop};
use gapless_core::group::{Effect, Input};
use gapless_core::{
    Durability, EntryHeader, EntryKind, GapNotice, GapReason, Group, GroupTotals, Lease, MemberId,
    Mode, Pattern, Position, PubSubError, StartFrom as From, Timestamp, Token, TopicId, TopicName,
};
use gapless_journal::{Append, Ticket};

use crate::broker::Inner;
use crate::checked::after_group_step;
use crate::error::{FollowError, GroupError, begin_error};
use crate::group::dead_letters::Redriving;
use crate::group::read_ahead::{KeyHash, ReadAhead};
use crate::group::reread::Rereading;
use crate::group::unread::Unread;
use crate::read::delivery::Delivery;
use crate::read::subscription::{Follower, Shared};
use crate::topic::live_topic::{headers, lock};

/// Notices that wait for one member, at most; older ones go.
const NOTICES_MAX: usize = 16;
/// Positions that are known to be done and worth a jump instead of reading over them.
const JUMP_POSITIONS_MIN: u64 = 4096;

/// One group.
pub(crate) struct LiveGroup {
    pub(crate) id: TopicId,
    pub(crate) name: TopicName,
    state: Mutex<GroupState>,
    /// Members that wait for something to take. Locked last, by the thread that wakes them.
    waiting: Mutex<VecDeque<(MemberId, Waker)>>,
}

pub(crate) struct GroupState {
    pub(crate) machine: Group,
    /// The position of the last entry that changed it.
    pub(crate) as_of: Position,
    pub(crate) members: BTreeMap<MemberId, MemberState>,
    pub(crate) next_member: u64,
    pub(crate) source: Option<Source>,
    pub(crate) ahead: ReadAhead,
    /// What is being read again into `ahead`.
    pub(crate) rereading: Option<Rereading>,
    pub(crate) totals: GroupTotals,
    pub(crate) redriving: Redriving,
    pub(crate) deleted: bool,
    /// Counts times when leases ended by themselves.
    pub(crate) voided: u64,
    /// When the timers were asked to look.
    noted: Timestamp,
}

/// A member as the edge knows it.
pub(crate) struct MemberState {
    pub(crate) name: String,
    pub(crate) notices: VecDeque<Notice>,
    /// Left when it had as many as it may have.
    pub(crate) full: Option<Waker>,
    /// Leased and not handed out yet.
    pub(crate) unread: Unread,
}

/// What a member receives beside messages.
pub(crate) enum Notice {
    Gap(GapNotice),
    Active,
    Standby,
}

/// Where the group reads.
pub(crate) struct Source {
    pub(crate) follower: Follower,
    shared: Arc<Shared>,
    place: Position,
}

/// Wakes a member when the source has more.
struct SourceWaker(Weak<LiveGroup>);

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        if let Some(group) = self.0.upgrade() {
            group.wake_one();
        }
    }
}

impl LiveGroup {
    pub(crate) fn new(id: TopicId, name: TopicName, machine: Group, as_of: Position) -> Self {
        let state = GroupState {
            machine,
            as_of,
            members: BTreeMap::new(),
            next_member: 1,
            source: None,
            ahead: ReadAhead::default(),
            rereading: None,
            totals: GroupTotals::default(),
            redriving: Redriving::default(),
            deleted: false,
            voided: 0,
            noted: Timestamp::NEVER,
        };
        Self { id, name, state: Mutex::new(state), waiting: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupState> {
        lock(&self.state)
    }

    /// Locks a group for a caller that needs an error when it was deleted meanwhile.
    pub(crate) fn existing(&self) -> Result<MutexGuard<'_, GroupState>, GroupError> {
        let state = self.lock();
        if state.deleted { Err(GroupError::Unknown(self.name.clone())) } else { Ok(state) }
    }

    /// Wakes the member that has waited longest.
    pub(crate) fn wake_one(&self) {
        let woken = lock(&self.waiting).pop_front();
        if let Some((_, waker)) = woken {
            waker.wake();
        }
    }

    pub(crate) fn wake_all(&self) {
        let woken = std::mem::take(&mut *lock(&self.waiting));
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Wakes all members, so that they see that the broker is closed.
    pub(crate) fn close(&self) {
        for member in self.lock().members.values_mut() {
            if let Some(waker) = member.full.take() {
                waker.wake();
            }
        }
        self.wake_all();
    }

    /// Leaves a waker; a member has one place in the line.
    pub(crate) fn wait(&self, member: MemberId, waker: &Waker) {
        let mut waiting = lock(&self.waiting);
        match waiting.iter_mut().find(|(id, _)| *id == member) {
            Some((_, place)) => place.clone_from(waker),
            None => waiting.push_back((member, waker.clone())),
        }
    }

    /// Gives up a member's place in the queue. Returns whether it had one.
    pub(crate) fn stop_waiting(&self, member: MemberId) -> bool {
        let mut waiting = lock(&self.waiting);
        let before = waiting.len();
        waiting.retain(|(id, _)| *id != member);
        waiting.len() < before
    }
}

/// What a step came to.
#[derive(Default)]
pub(crate) struct Stepped {
    pub(crate) taken: u64,
    pub(crate) refused: u64,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) position: Option<Position>,
}

impl Inner {
    /// Lets the machine take a step whose changes are written down: at most `bytes` of them.
    pub(crate) fn group_step(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        step: (Input<'_>, usize),
    ) -> Result<Stepped, PubSubError> {
        let durability = state.machine.settings().durability;
        self.group_step_as(group, state, step, durability)
    }

    /// As [`Inner::group_step`]; the ticket resolves when its changes are this durable.
    pub(crate) fn group_step_as(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        (input, bytes): (Input<'_>, usize),
        durability: Durability,
    ) -> Result<Stepped, PubSubError> {
        let mut append =
            self.journal.begin_note(ENTRY_HEADER_BYTES + bytes).map_err(begin_error)?;
        let mut stepped = self.group_put(group, state, input, &mut append);
        if stepped.position.is_some() {
            stepped.ticket = Some(append.finish(durability, durability));
        }
        self.note_deadline(group, state);
        Ok(stepped)
    }

    /// Lets the machine take a step and puts its changes into an append. This is the only place
    /// that appends a group's changes after its creation, so here, under the group's lock, is
    /// where a deleted group stays silent: a change behind its deletion would belong to nothing.
    pub(crate) fn group_put(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        input: Input<'_>,
        append: &mut Append<'_>,
    ) -> Stepped {
        if state.deleted {
            return Stepped::default();
        }
        let wanted_more = state.machine.wants_more();
        let now = self.clock.now();
        let effects = state.step(now, input);
        let mut stepped = Stepped::default();
        let mut writer = OpWriter::default();
        for effect in effects {
            match effect {
                Effect::Record(op) => writer.put(&op),
                other => self.group_effect(group, state, other, &mut stepped),
            }
        }
        if !writer.bytes().is_empty() {
            let time = append.time(now);
            let header =
                EntryHeader { topic: group.id, time, ..EntryHeader::new(EntryKind::Group) };
            state.as_of = append.entry(header, writer.bytes());
            stepped.position = Some(state.as_of);
        }
        let machine = &state.machine;
        if machine.counts().ready > 0 || (!wanted_more && machine.wants_more()) {
            group.wake_one();
        }
        stepped
    }

    /// What a step means beside what is written down.
    fn group_effect(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        effect: Effect,
        stepped: &mut Stepped,
    ) {
        let name = || group.name.as_str().into();
        match effect {
            Effect::Counted { taken, refused } => {
                (stepped.taken, stepped.refused) = (taken, refused);
            }
            Effect::Expired { member, count } => {
                state.void();
                state.totals.expired += count;
                let member = state.members.get(&member).map_or("", |member| &member.name);
                let fields =
                    [("group", name()), ("member", member.into()), ("count", count.into())];
                self.emit("group.expired", &fields);
            }
            Effect::Active { member } => state.tell(member, Notice::Active),
            Effect::Standby { member } => state.tell(member, Notice::Standby),
            Effect::Died { .. } => self.note_now(group),
            Effect::Dropped { count } => {
                state.totals.dropped += count;
                self.emit("group.dropped", &[("group", name()), ("count", count.into())]);
            }
            Effect::Passed(stop) => self.tell_gap(group, state, &stop),
            Effect::Deliver(_) | Effect::Record(_) => {}
        }
    }

    /// Notifies members and subscribers of events of a gap.
    fn tell_gap(&self, group: &LiveGroup, state: &mut GroupState, stop: &Stop) {
        let notice = notice(stop);
        let members: Vec<MemberId> = state.members.keys().copied().collect();
        for member in members {
            state.tell(member, Notice::Gap(notice.clone()));
        }
        group.wake_all();
        let fields = [
            ("group", group.name.as_str().into()),
            ("topic", stop.topic.as_ref().map(TopicName::as_str).into()),
            ("from", stop.from.map(|seq| seq.0).into()),
            ("to", stop.to.map(|seq| seq.0).into()),
            ("reason", stop.reason.name().into()),
            ("stopped", state.machine.stopped().is_some().into()),
        ];
        self.emit("group.gap", &fields);
    }

    /// Asks the timers to look at a group in time.
    pub(crate) fn note_deadline(&self, group: &LiveGroup, state: &mut GroupState) {
        let Some(due) = state.machine.deadline() else { return };
        if due < state.noted {
            state.noted = due;
            self.groups.note(due, group.id);
            if due < self.clock.now().after(self.limits.keep_interval) {
                self.timers.wake();
            }
        }
    }

    /// Looks at the groups that asked for it: lets time go on, buries, and carries on redrives.
    pub(crate) fn keep_groups(&self, now: Timestamp) {
        for group in self.groups.take_due(now) {
            let mut state = group.lock();
            state.noted = Timestamp::NEVER;
            self.tick_group(&group, &mut state, now);
            self.note_deadline(&group, &mut state);
            drop(state);
            self.bury_all(&group, now);
            self.redrive_due(&group, now);
        }
    }

    /// Asks the timers to look at a group in their next turn, and for that turn.
    pub(crate) fn note_now(&self, group: &LiveGroup) {
        self.groups.note(self.clock.now(), group.id);
        self.timers.wake();
    }

    /// Ends leases that expired, and makes ready what is due.
    pub(crate) fn tick_group(&self, group: &LiveGroup, state: &mut GroupState, now: Timestamp) {
        while !state.deleted && state.machine.deadline().is_some_and(|due| due <= now) {
            let bytes = state.machine.tick_bytes_max();
            if let Err(error) = self.group_step(group, state, (Input::Tick, bytes)) {
                tracing::warn!(group = group.name.as_str(), %error, "leases must wait");
                // Looked at again after a while.
                self.groups.note(now.after(self.limits.keep_interval), group.id);
                return;
            }
        }
    }

    /// Reads more of the source. Ready means that something changed; if it is pending a
    /// member will be woken.
    pub(crate) fn read_source(
        self: &Arc<Self>,
        group: &Arc<LiveGroup>,
        state: &mut GroupState,
    ) -> Poll<Result<(), FollowError>> {
        let waker = Waker::from(Arc::new(SourceWaker(Arc::downgrade(group))));
        let context = &mut Context::from_waker(&waker);
        let Some(source) = &mut state.source else { return Poll::Pending };
        let polled = match &mut source.follower {
            Follower::Topic(follower) => follower.poll(self, &source.shared, context),
            Follower::Pattern(follower) => follower.poll(self, &source.shared, context),
            Follower::Named(follower) => follower.poll(self, &source.shared, context),
        };
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(delivery)) => {
                self.take_delivery(group, state, delivery)?;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(FollowError::Deleted(_))) => {
                // Created again it is another topic, which is found by its name.
                self.leave_source(state);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    /// Opens the source of a group that has none, or jumps in it over what is known to be
    /// done. This may read, which takes a while: so the group must not be locked meanwhile.
    pub(crate) fn open_source(&self, group: &LiveGroup) -> Result<(), FollowError> {
        let (pattern, place) = {
            let state = group.lock();
            (state.machine.settings().source.clone(), state.machine.frontier())
        };
        // What is done may reach into positions that were skipped: up to the next message that is
        // not. No cursor stands there, so reading begins before them.
        let jumps = self.journal.jumps();
        let mut at = place;
        while let Some(jump) = jumps.iter().find(|jump| jump.last < at && at < jump.next) {
            at = jump.last;
        }
        let mut source = Some(Source { place, ..self.source_at(&pattern, at)? });
        let mut state = group.lock();
        if state.needs_source() && state.machine.frontier() == place && !state.deleted {
            std::mem::swap(&mut state.source, &mut source);
        }
        drop(state);
        // The one before, or this one if another thread was faster.
        if let Some(source) = source {
            self.let_go(&source);
        }
        Ok(())
    }

    fn source_at(&self, pattern: &Pattern, place: Position) -> Result<Source, FollowError> {
        let id = self.next_subscriber.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let shared = Arc::new(Shared::new(id, pattern.clone()));
        let from = From::Token(Token { epoch: self.journal.epoch(), position: place });
        let topic = pattern.as_name().and_then(|name| self.topics.find(&name));
        let topic = topic.filter(|cell| cell.lock().is_durable());
        let follower = match topic {
            Some(cell) => self.follow_topic(cell, from).map(|each| Follower::Topic(Box::new(each))),
            None => {
                self.follow_pattern(&shared, from).map(|each| Follower::Pattern(Box::new(each)))
            }
        };
        let follower = follower.map_err(|error| match error {
            crate::error::SubscribeError::Read(error) => FollowError::Read(error),
            _ => FollowError::Closed,
        })?;
        Ok(Source { follower, shared, place })
    }

    /// Lets go of the place in the source.
    pub(crate) fn leave_source(&self, state: &mut GroupState) {
        if let Some(source) = state.source.take() {
            self.let_go(&source);
        }
    }

    fn let_go(&self, source: &Source) {
        match &source.follower {
            Follower::Topic(follower) => follower.leave(&source.shared),
            Follower::Pattern(follower) => follower.leave(self, &source.shared),
            Follower::Named(follower) => follower.leave(self, &source.shared),
        }
    }

    fn take_delivery(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        delivery: Delivery,
    ) -> Result<(), FollowError> {
        match delivery {
            Delivery::Recovering { .. } | Delivery::Live => {}
            // Volatile messages cannot be asked for again.
            Delivery::Messages(messages) if messages.is_mailed() => {}
            Delivery::Messages(messages) => {
                let keyed = state.machine.settings().mode == Mode::Keyed;
                // By the number in their headers: another topic may have their name by now.
                let header = messages.parts().iter().flat_map(headers).next();
                let topic = match header {
                    Some(header) => self.topics.by_id(header.topic),
                    None => self.topics.find(messages.topic()),
                };
                let Some(cell) = topic else { return Ok(()) };
                let hash = |key: &[u8]| self.journal.key_hash(key);
                let hash: Option<KeyHash<'_>> = if keyed { Some(&hash) } else { None };
                let through = messages.last_position();
                let bytes_max = self.limits.group_read_ahead_bytes_max;
                let runs = state.ahead.push(cell.id, &messages, hash, bytes_max);
                let input = Input::Offer { runs: &runs, through };
                state.step(self.clock.now(), input);
                if let Some(source) = &mut state.source {
                    source.place = source.place.max(through);
                }
                self.note_deadline(group, state);
                if state.machine.counts().dying > 0 {
                    self.note_now(group);
                }
            }
            Delivery::Gap(gap) => {
                // What compaction removed, has expired or was deleted is not wanted any more.
                if matches!(
                    gap.reason,
                    GapReason::Compaction
                        | GapReason::Expiry
                        | GapReason::Slow
                        | GapReason::Deleted
                ) {
                    return Ok(());
                }
                let cell = gap.topic.as_ref().and_then(|name| self.topics.find(name));
                let floor = cell.map(|cell| cell.lock().floor_position);
                let follower = state.source.as_ref().map(|source| &source.follower);
                let through = match follower {
                    // What is past its age is gone before the floor rises over it.
                    Some(Follower::Topic(topic)) => {
                        floor.map(|floor| floor.max(topic.handed_out()))
                    }
                    Some(Follower::Pattern(_) | Follower::Named(_)) | None => floor,
                };
                let told = through.or(gap.positions.map(|(_, to)| to)).unwrap_or_default();
                if through.is_some_and(|through| through <= state.machine.forgiven()) {
                    return Ok(());
                }
                let stop = Stop {
                    topic: gap.topic,
                    from: gap.from,
                    to: gap.to,
                    through: told.max(state.machine.frontier().next()),
                    reason: gap.reason,
                };
                self.group_gap(group, state, &stop).map_err(|error| {
                    tracing::warn!(group = group.name.as_str(), %error, "a gap must wait");
                    FollowError::Closed
                })?;
            }
        }
        Ok(())
    }

    /// Messages of the source are gone.
    pub(crate) fn group_gap(
        &self,
        group: &LiveGroup,
        state: &mut GroupState,
        stop: &Stop,
    ) -> Result<(), PubSubError> {
        let before = state.machine.stopped().is_some();
        self.metrics.gap(stop.reason);
        let bytes = state.machine.settings().source.as_str().len() + 512;
        self.group_step(group, state, (Input::Gap(stop.clone()), bytes))?;
        if !before && state.machine.stopped().is_some() {
            self.tell_gap(group, state, stop);
        }
        Ok(())
    }
}

impl GroupState {
    /// Lets the machine take a step.
    pub(crate) fn step(&mut self, now: Timestamp, input: Input<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.machine.step(now, input, &mut effects);
        after_group_step(&self.machine);
        effects
    }

    /// Whether the source must be opened before it is read.
    pub(crate) fn needs_source(&self) -> bool {
        let frontier = self.machine.frontier();
        let behind = |source: &Source| frontier.distance(source.place) > JUMP_POSITIONS_MIN;
        self.source.as_ref().is_none_or(behind)
    }

    /// Leases ended in another way than by an ack.
    pub(crate) fn void(&mut self) {
        self.voided += 1;
    }

    /// Whether a member was not handed all that these leases name since it was leased.
    pub(crate) fn has_unread(&self, member: MemberId, leases: &[Lease]) -> bool {
        let member = self.members.get(&member);
        member.is_some_and(|each| leases.iter().any(|lease| each.unread.overlaps(lease)))
    }

    /// Leaves a notice for a member and wakes it.
    pub(crate) fn tell(&mut self, member: MemberId, notice: Notice) {
        let Some(member) = self.members.get_mut(&member) else { return };
        if member.notices.len() == NOTICES_MAX {
            member.notices.pop_front();
        }
        member.notices.push_back(notice);
        if let Some(waker) = member.full.take() {
            waker.wake();
        }
    }

    /// The changes that lead to this state, as bytes.
    pub(crate) fn encode(&self, name: &TopicName) -> Vec<u8> {
        let mut writer = OpWriter::default();
        self.machine.state_ops(name, &mut |op: Op| writer.put(&op));
        writer.bytes().to_vec()
    }
}

/// A gap in the form that members receive.
pub(crate) fn notice(stop: &Stop) -> GapNotice {
    GapNotice {
        topic: stop.topic.clone(),
        from: stop.from,
        to: stop.to,
        positions: None,
        reason: stop.reason,
    }
}
