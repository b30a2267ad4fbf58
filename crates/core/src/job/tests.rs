//! The leader against a model of what its clients and workers see.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::time::Duration;

use super::leader::{
    Closing, Effect, Filter, Found, Input, Leader, Limits, Outcome, Refusal, Session, State,
};
use super::record::{End, Record, Spec, Stage, WorkerId};
use super::{JobId, Token};
use crate::backoff::splitmix;
use crate::pattern::Pattern;
use crate::retry::{RetryPolicy, Waits};
use crate::time::Timestamp;

mod lasting;
mod waiting;
mod workers;

fn limits() -> Limits {
    Limits { keep: Duration::from_secs(600), ..Limits::default() }
}

fn spec(id: u128, client: &str, exec: &str) -> Spec {
    let waits = Waits::Steps(vec![Duration::from_secs(1)]);
    Spec {
        id: JobId(id),
        client: client.into(),
        exec: exec.into(),
        priority: 4,
        not_before: Timestamp(0),
        key: None,
        unique: None,
        after: Vec::new(),
        attempts_max: 3,
        deaths_max: 3,
        retry: Arc::new(RetryPolicy { waits, jitter_percent: 0 }),
        cron: None,
        digest: id,
    }
}

/// Schedules of the tests: `12` is every 12 seconds, and everything else never.
fn calendar(text: &str, after: Timestamp) -> Option<Timestamp> {
    let every: u64 = text.parse::<u64>().ok()? * 1000;
    Some(Timestamp((after.0 / every + 1) * every))
}

/// A leader, the records that it saved, and a clock.
struct World {
    leader: Leader,
    saved: BTreeMap<JobId, Vec<u8>>,
    /// How many records were written, ever: no more jobs can have been accepted.
    written: u64,
    now: Timestamp,
}

impl World {
    fn new(limits: Limits) -> Self {
        let mut world = Self {
            leader: Leader::new(limits).with_calendar(calendar),
            saved: BTreeMap::new(),
            written: 0,
            now: Timestamp(1_000),
        };
        world.step(Input::Restored);
        world
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.leader.step(self.now, input, &mut effects);
        self.leader.check();
        for effect in &effects {
            match effect {
                Effect::Save(job) => {
                    let record = self.leader.record(*job).expect("what is saved is known");
                    self.saved.insert(*job, record.encode());
                    self.written += 1;
                }
                Effect::Forget(job) => {
                    self.saved.remove(job).expect("what is forgotten was saved");
                }
                _ => {}
            }
        }
        effects
    }

    fn wait(&mut self, seconds: u64) -> Vec<Effect> {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.step(Input::Tick)
    }

    /// The leader dies and another goes on from what was saved.
    fn restart(&mut self, limits: Limits) {
        self.leader = Leader::new(limits).with_calendar(calendar).numbered_from(self.written + 1);
        for bytes in self.saved.clone().values() {
            let record = Record::decode(bytes).expect("what was encoded is decoded");
            self.step_quietly(Input::Restore(record));
        }
        self.step(Input::Restored);
    }

    fn step_quietly(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.leader.step(self.now, input, &mut effects);
        assert!(effects.is_empty(), "restoring does nothing: {effects:?}");
    }

    fn client(&mut self, session: u64, name: &str, cap: u32) {
        self.step(Input::Client { session: Session(session), name: name.into(), cap, weight: 1 });
    }

    fn worker(&mut self, session: u64, name: &str, credit: i32) -> Vec<Effect> {
        let pattern = Pattern::parse("job.assign.*").expect("a pattern");
        let (session, worker) = (Session(session), name.into());
        let running = Vec::new();
        let mut effects = self.step(Input::Worker { session, worker, pattern, running });
        effects.extend(self.step(Input::Credit(session, credit)));
        effects
    }

    fn submit(&mut self, session: u64, spec: Spec) -> Vec<Effect> {
        self.step(Input::Submit(Session(session), Arc::new(spec)))
    }
}

fn assigned(effects: &[Effect]) -> Vec<Token> {
    let token = |effect: &Effect| match effect {
        Effect::Assign { token, .. } => Some(*token),
        _ => None,
    };
    effects.iter().filter_map(token).collect()
}

/// An attempt of a job whose number is its id: the first job of a world is 1, the next 2 …
fn token(job: u128, attempt: u32) -> Token {
    Token { job: JobId(job), number: job as u64, attempt }
}

