//! Groups: created, configured, paused, reset, deleted, joined; each change is flushed before the
//! call returns.

use std::collections::VecDeque;
use std::sync::Arc;

use gapless_core::group::Input;
use gapless_core::group::op::{Op, OpWriter};
use gapless_core::{
    Durability, EntryHeader, EntryKind, Group, GroupInfo, GroupSettings, GroupStart, MemberId,
    NAME_BYTES_MAX, Pattern, Position, PubSubError, TopicName,
};

use crate::broker::{Broker, Inner};
use crate::error::{GroupError, begin_error};
use crate::group::dead_letters::{PREFIX, dead_name};
use crate::group::member::{Member, MemberHandle};
use crate::group::unread::Unread;
use crate::group::{GroupState, LiveGroup, MemberState};
use crate::topic::admin::{DELETION_BYTES_MAX, confirmed};
use crate::topic::live_topic::lock;

/// How a member joins a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// What the member is called; for people, and need not be unique.
    pub name: String,
    /// Most messages in flight with it.
    pub window: u32,
}

/// Bytes of a change that is not about messages, at most: settings and a name.
const ADMIN_BYTES_MAX: usize = 4096;

impl Broker {
    /// Creates a group. Succeeds if it exists with equal settings.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn create_group(
        &self,
        name: &TopicName,
        settings: GroupSettings,
    ) -> Result<GroupInfo, GroupError> {
        let inner = &self.inner;
        settings.validate()?;
        if name.is_system() || name.as_str().len() + PREFIX.len() > NAME_BYTES_MAX {
            return Err(GroupError::Name(name.clone()));
        }
        if inner.is_closed() {
            return Err(PubSubError::Stopped.into());
        }
        let one_at_a_time = lock(&inner.admin);
        if let Some(group) = inner.groups.find(name) {
            if *group.lock().machine.settings() != settings {
                return Err(GroupError::Exists(name.clone()));
            }
            drop(one_at_a_time);
            inner.settle_changes()?;
            return Ok(inner.group_info(&group));
        }
        let max = inner.limits.groups_max;
        if inner.groups.len() >= max {
            return Err(GroupError::TooMany { max });
        }
        let (floor, forgiven) = inner.place_of_start(&settings, settings.start)?;
        let id = inner.topics.new_id();
        let op =
            Op::Created { name: name.clone(), settings: settings.clone().into(), floor, forgiven };
        let mut writer = OpWriter::default();
        writer.put(&op);
        let machine = Group::new(settings, floor, forgiven, id.0);
        let group = Arc::new(LiveGroup::new(id, name.clone(), machine, Position(0)));
        let registering = lock(&inner.registering);
        let ticket = {
            let mut state = group.lock();
            let mut append =
                inner.journal.begin_note(64 + writer.bytes().len()).map_err(begin_error)?;
            let time = append.time(inner.clock.now());
            let header = EntryHeader { topic: id, time, ..EntryHeader::new(EntryKind::Group) };
            state.as_of = append.entry(header, writer.bytes());
            inner.note_change(state.as_of);
            append.finish(Durability::Flushed, Durability::Flushed)
        };
        inner.groups.insert(Arc::clone(&group));
        drop((registering, one_at_a_time));
        confirmed(Some(ticket))?;
        inner.emit("group.created", &[("group", name.as_str().into())]);
        Ok(inner.group_info(&group))
    }

    /// Gives a group other settings. Source, mode and start stay what they are.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn configure_group(
        &self,
        name: &TopicName,
        settings: GroupSettings,
    ) -> Result<GroupInfo, GroupError> {
        settings.validate()?;
        let group = self.inner.group(name)?;
        let before = group.lock().machine.settings().clone();
        if before.source != settings.source || before.mode != settings.mode {
            return Err(GroupError::Fixed(name.clone()));
        }
        let settings = GroupSettings { start: before.start, ..settings };
        self.inner.change_group(&group, Input::Configure(settings))?;
        self.inner.emit("group.configured", &[("group", name.as_str().into())]);
        Ok(self.inner.group_info(&group))
    }

    /// Removes a group, with its dead letters; its members are notified.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn delete_group(&self, name: &TopicName) -> Result<(), GroupError> {
        let inner = &self.inner;
        let one_at_a_time = lock(&inner.admin);
        let group = inner.group(name)?;
        let letters = inner.topics.find(&dead_name(name));
        // Both in one append: dead letters that a crash left would go to the next group of
        // this name.
        let ticket = {
            let mut state = group.lock();
            let mut writer = OpWriter::default();
            writer.put(&Op::Deleted);
            let mut topic = letters.as_ref().map(|cell| (cell, cell.lock()));
            let mut append =
                inner.journal.begin_freeing(DELETION_BYTES_MAX).map_err(begin_error)?;
            let time = append.time(inner.clock.now());
            let header =
                EntryHeader { topic: group.id, time, ..EntryHeader::new(EntryKind::Group) };
            state.as_of = append.entry(header, writer.bytes());
            if let Some((cell, topic)) = &mut topic {
                inner.put_deletion(cell, topic, &mut append);
            }
            state.deleted = true;
            // Before anything else is locked: topics come before the frame.
            let ticket = append.finish(Durability::Flushed, Durability::Flushed);
            drop(topic);
            inner.leave_source(&mut state);
            state.ahead.clear();
            wake_members(&mut state);
            ticket
        };
        inner.groups.remove(&group);
        if let Some(letters) = &letters {
            inner.forget(letters);
        }
        group.wake_all();
        drop(one_at_a_time);
        confirmed(Some(ticket))?;
        if let Some(letters) = &letters {
            inner.deleted(letters);
        }
        inner.emit("group.deleted", &[("group", name.as_str().into())]);
        Ok(())
    }

    /// All groups, by name.
    pub fn list_groups(&self) -> Vec<GroupInfo> {
        let groups = self.inner.groups.all();
        let info = |group: &Arc<LiveGroup>| {
            self.inner.settle_letters(group);
            self.inner.group_info(group)
        };
        groups.iter().map(info).collect()
    }

    /// The names of all groups, in order.
    pub fn group_names(&self) -> Vec<TopicName> {
        self.inner.groups.all().iter().map(|group| group.name.clone()).collect()
    }

    /// What a group is and how it stands.
    ///
    /// # Errors
    /// When there is no such group.
    pub fn describe_group(&self, name: &TopicName) -> Result<GroupInfo, GroupError> {
        Ok(self.inner.group_info(&*self.inner.group_with_letters(name)?))
    }

    /// Lets a group hand out nothing more; acks still count.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn pause_group(&self, name: &TopicName) -> Result<GroupInfo, GroupError> {
        let group = self.inner.group(name)?;
        self.inner.change_group(&group, Input::Pause)?;
        self.inner.emit("group.paused", &[("group", name.as_str().into())]);
        Ok(self.inner.group_info(&group))
    }

    /// Lets a group go on, after a pause or over a gap that stopped it.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn resume_group(&self, name: &TopicName) -> Result<GroupInfo, GroupError> {
        let group = self.inner.group(name)?;
        self.inner.change_group(&group, Input::Resume)?;
        self.inner.emit("group.resumed", &[("group", name.as_str().into())]);
        Ok(self.inner.group_info(&group))
    }

    /// Lets a group start again somewhere else, forgetting what was done and what failed. With
    /// members it must be forced: what they hold is taken from them.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn reset_group(
        &self,
        name: &TopicName,
        to: GroupStart,
        force: bool,
    ) -> Result<GroupInfo, GroupError> {
        let inner = &self.inner;
        let group = inner.group(name)?;
        let settings = group.lock().machine.settings().clone();
        let (floor, forgiven) = inner.place_of_start(&settings, to)?;
        let ticket = {
            let mut state = group.existing()?;
            let members = state.members.len();
            if members > 0 && !force {
                return Err(GroupError::Active { group: name.clone(), members });
            }
            let input = (Input::Reset { floor, forgiven }, ADMIN_BYTES_MAX);
            let stepped = inner.group_step_as(&group, &mut state, input, Durability::Flushed)?;
            state.void();
            inner.leave_source(&mut state);
            state.ahead.clear();
            wake_members(&mut state);
            stepped.ticket
        };
        group.wake_all();
        confirmed(ticket)?;
        inner.emit("group.reset", &[("group", name.as_str().into()), ("floor", floor.0.into())]);
        Ok(inner.group_info(&group))
    }

    /// Becomes a member of a group.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn join_group(&self, name: &TopicName, join: &Join) -> Result<Member, GroupError> {
        let inner = &self.inner;
        if inner.is_closed() {
            return Err(PubSubError::Stopped.into());
        }
        let group = inner.group(name)?;
        let id = {
            let mut state = group.existing()?;
            let max = inner.limits.members_max;
            if state.members.len() >= max {
                return Err(GroupError::TooManyMembers { max });
            }
            let id = MemberId(state.next_member);
            state.next_member += 1;
            let notices = VecDeque::new();
            let unread = Unread::default();
            let member = MemberState { name: join.name.clone(), notices, full: None, unread };
            state.members.insert(id, member);
            let input = Input::Join { member: id, window: join.window };
            if let Err(error) = inner.group_step(&group, &mut state, (input, 0)) {
                state.members.remove(&id);
                return Err(error.into());
            }
            id
        };
        let fields = [("group", name.as_str().into()), ("member", join.name.as_str().into())];
        inner.emit("group.joined", &fields);
        let handle = MemberHandle { inner: Arc::clone(inner), group, id };
        Ok(Member::new(handle, join.name.clone()))
    }
}

