//! Batches and deliveries that are cut: every seq is accounted for once, none is lost.

mod common;

use common::{any, crc32c, groups, samples};
use gapless_core::batch::{FLAG_HOLES, FLAG_IDS, FLAG_KEYS};
use gapless_core::{Batch, Entry, Message, Position, Record, Seq};
use gapless_protocol::*;
use proptest::prelude::*;

/// Every message of a batch with its numbers.
fn delivered(batch: &Batch) -> Vec<(Seq, Position, Message)> {
    let one = |record: Record<'_>| {
        (batch.seq_of(&record), batch.position_of(&record), batch.message(&record))
    };
    batch.records().map(one).collect()
}

/// Whether a piece is a batch that could have been stored as it is.
fn check_piece(piece: &Batch, whole: &Batch) {
    let (header, all) = (piece.header(), whole.header());
    let mut bytes = piece.bytes().clone();
    assert_eq!(Entry::take(&mut bytes, crc32c).expect("an entry").header, *header);
    assert!(bytes.is_empty());
    let records: Vec<_> = piece.records().collect();
    assert_eq!(records.len(), header.count as usize);
    assert!(records.iter().all(|record| record.offset < header.span));
    let flag = |is: bool, flag: u16| if is { flag } else { 0 };
    let flags = flag(records.iter().any(|record| record.key.is_some()), FLAG_KEYS)
        | flag(records.iter().any(|record| record.id.is_some()), FLAG_IDS)
        | flag(header.count < header.span, FLAG_HOLES);
    assert_eq!(header.flags, flags);
    let ttl = records.iter().filter_map(|record| record.ttl_ms).min().unwrap_or(0);
    assert_eq!(header.ttl_min_ms, ttl);
    assert_eq!((header.topic, header.time, header.kind), (all.topic, all.time, all.kind));
    let moved = header.seq.distance(all.seq);
    assert_eq!(header.position, all.position.plus(moved));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn d3_pieces_account_for_the_same_seqs(
        batch in (1..1000_u64).prop_flat_map(|first| any::batch(first, 40)),
        bytes in 100..1000_usize,
        messages in 1..20_u32,
    ) {
        let limit = SplitLimit { bytes, messages };
        let pieces = match split(&batch, limit, crc32c) {
            Ok(pieces) => pieces,
            Err(SplitError::MessageTooLarge { bytes, max, .. }) => {
                prop_assert!(bytes > max);
                return Ok(());
            }
            Err(other) => panic!("{other}"),
        };
        let mut next = batch.first();
        for piece in &pieces {
            prop_assert_eq!(piece.first(), next);
            next = piece.last().next();
            if pieces.len() > 1 {
                check_piece(piece, &batch);
            }
            prop_assert!(piece.header().count == 0 || piece.bytes().len() <= bytes);
            prop_assert!(piece.header().count <= messages);
        }
        prop_assert_eq!(next, batch.last().next());
        let together: Vec<_> = pieces.iter().flat_map(delivered).collect();
        prop_assert_eq!(together, delivered(&batch));

        // Cut one by one, it is the same.
        let mut rest = Some(batch);
        let mut again = Vec::new();
        while let Some(batch) = rest.take() {
            let (front, after) = cut(&batch, limit, crc32c).unwrap();
            again.extend(delivered(&front));
            rest = after;
        }
        prop_assert_eq!(again, pieces.iter().flat_map(delivered).collect::<Vec<_>>());
    }

    #[test]
    fn d3_v10_frames_of_a_delivery_join_without_hole_or_repeat_and_stay_within_credit(
        messages in any::messages(),
        bytes in 200..1000_usize,
        count in 1..10_u32,
    ) {
        let whole = messages.clone();
        let before = Position(whole.from.0 + 999);
        let limit = SplitLimit { bytes, messages: count };
        let (mut next, mut seen, mut token) = (whole.from, Vec::new(), before);
        let mut rest = Some(messages);
        while let Some(messages) = rest.take() {
            let (front, after) = match cut_messages(messages, token, limit, crc32c) {
                Ok(parts) => parts,
                Err(SplitError::MessageTooLarge { .. }) => return Ok(()),
                Err(other) => panic!("{other}"),
            };
            prop_assert_eq!(front.from, next);
            next = front.to.next();
            prop_assert!(front.last_position >= token);
            prop_assert!(front.last_position <= whole.last_position);
            token = front.last_position;
            // V10: heads of batches without messages count as well.
            prop_assert!(front.credit_bytes() <= bytes as u64);
            prop_assert!(front.credit_messages() <= u64::from(count));
            for each in front.batches.iter().flat_map(|batch| delivered(&batch)) {
                if (front.from..=front.to).contains(&each.0) {
                    // A token is true: what comes later has a higher position.
                    prop_assert!(each.1 <= front.last_position || each.0 > whole.to);
                    seen.push(each);
                }
            }
            // It can go on the wire.
            let verb = Verb::from(front);
            prop_assert_eq!(Verb::decode(&common::frame_of(&common::encode(&verb, Ids::NONE))), Ok(verb));
            rest = after;
        }
        prop_assert_eq!(next, whole.to.next());
        prop_assert_eq!(token, whole.last_position.max(before));
        let all: Vec<_> = whole.batches.iter().flat_map(|batch| delivered(&batch))
            .filter(|each| (whole.from..=whole.to).contains(&each.0)).collect();
        prop_assert_eq!(seen, all);
    }
}

