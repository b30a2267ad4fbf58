//! Workers, runners and leaders that are killed, stopped for a while or told to end.

use rustix::process::{Pid, Signal};

use super::worker::{lives, started, stubborn};
use super::*;
use crate::support::json;

fn signal(process: &Running, signal: Signal) {
    let pid = Pid::from_raw(process.0.id().cast_signed()).expect("a number");
    rustix::process::kill_process(pid, signal).expect("our child");
}

/// The runners of a worker: its only children.
fn runners(worker: &Running) -> Vec<Pid> {
    let id = worker.0.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let of_all = std::fs::read_dir(format!("/proc/{id}/task")).expect("it lives").flatten();
    let mut all = children.unwrap_or_default();
    for task in of_all {
        all += &std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    }
    let mut pids: Vec<i32> = all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

#[test]
fn e6_a_job_whose_runner_is_killed_is_gone_with_all_it_started_and_runs_again() {
    let place = Place::new();
    let pids = stubborn(&place);
    let (_leader, worker, address) = started(&place, &["--allow", "."]);
    let pids_of = || std::fs::read_to_string(&pids).unwrap_or_default();
    let words = ["stubborn", "--json", "--retry-wait", "1ms", "--attempts", "9"];
    let job = place.submit(&address, &words);
    wait_until("both of it run", || lines(&pids) == 2);
    let first: Vec<String> = pids_of().lines().map(str::to_owned).collect();
    assert!(first.iter().all(|pid| lives(pid)));
    let [runner] = runners(&worker)[..] else { panic!("one runs") };
    rustix::process::kill_process(runner, Signal::KILL).expect("it lives");
    wait_until("it runs again", || lines(&pids) == 4);
    assert!(!first.iter().any(|pid| lives(pid)), "nothing of the first attempt lives then");
    // A runner that hangs is killed with its job when that is cancelled.
    let [runner] = runners(&worker)[..] else { panic!("another one runs") };
    rustix::process::kill_process(runner, Signal::STOP).expect("it lives");
    let listed = place.run(&["job", "ls", "--leader", &address, "--json"]);
    let listed: Value =
        serde_json::from_str(text(&listed.stdout).lines().next().expect("a job")).expect("JSON");
    let id = listed["JobId"].as_str().or(listed["job_id"].as_str()).expect("an id").to_owned();
    let cancelled = place.run(&["job", "cancel", &id, "--leader", &address]);
    assert!(cancelled.status.success(), "{}", text(&cancelled.stderr));
    assert_eq!(json(&job.output())["Status"], "CANCELLED");
    assert!(!pids_of().lines().any(lives), "nothing of it lives when its end is known");
    let left = std::fs::read_dir(place.path("gapless-worker-0")).expect("its folder").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(&id)), "{left:?}");
}

#[test]
fn e6_what_a_killed_worker_and_its_killed_runner_left_is_swept_away_by_the_next_worker() {
    let place = Place::new();
    let pids = place.path("pids");
    // One of the two has the mark of the job in its environment, one is in its folder.
    let hidden = "env -i setsid sh -c 'echo $$ >> {}; exec sleep 600' > /dev/null 2>&1 &";
    let script = format!("{hidden}\necho $$ >> {{}}; exec sleep 600");
    place.exec("left", &script.replace("{}", &pids.display().to_string()));
    let (_leader, mut worker, address) = started(&place, &["--allow", "."]);
    let _job = place.submit(&address, &["left", "--attempts", "1"]);
    wait_until("both of it run", || lines(&pids) == 2);
    let [runner] = runners(&worker)[..] else { panic!("one runs") };
    // So that it cannot see that its worker is gone.
    rustix::process::kill_process(runner, Signal::STOP).expect("it lives");
    worker.kill();
    rustix::process::kill_process(runner, Signal::KILL).expect("it lives");
    let before = std::fs::read_to_string(&pids).expect("they wrote them");
    assert!(before.lines().all(lives), "nothing was there to kill them");
    let _next = place.worker(&address);
    wait_until("they are swept away", || !before.lines().any(lives));
}

#[test]
fn e5_a_stopped_worker_loses_its_job_before_another_has_it_and_its_late_result_is_refused() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    // It notes its end even if that is by a signal that it gets.
    let pids = place.path("pids");
    place.exec(
        "mine",
        &format!("echo $$ >> {}; exec {}/slow $1", pids.display(), place.path("exec").display()),
    );
    let (_leader, address) = place.leader("0");
    let frozen = place.worker(&address);
    let job = place.submit(&address, &["mine", "well", "--json"]);
    wait_until("it runs", || lines(&ran) == 1);
    signal(&frozen, Signal::STOP);
    let first = std::fs::read_to_string(&pids).expect("it wrote it");
    let other = place.worker(&address);
    wait_until("it runs elsewhere", || lines(&ran) == 2);
    assert!(!lives(first.trim()), "its runner has stopped it: no two run at a time");
    // Nothing more goes to the stopped one, though it is connected and has credit.
    let second = place.submit(&address, &["mine", "too", "--json"]);
    wait_until("the second runs", || lines(&ran) == 3);
    signal(&frozen, Signal::CONT);
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    assert_eq!((&result["Status"], &result["Attempt"]), (&"OK".into(), &2.into()), "{result}");
    assert_eq!(json(&second.output())["Attempt"], 1);
    // It is of use again.
    drop(other);
    let third = json(&place.submit(&address, &["mine", "again", "--json"]).output());
    assert_eq!(third["Stdout"], "done again\n", "{third}");
    drop(frozen);
}

