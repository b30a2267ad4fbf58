//! A client and what it may do: what listeners hold instead of a bare broker.
//!
//! Every right is checked here and nowhere else, and what is worth an audit is said here. A
//! decision about publishing is remembered per topic until any record changes.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use gapless_broker::Broker;
use gapless_core::rights::{Decision, On, Right};
use gapless_core::{Pattern, TopicName};
use serde_json::json;
use tokio::sync::watch;

use crate::auth::{Auth, Claim, Refused, Who};
use crate::quota::{Held, OverQuota, Places};
use crate::{CELLS, auth};

/// Topics whose decision is remembered, at most; then all are forgotten.
const REMEMBERED_MAX: usize = 1_024;

/// What the cells of outbox relays begin with; the rest is the relay's name.
const RELAYS: &str = "$outbox/";

/// What the cells of the server itself begin with: identities, and what a node of a cluster notes.
const OWN_CELLS: [&str; 2] = [CELLS, "$cluster/"];

/// What was allowed, shared by the clones of a caller.
type Kept = Arc<Mutex<Vec<(Right, Pattern)>>>;

/// A client, its broker and its rights.
#[derive(Clone)]
pub struct Caller {
    auth: Auth,
    claim: Arc<Claim>,
    who: Arc<Who>,
    from: Arc<str>,
    generation: u64,
    /// Topics it may publish to, as far as it has; most callers have none.
    #[expect(clippy::box_collection, reason = "an idle connection holds a pointer, not a set")]
    may_publish: Option<Box<HashSet<TopicName>>>,
    /// What it was allowed so far, if that is looked at again when records change.
    kept: Option<Kept>,
}

/// That a right is missing. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} may not {right} on {on}; `gapless auth check {who} {right} {on}` says why")]
pub struct Denied {
    /// The name of the caller.
    pub who: String,
    /// What for.
    pub right: Right,
    /// Where.
    pub on: String,
}

/// Why a client may not go on with what it was allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// What it proved is not good any more.
    #[error(transparent)]
    Proof(#[from] Refused),
    /// A right was taken away.
    #[error(transparent)]
    Right(#[from] Denied),
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {}", self.who.name, self.from)
    }
}

impl Caller {
    pub(crate) fn new(auth: Auth, claim: Arc<Claim>, who: Arc<Who>, from: Arc<str>) -> Self {
        let generation = auth.generation();
        Self { auth, claim, who, from, generation, may_publish: None, kept: None }
    }

    /// The broker.
    pub fn broker(&self) -> &Broker {
        self.auth.broker()
    }

    /// Where identities are kept.
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Who it is.
    pub fn name(&self) -> &str {
        &self.who.name
    }