#[test]
fn a_batch_that_fits_is_not_touched() {
    let batch = samples::batch(1, &[Some(Message::new("a")), None]);
    let limit = SplitLimit { bytes: batch.bytes().len(), messages: 1 };
    let pieces = split(&batch, limit, |_| panic!("nothing is computed")).unwrap();
    assert_eq!(pieces, std::slice::from_ref(&batch));
    assert_eq!(pieces[0].bytes().as_ptr(), batch.bytes().as_ptr());
}

#[test]
fn a_message_above_the_limit_is_named() {
    let long = Message::new(vec![0; 500]);
    let batch = samples::batch(7, &[Some(Message::new("a")), Some(long)]);
    let refused = split(&batch, SplitLimit { bytes: 200, messages: 9 }, crc32c);
    let bytes = 64 + 2 + 1 + 1 + 500;
    assert_eq!(refused, Err(SplitError::MessageTooLarge { seq: Seq(8), bytes, max: 200 }));
    // What comes before it can be sent.
    let (front, rest) = cut(&batch, SplitLimit { bytes: 200, messages: 9 }, crc32c).unwrap();
    assert_eq!((front.last(), rest.unwrap().first()), (Seq(7), Seq(8)));
    let none = cut(&batch, SplitLimit { bytes: 200, messages: 0 }, crc32c);
    assert_eq!(none, Err(SplitError::NoRoom));
}

#[test]
fn a_batch_that_lies_about_its_messages_is_not_cut() {
    let batch = samples::batch(7, &[Some(Message::new("a")), Some(Message::new("b"))]);
    let header = gapless_core::EntryHeader { count: 3, ..*batch.header() };
    let lying = Batch::new(Entry { header, bytes: batch.bytes().clone() }).unwrap();
    let refused = split(&lying, SplitLimit { bytes: 80, messages: 1 }, crc32c);
    assert_eq!(refused, Err(SplitError::Damaged { seq: Seq(7) }));
}

#[test]
fn messages_of_no_journal_keep_the_token() {
    // Volatile subjects have positions of another kind; their delivery says where the token is.
    for token in [Position(5), Position(5000)] {
        let two = [Some(Message::new("a")), Some(Message::new("b"))];
        let messages = Messages {
            subscription: 1,
            topic: samples::name("volatile"),
            from: Seq(1),
            to: Seq(2),
            last_position: token,
            batches: [samples::batch(1, &two)].into_iter().collect(),
        };
        let limit = SplitLimit { bytes: 1000, messages: 1 };
        let (front, rest) = cut_messages(messages, token, limit, crc32c).unwrap();
        assert_eq!(front.last_position, token);
        assert_eq!(rest.unwrap().last_position, token);
    }
}

#[test]
fn v3_the_token_of_a_frame_covers_all_that_the_frame_accounts_for() {
    let one = |seq| samples::batch(seq, &[Some(Message::new("x"))]);
    // Seqs 2 and 3 are gone, and where they stood is not known.
    let messages = Messages {
        subscription: 1,
        topic: samples::name("t"),
        from: Seq(1),
        to: Seq(4),
        last_position: one(4).header().last_position(),
        batches: [one(1), one(4)].into_iter().collect(),
    };
    let limit = SplitLimit { bytes: 1000, messages: 1 };
    let (front, rest) = cut_messages(messages, Position(0), limit, crc32c).unwrap();
    assert_eq!((front.from, front.to), (Seq(1), Seq(1)));
    assert_eq!(front.last_position, one(1).header().last_position());
    let rest = rest.unwrap();
    assert_eq!((rest.from, rest.to), (Seq(2), Seq(4)));
}

proptest! {
    #[test]
    fn leased_messages_come_whole_through_frames_of_any_size(
        messages in groups::leased(),
        bytes in 256..4096_usize,
    ) {
        let wanted = leased_positions(&messages);
        let mut got = Vec::new();
        let mut rest = Some(messages);
        while let Some(messages) = rest.take() {
            let Ok((front, after)) = cut_leased(messages, bytes, crc32c) else { return Ok(()) };
            prop_assert!(!front.leases.is_empty());
            got.extend(leased_positions(&front));
            rest = after;
        }
        prop_assert_eq!(got, wanted);
    }
}

/// The positions that are both leased and there, with their attempts.
fn leased_positions(messages: &GroupMessages) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    for batch in messages.batches.iter() {
        for record in batch.records() {
            let position = batch.header().position.plus(u64::from(record.offset));
            let named =
                |lease: &&gapless_core::Lease| (lease.first..=lease.last).contains(&position);
            if let Some(lease) = messages.leases.iter().find(named) {
                found.push((position.0, lease.attempt));
            }
        }
    }
    found
}
