//! The broker: the one way in, for programs that embed it and for every door.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use gapless_core::topic::Input;
use gapless_core::{
    Cursor, Durability, EntryHeader, EntryKind, Epoch, GapReason, Pattern, Position, PubSubError,
    Seq, Start, SystemDefaults, Timestamp, TopicName, TopicSettings,
};
use gapless_journal::file_log::FileLogOptions;
use gapless_journal::fs::{DiskFs, Fs};
use gapless_journal::layout::Folder;
use gapless_journal::{
    BeginError, Failure, Journal, JournalOptions, JournalStats, OpenError, Opened, Parts,
    ReadError, Ticket,
};

use crate::cell::{Cell, lock};
use crate::clock::{Clock, SystemClock, random_epoch};
use crate::delayed::delayed_name;
use crate::delivery::{Delivery, GapNotice};
use crate::error::{BrokerOpenError, CloseError, SubscribeError, TopicError};
use crate::follow_pattern::PatternFollower;
use crate::follow_topic::TopicFollower;
use crate::keeper::Keeper;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::recover::{Cells, Recovering, is_kept, put_cell, put_named};
use crate::router::Router;
use crate::subscription::{
    Follower, From, NOTHING_SEEN, Shared, SubscriberInfo, Subscription,
};
use crate::token::Token;
use crate::topics::Topics;

/// How a broker is opened.
#[derive(Clone)]
pub struct BrokerOptions {
    /// The data folder.
    pub folder: PathBuf,
    /// Every maximum of the broker.
    pub limits: Limits,
    /// Every size of the journal.
    pub journal: JournalOptions,
    /// Sizes of the log's files.
    pub log: FileLogOptions,
    /// What holds when neither publish nor topic says.
    pub defaults: SystemDefaults,
    /// The file system; another one in tests.
    pub fs: Arc<dyn Fs>,
    /// The clock; another one in tests.
    pub clock: Arc<dyn Clock>,
    /// The epoch of a store that is new; random if not given.
    pub epoch: Option<Epoch>,
    /// Whether threads flush and keep the store. Without them somebody calls
    /// [`Broker::turn`], as the simulator does.
    pub threads: bool,
}

impl BrokerOptions {
    /// The defaults, with this data folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            limits: Limits::default(),
            journal: JournalOptions::default(),
            log: FileLogOptions::default(),
            defaults: SystemDefaults::default(),
            fs: Arc::new(DiskFs),
            clock: Arc::new(SystemClock::default()),
            epoch: None,
            threads: true,
        }
    }
}

/// What the broker is doing (D5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerState {
    /// It is being opened.
    Starting,
    /// It is open; nothing was published yet.
    Listening,
    /// It is open and takes messages.
    Online,
    /// It takes no messages any more: the journal failed or was closed.
    Error,
}

/// A topic as seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// Its number, which no other topic ever has.
    pub id: u64,
    /// Its settings.
    pub settings: TopicSettings,
    /// The first seq that can be read.
    pub first: Seq,
    /// The next seq.
    pub next: Seq,
    /// Bytes kept, about.
    pub bytes: u64,
}

/// The handle. Clones share the broker; the last one to go closes it without a flush of
/// what was only written, so use [`Broker::close`].
#[derive(Clone)]
pub struct Broker {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) me: Weak<Inner>,
    pub(crate) journal: Journal,
    pub(crate) topics: Topics,
    pub(crate) router: Router,
    pub(crate) limits: Limits,
    pub(crate) defaults: SystemDefaults,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) keeper: Keeper,
    /// Counts floors that were raised, so that followers of many know when to look.
    pub(crate) trims: AtomicU64,
    cells: Mutex<Cells>,
    subscribers: Mutex<BTreeMap<u64, Arc<Shared>>>,
    next_subscriber: AtomicU64,
    recovering: AtomicIsize,
    /// Topics are made and deleted one at a time.
    admin: Mutex<()>,
    /// The journal is kept by one at a time, the keeper or whoever cannot wait for it.
    pub(crate) keeping: Mutex<()>,
    closed: AtomicBool,
    pub(crate) failure_told: AtomicBool,
    opened: Opened,
    /// How many publishes there were.
    pub(crate) published: AtomicU64,
}

