//! Which frames the files of a log hold, and which of them are alive.
//!
//! [`scan`] reads all files and believes what checksums prove. [`Analysis::of`] then
//! finds the one run that is alive:
//!
//! - it begins at the floor, and each frame has the next lsn, a term not lower than, and
//!   a link to, the frame before; of several with one lsn the highest term counts. Frames
//!   left over from a cut end or in a recycled file fail one of these for ever, so they
//!   can never come back;
//! - at the first lsn without such a frame, a header anywhere that says this lsn had been
//!   flushed proves damage. Without one, what follows was never acknowledged: it
//!   is a torn end.
//!
//! The last frame of all has no follower to vouch for it: if it is broken, that looks
//! like a torn end, and is reported as one.
//!
//! Messages lie in the files too, so a client can put bytes at the beginning of a block that
//! look like a frame. Three things keep them from being one: a frame that is whole is passed
//! over as a whole, dead or alive; what counts has the store's secret; and where version 1
//! wrote frames without one, only those count that are reached from the beginning of their
//! file by number, term and link, which no client could know when the message was sent.
//!
//! Most of a log is dead, and who opens it waits. So a file whose first frame is older than
//! the last frame that is not needed, which is in another file, was left before that one was
//! written, and a file with the mark of a new one was never used: neither is read. The writer
//! keeps this true by flushing the first frame of a file before it writes a second one, so the
//! first block never tells of an earlier life than the blocks behind it. What is needed is
//! kept, so that it is read once.
//!
//! Nothing is written here, so the doctor can examine a log that is in use; and it sees
//! what opening sees, since there is one way to look.

use std::{io, sync::Arc};

use bytes::Bytes;

use super::{LogFile, io_error};
use crate::{
    frame::{self, BLOCK_BYTES, FrameMarks, HEADER_BYTES, Header, Parsed, UNUSED, VERSION},
    fs::FsFile,
    log::{Floor, LogError, Lsn, TERM_MAX, Torn},
};

/// How much is read at once: large enough that calls cost nothing, small enough to stay
/// in the cache until its checksum is made.
const WINDOW_BYTES: usize = 256 * 1024;

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) marks: FrameMarks,
    /// The first frame that is needed.
    pub(super) first: Lsn,
    /// Whether the payloads of these are wanted.
    pub(super) payloads: bool,
}

impl Wanted {
    /// The last frame that is not needed, to which the first that is has to link.
    fn anchor(&self) -> Lsn {
        self.first.before()
    }
}

/// A frame whose header is right.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// Index into [`Scan::files`].
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) header: Header,
    /// The CRC of its header, to which its successor links.
    pub(super) crc: u32,
    /// Whether only this store can have written it. If not, it may be the inside of a message,
    /// and its payload was not looked at.
    pub(super) trusted: bool,
    /// Whether the payload is right too.
    pub(super) whole: bool,
    /// The payload, if it is right and needed.
    pub(super) payload: Option<Bytes>,
}

impl Found {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.header.extent()
    }
}

/// Something at the beginning of a block that is not a frame of ours, though it looks like one.
#[derive(Debug)]
struct Stray {
    file: usize,
    offset: u64,
    kind: StrayKind,
}

#[derive(Debug)]
enum StrayKind {
    Broken,
    /// Another version, and whether it has the secret.
    Version(u16, bool),
    OtherStore,
}

/// All that was found.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) files: Vec<Arc<LogFile>>,
    /// Sorted by lsn, and the highest term first.
    pub(super) found: Vec<Found>,
    strays: Vec<Stray>,
}

/// Reads the files, or as many as are needed.
pub(super) fn scan(files: Vec<Arc<LogFile>>, wanted: Wanted) -> Result<Scan, LogError> {
    let mut scan = Scan { files: Vec::new(), found: Vec::new(), strays: Vec::new() };
    let mut memory = vec![0; WINDOW_BYTES + BLOCK_BYTES as usize];
    let mut read = |indexes: &[usize], scan: &mut Scan| -> Result<(), LogError> {
        for &index in indexes {
            let file = &files[index];
            let mut window = Window::new(file, &mut memory);
            let done = scan_file(&mut window, index, &wanted, scan);
            done.map_err(|source| io_error("read", &file.name(), source))?;
        }
        Ok(())
    };
    let (needed, left) = share_out(&files, &wanted)?;
    read(&needed, &mut scan)?;
    // Without it nothing is certain of the others.
    if scan.found.iter().all(|found| found.header.lsn != wanted.anchor() || !found.whole) {
        read(&left, &mut scan)?;
    }
    scan.files = files;
    let order = |f: &Found| (f.header.lsn, std::cmp::Reverse((f.header.term, f.whole)));
    scan.found.sort_by_key(order);
    Ok(scan)
}

