//! Checkpoints: the state of everything that is not messages, as a list of items.
//!
//! What an item is, its owner knows. Items are taken while publishing goes on, each at a
//! moment of its own; so each must carry the position as of which it is true, and replay
//! skips for it what came before. That makes a checkpoint of a million topics without
//! stopping anybody.

use bytes::{Buf, Bytes};

use crate::blobs::{BlobError, BlobWriter, Blobs, Created};
use crate::error::OpenError;

const MAGIC: &[u8; 8] = b"gaplchk\n";
const END: &[u8; 8] = b"gaplend\n";
/// The version of the checkpoint format.
pub const CHECKPOINT_VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;

/// Writes items one after the other.
pub(crate) struct CheckpointWriter {
    name: String,
    blob: Box<dyn BlobWriter>,
    count: u64,
    bytes: u64,
}

impl CheckpointWriter {
    pub(crate) fn create(blobs: &dyn Blobs, name: &str) -> Result<Self, BlobError> {
        let mut blob = blobs.create(name)?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..10].copy_from_slice(&CHECKPOINT_VERSION.to_le_bytes());
        blob.write(&header)?;
        Ok(Self { name: name.to_owned(), blob, count: 0, bytes: 0 })
    }

    pub(crate) fn item(&mut self, item: &[u8]) -> Result<(), BlobError> {
        let len = u32::try_from(item.len()).expect("an item is shorter than 4 GiB");
        self.count += 1;
        self.bytes += item.len() as u64 + 8;
        self.blob.write(&len.to_le_bytes())?;
        self.blob.write(&crc32c::crc32c(item).to_le_bytes())?;
        self.blob.write(item)
    }

    /// Ends it, durable, and tells its size.
    pub(crate) fn finish(mut self) -> Result<u64, BlobError> {
        self.blob.write(END)?;
        self.blob.write(&self.count.to_le_bytes())?;
        match self.blob.finish()? {
            Created::New => Ok(self.bytes),
            Created::AlreadyThere => Err(name_taken(self.name)),
        }
    }
}

/// Names are given once, so whoever finds one taken would go on with somebody else's blob.
pub(crate) fn name_taken(name: String) -> BlobError {
    let source = std::io::ErrorKind::AlreadyExists.into();
    BlobError::Io { doing: "name", name, source }
}

/// Reads a checkpoint and hands each item to `visit`.
///
/// # Errors
/// When it is damaged or of a newer version, or `visit` refuses an item.
pub fn read_checkpoint(
    blobs: &dyn Blobs,
    name: &str,
    visit: &mut dyn FnMut(Bytes) -> Result<(), String>,
) -> Result<(), OpenError> {
    let damaged = |why: &str| OpenError::Damaged { name: name.to_owned(), why: why.to_owned() };
    let mut rest = blobs.read(name)?;
    if rest.len() < HEADER_BYTES + END.len() + 8 || !rest.starts_with(MAGIC) {
        return Err(damaged("it is no checkpoint"));
    }
    let found = u16::from_le_bytes([rest[8], rest[9]]);
    if found != CHECKPOINT_VERSION {
        let name = name.to_owned();
        return Err(OpenError::Version { name, found, known: CHECKPOINT_VERSION });
    }
    rest.advance(HEADER_BYTES);
    let mut end = rest.split_off(rest.len() - END.len() - 8);
    if !end.starts_with(END) {
        return Err(damaged("its end is missing"));
    }
    end.advance(END.len());
    let mut expected = end.get_u64_le();
    while !rest.is_empty() {
        if rest.len() < 8 {
            return Err(damaged("an item is cut short"));
        }
        let (len, crc) = (rest.get_u32_le() as usize, rest.get_u32_le());
        if rest.len() < len {
            return Err(damaged("an item is cut short"));
        }
        let item = rest.split_to(len);
        if crc32c::crc32c(&item) != crc {
            return Err(damaged("the checksum of an item does not fit"));
        }
        visit(item).map_err(|why| damaged(&why))?;
        expected = expected.checked_sub(1).ok_or_else(|| damaged("it has too many items"))?;
    }
    if expected == 0 { Ok(()) } else { Err(damaged("items are missing")) }
}
