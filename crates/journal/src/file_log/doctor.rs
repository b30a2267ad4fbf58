//! Examining a log without changing it, and cutting it on request.
//!
//! The doctor sees what opening would see, by the same code, and says it instead of
//! acting on it. Its one repair is to forget everything from a frame on; it returns
//! what it forgot, so that the caller can report it.

use std::sync::{Arc, atomic::AtomicU64};

use super::{Analysis, FileLog, io_error, reader::Reader, scan::scan};
use crate::frame::{FrameMarks, HEADER_BYTES, Header, Parsed, Secret, parse};
use crate::log::{Floor, LogError, LogReader, Lsn, Torn};

/// What is in a log, as found without changing it.
#[derive(Debug)]
pub struct Examination {
    /// The files, by number.
    pub files: Vec<ExaminedFile>,
    /// The first frame that could be replayed; equals `next` if there is none.
    pub first: Lsn,
    /// Where the run of good frames ends.
    pub next: Lsn,
    /// The highest term that left a trace.
    pub term: u64,
    /// What opening would cut off, if anything.
    pub torn: Option<Torn>,
    /// Why the log would refuse to open, if it would.
    pub refused: Option<LogError>,
}

/// One file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExaminedFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// How many frames in it are alive.
    pub live: u64,
    /// How many good frames in it are dead: trimmed, or remains of an end that was cut. None
    /// if opening need not read the file.
    pub dead: u64,
    /// How many frames in it have a good header and a broken payload.
    pub broken: u64,
}

/// What was lost by cutting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// How many frames were forgotten, readable or not.
    pub frames: u64,
    /// How many bytes they had in the files.
    pub bytes: u64,
    /// The last one of them.
    pub last: Lsn,
}

impl FileLog {
    /// Says what is in the log, reading only and without the lock: while it is written to,
    /// the end may look torn.
    pub fn examine(&self, floor: Floor) -> Result<Examination, LogError> {
        let scan = scan(self.files(true)?, self.wanted(floor.first_needed, false))?;
        let analysis = Analysis::of(&scan, floor);
        let examined = |(index, file): (usize, &Arc<super::LogFile>)| {
            let here = |found: &&super::Found| found.file == index;
            let live = analysis.live.iter().filter(here).count();
            let whole = scan.found.iter().filter(here).filter(|f| f.whole).count();
            let all = scan.found.iter().filter(here).filter(|f| f.trusted).count();
            ExaminedFile {
                name: file.name(),
                bytes: file.bytes,
                live: live as u64,
                dead: (whole - live) as u64,
                broken: (all - whole) as u64,
            }
        };
        Ok(Examination {
            files: scan.files.iter().enumerate().map(examined).collect(),
            first: analysis.first,
            next: analysis.next,
            term: analysis.term,
            torn: analysis.torn,
            refused: analysis.refused,
        })
    }

    /// Reads what opening would replay, without the lock and without changing anything.
    ///
    /// # Errors
    /// Says why the log would refuse to open.
    pub(crate) fn read_only(&self, floor: Floor) -> Result<Box<dyn LogReader>, LogError> {
        let scan = scan(self.files(true)?, self.wanted(floor.first_needed, true))?;
        let mut analysis = Analysis::of(&scan, floor);
        match analysis.refused.take() {
            Some(refused) => Err(refused),
            None => {
                let kept = Arc::new(AtomicU64::new(analysis.first.0));
                Ok(Box::new(Reader::new(&analysis, kept)))
            }
        }
    }

    /// Learns from the beginnings of the files, where no message can lie, which marks the frames
    /// of this log have, for who has lost the manifest; `known` says that the secret is known.
    pub(crate) fn learn_marks(&self, known: bool) -> Result<FrameMarks, LogError> {
        let mut marks = self.marks;
        if known {
            return Ok(marks);
        }
        let mut secret: Option<Header> = None;
        for file in self.files(true)?.iter().filter(|file| file.bytes > 0) {
            let mut start = [0; HEADER_BYTES];
            let read = file.file.read_exact_at(&mut start, 0);
            read.map_err(|source| io_error("read", &file.name(), source))?;
            if let Parsed::Header(header, _) = parse(&start, &marks)
                && header.mark != marks.public
                && secret.is_none_or(|other| header.lsn < other.lsn)
            {
                secret = Some(header);
            }
        }
        // Those before the first file that begins with it may have either mark.
        if let Some(header) = secret {
            marks.secret = Secret::new(header.mark);
            marks.secret_from = Some(header.lsn);
        }
        Ok(marks)
    }

    /// The first frame of the run that ends with the newest one, however much of it was trimmed:
    /// for who has lost the manifest.
    pub(crate) fn last_run(&self) -> Result<Option<Lsn>, LogError> {
        let scan = scan(self.files(true)?, self.wanted(Lsn::FIRST, false))?;
        let whole: Vec<&super::Found> = scan.found.iter().filter(|found| found.whole).collect();
        // Sorted by lsn; of several with one lsn the highest term comes first.
        let Some(newest) = whole.last().map(|found| found.header.lsn) else { return Ok(None) };
        let Some(mut at) = whole.iter().position(|found| found.header.lsn == newest) else {
            return Ok(None);
        };
        while let Some(before) = whole[..at].iter().rposition(|found| {
            found.header.lsn == whole[at].header.lsn.before() && found.crc == whole[at].header.link
        }) {
            at = before;
        }
        Ok(Some(whole[at].header.lsn))
    }

    /// Forgets all frames from `at` on, for ever, and says what that was. Needs the lock.
    /// After an error some of them may be forgotten already; cut again.
    ///
    /// Refuses only a log of another version or store, of which it understands nothing.
    pub fn cut(&self, at: Lsn) -> Result<Cut, LogError> {
        let _lock = self.lock_if_there()?;
        let scan = scan(self.files(false)?, self.wanted(at, false))?;
        let floor = Floor { first_needed: at, ..Floor::default() };
        let analysis = Analysis::of(&scan, floor);
        match analysis.refused {
            Some(LogError::Damaged { .. }) | None => {}
            Some(refused) => return Err(refused),
        }
        let lost = self.wipe(&scan, &analysis, at)?;
        Ok(Cut {
            frames: lost.len() as u64,
            bytes: lost.iter().map(|found| found.header.extent()).sum(),
            last: lost.last().map_or(at.before(), |found| found.header.lsn),
        })
    }
}
