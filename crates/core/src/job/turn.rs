//! Whose turn it is: which ready job goes to which free worker.
//!
//! Executables take turns: the one goes first that was served the longest ago, whichever workers are
//! free for it. Within one, the client goes first that has used the least run time of it so far,
//! divided by its weight; a client that comes back after a pause starts level with the others, so it
//! can neither save up turns nor be owed for them. Each executable counts for itself: its workers may be
//! many or few, and what a client uses of one says nothing about its turn at another. Within a client,
//! jobs go by rank (priority and age), then in the order in which they were accepted. Workers of an
//! executable take turns.
//!
//! An executable with a ready job of a client below its cap, and with a free worker, is
//! *matchable*; the leader assigns until none is. So no job waits that could run, and a turn
//! costs the same whatever waits in the queues.
//!
//! Not here: what a job is. Clients, workers and executables are numbers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::Bound;

use super::JobId;

/// A client, as a number.
pub(super) type ClientNo = u32;
/// A worker, as a number.
pub(super) type WorkerNo = u32;
/// An executable, as a number.
pub(super) type ExecNo = u32;

/// How fast a mean run time follows: a new value counts this part of it.
const MEAN_PART: u64 = 8;
/// What a millisecond of run time costs a client of weight 1, so that weights divide evenly.
const PASS_PER_MS: u64 = 100;
/// Highest weight of a client.
pub const WEIGHT_MAX: u32 = 100;

/// The place of a ready job among those of its client: the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) rank: i64,
    pub(super) number: u64,
    pub(super) job: JobId,
}

/// What is to be assigned next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) job: JobId,
    pub(super) worker: WorkerNo,
}

#[derive(Debug, Default)]
struct Exec {
    name: Arc<str>,
    /// Ready jobs by client; no queue is empty.
    queues: BTreeMap<ClientNo, BTreeSet<Place>>,
    /// Clients with ready jobs that are below their cap, by what they have used.
    flows: BTreeSet<(u64, ClientNo)>,
    /// Workers that run it and have credit.
    free: BTreeSet<WorkerNo>,
    last_worker: WorkerNo,
    mean_ms: u64,
    /// What each client has used of it, and where it begins after a pause.
    passes: BTreeMap<ClientNo, u64>,
    /// What the client had used that was served last: where a new one begins.
    level: u64,
    /// The number of the assignment by which it was served last.
    served: u64,
}

impl Exec {
    fn pass(&self, client: ClientNo) -> u64 {
        self.passes.get(&client).copied().unwrap_or(self.level)
    }
}

#[derive(Debug)]
struct Share {
    weight: u64,
    below_cap: bool,
    /// Where jobs of it are ready.
    execs: BTreeSet<ExecNo>,
    /// Which know what it has used.
    used: BTreeSet<ExecNo>,
}

#[derive(Debug, Default)]
struct Taker {
    execs: BTreeSet<ExecNo>,
    free: bool,
}

/// The queues of all executables.
#[derive(Debug, Default)]
pub(super) struct Turn {
    execs: BTreeMap<ExecNo, Exec>,
    by_name: BTreeMap<Arc<str>, ExecNo>,
    shares: BTreeMap<ClientNo, Share>,
    takers: BTreeMap<WorkerNo, Taker>,
    /// By when they were served last.
    matchable: BTreeSet<(u64, ExecNo)>,
    next_exec: ExecNo,
    /// How many assignments there were.
    assigned: u64,
}

impl Turn {
    /// The executable of this name; the second value says that it is new here, and that the
    /// workers which run it must be named.
    pub(super) fn exec(&mut self, name: &Arc<str>) -> (ExecNo, bool) {
        if let Some(no) = self.by_name.get(name) {
            return (*no, false);
        }
        self.next_exec += 1;
        let no = self.next_exec;
        self.by_name.insert(Arc::clone(name), no);
        // As if it had just been served: others that wait go first.
        let served = self.assigned;
        self.execs.insert(no, Exec { name: Arc::clone(name), served, ..Exec::default() });
        (no, true)
    }

    /// Whether an executable of this name is known.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// All executables and their names.
    pub(super) fn execs(&self) -> impl Iterator<Item = (ExecNo, &Arc<str>)> {
        self.execs.iter().map(|(no, exec)| (*no, &exec.name))
    }

