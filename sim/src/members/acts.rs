//! What members and people do, and what they are told.

use std::task::{Context, Poll, Waker};

use gapless_broker::{Atomic, Handed, Join, LetterFilter, Publishing};
use gapless_core::{Message, PublishAck, PublishOptions, RejectReason};

use super::disk::number_of;
use super::model::Handing;
use super::*;

impl World {
    pub(super) fn publish(&mut self) -> Checked {
        let mut batch = Vec::new();
        for _ in 0..self.random.between(1, 6) {
            let key = self.random.chance(70).then(|| self.random.below(4));
            batch.push((self.next_number, key));
            self.next_number += 1;
        }
        let message = |(number, key): &(u64, Option<u64>)| {
            let mut message = Message::new(number.to_string());
            message.key = key.map(|key| key.to_string().into());
            message
        };
        let messages: Vec<Message> = batch.iter().map(message).collect();
        let options = PublishOptions::default();
        let publishing = self.broker().publish_batch(&name("in"), &messages, &options);
        self.published("a publish", publishing, &Change::Publish(batch), true).map(|_| ())
    }

    /// Takes over what became of a publish. Tells whether it was accepted.
    fn published(
        &mut self,
        what: &str,
        publishing: Publishing,
        change: &Change,
        flushed: bool,
    ) -> Checked<bool> {
        if let Some(reason) = publishing.rejected_with() {
            self.note(format_args!("{what}: {reason}"));
            ensure(reason == RejectReason::QueueFull, || format!("{what} is refused: {reason}"))?;
            return Ok(false);
        }
        if !publishing.is_accepted() {
            let Err(error) = publishing.wait() else { return broken(format!("{what} is nothing")) };
            let nothing = self.troubled(what, &error)?;
            ensure(nothing, || format!("{what} that did not begin has the fate of {error}"))?;
            return Ok(false);
        }
        let serial = self.model.apply(change);
        if !self.may_block() && self.random.chance(70) {
            match publishing.wait() {
                Ok(PublishAck::Accepted(ack)) => {
                    let reached = ack.durability;
                    self.note(format_args!("{what}: {change:?}, {reached:?}"));
                    ensure(!flushed || reached == Durability::Flushed, || {
                        format!("{what} reached {reached:?} only")
                    })?;
                    self.model.promise(reached, serial);
                }
                Ok(other) => return broken(format!("{what} was answered {other:?}")),
                Err(error) => {
                    self.troubled(what, &error)?;
                }
            }
        } else {
            self.note(format_args!("{what}: {change:?}, unconfirmed"));
        }
        Ok(true)
    }

    pub(super) fn join(&mut self) -> Checked {
        if self.workers.len() < MEMBERS_MAX {
            let window = self.random.between(1, 8) as u32;
            let join = Join { name: "m".to_owned(), window };
            match self.broker().join_group(&name("g"), &join) {
                Ok(member) => self.workers.push(Worker { member, held: Vec::new() }),
                Err(gapless_broker::GroupError::System(error)) => {
                    self.troubled("a join", &error)?;
                }
                Err(error) => return broken(format!("no member can join: {error}")),
            }
        }
        Ok(())
    }

    pub(super) fn take_worker(&mut self) -> Option<Worker> {
        if self.workers.is_empty() {
            return None;
        }
        let at = self.random.index(self.workers.len());
        Some(self.workers.remove(at))
    }

    /// A member goes without a word: what it holds counts as failed.
    pub(super) fn die(&mut self) -> Checked {
        let Some(worker) = self.take_worker() else { return Ok(()) };
        let failed = self.failures(&worker.held, self.now(), false);
        let before = self.broker().journal_stats();
        let busy = before.waiting_bytes * 2 > self.plan.journal.waiting_bytes_max as u64;
        let doubtful = self.in_trouble() || busy;
        drop(worker.member);
        self.note(format_args!("dies with {failed:?}, doubtful: {doubtful}"));
        if failed.is_empty() {
            return Ok(());
        }
        if doubtful {
            // If that cannot be written down they did not fail.
            self.model.perhaps(&Change::Failed(failed));
        } else {
            self.model.apply(&Change::Failed(failed));
        }
        Ok(())
    }

    /// Failures of what was held, which is tried again at once: of an ordered member only the
    /// first.
    fn failures(&self, held: &[Held], due: Timestamp, dead: bool) -> Vec<Failed> {
        let count = if self.is_ordered() { 1 } else { held.len() };
        let failed = |held: &Held| {
            let attempt = held.lease.attempt;
            let dead = dead || attempt >= self.settings.attempts_max;
            Failed { number: held.number, attempt, due, dead }
        };
        held.iter().take(count).map(failed).collect()
    }

