//! Collects the workspace's arrows and texts and runs every rule over them.
//!
//! Files are found by walking the folders, not by asking the version control: so a file is
//! checked before it is added, and an unpacked archive can be checked too.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::finding::Finding;
use crate::rules::{self, RustFile};
use crate::{docs, layering};

/// Folders that hold no text of ours, wherever they are.
const FOLDERS_SKIPPED: &[&str] =
    &["target", "node_modules", "gapless-data", "bench-data", "fixtures", "corpus"];

/// A walk that finds more than this is not in our workspace.
const FILES_MAX: usize = 20_000;

/// What was looked at, and what was found.
pub(crate) struct Checked {
    pub(crate) crates: usize,
    pub(crate) files: usize,
    pub(crate) findings: Vec<Finding>,
}

/// Checks the workspace this tool was started in.
pub(crate) fn check_workspace() -> Result<Checked, String> {
    let metadata = metadata()?;
    let root =
        metadata["workspace_root"].as_str().ok_or("cargo metadata names no workspace root")?;
    let members = layering::members(&metadata, root)?;
    let mut findings = layering::check(&members);

    let root = Path::new(root);
    let mut paths = Vec::new();
    walk(root, "", &mut paths).map_err(|error| format!("walking {}: {error}", root.display()))?;
    paths.sort_unstable();
    let mut files = 0;
    for path in &paths {
        let bytes =
            fs::read(root.join(path)).map_err(|error| format!("reading {path}: {error}"))?;
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        files += 1;
        findings.extend(check_text(path, &text));
    }
    findings.extend(docs::decisions("docs/adr", &names_in(&paths, "docs/adr/")));
    Ok(Checked { crates: members.len(), files, findings })
}

/// Every rule that looks at one text.
fn check_text(path: &str, text: &str) -> Vec<Finding> {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("rs") => {
            let mut findings = rules::check(&RustFile::new(path, text));
            findings.extend(docs::requirements_of_test(path, text));
            findings
        }
        Some("md") => {
            let prose = docs::prose(text);
            let lines = prose.iter().map(|(number, line)| (*number, line.as_str()));
            let mut findings = rules::to_do(path, lines.clone());
            findings.extend(rules::words(path, lines));
            findings.extend(docs::requirements_of_page(path, text));
            findings
        }
        _ => rules::to_do(path, text.lines().enumerate().map(|(index, line)| (index + 1, line))),
    }
}

fn metadata() -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("starting cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata printed no JSON: {error}"))
}

/// Gathers the paths of all files below `folder`, from the root, with forward slashes.
/// Hidden entries are skipped, except for the folder that holds what the CI runs.
fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && name != ".ci";
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !hidden && !FOLDERS_SKIPPED.contains(&name.as_str()) {
            walk(root, &path, paths)?;
        } else if kind.is_file() && !hidden && name != "Cargo.lock" {
            paths.push(path);
        }
        if paths.len() > FILES_MAX {
            return Err(io::Error::other(format!("more than {FILES_MAX} files")));
        }
    }
    Ok(())
}

/// Names of the files that lie directly in a folder.
fn names_in(paths: &[String], folder: &str) -> Vec<String> {
    let names = paths.iter().filter_map(|path| path.strip_prefix(folder));
    names.filter(|name| !name.contains('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_text_gets_its_rules() {
        let rules = |path, text| -> Vec<&str> {
            check_text(path, text).iter().map(|finding| finding.rule).collect()
        };
        assert_eq!(rules("crates/a/src/b.rs", "fn f() {}"), ["header"]);
        assert_eq!(rules("crates/a/tests/b.rs", "fn f99_says() {}"), ["requirement"]);
        assert_eq!(rules("docs/a.md", "TODO and F99"), ["to-do", "requirement"]);
        assert_eq!(rules("docs/a.md", "`TODO` and `F99`"), [""; 0]);
        assert_eq!(rules("test", "# TODO"), ["to-do"]);
        assert_eq!(rules("docs/a.md", "Nobody waits; it is made anew"), ["words"; 2]);
        assert_eq!(rules("crates/a/src/b.rs", "//! A.\nconst A: &str = \"nobody\";"), ["words"]);
        assert_eq!(rules("crates/a/tests/b.rs", "//! A.\nconst A: &str = \"nobody\";"), [""; 0]);
    }

    #[test]
    fn only_files_directly_in_a_folder_are_named() {
        let paths = ["docs/adr/0001-a.md", "docs/adr/old/x.md", "docs/b.md"].map(str::to_owned);
        assert_eq!(names_in(&paths, "docs/adr/"), ["0001-a.md"]);
    }

    #[test]
    fn this_tool_does_not_trip_over_its_own_text() {
        for (path, text) in [
            ("xtask/src/rules.rs", include_str!("rules.rs")),
            ("xtask/src/docs.rs", include_str!("docs.rs")),
            ("xtask/src/source.rs", include_str!("source.rs")),
            ("xtask/src/tidy.rs", include_str!("tidy.rs")),
        ] {
            assert_eq!(check_text(path, text), [], "{path}");
        }
    }
}
