//! Taking messages out of buffers gives what was asked for, and costs as much as that is.

use bytes::BytesMut;
use gapless_core::{EntryHeader, EntryKind, MemberId, Message, Position, RecordsBuilder, Tally};
use proptest::prelude::*;

use super::*;

const TOPIC: TopicId = TopicId(7);
/// Positions are this much ahead of seqs.
const AHEAD: u64 = 1_000;

fn name() -> TopicName {
    TopicName::parse("t").expect("tests use good names")
}

/// A batch of messages with the seqs that are kept of those from `seq` on.
fn batch(seq: u64, kept: &[bool]) -> Bytes {
    let mut builder = RecordsBuilder::default();
    let mut all = RecordsBuilder::default();
    for offset in 0..kept.len() {
        let number = (seq + offset as u64).to_string();
        all.push(&Message::new(number.clone()).with_key(number)).expect("a small message");
    }
    for record in all.finish().iter().filter(|record| kept[record.offset as usize]) {
        builder.push_record(&record);
    }
    let records = builder.finish();
    let header = EntryHeader {
        seq: Seq(seq),
        position: Position(seq + AHEAD),
        span: u32::try_from(kept.len()).expect("a small batch"),
        count: records.count,
        flags: records.flags,
        ..EntryHeader::new(EntryKind::Batch)
    };
    let mut bytes = BytesMut::new();
    header.put(&mut bytes, &records.bytes, 0, |_| 0);
    bytes.freeze()
}

fn grant(seq: u64, count: u64) -> Granted {
    let first = Position(seq + AHEAD);
    Granted {
        member: MemberId(1),
        lease: Lease { first, last: first.plus(count - 1), attempt: 1 },
        topic: TOPIC,
        seq: Seq(seq),
        deadline: Timestamp(0),
    }
}

fn read(ahead: &mut ReadAhead, parts: Vec<Bytes>, range: (u64, u64), bytes_max: usize) {
    let range = (Seq(range.0), Seq(range.1));
    let messages = Messages::new(
        name(),
        range,
        Position(0),
        Timestamp(0),
        parts,
        Some((Tally::default(), Seq(0))),
    );
    ahead.push(TOPIC, &messages, None, bytes_max);
}

/// Picks once; what it cost is added up.
fn find(
    ahead: &mut ReadAhead,
    grants: &mut VecDeque<Granted>,
    work: &mut u64,
) -> Option<(Messages, Vec<Granted>)> {
    let mut picking = Picking::default();
    ahead.pick(grants, &mut picking);
    *work += picking.picked.work;
    picking.finish(Timestamp(0))
}

fn seqs(messages: &Messages, taken: &[Granted]) -> Vec<u64> {
    let is_wanted =
        |seq: u64| taken.iter().any(|grant| grant.seq.0 <= seq && seq <= last_seq(grant).0);
    let told = messages.records().map(|each| {
        assert_eq!(each.record.body, Some(each.seq.to_string().as_bytes()));
        assert_eq!(each.position.0, each.seq.0 + AHEAD);
        each.seq.0
    });
    told.filter(|seq| is_wanted(*seq)).collect()
}

#[test]
fn one_message_of_a_large_batch_costs_as_much_as_one_of_a_small() {
    const COUNT: u64 = 20_000;
    let mut ahead = ReadAhead::default();
    let whole = vec![true; COUNT as usize];
    read(&mut ahead, vec![batch(1, &whole)], (1, COUNT), usize::MAX);
    let mut work = 0;
    // No order at all, so that nothing but the messages themselves can be shared.
    for index in 0..COUNT {
        let seq = index * 7_919 % COUNT + 1;
        let mut grants = VecDeque::from([grant(seq, 1)]);
        let (messages, taken) = find(&mut ahead, &mut grants, &mut work).expect("it is in memory");
        assert_eq!(seqs(&messages, &taken), [seq]);
        assert!(messages.bytes() < 200, "only what is wanted travels");
    }
    // Each record is looked at when the table is built, and when it is taken.
    assert!(work <= 4 * COUNT, "{work} steps for {COUNT} messages");
    assert_eq!((ahead.buffers.len(), ahead.bytes), (0, 0), "what is handed out is let go");
}

#[test]
fn what_was_never_used_goes_before_what_is_and_the_newest_first() {
    let mut ahead = ReadAhead::default();
    let part = |at: u64| vec![batch(at * 10 + 1, &[true; 10])];
    read(&mut ahead, part(0), (1, 10), usize::MAX);
    let bytes_max = ahead.bytes * 3 + 100;
    for at in 1..10 {
        read(&mut ahead, part(at), (at * 10 + 1, at * 10 + 10), bytes_max);
        assert!(ahead.bytes <= bytes_max);
    }
    let restore = |ahead: &mut ReadAhead, at: u64, bytes_max| {
        let range = (Seq(at * 10 + 1), Seq(at * 10 + 10));
        ahead.restore((TOPIC, name()), range.0, range, part(at), bytes_max);
    };
    let held =
        |ahead: &ReadAhead| ahead.buffers.keys().map(|(_, last)| last.0 / 10).collect::<Vec<_>>();
    assert_eq!(held(&ahead), [1, 2, 10]);
    assert!(find(&mut ahead, &mut VecDeque::from([grant(1, 1)]), &mut 0).is_some());
    assert!(find(&mut ahead, &mut VecDeque::from([grant(31, 1)]), &mut 0).is_none());
    restore(&mut ahead, 3, bytes_max);
    assert_eq!(held(&ahead), [1, 2, 4]);
    restore(&mut ahead, 4, bytes_max);
    assert_eq!(held(&ahead), [1, 4, 5], "the one that was never used went");
    restore(&mut ahead, 5, bytes_max);
    assert_eq!(held(&ahead), [4, 5, 6], "the one used longest ago went");
}