/// Wakes members that wait for room of their own.
fn wake_members(state: &mut GroupState) {
    for member in state.members.values_mut() {
        if let Some(waker) = member.full.take() {
            waker.wake();
        }
    }
}

impl Inner {
    pub(crate) fn group(&self, name: &TopicName) -> Result<Arc<LiveGroup>, GroupError> {
        self.groups.find(name).ok_or_else(|| GroupError::Unknown(name.clone()))
    }

    /// Makes a change that is flushed before the call returns.
    pub(crate) fn change_group(
        &self,
        group: &Arc<LiveGroup>,
        input: Input<'_>,
    ) -> Result<(), GroupError> {
        let ticket = {
            let mut state = group.existing()?;
            // Flushed even if the group asks for less: an administrator relies on the answer.
            let wish = match &input {
                Input::Redrive(Some(redrive)) => redrive.which.bytes(),
                _ => 0,
            };
            let step = (input, ADMIN_BYTES_MAX + wish);
            let stepped = self.group_step_as(group, &mut state, step, Durability::Flushed)?;
            stepped.position.into_iter().for_each(|position| self.note_change(position));
            wake_members(&mut state);
            stepped.ticket
        };
        group.wake_all();
        if ticket.is_none() {
            self.settle_changes()?;
        }
        Ok(confirmed(ticket)?)
    }

