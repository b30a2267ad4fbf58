//! What the machine itself can do: the figures every other figure is held against.
//!
//! Each measurement is bounded in time and in bytes, makes its own file in the folder it is
//! given, and removes it. Memory that takes part begins at a page (see [`crate::buffer`]).
//! A figure is one run's: take it in the same run as the figure you compare it with.
//!
//! Not here: direct IO and io_uring, which the broker does not use, and reads from a cold
//! disk, which cannot be had without the rights to empty the page cache.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::buffer::PageBuffer;
use crate::samples::{Rate, Samples};
use crate::table::{Figure, Row, Table};

/// One measurement is never asked to take longer.
pub const SECONDS_MAX: f64 = 10.0;

/// The time of a measurement that takes no time as an argument.
pub const SECONDS_DEFAULT: f64 = 0.5;

/// No measurement has more bytes than this on the disk at one time.
pub const FILE_BYTES_MAX: u64 = 256 * MIB as u64;

/// A pre-zeroed file is this long and written round and round, as the journal does it.
const ZEROED_FILE_BYTES: u64 = 64 * MIB as u64;

/// What is read again and again from the page cache; larger than any cache of the CPU.
const READ_FILE_BYTES: u64 = 64 * MIB as u64;

/// A wake-up that takes longer is taken for lost and looked for again.
const WAKE_WAIT_MAX: Duration = Duration::from_millis(100);

/// One call of a sequential write or read.
const IO_BYTES: usize = 256 * KIB;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Write and flush of `chunk_bytes`, one after another, on a file zeroed beforehand: the
/// best a journal on this disk can do for one writer that waits.
///
/// # Errors
///
/// When the disk answers one, or the chunk is empty or larger than the file.
pub fn flush_rate(dir: &Path, chunk_bytes: usize, seconds: f64) -> io::Result<Rate> {
    let mut writes = RawWrites::new(dir, chunk_bytes, Flush::Each)?;
    writes.run(seconds)?;
    Ok(writes.rate())
}

/// Whether each write is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// After each write, with `fdatasync`.
    Each,
    /// Never: the write only reaches the page cache.
    Never,
}

/// Writes into a zeroed file, that can be measured in several rounds: so that rounds of
/// something else can lie between them and both see the same weather.
pub struct RawWrites {
    scratch: ScratchFile,
    chunk: PageBuffer,
    flush: Flush,
    at: u64,
    samples: Samples,
}

impl RawWrites {
    /// Makes the zeroed file; nothing is measured yet.
    ///
    /// # Errors
    ///
    /// When the disk answers one, or the chunk is empty or larger than the file.
    pub fn new(dir: &Path, chunk_bytes: usize, flush: Flush) -> io::Result<Self> {
        check_chunk(chunk_bytes, ZEROED_FILE_BYTES)?;
        let scratch = ScratchFile::zeroed(dir, "flush-zeroed", ZEROED_FILE_BYTES)?;
        let (chunk, samples) = (PageBuffer::noise(chunk_bytes), Samples::default());
        Ok(Self { scratch, chunk, flush, at: 0, samples })
    }

    /// Begins again with writes of another size, into the same file.
    ///
    /// # Errors
    ///
    /// When the chunk is empty or larger than the file.
    pub fn restart(&mut self, chunk_bytes: usize, flush: Flush) -> io::Result<()> {
        check_chunk(chunk_bytes, ZEROED_FILE_BYTES)?;
        self.chunk = PageBuffer::noise(chunk_bytes);
        (self.flush, self.at, self.samples) = (flush, 0, Samples::default());
        Ok(())
    }

    /// One round.
    ///
    /// # Errors
    ///
    /// When the disk answers one.
    pub fn run(&mut self, seconds: f64) -> io::Result<()> {
        let chunk_bytes = self.chunk.as_slice().len();
        let (scratch, chunk, at) = (&mut self.scratch, self.chunk.as_slice(), &mut self.at);
        let flush = self.flush;
        let round = sample_steps(seconds, chunk_bytes, u64::MAX, || {
            if *at + chunk_bytes as u64 > ZEROED_FILE_BYTES {
                *at = 0;
            }
            scratch.file.seek(SeekFrom::Start(*at))?;
            scratch.file.write_all(chunk)?;
            *at += chunk_bytes as u64;
            match flush {
                Flush::Each => scratch.file.sync_data(),
                Flush::Never => Ok(()),
            }
        })?;
        self.samples.join(round);
        Ok(())
    }