#[test]
fn what_is_read_again_fills_the_space_between_what_is_there() {
    let mut ahead = ReadAhead::default();
    let part = |seq: u64| batch(seq, &[true; 10]);
    read(&mut ahead, vec![part(1)], (1, 4), usize::MAX);
    read(&mut ahead, vec![part(1), part(11)], (9, 20), usize::MAX);
    let parts = vec![part(1), part(11)];
    ahead.restore((TOPIC, name()), Seq(6), (Seq(1), Seq(20)), parts, usize::MAX);
    let ranges: Vec<(u64, u64)> =
        ahead.buffers.values().map(|each| (each.first.0, each.last.0)).collect();
    assert_eq!(ranges, [(1, 4), (5, 8), (9, 20)]);
    // A batch that lies in two of them is handed out in two steps, each message once.
    let mut grants = VecDeque::from([grant(3, 3)]);
    for expected in [vec![3, 4], vec![5]] {
        let (messages, taken) = find(&mut ahead, &mut grants, &mut 0).expect("it is in memory");
        assert_eq!(seqs(&messages, &taken), expected);
    }
}

proptest! {
    /// For any pieces read and any request: each message that is present and wanted comes once, and
    /// no other counts as found.
    #[test]
    fn what_is_found_is_what_was_asked_for(
        kept in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.8), 1..12), 1..8),
        cuts in prop::collection::btree_set(1..60_u64, 0..4),
        wanted in prop::collection::vec((0..6_u64, 1..5_u64), 1..20),
        bytes_max in prop::option::of(200..2_000_usize),
    ) {
        let mut next = 1;
        let mut parts = Vec::new();
        let mut present = BTreeSet::new();
        for kept in &kept {
            parts.push((batch(next, kept), next));
            for (offset, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
                present.insert(next + offset as u64);
            }
            next += kept.len() as u64;
        }
        // Buffers may begin and end inside a batch.
        let mut ahead = ReadAhead::default();
        let cuts = cuts.into_iter().filter(|cut| 1 < *cut && *cut < next);
        let edges: Vec<u64> = [1].into_iter().chain(cuts).chain([next]).collect();
        for range in edges.windows(2) {
            let (from, to) = (range[0], range[1] - 1);
            let of = |(bytes, seq): &(Bytes, u64)| {
                let (header, _) = EntryHeader::read(bytes).expect("a batch");
                (*seq <= to && header.last_seq().0 >= from).then(|| bytes.clone())
            };
            let parts = parts.iter().filter_map(of).collect();
            read(&mut ahead, parts, (from, to), bytes_max.unwrap_or(usize::MAX));
        }
        let mut grants = VecDeque::new();
        let mut at = 1;
        for (skip, count) in wanted {
            at += skip;
            if at + count <= next {
                grants.push_back(grant(at, count));
            }
            at += count;
        }
        let mut asked: Vec<u64> =
            grants.iter().flat_map(|each: &Granted| each.seq.0..=last_seq(each).0).collect();
        while !grants.is_empty() {
            let before = grants[0];
            let Some((messages, taken)) = find(&mut ahead, &mut grants, &mut 0) else {
                prop_assert_eq!(grants[0], before);
                let mut ranges = edges.windows(2).map(|range| range[0]..range[1]);
                let range = ranges.find(|range| range.contains(&before.seq.0));
                let is_empty = range.is_some_and(|range| present.range(range).next().is_none());
                prop_assert!(bytes_max.is_some() || is_empty, "everything else is in memory");
                asked.retain(|seq| *seq > last_seq(&before).0);
                grants.pop_front();
                continue;
            };
            let count: u64 = taken.iter().map(|each| each.lease.count()).sum();
            let now: Vec<u64> = asked.drain(..usize::try_from(count).unwrap_or(0)).collect();
            let there: Vec<u64> = now.iter().copied().filter(|seq| present.contains(seq)).collect();
            prop_assert_eq!(seqs(&messages, &taken), there.clone());
            prop_assert_eq!(messages.from().0, now[0]);
            prop_assert_eq!(messages.to().0, now[now.len() - 1]);
            // Only if all are there may they go unseen.
            prop_assert!(!messages.is_alive() || there.len() == now.len());
        }
    }
}
