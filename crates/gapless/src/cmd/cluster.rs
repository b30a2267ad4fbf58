//! `gapless cluster`: how a node sees its cluster, and leaving it.

use std::time::Duration;

use clap::{Args, Subcommand};
use gapless_client::Client;
use serde_json::{Value, json};
use tokio::time::interval;

use super::Global;
use crate::exit::{Done, Exit, Failure};
use crate::output::{Output, Table, human_bytes, human_number, human_span};
use crate::remote::{Interrupt, asked, with_client};

const EXAMPLES: &str = "\
Examples:
  gapless cluster status                  this node, its queues and what it lost
  gapless cluster nodes --watch           every second, until Ctrl-C
  gapless cluster topology --json         who is linked to whom, as this node sees it
  gapless cluster journals                which node owns the shared store, and how it stands
  gapless cluster leave                   the node sends what waits, says goodbye, and goes on alone";

/// How often it is shown when it is watched.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Show the cluster as a node sees it, or let the node leave
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClusterOptions {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show this node: its interest, its delay queues, what it sent and lost
    #[command(
        after_help = "Examples:\n  gapless cluster status\n  gapless cluster status --json | jq .queued_bytes"
    )]
    Status {
        /// Show it again every second
        #[arg(long, short)]
        watch: bool,
    },
    /// List the nodes: whether each is linked, suspended, and what waits for it
    #[command(after_help = "Examples:\n  gapless cluster nodes\n  gapless cluster nodes --watch")]
    Nodes {
        /// Show it again every second
        #[arg(long, short)]
        watch: bool,
    },
    /// Show links and named subscribers: where each is, and what is held for it
    #[command(
        after_help = "Examples:\n  gapless cluster topology\n  gapless cluster topology --json"
    )]
    Topology {
        /// Show it again every second
        #[arg(long, short)]
        watch: bool,
    },
    /// Show who owns the journal of a shared store: its term, how long opening took, what waits to be
    /// written
    #[command(
        after_help = "Examples:\n  gapless cluster journals\n  gapless cluster journals --watch"
    )]
    Journals {
        /// Show it again every second
        #[arg(long)]
        watch: bool,
    },
    /// Let the node leave the cluster: it sends what waits, says goodbye and goes on alone; one that
    /// shares its store hands over what it owns, and ends
    #[command(after_help = "Examples:\n  gapless cluster leave --server 10.0.0.3:4281\n  gapless \
                      cluster leave --node c     of nodes that share a store")]
    Leave {
        /// Which node, if nodes share a store
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

type Show = fn(&Value, &mut Output) -> Result<(), Failure>;

pub(crate) fn run(options: &ClusterOptions, global: &Global, out: &mut Output) -> Done {
    let (show, watch): (Show, bool) = match &options.command {
        ClusterCommand::Status { watch } => (status, *watch),
        ClusterCommand::Nodes { watch } => (nodes, *watch),
        ClusterCommand::Topology { watch } => (topology, *watch),
        ClusterCommand::Journals { watch } => (journals, *watch),
        ClusterCommand::Leave { node } => {
            let mut question = json!({ "do": "leave" });
            if let Some(node) = node {
                question["node"] = node.as_str().into();
            }
            return with_client(global, out, async |client, out| {
                let status = ask(client, &question).await?;
                if out.json {
                    out.json_line(&status)?;
                } else {
                    let node = node.clone().unwrap_or_else(|| text(&status["node"]));
                    out.line(format_args!("node {node} sends what waits and leaves"))?;
                }
                Ok(Exit::Ok)
            });
        }
    };
    let question = json!({ "do": "status" });
    with_client(global, out, async |client, out| {
        if !watch {
            show(&ask(client, &question).await?, out)?;
            return Ok(Exit::Ok);
        }
        let (mut due, mut interrupt) = (interval(WATCH_EVERY), Interrupt::listen()?);
        loop {
            tokio::select! {
                _ = due.tick() => {
                    show(&ask(client, &question).await?, out)?;
                    if !out.json {
                        out.line("")?;
                    }
                    out.flush()?;
                }
                () = interrupt.came() => return Ok(Exit::Ok),
            }
        }
    })
}

async fn ask(client: &Client, question: &Value) -> Result<Value, Failure> {
    let text = match client.cluster(question.to_string()).await {
        Ok(text) => text,
        Err(error) => return Err(asked(client, error, None).await),
    };
    let Ok(status) = serde_json::from_str::<Value>(&text) else {
        return Err(Failure::failed("the server's answer cannot be read"));
    };
    if status["node"].is_null() {
        return Err(Failure::not_found("this server is not a node of a cluster")
            .hint("start it as one: gapless serve --node a --cluster-listen host:port"));
    }
    Ok(status)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn number(value: &Value) -> String {
    value.as_u64().map_or_else(|| text(value), human_number)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| text(value), human_bytes)
}

fn span(value: &Value) -> String {
    value.as_u64().map_or_else(String::new, |ms| human_span(Duration::from_millis(ms)))
}

/// `active`, or `suspended for 5s: node-unreachable`.
fn state(value: &Value) -> String {
    match (&value["reason"], &value["for_ms"]) {
        (Value::String(reason), for_ms) => {
            format!("{} for {}: {reason}", text(&value["is"]), span(for_ms))
        }
        _ => text(&value["is"]),
    }
}

/// The state of a node; one that left is not waited for.
fn node_state(node: &Value) -> String {
    if node["left"] == true { "left".to_owned() } else { state(&node["state"]) }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn status(status: &Value, out: &mut Output) -> Result<(), Failure> {
    if out.json {
        return Ok(out.json_line(status)?);
    }
    let left = if status["left"] == true { " (has left)" } else { "" };
    let linked = list(&status["nodes"]).iter().filter(|node| node["link"] == "up").count();
    let lines = [
        ("cluster", text(&status["cluster"])),
        ("node", format!("{}{left}", text(&status["node"]))),
        ("incarnation", text(&status["incarnation"])),
        ("address", text(&status["address"])),
        ("other nodes", format!("{} linked of {}", linked, list(&status["nodes"]).len())),
        ("patterns", number(&status["interest"]["patterns"])),
        ("named subscribers", number(&status["named_total"])),
        ("held", bytes(&status["queued_bytes"])),
        ("sent", number(&status["counts"]["sent"])),
        ("sent again", number(&status["counts"]["resent"])),
        ("received", number(&status["counts"]["received"])),
        ("repeats passed over", number(&status["counts"]["repeats"])),
        ("lost", number(&status["counts"]["lost"])),
        ("at most once, unknown", number(&status["counts"]["unknown"])),
        ("rejected: queue full", number(&status["counts"]["queue_full"])),
        ("rejected: partition", number(&status["counts"]["partition_drop"])),
    ];
    for (name, value) in lines {
        out.line(format_args!("{name:<24} {value}"))?;
    }
    Ok(())
}

fn nodes(status: &Value, out: &mut Output) -> Result<(), Failure> {
    if out.json {
        for node in list(&status["nodes"]) {
            out.json_line(node)?;
        }
        return Ok(());
    }
    let mut table =
        Table::new(&["NODE", "LINK", "ALIVE", "STATE", ">HELD", ">BYTES", ">OLDEST", ">PATTERNS"]);
    table.row(vec![
        format!("{} (this one)", text(&status["node"])),
        String::new(),
        "yes".to_owned(),
        if status["left"] == true { "left" } else { "active" }.to_owned(),
        String::new(),
        String::new(),
        String::new(),
        number(&status["interest"]["patterns"]),
    ]);
    for node in list(&status["nodes"]) {
        let queue = &node["queue"];
        table.row(vec![
            text(&node["node"]),
            text(&node["link"]),
            if node["live"] == true { "yes" } else { "no" }.to_owned(),
            node_state(node),
            number(&queue["messages"]),
            bytes(&queue["bytes"]),
            span(&queue["oldest_ms"]),
            number(&node["patterns"]),
        ]);
    }
    Ok(out.table(&table)?)
}

fn topology(status: &Value, out: &mut Output) -> Result<(), Failure> {
    if out.json {
        let me = &status["node"];
        for node in list(&status["nodes"]) {
            let (to, link, state) = (&node["node"], &node["link"], &node["state"]);
            out.json_line(&json!({ "from": me, "to": to, "link": link, "state": state }))?;
        }
        for named in list(&status["named"]) {
            out.json_line(named)?;
        }
        return Ok(());
    }
    let me = text(&status["node"]);
    for node in list(&status["nodes"]) {
        let arrow = if node["link"] == "up" { "-->" } else { "-x-" };
        out.line(format_args!("{me} {arrow} {}   {}", text(&node["node"]), node_state(node)))?;
    }
    let named = list(&status["named"]);
    if named.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["SUBSCRIBER", "PATTERN", "NODE", "STATE", ">HELD", ">BYTES"]);
    for each in named {
        table.row(vec![
            text(&each["subscriber"]),
            text(&each["pattern"]),
            text(&each["node"]),
            state(&each["state"]),
            number(&each["queue"]["messages"]),
            bytes(&each["queue"]["bytes"]),
        ]);
    }
    Ok(out.table(&table)?)
}

fn journals(status: &Value, out: &mut Output) -> Result<(), Failure> {
    if status["journals"].is_null() {
        return Err(Failure::not_found("the nodes of this cluster do not share a store")
            .hint("let them: gapless serve --store URL --shared"));
    }
    if out.json {
        for journal in list(&status["journals"]) {
            out.json_line(journal)?;
        }
        return Ok(());
    }
    let mut table = Table::new(&[
        "JOURNAL",
        "OWNER",
        "STATE",
        ">TERM",
        ">OPENED IN",
        ">REPLAYED",
        ">WAITING",
        ">CONFIRMED",
        "NODES",
    ]);
    for journal in list(&status["journals"]) {
        let nodes = list(&journal["nodes"]).iter().map(|node| {
            let unable = if node["able"] == true { "" } else { ", cannot own it" };
            format!("{} {}{unable}", text(&node["node"]), text(&node["state"]))
        });
        let confirmed = span(&journal["confirmed_ms"]);
        table.row(vec![
            text(&journal["journal"]),
            text(&journal["owner"]),
            text(&journal["state"]),
            text(&journal["term"]),
            span(&journal["opening_ms"]),
            number(&journal["replayed_frames"]),
            bytes(&journal["waiting_bytes"]),
            if confirmed.is_empty() { confirmed } else { format!("{confirmed} ago") },
            nodes.collect::<Vec<_>>().join("; "),
        ]);
    }
    Ok(out.table(&table)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_node_says_why_and_for_how_long() {
        let suspended = json!({ "is": "suspended", "reason": "node-unreachable", "for_ms": 5_000 });
        assert_eq!(state(&suspended), "suspended for 5.0s: node-unreachable");
        assert_eq!(state(&json!({ "is": "active" })), "active");
        assert_eq!(number(&json!(1234)), "1 234");
        assert_eq!(text(&Value::Null), "-");
    }
}