#[test]
fn e5_jobs_are_assigned_against_credit_and_cap_only() {
    let mut world = World::new(limits());
    world.client(1, "a", 2);
    for id in 1..=4 {
        assert_eq!(assigned(&world.submit(1, spec(id, "a", "calc"))), []);
    }
    // Three would fit the worker, two the client's cap.
    assert_eq!(assigned(&world.worker(9, "w", 3)), [token(1, 1), token(2, 1)]);
    let done = world.step(Input::Ack(Session(9), token(1, 1), Outcome::Succeeded));
    assert_eq!(assigned(&done), [token(3, 1)]);
    assert!(done.contains(&Effect::Result { session: Session(1), job: JobId(1) }));
    // Now the credit is used up: only more of it brings the fourth.
    let done = world.step(Input::Ack(Session(9), token(2, 1), Outcome::Succeeded));
    assert_eq!(assigned(&done), []);
    assert_eq!(assigned(&world.step(Input::Credit(Session(9), 1))), [token(4, 1)]);
}

#[test]
fn e6_bad_credit_ends_the_connection() {
    for credit in [0, -1, i32::MIN, 1025, i32::MAX] {
        let mut world = World::new(limits());
        let close = Effect::Close { session: Session(9), why: Closing::BadCredit };
        assert_eq!(world.worker(9, "w", credit), [close], "{credit}");
    }
}

#[test]
fn e5_a_silent_worker_loses_its_job_and_a_late_result_is_stale() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    world.worker(9, "w", 1);
    world.worker(10, "other", 1);
    assert_eq!(assigned(&world.submit(1, spec(1, "a", "calc"))), [token(1, 1)]);
    let session = Session(9);
    for _ in 0..5 {
        assert!(assigned(&world.wait(10)).is_empty());
        let renewed = world.step(Input::Renew(session, token(1, 1)));
        assert_eq!(renewed, [Effect::Renewed { session, token: token(1, 1) }]);
    }
    // The lease is 15 s and the margin 2 s; then it waits a second as its retry rule says.
    assert!(!world.wait(16).contains(&Effect::Stale { session, token: token(1, 1) }));
    assert!(world.wait(1).contains(&Effect::Stale { session, token: token(1, 1) }));
    assert_eq!(assigned(&world.wait(1)), [token(1, 2)]);
    let late = world.step(Input::Ack(session, token(1, 1), Outcome::Succeeded));
    assert_eq!(late, [Effect::Stale { session, token: token(1, 1) }]);
    let good = world.step(Input::Ack(Session(10), token(1, 2), Outcome::Succeeded));
    assert!(good.contains(&Effect::Result { session: Session(1), job: JobId(1) }));
}

#[test]
fn e5_a_worker_that_comes_back_in_time_goes_on() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    world.worker(9, "w", 2);
    world.submit(1, spec(1, "a", "calc"));
    world.submit(1, spec(2, "a", "calc"));
    world.step(Input::Gone(Session(9)));
    world.wait(10);
    let pattern = Pattern::parse("job.assign.>").expect("a pattern");
    let running = vec![token(1, 1), token(7, 3)];
    let (session, worker) = (Session(11), "w".into());
    let back = world.step(Input::Worker { session, worker, pattern, running });
    // It is at the first still, has lost the second, and the third was never its own.
    assert!(back.contains(&Effect::Renewed { session, token: token(1, 1) }));
    assert!(back.contains(&Effect::Stale { session, token: token(7, 3) }));
    let spoke = world.step(Input::Credit(session, 1));
    assert!(spoke.contains(&Effect::Stale { session, token: token(2, 1) }));
    assert_eq!(assigned(&world.wait(1)), [token(2, 2)]);
}

#[test]
fn e5_what_fails_too_often_or_loses_too_many_workers_is_dead_and_can_be_retried() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    world.worker(9, "w", 100);
    world.submit(1, spec(1, "a", "calc"));
    for attempt in 1..=3 {
        let again = Outcome::Failed { again: true };
        world.step(Input::Ack(Session(9), token(1, attempt), again));
        world.wait(1);
    }
    let stage = |world: &World| world.leader.record(JobId(1)).expect("it is known").stage;
    assert!(matches!(stage(&world), Stage::Ended { how: End::TooManyFailures, .. }));
    let again = world.step(Input::Retry(Session(1), JobId(1)));
    assert_eq!(assigned(&again), [token(1, 4)]);
    for _ in 0..3 {
        world.wait(17);
        world.step(Input::Heard(Session(9)));
        world.wait(1);
    }
    assert!(matches!(stage(&world), Stage::Ended { how: End::TooManyDeaths, .. }));
}

