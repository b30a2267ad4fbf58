//! `gapless job`: jobs and their results; one file for each family of commands below it.

use clap::{Args, Subcommand};

use crate::cmd::{Global, job_manage, job_submit};
use crate::exit::Done;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless job submit calc 2 3
  gapless job ls --state running
  gapless job logs 01234567-89ab-cdef-0123-456789abcdef --follow
  gapless job dlq retry --all

`gapless help job submit` and the others have more.";

/// Have programs run by workers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JobOptions {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    Submit(Box<job_submit::SubmitOptions>),
    #[command(flatten)]
    Manage(Box<job_manage::JobCommand>),
}

pub(crate) fn run(options: &JobOptions, global: &Global, out: &mut Output) -> Done {
    match &options.job {
        Job::Submit(options) => job_submit::run(options, global, out),
        Job::Manage(command) => job_manage::run(command, global, out),
    }
}
