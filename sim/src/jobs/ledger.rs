//! What is true: which jobs were accepted, what ran when, and what each attempt came to.
//!
//! It sees what leaders wrote to their disks, what they sent, and which programs run; it knows nothing of
//! how they decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gapless_core::Timestamp;
use gapless_core::job::leader::{Leader, Outcome};
use gapless_core::job::record::{End, Record, Spec, Stage};
use gapless_core::job::{JobId, Token};

use super::JobCounts;
use crate::world::{Checked, ensure};

#[derive(Debug, Default)]
struct Try {
    /// What the program came to, if its worker was there to see it.
    outcome: Option<Outcome>,
    is_taken: bool,
}

/// One submission of a job at one leader.
#[derive(Debug)]
struct Entry {
    spec: Arc<Spec>,
    /// The submission that named the jobs it waits for: its own, or that of its schedule.
    named_at: u64,
    /// The schedule that made it.
    schedule: Option<JobId>,
    is_accepted: bool,
    is_forgotten: bool,
    tries: BTreeMap<u32, Try>,
    end: Option<(End, Timestamp)>,
}

/// What is known of one leader.
#[derive(Debug, Default)]
struct Book {
    entries: BTreeMap<(JobId, u64), Entry>,
    /// The newest submission of each id.
    newest: BTreeMap<JobId, u64>,
    sent: BTreeSet<Token>,
    unique: BTreeMap<Arc<str>, JobId>,
    /// What was asked for; a leader may have refused it.
    cancels: BTreeSet<JobId>,
    retries: BTreeMap<JobId, u32>,
    forgets: BTreeSet<JobId>,
}

impl Book {
    fn entry(&mut self, job: JobId) -> Option<&mut Entry> {
        let number = *self.newest.get(&job)?;
        self.entries.get_mut(&(job, number)).filter(|entry| !entry.is_forgotten)
    }

    /// The submission of a job that one waits for that named it then.
    fn before(&self, number: u64, job: JobId) -> Option<&Entry> {
        self.entries.range((job, 0)..(job, number)).next_back().map(|(_, entry)| entry)
    }
}

/// A program that runs.
#[derive(Debug)]
struct Running {
    worker: usize,
    client: Arc<str>,
    key: Option<Arc<str>>,
}

/// Everything that is true.
#[derive(Debug)]
pub(super) struct Ledger {
    books: Vec<Book>,
    running: BTreeMap<(usize, Token), Running>,
    /// How many jobs of a client may run at a leader.
    pub(super) caps: BTreeMap<Arc<str>, u32>,
}

impl Ledger {
    pub(super) fn new(leaders: usize) -> Self {
        let books = (0..leaders).map(|_| Book::default()).collect();
        Self { books, running: BTreeMap::new(), caps: BTreeMap::new() }
    }