impl Broker {
    /// Opens the store in the folder, or makes it.
    ///
    /// # Errors
    /// Says why not, and what to do.
    pub fn open(options: BrokerOptions) -> Result<Self, BrokerOpenError> {
        let folder = Folder {
            fs: Arc::clone(&options.fs),
            path: options.folder.clone(),
            log: options.log,
        };
        let clock = Arc::clone(&options.clock);
        let epoch = options.epoch.unwrap_or_else(random_epoch);
        let parts = folder.parts(epoch, Arc::new(move || clock.monotonic()), options.threads)?;
        Self::open_on(parts, options)
    }

    /// Opens the store on any log and blobs; the folder of the options is not used.
    ///
    /// # Errors
    /// Says why not, and what to do.
    pub fn open_on(parts: Parts, options: BrokerOptions) -> Result<Self, BrokerOpenError> {
        let mut recovering = Recovering::default();
        let (journal, opened) = Journal::open(parts, options.journal, &mut recovering)?;
        recovering.check().map_err(|why| {
            let position = journal.next_position();
            BrokerOpenError::Journal(OpenError::BadState { position, why })
        })?;
        let Recovering { topics, cells, .. } = recovering;
        let now = options.clock.now();
        for cell in topics.all() {
            let mut state = cell.lock();
            state.step(now, Input::Tick);
            state.flushed_floor = state.machine.first();
            drop(state);
            lock(&cell.trims).push(cell.id);
        }
        let inner = Arc::new_cyclic(|me| Inner {
            me: Weak::clone(me),
            journal,
            topics,
            router: Router::default(),
            limits: options.limits,
            defaults: options.defaults,
            clock: options.clock,
            metrics: Metrics::default(),
            keeper: Keeper::default(),
            trims: AtomicU64::new(0),
            cells: Mutex::new(cells),
            subscribers: Mutex::default(),
            next_subscriber: AtomicU64::new(1),
            recovering: AtomicIsize::new(0),
            admin: Mutex::new(()),
            keeping: Mutex::new(()),
            closed: AtomicBool::new(false),
            failure_told: AtomicBool::new(false),
            opened,
            published: AtomicU64::new(0),
        });
        inner.metrics.topics.set(inner.topics.len() as f64);
        if options.threads {
            inner.keeper.start(&inner).map_err(BrokerOpenError::Thread)?;
        }
        Ok(Self { inner })
    }

    /// What opening found: torn ends, indexes made anew, positions skipped.
    pub fn opened(&self) -> &Opened {
        &self.inner.opened
    }

    /// The time as the broker sees it.
    pub fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The store's own id.
    pub fn epoch(&self) -> Epoch {
        self.inner.journal.epoch()
    }

    /// What the broker is doing.
    pub fn state(&self) -> BrokerState {
        if self.inner.is_closed() || self.inner.journal.failure().is_some() {
            BrokerState::Error
        } else if self.inner.journal.stats().frames == 0 {
            BrokerState::Listening
        } else {
            BrokerState::Online
        }
    }

    /// Numbers about the journal.
    pub fn journal_stats(&self) -> JournalStats {
        self.inner.journal.stats()
    }

    /// Flushes everything that was accepted so far.
    pub fn flush(&self) {
        self.inner.journal.flush();
    }

    /// Does in this thread what threads do otherwise: writes, flushes, keeps the store,
    /// publishes what is due.
    pub fn turn(&self) {
        self.inner.journal.turn();
        self.inner.keep();
    }

