//! Runs seeds: `gapless-sim [cluster|jobs] --seeds 5000 [--from N] [--seed N --trace] [--steps N]`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gapless_sim::{
    ClusterCounts, ClusterOptions, JobCounts, JobOptions, RunOptions, run, run_cluster, run_jobs,
};

/// How often progress is printed.
const PROGRESS_SEEDS: u64 = 500;

const USAGE: &str = "usage: gapless-sim [cluster|jobs] [--seeds COUNT] [--from SEED] [--steps COUNT]\n       \
                     gapless-sim [cluster|jobs] --seed SEED [--trace] [--steps COUNT]";

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// A broker over a disk.
    Broker,
    /// Nodes of a cluster.
    Cluster,
    /// Leaders, workers and clients of jobs.
    Jobs,
}

/// What happened to nodes or jobs.
#[derive(Default)]
struct Total {
    cluster: ClusterCounts,
    jobs: JobCounts,
}

#[derive(Clone, Copy)]
struct Arguments {
    subject: Subject,
    from: u64,
    count: u64,
    steps: Option<u64>,
    print: bool,
}

impl Arguments {
    /// Runs a seed; what it came to in words.
    fn run(self, seed: u64, total: &Mutex<Total>) -> Result<String, String> {
        let add = |add: &dyn Fn(&mut Total)| {
            add(&mut total.lock().unwrap_or_else(PoisonError::into_inner));
        };
        match self.subject {
            Subject::Cluster => {
                let mut options = ClusterOptions { print: self.print, ..ClusterOptions::default() };
                options.steps = self.steps.unwrap_or(options.steps);
                let report = run_cluster(seed, options)?;
                add(&|total| total.cluster.add(&report.counts));
                Ok(format!("{report:?}"))
            }
            Subject::Jobs => {
                let mut options = JobOptions { print: self.print, ..JobOptions::default() };
                options.steps = self.steps.unwrap_or(options.steps);
                let report = run_jobs(seed, options)?;
                add(&|total| total.jobs.add(&report.counts));
                Ok(format!("{report:?}"))
            }
            Subject::Broker => {
                let mut options = RunOptions { print: self.print, ..RunOptions::default() };
                options.steps = self.steps.unwrap_or(options.steps);
                run(seed, options).map(|report| format!("{report:?}"))
            }
        }
    }
}

fn arguments() -> Option<Arguments> {
    let subject = Subject::Broker;
    let mut found = Arguments { subject, from: 0, count: 200, steps: None, print: false };
    let mut given = std::env::args().skip(1).peekable();
    if given.next_if(|word| word == "cluster").is_some() {
        found.subject = Subject::Cluster;
    } else if given.next_if(|word| word == "jobs").is_some() {
        found.subject = Subject::Jobs;
    }
    while let Some(name) = given.next() {
        if name == "--trace" {
            found.print = true;
            continue;
        }
        let value = given.next()?.replace('_', "").parse().ok()?;
        match name.as_str() {
            "--seeds" => found.count = value,
            "--from" => found.from = value,
            "--steps" => found.steps = Some(value),
            "--seed" => (found.from, found.count) = (value, 1),
            _ => return None,
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let Arguments { from, count, .. } = arguments;
    // A panic of the broker is a finding like others; its story is printed below.
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(0);
    let failed: Mutex<Vec<u64>> = Mutex::default();
    let total: Mutex<Total> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| work(&next, arguments, &failed, &total));
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    match arguments.subject {
        Subject::Broker => {}
        Subject::Cluster => println!("{:?}", total.cluster),
        Subject::Jobs => println!("{:?}", total.jobs),
    }
    if failed.is_empty() {
        println!("{count} seeds from {from} on: all good");
        ExitCode::SUCCESS
    } else {
        println!("{} of {count} seeds failed: {failed:?}", failed.len());
        ExitCode::FAILURE
    }
}

/// Takes seeds until there are none. Seeds run beside each other, each in one thread.
fn work(next: &AtomicU64, arguments: Arguments, failed: &Mutex<Vec<u64>>, total: &Mutex<Total>) {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= arguments.count {
            return;
        }
        let seed = arguments.from + at;
        match arguments.run(seed, total) {
            Ok(report) => {
                if arguments.count == 1 {
                    println!("{report}");
                }
            }
            Err(story) => {
                println!("{story}\n");
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(seed);
            }
        }
        if (at + 1).is_multiple_of(PROGRESS_SEEDS) {
            println!("{} seeds", at + 1);
        }
    }
}
