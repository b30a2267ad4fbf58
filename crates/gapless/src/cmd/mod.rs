//! The words of the command line. Every command is a file here.

pub(crate) mod auth;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod cancel;
pub(crate) mod client;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod get;
pub(crate) mod group;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod job;
pub(crate) mod job_batch;
pub(crate) mod job_manage;
pub(crate) mod job_submit;
pub(crate) mod leader;
pub(crate) mod man;
pub(crate) mod outbox;
pub(crate) mod outbox_consume;
pub(crate) mod outbox_run;
pub(crate) mod outbox_status;
pub(crate) mod publish;
pub(crate) mod request;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod sub_group;
pub(crate) mod subscribe;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod topic;
pub(crate) mod torture;
mod upgrade;
pub(crate) mod worker;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::ArgValueCompleter;

use crate::complete;
use crate::context::{Source, name as context_name};
use crate::values;

/// Where a server is by default.
pub(crate) const SERVER_DEFAULT: &str = "127.0.0.1:4281";

const FIRST_STEPS: &str = "\
First steps:
  gapless                                          start a server with data in ./gapless-data
  gapless pub orders.created 'first' --create      publish; it is on disk when this returns
  gapless sub 'orders.>'                           show what is there, then follow
  gapless topic ls                                 see what topics there are
  gapless doctor                                   examine the data folder

Every command explains itself with examples: gapless help pub";

/// Pub/sub, durable topics, consumer groups, outbox and jobs, with no gap.
///
/// Without a command, `serve` is run.
#[derive(Debug, Parser)]
#[command(name = "gapless", version = env!("GAPLESS_VERSION"))]
#[command(after_help = FIRST_STEPS, after_long_help = long_help())]
#[command(infer_subcommands = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) global: Global,
}

/// What every command understands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// Configuration file [default: gapless.toml, if it is there]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "GAPLESS_CONFIG",
        hide_env_values = true
    )]
    pub(crate) config: Option<PathBuf>,
    /// Set one key of the configuration; may be repeated. `gapless config` lists all keys
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// The data folder; the same as --set data=DIR
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The server to talk to, as host:port or unix:/path [default: the context's, or
    /// 127.0.0.1:4281]
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        env = "GAPLESS_SERVER",
        hide_env_values = true
    )]
    pub(crate) server: Option<String>,
    /// Where the server's address came from.
    #[arg(skip)]
    pub(crate) source: Source,
    /// The context to use, as `gapless context add` named it [default: that of `gapless context use`]
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        env = "GAPLESS_CONTEXT",
        hide_env_values = true,
        add = ArgValueCompleter::new(complete::contexts), value_parser = context_name
    )]
    pub(crate) context: Option<String>,
    /// The token to authenticate with; better in GAPLESS_TOKEN or a file than in the list of
    /// processes
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "GAPLESS_TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// A file whose first line is the token
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "GAPLESS_TOKEN_FILE",
        hide_env_values = true,
        conflicts_with = "token"
    )]
    pub(crate) token_file: Option<PathBuf>,
    /// Talk by TLS, and trust the authorities that the system trusts
    #[arg(long, global = true, env = "GAPLESS_TLS", hide_env_values = true)]
    pub(crate) tls: bool,
    /// Talk by TLS, and trust the authorities in this file (PEM) instead
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "GAPLESS_TLS_CA",
        hide_env_values = true
    )]
    pub(crate) tls_ca: Option<PathBuf>,
    /// A certificate (PEM) that proves who you are
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "GAPLESS_CLIENT_CERT",
        hide_env_values = true,
        requires = "tls_key"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "GAPLESS_CLIENT_KEY",
        hide_env_values = true,
        requires = "tls_cert"
    )]
    pub(crate) tls_key: Option<PathBuf>,
    /// How long to wait for a server that does not listen yet
    #[arg(long, global = true, value_name = "TIME", env = "GAPLESS_WAIT", hide_env_values = true)]
    #[arg(default_value = "1s", value_parser = values::duration)]
    pub(crate) wait: Duration,
    /// How long the server may take to answer, its restart included (for a publish at most 90s);
    /// a `sub` that follows waits for ever
    #[arg(
        long,
        global = true,
        value_name = "TIME",
        env = "GAPLESS_TIMEOUT",
        hide_env_values = true
    )]
    #[arg(default_value = "30s", value_parser = values::duration)]
    pub(crate) timeout: Duration,
    /// Print JSON: one value, or one line for each message
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing but what was asked for
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// What to log to stderr [default: info for serve, else error]
    #[arg(long, global = true, value_name = "LEVEL", env = "GAPLESS_LOG", hide_env_values = true)]
    #[arg(value_parser = values::log_level())]
    pub(crate) log: Option<String>,
}

