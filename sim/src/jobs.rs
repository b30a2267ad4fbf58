//! Leaders, workers and clients of jobs over links that delay, stall and break: a world of its own.
//!
//! Every leader, every client of several leaders and every worker's leases are the real machines of
//! `core::job`; the simulator plays the disk, the network, the programs and the processes. A seed
//! decides what is submitted, cancelled, retried and forgotten, how long programs run and how they end,
//! who is killed, stopped, cut off and comes back, and what of a leader's last appends is on its disk.
//!
//! What must hold:
//!
//! - a job that was accepted ends at the leader that accepted it, and is known there until it is
//!   forgotten; its client gets one result, and one that is true;
//! - two attempts of a job never run at a time at one leader, nor two jobs of a key; of a client no more
//!   run than its cap, at a worker no more than it gave credit for;
//! - a token is sent once; only the newest attempt ends a job;
//! - a job goes to a second leader only after the first was away for the grace time;
//! - no executable is passed over more often than there are others, and in seeds without faults no
//!   client is passed over for longer than caps and weights explain;
//! - every machine's `check()` after each step. At the end all faults stop: then everything ends.
//!
//! `links` carries frames, `host` is a leader with its disk, `worker` and `client` are the others, `acts`
//! is what happens to them, `ledger` says what is true.

mod acts;
mod client;
mod host;
mod ledger;
mod links;
mod turns;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::random::Random;
use crate::trace::Trace;
use crate::world::{Checked, Violation};
use acts::{Later, Plan};
use client::Client;
use host::Host;
use ledger::Ledger;
use links::Links;
use worker::Worker;

/// A defect that is put in on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobMutation {
    /// A result of an attempt that does not count any more is taken for the newest one's.
    LateResultTaken,
    /// A leader that starts again takes jobs for waiting that workers still run.
    RestartForgetsRuns,
    /// A worker gets one job more than it gave credit for.
    CreditNotCounted,
    /// Answers and assignments leave before they are on disk.
    SentBeforeDurable,
    /// A worker goes on with its jobs after their leases.
    WorkerGoesOn,
    /// A client sends its jobs to another leader as soon as a connection is lost.
    NoGrace,
    /// The result of a job is not sent to a client that asks again.
    ResultNotResent,
}

impl JobMutation {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::LateResultTaken,
        Self::RestartForgetsRuns,
        Self::CreditNotCounted,
        Self::SentBeforeDurable,
        Self::WorkerGoesOn,
        Self::NoGrace,
        Self::ResultNotResent,
    ];
}

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct JobOptions {
    /// How many steps it has.
    pub steps: u64,
    /// Whether every line of the trace is printed.
    pub print: bool,
    /// The defect that is put in.
    pub mutation: Option<JobMutation>,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self { steps: 250, print: false, mutation: None }
    }
}

/// Defines the counters of runs, with their sum.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What happened in a run, or in several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct JobCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl JobCounts {
            /// Adds those of another run.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Jobs that a leader accepted.
    accepted,
    /// Submits of jobs that the leader knew.
    resent,
    /// Submits that were refused.
    refused,
    /// Attempts that a worker began.
    started,
    /// Outcomes that counted.
    taken,
    /// Outcomes and renewals that came too late.
    stale,
    /// Attempts that a worker stopped because the leader did not answer.
    stopped,
    /// Results that clients got.
    delivered,
    /// Results that came again.
    duplicates,
    /// Jobs that went to a second leader.
    moved,
    /// Jobs that ended dead.
    dead,
    /// Jobs that were cancelled.
    cancelled,
    /// Jobs that schedules made.
    scheduled,
    /// Jobs that were forgotten.
    forgotten,
    /// Starts of leaders from what was on disk.
    restarts,
    /// Appends that a crash took.
    torn,
    /// Workers that were killed.
    kills,
    /// Processes that were stopped for a while.
    freezes,
    /// Links that were cut.
    cuts,
    /// Connections that broke.
    resets,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobReport {
    /// The seed.
    pub seed: u64,
    /// The hash of everything that happened.
    pub hash: u64,
    /// What was done.
    pub counts: JobCounts,
}

