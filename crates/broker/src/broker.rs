//! The broker's handle, for programs that embed it and for every listener.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use gapless_core::topic::Input;
use gapless_core::{
    Epoch, ExpectCell, Position, PubSubError, SystemDefaults, Timestamp, TopicName,
};
use gapless_journal::file_log::FileLogOptions;
use gapless_journal::fs::{DiskFs, Fs};
use gapless_journal::layout::Folder;
use gapless_journal::log::AppendError;
use gapless_journal::{
    Failure, Journal, JournalOptions, JournalStats, OPEN_FILES_MAX, Opened, Parts, Snapshot,
    SnapshotError, Ticket,
};

use crate::clock::{Clock, SystemClock, random_epoch, random_secret};
use crate::error::{BrokerOpenError, CloseError, TopicError, unconfirmed};
use crate::figures::counts::Gone;
use crate::figures::metrics::Metrics;
use crate::figures::totals::Flow;
use crate::group::groups::Groups;
use crate::keep::keeper;
use crate::keep::recover::{Cells, Recovering, put_cell};
use crate::keep::turns::Turns;
use crate::limits::Limits;
use crate::read::recovery_memory::RecoveryMemory;
use crate::read::subscription::{Shared, SubscriberInfo};
use crate::topic::live_topic::{LiveTopic, lock};
use crate::topic::topics::Topics;
use crate::trace::Traces;
use crate::volatile::named::Sessions;
use crate::volatile::report::Reports;
use crate::volatile::router::Router;
use crate::volatile::spread::Spread;

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
    /// Most files of segments that are open at the same time.
    pub open_files_max: usize,
    /// What holds when neither publish nor topic says.
    pub defaults: SystemDefaults,
    /// The file system; another one in tests.
    pub fs: Arc<dyn Fs>,
    /// The clock; another one in tests.
    pub clock: Arc<dyn Clock>,
    /// The epoch of a store that is new; random if not given.
    pub epoch: Option<Epoch>,
    /// Whether threads flush and keep the store. Without them the caller must call
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
            open_files_max: OPEN_FILES_MAX,
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

/// The handle. Clones share the broker, and so do subscriptions and members; the last one to
/// go closes it without a flush of what was only written, so use [`Broker::close`]. When that
/// drop returns the folder is free.
#[derive(Clone)]
pub struct Broker {
    pub(crate) inner: Arc<Owner>,
}

/// What all handles share. Threads of the broker have the [`Inner`] only, so the last handle
/// to go is known: it waits for them before it lets go of the store.
pub(crate) struct Owner(Arc<Inner>);

impl Deref for Owner {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.timers.stop();
        self.keeper.stop();
        self.journal.stop();
    }
}

pub(crate) struct Inner {
    pub(crate) journal: Journal,
    pub(crate) topics: Topics,
    pub(crate) groups: Groups,
    pub(crate) router: Router,
    /// The cluster it is in, if any.
    pub(crate) spread: OnceLock<Arc<dyn Spread>>,
    /// Where spans of traced messages go, if anywhere.
    pub(crate) traces: OnceLock<Traces>,
    /// The newest version of what the cluster knows to be followed here.
    pub(crate) interest: AtomicU64,
    pub(crate) sessions: Sessions,
    pub(crate) reports: Arc<Reports>,
    pub(crate) limits: Limits,
    pub(crate) defaults: SystemDefaults,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) timers: Turns,
    pub(crate) keeper: Turns,
    /// Counts floors that were raised, so that followers of many know when to look.
    pub(crate) trims: AtomicU64,
    pub(crate) cells: Mutex<Cells>,
    /// Bytes of the names and values of these.
    pub(crate) cell_bytes: AtomicU64,
    /// Bytes that all volatile topics keep.
    pub(crate) volatile_bytes: Arc<AtomicU64>,
    pub(crate) recovery_memory: Arc<RecoveryMemory>,
    pub(crate) subscribers: Mutex<BTreeMap<u64, Arc<Shared>>>,
    pub(crate) next_subscriber: AtomicU64,
    /// How many subscriptions are the server's own.
    pub(crate) listeners: AtomicUsize,
    pub(crate) gone: Gone,
    pub(crate) flow: Flow,
    recovering: AtomicIsize,
    /// Topics are created and deleted one at a time.
    pub(crate) admin: Mutex<()>,
    /// The position of the last change of topics' or groups' settings.
    pub(crate) changed: AtomicU64,
    /// Held from the entry that creates a topic or group until it is in its map: a checkpoint
    /// lists the maps under it, so that it misses none whose creation the log forgets.
    pub(crate) registering: Mutex<()>,
    /// The journal is kept by one thread at a time: the keeper, or a caller that cannot wait for
    /// it.
    pub(crate) keeping: Mutex<()>,
    closed: AtomicBool,
    pub(crate) failure_told: AtomicBool,
    /// How many backward steps of the time were reported.
    pub(crate) clock_steps_told: AtomicU64,
    opened: Opened,
    /// How many publishes there were.
    pub(crate) published: AtomicU64,
}

