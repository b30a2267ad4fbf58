//! The protocol builds where there is no `std` at all.
#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Builds the crate against a copy of the compiler's libraries from which everything but
/// `core`, `alloc` and what they need was left out. Whatever refers to `std`, here or in a
/// dependency, then does not compile.
#[test]
fn a13_it_builds_against_core_and_alloc_only() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = run(Command::new(&rustc).args(["--print", "sysroot"]));
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("lib");
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("without_std");
    let bare = scratch.join("sysroot/lib/rustlib").join(TARGET).join("lib");
    drop(fs::remove_dir_all(scratch.join("sysroot")));
    fs::create_dir_all(&bare).expect("a folder");
    let mut linked = 0;
    for entry in fs::read_dir(libraries).expect("the compiler's libraries") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if ["libcore-", "liballoc-", "libcompiler_builtins-"].iter().any(|it| name.starts_with(it))
        {
            symlink(&path, bare.join(&name)).expect("a link");
            linked += 1;
        }
    }
    assert!(linked >= 3, "the compiler's libraries are where they were");
    let sysroot = format!("--sysroot={}", scratch.join("sysroot").display());
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--lib", "--target", TARGET, "--package", "gapless-protocol"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .env("RUSTFLAGS", &sysroot)
        .env_remove("CARGO_ENCODED_RUSTFLAGS"));

    // The proof is worth something only if what does need `std` fails.
    let source = scratch.join("needs_std.rs");
    fs::write(&source, "pub fn takes_time() -> std::time::Duration { todo!() }").expect("a file");
    let refused = Command::new(rustc)
        .args(["--crate-type=lib", "--emit=metadata", "--target", TARGET, &sysroot])
        .arg("--out-dir")
        .arg(&scratch)
        .arg(&source)
        .output()
        .expect("the compiler starts");
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(words.contains("can't find crate for `std`"), "{words}");
}