#[test]
fn a_cancelled_job_ends_at_once_or_when_its_worker_stops() {
    let mut world = World::new(limits());
    world.client(1, "a", 1);
    world.worker(9, "w", 9);
    world.submit(1, spec(1, "a", "calc"));
    world.submit(1, spec(2, "a", "calc"));
    let waiting = world.step(Input::Cancel(Session(1), JobId(2)));
    assert!(waiting.contains(&Effect::Result { session: Session(1), job: JobId(2) }));
    let running = world.step(Input::Cancel(Session(1), JobId(1)));
    assert!(running.contains(&Effect::Revoke { session: Session(9), token: token(1, 1) }));
    // The wish survives a restart, and the worker learns it when it comes back.
    world.restart(limits());
    let pattern = Pattern::parse("job.assign.*").expect("a pattern");
    let (session, worker, running) = (Session(12), "w".into(), vec![token(1, 1)]);
    let back = world.step(Input::Worker { session, worker, pattern, running });
    assert_eq!(back, [Effect::Revoke { session, token: token(1, 1) }]);
    world.step(Input::Ack(session, token(1, 1), Outcome::Cancelled));
    let stage = world.leader.record(JobId(1)).expect("it is known").stage;
    assert!(matches!(stage, Stage::Ended { how: End::Cancelled, .. }));
}

#[test]
fn a_resend_is_answered_and_another_job_under_the_id_is_refused() {
    let mut world = World::new(limits());
    world.client(1, "a", 1);
    world.worker(9, "w", 9);
    world.submit(1, spec(1, "a", "calc"));
    world.step(Input::Ack(Session(9), token(1, 1), Outcome::Failed { again: false }));
    world.restart(limits());
    world.client(2, "a", 1);
    let (session, job) = (Session(2), JobId(1));
    let known = Effect::Submitted { session, job, known: true };
    assert_eq!(world.submit(2, spec(1, "a", "calc")), [known, Effect::Result { session, job }]);
    let other = Spec { digest: 99, ..spec(1, "a", "calc") };
    let refused = Effect::Refused { session, job, why: Refusal::IdTaken };
    assert_eq!(world.submit(2, other), [refused]);
    // It is forgotten after its time, and the id is free.
    assert_eq!(world.wait(600), [Effect::Forget(job)]);
    assert!(world.saved.is_empty());
}

#[test]
fn of_a_key_one_job_runs_at_a_time_and_a_unique_job_is_there_once() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    let keyed = |id| Spec { key: Some("k".into()), ..spec(id, "a", "calc") };
    assert_eq!(assigned(&world.submit(1, keyed(1))), [token(1, 1)]);
    assert_eq!(assigned(&world.submit(1, keyed(2))), []);
    let next = world.step(Input::Ack(Session(9), token(1, 1), Outcome::Succeeded));
    assert_eq!(assigned(&next), [token(2, 1)]);
    let unique = |id| Spec { unique: Some("u".into()), ..spec(id, "a", "calc") };
    world.submit(1, unique(3));
    let (session, job) = (Session(1), JobId(4));
    let why = Refusal::NotUnique(JobId(3));
    assert_eq!(world.submit(1, unique(4)), [Effect::Refused { session, job, why }]);
    world.step(Input::Ack(Session(9), token(3, 1), Outcome::Succeeded));
    assert_eq!(assigned(&world.submit(1, unique(4))), [token(4, 1)]);
}

#[test]
fn a_job_runs_after_those_it_waits_for_and_dies_with_them() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    let after = |id, after: &[u128]| Spec {
        after: after.iter().map(|id| JobId(*id)).collect(),
        ..spec(id, "a", "calc")
    };
    world.submit(1, after(1, &[]));
    world.submit(1, after(2, &[]));
    assert_eq!(assigned(&world.submit(1, after(3, &[1, 2]))), []);
    world.submit(1, after(4, &[3]));
    world.step(Input::Ack(Session(9), token(1, 1), Outcome::Succeeded));
    let both = world.step(Input::Ack(Session(9), token(2, 1), Outcome::Succeeded));
    assert_eq!(assigned(&both), [token(3, 1)]);
    // What it waited for is forgotten while it runs; a retry of it does not wait again.
    world.step(Input::Ack(Session(9), token(3, 1), Outcome::Failed { again: false }));
    let stage = world.leader.record(JobId(4)).expect("it is known").stage;
    assert!(matches!(stage, Stage::Ended { how: End::Dependency, .. }));
    let (session, job) = (Session(1), JobId(5));
    let why = Refusal::Unknown(JobId(77));
    assert_eq!(world.submit(1, after(5, &[77])), [Effect::Refused { session, job, why }]);
}

#[test]
fn higher_priority_goes_first_and_waiting_makes_up_for_it() {
    let mut world = World::new(limits());
    world.client(1, "a", 1);
    let with = |id, priority| Spec { priority, ..spec(id, "a", "calc") };
    world.submit(1, with(1, 0));
    world.now = world.now.after(Duration::from_secs(90));
    world.submit(1, with(2, 1));
    world.submit(1, with(3, 9));
    let mut order = Vec::new();
    let mut next = assigned(&world.worker(9, "w", 9));
    while let Some(token) = next.pop() {
        order.push(token.job.0);
        next = assigned(&world.step(Input::Ack(Session(9), token, Outcome::Succeeded)));
    }
    assert_eq!(order, [3, 1, 2]);
}

