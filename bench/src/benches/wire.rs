//! Over the wire: a server in a process of its own, and load generators on bare sockets.
//!
//! Beside every figure stands what a featureless program reaches in the same run, over the
//! same loopback, with the same generator: bytes in, bytes out, and nothing in between. Its
//! process is separate too, so both pay for the same wake-ups. What a message costs in CPU
//! is told apart for the server and for the generator.
//!
//! The generators are threads that block. They send frames made beforehand and look at
//! nothing but the heads of what comes; the first row tells what one reaches alone.

mod catch_up;
pub(super) mod client;
pub(crate) mod frames;
mod idle;
mod live;
pub(super) mod publish;
mod raw;
pub(super) mod server;
mod sse;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use gapless_bench::process::{cpu_time, load_average};
use gapless_bench::table::{Figure, Row, Table};

use super::publish::per_message;
use super::store::Result;
use server::Server;

pub(crate) use server::run as run_server;

/// Messages to catch up with, where nothing else is said.
pub(crate) const MESSAGES: u64 = 2_000_000;

/// Messages to catch up with, in full.
pub(crate) const MESSAGES_FULL: u64 = 10_000_000;

/// Idle connections, where nothing else is said.
pub(crate) const CONNECTIONS: u64 = 10_000;

/// Bytes of a message, as in the goals of the design.
pub(super) const MESSAGE_BYTES: usize = 128;

/// Messages of a frame where they are published in batches.
pub(super) const BATCH: usize = 64;

/// One part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Publishing with acks.
    Publish,
    /// Live deliveries, and the round trip.
    Live,
    /// Reading what is stored.
    CatchUp,
    /// Live deliveries while others recover.
    Recover,
    /// Memory of idle connections.
    Idle,
    /// Fan-out to many streams of Server-Sent Events.
    Sse,
}

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Seconds for each case, and as many for what it is held against.
    pub(crate) seconds: f64,
    /// A case ends when it has published so many bytes.
    pub(crate) bytes_max: u64,
    /// Sizes of published messages.
    pub(crate) sizes: Vec<usize>,
    /// How many followers.
    pub(crate) followers: Vec<usize>,
    /// Stored messages to catch up with.
    pub(crate) messages: u64,
    /// Idle connections.
    pub(crate) connections: u64,
    /// Only these parts; all if there is none.
    pub(crate) only: Vec<Part>,
    /// Whether the paced publisher never rests.
    pub(crate) spin: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 1.0,
            bytes_max: 2_000_000_000,
            sizes: vec![MESSAGE_BYTES, 1024],
            followers: vec![1, 10, 100],
            messages: MESSAGES,
            connections: CONNECTIONS,
            only: Vec::new(),
            spin: false,
        }
    }
}

impl Options {
    /// A short look.
    pub(crate) fn quick() -> Self {
        Self {
            seconds: 0.2,
            bytes_max: 100_000_000,
            sizes: vec![MESSAGE_BYTES],
            messages: 300_000,
            connections: 1000,
            ..Self::default()
        }
    }

    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Every case, as a table.
///
/// # Errors
/// When a server, a socket or the disk answers one.
pub(crate) fn run(dir: &Path, options: &Options) -> Result<Table> {
    let mut table =
        Table::new("over the wire (TCP on loopback); the hardware is a bare relay in the same run");
    let raw = Server::raw()?;
    table.push(publish::generator_alone(options)?.notes(format!("load {:.1}", load_average()?)));
    let mut show = |row: Row| table.push(row);
    if options.has(Part::Publish) {
        publish::run(dir, &raw, options, &mut show)?;
    }
    if options.has(Part::Live) {
        live::run(dir, &raw, options, &mut show)?;
    }
    if options.has(Part::CatchUp) || options.has(Part::Recover) {
        catch_up::run(dir, &raw, options, &mut show)?;
    }
    if options.has(Part::Idle) {
        show(idle::run(dir, options)?);
    }
    if options.has(Part::Sse) {
        sse::run(dir, options, &mut show)?;
    }
    raw.end()?;
    Ok(table)
}

/// What a case costs: time, and CPU of both sides.
pub(super) struct Meter {
    started: Instant,
    server: Duration,
    client: Duration,
}

impl Meter {
    pub(super) fn start(server: &Server) -> Result<Self> {
        let (server, client) = (server.cpu_time()?, cpu_time()?);
        Ok(Self { started: Instant::now(), server, client })
    }

    pub(super) fn stop(&self, server: &Server) -> Result<Cost> {
        let took = self.started.elapsed();
        let server = server.cpu_time()?.saturating_sub(self.server);
        Ok(Cost { took, server, client: cpu_time()?.saturating_sub(self.client) })
    }
}

/// What a case has cost.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    pub(super) took: Duration,
    server: Duration,
    client: Duration,
}

impl Cost {
    pub(super) fn per_second(&self, messages: u64) -> Figure {
        Figure::per_second(messages as f64 / self.took.as_secs_f64())
    }

    /// CPU time per message, of both sides, beside a row.
    pub(super) fn beside(&self, row: Row, messages: u64) -> Row {
        row.beside("server cpu", Figure::micros(per_message(self.server, messages)))
            .beside("client cpu", Figure::micros(per_message(self.client, messages)))
    }
}
