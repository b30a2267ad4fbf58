//! The words of the command line.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod status;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a command gives back: an exit code, or why it failed.
pub(crate) type Done = Result<ExitCode, Box<dyn Error>>;

/// Pub/sub, durable topics, outbox and jobs, with no gap.
#[derive(Debug, Parser)]
#[command(
    name = "gapless",
    version,
    about,
    after_help = "Without a command, `status` is run: it makes the data folder if there is none \
                  and shows what is in it.\n\nExamples:\n  gapless\n  gapless --data /srv/gapless \
                  status --json\n  gapless doctor\n  gapless bench disk"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// The data folder.
    #[arg(long, global = true, env = "GAPLESS_DATA", default_value = "gapless-data")]
    pub(crate) data: PathBuf,
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Open the data folder and show what is in it.
    Status,
    /// Examine the data folder; repair it only when told to.
    Doctor(doctor::DoctorOptions),
    /// Measure what the machine can do.
    Bench(bench::BenchOptions),
}

/// A size for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(u64::MAX), "16777216.0 TiB");
    }
}
