//! How much an identity uses, and when that is too much.
//!
//! What is over a quota is refused with the time after which it can be tried again; nothing is
//! dropped in silence. Connections and subscriptions are counted while they last; stored bytes are
//! added up about once a second, so that publishing costs no look at topics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gapless_broker::Broker;
use gapless_core::Pattern;
use gapless_core::rate::Rate;
use gapless_core::rights::{Grants, On, Right};

use crate::auth::{RETRY_AFTER, lock};

/// More than a quota allows. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} has a quota of {limit} {what}; try again in {} ms", retry_after.as_millis())]
pub struct OverQuota {
    /// Whose quota it is.
    pub who: String,
    /// What there is too much of.
    pub what: &'static str,
    /// The quota.
    pub limit: u64,
    /// When it can be tried again.
    pub retry_after: Duration,
}

/// What one identity uses.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) connections: AtomicU64,
    pub(crate) subscriptions: AtomicU64,
    messages: Mutex<Option<(u64, Rate)>>,
    bytes: Mutex<Option<(u64, Rate)>>,
    stored_too_much: AtomicBool,
}

/// One of something that is counted while it lasts.
#[derive(Debug)]
pub struct Held {
    usage: Arc<Usage>,
    of: fn(&Usage) -> &AtomicU64,
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.of)(&self.usage).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Identities that one connection counts for, at most; the one that came first is given back then.
/// Only proxies carry so many.
const IDENTITIES_MAX: usize = 16;

/// The identities that one connection counts for: over HTTP each request says who sends it.
#[derive(Debug, Default)]
pub struct Places(Mutex<Vec<Held>>);

impl Places {
    /// Counts the connection for an identity for as long as these places are kept, unless it counts
    /// already.
    pub(crate) fn count<E>(
        &self,
        usage: &Arc<Usage>,
        connect: impl FnOnce() -> Result<Held, E>,
    ) -> Result<(), E> {
        let mut all = lock(&self.0);
        if all.iter().any(|held| Arc::ptr_eq(&held.usage, usage)) {
            return Ok(());
        }
        let held = connect()?;
        if all.len() >= IDENTITIES_MAX {
            all.remove(0);
        }
        all.push(held);
        Ok(())
    }
}

impl Usage {
    /// One more, unless there are `limit` already.
    pub(crate) fn hold(
        self: &Arc<Self>,
        of: fn(&Usage) -> &AtomicU64,
        limit: Option<u64>,
    ) -> Option<Held> {
        let held = Held { usage: Arc::clone(self), of };
        let before = of(self).fetch_add(1, Ordering::Relaxed);
        // One that is too many is given back when it is dropped here.
        limit.is_none_or(|limit| before < limit).then_some(held)
    }

    /// Takes messages and bytes of their rates; returns what is over the limit, and how long to
    /// wait.
    pub(crate) fn publish(
        &self,
        (messages, bytes): (Option<u64>, Option<u64>),
        (count, size): (u64, u64),
        now: Duration,
    ) -> Result<(), (&'static str, u64, Duration)> {
        if self.stored_too_much.load(Ordering::Relaxed) {
            return Err(("stored bytes", 0, RETRY_AFTER));
        }
        take(&self.messages, messages, count, now)
            .map_err(|(limit, wait)| ("messages per second", limit, wait))?;
        take(&self.bytes, bytes, size, now)
            .map_err(|(limit, wait)| ("bytes per second", limit, wait))
    }

    pub(crate) fn measure(&self, broker: &Broker, grants: &Grants, limit: u64) {
        let everything = Pattern::parse(">").expect("a pattern");
        let mine = broker
            .list_topics(&everything)
            .into_iter()
            .filter(|info| grants.decide(Right::Publish, On::Name(&info.name)).allowed);
        let bytes: u64 = mine.map(|info| info.bytes).sum();
        self.stored_too_much.store(bytes > limit, Ordering::Relaxed);
    }
}

/// Takes from a rate, which restarts when its quota was changed.
fn take(
    rate: &Mutex<Option<(u64, Rate)>>,
    limit: Option<u64>,
    count: u64,
    now: Duration,
) -> Result<(), (u64, Duration)> {
    let Some(limit) = limit else { return Ok(()) };
    let mut rate = lock(rate);
    let (_, rate) = match &mut *rate {
        Some((of, rate)) if *of == limit => (of, rate),
        other => {
            let (of, rate) = other.insert((limit, Rate::new(limit)));
            (of, rate)
        }
    };
    rate.take(count, now).map_err(|wait| (limit, wait))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_once_for_each_identity_and_for_the_last_sixteen() {
        let all: Vec<Arc<Usage>> = (0..=IDENTITIES_MAX).map(|_| Arc::default()).collect();
        let places = Places::default();
        let open = |usage: &Usage| usage.connections.load(Ordering::Relaxed);
        let count = |usage: &Arc<Usage>| {
            places.count(usage, || usage.hold(|usage| &usage.connections, Some(1)).ok_or(()))
        };
        for usage in &all[..IDENTITIES_MAX] {
            assert_eq!([count(usage), count(usage)], [Ok(()), Ok(())]);
        }
        assert!(all[..IDENTITIES_MAX].iter().all(|usage| open(usage) == 1));
        assert_eq!(count(&all[IDENTITIES_MAX]), Ok(()));
        assert_eq!((open(&all[0]), open(&all[1])), (0, 1), "the first is given back");
        // Another connection is over the quota of one, and changes nothing.
        let other = Places::default();
        let refused =
            other.count(&all[1], || all[1].hold(|usage| &usage.connections, Some(1)).ok_or(()));
        assert_eq!((refused, open(&all[1])), (Err(()), 1));
        drop(places);
        assert!(all.iter().all(|usage| open(usage) == 0));
    }
}
