//! Jobs with the real program: leader, workers and clients as processes, some of them killed.

#[path = "jobs/endings.rs"]
mod endings;
#[path = "jobs/outputs.rs"]
mod outputs;
#[path = "jobs/route.rs"]
mod route;
#[path = "jobs/secure.rs"]
mod secure;
#[path = "support/jobs.rs"]
mod support;
#[path = "jobs/worker.rs"]
mod worker;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use support::{Place, Running, lines, text, wait_until};

const GUIDE: &str = include_str!("../../../docs/jobs.md");

#[test]
fn e1_a_job_gets_a_file_and_the_client_what_it_printed_and_left() {
    let place = Place::new();
    place.exec("count", "wc -l < in.txt; echo \"$1\" >&2; echo made > out.txt; exit ${2:-0}");
    std::fs::write(place.path("in.txt"), "a\nb\n").expect("written");
    let (_leader, address) = place.leader("0");
    let _worker = place.worker(&address);
    let submit = ["count", "$HOME x", "--file", "in.txt", "--out", "out.zip"];
    let done = place.submit(&address, &submit).output();
    assert_eq!((text(&done.stdout).trim(), done.status.code()), ("2", Some(0)));
    assert_eq!(text(&done.stderr), "$HOME x\n", "no shell looked at it");
    let archive = std::fs::read(place.path("out.zip")).expect("the archive");
    assert!(archive.starts_with(b"PK") && text(&archive).contains("out.txt"));
    let failed = place.submit(&address, &["count", "x", "7", "--file", "in.txt", "--json"]);
    let failed = failed.output();
    let result: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
    assert_eq!((&result["Status"], &result["ExitCode"]), (&"FAILED".into(), &7.into()));
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("exit code 7"), "{}", text(&failed.stderr));
    // Refused before anything runs: a name that is a path.
    assert_eq!(place.submit(&address, &["../count"]).output().status.code(), Some(5));
}

#[test]
fn e5_a_job_whose_worker_is_killed_ends_on_another() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (_leader, address) = place.leader("0");
    let mut first = place.worker(&address);
    let job = place.submit(&address, &["slow", "well", "--json"]);
    wait_until("it runs", || lines(&ran) == 1);
    first.kill();
    let _second = place.worker(&address);
    wait_until("it runs again", || lines(&ran) == 2);
    std::fs::write(&gate, "").expect("written");
    let done = job.output();
    let result: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!((&result["Status"], &result["Attempt"]), (&"OK".into(), &2.into()));
    assert_eq!((&result["Stdout"], done.status.code()), (&"done well\n".into(), Some(0)));
}

#[test]
fn e10_jobs_in_flight_outlive_the_leader() {
    // A worker goes on for half of this, longer than any restart takes.
    const LEASE_MS: u64 = 120_000;
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (mut leader, address) = place.leader_with("0", LEASE_MS);
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    let _worker = place.worker(&address);
    let jobs: Vec<Running> = ["1", "2", "3", "4", "5", "6"]
        .map(|number| place.submit(&address, &["slow", number, "--json"]))
        .into();
    wait_until("four run, the cap of the client", || lines(&ran) == 4);
    leader.kill();
    let (_leader, _) = place.leader_with(&port, LEASE_MS);
    std::fs::write(&gate, "").expect("written");
    for (index, job) in jobs.into_iter().enumerate() {
        let done = job.output();
        let result: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        assert_eq!(result["Stdout"], format!("done {}\n", index + 1));
        assert_eq!((&result["Attempt"], done.status.code()), (&1.into(), Some(0)), "{result}");
    }
    assert_eq!(lines(&ran), 6, "each ran once");
}

