//! `gapless auth`: identities, roles, and which rule decides.

use std::io::Read;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table};
use crate::remote::{auth, with_client};

const EXAMPLES: &str = "\
Examples:
  gapless auth role writer 'allow publish,create on orders.>' 'deny publish on orders.secret'
  gapless auth grant shop writer
  gapless auth check shop publish orders.eu     which rule decides
  gapless auth ls

A rule is `allow|deny RIGHTS on PATTERN`, with RIGHTS of publish, subscribe, read, create,
configure, delete, group, dlq, job.submit, job.work, outbox, admin, with commas between, or *
for all. A deny always wins; without a rule the answer is no.";

/// Change and explain who may do what
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AuthOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Explain whether a name has a right on a topic or pattern, and which rule decides
    #[command(after_help = "Examples:\n  gapless auth check shop publish orders.eu\n  \
                            gapless auth check shop subscribe 'orders.>'")]
    Check {
        /// Whose right
        name: String,
        /// Which right
        right: String,
        /// On what: a topic, a pattern, a group or an area of the server
        on: String,
    },
    /// Show identities and roles
    #[command(after_help = "Examples:\n  gapless auth ls --json")]
    Ls,
    /// Show who this client is
    #[command(after_help = "Examples:\n  gapless auth whoami")]
    Whoami,
    /// Give a role these rules, or show it
    #[command(after_help = "Examples:\n  gapless auth role writer 'allow publish on orders.>'\n  \
                            gapless auth role writer --remove")]
    Role {
        /// Its name
        role: String,
        /// Its rules, all of them
        rules: Vec<String>,
        /// Remove the role, which no identity may have
        #[arg(long, conflicts_with = "rules")]
        remove: bool,
    },
    /// Give a name these roles, and quotas
    #[command(after_help = "Examples:\n  gapless auth grant shop writer reader\n  \
                            gapless auth grant shop writer --quota messages_per_s=1000 \
                            --quota connections=10")]
    Grant {
        /// The name: of a token, of a certificate, of a signed token's subject, or unix:UID
        name: String,
        /// Its roles, all of them
        roles: Vec<String>,
        /// A limit: connections, subscriptions, messages_per_s, bytes_per_s, topics, stored_bytes
        #[arg(long = "quota", value_name = "WHAT=N")]
        quotas: Vec<String>,
    },
    /// Remove a name with its tokens
    #[command(after_help = "Examples:\n  gapless auth remove shop")]
    Remove {
        /// The name
        name: String,
    },
    /// Set the password of a name for the page; it is read from stdin
    #[command(after_help = "Examples:\n  gapless auth password ada < password.txt")]
    Password {
        /// The name
        name: String,
    },
}

pub(crate) fn run(options: &AuthOptions, global: &Global, out: &mut Output) -> Done {
    let command = command(&options.what)?;
    with_client(global, out, async |client, out| {
        if matches!(options.what, What::Ls) {
            let roles = auth(client, &json!({ "do": "role_list" })).await?;
            let identities = auth(client, &command).await?;
            return list(&roles["roles"], &identities["identities"], out);
        }
        let answer = auth(client, &command).await?;
        if out.json {
            out.json_line(&answer)?;
        } else {
            out.line(in_words(&options.what, &answer))?;
        }
        let denied = answer["allowed"] == json!(false);
        Ok(if denied { Exit::Rejected } else { Exit::Ok })
    })
}

fn command(what: &What) -> Result<Value, Failure> {
    Ok(match what {
        What::Check { name, right, on } => {
            json!({ "do": "check", "name": name, "right": right, "on": on })
        }
        What::Ls => json!({ "do": "identity_list" }),
        What::Whoami => json!({ "do": "who_am_i" }),
        What::Role { role, remove: true, .. } => json!({ "do": "role_remove", "role": role }),
        What::Role { role, rules, .. } => json!({ "do": "role_set", "role": role, "rules": rules }),
        What::Grant { name, roles, quotas } => {
            let mut command = json!({ "do": "identity_set", "name": name, "roles": roles });
            if !quotas.is_empty() {
                let mut all = json!({});
                for quota in quotas {
                    let pair = quota
                        .split_once('=')
                        .and_then(|(what, n)| Some((what, n.parse::<u64>().ok()?)));
                    let (what, number) = pair.ok_or_else(|| {
                        Failure::words(format!(
                            "{quota:?} is not a valid quota; write connections=10"
                        ))
                    })?;
                    all[what] = number.into();
                }
                command["quotas"] = all;
            }
            command
        }
        What::Remove { name } => json!({ "do": "identity_remove", "name": name }),
        What::Password { name } => {
            let mut password = String::new();
            std::io::stdin().read_to_string(&mut password)?;
            let password = password.lines().next().unwrap_or_default();
            json!({ "do": "password_set", "name": name, "password": password })
        }
    })
}

fn in_words(what: &What, answer: &Value) -> String {
    let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    match what {
        What::Check { .. } => {
            let may = if answer["allowed"] == json!(true) { "may" } else { "may not" };
            format!("{} {may} {} on {}: {}", text("name"), text("right"), text("on"), text("why"))
        }
        What::Whoami => text("name"),
        What::Role { role, remove: true, .. } => format!("removed {role}"),
        What::Role { role, rules, .. } => format!("{role} has {} rules", rules.len()),
        What::Grant { name, roles, .. } => format!("{name} has {}", roles.join(", ")),
        What::Remove { name } => format!("removed {name}"),
        What::Password { name } => format!("the password of {name} is set"),
        What::Ls => String::new(),
    }
}

fn list(roles: &Value, identities: &Value, out: &mut Output) -> Done {
    if out.json {
        out.json_line(&json!({ "roles": roles, "identities": identities }))?;
        return Ok(Exit::Ok);
    }
    let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let joined = |value: &Value, between: &str| {
        let items = rows(value);
        items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(between)
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut table = Table::new(&["ROLE", "RULES"]);
    for role in rows(roles) {
        table.row(vec![text(&role["role"]), joined(&role["rules"], "; ")]);
    }
    out.table(&table)?;
    let mut table = Table::new(&["NAME", "ROLES", "PASSWORD"]);
    for identity in rows(identities) {
        let password = if identity["password"] == json!(true) { "set" } else { "" };
        table.row(vec![text(&identity["name"]), joined(&identity["roles"], ","), password.into()]);
    }
    out.table(&table)?;
    Ok(Exit::Ok)
}