impl Broker {
    /// Opens the store in the folder, or creates it.
    ///
    /// # Errors
    /// Says why not, and what to do.
    pub fn open(options: BrokerOptions) -> Result<Self, BrokerOpenError> {
        let folder = Folder {
            fs: Arc::clone(&options.fs),
            path: options.folder.clone(),
            log: options.log,
            open_files_max: options.open_files_max,
        };
        let clock = Arc::clone(&options.clock);
        let new = (options.epoch.unwrap_or_else(random_epoch), random_secret());
        let parts = folder.parts(new, Arc::new(move || clock.monotonic()), options.threads)?;
        Self::open_on(parts, options)
    }

    /// Opens the store on any log and blobs; the folder of the options is not used.
    ///
    /// # Errors
    /// Says why not, and what to do.
    pub fn open_on(parts: Parts, options: BrokerOptions) -> Result<Self, BrokerOpenError> {
        let mut recovering = Recovering::default();
        let (journal, opened) = Journal::open(parts, options.journal, &mut recovering)?;
        let Recovering { topics, groups, cells, .. } = recovering;
        let now = options.clock.now();
        let volatile_bytes = Arc::default();
        for cell in topics.all() {
            let mut state = cell.lock();
            if !state.is_durable() {
                state.count_in(&volatile_bytes);
            }
            state.step(now, Input::Tick);
            state.flushed_floor = state.machine.first();
            drop(state);
            lock(&cell.trims).push(cell.id);
        }
        // Redrives that were under way go on.
        for group in groups.all() {
            if group.lock().machine.redrive().is_some() {
                groups.note(now, group.id);
            }
        }
        let inner = Arc::new(Inner {
            journal,
            topics,
            groups,
            router: Router::default(),
            spread: OnceLock::new(),
            traces: OnceLock::new(),
            interest: AtomicU64::new(0),
            sessions: Sessions::default(),
            reports: Arc::default(),
            limits: options.limits,
            defaults: options.defaults,
            clock: options.clock,
            metrics: Metrics::default(),
            timers: Turns::default(),
            keeper: Turns::default(),
            trims: AtomicU64::new(0),
            cell_bytes: AtomicU64::new(cells.iter().map(|(name, cell)| bytes_of(name, cell)).sum()),
            cells: Mutex::new(cells),
            volatile_bytes,
            recovery_memory: Arc::default(),
            subscribers: Mutex::default(),
            next_subscriber: AtomicU64::new(1),
            listeners: AtomicUsize::new(0),
            gone: Gone::default(),
            flow: Flow::default(),
            recovering: AtomicIsize::new(0),
            admin: Mutex::new(()),
            changed: AtomicU64::new(0),
            registering: Mutex::new(()),
            keeping: Mutex::new(()),
            closed: AtomicBool::new(false),
            failure_told: AtomicBool::new(false),
            clock_steps_told: AtomicU64::new(0),
            opened,
            published: AtomicU64::new(0),
        });
        inner.reports.set_home(&inner);
        inner.metrics.topics.set(inner.topics.users() as f64);
        // Its drop ends the threads, should one of them not start.
        let owner = Owner(inner);
        if options.threads {
            let timers = owner.timers.start("timers", &owner, Inner::run_timers);
            timers.and_then(|()| keeper::start(&owner)).map_err(BrokerOpenError::Thread)?;
        }
        Ok(Self { inner: Arc::new(owner) })
    }