    /// From where.
    pub fn from(&self) -> &str {
        &self.from
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Whether it has a right on a topic, a group or an executable.
    ///
    /// # Errors
    /// When it has not.
    pub fn may(&self, right: Right, name: &TopicName) -> Result<(), Denied> {
        self.decide(right, On::Name(name))
    }

    /// Whether it has a right on every name that a pattern matches.
    ///
    /// # Errors
    /// When it has not.
    pub fn may_all(&self, right: Right, pattern: &Pattern) -> Result<(), Denied> {
        match pattern.as_name() {
            Some(name) => self.decide(right, On::Name(&name)),
            None => self.decide(right, On::All(pattern)),
        }
    }

    /// Whether it may use an area of the server: `server`, `clients`, `clients.close`, `auth`, `cluster`
    /// or `backup`.
    ///
    /// # Errors
    /// When it may not.
    pub fn may_area(&self, area: &'static str) -> Result<(), Denied> {
        let name = TopicName::parse(area).expect("areas are names");
        self.decide(Right::Admin, On::Name(&name))
    }

    /// Whether it may follow under a name that outlives its connection: its own name, or one that
    /// begins with it and a dot. Otherwise it could take over what is held for another.
    ///
    /// # Errors
    /// When it may not.
    pub fn may_follow_as(&self, identity: &str) -> Result<(), Denied> {
        let rest = identity.strip_prefix(self.name());
        let is_own = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if self.who.everything || is_own {
            return Ok(());
        }
        Err(self.denied(Right::Subscribe, &format!("identity {identity}")))
    }

    /// Whether it has a right on a cell. Those of the server itself are not shown to anyone.
    ///
    /// # Errors
    /// When it has not.
    pub fn may_cell(&self, right: Right, cell: &[u8]) -> Result<(), Denied> {
        let text = String::from_utf8_lossy(cell);
        if let Some(own) = OWN_CELLS.iter().find(|own| text.starts_with(**own)) {
            return Err(self.denied(right, own));
        }
        if let Some(relay) = text.strip_prefix(RELAYS)
            && let Ok(relay) = TopicName::parse(relay)
        {
            return self.may(Right::Outbox, &relay);
        }
        // A name that is not a valid topic name matches only the pattern for everything.
        match TopicName::parse(&text) {
            Ok(name) => self.may(right, &name),
            Err(_) => self.may_all(right, &Pattern::parse(">").expect("a pattern")),
        }
    }

    /// Whether it may publish to a topic; the answer is remembered.
    ///
    /// # Errors
    /// When it may not.
    pub fn may_publish(&mut self, topic: &TopicName) -> Result<(), Denied> {
        let is_known = |known: &HashSet<TopicName>| known.contains(topic);
        if self.who.everything || self.may_publish.as_deref().is_some_and(is_known) {
            return Ok(());
        }
        self.may(Right::Publish, topic)?;
        let known = self.may_publish.get_or_insert_default();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(topic.clone());
        Ok(())
    }

    /// Whether it has the right, without a word to the audit: for lists.
    pub fn sees(&self, right: Right, name: &TopicName) -> bool {
        self.who.everything || self.who.grants.decide(right, On::Name(name)).allowed
    }

    /// Whether there may be a name on which it has the right.
    pub fn sees_somewhere(&self, right: Right) -> bool {
        self.who.everything || self.who.grants.allows_somewhere(right)
    }

    /// The same for every name that a pattern matches.
    pub fn sees_all(&self, right: Right, pattern: &Pattern) -> bool {
        self.who.everything || self.who.grants.decide(right, On::All(pattern)).allowed
    }

    fn decide(&self, right: Right, on: On<'_>) -> Result<(), Denied> {
        let allowed = self.who.everything || self.who.grants.decide(right, on).allowed;
        let text = match on {
            On::Name(name) => name.as_str(),
            On::All(pattern) => pattern.as_str(),
        };
        if allowed {
            if is_audited(right) {
                self.audit("audit.allowed", right, text);
            }
            self.keep(right, on);
            return Ok(());
        }
        Err(self.denied(right, text))
    }

    /// Remembers what it is allowed from now on, so that [`Self::lost`] can look at it again.
    #[must_use]
    pub fn keeping(mut self) -> Self {
        // A caller that may do everything without a credential has nothing to lose.
        self.kept = (!self.who.everything).then(Arc::default);
        self
    }

    fn keep(&self, right: Right, on: On<'_>) {
        let Some(kept) = &self.kept else { return };
        let pattern = match on {
            On::Name(name) => Pattern::literal(name),
            On::All(pattern) => pattern.clone(),
        };
        let mut kept = auth::lock(kept);
        if kept.len() < REMEMBERED_MAX {
            kept.push((right, pattern));
        }
    }

    /// Whether it can lose what it was allowed.
    pub fn may_lose(&self) -> bool {
        self.kept.is_some()
    }

    /// Resolves, with the reason, when its proof or any of what it was allowed is not good any
    /// more.
    pub async fn lost(mut self) -> Lost {
        let mut changes = self.changes();
        // What is looked at again is not kept a second time.
        let Some(kept) = self.kept.take() else { return std::future::pending().await };
        loop {
            if let Err(refused) = self.refresh() {
                return refused.into();
            }
            let checks = auth::lock(&kept).clone();
            let denied = checks.iter().find_map(|(right, on)| self.may_all(*right, on).err());
            if let Some(denied) = denied {
                return denied.into();
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn denied(&self, right: Right, on: &str) -> Denied {
        self.audit("audit.denied", right, on);
        Denied { who: self.who.name.clone(), right, on: on.to_owned() }
    }

    /// Says in the log that it asked for an administrative act, which it may.
    pub fn acts(&self, action: &str, on: &str) {
        let (who, from) = (self.name(), self.from());
        tracing::info!(target: "audit", who, from, action, on, "admin request");
    }

    fn audit(&self, kind: &'static str, right: Right, on: &str) {
        let who = [("who", json!(self.name())), ("from", json!(self.from()))];
        let what = [("right", json!(right.name())), ("on", json!(on))];
        self.auth.audit(kind, &[who, what].concat());
    }

    /// Writes into the audit what this caller has changed, and of what.
    pub fn audit_change(&self, what: &str, name: &str) {
        let who = [("who", json!(self.name())), ("from", json!(self.from()))];
        self.auth.audit(
            "audit.changed",
            &[who, [("what", json!(what)), ("name", json!(name))]].concat(),
        );
    }

    /// Which rule decides, for people.
    pub(crate) fn explain(&self, right: Right, on: On<'_>) -> Option<Decision<'_>> {
        (!self.who.everything).then(|| self.who.grants.decide(right, on))
    }

    /// Signals each change of records; [`Self::refresh`] is to be called then.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.auth.changes()
    }

    /// Looks at the records again, if any changed.
    ///
    /// # Errors
    /// When its proof is not good any more: the connection is to end.
    pub fn refresh(&mut self) -> Result<(), Refused> {
        let generation = self.auth.generation();
        if generation == self.generation {
            return Ok(());
        }
        match self.auth.inner.who(&self.claim) {
            Ok(who) => {
                self.who = who;
                self.generation = generation;
                self.may_publish = None;
                Ok(())
            }
            Err(why) => Err(self.auth.refuse(why, false, &self.from)),
        }
    }

    /// Counts a connection for as long as what is given back is held.
    ///
    /// # Errors
    /// When there are as many as its quota allows.
    pub fn connect(&self) -> Result<Held, OverQuota> {
        let limit = self.who.quotas.connections;
        let held = self.who.usage.hold(|usage| &usage.connections, limit);
        held.ok_or_else(|| self.over("connections", limit.unwrap_or_default()))
    }

    /// The same for a connection on which each request says who sends it: it counts once for each
    /// identity, until the places are dropped with it.
    ///
    /// # Errors
    /// When there are as many as its quota allows.
    pub fn connect_by(&self, places: &Places) -> Result<(), OverQuota> {
        if self.who.everything {
            return Ok(());
        }
        places.count(&self.who.usage, || self.connect())
    }

    /// Counts a subscription or membership for as long as what is given back is held.
    ///
    /// # Errors
    /// When there are as many as its quota allows.
    pub fn follow(&self) -> Result<Held, OverQuota> {
        let limit = self.who.quotas.subscriptions;
        let held = self.who.usage.hold(|usage| &usage.subscriptions, limit);
        held.ok_or_else(|| self.over("subscriptions", limit.unwrap_or_default()))
    }

    /// Takes a publish of its quotas.
    ///
    /// # Errors
    /// When that is more than they allow; nothing was taken.
    pub fn charge(&self, messages: u64, bytes: u64) -> Result<(), OverQuota> {
        let quotas = &self.who.quotas;
        if self.who.everything || *quotas == crate::records::Quotas::default() {
            return Ok(());
        }
        let now = self.broker().monotonic();
        let rates = (quotas.messages_per_s, quotas.bytes_per_s);
        let charged = self.who.usage.publish(rates, (messages, bytes), now);
        charged.map_err(|(what, limit, retry_after)| {
            let limit = if limit == 0 { quotas.stored_bytes.unwrap_or_default() } else { limit };
            OverQuota { who: self.who.name.clone(), what, limit, retry_after }
        })
    }

    /// Whether one more topic is within its quota. May take long with very many topics.
    ///
    /// # Errors
    /// When there are as many as it allows.
    pub fn may_add_topic(&self) -> Result<(), OverQuota> {
        let Some(limit) = self.who.quotas.topics else { return Ok(()) };
        let everything = Pattern::parse(">").expect("a pattern");
        let topics = self.broker().list_topics(&everything);
        let mine = topics.iter().filter(|info| self.sees(Right::Create, &info.name)).count();
        if (mine as u64) < limit { Ok(()) } else { Err(self.over("topics", limit)) }
    }

    fn over(&self, what: &'static str, limit: u64) -> OverQuota {
        let retry_after = auth::RETRY_AFTER;
        OverQuota { who: self.who.name.clone(), what, limit, retry_after }
    }
}

/// Rights whose use is worth a word even if it is allowed: they change what others rely on.
fn is_audited(right: Right) -> bool {
    matches!(right, Right::Create | Right::Configure | Right::Delete | Right::Dlq)
}
