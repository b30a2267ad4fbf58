//! Topics: created, configured, described, listed, deleted; each change is flushed before the call
//! returns.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use gapless_core::topic::Input;
use gapless_core::{
    Durability, EntryHeader, EntryKind, Pattern, Position, PubSubError, Seq, Storage, TopicInfo,
    TopicName, TopicSettings,
};
use gapless_journal::{Append, Ticket};

use crate::broker::{Broker, Inner, Owner};
use crate::error::{TopicError, begin_error, unconfirmed};
use crate::keep::recover::put_named;
use crate::publish::delayed::delayed_name;
use crate::topic::live_topic::{LiveTopic, LiveTopicState, lock};

/// Bytes of the entries that delete a topic, or a group with its topic of dead letters.
pub(crate) const DELETION_BYTES_MAX: usize = 256;

/// Where a topic begins and ends, and which one it is: what a reader must know, without the
/// look into segments that [`TopicInfo`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicPlace {
    /// Its number, which no other topic ever has.
    pub id: u64,
    /// Whether its messages are in the journal.
    pub durable: bool,
    /// The first seq that can be read.
    pub first: Seq,
    /// One past the last seq that can be read.
    pub next: Seq,
}

/// A topic that is created and not flushed yet: await it, or block on it.
#[must_use = "only when it is done does the topic survive power loss"]
pub struct CreatingTopic {
    inner: Arc<Owner>,
    cell: Arc<LiveTopic>,
    ticket: Option<Ticket>,
    is_new: bool,
}

impl CreatingTopic {
    /// The number of the topic, if it did not exist before.
    pub fn new_id(&self) -> Option<u64> {
        self.is_new.then(|| self.cell.id.0)
    }

    fn wait(mut self) -> Result<TopicInfo, TopicError> {
        confirmed(self.ticket.take())?;
        Ok(self.inner.describe(&self.cell))
    }
}

impl Future for CreatingTopic {
    type Output = Result<TopicInfo, TopicError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(ticket) = &mut self.ticket {
            let done = ready!(Pin::new(ticket).poll(context));
            self.ticket = None;
            done.map_err(|failure| unconfirmed(&failure))?;
        }
        Poll::Ready(Ok(self.inner.describe(&self.cell)))
    }
}

