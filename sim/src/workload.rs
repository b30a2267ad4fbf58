//! Those who publish: what they send, how, and what they must be answered.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use gapless_broker::{Publishing, TopicError};
use gapless_core::{
    Durability, Expect, Message, Pattern, Position, PubSubError, PublishAck, PublishOptions,
    RejectReason, Seq, Timestamp, TopicName,
};
use gapless_journal::ReadError;

use crate::decide::{Decision, Offer, Taken, decide};
use crate::hook::Planned;
use crate::model::{Accepted, Change, Part, TopicKey, Waiting, Write, batch_bytes, scoped};
use crate::world::{Asked, Checked, ExpectedAck, Outcome, Sent, World, broken, ensure};

/// Sent messages that may be sent again.
const SENT_MAX: usize = 40;
/// Messages that wait for their time.
const DELAYED_MAX: usize = 20;

impl World {
    fn message(&mut self) -> (u64, Message) {
        let number = self.next_offer;
        self.next_offer += 1;
        let bytes = match self.random.below(20) {
            0 => self.random.between(1_000, 4_000),
            _ => self.random.below(self.plan.body_bytes),
        };
        let mut body = format!("m{number}:").into_bytes();
        body.resize(body.len() + bytes as usize, b'a' + (number % 26) as u8);
        let mut message = Message::new(body);
        if self.random.chance(self.plan.keyed) {
            message.key = Some(self.key());
            if self.random.chance(15) {
                message.body = None;
                // So that no two are the same.
                message.headers.push(("n".into(), Bytes::from(number.to_string())));
            }
        }
        if self.random.chance(self.plan.ids) {
            message.id = Some(Bytes::from(format!("id-{number}")));
        }
        if self.random.chance(self.plan.ttls) {
            message.ttl = Some(self.random.ms(1, 20_000));
        }
        if self.random.chance(10) {
            message.headers.push(("header".into(), Bytes::from_static(b"value")));
        }
        (number, message)
    }

    fn key(&mut self) -> Bytes {
        Bytes::from(format!("key-{}", self.random.below(self.plan.keys)))
    }

    fn durability(&mut self) -> PublishOptions {
        let durability = *self.random.pick(&[
            None,
            None,
            Some(Durability::Memory),
            Some(Durability::Written),
            Some(Durability::Flushed),
        ]);
        PublishOptions { durability, ..PublishOptions::default() }
    }

    fn living(&self) -> Vec<(TopicName, TopicKey)> {
        self.now.names.iter().map(|(name, key)| (name.clone(), *key)).collect()
    }

    fn offer(&mut self, topic: TopicKey, may_wait: bool) -> Offer {
        let count = if self.random.chance(70) { 1 } else { self.random.between(1, 8) };
        let messages: Vec<_> = (0..count).map(|_| self.message()).collect();
        let model = &self.now.topics[&topic];
        let key = messages[0].1.key.clone();
        let key_last = key.and_then(|key| model.newest(&key)).map_or(0, |(seq, _)| seq);
        let topic_last = model.next() - 1;
        let wrong = self.random.below(topic_last + 2);
        let expect = match self.random.below(20) {
            0 => Some(Expect::TopicLast(Seq(topic_last))),
            1 => Some(Expect::TopicLast(Seq(wrong))),
            2 | 3 if may_wait => Some(Expect::KeyLast(Seq(key_last))),
            4 if may_wait => Some(Expect::KeyLast(Seq(wrong))),
            _ => None,
        };
        Offer { topic, messages, expect }
    }

    fn remember(&mut self, topic: &TopicName, messages: Vec<Message>, options: PublishOptions) {
        if messages.iter().any(|message| message.id.is_some()) {
            self.sent.push(Sent { topic: topic.clone(), messages, options });
        }
        if self.sent.len() > SENT_MAX {
            let at = self.random.index(self.sent.len());
            self.sent.remove(at);
        }
    }

    /// Messages for one topic.
    pub(crate) fn publish(&mut self) -> Checked {
        let Some((name, key)) = self.random.pick_any(&self.living()).cloned() else {
            return Ok(());
        };
        let planned = self.planned(&[(name, key)], false);
        self.carry_out(planned)
    }

