//! Dead letters: what failed for the last time, kept in a topic beside its group.
//!
//! `$dead.<group>` is a topic like others. A message becomes a dead letter in the same append that
//! ends it in its group, and is redriven in the same append that ends the dead letter: so each is
//! in exactly one place, even after a crash. Since a topic removes messages only from its
//! beginning, the group keeps which letters ended; the floor of the topic follows.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gapless_core::group::{Dying, Input, Redrive};
use gapless_core::time::whole_ms;
use gapless_core::{
    DeadLetter, Delivered, LetterFilter, Message, PubSubError, PublishAck, PublishOptions,
    RecordsBuilder, RejectReason, Seq, Timestamp, TopicName, TopicSettings,
};

use crate::broker::{Broker, Inner};
use crate::error::GroupError;
use crate::group::LiveGroup;
use crate::publish::commit::Prepared;
use crate::publish::{Atomic, GroupPart, Publishing};
use crate::topic::live_topic::{LiveTopic, lock};

/// What the names of topics of dead letters begin with.
pub(crate) const PREFIX: &str = "$dead.";
/// Messages that become dead letters in one append, and letters ended in one.
const AT_ONCE: usize = 128;
/// Letters that one call gives back.
pub const LETTERS_MAX: usize = 10_000;

/// How long a look at dead letters waits for those that are being buried.
const BURIAL_WAIT_MAX: Duration = Duration::from_secs(1);
/// When a redrive goes on that could not.
const REDRIVE_AGAIN: Duration = Duration::from_secs(1);
/// Bytes of the change that ends a redrive, at most.
const REDRIVE_BYTES: usize = 16;

const TOPIC: &str = "$origin-topic";
const SEQ: &str = "$origin-seq";
const ATTEMPTS: &str = "$attempts";
const ERROR: &str = "$error";
const FIRST_AT: &str = "$first-failed-ms";
const DEAD_AT: &str = "$dead-ms";
const ID: &str = "$origin-id";
const TTL: &str = "$origin-ttl-ms";
const OWN: [&str; 8] = [TOPIC, SEQ, ATTEMPTS, ERROR, FIRST_AT, DEAD_AT, ID, TTL];

/// What became of driving dead letters again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redriven {
    /// Letters that are back in their topics.
    pub moved: u64,
    /// Whether more go in the background, at the rate that was asked for.
    pub goes_on: bool,
}

/// How far the timers are with a redrive; what it is for is known to the group.
#[derive(Default)]
pub(crate) struct Redriving {
    /// When it goes on.
    next: Timestamp,
    /// No letter before this one is meant any more.
    from: Seq,
}

/// What became of driving some letters again.
enum Moved {
    /// None is left.
    Nothing,
    /// Letters are on their way back.
    Some {
        count: usize,
        /// The last of them.
        last: Seq,
        committing: Committing,
    },
    /// Another call ended one of them first, so nothing happened.
    Overtaken,
}

/// A change that counts already, and is on its way to the disk if that takes time.
struct Committing(Option<Publishing>);

impl Committing {
    /// Blocks until it is flushed.
    fn wait(self) -> Result<(), PubSubError> {
        self.0.map_or(Ok(()), |publishing| publishing.wait().map(|_| ()))
    }
}

pub(crate) fn dead_name(group: &TopicName) -> TopicName {
    let name = format!("{PREFIX}{group}");
    TopicName::parse(&name).expect("a group's name leaves room for the prefix")
}

