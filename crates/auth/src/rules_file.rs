//! Roles and identities from a file (TOML), beside those of the store.
//!
//! What the file has holds instead of what the store has under the same name, and cannot be changed by
//! commands. The file is looked at about once a second; one that cannot be used leaves the former
//! rules in force, and at a start nothing is served. Tokens and passwords are in the store only:
//! a file that many may read has no secrets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use gapless_core::rights::{Role, check_name};
use serde::Deserialize;

use crate::auth::lock;
use crate::policy::is_built_in;
use crate::records::{Identity, Quotas, ROLES_MAX, Record, rules_of};

/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Why the file cannot be used. What was in force before still is.
#[derive(Debug, thiserror::Error)]
#[error("the rules in {} cannot be used: {why}", path.display())]
pub struct RulesFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Content {
    roles: BTreeMap<String, Vec<String>>,
    identities: BTreeMap<String, Listed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    roles: Vec<String>,
    #[serde(default)]
    quotas: Quotas,
}

type Stamp = Option<(SystemTime, u64)>;

/// See the head of the file.
pub(crate) struct RulesFile {
    path: PathBuf,
    loaded: Mutex<(Stamp, Arc<[Record]>)>,
}

impl RulesFile {
    pub(crate) fn open(path: PathBuf) -> Result<Self, RulesFileError> {
        let file = Self { path, loaded: Mutex::new((None, Arc::from([]))) };
        let loaded = (file.stamp(), file.read()?);
        *lock(&file.loaded) = loaded;
        Ok(file)
    }

    /// What is in it.
    pub(crate) fn records(&self) -> Arc<[Record]> {
        Arc::clone(&lock(&self.loaded).1)
    }

    /// Reads it again if it changed; returns whether other rules are in force now.
    pub(crate) fn reload(&self) -> bool {
        let stamp = self.stamp();
        if lock(&self.loaded).0 == stamp {
            return false;
        }
        let read = self.read();
        let mut loaded = lock(&self.loaded);
        loaded.0 = stamp;
        match read {
            Ok(records) => {
                loaded.1 = records;
                tracing::info!(path = %self.path.display(), "the rules were read again");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the former rules stay in force");
                false
            }
        }
    }

    fn stamp(&self) -> Stamp {
        let file = std::fs::metadata(&self.path).ok()?;
        Some((file.modified().ok()?, file.len()))
    }

    fn read(&self) -> Result<Arc<[Record]>, RulesFileError> {
        let broken = |why: &dyn std::fmt::Display| RulesFileError {
            path: self.path.clone(),
            why: why.to_string(),
        };
        let file = std::fs::metadata(&self.path).map_err(|error| broken(&error))?;
        if file.len() > FILE_BYTES_MAX {
            return Err(broken(&format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read_to_string(&self.path).map_err(|error| broken(&error))?;
        parse(&text).map(Arc::from).map_err(|why| broken(&why))
    }
}

fn parse(text: &str) -> Result<Vec<Record>, String> {
    let content: Content = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut records = Vec::new();
    for (name, rules) in &content.roles {
        if is_built_in(name) {
            return Err(format!("the role {name} is built in and cannot be changed"));
        }
        let role = rules_of(rules).and_then(|rules| Role::new(name, rules));
        let role = role.map_err(|error| format!("role {name}: {error}"))?;
        records.push(Record::Role(Arc::new(role)));
    }
    for (name, Listed { roles, quotas }) in content.identities {
        check_name(&name).map_err(|error| format!("identity {name:?}: {error}"))?;
        if roles.len() > ROLES_MAX {
            return Err(format!("identity {name}: {} roles, at most {ROLES_MAX}", roles.len()));
        }
        let unknown = |role: &&String| !is_built_in(role) && !content.roles.contains_key(*role);
        if let Some(role) = roles.iter().find(unknown) {
            return Err(format!("identity {name}: there is no role {role} in the file"));
        }
        records.push(Record::Identity(name, Identity { roles, password: None, quotas }));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_roles_and_identities_and_what_is_wrong_is_named() {
        let good = "[roles]\nwriter = ['allow publish on orders.>']\n\
                    [identities.shop]\nroles = ['writer', 'monitor']\nquotas = { topics = 3 }\n";
        assert_eq!(parse(good).expect("a good file").len(), 2);
        assert!(parse("").expect("nothing is fine").is_empty());
        for (bad, why) in [
            ("[roles]\nwriter = ['allow all']", "role writer"),
            ("[roles]\nadmin = []", "built in"),
            ("[identities.shop]\nroles = ['writer']", "no role writer"),
            ("[identities.'a b']\nroles = []", "a b"),
            ("[identities.shop]\nroles = []\npassword = 'x'", "password"),
            ("[rules]", "rules"),
            ("no toml", "expected"),
        ] {
            let told = parse(bad).expect_err(bad);
            assert!(told.contains(why), "{bad}: {told}");
        }
    }
}
