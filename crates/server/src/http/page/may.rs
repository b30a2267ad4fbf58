//! What the one who looks may do, so that a page offers nothing that the server would refuse.
//!
//! It is not what refuses: each request is checked on its own, whatever a page offers.

use gapless_auth::Caller;
use gapless_core::rights::Right;
use gapless_core::{Pattern, TopicName};
use serde_json::{Value, json};

/// Rights on a topic that a page has buttons for.
const OF_TOPICS: [Right; 5] =
    [Right::Publish, Right::Read, Right::Subscribe, Right::Configure, Right::Delete];

/// What it may do that is not about one topic or group.
pub(crate) fn server(caller: &Caller) -> Value {
    let clients = TopicName::parse("clients.close").expect("an area is a name");
    json!({
        "create": caller.sees_somewhere(Right::Create),
        "group": caller.sees_somewhere(Right::Group),
        "close_clients": caller.sees(Right::Admin, &clients),
    })
}

/// The names of its rights on a topic.
pub(crate) fn topic(caller: &Caller, topic: &TopicName) -> Value {
    let held = OF_TOPICS.iter().filter(|right| caller.sees(**right, topic));
    held.map(|right| right.name()).collect()
}

/// The names of its rights on a group; `configure` also needs to follow all that the group reads.
pub(crate) fn group(caller: &Caller, group: &TopicName, source: &Pattern) -> Value {
    let may = |right| caller.sees(right, group);
    let follows = match source.as_name() {
        Some(name) => caller.sees(Right::Subscribe, &name),
        None => caller.sees_all(Right::Subscribe, source),
    };
    let rights = [
        ("group", may(Right::Group)),
        ("configure", may(Right::Group) && follows),
        ("dlq", may(Right::Dlq)),
    ];
    rights.into_iter().filter(|(_, held)| *held).map(|(name, _)| name).collect()
}