    /// A record is on disk.
    pub(super) fn saved(&mut self, at: usize, record: &Record, counts: &mut JobCounts) -> Checked {
        let book = &mut self.books[at];
        let (id, number) = (record.spec.id, record.number);
        let newest = book.newest.insert(id, number).unwrap_or(0);
        ensure(newest <= number, || format!("{id} has number {number} after {newest}"))?;
        let schedule = record.origin.and_then(|schedule| book.newest.get(&schedule));
        let named_at = schedule.copied().unwrap_or(number);
        let new = || Entry {
            spec: Arc::clone(&record.spec),
            named_at,
            schedule: record.origin,
            is_accepted: false,
            is_forgotten: false,
            tries: BTreeMap::new(),
            end: None,
        };
        let is_new = !book.entries.contains_key(&(id, number));
        counts.scheduled += u64::from(is_new && record.origin.is_some());
        let entry = book.entries.entry((id, number)).or_insert_with(new);
        ensure(!entry.is_forgotten, || format!("{id} is saved after it was forgotten"))?;
        let unique = record.spec.unique.as_ref().filter(|_| record.spec.cron.is_none());
        let Stage::Ended { how, at: since } = record.stage else {
            if let Some(end) = entry.end.take() {
                let asked = book.retries.entry(id).or_default();
                ensure(*asked > 0, || format!("{id} had ended as {end:?} and goes on"))?;
                *asked -= 1;
            }
            if let Some(unique) = unique {
                let other = book.unique.insert(Arc::clone(unique), id);
                ensure(other.is_none_or(|other| other == id), || {
                    format!("{id} and {other:?} have the same unique value and are open")
                })?;
            }
            return Ok(());
        };
        // An ended one is saved again only to be kept for longer.
        if entry.end.is_some_and(|(before, _)| before == how) {
            entry.end = Some((how, since));
            return Ok(());
        }
        // One that is tried again may end at once, if a job it waits for failed.
        let asked = book.retries.get_mut(&id).filter(|asked| **asked > 0);
        if let Some(asked) = asked.filter(|_| entry.end.is_some() && how == End::Dependency) {
            *asked -= 1;
            entry.end = None;
        }
        ensure(entry.end.is_none(), || format!("{id} ended twice: {:?}, {how:?}", entry.end))?;
        entry.end = Some((how, since));
        counts.dead += u64::from(how.is_dead());
        counts.cancelled += u64::from(how == End::Cancelled);
        if let Some(unique) = unique.filter(|unique| book.unique.get(*unique) == Some(&id)) {
            book.unique.remove(unique);
        }
        let entry = &book.entries[&(id, number)];
        let came_to = |wanted: fn(Outcome) -> bool| {
            entry.tries.values().filter(move |each| each.outcome.is_some_and(wanted))
        };
        let is_true = match how {
            End::Succeeded => came_to(|outcome| outcome == Outcome::Succeeded).count() > 0,
            End::Failed => {
                came_to(|outcome| outcome == Outcome::Failed { again: false }).count() > 0
            }
            End::Cancelled => book.cancels.contains(&id),
            End::TooManyFailures => {
                let failed = came_to(|outcome| outcome != Outcome::Succeeded).count();
                failed >= entry.spec.attempts_max as usize
            }
            // A crash may take the assignment, but not its number.
            End::TooManyDeaths => record.attempt >= entry.spec.deaths_max,
            End::Dependency => entry.spec.after.iter().any(|before| {
                let end = book.before(entry.named_at, *before).and_then(|before| before.end);
                end.is_some_and(|(how, _)| how != End::Succeeded)
            }),
        };
        ensure(is_true, || format!("{id} ended as {how:?}, but: {entry:?}"))
    }

    /// A job is not on disk any more.
    pub(super) fn forgotten(
        &mut self,
        at: usize,
        job: JobId,
        now: Timestamp,
        keep: Duration,
    ) -> Checked {
        let entry = self.books[at].entry(job);
        let Some(entry) = entry else {
            return ensure(false, || format!("{job} is forgotten, and was not there"));
        };
        entry.is_forgotten = true;
        let is_due = entry.end.is_some_and(|(_, since)| since.after(keep) <= now);
        let story = format!("{job} is forgotten before its time: {entry:?}");
        let has_ended = entry.end.is_some();
        ensure(is_due || has_ended && self.books[at].forgets.contains(&job), || story)
    }

    pub(super) fn told_accepted(&mut self, at: usize, job: JobId) -> Checked {
        let entry = self.books[at].entry(job);
        let is_there = entry.map(|entry| entry.is_accepted = true).is_some();
        ensure(is_there, || format!("{job} is accepted, and is not on disk"))
    }

    pub(super) fn cancel_asked(&mut self, at: usize, job: JobId) {
        self.books[at].cancels.insert(job);
    }

    pub(super) fn retry_asked(&mut self, at: usize, job: JobId) {
        *self.books[at].retries.entry(job).or_default() += 1;
    }

    pub(super) fn forget_asked(&mut self, at: usize, job: JobId) {
        self.books[at].forgets.insert(job);
    }

    pub(super) fn result_told(&mut self, at: usize, job: JobId, how: End) -> Checked {
        let entry = self.books[at].entry(job);
        let end = entry.and_then(|entry| entry.end).map(|(how, _)| how);
        ensure(end == Some(how), || format!("{job} is told to be {how:?}, on disk it is {end:?}"))
    }

    /// An assignment is sent; what it is to run.
    pub(super) fn assigned(&mut self, at: usize, token: Token) -> Checked<Arc<Spec>> {
        let book = &mut self.books[at];
        ensure(book.sent.insert(token), || format!("{token:?} is sent twice"))?;
        let entry = book.entries.get_mut(&(token.job, token.number));
        let Some(entry) = entry.filter(|entry| !entry.is_forgotten && entry.end.is_none()) else {
            return crate::world::broken(format!("{token:?} is sent, and is not open on disk"));
        };
        let last = entry.tries.keys().next_back().copied().unwrap_or(0);
        ensure(last < token.attempt, || format!("{token:?} is sent after attempt {last}"))?;
        entry.tries.insert(token.attempt, Try::default());
        Ok(Arc::clone(&entry.spec))
    }

