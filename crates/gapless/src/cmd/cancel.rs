//! `gapless cancel`: takes a delayed message back before it is due.

use clap::Args;
use gapless_core::Position;
use serde_json::json;

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::Output;
use crate::remote::{asked, with_client};

const EXAMPLES: &str = "\
Examples:
  gapless pub reminders 'call back' --delay 2h --json     prints the id: {\"scheduled\": 17, …}
  gapless cancel 17";

/// Cancel a delayed message by the id that `pub` printed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CancelOptions {
    /// The id of the delayed message
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    id: u64,
}

pub(crate) fn run(options: &CancelOptions, global: &Global, out: &mut Output) -> Done {
    let id = options.id;
    with_client(global, out, async |client, out| match client.cancel_delayed(Position(id)).await {
        Ok(true) => {
            out.result(&json!({ "cancelled": id }), format_args!("{id} is called off"))?;
            Ok(Exit::Ok)
        }
        Ok(false) => {
            let what = format!("no delayed message waits under {id}; it may have appeared");
            Err(Failure::not_found(what))
        }
        Err(error) => Err(asked(client, error, None).await),
    })
}
