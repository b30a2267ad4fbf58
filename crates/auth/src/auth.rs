//! From a credential to a caller: the identity, now and whenever the records change.
//!
//! What a client proved is kept as a [`Claim`], and asked again after each change: so a token that
//! is revoked, an identity that is removed and a role that is changed reach connections that are
//! open.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use gapless_broker::{Broker, TopicError};
use gapless_core::Timestamp;
use gapless_core::credential::{TokenText, is_expired};
use gapless_core::rights::Grants;
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use crate::audit::Audit;
use crate::caller::Caller;
use crate::hash;
use crate::policy::{ADMIN, Policy};
use crate::quota::Usage;
use crate::records::{Quotas, Record, RecordError};
use crate::rules_file::{RulesFile, RulesFileError};
use crate::sessions::{LOGIN, Passes, TICKET};
use crate::throttle::{Throttle, network};
use crate::{CELLS, jwt};

/// The name of a client that proves nothing.
pub(crate) const ANONYMOUS: &str = "anonymous";
/// The name of the server itself, as far as it acts on its own.
const SERVER: &str = "server";
/// Why a cookie is not good.
const LOGIN_OVER: &str = "the login is over: log in again";
/// Passwords that wait to be checked for one address, at most: so one that sends very many does not
/// keep others from logging in.
const PASSWORDS_PER_ADDRESS: u32 = 8;
/// Passwords that are checked at the same time, at most: each takes some 19 MiB of memory.
const PASSWORDS_AT_ONCE: usize = 2;
/// When a client that has used up a quota may try again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How clients authenticate.
#[derive(Clone, Debug, Default)]
pub struct AuthOptions {
    /// Whether a client must authenticate. If not, a client without a credential may do everything.
    pub required: bool,
    /// What signed tokens (JWT) must have; none are accepted without.
    pub jwt: Option<jwt::JwtOptions>,
    /// A file of roles and identities, beside those of the store.
    pub rules_file: Option<PathBuf>,
    /// How many bytes of the audit are kept in the topic `$audit.log`; none keeps nothing.
    pub audit_bytes: Option<u64>,
}

