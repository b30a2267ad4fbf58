//! Looking at jobs and managing them with the real program: lists, logs, cancel, retry, dead jobs,
//! and thousands at once from stdin.

#[path = "support/jobs.rs"]
mod support;

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;

use support::{Place, Running, lines, text, wait_until};

/// A leader with its address, to which commands are given.
struct Led<'a> {
    place: &'a Place,
    leader: &'a str,
}

impl Led<'_> {
    fn job(&self, words: &[&str]) -> Output {
        let leader = ["--leader", self.leader];
        self.place.run(&[&["job"][..], words, &leader[..]].concat())
    }

    /// What a command printed as lines of JSON; it must end well.
    fn json(&self, words: &[&str]) -> Vec<Value> {
        let done = self.job(&[words, &["--json"][..]].concat());
        assert_eq!(done.status.code(), Some(0), "{words:?}: {}", text(&done.stderr));
        let printed = text(&done.stdout);
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn code(&self, words: &[&str]) -> Option<i32> {
        self.job(words).status.code()
    }

    fn state(&self, id: &str) -> String {
        self.json(&["show", id])[0]["State"].as_str().expect("a state").to_owned()
    }

    fn detached(&self, words: &[&str]) -> String {
        let submitted = self.json(&[&["submit", "--detach"][..], words].concat());
        submitted[0]["JobId"].as_str().expect("an id").to_owned()
    }

    /// Submits what is written to stdin.
    fn batch(&self, words: &[&str], input: &str) -> Output {
        let words = [&["job", "submit", "--leader", self.leader][..], words].concat();
        let mut command = self.place.command(&words);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_owned();
        let writing = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let done = Running::reading(child);
        writing.join().expect("no panic").expect("it reads its input");
        done
    }
}

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