impl Broker {
    /// Dead letters of a group, from this number on, at most `limit` and [`LETTERS_MAX`].
    ///
    /// # Errors
    /// When there is no such group, or they cannot be read.
    pub fn dead_letters(
        &self,
        group: &TopicName,
        from: Seq,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, GroupError> {
        let group = self.inner.group_with_letters(group)?;
        let which = LetterFilter { from: Some(from), ..LetterFilter::all() };
        self.inner.find_letters(&group, &which, limit.min(LETTERS_MAX))
    }

    /// Dead letters of a group that are like this, at most `limit` and [`LETTERS_MAX`].
    ///
    /// # Errors
    /// When there is no such group, or they cannot be read.
    pub fn find_dead_letters(
        &self,
        group: &TopicName,
        which: &LetterFilter,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, GroupError> {
        let group = self.inner.group_with_letters(group)?;
        self.inner.find_letters(&group, which, limit.min(LETTERS_MAX))
    }

    /// One dead letter; `None` when it is not there any more.
    ///
    /// # Errors
    /// When there is no such group, or it cannot be read.
    pub fn dead_letter(
        &self,
        group: &TopicName,
        seq: Seq,
    ) -> Result<Option<DeadLetter>, GroupError> {
        let group = self.inner.group_with_letters(group)?;
        Ok(self.inner.find_letters(&group, &LetterFilter::one(seq), 1)?.pop())
    }

    /// Puts dead letters back into the topics they came from, each in one append with its
    /// end as a letter. Without a rate at once; with one (letters per second) in the
    /// background, over restarts too, until none is left that was there and matches. A later call
    /// replaces the one before; a rate of zero ends it.
    ///
    /// # Errors
    /// Says at what it ended; what was moved before is moved.
    pub fn redrive(
        &self,
        group: &TopicName,
        which: &LetterFilter,
        rate: Option<u32>,
    ) -> Result<Redriven, GroupError> {
        let inner = &self.inner;
        let group = inner.group_with_letters(group)?;
        if let Some(rate) = rate {
            // Those that die from now on are not meant.
            let letters = inner.topics.find(&dead_name(&group.name));
            let last = letters.map(|cell| cell.lock().next().prev()).unwrap_or_default();
            let to = Some(which.to.map_or(last, |to| to.min(last)));
            let which = LetterFilter { to, ..which.clone() };
            let redrive = (rate > 0).then_some(Redrive { which, rate });
            group.lock().redriving = Redriving::default();
            inner.change_group(&group, Input::Redrive(redrive))?;
            inner.note_now(&group);
            return Ok(Redriven { moved: 0, goes_on: rate > 0 });
        }
        let mut moved = 0;
        loop {
            match inner.redrive_some(&group, which, AT_ONCE)? {
                Moved::Nothing => return Ok(Redriven { moved, goes_on: false }),
                Moved::Some { count, committing, .. } => {
                    committing.wait()?;
                    moved += count as u64;
                    // Those that die again meanwhile are not meant.
                    if count < AT_ONCE {
                        return Ok(Redriven { moved, goes_on: false });
                    }
                }
                // Another call ended some of them: those that are left are looked up again.
                Moved::Overtaken => {}
            }
        }
    }

    /// Removes dead letters, for ever. Returns how many.
    ///
    /// # Errors
    /// Says at what it ended; what was removed before is removed.
    pub fn remove_dead_letters(
        &self,
        group: &TopicName,
        which: &LetterFilter,
    ) -> Result<u64, GroupError> {
        let group = self.inner.group_with_letters(group)?;
        let mut removed = 0;
        loop {
            let letters = self.inner.find_letters(&group, which, AT_ONCE)?;
            if letters.is_empty() {
                return Ok(removed);
            }
            if let Some(committing) = self.inner.end_letters(&group, &letters, Vec::new())? {
                committing.wait()?;
                removed += letters.len() as u64;
            }
        }
    }
}

impl Inner {
    /// A group whose dead letters are all there: what was terminated before this is asked is
    /// buried by then.
    pub(crate) fn group_with_letters(
        &self,
        name: &TopicName,
    ) -> Result<Arc<LiveGroup>, GroupError> {
        let group = self.group(name)?;
        self.settle_letters(&group);
        Ok(group)
    }

    /// Blocks until the timers have buried what is to be buried, but not for ever: while the
    /// disk is full nothing is. Without threads this one has to take their turn.
    pub(crate) fn settle_letters(&self, group: &Arc<LiveGroup>) {
        let is_dying = || group.lock().machine.counts().dying > 0;
        if is_dying() && !self.timers.take_one(BURIAL_WAIT_MAX) {
            self.bury_all(group, self.clock.now());
        }
        let unsettled = |cell: Arc<LiveTopic>| {
            let state = cell.lock();
            state.machine.last() > state.machine.settled()
        };
        if self.topics.find(&dead_name(&group.name)).is_some_and(unsettled) {
            self.journal.flush();
        }
    }

    /// Buries what waits for it in a group.
    pub(crate) fn bury_all(&self, group: &Arc<LiveGroup>, now: Timestamp) {
        loop {
            let dying = group.lock().machine.dying(AT_ONCE);
            if dying.is_empty() {
                return;
            }
            let buried = self.bury(group, &dying);
            if let Err(GroupError::Unknown(_)) = buried {
                return;
            }
            if let Err(error) = buried {
                tracing::warn!(group = group.name.as_str(), %error, "burying must wait");
                self.groups.note(now.after(self.limits.keep_interval), group.id);
                return;
            }
        }
    }

    fn bury(&self, group: &Arc<LiveGroup>, dying: &[Dying]) -> Result<(), GroupError> {
        // Nothing is awaited here: this thread also frees room while the disk is full.
        let letters = {
            let _one_at_a_time = lock(&self.admin);
            // Deleted, it has no dead letters: the topic may be that of its successor.
            drop(group.existing()?);
            self.begin_topic_alone(&dead_name(&group.name), TopicSettings::default())?.0
        };
        let mut records = RecordsBuilder::default();
        let mut ends = Vec::new();
        'all: for each in dying {
            let cell = self.topics.by_id(each.topic);
            for offset in 0..each.last.next().distance(each.first) {
                let (seq, at) = (each.seq.plus(offset), each.first.plus(offset));
                let found = match &cell {
                    Some(cell) => self.read_one(cell, seq)?,
                    None => None,
                };
                // Nothing is left of what expired or was trimmed meanwhile.
                if let (Some(cell), Some(found)) = (&cell, found) {
                    let letter = letter(cell, found, each, self.clock.now());
                    if records.push(&letter).is_err() {
                        let bare = Message { headers: Vec::new(), ..letter };
                        tracing::warn!(%seq, "a dead letter lost its headers: they are too long");
                        drop(records.push(&bare));
                    }
                }
                ends.push((at, at));
                if ends.len() >= AT_ONCE {
                    break 'all;
                }
            }
        }
        let count = records.count();
        let parts = match count {
            0 => Vec::new(),
            _ => vec![Prepared::new(letters, records.finish(), None)],
        };
        if self.commit_group(group, parts, GroupPart::Buried(ends))?.is_none() {
            // Another thread moved them, or the group was reset: what is left is looked up again.
            return Ok(());
        }
        self.journal.flush();
        let mut state = group.lock();
        state.totals.buried += u64::from(count);
        drop(state);
        let fields = [("group", group.name.as_str().into()), ("count", count.into())];
        self.emit("group.dead", &fields);
        Ok(())
    }

    /// Commits messages together with a change of a group, without waiting for the disk. What
    /// the change was about may be over already: then nothing happens and there is `None`.
    fn commit_group(
        &self,
        group: &Arc<LiveGroup>,
        mut parts: Vec<Prepared>,
        part: GroupPart,
    ) -> Result<Option<Committing>, GroupError> {
        let atomic = Atomic { groups: vec![(Arc::clone(group), part)], ..Atomic::default() };
        let options = PublishOptions { require_subscribers: Some(false), ..Default::default() };
        let mut publishing = self.commit(&mut parts, &atomic, &options);
        match Pin::new(&mut publishing).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => Ok(Some(Committing(Some(publishing)))),
            Poll::Ready(Ok(PublishAck::Rejected(RejectReason::LeaseLost))) => {
                drop(group.existing()?);
                Ok(None)
            }
            Poll::Ready(Ok(PublishAck::Rejected(reason))) => Err(GroupError::Rejected(reason)),
            Poll::Ready(done) => Ok(done.map(|_| Some(Committing(None)))?),
        }
    }

