//! Tests of the rules in `sweep.rs`.

use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::entry::EntryKind;

/// A journal of three topics: which topic owns each position, and what is left of it.
#[derive(Clone, Debug)]
struct Journal {
    /// The topic and seq of each position, from one on.
    owners: Vec<(u64, u64)>,
    /// Which of them compaction has taken, in segments only.
    taken: Vec<bool>,
}

const KEPT: Kept = Kept {
    first: Seq(1),
    floor_reason: GapReason::Retention,
    age: Some(Duration::from_secs(1)),
    compacted: true,
};

fn journal() -> impl Strategy<Value = Journal> {
    let of = prop::collection::vec((1_u64..4, prop::bool::weighted(0.6)), 1..60);
    of.prop_map(|all| {
        let mut next = BTreeMap::new();
        let owner = |(topic, _): &(u64, bool)| {
            let seq = next.entry(*topic).or_insert(0);
            *seq += 1;
            (*topic, *seq)
        };
        let owners = all.iter().map(owner).collect();
        Journal { owners, taken: all.iter().map(|(_, taken)| *taken).collect() }
    })
}

fn header(topic: u64, seq: u64, span: u64, at: u64, count: u32) -> EntryHeader {
    EntryHeader {
        topic: TopicId(topic),
        seq: Seq(seq),
        position: Position(at),
        span: u32::try_from(span).expect("a small journal"),
        count,
        ..EntryHeader::new(EntryKind::Batch)
    }
}

impl Journal {
    /// The entries as memory holds them: all of them.
    fn tail(&self) -> Vec<EntryHeader> {
        let entry = |(index, &(topic, seq)): (usize, &(u64, u64))| {
            header(topic, seq, 1, index as u64 + 1, 1)
        };
        self.owners.iter().enumerate().map(entry).collect()
    }

    /// The entries as segments hold them: neighbours of a topic that are gone are one hole,
    /// which stands where the last of them stood.
    fn segments(&self) -> Vec<EntryHeader> {
        let mut all = Vec::new();
        let mut holes: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        for (index, &(topic, seq)) in self.owners.iter().enumerate() {
            let at = index as u64 + 1;
            if self.taken[index] {
                let hole = holes.entry(topic).or_insert((seq, 0, at));
                (hole.1, hole.2) = (hole.1 + 1, at);
                continue;
            }
            if let Some((seq, span, at)) = holes.remove(&topic) {
                all.push(header(topic, seq, span, at, 0));
            }
            all.push(header(topic, seq, 1, at, 1));
        }
        all.extend(
            holes.into_iter().map(|(topic, (seq, span, at))| header(topic, seq, span, at, 0)),
        );
        all.sort_by_key(|header| header.position);
        all
    }
}

proptest! {
    /// Wherever the reader passes from segments to memory and back: of each topic the ranges it
    /// reports follow one another from one on, nothing comes twice, and what is reported as gone is
    /// gone.
    #[test]
    fn v1_ranges_of_each_topic_add_up_however_it_is_read(
        journal in journal(), steps in prop::collection::vec((any::<bool>(), 1_usize..9), 60),
    ) {
        let (tail, segments) = (journal.tail(), journal.segments());
        let last = Position(journal.owners.len() as u64);
        let mut sweep = Sweep::start(Position(1), last, true);
        let mut accounted: BTreeMap<TopicId, Seq> = BTreeMap::new();
        for (in_memory, count) in steps {
            let view = if in_memory { &tail } else { &segments };
            let next = sweep.next();
            let step = view.iter().filter(|each| each.last_position() >= next).take(count);
            for entry in step {
                let before = sweep.next();
                let mut effects = Vec::new();
                let input = Input::Entry { header: entry, kept: &KEPT };
                sweep.step(Timestamp(0), input, &mut effects);
                sweep.check();
                prop_assert!(sweep.next() > before.min(entry.last_position()));
                for effect in effects {
                    let next = accounted.entry(entry.topic).or_insert(Seq(1));
                    let (from, to) = match effect {
                        Effect::Deliver { from } => (from, entry.last_seq()),
                        Effect::Gap { from, to, positions, through, .. } => {
                            let from = from.expect("it began at the beginning");
                            prop_assert!(positions.0 <= positions.1 && through < sweep.next());
                            let is_gone = |seq: u64| {
                                let owner = (entry.topic.0, seq);
                                let at = journal.owners.iter().position(|each| *each == owner);
                                at.is_some_and(|at| journal.taken[at])
                            };
                            prop_assert!((from.0..=to.0).all(is_gone));
                            (from, to)
                        }
                        other => return Err(TestCaseError::fail(alloc::format!("{other:?}"))),
                    };
                    prop_assert_eq!(from, *next);
                    prop_assert!(from <= to);
                    *next = to.next();
                }
            }
        }
        // Read to the end, everything is accounted for, but for a hole that nothing follows.
        let Some(end) = journal.owners.last() else { return Ok(()) };
        if sweep.next() > last && !journal.taken[journal.taken.len() - 1] {
            prop_assert_eq!(accounted[&TopicId(end.0)], Seq(end.1 + 1));
        }
    }
}

#[test]
fn what_is_counted_has_a_bound() {
    let mut sweep = Sweep::start(Position(1), Position(1), true);
    let count = TOPICS_MAX as u64 + 10;
    for topic in 1..=count {
        let entry = header(topic, 1, 1, topic, 1);
        let mut effects = Vec::new();
        sweep.step(Timestamp(0), Input::Entry { header: &entry, kept: &KEPT }, &mut effects);
        assert_eq!(effects, [Effect::Deliver { from: Seq(1) }]);
    }
    sweep.check();
    // One that is forgotten goes on where it comes by, without a claim of what was missed.
    let entry = header(1, 5, 1, count + 1, 1);
    let mut effects = Vec::new();
    sweep.step(Timestamp(0), Input::Entry { header: &entry, kept: &KEPT }, &mut effects);
    assert_eq!(effects, [Effect::Deliver { from: Seq(5) }]);
}