    /// After which position a group begins, and up to where gaps are none of its business.
    fn place_of_start(
        &self,
        settings: &GroupSettings,
        start: GroupStart,
    ) -> Result<(Position, Position), GroupError> {
        // Everything accepted before is visible then, so that *now* is after it.
        self.journal.flush();
        let now = self.journal.last_settled();
        let source = &settings.source;
        let place = match start {
            GroupStart::Beginning => Position(0),
            GroupStart::Now => now,
            GroupStart::Position(position) => return Ok((position.min(now), position.min(now))),
            GroupStart::Seq(seq) => {
                let cell = source.as_name().and_then(|name| self.topics.find(&name));
                let Some(cell) = cell else {
                    return Err(GroupError::NeedsTopic(source.as_str().to_owned()));
                };
                return Ok((self.position_before(&cell, seq)?.min(now), Position(0)));
            }
            GroupStart::Time(time) => self.position_at_time(source, time)?.min(now),
        };
        // A group that starts at the oldest message kept expects that older ones are gone.
        let forgiven = if start == GroupStart::Now { now } else { self.gone_through(source)? };
        Ok((place, forgiven))
    }

    /// Up to where messages of a source are gone. Over several topics that is a bound: what one of
    /// them loses later below it does not count as a gap either.
    fn gone_through(&self, source: &Pattern) -> Result<Position, GroupError> {
        let now = self.clock.now();
        let mut through = Position(0);
        for cell in self.topics.matching(source) {
            // What is to go already is gone, whether or not the keeper has come to it.
            let first = self.first_to_stay(&cell, now)?;
            through = through.max(self.position_before(&cell, first)?);
        }
        Ok(through)
    }

    /// Whether a group reads this topic.
    pub(crate) fn is_grouped(&self, name: &TopicName) -> bool {
        let reads = |group: &Arc<LiveGroup>| group.lock().machine.settings().source.matches(name);
        self.groups.all().iter().any(reads)
    }
}
