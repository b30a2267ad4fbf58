//! Subscribers and sessions as the page sees them (D5), and those that left lately.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, PoisonError};

use gapless_broker::{SubscriberInfo, SubscriberState};

use crate::session::sessions::{Session, Sessions};

/// Clients that left and are still shown.
const LEFT_MAX: usize = 100;
/// Ticks for which a client that left is shown as offline.
const LEFT_TICKS: u64 = 60;

/// Where a client is connected.
#[derive(Clone, Debug)]
pub(crate) struct Connected {
    pub(crate) listener: &'static str,
    pub(crate) session: Arc<Session>,
}

/// A line of the list: a subscriber, or a session that follows nothing.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) subscriber: Option<SubscriberInfo>,
    pub(crate) connected: Option<Connected>,
}

impl Client {
    pub(crate) fn state(&self) -> SubscriberState {
        let member = self.connected.as_ref().is_some_and(|at| at.session.is_member());
        match &self.subscriber {
            Some(subscriber) => subscriber.state,
            // A member of a group gets messages as they come.
            None if member => SubscriberState::Online,
            // A session that follows nothing is there, and that is all.
            None => SubscriberState::Connected,
        }
    }

    /// Its unique number over all listeners.
    pub(crate) fn key(&self) -> String {
        match (&self.subscriber, &self.connected) {
            (Some(subscriber), _) => subscriber.id.to_string(),
            (None, Some(at)) => format!("{}-{}", at.listener, at.session.number),
            (None, None) => String::new(),
        }
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    now: Vec<Client>,
    left: VecDeque<(u64, Client)>,
    pub(crate) sessions: usize,
}

impl Clients {
    /// Takes the list of connected clients.
    pub(crate) fn read(
        &mut self,
        subscribers: Vec<SubscriberInfo>,
        listeners: &[(&'static str, Sessions)],
        tick: u64,
    ) {
        let mut by_subscriber = BTreeMap::new();
        let mut idle = Vec::new();
        self.sessions = 0;
        for (listener, sessions) in listeners {
            let sessions: Vec<_> = sessions.lock().values().cloned().collect();
            self.sessions += sessions.len();
            for session in sessions {
                let connected = Connected { listener, session: Arc::clone(&session) };
                let follows = session.follows.lock().unwrap_or_else(PoisonError::into_inner);
                if follows.is_empty() {
                    idle.push(Client { subscriber: None, connected: Some(connected.clone()) });
                }
                let followed = follows.iter().map(|(_, (id, _))| (*id, connected.clone()));
                by_subscriber.extend(followed);
            }
        }
        let here = subscribers.into_iter().map(|subscriber| {
            let connected = by_subscriber.remove(&subscriber.id);
            Client { subscriber: Some(subscriber), connected }
        });
        let here: Vec<Client> = here.chain(idle).collect();
        self.note_left(&here, tick);
        self.now = here;
    }

    /// Subscribers that were there at the last reading and are not any more.
    fn note_left(&mut self, here: &[Client], tick: u64) {
        let id = |client: &Client| client.subscriber.as_ref().map(|each| each.id);
        let there: BTreeSet<u64> = here.iter().filter_map(id).collect();
        for mut client in self.now.drain(..) {
            if let Some(subscriber) = &mut client.subscriber
                && !there.contains(&subscriber.id)
            {
                subscriber.state = SubscriberState::Offline;
                self.left.push_back((tick, client));
            }
        }
        while self.left.len() > LEFT_MAX
            || self.left.front().is_some_and(|(at, _)| at + LEFT_TICKS <= tick)
        {
            self.left.pop_front();
        }
    }

    /// Those that are there, then those that left, the last one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Client> {
        self.now.iter().chain(self.left.iter().rev().map(|(_, client)| client))
    }

    /// How many there are in each state.
    pub(crate) fn count(&self, state: SubscriberState) -> usize {
        self.all().filter(|client| client.state() == state).count()
    }
}
