//! The journal: everything that must survive, in one order.
//!
//! [`Journal::begin`] gives a place in the gathering frame; what is put there is one atomic
//! append, and the [`Ticket`] tells when it is durable. Readers of one topic get its
//! entries through their [`Sink`]; readers of many follow the frames in the tail; both read
//! what is older through the recovery pool. What is slow and not waited for
//! (segments, checkpoints, collecting) is done by the caller of [`Journal::keep`].

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::entry::ENTRY_BYTES_MAX;
use gapless_core::openings::Openings;
use gapless_core::{
    Durability, EntryHeader, Epoch, Position, Records, Seq, Timestamp, Token, TopicId,
};

use crate::admission::{Admission, Use};
use crate::blobs::Blobs;
use crate::error::{BeginError, Failure, ReadError};
use crate::gather::{Gather, Mark, Sink, batch_header};
use crate::history::{self, PatternReader, Segments};
use crate::index::key_hash;
use crate::log::{AppendError, LogWriter, Lsn, Prepare};
use crate::manifest::{Jump, Manifest};
use crate::marks::{Marks, Turn, lock};
use crate::open::JUMP_POSITIONS;
use crate::options::JournalOptions;
use crate::pacing::Pacing;
use crate::pins::Pins;
use crate::pool::{Pending, Pool};
use crate::quiet::Quiet;
use crate::tail::Tail;
use crate::times::{Buckets, FlushTimes};
use crate::topic_reader::read_topic;

/// Positions that may be given beyond the last flushed one before appends must wait.
/// An append, of at most [`ENTRY_BYTES_MAX`], cannot take as many as are left of a jump.
const GIVEN_POSITIONS_MAX: u64 = JUMP_POSITIONS / 4 * 3;

/// What a caller that must not block may still write itself, in bytes: it goes to the page
/// cache in less time than a wake-up takes.
const WRITTEN_HERE_BYTES_MAX: usize = 64 * 1024;

/// Reads a clock that never goes back, for measuring. Handed in, as all clocks are.
pub type Monotonic = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The handle. Dropping it without [`Journal::close`] is like a crash of the process.
pub struct Journal {
    pub(crate) inner: Arc<Inner>,
    pub(crate) flusher: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct Inner {
    pub(crate) options: JournalOptions,
    pub(crate) epoch: Epoch,
    pub(crate) openings: Openings,
    pub(crate) marks: Arc<Marks>,
    pub(crate) gather: Mutex<Gather>,
    pub(crate) writer: Mutex<Box<dyn LogWriter>>,
    pub(crate) append_bytes_max: usize,
    /// Whether an append may run in a thread that serves others.
    pub(crate) is_near: bool,
    pub(crate) tail: Mutex<Tail>,
    /// Readers of many topics that wait for the next frame. Locked inside `tail` only.
    pub(crate) readers: Mutex<BTreeMap<u64, Waker>>,
    pub(crate) segments: RwLock<Segments>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) pool: Pool,
    pub(crate) admission: Admission,
    pub(crate) pacing: Pacing,
    /// Set while the disk refuses what was let in, which a disk that copies on write may do.
    pub(crate) blocked: AtomicBool,
    /// How often it did so in a row.
    pub(crate) blocked_tries: AtomicU64,
    /// Whether a blob is there that only holds room, to be given up when there is no other.
    pub(crate) ballast: AtomicBool,
    pub(crate) stats: Stats,
    pub(crate) monotonic: Monotonic,
    /// The least time between two appends under load.
    pub(crate) linger: Duration,
    /// Frames after which a segment is due, however small they are.
    pub(crate) replayed_frames_max: usize,
    /// What the log said when it was last tried, if it did not answer.
    pub(crate) unavailable: Mutex<Option<Arc<str>>>,
    pub(crate) prepare: Option<Arc<dyn Prepare>>,
    /// Positions that were skipped at openings, which is when such are added. The manifest has them
    /// too, but is locked for as long as the keeper works.
    pub(crate) jumps: Vec<Jump>,
    /// The newest manifest; the one that holds its lock keeps the store.
    pub(crate) manifest: Mutex<Manifest>,
    /// Blobs to be deleted as soon as the manifest that does not name them has its copy.
    pub(crate) unneeded: Mutex<Vec<String>>,
    /// What snapshots hold. Locked inside `manifest` and `tail`.
    pub(crate) pins: Arc<Pins>,
    /// Bytes of the newest checkpoint: a large one is not written often.
    pub(crate) checkpoint_bytes: AtomicU64,
    /// When the last segment was written, and how long that took.
    pub(crate) sealed: Mutex<Sealed>,
    /// Bytes in memory that are in no segment yet.
    pub(crate) unsealed: AtomicU64,
    /// Bytes that the same takes in the log.
    pub(crate) unsealed_log: AtomicU64,
    /// The last position that is flushed.
    pub(crate) flushed_position: AtomicU64,
    /// Set when something died since the collector last looked.
    pub(crate) dead: AtomicBool,
    pub(crate) quiet: Mutex<Quiet>,
}

