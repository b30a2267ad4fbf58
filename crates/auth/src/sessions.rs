//! What stands for a proof for a while: the cookie of the page, and tickets for streams.
//!
//! Browsers cannot add a header to an event stream or a WebSocket. A ticket is good for one request
//! within half a minute; a cookie for the hours of a working day. Both live in memory only: a server
//! that starts again asks again. What is kept is a hash.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::hash::{self, NoRandomness};

/// How long a ticket can be used.
pub(crate) const TICKET: Duration = Duration::from_secs(30);
/// How long a login of the page lasts.
pub(crate) const LOGIN: Duration = Duration::from_secs(12 * 3600);
/// Most tickets, and most logins, at the same time.
const KEPT_MAX: usize = 10_000;

/// Secrets with an end and a meaning.
#[derive(Debug)]
pub(crate) struct Passes<T> {
    kept: BTreeMap<String, (Duration, T)>,
    lasts: Duration,
}

impl<T: Clone> Passes<T> {
    pub(crate) fn new(lasts: Duration) -> Self {
        Self { kept: BTreeMap::new(), lasts }
    }

    /// A new secret that stands for `meaning`; `None` when there are too many.
    pub(crate) fn add(
        &mut self,
        meaning: T,
        now: Duration,
    ) -> Result<Option<String>, NoRandomness> {
        if self.kept.len() >= KEPT_MAX {
            self.kept.retain(|_, (until, _)| *until > now);
            if self.kept.len() >= KEPT_MAX {
                return Ok(None);
            }
        }
        let secret = hash::new_secret()?;
        self.kept.insert(hash::hash(&secret), (now + self.lasts, meaning));
        Ok(Some(secret))
    }

    /// What a secret stands for, if it is still good.
    pub(crate) fn find(&self, secret: &str, now: Duration) -> Option<T> {
        let (until, meaning) = self.kept.get(&hash::hash(secret))?;
        (*until > now).then(|| meaning.clone())
    }

    /// For how long what has this hash is still good.
    pub(crate) fn rest_of(&self, hash: &str, now: Duration) -> Option<Duration> {
        let (until, _) = self.kept.get(hash)?;
        until.checked_sub(now).filter(|rest| !rest.is_zero())
    }

    /// Forgets what is over, and what stands for something that is not wanted any more; returns
    /// whether there was any.
    pub(crate) fn forget(&mut self, now: Duration, unwanted: impl Fn(&T) -> bool) -> bool {
        let before = self.kept.len();
        self.kept.retain(|_, (until, meaning)| *until > now && !unwanted(meaning));
        self.kept.len() < before
    }

    /// The same, and it is good no more.
    pub(crate) fn take(&mut self, secret: &str, now: Duration) -> Option<T> {
        let found = self.find(secret, now);
        self.kept.remove(&hash::hash(secret));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_once_and_for_its_time_and_their_number_is_bounded() {
        let mut passes = Passes::new(TICKET);
        let at = Duration::from_secs;
        let first = passes.add("x", at(0)).unwrap().expect("room");
        assert_eq!(passes.find(&first, at(29)), Some("x"));
        assert_eq!(passes.find(&first, at(30)), None);
        assert_eq!(passes.take(&first, at(1)), Some("x"));
        assert_eq!(passes.take(&first, at(1)), None);
        for _ in 0..KEPT_MAX {
            assert!(passes.add("y", at(2)).unwrap().is_some());
        }
        assert_eq!(passes.add("z", at(3)).unwrap(), None);
        assert!(passes.add("z", at(40)).unwrap().is_some(), "those that are over make room");
    }

    #[test]
    fn what_is_over_and_what_is_unwanted_is_forgotten() {
        let mut passes = Passes::new(TICKET);
        let at = Duration::from_secs;
        let first = passes.add("x", at(0)).unwrap().expect("room");
        let second = passes.add("y", at(10)).unwrap().expect("room");
        let key = hash::hash(&first);
        assert_eq!(passes.rest_of(&key, at(20)), Some(at(10)));
        assert_eq!(passes.rest_of(&key, at(30)), None);
        assert!(!passes.forget(at(29), |_| false));
        assert!(passes.forget(at(30), |_| false));
        assert_eq!(passes.find(&second, at(30)), Some("y"));
        assert!(passes.forget(at(30), |it| *it == "y"));
        assert_eq!(passes.find(&second, at(30)), None);
    }
}
