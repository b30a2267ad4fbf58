//! Checkpoints: the state of everything that is not messages, as a list of items.
//!
//! What an item is, its owner knows. Items are taken while publishing goes on, each at a
//! moment of its own; so each must carry the position as of which it is true, and replay
//! skips for it what came before. That makes a checkpoint of a million topics without
//! stopping publishers.
//!
//! Nothing else holds what is in one, so each is written twice, to two blobs with the same
//! bytes. Whichever is damaged or missing is written again from the other.

use bytes::{Buf, Bytes};
use gapless_core::Position;

use crate::blobs::{BlobError, BlobWriter, Blobs, Created};
use crate::error::OpenError;
use crate::log::Lsn;

pub(crate) const MAGIC: &[u8; 8] = b"gaplchk\n";
const END: &[u8; 8] = b"gaplend\n";
/// The version of the checkpoint format. Version 1 did not say whose it is, and had no copy.
pub const CHECKPOINT_VERSION: u16 = 2;
const HEADER_BYTES: usize = 64;
const HEADER_BYTES_V1: usize = 16;

/// The name of the second blob of a checkpoint.
pub(crate) fn copy_name(name: &str) -> String {
    format!("{name}.copy")
}

/// What a checkpoint says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The store's.
    pub(crate) epoch: u64,
    /// The first frame that it does not wholly tell of.
    pub(crate) replay_from: Lsn,
    /// All batches through this position were in segments when it was made.
    pub(crate) sealed: Position,
}

