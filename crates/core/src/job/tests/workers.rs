//! Workers of the same name, workers that are stuck, and workers that end.

use super::*;

fn came(world: &mut World, session: u64, origin: &str, running: Vec<Token>) -> Vec<Effect> {
    let worker = WorkerId { name: "w".into(), origin: origin.into() };
    let pattern = Pattern::parse("job.assign.*").expect("a pattern");
    world.step(Input::Worker { session: Session(session), worker, pattern, running })
}

#[test]
fn e5_another_worker_of_the_same_name_takes_nothing_from_the_first() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    came(&mut world, 8, "alice", vec![]);
    world.step(Input::Credit(Session(8), 2));
    world.submit(1, spec(1, "a", "calc"));
    // It names the attempt as if it were its own.
    let other = came(&mut world, 9, "mallory", vec![token(1, 1)]);
    assert_eq!(other, [Effect::Stale { session: Session(9), token: token(1, 1) }]);
    let ack = Input::Ack(Session(9), token(1, 1), Outcome::Succeeded);
    assert_eq!(world.step(ack), [Effect::Stale { session: Session(9), token: token(1, 1) }]);
    // The first still has its job and its credit, also when the leader was restarted.
    assert_eq!(assigned(&world.submit(1, spec(2, "a", "calc"))), [token(2, 1)]);
    world.restart(limits());
    came(&mut world, 18, "mallory", vec![]);
    let back = came(&mut world, 19, "alice", vec![token(1, 1), token(2, 1)]);
    let renewed = |job| Effect::Renewed { session: Session(19), token: token(job, 1) };
    assert_eq!(back, [renewed(1), renewed(2)]);
    let names: Vec<Arc<str>> = world.leader.workers().map(|worker| worker.name).collect();
    assert_eq!(names, ["w".into(), "w".into()]);
    // A newer connection of the same worker takes its place.
    let newer = came(&mut world, 20, "alice", vec![token(1, 1), token(2, 1)]);
    let closed = Effect::Close { session: Session(19), why: Closing::Replaced };
    assert!(newer.contains(&closed), "{newer:?}");
}

#[test]
fn e5_a_connected_worker_that_lets_a_lease_run_out_gets_nothing_until_it_is_heard_of() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    came(&mut world, 8, "", vec![]);
    world.step(Input::Credit(Session(8), 9));
    assert_eq!(assigned(&world.submit(1, spec(1, "a", "calc"))), [token(1, 1)]);
    let lost = world.wait(60);
    assert!(lost.contains(&Effect::Stale { session: Session(8), token: token(1, 1) }));
    assert_eq!(assigned(&lost), [], "it has credit, but would not run it");
    assert_eq!(assigned(&world.wait(60)), []);
    let heard = world.step(Input::Heard(Session(8)));
    assert_eq!(assigned(&heard), [token(1, 2)], "it is back, with the credit that it had");
}

#[test]
fn e10_what_a_worker_gives_back_runs_elsewhere_at_once_and_is_not_counted() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    came(&mut world, 8, "ends", vec![]);
    world.step(Input::Credit(Session(8), 9));
    world.submit(1, spec(1, "a", "calc"));
    world.submit(1, spec(2, "a", "calc"));
    world.step(Input::Cancel(Session(1), JobId(2)));
    let back = |job| Input::Ack(Session(8), token(job, 1), Outcome::Returned);
    let returned = world.step(back(1));
    assert!(returned.contains(&Effect::Taken { session: Session(8), token: token(1, 1) }));
    assert_eq!(assigned(&returned), [], "what is left of its credit is void");
    let record = world.leader.record(JobId(1)).expect("it is known");
    assert_eq!((record.failures, record.deaths), (0, 0));
    assert_eq!(world.leader.state(JobId(1)), Some(State::Ready));
    world.step(back(2));
    assert_eq!(world.leader.state(JobId(2)), Some(State::Cancelled));
    came(&mut world, 9, "stays", vec![]);
    assert_eq!(assigned(&world.step(Input::Credit(Session(9), 1))), [token(1, 2)]);
}

#[test]
fn e5_a_late_hello_of_a_connection_that_was_given_up_loses_no_attempt() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    // The worker gave its first connection up before the leader heard of it, and got a job on the next.
    came(&mut world, 9, "", vec![]);
    world.step(Input::Credit(Session(9), 1));
    assert_eq!(assigned(&world.submit(1, spec(1, "a", "calc"))), [token(1, 1)]);
    came(&mut world, 8, "", vec![]);
    came(&mut world, 19, "other", vec![]);
    assert_eq!(assigned(&world.step(Input::Credit(Session(19), 1))), [], "it still runs");
    world.step(Input::Gone(Session(8)));
    // It is told that its connection was replaced, and comes back with what it runs.
    let back = came(&mut world, 10, "", vec![token(1, 1)]);
    assert_eq!(back, [Effect::Renewed { session: Session(10), token: token(1, 1) }]);
    world.step(Input::Heard(Session(10)));
    let ack = world.step(Input::Ack(Session(10), token(1, 1), Outcome::Succeeded));
    assert!(ack.contains(&Effect::Taken { session: Session(10), token: token(1, 1) }));
}

#[test]
fn e5_what_a_worker_did_not_name_is_lost_with_its_lease_if_it_never_speaks() {
    let mut world = World::new(limits());
    world.client(1, "a", 4);
    came(&mut world, 8, "", vec![]);
    world.step(Input::Credit(Session(8), 1));
    world.submit(1, spec(1, "a", "calc"));
    came(&mut world, 9, "", vec![]);
    came(&mut world, 19, "other", vec![]);
    world.step(Input::Credit(Session(19), 1));
    assert_eq!(assigned(&world.wait(10)), []);
    let mut later = assigned(&world.wait(60));
    later.extend(assigned(&world.wait(60)));
    assert_eq!(later, [token(1, 2)]);
}
