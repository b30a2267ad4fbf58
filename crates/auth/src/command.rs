//! What administrators ask of identities, roles and tokens; the same from every listener.
//!
//! A command is JSON with a `do`; so is its answer. A change is one atomic append of cells, flushed
//! before it is answered, and in force for open connections at once.

use std::sync::Arc;

use gapless_broker::{Atomic, Broker};
use gapless_core::rights::{Effect, On, Right, Role, RuleError, check_name};
use gapless_core::{Pattern, PatternError, PublishOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::auth::{Auth, Claim, lock};
use crate::caller::{Caller, Denied};
use crate::hash::{self, NoRandomness};
use crate::policy::{Policy, is_built_in};
use crate::records::{Identity, Quotas, ROLES_MAX, Record, Token, cell, rules_of};

/// Most tokens: each takes some 300 bytes of memory.
const TOKENS_MAX: usize = 100_000;
/// Most identities.
const IDENTITIES_MAX: usize = 100_000;
/// Most roles.
const ALL_ROLES_MAX: usize = 10_000;
/// Shortest password, in bytes.
const PASSWORD_BYTES_MIN: usize = 8;
/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: usize = 1024;

/// See the head of the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the names are those of docs/security.md, where they are explained"
)]
pub enum Command {
    WhoAmI {},
    Ticket {},
    Check {
        name: String,
        right: String,
        on: String,
    },
    TokenCreate {
        name: String,
        #[serde(default)]
        roles: Option<Vec<String>>,
        #[serde(default)]
        expires_in_ms: Option<u64>,
    },
    TokenList {},
    TokenShow {
        id: String,
    },
    TokenRevoke {
        id: String,
    },
    RoleSet {
        role: String,
        rules: Vec<String>,
    },
    RoleRemove {
        role: String,
    },
    RoleList {},
    IdentitySet {
        name: String,
        roles: Vec<String>,
        #[serde(default)]
        quotas: Option<Quotas>,
    },
    IdentityRemove {
        name: String,
    },
    IdentityList {},
    PasswordSet {
        name: String,
        password: String,
    },
}

/// Why a command was not done. Nothing was changed, but for trouble of the system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The caller may not.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It is not valid.
    #[error("{0}")]
    Bad(String),
    /// There is no such role, identity or token.
    #[error("there is no {0}")]
    Unknown(String),
    /// A limit is reached.
    #[error("there are {limit} {what}, which is the most: remove some first")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The store is in trouble; whether it was done is not known.
    #[error("it could not be stored: {0}")]
    System(String),
}

impl From<RuleError> for CommandError {
    fn from(error: RuleError) -> Self {
        Self::Bad(error.to_string())
    }
}

impl From<PatternError> for CommandError {
    fn from(error: PatternError) -> Self {
        Self::Bad(error.to_string())
    }
}

impl From<NoRandomness> for CommandError {
    fn from(error: NoRandomness) -> Self {
        Self::System(error.to_string())
    }
}

impl Command {
    /// Reads a command.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(json: &[u8]) -> Result<Self, CommandError> {
        serde_json::from_slice(json).map_err(|error| CommandError::Bad(error.to_string()))
    }

    /// What it is called, for the audit: nothing secret is in it.
    fn audited(&self) -> Option<(&'static str, &str)> {
        Some(match self {
            Self::TokenCreate { name, .. } => ("token created", name),
            Self::TokenRevoke { id } => ("token revoked", id),
            Self::RoleSet { role, .. } => ("role set", role),
            Self::RoleRemove { role } => ("role removed", role),
            Self::IdentitySet { name, .. } => ("identity set", name),
            Self::IdentityRemove { name } => ("identity removed", name),
            Self::PasswordSet { name, .. } => ("password set", name),
            _ => return None,
        })
    }
}

impl Caller {
    /// Does a command. May block.
    ///
    /// # Errors
    /// Says why not.
    pub fn command(&self, command: Command) -> Result<Value, CommandError> {
        match &command {
            Command::WhoAmI {} => return Ok(self.who_am_i()),
            Command::Ticket {} => return self.ticket(),
            // Each identity may see its own record.
            Command::Check { name, .. } if name == self.name() => {}
            _ => self.may_area("auth")?,
        }
        let audited = command.audited().map(|(what, name)| (what, name.to_owned()));
        let done = run(self.auth(), command)?;
        if let Some((what, name)) = audited {
            self.audit_change(what, &name);
        }
        Ok(done)
    }