    /// Writes what is in memory out as a segment, now.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn seal(&self) -> Result<(), CloseError> {
        let _one_at_a_time = lock(&self.inner.keeping);
        self.inner.journal.seal(&*self.inner, self.inner.clock.now())?;
        Ok(())
    }

    /// Frees the disk of everything dead, superseded messages included, now. The broker
    /// does so by itself; this is for those who cannot wait.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn compact(&self) -> Result<(), CloseError> {
        let _one_at_a_time = lock(&self.inner.keeping);
        self.inner.journal.compact(&*self.inner, self.inner.clock.now())?;
        Ok(())
    }

    /// Ends cleanly. Subscribers are told, everything accepted is flushed.
    ///
    /// # Errors
    /// When the end could not be written down; the next opening takes a little longer.
    pub fn close(self) -> Result<(), CloseError> {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.keeper.stop();
        for cell in self.inner.topics.all() {
            let wakers = cell.lock().wake_all();
            wakers.into_iter().for_each(std::task::Waker::wake);
        }
        self.inner.journal.wake_readers();
        self.inner.journal.close()?;
        Ok(())
    }

    /// Makes a topic. One that is there with equal settings is fine.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn create_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<TopicInfo, TopicError> {
        if name.is_system() {
            return Err(TopicError::System(name.clone()));
        }
        let cell = self.inner.create_topic(name, settings)?;
        Ok(self.inner.describe(&cell))
    }

    /// Makes many topics of the same settings with one flush; those that are there with
    /// equal settings are fine.
    ///
    /// # Errors
    /// Says at which name it ended; those before it are made.
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
        settings.validate()?;
        // Found under the lock: settings written after a deletion would bring it back.
        let one_at_a_time = lock(&self.inner.admin);
        let cell = self.inner.cell(name)?;
        let before = Arc::clone(&cell.lock().settings);
        if before.storage != settings.storage {
            return Err(TopicError::Storage(name.clone()));
        }
        if *before != settings {
            // What the settings so far let go was told to be gone, and stays so.
            let now = self.inner.clock.now();
            self.inner.enforce_age(&cell, now)?;
            self.inner.enforce_size(&cell, now)?;
            let ticket = self.inner.write_settings(&cell, settings)?;
            drop(one_at_a_time);
            confirmed(ticket)?;
            lock(&cell.trims).push(cell.id);
            self.inner.keeper.wake();
            self.inner.emit("topic.configured", &[("topic", name.as_str().into())]);
            self.inner.journal.note_dead();
        }
        Ok(self.inner.describe(&cell))
    }

    /// Removes a topic with all its messages; its followers are told.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        if name.is_system() {
            return Err(TopicError::System(name.clone()));
        }
        let inner = &self.inner;
        let one_at_a_time = lock(&inner.admin);
        let cell = inner.cell(name)?;
        let ticket = {
            let mut state = cell.lock();
            let ticket = if state.is_durable() {
                let mut append = inner.journal.begin(128).map_err(begin_error)?;
                let time = append.time(inner.clock.now());
                let header = EntryHeader {
                    topic: cell.id,
                    time,
                    ..EntryHeader::new(EntryKind::TopicDelete)
                };
                state.as_of = append.entry(header, &[]);
                Some(append.finish(Durability::Flushed, Durability::Flushed))
            } else {
                None
            };
            state.deleted = true;
            ticket
        };
        inner.topics.remove(&cell);
        let wakers = cell.lock().wake_all();
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop(one_at_a_time);
        confirmed(ticket)?;
        inner.metrics.topics.set(inner.topics.len() as f64);
        inner.emit("topic.deleted", &[("topic", name.as_str().into())]);
        inner.journal.note_dead();
        Ok(())
    }

    /// What a topic is and holds.
    ///
    /// # Errors
    /// When there is no such topic.
    pub fn describe_topic(&self, name: &TopicName) -> Result<TopicInfo, TopicError> {
        let cell = self.inner.cell(name)?;
        self.inner.enforce_age(&cell, self.inner.clock.now())?;
        Ok(self.inner.describe(&cell))
    }

    /// The topics that match, by name. The broker's own are shown only to patterns that
    /// name them.
    pub fn list_topics(&self, pattern: &Pattern) -> Vec<TopicInfo> {
        let cells = self.inner.topics.matching(pattern);
        let mut found: Vec<_> = cells.iter().map(|cell| self.inner.describe(cell)).collect();
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// The value of a cell.
    pub fn cell(&self, name: &[u8]) -> Option<Bytes> {
        lock(&self.inner.cells).get(name).and_then(|(value, _)| value.clone())
    }

    /// Everybody who follows something, and what they are doing.
    pub fn subscribers(&self) -> Vec<SubscriberInfo> {
        lock(&self.inner.subscribers).values().map(|shared| shared.info()).collect()
    }

    /// Follows a topic, or all topics and volatile subjects that match a pattern.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn subscribe(&self, pattern: &Pattern, from: From) -> Result<Subscription, SubscribeError> {
        let inner = &self.inner;
        if inner.is_closed() {
            return Err(SubscribeError::Closed);
        }
        let id = inner.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new(id, pattern.clone()));
        let max = inner.limits.subscriptions_max;
        if lock(&inner.subscribers).len() >= max {
            return Err(SubscribeError::TooMany { max });
        }
        let topic = pattern.as_name().and_then(|name| inner.topics.find(&name));
        let follower = match topic {
            Some(cell) => Follower::Topic(Box::new(inner.follow_topic(cell, from)?)),
            None => Follower::Pattern(Box::new(inner.follow_pattern(&shared, from)?)),
        };
        lock(&inner.subscribers).insert(id, Arc::clone(&shared));
        inner.metrics.subscriptions.increment(1.0);
        let fields = [("subscriber", id.into()), ("pattern", pattern.as_str().into())];
        inner.emit("subscription.added", &fields);
        Ok(Subscription::new(Arc::clone(inner), shared, follower))
    }
}

