//! `gapless token`: the tokens by which clients authenticate.

use std::time::Duration;

use clap::{Args, Subcommand};
use gapless_broker::{Clock, SystemClock};
use gapless_core::{Timestamp, calendar};
use serde_json::{Value, json};

use super::Global;
use crate::exit::{Done, Exit};
use crate::output::{Output, Table, human_span};
use crate::remote::{auth, with_client};
use crate::values;

const EXAMPLES: &str = "\
Examples:
  gapless token create shop --role writer --expires 90d
  gapless token ls
  gapless token revoke shop                     all tokens of shop, at once

A token is shown once, when it is created; the server keeps a hash of it. Send it with
GAPLESS_TOKEN, --token-file, or over HTTP as `Authorization: Bearer TOKEN`. Roles say what its
identity may do: gapless auth role --help";

/// Create, list and revoke tokens, by which clients authenticate
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Create a token for a name, and print it
    #[command(
        after_help = "Examples:\n  gapless token create shop --role writer --expires 90d\n  \
                            gapless token create shop          another one, to change over"
    )]
    Create {
        /// Whose token it is
        name: String,
        /// What a new identity of this name may do; may be repeated
        #[arg(long = "role", value_name = "ROLE")]
        roles: Vec<String>,
        /// How long it is good [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        expires: Option<Duration>,
    },
    /// List tokens
    #[command(after_help = "Examples:\n  gapless token ls --json")]
    Ls,
    /// Show one token, without its secret
    #[command(after_help = "Examples:\n  gapless token show 5d1c0a9be377")]
    Show {
        /// Its id, as `token ls` shows it
        id: String,
    },
    /// Revoke a token, or all tokens of a name; their connections end at once
    #[command(
        after_help = "Examples:\n  gapless token revoke 5d1c0a9be377\n  gapless token revoke shop"
    )]
    Revoke {
        /// Its id, or a name
        id: String,
    },
}

pub(crate) fn run(options: &TokenOptions, global: &Global, out: &mut Output) -> Done {
    let command = match &options.what {
        What::Create { name, roles, expires } => json!({
            "do": "token_create", "name": name,
            "roles": (!roles.is_empty()).then_some(roles),
            "expires_in_ms": expires.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        }),
        What::Ls => json!({ "do": "token_list" }),
        What::Show { id } => json!({ "do": "token_show", "id": id }),
        What::Revoke { id } => json!({ "do": "token_revoke", "id": id }),
    };
    with_client(global, out, async |client, out| {
        let answer = auth(client, &command).await?;
        if out.json {
            out.json_line(&answer)?;
            return Ok(Exit::Ok);
        }
        match &options.what {
            What::Create { .. } => out.line(answer["token"].as_str().unwrap_or_default())?,
            What::Ls => {
                out.table(&table(answer["tokens"].as_array().map_or(&[], Vec::as_slice)))?;
            }
            What::Show { .. } => out.table(&table(&[answer]))?,
            What::Revoke { .. } => {
                let count = answer["revoked"].as_array().map_or(0, Vec::len);
                out.line(format_args!("revoked {count}"))?;
            }
        }
        Ok(Exit::Ok)
    })
}

fn table(tokens: &[Value]) -> Table {
    let mut table = Table::new(&["ID", "NAME", "ROLES", ">CREATED", "EXPIRES"]);
    let now = SystemClock::default().now();
    for token in tokens {
        let text = |key: &str| token[key].as_str().unwrap_or_default().to_owned();
        let roles = token["roles"].as_array().map_or(&[][..], Vec::as_slice);
        let roles: Vec<&str> = roles.iter().filter_map(Value::as_str).collect();
        let created = Timestamp(token["created_ms"].as_u64().unwrap_or_default());
        let expires = token["expires_ms"].as_u64().map_or_else(
            || "never".to_owned(),
            |ms| if ms <= now.0 { "expired".to_owned() } else { calendar::format(ms) },
        );
        let created = human_span(now.since(created));
        table.row(vec![text("id"), text("name"), roles.join(","), created, expires]);
    }
    table
}
