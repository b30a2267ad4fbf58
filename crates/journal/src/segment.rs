//! A segment: part of the journal, sorted by topic and seq, never changed once made.
//!
//! It is two blobs: the data, blocks of batches exactly as they were in the log, each block
//! at a multiple of 64 bytes; and the [`Index`]. The data alone says everything: every seq
//! that was ever in it is accounted for by some batch, even when its message is gone.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use gapless_core::{Batch, Entry, EntryError, EntryHeader, Position};

use crate::blobs::{Blob, BlobError, BlobWriter, Blobs, Created};
use crate::buffers;
use crate::checkpoint::name_taken;
use crate::doctor::TopicHistory;
use crate::error::ReadError;
use crate::index::{BlockRow, Index, IndexBuilder, IndexFault};

pub(crate) const MAGIC: &[u8; 8] = b"gaplseg\n";
/// The version of the segment format.
pub const SEGMENT_VERSION: u16 = 1;
const HEADER_BYTES: u64 = 64;
/// Where a block may start, in the file and in memory: copies between places that are equal
/// modulo 64 are fast.
const BLOCK_ALIGN: u64 = 64;
/// Bytes of a piece of a block: what is read of each topic at once where many are read.
const PIECE_BYTES: usize = 15 * 1024;
/// Bytes read at once when data is scanned from end to end.
const SCAN_BYTES: usize = 1024 * 1024;
/// The most bytes of a block in a rebuilt index.
const REBUILT_BLOCK_BYTES: usize = 128 * 1024;

/// How the name of the data ends.
pub(crate) const DATA_ENDING: &str = ".data";
/// How the name of the index ends.
pub(crate) const INDEX_ENDING: &str = ".index";

/// What a manifest knows of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// The name of the blobs, without their endings.
    pub name: Arc<str>,
    /// The first position in it.
    pub first: Position,
    /// The last position it accounts for: everything up to here, from the segment before
    /// on, is in it or gone.
    pub last: Position,
    /// The length of its data.
    pub bytes: u64,
}

impl SegmentMeta {
    /// The blob with the batches.
    pub fn data_name(&self) -> String {
        format!("{}{DATA_ENDING}", self.name)
    }

    /// The blob with the tables.
    pub fn index_name(&self) -> String {
        format!("{}{INDEX_ENDING}", self.name)
    }
}

/// A segment that can be read.
#[derive(Debug)]
pub struct Segment {
    meta: SegmentMeta,
    data_name: Arc<str>,
    data: Arc<dyn Blob>,
    index: Index,
}

/// Writes a segment; batches must come sorted by topic and seq.
pub(crate) struct SegmentWriter<'a> {
    blobs: &'a dyn Blobs,
    name: String,
    data: Box<dyn BlobWriter>,
    index: IndexBuilder,
    epoch: u64,
    offset: u64,
}

impl<'a> SegmentWriter<'a> {
    pub(crate) fn create(
        blobs: &'a dyn Blobs,
        name: String,
        epoch: u64,
        block_bytes: usize,
    ) -> Result<Self, BlobError> {
        let mut data = blobs.create(&format!("{name}.data"))?;
        data.write(&header(epoch))?;
        let index = IndexBuilder::new(epoch, block_bytes);
        Ok(Self { blobs, name, data, index, epoch, offset: HEADER_BYTES })
    }

    /// See [`BlobWriter::read_rarely`].
    pub(crate) fn read_rarely(&mut self) {
        self.data.read_rarely();
    }

    pub(crate) fn push(&mut self, batch: &Batch) -> Result<(), BlobError> {
        if self.index.begins_block(batch) {
            let pad = self.offset.next_multiple_of(BLOCK_ALIGN) - self.offset;
            self.data.write(&[0; BLOCK_ALIGN as usize][..pad as usize])?;
            self.offset += pad;
        }
        self.index.push(batch, self.offset);
        self.data.write(batch.bytes())?;
        self.offset += batch.bytes().len() as u64;
        Ok(())
    }