/// One client has a thousand jobs waiting, then others come with a few: they are served at
/// once, and in the end each client got the same share of run time while it had jobs.
#[test]
fn e5_a_client_with_many_jobs_does_not_starve_the_others() {
    let mut world = World::new(limits());
    for (session, name) in [(1, "bulk"), (2, "b"), (3, "c")] {
        world.client(session, name, 100);
    }
    for id in 0..1_000 {
        world.submit(1, spec(id, "bulk", "calc"));
    }
    for id in 0..20 {
        world.submit(2, spec(10_000 + id, "b", "calc"));
        world.submit(3, spec(20_000 + id, "c", "other"));
    }
    let mut ran: BTreeMap<u128, u32> = BTreeMap::new();
    let mut next = assigned(&world.worker(9, "w", 1));
    for _ in 0..60 {
        let token = next.pop().expect("there are jobs");
        *ran.entry(token.job.0 / 10_000).or_default() += 1;
        // Jobs of `c` run three times as long.
        let ms = if token.job.0 >= 20_000 { 300 } else { 100 };
        world.now = world.now.after(Duration::from_millis(ms));
        world.step(Input::Ack(Session(9), token, Outcome::Succeeded));
        next = assigned(&world.step(Input::Credit(Session(9), 1)));
    }
    let (bulk, b, c) = (ran[&0], ran[&1], ran[&2]);
    assert_eq!(b, 20, "all of b ran: {ran:?}");
    assert!(c >= 6, "c is not starved: {ran:?}");
    assert!(bulk >= 15, "bulk goes on: {ran:?}");
}

#[test]
fn what_was_encoded_is_decoded_and_damage_is_noticed() {
    let key: Option<Arc<str>> = Some("käse".into());
    let (after, cron) = (vec![JobId(7), JobId(8)], Some("* * * * *".into()));
    let full = Spec { key, after, cron, ..spec(5, "a", "calc") };
    let stages = [
        Stage::Open { until: Timestamp(77) },
        Stage::Running { worker: "w".into(), started: Timestamp(9), cancel: true },
        Stage::Ended { how: End::Dependency, at: Timestamp(10) },
    ];
    for stage in stages {
        let record = Record {
            spec: Arc::new(full.clone()),
            number: 3,
            submitted: Timestamp(5),
            attempt: 2,
            failures: 1,
            deaths: 1,
            origin: Some(JobId(6)),
            cap: Some(3),
            stage,
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            assert!(Record::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }
}

#[test]
fn records_of_before_schedules_and_caps_are_read() {
    let record = Record {
        spec: Arc::new(spec(5, "a", "calc")),
        number: 3,
        submitted: Timestamp(5),
        attempt: 2,
        failures: 1,
        deaths: 1,
        origin: None,
        cap: None,
        stage: Stage::Ended { how: End::Failed, at: Timestamp(10) },
    };
    let mut bytes = record.encode();
    // Version 2 had no cap, and version 1 neither of the two fields before it; all are empty.
    for (version, without) in [(2, 1), (1, 2)] {
        bytes[0] = version;
        bytes.truncate(bytes.len() - without);
        assert_eq!(Record::decode(&bytes), Ok(record.clone()));
    }
}

#[test]
fn a_schedule_makes_a_job_each_time_and_one_for_all_times_that_were_missed() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    let never = Spec { cron: Some("never".into()), ..spec(2, "a", "calc") };
    let (session, job, why) = (Session(1), JobId(2), Refusal::NoTime);
    assert_eq!(world.submit(1, never), [Effect::Refused { session, job, why }]);
    let schedule = Spec { cron: Some("60".into()), ..spec(1, "a", "calc") };
    assert_eq!(assigned(&world.submit(1, schedule)), [], "it does not run itself");
    let first = assigned(&world.wait(59));
    assert_eq!((first.len(), first[0].attempt), (1, 1), "at the full minute");
    assert_eq!(world.leader.record(first[0].job).expect("it is known").origin, Some(JobId(1)));
    world.step(Input::Ack(Session(9), first[0], Outcome::Succeeded));
    assert_eq!(assigned(&world.wait(59)), []);
    let second = assigned(&world.wait(1));
    assert_ne!(first[0].job, second[0].job);
    world.step(Input::Ack(Session(9), second[0], Outcome::Succeeded));
    // The leader is away for five minutes: one job is made, and then it goes on as before.
    world.now = world.now.after(Duration::from_secs(300));
    world.restart(limits());
    world.client(1, "a", 9);
    let late = assigned(&world.worker(11, "x", 9));
    assert_eq!(late.len(), 1, "{late:?}");
    world.step(Input::Ack(Session(11), late[0], Outcome::Succeeded));
    assert_eq!(assigned(&world.wait(59)), []);
    let last = assigned(&world.wait(1));
    // The schedule is remembered as long as a job of it is, as they share a request.
    world.step(Input::Cancel(Session(1), JobId(1)));
    for _ in 0..30 {
        world.wait(10);
        world.step(Input::Renew(Session(11), last[0]));
    }
    world.step(Input::Ack(Session(11), last[0], Outcome::Succeeded));
    assert!(!world.wait(301).contains(&Effect::Forget(JobId(1))), "a job of it is known");
    assert!(world.wait(300).contains(&Effect::Forget(last[0].job)));
    world.wait(600);
    assert!(world.saved.is_empty(), "in the end all is forgotten");
}

#[test]
fn a_schedule_leaves_out_a_job_while_the_one_before_is_not_ended() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    let unique = Some("u".into());
    world.submit(1, Spec { cron: Some("10".into()), unique, ..spec(1, "a", "calc") });
    let first = assigned(&world.wait(9));
    assert_eq!(first.len(), 1);
    world.step(Input::Renew(Session(9), first[0]));
    assert_eq!(assigned(&world.wait(10)), []);
    world.step(Input::Ack(Session(9), first[0], Outcome::Succeeded));
    assert_eq!(assigned(&world.wait(10)).len(), 1);
}

