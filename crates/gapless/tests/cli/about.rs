//! What the program says about itself: version and manual pages.

use crate::support::{Server, alone, gapless, run};

#[test]
fn the_version_names_the_commit_it_was_built_from() {
    let ran = alone(&["--version"]).ok();
    let version = env!("CARGO_PKG_VERSION");
    let rest = ran.out[0].strip_prefix(&format!("gapless {version}")).expect("the version");
    // Built outside of a repository there is no commit.
    if !rest.is_empty() {
        let inner = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
        let commit = inner.expect("in brackets").split(' ').next().unwrap_or_default();
        assert!(commit.len() >= 7, "{ran:#?}");
    }
}

#[test]
fn manual_pages_are_written_for_every_command() {
    alone(&["man"]).ok().shows(".TH gapless 1");
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("man1");
    alone(&["man", dir.to_str().unwrap()]).ok().shows("pages in");
    for page in ["gapless.1", "gapless-pub.1", "gapless-topic-create.1", "gapless-top.1"] {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains(".SH EXAMPLES"), "{text}");
    }
}

#[test]
fn a_shell_is_told_topics_groups_and_contexts() {
    let server = Server::start();
    server.run(&["topic", "create", "orders.eu"]).ok();
    server.run(&["topic", "create", "mails"]).ok();
    server.run(&["group", "create", "billing", "orders.eu"]).ok();
    alone(&["completions", "bash", "--live"]).ok().shows("COMPLETE");
    // What the script of fish asks: the words so far, the last one not finished.
    let asked = |words: &[&str]| {
        let mut command = server.command(&["--"]);
        command.env("COMPLETE", "fish").args(words);
        run(&mut command, None).ok().out
    };
    let has = |lines: &[String], word: &str| {
        lines.iter().any(|line| line.split('\t').next() == Some(word))
    };
    let topics = asked(&["gapless", "pub", "or"]);
    assert!(has(&topics, "orders.eu") && !has(&topics, "mails"), "{topics:?}");
    let groups = asked(&["gapless", "group", "show", ""]);
    assert!(has(&groups, "billing"), "{groups:?}");
    // Without a server there are no words, and no error.
    let mut alone = gapless();
    alone.env("COMPLETE", "fish").env("GAPLESS_SERVER", "127.0.0.1:1");
    run(alone.args(["--", "gapless", "get", "o"]), None).ok();
}