/// How the last segment was written.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    pub(crate) took: Duration,
    pub(crate) ended: Duration,
    pub(crate) hurried: bool,
}

impl Sealed {
    /// Whether another one now means that writing segments takes more than a quarter of the
    /// time. Then it is done in the way that costs least (see `docs/adr/0010`).
    pub(crate) fn leaves_little_time(&self, now: Duration) -> bool {
        now < self.ended + 3 * self.took
    }
}

/// What a journal has done since it was opened, and how large it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Frames written.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Flushes that publishers waited for.
    pub flushes: u64,
    /// What these took together.
    pub flush_time: Duration,
    /// The longest of them.
    pub flush_time_max: Duration,
    /// Bytes of entries in memory.
    pub tail_bytes: u64,
    /// Bytes that wait to be written.
    pub waiting_bytes: u64,
    /// How many segments there are.
    pub segments: u64,
    /// Bytes of their data.
    pub segment_bytes: u64,
    /// Requests for history that wait for a thread.
    pub recovery_waiting: u64,
    /// Whether appends are refused because the disk is full or has refused what was let in.
    pub full: bool,
    /// Whether it has refused what was let in, which waits in memory.
    pub blocked: bool,
    /// How often times have stepped back by much, to follow the clock.
    pub time_steps_back: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    frames: AtomicU64,
    bytes: AtomicU64,
    flushes: AtomicU64,
    flush_us: AtomicU64,
    flush_us_max: AtomicU64,
    flush_times: Buckets,
}

impl Stats {
    pub(crate) fn note_frame(&self, bytes: usize) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn note_flush(&self, took: Duration) {
        let us = took.as_micros() as u64;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.flush_us.fetch_add(us, Ordering::Relaxed);
        self.flush_us_max.fetch_max(us, Ordering::Relaxed);
        self.flush_times.note(took);
    }
}

/// A place in the gathering frame. All that is put here becomes durable together. Dropped
/// without [`Append::finish`], it leaves nothing.
pub struct Append<'a> {
    inner: &'a Arc<Inner>,
    gather: MutexGuard<'a, Gather>,
    start: Mark,
    bytes_max: usize,
    finished: bool,
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.gather.undo(&self.start);
        }
    }
}

