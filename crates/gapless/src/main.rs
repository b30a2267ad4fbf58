//! The command line of gapless: parses, calls, prints. Every command is a file in `cmd/`.
//!
//! Exit codes: 0 all is well, 1 the command failed, 2 the words were wrong, 3 `doctor` found
//! damage.

mod cmd;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use cmd::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = io::stdout().lock();
    let done = match cli.command.unwrap_or(Command::Status) {
        Command::Status => cmd::status::run(&cli.data, cli.json, &mut out),
        Command::Doctor(options) => cmd::doctor::run(&cli.data, &options, cli.json, &mut out),
        Command::Bench(options) => cmd::bench::run(&options, cli.json, &mut out),
    };
    match done {
        Ok(code) => code,
        // Whoever reads our output went away, as `head` does: nothing is wrong.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = out.flush();
            eprintln!("gapless: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