    /// One message that is made elsewhere.
    pub(crate) fn publish_one(
        &mut self,
        name: &TopicName,
        message: Message,
        options: PublishOptions,
    ) -> Checked {
        let Some(key) = self.now.names.get(name).copied() else { return Ok(()) };
        let number = self.next_offer;
        self.next_offer += 1;
        let offer = Offer { topic: key, messages: vec![(number, message)], expect: None };
        let (names, offers, cells) = (vec![name.clone()], vec![offer], Vec::new());
        self.carry_out(Planned { names, offers, cells, options })
    }

    fn planned(&mut self, topics: &[(TopicName, TopicKey)], within_sync: bool) -> Planned {
        let may_wait = !within_sync && !self.may_block();
        let mut offers: Vec<_> = topics.iter().map(|(_, key)| self.offer(*key, may_wait)).collect();
        // One doubt about what a key's last seq is can be told apart, two cannot.
        let keyed = |offer: &Offer| matches!(offer.expect, Some(Expect::KeyLast(_)));
        let mut doubts = 0;
        for offer in &mut offers {
            doubts += usize::from(keyed(offer));
            if doubts > 1 && keyed(offer) {
                offer.expect = None;
            }
        }
        let options = self.durability();
        for ((name, _), offer) in topics.iter().zip(&offers) {
            let messages = offer.messages.iter().map(|(_, message)| message.clone()).collect();
            self.remember(name, messages, options);
        }
        let names = topics.iter().map(|(name, _)| name.clone()).collect();
        Planned { names, offers, cells: Vec::new(), options }
    }

    /// Messages for several topics and cells, all or none.
    pub(crate) fn publish_atomically(&mut self) -> Checked {
        let planned = self.planned_atomic(false);
        if self.random.chance(5) {
            return self.publish_to_nowhere(planned);
        }
        self.carry_out(planned)
    }

    fn planned_atomic(&mut self, within_sync: bool) -> Planned {
        let mut topics = self.living();
        let keep = self.random.below(4) as usize;
        while topics.len() > keep {
            let at = self.random.index(topics.len());
            topics.remove(at);
        }
        let mut planned = self.planned(&topics, within_sync);
        let cells: Vec<Bytes> = Self::cell_names().collect();
        let count = self.random.between(u64::from(topics.is_empty()), 2);
        for _ in 0..count {
            let name = self.random.pick(&cells).clone();
            let value = format!("v{}", self.next_offer);
            self.next_offer += 1;
            let value = self.random.chance(80).then(|| Bytes::from(value));
            if planned.cells.iter().all(|(known, _)| *known != name) {
                planned.cells.push((name, value));
            }
        }
        planned
    }

    /// A part for a topic that is not there refuses the whole.
    fn publish_to_nowhere(&mut self, mut planned: Planned) -> Checked {
        let nowhere = TopicName::parse("no.such.topic").expect("the name is well formed");
        let message = self.message();
        planned.names.push(nowhere);
        planned.offers.push(Offer {
            topic: TopicKey(u32::MAX),
            messages: vec![message],
            expect: None,
        });
        // So that it goes the long way, as an atomic commit.
        planned.cells.push((Bytes::from_static(b"cell-0"), Some(Bytes::from_static(b"never"))));
        let acks = planned.publish(&self.broker()).wait_all();
        self.note(format_args!("publish to nowhere: {acks:?}"));
        let refused = matches!(&acks, Ok(acks) if matches!(&acks[..],
            [PublishAck::Rejected(RejectReason::UnknownTopic)]));
        ensure(refused, || format!("a publish to a topic that is not there: {acks:?}"))
    }

    /// Sends again what was sent before.
    pub(crate) fn retry(&mut self) -> Checked {
        let Some(sent) = self.random.pick_any(&self.sent).cloned() else { return Ok(()) };
        if let [message] = &sent.messages[..]
            && let Some(due) = message.not_before
        {
            return self.schedule(&sent.topic, message.clone(), due, sent.options);
        }
        let Some(key) = self.now.names.get(&sent.topic).copied() else { return Ok(()) };
        let mut messages = sent.messages.clone();
        if self.random.chance(20) {
            // Part of it, or a part of it twice.
            let at = self.random.index(messages.len());
            messages = vec![messages[at].clone(), messages[at].clone()];
        }
        let mut numbered = Vec::new();
        for mut message in messages {
            // A second copy is another message, should it be stored.
            message.headers.retain(|(name, _)| name != "n");
            message.headers.push(("n".into(), Bytes::from(self.next_offer.to_string())));
            numbered.push((self.next_offer, message));
            self.next_offer += 1;
        }
        let options = if self.random.chance(50) { sent.options } else { self.durability() };
        let offer = Offer { topic: key, messages: numbered, expect: None };
        let planned =
            Planned { names: vec![sent.topic], offers: vec![offer], cells: Vec::new(), options };
        self.carry_out(planned)
    }

