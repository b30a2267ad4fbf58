//! Crashes, openings, and what must be there afterwards.
//!
//! What survives is a prefix of what was written, whole commits only. It includes
//! everything whose ack, or whose being seen, promised to survive this kind of crash.

use std::io::ErrorKind;

use gapless_broker::{Broker, TopicInfo};
use gapless_core::{Durability, TopicName};
use gapless_journal::faulty::{CrashKind, Times};

use crate::checks::everything;
use crate::model::{Commit, State, TopicKey};
use crate::world::{Checked, Saved, World, broken, ensure};

/// How the last run ended, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Closed,
    Killed,
    PowerLost,
}

impl From<CrashKind> for End {
    fn from(kind: CrashKind) -> Self {
        match kind {
            CrashKind::Process => Self::Killed,
            CrashKind::Power => Self::PowerLost,
        }
    }
}

/// What can be seen of a broker that was just opened.
struct Observed {
    topics: Vec<TopicInfo>,
    delayed: usize,
    /// The number that the next delayed message will get.
    delayed_next: u64,
    cells: Vec<Option<bytes::Bytes>>,
}

impl World {
    /// Ends the run in this way and opens the store again.
    pub(crate) fn crash(&mut self, kind: CrashKind) -> Checked {
        self.note(format_args!("crash: {kind:?}"));
        self.save_tokens();
        self.hook.revive();
        self.fs.crash(kind);
        self.counts.crashes += 1;
        self.forget_run();
        self.open(kind.into(), false)
    }

    /// Closes the broker and opens it again.
    pub(crate) fn close(&mut self) -> Checked {
        self.save_tokens();
        let broker = self.broker();
        self.followers.clear();
        let closed = broker.close();
        self.note(format_args!("close: {}", closed.is_ok()));
        if let Err(error) = &closed {
            ensure(self.in_trouble(), || format!("closing failed: {error}"))?;
        }
        if closed.is_ok() {
            self.poll_all_asked()?;
            ensure(self.asked.is_empty(), || "closing left a publish without an ack".into())?;
        }
        let is_down = self.is_down();
        self.hook.revive();
        self.forget_run();
        self.fs.disarm();
        let mut end = End::Closed;
        if is_down || closed.is_err() {
            let kind = self.crash_kind();
            self.fs.crash(kind);
            end = kind.into();
        }
        self.closing = true;
        self.open(end, closed.is_ok())
    }

    pub(crate) fn crash_kind(&mut self) -> CrashKind {
        if self.random.chance(50) { CrashKind::Process } else { CrashKind::Power }
    }

    /// Some clients have kept their place.
    fn save_tokens(&mut self) {
        for at in 0..self.followers.len() {
            if self.random.chance(60) {
                self.save_token(at);
            }
        }
    }

    /// Keeps the place of a follower.
    pub(crate) fn save_token(&mut self, at: usize) {
        let follower = &self.followers[at];
        // One that began at a time does not know its place before it was handed something.
        if follower.owed_epoch || matches!(follower.begin, crate::follower::Begin::Time(_)) {
            return;
        }
        let (number, token) = (follower.number, follower.subscription.token());
        self.saved.push(Saved {
            token,
            pattern: follower.pattern.clone(),
            place: follower.place.clone(),
            crashes: self.crashes,
            lost: false,
        });
        self.note(format_args!("f{number} keeps {token}"));
        if self.saved.len() > 16 {
            let at = self.random.index(self.saved.len());
            self.saved.remove(at);
        }
    }

    fn forget_run(&mut self) {
        self.followers.clear();
        self.asked.clear();
        self.broker = None;
        self.down_at = None;
        self.faulty = false;
        self.may_be_held = false;
    }

    /// Opens the store, perhaps after failed attempts. One that was closed must have everything.
    pub(crate) fn open(&mut self, mut end: End, was_closed: bool) -> Checked {
        if self.random.chance(20) {
            self.plan.resize(&mut self.random);
        }
        for attempt in 0.. {
            let fault = attempt < 3 && self.random.chance(15);
            if fault {
                self.break_opening();
            }
            match Broker::open(self.options()) {
                Ok(broker) => {
                    let opened = broker.opened().clone();
                    self.note(format_args!("open: {opened:?}"));
                    self.broker = Some(broker);
                    // A closed store stays so until an opening has got so far as to note it.
                    // One whose closing failed may have been closed all the same.
                    let closing = std::mem::take(&mut self.closing);
                    let may_be_clean = closing || opened.created;
                    let must_be_clean = end == End::Closed && !opened.created;
                    let right = if opened.clean { may_be_clean } else { !must_be_clean };
                    ensure(right, || format!("it ended as {end:?} but opened as {opened:?}"))?;
                    let has_all = was_closed || (closing && opened.clean);
                    return self.recovered(if has_all { End::Closed } else { end });
                }
                Err(error) => {
                    self.note(format_args!("open: {error}"));
                    if !fault && !self.is_limited() {
                        return broken(format!("the store does not open: {error}"));
                    }
                    if !fault {
                        self.lift_limits();
                    }
                    let kind = self.crash_kind();
                    self.hook.revive();
                    self.fs.crash(kind);
                    end = end.max(kind.into());
                    self.down_at = None;
                    self.faulty = false;
                }
            }
        }
        Ok(())
    }

    fn break_opening(&mut self) {
        let nth = self.random.between(1, 30);
        self.faulty = true;
        match self.random.below(4) {
            0 => self.fs.fail_write(nth, ErrorKind::Other, Times::Once),
            1 => self.fs.fail_sync(nth, ErrorKind::Other, Times::Once),
            2 => self.hook.die_within(nth),
            _ => {
                self.down_at = Some(self.fs.writes() + nth);
                self.fs.crash_after_writes(nth);
            }
        }
    }

