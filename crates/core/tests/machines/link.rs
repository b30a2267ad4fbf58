//! A link as the golden scripts drive it. Jitter is left out unless a story asks for it.

use gapless_core::link::{Failure, Input, Origin, PublishNumber, Status, SubscriptionId, Token};
use gapless_core::{Backoff, Epoch, Link, LinkLimits, Position, Timestamp};

use super::{Words, trace};

pub(crate) fn new(words: &Words<'_>) -> Link {
    let or = |name, default| words.text(name).map_or(default, |_| words.number(name));
    let jitter_percent = u8::try_from(or("jitter", 0)).expect("a percentage");
    let backoff = Backoff { jitter_percent, ..Backoff::default() };
    let small = |name, default| words.text(name).map_or(default, |_| words.small(name));
    let default = LinkLimits::default();
    let limits = LinkLimits {
        publish_count_max: small("count", default.publish_count_max),
        publish_bytes_max: or("bytes", default.publish_bytes_max),
        subscription_count_max: small("subscriptions", default.subscription_count_max),
        ..default
    };
    let addresses = usize::try_from(words.number("addresses")).expect("a small number");
    Link::new(addresses, backoff, or("seed", 0), limits).expect("a good link")
}

pub(crate) fn run(machine: &mut Link, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let id = || SubscriptionId(words.number("id"));
    let token = || Token {
        epoch: Epoch(words.text("epoch").map_or(1, |_| words.number("epoch"))),
        position: Position(words.number("token")),
    };
    let input = match verb {
        "start" => Input::Start,
        "connected" => Input::Connected,
        "welcomed" => Input::Welcomed { epoch: Epoch(words.number("epoch")) },
        "failed" => Input::Failed { why: failure(words.text("why").expect("why=")) },
        "lost" => Input::Lost,
        "drain" => Input::Drain { grace: words.millis("grace") },
        "tick" => Input::Tick,
        "stop" => Input::Stop { grace: words.millis("grace") },
        "publish" => Input::Publish { bytes: words.number("bytes") },
        "acked" => Input::Acked { number: PublishNumber(words.number("number")) },
        "subscribe" => {
            let origin = if words.text("now").is_some() { Origin::Now } else { Origin::Fixed };
            Input::Subscribe { id: id(), origin }
        }
        "unsubscribe" => Input::Unsubscribe { id: id() },
        "subscribed" => Input::Subscribed { id: id(), token: token() },
        "progress" => Input::Progress { id: id(), token: token() },
        "ended" => Input::Ended { id: id() },
        other => panic!("a link has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let status = match machine.status() {
        Status::Idle => "idle",
        Status::Connecting { .. } => "connecting",
        Status::Greeting { .. } => "greeting",
        Status::Online => "online",
        Status::Leaving { .. } => "leaving",
        Status::Waiting { .. } => "waiting",
        Status::Ended => "ended",
    };
    let unacked = machine.unacked().count();
    let due = machine.deadline().map_or("none".into(), |due| due.to_string());
    trace(&effects, &format!("{status}, unacked {unacked}, due {due}"))
}

fn failure(name: &str) -> Failure {
    match name {
        "unreachable" => Failure::Unreachable,
        "busy" => Failure::Busy,
        "version-mismatch" => Failure::VersionMismatch,
        "not-authorised" => Failure::NotAuthorised,
        other => panic!("no failure {other}"),
    }
}
