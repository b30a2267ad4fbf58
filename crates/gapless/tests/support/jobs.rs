//! Leader, workers and clients as processes of the real program, for tests of jobs.
//!
//! Use it as `#[path = "support/jobs.rs"] mod support;`.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Nothing here takes longer on a machine that is not stuck.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// A process that is ended when this goes out of scope.
pub struct Running(pub Child);

impl Running {
    /// Ends it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Its first line, as JSON.
    pub fn first_line(&mut self) -> Value {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("stdout is a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// What a process prints until it ends, read while it runs: it may be much.
    pub fn reading(child: Child) -> Output {
        let mut running = Self(child);
        let (out, err) = (running.0.stdout.take(), running.0.stderr.take());
        fn all(from: Option<impl std::io::Read>) -> Vec<u8> {
            let mut bytes = Vec::new();
            from.expect("a pipe").read_to_end(&mut bytes).expect("it can be read");
            bytes
        }
        let reading = std::thread::spawn(move || all(err));
        let stdout = all(out);
        let stderr = reading.join().expect("no panic");
        Output { status: running.0.wait().expect("our child"), stdout, stderr }
    }

    /// What it printed, when it has ended by itself.
    pub fn output(mut self) -> Output {
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

pub fn wait_until(what: &str, is: impl FnMut() -> bool) {
    let (until, mut is) = (Instant::now() + DEADLINE, is);
    while !is() {
        assert!(Instant::now() < until, "{what}: not in time");
        std::thread::yield_now();
    }
}

/// A folder with executables, data and what workers need.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("gl").tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("exec")).expect("a folder");
        Self(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn exec(&self, name: &str, script: &str) {
        let path = self.path("exec").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// An executable that notes its start in `ran` and ends when `gate` is there.
    pub fn gated(&self, name: &str) -> (PathBuf, PathBuf) {
        let (ran, gate) = (self.path("ran"), self.path("gate"));
        let script = format!(
            "echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done; echo done $1",
            ran.display(),
            gate.display()
        );
        self.exec(name, &script);
        (ran, gate)
    }

    pub fn command(&self, words: &[&str]) -> Command {
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

    pub fn start(&self, words: &[&str]) -> Running {
        let mut command = self.command(words);
        command.stderr(Stdio::inherit());
        Running(command.spawn().expect("the program starts"))
    }

    /// Starts a leader; the second is its address.
    pub fn leader(&self, port: &str) -> (Running, String) {
        self.leader_with(port, 3000)
    }

    /// The same with another lease.
    pub fn leader_with(&self, port: &str, lease_ms: u64) -> (Running, String) {
        let set = &format!("jobs.lease_ms={lease_ms}");
        let mut leader = self.start(&["leader", port, "--data", "data", "--set", set, "--json"]);
        let ready = leader.first_line();
        assert_eq!((&ready["jobs"], &ready["http"]), (&Value::Bool(true), &Value::Null));
        let address = ready["native"].as_str().expect("an address").to_owned();
        (leader, address)
    }

    pub fn worker(&self, leader: &str) -> Running {
        // The programs of most tests note what they do in files beside them.
        self.worker_with(leader, &["--allow", "."])
    }

    pub fn worker_with(&self, leader: &str, words: &[&str]) -> Running {
        let usual = ["worker", "--leader", leader, "--json"];
        let mut worker = self.start(&[&usual[..], words].concat());
        assert_eq!(worker.first_line()["event"], "working");
        worker
    }

    pub fn submit(&self, leader: &str, words: &[&str]) -> Running {
        let mut command = self.command(&["job", "submit", "--leader", leader]);
        Running(command.args(words).spawn().expect("the program starts"))
    }

    pub fn run(&self, words: &[&str]) -> Output {
        Running::reading(self.command(words).spawn().expect("the program starts"))
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&done.stdout), text(&done.stderr));
    })
}

pub fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}
