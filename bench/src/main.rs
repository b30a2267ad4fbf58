//! The benches' command line: one subcommand per bench.
//!
//! Not here: measuring and printing, which are the library's.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gapless_bench::hardware;
use gapless_bench::scratch::Scratch;
use gapless_bench::table::Table;

/// Measures gapless, and the machine it runs on.
#[derive(Parser)]
#[command(name = "gapless-bench")]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
    /// Print JSON instead of a table.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// The hardware's own figures: flushes, sequential writes, reads, copies, checksums, wake-ups.
    Disk(DiskOptions),
}

#[derive(Args)]
struct DiskOptions {
    /// Folder on the disk to measure. A fresh folder is made in it and removed at the end
    /// [default: bench-data in the current folder].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Seconds for each of the measurements of the disk, at most 10.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gapless-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> io::Result<()> {
    let table = match &cli.bench {
        Bench::Disk(options) => disk(options)?,
    };
    let mut out = io::stdout().lock();
    if cli.json {
        writeln!(out, "{:#}", table.to_json())
    } else {
        write!(out, "{table}")
    }
}

fn disk(options: &DiskOptions) -> io::Result<Table> {
    let scratch = Scratch::fresh(options.dir.as_deref())?;
    eprintln!("measuring in {}", scratch.path().display());
    hardware::report(scratch.path(), options.seconds)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if seconds > 0.0 && seconds <= hardware::SECONDS_MAX {
        return Ok(seconds);
    }
    Err(format!(
        "more than 0 and at most {} seconds",
        hardware::SECONDS_MAX
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "11", "NaN", "inf", "soon"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
