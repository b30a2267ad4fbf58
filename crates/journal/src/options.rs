//! Every maximum of a journal, with its unit and its reason.

use std::time::Duration;

/// Sizes of a journal. The defaults suit a server; tests make them small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// Bytes of a gathering frame past which the next append begins a new one: large
    /// enough that a flush moves much, small enough that its wait stays short.
    pub frame_bytes: usize,
    /// Bytes that may wait to be written before appends must wait: bounds memory
    /// when the disk is slower than the publishers.
    pub waiting_bytes_max: usize,
    /// Bytes of log after which what is in memory is written out as a segment. Bounds both
    /// the replay at opening and the part of the tail that cannot be dropped.
    pub seal_bytes: u64,
    /// Bytes of the newest entries kept in memory for readers.
    pub tail_bytes: u64,
    /// Bytes in memory that are in no segment yet past which appends must wait.
    pub unsealed_bytes_max: u64,
    /// Bytes of the disk that messages may not fill: checkpoints and manifests need them, and so
    /// does everything that frees room.
    pub reserve_bytes: u64,
    /// How long a disk that refuses what was let in is left alone before the same frames are tried
    /// again.
    pub full_retry: Duration,
    /// Bytes of a block, the unit in which a segment is read and indexed.
    pub block_bytes: usize,
    /// Bytes up to which neighbouring small segments are merged into one.
    pub merged_bytes_max: u64,
    /// Share of dead bytes, in percent, from which a segment is rewritten without them.
    pub dead_percent: u64,
    /// How long superseded messages of a compacted topic may stay when nothing else makes them go;
    /// zero for as long as they like.
    pub compact_within: Duration,
    /// Threads that read history; zero reads in the caller's thread (for simulation).
    pub recovery_threads: usize,
    /// Requests for history that may wait for a thread.
    pub recovery_queue_max: usize,
    /// How long a flush may take before the log says so; zero says nothing.
    pub slow_flush: Duration,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            frame_bytes: 1024 * 1024,
            waiting_bytes_max: 64 * 1024 * 1024,
            seal_bytes: 64 * 1024 * 1024,
            tail_bytes: 64 * 1024 * 1024,
            unsealed_bytes_max: 256 * 1024 * 1024,
            reserve_bytes: 4 * 1024 * 1024,
            full_retry: Duration::from_millis(20),
            block_bytes: 128 * 1024,
            merged_bytes_max: 256 * 1024 * 1024,
            dead_percent: 50,
            compact_within: Duration::from_secs(10 * 60),
            recovery_threads: 2,
            recovery_queue_max: 4096,
            slow_flush: Duration::from_secs(1),
        }
    }
}

impl JournalOptions {
    /// Sizes for tests and simulations: everything happens after a few kilobytes.
    pub fn small() -> Self {
        Self {
            frame_bytes: 8 * 1024,
            waiting_bytes_max: 64 * 1024,
            seal_bytes: 64 * 1024,
            tail_bytes: 16 * 1024,
            unsealed_bytes_max: 256 * 1024,
            reserve_bytes: 16 * 1024,
            full_retry: Duration::from_millis(1),
            block_bytes: 2 * 1024,
            merged_bytes_max: 256 * 1024,
            dead_percent: 50,
            compact_within: Duration::from_secs(10 * 60),
            recovery_threads: 0,
            recovery_queue_max: 64,
            slow_flush: Duration::from_secs(1),
        }
    }
}