    pub(super) fn exec_count(&self) -> usize {
        self.execs.len()
    }

    /// Forgets an executable without any job.
    pub(super) fn forget_exec(&mut self, no: ExecNo) {
        let Some(exec) = self.execs.remove(&no) else { return };
        assert!(exec.queues.is_empty(), "an executable with ready jobs is not forgotten");
        self.by_name.remove(&exec.name);
        for client in exec.passes.keys() {
            self.shares.get_mut(client).expect("it knows the executable").used.remove(&no);
        }
        self.matchable.remove(&(exec.served, no));
        self.takers.values_mut().for_each(|taker| {
            taker.execs.remove(&no);
        });
    }

    pub(super) fn add_client(&mut self, client: ClientNo, weight: u32) {
        let weight = u64::from(weight.clamp(1, WEIGHT_MAX));
        let (execs, used) = (BTreeSet::new(), BTreeSet::new());
        let new = Share { weight, below_cap: true, execs, used };
        self.shares.entry(client).or_insert(new).weight = weight;
    }

    pub(super) fn forget_client(&mut self, client: ClientNo) {
        let share = self.shares.remove(&client);
        let Some(share) = share else { return };
        assert!(share.execs.is_empty(), "its jobs went before");
        for no in share.used {
            self.execs.get_mut(&no).expect("it knows the client").passes.remove(&client);
        }
    }

    /// Whether more jobs of the client may run.
    pub(super) fn set_below_cap(&mut self, client: ClientNo, below: bool) {
        let Some(share) = self.shares.get_mut(&client).filter(|share| share.below_cap != below)
        else {
            return;
        };
        share.below_cap = below;
        for no in share.execs.clone() {
            let exec = self.execs.get_mut(&no).expect("a client's executables are known");
            let flow = (exec.pass(client), client);
            if below {
                exec.flows.insert(flow);
            } else {
                exec.flows.remove(&flow);
            }
            self.note(no);
        }
    }

    /// Charges a client for run time: the mean of the executable when a job is assigned; what
    /// it differed by when it ends.
    pub(super) fn charge(&mut self, no: ExecNo, client: ClientNo, ms: i64) {
        let Some(share) = self.shares.get_mut(&client) else { return };
        let Some(exec) = self.execs.get_mut(&no) else { return };
        share.used.insert(no);
        let by = ms.unsigned_abs().saturating_mul(PASS_PER_MS) / share.weight;
        let before = exec.pass(client);
        let pass = if ms < 0 { before.saturating_sub(by) } else { before.saturating_add(by) };
        if exec.flows.remove(&(before, client)) {
            exec.flows.insert((pass, client));
        }
        exec.passes.insert(client, pass);
    }

    /// How long this executable runs, as far as is known; at least a millisecond.
    pub(super) fn mean_ms(&self, exec: ExecNo) -> u64 {
        self.execs.get(&exec).map_or(1, |exec| exec.mean_ms.max(1))
    }

    pub(super) fn ran(&mut self, exec: ExecNo, ms: u64) {
        if let Some(exec) = self.execs.get_mut(&exec) {
            exec.mean_ms = match exec.mean_ms {
                0 => ms,
                mean => (mean * (MEAN_PART - 1) + ms) / MEAN_PART,
            };
        }
    }

    /// A job is ready.
    pub(super) fn push(&mut self, exec: ExecNo, client: ClientNo, place: Place) {
        let share = self.shares.get_mut(&client).expect("a job's client is known");
        let home = self.execs.get_mut(&exec).expect("a job's executable is known");
        home.queues.entry(client).or_default().insert(place);
        if share.execs.insert(exec) {
            let pass = home.pass(client).max(home.level);
            home.passes.insert(client, pass);
            share.used.insert(exec);
            if share.below_cap {
                home.flows.insert((pass, client));
            }
        }
        self.note(exec);
    }

    /// A job is not ready any more.
    pub(super) fn remove(&mut self, exec: ExecNo, client: ClientNo, place: Place) {
        let home = self.execs.get_mut(&exec).expect("a job's executable is known");
        let queue = home.queues.get_mut(&client).expect("a ready job is in a queue");
        assert!(queue.remove(&place), "a ready job is in its queue");
        if queue.is_empty() {
            home.queues.remove(&client);
            let share = self.shares.get_mut(&client).expect("a job's client is known");
            share.execs.remove(&exec);
            home.flows.remove(&(home.pass(client), client));
        }
        self.note(exec);
    }

