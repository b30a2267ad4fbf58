//! Members that live between requests: HTTP has no connection that a membership could be tied to.
//!
//! A session is created by the first fetch that names it, and ends when it is deleted, or when no
//! request of it came for the idle time and no lease of it is left. Their number is bounded.
//! What becomes of the messages is the group's business: one that is deleted leaves properly,
//! one that expires has gone without a word.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless_auth::{Caller, Held};
use gapless_broker::{Broker, Join, Leased, Member, MemberHandle};
use gapless_core::{Timestamp, TopicName};
use gapless_protocol::ErrorCode;
use tokio::sync::watch;

use crate::http::listener::server::Shared;
use crate::http::values::problem::Problem;
use crate::session::sessions::{Listed, Seat};

/// Longest name of a member, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// How often sessions that have ended are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// Sessions in one millisecond before numbers of two runs could meet, as a power of two.
const NUMBERS_BITS: u32 = 20;

/// All members of this listener.
pub(crate) struct Members {
    map: Mutex<Map>,
}

struct Map {
    by_name: HashMap<(TopicName, String), Arc<Session>>,
    by_number: HashMap<u64, Arc<Session>>,
    next: u64,
}

/// A member between its requests.
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) group: TopicName,
    pub(super) name: String,
    /// For what is said while another request takes.
    pub(super) handle: MemberHandle,
    /// One request takes at a time.
    pub(super) taking: tokio::sync::Mutex<Taking>,
    life: Mutex<Life>,
    ended: watch::Sender<bool>,
    /// Its place in the list of clients, while it lives.
    listed: (Listed, Seat),
    /// Its place among the subscriptions of the identity that created it.
    _held: Held,
}

/// What is needed to take messages.
pub(super) struct Taking {
    /// `None` when the session has ended.
    pub(super) member: Option<Member>,
    /// Leased, with how many of its messages were shown already.
    pub(super) rest: Option<(Leased, usize)>,
    /// In an ordered group: whether it gets the messages.
    pub(super) active: bool,
}

#[derive(Default)]
struct Life {
    /// Requests under way.
    requests: usize,
    /// When the last one ended.
    used: Timestamp,
    /// When its last lease runs out.
    leased: Timestamp,
}

/// A request of a session, which does not end meanwhile.
pub(super) struct Using {
    pub(super) session: Arc<Session>,
    broker: Broker,
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut life = lock(&self.session.life);
        life.requests -= 1;
        life.used = self.broker.now();
    }
}

impl Session {
    /// Resolves when the session has ended.
    pub(super) async fn ended(&self) {
        // An error means that the session is gone, which is as good.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Notes until when something is leased to it.
    pub(super) fn leased_until(&self, deadline: Timestamp) {
        let mut life = lock(&self.life);
        life.leased = life.leased.max(deadline);
    }

    fn is_due(&self, now: Timestamp, idle: Duration) -> bool {
        let life = lock(&self.life);
        life.requests == 0 && now >= life.used.after(idle).max(life.leased)
    }

    /// Whether an administrator closed it.
    fn is_closed(&self) -> bool {
        self.listed.1.session().is_closed()
    }

    /// Ends the membership. Leaving does not count as a failed attempt.
    async fn end(&self, properly: bool) {
        self.ended.send_replace(true);
        let mut taking = self.taking.lock().await;
        let member = taking.member.take();
        taking.rest = None;
        drop(taking);
        match member {
            Some(member) if properly => member.leave(),
            other => drop(other),
        }
    }
}

impl Members {
    pub(crate) fn new(since: Timestamp) -> Self {
        let next = (since.0 << NUMBERS_BITS) + 1;
        let map = Map { by_name: HashMap::new(), by_number: HashMap::new(), next };
        Self { map: Mutex::new(map) }
    }

