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
    for step in ["--store", "--standby", "kill -9"] {
        assert!(steps.contains(step), "the guide has no {step}");
    }
    // The ports of the guide may be taken here.
    for port in ["5381", "5382"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        steps = steps.replace(&format!("127.0.0.1:{port}"), &address.to_string());
    }
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
    assert!(said.contains("before") && said.contains("after"), "{said}{log}");
}
