//! Messages that look like frames of the log. Whatever a client sends, and however the store
//! ends, the next opening finds what was acknowledged and nothing else.
//!
//! Driven by libFuzzer (`fuzz_targets/forged.rs`) and, on a stable compiler, by
//! `crates/journal/tests/forged.rs`, which includes this file. The forger knows everything but
//! the store's secret: the epoch, the numbers of the frames, where its message will lie.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gapless_core::{
    Durability, Entry, EntryHeader, EntryKind, Epoch, Message, Position, RecordsBuilder, Seq,
    Timestamp, TopicId,
};
use gapless_journal::blobs::BlobError;
use gapless_journal::doctor::{Severity, examine};
use gapless_journal::faulty::{CrashKind, FaultyFs};
use gapless_journal::file_log::FileLogOptions;
use gapless_journal::layout::Folder;
use gapless_journal::{
    ItemWriter, Journal, JournalOptions, Lsn, Policy, Recover, Secret, Sink, State, checksum,
};

const BLOCK: usize = 4096;
const SECRET: u64 = 0x0dd_ba11_5ec2_e7ed;
/// Bytes of a frame before the body of its only message: the headers of frame and entry, and
/// the record's own, whose length takes two or three bytes.
const BEFORE_BODY: [usize; 2] = [132, 133];
/// Operations of one input: more only take longer.
const OPERATIONS_MAX: usize = 48;
const VICTIM: u64 = 1;
const ATTACKER: u64 = 2;

/// What each topic has: its next seq, and as of which position.
type Topics = BTreeMap<u64, (u64, Position)>;

#[derive(Default)]
struct Shared(Mutex<Topics>);

impl Shared {
    fn topics(&self) -> std::sync::MutexGuard<'_, Topics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State for Shared {
    fn checkpoint(&self, write: &mut ItemWriter<'_>) -> Result<(), BlobError> {
        for (topic, (next, as_of)) in &*self.topics() {
            let numbers = [*topic, *next, as_of.0];
            write(&numbers.map(u64::to_le_bytes).concat())?;
        }
        Ok(())
    }

    fn policy(&self, _: TopicId) -> Policy {
        Policy::Kept { floor: Seq(1), compaction: None }
    }

    fn evicted(&self, _: TopicId, _: Lsn) {}
}

#[derive(Default)]
struct Found(Topics);

impl Recover for Found {
    fn restore(&mut self, item: Bytes) -> Result<(), String> {
        let number = |at: usize| u64::from_le_bytes(item[at..at + 8].try_into().expect("eight"));
        self.0.insert(number(0), (number(8), Position(number(16))));
        Ok(())
    }

