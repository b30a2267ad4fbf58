//! Topics that come, change and go, and followers that do.

use gapless_broker::{From, SubscribeError, TopicError};
use gapless_core::{Durability, Pattern, PubSubError, Seq, Timestamp, TopicName};
use gapless_journal::ReadError;

use crate::follower::{Begin, Place, Step};
use crate::model::{Change, TopicKey};
use crate::world::{Checked, World, broken, ensure};

/// Followers at the same time.
const FOLLOWERS_MAX: usize = 8;

impl World {
    /// Makes a topic, or finds that one is there.
    pub(crate) fn create(&mut self) -> Checked {
        let name = self.random.pick(&self.plan.names).clone();
        let settings = self.plan.settings(&mut self.random);
        let there = self.now.named(&name).map(|(_, topic)| topic.settings);
        let made = self.broker().create_topic(&name, settings);
        self.note(format_args!(
            "create {name}: {:?} {settings:?}",
            made.as_ref().map(|info| info.id)
        ));
        match (made, there) {
            (Ok(info), None) => {
                let key = TopicKey(self.next_topic);
                self.next_topic += 1;
                ensure(self.topic_ids.insert(info.id, key).is_none(), || {
                    format!("topic {name} got the number {} that was given before", info.id)
                })?;
                let serial =
                    self.commit(Change::Create { key, name, settings }, Durability::Flushed);
                self.acked(serial, Durability::Flushed);
                self.observe()
            }
            (Ok(_), Some(before)) => {
                ensure(before == settings, || format!("topic {name} was made twice"))
            }
            (Err(TopicError::Exists(_)), Some(_)) => Ok(()),
            (Err(error), _) => {
                if there.is_none() && is_unconfirmed(&error) {
                    let key = TopicKey(self.next_topic);
                    self.next_topic += 1;
                    self.commit(Change::Create { key, name, settings }, Durability::Flushed);
                }
                self.observe()?;
                self.excuse(&error)
            }
        }
    }

    /// Gives a topic other settings.
    pub(crate) fn configure(&mut self) -> Checked {
        let Some((name, key)) = self.some_topic() else { return Ok(()) };
        let settings = self.plan.settings(&mut self.random);
        let before = self.now.topics[&key].settings;
        let same = before == settings;
        let made = self.broker().configure_topic(&name, settings);
        self.note(format_args!("configure {name}: {:?} {settings:?}", made.is_ok()));
        let unconfirmed = made.as_ref().is_err_and(is_unconfirmed);
        if !same && (made.is_ok() || unconfirmed) {
            let serial = self.commit(Change::Configure { key, settings }, Durability::Flushed);
            if made.is_ok() {
                self.acked(serial, Durability::Flushed);
            }
        }
        self.settings_before = Some(before);
        let observed = self.observe();
        self.settings_before = None;
        observed?;
        made.map_or_else(|error| self.excuse(&error), |_| Ok(()))
    }

    /// Removes a topic.
    pub(crate) fn delete(&mut self) -> Checked {
        let Some((name, key)) = self.some_topic() else { return Ok(()) };
        let gone = self.broker().delete_topic(&name);
        self.note(format_args!("delete {name}: {:?}", gone.is_ok()));
        if gone.is_ok() || gone.as_ref().is_err_and(is_unconfirmed) {
            let serial = self.commit(Change::Delete { key }, Durability::Flushed);
            if gone.is_ok() {
                self.acked(serial, Durability::Flushed);
            }
        }
        self.observe()?;
        gone.map_or_else(|error| self.excuse(&error), |()| Ok(()))
    }

    /// Removes the oldest messages of a topic.
    pub(crate) fn purge(&mut self) -> Checked {
        let Some((name, key)) = self.some_topic() else { return Ok(()) };
        let below = self.random.between(1, self.visible[&key] + 1);
        let purged = self.broker().purge(&name, Seq(below));
        self.note(format_args!("purge {name} below {below}: {purged:?}"));
        if matches!(purged, Ok(Some(_))) || purged.as_ref().is_err_and(is_unconfirmed) {
            let serial = self.commit(Change::Purge { key, below }, Durability::Flushed);
            if purged.is_ok() {
                self.acked(serial, Durability::Flushed);
            }
        }
        self.observe()?;
        match purged {
            Ok(_) => ensure(self.floor(key) >= below, || format!("{name} was not purged")),
            Err(error) => self.excuse(&error),
        }
    }