#[test]
fn e5_a_client_s_cap_holds_for_jobs_that_are_not_waited_for_also_when_the_leader_was_killed() {
    const LEASE_MS: u64 = 120_000;
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    place.exec("well", "echo well");
    let (mut leader, address) = place.leader_with("0", LEASE_MS);
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    let _worker = place.worker(&address);
    for number in ["1", "2", "3"] {
        let words = ["slow", number, "--detach", "--client", "me", "--cap", "1"];
        assert_eq!(place.submit(&address, &words).output().status.code(), Some(0));
    }
    wait_until("one runs", || lines(&ran) >= 1);
    // A later job of another client runs: the worker has room, and the leader has decided.
    let well = |client: &str| {
        let done = place.submit(&address, &["well", "--client", client]).output();
        assert_eq!(text(&done.stdout), "well\n", "{}", text(&done.stderr));
        assert_eq!(lines(&ran), 1, "the cap is 1");
    };
    well("other");
    leader.kill();
    let (_leader, _) = place.leader_with(&port, LEASE_MS);
    well("another");
    std::fs::write(&gate, "").expect("written");
    wait_until("all have run, one after the other", || lines(&ran) == 3);
}

#[test]
fn e10_the_home_of_a_job_is_its_folder_wherever_it_looks_from() {
    let place = Place::new();
    place.exec("home", "cd /; [ \"$HOME\" = \"$TMPDIR\" ] && cd \"$HOME\" && cat in.txt");
    std::fs::write(place.path("in.txt"), "mine\n").expect("written");
    let (_leader, address) = place.leader("0");
    for words in [&[][..], &["--work-dir", "beside"]] {
        let _worker = place.worker_with(&address, words);
        let done = place.submit(&address, &["home", "--file", "in.txt"]).output();
        assert_eq!(text(&done.stdout), "mine\n", "{}", text(&done.stderr));
    }
}

#[test]
fn e8_jobs_of_a_leader_that_is_gone_for_good_end_elsewhere_once_each_whoever_is_killed() {
    const JOBS: usize = 12;
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (mut first, one) = place.leader("0");
    let lease = ["--set", "jobs.lease_ms=3000", "--json"];
    let mut second = place.start(&[&["leader", "0", "--data", "other"][..], &lease].concat());
    let two = second.first_line()["native"].as_str().expect("an address").to_owned();
    let mut doomed = place.worker(&two);
    // Those that stay have room for all, although none ends before the gate opens.
    let roomy = ["--allow", ".", "--parallel", "12"];
    let _workers = [place.worker_with(&one, &roomy), place.worker_with(&two, &roomy)];
    let id = |number: usize| format!("00000000-0000-4000-8000-{number:012}");
    let jobs: Vec<Running> = (0..JOBS)
        .map(|number| {
            let (id, number) = (id(number), number.to_string());
            let words = ["slow", &number, "--json", "--id", &id, "--leader", &two];
            place.submit(&one, &[&words[..], &["--cap", "64", "--timeout", "80s"]].concat())
        })
        .collect();
    wait_until("most run", || lines(&ran) >= JOBS / 2);
    // A leader for good, and a worker of the other.
    first.kill();
    doomed.kill();
    wait_until("all have been started", || lines(&ran) >= JOBS);
    std::fs::write(&gate, "").expect("written");
    let ended = jobs.into_iter().enumerate().map(|(number, job)| {
        let done = job.output();
        let result: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|_| panic!("{}{}", text(&done.stdout), text(&done.stderr)));
        assert_eq!((&result["Status"], &result["JobId"]), (&"OK".into(), &id(number).into()));
        assert_eq!(result["Stdout"], format!("done {number}\n"));
        result["Attempt"].clone()
    });
    let ended: Vec<Value> = ended.collect();
    // All have ended. A client that asks again gets the stored result: nothing runs once more.
    let before = lines(&ran);
    for (number, attempt) in ended.into_iter().enumerate() {
        let (id, number) = (id(number), number.to_string());
        let again = place.submit(&two, &["slow", &number, "--json", "--id", &id]).output();
        let again: Value = serde_json::from_slice(&again.stdout).expect("JSON");
        assert_eq!((&again["Attempt"], lines(&ran)), (&attempt, before));
    }
}

