//! The commands of `docs/cluster.md` and the example of a cluster, run as they are.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const GUIDE: &str = include_str!("../../../docs/cluster.md");

/// Runs a program with `gapless` in its PATH, in an empty folder.
fn run(mut command: Command) -> (Output, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = Path::new(env!("CARGO_BIN_EXE_gapless"));
    let path = std::env::var("PATH").expect("there is a PATH");
    let bin = program.parent().expect("a folder").display();
    command.current_dir(folder.path()).env("PATH", format!("{bin}:{path}")).stdin(Stdio::null());
    let done = command.output().expect("it starts");
    let said =
        [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (done, said.concat())
}

#[test]
fn the_guide_to_clusters_works_as_written() {
    let blocks = GUIDE.split("```sh\n").skip(1);
    let steps: String = blocks.map(|block| block.split("```").next().unwrap_or_default()).collect();
    for step in ["--join", "--report", "--await-visible", "--identity", "gapless reply"] {
        assert!(steps.contains(step), "the guide has no {step}");
    }
    // The ports of the guide may be taken here.
    let ports = ["5281", "5282", "5283", "5291", "5292", "5293"];
    let free = ports.map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let mut steps = steps;
    for (port, listener) in ports.iter().zip(&free) {
        let address = listener.local_addr().expect("an address");
        steps = steps.replace(&format!("127.0.0.1:{port}"), &address.to_string());
    }
    drop(free);
    let mut bash = Command::new("bash");
    bash.args(["-e", "-u", "-c", &format!("trap 'kill $(jobs -p); wait' EXIT\n{steps}")]);
    bash.env("GAPLESS_WAIT", "60s");
    let (done, said) = run(bash);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("two"), "{said}");
}

#[test]
fn a_chat_over_three_nodes_outlives_the_crash_of_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (done, said) = run(Command::new(root.join("examples/cluster/run")));
    assert!(done.status.success(), "{said}");
    assert!(said.contains("cem: the third hears you"), "{said}");
    assert!(said.contains("after the crash: ann: cem, are you there?"), "{said}");
}