    fn some_topic(&mut self) -> Option<(TopicName, TopicKey)> {
        let living: Vec<_> = self.now.names.iter().collect();
        self.random.pick_any(&living).map(|(name, key)| ((*name).clone(), **key))
    }

    /// An error is in order when the disk or the journal is in trouble.
    fn excuse(&self, error: &TopicError) -> Checked {
        let right = match error {
            TopicError::System_(PubSubError::StorageFull) => self.may_block(),
            TopicError::System_(_) => self.may_refuse(),
            TopicError::Read(_) => self.is_down() || self.files_limited,
            _ => false,
        };
        ensure(right, || format!("an operation failed, but all is well: {error}"))
    }

    /// Begins to follow something.
    pub(crate) fn subscribe(&mut self) -> Checked {
        if self.followers.len() >= FOLLOWERS_MAX {
            return self.leave();
        }
        let pattern = self.pattern();
        let topic = pattern.as_name().and_then(|name| self.now.names.get(&name).copied());
        let from = match (topic, self.random.below(8)) {
            (_, 0..=2) => From::Beginning,
            (_, 3) | (None, _) => From::Now,
            (Some(key), 4) => From::Seq(Seq(self.random.below(self.visible[&key] + 4))),
            (Some(_), 5) => {
                let now = self.time().0;
                From::Time(Timestamp(self.random.between(now.saturating_sub(60_000), now + 10)))
            }
            (Some(_), _) => From::LastPerKey,
        };
        let subscribed = self.broker().subscribe(&pattern, from);
        self.observe()?;
        let subscription = match subscribed {
            Ok(subscription) => subscription,
            Err(error) => return self.excuse_subscribe(&error, topic, from),
        };
        let place = self.place_of(topic, from);
        let mut follower = self.follower(pattern, subscription, place);
        if let (Some(key), From::LastPerKey) = (topic, from) {
            follower.newest_to = self.visible[&key];
        }
        if let (Some(key), From::Time(time)) = (topic, from)
            && follower.place.next(key) <= self.visible[&key]
        {
            follower.begin = Begin::Time(time);
        }
        let (number, pattern) = (follower.number, follower.pattern.as_str().to_owned());
        self.note(format_args!("f{number} follows {pattern} from {from:?}"));
        self.followers.push(follower);
        Ok(())
    }

    fn excuse_subscribe(
        &mut self,
        error: &SubscribeError,
        topic: Option<TopicKey>,
        from: From,
    ) -> Checked {
        self.note(format_args!("cannot follow: {error}"));
        let right = match (error, from, topic) {
            (SubscribeError::Start(_), From::Seq(seq), Some(key)) => seq.0 > self.visible[&key] + 1,
            (SubscribeError::Read(ReadError::Full), From::LastPerKey, _) => self.is_blocked(),
            (SubscribeError::Read(_), _, _) => self.is_down() || self.files_limited,
            _ => false,
        };
        ensure(right, || format!("cannot follow from {from:?}: {error}"))
    }

    /// Where one who begins so stands.
    fn place_of(&self, topic: Option<TopicKey>, from: From) -> Place {
        let mut place = Place::default();
        match (topic, from) {
            (Some(key), From::Beginning | From::LastPerKey) => {
                place.next.insert(key, self.first_kept(key));
            }
            (Some(key), From::Seq(seq)) => {
                place.next.insert(key, seq.0.max(1));
            }
            (Some(key), From::Time(time)) => {
                let model = &self.now.topics[&key];
                let visible = self.visible[&key];
                let late = |seq: &u64| model.at(*seq).is_some_and(|each| each.time >= time);
                let first = (self.first_kept(key)..=visible).find(late);
                place.next.insert(key, first.unwrap_or(visible + 1));
            }
            (Some(key), From::Now) => {
                place.next.insert(key, self.visible[&key] + 1);
                place.came.insert(key, self.visible[&key]);
            }
            (None, From::Now) => {
                let ends = self.visible.iter().map(|(key, visible)| (*key, visible + 1));
                place.next.extend(ends);
                place.came.clone_from(&self.visible);
            }
            _ => {}
        }
        // What is there now was created before it began, unless that was never confirmed.
        let confirmed = |key: &TopicKey| self.topic_ids.values().any(|each| each == key);
        place.reused.extend(self.now.names.clone().into_iter().filter(|(_, key)| confirmed(key)));
        place
    }

