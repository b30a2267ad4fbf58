//! `gapless clients`: the connected clients, and where each stands; closing one.

use clap::{Args, Subcommand};
use gapless_broker::{Clock, SystemClock};
use gapless_client::{AskError, ClientInfo};
use gapless_core::Timestamp;
use gapless_protocol::{ErrorCode, MembershipInfo, Place};
use serde_json::{Value, json};

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, human_span};
use crate::remote::{asked, with_client};
use crate::show::readable;

const EXAMPLES: &str = "\
Examples:
  gapless clients
  gapless clients close 17
  gapless clients --json | jq '.follows[] | select(.state == \"recovering\")'

States: connected (follows nothing), recovering (reads history), online (live), offline; of
a member of a group: member, or standby while another of an ordered group gets the messages.
A place is the last seq (of one topic) or position (of a pattern) it was handed; of a member
how many messages are with it. Members of groups over HTTP live between requests; their address is
http. The command itself is in the list.";

/// Clients asked for at a time.
const PAGE: u32 = 500;

/// Show who is connected, natively or over HTTP, what they follow, and where they stand
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClientsOptions {
    #[command(subcommand)]
    command: Option<ClientsCommand>,
}

#[derive(Debug, Subcommand)]
enum ClientsCommand {
    /// Close clients: their connections end, and what members of groups held goes to others
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        /// Their sessions, as `gapless clients` shows them
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<u64>,
    },
}

const CLOSE_EXAMPLES: &str = "\
Examples:
  gapless clients close 17
  gapless clients close 17 18 --json

It needs the right admin on clients.close, and is audited. A client that reconnects by itself
comes back; revoke its token to keep it out (gapless token revoke).";

pub(crate) fn run(options: &ClientsOptions, global: &Global, out: &mut Output) -> Done {
    match &options.command {
        None => list(global, out),
        Some(ClientsCommand::Close { sessions }) => close(sessions, global, out),
    }
}

fn close(sessions: &[u64], global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        for session in sessions {
            match client.close_client(*session).await {
                Ok(()) if out.json => out.json_line(&json!({ "closed": session }))?,
                Ok(()) => out.line(format_args!("client {session} is closed"))?,
                Err(AskError::Server(trouble))
                    if trouble.known() == Some(ErrorCode::UnknownClient) =>
                {
                    return Err(Failure::not_found(trouble.message).code(trouble.code));
                }
                Err(error) => return Err(asked(client, error, None).await),
            }
        }
        Ok(Exit::Ok)
    })
}

fn list(global: &Global, out: &mut Output) -> Done {
    with_client(global, out, async |client, out| {
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let page = match client.clients(after, PAGE).await {
                Ok(page) => page,
                Err(error) => return Err(asked(client, error, None).await),
            };
            after = page.clients.last().map_or(after, |info| info.session);
            let over = !page.more || page.clients.is_empty();
            all.extend(page.clients);
            if over {
                break;
            }
        }
        if out.json {
            for info in &all {
                out.json_line(&info_json(info))?;
            }
        } else {
            out.table(&table(&all, SystemClock::default().now()))?;
        }
        Ok(Exit::Ok)
    })
}

fn table(clients: &[ClientInfo], now: Timestamp) -> Table {
    let mut table =
        Table::new(&[">SESSION", "NAME", "ADDRESS", ">SINCE", "STATE", ">PLACE", "FOLLOWS"]);
    for info in clients {
        let who = [
            info.session.to_string(),
            readable(info.name.as_bytes()),
            readable(info.address.as_bytes()),
            human_span(now.since(info.since)),
        ];
        let follows = info.follows.iter().map(|follow| {
            let (place, _) = place(follow.place);
            [follow.state.name().to_owned(), place.to_string(), follow.pattern.to_string()]
        });
        let memberships = info.memberships.iter().map(|each| {
            let name = if each.name.is_empty() {
                String::new()
            } else {
                format!(" as {}", readable(each.name.as_bytes()))
            };
            let group = format!("group {}{name}", each.group);
            [role(each).to_owned(), format!("{} in flight", each.in_flight), group]
        });
        let mut rows: Vec<[String; 3]> = follows.chain(memberships).collect();
        if rows.is_empty() {
            rows.push([info.state.name().to_owned(), String::new(), String::new()]);
        }
        for (at, row) in rows.into_iter().enumerate() {
            // The client is named once; its further rows are what it has more.
            let who = who.clone().map(|cell| if at == 0 { cell } else { String::new() });
            table.row(who.into_iter().chain(row).collect());
        }
    }
    table
}

fn role(membership: &MembershipInfo) -> &'static str {
    if membership.active { "member" } else { "standby" }
}

fn place(place: Place) -> (u64, &'static str) {
    match place {
        Place::Seq(seq) => (seq.0, "seq"),
        Place::Position(position) => (position.0, "position"),
    }
}

fn info_json(info: &ClientInfo) -> Value {
    let follows = info.follows.iter().map(|follow| {
        let (number, unit) = place(follow.place);
        json!({
            "subscription": follow.subscription,
            "pattern": follow.pattern.as_str(),
            "state": follow.state.name(),
            "place": number,
            "unit": unit,
            "recovery_steps": follow.recovery_steps,
        })
    });
    let memberships = info.memberships.iter().map(|each| {
        json!({
            "membership": each.membership,
            "group": each.group.as_str(),
            "name": each.name,
            "member": each.id,
            "state": role(each),
            "in_flight": each.in_flight,
            "window": each.window,
        })
    });
    json!({
        "session": info.session,
        "name": info.name,
        "address": info.address,
        "since": gapless_core::calendar::format(info.since.0),
        "state": info.state.name(),
        "follows": follows.collect::<Vec<_>>(),
        "memberships": memberships.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;
    use gapless_client::ClientState;
    use gapless_core::{Pattern, Seq};
    use gapless_protocol::FollowInfo;

    #[test]
    fn a_client_has_a_row_for_each_subscription_and_membership() {
        let follow = |pattern: &str| FollowInfo {
            subscription: 1,
            state: ClientState::Online,
            place: Place::Seq(Seq(7)),
            recovery_steps: 0,
            pattern: Pattern::parse(pattern).unwrap(),
        };
        let member = MembershipInfo {
            membership: 9,
            id: 4,
            in_flight: 12,
            window: 100,
            active: true,
            group: gapless_core::TopicName::parse("billing").unwrap(),
            name: "w1".into(),
        };
        let info = ClientInfo {
            session: 3,
            since: Timestamp(0),
            state: ClientState::Online,
            name: "shop\x1b".into(),
            address: "unix".into(),
            follows: vec![follow("orders"), follow("mails")],
            memberships: vec![member],
        };
        let text = table(std::slice::from_ref(&info), Timestamp(5_000)).render(Paint::OFF, None);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 4, "{text}");
        assert!(rows[3].trim().ends_with("member  12 in flight  group billing as w1"), "{text}");
        assert!(rows[1].contains("shop\\u{1b}") && rows[1].contains("5.0s"), "{text}");
        assert!(rows[1].ends_with("orders") && rows[2].trim().ends_with("mails"), "{text}");
        assert!(!rows[2].contains("shop"), "{text}");
        assert_eq!(info_json(&info)["follows"][1]["unit"], "seq");
        assert_eq!(info_json(&info)["memberships"][0]["in_flight"], 12);
    }
}
