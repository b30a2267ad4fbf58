//! The journal of gapless: everything that must survive, as entries in one order.
//!
//! Two small traits carry it: a [`Log`](log::Log) takes the newest frames, [`Blobs`](blobs::Blobs)
//! keep what was written out of it. On top stand the [`Journal`] with its gathering frame,
//! its one flusher, its tail in memory, its segments and checkpoints. See `docs/format.md`
//! for the bytes and `ARCHITECTURE.md` for the walk of a message.
//!
//! It knows topics as numbers only; what a topic may do is the broker's.

mod admission;
pub mod blobs;
mod buffers;
mod checkpoint;
mod collector;
pub mod contract;
pub mod dir_blobs;
pub mod doctor;
mod error;
pub mod faulty;
pub mod file_log;
mod flusher;
mod frame;
pub mod fs;
mod gather;
mod history;
mod index;
mod journal;
mod keeper;
pub mod layout;
pub mod log;
mod manifest;
mod marks;
pub mod memory;
mod open;
mod open_files;
mod options;
mod orphans;
mod pacing;
mod pages;
mod pins;
mod pool;
mod quiet;
mod rehearse;
mod segment;
mod snapshot;
mod state;
mod tail;
mod times;
mod topic_reader;
mod transfer;

pub use checkpoint::{CHECKPOINT_VERSION, read_checkpoint};
pub use collector::{with_records, without};
pub use error::{BeginError, Failure, OpenError, ReadError};
pub use frame::{FrameMarks, Secret};
pub use gather::Sink;
pub use history::PatternReader;
pub use index::INDEX_VERSION;
pub use journal::{Append, Journal, JournalStats, Monotonic, TailRead, Ticket, checksum};
pub use keeper::{KeepError, Kept};
pub use log::Lsn;
pub use manifest::{Jump, MANIFEST_VERSION, Manifest};
pub use open::{Opened, Parts};
pub use open_files::OPEN_FILES_MAX;
pub use options::JournalOptions;
pub use pins::{RECORDED_BYTES_MAX, SNAPSHOTS_MAX};
pub use pool::Pending;
pub use rehearse::rehearse;
pub use segment::{SEGMENT_VERSION, Segment, SegmentMeta};
pub use snapshot::{SNAPSHOT_VERSION, Snapshot, SnapshotError};
pub use state::{ItemWriter, Policy, Recover, State};
pub use times::FlushTimes;
pub use topic_reader::{STEPS_AHEAD, TopicReader};
pub use transfer::{CopyError, Sum, copy_blob, expect, sum_of};
