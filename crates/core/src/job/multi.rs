//! A client of several leaders: each job goes to one of them, and to another one only when the
//! first is gone for long.
//!
//! - A job that could not be written to a connection was not sent: it goes to any leader that
//!   is connected.
//! - A job that was sent stays with its leader. If the connection is lost and comes back within
//!   the grace time, the job is sent there again under its id, which the leader knows; if it does
//!   not, the job goes to another leader, under the same id.
//! - The first result of a job counts; later ones are counted and dropped.
//!
//! Not here: sockets, requests and results.

use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use crate::backoff::{Backoff, Retries, splitmix};
use crate::time::Timestamp;

use super::JobId;

/// Most leaders of one client.
pub const LEADERS_MAX: usize = 64;

/// Which leader a job goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The one that its id points to, so that every client sends it there; another one while
    /// that is not connected.
    #[default]
    Home,
    /// One after the other.
    RoundRobin,
    /// The one with the fewest jobs of this client.
    FewestInFlight,
}

/// How a client of several leaders behaves.
#[derive(Clone, Copy, Debug)]
pub struct MultiOptions {
    /// Which leader a job goes to.
    pub policy: Policy,
    /// How long a lost leader may be away until its jobs go elsewhere.
    pub grace: Duration,
    /// How reconnecting waits.
    pub backoff: Backoff,
    /// Spreads the waits of clients that lost their leader together.
    pub seed: u64,
}

impl Default for MultiOptions {
    /// By id, 10 s of grace, and half a second doubling to 30, a fifth up or down.
    fn default() -> Self {
        let backoff = Backoff::default();
        Self { policy: Policy::Home, grace: Duration::from_secs(10), backoff, seed: 0 }
    }
}

/// What happens to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A job is to be done.
    Submit(JobId),
    /// A leader is connected.
    Connected(usize),
    /// A connection is lost, or could not be made.
    Lost(usize),
    /// A job could not be written to a leader's connection.
    NotWritten(usize, JobId),
    /// A leader has the result of a job, or refused it for good.
    Ended(usize, JobId),
    /// Time has passed.
    Tick,
}

/// What must be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect to this leader.
    Connect(usize),
    /// Send a job to this leader.
    Send(usize, JobId),
    /// The result of this job counts.
    Done(JobId),
    /// The result of this job came before.
    Duplicate(JobId),
}

#[derive(Debug)]
struct Side {
    online: bool,
    retries: Retries,
    retry_at: Option<Timestamp>,
    /// When the jobs it has go elsewhere.
    give_up_at: Option<Timestamp>,
    jobs: BTreeSet<JobId>,
    /// Those of them that were sent over an earlier connection: it may have them.
    sent: BTreeSet<JobId>,
}

/// The machine; see the module.
#[derive(Debug)]
pub struct Multi {
    options: MultiOptions,
    sides: Vec<Side>,
    /// Where each job is; `None` while it waits for a leader.
    jobs: BTreeMap<JobId, Option<usize>>,
    waiting: BTreeSet<JobId>,
    last: usize,
}

impl Multi {
    /// A client of this many leaders; all of them are to be connected to.
    ///
    /// # Panics
    /// With no leader, with more than [`LEADERS_MAX`], or with waits that make no sense.
    pub fn new(leaders: usize, options: MultiOptions, effects: &mut Vec<Effect>) -> Self {
        assert!((1..=LEADERS_MAX).contains(&leaders), "1 to {LEADERS_MAX} leaders");
        let side = |at: usize| {
            effects.push(Effect::Connect(at));
            let retries = Retries::new(options.backoff, options.seed ^ at as u64);
            Side {
                online: false,
                retries: retries.expect("the waits make sense"),
                retry_at: None,
                give_up_at: None,
                jobs: BTreeSet::new(),
                sent: BTreeSet::new(),
            }
        };
        let sides = (0..leaders).map(side).collect();
        Self { options, sides, jobs: BTreeMap::new(), waiting: BTreeSet::new(), last: leaders - 1 }
    }