/// Which files have to be read, and which need not be if the anchor is found in those.
fn share_out(
    files: &[Arc<LogFile>],
    wanted: &Wanted,
) -> Result<(Vec<usize>, Vec<usize>), LogError> {
    let mut firsts = Vec::with_capacity(files.len());
    for file in files {
        let first = first_in(file, &wanted.marks);
        firsts.push(first.map_err(|source| io_error("read", &file.name(), source))?);
    }
    // The anchor is in the last file that begins before it.
    let anchor = wanted.anchor();
    let with_anchor = firsts.iter().flatten().filter(|&&first| first <= anchor).max().copied();
    let is_left = |index: &usize| firsts[*index].is_some() && firsts[*index] < with_anchor;
    let (left, needed) = (0..files.len()).partition(is_left);
    Ok((needed, left))
}

/// The first frame in a file, [`Lsn::NONE`] if it was never used; nothing if that cannot be
/// told. No message can lie there.
fn first_in(file: &LogFile, marks: &FrameMarks) -> io::Result<Option<Lsn>> {
    if file.bytes == 0 {
        return Ok(None);
    }
    let mut start = [0; HEADER_BYTES];
    file.file.read_exact_at(&mut start, 0)?;
    Ok(match frame::parse(&start, marks) {
        Parsed::Header(header, _) if marks.proves(&header) || marks.allows(&header) => {
            Some(header.lsn)
        }
        _ if start.starts_with(UNUSED) => Some(Lsn::NONE),
        _ => None,
    })
}

fn scan_file(
    window: &mut Window<'_>,
    file: usize,
    wanted: &Wanted,
    scan: &mut Scan,
) -> io::Result<()> {
    let marks = &wanted.marks;
    // The last frame that is reached from the beginning of the file.
    let mut last: Option<(u64, Header, u32)> = None;
    let mut offset = 0;
    while offset < window.bytes {
        let parsed = frame::parse(window.at(offset)?, marks);
        let mut stray = |kind| scan.strays.push(Stray { file, offset, kind });
        match parsed {
            Parsed::Nothing => {}
            Parsed::Broken => stray(StrayKind::Broken),
            Parsed::Version(found, proved) => stray(StrayKind::Version(found, proved)),
            Parsed::Header(header, crc) if marks.proves(&header) || marks.allows(&header) => {
                let is_next = |(end, before, link): (u64, Header, u32)| {
                    end == offset
                        && header.link == link
                        && header.term >= before.term
                        && header.lsn.0.checked_sub(1) == Some(before.lsn.0)
                };
                let reached = offset == 0 || last.is_some_and(is_next);
                let trusted = reached || marks.proves(&header);
                let (mut whole, mut payload) = (false, None);
                if trusted {
                    let keeps = wanted.payloads && header.lsn >= wanted.first;
                    let mut copy = keeps.then(|| Payload::new(&header));
                    whole = window.payload_is_right(offset, &header, copy.as_mut())?;
                    payload = copy.filter(|_| whole).map(Payload::finish);
                }
                let found = Found { file, offset, header, crc, trusted, whole, payload };
                let end = found.end();
                scan.found.push(found);
                if reached {
                    last = Some((end, header, crc));
                }
                if whole {
                    offset = end;
                    continue;
                }
                // Frames that were flushed may lie behind it, so each block is looked at.
            }
            // Dead since the store has its secret, or the inside of a message.
            Parsed::Header(header, _) if header.mark == marks.public => {}
            Parsed::Header(..) => stray(StrayKind::OtherStore),
        }
        offset += BLOCK_BYTES;
    }
    Ok(())
}

/// A payload in memory whose address equals its offset in the file modulo a page, as far as
/// it has pages at all: when it is written again, to a segment, that copy can be many times
/// slower from elsewhere.
struct Payload {
    memory: Vec<u8>,
    start: usize,
}

impl Payload {
    fn new(header: &Header) -> Self {
        let bytes = header.payload_bytes as usize;
        let page = BLOCK_BYTES as usize;
        if bytes < page {
            return Self { memory: Vec::with_capacity(bytes), start: 0 };
        }
        let mut memory: Vec<u8> = Vec::with_capacity(bytes + page);
        let to_page = memory.as_ptr().align_offset(page) % page;
        let start = (to_page + HEADER_BYTES) % page;
        memory.resize(start, 0);
        Self { memory, start }
    }

    fn finish(self) -> Bytes {
        Bytes::from(self.memory).slice(self.start..)
    }
}