impl Broker {
    /// Creates a topic. Succeeds if it exists with equal settings.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn create_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<TopicInfo, TopicError> {
        self.creating_topic(name, settings)?.wait()
    }

    /// As [`Broker::create_topic`], for callers that must not block: awaiting it asks for the
    /// flush, which all callers that wait at that moment share.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn creating_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<CreatingTopic, TopicError> {
        if name.is_system() {
            return Err(TopicError::System(name.clone()));
        }
        let (cell, ticket) = self.inner.begin_topic(name, settings)?;
        let is_new = ticket.is_some();
        let ticket = match ticket {
            Some(ticket) => Some(ticket),
            None => self.inner.settling_changes()?,
        };
        Ok(CreatingTopic { inner: Arc::clone(&self.inner), cell, ticket, is_new })
    }

    /// Creates many topics of the same settings with one flush; existing ones with equal settings
    /// are left as they are.
    ///
    /// # Errors
    /// Says at which name it ended; those before it are created.
    pub fn create_topics(
        &self,
        names: &[TopicName],
        settings: TopicSettings,
    ) -> Result<(), TopicError> {
        if let Some(name) = names.iter().find(|name| name.is_system()) {
            return Err(TopicError::System(name.clone()));
        }
        let mut last = None;
        for name in names {
            loop {
                match self.inner.begin_topic(name, settings) {
                    Ok((_, ticket)) => last = ticket.or(last),
                    Err(TopicError::System_(PubSubError::Unavailable))
                        if self.inner.journal.failure().is_none() =>
                    {
                        // Too much waits to be written: make room, then go on.
                        self.inner.journal.flush();
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                break;
            }
        }
        self.inner.settle_changes()?;
        confirmed(last)
    }

    /// Gives a topic other settings.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn configure_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<TopicInfo, TopicError> {
        if name.is_system() {
            return Err(TopicError::System(name.clone()));
        }
        self.inner.configure(name, settings)?;
        self.describe_topic(name)
    }

    /// Removes a topic with all its messages; its followers are notified.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        if name.is_system() {
            return Err(TopicError::System(name.clone()));
        }
        let cell = self.inner.live_topic(name)?;
        self.inner.delete_cell(&cell)
    }

    /// What a topic is and holds.
    ///
    /// # Errors
    /// When there is no such topic.
    pub fn describe_topic(&self, name: &TopicName) -> Result<TopicInfo, TopicError> {
        let cell = self.inner.live_topic(name)?;
        let first = self.inner.first_kept(&cell, self.inner.clock.now())?;
        Ok(self.inner.describe_from(&cell, first))
    }

    /// Whether there is a topic of this name. Never blocks.
    pub fn has_topic(&self, name: &TopicName) -> bool {
        self.inner.topics.find(name).is_some()
    }

    /// Where a topic begins and ends. Never blocks: what is past its age is counted as kept until
    /// the keeper has raised the floor over it.
    ///
    /// # Errors
    /// When there is no such topic.
    pub fn topic_place(&self, name: &TopicName) -> Result<TopicPlace, TopicError> {
        let cell = self.inner.live_topic(name)?;
        let state = cell.lock();
        let view = state.view();
        let durable = state.is_durable();
        Ok(TopicPlace { id: cell.id.0, durable, first: view.first, next: view.next })
    }

    /// The topics that match, by name. The broker's own are shown only to patterns that
    /// name them.
    pub fn list_topics(&self, pattern: &Pattern) -> Vec<TopicInfo> {
        let cells = self.inner.topics.matching(pattern);
        let mut found: Vec<_> = cells.iter().map(|cell| self.inner.describe(cell)).collect();
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

impl Inner {
    /// Removes a topic with all its messages.
    pub(crate) fn delete_cell(&self, cell: &Arc<LiveTopic>) -> Result<(), TopicError> {
        let one_at_a_time = lock(&self.admin);
        let ticket = {
            let mut state = cell.lock();
            if state.deleted {
                return Err(TopicError::Unknown(cell.name.clone()));
            }
            let mut append = self.journal.begin_freeing(DELETION_BYTES_MAX).map_err(begin_error)?;
            self.put_deletion(cell, &mut state, &mut append);
            append.finish(Durability::Flushed, Durability::Flushed)
        };
        self.forget(cell);
        drop(one_at_a_time);
        confirmed(Some(ticket))?;
        self.deleted(cell);
        Ok(())
    }

    /// Puts the deletion of a topic into an append.
    pub(crate) fn put_deletion(
        &self,
        cell: &LiveTopic,
        state: &mut LiveTopicState,
        append: &mut Append<'_>,
    ) {
        let time = append.time(self.clock.now());
        let header =
            EntryHeader { topic: cell.id, time, ..EntryHeader::new(EntryKind::TopicDelete) };
        state.as_of = append.entry(header, &[]);
        self.topics.reused(|names| names.deleted(&cell.name, state.as_of));
        state.deleted = true;
    }

    /// A deleted topic is not found by its name any more. Its followers go on until the deletion
    /// is flushed: a crash before that brings the topic back, and then they must have passed
    /// over nothing.
    pub(crate) fn forget(&self, cell: &LiveTopic) {
        self.topics.leave(cell);
    }

    /// The deletion of a topic is flushed.
    pub(crate) fn deleted(&self, cell: &LiveTopic) {
        self.topics.left(cell.id);
        let wakers = {
            let mut state = cell.lock();
            state.gone = true;
            state.wake_all()
        };
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.metrics.topics.set(self.topics.users() as f64);
        self.emit("topic.deleted", &[("topic", cell.name.as_str().into())]);
        self.journal.note_dead();
    }

    pub(crate) fn describe(&self, cell: &LiveTopic) -> TopicInfo {
        self.describe_from(cell, Seq(1))
    }

    /// What a topic is, of which nothing before `first` is kept.
    fn describe_from(&self, cell: &LiveTopic, first: Seq) -> TopicInfo {
        let (first, tail, in_memory, settings, next) = {
            let state = cell.lock();
            let view = state.view();
            (view.first.max(first), view.tail, state.tail_bytes(), *state.settings, view.next)
        };
        let bytes = self.bytes_in_segments(cell, first, tail).unwrap_or(0) + in_memory;
        TopicInfo { name: cell.name.clone(), id: cell.id.0, settings, first, next, bytes }
    }

    pub(crate) fn create_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<Arc<LiveTopic>, TopicError> {
        let (cell, ticket) = self.begin_topic(name, settings)?;
        confirmed(ticket)?;
        Ok(cell)
    }

    /// Refuses settings about other nodes where there are none: only volatile topics are spread.
    fn check_in_force(
        &self,
        settings: &TopicSettings,
        before: &TopicSettings,
    ) -> Result<(), TopicError> {
        let spreads = settings.storage == Storage::Volatile && self.spread.get().is_some();
        if spreads { Ok(()) } else { Ok(settings.check_in_force(before)?) }
    }

    /// Creates a topic; the ticket resolves when it is flushed.
    pub(crate) fn begin_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<(Arc<LiveTopic>, Option<Ticket>), TopicError> {
        settings.validate()?;
        self.check_in_force(&settings, &TopicSettings::default())?;
        if self.is_closed() {
            return Err(PubSubError::Stopped.into());
        }
        let _one_at_a_time = lock(&self.admin);
        self.begin_topic_alone(name, settings)
    }

    /// As [`Inner::begin_topic`], for callers that hold the `admin` lock.
    pub(crate) fn begin_topic_alone(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<(Arc<LiveTopic>, Option<Ticket>), TopicError> {
        if let Some(cell) = self.topics.find(name) {
            let equal = *cell.lock().settings == settings;
            return if equal { Ok((cell, None)) } else { Err(TopicError::Exists(name.clone())) };
        }
        let max = self.limits.topics_max;
        if self.topics.len() >= max {
            return Err(TopicError::TooMany { max });
        }
        let id = self.topics.new_id();
        let shared = self.topics.share(settings);
        let cell = LiveTopic::new(id, name.clone(), shared, Arc::clone(&self.topics.trims));
        if *name == delayed_name() {
            cell.lock().hold_delayed();
        }
        if settings.storage == Storage::Volatile {
            cell.lock().count_in(&self.volatile_bytes);
        }
        let cell = Arc::new(cell);
        let registering = lock(&self.registering);
        let ticket = self.write_settings(&cell, settings)?;
        self.topics.insert(Arc::clone(&cell));
        drop(registering);
        self.metrics.topics.set(self.topics.users() as f64);
        self.emit("topic.created", &[("topic", name.as_str().into())]);
        Ok((cell, Some(ticket)))
    }

    /// Gives a topic other settings, and blocks until they are flushed.
    pub(crate) fn configure(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<(), TopicError> {
        settings.validate()?;
        // Found under the lock: settings written after a deletion would bring it back.
        let one_at_a_time = lock(&self.admin);
        let cell = self.live_topic(name)?;
        let before = Arc::clone(&cell.lock().settings);
        self.check_in_force(&settings, &before)?;
        if before.storage != settings.storage {
            return Err(TopicError::Storage(name.clone()));
        }
        if *before != settings {
            // What the settings so far removed was reported as gone, and stays so.
            let now = self.clock.now();
            self.enforce_age(&cell, now)?;
            self.enforce_size(&cell, now)?;
            let ticket = self.write_settings(&cell, settings)?;
            drop(one_at_a_time);
            confirmed(Some(ticket))?;
            lock(&cell.trims).push(cell.id);
            self.keeper.wake();
            self.emit("topic.configured", &[("topic", name.as_str().into())]);
            self.journal.note_dead();
        } else {
            drop(one_at_a_time);
            self.settle_changes()?;
        }
        Ok(())
    }

    /// Appends settings to the journal and applies them; the ticket resolves when they are flushed.
    fn write_settings(
        &self,
        cell: &Arc<LiveTopic>,
        settings: TopicSettings,
    ) -> Result<Ticket, TopicError> {
        let shared = self.topics.share(settings);
        let mut state = cell.lock();
        let mut body = Vec::new();
        put_named(&mut body, &cell.name, &settings);
        let bytes = 64 + body.len();
        let append = match state.settings.retention.is_shortened_by(&settings.retention) {
            true => self.journal.begin_freeing(bytes),
            false => self.journal.begin_note(bytes),
        };
        let mut append = append.map_err(begin_error)?;
        let time = append.time(self.clock.now());
        let header = EntryHeader { topic: cell.id, time, ..EntryHeader::new(EntryKind::TopicSet) };
        let is_new = state.as_of == Position(0);
        state.as_of = append.entry(header, &body);
        if is_new {
            // Before it is visible, so that no reader passes it without being notified.
            self.topics.reused(|names| names.created(&cell.name, state.as_of, cell.id));
        }
        let ticket = append.finish(Durability::Flushed, Durability::Flushed);
        self.note_change(state.as_of);
        state.settings = shared;
        state.step(time, Input::Window(settings.dedup));
        drop(state);
        self.topics.note_age(cell.id, settings.retention.age.is_some());
        Ok(ticket)
    }
}

/// Blocks until what was written down is flushed.
pub(crate) fn confirmed(ticket: Option<Ticket>) -> Result<(), TopicError> {
    match ticket.map(Ticket::wait) {
        Some(Err(failure)) => Err(unconfirmed(&failure).into()),
        Some(Ok(_)) | None => Ok(()),
    }
}
