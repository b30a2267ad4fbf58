//! Data folders that were made once and must open for ever: where they lie, how they are
//! opened, and how one is copied before it is touched.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gapless_broker::{Broker, BrokerOptions, JournalOptions, ManualClock};
use gapless_core::{Epoch, Timestamp, TopicName};
use gapless_journal::file_log::FileLogOptions;

pub(crate) const EPOCH: Epoch = Epoch(0x6761_706c_6573_7331);
pub(crate) const MADE_AT: Timestamp = Timestamp(1_800_000_000_000);

pub(crate) fn name(text: &str) -> TopicName {
    TopicName::parse(text).unwrap()
}

/// A broker of this folder at this time, with everything small and no threads.
pub(crate) fn open_at(folder: &Path, now: Timestamp) -> (Broker, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(now));
    let mut options = BrokerOptions::new(folder);
    options.clock = Arc::clone(&clock) as _;
    options.epoch = Some(EPOCH);
    options.threads = false;
    options.journal = JournalOptions::small();
    options.log = FileLogOptions { first_file_bytes: 32 * 1024, file_bytes_max: 64 * 1024 };
    (Broker::open(options).unwrap(), clock)
}

/// The fixture of this name, made now if there is none and it is asked for.
pub(crate) fn fixture(name: &str, make: fn(&Path)) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    if std::env::var_os("GAPLESS_MAKE_FIXTURE").is_some() && !folder.exists() {
        make(&folder);
    }
    folder
}

pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