    fn who_am_i(&self) -> Value {
        let required = self.auth().is_required();
        let mut who = json!({ "name": self.name(), "from": self.from(), "required": required });
        if let Claim::Login { pass, .. } = self.claim() {
            let inner = &self.auth().inner;
            let rest = lock(&inner.logins).rest_of(pass, inner.broker.monotonic());
            who["login"] = true.into();
            who["login_ends_in_ms"] = rest.map(|rest| rest.as_millis() as u64).into();
        }
        who
    }

    fn ticket(&self) -> Result<Value, CommandError> {
        let inner = &self.auth().inner;
        let ticket = lock(&inner.tickets).add(self.claim().clone(), inner.broker.monotonic())?;
        let ticket = ticket.ok_or(CommandError::TooMany { what: "tickets", limit: 10_000 })?;
        Ok(json!({ "ticket": ticket, "expires_in_ms": crate::sessions::TICKET.as_millis() as u64 }))
    }

    /// A secret for a cookie that stands for this caller.
    ///
    /// # Errors
    /// When there are too many of them.
    pub fn cookie(&self) -> Result<String, CommandError> {
        let inner = &self.auth().inner;
        let cookie = lock(&inner.logins).add(self.claim().clone(), inner.broker.monotonic())?;
        cookie.ok_or(CommandError::TooMany { what: "logins", limit: 10_000 })
    }
}

fn run(auth: &Auth, command: Command) -> Result<Value, CommandError> {
    match command {
        Command::WhoAmI {} | Command::Ticket {} => Ok(Value::Null),
        Command::Check { name, right, on } => check(auth, &name, &right, &on),
        Command::TokenCreate { name, roles, expires_in_ms } => {
            token_create(auth, name, roles, expires_in_ms)
        }
        Command::TokenList {} => {
            let policy = auth.policy();
            let row = |(id, token): (&String, &Token)| token_json(&policy, id, token);
            Ok(json!({ "tokens": policy.tokens.iter().map(row).collect::<Vec<_>>() }))
        }
        Command::TokenShow { id } => {
            let policy = auth.policy();
            let token = policy.tokens.get(&id).ok_or_else(|| unknown("token", &id))?;
            Ok(token_json(&policy, &id, token))
        }
        Command::TokenRevoke { id } => token_revoke(auth, &id),
        Command::RoleSet { role, rules } => change(auth, |policy| {
            fixed(policy, &role)?;
            let role = Arc::new(Role::new(&role, rules_of(&rules)?)?);
            let record = Record::Role(Arc::clone(&role));
            room(
                policy.roles.contains_key(role.name()),
                policy.roles.len(),
                ALL_ROLES_MAX,
                "roles",
            )?;
            policy.put(record.clone());
            Ok((role_json(&role), vec![Change::Put(record)]))
        }),
        Command::RoleRemove { role } => change(auth, |policy| {
            fixed(policy, &role)?;
            let holder = policy.identities.iter().find(|(_, it)| it.roles.contains(&role));
            if let Some((name, _)) = holder {
                return Err(CommandError::Bad(format!(
                    "{name} has the role {role}; take it away first"
                )));
            }
            policy.roles.remove(&role).ok_or_else(|| unknown("role", &role))?;
            Ok((json!({ "removed": role }), vec![Change::Remove("role", role)]))
        }),
        Command::RoleList {} => {
            let policy = auth.policy();
            let roles: Vec<_> = policy.roles.values().map(|role| role_json(role)).collect();
            Ok(json!({ "roles": roles }))
        }
        Command::IdentitySet { name, roles, quotas } => change(auth, |policy| {
            check_name(&name)?;
            fixed_identity(policy, &name)?;
            let known = policy.identities.get(&name).cloned();
            room(known.is_some(), policy.identities.len(), IDENTITIES_MAX, "identities")?;
            let known = known.unwrap_or_default();
            let quotas = quotas.unwrap_or(known.quotas);
            let identity = Identity { roles: roles_of(policy, roles)?, quotas, ..known };
            let record = Record::Identity(name.clone(), identity.clone());
            policy.put(record.clone());
            Ok((identity_json(&name, &identity), vec![Change::Put(record)]))
        }),
        Command::IdentityRemove { name } => change(auth, |policy| {
            fixed_identity(policy, &name)?;
            policy.identities.remove(&name).ok_or_else(|| unknown("identity", &name))?;
            let mut changes = vec![Change::Remove("identity", name.clone())];
            let mine = policy.tokens.iter().filter(|(_, token)| token.name == name);
            changes.extend(mine.map(|(id, _)| Change::Remove("token", id.clone())));
            policy.tokens.retain(|_, token| token.name != name);
            Ok((json!({ "removed": name }), changes))
        }),
        Command::IdentityList {} => {
            let policy = auth.policy();
            let row = |(name, identity): (&String, &Identity)| identity_json(name, identity);
            Ok(json!({ "identities": policy.identities.iter().map(row).collect::<Vec<_>>() }))
        }
        Command::PasswordSet { name, password } => {
            if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len()) {
                let why =
                    format!("a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes");
                return Err(CommandError::Bad(why));
            }
            let hashed = hash::hash_password(&password)?;
            let done = change(auth, |policy| {
                let known =
                    policy.identities.get(&name).ok_or_else(|| unknown("identity", &name))?;
                let mut identity = Identity { password: Some(hashed), ..known.clone() };
                policy.put(Record::Identity(name.clone(), identity.clone()));
                if policy.is_fixed_identity(&name) {
                    // The store keeps the password only: rights end with the file's.
                    (identity.roles, identity.quotas) = (Vec::new(), Quotas::default());
                }
                let record = Record::Identity(name.clone(), identity);
                Ok((json!({ "name": name, "password": true }), vec![Change::Put(record)]))
            })?;
            auth.end_logins(&name);
            Ok(done)
        }
    }
}

