//! Which commit the program is built from, for `gapless --version`.
//!
//! `GAPLESS_COMMIT` says it for packagers; else git does, if this is a checkout of gapless; else the
//! version is without one. No network, and no failure: a build without git is as good.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=GAPLESS_COMMIT");
    let given = std::env::var("GAPLESS_COMMIT").ok().filter(|commit| !commit.is_empty());
    let known = given.or_else(of_git).unwrap_or_default();
    // Behind the commit is its day, which only people want to see.
    let short = known.split(' ').next().unwrap_or_default();
    println!("cargo:rustc-env=GAPLESS_COMMIT_SHOWN={short}");
    let commit = if known.is_empty() { known } else { format!(" ({known})") };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=GAPLESS_VERSION={version}{commit}");
}

/// The commit and its day. A folder that merely lies in another repository is not of it.
fn of_git() -> Option<String> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")?;
    let root = Path::new(&here).ancestors().nth(2)?.canonicalize().ok()?;
    let top = git(&root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // Both change with each commit or checkout; which of them, depends on the settings of git.
    for path in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&root, &["rev-parse", "--git-path", path]) {
            let path = root.join(path);
            if path.exists() {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
    }
    git(&root, &["show", "--no-patch", "--format=%h %cs", "--abbrev=12", "HEAD"])
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let ran = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
    let text = String::from_utf8(ran.stdout).ok()?;
    (ran.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