    fn carry_out(&mut self, planned: Planned) -> Checked {
        let publishing = planned.publish(&self.broker());
        self.account(planned, publishing, self.time())
    }

    /// Compares what became of a publish with what the model says.
    fn account(&mut self, planned: Planned, publishing: Publishing, time: Timestamp) -> Checked {
        let floors = self.floors.clone();
        let floor = |key: TopicKey| floors.get(&key).copied().unwrap_or(1);
        let decision = decide(&self.now, &planned.offers, &floor, time);
        let numbers: Vec<_> = planned
            .offers
            .iter()
            .flat_map(|offer| offer.messages.iter().map(|(number, _)| *number))
            .collect();
        let (topics, options) = (&planned.names, planned.options.durability);
        self.note(format_args!("publish {numbers:?} to {topics:?} {options:?}"));
        let is_accepted = publishing.is_accepted();
        let mut answer = Box::pin(async move { publishing.all().await.map(Outcome::Acks) });
        if !is_accepted {
            let waker = std::task::Waker::noop();
            let polled = answer.as_mut().poll(&mut std::task::Context::from_waker(waker));
            let std::task::Poll::Ready(answer) = polled else {
                return broken("a refused publish has no answer");
            };
            return self.check_refusal(&planned, &decision, answer);
        }
        let taken = match decision {
            Decision::Accept(taken) | Decision::Either(taken, _) => taken,
            Decision::Refuse(actual) => {
                return broken(format!("accepted, though the last seq is {actual:?}: {planned:?}"));
            }
        };
        let (write, expected) = self.write_of(taken, planned.cells, time);
        let required = self.required(&planned.offers);
        let wanted = self.wanted(&planned.offers, planned.options);
        let is_empty = write.parts.is_empty() && write.cells.is_empty();
        let commit =
            (!is_empty).then(|| self.commit_at(Change::Write(write), required.max(wanted), time));
        self.ask(answer, commit, wanted, expected)
    }

    fn ask(
        &mut self,
        answer: crate::world::Answer,
        commit: Option<u64>,
        wanted: Durability,
        mut expected: Vec<ExpectedAck>,
    ) -> Checked {
        if expected.is_empty() {
            expected.push(ExpectedAck::Nothing);
        }
        let flag = Arc::default();
        let asked = Asked { answer, flag, polled: false, commit, wanted, expected };
        if let Some(asked) = self.poll_asked(asked)? {
            // Some do not wait for the ack; that does not take the message back.
            if !self.random.chance(5) {
                self.asked.push(asked);
            }
        }
        Ok(())
    }

    fn required(&self, offers: &[Offer]) -> Durability {
        let required = |offer: &Offer| self.now.topics[&offer.topic].required();
        offers.iter().map(required).max().unwrap_or(Durability::Flushed)
    }

    fn wanted(&self, offers: &[Offer], options: PublishOptions) -> Durability {
        options.durability.unwrap_or_else(|| self.required(offers))
    }

    fn write_of(
        &mut self,
        taken: Vec<Taken>,
        cells: Vec<(Bytes, Option<Bytes>)>,
        time: Timestamp,
    ) -> (Write, Vec<ExpectedAck>) {
        let mut write = Write { cells, ..Write::default() };
        let mut expected = Vec::new();
        for Taken { topic, first, fresh, known } in taken {
            if fresh.is_empty() {
                let first = known.iter().copied().min().unwrap_or(0);
                let last = known.iter().copied().max().unwrap_or(0);
                expected.push(ExpectedAck::Known { topic, first, last });
                continue;
            }
            let batch_bytes = batch_bytes(fresh.iter().map(|(_, message)| message));
            let last = first + fresh.len() as u64 - 1;
            expected.push(ExpectedAck::Accepted { topic, first, last });
            self.counts.accepted += fresh.len() as u64;
            let messages = fresh.into_iter().map(|(offer, message)| {
                let commit = self.next_serial;
                let position = Cell::new(None);
                Rc::new(Accepted { offer, message, time, commit, batch_bytes, position })
            });
            write.parts.push(Part { topic, messages: messages.collect() });
        }
        (write, expected)
    }