    /// An outcome counts.
    pub(super) fn taken(&mut self, at: usize, token: Token) -> Checked {
        let entry = self.books[at].entries.get_mut(&(token.job, token.number));
        let Some(entry) = entry else {
            return ensure(false, || format!("{token:?} counts, and was never there"));
        };
        let newest = entry.tries.keys().next_back() == Some(&token.attempt);
        ensure(newest, || format!("{token:?} counts, and is not the newest: {entry:?}"))?;
        let this = entry.tries.get_mut(&token.attempt).expect("it was just found");
        let is_first = !std::mem::replace(&mut this.is_taken, true);
        ensure(is_first && this.outcome.is_some(), || format!("{token:?} counts: {entry:?}"))
    }

    /// A program begins.
    pub(super) fn began(
        &mut self,
        (at, now): (usize, Timestamp),
        token: Token,
        worker: usize,
    ) -> Checked {
        let book = &self.books[at];
        let entry = &book.entries[&(token.job, token.number)];
        let (id, spec) = (token.job, &entry.spec);
        // A retry is a wish of a person, and goes at once; so do the jobs of a schedule.
        let retried = [Some(id), entry.schedule];
        let is_retried = retried.iter().flatten().any(|id| book.retries.contains_key(id));
        ensure(is_retried || now >= spec.not_before, || format!("{id} runs before its time"))?;
        for before in spec.after.iter().filter(|_| !is_retried) {
            let end = book.before(entry.named_at, *before).and_then(|before| before.end);
            ensure(end.is_some_and(|(how, _)| how == End::Succeeded), || {
                format!("{id} runs after {before}, which is {end:?}")
            })?;
        }
        let mut of_client = 1;
        for ((leader, other), running) in &self.running {
            if *leader != at {
                continue;
            }
            of_client += u32::from(running.client == spec.client);
            let is_same = (other.job, other.number) == (token.job, token.number);
            ensure(!is_same, || format!("{token:?} runs beside {other:?} at {}", running.worker))?;
            ensure(spec.key.is_none() || running.key != spec.key, || {
                format!("{token:?} and {other:?} have the same key and run at a time")
            })?;
        }
        let cap = self.caps[&spec.client];
        ensure(of_client <= cap, || format!("{of_client} jobs of {} run: cap {cap}", spec.client))?;
        let (client, key) = (Arc::clone(&spec.client), spec.key.clone());
        self.running.insert((at, token), Running { worker, client, key });
        Ok(())
    }

    /// A program is over; `None` if its worker died with it.
    pub(super) fn ended(&mut self, at: usize, token: Token, outcome: Option<Outcome>) {
        self.running.remove(&(at, token));
        let entry = self.books[at].entries.get_mut(&(token.job, token.number));
        if let Some(attempt) = entry.and_then(|entry| entry.tries.get_mut(&token.attempt)) {
            attempt.outcome = outcome;
        }
    }

    /// A leader knows what is on its disk, and nothing else.
    pub(super) fn check_known(&self, at: usize, machine: &Leader) -> Checked {
        let book = &self.books[at];
        for ((id, number), entry) in book.entries.iter().filter(|(_, entry)| !entry.is_forgotten) {
            let record = machine.record(*id);
            let is_known = record.is_some_and(|record| record.number == *number);
            // What is due to be forgotten goes when it starts.
            ensure(is_known || entry.end.is_some(), || format!("{id} is lost: {entry:?}"))?;
        }
        Ok(())
    }

    /// Every job that was accepted has ended.
    pub(super) fn check_ended(&self, at: usize) -> Checked {
        let open = self.books[at]
            .entries
            .iter()
            .find(|(_, entry)| entry.is_accepted && !entry.is_forgotten && entry.end.is_none());
        ensure(open.is_none(), || format!("a job at leader {at} never ends: {open:?}"))
    }

    /// Jobs of a leader that have not ended.
    pub(super) fn open(&self, at: usize) -> impl Iterator<Item = (JobId, &Arc<Spec>)> {
        let open = self.books[at].entries.iter();
        let open = open.filter(|(_, entry)| !entry.is_forgotten && entry.end.is_none());
        open.map(|((id, _), entry)| (*id, &entry.spec))
    }

    /// Jobs of a leader that have ended and are on its disk.
    pub(super) fn over(&self, at: usize) -> Vec<JobId> {
        let over = self.books[at].entries.iter();
        let over = over.filter(|(_, entry)| !entry.is_forgotten && entry.end.is_some());
        over.map(|((id, _), _)| *id).collect()
    }
}