    /// The figures of all rounds together.
    pub fn rate(&self) -> Rate {
        self.samples.rate(self.chunk.as_slice().len())
    }
}

/// Write and flush of `chunk_bytes`, one after another, at the end of a growing file: what
/// is paid by those who do not prepare their files. Ends early at [`FILE_BYTES_MAX`].
///
/// # Errors
///
/// When the disk answers one, or the chunk is empty or larger than the largest file.
pub fn flush_rate_growing(dir: &Path, chunk_bytes: usize, seconds: f64) -> io::Result<Rate> {
    check_chunk(chunk_bytes, FILE_BYTES_MAX)?;
    let mut scratch = ScratchFile::empty(dir, "flush-growing")?;
    let chunk = PageBuffer::noise(chunk_bytes);
    sample(seconds, chunk_bytes, FILE_BYTES_MAX, || {
        scratch.file.write_all(chunk.as_slice())?;
        scratch.file.sync_data()
    })
}

/// Bytes per second of a sequential write at the end of a growing file, in calls of 256 KiB,
/// with one flush for each `flush_bytes`. Ends early at [`FILE_BYTES_MAX`].
///
/// # Errors
///
/// When the disk answers one, or `flush_bytes` is zero or larger than the largest file.
pub fn sequential_write(dir: &Path, flush_bytes: usize, seconds: f64) -> io::Result<f64> {
    check_chunk(flush_bytes, FILE_BYTES_MAX)?;
    let mut scratch = ScratchFile::empty(dir, "sequential")?;
    let chunk = PageBuffer::noise(IO_BYTES.min(flush_bytes));
    let rate = sample(seconds, flush_bytes, FILE_BYTES_MAX, || {
        let mut left = flush_bytes;
        while left > 0 {
            let now = left.min(chunk.as_slice().len());
            scratch.file.write_all(&chunk.as_slice()[..now])?;
            left -= now;
        }
        scratch.file.sync_data()
    })?;
    Ok(rate.bytes_per_second)
}

/// Bytes per second read from the page cache, sequentially, in calls of `chunk` bytes.
///
/// # Errors
///
/// When the disk answers one, or the chunk is empty or larger than the file.
pub fn page_cache_read(dir: &Path, chunk: usize) -> io::Result<f64> {
    check_chunk(chunk, READ_FILE_BYTES)?;
    let mut scratch = ScratchFile::empty(dir, "read")?;
    let mut buffer = PageBuffer::noise(chunk);
    fill(&mut scratch.file, PageBuffer::noise(IO_BYTES).as_slice(), READ_FILE_BYTES)?;
    // Whole chunks only, so that a short call at the end does not blur the figure.
    let chunks = READ_FILE_BYTES / chunk as u64;
    let mut read_whole = |file: &mut File| {
        file.rewind()?;
        for _ in 0..chunks {
            file.read_exact(buffer.as_mut_slice())?;
        }
        black_box(buffer.as_slice());
        Ok(())
    };
    read_whole(&mut scratch.file)?;
    let bytes = usize::try_from(chunks).unwrap_or(usize::MAX) * chunk;
    let rate = sample(SECONDS_DEFAULT, bytes, u64::MAX, || read_whole(&mut scratch.file))?;
    Ok(rate.bytes_per_second)
}

/// Bytes per second copied from memory to memory, `bytes` at a time.
pub fn memory_copy(bytes: usize) -> f64 {
    let source = PageBuffer::noise(bytes);
    let mut destination = PageBuffer::zeroed(bytes);
    repeat_bytes(bytes, || {
        destination.as_mut_slice().copy_from_slice(black_box(source.as_slice()));
        black_box(destination.as_slice());
    })
}

/// Bytes per second through CRC-32C, `bytes` at a time.
pub fn crc32c_rate(bytes: usize) -> f64 {
    let buffer = PageBuffer::noise(bytes);
    repeat_bytes(bytes, || {
        black_box(crc32c::crc32c(black_box(buffer.as_slice())));
    })
}

