//! Appends objects to the log, as long as it owns it.
//!
//! One create is under way at a time. When the store does not answer, the same object is sent again,
//! by this call and by the next ones, until its fate is known: the frames of a call that was told
//! [`AppendError::Unavailable`] must come again first.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gapless_journal::Lsn;
use gapless_journal::log::{AppendError, LogWriter, Prepare};
use object_store::PutPayload;
use object_store::path::Path;

use crate::clock::Moment;
use crate::log::{Found, ObjectLog};
use crate::object::{self, FRAMES_MAX, Head};
use crate::remote::Trouble;
use crate::rule::{Mark, Seen, Step, is_old, next_step};

/// The largest frame, in bytes: four of the largest messages.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of frames that share an object, unless one alone has more.
const OBJECT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Objects that one who takes over creates at the same time, if the owner is busy.
const AHEAD: u64 = 8;
/// Frames that a take over may have to read: a second or two, at 32 objects at a time.
const REPLAYED_FRAMES_MAX: usize = 2048;

/// What became of an object.
#[derive(Debug)]
pub(crate) enum Placed {
    /// It is in the log.
    Done,
    /// Another has its place, or a later one.
    Fenced,
    /// It may be there or not.
    Unavailable(io::Error),
}

/// Whose several neighbouring objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// From this one on, ours.
    Ours {
        /// The number of the first one.
        first: u64,
    },
    /// Another's.
    Theirs,
    /// Some of ours have one of another behind them.
    Mixed,
}

/// An object whose fate is not known.
#[derive(Debug)]
struct Pending {
    head: Head,
    frames: Vec<Bytes>,
}

/// Objects that can be deleted when it is time.
#[derive(Debug)]
struct Trim {
    since: Moment,
    numbers: Vec<u64>,
}

/// The one who appends.
#[derive(Debug)]
pub(crate) struct Writer {
    log: ObjectLog,
    term: u64,
    /// The number of the newest object.
    number: u64,
    next: Lsn,
    /// A moment at which this writer owned the log for certain.
    checked: Moment,
    fenced: bool,
    pending: Option<Pending>,
    /// The objects that are not trimmed, oldest first.
    found: VecDeque<Found>,
    trims: VecDeque<Trim>,
}

impl Writer {
    /// One that wants to take over the log whose newest object has this number.
    pub(crate) fn new(
        log: ObjectLog,
        (term, number, next): (u64, u64, Lsn),
        checked: Moment,
    ) -> Self {
        let (pending, found, trims) = (None, VecDeque::new(), VecDeque::new());
        Self { log, term, number, next, checked, fenced: false, pending, found, trims }
    }

    /// Creates an object without frames.
    pub(crate) fn take_place(&mut self, first: Lsn) -> Placed {
        let mark = Mark { term: self.term, nonce: self.log.remote.time.nonce() };
        let number = self.number + 1;
        let head = Head { mark, number, store: self.log.store, first, frames: 0 };
        let placed = self.place(&head, &object::encode(&head, &[]));
        if matches!(placed, Placed::Done) {
            self.number = number;
            if !self.found.is_empty() {
                self.found.push_back(Found { number, first });
            }
        }
        placed
    }

