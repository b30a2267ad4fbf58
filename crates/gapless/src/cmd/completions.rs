//! `gapless completions`: words that a shell completes.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use crate::exit::{Done, Exit};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless completions bash > ~/.local/share/bash-completion/completions/gapless
  gapless completions zsh > ~/.zfunc/_gapless
  gapless completions fish > ~/.config/fish/completions/gapless.fish";

/// Print what a shell needs to complete the words of gapless
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsOptions {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(options: &CompletionsOptions, out: &mut Output) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "gapless", &mut script);
    out.bytes(&script)?;
    Ok(Exit::Ok)
}
