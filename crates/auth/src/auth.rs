//! From a credential to a caller: the identity, now and whenever the records change.
//!
//! What a client proved is kept as a [`Claim`], and asked again after each change: so a token that
//! is revoked, an identity that is removed and a role that is changed reach connections that are
//! open.

use std::collections::BTreeMap;
use std::net::IpAddr;
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
use crate::sessions::{LOGIN, Passes, TICKET};
use crate::throttle::Throttle;
use crate::{CELLS, jwt};

/// The name of a client that proves nothing.
pub(crate) const ANONYMOUS: &str = "anonymous";
/// The name of the server itself, as far as it acts on its own.
const SERVER: &str = "server";
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
    policy: RwLock<Arc<Policy>>,
    /// Held while records are changed, so that the policy follows their order.
    pub(crate) changing: Mutex<()>,
    changed: watch::Sender<u64>,
    throttle: Mutex<Throttle>,
    pub(crate) logins: Mutex<Passes<Claim>>,
    pub(crate) tickets: Mutex<Passes<Claim>>,
    passwords: Semaphore,
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
        let mut policy = Policy::default();
        for (cell, value) in broker.cells_under(CELLS.as_bytes()) {
            policy.put(Record::decode(&cell, &value)?);
        }
        let keys = options.jwt.map(jwt::Keys::open).transpose()?;
        let inner = Inner {
            broker: broker.clone(),
            audit: Audit::open(broker, options.audit_bytes)?,
            required: options.required,
            keys,
            policy: RwLock::new(Arc::new(policy)),
            changing: Mutex::default(),
            changed: watch::Sender::new(0),
            throttle: Mutex::default(),
            logins: Mutex::new(Passes::new(LOGIN)),
            tickets: Mutex::new(Passes::new(TICKET)),
            passwords: Semaphore::new(PASSWORDS_AT_ONCE),
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
                lock(&self.inner.logins).find(text, now).ok_or("the login is over: log in again")
            }
        }
    }

    /// Notes a failed login; returns how long the answer waits.
    pub(crate) fn refuse(&self, why: &'static str, counts: bool, from: &str) -> Refused {
        let address = from.parse::<std::net::SocketAddr>().map(|from| from.ip());
        let address: Option<IpAddr> = address.or_else(|_| from.parse()).ok();
        let now = self.inner.broker.monotonic();
        let delay = address.filter(|_| counts).map(|it| lock(&self.inner.throttle).failed(it, now));
        self.audit("audit.refused", &[("from", json!(from)), ("why", json!(why))]);
        Refused { why, delay: delay.unwrap_or_default() }
    }

    /// The caller whose password this is, on a thread that may block for tens of milliseconds.
    ///
    /// # Errors
    /// When the name or the password is wrong.
    pub async fn login(&self, name: &str, password: String, from: &str) -> Result<Caller, Refused> {
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

    /// Called about once a second: ends what is over by now, and looks at files and quotas.
    pub fn tick(&self) {
        let now = self.inner.broker.now();
        let before = std::mem::replace(&mut *lock(&self.inner.looked), now);
        let policy = self.policy();
        let mut ends = policy.tokens.values().filter_map(|token| token.expires());
        let ended = ends.any(|end| before < end && end <= now);
        let reloaded = self.inner.keys.as_ref().is_some_and(jwt::Keys::reload);
        let signed = self.inner.keys.is_some();
        if ended || reloaded || signed {
            self.inner.changed.send_modify(|number| *number += 1);
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
            Claim::Signed(claims) => {
                if is_expired(Some(claims.expires), self.broker.now()) {
                    return Err("the token has expired");
                }
                self.named(&policy, &claims.name, &claims.roles).ok_or(unknown)
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
