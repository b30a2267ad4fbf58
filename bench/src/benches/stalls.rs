//! The longest time without an ack while one publisher keeps its window full.
//!
//! A rate says nothing about moments in which everything stands still. Here the time between
//! one ack and the next is watched over the whole run, and the longest is the figure: what a
//! publisher sees when segments, checkpoints or the making of log files get in its way.
//!
//! Beside it stands the longest flush of a small file that nothing else uses, in the same time: a
//! gap of that length is the disk's own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_core::{Compaction, Durability, Message, PublishOptions, TopicName, TopicSettings};

use super::size_name;
use super::store::{Folder, Result, message, open};
use super::window::Window;

/// Publishes in flight, for small messages.
const IN_FLIGHT: usize = 4096;
/// Bytes in flight at most, which bounds the window of large messages.
const IN_FLIGHT_BYTES: usize = 1024 * 1024;
/// Different keys, where messages have one.
const KEYS: u64 = 1_000_000;
/// Messages of this many bytes and more are large.
const LARGE_BYTES: usize = 16 * 1024;
/// The longest time without an ack that is good enough, in microseconds.
const GAP_US_MAX: f64 = 50_000.0;
/// Bytes of a bare flush, and of the file that is flushed.
const BARE_BYTES: usize = 4096;
const BARE_FILE_BYTES: usize = 4 * 1024 * 1024;
/// The rest between two bare flushes, so that they do not keep the disk busy themselves.
const BARE_REST: Duration = Duration::from_millis(5);
/// Gaps longer than this are counted.
const LONG: Duration = Duration::from_millis(10);

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Seconds for each case.
    pub(crate) seconds: f64,
    /// Only cases whose names contain this.
    pub(crate) only: Option<String>,
    /// Retention by bytes, so that a long run does not fill the disk.
    pub(crate) kept_bytes: u64,
}

/// What is published.
#[derive(Clone, Copy)]
struct Case {
    bytes: usize,
    keys: bool,
    compacted: bool,
    durability: Durability,
}

impl Case {
    fn name(&self) -> String {
        let keys = match (self.keys, self.compacted) {
            (false, _) => "",
            (true, false) => ", 1 M keys",
            (true, true) => ", 1 M keys, compacted",
        };
        format!("{}, {}{keys}", self.durability, size_name(self.bytes))
    }

    fn settings(&self, kept_bytes: u64) -> TopicSettings {
        let mut settings =
            TopicSettings { durability: Some(self.durability), ..TopicSettings::default() };
        settings.retention.bytes = Some(kept_bytes);
        if self.compacted {
            settings.compaction = Some(Compaction::default());
        }
        settings
    }

    fn depth(&self) -> usize {
        IN_FLIGHT.min(IN_FLIGHT_BYTES / self.bytes)
    }

    fn message(&self, number: u64, plain: &Message) -> Message {
        if !self.keys {
            return plain.clone();
        }
        // Far apart from one to the next, as keys are.
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS;
        Message { key: Some(Bytes::copy_from_slice(&key.to_be_bytes())), ..plain.clone() }
    }
}

/// Every case, as a table.
///
/// # Errors
/// When the disk or the broker answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table = Table::new("stalls: the longest time without an ack, window full");
    for durability in [Durability::Flushed, Durability::Written, Durability::Memory] {
        let small = Case { bytes: 128, keys: false, compacted: false, durability };
        let cases = [
            small,
            Case { keys: true, ..small },
            Case { keys: true, compacted: true, ..small },
            Case { bytes: LARGE_BYTES, ..small },
        ];
        for case in cases {
            let name = case.name();
            if options.only.as_ref().is_none_or(|only| name.contains(only)) {
                table.push(measure(dir, options, case)?);
            }
        }
    }
    Ok(table)
}

fn measure(dir: &Path, options: &Options, case: Case) -> Result<Row> {
    let folder = Folder::fresh(dir, "stalls")?;
    let broker = open(folder.path())?;
    let topic = TopicName::parse("bench.stalls")?;
    broker.create_topics(std::slice::from_ref(&topic), case.settings(options.kept_bytes))?;
    let plain = message(case.bytes);
    let publish_options = PublishOptions::default();
    let mut window = Window::new(&broker, case.depth());
    let mut gaps = Gaps::default();
    let bare = BareFlushes::start(dir)?;
    let limit = Duration::from_secs_f64(options.seconds);
    let started = Instant::now();
    let mut last_ack = started;
    let mut acked = 0;
    let mut messages = 0;
    while last_ack - started < limit {
        let next = case.message(messages, &plain);
        window.publish(|broker| broker.publish(&topic, &next, &publish_options))?;
        messages += 1;
        if window.acked > acked {
            acked = window.acked;
            let now = Instant::now();
            gaps.note(now - last_ack);
            last_ack = now;
        }
    }
    window.drain()?;
    let took = started.elapsed().as_secs_f64();
    let refused = window.retries;
    let bare = bare.longest()?;
    broker.close()?;
    Ok(Row::new(case.name(), Figure::micros(gaps.longest.as_secs_f64() * 1e6))
        .goal(Goal::FigureAtMost(GAP_US_MAX))
        .beside("bare flush", Figure::micros(bare.as_secs_f64() * 1e6))
        .beside("over 10 ms", Figure::count(gaps.long as f64))
        .beside("rate", Figure::per_second(messages as f64 / took))
        .beside("refused", Figure::count(refused as f64)))
}

/// Flushes of a file by itself, on a thread.
struct BareFlushes {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl BareFlushes {
    fn start(dir: &Path) -> Result<Self> {
        let path = dir.join("bare");
        let file = File::create(&path)?;
        file.write_all_at(&vec![0; BARE_FILE_BYTES], 0)?;
        file.sync_all()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::Builder::new().name("bare".to_owned()).spawn(move || {
            let mut longest = Duration::ZERO;
            let offsets = (0..BARE_FILE_BYTES as u64).step_by(BARE_BYTES).cycle();
            for offset in offsets.take_while(|_| !over.load(Ordering::Relaxed)) {
                let began = Instant::now();
                file.write_all_at(&[1; BARE_BYTES], offset)?;
                file.sync_data()?;
                longest = longest.max(began.elapsed());
                thread::park_timeout(BARE_REST);
            }
            Ok(longest)
        })?;
        Ok(Self { path, is_over, thread })
    }

    /// Ends them.
    fn longest(self) -> Result<Duration> {
        self.is_over.store(true, Ordering::Relaxed);
        let longest = self.thread.join().map_err(|_| "the bare flushes panicked")??;
        fs::remove_file(self.path)?;
        Ok(longest)
    }
}

/// Times between one ack and the next.
#[derive(Default)]
struct Gaps {
    longest: Duration,
    long: u64,
}

impl Gaps {
    fn note(&mut self, gap: Duration) {
        self.longest = self.longest.max(gap);
        self.long += u64::from(gap > LONG);
    }
}
