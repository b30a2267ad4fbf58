//! A group as the golden scripts drive it: one topic, positions as seqs, no jitter.

use std::num::NonZeroU128;
use std::time::Duration;

use gapless_core::group::op::{Op, Stop};
use gapless_core::group::{Effect, Input, Offered};
use gapless_core::{
    GapReason, Group, GroupSettings, Lease, MemberId, Mode, OnGap, Pattern, Position, RetryPolicy,
    Seq, Timestamp, TopicId, Waits,
};

use super::Words;

pub(crate) fn new(words: &Words<'_>) -> Group {
    let or = |name, default| words.text(name).map_or(default, |_| words.number(name));
    let small = |name, default| words.text(name).map_or(default, |_| words.small(name));
    let mode = Mode::from_name(words.text("mode").expect("mode=")).expect("a mode");
    let waits = Waits::Steps(vec![Duration::from_millis(or("wait", 100))]);
    let plain = GroupSettings::new(Pattern::parse("t").expect("a pattern"));
    let on_gap = words.text("gap").map_or(OnGap::Stop, |gap| OnGap::from_name(gap).expect("gap="));
    let settings = GroupSettings {
        mode,
        lease: Duration::from_millis(or("lease", 1_000)),
        attempts_max: small("attempts", 3),
        retry: RetryPolicy { waits, jitter_percent: 0 },
        dead_letters: words.text("letters") != Some("off"),
        on_gap,
        ..plain
    };
    Group::new(settings, Position(0), Position(0), 0)
}

/// `5`, `5-9` or `5-9:2`, the last the attempt; several with commas between.
fn leases(text: Option<&str>) -> Vec<Lease> {
    let number = |text: &str| Position(text.parse().expect("a position"));
    let lease = |text: &str| {
        let (range, attempt) = text.split_once(':').unwrap_or((text, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let attempt = attempt.parse().expect("an attempt");
        Lease { first: number(first), last: number(last), attempt }
    };
    text.map(|text| text.split(',').map(lease).collect()).unwrap_or_default()
}

/// `1`, `1-4` or `1:a`, the last the key.
fn offered(text: &str, now: Timestamp) -> Vec<Offered> {
    let run = |text: &str| {
        let (range, key) = text.split_once(':').unwrap_or((text, ""));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) =
            (first.parse().expect("a position"), last.parse().expect("a position"));
        Offered {
            first: Position(first),
            count: last - first + 1,
            topic: TopicId(1),
            seq: Seq(first),
            time: now,
            key: key.bytes().next().and_then(|byte| NonZeroU128::new(u128::from(byte))),
        }
    };
    text.split(',').map(run).collect()
}

pub(crate) fn run(machine: &mut Group, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let member = || MemberId(words.number("member"));
    let named = leases(words.text("of"));
    let runs = words.text("at").map(|text| offered(text, now)).unwrap_or_default();
    let reason = words.text("reason").unwrap_or("broken");
    let input = match verb {
        "join" => Input::Join { member: member(), window: words.small("window") },
        "leave" => Input::Leave { member: member(), failed: words.text("dead").is_some() },
        "offer" => Input::Offer { runs: &runs, through: Position(words.number("through")) },
        "take" => Input::Take { member: member(), max: 100 },
        "ack" => Input::Ack { member: member(), leases: &named },
        "commit" => {
            let through = Position(words.number("through"));
            Input::Commit { member: member(), through, unread: &named }
        }
        "nack" => {
            let delay = words.text("delay").map(|_| words.millis("delay"));
            Input::Nack { member: member(), leases: &named, delay, reason }
        }
        "terminate" => Input::Terminate { member: member(), leases: &named, reason },
        "extend" => Input::Extend { member: member(), leases: &named },
        "buried" => Input::Buried { first: named[0].first, last: named[0].last },
        "gap" => Input::Gap(Stop {
            topic: None,
            from: None,
            to: None,
            through: Position(words.number("through")),
            reason: GapReason::Retention,
        }),
        "pause" => Input::Pause,
        "resume" => Input::Resume,
        "reset" => {
            let floor = Position(words.number("floor"));
            Input::Reset { floor, forgiven: floor }
        }
        "tick" => Input::Tick,
        other => panic!("a group has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let mut out: String = effects.iter().map(|effect| told(effect) + "\n").collect();
    let counts = machine.counts();
    let due = machine.deadline().map_or("none".into(), |due| due.to_string());
    let state = match (machine.stopped(), machine.is_paused()) {
        (Some(_), _) => "stopped, ",
        (None, true) => "paused, ",
        (None, false) => "",
    };
    out += &format!(
        "= {state}floor {}, ready {}, in flight {}, parked {}, waiting {}, dying {}, due {due}\n",
        machine.floor(),
        counts.ready,
        counts.in_flight,
        counts.parked,
        counts.waiting,
        counts.dying,
    );
    out
}

/// An effect in words.
fn told(effect: &Effect) -> String {
    let range = |first: Position, last: Position| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    match effect {
        Effect::Deliver(granted) => {
            let lease = granted.lease;
            format!(
                "to member {}: {} (attempt {}) until {}",
                granted.member.0,
                range(lease.first, lease.last),
                lease.attempt,
                granted.deadline
            )
        }
        Effect::Record(Op::Done { first, last }) => format!("record done {}", range(*first, *last)),
        Effect::Record(Op::Failed { first, last, failure }) => format!(
            "record failed {} ({} attempts, {}, {:?})",
            range(*first, *last),
            failure.attempts,
            if failure.dead { "dead".to_owned() } else { format!("due {}", failure.due) },
            failure.error
        ),
        Effect::Record(Op::Stopped(stop)) => format!("record stopped at {}", stop.through),
        Effect::Record(other) => format!("record {other:?}"),
        Effect::Counted { taken, refused } => format!("taken {taken}, refused {refused}"),
        Effect::Expired { member, count } => format!("expired {count} of member {}", member.0),
        Effect::Active { member } => format!("member {} is active", member.0),
        Effect::Standby { member } => format!("member {} stands by", member.0),
        Effect::Died { count } => format!("{count} died"),
        Effect::Dropped { count } => format!("{count} dropped"),
        Effect::Passed(stop) => format!("passed a gap up to {}", stop.through),
    }
}
