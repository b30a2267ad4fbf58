//! Looking at the broker from outside and comparing it with the model.

use gapless_broker::TopicInfo;
use gapless_core::{Pattern, Retention, Timestamp};

use crate::follower::{Begin, Follower, Place, Step};
use crate::model::{TopicKey, TopicModel};
use crate::world::{Checked, World, broken, ensure};

/// Steps after which a reader of everything must be done.
const AUDIT_STEPS_MAX: usize = 100_000;

/// The pattern of all topics.
pub(crate) fn everything() -> Pattern {
    Pattern::parse(">").expect("the pattern is well formed")
}

impl World {
    /// Looks at all topics: names, numbers and settings are the model's; floors and ends
    /// only rise, and a floor only for a reason.
    pub(crate) fn observe(&mut self) -> Checked {
        let Some(broker) = self.broker.clone() else { return Ok(()) };
        let infos = broker.list_topics(&everything());
        ensure(infos.len() == self.now.names.len(), || {
            let found: Vec<_> = infos.iter().map(|info| info.name.as_str()).collect();
            format!("topics are {found:?} instead of {:?}", self.now.names.keys())
        })?;
        for info in infos {
            let Some(key) = self.now.names.get(&info.name).copied() else {
                return broken(format!("topic {} is not in the model", info.name));
            };
            self.check_info(key, &info)?;
        }
        Ok(())
    }

    fn check_info(&mut self, key: TopicKey, info: &TopicInfo) -> Checked {
        let topic = &self.now.topics[&key];
        let name = &info.name;
        let known = *self.topic_ids.entry(info.id).or_insert(key);
        ensure(known == key, || format!("topic {name} has the number {} of another", info.id))?;
        ensure(info.settings == topic.settings, || format!("topic {name} has other settings"))?;
        let (first, next) = (info.first.0, info.next.0);
        ensure(next <= topic.next(), || {
            format!("topic {name} shows {} and has {}", next - 1, topic.next() - 1)
        })?;
        let seen = self.visible.insert(key, next - 1).unwrap_or(0);
        ensure(seen < next, || format!("topic {name} showed {seen} and now ends at {next}"))?;
        let floor = self.floors.insert(key, first).unwrap_or(1);
        ensure(first >= floor, || format!("the floor of {name} went from {floor} to {first}"))?;
        if first > floor {
            // What is compacted away may go with what is let go before it.
            let now = self.time();
            let goes = (floor + 1..=first).rev().find(|below| {
                self.is_due_to_go(topic, *below, now) || !topic.may_be_absent(below - 1, now)
            });
            ensure(goes.is_none_or(|below| self.is_due_to_go(topic, below, now)), || {
                format!("the floor of {name} rose from {floor} to {first} for no reason")
            })?;
        }
        if let Some(count) = topic.settings.retention.count {
            ensure(next - first <= count, || format!("{name} keeps {first}..{next}"))?;
        }
        Ok(())
    }

    /// Whether purges or retention let everything below this seq go.
    pub(crate) fn is_due_to_go(&self, topic: &TopicModel, below: u64, now: Timestamp) -> bool {
        let settings = [Some(topic.settings), self.settings_before];
        settings
            .into_iter()
            .flatten()
            .any(|settings| self.is_due_by(topic, &settings.retention, below, now))
    }

    fn is_due_by(
        &self,
        topic: &TopicModel,
        retention: &Retention,
        below: u64,
        now: Timestamp,
    ) -> bool {
        let visible = self.now.names.get(&topic.name).and_then(|key| self.visible.get(key));
        let visible = visible.copied().unwrap_or(0);
        let by_age = || {
            let last = topic.at(below - 1);
            retention.age.zip(last).is_some_and(|(age, last)| last.time.after(age) <= now)
        };
        let by_count = || retention.count.is_some_and(|count| below + count <= visible + 1);
        let by_bytes =
            || retention.bytes.is_some_and(|max| bytes_of(topic, below - 1, visible) > max);
        below <= topic.purged || by_age() || by_count() || by_bytes()
    }