/// Two threads that wake one another: the time from one wake-up sent to the answer's
/// arrival. Half of it is the least that any hand-over between threads can cost.
///
/// # Panics
///
/// When the system refuses a thread.
pub fn wake_round_trip(seconds: f64) -> Rate {
    const STOP: u64 = u64::MAX;
    let asked = AtomicU64::new(0);
    let answered = AtomicU64::new(0);
    let asker = thread::current();
    thread::scope(|scope| {
        let answerer = scope.spawn(|| {
            let mut last = 0;
            loop {
                last = wait_for_change(&asked, last);
                if last == STOP {
                    return;
                }
                tell(&answered, last, &asker);
            }
        });
        let mut turn = 0;
        let rate = sample(seconds, 0, u64::MAX, || {
            tell(&asked, turn + 1, answerer.thread());
            turn = wait_for_change(&answered, turn);
            Ok(())
        });
        tell(&asked, STOP, answerer.thread());
        rate.expect("waking a thread does not fail")
    })
}

/// Every figure, as a table; takes about fifteen times `seconds`.
///
/// # Errors
///
/// When the disk answers one.
pub fn report(dir: &Path, seconds: f64) -> io::Result<Table> {
    let mut table = Table::new("the hardware's own figures");
    for (name, chunk_bytes) in [("4 KiB", 4 * KIB), ("64 KiB", 64 * KIB), ("1 MiB", MIB)] {
        let growing = flush_rate_growing(dir, chunk_bytes, seconds)?;
        table.push(growing.row(&format!("append {name} + fdatasync, growing file")));
        let zeroed = flush_rate(dir, chunk_bytes, seconds)?;
        table.push(zeroed.row(&format!("append {name} + fdatasync, zeroed file")));
    }
    let mut push_bytes = |work: &str, bytes_per_second: f64| {
        table.push(Row::new(work, Figure::bytes_per_second(bytes_per_second)));
    };
    for (work, flush_bytes) in [
        ("sequential write, fdatasync per 1 MiB", MIB),
        ("sequential write, fdatasync per 8 MiB", 8 * MIB),
    ] {
        push_bytes(work, sequential_write(dir, flush_bytes, seconds)?);
    }
    push_bytes("read from the page cache, 256 KiB", page_cache_read(dir, 256 * KIB)?);
    push_bytes("memcpy, 16 KiB", memory_copy(16 * KIB));
    push_bytes("memcpy, 64 MiB", memory_copy(64 * MIB));
    push_bytes("crc32c, 128 B", crc32c_rate(128));
    push_bytes("crc32c, 64 KiB", crc32c_rate(64 * KIB));
    let wake = wake_round_trip(seconds);
    table.push(wake.row("wake a thread, there and back"));
    Ok(table)
}

/// Repeats a step until time, bytes or samples run out; at least once.
fn sample(
    seconds: f64,
    step_bytes: usize,
    bytes_max: u64,
    step: impl FnMut() -> io::Result<()>,
) -> io::Result<Rate> {
    Ok(sample_steps(seconds, step_bytes, bytes_max, step)?.rate(step_bytes))
}

/// As [`sample`], with every single step.
fn sample_steps(
    seconds: f64,
    step_bytes: usize,
    bytes_max: u64,
    mut step: impl FnMut() -> io::Result<()>,
) -> io::Result<Samples> {
    let limit = time_limit(seconds);
    let mut samples = Samples::default();
    let mut bytes = 0_u64;
    let started = Instant::now();
    let mut before = started;
    loop {
        step()?;
        let after = Instant::now();
        samples.note(after - before);
        before = after;
        bytes += step_bytes as u64;
        let is_full = bytes.saturating_add(step_bytes as u64) > bytes_max;
        if after - started >= limit || is_full || samples.is_full() {
            samples.spend(after - started);
            return Ok(samples);
        }
    }
}

/// Bytes per second of something too quick to look at the clock each time.
fn repeat_bytes(bytes: usize, mut step: impl FnMut()) -> f64 {
    const BYTES_PER_LOOK: usize = 4 * MIB;
    let steps_per_look = (BYTES_PER_LOOK / bytes.max(1)).max(1);
    let limit = time_limit(SECONDS_DEFAULT);
    step();
    let mut looks = 0_u64;
    let started = Instant::now();
    loop {
        for _ in 0..steps_per_look {
            step();
        }
        looks += 1;
        let elapsed = started.elapsed();
        if elapsed >= limit {
            return looks as f64 * (steps_per_look * bytes) as f64 / elapsed.as_secs_f64();
        }
    }
}

/// Bounded above; what is no time at all gives one step.
fn time_limit(seconds: f64) -> Duration {
    if seconds > 0.0 { Duration::from_secs_f64(seconds.min(SECONDS_MAX)) } else { Duration::ZERO }
}