impl Inner {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn cell(&self, name: &TopicName) -> Result<Arc<Cell>, TopicError> {
        self.topics.find(name).ok_or_else(|| TopicError::Unknown(name.clone()))
    }

    pub(crate) fn unsubscribed(&self, id: u64) {
        let Some(shared) = lock(&self.subscribers).remove(&id) else { return };
        self.metrics.subscriptions.decrement(1.0);
        let fields = [("subscriber", id.into()), ("pattern", shared.pattern.as_str().into())];
        self.emit("subscription.removed", &fields);
    }

    pub(crate) fn count_recovering(&self, change: isize) {
        let now = self.recovering.fetch_add(change, Ordering::Relaxed) + change;
        self.metrics.recovering.set(now as f64);
    }

    /// How much history a subscriber reads in one go.
    pub(crate) fn history_step(&self) -> usize {
        let recovering = self.recovering.load(Ordering::Relaxed);
        self.limits.history_step(usize::try_from(recovering).unwrap_or(0))
    }

    /// Whether anybody follows this topic now.
    pub(crate) fn is_followed(&self, name: &TopicName) -> bool {
        lock(&self.subscribers).values().any(|shared| shared.pattern.matches(name))
    }

    pub(crate) fn describe(&self, cell: &Cell) -> TopicInfo {
        let (first, tail, in_memory, settings, next) = {
            let state = cell.lock();
            let view = state.view();
            (view.first, view.tail, state.tail_bytes, *state.settings, view.next)
        };
        let bytes = self.bytes_in_segments(cell, first, tail).unwrap_or(0) + in_memory;
        TopicInfo { name: cell.name.clone(), id: cell.id.0, settings, first, next, bytes }
    }

    pub(crate) fn create_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<Arc<Cell>, TopicError> {
        let (cell, ticket) = self.begin_topic(name, settings)?;
        confirmed(ticket)?;
        Ok(cell)
    }

    /// Makes a topic; the ticket tells when it is flushed.
    fn begin_topic(
        &self,
        name: &TopicName,
        settings: TopicSettings,
    ) -> Result<(Arc<Cell>, Option<Ticket>), TopicError> {
        settings.validate()?;
        if self.is_closed() {
            return Err(PubSubError::Stopped.into());
        }
        let _one_at_a_time = lock(&self.admin);
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
        let cell = Cell::new(id, name.clone(), shared, Arc::clone(&self.topics.trims));
        if *name == delayed_name() {
            cell.lock().delayed.get_or_insert_default();
        }
        let cell = Arc::new(cell);
        let ticket = self.write_settings(&cell, settings)?;
        self.topics.insert(Arc::clone(&cell));
        self.metrics.topics.set(self.topics.len() as f64);
        self.emit("topic.created", &[("topic", name.as_str().into())]);
        Ok((cell, ticket))
    }

