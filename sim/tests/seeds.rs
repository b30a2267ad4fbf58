//! Seeds that must hold, and that a seed means the same each time.

mod common;

use gapless_sim::{Counts, RunOptions, run};

/// Without optimisation a run takes many times as long, and is only a smoke test.
const SEEDS: u64 = if cfg!(debug_assertions) { 20 } else { 1_500 };

/// Seeds that once found something, each with what it was.
const FOUND: &[(u64, &str)] = &[
    (2_556, "a token, and a hole that began in a segment and ended in memory"),
    (90_911, "a hole that reaches into memory, and retention by age"),
    (93_061, "a floor that a crash took back, and a token from before it"),
    (200_061, "a follower that begins at a time within a hole"),
    (2_028_544, "a token of what a power loss took back, behind positions that a manifest counted"),
    (2_029_052, "a notice of a reused name that came before messages of smaller positions"),
    (1_022_553, "a pattern did not report the floor of a topic whose deletion was not flushed yet"),
];

fn run_all(seeds: impl Iterator<Item = u64> + Send) -> Counts {
    let run = |seed| run(seed, RunOptions::default()).map(|report| report.counts);
    common::run_all(seeds, run, Counts::add)
}

#[test]
fn every_seed_holds() {
    let total = run_all(0..SEEDS);
    println!("{total:?}");
    // A simulator that does nothing finds nothing.
    assert!(total.accepted > SEEDS * 50, "{total:?}");
    assert!(total.delivered > SEEDS * 100, "{total:?}");
    if cfg!(debug_assertions) {
        // So few seeds need not hold every rare thing.
        return;
    }
    assert!(total.gaps > SEEDS, "{total:?}");
    assert!(total.crashes > SEEDS, "{total:?}");
    assert!(total.lost > SEEDS / 4, "{total:?}");
    assert!(total.duplicates > SEEDS / 4, "{total:?}");
    assert!(total.delayed > SEEDS / 4, "{total:?}");
}

#[test]
fn seeds_that_found_something_hold() {
    run_all(FOUND.iter().map(|(seed, _)| *seed));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..SEEDS / 10 {
        let (first, second) = (run(seed, RunOptions::default()), run(seed, RunOptions::default()));
        assert_eq!(first, second, "seed {seed}");
    }
}