#[test]
fn an_id_reads_back_and_other_texts_are_refused() {
    let id = JobId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    assert_eq!(id.to_string(), "01234567-89ab-cdef-0123-456789abcdef");
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_eq!("0123456789ABCDEF0123456789abcdef".parse(), Ok(id));
    for text in [
        "",
        "1",
        "01234567-89ab-cdef-0123-456789abcde",
        "0123456-789ab-cdef-0123-456789abcdef",
        "+123456789abcdef0123456789abcdef0",
        "zz234567-89ab-cdef-0123-456789abcdef",
    ] {
        assert!(text.parse::<JobId>().is_err(), "{text}");
    }
}

/// Clients, workers and crashes in random order, and what they see, beside the leader.
struct Chaos {
    world: World,
    dice: u64,
    /// Tokens by worker, as the workers know them.
    at_work: BTreeMap<u64, BTreeSet<Token>>,
    /// The connection of each worker; its number grows with each connection.
    connections: BTreeMap<u64, Session>,
    clients: BTreeMap<u64, Session>,
    given: BTreeSet<Token>,
    accepted: BTreeSet<JobId>,
    results: BTreeMap<JobId, u32>,
    next_session: u64,
    next_job: u128,
}

const WORKERS: u64 = 4;
const CLIENTS: u64 = 3;
/// The worker that has no connection between its requests.
const VISITOR: u64 = 100;

impl Chaos {
    fn new(seed: u64) -> Self {
        Self {
            world: World::new(limits()),
            dice: seed,
            at_work: BTreeMap::new(),
            connections: BTreeMap::new(),
            clients: BTreeMap::new(),
            given: BTreeSet::new(),
            accepted: BTreeSet::new(),
            results: BTreeMap::new(),
            next_session: 1,
            next_job: 1,
        }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = splitmix(self.dice);
        self.dice % sides
    }

    fn session(&mut self) -> Session {
        self.next_session += 1;
        Session(self.next_session)
    }

    fn step(&mut self, input: Input) {
        let effects = self.world.step(input);
        for effect in effects {
            match effect {
                Effect::Assign { session, token } => {
                    assert!(self.given.insert(token), "a token is given once: {token:?}");
                    let here = |(_, each): &(&u64, &Session)| **each == session;
                    let worker = *self.connections.iter().find(here).expect("it is connected").0;
                    self.at_work.entry(worker).or_default().insert(token);
                }
                Effect::Stale { session, token } | Effect::Taken { session, token } => {
                    let here = |(_, each): &(&u64, &Session)| **each == session;
                    if let Some((worker, _)) = self.connections.iter().find(here) {
                        self.at_work.entry(*worker).or_default().remove(&token);
                    }
                }
                Effect::Submitted { job, known: false, .. } => {
                    self.accepted.insert(job);
                }
                Effect::Save(job) => {
                    // A schedule makes jobs that were not submitted.
                    let record = self.world.leader.record(job);
                    if record.is_some_and(|record| record.origin.is_some()) {
                        self.accepted.insert(job);
                    }
                }
                Effect::Result { job, .. } => *self.results.entry(job).or_default() += 1,
                Effect::Close { session, .. } => {
                    self.connections.retain(|_, each| *each != session);
                }
                _ => {}
            }
        }
    }

