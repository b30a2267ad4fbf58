//! `gapless bench`: what the machine can do, and what a server does with it.

mod server;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gapless_bench::hardware;
use gapless_bench::scratch::Scratch;

use crate::cmd::Global;
use crate::exit::{Done, Exit};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless bench disk
  gapless bench disk --dir /srv/gapless --seconds 5 --json
  gapless bench server --messages 1000000";

/// Measure what the machine and a running server can do
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchOptions {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Flushes, writes, reads, copies, checksums and wake-ups of this machine
    #[command(after_help = EXAMPLES)]
    Disk {
        /// Where to measure: a folder on the disk that will hold the data
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Seconds for each measurement of the disk
        #[arg(long, default_value_t = 1.0, value_parser = seconds)]
        seconds: f64,
    },
    Server(server::ServerOptions),
}

pub(crate) fn run(options: &BenchOptions, global: &Global, out: &mut Output) -> Done {
    let (dir, seconds) = match &options.bench {
        Bench::Disk { dir, seconds } => (dir, seconds),
        Bench::Server(options) => return server::run(options, global, out),
    };
    let scratch = Scratch::fresh(dir.as_deref())?;
    out.note(format_args!("measuring in {}", scratch.path().display()));
    let table = hardware::report(scratch.path(), *seconds)?;
    if out.json {
        out.line(format_args!("{:#}", table.to_json()))?;
    } else {
        out.bytes(table.to_string().as_bytes())?;
    }
    Ok(Exit::Ok)
}

fn seconds(text: &str) -> Result<f64, String> {
    let max = hardware::SECONDS_MAX;
    let given = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= max);
    given.ok_or_else(|| format!("give more than 0 and at most {max} seconds"))
}