    /// The keeper's turn.
    pub(super) fn turn(&mut self) -> Checked {
        let (serial, now) = (self.model.serial(), self.now());
        let letters = self.group()?.dead_letters;
        self.broker().turn();
        self.look_at_leases()?;
        let held = self.workers.iter().flat_map(|worker| &worker.held);
        let late = held.filter(|held| held.until <= now).count();
        let busy = self.broker().journal_stats().waiting_bytes > 0;
        ensure(late == 0 || busy || self.in_trouble(), || format!("{late} leases do not end"))?;
        // Listing buries too: only what is buried from here on says that the turn flushed.
        let buried_now = self.group()?.dead_letters > letters;
        self.look_at_letters(buried_now.then_some(serial))
    }

    /// Finds out which leases ran out: as many as the group says, the oldest.
    fn look_at_leases(&mut self) -> Checked {
        let total = self.group()?.totals.expired;
        let count = (total - std::mem::replace(&mut self.expired, total)) as usize;
        if count == 0 {
            return Ok(());
        }
        let now = self.now();
        let mut over: Vec<Held> = self.workers.iter().flat_map(|each| each.held.clone()).collect();
        over.retain(|held| held.until <= now);
        over.sort_by_key(|held| (held.until, held.seq));
        ensure(over.len() >= count, || format!("{count} leases ended, but only {over:?} may"))?;
        over.truncate(count);
        let gone: BTreeSet<u64> = over.iter().map(|held| held.number).collect();
        for worker in &mut self.workers {
            worker.held.retain(|held| !gone.contains(&held.number));
        }
        over.sort_by_key(|held| held.seq);
        let failed = self.failures(&over, Timestamp(0), false);
        self.note(format_args!("ran out: {failed:?}"));
        self.model.apply(&Change::Failed(failed));
        Ok(())
    }