    /// Writes settings down and puts them into force; the ticket tells when they are flushed.
    fn write_settings(
        &self,
        cell: &Arc<Cell>,
        settings: TopicSettings,
    ) -> Result<Option<Ticket>, TopicError> {
        let shared = self.topics.share(settings);
        let mut state = cell.lock();
        let mut ticket = None;
        let mut time = self.clock.now();
        if is_kept(&settings) {
            let mut body = Vec::new();
            put_named(&mut body, &cell.name, &settings);
            let mut append = self.journal.begin(64 + body.len()).map_err(begin_error)?;
            time = append.time(time);
            let header =
                EntryHeader { topic: cell.id, time, ..EntryHeader::new(EntryKind::TopicSet) };
            state.as_of = append.entry(header, &body);
            ticket = Some(append.finish(Durability::Flushed, Durability::Flushed));
        }
        state.settings = shared;
        state.step(time, Input::Window(settings.dedup));
        drop(state);
        self.topics.note_age(cell.id, settings.retention.age.is_some());
        Ok(ticket)
    }

    /// How many cells there would be after these changes.
    pub(crate) fn cells_after(&self, changes: &[(Bytes, Option<Bytes>)]) -> usize {
        let cells = lock(&self.cells);
        let is_there = |(name, _): &&(Bytes, Option<Bytes>)| cells.contains_key(name);
        let (set, removed): (Vec<_>, Vec<_>) =
            changes.iter().partition(|(_, value)| value.is_some());
        let (added, gone) =
            (set.iter().filter(|each| !is_there(each)), removed.iter().filter(|each| is_there(each)));
        (cells.len() + added.count()).saturating_sub(gone.count())
    }

    pub(crate) fn set_cell(&self, name: Bytes, value: Option<Bytes>, as_of: Position) {
        put_cell(&mut lock(&self.cells), name, value, as_of);
    }

    pub(crate) fn cells_snapshot(&self) -> Cells {
        lock(&self.cells).clone()
    }

    fn follow_topic(&self, cell: Arc<Cell>, from: From) -> Result<TopicFollower, SubscribeError> {
        self.enforce_age(&cell, self.clock.now())?;
        let mut notices = Vec::new();
        let mut seen = None;
        let start = match from {
            From::Beginning | From::LastPerKey => Start::Beginning,
            From::Seq(seq) => Start::Seq(seq),
            From::Now => Start::Now,
            From::Time(time) => self.seq_at_time(&cell, time)?.map_or(Start::Now, |(seq, _)| {
                Start::Seq(seq)
            }),
            From::Token(token) => {
                let (place, notice) = self.place_of(token, Some(&cell));
                notices.extend(notice);
                seen = place;
                match place {
                    None => Start::Beginning,
                    Some(seen) => {
                        let (start, notice) = self.start_after(&cell, seen)?;
                        notices.extend(notice);
                        start
                    }
                }
            }
        };
        let (cursor, last) = {
            let view = cell.lock().view();
            (Cursor::start(start, &view)?, view.next.prev())
        };
        let position = match seen {
            Some(seen) => seen,
            None => self.position_before(&cell, cursor.next())?,
        };
        let mut follower = TopicFollower::new(cell, cursor, position);
        notices.into_iter().for_each(|notice| follower.tell_first(notice));
        if from == From::LastPerKey {
            follower.newest_only(last);
        }
        Ok(follower)
    }

    /// Where a topic goes on after a position, and what must be told before.
    fn start_after(
        &self,
        cell: &Cell,
        position: Position,
    ) -> Result<(Start, Option<Delivery>), ReadError> {
        let view = cell.lock().view();
        let floor_position = cell.lock().floor_position;
        if floor_position > position {
            // Some that were not seen are gone; how many is not known any more, so the gap
            // is told from the oldest that could be meant.
            return Ok((Start::Seq(Seq(1).max(self.first_unseen(cell, position))), None));
        }
        let next = self.seq_after(cell, position)?.unwrap_or(view.next);
        let hole = self.batch_at(cell, next)?;
        let Some(hole) = hole.filter(|batch| batch.header().count == 0 && batch.header().span > 1)
        else {
            return Ok((Start::Seq(next), None));
        };
        // Some of a hole may have been seen while they were there; nobody knows which.
        let notice = GapNotice {
            topic: Some(cell.name.clone()),
            from: None,
            to: Some(hole.last()),
            positions: None,
            reason: GapReason::Compaction,
        };
        Ok((Start::Seq(hole.last().next()), Some(Delivery::Gap(notice))))
    }

