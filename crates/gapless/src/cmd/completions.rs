//! `gapless completions`: words that a shell completes.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_complete::env::Shells;

use super::Cli;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gapless completions bash > ~/.local/share/bash-completion/completions/gapless
  gapless completions zsh > ~/.zfunc/_gapless
  echo 'source <(gapless completions bash --live)' >> ~/.bashrc     topics and groups too
  gapless completions fish > ~/.config/fish/completions/gapless.fish";

/// Print what a shell needs to complete the words of gapless
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsOptions {
    /// Which shell
    shell: Shell,
    /// Complete also topics, groups and contexts, by asking the server that commands talk to; for
    /// bash, zsh, fish, elvish and powershell
    #[arg(long)]
    live: bool,
}

pub(crate) fn run(options: &CompletionsOptions, out: &mut Output) -> Done {
    let mut script = Vec::new();
    if options.live {
        let shells = Shells::builtins();
        let name = options.shell.to_string();
        let completer = shells.completer(&name).ok_or_else(|| {
            Failure::words(format!("{name} cannot ask for words; leave --live out"))
        })?;
        completer.write_registration("COMPLETE", "gapless", "gapless", "gapless", &mut script)?;
        out.bytes(&script)?;
        return Ok(Exit::Ok);
    }
    clap_complete::generate(options.shell, &mut Cli::command(), "gapless", &mut script);
    out.bytes(&script)?;
    Ok(Exit::Ok)
}