    fn connect_worker(&mut self, worker: u64) {
        let session = self.session();
        self.connections.insert(worker, session);
        let running: Vec<Token> =
            self.at_work.get(&worker).into_iter().flatten().copied().collect();
        let text = ["job.assign.*", "job.assign.x", "job.>", "job.assign.y"][worker as usize];
        let pattern = Pattern::parse(text).expect("a pattern");
        // Two of them have the same name.
        let name = format!("w{}", worker / 2).into();
        let worker = WorkerId { name, origin: format!("{worker}").into() };
        self.step(Input::Worker { session, worker, pattern, running });
        self.step(Input::Credit(session, 3));
    }

    fn connect_client(&mut self, client: u64) {
        let session = self.session();
        self.clients.insert(client, session);
        let (name, cap) = (format!("c{client}").into(), 1 + client as u32 * 2);
        self.step(Input::Client { session, name, cap, weight: 1 });
    }

    fn submit(&mut self) {
        let client = self.roll(CLIENTS);
        let Some(session) = self.clients.get(&client).copied() else {
            return self.connect_client(client);
        };
        let exec = ["x", "y", "z"][self.roll(3) as usize];
        let mut job = spec(self.next_job, &format!("c{client}"), exec);
        if self.roll(4) == 0 {
            // A resend, or a dependency.
            let other = 1 + u128::from(self.roll(self.next_job as u64));
            match self.roll(2) {
                0 => job.after = vec![JobId(other)],
                _ => job = spec(other, &format!("c{client}"), exec),
            }
        }
        if self.roll(4) == 0 {
            job.key = Some(format!("k{}", self.roll(2)).into());
        }
        if self.roll(8) == 0 {
            job.unique = Some(format!("u{}", self.roll(3)).into());
        }
        if self.roll(6) == 0 {
            job.not_before = self.world.now.after(Duration::from_secs(self.roll(60)));
        }
        if self.roll(40) == 0 && job.after.is_empty() {
            job.cron = Some(format!("{}", 5 + self.roll(60)).into());
        }
        job.priority = self.roll(10) as u8;
        self.next_job = self.next_job.max(job.id.0 + 1);
        self.step(Input::Submit(session, Arc::new(job)));
    }

    fn work(&mut self) {
        let worker = self.roll(WORKERS);
        let Some(session) = self.connections.get(&worker).copied() else {
            return self.connect_worker(worker);
        };
        let tokens: Vec<Token> = self.at_work.get(&worker).into_iter().flatten().copied().collect();
        if tokens.is_empty() {
            return self.step(Input::Credit(session, 1));
        }
        let token = tokens[self.roll(tokens.len() as u64) as usize];
        let input = match self.roll(9) {
            8 => Input::Ack(session, token, Outcome::Returned),
            0 | 1 => Input::Renew(session, token),
            2 => Input::Ack(session, token, Outcome::Failed { again: true }),
            3 => Input::Ack(session, token, Outcome::Failed { again: false }),
            4 => Input::Ack(session, token, Outcome::NotStarted),
            _ => Input::Ack(session, token, Outcome::Succeeded),
        };
        self.step(input);
    }

    /// A worker without a connection asks for a job, and waits for it or not.
    fn visit(&mut self) {
        let session = self.session();
        self.connections.insert(VISITOR, session);
        let pattern = Some(Pattern::parse("job.assign.*").expect("a pattern"));
        self.step(Input::Visit { session, worker: "visitor".into(), pattern });
        let before = self.given.len();
        self.step(Input::Credit(session, 1));
        let effects = self.world.step(Input::Withdraw(session));
        let unspent = 1 - (self.given.len() - before) as u32;
        assert_eq!(effects, [Effect::Withdrawn { session, unspent }]);
        self.connections.remove(&VISITOR);
        self.step(Input::Gone(session));
    }

    /// It speaks of an attempt, by a request of its own.
    fn speak(&mut self) {
        let tokens: Vec<Token> =
            self.at_work.get(&VISITOR).into_iter().flatten().copied().collect();
        if tokens.is_empty() {
            return;
        }
        let token = tokens[self.roll(tokens.len() as u64) as usize];
        let session = self.session();
        self.connections.insert(VISITOR, session);
        self.step(Input::Visit { session, worker: "visitor".into(), pattern: None });
        match self.roll(4) {
            0 => self.step(Input::Renew(session, token)),
            1 => {
                self.step(Input::GiveBack(session, token));
                self.at_work.entry(VISITOR).or_default().remove(&token);
            }
            _ => self.step(Input::Ack(session, token, Outcome::Succeeded)),
        }
        self.connections.remove(&VISITOR);
        self.step(Input::Gone(session));
    }

