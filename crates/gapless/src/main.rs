//! The command line of gapless: parses, calls, prints. Every command is a file in `cmd/`.
//!
//! Exit codes are in `exit.rs`, and in `gapless --help`.

mod cluster;
mod cmd;
mod complete;
mod config;
mod context;
mod copying;
#[cfg(test)]
mod docs;
mod engine;
mod exit;
mod exposure;
mod jobs;
mod log;
mod output;
mod permissions;
mod progress;
mod recorder;
mod remote;
mod shared;
mod show;
mod supervisor;
mod template;
mod tls;
mod trace;
mod values;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use cmd::{Cli, Command, Global};
use config::{Config, ConfigError};
use exit::{Done, Failure};
use output::Output;

/// The configuration that is used if it is there and no other is named.
const CONFIG_FILE: &str = "gapless.toml";

fn main() -> ExitCode {
    // A shell that asks for words sets a variable; then this answers it, and ends.
    clap_complete::CompleteEnv::with_factory(Cli::command).complete();
    let parsed = Cli::command().try_get_matches();
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (Cli { command, mut global }, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return wrong_words(&error),
    };
    let command = command.unwrap_or(Command::Serve(cmd::serve::ServeOptions::default()));
    let mut out = Output::new(global.json, global.quiet);
    let given = match matches.value_source("server") {
        Some(ValueSource::EnvVariable) => context::Source::Environment,
        _ => context::Source::Flag,
    };
    let chosen = if command.talks() { context::apply(&mut global, given) } else { Ok(()) };
    let done = chosen.and_then(|()| run(command, &global, &mut out)).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    match done {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) if failure.reader_left => ExitCode::SUCCESS,
        Err(failure) => {
            out.failure(&failure);
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Reports wrong arguments in the same way as every other failure; help and version are not
/// failures.
fn wrong_words(error: &clap::Error) -> ExitCode {
    let as_json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let help = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !as_json,
        _ => false,
    };
    if help {
        error.exit();
    }
    let failure = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Failure::words("a command is missing").hint("see them all with --help")
        }
        _ => Failure::of_words(&error.to_string()),
    };
    Output::new(as_json, false).failure(&failure);
    ExitCode::from(failure.exit as u8)
}

fn run(command: Command, global: &Global, out: &mut Output) -> Done {
    let level = global.log.as_deref().unwrap_or_else(|| match command.log_level() {
        // At a terminal, between other commands, what each client does would be noise.
        "info" if std::io::stderr().is_terminal() && !global.json => log::AT_A_TERMINAL,
        level => level,
    });
    log::begin(level, global.json)?;
    match command {
        Command::Init(options) => cmd::init::run(&options, &configuration(global)?, out),
        Command::Serve(options) => cmd::serve::run(&options, &configuration(global)?, out),
        Command::Pub(options) => cmd::publish::run(&options, global, out),
        Command::Request(options) => cmd::request::request(&options, global, out),
        Command::Reply(options) => cmd::request::reply(&options, global, out),
        Command::Sub(options) => cmd::subscribe::run(options, global, out),
        Command::Get(options) => cmd::get::run(&options, global, out),
        Command::Explain(options) => cmd::explain::run(&options, global, out),
        Command::Export(options) => cmd::export::run(&options, global, out),
        Command::Import(options) => cmd::import::run(&options, global, out),
        Command::Topic(options) => cmd::topic::run(options, global, out),
        Command::Group(options) => cmd::group::run(options, global, out),
        Command::Dlq(options) => cmd::dlq::run(options, global, out),
        Command::Outbox(options) => cmd::outbox::run(options, &configuration(global)?, global, out),
        Command::Job(options) => cmd::job::run(&options, global, out),
        Command::Leader(options) => cmd::leader::run(&options, &configuration(global)?, out),
        Command::Worker(options) => cmd::worker::run(options, global, out),
        Command::Client(options) => cmd::client::run(&options, global, out),
        Command::Clientx(options) => cmd::client::run_x(&options, global, out),
        Command::Cancel(options) => cmd::cancel::run(&options, global, out),
        Command::Cluster(options) => cmd::cluster::run(&options, global, out),
        Command::Clients(options) => cmd::clients::run(&options, global, out),
        Command::Events(options) => cmd::events::run(&options, global, out),
        Command::Stats(options) => cmd::stats::run(&options, global, out),
        Command::Top(options) => cmd::top::run(&options, global, out),
        Command::Token(options) => cmd::token::run(&options, global, out),
        Command::Auth(options) => cmd::auth::run(&options, global, out),
        Command::Doctor(options) => cmd::doctor::run(&options, &configuration(global)?, out),
        Command::Backup(options) => cmd::backup::backup(&options, global, out),
        Command::Restore(options) => cmd::backup::restore(&options, out),
        Command::Verify(options) => cmd::backup::verify(&options, out),
        Command::Store(options) => cmd::store::run(&options, global, out),
        Command::Torture(options) => cmd::torture::run(&options, out),
        Command::Bench(options) => cmd::bench::run(&options, global, out),
        Command::Config(options) => {
            cmd::config::run(&options, &configuration(global)?, global, out)
        }
        Command::Context(options) => cmd::context::run(options, global, out),
        Command::Man(options) => cmd::man::run(&options, out),
        Command::Completions(options) => cmd::completions::run(&options, out),
    }
}

/// The configuration in force.
fn configuration(global: &Global) -> Result<Config, ConfigError> {
    let usual = Path::new(CONFIG_FILE);
    let file: Option<PathBuf> =
        global.config.clone().or_else(|| usual.exists().then(|| usual.to_owned()));
    let mut flags = global.set.clone();
    if let Some(data) = &global.data {
        flags.push(format!("data={}", data.display()));
    }
    // A name that is not Unicode is not a setting of gapless.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Config::load(file.as_deref(), environment, &flags)
}

impl From<tokio::task::JoinError> for Failure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::failed(error)
    }
}
