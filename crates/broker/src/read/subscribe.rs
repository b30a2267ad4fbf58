//! Creating a subscription: from the requested start to a place in a sequence.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gapless_core::{
    Cursor, GapNotice, GapReason, Pattern, Position, Seq, Start, StartFrom as From, Timestamp,
    Token, View,
};
use gapless_journal::ReadError;

use crate::broker::{Broker, Inner};
use crate::error::SubscribeError;
use crate::read::delivery::Delivery;
use crate::read::follow_pattern::PatternFollower;
use crate::read::follow_topic::TopicFollower;
use crate::read::subscription::{Follower, NOTHING_SEEN, Shared, Subscription};
use crate::topic::live_topic::{LiveTopic, lock};

impl Broker {
    /// Follows a topic, or all topics and volatile subjects that match a pattern.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn subscribe(&self, pattern: &Pattern, from: From) -> Result<Subscription, SubscribeError> {
        self.begin(pattern, from, self.topic_of(pattern))
    }

    /// Follows subjects for the server itself, from now on: it is in no list, no number and no
    /// event, so that looking at the server does not change what is seen.
    ///
    /// # Errors
    /// Says why not; nothing was changed then.
    pub fn listen(&self, pattern: &Pattern) -> Result<Subscription, SubscribeError> {
        let inner = &self.inner;
        if inner.is_closed() {
            return Err(SubscribeError::Closed);
        }
        let id = inner.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::unlisted(id, pattern.clone()));
        let follower = inner.follow_pattern(&shared, From::Now)?;
        inner.listeners.fetch_add(1, Ordering::Relaxed);
        Ok(Subscription::new(Arc::clone(inner), shared, Follower::Pattern(Box::new(follower))))
    }

    /// How many subscriptions of the server itself there are.
    pub fn listeners(&self) -> usize {
        self.inner.listeners.load(Ordering::Relaxed)
    }

    /// As [`Broker::subscribe`], if that needs nothing of the disk, so that it may be called
    /// where blocking would do harm; `None` when it might, and then nothing was done. Only the
    /// place of a topic's follower and a time are looked up: a volatile subject and a pattern
    /// have theirs otherwise.
    pub fn subscribe_at_once(
        &self,
        pattern: &Pattern,
        from: From,
    ) -> Option<Result<Subscription, SubscribeError>> {
        match self.topic_of(pattern) {
            None if !matches!(from, From::Time(_)) => Some(self.begin(pattern, from, None)),
            _ => None,
        }
    }

    pub(crate) fn topic_of(&self, pattern: &Pattern) -> Option<Arc<LiveTopic>> {
        pattern.as_name().and_then(|name| self.inner.topics.find(&name))
    }

    fn begin(
        &self,
        pattern: &Pattern,
        from: From,
        topic: Option<Arc<LiveTopic>>,
    ) -> Result<Subscription, SubscribeError> {
        let mut shared = self.new_shared(pattern);
        shared.by_topic = topic.is_some();
        // A durable topic belongs to its node, and so do the server's own subjects.
        let is_own = topic.as_ref().is_some_and(|cell| cell.lock().is_durable());
        shared.spreads = !is_own && !pattern.as_str().starts_with('$');
        self.list(shared, |inner, shared| {
            Ok(match topic {
                Some(cell) => Follower::Topic(Box::new(inner.follow_topic(cell, from)?)),
                None => Follower::Pattern(Box::new(inner.follow_pattern(shared, from)?)),
            })
        })
    }

    pub(crate) fn new_shared(&self, pattern: &Pattern) -> Shared {
        let id = self.inner.next_subscriber.fetch_add(1, Ordering::Relaxed);
        Shared::new(id, pattern.clone())
    }

    /// Begins to follow, and lists it among the subscribers.
    pub(crate) fn list(
        &self,
        shared: Shared,
        follow: impl FnOnce(&Inner, &Arc<Shared>) -> Result<Follower, SubscribeError>,
    ) -> Result<Subscription, SubscribeError> {
        let inner = &self.inner;
        if inner.is_closed() {
            return Err(SubscribeError::Closed);
        }
        let max = inner.limits.subscriptions_max;
        if lock(&inner.subscribers).len() >= max {
            return Err(SubscribeError::TooMany { max });
        }
        let (id, shared) = (shared.id, Arc::new(shared));
        let follower = follow(inner, &shared)?;
        lock(&inner.subscribers).insert(id, Arc::clone(&shared));
        inner.tell_followed(&shared);
        inner.metrics.subscriptions.increment(1.0);
        let fields = [("subscriber", id.into()), ("pattern", shared.pattern.as_str().into())];
        inner.emit("subscription.added", &fields);
        Ok(Subscription::new(Arc::clone(inner), shared, follower))
    }
}