    pub(crate) fn find_letters(
        &self,
        group: &LiveGroup,
        which: &LetterFilter,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, GroupError> {
        let Some(cell) = self.topics.find(&dead_name(&group.name)) else { return Ok(Vec::new()) };
        let (first, next) = {
            let state = cell.lock();
            (state.first(), state.next())
        };
        let mut found = Vec::new();
        let mut seq = which.from.unwrap_or_default().max(first);
        let end = which.to.map_or(next, |to| to.next().min(next));
        while seq < end && found.len() < limit {
            let ended = group.lock().machine.letters_ended().next_from(seq.0);
            if let Some((from, to)) = ended
                && from <= seq.0
            {
                seq = Seq(to).next();
                continue;
            }
            let read = self.read_one(&cell, seq)?.and_then(read_letter);
            found.extend(read.filter(|letter| which.matches(letter)));
            seq = seq.next();
        }
        Ok(found)
    }

    /// Redrives some letters; returns how many.
    fn redrive_some(
        &self,
        group: &Arc<LiveGroup>,
        which: &LetterFilter,
        limit: usize,
    ) -> Result<Moved, GroupError> {
        let letters = self.find_letters(group, which, limit)?;
        let mut by_topic: Vec<(Arc<LiveTopic>, RecordsBuilder)> = Vec::new();
        for letter in &letters {
            let cell = self.topics.find(&letter.topic);
            let Some(cell) = cell.filter(|cell| cell.lock().is_durable()) else {
                return Err(GroupError::NoOrigin { topic: letter.topic.clone(), seq: letter.seq });
            };
            // Its id is known there, and it would be taken for a repetition.
            let message = Message { id: None, ..letter.message.clone() };
            let at = by_topic.iter().position(|(each, _)| each.id == cell.id);
            let at = at.unwrap_or_else(|| {
                by_topic.push((cell, RecordsBuilder::default()));
                by_topic.len() - 1
            });
            let pushed = by_topic[at].1.push(&message);
            pushed.map_err(|_| GroupError::Rejected(RejectReason::InvalidPayload))?;
        }
        let part = |(cell, records): (Arc<LiveTopic>, RecordsBuilder)| {
            Prepared::new(cell, records.finish(), None)
        };
        if letters.is_empty() {
            return Ok(Moved::Nothing);
        }
        let parts = by_topic.into_iter().map(part).collect();
        let Some(committing) = self.end_letters(group, &letters, parts)? else {
            return Ok(Moved::Overtaken);
        };
        let fields =
            [("group", group.name.as_str().into()), ("count", (letters.len() as u64).into())];
        self.emit("group.redriven", &fields);
        let last = letters.last().map(|letter| letter.seq).unwrap_or_default();
        Ok(Moved::Some { count: letters.len(), last, committing })
    }

    /// Ends letters together with what is published instead, and lets their topic forget.
    /// `None` when one of them had ended: then nothing happens.
    fn end_letters(
        &self,
        group: &Arc<LiveGroup>,
        letters: &[DeadLetter],
        parts: Vec<Prepared>,
    ) -> Result<Option<Committing>, GroupError> {
        let ended = letters.iter().map(|letter| (letter.seq, letter.seq)).collect();
        let part = GroupPart::LettersEnded(ended);
        let Some(committing) = self.commit_group(group, parts, part)? else { return Ok(None) };
        if let Some(cell) = self.topics.find(&dead_name(&group.name)) {
            let first = cell.lock().first();
            let ended = group.lock().machine.letters_ended().next_from(first.0);
            if let Some((from, to)) = ended
                && from <= first.0
            {
                let now = self.clock.now();
                self.trim(&cell, Seq(to).next(), gapless_core::GapReason::Purge, now)?;
            }
        }
        Ok(Some(committing))
    }

    /// Carries on what was asked for at a rate.
    pub(crate) fn redrive_due(&self, group: &Arc<LiveGroup>, now: Timestamp) {
        let (which, count) = {
            let mut state = group.lock();
            let Some(Redrive { which, rate }) = state.machine.redrive().cloned() else { return };
            let redriving = &mut state.redriving;
            if redriving.next > now {
                self.groups.note(redriving.next, group.id);
                return;
            }
            // As many as a tenth of a second allows, so that a rate is smooth.
            let count = (rate / 10).clamp(1, AT_ONCE as u32);
            let pause = Duration::from_secs(u64::from(count)) / rate;
            redriving.next = now.after(pause);
            self.groups.note(redriving.next, group.id);
            let from = which.from.max(Some(redriving.from));
            (LetterFilter { from, ..which }, count as usize)
        };
        let done = self.redrive_some(group, &which, count);
        let mut state = group.lock();
        let why = match done {
            Ok(Moved::Nothing) => None,
            Ok(Moved::Some { last, .. }) => {
                state.redriving.from = last.next();
                return;
            }
            Ok(Moved::Overtaken) | Err(GroupError::Unknown(_)) => return,
            // What the world may mend is tried again.
            Err(
                error @ (GroupError::System(_)
                | GroupError::Read(_)
                | GroupError::Rejected(RejectReason::QueueFull)),
            ) => {
                tracing::warn!(group = group.name.as_str(), %error, "a redrive must wait");
                state.redriving.next = now.after(REDRIVE_AGAIN);
                return;
            }
            Err(error) => Some(error.to_string()),
        };
        if self.group_step(group, &mut state, (Input::Redrive(None), REDRIVE_BYTES)).is_ok() {
            drop(state);
            let fields = [("group", group.name.as_str().into()), ("why", why.as_deref().into())];
            self.emit("group.redrive-ended", &fields);
        }
    }
}

/// A message as a dead letter.
fn letter(cell: &LiveTopic, found: Delivered, dying: &Dying, now: Timestamp) -> Message {
    let Delivered { seq, message, .. } = found;
    let mut letter = message;
    letter.headers.retain(|(name, _)| !OWN.contains(&name.as_str()));
    let mut put = |name: &str, value: String| letter.headers.push((name.to_owned(), value.into()));
    put(TOPIC, cell.name.as_str().to_owned());
    put(SEQ, seq.to_string());
    put(ATTEMPTS, dying.failure.attempts.to_string());
    put(ERROR, dying.failure.error.to_string());
    put(FIRST_AT, dying.failure.first_at.0.to_string());
    put(DEAD_AT, now.0.to_string());
    // Another letter may have the same id, and time must not take it away here.
    if let Some(ttl) = letter.ttl.take() {
        letter.headers.push((TTL.to_owned(), whole_ms(ttl).to_string().into()));
    }
    if let Some(id) = letter.id.take() {
        letter.headers.push((ID.to_owned(), id));
    }
    letter
}

/// A message read back as a dead letter; none if it is not one.
fn read_letter(found: Delivered) -> Option<DeadLetter> {
    let Delivered { seq, mut message, .. } = found;
    let text = |name: &str| {
        message.header(name).and_then(|value| std::str::from_utf8(value).ok()).map(str::to_owned)
    };
    let number = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok());
    let topic = TopicName::parse(&text(TOPIC)?).ok()?;
    let origin = Seq(number(SEQ)?);
    let attempts = u32::try_from(number(ATTEMPTS)?).ok()?;
    let error = text(ERROR)?;
    let (first_failed, died) = (Timestamp(number(FIRST_AT)?), Timestamp(number(DEAD_AT)?));
    let ttl = number(TTL).map(Duration::from_millis);
    let id = message.header(ID).cloned();
    (message.ttl, message.id) = (ttl, id);
    message.headers.retain(|(name, _)| !OWN.contains(&name.as_str()));
    Some(DeadLetter { seq, topic, origin, attempts, error, first_failed, died, message })
}
