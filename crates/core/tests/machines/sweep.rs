//! The place of a reader of many topics as the golden scripts drive it.

use gapless_core::sweep::Input;
use gapless_core::{EntryHeader, EntryKind, Kept, Position, Seq, Sweep, Timestamp, TopicId};

use super::{Words, gap_reason, trace};

pub(crate) fn new(words: &Words<'_>) -> Sweep {
    let (next, last) = (Position(words.number("next")), Position(words.number("last")));
    Sweep::start(next, last, words.text("beginning").is_some())
}

fn kept(words: &Words<'_>) -> Kept {
    Kept {
        first: Seq(words.text("first").map_or(1, |_| words.number("first"))),
        floor_reason: gap_reason(words.text("reason").unwrap_or("retention")),
        age: words.text("age").map(|_| words.millis("age")),
        compacted: words.text("compacted").is_some(),
    }
}

pub(crate) fn run(machine: &mut Sweep, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let kept = kept(words);
    let topic = TopicId(words.text("topic").map_or(1, |_| words.number("topic")));
    let header = |count: u32| {
        let span = words.small("span");
        let (seq, position) = (words.seq("seq"), Position(words.number("at")));
        let time = Timestamp(words.text("time").map_or(0, |_| words.number("time")));
        let new = EntryHeader::new(EntryKind::Batch);
        EntryHeader { topic, seq, position, span, count, time, ..new }
    };
    let entry;
    let input = match verb {
        "behind" => Input::Behind { last: Position(words.number("last")) },
        "tail" => Input::AtTail { is_empty: words.text("empty").is_some() },
        "floor" => Input::Floor { topic, kept: &kept, position: Position(words.number("at")) },
        "reused" => Input::Reused { topic, position: Position(words.number("at")) },
        "batch" => {
            entry = header(words.small("span"));
            Input::Entry { header: &entry, kept: &kept }
        }
        "hole" => {
            entry = header(0);
            Input::Entry { header: &entry, kept: &kept }
        }
        "passed" => Input::Passed { through: Position(words.number("through")) },
        other => panic!("a sweep has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let state = if machine.is_live() { "live" } else { "recovering" };
    trace(&effects, &format!("next {}, {state}", machine.next()))
}
