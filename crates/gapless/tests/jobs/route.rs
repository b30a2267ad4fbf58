//! Leaders that pass jobs on: a client needs one connection, and either leader may die.

use crate::support::json;

use super::*;

/// A leader with data of its own, and the routes that are given.
fn leader(place: &Place, data: &str, port: &str, routes: &str) -> (Running, String) {
    let routes = format!("jobs.routes={routes}");
    let words = ["leader", port, "--data", data, "--set", &routes, "--json"];
    let mut leader = place.start(&[&words[..], &["--set", "jobs.lease_ms=3000"]].concat());
    let address = leader.first_line()["native"].as_str().expect("an address").to_owned();
    (leader, address)
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').expect("a port").1
}

fn submitted(place: &Place, address: &str, words: &[&str]) -> Value {
    json(&place.submit(address, &[words, &["--json"]].concat()).output())
}

const ID: &str = "01234567-89ab-cdef-0123-456789abcdef";

#[test]
fn e10_a_leader_passes_on_what_another_leads_and_waits_while_that_is_away() {
    let place = Place::new();
    place.exec("here", "echo here");
    place.exec("there", "echo there $1");
    let (mut there, leads) = leader(&place, "there", "0", "");
    let (_here, address) = leader(&place, "here", "0", &format!("there={leads}"));
    let _workers = [&address, &leads].map(|leader| place.worker(leader));
    assert_eq!(submitted(&place, &address, &["here"])["Stdout"], "here\n");
    let passed = submitted(&place, &address, &["there", "x", "--id", ID]);
    assert_eq!(passed["Stdout"], "there x\n");
    // It is kept where it ran; the same id has the same result from both.
    let asked = submitted(&place, &leads, &["there", "x", "--id", ID]);
    assert_eq!((&asked["Attempt"], &asked["Epoch"]), (&1.into(), &passed["Epoch"]));
    let wrong = place.submit(&address, &["there", "y", "--id", ID]).output();
    assert_eq!(wrong.status.code(), Some(5), "{}", text(&wrong.stderr));
    // While the other is away, what is for it waits, and the rest goes on.
    there.kill();
    let waiting = place.submit(&address, &["there", "later", "--json"]);
    assert_eq!(submitted(&place, &address, &["here"])["Stdout"], "here\n");
    let shown = place.run(&["job", "show", ID, "--leader", &address]);
    let why = text(&shown.stderr);
    assert!(!shown.status.success() && why.contains("cannot be reached"), "{why}");
    let (_there, _) = leader(&place, "there", port(&leads), "");
    assert_eq!(json(&waiting.output())["Stdout"], "there later\n");
}

#[test]
fn e10_a_passed_on_job_outlives_both_leaders_and_runs_once() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (mut there, leads) = leader(&place, "there", "0", "");
    let routes = format!("slow={leads}");
    let (mut here, address) = leader(&place, "here", "0", &routes);
    let _worker = place.worker(&leads);
    let job = place.submit(&address, &["slow", "well", "--json"]);
    wait_until("it runs", || lines(&ran) == 1);
    here.kill();
    let (_here, _) = leader(&place, "here", port(&address), &routes);
    there.kill();
    let (_there, _) = leader(&place, "there", port(&leads), "");
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    assert_eq!((&result["Stdout"], &result["Attempt"]), (&"done well\n".into(), &1.into()));
    assert_eq!(lines(&ran), 1, "it ran once");
}

#[test]
fn e10_a_passed_on_job_is_shown_followed_and_cancelled_by_the_leader_that_passed_it_on() {
    let place = Place::new();
    place.exec("talk", "echo one; while :; do sleep 0.05; done");
    let (_there, leads) = leader(&place, "there", "0", "");
    let (_here, address) = leader(&place, "here", "0", &format!("talk={leads}"));
    let _worker = place.worker(&leads);
    let ask = |words: &[&str]| place.run(&[words, &["--leader", &address]].concat());
    let detached = ask(&["job", "submit", "talk", "--detach"]);
    let id = text(&detached.stdout).trim().to_owned();
    let log = || text(&ask(&["job", "logs", &id]).stdout);
    wait_until("it writes", || log() == "one\n");
    let shown = ask(&["job", "show", &id, "--json"]);
    assert!(text(&shown.stdout).contains("running"), "{}", text(&shown.stdout));
    assert!(ask(&["job", "cancel", &id]).status.success());
    // Another one is waited for by one connection and cancelled by another.
    let waiting = place.submit(&address, &["talk", "--id", ID, "--json"]);
    let runs = || text(&ask(&["job", "show", ID, "--json"]).stdout).contains("running");
    wait_until("it runs", runs);
    assert!(ask(&["job", "cancel", ID]).status.success());
    assert_eq!(json(&waiting.output())["Status"], "CANCELLED");
}

#[test]
fn e10_leaders_that_name_each_other_make_no_circle_and_known_jobs_stay() {
    let place = Place::new();
    place.exec("echo", "echo $1");
    let (mut one, first) = leader(&place, "one", "0", "");
    let (_two, second) = leader(&place, "two", "0", &format!("*={first}"));
    let worker = place.worker(&first);
    assert_eq!(submitted(&place, &first, &["echo", "x", "--id", ID])["Stdout"], "x\n");
    drop(worker);
    one.kill();
    let (_one, _) = leader(&place, "one", port(&first), &format!("*={second}"));
    // What it has done before is answered from here, though others lead it now.
    assert_eq!(submitted(&place, &first, &["echo", "x", "--id", ID])["Stdout"], "x\n");
    let _worker = place.worker(&second);
    assert_eq!(submitted(&place, &first, &["echo", "y"])["Stdout"], "y\n");
}