    /// Bytes written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Ends it: durable, data first, then the index. `last` is the last position it
    /// accounts for, even if nothing is left of that.
    pub(crate) fn finish(self, last: Position) -> Result<Segment, BlobError> {
        let (first, _, index) = self.index.finish(self.offset);
        let meta = SegmentMeta { name: self.name.into(), first, last, bytes: self.offset };
        if self.data.finish()? == Created::AlreadyThere {
            return Err(name_taken(meta.data_name()));
        }
        if self.blobs.put(&meta.index_name(), &index)? == Created::AlreadyThere {
            return Err(name_taken(meta.index_name()));
        }
        Segment::open(self.blobs, meta, self.epoch).map_err(|error| match error {
            ReadError::Blobs(error) => Arc::into_inner(error).unwrap_or(BlobError::Full),
            other => BlobError::Io {
                doing: "read back",
                name: other.to_string(),
                source: std::io::ErrorKind::InvalidData.into(),
            },
        })
    }
}

fn header(epoch: u64) -> [u8; HEADER_BYTES as usize] {
    header_of(epoch, SEGMENT_VERSION)
}

fn header_of(epoch: u64, version: u16) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..10].copy_from_slice(&version.to_le_bytes());
    header[16..24].copy_from_slice(&epoch.to_le_bytes());
    let crc = crc32c::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

impl Segment {
    /// Looks at it without changing anything. An index that is missing or damaged is made
    /// again from the data, which is read from end to end for that.
    pub(crate) fn find(
        blobs: &dyn Blobs,
        meta: SegmentMeta,
        store: u64,
    ) -> Result<Unopened, ReadError> {
        let (data_name, data) = open_data(blobs, &meta)?;
        let epoch = read_header(&*data, &data_name)?;
        if epoch != store {
            let why = "it belongs to another store".to_owned();
            return Err(ReadError::Damaged { name: data_name, offset: 0, why });
        }
        match Index::open(blobs, &meta.index_name(), meta.bytes) {
            Ok(index) => Ok(Unopened::Ready(Self { meta, data_name, data, index })),
            Err(IndexFault::Read(error)) => Err(error.into()),
            Err(IndexFault::Unusable(why)) => {
                let index = build_index(&meta, &*data, epoch)?;
                Ok(Unopened::WithoutIndex { meta, data_name, data, index, why })
            }
        }
    }

    /// Opens it, with its index made again if need be.
    pub(crate) fn open(
        blobs: &dyn Blobs,
        meta: SegmentMeta,
        store: u64,
    ) -> Result<Self, ReadError> {
        Ok(Self::find(blobs, meta, store)?.open(blobs)?.0)
    }

    /// What a manifest knows of it.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Reads neighbouring blocks into one buffer and checks each. The rows must be neighbours.
    pub(crate) fn read_blocks(&self, rows: &[BlockRow]) -> Result<Vec<Bytes>, ReadError> {
        self.fill_blocks(rows, |into, offset| Ok(self.data.read_at(into, offset)?))
    }