    /// What opening found: torn ends, indexes rebuilt, positions skipped.
    pub fn opened(&self) -> &Opened {
        &self.inner.opened
    }

    /// The term of this opening of the store: higher than that of every opening before, so that
    /// what was given by two of them can be told apart.
    pub fn term(&self) -> u64 {
        self.inner.term()
    }

    /// Asks the log whether this broker still owns the store; waits for the answer. If another does,
    /// this one takes nothing from then on.
    ///
    /// # Errors
    /// When another owns it ([`PubSubError::Fenced`]), or when it does not answer.
    pub fn confirm_owner(&self) -> Result<(), PubSubError> {
        match self.inner.journal.confirm() {
            Ok(()) => Ok(()),
            Err(AppendError::Fenced { .. }) => Err(PubSubError::Fenced),
            Err(_) => Err(PubSubError::Unavailable),
        }
    }

    /// Whether another has taken the store over.
    pub fn is_fenced(&self) -> bool {
        matches!(self.inner.journal.failure(), Some(Failure::Fenced { .. }))
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
        self.inner.run_timers();
        self.inner.keep();
    }

    /// Writes what is in memory out as a segment, now.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn seal(&self) -> Result<(), CloseError> {
        let _one_at_a_time = lock(&self.inner.keeping);
        self.inner.journal.seal(&***self.inner, self.inner.clock.now())?;
        Ok(())
    }

    /// A consistent state of the store, whose files stay while it is held. Publishing goes on.
    ///
    /// # Errors
    /// Says why there is none; the store is as it was.
    pub fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let _one_at_a_time = lock(&self.inner.keeping);
        self.inner.journal.snapshot(&***self.inner, self.inner.clock.now())
    }

    /// Frees the disk of everything dead, superseded messages included, now. The broker does so by
    /// itself; this is for callers that cannot wait.
    ///
    /// # Errors
    /// Says what could not be done; nothing is lost by it.
    pub fn compact(&self) -> Result<(), CloseError> {
        let _one_at_a_time = lock(&self.inner.keeping);
        self.inner.journal.compact(&***self.inner, self.inner.clock.now())?;
        Ok(())
    }

    /// Ends cleanly. Subscribers are notified, everything accepted is flushed.
    ///
    /// # Errors
    /// When the end could not be written down; the next opening takes a little longer.
    pub fn close(self) -> Result<(), CloseError> {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.timers.stop();
        self.inner.keeper.stop();
        for cell in self.inner.topics.all() {
            let wakers = cell.lock().wake_all();
            wakers.into_iter().for_each(std::task::Waker::wake);
        }
        for group in self.inner.groups.all() {
            group.close();
        }
        self.inner.sessions.wake_all();
        self.inner.expire_reports(Timestamp::NEVER);
        self.inner.journal.wake_readers();
        self.inner.journal.close()?;
        Ok(())
    }

    /// The value of a cell.
    pub fn cell(&self, name: &[u8]) -> Option<Bytes> {
        lock(&self.inner.cells).get(name).and_then(|(value, _)| value.clone())
    }

    /// The cells whose names begin with `prefix`, in the order of their names.
    pub fn cells_under(&self, prefix: &[u8]) -> Vec<(Bytes, Bytes)> {
        let cells = lock(&self.inner.cells);
        let from = cells.range(Bytes::copy_from_slice(prefix)..);
        let under = from.take_while(|(name, _)| name.starts_with(prefix));
        under.filter_map(|(name, (value, _))| Some((name.clone(), value.clone()?))).collect()
    }

    /// How many subscribers read history at the moment.
    pub fn recovering(&self) -> usize {
        self.inner.recovering()
    }

    /// All subscribers, and their state.
    pub fn subscribers(&self) -> Vec<SubscriberInfo> {
        lock(&self.inner.subscribers).values().map(|shared| shared.info()).collect()
    }
}

impl Inner {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn term(&self) -> u64 {
        self.opened.term
    }

    pub(crate) fn live_topic(&self, name: &TopicName) -> Result<Arc<LiveTopic>, TopicError> {
        self.topics.find(name).ok_or_else(|| TopicError::Unknown(name.clone()))
    }

    /// Notes a change that other callers may see before it is flushed.
    pub(crate) fn note_change(&self, position: Position) {
        self.changed.fetch_max(position.0, Ordering::AcqRel);
    }

