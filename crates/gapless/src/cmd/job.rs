//! `gapless job`: jobs and their results; one file for each command below it.

use clap::{Args, Subcommand};

use crate::cmd::{Global, job_submit};
use crate::exit::Done;
use crate::output::Output;

/// Have programs run by workers
#[derive(Debug, Args)]
#[command(after_help = job_submit::EXAMPLES)]
pub(crate) struct JobOptions {
    #[command(subcommand)]
    job: Job,
}

#[derive(Debug, Subcommand)]
enum Job {
    Submit(Box<job_submit::SubmitOptions>),
}

pub(crate) fn run(options: &JobOptions, global: &Global, out: &mut Output) -> Done {
    match &options.job {
        Job::Submit(options) => job_submit::run(options, global, out),
    }
}
