//! What a large group costs: changes of the map are counted, since time depends on the day.

use alloc::vec;
use alloc::vec::Vec;

use super::super::*;
use super::settings;

const MILLION: u64 = 1_000_000;

fn large(mode: Mode) -> GroupSettings {
    let max = OPEN_MAX;
    let lease = Duration::from_secs(1);
    let limits = GroupSettings { in_flight_max: max, open_max: max, ..settings(mode) };
    GroupSettings { member_in_flight_max: max, lease, ..limits }
}

fn offered(first: u64, count: u64, key: u128) -> Offered {
    Offered {
        first: Position(first),
        count,
        topic: TopicId(1),
        seq: Seq(first),
        time: Timestamp(0),
        key: NonZeroU128::new(key),
    }
}

fn granted(effects: &[Effect]) -> Vec<Lease> {
    let lease = |effect: &Effect| match effect {
        Effect::Deliver(granted) => Some(granted.lease),
        _ => None,
    };
    effects.iter().filter_map(lease).collect()
}

#[test]
fn a_million_in_flight_in_batches_cost_by_the_batch() {
    let mut group = Group::new(large(Mode::Shared), Position(0), Position(0), 1);
    let (now, member) = (Timestamp(0), MemberId(1));
    let mut effects = Vec::new();
    group.step(now, Input::Join { member, window: OPEN_MAX }, &mut effects);
    for batch in 0..MILLION / 500 {
        // Between two batches lies another entry of the journal.
        let run = offered(batch * 501 + 1, 500, 0);
        group.step(
            now,
            Input::Offer { runs: &[run], through: Position(batch * 501 + 500) },
            &mut effects,
        );
        group.step(now, Input::Take { member, max: 500 }, &mut effects);
    }
    assert_eq!(group.counts().in_flight, MILLION);
    let leases = granted(&effects);
    assert_eq!(leases.len() as u64, MILLION / 500);
    effects.clear();
    // The last first, so that nothing melts into the floor.
    for lease in leases.iter().rev() {
        group.step(now, Input::Ack { member, leases: &[*lease] }, &mut effects);
    }
    assert_eq!(group.counts().open(), 0);
    assert!(group.open.touched < 6 * MILLION / 500, "{} changes", group.open.touched);
}

#[test]
fn a_million_in_flight_one_by_one_cost_a_few_changes_each() {
    let mut group = Group::new(large(Mode::Shared), Position(0), Position(0), 1);
    let (now, member) = (Timestamp(0), MemberId(1));
    let mut effects = Vec::new();
    group.step(now, Input::Join { member, window: OPEN_MAX }, &mut effects);
    let runs: Vec<Offered> = (0..MILLION).map(|each| offered(each * 2 + 1, 1, 0)).collect();
    let through = Position(MILLION * 2);
    group.step(now, Input::Offer { runs: &runs, through }, &mut effects);
    group.step(now, Input::Take { member, max: MILLION }, &mut effects);
    let leases = granted(&effects);
    assert_eq!(leases.len() as u64, MILLION);
    effects.clear();
    // Every second one is acked, the others run out, a thousand at a time.
    for lease in leases.iter().step_by(2) {
        group.step(now, Input::Ack { member, leases: &[*lease] }, &mut effects);
        effects.clear();
    }
    let later = now.after(Duration::from_secs(1));
    while group.deadline().is_some_and(|due| due <= later) {
        group.step(later, Input::Tick, &mut effects);
        assert!(effects.len() <= 3 * EXPIRED_AT_ONCE);
        effects.clear();
    }
    assert_eq!(group.counts().ready, MILLION / 2);
    assert!(group.open.touched < 6 * MILLION, "{} changes", group.open.touched);
}

#[test]
fn a_hundred_thousand_keys_cost_a_few_changes_for_each_message() {
    const KEYS: u64 = 100_000;
    let mut group = Group::new(large(Mode::Keyed), Position(0), Position(0), 1);
    let now = Timestamp(0);
    let mut effects = Vec::new();
    for id in 1..=50 {
        group.step(now, Input::Join { member: MemberId(id), window: 4_000 }, &mut effects);
    }
    let run = |each: u64| offered(each + 1, 1, u128::from(each % KEYS) + 1);
    let runs: Vec<Offered> = (0..MILLION).map(run).collect();
    group.step(now, Input::Offer { runs: &runs, through: Position(MILLION) }, &mut effects);
    effects.clear();
    let mut last_of_key = vec![0; KEYS as usize];
    let mut done = 0;
    while group.counts().open() > 0 {
        for id in 1..=50 {
            let member = MemberId(id);
            group.step(now, Input::Take { member, max: 4_000 }, &mut effects);
            let leases = granted(&effects);
            effects.clear();
            for lease in &leases {
                let key = ((lease.first.0 - 1) % KEYS) as usize;
                assert!(lease.first.0 > last_of_key[key], "a key goes in order");
                last_of_key[key] = lease.first.0;
                done += 1;
            }
            group.step(now, Input::Ack { member, leases: &leases }, &mut effects);
            effects.clear();
        }
    }
    assert_eq!(done, MILLION);
    assert!(group.open.touched < 6 * MILLION, "{} changes", group.open.touched);
}