/// The part of a file that is in memory, at an address that equals its offset modulo a
/// page: copies between other addresses can be many times slower.
struct Window<'a> {
    file: &'a dyn FsFile,
    bytes: u64,
    memory: &'a mut [u8],
    start: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    fn new(file: &'a LogFile, memory: &'a mut [u8]) -> Self {
        let align = memory.as_ptr().align_offset(BLOCK_BYTES as usize);
        let align = align.min(memory.len() - WINDOW_BYTES);
        Self {
            file: &*file.file,
            bytes: file.bytes,
            memory: &mut memory[align..align + WINDOW_BYTES],
            start: 0,
            filled: 0,
        }
    }

    /// What is in memory from this offset on, at least to the end of its block.
    fn at(&mut self, offset: u64) -> io::Result<&[u8]> {
        let end = self.start + self.filled as u64;
        if offset < self.start || offset >= end {
            self.start = offset - offset % BLOCK_BYTES;
            let rest = usize::try_from(self.bytes - self.start).unwrap_or(usize::MAX);
            self.filled = 0;
            let want = rest.min(WINDOW_BYTES);
            self.file.read_exact_at(&mut self.memory[..want], self.start)?;
            self.filled = want;
        }
        let skip = (offset - self.start) as usize;
        Ok(&self.memory[skip..self.filled])
    }

    /// Looks at a payload, and copies it while it is in the processor's cache.
    fn payload_is_right(
        &mut self,
        offset: u64,
        header: &Header,
        mut copy: Option<&mut Payload>,
    ) -> io::Result<bool> {
        if header.extent() > self.bytes - offset {
            return Ok(false);
        }
        let mut crc = 0;
        let mut left = header.payload_bytes as usize;
        let mut offset = offset + HEADER_BYTES as u64;
        while left > 0 {
            let bytes = self.at(offset)?;
            let piece = &bytes[..bytes.len().min(left)];
            crc = crc32c::crc32c_append(crc, piece);
            if let Some(copy) = &mut copy {
                copy.memory.extend_from_slice(piece);
            }
            left -= piece.len();
            offset += piece.len() as u64;
        }
        Ok(crc == header.payload_crc)
    }
}

/// What is alive, and how the run ends.
#[derive(Debug)]
pub(super) struct Analysis {
    /// The run, from the first frame needed on.
    pub(super) live: Vec<Found>,
    /// The frame before the run, if it is still there: what the run has to link to.
    pub(super) anchor: Option<Found>,
    pub(super) first: Lsn,
    pub(super) next: Lsn,
    /// The highest term that left a trace, or that the floor names.
    pub(super) term: u64,
    /// Up to where frames are known to have been flushed.
    pub(super) flushed: Lsn,
    pub(super) torn: Option<Torn>,
    /// Why the log must not be used as it is.
    pub(super) refused: Option<LogError>,
}

impl Analysis {
    pub(super) fn of(scan: &Scan, floor: Floor) -> Self {
        let first = floor.first_needed.max(Lsn::FIRST);
        let anchor = scan.with_lsn(first.before()).find(|f| f.whole).cloned();
        let mut live = Vec::new();
        let mut last = anchor.as_ref();
        let mut next = first;
        let follows = |found: &&Found, last: Option<&Found>| {
            found.whole
                && last.is_none_or(|last| {
                    found.header.term >= last.header.term && found.header.link == last.crc
                })
        };
        while next <= Lsn::MAX
            && let Some(found) = scan.with_lsn(next).find(|found| follows(found, last))
        {
            live.push(found.clone());
            last = Some(found);
            next = next.next();
        }
        let terms = scan.found.iter().filter(|found| found.trusted).map(|f| f.header.term);
        let known = live.iter().map(|found| found.header.flushed);
        let mut analysis = Self {
            term: terms.max().unwrap_or(0).max(floor.term),
            flushed: known.max().unwrap_or(Lsn::NONE).max(first.before()).max(floor.flushed),
            live,
            anchor,
            first,
            next,
            torn: None,
            refused: None,
        };
        analysis.refused = scan
            .refusal(analysis.place_of_next())
            .or_else(|| scan.impossible())
            .or_else(|| analysis.damage(scan));
        if analysis.refused.is_none() {
            analysis.torn = analysis.torn_end(scan);
        }
        analysis
    }

    /// The last frame that counts, behind which the next one goes.
    pub(super) fn last(&self) -> Option<&Found> {
        self.live.last().or(self.anchor.as_ref())
    }

