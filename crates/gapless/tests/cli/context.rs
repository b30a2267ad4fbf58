//! `gapless context`, and which server commands talk to.

use std::process::Command;

use tempfile::TempDir;

use crate::support::{Ran, Server, gapless, run};

fn command(home: &TempDir, words: &[&str]) -> Command {
    let mut command = gapless();
    command.args(words).current_dir(home.path()).env("XDG_CONFIG_HOME", home.path().join("cfg"));
    command
}

fn words(home: &TempDir, words: &[&str]) -> Ran {
    run(&mut command(home, words), None)
}

#[test]
fn commands_talk_to_the_server_of_the_context() {
    let server = Server::start();
    server.run(&["topic", "create", "here"]).ok();
    let home = tempfile::tempdir().unwrap();
    words(&home, &["context", "add", "mine", "--server", server.address()]).ok();
    words(&home, &["context", "add", "away", "--server", "127.0.0.1:1"]).ok();
    // None is chosen yet.
    words(&home, &["config"]).ok().shows("127.0.0.1:4281").shows("(default)");
    words(&home, &["topic", "ls", "--context", "mine"]).ok().shows("here");
    words(&home, &["context", "use", "mine"]).ok();
    words(&home, &["topic", "ls"]).ok().shows("here");
    words(&home, &["config"]).ok().shows("(context mine)");
    // Flags are stronger than the environment, which is stronger than the context.
    words(&home, &["topic", "ls", "--context", "away", "--wait", "0s"]).exits(4);
    let mut by_name = command(&home, &["topic", "ls", "--wait", "0s"]);
    run(by_name.env("GAPLESS_CONTEXT", "away"), None).exits(4);
    let mut by_address = command(&home, &["config"]);
    run(by_address.env("GAPLESS_SERVER", "127.0.0.1:2"), None)
        .ok()
        .shows("127.0.0.1:2 (environment GAPLESS_SERVER)");
    let mut both = command(&home, &["config", "--server", "127.0.0.1:3"]);
    run(both.env("GAPLESS_SERVER", "127.0.0.1:2"), None).ok().shows("127.0.0.1:3 (flag --server)");
    words(&home, &["context", "use", "--none"]).ok();
    words(&home, &["config"]).ok().shows("(default)");
}

#[test]
fn contexts_are_listed_shown_replaced_and_removed() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), "secret").unwrap();
    let add = ["context", "add", "prod", "--server", "b:4281", "--token-file", "token", "--tls"];
    words(&home, &add).ok();
    words(&home, &add).exits(2).says("--force");
    words(&home, &["context", "use", "prod"]).ok();
    let json = words(&home, &["context", "ls", "--json"]).ok().json();
    assert_eq!((&json[0]["name"], &json[0]["current"]), (&"prod".into(), &true.into()));
    let shown = words(&home, &["context", "show"]).ok();
    let token = home.path().join("token").canonicalize().unwrap();
    shown.shows(token.to_str().unwrap()).shows("b:4281");
    words(&home, &["context", "use", "prd"]).exits(6).says("did you mean prod?");
    words(&home, &["stats", "--context", "nosuch"]).exits(6).says("there is no context nosuch");
    words(&home, &["context", "add", "x"]).exits(2).says("--server");
    let token = ["context", "add", "x", "--server", "b:1", "--token", "t"];
    words(&home, &token).exits(2).says("--token-file");
    words(&home, &["context", "rm", "prod"]).ok();
    words(&home, &["context", "show"]).exits(6);
    assert!(words(&home, &["context", "ls", "--json"]).ok().json().is_empty());
}

#[test]
fn the_token_of_the_current_context_goes_to_no_other_server() {
    let server = Server::start();
    let home = tempfile::tempdir().unwrap();
    let address = server.address();
    let add = ["context", "add", "p", "--server", address, "--token-file", "/nowhere/token"];
    words(&home, &add).ok();
    words(&home, &["context", "use", "p"]).ok();
    // The file is read because the token is to be sent.
    words(&home, &["topic", "ls"]).exits(2).says("/nowhere/token");
    let other = server.socket();
    words(&home, &["topic", "ls", "--server", &other]).ok();
    // Named, it is used beside the address.
    let named = ["topic", "ls", "--server", &other, "--context", "p"];
    words(&home, &named).exits(2).says("/nowhere/token");
}
