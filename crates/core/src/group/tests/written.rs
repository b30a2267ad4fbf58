//! What is written down: small, merging, and read back whole.

use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use super::settings;

fn group() -> (Group, MemberId) {
    let mut group = Group::new(settings(Mode::Shared), Position(0), Position(0), 1);
    let member = MemberId(1);
    group.step(Timestamp(0), Input::Join { member, window: 1_000 }, &mut Vec::new());
    (group, member)
}

fn one(position: u64) -> Offered {
    Offered {
        first: Position(position),
        count: 1,
        topic: TopicId(1),
        seq: Seq(position),
        time: Timestamp(0),
        key: None,
    }
}

fn records(effects: &[Effect]) -> Vec<Op> {
    let op = |effect: &Effect| match effect {
        Effect::Record(op) => Some(op.clone()),
        _ => None,
    };
    effects.iter().filter_map(op).collect()
}

#[test]
fn neighbours_in_the_source_merge_though_others_lie_between() {
    let (mut group, member) = group();
    let mut effects = Vec::new();
    let runs = [one(2), one(5), one(9), one(14)];
    group.step(Timestamp(0), Input::Offer { runs: &runs, through: Position(20) }, &mut effects);
    group.step(Timestamp(0), Input::Take { member, max: 9 }, &mut effects);
    let mut again = Group::new(settings(Mode::Shared), Position(0), Position(0), 1);
    let mut ack = |position: u64| {
        let at = Position(position);
        let lease = Lease { first: at, last: at, attempt: 1 };
        let mut effects = Vec::new();
        group.step(Timestamp(0), Input::Ack { member, leases: &[lease] }, &mut effects);
        records(&effects).into_iter().for_each(|op| again.replay(op));
        (records(&effects), again.ahead.done.iter().collect::<Vec<_>>(), again.frontier())
    };
    let done = |first, last| vec![Op::Done { first: Position(first), last: Position(last) }];
    assert_eq!(ack(9), (done(6, 13), vec![(6, 13)], Position(0)));
    assert_eq!(ack(14), (done(6, 20), vec![(6, 20)], Position(0)));
    assert_eq!(ack(2), (done(1, 4), vec![(6, 20)], Position(4)));
    assert_eq!(ack(5), (done(1, 20), vec![], Position(20)));
}

#[test]
fn an_ack_of_many_neighbours_takes_a_few_bytes() {
    let (mut group, member) = group();
    let mut effects = Vec::new();
    let runs: Vec<Offered> = (0..500).map(|each| one(1_000_000 + each * 2)).collect();
    let through = Position(1_000_999);
    group.step(Timestamp(0), Input::Offer { runs: &runs, through }, &mut effects);
    group.step(Timestamp(0), Input::Take { member, max: 500 }, &mut effects);
    let lease = |run: &Offered| Lease { first: run.first, last: run.first, attempt: 1 };
    let leases: Vec<Lease> = runs.iter().map(lease).collect();
    effects.clear();
    group.step(Timestamp(0), Input::Ack { member, leases: &leases }, &mut effects);
    let mut writer = op::OpWriter::default();
    records(&effects).iter().for_each(|op| writer.put(op));
    assert!(writer.bytes().len() < 12, "{} bytes", writer.bytes().len());
    assert!(writer.bytes().len() <= group.record_bytes_max(&leases));
}

#[test]
fn changes_read_back_and_rubbish_is_refused() {
    let failure = Failure {
        attempts: 3,
        dead: true,
        due: Timestamp(9),
        first_at: Timestamp(7),
        error: "no".into(),
    };
    let stop = Stop {
        topic: Some(TopicName::parse("a.b").unwrap()),
        from: None,
        to: Some(Seq(9)),
        through: Position(99),
        reason: crate::GapReason::Retention,
    };
    let which = LetterFilter {
        from: Some(Seq(3)),
        to: Some(Seq(0)),
        topic: Some(crate::Pattern::parse("a.*").unwrap()),
        error: Some("timeout".into()),
        key: Some(bytes::Bytes::new()),
    };
    let redrive = Redrive { which, rate: 10 };
    let (first, last) = (Position(u64::MAX - 5), Position(u64::MAX));
    let ops = [
        Op::Created {
            name: TopicName::parse("g").unwrap(),
            settings: settings(Mode::Keyed).into(),
            floor: Position(7),
            forgiven: Position(8),
        },
        Op::Configured(settings(Mode::Ordered).into()),
        Op::Done { first, last },
        Op::Done { first: Position(3), last: Position(3) },
        Op::Failed { first, last, failure },
        Op::Paused,
        Op::Resumed { forgiven: Position(4) },
        Op::Reset { floor: Position(0), forgiven: Position(1) },
        Op::Stopped(stop),
        Op::LettersEnded { first: Seq(1), last: Seq(9) },
        Op::Redrive(Some(Box::new(redrive))),
        Op::Redrive(Some(Box::new(Redrive { which: LetterFilter::all(), rate: 1 }))),
        Op::Redrive(None),
        Op::Deleted,
    ];
    let mut writer = op::OpWriter::default();
    ops.iter().for_each(|op| writer.put(op));
    let read: Result<Vec<Op>, _> = op::OpReader::new(writer.bytes()).collect();
    assert_eq!(read.as_deref(), Ok(&ops[..]));
    assert!(op::OpReader::new(&[99]).next().is_some_and(|op| op.is_err()));
    for len in 0..writer.bytes().len() {
        let read = op::OpReader::new(&writer.bytes()[..len]).take(99).filter(|op| op.is_err());
        assert!(read.count() <= 1, "it ends at what it cannot read");
    }
}

