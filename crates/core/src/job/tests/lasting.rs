//! What holds over restarts of the leader, and for ids that are used again.

use super::*;

#[test]
fn an_id_that_is_used_again_has_tokens_of_its_own_also_after_a_restart() {
    let mut world = World::new(limits());
    let mut last = Vec::new();
    for round in 0..4 {
        let at = 10 * (round + 1);
        world.client(at, "a", 4);
        world.worker(at + 1, "w", 1);
        let new = assigned(&world.submit(at, spec(7, "a", "calc")));
        let [new] = new[..] else { panic!("one attempt: {new:?}") };
        assert_eq!((new.job, new.attempt), (JobId(7), 1));
        assert!(!last.contains(&new), "{new:?} was given before");
        let session = Session(at + 1);
        for old in last.iter().copied() {
            let late = world.step(Input::Ack(session, old, Outcome::Succeeded));
            assert_eq!(late, [Effect::Stale { session, token: old }]);
            let late = world.step(Input::Renew(session, old));
            assert_eq!(late, [Effect::Stale { session, token: old }]);
        }
        let good = world.step(Input::Ack(session, new, Outcome::Succeeded));
        assert!(good.contains(&Effect::Taken { session, token: new }));
        world.step(Input::Forget(Session(at), JobId(7)));
        last.push(new);
        if round % 2 == 0 {
            world.restart(limits());
        }
    }
}

#[test]
fn the_cap_of_a_client_holds_after_a_restart_and_for_jobs_that_are_tried_again() {
    let mut world = World::new(limits());
    world.client(1, "a", 2);
    for id in 1..=5 {
        world.submit(1, spec(id, "a", "calc"));
    }
    assert_eq!(assigned(&world.worker(9, "w", 1)).len(), 1);
    world.restart(limits());
    // The client is not back, and one of its jobs runs still.
    assert_eq!(assigned(&world.worker(10, "v", 9)).len(), 1);
    world.step(Input::Gone(Session(10)));
    world.client(2, "b", 1);
    let mut left: Vec<u128> = Vec::new();
    for id in 11..=13 {
        world.submit(2, spec(id, "b", "other"));
        world.step(Input::Cancel(Session(2), JobId(id)));
        left.push(id);
    }
    world.step(Input::Gone(Session(2)));
    world.restart(limits());
    world.step(Input::Observer(Session(3)));
    for id in left {
        world.step(Input::Retry(Session(3), JobId(id)));
    }
    let other = Pattern::parse("job.assign.other").expect("a pattern");
    let (session, worker) = (Session(12), "u".into());
    world.step(Input::Worker { session, worker, pattern: other, running: Vec::new() });
    assert_eq!(assigned(&world.step(Input::Credit(session, 9))).len(), 1);
}

#[test]
fn what_is_asked_of_a_job_when_it_is_due_to_be_forgotten_is_answered() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    world.worker(9, "w", 9);
    world.submit(1, spec(1, "a", "calc"));
    world.step(Input::Ack(Session(9), token(1, 1), Outcome::Succeeded));
    world.now = world.now.after(Duration::from_secs(600));
    // It is a new job then; no result is promised of one that is gone.
    let again = world.submit(1, spec(1, "a", "calc"));
    assert_eq!(again[0], Effect::Forget(JobId(1)));
    let (session, job) = (Session(1), JobId(1));
    assert!(again.contains(&Effect::Submitted { session, job, known: false }), "{again:?}");
    assert!(!again.contains(&Effect::Result { session, job }), "{again:?}");
}

#[test]
fn a_schedule_that_is_submitted_when_it_is_due_to_be_forgotten_is_a_new_one() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    world.worker(9, "w", 9);
    let schedule = Spec { cron: Some("5".into()), ..spec(1, "a", "calc") };
    world.submit(1, schedule.clone());
    let made = assigned(&world.wait(5))[0];
    world.step(Input::Ack(Session(9), made, Outcome::Succeeded));
    world.now = world.now.after(Duration::from_secs(1));
    world.step(Input::Cancel(Session(1), JobId(1)));
    // Its job is forgotten in the same step, and so is it: there is no result to promise.
    world.now = world.now.after(Duration::from_secs(600));
    let again = world.submit(1, schedule);
    let (session, job) = (Session(1), JobId(1));
    assert!(again.contains(&Effect::Forget(job)), "{again:?}");
    assert!(again.contains(&Effect::Submitted { session, job, known: false }), "{again:?}");
    assert!(!again.contains(&Effect::Result { session, job }), "{again:?}");
}
