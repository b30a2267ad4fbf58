//! A log of numbered objects.
//!
//! Object 1, 2, 3 … each hold the frames of one append, or none if one took over with it. Names are
//! only made by create-if-absent, so there is one object for each number, and owning the log is
//! having made the newest. `docs/adr/0017` has the states, invariants and failures; `rule.rs` what a
//! writer may conclude.
//!
//! Here is taking over: find the newest object, read what is needed, and fence by creating the next
//! one. `writer.rs` appends.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use gapless_journal::log::{Floor, Log, LogError, LogReader, TakeOver, Visit};
use gapless_journal::{FrameMarks, Lsn, OpenError};
use object_store::path::Path;

use crate::clock::Moment;
use crate::object::{self, Fault, HEAD_BYTES, Head, OBJECT_VERSION};
use crate::remote::{Remote, Trouble};
use crate::writer::{Ahead, Placed, Writer};

/// Objects that are read at the same time.
const READ_AT_ONCE: usize = 32;
/// Objects that are read without looking first where what is needed begins.
const READ_UNSEEN_MAX: usize = 16;
/// How often a take over begins from the front, since yet another took over, before it gives up.
const TRIES_MAX: usize = 100;
/// How often several names are tried at once before a take over begins from the front.
const CHASES_MAX: usize = 20;
/// Objects of a store without a manifest that are read to see whether there is anything in them.
const REMAINS_READ_MAX: usize = 64;

/// A log in a folder of an object store.
#[derive(Clone, Debug)]
pub struct ObjectLog {
    pub(crate) remote: Remote,
    /// The folder of its objects.
    pub(crate) folder: String,
    /// What its objects say that they belong to.
    pub(crate) store: u64,
}

/// An object that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) number: u64,
    pub(crate) first: Lsn,
}

impl ObjectLog {
    pub(crate) fn new(remote: Remote, folder: String, marks: &FrameMarks) -> Self {
        Self { remote, folder, store: marks.public }
    }

    pub(crate) fn path(&self, number: u64) -> Path {
        self.remote.path(&self.folder, &name(number))
    }

    pub(crate) fn io(&self, doing: &'static str) -> impl FnOnce(Trouble) -> LogError {
        let place = format!("{:?}/{}", self.remote, self.folder);
        move |trouble| LogError::Io { doing, place, source: trouble.into_io() }
    }

    /// The error of a journal for a request that was not answered.
    pub(crate) fn failed(&self, doing: &'static str) -> impl Fn(Trouble) -> OpenError {
        let place = format!("{:?}/{}", self.remote, self.folder);
        move |trouble| {
            let (place, source) = (place.clone(), trouble.into_io());
            OpenError::Log(LogError::Io { doing, place, source })
        }
    }

    /// The numbers of the objects after this one, in order.
    pub(crate) fn numbers_after(&self, after: Option<u64>) -> Result<Vec<u64>, Trouble> {
        let listed = self.remote.list(&self.folder, after.map(name).as_deref())?;
        Ok(listed.iter().filter_map(|each| number_in(&each.name)).collect())
    }

    /// What an object says about itself.
    pub(crate) fn head(&self, number: u64) -> Result<Head, Trouble> {
        let range = Some(0..HEAD_BYTES as u64);
        let bytes = self.remote.get(self.remote.spans.request, &self.path(number), range)?;
        Head::decode(&bytes).map_err(|fault| {
            let why = format!("{}: {}", name(number), describe(fault));
            Trouble::Refused(io::Error::new(io::ErrorKind::InvalidData, why))
        })
    }