    /// Stops following, or only keeps the place; a follower may go on from there.
    pub(crate) fn leave(&mut self) -> Checked {
        if self.followers.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.followers.len());
        if self.random.chance(80) {
            self.save_token(at);
        }
        if self.random.chance(70) {
            let follower = self.followers.remove(at);
            self.note(format_args!("f{} leaves", follower.number));
        }
        Ok(())
    }

    /// Goes on where a follower stood.
    pub(crate) fn resume(&mut self) -> Checked {
        if self.followers.len() >= FOLLOWERS_MAX {
            return self.leave();
        }
        let Some(mut saved) = self.random.pick_any(&self.saved).cloned() else { return Ok(()) };
        // A token of another store is told so and begins at the beginning.
        let is_foreign = self.random.chance(4);
        saved.token.epoch.0 ^= u64::from(is_foreign);
        let mut pattern = saved.pattern.clone();
        let living: Vec<_> =
            self.now.names.keys().filter(|name| pattern.matches(name)).cloned().collect();
        // The token of a pattern is good for each of its topics.
        if self.random.chance(20)
            && let Some(name) = self.random.pick_any(&living)
        {
            pattern = Pattern::literal(name);
        }
        let subscribed = self.broker().subscribe(&pattern, From::Token(saved.token));
        self.observe()?;
        let subscription = match subscribed {
            Ok(subscription) => subscription,
            Err(error) => {
                self.note(format_args!("cannot resume: {error}"));
                let may = self.is_down() || self.files_limited;
                let right = matches!(error, SubscribeError::Read(_)) && may;
                return ensure(right, || format!("cannot resume from {}: {error}", saved.token));
            }
        };
        let mut follower = self.follower(pattern, subscription, saved.place.clone());
        if is_foreign {
            follower.place = self.place_of(follower.topic, From::Beginning);
        } else {
            follower.has_token = true;
            match follower.topic {
                Some(_) => follower.begin = Begin::Token,
                None => follower.is_resumed = true,
            }
            follower.last_position = saved.token.position.0;
            if saved.token.position.0 == 0 {
                // It is as at the beginning, though gaps ahead of it may have been reported.
                follower.place.reused = self.now.names.clone();
            }
        }
        follower.may_epoch = saved.crashes < self.crashes || is_foreign;
        follower.owed_epoch = saved.lost || is_foreign;
        let (number, token) = (follower.number, saved.token);
        let pattern = follower.pattern.as_str().to_owned();
        self.note(format_args!("f{number} follows {pattern} from {token}"));
        self.followers.push(follower);
        Ok(())
    }

    /// Asks some follower for some steps.
    pub(crate) fn poll_some(&mut self) -> Checked {
        if self.followers.is_empty() {
            return self.subscribe();
        }
        let at = self.random.index(self.followers.len());
        let steps = *self.random.pick(&[1, 2, 5, 50]);
        let mut follower = self.followers.remove(at);
        for _ in 0..steps {
            match self.poll_follower(&mut follower)? {
                Step::Got => {}
                Step::Waits => break,
                Step::Over => return Ok(()),
            }
        }
        self.followers.insert(at, follower);
        Ok(())
    }

    /// Lets every follower read to the end.
    pub(crate) fn drain_followers(&mut self) -> Checked {
        for mut follower in std::mem::take(&mut self.followers) {
            let number = follower.number;
            let mut steps = 0;
            loop {
                match self.poll_follower(&mut follower)? {
                    Step::Got => steps += 1,
                    Step::Waits => {
                        self.followers.push(follower);
                        break;
                    }
                    Step::Over => break,
                }
                if steps > 100_000 {
                    return broken(format!("follower {number} never comes to an end"));
                }
            }
        }
        Ok(())
    }
}

/// Whether it may have happened all the same.
fn is_unconfirmed(error: &TopicError) -> bool {
    matches!(error, TopicError::System_(PubSubError::Poisoned | PubSubError::TimedOut))
}
