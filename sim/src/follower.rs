//! A follower of a topic or a pattern, and what it must and must not be handed.
//!
//! Per topic: each seq once, ascending, without a hole but for true gap notices and numbers
//! that a delivery accounts for and that have a reason to be missing; never one that is
//! gone; with exactly the bytes that were sent. For a pattern also: in the order of
//! positions. When it has to wait it has seen everything that may be seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use gapless_broker::{Delivered, Delivery, FollowError, GapNotice, Messages, Subscription};
use gapless_core::{GapReason, Pattern, Timestamp, TopicName};
use gapless_journal::ReadError;

use crate::model::TopicKey;
use crate::world::{Checked, Flag, World, broken, ensure};

/// The first seq of each topic that may be read.
pub(crate) type Floors = BTreeMap<TopicKey, u64>;

/// Where a follower stands: the next seq of each topic; one where nothing is noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub next: BTreeMap<TopicKey, u64>,
    /// The last seq of each topic that came, or that it began behind; not what was only reported
    /// as gone.
    pub came: BTreeMap<TopicKey, u64>,
    /// Where a crash has lowered a floor again, the floor: what lies between was told to be
    /// gone, perhaps, and is there again.
    pub doubt: BTreeMap<TopicKey, u64>,
    /// Of names that belonged to a deleted topic before, the newest topic that was reported.
    pub reused: BTreeMap<TopicName, TopicKey>,
}

impl Place {
    /// The next seq of a topic.
    pub(crate) fn next(&self, topic: TopicKey) -> u64 {
        self.next.get(&topic).copied().unwrap_or(1)
    }

    /// Whether this seq may come although it lies before the place.
    fn is_in_doubt(&self, topic: TopicKey, seq: u64) -> bool {
        self.doubt.get(&topic).is_some_and(|floor| *floor <= seq && seq <= self.next(topic))
    }

    /// Everything up to `to` was accounted for.
    fn advance(&mut self, topic: TopicKey, to: u64) {
        let next = self.next(topic).max(to + 1);
        if to + 1 >= self.next(topic) {
            self.doubt.remove(&topic);
        }
        self.next.insert(topic, next);
    }
}

/// How its first delivery may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Exactly at its place.
    Exact,
    /// At or before its place, with numbers that are not there and no message before this
    /// time.
    Time(Timestamp),
    /// At or before its place, with numbers that are gone: it is not known any more how
    /// many of them it had seen.
    Token,
}

/// A follower.
pub(crate) struct Follower {
    pub number: u64,
    pub pattern: Pattern,
    pub subscription: Subscription,
    pub flag: Arc<Flag>,
    /// The one topic it follows by its seqs.
    pub topic: Option<TopicKey>,
    pub place: Place,
    pub begin: Begin,
    /// It follows a pattern and began with a token.
    pub is_resumed: bool,
    /// It began with a token, which knows a position and not which topics there were.
    pub has_token: bool,
    /// Up to this seq only the newest of each key come.
    pub newest_to: u64,
    /// It must be told first that what it saw was lost.
    pub owed_epoch: bool,
    /// It may be told so.
    pub may_epoch: bool,
    pub last_position: u64,
    /// It had nothing left to hand out then, so nothing it hands out was gone by then.
    pub idle_time: Timestamp,
    pub idle_floors: Floors,
    /// What it is handed next may have been read before.
    pub in_hand: bool,
    pub waiting: bool,
    pub live: bool,
}

/// What came of asking a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It was handed something.
    Got,
    /// It waits.
    Waits,
    /// It is over.
    Over,
}

impl World {
    /// Asks a follower for its next step and checks what it is handed.
    pub(crate) fn poll_follower(&mut self, follower: &mut Follower) -> Checked<Step> {
        let waker = Waker::from(Arc::clone(&follower.flag));
        let woken = follower.flag.take();
        let waited = std::mem::replace(&mut follower.waiting, false);
        // A look may itself let more be seen, and then a floor rises behind it.
        let floors = self.floors.clone();
        let polled = follower.subscription.poll_next(&mut Context::from_waker(&waker));
        let number = follower.number;
        self.observe()?;
        let delivery = match polled {
            Poll::Pending => {
                follower.waiting = true;
                follower.in_hand = false;
                follower.idle_time = self.time();
                follower.idle_floors = self.floors.clone();
                self.check_has_all(follower)?;
                return Ok(Step::Waits);
            }
            Poll::Ready(Err(error)) => return self.follow_ended(follower, &error),
            Poll::Ready(Ok(delivery)) => delivery,
        };
        if follower.owed_epoch {
            let told = matches!(&delivery, Delivery::Gap(gap) if gap.reason == GapReason::Epoch);
            ensure(told, || {
                format!("follower {number} had seen what a crash took back and was not told")
            })?;
        }
        match &delivery {
            Delivery::Recovering { from, to } => {
                self.note(format_args!("  f{number} recovers {from}..{to}"));
                follower.live = false;
            }
            Delivery::Live => {
                self.note(format_args!("  f{number} is live"));
                follower.live = true;
                // What comes next may have been in hand already.
                follower.in_hand = true;
                follower.idle_time = self.time();
                follower.idle_floors = self.floors.clone();
            }
            Delivery::Messages(messages) => {
                ensure(woken || !waited, || {
                    format!("follower {number} waited for what came and was not woken")
                })?;
                self.check_messages(follower, messages, &floors)?;
                follower.in_hand = false;
            }
            Delivery::Gap(gap) => self.check_gap(follower, gap)?,
        }
        Ok(Step::Got)
    }