fn tell(place: &AtomicU64, value: u64, listener: &Thread) {
    place.store(value, Ordering::Release);
    listener.unpark();
}

fn wait_for_change(place: &AtomicU64, last: u64) -> u64 {
    loop {
        let now = place.load(Ordering::Acquire);
        if now != last {
            return now;
        }
        thread::park_timeout(WAKE_WAIT_MAX);
    }
}

fn check_chunk(chunk_bytes: usize, bytes_max: u64) -> io::Result<()> {
    if chunk_bytes > 0 && chunk_bytes as u64 <= bytes_max {
        return Ok(());
    }
    let message = format!("a chunk of {chunk_bytes} bytes is not between 1 and {bytes_max}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// A file that did not exist before and does not exist afterwards.
struct ScratchFile {
    file: File,
    path: PathBuf,
}

impl ScratchFile {
    fn empty(dir: &Path, name: &str) -> io::Result<Self> {
        let path = dir.join(format!("{name}-{}.tmp", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok(Self { file, path })
    }

    fn zeroed(dir: &Path, name: &str, bytes: u64) -> io::Result<Self> {
        let mut scratch = Self::empty(dir, name)?;
        fill(&mut scratch.file, PageBuffer::zeroed(IO_BYTES).as_slice(), bytes)?;
        Ok(scratch)
    }
}

/// Writes `bytes` bytes, flushes them, and goes back to the beginning.
fn fill(file: &mut File, chunk: &[u8], bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        file.write_all(&chunk[..now])?;
        left -= now as u64;
    }
    file.sync_all()?;
    file.rewind()
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // There is no caller left to report it to; the folder is usually removed as a whole anyway.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const BRIEFLY: f64 = 0.02;

    fn scratch(name: &str) -> Scratch {
        let parent = format!("gapless-hardware-{name}-{}", std::process::id());
        Scratch::fresh(Some(&std::env::temp_dir().join(parent))).unwrap()
    }

    fn is_sane(rate: Rate) -> bool {
        rate.p50_us > 0.0 && rate.p50_us <= rate.p99_us && rate.per_second > 0.0
    }

    #[test]
    fn a_measurement_ends_when_its_bytes_are_used_up() {
        let mut steps = 0;
        sample(SECONDS_MAX, 10, 35, || {
            steps += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(steps, 3);
    }

    #[test]
    fn a_measurement_without_time_takes_one_step() {
        for seconds in [0.0, -1.0, f64::NAN] {
            let mut steps = 0;
            sample(seconds, 1, u64::MAX, || {
                steps += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(steps, 1);
        }
    }

    #[test]
    fn an_error_of_the_disk_comes_out() {
        let failing = sample(BRIEFLY, 1, u64::MAX, || Err(io::Error::other("disk")));
        assert_eq!(failing.unwrap_err().to_string(), "disk");
        assert!(flush_rate(Path::new("/nowhere/at/all"), 4096, BRIEFLY).is_err());
    }

    #[test]
    fn empty_and_giant_chunks_are_refused() {
        let dir = scratch("refused");
        for chunk_bytes in [0, 1 << 30] {
            assert!(flush_rate(dir.path(), chunk_bytes, BRIEFLY).is_err());
            assert!(flush_rate_growing(dir.path(), chunk_bytes, BRIEFLY).is_err());
            assert!(sequential_write(dir.path(), chunk_bytes, BRIEFLY).is_err());
            assert!(page_cache_read(dir.path(), chunk_bytes).is_err());
        }
    }

    #[test]
    fn flushes_are_measured_and_leave_no_file() {
        let dir = scratch("flush");
        assert!(is_sane(flush_rate(dir.path(), 4096, BRIEFLY).unwrap()));
        assert!(is_sane(flush_rate_growing(dir.path(), 4096, BRIEFLY).unwrap()));
        assert!(sequential_write(dir.path(), MIB, BRIEFLY).unwrap() > 0.0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_and_page_cache_are_measured() {
        let dir = scratch("memory");
        assert!(page_cache_read(dir.path(), 100_000).unwrap() > 0.0);
        assert!(memory_copy(4096) > 0.0);
        assert!(crc32c_rate(128) > 0.0);
    }

    #[test]
    fn wake_ups_go_there_and_back() {
        assert!(is_sane(wake_round_trip(BRIEFLY)));
    }
}
