//! What was counted of single topics (A11), for the topics that were used last.
//!
//! There are at most [`TOPICS_COUNTED_MAX`]. When there is no room, those that were not used for a while
//! make some; messages of topics without a place are counted together. Subjects of replies are used
//! once, and are not counted at all.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::name::TopicName;
use crate::time::Timestamp;

/// Most topics that are counted one by one.
pub const TOPICS_COUNTED_MAX: usize = 1_000;

/// What the names of subjects for replies begin with.
const REPLIES: &str = "_reply.";

/// How long a topic is not used before it makes room for another.
const IDLE: Duration = Duration::from_secs(600);
/// How often it is looked for such topics, at most.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// What was counted of one topic at one node, in messages, since it has a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicCounts {
    /// Accepted here, for other nodes or named subscriptions.
    pub published: u64,
    /// Rejected here because of them.
    pub rejected: u64,
    /// Received from other nodes.
    pub received: u64,
    /// Named as lost by events of this node.
    pub lost: u64,
}

/// The counts of all topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicsCounted {
    /// Topics and their counts, in no order.
    pub topics: Vec<(TopicName, TopicCounts)>,
    /// Messages of topics without a place.
    pub uncounted: u64,
}

#[derive(Debug)]
struct Place {
    topic: TopicName,
    counts: TopicCounts,
    used: Timestamp,
}

/// The topics that have a place.
#[derive(Debug, Default)]
pub(super) struct Topics {
    places: Vec<Place>,
    by_name: BTreeMap<TopicName, usize>,
    /// The place that was used last: most messages follow one of the same topic.
    last: usize,
    swept: Timestamp,
    /// When something was counted last.
    now: Timestamp,
    uncounted: u64,
}

impl Topics {
    /// Counts messages of a topic.
    pub(super) fn count(
        &mut self,
        now: Timestamp,
        topic: &TopicName,
        messages: u64,
        add: impl FnOnce(&mut TopicCounts),
    ) {
        self.now = now;
        self.count_again(topic, messages, add);
    }

    /// The same, at the time of the last one.
    pub(super) fn count_again(
        &mut self,
        topic: &TopicName,
        messages: u64,
        add: impl FnOnce(&mut TopicCounts),
    ) {
        if self.places.get(self.last).is_none_or(|place| place.topic != *topic) {
            match self.find(topic) {
                Some(at) => self.last = at,
                None => {
                    self.uncounted += if is_reply(topic) { 0 } else { messages };
                    return;
                }
            }
        }
        if let Some(place) = self.places.get_mut(self.last) {
            place.used = self.now;
            add(&mut place.counts);
        }
    }

    fn find(&mut self, topic: &TopicName) -> Option<usize> {
        if let Some(at) = self.by_name.get(topic) {
            return Some(*at);
        }
        if is_reply(topic) {
            return None;
        }
        if self.places.len() >= TOPICS_COUNTED_MAX {
            self.sweep();
        }
        let at = self.places.len();
        if at >= TOPICS_COUNTED_MAX {
            return None;
        }
        let counts = TopicCounts::default();
        self.places.push(Place { topic: topic.clone(), counts, used: self.now });
        self.by_name.insert(topic.clone(), at);
        Some(at)
    }

    /// Takes the places of those that were not used for long.
    fn sweep(&mut self) {
        let now = self.now;
        if now < self.swept.after(SWEEP_EVERY) {
            return;
        }
        self.swept = now;
        self.places.retain(|place| now < place.used.after(IDLE));
        let places = self.places.iter().enumerate();
        self.by_name = places.map(|(at, place)| (place.topic.clone(), at)).collect();
        self.last = 0;
    }

    pub(super) fn counted(&self) -> TopicsCounted {
        let topics = self.places.iter().map(|place| (place.topic.clone(), place.counts));
        TopicsCounted { topics: topics.collect(), uncounted: self.uncounted }
    }

    pub(super) fn check(&self) {
        assert!(self.places.len() <= TOPICS_COUNTED_MAX, "topics that are counted are bounded");
        assert_eq!(self.places.len(), self.by_name.len(), "each place has its name");
    }
}

fn is_reply(topic: &TopicName) -> bool {
    topic.as_str().starts_with(REPLIES)
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn count(topics: &mut Topics, now: u64, name: &str) {
        let topic = TopicName::parse(name).expect("a name");
        topics.count(Timestamp(now), &topic, 2, |counts| counts.received += 2);
    }

    #[test]
    fn a11_topics_are_counted_one_by_one_up_to_a_bound() {
        let mut topics = Topics::default();
        for number in 0..TOPICS_COUNTED_MAX + 3 {
            count(&mut topics, 1, &format!("t.{number}"));
        }
        count(&mut topics, 2, "t.0");
        count(&mut topics, 2, "_reply.1");
        topics.check();
        let counted = topics.counted();
        assert_eq!((counted.topics.len(), counted.uncounted), (TOPICS_COUNTED_MAX, 6));
        let of = |name: &str| counted.topics.iter().find(|(topic, _)| topic.as_str() == name);
        assert_eq!(of("t.0").map(|(_, counts)| counts.received), Some(4));
        assert_eq!(of("_reply.1"), None);
    }

    #[test]
    fn topics_that_are_not_used_make_room() {
        let mut topics = Topics::default();
        for number in 0..TOPICS_COUNTED_MAX {
            count(&mut topics, 1, &format!("t.{number}"));
        }
        let later = u64::try_from(IDLE.as_millis()).expect("it fits");
        count(&mut topics, later, "t.7");
        count(&mut topics, later + 1, "new");
        topics.check();
        let names: Vec<_> = topics.counted().topics.into_iter().map(|(topic, _)| topic).collect();
        assert_eq!(names, ["t.7", "new"].map(|name| TopicName::parse(name).expect("a name")));
    }
}