    fn follow_ended(&mut self, follower: &mut Follower, error: &FollowError) -> Checked<Step> {
        let number = follower.number;
        self.note(format_args!("  f{number} ends: {error}"));
        let is_deleted = follower
            .topic
            .is_some_and(|key| self.now.topics.get(&key).is_none_or(|topic| topic.deleted));
        match error {
            FollowError::Deleted(_) if is_deleted => Ok(Step::Over),
            FollowError::Read(_) if self.is_down() || self.files_limited => Ok(Step::Waits),
            // The newest of a key is waited for until it is written.
            FollowError::Read(ReadError::Full) if follower.newest_to > 0 && self.is_blocked() => {
                Ok(Step::Waits)
            }
            other => broken(format!("follower {number} of {} ended: {other}", follower.pattern)),
        }
    }

    /// When it waits it has seen everything that may be seen.
    fn check_has_all(&self, follower: &Follower) -> Checked {
        let number = follower.number;
        ensure(!follower.owed_epoch, || format!("follower {number} was not told of a loss"))?;
        ensure(follower.live, || format!("follower {number} waits but was not told it is live"))?;
        for (key, topic) in
            self.now.living().filter(|(_, each)| follower.pattern.matches(&each.name))
        {
            if follower.topic.is_some_and(|one| one != key) {
                continue;
            }
            let (next, visible) = (follower.place.next(key), self.visible[&key]);
            ensure(next == visible + 1, || {
                format!(
                    "follower {number} of {} waits at {next} of {}, but {visible} may be seen",
                    follower.pattern, topic.name
                )
            })?;
        }
        Ok(())
    }

    /// The topic a delivery is about: usually the one of that name; one that was deleted
    /// may still be on its way.
    fn topic_of(
        &self,
        follower: &Follower,
        name: &TopicName,
        from: u64,
        first: Option<&Delivered>,
    ) -> Option<TopicKey> {
        if follower.topic.is_some() {
            return follower.topic;
        }
        let named = self.now.topics.iter().rev().filter(|(_, topic)| topic.name == *name);
        let keys: Vec<TopicKey> = named.map(|(key, _)| *key).collect();
        let fits = keys.iter().find(|key| {
            let is_here = |found: &Delivered| {
                let known = self.now.topics[key].at(found.seq.0);
                known.is_some_and(|known| known.message == found.message)
            };
            follower.place.next(**key) == from && first.is_none_or(is_here)
        });
        fits.or(keys.first()).copied()
    }

