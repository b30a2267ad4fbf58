//! What listeners show of the cluster that the broker is a node of: the same over both protocols.
//!
//! Looking needs the area `server`, leaving the area `cluster`. A server that is on its own is shown as
//! one without a node, and leaves nothing.

use std::future::Future;
use std::time::Duration;

use gapless_auth::Caller;
use gapless_broker::Broker;
use gapless_core::TopicName;
use gapless_core::rights::Right;
use gapless_protocol::Visible;
use serde_json::{Value, json};

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Status,
    /// The node of this name is to leave; without one, the node that is asked.
    Leave(Option<String>),
}

fn parse(json: &str) -> Option<Asked> {
    let asked: Value = serde_json::from_str(json).ok()?;
    match asked["do"].as_str()? {
        "status" => Some(Asked::Status),
        "leave" => Some(Asked::Leave(asked["node"].as_str().map(str::to_owned))),
        _ => None,
    }
}

/// The area that a question needs; one that cannot be read does nothing.
pub(crate) fn area(json: &str) -> &'static str {
    match parse(json) {
        Some(Asked::Leave(_)) => "cluster",
        Some(Asked::Status) | None => "server",
    }
}

/// Answers a question; says what can be asked if it is none.
pub(crate) fn answer(broker: &Broker, json: &str) -> Result<Value, String> {
    match parse(json) {
        Some(Asked::Status) => Ok(status(broker)),
        Some(Asked::Leave(None)) => {
            let status = status(broker);
            // The connection was passed on to the owner, whichever node the client meant.
            if !status["journals"].is_null() {
                return Err(
                    "nodes share a store here: say which one is to leave, by its name".to_owned()
                );
            }
            Ok(leave(broker))
        }
        Some(Asked::Leave(Some(node))) => {
            let spread = broker.spread().ok_or("this server is not a node of a cluster")?;
            spread.leave_node(&node)?;
            Ok(status(broker))
        }
        None => Err("ask {\"do\":\"status\"} or {\"do\":\"leave\"}".to_owned()),
    }
}

/// How the node stands.
pub(crate) fn status(broker: &Broker) -> Value {
    let alone = || json!({ "node": null, "cluster": null, "nodes": [] });
    broker.spread().map_or_else(alone, |spread| spread.status())
}

/// Lets the node leave; how it stands now is returned.
pub(crate) fn leave(broker: &Broker) -> Value {
    if let Some(spread) = broker.spread() {
        spread.leave();
    }
    status(broker)
}

/// Waits until all nodes know what is followed on this one, by this caller and by others. Nodes that do
/// not know it in time are named to callers that may look at the cluster, and counted for all.
pub(crate) fn visible(
    caller: &Caller,
    wait: Duration,
) -> impl Future<Output = Visible> + Send + use<> {
    let server = TopicName::parse("server").expect("areas are names");
    let (named, broker) = (caller.sees(Right::Admin, &server), caller.broker().clone());
    async move { Visible::unseen(broker.await_visible(wait).await.err().unwrap_or_default(), named) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_needs_more_than_looking() {
        assert_eq!(area("{\"do\":\"status\"}"), "server");
        assert_eq!(area("{\"do\":\"leave\"}"), "cluster");
        assert_eq!(area("nonsense"), "server");
    }
}
