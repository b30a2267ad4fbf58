//! `gapless bench`: what the machine can do.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use gapless_bench::hardware;
use gapless_bench::scratch::Scratch;

use super::Done;

#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Flushes, writes, reads, copies, checksums and wake-ups of this machine.
    Disk {
        /// Where to measure: a folder on the disk that will hold the data.
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Seconds for each measurement of the disk.
        #[arg(long, default_value_t = 1.0, value_parser = seconds)]
        seconds: f64,
    },
}

pub(crate) fn run(options: &BenchOptions, as_json: bool, out: &mut dyn Write) -> Done {
    let Bench::Disk { dir, seconds } = &options.bench;
    let scratch = Scratch::fresh(dir.as_deref())?;
    eprintln!("measuring in {}", scratch.path().display());
    let table = hardware::report(scratch.path(), *seconds)?;
    if as_json {
        writeln!(out, "{:#}", table.to_json())?;
    } else {
        write!(out, "{table}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(text: &str) -> Result<f64, String> {
    let max = hardware::SECONDS_MAX;
    let given = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= max);
    given.ok_or_else(|| format!("give more than 0 and at most {max} seconds"))
}
