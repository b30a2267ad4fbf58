//! The fence of an outbox as the scripts drive it: `poll life=1 drawn=7 holders=1,2p`.

use gapless_core::Timestamp;
use gapless_core::outbox::fence::{Fence, Holder, HolderId, Input, Life};

use super::{Words, trace};

pub(super) fn run(machine: &mut Fence, now: Timestamp, verb: &str, words: &Words<'_>) -> String {
    let input = match verb {
        "stored" => Input::Stored { safe: words.number("safe") },
        "poll" => Input::Polled {
            life: Life(u128::from(words.number("life"))),
            drawn: words.number("drawn"),
            holders: words.text("holders").into_iter().flat_map(holders).collect(),
        },
        other => panic!("a fence has no {other}"),
    };
    let mut effects = Vec::new();
    machine.step(now, input, &mut effects);
    machine.check();
    let culprit = machine.culprit().map_or("nothing is held".to_owned(), |culprit| {
        format!("held by {} since {}", culprit.id.0, culprit.since)
    });
    trace(&effects, &format!("safe {}, {culprit}", machine.safe()))
}

/// `1,2p`: the second is prepared.
fn holders(text: &str) -> impl Iterator<Item = Holder> {
    text.split(',').map(|holder| {
        let id = holder.trim_end_matches('p');
        let id = HolderId(id.parse().expect("the number of a holder"));
        Holder { id, prepared: holder.ends_with('p') }
    })
}
