//! Which crate may know which: arrows point down only.
//!
//! The table below is the architecture. Normal, build and dev-dependencies all count: a test
//! that reaches upward ties the layers together as firmly as product code does. A crate that
//! is missing from the table is a finding, so that a new one is placed on purpose.

use serde_json::Value;

use crate::finding::Finding;

const RULE: &str = "layering";

/// What one crate of the workspace may depend on, among the crates of the workspace.
enum May {
    /// Exactly these.
    Know(&'static [&'static str]),
    /// Every crate but those that exist only to check the others.
    KnowProduct,
    /// Every crate but `xtask`.
    KnowAll,
}

/// Crates that product code never depends on.
const CHECKING_ONLY: &[&str] = &["gapless-sim", "gapless-fuzz", "xtask"];

/// The layers, lowest first.
const LAYERS: &[(&str, May)] = &[
    ("gapless-core", May::Know(&[])),
    ("gapless-journal", May::Know(&["gapless-core"])),
    ("gapless-engine", May::Know(&["gapless-journal", "gapless-core"])),
    ("gapless-protocol", May::Know(&["gapless-core"])),
    ("gapless-broker", May::Know(&["gapless-journal", "gapless-core"])),
    ("gapless-client", May::Know(&["gapless-protocol", "gapless-core"])),
    ("gapless-jobs", May::Know(&["gapless-broker", "gapless-protocol", "gapless-core"])),
    ("gapless-auth", May::Know(&["gapless-broker", "gapless-core"])),
    ("gapless-outbox", May::Know(&["gapless-core"])),
    (
        "gapless-relay",
        May::Know(&[
            "gapless-outbox",
            "gapless-broker",
            "gapless-client",
            "gapless-journal",
            "gapless-core",
        ]),
    ),
    ("gapless-cluster", May::Know(&["gapless-broker", "gapless-protocol", "gapless-core"])),
    (
        "gapless-server",
        May::Know(&[
            "gapless-auth",
            "gapless-jobs",
            "gapless-broker",
            "gapless-protocol",
            "gapless-core",
        ]),
    ),
    ("gapless", May::KnowProduct),
    (
        "gapless-sim",
        May::Know(&["gapless-broker", "gapless-engine", "gapless-journal", "gapless-core"]),
    ),
    ("gapless-fuzz", May::Know(&["gapless-protocol", "gapless-journal", "gapless-core"])),
    ("gapless-bench", May::KnowAll),
    ("xtask", May::Know(&[])),
];

/// A crate of the workspace and the crates of the workspace it depends on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Path of its manifest from the workspace's root.
    pub(crate) manifest: String,
    pub(crate) knows: Vec<String>,
}

/// Reads the members and their arrows out of what `cargo metadata --no-deps` printed.
pub(crate) fn members(metadata: &Value, root: &str) -> Result<Vec<Member>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let names: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut members = Vec::with_capacity(packages.len());
    for package in packages {
        let name = package["name"].as_str().ok_or("cargo metadata has a package without a name")?;
        let manifest = package["manifest_path"].as_str().unwrap_or(name);
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        let knows = dependencies
            .iter()
            .filter_map(|dependency| dependency["name"].as_str())
            .filter(|dependency| names.contains(dependency))
            .map(str::to_owned)
            .collect();
        members.push(Member {
            name: name.to_owned(),
            manifest: manifest
                .strip_prefix(root)
                .unwrap_or(manifest)
                .trim_start_matches('/')
                .to_owned(),
            knows,
        });
    }
    Ok(members)
}

/// Compares the arrows with the table.
pub(crate) fn check(members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let Some((_, may)) = LAYERS.iter().find(|(name, _)| *name == member.name) else {
            let what =
                format!("`{}` is not in the table of layers in xtask/src/layering.rs", member.name);
            findings.push(Finding::whole_file(&member.manifest, RULE, what));
            continue;
        };
        for known in member.knows.iter().filter(|known| !may.know(known)) {
            let what = format!("`{}` may not depend on `{known}`; {}", member.name, may.describe());
            findings.push(Finding::whole_file(&member.manifest, RULE, what));
        }
    }
    findings
}

impl May {
    fn know(&self, other: &str) -> bool {
        match self {
            Self::Know(names) => names.contains(&other),
            Self::KnowProduct => !CHECKING_ONLY.contains(&other),
            Self::KnowAll => other != "xtask",
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Know([]) => "it may depend on no crate of the workspace".to_owned(),
            Self::Know(names) => format!("it may depend on {}", names.join(", ")),
            Self::KnowProduct => format!("it may depend on all but {}", CHECKING_ONLY.join(", ")),
            Self::KnowAll => "it may depend on all but xtask".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(name: &str, knows: &[&str]) -> Member {
        let knows = knows.iter().map(|&known| known.to_owned()).collect();
        Member { name: name.to_owned(), manifest: format!("{name}/Cargo.toml"), knows }
    }

    #[test]
    fn arrows_that_point_down_are_accepted() {
        let all = [
            member("gapless-core", &[]),
            member("gapless-broker", &["gapless-journal", "gapless-core"]),
            member("gapless-server", &["gapless-jobs", "gapless-broker", "gapless-protocol"]),
            member("gapless", &["gapless-server", "gapless-bench", "gapless-cluster"]),
            member("gapless-bench", &["gapless-sim", "gapless-client", "gapless-broker"]),
        ];
        assert_eq!(check(&all), []);
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        for (name, known) in [
            ("gapless-core", "gapless-journal"),
            ("gapless-journal", "gapless-broker"),
            ("gapless-broker", "gapless-protocol"),
            ("gapless-client", "gapless-broker"),
            ("gapless-jobs", "gapless-journal"),
            ("gapless-server", "gapless-outbox"),
            ("gapless-sim", "gapless-server"),
            ("gapless", "gapless-sim"),
            ("gapless-bench", "xtask"),
            ("xtask", "gapless-core"),
        ] {
            let findings = check(&[member(name, &[known])]);
            assert_eq!(findings.len(), 1, "{name} -> {known}");
            assert!(findings[0].what.contains(known), "{}", findings[0]);
        }
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let findings = check(&[member("gapless-utils", &[])]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("not in the table"));
    }

    #[test]
    fn every_layer_names_only_layers() {
        for (name, may) in LAYERS {
            if let May::Know(known) = may {
                for other in *known {
                    assert!(LAYERS.iter().any(|(layer, _)| layer == other), "{name} -> {other}");
                }
            }
        }
    }

    #[test]
    fn metadata_gives_members_and_only_arrows_inside_the_workspace() {
        let metadata = json!({ "packages": [
            { "name": "gapless-core", "manifest_path": "/w/crates/core/Cargo.toml",
              "dependencies": [{ "name": "bytes", "kind": null }] },
            { "name": "gapless-journal", "manifest_path": "/w/crates/journal/Cargo.toml",
              "dependencies": [{ "name": "gapless-core", "kind": "dev" }, { "name": "crc32c" }] },
        ]});
        let members = members(&metadata, "/w").unwrap();
        assert_eq!(members[0].knows, [""; 0]);
        assert_eq!(members[1].knows, ["gapless-core"]);
        assert_eq!(members[1].manifest, "crates/journal/Cargo.toml");
    }
}