fn token_create(
    auth: &Auth,
    name: String,
    roles: Option<Vec<String>>,
    expires_in_ms: Option<u64>,
) -> Result<Value, CommandError> {
    check_name(&name)?;
    let (id, secret) = (hash::new_id()?, hash::new_secret()?);
    let now = auth.broker().now().0;
    change(auth, |policy| {
        room(false, policy.tokens.len(), TOKENS_MAX, "tokens")?;
        let mut changes = Vec::new();
        match (policy.identities.get(&name), roles) {
            (Some(known), Some(roles)) if known.roles != roles => {
                let why = format!(
                    "{name} has the roles {}; change them with `gapless auth grant`, or leave them out",
                    known.roles.join(",")
                );
                return Err(CommandError::Bad(why));
            }
            (Some(_), _) => {}
            (None, None) => {
                let why = format!("{name} is new: say what it may do, with its roles");
                return Err(CommandError::Bad(why));
            }
            (None, Some(roles)) => {
                let roles = roles_of(policy, roles)?;
                let identity = Identity { roles, ..Identity::default() };
                changes.push(Change::Put(Record::Identity(name.clone(), identity)));
            }
        }
        let expires_ms = expires_in_ms.map(|ms| now.saturating_add(ms));
        let token = Token { name, hash: hash::hash(&secret), created_ms: now, expires_ms };
        changes.push(Change::Put(Record::Token(id.clone(), token.clone())));
        for each in &changes {
            if let Change::Put(record) = each {
                policy.put(record.clone());
            }
        }
        let mut json = token_json(policy, &id, &token);
        json["token"] = hash::token_text(&id, &secret).into();
        Ok((json, changes))
    })
}

/// Revokes one token, or all of a name.
fn token_revoke(auth: &Auth, id: &str) -> Result<Value, CommandError> {
    change(auth, |policy| {
        let is_meant = |(token_id, token): &(&String, &Token)| *token_id == id || token.name == id;
        let ids: Vec<String> =
            policy.tokens.iter().filter(is_meant).map(|(id, _)| id.clone()).collect();
        if ids.is_empty() {
            return Err(unknown("token", id));
        }
        policy.tokens.retain(|id, _| !ids.contains(id));
        let changes = ids.iter().map(|id| Change::Remove("token", id.clone())).collect();
        Ok((json!({ "revoked": ids }), changes))
    })
}