    /// Which of these neighbouring objects is the first that matters to one who needs the frames
    /// from `needed` on: an index.
    fn first_needed(&self, run: &[u64], needed: Lsn) -> Result<usize, LogError> {
        if run.len() <= READ_UNSEEN_MAX {
            return Ok(0);
        }
        // The last one that does not begin after it.
        let (mut low, mut high) = (0, run.len());
        while low + 1 < high {
            let middle = usize::midpoint(low, high);
            let begins = |at: usize| -> Result<Lsn, LogError> {
                let head = self.remote.retry(|| self.head(run[at])).map_err(self.io("read"))?;
                Ok(head.first)
            };
            let mut first = begins(middle)?;
            // One that took over in a race did not know; those after it do.
            for at in middle + 1..run.len() {
                if first != Lsn::NONE {
                    break;
                }
                first = begins(at)?;
            }
            if first != Lsn::NONE && first <= needed { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// Reads these neighbouring objects onto what was read before.
    fn read(&self, numbers: &[u64], past: &mut Past) -> Result<(), LogError> {
        let paths: Vec<Path> = numbers.iter().map(|number| self.path(*number)).collect();
        let bodies = self.remote.get_all(&paths, READ_AT_ONCE).map_err(self.io("read"))?;
        for (number, bytes) in numbers.iter().zip(bodies) {
            let place = format!("{}/{}", self.folder, name(*number));
            let damaged = |lsn, why: &str| LogError::Damaged {
                place: place.clone(),
                lsn,
                why: why.to_owned(),
            };
            let (head, frames) = object::decode(&bytes).map_err(|fault| match fault {
                Fault::Damaged(why) => damaged(past.end, why),
                Fault::Version(found) => {
                    LogError::Version { place: place.clone(), found, known: OBJECT_VERSION }
                }
            })?;
            if head.number != *number {
                return Err(damaged(past.end, "it was made with another number: it is a copy"));
            }
            // One that only took over may be left by a store that was never finished.
            if head.store != self.store && head.frames > 0 {
                return Err(LogError::OtherStore { place });
            }
            past.add(head, frames).map_err(|why| damaged(past.end, why))?;
        }
        Ok(())
    }

    /// Reads what is needed of these neighbouring objects; tells which is the first.
    pub(crate) fn read_needed(&self, run: &[u64], floor: Floor) -> Result<(usize, Past), LogError> {
        let start = self.first_needed(run, floor.first_needed)?;
        let mut past = Past::new(floor);
        self.read(&run[start..], &mut past)?;
        match past.found.front() {
            Some(first) if first.first > floor.first_needed => Err(LogError::Damaged {
                place: format!("{}/{}", self.folder, name(first.number - 1)),
                lsn: floor.first_needed,
                why: format!("it is missing: the log begins at frame {}", first.first),
            }),
            _ => Ok((start, past)),
        }
    }

    /// Tries to become the owner: `None` if another appended meanwhile.
    fn try_take_over(&self, floor: Floor) -> Result<Option<TakeOver>, LogError> {
        let checked = self.remote.time.now();
        let numbers = self.remote.retry(|| self.numbers_after(None)).map_err(self.io("list"))?;
        let run = last_run(&numbers);
        let (start, past) = self.read_needed(run, floor)?;
        let newest = run.last().copied().unwrap_or(0);
        let skipped = numbers.iter().copied().filter(|number| *number < newest);
        let useless = skipped.filter(|number| !run[start..].contains(number)).collect();
        self.fence(floor, (newest, checked), past, useless)
    }

    /// Creates the object that makes this writer the owner. While the owner before appends, its
    /// objects are passed by, and read afterwards.
    fn fence(
        &self,
        floor: Floor,
        (newest, checked): (u64, Moment),
        mut past: Past,
        useless: Vec<u64>,
    ) -> Result<Option<TakeOver>, LogError> {
        let term = past.term.max(floor.term) + 1;
        let known = past.end.max(floor.first_needed);
        let mut writer = Writer::new(self.clone(), (term, newest, known), checked);
        let (mut first_own, mut raced) = (newest + 1, false);
        match writer.take_place(known) {
            Placed::Done => {}
            Placed::Fenced => {
                let Some(first) = self.outrun(&mut writer)? else { return Ok(None) };
                // What is before its first object is final now, whichever process wrote it; another who took
                // over with this term, too.
                (first_own, raced) = (first, true);
                let passed: Vec<u64> = (newest + 1..first).collect();
                self.read(&passed, &mut past)?;
                if past.term >= term {
                    return Ok(None);
                }
            }
            Placed::Unavailable(source) => {
                let place = format!("{:?}/{}", self.remote, self.folder);
                return Err(LogError::Io { doing: "take over", place, source });
            }
        }
        let next = past.end.max(floor.first_needed);
        for number in first_own..=writer.number() {
            past.found.push_back(Found { number, first: next });
        }
        writer.begin(next, std::mem::take(&mut past.found));
        // One that outran the owner did not know which frame comes next.
        if raced && !matches!(writer.take_place(next), Placed::Done) {
            return Ok(None);
        }
        writer.forget(useless);
        let frames = past.into_frames(floor.first_needed);
        let first = frames.first().map_or(next, |(lsn, _)| *lsn);
        let reader = Reader { first, frames };
        Ok(Some(TakeOver {
            writer: Box::new(writer),
            reader: Box::new(reader),
            first,
            next,
            term,
            torn: None,
        }))
    }
}

impl ObjectLog {
    /// Takes the place of an owner that appends all the while: several of the next names are created
    /// at the same time, and one who appends them one after the other cannot have them all. Tells
    /// the number of its first object; `None` if yet another takes over.
    fn outrun(&self, writer: &mut Writer) -> Result<Option<u64>, LogError> {
        for _ in 0..CHASES_MAX {
            let known = writer.number();
            let newer = self.remote.retry(|| self.numbers_after(Some(known)));
            let newer = newer.map_err(self.io("list"))?;
            let newest = newer.last().copied().unwrap_or(known);
            match writer.take_ahead(newest).map_err(self.io("take over"))? {
                Ahead::Ours { first } => return Ok(Some(first)),
                Ahead::Mixed => return Ok(None),
                Ahead::Theirs => {}
            }
        }
        Ok(None)
    }
}

impl Log for ObjectLog {
    fn take_over(&self, floor: Floor) -> Result<TakeOver, LogError> {
        for _ in 0..TRIES_MAX {
            if let Some(taken) = self.try_take_over(floor)? {
                return Ok(taken);
            }
        }
        let source = io::Error::new(io::ErrorKind::TimedOut, "its owner appends all the time");
        Err(self.io("take over")(Trouble::Unclear(source)))
    }

    fn remains(&self) -> Result<Vec<String>, LogError> {
        let numbers = self.remote.retry(|| self.numbers_after(None)).map_err(self.io("list"))?;
        let names = |numbers: &[u64]| numbers.iter().map(|number| name(*number)).collect();
        if numbers.len() > REMAINS_READ_MAX {
            return Ok(names(&numbers));
        }
        // Those that only took over are left when the making of a store did not end.
        for number in &numbers {
            let head = self.remote.retry(|| self.head(*number)).map_err(self.io("read"))?;
            if head.frames > 0 {
                return Ok(names(&numbers));
            }
        }
        Ok(Vec::new())
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// What was read of a log.
#[derive(Debug)]
pub(crate) struct Past {
    found: VecDeque<Found>,
    frames: Vec<(Lsn, Bytes)>,
    /// The number of the frame after the last one.
    end: Lsn,
    term: u64,
}

impl Past {
    fn new(floor: Floor) -> Self {
        Self { found: VecDeque::new(), frames: Vec::new(), end: floor.first_needed, term: 0 }
    }

    /// The frames from this one on.
    pub(crate) fn into_frames(mut self, first: Lsn) -> Vec<(Lsn, Bytes)> {
        self.frames.retain(|(lsn, _)| *lsn >= first);
        self.frames
    }

    /// Adds an object, or says what is wrong with it there.
    fn add(&mut self, head: Head, frames: Vec<Bytes>) -> Result<(), &'static str> {
        // One without frames may be of a take over that lost against another.
        if head.mark.term < self.term && head.frames > 0 {
            return Err("it has a lower term than the one before");
        }
        let mut head = head;
        if head.first == Lsn::NONE {
            head.first = self.end;
        }
        if !self.found.is_empty() {
            // Who took over may have known that more was trimmed than the log has.
            let fits =
                if head.frames == 0 { head.first >= self.end } else { head.first == self.end };
            if !fits {
                return Err("its frames do not follow those before");
            }
        }
        self.term = self.term.max(head.mark.term);
        self.found.push_back(Found { number: head.number, first: head.first });
        let mut lsn = head.first;
        for frame in frames {
            self.frames.push((lsn, frame));
            lsn = lsn.next();
        }
        self.end = lsn;
        Ok(())
    }
}

/// The neighbouring numbers at the end: what is before a hole is below every floor.
pub(crate) fn last_run(numbers: &[u64]) -> &[u64] {
    let breaks = numbers.windows(2).rposition(|pair| pair[1] != pair[0] + 1);
    &numbers[breaks.map_or(0, |at| at + 1)..]
}

#[derive(Debug)]
struct Reader {
    first: Lsn,
    frames: Vec<(Lsn, Bytes)>,
}

impl LogReader for Reader {
    fn replay(&mut self, from: Lsn, visit: &mut Visit<'_>) -> Result<(), LogError> {
        if from < self.first {
            return Err(LogError::Trimmed { first: self.first });
        }
        for (lsn, frame) in self.frames.iter().filter(|(lsn, _)| *lsn >= from) {
            visit(*lsn, frame.clone()).map_err(|_| LogError::Stopped)?;
        }
        Ok(())
    }
}

/// The name of an object of the log.
pub(crate) fn name(number: u64) -> String {
    format!("{number:020}")
}

pub(crate) fn number_in(name: &str) -> Option<u64> {
    Some(name).filter(|name| name.len() == 20)?.parse().ok()
}

fn describe(fault: Fault) -> String {
    match fault {
        Fault::Damaged(why) => why.to_owned(),
        Fault::Version(found) => format!("it has format version {found}"),
    }
}

/// For those who share a log between threads.
impl ObjectLog {
    /// This log behind the trait.
    #[must_use]
    pub fn shared(self) -> Arc<dyn Log> {
        Arc::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_a_hole_does_not_count() {
        assert_eq!(last_run(&[]), &[] as &[u64]);
        assert_eq!(last_run(&[5]), &[5]);
        assert_eq!(last_run(&[2, 5, 6, 7]), &[5, 6, 7]);
        assert_eq!(last_run(&[1, 2, 4, 8]), &[8]);
        assert_eq!(number_in(&name(17)), Some(17));
        assert_eq!(number_in("17"), None);
    }
}