    fn check_messages(
        &mut self,
        follower: &mut Follower,
        messages: &Messages,
        floors: &Floors,
    ) -> Checked {
        let (number, now) = (follower.number, self.time());
        let (from, to) = (messages.from().0, messages.to().0);
        let name = messages.topic().clone();
        let first = messages.iter().next();
        let Some(key) = self.topic_of(follower, &name, from, first.as_ref()) else {
            return broken(format!("follower {number} got messages of unknown topic {name}"));
        };
        let next = follower.place.next(key);
        let story = || format!("follower {number} of {}, topic {name}", follower.pattern);
        let begins_well = match follower.begin {
            Begin::Time(_) | Begin::Token => from <= next,
            Begin::Exact => from == next,
        };
        let begins_well = begins_well || follower.place.is_in_doubt(key, from);
        ensure(begins_well && from <= to, || format!("{}: {from}..{to} after {next}", story()))?;
        self.check_noticed(follower, key, &name)?;
        let mut delivered = messages.iter().peekable();
        let mut line = String::new();
        for seq in from..=to {
            let Some(accepted) = self.now.topics[&key].at(seq).cloned() else {
                return broken(format!("{}: seq {seq} was never accepted", story()));
            };
            let Some(found) = delivered.next_if(|each| each.seq.0 == seq) else {
                let topic = &self.now.topics[&key];
                let is_older = seq <= follower.newest_to && {
                    let newest = accepted.message.key.as_ref().and_then(|each| topic.newest(each));
                    newest.is_none_or(|(newest, each)| newest != seq || each.is_tombstone())
                };
                let before = matches!(follower.begin, Begin::Time(time) if accepted.time < time);
                let before = before || (follower.begin == Begin::Token && seq < next);
                let absent = topic.may_be_absent(seq, now) || is_older || before;
                ensure(absent, || format!("{}: {seq} of {from}..{to} is missing", story()))?;
                continue;
            };
            let is_new = seq >= next || follower.place.is_in_doubt(key, seq);
            ensure(is_new || follower.begin != Begin::Token, || {
                format!("{}: {seq} came twice", story())
            })?;
            line.push_str(&format!(" {seq}@{}", found.position));
            self.check_message(&accepted, &found).map_err(|error| {
                crate::world::Violation(format!("{}: seq {seq}: {error}", story()))
            })?;
            self.check_may_come(follower, key, seq, floors)?;
            if follower.topic.is_none() {
                ensure(found.position.0 > follower.last_position, || {
                    format!(
                        "{}: position {} after {}",
                        story(),
                        found.position,
                        follower.last_position
                    )
                })?;
            }
            follower.last_position = found.position.0;
            if let Begin::Time(time) = follower.begin {
                ensure(found.time >= time, || format!("{}: seq {seq} is too old", story()))?;
            }
        }
        ensure(delivered.peek().is_none(), || {
            format!(
                "{}: {:?} is out of {from}..{to}",
                story(),
                delivered.peek().map(|each| each.seq)
            )
        })?;
        follower.place.advance(key, to);
        follower.place.came.insert(key, to);
        if to + 1 >= next {
            follower.begin = Begin::Exact;
        }
        self.note(format_args!("  f{number} {name} {from}..{to}:{line}"));
        Ok(())
    }

    /// A follower that saw messages of a topic is notified before it gets those of another one
    /// that was created under its name.
    fn check_noticed(&self, follower: &Follower, key: TopicKey, name: &TopicName) -> Checked {
        let is_before = |(other, topic): &(&TopicKey, &crate::model::TopicModel)| {
            **other < key && topic.name == *name && follower.place.next(**other) > 1
        };
        let saw_another =
            follower.place.next(key) == 1 && self.now.topics.iter().any(|each| is_before(&each));
        let is_noticed = follower.place.reused.get(name).is_some_and(|told| *told >= key);
        ensure(!saw_another || is_noticed, || {
            let (number, pattern) = (follower.number, &follower.pattern);
            format!("follower {number} of {pattern}: {name} is another topic, and no notice came")
        })
    }

    /// A message is what was sent, and lies where it always lay.
    pub(crate) fn check_message(
        &mut self,
        accepted: &std::rc::Rc<crate::model::Accepted>,
        found: &Delivered,
    ) -> Checked {
        ensure(found.message == accepted.message && found.time == accepted.time, || {
            format!("{:?} at {} instead of {accepted:?}", found.message, found.time)
        })?;
        self.learn_position(accepted, found.position.0)?;
        self.saw(accepted.commit);
        self.counts.delivered += 1;
        Ok(())
    }

    /// Nothing is handed out that is gone.
    fn check_may_come(
        &self,
        follower: &Follower,
        key: TopicKey,
        seq: u64,
        floors: &Floors,
    ) -> Checked {
        let topic = &self.now.topics[&key];
        let Some(message) = topic.at(seq) else { return Ok(()) };
        let story = |what: &str| {
            format!(
                "follower {} of {}: {what} seq {seq} of {}",
                follower.number, follower.pattern, topic.name
            )
        };
        // A follower of many may have it in hand since before it was gone.
        let at_once = follower.topic.is_some() && !follower.in_hand;
        let (floors, now) = if at_once {
            (floors, self.time())
        } else {
            (&follower.idle_floors, follower.idle_time)
        };
        let floor = floors.get(&key).copied().unwrap_or(1);
        ensure(seq >= floor, || story("below the floor came"))?;
        ensure(!message.is_expired(now), || story("expired came"))?;
        if at_once && let Some(age) = topic.settings.retention.age {
            ensure(message.time.after(age) > now, || story("past its age came"))?;
        }
        if seq <= follower.newest_to && at_once && !self.is_failed() {
            // A topic that is not compacted forgets what has expired.
            let newest = message.message.key.as_ref().and_then(|key| topic.newest(key));
            let newer = newest.filter(|(newest, each)| *newest > seq && !each.is_expired(now));
            ensure(newer.is_none(), || story(&format!("superseded by {newer:?} came")))?;
        }
        Ok(())
    }

