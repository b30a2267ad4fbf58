//! The connected clients of a listener, as the native protocol and the page show them.
//!
//! Connections are counted for monitoring too, of every listener in the same way.
//!
//! A listener adds its sessions here and removes them again; clones share the list, so that one
//! listener can show the clients of another without knowing it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;

use gapless_broker::{MemberHandle, MemberInfo};
use gapless_core::{Timestamp, TopicName};

use crate::session::numbered::Numbered;
use crate::session::ready::Ready;

/// A client that is connected.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) address: Arc<str>,
    pub(crate) since: Timestamp,
    pub(crate) name: Mutex<String>,
    /// Its subscriptions: number on the connection, number at the broker, whether by topic.
    pub(crate) follows: Mutex<Numbered<(u64, bool)>>,
    /// Its memberships of groups, by their number on the connection.
    members: Mutex<Numbered<MemberHandle>>,
    /// Wakes the task of its connection.
    pub(crate) ready: Arc<Ready>,
    /// Whether an administrator closed it.
    closed: AtomicBool,
    /// Why its connection ends, once that is known; of native clients only.
    pub(crate) why_ended: OnceLock<Box<str>>,
}

/// What a client is told that an administrator closed.
pub(crate) const CLOSED_BY_ADMIN: &str = "an administrator closed this connection";

/// A membership in the list, taken out when it is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    session: Arc<Session>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.session.lock_members().remove(self.number);
    }
}

impl Session {
    /// Tells its connection to end. That happens at the next turn of its task.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ready.wake();
    }

    /// Whether it was told to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The same, with the task to wake when it is told later.
    pub(crate) fn poll_closed(&self, context: &Context<'_>) -> bool {
        // Before the look: what is told between the two wakes the task.
        self.ready.take(context.waker());
        self.is_closed()
    }

    /// Notes how the client calls itself.
    pub(crate) fn rename(&self, name: String) {
        *self.name.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    fn lock_members(&self) -> MutexGuard<'_, Numbered<MemberHandle>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a membership, for as long as what is given back is held.
    pub(crate) fn note_member(self: &Arc<Self>, number: u64, member: MemberHandle) -> Listed {
        self.lock_members().add(number, member);
        Listed { session: Arc::clone(self), number }
    }

    /// Its memberships: number on the connection, group, and how the member stands.
    pub(crate) fn memberships(&self) -> Vec<(u64, TopicName, MemberInfo)> {
        let members: Vec<_> =
            self.lock_members().iter().map(|(number, member)| (*number, member.clone())).collect();
        let row = |(number, member): (u64, MemberHandle)| {
            Some((number, member.group().clone(), member.info()?))
        };
        members.into_iter().filter_map(row).collect()
    }

    /// Whether it is a member of any group.
    pub(crate) fn is_member(&self) -> bool {
        !self.lock_members().is_empty()
    }

    /// How the client calls itself; empty if it did not say.
    pub(crate) fn name(&self) -> String {
        self.name.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A place in the list, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    sessions: Sessions,
    session: Arc<Session>,
}

impl Seat {
    /// Whose place it is.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.session.number);
    }
}

/// Counts a connection of a listener in `gapless_connections` until it is dropped.
pub(crate) struct Counted(metrics::Gauge);

/// The number of connections of a listener, which is shown from now on.
pub(crate) fn count_connections(listener: &'static str) -> metrics::Gauge {
    metrics::describe_gauge!("gapless_connections", "Connections, by listener.");
    metrics::gauge!("gapless_connections", "listener" => listener)
}

impl Counted {
    pub(crate) fn new(connections: &metrics::Gauge) -> Self {
        connections.increment(1.0);
        Self(connections.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The sessions of a listener. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: Mutex<BTreeMap<u64, Arc<Session>>>,
    last_number: Arc<AtomicU64>,
}

impl Sessions {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Session>>> {
        self.inner.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A list of its own for another listener, whose sessions have other numbers than those here.
    #[must_use]
    pub(crate) fn neighbour(&self) -> Self {
        let last_number = Arc::clone(&self.inner.last_number);
        Self { inner: Arc::new(Inner { sessions: Mutex::default(), last_number }) }
    }

    /// Those with a number after this one, in the order of their numbers.
    pub(crate) fn after(&self, number: u64) -> Vec<Arc<Session>> {
        let range = (Bound::Excluded(number), Bound::Unbounded);
        self.lock().range(range).map(|(_, session)| Arc::clone(session)).collect()
    }

    /// A session with a number of its own, not in the list yet.
    pub(crate) fn new_session(&self, address: String, since: Timestamp) -> Arc<Session> {
        let number = self.inner.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let (name, follows, members) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (address, ready, closed) = (address.into(), Arc::default(), AtomicBool::new(false));
        let why_ended = OnceLock::new();
        Arc::new(Session {
            number,
            address,
            since,
            name,
            follows,
            members,
            ready,
            closed,
            why_ended,
        })
    }

    /// Puts a session of one subscription into the list, for as long as the seat is held.
    pub(crate) fn seat(&self, session: Arc<Session>, follows: (u64, bool)) -> Seat {
        session.follows.lock().unwrap_or_else(PoisonError::into_inner).add(1, follows);
        self.sit(session)
    }

    /// Puts a session into the list, for as long as the seat is held.
    pub(crate) fn sit(&self, session: Arc<Session>) -> Seat {
        self.lock().insert(session.number, Arc::clone(&session));
        Seat { sessions: self.clone(), session }
    }

    /// Tells the client of this session to end; `false` if there is none.
    pub(crate) fn close(&self, number: u64) -> bool {
        let session = self.lock().get(&number).cloned();
        session.inspect(|session| session.close()).is_some()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }
}
