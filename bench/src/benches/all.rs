//! Every bench after another, and the file that keeps what they came to.

use std::fs;
use std::path::{Path, PathBuf};

use gapless_bench::hardware;
use gapless_bench::table::Table;
use serde_json::{Value, json};

use super::store::Result;
use super::{follow, history, memory, mixed, open, publish, wire};

const MIB: u64 = 1024 * 1024;

/// How large each bench is.
pub(crate) struct Plan {
    /// Seconds for each figure of the hardware.
    pub(crate) disk_seconds: f64,
    /// See [`publish::Options`].
    pub(crate) publish: publish::Options,
    /// See [`follow::Options`].
    pub(crate) follow: follow::Options,
    /// See [`history::Options`].
    pub(crate) history: history::Options,
    /// Bytes of the store that is opened.
    pub(crate) open_bytes: u64,
    /// See [`memory::Options`].
    pub(crate) memory: memory::Options,
    /// See [`mixed::Options`].
    pub(crate) mixed: mixed::Options,
    /// See [`wire::Options`].
    pub(crate) wire: wire::Options,
}

impl Plan {
    /// As every bench does it by itself.
    pub(crate) fn full() -> Self {
        Self {
            disk_seconds: 1.0,
            publish: publish::Options {
                seconds: 1.0,
                bytes_max: 2048 * MIB,
                sizes: vec![16, 128, 1024, 16 * 1024],
                only_in_flight: None,
            },
            follow: follow::Options {
                seconds: 2.0,
                bytes_max: 2048 * MIB,
                followers: vec![1, 10, 100],
                spin: false,
            },
            history: history::Options {
                bytes: 1000 * MIB,
                sizes: vec![128, 1024, 16 * 1024],
                batches: vec![1, 64],
                seconds: 2.0,
                only_one_topic: false,
            },
            open_bytes: 2_000_000_000,
            memory: memory::Options { topics: 1_000_000, messages: 10_000_000 },
            mixed: mixed::Options { seconds: 10.0, bytes: 512 * MIB, spin: false },
            wire: wire::Options::default(),
        }
    }

    /// A look that takes less than two minutes.
    pub(crate) fn quick() -> Self {
        let full = Self::full();
        Self {
            disk_seconds: 0.2,
            publish: publish::Options {
                seconds: 0.3,
                bytes_max: 256 * MIB,
                sizes: vec![128, 1024],
                ..full.publish
            },
            follow: follow::Options { seconds: 0.4, bytes_max: 128 * MIB, ..full.follow },
            history: history::Options {
                bytes: 64 * MIB,
                sizes: vec![128, 1024],
                seconds: 0.3,
                ..full.history
            },
            open_bytes: 500_000_000,
            memory: memory::Options { topics: 100_000, messages: 4_000_000 },
            mixed: mixed::Options { seconds: 3.0, bytes: 128 * MIB, ..full.mixed },
            wire: wire::Options::quick(),
        }
    }
}

/// Runs the whole plan.
///
/// # Errors
/// When one of the benches ends with one.
pub(crate) fn run(dir: &Path, plan: &Plan) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    let mut done = |name: &str, table: Table| {
        eprintln!("{name} is done");
        tables.push(table);
    };
    done("disk", hardware::report(dir, plan.disk_seconds)?);
    done("publish", publish::run(dir, &plan.publish)?);
    done("follow", follow::run(dir, &plan.follow)?);
    done("history", history::run(dir, &plan.history)?);
    done("open", open::run(dir, plan.open_bytes)?);
    done("memory", memory::run(dir, &plan.memory)?);
    done("mixed", mixed::run(dir, &plan.mixed)?);
    done("wire", wire::run(dir, &plan.wire)?);
    Ok(tables)
}

/// All tables for programs.
pub(crate) fn to_json(tables: &[Table]) -> Value {
    let ok = tables.iter().all(Table::is_ok);
    let tables: Vec<Value> = tables.iter().map(Table::to_json).collect();
    json!({ "ok": ok, "tables": tables })
}

/// Keeps the figures beside the source, and tells where.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn save(tables: &[Table]) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    fs::create_dir_all(&folder)?;
    let path = folder.join("latest.json");
    fs::write(&path, format!("{:#}\n", to_json(tables)))?;
    Ok(path)
}