impl Head {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&CHECKPOINT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.replay_from.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sealed.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Writes items one after the other, to both blobs.
pub(crate) struct CheckpointWriter {
    blobs: [(String, Box<dyn BlobWriter>); 2],
    count: u64,
    bytes: u64,
}

impl CheckpointWriter {
    pub(crate) fn create(blobs: &dyn Blobs, name: &str, head: Head) -> Result<Self, BlobError> {
        let begin = |name: String| {
            let mut blob = blobs.create(&name)?;
            blob.write(&head.encode())?;
            Ok((name, blob))
        };
        let both = [begin(name.to_owned())?, begin(copy_name(name))?];
        Ok(Self { blobs: both, count: 0, bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.blobs.iter_mut().try_for_each(|(_, blob)| blob.write(bytes))
    }

    pub(crate) fn item(&mut self, item: &[u8]) -> Result<(), BlobError> {
        let len = u32::try_from(item.len()).expect("an item is shorter than 4 GiB");
        self.count += 1;
        self.bytes += item.len() as u64 + 8;
        self.write(&len.to_le_bytes())?;
        self.write(&crc32c::crc32c(item).to_le_bytes())?;
        self.write(item)
    }

    /// Ends it, durable, and tells its size.
    pub(crate) fn finish(mut self) -> Result<u64, BlobError> {
        self.write(END)?;
        self.write(&self.count.to_le_bytes())?;
        for (name, blob) in self.blobs {
            if blob.finish()? == Created::AlreadyThere {
                return Err(name_taken(name));
            }
        }
        Ok(self.bytes)
    }
}

/// Names are given once, so a writer that finds one taken would go on with the blob of another.
pub(crate) fn name_taken(name: String) -> BlobError {
    let source = std::io::ErrorKind::AlreadyExists.into();
    BlobError::Io { doing: "name", name, source }
}

/// A checkpoint, read and checked.
pub(crate) struct Checkpoint {
    /// `None` of one of version 1.
    pub(crate) head: Option<Head>,
    pub(crate) items: Vec<Bytes>,
    bytes: Bytes,
    /// The one of the two blobs that has to be written again, and why.
    pub(crate) lost: Option<(String, String)>,
}

impl Checkpoint {
    /// Reads the checkpoint, or its copy.
    ///
    /// # Errors
    /// That of the first, when both are damaged; or that it was written by a newer program.
    pub(crate) fn load(blobs: &dyn Blobs, name: &str, epoch: u64) -> Result<Self, OpenError> {
        let copy = copy_name(name);
        match Self::load_one(blobs, name, epoch) {
            Ok(mut checkpoint) => {
                if matches!(blobs.open(&copy), Err(BlobError::Missing { .. })) {
                    checkpoint.lost = Some((copy, "it is missing".to_owned()));
                }
                Ok(checkpoint)
            }
            Err(OpenError::Version { name, found, known }) => {
                Err(OpenError::Version { name, found, known })
            }
            Err(why) => {
                let Ok(checkpoint) = Self::load_one(blobs, &copy, epoch) else { return Err(why) };
                let lost = Some((name.to_owned(), why.to_string()));
                Ok(Self { lost, ..checkpoint })
            }
        }
    }

    /// Reads the blob of this name and checks all of it.
    pub(crate) fn load_one(blobs: &dyn Blobs, name: &str, epoch: u64) -> Result<Self, OpenError> {
        let damaged = |why: &str| OpenError::Damaged { name: name.to_owned(), why: why.to_owned() };
        let bytes = blobs.read(name)?;
        let (head, mut rest) = read_head(name, &bytes)?;
        if head.is_some_and(|head| head.epoch != epoch) {
            return Err(damaged("it belongs to another store"));
        }
        if rest.len() < END.len() + 8 {
            return Err(damaged("its end is missing"));
        }
        let mut end = rest.split_off(rest.len() - END.len() - 8);
        if !end.starts_with(END) {
            return Err(damaged("its end is missing"));
        }
        end.advance(END.len());
        let expected = end.get_u64_le();
        let mut items = Vec::new();
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
            items.push(item);
        }
        if items.len() as u64 != expected {
            return Err(damaged("it has not as many items as it says"));
        }
        Ok(Self { head, items, bytes, lost: None })
    }

    /// Writes the one again that was lost.
    pub(crate) fn restore_lost(&self, blobs: &dyn Blobs) -> Result<(), BlobError> {
        if let Some((name, _)) = &self.lost {
            blobs.delete(name)?;
            blobs.put(name, &self.bytes)?;
        }
        Ok(())
    }
}

/// What a checkpoint says of itself, and what follows.
pub(crate) fn read_head(name: &str, bytes: &Bytes) -> Result<(Option<Head>, Bytes), OpenError> {
    let damaged = |why: &str| OpenError::Damaged { name: name.to_owned(), why: why.to_owned() };
    if bytes.len() < HEADER_BYTES_V1 || !bytes.starts_with(MAGIC) {
        return Err(damaged("it is not a checkpoint"));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version == 1 {
        return Ok((None, bytes.slice(HEADER_BYTES_V1..)));
    }
    let mut head = bytes.clone();
    let rest = head.split_off(HEADER_BYTES.min(bytes.len()));
    let crc = head.get(..60).map(crc32c::crc32c);
    if crc.is_none() || crc != head.get(60..).map(|mut stored| stored.get_u32_le()) {
        return Err(damaged("its header is damaged"));
    }
    if version != CHECKPOINT_VERSION {
        let (name, known) = (name.to_owned(), CHECKPOINT_VERSION);
        return Err(OpenError::Version { name, found: version, known });
    }
    head.advance(16);
    let epoch = head.get_u64_le();
    let (replay_from, sealed) = (Lsn(head.get_u64_le()), Position(head.get_u64_le()));
    Ok((Some(Head { epoch, replay_from, sealed }), rest))
}

/// Reads the checkpoint of the store with this epoch, or its copy, and hands each item to
/// `visit`.
///
/// # Errors
/// When it is damaged or of a newer version, or `visit` refuses an item.
pub fn read_checkpoint(
    blobs: &dyn Blobs,
    (name, epoch): (&str, u64),
    visit: &mut dyn FnMut(Bytes) -> Result<(), String>,
) -> Result<(), OpenError> {
    let checkpoint = Checkpoint::load(blobs, name, epoch)?;
    checkpoint.items.into_iter().try_for_each(visit).map_err(|why| {
        let name = name.to_owned();
        OpenError::Damaged { name, why }
    })
}