    /// What the journal holds in memory is bounded.
    pub(crate) fn check_bounds(&self) -> Checked {
        let Some(broker) = &self.broker else { return Ok(()) };
        let (stats, options) = (broker.journal_stats(), &self.plan.journal);
        // One more append than the bound may get in, and a frame costs more than its bytes.
        let waiting_max = (options.waiting_bytes_max + 2 * 16 * 1024) as u64;
        ensure(stats.waiting_bytes <= waiting_max, || format!("{stats:?} wait too much"))?;
        let frames = 256 * (waiting_max / 64 + 1);
        let tail_max = options.tail_bytes + options.unsealed_bytes_max + waiting_max + frames;
        ensure(stats.tail_bytes <= tail_max, || format!("{stats:?} hold too much"))?;
        if !self.in_trouble() {
            // A turn without trouble leaves little to be sealed.
            let due = options.seal_bytes.min(options.unsealed_bytes_max / 2);
            let max = options.tail_bytes.max(due) + due + waiting_max + frames;
            ensure(stats.tail_bytes <= max, || format!("{stats:?} hold too much after a turn"))?;
        }
        Ok(())
    }

    /// Reads every topic from its beginning, and everything at once, to the end.
    pub(crate) fn audit(&mut self) -> Checked {
        let broker = self.broker();
        self.observe()?;
        let keys: Vec<_> = self.now.names.iter().map(|(name, key)| (name.clone(), *key)).collect();
        for (name, key) in keys {
            let pattern = Pattern::literal(&name);
            let subscription = match broker.subscribe(&pattern, gapless_broker::From::Beginning) {
                Ok(subscription) => subscription,
                Err(_) if self.is_down() || self.files_limited => return Ok(()),
                Err(error) => return broken(format!("cannot follow {name}: {error}")),
            };
            self.observe()?;
            let mut place = Place::default();
            place.next.insert(key, self.first_kept(key));
            let follower = self.follower(pattern, subscription, place);
            self.read_to_end(follower)?;
        }
        match broker.subscribe(&everything(), gapless_broker::From::Beginning) {
            Ok(subscription) => {
                let follower = self.follower(everything(), subscription, Place::default());
                self.read_to_end(follower)
            }
            Err(_) if self.files_limited => Ok(()),
            Err(error) => broken(format!("cannot follow everything: {error}")),
        }
    }

    fn read_to_end(&mut self, mut follower: Follower) -> Checked {
        for _ in 0..AUDIT_STEPS_MAX {
            if self.poll_follower(&mut follower)? != Step::Got {
                return Ok(());
            }
        }
        broken(format!("follower of {} never comes to an end", follower.pattern))
    }

    /// A follower of this subscription at this place.
    pub(crate) fn follower(
        &mut self,
        pattern: Pattern,
        subscription: gapless_broker::Subscription,
        place: Place,
    ) -> Follower {
        self.next_follower += 1;
        let topic = pattern.as_name().and_then(|name| self.now.names.get(&name).copied());
        Follower {
            number: self.next_follower,
            pattern,
            subscription,
            flag: std::sync::Arc::default(),
            topic,
            place,
            begin: Begin::Exact,
            is_resumed: false,
            has_token: false,
            newest_to: 0,
            owed_epoch: false,
            may_epoch: false,
            last_position: 0,
            idle_time: self.time(),
            idle_floors: self.floors.clone(),
            in_hand: false,
            waiting: false,
            live: false,
        }
    }
}

/// How many bytes the batches of a topic have, from the one with `from` to that with `to`.
fn bytes_of(topic: &TopicModel, from: u64, to: u64) -> u64 {
    let (mut bytes, mut last) = (0, None);
    for message in (from..=to).filter_map(|seq| topic.at(seq)) {
        if last.replace(message.commit) != Some(message.commit) {
            bytes += message.batch_bytes;
        }
    }
    bytes
}