/// Runs a seed.
///
/// # Errors
/// Seed, step and story of what did not hold.
pub fn run_jobs(seed: u64, options: JobOptions) -> Result<JobReport, String> {
    let mut world = World::new(seed, options);
    let result = catch_unwind(AssertUnwindSafe(|| world.run(options.steps)));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation(format!("panic: {}", text.unwrap_or_default())))
    });
    match result {
        Ok(()) => Ok(JobReport { seed, hash: world.trace.hash(), counts: world.counts }),
        Err(violation) => {
            let recent: Vec<&str> = world.trace.recent().collect();
            let recent = recent.join("\n    ");
            let step = world.step;
            Err(format!("jobs seed {seed}, step {step}: {violation}\n    {recent}"))
        }
    }
}

/// Everything.
struct World {
    random: Random,
    trace: Trace,
    options: JobOptions,
    counts: JobCounts,
    step: u64,
    now: u64,
    plan: Plan,
    hosts: Vec<Host>,
    workers: Vec<Worker>,
    clients: Vec<Client>,
    links: Links,
    later: Later,
    ledger: Ledger,
    /// The number of the next job.
    next_job: u64,
    /// Whether faults happen: not any more at the end.
    is_calm: bool,
}

impl World {
    fn new(seed: u64, options: JobOptions) -> Self {
        // The same seed is another story than in the other worlds.
        let mut random = Random::new(seed ^ 0x6a6f_6273_2d73_696d);
        let plan = Plan::draw(&mut random);
        let now = 1_000_000;
        let hosts = (0..plan.leaders).map(|_| Host::new(random.below(5_000), &plan)).collect();
        let workers = plan.workers(&mut random);
        let ledger = Ledger::new(plan.leaders);
        Self {
            trace: Trace::new(options.print),
            options,
            counts: JobCounts::default(),
            step: 0,
            now,
            hosts,
            workers,
            clients: Vec::new(),
            links: Links::default(),
            later: Later::default(),
            ledger,
            next_job: 0,
            is_calm: false,
            plan,
            random,
        }
    }

    fn mutated(&self, mutation: JobMutation) -> bool {
        self.options.mutation == Some(mutation)
    }

    fn run(&mut self, steps: u64) -> Checked {
        self.begin()?;
        for _ in 0..steps {
            self.step += 1;
            self.act()?;
            let pause = if self.random.chance(85) { 300 } else { 8_000 };
            let pause = self.random.below(pause);
            self.pass(pause)?;
        }
        self.step += 1;
        self.come_to_rest()
    }

    /// Lets time pass; what is due happens in its order.
    fn pass(&mut self, ms: u64) -> Checked {
        let until = self.now + ms;
        loop {
            let hosts = self.hosts.iter().filter_map(Host::due);
            let workers = self.workers.iter().filter_map(Worker::due);
            let clients = self.clients.iter().filter_map(Client::due);
            let links = self.links.due(|link| self.can_receive(link));
            let due = hosts.chain(workers).chain(clients).chain(links).chain(self.later.due());
            let Some(due) = due.min().map(|due| due.max(self.now)).filter(|due| *due <= until)
            else {
                break;
            };
            self.now = due;
            self.happen()?;
        }
        self.now = until;
        Ok(())
    }

    /// All that is due now.
    fn happen(&mut self) -> Checked {
        while let Some(event) = self.later.pop(self.now) {
            self.later(event)?;
        }
        self.carry_frames()?;
        for index in 0..self.hosts.len() {
            self.host_turn(index)?;
        }
        for index in 0..self.workers.len() {
            self.worker_turn(index)?;
        }
        for index in 0..self.clients.len() {
            self.client_turn(index)?;
        }
        Ok(())
    }
}