    fn check_refusal(
        &mut self,
        planned: &Planned,
        decision: &Decision,
        answer: Result<Outcome, PubSubError>,
    ) -> Checked {
        self.counts.refused += 1;
        let stats = self.broker().journal_stats();
        match answer {
            Ok(Outcome::Acks(acks)) => {
                self.note(format_args!("  refused: {acks:?}"));
                let [PublishAck::Rejected(reason)] = &acks[..] else {
                    return broken(format!("refused with {acks:?}"));
                };
                let right = match (reason, decision) {
                    (
                        RejectReason::ExpectedSeq { actual },
                        Decision::Refuse(allowed) | Decision::Either(_, allowed),
                    ) => allowed.contains(&actual.0),
                    (RejectReason::QueueFull, _) => {
                        // Generous about the room a publish needs.
                        let options = &self.plan.journal;
                        self.was_busy
                            || stats.waiting_bytes + 48 * 1024 > options.waiting_bytes_max as u64
                            || stats.tail_bytes > options.unsealed_bytes_max
                    }
                    _ => false,
                };
                ensure(right, || format!("{planned:?} was refused: {reason:?}, not {decision:?}"))
            }
            Ok(Outcome::Cancelled(_)) => broken("a publish was answered like a cancel"),
            Err(error) => {
                self.note(format_args!("  trouble: {error}"));
                let right = match &error {
                    PubSubError::StorageFull => {
                        stats.full || self.is_limited() || self.was_busy || self.may_be_held
                    }
                    PubSubError::Internal(_) => self.is_down() || self.files_limited,
                    // The topic of delayed messages may have to be made first.
                    PubSubError::Unavailable if self.may_refuse() => true,
                    PubSubError::Unavailable
                    | PubSubError::Stopped
                    | PubSubError::JournalFailed => self.is_failed(),
                    // What was not begun has no fate that is unknown.
                    _ => false,
                };
                ensure(right, || format!("a publish ended with {error}, but all is well"))
            }
        }
    }

    /// A message for later.
    pub(crate) fn delay(&mut self) -> Checked {
        let Some((name, _)) = self.random.pick_any(&self.living()).cloned() else {
            return Ok(());
        };
        if self.may_block() && self.now.delayed.next == 1 {
            // The topic of delayed messages is made first, which waits for the disk.
            return Ok(());
        }
        if self.now.delayed.waiting.len() >= DELAYED_MAX {
            return Ok(());
        }
        let (number, mut message) = self.message();
        if let Some(body) = &mut message.body {
            // Small, so that the journal takes all that come due at once.
            *body = Bytes::from(format!("m{number}"));
        }
        let due = self.time().after(self.random.ms(1, 30_000));
        message.not_before = Some(due);
        let options = self.durability();
        self.remember(&name, vec![message.clone()], options);
        self.schedule(&name, message, due, options)
    }

    fn schedule(
        &mut self,
        name: &TopicName,
        message: Message,
        due: Timestamp,
        options: PublishOptions,
    ) -> Checked {
        let now = self.time();
        let exists = self.now.names.contains_key(name);
        if due <= now || !exists || (self.may_block() && self.now.delayed.next == 1) {
            return Ok(());
        }
        let offer = self.next_offer;
        self.next_offer += 1;
        let id = message.id.clone();
        self.note(format_args!(
            "delay {offer} for {name} to {due} {:?} {id:?}",
            options.durability
        ));
        let publishing = self.broker().publish(name, &message, &options);
        let is_accepted = publishing.is_accepted();
        let mut answer = Box::pin(async move { publishing.all().await.map(Outcome::Acks) });
        if !is_accepted {
            let waker = std::task::Waker::noop();
            let polled = answer.as_mut().poll(&mut std::task::Context::from_waker(waker));
            let std::task::Poll::Ready(answer) = polled else {
                return broken("a refused publish has no answer");
            };
            let planned = Planned {
                names: vec![name.clone()],
                offers: Vec::new(),
                cells: Vec::new(),
                options,
            };
            return self.check_refusal(&planned, &Decision::Accept(Vec::new()), answer);
        }
        let wanted = options.durability.unwrap_or(Durability::Flushed);
        let id = message.id.as_ref().map(|id| scoped(name, id));
        let known = id.and_then(|id| self.now.delayed.ids.find(&id, now));
        let id = known.unwrap_or(self.now.delayed.next);
        let message = Message { not_before: None, ..message };
        let commit = known.is_none().then(|| {
            let waiting = Waiting { due, target: name.clone(), offer, message };
            let write = Write { scheduled: Some(waiting), ..Write::default() };
            self.commit(Change::Write(write), Durability::Flushed)
        });
        self.ask(answer, commit, wanted, vec![ExpectedAck::Scheduled { id, due }])
    }