#[test]
fn e5_jobs_of_a_stopped_leader_stop_before_it_can_give_them_to_others() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let pids = place.path("pids");
    place.exec(
        "mine",
        &format!("echo $$ >> {}; exec {}/slow $1", pids.display(), place.path("exec").display()),
    );
    let (leader, address) = place.leader("0");
    let _worker = place.worker(&address);
    let job = place.submit(&address, &["mine", "well", "--json", "--timeout", "80s"]);
    wait_until("it runs", || lines(&ran) == 1);
    let first = std::fs::read_to_string(&pids).expect("it wrote it");
    // The connection stays open, and takes what the worker writes.
    signal(&leader, Signal::STOP);
    wait_until("it is stopped, since nothing is heard of the leader", || !lives(first.trim()));
    assert_eq!(lines(&ran), 1);
    signal(&leader, Signal::CONT);
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    assert_eq!((&result["Status"], lines(&ran)), (&"OK".into(), 2), "{result}");
}

#[test]
fn e10_a_worker_that_is_told_to_end_gives_its_jobs_back_at_once() {
    // Nothing here waits for this.
    const LEASE_MS: u64 = 600_000;
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (_leader, address) = place.leader_with("0", LEASE_MS);
    let mut ends = place.worker(&address);
    // A job that may not fail or lose a worker even once.
    let words = ["slow", "well", "--json", "--attempts", "1"];
    let job = place.submit(&address, &words);
    wait_until("it runs", || lines(&ran) == 1);
    let _other = place.worker(&address);
    signal(&ends, Signal::TERM);
    wait_until("it runs elsewhere", || lines(&ran) == 2);
    wait_until("the worker has ended", || ends.0.try_wait().expect("our child").is_some());
    assert!(ends.0.wait().expect("our child").success());
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    assert_eq!((&result["Status"], &result["Attempt"]), (&"OK".into(), &2.into()), "{result}");
}

#[test]
fn e10_a_worker_that_drains_ends_its_jobs_and_takes_no_others() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (_leader, address) = place.leader_with("0", 600_000);
    let mut ends = place.worker_with(&address, &["--allow", ".", "--drain", "10m"]);
    let job = place.submit(&address, &["slow", "well", "--json"]);
    wait_until("it runs", || lines(&ran) == 1);
    signal(&ends, Signal::TERM);
    // Until it has seen the signal it may take one more, which it gives back.
    place.exec("quick", "echo quick");
    let _other = place.worker(&address);
    let quick = json(&place.submit(&address, &["quick", "--json"]).output());
    assert_eq!(quick["Status"], "OK", "{quick}");
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    assert_eq!((&result["Status"], &result["Attempt"]), (&"OK".into(), &1.into()), "{result}");
    wait_until("the worker has ended", || ends.0.try_wait().expect("our child").is_some());
}

#[test]
fn e5_workers_of_the_same_name_do_not_disturb_each_other() {
    const LEASE_MS: u64 = 600_000;
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (_leader, address) = place.leader_with("0", LEASE_MS);
    let named = ["--allow", ".", "--id", "w"];
    let _first = place.worker_with(&address, &named);
    let job = place.submit(&address, &["slow", "well", "--json"]);
    wait_until("it runs", || lines(&ran) == 1);
    let mut second = place.worker_with(&address, &named);
    let shown = || {
        let shown = place.run(&["job", "ls", "--leader", &address, "--json"]);
        text(&shown.stdout)
    };
    let more = place.submit(&address, &["slow", "too", "--json"]);
    wait_until("the next one runs", || lines(&ran) == 2);
    second.kill();
    assert!(shown().contains("running"), "{}", shown());
    std::fs::write(&gate, "").expect("written");
    let result = json(&job.output());
    assert_eq!((&result["Status"], &result["Attempt"]), (&"OK".into(), &1.into()), "{result}");
    drop(more);
}

#[test]
fn e10_a_worker_that_is_told_to_end_while_its_leader_is_away_ends() {
    let place = Place::new();
    let (mut leader, address) = place.leader("0");
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    let mut ends = place.worker(&address);
    place.exec("quick", "echo quick");
    assert_eq!(text(&place.submit(&address, &["quick"]).output().stdout), "quick\n");
    leader.kill();
    signal(&ends, Signal::TERM);
    let (_leader, _) = place.leader(&port);
    wait_until("the worker has ended", || ends.0.try_wait().expect("our child").is_some());
}