/// Why identities cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// A record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The keys of signed tokens cannot be read.
    #[error(transparent)]
    Keys(#[from] jwt::KeysError),
    /// The file of roles and identities cannot be used.
    #[error(transparent)]
    Rules(#[from] RulesFileError),
    /// The topic of the audit cannot be created.
    #[error("the audit cannot be kept: {0}")]
    Audit(#[from] TopicError),
}

/// A client's credential.
#[derive(Clone, Copy)]
pub enum Proof<'a> {
    /// By nothing.
    Nothing,
    /// By a token, of ours or signed by another.
    Token(&'a str),
    /// By a certificate of this name, which TLS has verified.
    Certificate(&'a str),
    /// By the user id of the process at the other end of a Unix socket.
    Peer {
        /// Its user.
        uid: u32,
        /// The server's own.
        own: u32,
    },
    /// By a ticket, which is good for one request.
    Ticket(&'a str),
    /// By the cookie of the page.
    Cookie(&'a str),
}

/// Why a client was not let in. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// Why, without details that would help an attacker.
    pub why: &'static str,
    /// How long the answer waits.
    pub delay: Duration,
}

/// What was proved.
#[derive(Clone, Debug)]
pub(crate) enum Claim {
    Nothing,
    Token(String),
    Name(String),
    Owner(u32),
    Server,
    Signed(jwt::Claims),
    /// A login of the page: good while its pass is there and what it stands for is.
    Login {
        pass: String,
        of: Box<Self>,
    },
}

/// The identity behind a claim, with the records of one moment.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) name: String,
    /// Nothing is looked up: everything is allowed.
    pub(crate) everything: bool,
    pub(crate) grants: Grants,
    pub(crate) quotas: Quotas,
    pub(crate) usage: Arc<Usage>,
}

/// Roles, identities and tokens of a store. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Auth {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) broker: Broker,
    audit: Audit,
    required: bool,
    keys: Option<jwt::Keys>,
    rules: Option<RulesFile>,
    policy: RwLock<Arc<Policy>>,
    /// Held while records are changed, so that the policy follows their order.
    pub(crate) changing: Mutex<()>,
    changed: watch::Sender<u64>,
    throttle: Mutex<Throttle>,
    pub(crate) logins: Mutex<Passes<Claim>>,
    pub(crate) tickets: Mutex<Passes<Claim>>,
    passwords: Semaphore,
    /// How many passwords wait, by address.
    waiting: Mutex<BTreeMap<IpAddr, u32>>,
    usages: Mutex<BTreeMap<String, Arc<Usage>>>,
    /// What most connections have in common, once.
    nothing: Arc<Claim>,
    stranger: Arc<Who>,
    everybody: Arc<Who>,
    /// Up to when the ends of tokens were looked at.
    looked: Mutex<Timestamp>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Auth {
    /// Reads the records of a store.
    ///
    /// # Errors
    /// When one of them, or the keys of signed tokens, cannot be read.
    pub fn open(broker: &Broker, options: AuthOptions) -> Result<Self, AuthError> {
        let rules = options.rules_file.map(RulesFile::open).transpose()?;
        let policy = read_policy(broker, rules.as_ref())?;
        let keys = options.jwt.map(jwt::Keys::open).transpose()?;
        let inner = Inner {
            broker: broker.clone(),
            audit: Audit::open(broker, options.audit_bytes)?,
            required: options.required,
            keys,
            rules,
            policy: RwLock::new(Arc::new(policy)),
            changing: Mutex::default(),
            changed: watch::Sender::new(0),
            throttle: Mutex::default(),
            logins: Mutex::new(Passes::new(LOGIN)),
            tickets: Mutex::new(Passes::new(TICKET)),
            passwords: Semaphore::new(PASSWORDS_AT_ONCE),
            waiting: Mutex::default(),
            usages: Mutex::default(),
            nothing: Arc::new(Claim::Nothing),
            stranger: Arc::new(Who { everything: false, ..everything(ANONYMOUS) }),
            everybody: Arc::new(everything(ANONYMOUS)),
            looked: Mutex::new(broker.now()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A store whose clients prove nothing and may do everything.
    pub fn open_to_all(broker: &Broker) -> Result<Self, AuthError> {
        Self::open(broker, AuthOptions::default())
    }

    /// The broker.
    pub fn broker(&self) -> &Broker {
        &self.inner.broker
    }

    /// Whether a client must authenticate.
    pub fn is_required(&self) -> bool {
        self.inner.required
    }

    /// The client that proves itself so. `from` is its address, for people and for the audit.
    ///
    /// # Errors
    /// When the proof is missing or not good.
    pub fn caller(&self, proof: Proof<'_>, from: impl Into<Arc<str>>) -> Result<Caller, Refused> {
        let from = from.into();
        let claim = self.claim(proof).and_then(|claim| {
            let who = self.inner.who(&claim)?;
            let claim = match claim {
                Claim::Nothing => Arc::clone(&self.inner.nothing),
                claim => Arc::new(claim),
            };
            Ok(Caller::new(self.clone(), claim, who, Arc::clone(&from)))
        });
        claim.map_err(|why| self.refuse(why, !matches!(proof, Proof::Nothing), &from))
    }

    /// A client that has said nothing yet, and may do nothing.
    pub fn stranger(&self, from: impl Into<Arc<str>>) -> Caller {
        let (nothing, stranger) = (&self.inner.nothing, &self.inner.stranger);
        Caller::new(self.clone(), Arc::clone(nothing), Arc::clone(stranger), from.into())
    }

    /// The server itself.
    pub fn server(&self) -> Caller {
        let who = Arc::new(everything(SERVER));
        Caller::new(self.clone(), Arc::new(Claim::Server), who, SERVER.into())
    }

    fn claim(&self, proof: Proof<'_>) -> Result<Claim, &'static str> {
        let now = self.inner.broker.monotonic();
        match proof {
            Proof::Nothing => Ok(Claim::Nothing),
            Proof::Token(text) => self.inner.token(text),
            Proof::Certificate(name) => Ok(Claim::Name(name.to_owned())),
            // Without required proofs a peer is as anonymous as others, and may do as much.
            Proof::Peer { .. } if !self.inner.required => Ok(Claim::Nothing),
            Proof::Peer { uid, own } if uid == own || uid == 0 => Ok(Claim::Owner(uid)),
            Proof::Peer { uid, .. } => Ok(Claim::Name(format!("unix:{uid}"))),
            Proof::Ticket(text) => lock(&self.inner.tickets)
                .take(text, now)
                .ok_or("the ticket is not valid, or was used before"),
            Proof::Cookie(text) => {
                let found = lock(&self.inner.logins).find(text, now).ok_or(LOGIN_OVER)?;
                Ok(Claim::Login { pass: hash::hash(text), of: Box::new(found) })
            }
        }
    }

    /// Notes a failed login; returns how long the answer waits.
    pub(crate) fn refuse(&self, why: &'static str, counts: bool, from: &str) -> Refused {
        let now = self.inner.broker.monotonic();
        let delay = address_of(from)
            .filter(|_| counts)
            .map(|it| lock(&self.inner.throttle).failed(it, now));
        self.audit("audit.refused", &[("from", json!(from)), ("why", json!(why))]);
        Refused { why, delay: delay.unwrap_or_default() }
    }

    /// The caller whose password this is, on a thread that may block for tens of milliseconds.
    ///
    /// # Errors
    /// When the name or the password is wrong.
    pub async fn login(&self, name: &str, password: String, from: &str) -> Result<Caller, Refused> {
        let Some(_waits) = Waits::begin(&self.inner, address_of(from)) else {
            return Err(self.refuse("too many logins of this address at once", true, from));
        };
        // The semaphore is never closed.
        let _permit = self.inner.passwords.acquire().await;
        let hashed = self.policy().identities.get(name).and_then(|it| it.password.clone());
        let fits = tokio::task::spawn_blocking(move || match hashed {
            Some(hashed) => hash::is_password(&hashed, &password),
            // A name that is unknown takes as long as one that is known.
            None => hash::hash_password(&password).is_err(),
        });
        let claim = match fits.await {
            Ok(true) => Ok(Claim::Name(name.to_owned())),
            _ => Err("the name or the password is wrong"),
        };
        let caller = claim.and_then(|claim| {
            let who = self.inner.who(&claim)?;
            Ok(Caller::new(self.clone(), Arc::new(claim), who, from.into()))
        });
        caller.map_err(|why| self.refuse(why, true, from))
    }

    /// Ends the login of a cookie, and with it the streams that were opened with it.
    pub fn logout(&self, cookie: &str) {
        let now = self.inner.broker.monotonic();
        if lock(&self.inner.logins).take(cookie, now).is_some() {
            self.tell_change();
        }
    }

    /// Ends the logins of a name that were made with its password.
    pub(crate) fn end_logins(&self, name: &str) {
        let now = self.inner.broker.monotonic();
        let of_name = |claim: &Claim| matches!(claim, Claim::Name(of) if of == name);
        if lock(&self.inner.logins).forget(now, of_name) {
            self.tell_change();
        }
    }

    fn tell_change(&self) {
        self.inner.changed.send_modify(|number| *number += 1);
    }

    /// Signals each change; its value is the number of the change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    pub(crate) fn generation(&self) -> u64 {
        *self.inner.changed.borrow()
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.inner.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        self.inner.changed.send_modify(|number| *number += 1);
    }

    /// Reads all records again, of the store and of the file.
    fn read_again(&self) {
        let _order = lock(&self.inner.changing);
        match read_policy(&self.inner.broker, self.inner.rules.as_ref()) {
            Ok(policy) => self.set_policy(policy),
            Err(error) => tracing::error!(%error, "the former rules stay in force"),
        }
    }

    /// Called about once a second: ends what is over by now, and looks at files and quotas.
    pub fn tick(&self) {
        let now = self.inner.broker.now();
        let before = std::mem::replace(&mut *lock(&self.inner.looked), now);
        if self.inner.rules.as_ref().is_some_and(RulesFile::reload) {
            self.read_again();
        }
        let policy = self.policy();
        let mut ends = policy.tokens.values().filter_map(|token| token.expires());
        let ended = ends.any(|end| before < end && end <= now);
        let reloaded = self.inner.keys.as_ref().is_some_and(jwt::Keys::reload);
        let signed = self.inner.keys.is_some();
        let over = lock(&self.inner.logins).forget(self.inner.broker.monotonic(), |_| false);
        if ended || reloaded || signed || over {
            self.tell_change();
        }
        self.measure(&policy);
    }

    /// Adds up what is stored for the identities that have a quota of it.
    fn measure(&self, policy: &Policy) {
        for (name, identity) in &policy.identities {
            if let Some(limit) = identity.quotas.stored_bytes {
                let grants = policy.grants(&identity.roles);
                self.inner.usage(name).measure(&self.inner.broker, &grants, limit);
            }
        }
    }

    /// Publishes an audit event.
    pub(crate) fn audit(&self, kind: &'static str, fields: &[(&str, serde_json::Value)]) {
        self.inner.audit.say(kind, fields);
    }
}

impl Inner {
    fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn token(&self, text: &str) -> Result<Claim, &'static str> {
        let Some(token) = TokenText::parse(text) else {
            let keys = self.keys.as_ref().ok_or("the token is not valid")?;
            return keys.verify(text, self.broker.now()).map(Claim::Signed);
        };
        let policy = self.policy();
        let fits =
            policy.tokens.get(token.id).is_some_and(|it| hash::is_hash_of(&it.hash, token.secret));
        if fits { Ok(Claim::Token(token.id.to_owned())) } else { Err("the token is not valid") }
    }

    pub(crate) fn usage(&self, name: &str) -> Arc<Usage> {
        Arc::clone(lock(&self.usages).entry(name.to_owned()).or_default())
    }

    fn named(&self, policy: &Policy, name: &str, more: &[String]) -> Option<Arc<Who>> {
        let identity = policy.identities.get(name);
        let roles = identity.map_or(&[][..], |identity| &identity.roles);
        if identity.is_none() && more.is_empty() {
            return None;
        }
        let grants = policy.grants(roles.iter().chain(more));
        let quotas = identity.map_or_else(Quotas::default, |identity| identity.quotas);
        let usage = self.usage(name);
        let name = name.to_owned();
        Some(Arc::new(Who { name, everything: false, grants, quotas, usage }))
    }

    /// The identity behind a claim now.
    pub(crate) fn who(&self, claim: &Claim) -> Result<Arc<Who>, &'static str> {
        let policy = self.policy();
        let unknown = "this server knows no identity of that name";
        match claim {
            Claim::Nothing if !self.required => Ok(Arc::clone(&self.everybody)),
            Claim::Nothing => self
                .named(&policy, ANONYMOUS, &[])
                .ok_or("authentication is required: use a token, a certificate or a login"),
            Claim::Token(id) => {
                let token = policy.tokens.get(id).ok_or("the token was revoked")?;
                if is_expired(token.expires(), self.broker.now()) {
                    return Err("the token has expired");
                }
                self.named(&policy, &token.name, &[]).ok_or(unknown)
            }
            Claim::Name(name) => self.named(&policy, name, &[]).ok_or(unknown),
            Claim::Owner(uid) => {
                let grants = policy.grants([&ADMIN.to_owned()]);
                let own = everything(&format!("unix:{uid}"));
                Ok(Arc::new(Who { everything: false, grants, ..own }))
            }
            Claim::Server => Ok(Arc::new(everything(SERVER))),
            Claim::Login { pass, of } => {
                let now = self.broker.monotonic();
                lock(&self.logins).rest_of(pass, now).ok_or(LOGIN_OVER)?;
                self.who(of)
            }
            Claim::Signed(claims) => {
                if is_expired(Some(claims.expires), self.broker.now()) {
                    return Err("the token has expired");
                }
                if !self.keys.as_ref().is_some_and(|keys| keys.has_key_of(claims)) {
                    return Err("the key that signed the token is not in force any more");
                }
                self.named(&policy, &claims.name, &claims.roles).ok_or(unknown)
            }
        }
    }
}

/// All records: those of the store, and over them those of the file.
fn read_policy(broker: &Broker, rules: Option<&RulesFile>) -> Result<Policy, RecordError> {
    let mut policy = Policy::default();
    for (cell, value) in broker.cells_under(CELLS.as_bytes()) {
        policy.put(Record::decode(&cell, &value)?);
    }
    Ok(match rules {
        Some(rules) => policy.with_file(&rules.records()),
        None => policy,
    })
}

/// The address in the text form of a peer; none for a Unix socket.
fn address_of(from: &str) -> Option<IpAddr> {
    let address = from.parse::<std::net::SocketAddr>().map(|from| from.ip());
    address.or_else(|_| from.parse()).ok()
}

/// A password that waits to be checked; its address is forgotten with the last.
struct Waits<'a> {
    inner: &'a Inner,
    network: Option<IpAddr>,
}

impl<'a> Waits<'a> {
    /// `None` when too many of the address wait already.
    fn begin(inner: &'a Inner, address: Option<IpAddr>) -> Option<Self> {
        let network = address.map(network);
        if let Some(network) = network {
            let mut waiting = lock(&inner.waiting);
            let count = waiting.entry(network).or_default();
            if *count >= PASSWORDS_PER_ADDRESS {
                return None;
            }
            *count += 1;
        }
        Some(Self { inner, network })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let Some(network) = self.network else { return };
        let mut waiting = lock(&self.inner.waiting);
        if let Some(count) = waiting.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&network);
            }
        }
    }
}

/// An identity that may do everything.
fn everything(name: &str) -> Who {
    let usage = Arc::default();
    let (grants, quotas) = (Grants::default(), Quotas::default());
    Who { name: name.to_owned(), everything: true, grants, quotas, usage }
}