impl Inner {
    pub(crate) fn follow_topic(
        &self,
        cell: Arc<LiveTopic>,
        from: From,
    ) -> Result<TopicFollower, SubscribeError> {
        let first = self.first_kept(&cell, self.clock.now())?;
        let mut notices = Vec::new();
        let mut seen = None;
        let start = match from {
            From::Beginning | From::LastPerKey => Start::Beginning,
            From::Seq(seq) => Start::Seq(seq),
            From::Now => Start::Now,
            From::Time(time) => {
                let found = self.seq_at_time(&cell, time)?;
                found.map_or(Start::Now, |(seq, _)| Start::Seq(seq.max(first)))
            }
            From::Token(token) => {
                let (place, notice) = self.place_of(token, Some(&cell));
                notices.extend(notice);
                seen = place;
                match place {
                    None => Start::Beginning,
                    Some(seen) => {
                        let created = self.created_after(&cell, seen);
                        notices.extend(created.map(|at| {
                            let positions = (seen.next(), at);
                            Delivery::Gap(GapNotice::deleted(Some(cell.name.clone()), positions))
                        }));
                        let (start, notice) =
                            self.start_after(&cell, created.map_or(seen, |at| at.max(seen)))?;
                        notices.extend(notice);
                        start
                    }
                }
            }
        };
        let (cursor, last) = {
            let view = cell.lock().view();
            let view = View { first: view.first.max(first), ..view };
            (Cursor::start(start, &view)?, view.next.prev())
        };
        let position = match seen {
            Some(seen) => seen,
            None => self.position_before(&cell, cursor.next())?,
        };
        let mut follower = TopicFollower::new(cell, cursor, position);
        notices.into_iter().for_each(|notice| follower.tell_first(notice));
        if from == From::LastPerKey {
            follower.newest_only(last);
        }
        Ok(follower)
    }

    /// Where this topic was created, if that was under the name of another one and after a place
    /// at which a reader stands. What is in memory only has positions of another kind.
    fn created_after(&self, cell: &LiveTopic, place: Position) -> Option<Position> {
        let is_durable = cell.lock().is_durable();
        let created =
            || self.topics.reused(|names| names.created_after(&cell.name, cell.id, place));
        is_durable.then(created).flatten()
    }

    /// Where a topic goes on after a position, and the gap to report before.
    fn start_after(
        &self,
        cell: &LiveTopic,
        position: Position,
    ) -> Result<(Start, Option<Delivery>), ReadError> {
        let (kept, next, floor, floor_position) = {
            let state = cell.lock();
            (state.kept(), state.next(), state.machine.first(), state.floor_position)
        };
        let told = |to: Seq, last: Position, reason: GapReason| {
            // Some may have been seen while they were there; which is not known, but none of
            // them stood before the place.
            Some(Delivery::Gap(GapNotice {
                topic: Some(cell.name.clone()),
                from: None,
                to: Some(to),
                positions: Some((position.next(), last)),
                reason,
            }))
        };
        if floor_position > position {
            let gap = told(floor.prev(), floor_position, kept.floor_reason);
            return Ok((Start::Seq(floor), gap));
        }
        let next = self.seq_after(cell, position)?.unwrap_or(next);
        let hole = self.batch_at(cell, next)?;
        let Some(hole) = hole.filter(|batch| batch.header().count == 0 && batch.header().span > 1)
        else {
            return Ok((Start::Seq(next), None));
        };
        let gap = told(hole.last(), hole.header().last_position(), kept.hole_reason());
        Ok((Start::Seq(hole.last().next()), gap))
    }