    /// Where the next frame would be if it was written to the same file.
    pub(super) fn place_of_next(&self) -> Option<(usize, u64)> {
        self.last().map(|last| (last.file, last.end()))
    }

    fn damage(&self, scan: &Scan) -> Option<LogError> {
        let expected = self.place_of_next();
        // Of those that a client may have forged only one counts that can be what was written
        // behind the last frame: better to ask the doctor once than to lose what was flushed.
        let counts = |f: &Found| {
            let behind = |(file, offset)| f.file == file && f.offset >= offset;
            let blocks = scan.files.iter().map(|file| file.bytes / BLOCK_BYTES).sum::<u64>();
            let near = f.header.lsn.0 - self.next.0 <= blocks;
            f.trusted || (near && expected.is_none_or(behind))
        };
        let proves =
            |f: &&Found| f.header.lsn > self.next && f.header.flushed >= self.next && counts(f);
        let proof = scan.found.iter().find(proves)?;
        let broken = scan.with_lsn(self.next).next();
        let place = match (broken, self.place_of_next()) {
            (Some(found), _) => scan.place(found.file, found.offset),
            (None, Some((file, offset))) => scan.place(file, offset),
            (None, None) => "no file holds it".to_owned(),
        };
        let why = format!(
            "frame {} in {} says that it had been flushed",
            proof.header.lsn,
            scan.place(proof.file, proof.offset)
        );
        Some(LogError::Damaged { place, lsn: self.next, why })
    }

    fn torn_end(&self, scan: &Scan) -> Option<Torn> {
        let term = self.last().map_or(0, |last| last.header.term);
        let from = scan.found.partition_point(|f| f.header.lsn < self.next);
        let dropped = || scan.found[from..].iter().filter(|f| f.header.term >= term);
        let bytes: u64 = dropped().map(|found| found.header.extent()).sum();
        let expected = self.place_of_next();
        let broken = |stray: &&Stray| {
            matches!(stray.kind, StrayKind::Broken)
                && (stray.offset == 0 || Some((stray.file, stray.offset)) == expected)
        };
        let broken = scan.strays.iter().find(broken);
        let place = match (dropped().next(), broken) {
            (Some(found), _) => scan.place(found.file, found.offset),
            (None, Some(stray)) => scan.place(stray.file, stray.offset),
            (None, None) => return None,
        };
        Some(Torn { at: self.next, bytes: bytes.max(BLOCK_BYTES), place })
    }
}

impl Scan {
    /// All frames with this lsn, highest term first.
    fn with_lsn(&self, lsn: Lsn) -> impl Iterator<Item = &Found> {
        let from = self.found.partition_point(|found| found.header.lsn < lsn);
        let same = move |found: &&Found| found.header.lsn == lsn;
        self.found[from..].iter().take_while(same)
    }

    pub(super) fn place(&self, file: usize, offset: u64) -> String {
        format!("{} at byte {offset}", self.files[file].name())
    }

    /// Whether there is a broken header at this place.
    pub(super) fn is_broken(&self, place: (usize, u64)) -> bool {
        let here = |stray: &Stray| (stray.file, stray.offset) == place;
        let broken = |stray: &Stray| matches!(stray.kind, StrayKind::Broken);
        self.strays.iter().any(|stray| here(stray) && broken(stray))
    }

    /// A frame with numbers that no log ever reaches. Going on from them would wrap.
    fn impossible(&self) -> Option<LogError> {
        let beyond = |f: &&Found| {
            let Header { lsn, term, flushed, .. } = f.header;
            f.trusted && (lsn > Lsn::MAX || term > TERM_MAX || flushed > Lsn::MAX)
        };
        let found = self.found.iter().find(beyond)?;
        Some(LogError::Damaged {
            place: self.place(found.file, found.offset),
            lsn: found.header.lsn,
            why: format!("no log has a frame with such numbers (term {})", found.header.term),
        })
    }

    /// Frames of another version or store, where only a frame can be: at the beginning of
    /// a file, and, with the secret, behind the last frame. Elsewhere they are the inside of a
    /// message.
    fn refusal(&self, expected: Option<(usize, u64)>) -> Option<LogError> {
        self.strays.iter().find_map(|stray| {
            let place = || self.place(stray.file, stray.offset);
            let is_next = Some((stray.file, stray.offset)) == expected;
            match stray.kind {
                StrayKind::Version(found, proved) if stray.offset == 0 || (proved && is_next) => {
                    Some(LogError::Version { place: place(), found, known: VERSION })
                }
                StrayKind::OtherStore if stray.offset == 0 => {
                    Some(LogError::OtherStore { place: place() })
                }
                _ => None,
            }
        })
    }
}