    fn act(&mut self) {
        match self.roll(26) {
            0..=7 => self.submit(),
            24 => self.visit(),
            25 => self.speak(),
            8..=15 => self.work(),
            16 => {
                let worker = self.roll(WORKERS);
                self.connect_worker(worker);
            }
            17 => {
                let client = self.roll(CLIENTS);
                self.connect_client(client);
            }
            18 => {
                let worker = self.roll(WORKERS);
                if let Some(session) = self.connections.remove(&worker) {
                    self.step(Input::Gone(session));
                }
                // Half of them are killed, with all they were at.
                if self.roll(2) == 0 {
                    self.at_work.remove(&worker);
                }
            }
            19 => {
                let client = self.roll(CLIENTS);
                if let Some(session) = self.clients.remove(&client) {
                    self.step(Input::Gone(session));
                }
            }
            20 => {
                let job = JobId(1 + u128::from(self.roll(self.next_job as u64)));
                let input = match self.roll(4) {
                    0 => Input::Retry(Session(1), job),
                    1 => Input::Watch(Session(1), job),
                    2 => Input::Forget(Session(1), job),
                    _ => Input::Cancel(Session(1), job),
                };
                self.step(input);
            }
            21 => {
                self.connections.clear();
                self.clients.clear();
                self.world.restart(limits());
            }
            _ => {
                let ms = [1, 500, 3_000, 20_000][self.roll(4) as usize];
                self.world.now = self.world.now.after(Duration::from_millis(ms));
                self.step(Input::Tick);
            }
        }
    }

    /// All workers are back and do what they are told: every job ends.
    fn settle(&mut self) {
        (0..WORKERS).for_each(|worker| self.connect_worker(worker));
        (0..CLIENTS).for_each(|client| self.connect_client(client));
        let schedules: Vec<JobId> = self.world.leader.jobs().collect();
        for job in schedules {
            let record = self.world.leader.record(job).expect("it is known");
            if record.spec.cron.is_some() {
                self.step(Input::Cancel(Session(1), job));
            }
        }
        for round in 0.. {
            let counts = self.world.leader.counts();
            if counts.waiting + counts.ready + counts.running == 0 {
                return;
            }
            assert!(round < 10_000, "jobs are left that never end: {counts:?}");
            for worker in 0..WORKERS {
                let session = self.connections[&worker];
                let tokens: Vec<Token> =
                    self.at_work.get(&worker).into_iter().flatten().copied().collect();
                for token in tokens {
                    self.step(Input::Ack(session, token, Outcome::Succeeded));
                    self.step(Input::Credit(session, 1));
                }
            }
            self.world.now = self.world.now.after(Duration::from_secs(1));
            self.step(Input::Tick);
        }
    }
}

#[test]
fn e5_a_worker_without_a_connection_has_credit_only_while_it_waits() {
    let mut world = World::new(limits());
    world.step(Input::Observer(Session(1)));
    let pattern = || Some(Pattern::parse("job.assign.*").expect("a pattern"));
    let visit = |session, pattern| Input::Visit { session, worker: "v".into(), pattern };
    world.step(visit(Session(2), pattern()));
    world.step(Input::Credit(Session(2), 2));
    let none = world.step(Input::Withdraw(Session(2)));
    assert_eq!(none, [Effect::Withdrawn { session: Session(2), unspent: 2 }]);
    world.step(Input::Gone(Session(2)));
    assert_eq!(assigned(&world.submit(1, spec(1, "a", "calc"))), []);
    // A newer request takes the place of one that still waits.
    world.step(visit(Session(3), pattern()));
    let replaced = world.step(visit(Session(4), pattern()));
    assert_eq!(replaced, [Effect::Close { session: Session(3), why: Closing::Replaced }]);
    assert_eq!(assigned(&world.step(Input::Credit(Session(4), 1))), [token(1, 1)]);
    // It never got there: nothing is counted, and the next attempt is another one.
    world.step(Input::GiveBack(Session(4), token(1, 1)));
    assert_eq!(assigned(&world.step(Input::Credit(Session(4), 1))), [token(1, 2)]);
    world.step(Input::Gone(Session(4)));
    let record = world.leader.record(JobId(1)).expect("it is known");
    assert_eq!((record.failures, record.deaths), (0, 0));
    // Its lease goes on without a connection, as long as it is extended, and can be ended.
    for session in 5..10 {
        world.wait(10);
        let session = Session(session);
        world.step(visit(session, None));
        let renewed = world.step(Input::Renew(session, token(1, 2)));
        assert_eq!(renewed, [Effect::Renewed { session, token: token(1, 2) }]);
        world.step(Input::Gone(session));
    }
    let session = Session(20);
    world.step(visit(session, None));
    let stale = world.step(Input::Ack(session, token(1, 1), Outcome::Succeeded));
    assert_eq!(stale, [Effect::Stale { session, token: token(1, 1) }]);
    let done = world.step(Input::Ack(session, token(1, 2), Outcome::Succeeded));
    assert!(done.contains(&Effect::Taken { session, token: token(1, 2) }), "{done:?}");
    assert!(done.contains(&Effect::Result { session: Session(1), job: JobId(1) }));
    world.step(Input::Gone(session));
    assert_eq!(world.leader.workers().count(), 0, "nothing is left of it");
}