fn check(auth: &Auth, name: &str, right: &str, on: &str) -> Result<Value, CommandError> {
    let right: Right = right.parse()?;
    let pattern = Pattern::parse(on)?;
    let topic = pattern.as_name();
    let asked = topic.as_ref().map_or(On::All(&pattern), On::Name);
    let claim = match name {
        crate::auth::ANONYMOUS => Claim::Nothing,
        name => Claim::Name(name.to_owned()),
    };
    let who = auth.inner.who(&claim).map_err(|_| unknown("identity", name))?;
    let caller = Caller::new(auth.clone(), Arc::new(claim), who, "".into());
    let mut answer = json!({ "name": name, "right": right.name(), "on": on });
    let (allowed, role, rule, why) = match caller.explain(right, asked) {
        None => (
            true,
            None,
            None,
            "credentials are not required, so every client may do everything".to_owned(),
        ),
        Some(decision) => match decision.by {
            None => (false, None, None, "no rule of its roles allows it".to_owned()),
            Some((role, rule)) => {
                let does = if rule.effect == Effect::Allow { "allows" } else { "denies" };
                let why = format!("`{rule}` of role {role} {does} it");
                (decision.allowed, Some(role.to_owned()), Some(rule.to_string()), why)
            }
        },
    };
    answer["allowed"] = allowed.into();
    answer["role"] = role.into();
    answer["rule"] = rule.into();
    answer["why"] = why.into();
    Ok(answer)
}

/// A record that changes.
enum Change {
    Put(Record),
    Remove(&'static str, String),
}

/// Changes the records, on the disk and then in memory, in one order for both.
fn change<T>(
    auth: &Auth,
    decide: impl FnOnce(&mut Policy) -> Result<(T, Vec<Change>), CommandError>,
) -> Result<T, CommandError> {
    let _order = lock(&auth.inner.changing);
    let mut policy = Policy::clone(&auth.policy());
    let (answer, changes) = decide(&mut policy)?;
    store(auth.broker(), &changes)?;
    auth.set_policy(policy);
    Ok(answer)
}

fn store(broker: &Broker, changes: &[Change]) -> Result<(), CommandError> {
    let mut atomic = Atomic::new();
    for change in changes {
        atomic = match change {
            Change::Put(record) => atomic.set_cell(record.cell(), record.encode()),
            Change::Remove(kind, name) => atomic.remove_cell(cell(kind, name)),
        };
    }
    let ack = broker.subsystem("$auth").commit(atomic, &PublishOptions::default()).wait();
    match ack {
        Ok(gapless_core::PublishAck::Rejected(reason)) => {
            Err(CommandError::System(reason.to_string()))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(CommandError::System(error.to_string())),
    }
}

fn room(known: bool, count: usize, limit: usize, what: &'static str) -> Result<(), CommandError> {
    if known || count < limit { Ok(()) } else { Err(CommandError::TooMany { what, limit }) }
}

/// That an identity of the file is changed there.
fn fixed_identity(policy: &Policy, name: &str) -> Result<(), CommandError> {
    if policy.is_fixed_identity(name) {
        return Err(CommandError::Bad(format!(
            "{name} is in the file auth.rules_file: change it there"
        )));
    }
    Ok(())
}

fn fixed(policy: &Policy, role: &str) -> Result<(), CommandError> {
    if policy.is_fixed_role(role) {
        let why = format!("the role {role} is in the file auth.rules_file: change it there");
        return Err(CommandError::Bad(why));
    }
    if is_built_in(role) {
        return Err(CommandError::Bad(format!(
            "the role {role} is built in and cannot be changed"
        )));
    }
    Ok(())
}

fn roles_of(policy: &Policy, roles: Vec<String>) -> Result<Vec<String>, CommandError> {
    if let Some(missing) = roles.iter().find(|role| !policy.roles.contains_key(*role)) {
        return Err(unknown("role", missing));
    }
    if roles.len() > ROLES_MAX {
        return Err(CommandError::TooMany { what: "roles of one identity", limit: ROLES_MAX });
    }
    Ok(roles)
}

fn unknown(what: &str, name: &str) -> CommandError {
    CommandError::Unknown(format!("{what} {name:?}"))
}

fn role_json(role: &Role) -> Value {
    let rules: Vec<String> = role.rules().iter().map(ToString::to_string).collect();
    json!({ "role": role.name(), "rules": rules, "built_in": is_built_in(role.name()) })
}

fn identity_json(name: &str, identity: &Identity) -> Value {
    json!({
        "name": name, "roles": identity.roles, "quotas": identity.quotas,
        "password": identity.password.is_some(),
    })
}

fn token_json(policy: &Policy, id: &str, token: &Token) -> Value {
    let roles = policy.identities.get(&token.name).map(|identity| identity.roles.clone());
    json!({
        "id": id, "name": token.name, "roles": roles.unwrap_or_default(),
        "created_ms": token.created_ms, "expires_ms": token.expires_ms,
    })
}