    /// A gap notice is true.
    fn check_gap(&mut self, follower: &mut Follower, gap: &GapNotice) -> Checked {
        let number = follower.number;
        self.note(format_args!("  f{number} {gap:?}"));
        self.counts.gaps += 1;
        if gap.reason == GapReason::Epoch {
            follower.owed_epoch = false;
            return ensure(std::mem::take(&mut follower.may_epoch), || {
                format!("follower {number} was told of a loss that was not: {gap:?}")
            });
        }
        let wrong = |why: &str| {
            broken(format!("follower {number} of {}: {gap:?}: {why}", follower.pattern))
        };
        if let (GapReason::Deleted, Some(name)) = (gap.reason, &gap.topic) {
            let mut named = self.now.topics.iter().rev().filter(|(_, topic)| topic.name == *name);
            let (Some((key, _)), Some(_)) = (named.next(), named.next()) else {
                return wrong("no other topic had this name");
            };
            let is_known = follower.place.reused.get(name).is_some_and(|told| told >= key);
            if is_known && !follower.has_token {
                return wrong("it was created before the follower began, or came twice");
            }
            follower.place.reused.insert(name.clone(), *key);
            return Ok(());
        }
        let (Some(name), Some(to)) = (&gap.topic, gap.to) else { return wrong("of what?") };
        let from = gap.from.map(|seq| seq.0);
        let Some(key) = self.topic_with_gap(follower, name, gap) else {
            return wrong("unknown topic");
        };
        let next = follower.place.next(key);
        let begins_well = match (from, follower.begin) {
            (Some(from), Begin::Exact) => from == next,
            (Some(from), Begin::Time(_) | Begin::Token) => from <= next,
            // It stood within a hole, and it is not known how much of that it had seen.
            (None, begin) => follower.topic.is_none() || begin == Begin::Token,
        };
        let in_doubt = from.is_some_and(|from| follower.place.is_in_doubt(key, from));
        // The token of a pattern does not know which gaps were told ahead of their place.
        let is_repeated = follower.is_resumed && from.is_some_and(|from| from < next);
        if !begins_well && !in_doubt && !is_repeated {
            return wrong(&format!("it stands at {next}"));
        }
        if let Some(there) = self.not_gone(follower, key, gap) {
            return wrong(&format!("{there} is there; the floor is {}", self.floor(key)));
        }
        follower.place.advance(key, to.0);
        if to.0 + 1 >= next {
            follower.begin = Begin::Exact;
        }
        Ok(())
    }

    /// The topic of this name for which a notice is true: usually the one that is there; one
    /// that was deleted may still be on its way.
    fn topic_with_gap(
        &self,
        follower: &Follower,
        name: &TopicName,
        gap: &GapNotice,
    ) -> Option<TopicKey> {
        if follower.topic.is_some() {
            return follower.topic;
        }
        let named = self.now.topics.iter().rev().filter(|(_, topic)| topic.name == *name);
        let mut keys: Vec<TopicKey> = named.map(|(key, _)| *key).collect();
        keys.sort_by_key(|key| self.now.topics[key].deleted);
        let is_true = |key: &&TopicKey| self.not_gone(follower, **key, gap).is_none();
        let is_next = |key: &&TopicKey| {
            let next = follower.place.next(**key);
            // One that resumes a pattern is told again of what was told ahead of its place.
            gap.from.is_none_or(|from| from.0 == next || (follower.is_resumed && from.0 < next))
        };
        let fits = keys.iter().find(|key| is_true(key) && is_next(key));
        fits.or(keys.iter().find(is_true)).or(keys.first()).copied()
    }

    /// A seq that a notice says is gone, and is not.
    fn not_gone(&self, follower: &Follower, key: TopicKey, gap: &GapNotice) -> Option<u64> {
        let (topic, floor, now) = (&self.now.topics[&key], self.floor(key), self.time());
        let from = gap.from.map_or(follower.place.next(key), |seq| seq.0);
        (from..=gap.to?.0).find(|seq| {
            let Some(message) = topic.at(*seq) else { return true };
            let age = topic.settings.retention.age;
            let aged = age.is_some_and(|age| message.time.after(age) <= now);
            let gone = *seq < floor || topic.deleted || aged;
            let before = matches!(follower.begin, Begin::Time(time) if message.time < time);
            !match gap.reason {
                GapReason::Compaction => {
                    let is_absent = gone || before || topic.may_be_absent(*seq, now);
                    is_absent && topic.grace.is_some()
                }
                // While compaction is off, what it took before is taken for expired.
                GapReason::Expiry => {
                    let is_absent = topic.was_plain && topic.may_be_absent(*seq, now);
                    gone || before || message.is_expired(now) || is_absent
                }
                GapReason::Purge => gone && topic.purged > 1,
                GapReason::Retention => gone && topic.retained,
                _ => false,
            }
        })
    }
}
