//! `gapless clients`: who is connected, and where each stands.

use clap::Args;
use gapless_broker::{Clock, SystemClock};
use gapless_client::ClientInfo;
use gapless_core::Timestamp;
use gapless_protocol::Place;
use serde_json::{Value, json};

use super::Global;
use crate::exit::{Done, Exit};
use crate::output::{Output, Table, human_span};
use crate::remote::{asked, with_client};
use crate::show::readable;

const EXAMPLES: &str = "\
Examples:
  gapless clients
  gapless clients --json | jq '.follows[] | select(.state == \"recovering\")'

States: connected (follows nothing), recovering (reads history), online (live), offline.
A place is the last seq (of one topic) or position (of a pattern) it was handed. The command
itself is in the list.";

/// Clients asked for at a time.
const PAGE: u32 = 500;

/// Show who is connected, what they follow and where they stand
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClientsOptions {}

pub(crate) fn run(global: &Global, out: &mut Output) -> Done {
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
        if info.follows.is_empty() {
            let rest = [info.state.name().to_owned(), String::new(), String::new()];
            table.row(who.into_iter().chain(rest).collect());
            continue;
        }
        for (at, follow) in info.follows.iter().enumerate() {
            // The client is named once; its further rows are its further subscriptions.
            let who = who.clone().map(|cell| if at == 0 { cell } else { String::new() });
            let (place, _) = place(follow.place);
            let rest =
                [follow.state.name().to_owned(), place.to_string(), follow.pattern.to_string()];
            table.row(who.into_iter().chain(rest).collect());
        }
    }
    table
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
    json!({
        "session": info.session,
        "name": info.name,
        "address": info.address,
        "since": gapless_core::calendar::format(info.since.0),
        "state": info.state.name(),
        "follows": follows.collect::<Vec<_>>(),
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
    fn a_client_with_two_subscriptions_has_two_rows() {
        let follow = |pattern: &str| FollowInfo {
            subscription: 1,
            state: ClientState::Online,
            place: Place::Seq(Seq(7)),
            recovery_steps: 0,
            pattern: Pattern::parse(pattern).unwrap(),
        };
        let info = ClientInfo {
            session: 3,
            since: Timestamp(0),
            state: ClientState::Online,
            name: "shop\x1b".into(),
            address: "unix".into(),
            follows: vec![follow("orders"), follow("mails")],
        };
        let text = table(std::slice::from_ref(&info), Timestamp(5_000)).render(Paint::OFF, None);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(rows[1].contains("shop\\u{1b}") && rows[1].contains("5.0s"), "{text}");
        assert!(rows[1].ends_with("orders") && rows[2].trim().ends_with("mails"), "{text}");
        assert!(!rows[2].contains("shop"), "{text}");
        assert_eq!(info_json(&info)["follows"][1]["unit"], "seq");
    }
}
