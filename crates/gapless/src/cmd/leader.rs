//! `gapless leader`: a server for jobs alone, on one port.

use clap::Args;

use super::serve::{self, ServeOptions};
use crate::config::{Config, Source};
use crate::exit::Done;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless leader 5000                     data in ./gapless-leader-5000
  gapless leader 5000 --data /srv/jobs
  gapless leader 5000 --host 0.0.0.0 --insecure   workers of other machines, which all are trusted

Every `gapless serve` leads jobs too, on its native port. After kill -9 it goes on with what it
had: jobs, attempts and results are on disk before they are answered.";

/// Lead jobs on one port: a server without the HTTP API and a Unix socket
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LeaderOptions {
    /// Port to listen on; 0 takes a free one
    port: u16,
    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Let other machines in without TLS and without asking who they are
    #[arg(long)]
    insecure: bool,
}

pub(crate) fn run(options: &LeaderOptions, config: &Config, out: &mut Output) -> Done {
    let LeaderOptions { port, host, insecure } = options;
    let mut config = config.clone();
    if *config.source("data") == Source::Default {
        config.set("data", format!("gapless-leader-{port}"), Source::Flag)?;
    }
    for (key, value) in [
        ("native.listen", format!("{host}:{port}")),
        ("native.unix", String::new()),
        ("http.listen", String::new()),
        ("jobs.enabled", "true".to_owned()),
    ] {
        config.set(key, value, Source::Flag)?;
    }
    if *insecure {
        config.set("insecure", "true".to_owned(), Source::Flag)?;
    }
    serve::run(&ServeOptions::default(), &config, out)
}
