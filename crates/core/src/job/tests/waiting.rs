//! Jobs and schedules that wait for other jobs, and whose turn it is.

use super::*;

fn after(id: u128, after: &[u128]) -> Spec {
    Spec { after: after.iter().map(|id| JobId(*id)).collect(), ..spec(id, "a", "calc") }
}

fn end_of(world: &World, job: u128) -> Option<End> {
    match world.leader.record(JobId(job))?.stage {
        Stage::Ended { how, .. } => Some(how),
        _ => None,
    }
}

#[test]
fn a_job_that_waits_for_two_that_fail_together_ends_once() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.submit(1, after(1, &[]));
    world.submit(1, after(2, &[1]));
    world.submit(1, after(3, &[1, 2]));
    let ended = world.step(Input::Cancel(Session(1), JobId(1)));
    let saves = ended.iter().filter(|effect| **effect == Effect::Save(JobId(3))).count();
    assert_eq!(saves, 1, "{ended:?}");
    assert_eq!(end_of(&world, 2), Some(End::Dependency));
    assert_eq!(end_of(&world, 3), Some(End::Dependency));
    // The client goes on as before.
    assert_eq!(world.submit(1, after(4, &[])).len(), 2);
}

#[test]
fn a_schedule_ends_with_the_job_that_it_waits_for() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    world.submit(1, after(1, &[]));
    let schedule = Spec { cron: Some("5".into()), ..after(2, &[1]) };
    world.submit(1, schedule);
    // Its jobs wait as long as the first one runs.
    assert_eq!(assigned(&world.wait(5)), []);
    let failed = Outcome::Failed { again: false };
    world.step(Input::Ack(Session(9), token(1, 1), failed));
    assert_eq!(end_of(&world, 2), Some(End::Dependency));
    assert_eq!(world.leader.counts().ended, 3, "the schedule, its job, and what they waited for");
    world.step(Input::Forget(Session(1), JobId(1)));
    assert_eq!(assigned(&world.wait(60)), []);
}

#[test]
fn a_later_job_under_the_id_of_a_forgotten_one_is_not_waited_for() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    world.submit(1, after(1, &[]));
    world.step(Input::Ack(Session(9), token(1, 1), Outcome::Succeeded));
    let second = Spec { attempts_max: 3, ..after(2, &[1]) };
    assert_eq!(assigned(&world.submit(1, second)), [token(2, 1)]);
    world.step(Input::Forget(Session(1), JobId(1)));
    let again = Spec { not_before: Timestamp(u64::MAX / 2), ..after(1, &[]) };
    world.submit(1, again);
    world.step(Input::Ack(Session(9), token(2, 1), Outcome::Failed { again: true }));
    assert_eq!(assigned(&world.wait(1)), [token(2, 2)]);
    world.step(Input::Ack(Session(9), token(2, 2), Outcome::Failed { again: true }));
    world.step(Input::Cancel(Session(1), JobId(1)));
    assert_eq!(assigned(&world.wait(1)), [token(2, 3)], "it succeeded once");
}

#[test]
fn a_job_of_a_schedule_waits_for_what_its_schedule_named() {
    let mut world = World::new(limits());
    world.client(1, "a", 9);
    world.worker(9, "w", 9);
    world.submit(1, after(1, &[]));
    world.step(Input::Ack(Session(9), token(1, 1), Outcome::Succeeded));
    world.submit(1, Spec { cron: Some("5".into()), ..after(2, &[1]) });
    world.step(Input::Forget(Session(1), JobId(1)));
    world.submit(1, Spec { not_before: Timestamp(u64::MAX / 2), ..after(1, &[]) });
    assert_eq!(assigned(&world.wait(5)).len(), 1, "the later job under the id is another one");
}

/// Two executables share a worker, and a third has one of its own that is served in between.
#[test]
fn e5_an_executable_gets_its_turn_whatever_others_are_served_in_between() {
    let mut world = World::new(limits());
    world.client(1, "a", 1_000);
    for id in 0..40 {
        world.submit(1, spec(100 + id, "a", "first"));
        world.submit(1, spec(200 + id, "a", "second"));
        world.submit(1, spec(300 + id, "a", "third"));
    }
    for (session, execs) in [(8, "third"), (9, "first"), (10, "second")] {
        let pattern = match execs {
            "third" => "job.assign.third",
            _ => "job.assign.*",
        };
        let pattern = Pattern::parse(pattern).expect("a pattern");
        let worker = execs.into();
        world.step(Input::Worker { session: Session(session), worker, pattern, running: vec![] });
    }
    let mut served: BTreeMap<u128, u32> = BTreeMap::new();
    for _ in 0..12 {
        assert_eq!(assigned(&world.step(Input::Credit(Session(8), 1))).len(), 1);
        for token in assigned(&world.step(Input::Credit(Session(9), 1))) {
            *served.entry(token.job.0 / 100).or_default() += 1;
        }
    }
    assert!(served[&1] >= 5 && served[&2] >= 5, "{served:?}");
}

/// What a client used of one executable does not hold it up at another.
#[test]
fn e5_a_new_client_is_not_held_up_by_what_others_use_elsewhere() {
    let mut world = World::new(limits());
    for (session, name) in [(1, "slow"), (2, "fast"), (3, "new")] {
        world.client(session, name, 100);
    }
    for id in 0..50 {
        world.submit(1, spec(100 + id, "slow", "one"));
        world.submit(2, spec(200 + id, "fast", "many"));
    }
    for (session, exec, credit) in [(8, "one", 1), (9, "many", 50)] {
        let pattern = Pattern::parse(&format!("job.assign.{exec}")).expect("a pattern");
        let worker = exec.into();
        let running = vec![];
        world.step(Input::Worker { session: Session(session), worker, pattern, running });
        world.step(Input::Credit(Session(session), credit));
    }
    let all: Vec<JobId> = world.leader.jobs().collect();
    world.now = world.now.after(Duration::from_secs(10));
    for job in all.into_iter().filter(|job| job.0 >= 200) {
        let number = world.leader.record(job).expect("it is known").number;
        let token = Token { job, number, attempt: 1 };
        world.step(Input::Ack(Session(9), token, Outcome::Succeeded));
    }
    // The fast one has used 500 s of its executable; the slow one 10 s of the other.
    for id in 0..5 {
        world.submit(3, spec(300 + id, "new", "one"));
    }
    let mut running = Token { job: JobId(100), number: 1, attempt: 1 };
    let mut of_new = 0;
    for _ in 0..8 {
        world.now = world.now.after(Duration::from_secs(10));
        world.step(Input::Ack(Session(8), running, Outcome::Succeeded));
        running = assigned(&world.step(Input::Credit(Session(8), 1)))[0];
        of_new += u32::from(running.job.0 >= 300);
    }
    assert!(of_new >= 3, "{of_new} of 8");
}
