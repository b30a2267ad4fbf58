//! Opening a large store: after a clean end, and after one like a crash.
//!
//! Beside it stands the time to read as many bytes as were replayed from the page cache,
//! which is where they are: the store was just written.

use std::path::Path;
use std::time::Instant;

use gapless_bench::hardware::page_cache_read;
use gapless_bench::process::disk_bytes_free;
use gapless_bench::table::{Figure, Goal, Row, Table};
use gapless_broker::Broker;
use gapless_core::{Durability, TopicName};

use super::store::{Fill, Folder, Result, open, topics};

/// Topics of the store.
const TOPICS: usize = 1000;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 1024;

/// Published after the last segment and before the crash: somewhat less than what makes the
/// next segment, so that nearly as much as can be is left to be replayed.
const UNSEALED_BYTES: u64 = 48 * 1024 * 1024;

/// A store in the making can be twice as large for a moment, while segments are merged.
const DISK_ROOM: u64 = 2;

/// The promise of the design.
const GOAL_US: f64 = 1e6;

/// Makes the store and opens it again, twice; as a table.
///
/// # Errors
/// When the disk or the broker answers one, or the disk has too little room.
pub(crate) fn run(dir: &Path, bytes: u64) -> Result<Table> {
    let free = disk_bytes_free(dir)?;
    if bytes.saturating_mul(DISK_ROOM) > free {
        return Err(format!("a store of {bytes} bytes is too large: {free} bytes are free").into());
    }
    let folder = Folder::fresh(dir, "open")?;
    let broker = open(folder.path())?;
    let topics = topics(&broker, "bench", TOPICS, Durability::Written)?;
    let fill = Fill { message_bytes: MESSAGE_BYTES, batch: 16, bytes };
    let started = Instant::now();
    fill.publish(&broker, &topics)?;
    let seconds = started.elapsed().as_secs_f64();
    let title = format!("open a store of {} over {TOPICS} topics", Figure::bytes(bytes as f64));
    let mut table = Table::new(title);
    table.push(
        Row::new("fill it, 1 KiB, written", Figure::bytes_per_second(bytes as f64 / seconds))
            .beside("rate", Figure::per_second(fill.messages() as f64 / seconds)),
    );

    broker.close()?;
    let broker = opening(dir, folder.path(), "after a clean end", &mut table)?;
    crash_with_unsealed(broker, &topics)?;
    let broker = opening(dir, folder.path(), "after a crash", &mut table)?;
    broker.seal()?;
    broker.close()?;
    let broker = opening(dir, folder.path(), "after a clean end with all sealed", &mut table)?;
    broker.close()?;
    Ok(table)
}

/// Leaves as much behind in the log as can be, and ends without a word.
fn crash_with_unsealed(broker: Broker, topics: &[TopicName]) -> Result<()> {
    broker.seal()?;
    let fill = Fill { message_bytes: MESSAGE_BYTES, batch: 1, bytes: UNSEALED_BYTES };
    fill.publish(&broker, topics)?;
    // Dropped without a close.
    drop(broker);
    Ok(())
}

fn opening(dir: &Path, folder: &Path, when: &str, table: &mut Table) -> Result<Broker> {
    let read = page_cache_read(dir, 256 * 1024)?;
    let started = Instant::now();
    let broker = open(folder)?;
    let took = started.elapsed();
    let (opened, stats) = (broker.opened(), broker.journal_stats());
    let row = Row::new(format!("open {when}"), Figure::micros(took.as_secs_f64() * 1e6))
        .against(Figure::micros(opened.bytes_replayed as f64 / read * 1e6))
        .goal(Goal::FigureAtMost(GOAL_US))
        .beside("replayed", Figure::bytes(opened.bytes_replayed as f64))
        .beside("frames", Figure::count(opened.frames_replayed as f64))
        .beside("segments", Figure::count(stats.segments as f64))
        .beside("data", Figure::bytes(stats.segment_bytes as f64));
    table.push(row.notes(if opened.clean { "clean" } else { "not clean" }));
    Ok(broker)
}
