//! Seeds of leaders, workers and clients of jobs, and that defects are found.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gapless_sim::{JobCounts, JobMutation, JobOptions, run_jobs};

/// How many seeds; a run without optimisation takes many times as long.
const SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 200 };

/// Seeds within which each defect must be found.
const MUTATION_SEEDS: u64 = 400;

/// Seeds that once found something, each with what it was.
const FOUND: &[(u64, &str)] = &[
    (0, "a client whose only leader was away for long was due again and again"),
    (4, "a schedule whose dependency had failed went on when that was forgotten"),
    (13, "a job that waited for two that failed together ended twice"),
    (40, "a result was promised of a job that was forgotten in the same step"),
    (655, "a late hello of a connection that was given up lost attempts that still ran"),
    (942, "a job that may have been with its leader moved when it could not be written again"),
];

fn run_all(seeds: impl Iterator<Item = u64>) -> JobCounts {
    let seeds: Vec<u64> = seeds.collect();
    let next = AtomicU64::new(0);
    let (stories, total) = (Mutex::new(Vec::new()), Mutex::new(JobCounts::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(seed) = seeds.get(at) else { return };
                    match run_jobs(*seed, JobOptions::default()) {
                        Ok(report) => total.lock().expect("no run panics").add(&report.counts),
                        Err(story) => stories.lock().expect("no run panics").push(story),
                    }
                }
            });
        }
    });
    let stories = stories.into_inner().expect("no run panics");
    assert!(stories.is_empty(), "{} seeds failed:\n{}", stories.len(), stories.join("\n"));
    total.into_inner().expect("no run panics")
}

#[test]
fn every_accepted_job_ends_once_within_caps_and_credit_whatever_dies() {
    let total = run_all(0..SEEDS);
    println!("{total:?}");
    // A simulator that does nothing finds nothing.
    assert!(total.accepted > SEEDS * 50, "{total:?}");
    assert!(total.started > SEEDS * 50, "{total:?}");
    assert!(total.delivered > SEEDS * 50, "{total:?}");
    for rare in [
        total.resent,
        total.refused,
        total.stale,
        total.stopped,
        total.cancelled,
        total.dead,
        total.restarts,
        total.kills,
        total.freezes,
        total.cuts,
        total.moved,
        total.forgotten,
        total.scheduled,
    ] {
        assert!(rare > SEEDS / 2, "{total:?}");
    }
    // A crash seldom falls between an append and its flush.
    assert!(total.torn > SEEDS / 5, "{total:?}");
    assert!(total.duplicates > 0, "{total:?}");
}

#[test]
fn seeds_that_found_something_hold() {
    run_all(FOUND.iter().map(|(seed, _)| *seed));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..SEEDS / 10 {
        let options = JobOptions::default();
        assert_eq!(run_jobs(seed, options), run_jobs(seed, options), "seed {seed}");
    }
}

/// The first seed that finds a defect.
fn first_to_find(mutation: JobMutation) -> Option<u64> {
    let options = JobOptions { mutation: Some(mutation), ..JobOptions::default() };
    (0..MUTATION_SEEDS).find(|seed| run_jobs(*seed, options).is_err())
}

#[test]
fn every_defect_that_is_put_in_is_found() {
    for mutation in JobMutation::ALL {
        let found = first_to_find(mutation);
        println!("{mutation:?}: found by seed {found:?}");
        assert!(found.is_some(), "{mutation:?} is not found in {MUTATION_SEEDS} seeds");
    }
}
