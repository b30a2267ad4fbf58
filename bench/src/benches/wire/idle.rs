//! Memory of connections on which nothing happens.

use std::path::Path;
use std::time::Instant;

use gapless_bench::process::open_files_max;
use gapless_bench::table::{Figure, Goal, Row};

use super::Options;
use super::client::Client;
use super::server::Server;
use crate::benches::store::{Folder, Result};

/// What the design promises for a connection.
const CONNECTION_BYTES_GOAL: f64 = 4096.0;

/// Files that are open besides.
const OTHER_FILES: u64 = 200;

/// Connections before the first look: by then what is made once is made.
const WARM_UP: u64 = 100;

/// One row.
///
/// # Errors
/// When the server or a socket answers one.
pub(super) fn run(dir: &Path, options: &Options) -> Result<Row> {
    let folder = Folder::fresh(dir, "idle")?;
    let server = Server::broker(folder.path())?;
    let most = open_files_max()?.saturating_sub(OTHER_FILES + WARM_UP);
    let count = options.connections.min(most).max(1);
    let connect = |_| Client::connect(server.address()).map(Client::idle);
    let warm = (0..WARM_UP).map(connect).collect::<Result<Vec<_>>>()?;
    let before = server.resident_bytes()?;
    let started = Instant::now();
    let idle = (0..count).map(connect).collect::<Result<Vec<_>>>()?;
    let took = started.elapsed();
    let after = server.resident_bytes()?;
    drop((warm, idle));
    server.end()?;
    let each = after.saturating_sub(before) as f64 / count as f64;
    let row = Row::new(format!("memory of an idle connection, of {count}"), Figure::bytes(each))
        .goal(Goal::FigureAtMost(CONNECTION_BYTES_GOAL))
        .beside("before", Figure::bytes(before as f64))
        .beside("after", Figure::bytes(after as f64))
        .beside("connects", Figure::per_second(count as f64 / took.as_secs_f64()));
    if count < options.connections {
        return Ok(row.notes(format!(
            "{} were wanted; no more files may be open (ulimit -n)",
            options.connections
        )));
    }
    Ok(row)
}
