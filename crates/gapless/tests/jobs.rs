//! Jobs with the real program: leader, workers and clients as processes, some of them killed.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

#[path = "jobs/worker.rs"]
mod worker;

/// Nothing here takes longer on a machine that is not stuck.
const DEADLINE: Duration = Duration::from_secs(90);
const GUIDE: &str = include_str!("../../../docs/jobs.md");

/// A process that is ended when this goes out of scope.
struct Running(Child);

impl Running {
    /// Ends it at once, as `kill -9` does.
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Its first line, as JSON.
    fn first_line(&mut self) -> Value {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("stdout is a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// What it printed, when it has ended by itself.
    fn output(mut self) -> Output {
        wait_until("it ends", || self.0.try_wait().expect("our child").is_some());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let read = |from: Option<&mut dyn std::io::Read>, into: &mut Vec<u8>| {
            from.map(|from| from.read_to_end(into).expect("it can be read"));
        };
        read(self.0.stdout.as_mut().map(|out| out as _), &mut stdout);
        read(self.0.stderr.as_mut().map(|err| err as _), &mut stderr);
        Output { status: self.0.wait().expect("our child"), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn wait_until(what: &str, is: impl FnMut() -> bool) {
    let (until, mut is) = (Instant::now() + DEADLINE, is);
    while !is() {
        assert!(Instant::now() < until, "{what}: not in time");
        std::thread::yield_now();
    }
}

/// A folder with executables, data and what workers need.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("exec")).expect("a folder");
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn exec(&self, name: &str, script: &str) {
        let path = self.path("exec").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// An executable that notes its start in `ran` and ends when `gate` is there.
    fn gated(&self, name: &str) -> (PathBuf, PathBuf) {
        let (ran, gate) = (self.path("ran"), self.path("gate"));
        let script = format!(
            "echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done; echo done $1",
            ran.display(),
            gate.display()
        );
        self.exec(name, &script);
        (ran, gate)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GAPLESS_") {
                command.env_remove(name);
            }
        }
        // On a busy machine a worker gives no credit back: what it has at first is enough here.
        command.env_remove("CLIENT_DESIRED_PAR").env("WORKER_MAX_PAR", "64");
        command.env_remove("WORKER_CPU_CAP").current_dir(self.0.path()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, words: &[&str]) -> Running {
        let mut command = self.command(words);
        command.stderr(Stdio::inherit());
        Running(command.spawn().expect("the program starts"))
    }

    /// Starts a leader; the second is its address.
    fn leader(&self, port: &str) -> (Running, String) {
        let set = "jobs.lease_ms=3000";
        let mut leader = self.start(&["leader", port, "--data", "data", "--set", set, "--json"]);
        let ready = leader.first_line();
        assert_eq!((&ready["jobs"], &ready["http"]), (&Value::Bool(true), &Value::Null));
        let address = ready["native"].as_str().expect("an address").to_owned();
        (leader, address)
    }

    fn worker(&self, leader: &str) -> Running {
        // The programs of most tests note what they do in files beside them.
        self.worker_with(leader, &["--allow", "."])
    }

    fn worker_with(&self, leader: &str, words: &[&str]) -> Running {
        let usual = ["worker", "--leader", leader, "--json"];
        let mut worker = self.start(&[&usual[..], words].concat());
        assert_eq!(worker.first_line()["event"], "working");
        worker
    }

    fn submit(&self, leader: &str, words: &[&str]) -> Running {
        let mut command = self.command(&["job", "submit", "--leader", leader]);
        Running(command.args(words).spawn().expect("the program starts"))
    }

    fn run(&self, words: &[&str]) -> Output {
        Running(self.command(words).spawn().expect("the program starts")).output()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&done.stdout), text(&done.stderr));
    })
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

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
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (mut leader, address) = place.leader("0");
    let port = address.rsplit_once(':').expect("a port").1.to_owned();
    let _worker = place.worker(&address);
    let jobs: Vec<Running> = ["1", "2", "3", "4", "5", "6"]
        .map(|number| place.submit(&address, &["slow", number, "--json"]))
        .into();
    wait_until("four run, the cap of the client", || lines(&ran) == 4);
    leader.kill();
    let (_leader, _) = place.leader(&port);
    std::fs::write(&gate, "").expect("written");
    for (index, job) in jobs.into_iter().enumerate() {
        let done = job.output();
        let result: Value = serde_json::from_slice(&done.stdout).expect("JSON");
        assert_eq!(result["Stdout"], format!("done {}\n", index + 1));
        assert_eq!((&result["Attempt"], done.status.code()), (&1.into(), Some(0)));
    }
    assert_eq!(lines(&ran), 6, "each ran once");
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
fn the_five_minutes_of_the_guide_work_as_they_are_written() {
    let place = Place::new();
    let section = GUIDE.split("## Five minutes").nth(1).expect("the guide has this section");
    let section = section.split("\n## ").next().unwrap_or(section);
    let blocks = section.split("```sh\n").skip(1);
    let steps: String = blocks.map(|block| block.split("```").next().unwrap_or_default()).collect();
    for step in ["gapless serve", "gapless worker", "gapless job submit", "--file", "--out"] {
        assert!(steps.contains(step), "the guide has no {step}");
    }
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path = std::env::var("PATH").expect("there is a PATH");
    let folder = program.parent().expect("a folder").display();
    // The guide uses the usual port, which may be taken here.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let address = format!("127.0.0.1:{}", port.expect("a port").port());
    let steps = steps.replace("127.0.0.1:4281", &address);
    let mut bash = Command::new("bash");
    bash.args(["-e", "-u", "-c", &format!("trap 'kill %1 %2; wait' EXIT\n{steps}")]);
    bash.current_dir(place.0.path()).env("PATH", format!("{folder}:{path}"));
    bash.env("GAPLESS_NATIVE_LISTEN", &address).env("GAPLESS_HTTP_LISTEN", "");
    bash.env("GAPLESS_WAIT", "60s").env("WORKER_MAX_PAR", "64").stdin(Stdio::null());
    let done = bash.output().expect("bash starts");
    let told = text(&done.stdout) + &text(&done.stderr);
    assert!(done.status.success(), "{told}");
    assert!(told.contains("5 words") && told.contains("ended FAILED"), "{told}");
    assert!(place.path("out.zip").exists(), "{told}");
}
