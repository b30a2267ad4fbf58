//! Tests of the rules in `cursor.rs`.

use alloc::vec;

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(0);

fn view(first: u64, tail: u64, next: u64) -> View {
    let floor_reason = GapReason::Retention;
    View { first: Seq(first), floor_reason, tail: Seq(tail), next: Seq(next) }
}

fn look(cursor: &mut Cursor, view: View) -> Vec<Effect> {
    let mut effects = Vec::new();
    cursor.step(NOW, Input::Look(view), &mut effects);
    cursor.check();
    effects
}

fn took(cursor: &mut Cursor, from: u64, to: u64) {
    let mut effects = Vec::new();
    cursor.step(NOW, Input::Took { from: Seq(from), to: Seq(to) }, &mut effects);
    cursor.check();
    assert_eq!(effects, []);
}

#[test]
fn start_resolves_against_the_view() {
    let shown = view(5, 8, 11);
    let next = |start| Cursor::start(start, &shown).map(|cursor| cursor.next().0);
    assert_eq!(next(Start::Beginning), Ok(5));
    assert_eq!(next(Start::Now), Ok(11));
    assert_eq!(next(Start::Seq(Seq(0))), Ok(1));
    assert_eq!(next(Start::Seq(Seq(2))), Ok(2));
    assert_eq!(next(Start::Seq(Seq(11))), Ok(11));
    assert_eq!(
        next(Start::Seq(Seq(12))),
        Err(StartError::Ahead { wanted: Seq(12), next: Seq(11) })
    );
}

#[test]
fn d10_a_start_below_the_floor_is_told_the_gap() {
    let mut cursor = Cursor::start(Start::Seq(Seq(2)), &view(5, 8, 11)).unwrap();
    let gap = Gap { from: Seq(2), to: Seq(4), reason: GapReason::Retention };
    assert_eq!(look(&mut cursor, view(5, 8, 11)), [Effect::Gap(gap)]);
    let history = Effect::History { from: Seq(5), to: Seq(7) };
    assert_eq!(look(&mut cursor, view(5, 8, 11)), [history]);
}

#[test]
fn d4_caught_up_comes_after_all_that_was_there_when_recovery_began() {
    let mut cursor = Cursor::start(Start::Beginning, &view(1, 3, 6)).unwrap();
    look(&mut cursor, view(1, 3, 6));
    took(&mut cursor, 1, 2);
    // In the tail now, but 3 to 5 were missed: they are still recovery.
    let take = Effect::Take { from: Seq(3), to_max: Seq(6) };
    assert_eq!(look(&mut cursor, view(1, 3, 7)), [take]);
    assert!(!cursor.is_live());
    took(&mut cursor, 3, 5);
    let take = Effect::Take { from: Seq(6), to_max: Seq(6) };
    assert_eq!(look(&mut cursor, view(1, 3, 7)), [Effect::CaughtUp, take]);
    assert!(cursor.is_live());
}

#[test]
#[should_panic(expected = "takes only what begins there")]
fn a_batch_that_skips_is_refused() {
    let mut cursor = Cursor::start(Start::Beginning, &view(1, 1, 9)).unwrap();
    look(&mut cursor, view(1, 1, 9));
    took(&mut cursor, 2, 3);
}

#[test]
#[should_panic(expected = "takes only what begins there")]
fn a_batch_that_repeats_is_refused() {
    let mut cursor = Cursor::start(Start::Beginning, &view(1, 1, 9)).unwrap();
    look(&mut cursor, view(1, 1, 9));
    took(&mut cursor, 1, 3);
    took(&mut cursor, 3, 4);
}

#[test]
#[should_panic(expected = "what a look has shown")]
fn what_was_not_shown_is_not_handed_out() {
    let mut cursor = Cursor::start(Start::Beginning, &view(1, 1, 3)).unwrap();
    look(&mut cursor, view(1, 1, 3));
    took(&mut cursor, 1, 3);
}

#[test]
fn an_older_view_only_makes_it_wait() {
    let mut cursor = Cursor::start(Start::Beginning, &view(1, 1, 5)).unwrap();
    look(&mut cursor, view(1, 1, 5));
    took(&mut cursor, 1, 4);
    assert_eq!(look(&mut cursor, view(1, 1, 3)), [Effect::CaughtUp, Effect::Wait]);
    assert_eq!(cursor.next(), Seq(5));
}

proptest! {
    /// Drives a topic that grows, forgets and trims under a reader that takes as it likes:
    /// every seq is accounted for exactly once, as read or as gap, in order.
    #[test]
    fn d3_d10_every_seq_is_taken_once_or_told_as_a_gap(
        start in 0_u64..5,
        steps in proptest::collection::vec((0_u8..5, 1_u64..6), 1..120),
    ) {
        let mut shown = view(1, 1, 1 + start);
        let mut cursor = Cursor::start(Start::Seq(Seq(start)), &shown).unwrap();
        let mut accounted = cursor.next().0;
        let mut live = false;
        for (verb, amount) in steps {
            match verb {
                0 => shown.next = shown.next.plus(amount),
                1 => shown.tail = shown.tail.plus(amount).min(shown.next),
                2 => {
                    shown.first = shown.first.plus(amount).min(shown.next);
                    shown.tail = shown.tail.max(shown.first);
                }
                _ => {
                    let effects = look(&mut cursor, shown);
                    let turns = vec![Effect::CaughtUp; usize::from(cursor.is_live() && !live)];
                    let (caught, answer) = effects.split_at(effects.len() - 1);
                    prop_assert_eq!(caught, turns);
                    live = cursor.is_live();
                    let to_max = match answer[0] {
                        Effect::Take { from, to_max } => {
                            prop_assert!(from >= shown.tail && to_max < shown.next);
                            prop_assert_eq!(from.0, accounted);
                            to_max.0
                        }
                        Effect::History { from, to } => {
                            prop_assert!(!live && from >= shown.first && to < shown.tail);
                            prop_assert_eq!(from.0, accounted);
                            to.0
                        }
                        Effect::Gap(gap) => {
                            prop_assert_eq!(gap.from.0, accounted);
                            prop_assert_eq!(gap.to.next(), shown.first);
                            accounted = gap.to.0 + 1;
                            prop_assert_eq!(cursor.next().0, accounted);
                            continue;
                        }
                        Effect::Wait => {
                            prop_assert_eq!(accounted, shown.next.0);
                            prop_assert!(live);
                            continue;
                        }
                        Effect::CaughtUp => unreachable!("caught up comes first"),
                    };
                    let to = to_max.min(accounted + amount - 1);
                    took(&mut cursor, accounted, to);
                    accounted = to + 1;
                }
            }
        }
    }
}