#[test]
fn e5_jobs_are_listed_shown_cancelled_and_retried() {
    let place = Place::new();
    let (ran, gate) = place.gated("slow");
    let (_leader, address) = place.leader("0");
    let led = Led { place: &place, leader: &address };
    assert!(led.json(&["ls"]).is_empty());
    let first = led.detached(&["slow", "one", "--client", "a"]);
    let second = led.detached(&["slow", "two", "--client", "b", "--priority", "9"]);
    assert_eq!((led.state(&first), led.state(&second)), ("ready".into(), "ready".into()));
    // Newest first, and by what is asked for.
    let ids = |words: &[&str]| -> Vec<String> {
        let listed = led.json(words);
        listed.iter().map(|job| job["JobId"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(&["ls"]), [second.as_str(), first.as_str()]);
    assert_eq!(ids(&["ls", "--client", "a", "--exec", "slow"]), [first.as_str()]);
    assert_eq!(ids(&["ls", "--state", "ready", "-n", "1"]), [second.as_str()]);
    assert!(ids(&["ls", "--exec", "other"]).is_empty());
    let table = text(&led.job(&["ls"]).stdout);
    assert!(table.contains("STATE") && table.contains(&first), "{table}");
    // What waits is cancelled at once, and can be tried again.
    assert_eq!(led.code(&["cancel", &second]), Some(0));
    assert_eq!((led.state(&second), led.code(&["cancel", &second])), ("cancelled".into(), Some(5)));
    assert_eq!(led.code(&["retry", &second]), Some(0));
    assert_eq!(led.state(&second), "ready");
    // What runs is cancelled when its worker has stopped it.
    let _worker = place.worker(&address);
    wait_until("both run", || lines(&ran) == 2);
    let shown = &led.json(&["show", &first])[0];
    assert_eq!((&shown["State"], &shown["Args"][0]), (&"running".into(), &"one".into()));
    assert!(shown["WorkerId"].is_string() && shown["StartedMs"].is_u64(), "{shown}");
    assert_eq!(led.code(&["cancel", &first]), Some(0));
    wait_until("it stops", || led.state(&first) == "cancelled");
    std::fs::write(&gate, "").expect("written");
    wait_until("the other one ends", || led.state(&second) == "succeeded");
    let shown = text(&led.job(&["show", &second]).stdout);
    assert!(shown.contains("done two") && shown.contains("arguments"), "{shown}");
    assert_eq!(text(&led.job(&["logs", &second]).stdout), "done two\n");
    assert_eq!(text(&led.job(&["logs", &second, "--follow"]).stdout), "done two\n");
    assert_eq!(led.code(&["retry", &second]), Some(5), "it succeeded");
    for words in [["show", UNKNOWN], ["cancel", UNKNOWN], ["retry", UNKNOWN], ["logs", UNKNOWN]] {
        assert_eq!(led.code(&words), Some(6), "{words:?}");
    }
}

#[test]
fn e5_dead_jobs_are_listed_tried_again_and_removed() {
    let place = Place::new();
    let (_leader, address) = place.leader("0");
    let led = Led { place: &place, leader: &address };
    // A request that may fail once, and a worker that does not have the executable.
    let request = r#"{"exec": "lost", "attempts_max": 1, "client": "me"}"#;
    let done = led.batch(&["--batch", "json", "--detach"], &format!("{request}\n{request}\n"));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let _worker = place.worker(&address);
    let dead = |led: &Led<'_>| led.json(&["dlq", "ls", "--client", "me"]).len();
    wait_until("both are dead", || dead(&led) == 2);
    let row = text(&led.job(&["dlq", "ls"]).stdout);
    assert!(row.contains("too many failures"), "{row}");
    let id = led.json(&["dlq", "ls"])[0]["JobId"].as_str().expect("an id").to_owned();
    // One is there now.
    place.exec("lost", "echo found");
    assert_eq!(led.code(&["dlq", "retry", &id]), Some(0));
    wait_until("it is done", || led.state(&id) == "succeeded");
    assert_eq!(led.code(&["dlq", "retry", &id]), Some(5), "it is not dead");
    assert_eq!(led.code(&["dlq", "rm", "--all"]), Some(2), "it would ask");
    assert_eq!(led.json(&["dlq", "rm", "--all", "--exec", "lost", "--yes"])[0]["Removed"], 1);
    assert_eq!(dead(&led), 0);
    assert_eq!(led.json(&["ls"]).len(), 1, "the other one is remembered");
    assert_eq!(led.code(&["dlq", "rm"]), Some(2));
}

#[test]
fn e9_thousands_of_jobs_are_submitted_batch() {
    const COUNT: usize = 2_000;
    let place = Place::new();
    place.exec("double", "echo $(($1 * 2))");
    let (_leader, address) = place.leader("0");
    let led = Led { place: &place, leader: &address };
    let numbers: String = (1..=COUNT).map(|number| format!("{number}\n")).collect();
    let done = led.batch(&["double", "--batch", "lines", "--detach"], &numbers);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let ids: std::collections::BTreeSet<String> =
        text(&done.stdout).lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), COUNT);
    // Over several pages of the list.
    let listed = led.json(&["ls", "--all", "--state", "ready"]);
    assert_eq!(listed.len(), COUNT);
    assert!(listed.iter().all(|job| ids.contains(job["JobId"].as_str().expect("an id"))));
}

#[test]
fn e9_results_of_stdin_are_printed_and_a_failure_is_told() {
    let place = Place::new();
    place.exec("double", "[ $1 = bad ] && exit 3; echo $(($1 * 2))");
    let (_leader, address) = place.leader("0");
    let led = Led { place: &place, leader: &address };
    let _worker = place.worker(&address);
    let done = led.batch(&["double", "--batch", "lines", "--cap", "16"], "1\n2\n\n3\n");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let mut printed: Vec<String> = text(&done.stdout).lines().map(str::to_owned).collect();
    printed.sort();
    assert_eq!(printed, ["2", "4", "6"]);
    let jobs = "{\"args\": [\"4\"]}\n{\"exec\": \"double\", \"args\": [\"bad\"]}\n";
    let done = led.batch(&["double", "--batch", "json", "--json"], jobs);
    assert_eq!(done.status.code(), Some(1));
    let results: Vec<Value> =
        text(&done.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(results.len(), 2);
    assert!(text(&done.stderr).contains("1 of 2"), "{}", text(&done.stderr));
    let wrong = led.batch(&["--batch", "json"], "{\"exec\": \"double\", \"argz\": []}\nx\n");
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    assert!(text(&wrong.stderr).contains("line 2"), "{}", text(&wrong.stderr));
}