    /// Takes a message back that waits for its time, or tries to.
    pub(crate) fn cancel(&mut self) -> Checked {
        let id = self.random.between(1, self.now.delayed.next);
        let waits = self.now.delayed.waiting.contains_key(&id);
        self.note(format_args!("cancel {id}, which waits: {waits}"));
        let broker = self.broker();
        let answer =
            Box::pin(
                async move { broker.cancel_delayed(Position(id)).await.map(Outcome::Cancelled) },
            );
        if waits && self.may_refuse() {
            // It may be refused without a trace, and then the model would be wrong.
            return Ok(());
        }
        let commit = waits.then(|| {
            let write = Write { done: Some(id), ..Write::default() };
            self.commit(Change::Write(write), Durability::Flushed)
        });
        self.ask(answer, commit, Durability::Flushed, Vec::new())
    }

    /// Whether the journal may refuse an append.
    pub(crate) fn may_refuse(&self) -> bool {
        let stats = self.broker().journal_stats();
        let options = &self.plan.journal;
        self.in_trouble()
            || self.may_be_held
            || stats.full
            || stats.waiting_bytes + 4096 > options.waiting_bytes_max as u64
            || stats.tail_bytes + stats.waiting_bytes + 4096 > options.unsealed_bytes_max
    }

    /// The flusher and the keeper do their work; delayed messages that are due appear.
    pub(crate) fn turn(&mut self) -> Checked {
        let now = self.time();
        let waiting = &self.now.delayed.waiting;
        let mut due: Vec<_> = waiting
            .iter()
            .filter(|(_, each)| each.due <= now)
            .map(|(seq, each)| (each.due, *seq))
            .collect();
        due.sort_unstable();
        let before = waiting.len();
        let may_refuse = self.may_refuse();
        self.broker().turn();
        self.may_be_held = false;
        let left = self.broker().delayed_len();
        self.note(format_args!("turn: {} due, {left} left", due.len()));
        let done = before.saturating_sub(left);
        // Each is an append of its own, which a journal that is almost full takes or refuses.
        let right = done == due.len() || may_refuse || self.in_trouble();
        ensure(right && done <= due.len(), || {
            format!("{} of {before} delayed messages were due, {left} are left", due.len())
        })?;
        // Those that are due first come first.
        for (_, seq) in due.into_iter().take(done) {
            self.appear(seq);
        }
        self.observe()?;
        self.poll_all_asked()?;
        let is_well = !self.is_down() && !self.is_failed() && !self.faulty && !self.is_blocked();
        ensure(self.asked.is_empty() || !is_well, || {
            "a turn without trouble left a publish without an ack".into()
        })?;
        self.check_bounds()
    }

    fn appear(&mut self, seq: u64) {
        let Some(waiting) = self.now.delayed.waiting.get(&seq).cloned() else { return };
        let mut write = Write::default();
        if let Some(key) = self.now.names.get(&waiting.target).copied() {
            let messages = vec![(waiting.offer, waiting.message)];
            let offer = Offer { topic: key, messages, expect: None };
            if let Decision::Accept(taken) = decide(&self.now, &[offer], &|_| 1, self.time()) {
                write = self.write_of(taken, Vec::new(), self.time()).0;
            }
        }
        write.done = Some(seq);
        let required = write.parts.first().map(|part| self.now.topics[&part.topic].required());
        self.counts.delayed += 1;
        self.commit(Change::Write(write), required.unwrap_or(Durability::Flushed));
    }