    pub(crate) fn follow_pattern(
        &self,
        shared: &Arc<Shared>,
        from: From,
    ) -> Result<PatternFollower, SubscribeError> {
        let mut notice = None;
        let next = match from {
            From::Beginning => NOTHING_SEEN.next(),
            From::Now => self.journal.last_settled().next(),
            From::Token(token) => {
                let place;
                (place, notice) = self.place_of(token, None);
                place.unwrap_or(NOTHING_SEEN).next()
            }
            From::Time(time) if !shared.pattern.is_literal() => {
                self.position_at_time(&shared.pattern, time)?.next()
            }
            From::Seq(_) | From::Time(_) | From::LastPerKey => {
                return Err(SubscribeError::NeedsTopic(shared.pattern.as_str().to_owned()));
            }
        };
        let mut follower = PatternFollower::new(self, shared, next);
        notice.into_iter().for_each(|notice| follower.tell_first(notice));
        Ok(follower)
    }

    /// The position after which everything is that topics of this pattern accepted from a time
    /// on; the last one if there is nothing yet.
    pub(crate) fn position_at_time(
        &self,
        pattern: &Pattern,
        time: Timestamp,
    ) -> Result<Position, ReadError> {
        let mut place = self.journal.last_settled();
        for cell in self.topics.matching(pattern) {
            // Those in memory only have positions of another kind.
            let durable = cell.lock().is_durable();
            if durable && let Some((seq, _)) = self.seq_at_time(&cell, time)? {
                let before = match self.stored_at(&cell, seq)? {
                    Some(batch) if batch.header().count > 0 => {
                        let at = batch.header().position.plus(seq.distance(batch.first()));
                        at.prev()
                    }
                    // Where a message stood that was compacted away is not known.
                    _ => self.position_before(&cell, seq)?,
                };
                place = place.min(before);
            }
        }
        Ok(place)
    }

    /// Where a subscriber with this token stands, if that is known, and the gap to report: that the
    /// token is of another store, or that what the subscriber saw was lost in a power failure
    /// before it was flushed. Such a token is not used as a start: new messages would lie before
    /// it.
    fn place_of(
        &self,
        token: Token,
        topic: Option<&Arc<LiveTopic>>,
    ) -> (Option<Position>, Option<Delivery>) {
        let notice = |positions| {
            Some(Delivery::Gap(GapNotice {
                topic: topic.map(|cell| cell.name.clone()),
                from: None,
                to: None,
                positions: Some(positions),
                reason: GapReason::Epoch,
            }))
        };
        let volatile = topic.is_some_and(|cell| !cell.lock().is_durable());
        let known = if volatile {
            // What is in memory only began with this opening.
            token.epoch == self.journal.epoch() && token.position <= self.router.last_position()
        } else {
            self.journal.knows(token)
        };
        if !known {
            return (None, notice((NOTHING_SEEN, token.position)));
        }
        if volatile {
            return (Some(token.position), None);
        }
        let jump = self
            .journal
            .jumps()
            .into_iter()
            .find(|jump| token.position > jump.last && token.position < jump.next);
        if let Some(jump) = jump {
            return (Some(jump.last), notice((jump.last.next(), token.position)));
        }
        let last = self.journal.last_settled();
        if token.position > last {
            return (Some(last), notice((last.next(), token.position)));
        }
        (Some(token.position), None)
    }
}