    /// The session of this name, created if it does not exist; or a new one with a new name.
    pub(super) fn join(
        &self,
        shared: &Shared,
        caller: &Caller,
        group: &TopicName,
        name: Option<String>,
    ) -> Result<Using, Problem> {
        if name.as_ref().is_some_and(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            let detail = format_args!("the name of a member has 1 to {NAME_BYTES_MAX} bytes");
            return Err(Problem::bad_request(detail));
        }
        let map = &mut *lock(&self.map);
        let number = map.next;
        let key = (group.clone(), name.unwrap_or_else(|| format!("http-{number:x}")));
        if let Some(session) = map.by_name.get(&key) {
            return Ok(using(session, &shared.broker));
        }
        let max = shared.options.members_max;
        if map.by_name.len() >= max {
            let detail = format_args!("{max} members live between requests, which is the limit");
            return Err(Problem::new(ErrorCode::TooManyMembers, detail).with("max", max));
        }
        let held = caller.follow()?;
        // It may take as many as a fetch asks for, and nothing before.
        let member = shared.broker.join_group(group, &Join { name: key.1.clone(), window: 0 })?;
        let client = shared.sessions.new_session("http".to_owned(), shared.broker.now());
        client.rename(key.1.clone());
        let listed = client.note_member(number, member.handle());
        let listed = (listed, shared.sessions.sit(client));
        let session = Arc::new(Session {
            number,
            group: group.clone(),
            name: key.1.clone(),
            handle: member.handle(),
            taking: tokio::sync::Mutex::new(Taking {
                member: Some(member),
                rest: None,
                active: true,
            }),
            life: Mutex::default(),
            ended: watch::Sender::new(false),
            listed,
            _held: held,
        });
        map.next += 1;
        map.by_number.insert(number, Arc::clone(&session));
        map.by_name.insert(key, Arc::clone(&session));
        Ok(using(&session, &shared.broker))
    }

    /// The session of this number, if it is one of this group.
    pub(super) fn by_number(
        &self,
        broker: &Broker,
        group: &TopicName,
        number: u64,
    ) -> Option<Using> {
        let map = lock(&self.map);
        let session = map.by_number.get(&number).filter(|session| session.group == *group)?;
        Some(using(session, broker))
    }

    /// The session of this number, in any group.
    pub(super) fn any(&self, broker: &Broker, number: u64) -> Option<Using> {
        lock(&self.map).by_number.get(&number).map(|session| using(session, broker))
    }

    /// The session of this name.
    pub(super) fn by_name(&self, broker: &Broker, group: &TopicName, name: &str) -> Option<Using> {
        let key = (group.clone(), name.to_owned());
        lock(&self.map).by_name.get(&key).map(|session| using(session, broker))
    }

    /// Ends a session. Returns whether it existed.
    pub(super) async fn leave(&self, group: &TopicName, name: &str) -> bool {
        let key = (group.clone(), name.to_owned());
        let left = {
            let map = &mut *lock(&self.map);
            let session = map.by_name.remove(&key);
            session.inspect(|session| drop(map.by_number.remove(&session.number)))
        };
        match left {
            Some(session) => {
                session.end(true).await;
                true
            }
            None => false,
        }
    }

    /// Ends a session whose group is not there any more.
    pub(super) fn forget(&self, session: &Session) {
        let map = &mut *lock(&self.map);
        if map.by_number.remove(&session.number).is_some() {
            map.by_name.remove(&(session.group.clone(), session.name.clone()));
        }
        session.ended.send_replace(true);
    }

    /// Ends the sessions of a group that is not there any more.
    pub(super) fn forget_group(&self, group: &TopicName) {
        let gone = self.take(|session| session.group == *group);
        for session in gone {
            session.ended.send_replace(true);
        }
    }

    /// Takes out the sessions that are like that.
    fn take(&self, is_taken: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let map = &mut *lock(&self.map);
        let taken: Vec<_> = map
            .by_number
            .extract_if(|_, session| is_taken(session))
            .map(|(_, each)| each)
            .collect();
        for session in &taken {
            map.by_name.remove(&(session.group.clone(), session.name.clone()));
        }
        taken
    }
}

/// Ends sessions that are no longer used, until the listener closes; then all leave.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    while tokio::time::timeout(SWEEP_EVERY, shared.closed()).await.is_err() {
        let (now, idle) = (shared.broker.now(), shared.options.member_idle);
        for session in shared.members.take(|session| session.is_due(now, idle)) {
            session.end(false).await;
        }
        for session in shared.members.take(Session::is_closed) {
            session.end(true).await;
        }
    }
    for session in shared.members.take(|_| true) {
        session.end(true).await;
    }
}

fn using(session: &Arc<Session>, broker: &Broker) -> Using {
    lock(&session.life).requests += 1;
    Using { session: Arc::clone(session), broker: broker.clone() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