    /// A flush, a seal or a compaction, slow enough for others to publish meanwhile.
    pub(crate) fn work_slowly(
        &mut self,
        what: fn(&gapless_broker::Broker) -> bool,
        name: &str,
    ) -> Checked {
        let broker = self.broker();
        let mut plan = VecDeque::new();
        for _ in 0..self.random.below(6) {
            let mut planned = Vec::new();
            for _ in 0..self.random.below(3) {
                let topics = self.living();
                if self.random.chance(50)
                    && let Some(topic) = self.random.pick_any(&topics).cloned()
                {
                    planned.push(self.planned(&[topic], true));
                } else {
                    planned.push(self.planned_atomic(true));
                }
            }
            plan.push_back(planned);
        }
        if self.random.chance(30) {
            let by = self.random.ms(1, 3_000);
            self.hook.slow(by);
        }
        self.was_busy = self.may_refuse();
        self.hook.publish_within(broker.clone(), plan);
        let done = what(&broker);
        self.note(format_args!("{name}: {done}"));
        ensure(done || self.in_trouble() || self.may_block(), || format!("{name} failed"))?;
        for (planned, publishing, time) in self.hook.take() {
            self.account(planned, publishing, time)?;
        }
        self.was_busy = false;
        self.observe()?;
        self.poll_all_asked()
    }

    /// Looks a message up by its key or its seq.
    pub(crate) fn look_up(&mut self) -> Checked {
        let Some((name, topic)) = self.random.pick_any(&self.living()).cloned() else {
            return Ok(());
        };
        let (broker, by_key) = (self.broker(), self.random.chance(60));
        let key = self.key();
        let seq = self.random.between(0, self.now.topics[&topic].next() + 1);
        let found = if by_key { broker.latest(&name, &key) } else { broker.read(&name, Seq(seq)) };
        self.observe()?;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.note(format_args!("look up in {name}: {error}"));
                // The newest of a key is waited for until it is written.
                let waits = by_key
                    && self.is_blocked()
                    && matches!(error, TopicError::Read(ReadError::Full));
                let may = self.is_down() || self.files_limited || waits;
                return ensure(may, || format!("cannot look up in {name}: {error}"));
            }
        };
        self.note(format_args!("look up in {name}: {:?}", found.as_ref().map(|each| each.seq)));
        let (model, now) = (&self.now.topics[&topic], self.time());
        let newest = model.newest(&key).map(|(seq, _)| seq);
        let wanted = if by_key { newest } else { Some(seq) };
        // A topic that is not compacted forgets what has expired; a failed journal does not
        // wait for what will never come: an older one is the newest then.
        let older = by_key
            && newest
                .and_then(|seq| model.at(seq))
                .is_some_and(|each| each.is_expired(now) || self.is_failed());
        if let Some(found) =
            found.as_ref().filter(|found| older && found.message.key.as_ref() == Some(&key))
            && let Some(message) = model.at(found.seq.0).cloned()
        {
            return self.check_message(&message, found);
        }
        let expected = wanted.and_then(|seq| Some((seq, model.at(seq).cloned()?)));
        let expected = expected.filter(|(seq, message)| {
            let age = model.settings.retention.age;
            let is_aged = age.is_some_and(|age| message.time.after(age) <= now);
            let is_gone = *seq < self.floor(topic) || is_aged || message.is_expired(now);
            let removed = by_key && message.is_tombstone();
            *seq <= self.visible[&topic] && !is_gone && !removed
        });
        match (expected, found) {
            (None, None) => Ok(()),
            (Some((seq, _)), None) => {
                let may_be_absent = !by_key && model.may_be_absent(seq, now);
                ensure(may_be_absent, || {
                    format!("seq {seq} of {name} is not found by key: {by_key}")
                })
            }
            (Some((seq, message)), Some(found)) if found.seq.0 == seq => {
                self.check_message(&message, &found)
            }
            (expected, found) => broken(format!(
                "looked up {:?} of {name} (by key: {by_key}) and found {found:?}",
                expected.map(|(seq, _)| seq)
            )),
        }
    }

    /// A pattern that some topics match.
    pub(crate) fn pattern(&mut self) -> Pattern {
        let patterns = [">", "a.>", "a.*", "*.one", "b.>", "*", "c.>"];
        if self.random.chance(60) {
            return Pattern::literal(self.random.pick(&self.plan.names));
        }
        let text: &str = self.random.pick::<&str>(&patterns);
        Pattern::parse(text).expect("the patterns are well formed")
    }
}