/// A reader written from the format page reads what we write.
#[test]
fn changes_are_the_bytes_that_the_format_says() {
    let failed = |at: u64, attempts: u32, dead: bool| {
        let (due, first_at) = (Timestamp(1000), Timestamp(900));
        let failure = Failure { attempts, dead, due, first_at, error: "no".into() };
        Op::Failed { first: Position(at), last: Position(at), failure }
    };
    let stop = Stop {
        topic: Some(TopicName::parse("a").unwrap()),
        from: Some(Seq(1)),
        to: Some(Seq(2)),
        through: Position(30),
        reason: crate::GapReason::Retention,
    };
    let ops = [
        Op::Done { first: Position(5), last: Position(9) },
        failed(12, 2, false),
        failed(10, 5, true),
        Op::Stopped(stop),
        Op::LettersEnded { first: Seq(3), last: Seq(4) },
        Op::Redrive(Some(Box::new(Redrive {
            which: LetterFilter {
                to: Some(Seq(7)),
                error: Some("no".into()),
                ..Default::default()
            },
            rate: 10,
        }))),
        Op::Redrive(None),
        Op::Paused,
    ];
    let mut writer = op::OpWriter::default();
    ops.iter().for_each(|op| writer.put(op));
    let page = include_str!("../../../../../docs/format.md");
    let (_, rest) = page.split_once("An example, as hex:\n\n```\n").unwrap();
    let (example, _) = rest.split_once("```").unwrap();
    let hex = example.lines().map(|line| line.split("  ").next().unwrap().replace(' ', ""));
    let hex: alloc::string::String = hex.collect();
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
    assert_eq!(digits.map(byte).collect::<Vec<u8>>(), writer.bytes());
    let read: Result<Vec<Op>, _> = op::OpReader::new(writer.bytes()).collect();
    assert_eq!(read.as_deref(), Ok(&ops[..]));
}

#[test]
fn a_long_error_is_cut_between_two_characters() {
    let text = "ä".repeat(op::ERROR_BYTES_MAX);
    let cut = op::short_error(&text);
    assert!(cut.len() <= op::ERROR_BYTES_MAX && cut.len() > op::ERROR_BYTES_MAX - 2);
    assert_eq!(op::short_error("short"), "short");
}

#[test]
fn d10_a_gap_stops_a_group_until_it_is_resumed_or_is_passed_over() {
    let stop = Stop {
        topic: None,
        from: None,
        to: Some(Seq(4)),
        through: Position(4),
        reason: crate::GapReason::Retention,
    };
    let (mut group, member) = group();
    let mut effects = Vec::new();
    group.step(Timestamp(0), Input::Gap(stop.clone()), &mut effects);
    assert_eq!(records(&effects), [Op::Stopped(stop.clone())]);
    group.step(Timestamp(0), Input::Offer { runs: &[one(5)], through: Position(5) }, &mut effects);
    assert!(!group.has_for(member) && !group.wants_more());
    group.step(Timestamp(0), Input::Resume, &mut effects);
    assert!(group.has_for(member));
    // The same gap, reported again after a restart, is accepted.
    group.step(Timestamp(0), Input::Gap(stop.clone()), &mut effects);
    assert!(group.stopped().is_none());

    let on_gap = OnGap::Continue;
    let settings = GroupSettings { on_gap, ..settings(Mode::Shared) };
    let mut group = Group::new(settings, Position(0), Position(0), 1);
    let mut effects = Vec::new();
    group.step(Timestamp(0), Input::Gap(stop.clone()), &mut effects);
    assert_eq!(effects, [Effect::Passed(stop)]);
}

#[test]
fn a_reset_takes_everything_from_its_members() {
    let (mut group, member) = group();
    let mut effects = Vec::new();
    let offer = [one(1), one(2)];
    group.step(Timestamp(0), Input::Offer { runs: &offer, through: Position(2) }, &mut effects);
    group.step(Timestamp(0), Input::Take { member, max: 9 }, &mut effects);
    effects.clear();
    let (floor, forgiven) = (Position(0), Position(0));
    group.step(Timestamp(0), Input::Reset { floor, forgiven }, &mut effects);
    group.check();
    let lease = Lease { first: Position(1), last: Position(2), attempt: 1 };
    effects.clear();
    group.step(Timestamp(0), Input::Ack { member, leases: &[lease] }, &mut effects);
    assert_eq!(effects, [Effect::Counted { taken: 0, refused: 2 }]);
    group.step(Timestamp(0), Input::Offer { runs: &offer, through: Position(2) }, &mut effects);
    assert!(group.has_for(member));
}