    pub(super) fn add_worker(&mut self, worker: WorkerNo) {
        self.takers.entry(worker).or_default();
    }

    pub(super) fn forget_worker(&mut self, worker: WorkerNo) {
        self.set_free(worker, false);
        self.takers.remove(&worker);
    }

    /// The worker runs this executable.
    pub(super) fn runs(&mut self, worker: WorkerNo, exec: ExecNo) {
        let taker = self.takers.get_mut(&worker).expect("a worker is added first");
        taker.execs.insert(exec);
        if taker.free {
            self.execs.get_mut(&exec).expect("it is known").free.insert(worker);
            self.note(exec);
        }
    }

    /// Whether the worker has credit.
    pub(super) fn set_free(&mut self, worker: WorkerNo, free: bool) {
        let Some(taker) = self.takers.get_mut(&worker) else { return };
        if taker.free == free {
            return;
        }
        taker.free = free;
        for exec in taker.execs.clone() {
            let home = self.execs.get_mut(&exec).expect("a worker's executables are known");
            if free {
                home.free.insert(worker);
            } else {
                home.free.remove(&worker);
            }
            self.note(exec);
        }
    }

    /// The next job and its worker. The job stays until [`Turn::remove`].
    pub(super) fn next(&mut self) -> Option<Match> {
        let (_, no) = self.matchable.pop_first()?;
        self.assigned += 1;
        let exec = self.execs.get_mut(&no).expect("what is matchable is known");
        exec.served = self.assigned;
        let (pass, client) = *exec.flows.first().expect("what is matchable has a client");
        exec.level = exec.level.max(pass);
        let queue = exec.queues.get(&client).expect("a flow has a queue");
        let job = queue.first().expect("no queue is empty").job;
        let worker = after(&exec.free, exec.last_worker).expect("what is matchable has a worker");
        exec.last_worker = worker;
        self.note(no);
        Some(Match { job, worker })
    }

    fn note(&mut self, no: ExecNo) {
        let exec = &self.execs[&no];
        if exec.flows.is_empty() || exec.free.is_empty() {
            self.matchable.remove(&(exec.served, no));
        } else {
            self.matchable.insert((exec.served, no));
        }
    }

    /// Asserts that the indexes agree, and that nothing is left to assign.
    pub(super) fn check(&self) {
        assert!(self.matchable.is_empty(), "a job waits that could run");
        for (no, exec) in &self.execs {
            assert_eq!(self.by_name.get(&exec.name), Some(no), "names and numbers agree");
            for (client, queue) in &exec.queues {
                assert!(!queue.is_empty(), "no queue is empty");
                let share = &self.shares[client];
                assert!(share.execs.contains(no), "a client knows where its jobs wait");
                let flows = exec.flows.contains(&(exec.pass(*client), *client));
                assert_eq!(flows, share.below_cap, "only clients below their cap take turns");
            }
            let eligible = exec.queues.keys().filter(|client| self.shares[client].below_cap);
            assert_eq!(exec.flows.len(), eligible.count(), "a turn for each client, no more");
            for worker in &exec.free {
                let taker = &self.takers[worker];
                assert!(taker.free && taker.execs.contains(no), "free workers run it");
            }
        }
        for (client, share) in &self.shares {
            let used = |no: &ExecNo| self.execs[no].passes.contains_key(client);
            assert!(share.used.iter().all(used), "what a client used is known there");
            let waits = |no: &ExecNo| self.execs[no].queues.contains_key(client);
            assert!(share.execs.iter().all(waits), "a client's jobs wait where it thinks");
        }
        for (worker, taker) in &self.takers {
            let free = |no: &ExecNo| self.execs[no].free.contains(worker) == taker.free;
            assert!(taker.execs.iter().all(free), "a worker is free for all it runs, or none");
        }
    }
}

/// The element after `last`, around the end if need be.
fn after(set: &BTreeSet<u32>, last: u32) -> Option<u32> {
    let behind = set.range((Bound::Excluded(last), Bound::Unbounded)).next();
    behind.or_else(|| set.first()).copied()
}