impl Append<'_> {
    /// The time that entries of this append get: `now`, but not less than an earlier one unless
    /// that is far ahead.
    pub fn time(&mut self, now: Timestamp) -> Timestamp {
        self.gather.time(now)
    }

    /// Puts a batch that begins at `seq`; `crc` is the checksum of its records, which the
    /// caller computes before it takes any lock.
    pub fn batch(
        &mut self,
        (topic, seq): (TopicId, Seq),
        time: Timestamp,
        (records, crc): (&Records, u32),
        sink: &Arc<dyn Sink>,
    ) -> Position {
        let header = batch_header(topic, seq, time, records);
        self.gather.put(header, &records.bytes, crc, Some(sink))
    }

    /// Puts an entry that is not a batch.
    pub fn entry(&mut self, header: EntryHeader, body: &[u8]) -> Position {
        self.gather.put(header, body, crc32c::crc32c(body), None)
    }

    /// Ends the append. It becomes visible when `required` is reached, and its ticket is
    /// done when `wanted` is. If nothing was put, the ticket tells of all before it.
    ///
    /// # Panics
    /// When more was put than was announced to [`Journal::begin`]: the frame could be too large to
    /// be written, and with it what others put there. Nothing is appended then.
    pub fn finish(mut self, required: Durability, wanted: Durability) -> Ticket {
        let bytes = self.gather.bytes_since(&self.start);
        assert!(bytes <= self.bytes_max, "{bytes} bytes in an append of {}", self.bytes_max);
        self.finished = true;
        self.gather.require(required.max(wanted));
        let lsn = self.gather.last_used_lsn();
        let marks = Arc::clone(&self.inner.marks);
        let inner = Arc::downgrade(self.inner);
        Ticket { marks, inner, lsn, wanted, gathers: false, asked: false }
    }
}

/// The checksum of records, to be computed before any lock is taken.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Tells when an append is durable. Awaiting it asks the flusher's thread for a turn, but
/// writes itself what is little and needs no flush; [`Ticket::wait`] blocks and flushes itself
/// if no other thread does, which is faster for one publisher alone, and [`Ticket::lead`] does so
/// for those who may block a moment; dropping it lets the flusher's thread do it in its own time.
///
/// It does not keep the journal open, and still tells what was reached when that is gone.
pub struct Ticket {
    marks: Arc<Marks>,
    inner: Weak<Inner>,
    lsn: Lsn,
    wanted: Durability,
    /// It is written together with others, not when it is awaited.
    gathers: bool,
    /// It was awaited before, so that its waker may be known already.
    asked: bool,
}

impl Ticket {
    /// Blocks until the append is as durable as wanted, and tells what was reached.
    ///
    /// # Errors
    /// When the journal failed before: the append's fate is unknown.
    pub fn wait(self) -> Result<Durability, Failure> {
        // Gone means closed, and then the marks say so before a turn is asked for.
        let turn = || self.inner.upgrade().map_or(Turn::Done, |inner| self.turn(&inner));
        self.marks.wait(self.lsn, self.wanted, turn)
    }

    /// A turn that flushes for this ticket too if its append was written before.
    fn turn(&self, inner: &Inner) -> Turn {
        let turned = inner.turn_paced();
        if self.wanted == Durability::Flushed && self.marks.reached(self.lsn) == Durability::Written
        {
            inner.flush_log();
        }
        turned
    }

    /// Whether it waits for a flush that no thread leads, and that a thread with other work may
    /// lead.
    pub fn may_lead(&self) -> bool {
        let waits = self.marks.reached(self.lsn) < self.wanted;
        let may = || self.inner.upgrade().is_some_and(|inner| inner.is_near && !inner.is_paced());
        waits && self.wanted == Durability::Flushed && !self.marks.is_led() && may()
    }

    /// Writes and flushes in this thread, unless another thread does: that saves two
    /// wake-ups, and blocks for as long as it takes.
    pub fn lead(&self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.marks.try_turn(|| self.turn(&inner));
        }
    }

    /// Writes in this thread if that is only a small copy.
    fn write_little(&self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.write_little();
        }
    }

    /// Does not write when it is awaited, but lets it be written together with what others append
    /// meanwhile.
    pub fn gather(&mut self) {
        self.gathers = true;
    }
}

impl Future for Ticket {
    type Output = Result<Durability, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let again = std::mem::replace(&mut self.asked, true);
        let waits = || self.marks.reached(self.lsn) < self.wanted;
        if !again && !self.gathers && self.wanted == Durability::Written && waits() {
            self.write_little();
        }
        match self.marks.poll((self.lsn, self.wanted), context.waker(), again) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // One that wanted no more than memory is done at once, but must be written too.
        if self.marks.reached(self.lsn) == Durability::Memory {
            self.marks.ask_to_write();
        }
    }
}