#[test]
fn lists_are_newest_first_by_state_and_go_on_where_they_stopped() {
    let mut world = World::new(limits());
    world.client(1, "a", 2);
    world.client(2, "b", 2);
    for id in 1..=6_u128 {
        let (session, client) = if id % 2 == 0 { (2, "b") } else { (1, "a") };
        world.submit(session, spec(100 - id, client, if id < 5 { "x" } else { "y" }));
    }
    world.worker(9, "w", 2);
    let ids = |found: &Found| found.jobs.iter().map(|job| 100 - job.0).collect::<Vec<_>>();
    let all = Filter::default();
    let first = world.leader.find(&all, u64::MAX, 4);
    assert_eq!(ids(&first), [6, 5, 4, 3]);
    let rest = world.leader.find(&all, first.next.expect("there is more"), 4);
    assert_eq!((ids(&rest), rest.next), (vec![2, 1], None));
    let of_b = Filter { client: Some("b".into()), exec: Some("x".into()), ..Filter::default() };
    assert_eq!(ids(&world.leader.find(&of_b, u64::MAX, 9)), [4, 2]);
    let count = |world: &World, state| {
        let filter = Filter { state: Some(state), ..Filter::default() };
        world.leader.find(&filter, u64::MAX, 9).jobs.len()
    };
    assert_eq!((count(&world, State::Running), count(&world, State::Ready)), (2, 4));
    let ready = Filter { state: Some(State::Ready), ..Filter::default() };
    let ready = world.leader.find(&ready, u64::MAX, 2).jobs;
    world.step(Input::Cancel(Session(1), ready[0]));
    assert_eq!((count(&world, State::Cancelled), count(&world, State::Dead)), (1, 0));
    // An ended job can be forgotten at once, and no other.
    let (session, job) = (Session(1), ready[1]);
    let why = Refusal::NotEnded;
    assert_eq!(world.step(Input::Forget(session, job)), [Effect::Refused { session, job, why }]);
    let job = ready[0];
    let gone = world.step(Input::Forget(session, job));
    assert_eq!(gone, [Effect::Forget(job), Effect::Done { session, job }]);
    assert_eq!(count(&world, State::Cancelled), 0);
    let views: Vec<_> = world.leader.clients().map(|each| (each.in_flight, each.open)).collect();
    assert_eq!(views.iter().map(|(_, open)| open).sum::<usize>(), 5);
    let worker = world.leader.workers().next().expect("it is connected");
    assert_eq!((worker.running, worker.credit, worker.connected), (2, 0, true));
}

#[test]
fn e5_no_order_of_events_loses_a_job_or_runs_two_attempts_at_once() {
    for seed in 0..60 {
        let mut chaos = Chaos::new(seed);
        (0..CLIENTS).for_each(|client| chaos.connect_client(client));
        (0..2).for_each(|worker| chaos.connect_worker(worker));
        for _ in 0..600 {
            chaos.act();
        }
        chaos.settle();
        let known: BTreeSet<JobId> = chaos.world.leader.jobs().collect();
        for job in &known {
            let stage = chaos.world.leader.record(*job).expect("it is known").stage;
            assert!(matches!(stage, Stage::Ended { .. }), "seed {seed}: {job} ended");
        }
        // What was forgotten had ended before.
        assert!(known.is_subset(&chaos.accepted), "seed {seed}");
        assert!(!chaos.given.is_empty() && !chaos.results.is_empty(), "seed {seed}: it did work");
        let later = chaos.world.wait(700);
        let expected = |effect: &Effect| matches!(effect, Effect::Forget(_) | Effect::Save(_));
        assert!(later.iter().all(expected), "seed {seed}");
        // A schedule is forgotten one time later than what it made.
        chaos.world.wait(700);
        assert!(chaos.world.saved.is_empty(), "seed {seed}: nothing is left behind");
        assert_eq!(chaos.world.leader.counts(), Default::default());
    }
}
