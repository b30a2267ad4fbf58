//! A13: the core builds, links and works without `std`.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Builds the program in `no_std_proof` and runs it: status 0 means that a publish reached
/// its subscriber. That it builds is the proof: its panic handler would clash with that of
/// `std`, were `std` linked by anything. That `std` left no trace in the binary is looked
/// at besides.
#[test]
fn a13_a_program_without_std_delivers_locally() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("no_std_proof");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_std_proof");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--locked"])
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let program = target.join("release/no-std-proof");
    let status = Command::new(&program).status().expect("the program starts");
    assert_eq!(status.code(), Some(0), "it ended with the number of the step that failed");

    let bytes = fs::read(&program).expect("the program is there");
    for trace in ["library/std/src", "rust_panic", "RUST_BACKTRACE"] {
        let found = bytes.windows(trace.len()).any(|window| window == trace.as_bytes());
        assert!(!found, "{trace} is in the binary, so std is");
    }
}
