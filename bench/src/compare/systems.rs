//! What a load generator needs from a system, whichever it is.
//!
//! One file per protocol implements [`System`]; nothing above it knows bytes.

use std::fmt;
use std::net::SocketAddr;

use super::link::{Dialect, Link, Ring};
use super::{native, nats, redis};
use crate::benches::store::{Result, message};

/// Messages that one client may take of a history at once, where it must say so.
pub(super) const HISTORY_BATCH: usize = 10_000;

/// Where messages go, and how safe they are when they are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// To those who listen; kept nowhere.
    Live,
    /// Kept in memory: gone when the process ends.
    Memory,
    /// Handed to the operating system: survives `kill -9`, not a power loss.
    Written,
    /// Flushed to the disk: survives a power loss.
    Flushed,
}

impl Store {
    /// The classes in which publishes with acks are compared.
    pub(super) const KEPT: [Self; 3] = [Self::Memory, Self::Written, Self::Flushed];
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Live => "live",
            Self::Memory => "memory",
            Self::Written => "written",
            Self::Flushed => "flushed",
        })
    }
}

/// A group whose members share the messages of a topic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    pub(super) topic: &'a str,
    pub(super) name: &'a str,
    /// Messages that a member takes at once.
    pub(super) batch: usize,
    /// Whether messages of one key are taken one after the other; only gapless can.
    pub(super) keyed: bool,
}

/// How one speaks with a system.
pub(super) trait System: Sync {
    /// A connection after all greetings.
    fn connect(&self, address: SocketAddr) -> Result<Link>;

    /// Makes a topic, stream or key of this kind, where it must be made.
    fn create(&self, link: &mut Link, topic: &str, store: Store) -> Result<()> {
        match self.create_request(link, topic, store, 1)? {
            Some(request) => {
                link.send(&request)?;
                link.answers(1)
            }
            None => Ok(()),
        }
    }

    /// The question that makes it; it gets one answer.
    fn create_request(
        &self,
        link: &Link,
        topic: &str,
        store: Store,
        number: usize,
    ) -> Result<Option<Vec<u8>>>;

    /// Makes one stream of all topics whose names begin so, where that is how many topics are
    /// kept; false where each is made by itself.
    fn create_below(&self, _: &mut Link, _prefix: &str, _: Store) -> Result<bool> {
        Ok(false)
    }

    /// Gets what is published from now on.
    fn follow(&self, link: &mut Link, topic: &str) -> Result<()>;

    /// The same of many topics on one link, on which nothing is read afterwards.
    fn follow_many(&self, link: &mut Link, topics: &[String]) -> Result<()> {
        topics.iter().try_for_each(|topic| self.follow(link, topic))
    }

    /// Gets what is stored, from the beginning.
    fn replay(&self, link: &mut Link, topic: &str) -> Result<()>;

    /// How many messages are stored.
    fn stored(&self, link: &mut Link, topic: &str) -> Result<u64>;

    /// A publish of so many equal messages, to be sent on this link.
    fn publish(&self, link: &Link, to: To<'_>, body: &[u8], part: Part) -> Result<Vec<u8>>;

    /// Whether each publish is answered.
    fn answers(&self, store: Store) -> bool;

    /// Waits until the server has looked at all that was sent.
    fn barrier(&self, link: &mut Link) -> Result<()>;

    /// Whether one connection can both publish and follow.
    fn is_two_way(&self) -> bool;

    /// What is needed for work with groups, where there are any.
    fn groups(&self) -> Option<&dyn Groups> {
        None
    }

    /// What the bytes of one who follows mean.
    fn following(&self) -> Box<dyn Dialect>;

    /// What a follower is sent for so many messages, as bytes: for a look at the reader alone.
    fn deliveries(&self, topic: &str, body: &[u8], count: usize) -> Result<Vec<u8>>;
}

/// Groups: each message to one member, which acknowledges it.
pub(super) trait Groups: Sync {
    /// Makes a group that begins with the first stored message; false if this server does not
    /// offer what its protocol has.
    fn create_group(&self, link: &mut Link, group: Group<'_>) -> Result<bool>;

    /// Becomes a member: from now on, what is received is acknowledged at once.
    fn join(&self, link: &mut Link, group: Group<'_>, member: usize) -> Result<()>;

    /// Messages that were not taken, or not acknowledged as far as the server has seen.
    fn left(&self, link: &mut Link, group: Group<'_>) -> Result<u64>;
}

/// Where a publish goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct To<'a> {
    pub(super) topic: &'a str,
    pub(super) store: Store,
}

/// Which publish, and how many messages are in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Differs for those that are in flight together.
    pub(super) number: usize,
    pub(super) batch: usize,
}

/// A ring of publishes.
pub(super) fn ring(
    system: &dyn System,
    link: &Link,
    to: To<'_>,
    bytes: usize,
    (count, batch): (usize, usize),
) -> Result<Ring> {
    let body = message(bytes).body.unwrap_or_default();
    Ring::new(count, batch, |number| system.publish(link, to, &body, Part { number, batch }))
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Gapless,
    Nats,
    Redis,
}

impl Who {
    pub(super) const ALL: [Self; 3] = [Self::Gapless, Self::Nats, Self::Redis];