    /// Takes in what happened, and says what must be done.
    pub fn step(&mut self, now: Timestamp, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Submit(job) => {
                if let Entry::Vacant(new) = self.jobs.entry(job) {
                    new.insert(None);
                    self.waiting.insert(job);
                }
            }
            Input::Connected(at) => {
                let side = &mut self.sides[at];
                side.online = true;
                side.sent = side.jobs.clone();
                side.retries.succeeded();
                (side.retry_at, side.give_up_at) = (None, None);
                effects.extend(side.jobs.iter().map(|job| Effect::Send(at, *job)));
            }
            Input::Lost(at) => {
                let side = &mut self.sides[at];
                if side.online || side.give_up_at.is_none() {
                    side.give_up_at = Some(now.after(self.options.grace));
                }
                side.online = false;
                side.retry_at = Some(now.after(side.retries.failed()));
            }
            Input::NotWritten(at, job) => {
                let side = &mut self.sides[at];
                if !side.sent.contains(&job) && side.jobs.remove(&job) {
                    self.jobs.insert(job, None);
                    self.waiting.insert(job);
                }
            }
            Input::Ended(_, job) => match self.jobs.remove(&job) {
                Some(home) => {
                    self.waiting.remove(&job);
                    home.iter().for_each(|at| {
                        self.sides[*at].jobs.remove(&job);
                    });
                    effects.push(Effect::Done(job));
                }
                None => effects.push(Effect::Duplicate(job)),
            },
            Input::Tick => {}
        }
        self.pass_time(now, effects);
        self.send(effects);
    }

    /// When the next thing happens by itself.
    pub fn deadline(&self) -> Option<Timestamp> {
        // Without another leader nothing happens when a lost one is given up.
        let can_move = self.can_move();
        let side = |side: &Side| {
            let give_up_at = side.give_up_at.filter(|_| can_move && !side.jobs.is_empty());
            [side.retry_at, give_up_at]
        };
        self.sides.iter().flat_map(side).flatten().min()
    }

    /// How many jobs are not ended.
    pub fn open(&self) -> usize {
        self.jobs.len()
    }

    /// Whether jobs of a lost leader have another one to go to.
    fn can_move(&self) -> bool {
        self.sides.iter().any(|side| side.online)
    }

    fn pass_time(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        let can_move = self.can_move();
        for (at, side) in self.sides.iter_mut().enumerate() {
            if side.retry_at.is_some_and(|retry_at| retry_at <= now) {
                side.retry_at = None;
                effects.push(Effect::Connect(at));
            }
            // With no other leader there is nothing to gain: this one may come back.
            if can_move && side.give_up_at.is_some_and(|give_up_at| give_up_at <= now) {
                for job in core::mem::take(&mut side.jobs) {
                    self.jobs.insert(job, None);
                    self.waiting.insert(job);
                }
            }
        }
    }

    fn send(&mut self, effects: &mut Vec<Effect>) {
        while let Some(job) = self.waiting.first().copied() {
            let Some(at) = self.choose(job) else { return };
            self.waiting.remove(&job);
            self.last = at;
            self.sides[at].jobs.insert(job);
            self.jobs.insert(job, Some(at));
            effects.push(Effect::Send(at, job));
        }
    }

    fn choose(&self, job: JobId) -> Option<usize> {
        let count = self.sides.len();
        let mut online =
            (1..=count).map(|by| (self.last + by) % count).filter(|at| self.sides[*at].online);
        match self.options.policy {
            Policy::RoundRobin => online.next(),
            Policy::FewestInFlight => online.min_by_key(|at| self.sides[*at].jobs.len()),
            // The highest of all hashes of the job with a leader: rendezvous hashing.
            Policy::Home => online.max_by_key(|at| {
                splitmix(job.0 as u64 ^ (job.0 >> 64) as u64 ^ splitmix(*at as u64))
            }),
        }
    }

    /// Asserts what always holds.
    pub fn check(&self) {
        let online = self.sides.iter().any(|side| side.online);
        assert!(self.waiting.is_empty() || !online, "a job waits though a leader is there");
        for (job, home) in &self.jobs {
            assert_eq!(self.waiting.contains(job), home.is_none(), "it waits, or it is somewhere");
            let has = |(at, side): (usize, &Side)| side.jobs.contains(job).then_some(at);
            let homes: Vec<usize> = self.sides.iter().enumerate().filter_map(has).collect();
            assert_eq!(homes, home.iter().copied().collect::<Vec<_>>(), "it is in one place");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        multi: Multi,
        now: Timestamp,
    }

    impl World {
        fn new(leaders: usize, policy: Policy) -> (Self, Vec<Effect>) {
            let mut effects = Vec::new();
            let options = MultiOptions { policy, ..MultiOptions::default() };
            let multi = Multi::new(leaders, options, &mut effects);
            (Self { multi, now: Timestamp(1_000) }, effects)
        }

        fn step(&mut self, input: Input) -> Vec<Effect> {
            let mut effects = Vec::new();
            self.multi.step(self.now, input, &mut effects);
            self.multi.check();
            effects
        }

        fn wait(&mut self, ms: u64) -> Vec<Effect> {
            self.now = self.now.after(Duration::from_millis(ms));
            self.step(Input::Tick)
        }
    }

    #[test]
    fn e8_jobs_go_round_or_to_the_leader_with_the_fewest() {
        let (mut world, effects) = World::new(3, Policy::RoundRobin);
        assert_eq!(effects, [Effect::Connect(0), Effect::Connect(1), Effect::Connect(2)]);
        assert_eq!(world.step(Input::Submit(JobId(1))), []);
        assert_eq!(world.step(Input::Connected(1)), [Effect::Send(1, JobId(1))]);
        world.step(Input::Connected(2));
        assert_eq!(world.step(Input::Submit(JobId(2))), [Effect::Send(2, JobId(2))]);
        assert_eq!(world.step(Input::Submit(JobId(3))), [Effect::Send(1, JobId(3))]);
        let (mut world, _) = World::new(2, Policy::FewestInFlight);
        world.step(Input::Connected(0));
        world.step(Input::Submit(JobId(1)));
        world.step(Input::Submit(JobId(2)));
        world.step(Input::Connected(1));
        assert_eq!(world.step(Input::Submit(JobId(3))), [Effect::Send(1, JobId(3))]);
        assert_eq!(world.step(Input::Submit(JobId(4))), [Effect::Send(1, JobId(4))]);
    }

    #[test]
    fn e8_what_was_not_written_goes_to_a_living_leader_at_once() {
        let (mut world, _) = World::new(2, Policy::RoundRobin);
        world.step(Input::Connected(0));
        world.step(Input::Connected(1));
        assert_eq!(world.step(Input::Submit(JobId(1))), [Effect::Send(0, JobId(1))]);
        world.step(Input::Lost(0));
        let moved = world.step(Input::NotWritten(0, JobId(1)));
        assert_eq!(moved, [Effect::Send(1, JobId(1))]);
    }

    #[test]
    fn e8_what_was_sent_moves_only_after_the_grace_time_and_under_its_id() {
        let (mut world, _) = World::new(2, Policy::RoundRobin);
        world.step(Input::Connected(0));
        world.step(Input::Connected(1));
        world.step(Input::Submit(JobId(1)));
        world.step(Input::Lost(0));
        let sent = |effects: &[Effect]| effects.contains(&Effect::Send(1, JobId(1)));
        assert!(!sent(&world.wait(9_999)));
        assert!(sent(&world.wait(1)));
        // The first result counts, wherever it comes from; the second is counted and dropped.
        world.step(Input::Connected(0));
        assert_eq!(world.step(Input::Ended(0, JobId(1))), [Effect::Done(JobId(1))]);
        assert_eq!(world.step(Input::Ended(1, JobId(1))), [Effect::Duplicate(JobId(1))]);
    }

    #[test]
    fn e8_a_leader_that_is_back_in_time_is_asked_again_under_the_same_id() {
        let (mut world, _) = World::new(2, Policy::RoundRobin);
        world.step(Input::Connected(0));
        world.step(Input::Submit(JobId(1)));
        world.step(Input::Lost(0));
        world.wait(5_000);
        assert_eq!(world.step(Input::Connected(0)), [Effect::Send(0, JobId(1))]);
        world.step(Input::Connected(1));
        assert_eq!(world.wait(60_000), []);
    }

    #[test]
    fn e8_what_was_sent_before_stays_when_it_could_not_be_written_again() {
        let (mut world, _) = World::new(2, Policy::RoundRobin);
        world.step(Input::Connected(0));
        world.step(Input::Connected(1));
        assert_eq!(world.step(Input::Submit(JobId(1))), [Effect::Send(0, JobId(1))]);
        world.step(Input::Lost(0));
        assert_eq!(world.step(Input::Connected(0)), [Effect::Send(0, JobId(1))]);
        world.step(Input::Lost(0));
        // The first connection may have carried it.
        assert_eq!(world.step(Input::NotWritten(0, JobId(1))), []);
        assert!(world.wait(10_000).contains(&Effect::Send(1, JobId(1))));
    }

    #[test]
    fn e8_a_client_whose_only_leader_is_away_for_long_does_nothing_but_reconnect() {
        let (mut world, _) = World::new(1, Policy::Home);
        world.step(Input::Connected(0));
        world.step(Input::Submit(JobId(1)));
        world.step(Input::Lost(0));
        for _ in 0..8 {
            let due = world.multi.deadline().expect("it tries again");
            assert!(due > world.now, "due at {due} again and again, now {}", world.now);
            world.now = due;
            assert_eq!(world.step(Input::Tick), [Effect::Connect(0)]);
            world.step(Input::Lost(0));
        }
        assert_eq!(world.step(Input::Connected(0)), [Effect::Send(0, JobId(1))]);
    }

    #[test]
    fn e8_reconnecting_waits_half_a_second_doubling_to_thirty_with_jitter() {
        let (mut world, _) = World::new(1, Policy::Home);
        let mut expected = 500;
        for _ in 0..12 {
            world.step(Input::Lost(0));
            let wait = world.multi.deadline().expect("it tries again").since(world.now);
            let plain = Duration::from_millis(expected);
            assert!(wait >= plain * 8 / 10 && wait <= plain * 12 / 10, "{wait:?} for {plain:?}");
            world.now = world.now.after(wait);
            assert_eq!(world.step(Input::Tick), [Effect::Connect(0)]);
            expected = (expected * 2).min(30_000);
        }
    }

    #[test]
    fn jobs_find_the_same_home_from_every_client_and_spread_over_the_leaders() {
        let mut counts = [0; 3];
        for id in 0..300 {
            let homes: Vec<Effect> = (0..2)
                .flat_map(|last| {
                    let (mut world, _) = World::new(3, Policy::Home);
                    world.multi.last = last;
                    (0..3).for_each(|at| drop(world.step(Input::Connected(at))));
                    world.step(Input::Submit(JobId(splitmix(id).into())))
                })
                .collect();
            assert_eq!(homes[0], homes[1]);
            let Effect::Send(at, _) = homes[0] else { panic!("it is sent") };
            counts[at] += 1;
        }
        assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
    }
}
