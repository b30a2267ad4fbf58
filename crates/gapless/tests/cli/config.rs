//! `gapless config`, `gapless completions`, help, and words that are none.

use std::fs;

use crate::support::{alone, gapless, run};

#[test]
fn what_is_in_force_tells_where_it_came_from() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gapless.toml"), "data = 'f'\n[native]\ndrain_ms = 7\n").unwrap();
    let mut command = gapless();
    command.current_dir(folder.path()).env("GAPLESS_NATIVE_LISTEN", "1.2.3.4:5");
    command.args(["config", "--set", "durability=written", "--data", "flag"]);
    let ran = run(&mut command, None).ok();
    let line = |key: &str| ran.out.iter().find(|line| line.starts_with(key)).unwrap().clone();
    assert!(line("data = \"flag\"").contains("# flag;"), "{ran:#?}");
    assert!(line("native.drain_ms = 7").contains("# file gapless.toml;"), "{ran:#?}");
    assert!(line("native.listen = \"1.2.3.4:5\"").contains("environment GAPLESS_NATIVE_LISTEN"));
    assert!(line("durability = \"written\"").contains("# flag;"));
    assert!(line("journal.tail_bytes").contains("# default;"));
    // What is printed is a file that says the same.
    let again = folder.path().join("again.toml");
    fs::write(&again, ran.out.join("\n")).unwrap();
    let ran = run(gapless().args(["config", "--json", "--config"]).arg(&again), None).ok();
    let json: serde_json::Value = serde_json::from_str(&ran.out.join("\n")).unwrap();
    assert_eq!(json["native.listen"]["value"], "1.2.3.4:5");
    assert_eq!(json["native.drain_ms"]["value"], 7);
    assert!(json["native.listen"]["source"].as_str().unwrap().starts_with("file "));
    alone(&["config", "native.drain_ms"]).ok().prints(&["5000"]);
}

#[test]
fn an_unknown_key_is_an_error_with_a_suggestion() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.toml");
    let with = |text: &str| {
        fs::write(&file, text).unwrap();
        run(gapless().args(["serve", "--config"]).arg(&file), None).exits(2)
    };
    with("[native]\nlisen = 'x'\n").says("did you mean `native.listen`?");
    with("data = ").says("x.toml:1: not valid TOML");
    with("data = 'x'\n\ndurability = written\n").says("x.toml:3: not valid TOML");
    with("data = ['x']\n").says("a key has one value");
    with("[native]\ndrain_ms = 'soon'\n").says("use a whole number").says("x.toml");
    with("durability = 'rock'\n").says("memory, written or flushed");
    alone(&["config", "--set", "zebra=1"]).exits(2).says("`gapless config` lists all keys");
    alone(&["config", "--set", "data"]).exits(2).says("key=value");
    alone(&["config", "dat"]).exits(2).says("did you mean `data`?");
    alone(&["config", "--config", "/nowhere"]).exits(2).says("cannot read /nowhere");
    let ran = run(gapless().arg("config").env("GAPLESS_NATIVE_LISTN", "x"), None);
    ran.exits(2).says("did you mean `native.listen`?");
}

#[test]
fn every_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = alone(&["completions", shell]).ok();
        let script = ran.out.join("\n");
        assert!(script.contains("retention-age"), "{shell}");
        if ["bash", "zsh", "fish"].contains(&shell) {
            for word in ["flushed", "keyed", "continue", "trace"] {
                assert!(script.contains(word), "{shell} does not complete {word}");
            }
        }
    }
    alone(&["completions", "telepathy"]).exits(2).says("bash");
}

#[test]
fn help_teaches_and_wrong_words_are_exit_2() {
    alone(&["--help"]).ok().shows("Exit codes:").shows("gapless pub orders.created");
    alone(&["-h"]).ok().shows("First steps:");
    alone(&["help", "sub"]).ok().shows("Places to begin:");
    alone(&["--version"]).ok().shows("gapless ");
    alone(&["topics"]).exits(2).says("topic");
    alone(&["frobnicate"]).exits(2);
    alone(&["stats", "--frobnicate"]).exits(2);
    alone(&["--log", "loud", "config"]).exits(2).says("error, warn, info, debug or trace");
    alone(&["--wait", "long", "stats"]).exits(2).says("10ms, 5s");
    alone(&["bench", "disk", "--seconds", "0"]).exits(2).says("more than 0");
}

#[test]
fn the_disk_can_be_measured() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = gapless();
    command.args(["bench", "disk", "--seconds", "0.01", "--json", "--dir"]).arg(folder.path());
    let ran = run(&mut command, None).ok();
    let json: serde_json::Value = serde_json::from_str(&ran.out.join("\n")).unwrap();
    assert!(json.is_object() || json.is_array());
}

#[test]
fn colours_are_not_for_pipes() {
    let ran = alone(&["config"]).ok();
    assert!(!ran.out.join("").contains('\x1b'));
    let ran = alone(&["--server", "127.0.0.1:1", "--wait", "0s", "stats"]).exits(4);
    assert!(!ran.err.contains('\x1b'));
}
