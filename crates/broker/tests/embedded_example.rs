//! The example that people read first must run.

use std::process::Command;

#[test]
fn c9_the_embedded_example_publishes_crashes_and_resumes() {
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "gapless-broker", "--example", "embedded"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo is there: it runs this test");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("resumed without gap or repeat: two, three"), "{said}");
}