    /// Finds out what survived, whether it is what must have, and goes on from there.
    fn recovered(&mut self, end: End) -> Checked {
        let observed = self.look();
        let must = self.log.iter().rposition(|commit| must_survive(commit, end));
        let must = must.map_or(0, |at| at + 1);
        let mut state = self.base.clone();
        let mut fitting = self.differs(&state, &observed).is_none().then_some(0);
        let mut at_must = self.differs(&state, &observed);
        for (at, commit) in self.log.iter().enumerate() {
            state.apply(commit);
            let differs = self.differs(&state, &observed);
            if differs.is_none() {
                fitting = Some(at + 1);
            }
            if at + 1 == must {
                at_must = differs;
            }
        }
        let count = self.log.len();
        let Some(survived) = fitting.filter(|fits| *fits >= must) else {
            let why = at_must.unwrap_or_default();
            return broken(match fitting {
                Some(fits) => format!(
                    "after {end:?} {fits} of {count} commits are there, but {must} were promised; \
                     missing: {:?}; {why}",
                    self.log.get(must - 1)
                ),
                None => format!(
                    "after {end:?} what is there is no prefix of {count} commits, of which {must} \
                     were promised; there: {why}"
                ),
            });
        };
        self.counts.lost += (count - survived) as u64;
        self.note(format_args!("{survived} of {count} commits survived, {must} had to"));
        self.roll_back(survived);
        self.lower_floors(&observed);
        self.crashes += u64::from(end != End::Closed);
        self.observe()?;
        if self.random.chance(50) { self.audit() } else { Ok(()) }
    }

    fn look(&self) -> Observed {
        let broker = self.broker();
        let name = TopicName::parse("$delayed").expect("the name is well formed");
        let delayed_next = broker.describe_topic(&name).map_or(1, |info| info.next.0);
        Observed {
            delayed_next,
            topics: broker.list_topics(&everything()),
            delayed: broker.delayed_len(),
            cells: Self::cell_names().map(|name| broker.cell(&name)).collect(),
        }
    }

    /// How the broker differs from this state, if it does.
    fn differs(&self, state: &State, observed: &Observed) -> Option<String> {
        let names: Vec<_> = observed.topics.iter().map(|info| &info.name).collect();
        if !names.iter().copied().eq(state.names.keys()) {
            return Some(format!("topics {names:?} instead of {:?}", state.names.keys()));
        }
        for info in &observed.topics {
            let (key, topic) = state.named(&info.name)?;
            let known = self.topic_ids.get(&info.id).copied();
            let fits = known.is_none_or(|known| known == key)
                && info.settings == topic.settings
                && info.next.0 == topic.next()
                && info.first.0 >= topic.purged;
            if !fits {
                let (next, purged) = (topic.next(), topic.purged);
                return Some(format!(
                    "{info:?} instead of {key:?}, next {next}, purged below {purged}, {:?}",
                    topic.settings
                ));
            }
        }
        let delayed = (observed.delayed, observed.delayed_next);
        let known = (state.delayed.waiting.len(), state.delayed.next);
        if delayed != known {
            return Some(format!(
                "delayed messages and their next number: {delayed:?}, not {known:?}"
            ));
        }
        Self::cell_names().zip(&observed.cells).find_map(|(name, value)| {
            let known = state.cells.get(&name);
            (known != value.as_ref()).then(|| format!("{name:?} is {value:?}, not {known:?}"))
        })
    }

    fn roll_back(&mut self, survived: usize) {
        let mut state = std::mem::take(&mut self.base);
        self.log.drain(survived..);
        for commit in self.log.drain(..) {
            state.apply(&commit);
        }
        for saved in &mut self.saved {
            let end = |key: &TopicKey| state.topics.get(key).map_or(1, |topic| topic.next());
            // What was reported as gone, and is not there now, is not missed.
            saved.place.came.retain(|key, came| {
                saved.lost |= *came >= end(key);
                *came = (*came).min(end(key) - 1);
                state.topics.contains_key(key)
            });
            saved.place.next.retain(|key, next| {
                *next = (*next).min(end(key));
                state.topics.contains_key(key)
            });
        }
        // A topic whose making was never confirmed leaves no number behind.
        self.topic_ids.retain(|_, key| state.topics.contains_key(key));
        self.now = state.clone();
        self.base = state;
        self.visible.clear();
    }

    /// Floors may have gone back with a crash; what retention let go, it lets go again. Only
    /// purges that were acked may not be taken back, which was checked before.
    fn lower_floors(&mut self, observed: &Observed) {
        for info in &observed.topics {
            let key = self.now.names[&info.name];
            let floor = self.floors.entry(key).or_insert(1);
            let (before, first) = (*floor, info.first.0);
            *floor = first.min(before);
            for saved in self.saved.iter_mut().filter(|_| first < before) {
                let next = saved.place.next(key);
                if first < next && next <= before {
                    let doubt = saved.place.doubt.entry(key).or_insert(first);
                    *doubt = first.min(*doubt);
                }
            }
        }
    }
}

fn must_survive(commit: &Commit, end: End) -> bool {
    match end {
        End::Closed => true,
        End::Killed => commit.acked >= Some(Durability::Written) || commit.seen,
        End::PowerLost => {
            commit.acked == Some(Durability::Flushed)
                || (commit.seen && commit.required == Durability::Flushed)
        }
    }
}