    pub(super) fn system(self) -> &'static dyn System {
        match self {
            Self::Gapless => &native::Native,
            Self::Nats => &nats::Nats,
            Self::Redis => &redis::Redis,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gapless => "gapless",
            Self::Nats => "nats-server",
            Self::Redis => "redis",
        }
    }
}

/// A system in a way of working: one line of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) who: Who,
    pub(super) store: Store,
    /// Messages of one publish, where the protocol has batches.
    pub(super) batch: usize,
    /// Whether it is told to keep the processors awake, which only gapless can.
    pub(super) awake: bool,
    /// Whether connections are encrypted.
    pub(super) tls: bool,
    /// Whether clients must show a token, and rights are checked.
    pub(super) rights: bool,
}

impl Contender {
    pub(super) fn new(who: Who, store: Store) -> Self {
        Self { who, store, batch: 1, awake: false, tls: false, rights: false }
    }

    /// Everybody, and gapless also told to keep the processors awake: for short waits.
    pub(super) fn all_and_awake(store: Store) -> Vec<Self> {
        let mut all = Self::all(store, None);
        all.insert(1, Self { awake: true, ..Self::new(Who::Gapless, store) });
        all
    }

    /// Everybody, for messages of this kind; with `batch` also gapless with batches.
    pub(super) fn all(store: Store, batch: Option<usize>) -> Vec<Self> {
        let batched = batch.map(|batch| Self { batch, ..Self::new(Who::Gapless, store) });
        let [first, rest @ ..] = Who::ALL.map(|who| Self::new(who, store));
        [first].into_iter().chain(batched).chain(rest).collect()
    }

    /// What it is called in a table: the system, and the setting that decides.
    pub(super) fn name(&self) -> String {
        let how = match (self.who, self.store) {
            (Who::Gapless, Store::Live) => "volatile subject",
            (Who::Gapless, Store::Memory) => "memory",
            (Who::Gapless, Store::Written) => "written",
            (Who::Gapless, Store::Flushed) => "flushed",
            (Who::Nats, Store::Live) => "core",
            (Who::Nats, Store::Memory) => "JetStream, memory storage",
            (Who::Nats, Store::Written) => "JetStream, file, default flush interval",
            (Who::Nats, Store::Flushed) => "JetStream, file, sync_interval always",
            (Who::Redis, Store::Live) => "pub/sub",
            (Who::Redis, Store::Memory) => "stream, no append-only file",
            (Who::Redis, Store::Written) => "stream, appendfsync everysec",
            (Who::Redis, Store::Flushed) => "stream, appendfsync always",
        };
        let batches = match self.batch {
            1 => String::new(),
            batch => format!(", batches of {batch}"),
        };
        let awake = if self.awake { ", kept awake" } else { "" };
        let tls = if self.tls { ", TLS" } else { "" };
        let rights = if self.rights { ", rights" } else { "" };
        format!("{}: {how}{batches}{awake}{tls}{rights}", self.who.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gapless_stands_first_and_each_name_is_its_own() {
        for store in [Store::Live, Store::Memory, Store::Written, Store::Flushed] {
            let all = Contender::all(store, Some(64));
            let names: Vec<String> = all.iter().map(Contender::name).collect();
            assert_eq!(all[0].who, Who::Gapless);
            assert_eq!(names.len(), 4);
            let mut unique = names.clone();
            unique.sort();
            unique.dedup();
            assert_eq!(unique.len(), 4, "{names:?}");
        }
    }
}
