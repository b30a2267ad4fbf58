//! `gapless context`: named servers, and which of them commands talk to.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use serde_json::{Value, json};

use super::Global;
use crate::complete;
use crate::context::{self, Context, Contexts};
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table};

const EXAMPLES: &str = "\
Examples:
  gapless context add prod --server broker.example.com:4281 --tls --token-file ~/.secrets/gapless
  gapless context add local --server unix:/srv/gapless/gapless.sock
  gapless context use prod                      every command talks to it from now on
  gapless stats --context local                 this one command to another
  GAPLESS_CONTEXT=local gapless topic ls
  gapless context use --none                    back to 127.0.0.1:4281

Order: flags, then the environment, then the context, then the default. A server that is named by
--server or GAPLESS_SERVER is not that of the current context: nothing of it is used then, so that its
token goes to no other server. `gapless config` shows which server is used and why.";

/// Name servers, and choose which one commands talk to
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct ContextOptions {
    #[command(subcommand)]
    command: ContextCommand,
}

#[derive(Debug, Subcommand)]
enum ContextCommand {
    /// Add a server: its address, token file and TLS files are the flags of every command
    #[command(after_help = "Examples:\n  gapless context add prod --server broker:4281 --tls \
                            --token-file ~/.secrets/gapless\n  gapless context add prod --server \
                            broker:4281 --force     replace it")]
    Add {
        /// How it is called
        #[arg(value_parser = context::name)]
        name: String,
        /// Replace one of this name
        #[arg(long)]
        force: bool,
    },
    /// Choose the server that commands talk to
    #[command(after_help = "Examples:\n  gapless context use prod\n  gapless context use --none")]
    Use {
        /// Which
        #[arg(value_parser = context::name, required_unless_present = "none")]
        #[arg(add = ArgValueCompleter::new(complete::contexts))]
        name: Option<String>,
        /// None: the default address
        #[arg(long, conflicts_with = "name")]
        none: bool,
    },
    /// List them; the current one has a star
    #[command(after_help = "Examples:\n  gapless context ls\n  gapless context ls --json")]
    Ls,
    /// Show one
    #[command(after_help = "Examples:\n  gapless context show         the current one\n  gapless \
                            context show prod")]
    Show {
        /// Which [default: the current one]
        #[arg(add = ArgValueCompleter::new(complete::contexts), value_parser = context::name)]
        name: Option<String>,
    },
    /// Remove one; its files stay
    #[command(after_help = "Examples:\n  gapless context rm prod")]
    Rm {
        /// Which
        #[arg(value_parser = context::name)]
        name: String,
    },
}

pub(crate) fn run(options: ContextOptions, global: &Global, out: &mut Output) -> Done {
    let mut all = Contexts::load()?;
    match options.command {
        ContextCommand::Add { name, force } => {
            if all.contexts.contains_key(&name) && !force {
                return Err(Failure::words(format!("there is a context {name} already"))
                    .hint("--force replaces it"));
            }
            let context = from_flags(global)?;
            let value = shown(&name, &context, false);
            all.add(&name, context)?;
            let path = all.save()?;
            out.result(&value, format!("context {name} is in {}", path.display()))?;
        }
        ContextCommand::Use { name, .. } => {
            if let Some(name) = &name {
                all.get(name)?;
            }
            let text = match &name {
                Some(name) => format!("commands talk to {name} now"),
                None => format!("commands talk to {} now", super::SERVER_DEFAULT),
            };
            all.current.clone_from(&name);
            all.save()?;
            out.result(&json!({ "current": name }), text)?;
        }
        ContextCommand::Ls => list(&all, out)?,
        ContextCommand::Show { name } => {
            let name = name.or_else(|| all.current.clone()).ok_or_else(|| {
                Failure::not_found("no context is chosen")
                    .hint("choose one: gapless context use NAME")
            })?;
            let context = all.get(&name)?;
            show(&name, context, all.current.as_deref() == Some(&name), out)?;
        }
        ContextCommand::Rm { name } => {
            all.get(&name)?;
            all.contexts.remove(&name);
            if all.current.as_deref() == Some(&name) {
                all.current = None;
            }
            all.save()?;
            out.result(&json!({ "removed": name }), format!("context {name} is removed"))?;
        }
    }
    Ok(Exit::Ok)
}

/// What the flags of every command say, with files by their full names.
fn from_flags(global: &Global) -> Result<Context, Failure> {
    if global.token.is_some() {
        return Err(Failure::words("a context names a file with the token, not the token itself")
            .hint("put it into a file that only you can read, and name it: --token-file FILE"));
    }
    let Some(server) = &global.server else {
        return Err(Failure::words("the server's address is missing: --server host:port"));
    };
    server.parse::<gapless_client::Address>().map_err(Failure::words)?;
    let whole = |path: &Option<PathBuf>| {
        path.as_deref().map(std::path::absolute).transpose().map_err(Failure::words)
    };
    Ok(Context {
        server: server.clone(),
        token_file: whole(&global.token_file)?,
        tls: global.tls,
        tls_ca: whole(&global.tls_ca)?,
        tls_cert: whole(&global.tls_cert)?,
        tls_key: whole(&global.tls_key)?,
    })
}

fn list(all: &Contexts, out: &mut Output) -> Result<(), Failure> {
    let is_current = |name: &str| all.current.as_deref() == Some(name);
    if out.json {
        for (name, context) in &all.contexts {
            out.json_line(&shown(name, context, is_current(name)))?;
        }
        return Ok(());
    }
    let mut table = Table::new(&["", "NAME", "SERVER", "TLS", "TOKEN FILE"]);
    for (name, context) in &all.contexts {
        let star = if is_current(name) { "*" } else { "" };
        let tls = context.tls || context.tls_ca.is_some() || context.tls_cert.is_some();
        table.row(vec![
            star.to_owned(),
            name.clone(),
            context.server.clone(),
            if tls { "yes" } else { "" }.to_owned(),
            path(&context.token_file),
        ]);
    }
    out.table(&table)?;
    Ok(())
}

fn show(name: &str, context: &Context, current: bool, out: &mut Output) -> Result<(), Failure> {
    if out.json {
        out.json_line(&shown(name, context, current))?;
        return Ok(());
    }
    let rows = [
        ("name", name.to_owned()),
        ("server", context.server.clone()),
        ("token file", path(&context.token_file)),
        (
            "tls",
            if context.tls { "yes, by the system's authorities".into() } else { String::new() },
        ),
        ("tls ca", path(&context.tls_ca)),
        ("tls cert", path(&context.tls_cert)),
        ("tls key", path(&context.tls_key)),
    ];
    for (what, value) in rows.into_iter().filter(|(_, value)| !value.is_empty()) {
        out.line(format_args!("{what:<11} {value}"))?;
    }
    Ok(())
}

fn path(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
}

fn shown(name: &str, context: &Context, current: bool) -> Value {
    json!({
        "name": name, "current": current, "server": context.server, "tls": context.tls,
        "token_file": context.token_file, "tls_ca": context.tls_ca, "tls_cert": context.tls_cert,
        "tls_key": context.tls_key,
    })
}