    /// Creates several objects without frames after this one, at the same time, and tells whose they
    /// are.
    pub(crate) fn take_ahead(&mut self, newest: u64) -> Result<Ahead, Trouble> {
        let remote = self.log.remote.clone();
        let heads: Vec<Head> = (newest + 1..=newest + AHEAD)
            .map(|number| {
                let mark = Mark { term: self.term, nonce: remote.time.nonce() };
                Head { mark, number, store: self.log.store, first: Lsn::NONE, frames: 0 }
            })
            .collect();
        let objects =
            heads.iter().map(|head| (self.log.path(head.number), object::encode(head, &[])));
        let created = remote.create_all(objects.collect())?;
        let mut ours = Vec::with_capacity(heads.len());
        for (head, created) in heads.iter().zip(created) {
            ours.push(match created {
                Ok(()) => true,
                Err(Trouble::Taken) => {
                    remote.retry(|| self.log.head(head.number))?.mark == head.mark
                }
                Err(Trouble::Unclear(_)) => {
                    matches!(self.place(head, &object::encode(head, &[])), Placed::Done)
                }
                Err(trouble) => return Err(trouble),
            });
        }
        self.number = newest + AHEAD;
        let theirs = ours.iter().take_while(|ours| !**ours).count();
        if theirs == ours.len() {
            return Ok(Ahead::Theirs);
        }
        let all_after = ours[theirs..].iter().all(|ours| *ours);
        let first = newest + 1 + theirs as u64;
        let newest = all_after && self.is_newest(self.number)?;
        Ok(if newest { Ahead::Ours { first } } else { Ahead::Mixed })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Begins as the owner of these objects.
    pub(crate) fn begin(&mut self, next: Lsn, found: VecDeque<Found>) {
        (self.next, self.found) = (next, found);
    }

    /// Deletes objects that nothing needs, when it is time.
    pub(crate) fn forget(&mut self, numbers: Vec<u64>) {
        if !numbers.is_empty() {
            self.trims.push_back(Trim { since: self.log.remote.time.now(), numbers });
        }
    }

    /// Creates an object, and finds out what became of it.
    pub(crate) fn place(&mut self, head: &Head, payload: &PutPayload) -> Placed {
        let remote = self.log.remote.clone();
        let path = self.log.path(head.number);
        let mut tries = remote.tries();
        let mut sent = remote.time.now();
        let mut created = false;
        let mut step = Step::Again;
        loop {
            let mut error = None;
            let seen = match step {
                Step::Done => {
                    // It was created after it was sent, so this was the owner then. One that was
                    // found there was created some time before.
                    if created {
                        self.checked = sent;
                    }
                    return Placed::Done;
                }
                Step::Fenced => return Placed::Fenced,
                Step::Confirm => match self.is_newest(head.number) {
                    Ok(true) => return Placed::Done,
                    Ok(false) => return Placed::Fenced,
                    Err(trouble) => {
                        error = Some(trouble.into_io());
                        Seen::Unclear
                    }
                },
                Step::Again => {
                    sent = remote.time.now();
                    match remote.create(&path, payload.clone()) {
                        Ok(()) => {
                            created = true;
                            Seen::Created
                        }
                        // Ours from a try before, or another's.
                        Err(Trouble::Taken) => Seen::Unclear,
                        Err(trouble) => {
                            error = Some(trouble.into_io());
                            Seen::Unclear
                        }
                    }
                }
                Step::Look => match self.log.head(head.number) {
                    Ok(found) => Seen::Taken(found.mark),
                    Err(Trouble::Missing) => Seen::Free,
                    Err(trouble) => {
                        error = Some(trouble.into_io());
                        Seen::Unclear
                    }
                },
            };
            if let Some(error) = error {
                tracing::debug!(%path, %error, "the store did not answer usefully");
                if !tries.again() {
                    return Placed::Unavailable(error);
                }
            }
            let ago = remote.time.since(self.checked);
            step = next_step(seen, head.mark, ago, remote.spans.trim_wait);
        }
    }

    /// Whether there is nothing newer in the log; if so, that is a check.
    fn is_newest(&mut self, number: u64) -> Result<bool, Trouble> {
        let began = self.log.remote.time.now();
        let newest = self.log.numbers_after(Some(number))?.is_empty();
        if newest {
            self.checked = began;
        }
        Ok(newest)
    }

    fn fence(&mut self) -> AppendError {
        self.fenced = true;
        AppendError::Fenced { next: self.next }
    }

    fn owned(&self) -> Result<(), AppendError> {
        if self.fenced { Err(AppendError::Fenced { next: self.next }) } else { Ok(()) }
    }

    /// The frames that go into the next object: those whose fate is not known, or as many of the
    /// given ones as share an object.
    fn take(&mut self, frames: &[Bytes]) -> Result<Pending, AppendError> {
        if let Some(pending) = self.pending.take() {
            if frames.starts_with(&pending.frames) {
                return Ok(pending);
            }
            self.pending = Some(pending);
            let why = "other frames came than those whose fate is not known";
            return Err(AppendError::Unknown(io::Error::other(why)));
        }
        let mut bytes = 0;
        let fits = |frame: &&Bytes| {
            bytes += frame.len();
            bytes <= OBJECT_BYTES_MAX
        };
        let count = frames.iter().take(FRAMES_MAX).take_while(fits).count().max(1);
        let frames = frames[..count].to_vec();
        let mark = Mark { term: self.term, nonce: self.log.remote.time.nonce() };
        let head = Head {
            mark,
            number: self.number + 1,
            store: self.log.store,
            first: self.next,
            frames: count as u32,
        };
        Ok(Pending { head, frames })
    }

    /// Appends one object of these frames; tells how many there were in it.
    fn append_object(&mut self, frames: &[Bytes]) -> Result<usize, AppendError> {
        let pending = self.take(frames)?;
        let payload = object::encode(&pending.head, &pending.frames);
        match self.place(&pending.head, &payload) {
            Placed::Done => {
                self.number = pending.head.number;
                self.next = pending.head.end();
                self.found.push_back(Found { number: self.number, first: pending.head.first });
                Ok(pending.frames.len())
            }
            Placed::Fenced => Err(self.fence()),
            Placed::Unavailable(error) => {
                self.pending = Some(pending);
                Err(AppendError::Unavailable(error))
            }
        }
    }

    /// Deletes what was trimmed long enough ago.
    fn delete_due(&mut self) {
        let remote = &self.log.remote;
        let mut due: Vec<Path> = Vec::new();
        while let Some(trim) = self.trims.front() {
            if remote.time.since(trim.since) <= remote.spans.trim_wait {
                break;
            }
            due.extend(trim.numbers.iter().map(|number| self.log.path(*number)));
            self.trims.pop_front();
        }
        if !due.is_empty() {
            remote.delete_later(due);
        }
    }
}

impl LogWriter for Writer {
    fn next(&self) -> Lsn {
        self.next
    }

