//! What the program says about itself: version and manual pages.

use crate::support::alone;

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