    /// The same if the system has all of them in memory; never waits for the disk.
    pub(crate) fn read_blocks_cached(
        &self,
        rows: &[BlockRow],
    ) -> Result<Option<Vec<Bytes>>, ReadError> {
        let read =
            self.fill_blocks(rows, |into, offset| match self.data.read_cached_at(into, offset) {
                Ok(true) => Ok(()),
                Ok(false) => Err(None),
                Err(error) => Err(Some(ReadError::from(error))),
            });
        match read {
            Ok(blocks) => Ok(Some(blocks)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    fn fill_blocks<E: From<ReadError>>(
        &self,
        rows: &[BlockRow],
        read: impl Fn(&mut [u8], u64) -> Result<(), E>,
    ) -> Result<Vec<Bytes>, E> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(Vec::new());
        };
        let end = last.offset + u64::from(last.bytes);
        let len = (end - first.offset) as usize;
        let place = |row: &BlockRow| {
            let from = (row.offset - first.offset) as usize;
            from..from + row.bytes as usize
        };
        // Block by block: each is checked while it is still in the processor's cache.
        let bytes = buffers::filled(len, |into| {
            rows.iter().try_for_each(|row| -> Result<(), E> {
                let into = &mut into[place(row)];
                read(into, row.offset)?;
                if crc32c::crc32c(into) == row.crc {
                    return Ok(());
                }
                Err(self.damaged(row.offset, "the checksum of a block does not fit").into())
            })
        })?;
        Ok(rows.iter().map(|row| bytes.slice(place(row))).collect())
    }

    /// Reads some batches of a block, at least one: from `at`, where one begins, to `end` at
    /// most. Each is checked by its own checksums, since that of the block needs all of it.
    pub(crate) fn read_piece(&self, at: u64, end: u64) -> Result<Bytes, ReadError> {
        let left = (end - at) as usize;
        let mut wanted = left.min(PIECE_BYTES);
        loop {
            let bytes = buffers::filled(wanted, |into| self.data.read_at(into, at))?;
            let mut whole = 0;
            let fault = loop {
                match Entry::verify(&bytes[whole..], crc32c::crc32c) {
                    Ok(len) => whole += len,
                    Err(why) => break why,
                }
            };
            let is_cut = fault == EntryError::Short && (wanted < left || whole == wanted);
            if !is_cut {
                return Err(self.damaged(at + whole as u64, &fault.to_string()));
            }
            if whole > 0 {
                return Ok(bytes.slice(..whole));
            }
            // A batch that is larger than a piece; its header, which is checked, says how
            // large.
            let needed = EntryHeader::read(&bytes).map_or(left, |(_, len)| len);
            wanted = needed.max(wanted + 1).min(left);
        }
    }

    pub(crate) fn damaged(&self, offset: u64, why: &str) -> ReadError {
        let name = Arc::clone(&self.data_name);
        ReadError::Damaged { name, offset, why: why.to_owned() }
    }

    /// Reads all of a segment and checks every byte, without changing anything.
    /// `progress` gets how much of the data is done.
    pub(crate) fn examine(
        blobs: &dyn Blobs,
        meta: &SegmentMeta,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Examined, ReadError> {
        let (data_name, data) = open_data(blobs, meta)?;
        read_header(&*data, &data_name)?;
        let mut batches = 0;
        scan(&*data, &data_name, |batch, offset| {
            batches += 1;
            progress(offset + batch.bytes().len() as u64);
        })?;
        let index = match Index::open(blobs, &meta.index_name(), meta.bytes) {
            Ok(index) => index,
            Err(IndexFault::Read(error)) => return Err(error.into()),
            Err(IndexFault::Unusable(why)) => {
                return Ok(Examined { batches, index_fault: Some(why) });
            }
        };
        // The data is good, so whatever is wrong now is the index's.
        let segment = Self { meta: meta.clone(), data_name, data, index };
        let index_fault = match segment.check_index() {
            Ok(()) => None,
            Err(ReadError::Blobs(error)) => return Err(ReadError::Blobs(error)),
            Err(error) => Some(error.to_string()),
        };
        Ok(Examined { batches, index_fault })
    }

    /// Checks every row of the index, and every block against its row.
    fn check_index(&self) -> Result<(), ReadError> {
        let mut from = 0;
        while from < self.index.block_count() {
            let rows = self.index.blocks(from, 256)?;
            from += rows.len() as u64;
            for row in rows {
                self.read_blocks(&[row])?;
            }
        }
        let mut from = 0;
        while from < self.index.key_count() {
            from += self.index.keys(from, 1024)?.len() as u64;
        }
        Ok(())
    }
}

/// A segment that was looked at, and not changed yet.
pub(crate) enum Unopened {
    Ready(Segment),
    WithoutIndex {
        meta: SegmentMeta,
        data_name: Arc<str>,
        data: Arc<dyn Blob>,
        /// The bytes of its index.
        index: Vec<u8>,
        why: String,
    },
}

impl Unopened {
    pub(crate) fn meta(&self) -> &SegmentMeta {
        match self {
            Self::Ready(segment) => segment.meta(),
            Self::WithoutIndex { meta, .. } => meta,
        }
    }

    /// Opens it; tells why its index had to be written again, if so.
    pub(crate) fn open(self, blobs: &dyn Blobs) -> Result<(Segment, Option<String>), ReadError> {
        let (meta, data_name, data, bytes, why) = match self {
            Self::Ready(segment) => return Ok((segment, None)),
            Self::WithoutIndex { meta, data_name, data, index, why } => {
                (meta, data_name, data, index, why)
            }
        };
        let name = meta.index_name();
        blobs.delete(&name)?;
        blobs.put(&name, &bytes)?;
        let index = Index::open(blobs, &name, meta.bytes).map_err(|fault| match fault {
            IndexFault::Read(error) => error.into(),
            IndexFault::Unusable(why) => ReadError::Damaged { name: name.into(), offset: 0, why },
        })?;
        Ok((Segment { meta, data_name, data, index }, Some(why)))
    }
}

/// What [`Segment::examine`] found in a segment whose data is whole.
pub(crate) struct Examined {
    pub(crate) batches: u64,
    /// Why its index cannot be used.
    pub(crate) index_fault: Option<String>,
}

/// Opens the data, if it is as long as it should be.
fn open_data(
    blobs: &dyn Blobs,
    meta: &SegmentMeta,
) -> Result<(Arc<str>, Arc<dyn Blob>), ReadError> {
    let name: Arc<str> = meta.data_name().into();
    let data = blobs.open(&name)?;
    if data.len() == meta.bytes {
        return Ok((name, data));
    }
    let why = format!("it has {} bytes instead of {}", data.len(), meta.bytes);
    Err(ReadError::Damaged { name, offset: data.len(), why })
}

/// The bytes of the index. Blocks are found by what separates them in the data: another
/// topic, or padding.
fn build_index(meta: &SegmentMeta, data: &dyn Blob, epoch: u64) -> Result<Vec<u8>, ReadError> {
    let mut builder = IndexBuilder::new(epoch, REBUILT_BLOCK_BYTES);
    scan(data, &meta.data_name(), |batch, offset| builder.push(batch, offset))?;
    Ok(builder.finish(meta.bytes).2)
}

/// The epoch of the store that wrote this data.
pub(crate) fn epoch_of(blobs: &dyn Blobs, data_name: &str) -> Result<u64, ReadError> {
    read_header(&*blobs.open(data_name)?, &data_name.into())
}

/// The last position in this data; `None` if it holds nothing.
pub(crate) fn last_position(
    blobs: &dyn Blobs,
    data_name: &str,
) -> Result<Option<Position>, ReadError> {
    let mut last = None;
    scan(&*blobs.open(data_name)?, data_name, |batch, _| {
        last = last.max(Some(batch.header().last_position()));
    })?;
    Ok(last)
}

/// What a manifest has to know of a segment, and what it holds of each topic, by its data
/// alone; `None` if it holds nothing.
pub(crate) fn survey(
    blobs: &dyn Blobs,
    stem: &str,
) -> Result<Option<(SegmentMeta, Vec<TopicHistory>)>, ReadError> {
    let name = format!("{stem}{DATA_ENDING}");
    let data = blobs.open(&name)?;
    let (mut first, mut last) = (Position(u64::MAX), Position(0));
    let mut topics: Vec<TopicHistory> = Vec::new();
    scan(&*data, &name, |batch, _| {
        let header = batch.header();
        first = first.min(header.position);
        last = last.max(header.last_position());
        let here = TopicHistory {
            topic: header.topic,
            first: header.seq,
            last: header.last_seq(),
            position: header.last_position(),
            oldest: header.time,
        };
        // Batches are sorted by topic and seq.
        match topics.last_mut().filter(|known| known.topic == header.topic) {
            Some(known) => {
                *known = TopicHistory { first: known.first, oldest: known.oldest, ..here }
            }
            None => topics.push(here),
        }
    })?;
    let meta = SegmentMeta { name: stem.into(), first, last, bytes: data.len() };
    Ok((!topics.is_empty()).then_some((meta, topics)))
}

/// Checks the header of the data and tells the epoch in it.
fn read_header(data: &dyn Blob, name: &Arc<str>) -> Result<u64, ReadError> {
    let damaged = |why: String| ReadError::Damaged { name: Arc::clone(name), offset: 0, why };
    if data.len() < HEADER_BYTES {
        return Err(damaged("it has no header".to_owned()));
    }
    let mut found = [0; HEADER_BYTES as usize];
    data.read_at(&mut found, 0)?;
    let version = u16::from_le_bytes([found[8], found[9]]);
    let epoch = u64::from_le_bytes(found[16..24].try_into().expect("eight bytes are eight"));
    if found == header(epoch) {
        Ok(epoch)
    } else if header_of(epoch, version) == found {
        Err(ReadError::Version { name: Arc::clone(name), found: version, known: SEGMENT_VERSION })
    } else {
        Err(damaged("its header is damaged".to_owned()))
    }
}

/// Goes over all batches of the data, checking each, and tells where it lies.
fn scan(data: &dyn Blob, name: &str, mut visit: impl FnMut(&Batch, u64)) -> Result<(), ReadError> {
    let mut bytes = BytesMut::new();
    let mut offset = HEADER_BYTES;
    let damaged = |offset: u64, why: EntryError| ReadError::Damaged {
        name: name.into(),
        offset,
        why: why.to_string(),
    };
    loop {
        let have = offset + bytes.len() as u64;
        match next_batch(&bytes, offset) {
            Ok(Scanned::Padding(pad)) => {
                bytes = bytes.split_off(pad.min(bytes.len()));
                offset += pad as u64;
                continue;
            }
            Ok(Scanned::Batch(len)) => {
                let mut entry = bytes.split_to(len).freeze();
                let entry = Entry::take_trusted(&mut entry).map_err(|why| damaged(offset, why))?;
                let batch = Batch::new(entry)
                    .ok_or_else(|| damaged(offset, EntryError::Unknown { kind: 0, version: 0 }))?;
                visit(&batch, offset);
                offset += len as u64;
                continue;
            }
            Err(EntryError::Short) if have < data.len() => {}
            Err(EntryError::Short) if bytes.is_empty() => return Ok(()),
            Err(why) => return Err(damaged(offset, why)),
        }
        let more = SCAN_BYTES.min((data.len() - have) as usize);
        let from = bytes.len();
        bytes.resize(from + more, 0);
        data.read_at(&mut bytes[from..], have)?;
    }
}

enum Scanned {
    Padding(usize),
    Batch(usize),
}

/// What stands at the start of `bytes`, which lie at `offset`. An entry is tried first: its
/// length may begin with zero bytes too, but its checksum tells.
fn next_batch(bytes: &[u8], offset: u64) -> Result<Scanned, EntryError> {
    Entry::verify(bytes, crc32c::crc32c).map(Scanned::Batch).or_else(|why| {
        let to_next = (offset.next_multiple_of(BLOCK_ALIGN) - offset) as usize;
        let padding = to_next > 0
            && why != EntryError::Short
            && bytes[..to_next.min(bytes.len())].iter().all(|&byte| byte == 0);
        if padding { Ok(Scanned::Padding(to_next)) } else { Err(why) }
    })
}