    fn frame_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }

    fn replayed_frames_max(&self) -> usize {
        REPLAYED_FRAMES_MAX
    }

    fn linger(&self) -> Duration {
        self.log.remote.spans.linger
    }

    fn confirm(&mut self) -> Result<(), AppendError> {
        self.owned()?;
        let remote = self.log.remote.clone();
        let began = remote.time.now();
        let own = self.pending.as_ref().map(|pending| pending.head.mark);
        let following = self.number + 1;
        // While the last check is young, another's object cannot be trimmed yet.
        let newer = if is_old(remote.time.since(self.checked), remote.spans.trim_wait) {
            remote.retry(|| self.log.numbers_after(Some(self.number)))
        } else {
            match remote.retry(|| self.log.remote.size(&self.log.path(following))) {
                Ok(_) => Ok(vec![following]),
                Err(Trouble::Missing) => Ok(Vec::new()),
                Err(trouble) => Err(trouble),
            }
        };
        let newer = newer.map_err(|trouble| AppendError::Unavailable(trouble.into_io()))?;
        let ours = match (newer.as_slice(), own) {
            ([], _) => true,
            // One of ours whose answer was lost.
            ([number], Some(own)) if *number == following => {
                let head = remote.retry(|| self.log.head(following));
                head.map_err(|trouble| AppendError::Unavailable(trouble.into_io()))?.mark == own
            }
            _ => false,
        };
        if !ours {
            return Err(self.fence());
        }
        self.checked = began;
        self.delete_due();
        Ok(())
    }

    fn append(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.append_all(at, std::slice::from_ref(frame), true).1
    }

    fn append_flushed(&mut self, at: Lsn, frame: &Bytes) -> Result<(), AppendError> {
        self.append(at, frame)
    }

    fn append_all(
        &mut self,
        at: Lsn,
        frames: &[Bytes],
        _flushed: bool,
    ) -> (usize, Result<(), AppendError>) {
        if let Err(error) = self.owned() {
            return (0, Err(error));
        }
        if at != self.next {
            return (0, Err(AppendError::WrongPlace { next: self.next }));
        }
        let fitting = frames.iter().take_while(|frame| frame.len() <= FRAME_BYTES_MAX).count();
        let mut count = 0;
        while count < fitting {
            match self.append_object(&frames[count..fitting]) {
                Ok(appended) => count += appended,
                Err(error) => return (count, Err(error)),
            }
        }
        let too_large = AppendError::TooLarge { max: FRAME_BYTES_MAX };
        (count, if fitting < frames.len() { Err(too_large) } else { Ok(()) })
    }

    fn flush(&mut self) -> Result<(), AppendError> {
        self.owned()
    }

    fn trim(&mut self, below: Lsn) -> Result<(), AppendError> {
        self.owned()?;
        if below > self.next {
            return Err(AppendError::WrongPlace { next: self.next });
        }
        let mut numbers = Vec::new();
        // The newest one stays: it shows who owns the log.
        while self.found.len() > 1 && self.found[1].first <= below {
            numbers.extend(self.found.pop_front().map(|found| found.number));
        }
        self.forget(numbers);
        self.delete_due();
        Ok(())
    }

    fn preparer(&self) -> Option<Arc<dyn Prepare>> {
        None
    }
}
