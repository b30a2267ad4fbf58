//! What the process takes of the machine, as the page shows it.

use std::path::Path;

use serde_json::{Value, json};

use crate::process::{self, Disk};

/// Ticks between two looks at the open files: they are counted one by one.
const FILES_TICKS: u64 = 10;

/// The last reading.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) memory_bytes: Option<u64>,
    cpu_ms: u64,
    open_files: Option<usize>,
    open_files_max: Option<u64>,
    /// The disk that the data folder is on.
    disk: Option<Disk>,
    /// When files were counted.
    counted_at: Option<u64>,
}

impl Process {
    /// Reads everything that is cheap, and the rest now and then.
    pub(crate) fn read(&mut self, data: Option<&Path>, tick: u64) {
        self.disk = data.and_then(process::disk);
        self.memory_bytes = process::resident_bytes();
        self.cpu_ms = u64::try_from(process::cpu_time().as_millis()).unwrap_or(u64::MAX);
        if self.counted_at.is_none_or(|at| tick >= at + FILES_TICKS) {
            self.counted_at = Some(tick);
            self.open_files = process::open_files();
            self.open_files_max = process::open_files_max();
        }
    }

    pub(crate) fn shown(&self) -> Value {
        let disk = self.disk.as_ref();
        json!({
            "memory_bytes": self.memory_bytes,
            "cpu_ms": self.cpu_ms,
            "open_files": self.open_files,
            "open_files_max": self.open_files_max,
            "disk_free_bytes": disk.map(|disk| disk.free_bytes),
            "disk_bytes": disk.map(|disk| disk.size_bytes),
        })
    }
}
