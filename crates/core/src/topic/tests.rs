//! Tests of the rules in `topic.rs`.

use alloc::collections::BTreeMap;
use alloc::vec;

use proptest::prelude::*;

use super::*;

const WINDOW: DedupWindow = DedupWindow { time: Duration::from_millis(100), count: 4 };

fn step(topic: &mut Topic, now: u64, input: Input<'_>) -> Vec<Effect> {
    let mut effects = Vec::new();
    topic.step(Timestamp(now), input, &mut effects);
    topic.check();
    effects
}

fn offer<'a>(count: u32, ids: &'a [(u32, &'a [u8])], expect: Option<Expect>) -> Input<'a> {
    Input::Offer { count, ids, expect, key_last: None }
}

fn accepted(first: u64, count: u32) -> Effect {
    Effect::Accepted { first: Seq(first), count }
}

fn duplicate(index: u32, seq: u64) -> Effect {
    Effect::Duplicate { index, seq: Seq(seq) }
}

#[test]
fn an_idle_topic_is_tiny() {
    assert!(size_of::<Topic>() <= 48, "{}", size_of::<Topic>());
    let mut topic = Topic::new(WINDOW);
    step(&mut topic, 0, offer(1, &[(0, b"x")], None));
    assert_eq!(topic.deadline(), Some(Timestamp(100)));
    step(&mut topic, 100, Input::Tick);
    assert!(topic.dedup.is_none());
    assert_eq!(topic.deadline(), None);
}

#[test]
fn a_retry_of_a_conditional_publish_gets_its_first_answer() {
    let mut topic = Topic::new(WINDOW);
    let cas = offer(2, &[(0, b"x"), (1, b"y")], Some(Expect::TopicLast(Seq(0))));
    assert_eq!(step(&mut topic, 0, cas), [accepted(1, 2)]);
    assert_eq!(step(&mut topic, 1, cas), [duplicate(0, 1), duplicate(1, 2)]);
    let other = offer(2, &[(0, b"x"), (1, b"z")], Some(Expect::TopicLast(Seq(0))));
    let before = topic.clone();
    let reason = RejectReason::ExpectedSeq { actual: Seq(2) };
    assert_eq!(step(&mut topic, 2, other), [Effect::Rejected(reason)]);
    assert_eq!(topic, before);
}

#[test]
fn an_expectation_about_a_key_looks_at_the_key() {
    let mut topic = Topic::new(WINDOW);
    let offer = |expect, key_last: Option<u64>| Input::Offer {
        count: 1,
        ids: &[],
        expect: Some(Expect::KeyLast(Seq(expect))),
        key_last: key_last.map(Seq),
    };
    assert_eq!(step(&mut topic, 0, offer(0, None)), [accepted(1, 1)]);
    let reason = RejectReason::ExpectedSeq { actual: Seq(1) };
    assert_eq!(step(&mut topic, 0, offer(0, Some(1))), [Effect::Rejected(reason)]);
    assert_eq!(step(&mut topic, 0, offer(1, Some(1))), [accepted(2, 1)]);
}

#[test]
fn duplicates_inside_one_offer_count_too() {
    let mut topic = Topic::new(WINDOW);
    let ids: [(u32, &[u8]); 3] = [(0, b"x"), (2, b"x"), (3, b"y")];
    assert_eq!(step(&mut topic, 0, offer(4, &ids, None)), [duplicate(2, 1), accepted(1, 3)]);
    assert_eq!(step(&mut topic, 0, offer(1, &[(0, b"y")], None)), [duplicate(0, 3)]);
}

#[test]
fn a_window_of_zero_remembers_nothing() {
    let mut topic = Topic::new(DedupWindow::OFF);
    step(&mut topic, 0, offer(1, &[(0, b"x")], None));
    assert_eq!(step(&mut topic, 0, offer(1, &[(0, b"x")], None)), [accepted(2, 1)]);
    assert!(topic.dedup.is_none());
}

#[test]
fn a_damaged_replay_is_told_and_changes_nothing() {
    let mut topic = Topic::new(WINDOW);
    let replay =
        |first, count| Input::Replayed { first: Seq(first), count, ids: &[], time: Timestamp(0) };
    assert_eq!(step(&mut topic, 0, replay(1, 3)), [Effect::Visible { through: Seq(3) }]);
    assert_eq!(step(&mut topic, 0, replay(2, 2)), []);
    let before = topic.clone();
    for (first, count) in [(5, 1), (3, 2), (u64::MAX, 1)] {
        let mismatch = Effect::Mismatch { expected: Seq(4), found: Seq(first) };
        assert_eq!(step(&mut topic, 0, replay(first, count)), [mismatch]);
    }
    assert_eq!(topic, before);
}

#[test]
#[should_panic(expected = "only what was given out")]
fn what_was_not_given_out_cannot_be_settled() {
    step(&mut Topic::new(WINDOW), 0, Input::Settled { through: Seq(1) });
}

#[test]
fn damaged_bytes_are_refused() {
    let mut topic = Topic::new(WINDOW);
    step(&mut topic, 0, offer(2, &[(0, b"x"), (1, b"y")], None));
    let mut whole = vec![];
    topic.encode(&mut whole);
    assert_eq!(Topic::decode(&whole), Ok(topic));
    assert_eq!(Topic::decode(&whole[..whole.len() - 1]), Err(TopicStateError::Length));
    assert_eq!(Topic::decode(&[]), Err(TopicStateError::Length));
    whole[0] = 9;
    assert_eq!(Topic::decode(&whole), Err(TopicStateError::Version { version: 9 }));
    (whole[0], whole[2]) = (1, 200);
    assert_eq!(Topic::decode(&whole), Err(TopicStateError::Inconsistent));
}

#[test]
fn ages_in_bytes_must_ascend() {
    let mut topic = Topic::new(WINDOW);
    step(&mut topic, 5, offer(1, &[(0, b"x")], None));
    step(&mut topic, 10, offer(1, &[(0, b"y")], None));
    let mut whole = vec![];
    topic.encode(&mut whole);
    // The time of the first id stands behind the numbers (38 bytes) and its seq.
    assert_eq!(whole[46], 5);
    whole[46] = 99;
    assert_eq!(Topic::decode(&whole), Err(TopicStateError::Inconsistent));
}

#[test]
fn a_clock_that_goes_back_forgets_nothing_early() {
    let mut topic = Topic::new(WINDOW);
    step(&mut topic, 100, offer(1, &[(0, b"x")], None));
    step(&mut topic, 50, offer(1, &[(0, b"y")], None));
    assert_eq!(topic.deadline(), Some(Timestamp(200)));
    let both = offer(2, &[(0, b"x"), (1, b"y")], None);
    assert_eq!(step(&mut topic, 199, both), [duplicate(0, 1), duplicate(1, 2)]);
    step(&mut topic, 200, Input::Tick);
    assert!(topic.dedup.is_none());
}

#[derive(Clone, Debug)]
enum Action {
    Offer { ids: Vec<Option<u8>>, expect: Option<u64> },
    Trim(u64),
    Settle(u64),
    Tick,
}

fn action() -> impl Strategy<Value = Action> {
    let ids = proptest::collection::vec(proptest::option::of(0_u8..8), 1..5);
    prop_oneof![
        4 => (ids, proptest::option::of(0_u64..6))
            .prop_map(|(ids, expect)| Action::Offer { ids, expect }),
        1 => (0_u64..40).prop_map(Action::Trim),
        1 => (0_u64..40).prop_map(Action::Settle),
        1 => Just(Action::Tick),
    ]
}

/// What a journal holds of an offer: first seq, count, ids by index, time.
type Written = (Seq, u32, Vec<(u32, u8)>, u64);

/// The plainest topic: all ids ever, and what the rules say about them.
#[derive(Default)]
struct Model {
    last: u64,
    ids: Vec<(u8, u64, u64)>,
}

impl Model {
    fn known(&self, now: u64, id: u8) -> Option<u64> {
        let known = self.ids.iter().rev().find(|known| known.0 == id)?;
        (known.2 + 100 > now).then_some(known.1)
    }

    /// What an offer is answered, and the seqs of the fresh messages by index.
    fn offer(&mut self, now: u64, ids: &[Option<u8>], expect: Option<u64>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut fresh = Vec::new();
        let mut inside: BTreeMap<u8, u64> = BTreeMap::new();
        for (index, id) in (0..).zip(ids) {
            let known = id.and_then(|id| self.known(now, id).or(inside.get(&id).copied()));
            if let Some(seq) = known {
                effects.push(duplicate(index, seq));
                continue;
            }
            let seq = self.last + 1 + u64::try_from(fresh.len()).unwrap();
            if let Some(id) = id {
                inside.insert(*id, seq);
            }
            fresh.push((*id, seq));
        }
        if fresh.is_empty() {
            return effects;
        }
        if expect.is_some_and(|expect| expect != self.last) {
            let actual = Seq(self.last);
            return vec![Effect::Rejected(RejectReason::ExpectedSeq { actual })];
        }
        let count = u32::try_from(fresh.len()).unwrap();
        effects.push(accepted(self.last + 1, count));
        self.last += u64::from(count);
        self.ids.extend(fresh.iter().filter_map(|(id, seq)| Some(((*id)?, *seq, now))));
        self.ids.retain(|known| known.2 + 100 > now);
        let surplus = self.ids.len().saturating_sub(4);
        self.ids.drain(..surplus);
        effects
    }
}

proptest! {
    /// The topic answers like the model; and replaying its journal, from the beginning or
    /// from a checkpoint taken anywhere, gives exactly the state of having lived.
    #[test]
    fn d1_a_topic_answers_like_its_model_and_replays_to_itself(
        actions in proptest::collection::vec((0_u64..40, action()), 1..60),
        checkpoint_at in 0_usize..60,
    ) {
        let mut topic = Topic::new(WINDOW);
        let mut model = Model::default();
        let mut journal: Vec<Written> = Vec::new();
        let mut checkpoint = Topic::new(WINDOW);
        let mut trims = Vec::new();
        let mut now = 0;
        for (at, (passed, action)) in actions.into_iter().enumerate() {
            now += passed;
            match action {
                Action::Offer { ids, expect } => {
                    let bytes: Vec<(u32, [u8; 1])> = (0..).zip(&ids)
                        .filter_map(|(index, id)| Some((index, [(*id)?]))).collect();
                    let slices: Vec<(u32, &[u8])> =
                        bytes.iter().map(|(index, id)| (*index, &id[..])).collect();
                    let count = u32::try_from(ids.len()).unwrap();
                    let expect_seq = expect.map(|seq| Expect::TopicLast(Seq(seq)));
                    let before = topic.clone();
                    let effects = step(&mut topic, now, offer(count, &slices, expect_seq));
                    prop_assert_eq!(&effects, &model.offer(now, &ids, expect));
                    if let Some(Effect::Accepted { first, count }) = effects.last() {
                        let known: Vec<u32> = effects.iter().filter_map(|effect| match effect {
                            Effect::Duplicate { index, .. } => Some(*index),
                            _ => None,
                        }).collect();
                        let fresh = ids.iter().zip(0..)
                            .filter(|(_, index)| !known.contains(index)).map(|(id, _)| *id);
                        let ids = fresh.zip(0..).filter_map(|(id, n)| Some((n, id?))).collect();
                        journal.push((*first, *count, ids, now));
                    } else {
                        prop_assert_eq!(&topic, &before, "only acceptance changes a topic");
                    }
                }
                Action::Trim(below) => {
                    let floor = topic.first();
                    step(&mut topic, now, Input::Trim { below: Seq(below), reason: GapReason::Purge });
                    prop_assert_eq!(topic.first(), floor.max(Seq(below).min(topic.next())));
                    trims.push((journal.len(), topic.first()));
                }
                Action::Settle(through) => {
                    let through = Seq(through).min(topic.last());
                    let settled = topic.settled();
                    step(&mut topic, now, Input::Settled { through });
                    prop_assert_eq!(topic.settled(), settled.max(through));
                }
                Action::Tick => {
                    step(&mut topic, now, Input::Tick);
                    prop_assert!(topic.deadline().is_none_or(|deadline| deadline > Timestamp(now)));
                }
            }
            if at == checkpoint_at {
                let mut bytes = Vec::new();
                topic.encode(&mut bytes);
                checkpoint = Topic::decode(&bytes).unwrap();
                checkpoint.check();
                prop_assert_eq!(&checkpoint, &topic);
            }
        }
        let last = topic.last();
        step(&mut topic, now, Input::Settled { through: last });
        step(&mut topic, now, Input::Tick);
        for mut replayed in [Topic::new(WINDOW), checkpoint] {
            let mut trims = trims.iter().peekable();
            for at in 0..=journal.len() {
                while let Some((_, below)) = trims.next_if(|(when, _)| *when == at) {
                    step(&mut replayed, 0, Input::Trim { below: *below, reason: GapReason::Purge });
                }
                let Some((first, count, ids, time)) = journal.get(at) else { break };
                let bytes: Vec<(u32, [u8; 1])> = ids.iter().map(|(n, id)| (*n, [*id])).collect();
                let ids: Vec<(u32, &[u8])> = bytes.iter().map(|(n, id)| (*n, &id[..])).collect();
                let (first, count, time) = (*first, *count, Timestamp(*time));
                step(&mut replayed, 0, Input::Replayed { first, count, ids: &ids, time });
            }
            step(&mut replayed, now, Input::Settled { through: last });
            step(&mut replayed, now, Input::Tick);
            prop_assert_eq!(&replayed, &topic);
        }
    }
}