impl Global {
    /// The server to talk to.
    pub(crate) fn server(&self) -> &str {
        self.server.as_deref().unwrap_or(SERVER_DEFAULT)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(serve::ServeOptions),
    Init(init::InitOptions),
    Pub(publish::PubOptions),
    Sub(subscribe::SubOptions),
    Request(request::RequestOptions),
    Reply(request::ReplyOptions),
    Get(get::GetOptions),
    Explain(explain::ExplainOptions),
    Export(export::ExportOptions),
    Import(import::ImportOptions),
    Topic(topic::TopicOptions),
    Group(group::GroupOptions),
    Dlq(dlq::DlqOptions),
    Outbox(outbox::OutboxOptions),
    Job(job::JobOptions),
    Leader(leader::LeaderOptions),
    Worker(worker::WorkOptions),
    Client(client::ClientOptions),
    Clientx(client::ClientxOptions),
    Cancel(cancel::CancelOptions),
    Clients(clients::ClientsOptions),
    Cluster(cluster::ClusterOptions),
    Events(events::EventsOptions),
    Stats(stats::StatsOptions),
    Top(top::TopOptions),
    Token(token::TokenOptions),
    Auth(auth::AuthOptions),
    Doctor(doctor::DoctorOptions),
    Backup(backup::BackupOptions),
    Restore(backup::RestoreOptions),
    Verify(backup::VerifyOptions),
    Store(store::StoreOptions),
    Bench(bench::BenchOptions),
    Torture(torture::TortureOptions),
    Config(config::ConfigOptions),
    Context(context::ContextOptions),
    Completions(completions::CompletionsOptions),
    Man(man::ManOptions),
}

impl Command {
    /// Whether it may talk to a server, so that a context matters.
    pub(crate) fn talks(&self) -> bool {
        !matches!(
            self,
            Self::Serve(_)
                | Self::Init(_)
                | Self::Context(_)
                | Self::Doctor(_)
                | Self::Restore(_)
                | Self::Verify(_)
                | Self::Completions(_)
                | Self::Man(_)
                | Self::Torture(_)
        )
    }

    /// What is logged by default.
    pub(crate) fn log_level(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Leader(_) => "info",
            Self::Outbox(_) | Self::Worker(_) => "warn",
            _ => "error",
        }
    }
}

fn long_help() -> String {
    let codes = crate::exit::Exit::ALL.iter();
    let codes = codes.map(|exit| format!("\n  {}  {}", *exit as u8, exit.meaning()));
    format!(
        "{FIRST_STEPS}\n\nConfiguration: defaults, then the file, then the environment \
         (GAPLESS_NATIVE_LISTEN for\nnative.listen), then flags. `gapless config` shows what is \
         in force and why.\n\nExit codes:{}",
        codes.collect::<String>()
    )
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
    fn every_command_teaches_with_examples() {
        fn check(command: &clap::Command) {
            let mut below = command.get_subcommands().filter(|each| each.get_name() != "help");
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("gapless "), "{} has no example", command.get_name());
            assert!(command.get_about().is_some(), "{}", command.get_name());
            // The parser of the command line takes this for the end of a line.
            let texts = command.get_arguments().filter_map(|arg| arg.get_help());
            let texts: Vec<String> = texts.map(ToString::to_string).chain([help]).collect();
            assert!(!texts.iter().any(|text| text.contains("{n}")), "{}", command.get_name());
            below.by_ref().for_each(check);
        }
        check(&Cli::command());
    }
}
