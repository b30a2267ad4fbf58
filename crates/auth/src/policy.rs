//! All records at one moment. It is replaced as a whole when any of them changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gapless_core::rights::{Grants, Role, Rule};

use crate::records::{Identity, Record, Token};

/// The role that may do everything, in every store.
pub(crate) const ADMIN: &str = "admin";
/// The role that may look at the server and its events, in every store.
pub(crate) const MONITOR: &str = "monitor";

/// Rules of the roles that are in every store and cannot be changed.
const BUILT_IN: [(&str, &[&str]); 2] = [
    (ADMIN, &["allow * on >", "allow * on $events.>", "allow * on $jobs.>"]),
    (MONITOR, &["allow admin on server", "allow admin on clients", "allow subscribe on $events.>"]),
];

/// See the head of the file.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) roles: BTreeMap<String, Arc<Role>>,
    pub(crate) identities: BTreeMap<String, Identity>,
    pub(crate) tokens: BTreeMap<String, Token>,
    /// Names of roles that are in a file, and of identities.
    fixed_roles: BTreeSet<String>,
    fixed_identities: BTreeSet<String>,
}

impl Default for Policy {
    fn default() -> Self {
        let rule = |text: &&str| text.parse::<Rule>().expect("a rule of ours");
        let role = |(name, rules): &(&str, &[&str])| {
            let role = Role::new(name, rules.iter().map(rule).collect()).expect("a role of ours");
            ((*name).to_owned(), Arc::new(role))
        };
        let roles = BUILT_IN.iter().map(role).collect();
        let fixed = BTreeSet::new();
        Self {
            roles,
            identities: BTreeMap::new(),
            tokens: BTreeMap::new(),
            fixed_roles: fixed.clone(),
            fixed_identities: fixed,
        }
    }
}

/// Whether a role is in every store and cannot be changed.
pub(crate) fn is_built_in(role: &str) -> bool {
    BUILT_IN.iter().any(|(name, _)| *name == role)
}

impl Policy {
    pub(crate) fn put(&mut self, record: Record) {
        match record {
            Record::Role(role) => {
                self.roles.insert(role.name().to_owned(), role);
            }
            Record::Identity(name, identity) => {
                self.identities.insert(name, identity);
            }
            Record::Token(id, token) => {
                self.tokens.insert(id, token);
            }
        }
    }

    /// Puts what a file has over what the store has. A password stays the store's.
    #[must_use]
    pub(crate) fn with_file(mut self, records: &[Record]) -> Self {
        for record in records {
            let mut record = record.clone();
            match &mut record {
                Record::Role(role) => {
                    self.fixed_roles.insert(role.name().to_owned());
                }
                Record::Identity(name, identity) => {
                    let known = self.identities.get(name);
                    identity.password = known.and_then(|known| known.password.clone());
                    self.fixed_identities.insert(name.clone());
                }
                Record::Token(..) => continue,
            }
            self.put(record);
        }
        self
    }

    /// Whether a role is in the file.
    pub(crate) fn is_fixed_role(&self, role: &str) -> bool {
        self.fixed_roles.contains(role)
    }

    /// Whether an identity is in the file.
    pub(crate) fn is_fixed_identity(&self, name: &str) -> bool {
        self.fixed_identities.contains(name)
    }

    /// What these roles allow. A role that does not exist allows nothing.
    pub(crate) fn grants<'a>(&self, roles: impl IntoIterator<Item = &'a String>) -> Grants {
        Grants::new(roles.into_iter().filter_map(|role| self.roles.get(role)).cloned().collect())
    }
}
