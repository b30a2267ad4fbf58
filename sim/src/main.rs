//! Runs seeds: `gapless-sim --seeds 5000 [--from N] [--seed N --trace] [--steps N]`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gapless_sim::{RunOptions, run};

/// How often progress is told.
const PROGRESS_SEEDS: u64 = 500;

const USAGE: &str = "usage: gapless-sim [--seeds COUNT] [--from SEED] [--steps COUNT]\n       \
                     gapless-sim --seed SEED [--trace] [--steps COUNT]";

struct Arguments {
    from: u64,
    count: u64,
    options: RunOptions,
}

fn arguments() -> Option<Arguments> {
    let (mut from, mut count, mut options) = (0, 200, RunOptions::default());
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        if name == "--trace" {
            options.print = true;
            continue;
        }
        let value = given.next()?.replace('_', "").parse().ok()?;
        match name.as_str() {
            "--seeds" => count = value,
            "--from" => from = value,
            "--steps" => options.steps = value,
            "--seed" => (from, count) = (value, 1),
            _ => return None,
        }
    }
    Some(Arguments { from, count, options })
}

fn main() -> ExitCode {
    let Some(Arguments { from, count, options }) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // A panic of the broker is a finding like others; its story is told below.
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(0);
    let failed: Mutex<Vec<u64>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| work((&next, count), from, options, &failed));
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        println!("{count} seeds from {from} on: all good");
        ExitCode::SUCCESS
    } else {
        println!("{} of {count} seeds failed: {failed:?}", failed.len());
        ExitCode::FAILURE
    }
}

/// Takes seeds until there are none. Seeds run beside each other, each in one thread.
fn work(
    (next, count): (&AtomicU64, u64),
    from: u64,
    options: RunOptions,
    failed: &Mutex<Vec<u64>>,
) {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= count {
            return;
        }
        match run(from + at, options) {
            Ok(report) if count == 1 => println!("{report:?}"),
            Ok(_) => {}
            Err(story) => {
                println!("{story}\n");
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(from + at);
            }
        }
        if (at + 1).is_multiple_of(PROGRESS_SEEDS) {
            println!("{} seeds", at + 1);
        }
    }
}
