//! Golden scripts: stories about the machines, as commands and the trace they give.
//!
//! Each file in `tests/scripts` is one story. Lines that begin with `#` tell what it shows;
//! lines that begin with `>` are commands; what follows a command, up to a blank line, is
//! what the machine answered, then after `=` where it stands. `UPDATE_SCRIPTS=1 cargo test`
//! writes the traces again: read the difference before you keep it.

mod machines;

use std::path::PathBuf;
use std::{env, fs};

use machines::Machine;

/// Runs a story and tells it again, with the traces of now.
fn told(story: &str) -> String {
    let mut machine: Option<Machine> = None;
    let mut out = String::new();
    for line in story.lines() {
        if line.starts_with('#') {
            out.push_str(&format!("{line}\n"));
        } else if let Some(command) = line.strip_prefix("> ") {
            let gap = if out.is_empty() { "" } else { "\n" };
            out.push_str(&format!("{gap}> {command}\n"));
            if let Some(new) = command.strip_prefix("new ") {
                machine = Some(Machine::new(new));
            } else {
                let machine = machine.as_mut().expect("a story begins with new");
                out.push_str(&machine.run(command));
            }
        }
    }
    out
}

fn scripts() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("there is a folder of scripts")
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    paths.sort();
    paths
}

#[test]
fn every_story_goes_as_it_is_told() {
    let update = env::var_os("UPDATE_SCRIPTS").is_some();
    let mut wrong = Vec::new();
    for path in scripts() {
        let story = fs::read_to_string(&path).unwrap();
        let now = told(&story);
        if update {
            fs::write(&path, &now).unwrap();
        } else if now != story {
            wrong.push(format!("{}\n--- told\n{story}\n--- goes\n{now}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn there_are_stories_about_every_machine() {
    for machine in [
        "topic",
        "cursor",
        "batcher",
        "sweep",
        "subscriber",
        "link",
        "group",
        "fence",
        "leader",
        "cluster",
    ] {
        let told = scripts()
            .iter()
            .any(|path| fs::read_to_string(path).unwrap().contains(&format!("> new {machine}")));
        assert!(told, "no story about {machine}");
    }
}
