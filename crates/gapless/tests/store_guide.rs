//! The commands of `docs/store.md`, run as they are.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

const GUIDE: &str = include_str!("../../../docs/store.md");

#[test]
fn the_guide_to_stores_works_as_written() {
    let blocks = GUIDE.split("```sh\n").skip(1);
    let mut steps: String =
        blocks.map(|block| block.split("```").next().unwrap_or_default()).collect();
    for step in ["--store", "--standby", "kill -9", "--shared", "cluster journals"] {
        assert!(steps.contains(step), "the guide has no {step}");
    }
    // The ports of the guide may be taken here.
    let ports =
        ["5381", "5382", "5481", "5482", "5483", "5471", "5472", "5473", "5491", "5492", "5493"];
    // All are held until all are chosen, so that none is chosen twice.
    let listeners = ports.map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    // By way of names, since a free port may have digits of another port in it.
    for (at, port) in ports.iter().enumerate() {
        steps = steps.replace(port, &format!("<port {at}>"));
    }
    for (at, listener) in listeners.iter().enumerate() {
        let free = listener.local_addr().expect("an address").port().to_string();
        steps = steps.replace(&format!("<port {at}>"), &free);
    }
    drop(listeners);
    let folder = tempfile::tempdir().expect("a folder");
    let bin = Path::new(env!("CARGO_BIN_EXE_gapless")).parent().expect("a folder").display();
    let path = std::env::var("PATH").expect("there is a PATH");
    let mut bash = Command::new("bash");
    bash.args(["-e", "-u", "-c", &format!("trap 'kill $(jobs -p); wait' EXIT\n{steps}")]);
    bash.current_dir(folder.path()).env("PATH", format!("{bin}:{path}")).stdin(Stdio::null());
    let done = bash.env("GAPLESS_WAIT", "60s").output().expect("it starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let log = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}{log}");
    for seen in ["before", "after", "at a", "at b", "without a", "serving"] {
        assert!(said.contains(seen), "{seen} in {said}{log}");
    }
}