    pub(super) fn poll(&mut self) -> Checked {
        if self.workers.is_empty() {
            return Ok(());
        }
        let at = self.random.index(self.workers.len());
        loop {
            let context = &mut Context::from_waker(Waker::noop());
            let polled = self.workers[at].member.poll_next(context);
            self.look_at_leases()?;
            match polled {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(Handed::Active | Handed::Standby)) => {}
                Poll::Ready(Ok(Handed::Messages(leased))) => {
                    let count = leased.messages().count() as u64;
                    let leases: u64 = leased.leases().iter().map(Lease::count).sum();
                    ensure(count == leases, || format!("{count} messages, {leases} leased"))?;
                    for each in leased.messages().records() {
                        let (seq, until) = (each.seq.0, leased.deadline());
                        let number = number_of(each.record.body)?;
                        let lease = leased.lease_of(each.position);
                        self.handed(at, Held { number, seq, lease, until })?;
                    }
                }
                Poll::Ready(Ok(other)) => return broken(format!("a member was told {other:?}")),
                Poll::Ready(Err(error)) => {
                    self.note(format_args!("a member was told {error}"));
                    ensure(self.in_trouble(), || format!("a member was told {error}"))?;
                    // What was leased and could not be read is unknown here.
                    let kind = self.crash_kind();
                    return self.crash(kind);
                }
            }
        }
    }

    /// Checks that a message may be handed out.
    fn handed(&mut self, at: usize, held: Held) -> Checked {
        let Held { number, seq, lease, .. } = held;
        let handing = Handing { number, seq, attempt: lease.attempt, now: self.now() };
        self.note(format_args!("{at} is handed {handing:?}"));
        self.tally.handed += 1;
        self.tally.again += u64::from(lease.attempt > 1);
        let mut all = self.workers.iter().flat_map(|worker| &worker.held);
        ensure(!all.any(|each| each.number == number), || format!("{number} is with two members"))?;
        let own = self.workers[at].held.iter().map(|held| held.seq).collect();
        let mode = self.settings.mode;
        self.model.see("handed out", |state| state.may_be_handed(&handing, mode, &own))?;
        let worker = &mut self.workers[at];
        // An ordered member has one lease for all; what it gets later does not prolong it.
        let until = worker.held.first().filter(|_| mode == Mode::Ordered).map(|first| first.until);
        worker.held.push(Held { until: until.unwrap_or(held.until), ..held });
        worker.held.sort_by_key(|held| held.seq);
        Ok(())
    }

    /// Some of what a member holds; of an ordered one the first.
    fn some_of(&mut self) -> Option<(usize, Vec<Held>)> {
        let busy: Vec<usize> =
            (0..self.workers.len()).filter(|at| !self.workers[*at].held.is_empty()).collect();
        let at = *self.random.pick_any(&busy)?;
        let held = self.workers[at].held.clone();
        let count = self.random.between(1, held.len() as u64) as usize;
        let skip = if self.is_ordered() { 0 } else { self.random.index(held.len() - count + 1) };
        Some((at, held[skip..skip + count].to_vec()))
    }

    /// A member does not hold these any more, and an ordered one was heard of.
    fn let_go(&mut self, at: usize, gone: &[Held], now: Timestamp) {
        let gone: BTreeSet<u64> = gone.iter().map(|held| held.number).collect();
        self.workers[at].held.retain(|held| !gone.contains(&held.number));
        self.heard(at, now);
    }

    fn heard(&mut self, at: usize, now: Timestamp) {
        if self.is_ordered() {
            let until = now.after(LEASE);
            self.workers[at].held.iter_mut().for_each(|held| held.until = until);
        }
    }

    /// A member is done, with an output in the same step.
    pub(super) fn step_atomically(&mut self) -> Checked {
        let Some((at, some)) = self.some_of() else { return Ok(()) };
        let (now, leases) = (self.now(), leases(&some));
        let outputs: Vec<Message> =
            some.iter().map(|held| Message::new(held.number.to_string())).collect();
        let handle = self.workers[at].member.handle();
        let atomic = Atomic::new().publish(&name("out"), &outputs).ack(&handle, &leases);
        let durability =
            *self.random.pick(&[Durability::Flushed, Durability::Flushed, Durability::Memory]);
        let options = PublishOptions { durability: Some(durability), ..PublishOptions::default() };
        let publishing = self.broker().commit(atomic, &options);
        let done = Change::Done(numbers(&some), true);
        let flushed = durability == Durability::Flushed;
        if self.published("a step", publishing, &done, flushed)? {
            self.let_go(at, &some, now);
        } else if !self.in_trouble() {
            self.turn()?;
        }
        Ok(())
    }

    /// A member is done.
    pub(super) fn ack(&mut self) -> Checked {
        let Some((at, some)) = self.some_of() else { return Ok(()) };
        let now = self.now();
        let acking = self.workers[at].member.ack(&leases(&some));
        let done = Change::Done(numbers(&some), false);
        if self.said("an ack", acking, &done, some.len())? {
            self.let_go(at, &some, now);
        }
        Ok(())
    }

    /// A member could not do something; for the last time, if it says so.
    pub(super) fn fail(&mut self, dead: bool) -> Checked {
        let Some((at, mut some)) = self.some_of() else { return Ok(()) };
        if self.is_ordered() {
            some.truncate(1);
        }
        let now = self.now();
        let delay = self.random.chance(50).then(|| self.random.ms(0, 300));
        let member = &self.workers[at].member;
        let acking = if dead {
            member.terminate(&leases(&some), "never")
        } else {
            member.nack(&leases(&some), delay, "no")
        };
        let Waits::Steps(waits) = &self.settings.retry.waits else { return broken("other waits") };
        // Without a delay the schedule counts, which is spread by a fifth.
        let due = now.after(delay.unwrap_or(waits[0] * 8 / 10));
        let failed = self.failures(&some, due, dead);
        let over = failed.iter().all(|each| each.dead);
        if self.said("a nack", acking, &Change::Failed(failed), some.len())? {
            self.let_go(at, &some, now);
            if self.is_ordered() && !over {
                // What came after it comes back too, and does not count.
                self.workers[at].held.clear();
            }
        }
        Ok(())
    }

    /// Takes over what became of what a member said. Tells whether it counts.
    fn said(
        &mut self,
        what: &str,
        acking: gapless_broker::Acking,
        change: &Change,
        count: usize,
    ) -> Checked<bool> {
        match acking.outcome() {
            Ok(outcome) => {
                // Leases end only at a look, so what the model holds the group holds too.
                let taken = outcome.taken as usize == count && outcome.refused == 0;
                ensure(taken, || format!("{what} {change:?} was answered {outcome:?}"))?;
            }
            Err(error) => {
                let nothing = self.troubled(what, &error)?;
                ensure(nothing, || format!("{what} did not begin, but is {error}"))?;
                return Ok(false);
            }
        }
        let serial = self.model.apply(change);
        if self.may_block() || self.random.chance(40) {
            self.note(format_args!("{what}: {change:?}, unconfirmed"));
            drop(acking);
            return Ok(true);
        }
        match acking.wait() {
            Ok(_) => {
                self.note(format_args!("{what}: {change:?}"));
                self.model.promise(self.settings.durability, serial);
            }
            Err(error) => {
                self.troubled(what, &error)?;
            }
        }
        Ok(true)
    }

    /// A member needs more time, for some or for all it holds.
    pub(super) fn extend(&mut self) -> Checked {
        let Some((at, mut some)) = self.some_of() else { return Ok(()) };
        let now = self.now();
        let mut named = leases(&some);
        if self.random.chance(40) {
            some.clone_from(&self.workers[at].held);
            named.clear();
        }
        let extended = self.workers[at].member.extend(&named);
        let fits = extended.taken as usize == some.len() && extended.refused == 0;
        ensure(fits, || format!("more time for {some:?} was answered {extended:?}"))?;
        let numbers = numbers(&some);
        for held in &mut self.workers[at].held {
            if numbers.contains(&held.number) {
                held.until = extended.deadline;
            }
        }
        self.heard(at, now);
        Ok(())
    }

    pub(super) fn seal(&mut self) -> Checked {
        let sealed = self.broker().seal();
        self.note(format_args!("seal: {}", sealed.is_ok()));
        if sealed.is_ok() {
            let all = self.model.serial();
            self.model.promise(Durability::Flushed, all);
            return Ok(());
        }
        ensure(self.in_trouble(), || format!("it is not sealed: {sealed:?}"))
    }

    pub(super) fn compact(&mut self) -> Checked {
        let compacted = self.broker().compact();
        self.note(format_args!("compact: {}", compacted.is_ok()));
        ensure(compacted.is_ok() || self.in_trouble(), || format!("no compaction: {compacted:?}"))
    }

    /// Dead letters are redriven or removed: one, or all.
    pub(super) fn end_letters(&mut self, redrive: bool) -> Checked {
        if self.may_block() {
            return Ok(());
        }
        let Some(letters) = self.letters()? else { return Ok(()) };
        let Some((seq, number, _)) = self.random.pick_any(&letters).copied() else { return Ok(()) };
        let (which, meant) = if self.random.chance(50) {
            (LetterFilter::one(seq), vec![number])
        } else {
            (LetterFilter::all(), letters.iter().map(|(_, number, _)| *number).collect())
        };
        let broker = self.broker();
        let count = meant.len() as u64;
        let (ended, change) = if redrive {
            let redriven = broker.redrive(&name("g"), &which, None);
            (redriven.map(|redriven| redriven.moved), Change::Redriven(meant))
        } else {
            (broker.remove_dead_letters(&name("g"), &which), Change::Removed(meant))
        };
        self.note(format_args!("{change:?}: {ended:?}"));
        match ended {
            Ok(ended) => {
                ensure(ended == count, || format!("{ended} letters ended, not {count}"))?;
                self.tally.redriven += if redrive { count } else { 0 };
                let serial = self.model.apply(&change);
                self.model.promise(Durability::Flushed, serial);
            }
            Err(gapless_broker::GroupError::Rejected(RejectReason::QueueFull)) => {}
            Err(error) => {
                ensure(self.in_trouble(), || format!("letters were not ended: {error}"))?;
                match self.letters()? {
                    // It counts at once, whether or not it reached the disk.
                    Some(left) if left.len() < letters.len() => {
                        self.model.apply(&change);
                    }
                    Some(_) => {}
                    None => self.model.perhaps(&change),
                }
            }
        }
        Ok(())
    }

    /// The group is paused, or resumed.
    pub(super) fn pause(&mut self, pause: bool) -> Checked {
        let is_paused = self.group()?.state == gapless_broker::GroupDoing::Paused;
        if self.may_block() || is_paused == pause {
            return Ok(());
        }
        let broker = self.broker();
        let done = if pause {
            broker.pause_group(&name("g")).map(|_| ())
        } else {
            broker.resume_group(&name("g")).map(|_| ())
        };
        self.note(format_args!("paused {pause}: {done:?}"));
        if let Err(error) = &done {
            ensure(self.in_trouble(), || format!("it is not paused or resumed: {error}"))?;
        }
        let counts = (self.group()?.state == gapless_broker::GroupDoing::Paused) == pause;
        ensure(counts || done.is_err(), || format!("it is told that paused is {pause}"))?;
        if counts {
            let serial = self.model.apply(&Change::Paused(pause));
            if done.is_ok() {
                self.model.promise(Durability::Flushed, serial);
            }
        }
        Ok(())
    }
}

fn leases(held: &[Held]) -> Vec<Lease> {
    held.iter().map(|held| held.lease).collect()
}

fn numbers(held: &[Held]) -> Vec<u64> {
    held.iter().map(|held| held.number).collect()
}
