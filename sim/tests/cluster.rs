//! Seeds of whole nodes over a simulated network, and that defects are found.

mod common;

use gapless_sim::{ClusterCounts, ClusterOptions, Mutation, run_cluster};

/// Without optimisation a run takes many times as long, and is only a smoke test.
const SEEDS: u64 = if cfg!(debug_assertions) { 20 } else { 200 };

/// Seeds within which each defect must be found.
const MUTATION_SEEDS: u64 = 50;

/// Seeds that once found something, each with what it was.
const FOUND: &[(u64, &str)] = &[
    (14, "a node that left had sessions without claims"),
    (18, "at-most-once messages for several targets went beyond the bound of all queues"),
    (45, "a session got messages again after its node was thought to be overtaken"),
    (73, "the same, out of order"),
    (1_475, "a node that was removed while its link was up was not asked for its interest"),
    (1_521, "a change of interest that got lost, and nothing after it"),
];

fn run_all(seeds: impl Iterator<Item = u64> + Send) -> ClusterCounts {
    let run = |seed| run_cluster(seed, ClusterOptions::default()).map(|report| report.counts);
    common::run_all(seeds, run, ClusterCounts::add)
}

#[test]
fn every_accepted_message_is_delivered_or_named_as_lost() {
    let total = run_all(0..SEEDS);
    println!("{total:?}");
    // A simulator that does nothing finds nothing.
    assert!(total.accepted > SEEDS * 100, "{total:?}");
    assert!(total.delivered > SEEDS * 50, "{total:?}");
    assert!(total.taken > SEEDS * 20, "{total:?}");
    for rare in [
        total.queue_full,
        total.partition_drop,
        total.lost,
        total.overflowed,
        total.repeats,
        total.restarts,
        total.freezes,
        total.cuts,
        total.taken_over,
        total.removed,
        total.reports,
    ] {
        assert!(rare > SEEDS, "{total:?}");
    }
    assert!(total.taken_again > 0 && total.leaves > 0, "{total:?}");
}

#[test]
fn seeds_that_found_something_hold() {
    run_all(FOUND.iter().map(|(seed, _)| *seed));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..SEEDS / 10 {
        let options = ClusterOptions::default();
        assert_eq!(run_cluster(seed, options), run_cluster(seed, options), "seed {seed}");
    }
}

/// The first seed that finds a defect.
fn first_to_find(mutation: Mutation) -> Option<u64> {
    let options = ClusterOptions { mutation: Some(mutation), ..ClusterOptions::default() };
    (0..MUTATION_SEEDS).find(|seed| run_cluster(*seed, options).is_err())
}

#[test]
fn every_defect_that_is_put_in_is_found() {
    for mutation in Mutation::ALL {
        let found = first_to_find(mutation);
        println!("{mutation:?}: found by seed {found:?}");
        assert!(found.is_some(), "{mutation:?} is not found in {MUTATION_SEEDS} seeds");
    }
}
