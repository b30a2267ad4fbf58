//! Roles, identities and tokens as cells: names, JSON, and the limits of both.
//!
//! A record is one cell, so it is there wholly or not at all. What cannot be read refuses the
//! start: a server that skipped a deny would allow what it must not.

use std::sync::Arc;

use bytes::Bytes;
use gapless_core::Timestamp;
use gapless_core::rights::{Role, Rule, RuleError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::CELLS;

/// Most roles of one identity.
pub(crate) const ROLES_MAX: usize = 64;

/// How much one identity may use at the same time or per second; `None` is without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// Connections, over the native protocol and over HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Subscriptions and memberships, over all its connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<u64>,
    /// Messages published per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<u64>,
    /// Bytes published per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<u64>,
    /// Topics that match its `create` rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topics: Option<u64>,
    /// Bytes stored in topics that match its `publish` rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
}

/// An identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    pub(crate) roles: Vec<String>,
    /// The slow hash of the password for the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) password: Option<String>,
    #[serde(default)]
    pub(crate) quotas: Quotas,
}

/// A token of an identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Token {
    /// Whose it is.
    pub(crate) name: String,
    /// The hash of the secret.
    pub(crate) hash: String,
    pub(crate) created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<u64>,
}

impl Token {
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.expires_ms.map(Timestamp)
    }
}

/// A record, as it is kept.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Role(Arc<Role>),
    Identity(String, Identity),
    Token(String, Token),
}

/// Why a record cannot be used. The server does not start with it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record {name} of roles and identities cannot be read: {why}; a backup of the data \
         folder, or a newer version of the server, has a record that can"
)]
pub struct RecordError {
    /// Its cell.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    rules: Vec<String>,
}

/// Reads rules.
pub(crate) fn rules_of(texts: &[String]) -> Result<Vec<Rule>, RuleError> {
    texts.iter().map(|text| text.parse()).collect()
}

/// The name of a record's cell.
pub(crate) fn cell(kind: &str, name: &str) -> Bytes {
    Bytes::from(format!("{CELLS}{kind}/{name}"))
}

impl Record {
    /// The cell it is kept in.
    pub(crate) fn cell(&self) -> Bytes {
        match self {
            Self::Role(role) => cell("role", role.name()),
            Self::Identity(name, _) => cell("identity", name),
            Self::Token(id, _) => cell("token", id),
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let json = match self {
            Self::Role(role) => {
                let rules = role.rules().iter().map(ToString::to_string).collect();
                json!(Rules { rules })
            }
            Self::Identity(_, identity) => json!(identity),
            Self::Token(_, token) => json!(token),
        };
        Bytes::from(json.to_string())
    }

    pub(crate) fn decode(cell: &[u8], value: &[u8]) -> Result<Self, RecordError> {
        let name = String::from_utf8_lossy(cell).into_owned();
        let broken =
            |why: &dyn std::fmt::Display| RecordError { name: name.clone(), why: why.to_string() };
        let path = name.strip_prefix(CELLS).and_then(|path| path.split_once('/'));
        let (kind, own) = path.ok_or_else(|| broken(&"its name has no kind"))?;
        let json = |error: serde_json::Error| broken(&error);
        match kind {
            "role" => {
                let Rules { rules } = serde_json::from_slice(value).map_err(json)?;
                let rules = rules_of(&rules).map_err(|error| broken(&error))?;
                let role = Role::new(own, rules).map_err(|error| broken(&error))?;
                Ok(Self::Role(Arc::new(role)))
            }
            "identity" => {
                let identity = serde_json::from_slice(value).map_err(json)?;
                Ok(Self::Identity(own.to_owned(), identity))
            }
            "token" => {
                let token = serde_json::from_slice(value).map_err(json)?;
                Ok(Self::Token(own.to_owned(), token))
            }
            _ => Err(broken(&"its kind is unknown")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_broken_ones_are_named() {
        let rules = rules_of(&["allow publish on a.>".to_owned()]).unwrap();
        let quotas = Quotas { connections: Some(3), ..Quotas::default() };
        let identity = Identity { roles: vec!["r".into()], password: None, quotas };
        let token =
            Token { name: "x".into(), hash: "h".into(), created_ms: 1, expires_ms: Some(2) };
        for record in [
            Record::Role(Arc::new(Role::new("r", rules).unwrap())),
            Record::Identity("x".into(), identity),
            Record::Token("0123".into(), token),
        ] {
            let again = Record::decode(&record.cell(), &record.encode()).unwrap();
            assert_eq!((again.cell(), again.encode()), (record.cell(), record.encode()));
        }
        for (cell, value) in [
            ("$auth/role/r", r#"{"rules":["allow all"]}"#),
            ("$auth/role/r", "no JSON"),
            ("$auth/identity/x", r#"{"roles":[],"newer":1}"#),
            ("$auth/other/x", "{}"),
            ("$auth/role", "{}"),
        ] {
            let error = Record::decode(cell.as_bytes(), value.as_bytes()).unwrap_err();
            assert_eq!(error.name, cell);
        }
    }
}