    /// The first seq that a reader at `position` has not seen, as far as can be told when
    /// it is gone.
    fn first_unseen(&self, cell: &Cell, position: Position) -> Seq {
        // Positions rise at least as fast as seqs, so this many at most lie between.
        let state = cell.lock();
        let between = state.floor_position.0.saturating_sub(position.0);
        Seq(state.machine.first().0.saturating_sub(between))
    }

    fn follow_pattern(
        &self,
        shared: &Arc<Shared>,
        from: From,
    ) -> Result<PatternFollower, SubscribeError> {
        let mut notice = None;
        let next = match from {
            From::Beginning => NOTHING_SEEN.next(),
            From::Now => self.journal.last_settled().next(),
            From::Token(token) => {
                let place;
                (place, notice) = self.place_of(token, None);
                place.unwrap_or(NOTHING_SEEN).next()
            }
            From::Seq(_) | From::Time(_) | From::LastPerKey => {
                return Err(SubscribeError::NeedsTopic(shared.pattern.as_str().to_owned()));
            }
        };
        let mut follower = PatternFollower::new(self, shared, next);
        notice.into_iter().for_each(|notice| follower.tell_first(notice));
        Ok(follower)
    }

    /// Where somebody stands who comes with this token, if that is known, and what must be
    /// told: that it is of another store, or that what it saw was lost with the power before
    /// it was flushed. Such a place is not obeyed: messages to come would lie before it.
    fn place_of(
        &self,
        token: Token,
        topic: Option<&Arc<Cell>>,
    ) -> (Option<Position>, Option<Delivery>) {
        let notice = |positions| {
            Some(Delivery::Gap(GapNotice {
                topic: topic.map(|cell| cell.name.clone()),
                from: None,
                to: None,
                positions: Some(positions),
                reason: GapReason::Epoch,
            }))
        };
        let volatile = topic.is_some_and(|cell| !cell.lock().is_durable());
        let known = !volatile || token.position <= self.router.last_position();
        if token.epoch != self.journal.epoch() || !known {
            return (None, notice((NOTHING_SEEN, token.position)));
        }
        if volatile {
            return (Some(token.position), None);
        }
        let jump = self
            .journal
            .jumps()
            .into_iter()
            .find(|jump| token.position > jump.last && token.position < jump.next);
        if let Some(jump) = jump {
            return (Some(jump.last), notice((jump.last.next(), token.position)));
        }
        let last = self.journal.last_settled();
        if token.position > last {
            return (Some(last), notice((last.next(), token.position)));
        }
        (Some(token.position), None)
    }

    /// Until when the keeper may sleep.
    pub(crate) fn keeper_wait(&self, now: Timestamp) -> Duration {
        let due = self.next_deadline().map(|due| due.since(now));
        due.map_or(self.limits.keep_interval, |due| due.min(self.limits.keep_interval))
    }
}

/// Blocks until what was written down is flushed.
pub(crate) fn confirmed(ticket: Option<Ticket>) -> Result<(), TopicError> {
    match ticket.map(Ticket::wait) {
        Some(Err(_)) => Err(PubSubError::Poisoned.into()),
        Some(Ok(_)) | None => Ok(()),
    }
}

pub(crate) fn begin_error(error: BeginError) -> PubSubError {
    match error {
        BeginError::Full => PubSubError::StorageFull,
        BeginError::Failed(Failure::Closed) => PubSubError::Stopped,
        BeginError::Failed(_) | BeginError::Busy { .. } => PubSubError::Unavailable,
        other => PubSubError::Internal(other.to_string()),
    }
}
