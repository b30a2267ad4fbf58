//! What a publish must be answered: accepted with which numbers, known already, or refused.

use std::rc::Rc;

use gapless_core::{Expect, Message, Timestamp};

use crate::model::{Accepted, State, TopicKey, TopicModel};

/// Messages for one topic, before the broker has seen them.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub topic: TopicKey,
    /// Each with its number.
    pub messages: Vec<(u64, Message)>,
    pub expect: Option<Expect>,
}

/// What must become of one offer that is not refused.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub topic: TopicKey,
    /// The seq of the first message that is new.
    pub first: u64,
    /// The messages that are new.
    pub fresh: Vec<(u64, Message)>,
    /// The seqs of those that are known.
    pub known: Vec<u64>,
}

/// What must become of a publish.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Accept(Vec<Taken>),
    /// The last seq is another one than was expected. The collector may or may not have
    /// forgotten a key, so there may be two right answers.
    Refuse(Vec<u64>),
    /// Both are right, for the same reason.
    Either(Vec<Taken>, Vec<u64>),
}

/// Decides about offers that are made together.
pub(crate) fn decide(
    state: &State,
    offers: &[Offer],
    floor: &dyn Fn(TopicKey) -> u64,
    now: Timestamp,
) -> Decision {
    let mut taken = Vec::new();
    let mut doubt = None;
    for offer in offers {
        let topic = &state.topics[&offer.topic];
        let (expected, actual) = match offer.expect {
            None => (0, vec![0]),
            Some(Expect::TopicLast(seq)) => (seq.0, vec![topic.next() - 1]),
            Some(Expect::KeyLast(seq)) => {
                let key = offer.messages.first().and_then(|(_, first)| first.key.as_deref());
                let newest = key.and_then(|key| topic.newest(key));
                let floor = floor(offer.topic);
                let actual = match newest {
                    None => vec![0],
                    Some(_) => last_of_key(topic, key.unwrap_or_default(), floor, now),
                };
                (seq.0, actual)
            }
        };
        let one = take(state, offer, now);
        let holds = actual.contains(&expected);
        let wrong: Vec<u64> = actual.iter().copied().filter(|each| *each != expected).collect();
        if !(wrong.is_empty() || (one.fresh.is_empty() && !one.known.is_empty())) {
            if !holds {
                // Whichever is looked at first is told.
                return Decision::Refuse([doubt.unwrap_or_default(), wrong].concat());
            }
            doubt = Some(wrong);
        }
        taken.push(one);
    }
    match doubt {
        None => Decision::Accept(taken),
        Some(wrong) => Decision::Either(taken, wrong),
    }
}

/// What the last seq of a key may be said to be. Usually its newest; zero too, if that may be
/// gone without a trace.
///
/// A topic that is not compacted forgets what has expired, and then an older message of the
/// key is the last one: any of them, since compaction may have taken those between.
fn last_of_key(topic: &TopicModel, key: &[u8], floor: u64, now: Timestamp) -> Vec<u64> {
    let of_key = |(at, each): (usize, &Rc<Accepted>)| {
        (each.message.key.as_deref() == Some(key)).then_some(at as u64 + 1)
    };
    let mut all: Vec<u64> = topic.log.iter().enumerate().filter_map(of_key).collect();
    let Some((newest, message)) = topic.newest(key) else { return vec![0] };
    if message.is_expired(now) {
        all.push(0);
        return all;
    }
    let removed = message.is_tombstone() && topic.may_be_absent(newest, now);
    let count = topic.settings.retention.count;
    let by_count = count.is_some_and(|count| newest + count < topic.next());
    let may_be_gone = newest < floor || removed || by_count;
    if may_be_gone { vec![newest, 0] } else { vec![newest] }
}

fn take(state: &State, offer: &Offer, now: Timestamp) -> Taken {
    let topic = &state.topics[&offer.topic];
    let first = topic.next();
    let mut taken = Taken { topic: offer.topic, first, fresh: Vec::new(), known: Vec::new() };
    for (number, message) in &offer.messages {
        let within = |id: &[u8]| {
            let of_id = |(_, each): &(u64, Message)| each.id.as_deref() == Some(id);
            let remembers = topic.settings.dedup.count > 0 && !topic.settings.dedup.time.is_zero();
            taken.fresh.iter().position(of_id).filter(|_| remembers).map(|at| first + at as u64)
        };
        let known =
            message.id.as_deref().and_then(|id| within(id).or_else(|| topic.ids.find(id, now)));
        match known {
            Some(seq) => taken.known.push(seq),
            None => taken.fresh.push((*number, message.clone())),
        }
    }
    taken
}