#[test]
fn a_client_without_a_leader_says_so_and_what_to_do() {
    let place = Place::new();
    let (ran, _gate) = place.gated("slow");
    let (mut leader, address) = place.leader("0");
    let _worker = place.worker(&address);
    let job = place.submit(&address, &["slow", "--timeout", "1s"]);
    wait_until("it runs", || lines(&ran) == 1);
    leader.kill();
    let done = job.output();
    assert_eq!(done.status.code(), Some(4), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("--id "), "{}", text(&done.stderr));
    assert_eq!(place.submit(&address, &["slow"]).output().status.code(), Some(4));
}

#[test]
fn a_server_that_leads_no_jobs_takes_none() {
    let place = Place::new();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--http", "", "--json"];
    let mut server = place.start(&[&serve[..], &["--set", "jobs.enabled=false"]].concat());
    let ready = server.first_line();
    assert_eq!(ready["jobs"], false);
    let address = ready["native"].as_str().expect("an address");
    assert_eq!(place.submit(address, &["any"]).output().status.code(), Some(4));
}

#[test]
fn the_short_command_lines_work_as_they_are_written() {
    let place = Place::new();
    place.exec("calcA", "echo $(($1 * 10))");
    let (_one, first) = place.leader("0");
    let mut two = place.start(&["leader", "0", "--json"]);
    let second = two.first_line()["native"].as_str().expect("an address").to_owned();
    assert!(place.path("gapless-leader-0").is_dir(), "the usual folder of a leader");
    let (host, port) = first.rsplit_once(':').expect("a port");
    let mut worker = place.start(&["worker", host, port, "job.assign.*", "--json"]);
    assert_eq!(worker.first_line()["pattern"], "job.assign.*");
    let _other = place.worker(&second);
    for words in [
        vec!["client", host, port, "clientA", "8"],
        vec!["clientx", "clientA", &first, &second, "12"],
    ] {
        let done = place.run(&words);
        let told = text(&done.stdout);
        assert_eq!(done.status.code(), Some(0), "{told}{}", text(&done.stderr));
        assert!(["10", "20", "30"].iter().all(|each| told.contains(each)), "{told}");
        assert_eq!(told.matches("ended OK").count(), 3, "{told}");
    }
    let mut busy = place.command(&["worker", host, port]);
    let busy = busy.env("WORKER_CPU_CAP", "0.99").output().expect("it runs");
    assert_eq!(busy.status.code(), Some(2), "{}", text(&busy.stderr));
}

#[test]
fn every_command_of_the_guide_works_as_it_is_written() {
    let place = Place::new();
    let blocks = GUIDE.split("```sh\n").skip(1);
    let steps: String = blocks.map(|block| block.split("```").next().unwrap_or_default()).collect();
    for step in ["gapless serve", "gapless worker", "gapless job submit", "dlq rm", "--batch"] {
        assert!(steps.contains(step), "the guide has no {step}");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path = std::env::var("PATH").expect("there is a PATH");
    let folder = program.parent().expect("a folder").display();
    // The guide uses the usual port, which may be taken here.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = format!("127.0.0.1:{}", port.expect("a port").port());
    let page = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let page = format!("127.0.0.1:{}", page.expect("a port").port());
    let steps = steps.replace("127.0.0.1:4281", &address).replace("127.0.0.1:4280", &page);
    let mut bash = Command::new("bash");
    bash.args(["-e", "-u", "-c", &format!("trap 'kill %1 %2; wait' EXIT\n{steps}")]);
    bash.current_dir(place.0.path()).env("PATH", format!("{folder}:{path}"));
    bash.env("GAPLESS_NATIVE_LISTEN", &address).env("GAPLESS_HTTP_LISTEN", &page);
    bash.env("GAPLESS_WAIT", "60s").env("WORKER_MAX_PAR", "64").stdin(Stdio::null());
    let done = bash.output().expect("bash starts");
    let told = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{told}");
    assert!(told.contains("5 words") && told.contains("ended FAILED"), "{told}");
    assert!(place.path("out.zip").exists(), "{told}");
}