    /// For a caller that finds what it was asked to create: an answer implies that it is flushed,
    /// so if another caller is just creating it, that must be flushed too.
    pub(crate) fn settle_changes(&self) -> Result<(), PubSubError> {
        let Some(_unsettled) = self.settling_changes()? else { return Ok(()) };
        self.journal.flush();
        self.settling_changes().map(drop)
    }

    /// As [`Inner::settle_changes`], without blocking: the ticket, if there is one, tells when it
    /// is flushed.
    pub(crate) fn settling_changes(&self) -> Result<Option<Ticket>, PubSubError> {
        // After a failure nothing can be confirmed: what is there may be what failed.
        if let Some(failure) = self.journal.failure() {
            return Err(unconfirmed(&failure));
        }
        let changed = Position(self.changed.load(Ordering::Acquire));
        if self.journal.flushed_position() >= changed {
            return Ok(None);
        }
        if self.journal.is_blocked() {
            return Err(PubSubError::StorageFull);
        }
        Ok(Some(self.journal.ticket()))
    }

    pub(crate) fn unsubscribed(&self, id: u64) {
        let mut subscribers = lock(&self.subscribers);
        let Some(shared) = subscribers.remove(&id) else { return };
        self.gone.add(&shared);
        drop(subscribers);
        self.metrics.subscriptions.decrement(1.0);
        let fields = [("subscriber", id.into()), ("pattern", shared.pattern.as_str().into())];
        self.emit("subscription.removed", &fields);
    }

    pub(crate) fn count_recovering(&self, change: isize) {
        let now = self.recovering.fetch_add(change, Ordering::Relaxed) + change;
        self.metrics.recovering.set(now as f64);
    }

    fn recovering(&self) -> usize {
        usize::try_from(self.recovering.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Whether this topic has subscribers now.
    pub(crate) fn is_followed(&self, name: &TopicName) -> bool {
        lock(&self.subscribers).values().any(|shared| shared.pattern.matches(name))
            || self.is_grouped(name)
    }

    /// How many cells there would be after these changes, and how many bytes of them.
    pub(crate) fn cells_after(&self, changes: &[(Bytes, Option<Bytes>)]) -> (usize, u64) {
        let cells = lock(&self.cells);
        let (mut count, mut bytes) = (cells.len(), self.cell_bytes.load(Ordering::Relaxed));
        for (name, value) in changes {
            if let Some(old) = cells.get(name) {
                count = count.saturating_sub(1);
                bytes = bytes.saturating_sub(bytes_of(name, old));
            }
            if let Some(value) = value {
                count += 1;
                bytes += (name.len() + value.len()) as u64;
            }
        }
        (count, bytes)
    }

    /// Whether all these cells are as expected.
    pub(crate) fn cells_are(&self, expected: &[(Bytes, ExpectCell)]) -> bool {
        if expected.is_empty() {
            return true;
        }
        let cells = lock(&self.cells);
        let value = |name: &Bytes| cells.get(name).and_then(|(value, _)| value.as_deref());
        expected.iter().all(|(name, expect)| expect.holds(value(name)))
    }

    pub(crate) fn set_cell(&self, name: &Bytes, value: Option<&Bytes>, as_of: Position) {
        // Copied, since it may be a small part of a large frame.
        let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let (name, value) = (copy(name), value.map(copy));
        let mut cells = lock(&self.cells);
        let old = cells.get(&name).map_or(0, |old| bytes_of(&name, old));
        let new = value.as_ref().map_or(0, |value| (name.len() + value.len()) as u64);
        put_cell(&mut cells, name, value, as_of);
        // Under the lock, so that no two changes of one cell are counted from the same old value.
        self.cell_bytes.fetch_add(new, Ordering::Relaxed);
        self.cell_bytes.fetch_sub(old, Ordering::Relaxed);
    }

    pub(crate) fn cells_snapshot(&self) -> Cells {
        lock(&self.cells).clone()
    }
}

/// Bytes of a cell's name and value.
fn bytes_of(name: &Bytes, (value, _): &(Option<Bytes>, Position)) -> u64 {
    (name.len() + value.as_ref().map_or(0, Bytes::len)) as u64
}