/// Frames of the tail, for readers of many topics.
#[derive(Debug)]
pub enum TailRead {
    /// These hold the messages from the position that was asked for through `last`.
    Frames {
        /// The entries of each frame that has messages, and those only.
        frames: Vec<Bytes>,
        /// The last position that is accounted for.
        last: Position,
    },
    /// Nothing is there yet; the waker will be called.
    Wait,
    /// The position is no longer in memory: read history first.
    Behind,
}

impl Journal {
    /// The store's own id and that of this opening, as cursor tokens carry it.
    pub fn epoch(&self) -> Epoch {
        self.inner.openings.epoch()
    }

    /// Whether a token was created by this store, in the history that it still has.
    pub fn knows(&self, token: Token) -> bool {
        self.inner.openings.knows(token)
    }

    /// A place for an append of at most `bytes`, headers included.
    ///
    /// # Errors
    /// Says why nothing can be appended now, or ever.
    pub fn begin(&self, bytes: usize) -> Result<Append<'_>, BeginError> {
        self.begin_as(bytes, Use::Messages)
    }

    /// The same for entries that are not messages: they are never written once more as part of a
    /// segment, and so need less of the disk.
    ///
    /// # Errors
    /// Says why nothing can be appended now, or ever.
    pub fn begin_note(&self, bytes: usize) -> Result<Append<'_>, BeginError> {
        self.begin_as(bytes, Use::Notes)
    }

    /// The same for entries that free room, such as a floor: they may use what is kept for
    /// them when there is no other room. Nothing else may be put here.
    ///
    /// # Errors
    /// Says why nothing can be appended now, or ever.
    pub fn begin_freeing(&self, bytes: usize) -> Result<Append<'_>, BeginError> {
        self.begin_as(bytes, Use::Freeing)
    }

    fn begin_as(&self, bytes: usize, to: Use) -> Result<Append<'_>, BeginError> {
        let inner = &self.inner;
        if bytes > inner.append_bytes_max {
            return Err(BeginError::TooLarge { bytes, max: inner.append_bytes_max });
        }
        if let Some(failure) = inner.marks.failure() {
            return Err(failure.into());
        }
        if inner.blocked.load(Ordering::Acquire) {
            inner.marks.kick();
            let unavailable = lock(&inner.unavailable).clone();
            return Err(unavailable.map_or(BeginError::Full, |why| BeginError::Unavailable { why }));
        }
        let (mut gather, from_reserve) = inner.admit(bytes, to)?;
        let unsealed = inner.unsealed.load(Ordering::Acquire);
        let waiting = gather.waiting_bytes() as u64;
        let flushed = Position(inner.flushed_position.load(Ordering::Acquire));
        if waiting + bytes as u64 > inner.options.waiting_bytes_max.max(bytes) as u64
            || (unsealed > inner.options.unsealed_bytes_max && to != Use::Freeing)
            || (to == Use::Messages && inner.is_ahead_of_pace(waiting))
            || gather.next_position().distance(flushed) > GIVEN_POSITIONS_MAX
        {
            return Err(BeginError::Busy { waiting: waiting.max(unsealed) });
        }
        gather.set_freeing(from_reserve);
        gather.make_room(bytes);
        let start = gather.mark();
        Ok(Append { inner, gather, start, bytes_max: bytes, finished: false })
    }

    /// Leaves a waker to be called when an append that was refused as busy may go.
    pub fn wait_for_room(&self, waker: &Waker) {
        self.inner.marks.wait_for_room(waker);
        self.inner.marks.kick();
    }

    /// Writes and flushes what has gathered, in this thread: for those without a flusher.
    pub fn turn(&self) {
        self.inner.marks.take_turn(|| self.inner.turn());
    }

    /// Lets `writer` be woken, in place of the flusher's thread, when something is to be written that
    /// need not be flushed, or when several tickets are done. It is to call [`Journal::wake_settled`],
    /// and [`Journal::write_gathered`] if [`Journal::wants_writer`] says so; that may wait a
    /// moment so that more gathers.
    pub fn set_writer(&self, writer: &Waker) {
        self.inner.marks.set_writer(writer);
    }

    /// That waker is not there any more.
    pub fn forget_writer(&self, writer: &Waker) {
        self.inner.marks.forget_writer(writer);
    }

    /// Whether something is to be written by the writer.
    pub fn wants_writer(&self) -> bool {
        self.inner.marks.is_writer_asked()
    }

    /// Wakes those whose tickets are done, as far as that was left to the writer.
    pub fn wake_settled(&self) {
        self.inner.marks.wake_settled();
    }

    /// Writes what has gathered if that takes less time than waking a thread for it, else asks the
    /// flusher's thread.
    pub fn write_gathered(&self) {
        self.inner.marks.writer_begins();
        if !self.inner.write_little() {
            self.inner.marks.kick();
        }
        self.inner.marks.wake_settled();
    }

    /// Flushes everything that was appended so far.
    pub fn flush(&self) {
        self.inner.flush_written();
    }

    /// Whether the disk refused what was let in when it was last tried, so that waiting for it
    /// may take for ever.
    pub fn is_blocked(&self) -> bool {
        self.inner.blocked.load(Ordering::Acquire)
    }

    /// Asks the log whether this journal still owns it. If another does, the journal has failed
    /// from then on.
    ///
    /// # Errors
    /// When another owns it, or when the log does not answer.
    pub fn confirm(&self) -> Result<(), AppendError> {
        self.inner.confirm()
    }

    /// Why the journal takes no more appends, if so.
    pub fn failure(&self) -> Option<Failure> {
        self.inner.marks.failure()
    }

    /// The position that the next entry will get.
    pub fn next_position(&self) -> Position {
        lock(&self.inner.gather).next_position()
    }

    /// Everything up to this position is flushed; perhaps more is.
    pub fn flushed_position(&self) -> Position {
        Position(self.inner.flushed_position.load(Ordering::Acquire))
    }

    /// The last position that readers can see.
    pub fn last_settled(&self) -> Position {
        lock(&self.inner.tail).last()
    }

    /// Positions that were skipped at openings after an unclean end.
    pub fn jumps(&self) -> Vec<Jump> {
        self.inner.jumps.clone()
    }

    /// The hash under which this store finds a key.
    pub fn key_hash(&self, key: &[u8]) -> u128 {
        key_hash(self.inner.epoch.0, key)
    }

    /// Frames from `from` on that are in memory; leaves the waker, under the reader's
    /// number, if there are none yet.
    pub fn tail(
        &self,
        from: Position,
        bytes_max: usize,
        (reader, waker): (u64, &Waker),
    ) -> TailRead {
        let tail = lock(&self.inner.tail);
        match tail.read(from, bytes_max) {
            None => TailRead::Behind,
            Some(frames) => match frames.last().map(|frame| frame.last) {
                Some(last) => {
                    let frames = frames.into_iter().map(|frame| frame.bytes);
                    let frames = frames.filter(|bytes| !bytes.is_empty()).collect();
                    TailRead::Frames { frames, last }
                }
                None => {
                    lock(&self.inner.readers).insert(reader, waker.clone());
                    TailRead::Wait
                }
            },
        }
    }

    /// Drops the waker that [`Journal::tail`] was given by a reader that has left.
    pub fn forget_reader(&self, reader: u64) {
        let waker = lock(&self.inner.readers).remove(&reader);
        drop(waker);
    }

    /// Wakes readers that wait for the next frame, so that they look again.
    pub fn wake_readers(&self) {
        let mut wakers = Vec::new();
        self.inner.pattern_readers_to_wake(&mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether segments hold this position, or held it; memory may hold it too.
    pub fn is_sealed(&self, position: Position) -> bool {
        let sealed = lock(&self.inner.tail).sealed();
        // A new segment can be read before the tail knows of it.
        let newest = self.inner.segments().last().map(|segment| segment.meta().last);
        position <= newest.map_or(sealed, |last| last.max(sealed))
    }

    /// Tells when all that was appended so far is flushed.
    pub fn ticket(&self) -> Ticket {
        let mut gather = lock(&self.inner.gather);
        gather.require(Durability::Flushed);
        let (lsn, marks) = (gather.last_used_lsn(), Arc::clone(&self.inner.marks));
        let inner = Arc::downgrade(&self.inner);
        Ticket { marks, inner, lsn, wanted: Durability::Flushed, gathers: false, asked: false }
    }

    /// Runs a search of history on the recovery pool. It must not wait for another one.
    pub fn look_up<T: Send + 'static>(
        &self,
        search: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        self.inner.pool.run(self.inner.options.recovery_queue_max, search)
    }

    /// As [`Journal::read_topic`], in this thread: for those who may wait for the disk.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn read_topic_here(
        &self,
        topic: TopicId,
        range: (Seq, Seq),
        bytes_max: usize,
    ) -> Result<Vec<Bytes>, ReadError> {
        read_topic(&self.inner.segments(), topic, range, bytes_max)
    }

    /// Reads one step of a topic's history on the recovery pool: batches without a hole from
    /// `from` on, up to `to` or `bytes_max`. For more than one, see [`Journal::poll_topic`].
    pub fn read_topic(
        &self,
        topic: TopicId,
        range: (Seq, Seq),
        bytes_max: usize,
    ) -> Pending<Result<Vec<Bytes>, ReadError>> {
        let segments = self.inner.segments();
        let max = self.inner.options.recovery_queue_max;
        self.inner.pool.run(max, move || read_topic(&segments, topic, range, bytes_max))
    }

    /// Reads a step of many topics' history on the recovery pool, in the order of
    /// positions; gives the reader back.
    pub fn read_pattern(
        &self,
        mut reader: PatternReader,
        wanted: Arc<dyn Fn(TopicId) -> bool + Send + Sync>,
        bytes_max: usize,
    ) -> Pending<(PatternReader, Result<Vec<Bytes>, ReadError>)> {
        // In this order: what is sealed is in segments already.
        let sealed = lock(&self.inner.tail).sealed();
        let segments = self.inner.segments();
        self.inner.pool.run(self.inner.options.recovery_queue_max, move || {
            let read = reader.step((&segments, sealed), &*wanted, bytes_max);
            (reader, read)
        })
    }

    /// The newest message of a key among those no longer in memory: its seq, and whether
    /// it removes the key.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn latest_of_key(
        &self,
        topic: TopicId,
        hash: u128,
    ) -> Result<Option<(Seq, bool)>, ReadError> {
        history::latest_of_key(&self.inner.segments(), topic, hash)
    }

    /// The first batch in segments, at or after `from`, that was accepted at `time` or later, but
    /// not after `latest`: such a time was given by a clock that was wrong.
    /// A hole has the time of its last message.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn find_time(
        &self,
        topic: TopicId,
        from: Seq,
        (time, latest): (Timestamp, Timestamp),
    ) -> Result<Option<EntryHeader>, ReadError> {
        let segments = self.inner.segments();
        history::find_batch(&segments, topic, from, |run| {
            run.time >= time && (run.is_block || run.time <= latest)
        })
    }

    /// The first seq in segments, at or after `from`, whose batch ends after `position`;
    /// with it, where that batch begins.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn find_position(
        &self,
        topic: TopicId,
        from: Seq,
        position: Position,
    ) -> Result<Option<EntryHeader>, ReadError> {
        let segments = self.inner.segments();
        history::find_batch(&segments, topic, from, |run| run.last_position > position)
    }

    /// The seq in segments from which on at least `excess` bytes, counted from `from`, are
    /// left out; with it, how many bytes that are.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn find_bytes(
        &self,
        topic: TopicId,
        from: Seq,
        excess: u64,
    ) -> Result<Option<(Seq, u64)>, ReadError> {
        let segments = self.inner.segments();
        let mut passed = 0;
        let found = history::find_batch(&segments, topic, from, |run| {
            let here = if run.is_block { passed + run.bytes > excess } else { passed >= excess };
            passed += if here { 0 } else { run.bytes };
            here
        })?;
        Ok(found.map(|batch| (batch.seq.max(from), passed)))
    }

    /// How many bytes of a topic, from `from` on, are in segments.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn bytes_of(&self, topic: TopicId, from: Seq) -> Result<u64, ReadError> {
        history::bytes_of(&self.inner.segments(), topic, from)
    }

    /// Whether [`Journal::keep`] should be called soon: enough has gathered in memory, or the
    /// log has no room ahead.
    pub fn wants_keeping(&self) -> bool {
        let inner = &self.inner;
        inner.unsealed.load(Ordering::Relaxed) >= inner.options.seal_bytes
            || inner.is_stuck()
            || inner.prepare.as_ref().is_some_and(|prepare| prepare.is_due())
    }

    /// Says that something died, so that the collector looks again.
    pub fn note_dead(&self) {
        self.inner.dead.store(true, Ordering::Release);
        self.inner.admission.note_dead();
    }

    /// What it has done, and how large it is.
    pub fn stats(&self) -> JournalStats {
        let inner = &self.inner;
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let segments = inner.segments();
        let gather = lock(&inner.gather);
        let (waiting_bytes, time_steps_back) =
            (gather.waiting_bytes() as u64, gather.last_time().1);
        drop(gather);
        JournalStats {
            frames: load(&inner.stats.frames),
            bytes: load(&inner.stats.bytes),
            flushes: load(&inner.stats.flushes),
            flush_time: Duration::from_micros(load(&inner.stats.flush_us)),
            flush_time_max: Duration::from_micros(load(&inner.stats.flush_us_max)),
            tail_bytes: lock(&inner.tail).memory_bytes(),
            waiting_bytes,
            segments: segments.len() as u64,
            segment_bytes: segments.iter().map(|segment| segment.meta().bytes).sum(),
            recovery_waiting: inner.pool.waiting() as u64,
            full: inner.is_full(),
            blocked: inner.blocked.load(Ordering::Acquire),
            time_steps_back,
        }
    }

    /// How long its flushes took, since it was opened.
    pub fn flush_times(&self) -> FlushTimes {
        self.inner.stats.flush_times.read()
    }

    /// Stops without flushing anything, as a crash would: for tests of what then is left.
    pub fn abandon(self) {
        drop(self);
    }

    /// Ends its threads and waits for them, without a flush. Nothing is appended any more.
    pub fn stop(&self) {
        self.inner.marks.fail(Failure::Closed);
        self.inner.pool.close();
        // The flusher's thread itself may be the one that drops the last handle.
        if let Some(thread) = lock(&self.flusher).take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the flusher's thread panicked");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    /// Writes in this thread if that is only a small copy. Returns whether it did.
    fn write_little(&self) -> bool {
        let gather = lock(&self.gather);
        let little = gather.waiting_bytes() <= WRITTEN_HERE_BYTES_MAX;
        let quick = little && gather.required() < Durability::Flushed;
        drop(gather);
        let quick = quick && self.is_near;
        let may = quick && !self.blocked.load(Ordering::Acquire) && !self.is_paced();
        may && self.marks.try_turn(|| self.turn())
    }

    pub(crate) fn segments(&self) -> Segments {
        let segments = self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(&segments)
    }

    pub(crate) fn pattern_readers_to_wake(&self, wakers: &mut Vec<Waker>) {
        wakers.extend(std::mem::take(&mut *lock(&self.readers)).into_values());
    }
}

/// The most bytes one append may have, whatever a frame could hold.
pub(crate) fn append_bytes_max(frame_bytes_max: usize) -> usize {
    frame_bytes_max.min(ENTRY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_little_time_when_writing_takes_more_than_a_quarter_of_it() {
        let ms = Duration::from_millis;
        let sealed = Sealed { took: ms(100), ended: ms(1000), hurried: false };
        assert!(sealed.leaves_little_time(ms(1299)));
        assert!(!sealed.leaves_little_time(ms(1300)));
        assert!(!Sealed::default().leaves_little_time(ms(0)), "the first one has all the time");
    }
}