    fn replay(&mut self, _: Lsn, entry: Entry) -> Result<(), String> {
        let header = entry.header;
        if header.kind != EntryKind::Batch {
            return Err(format!("no writer wrote an entry of kind {:?}", header.kind));
        }
        let (next, as_of) = self.0.entry(header.topic.0).or_insert((1, Position(0)));
        if header.position > *as_of {
            if header.seq.0 != *next {
                return Err(format!("{} instead of {next}", header.seq));
            }
            (*next, *as_of) = (header.last_seq().next().0, header.last_position());
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Ignore;

impl Sink for Ignore {
    fn settled(&self, _: Lsn, _: Bytes, _: &mut Vec<std::task::Waker>) {}
}

struct Store {
    fs: FaultyFs,
    journal: Option<Journal>,
    state: Arc<Shared>,
    /// Frames that were written so far.
    frames: u64,
    secret_is_known: bool,
}

fn folder(fs: &FaultyFs) -> Folder {
    let log = FileLogOptions { first_file_bytes: 32 * 1024, file_bytes_max: 128 * 1024 };
    Folder { log, ..Folder::new(Arc::new(fs.clone()), "/store") }
}

impl Store {
    fn open(&mut self) -> Result<(), String> {
        let new = (Epoch(7), Secret::new(SECRET));
        let monotonic = Arc::new(|| Duration::ZERO);
        let parts = folder(&self.fs).parts(new, monotonic, false).map_err(|e| e.to_string())?;
        let mut found = Found::default();
        let opened = Journal::open(parts, JournalOptions::small(), &mut found);
        let (journal, _) = opened.map_err(|error| format!("does not open: {error}"))?;
        if found.0 != *self.state.topics() {
            return Err(format!("{:?} instead of {:?}", found.0, self.state.topics()));
        }
        self.journal = Some(journal);
        Ok(())
    }

    /// Ends it one way or the other, asks the doctor, and opens it again.
    fn reopen(&mut self, how: u8) -> Result<(), String> {
        if let Some(journal) = self.journal.take() {
            match how % 3 {
                0 => journal.close().map_err(|error| error.to_string())?,
                1 => journal.abandon(),
                _ => {
                    journal.abandon();
                    self.fs.crash(CrashKind::Power);
                }
            }
        }
        let report = examine(&folder(&self.fs), &mut |_, _| {}).map_err(|e| e.to_string())?;
        if report.worst() >= Some(Severity::Repairable) {
            return Err(format!("the doctor finds {:?}", report.findings));
        }
        self.open()
    }

    fn publish(&mut self, topic: u64, body: Vec<u8>) {
        let journal = self.journal.as_ref().expect("it is open");
        journal.keep(&*self.state, Timestamp(1)).expect("nothing is wrong with the disk");
        let mut builder = RecordsBuilder::default();
        builder.push(&Message::new(body)).expect("a message");
        let records = builder.finish();
        let crc = checksum(&records.bytes);
        let mut topics = self.state.topics();
        let (next, as_of) = topics.entry(topic).or_insert((1, Position(0)));
        let mut append = journal.begin(64 + records.bytes.len()).expect("there is room");
        let time = append.time(Timestamp(1));
        let sink: Arc<dyn Sink> = Arc::new(Ignore);
        let place = (TopicId(topic), Seq(*next));
        *as_of = append.batch(place, time, (&records, crc), &sink);
        *next += 1;
        drop(topics);
        let ticket = append.finish(Durability::Flushed, Durability::Flushed);
        assert_eq!(ticket.wait(), Ok(Durability::Flushed));
        self.frames += 1;
    }

    /// A body with a forged frame at each beginning of a block.
    fn body(&self, kind: u8, bytes: usize, ahead: u64) -> Vec<u8> {
        let journal = self.journal.as_ref().expect("it is open");
        let public = journal.key_hash(b"log") as u64;
        let mark = if self.secret_is_known { SECRET } else { public };
        let deletes = {
            let header =
                EntryHeader { topic: TopicId(VICTIM), ..EntryHeader::new(EntryKind::TopicDelete) };
            let header = EntryHeader { position: Position(1 << 40), ..header };
            let mut bytes = Vec::new();
            header.put(&mut bytes, &[], checksum(&[]), checksum);
            bytes
        };
        let mut body = vec![b'x'; bytes];
        let mut link = 0;
        for (nth, at) in (BLOCK..bytes + BLOCK).step_by(BLOCK).enumerate() {
            let nth = nth as u64;
            let near = self.frames + ahead + nth;
            // lsn, term, flushed, mark, version
            let (lsn, term, flushed, mark, version) = match kind % 7 {
                0 => (1 << 40, 1, (1 << 40) - 1, mark, 1),
                1 => (near, u64::MAX, near, mark, 1),
                2 => (near, 1 << 20, near, mark, 1),
                3 => (u64::MAX, u64::MAX, u64::MAX, mark, 1),
                4 => (near, 1, near, mark, 9),
                5 => (near, 1, near, 0xbad, 1),
                _ => (near + 2, 1, near + 1, mark, 1),
            };
            let header = forge((lsn, term, flushed), mark, version, link, &deletes);
            link = u32::from_le_bytes(header[12..16].try_into().expect("four"));
            for before in BEFORE_BODY {
                let start = at - before;
                let Some(place) = body.get_mut(start..start + 64 + deletes.len()) else { continue };
                place[..64].copy_from_slice(&header);
                place[64..].copy_from_slice(&deletes);
                // Of the two places one begins a block; the later one wins where they overlap.
                if kind & 8 == 0 {
                    break;
                }
            }
        }
        body
    }
}

fn forge(
    (lsn, term, flushed): (u64, u64, u64),
    mark: u64,
    version: u16,
    link: u32,
    payload: &[u8],
) -> [u8; 64] {
    let mut header = [0; 64];
    header[..8].copy_from_slice(b"gaplessF");
    header[8..10].copy_from_slice(&version.to_le_bytes());
    header[16..20].copy_from_slice(&checksum(payload).to_le_bytes());
    header[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[24..32].copy_from_slice(&lsn.to_le_bytes());
    header[32..40].copy_from_slice(&term.to_le_bytes());
    header[40..48].copy_from_slice(&flushed.to_le_bytes());
    header[48..56].copy_from_slice(&mark.to_le_bytes());
    header[56..60].copy_from_slice(&link.to_le_bytes());
    let crc = checksum(&[&header[..12], &header[16..]].concat());
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Publishes, seals and reopens as the input says. Says what an opening found that was not
/// acknowledged, or missed that was.
pub fn try_forged(input: &[u8], secret_is_known: bool) -> Result<(), String> {
    let (fs, state) = (FaultyFs::new(1), Arc::new(Shared::default()));
    let mut store = Store { fs, journal: None, state, frames: 0, secret_is_known };
    store.open()?;
    for pair in input.chunks(2).take(OPERATIONS_MAX) {
        let (what, how) = (pair[0], pair.get(1).copied().unwrap_or(0));
        match what % 8 {
            0..=3 => {
                let bytes = BLOCK * (1 + usize::from(how % 9)) + usize::from(how);
                let body = store.body(what >> 3, bytes, u64::from(how % 24));
                store.publish(ATTACKER, body);
            }
            4 | 5 => store.publish(VICTIM, vec![how; usize::from(how)]),
            6 => {
                let journal = store.journal.as_ref().expect("it is open");
                journal.seal(&*store.state, Timestamp(1)).map_err(|error| error.to_string())?;
            }
            _ => store.reopen(how)?,
        }
    }
    store.reopen(1)?;
    store.publish(VICTIM, vec![1]);
    store.reopen(2)
}

/// The same for a fuzzer: panics when it does not hold.
pub fn forged(input: &[u8]) {
    if let Err(error) = try_forged(input, false) {
        panic!("{error}");
    }
}
