//! Crashes, openings, faults, and what is seen from outside afterwards.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::task::{Context, Poll, Waker};

use gapless_broker::{Delivery, From};
use gapless_core::Seq;
use gapless_journal::faulty::Times;

use super::*;

impl World {
    /// Opens the store after a crash of this kind, perhaps after failed attempts.
    pub(super) fn open(&mut self, mut end: Option<CrashKind>) -> Checked {
        for attempt in 0.. {
            let fault = attempt < 3 && end.is_some() && self.random.chance(15);
            // What was to fail in the life before, or at the attempt before, does not count here.
            self.calm();
            if fault {
                self.arm();
            }
            match Broker::open(self.plan.options(self.seed, &self.fs, &self.clock)) {
                // It died with the last writes of the opening, which nothing depends on.
                Ok(_) if self.is_down() => {
                    let kind = self.crash_kind();
                    self.note(format_args!("open, and a crash: {kind:?}"));
                    self.hook.revive();
                    self.fs.crash(kind);
                    if kind == CrashKind::Power || end.is_none() {
                        end = Some(kind);
                    }
                }
                Ok(broker) => {
                    let opened = broker.opened().clone();
                    self.note(format_args!("open: {opened:?}"));
                    self.broker = Some(broker);
                    break;
                }
                Err(error) => {
                    self.note(format_args!("open: {error}"));
                    if !fault && !self.disk_limited {
                        return broken(format!("it does not open: {error}"));
                    }
                    if !fault {
                        self.disk_limited = false;
                        self.fs.set_capacity(None);
                    }
                    let kind = self.crash_kind();
                    self.hook.revive();
                    self.fs.crash(kind);
                    // The worse of both counts.
                    if kind == CrashKind::Power || end.is_none() {
                        end = Some(kind);
                    }
                }
            }
        }
        self.calm();
        self.expired = 0;
        let Some(kind) = end else { return Ok(()) };
        self.tally.doubtful += u64::from(self.model.crash(kind) > 0);
        self.observe()
    }

    /// Faults that were to come do not.
    pub(super) fn calm(&mut self) {
        self.fs.disarm();
        self.hook.revive();
        (self.down_at, self.faulty) = (None, false);
    }

    pub(super) fn crash_kind(&mut self) -> CrashKind {
        if self.random.chance(50) { CrashKind::Process } else { CrashKind::Power }
    }

    /// Ends the run in this way and opens the store again.
    pub(super) fn crash(&mut self, kind: CrashKind) -> Checked {
        self.note(format_args!("crash: {kind:?}"));
        self.tally.crashes += 1;
        self.hook.revive();
        self.fs.crash(kind);
        self.fs.disarm();
        self.end_run();
        self.open(Some(kind))
    }

    fn end_run(&mut self) {
        self.workers.clear();
        self.side.clear();
        self.broker = None;
        self.down_at = None;
        if self.random.chance(30) {
            self.plan.resize(&mut self.random);
        }
    }

    /// Closes the broker and opens it again.
    pub(super) fn close(&mut self) -> Checked {
        let workers = std::mem::take(&mut self.workers);
        workers.into_iter().for_each(|worker| worker.member.leave());
        let closed = self.broker().close();
        self.note(format_args!("close: {}", closed.is_ok()));
        if let Err(error) = &closed {
            ensure(self.in_trouble(), || format!("closing failed: {error}"))?;
            let kind = self.crash_kind();
            return self.crash(kind);
        }
        let all = self.model.serial();
        self.model.promise(Durability::Flushed, all);
        if self.is_down() {
            // It died with the last writes of the closing, which nothing depends on.
            let kind = self.crash_kind();
            return self.crash(kind);
        }
        self.hook.revive();
        self.fs.disarm();
        self.end_run();
        self.open(Some(CrashKind::Process))
    }

    /// Sooner or later it is noticed that nothing works any more.
    pub(super) fn settle_trouble(&mut self) -> Checked {
        if (self.is_down() || self.is_failed()) && self.random.chance(40) {
            let kind = self.crash_kind();
            return self.crash(kind);
        }
        Ok(())
    }

    fn arm(&mut self) {
        let nth = self.random.between(1, 20);
        self.faulty = true;
        match self.random.below(4) {
            0 => self.fs.fail_write(nth, ErrorKind::Other, Times::Once),
            1 => self.fs.fail_sync(nth, ErrorKind::Other, Times::Once),
            2 => self.hook.die_within(nth / 2),
            _ => {
                self.down_at = Some(self.fs.writes() + nth);
                self.fs.crash_after_writes(nth);
            }
        }
    }

    /// The disk will fail, fills up, or has room again.
    pub(super) fn break_disk(&mut self) {
        if self.disk_limited {
            self.note(format_args!("there is room"));
            self.disk_limited = false;
            self.fs.set_capacity(None);
            self.broker().flush();
        } else if self.random.chance(40) {
            let room = self.random.below(40_000);
            self.note(format_args!("room for {room}"));
            self.disk_limited = true;
            self.fs.set_capacity(Some(self.fs.used_bytes() + room));
        } else if self.down_at.is_none() {
            self.note(format_args!("a fault is to come"));
            self.arm();
        }
    }

    /// Looks at all that is seen from outside after an opening.
    pub(super) fn observe(&mut self) -> Checked {
        let outputs = self.outputs()?;
        let last = self.broker().describe_topic(&name("in")).map_or(0, |info| info.next.0 - 1);
        self.model.see("what is there", |state| {
            if state.last_seq != last {
                return Err(format!("{last} messages, not {}", state.last_seq));
            }
            if !outputs.keys().eq(&state.outputs) {
                return Err(format!("outputs of {:?}, not {:?}", outputs.keys(), state.outputs));
            }
            Ok(())
        })?;
        self.observe_aside()?;
        self.look_at_letters(None)?;
        let paused = self.group()?.state == gapless_broker::GroupDoing::Paused;
        self.model.see("paused", |state| {
            if state.paused == paused { Ok(()) } else { Err(format!("{paused}")) }
        })
    }

    /// How often each message has an output.
    fn outputs(&self) -> Checked<BTreeMap<u64, u64>> {
        let pattern = Pattern::parse("out").expect("it is a pattern");
        let subscribed = self.broker().subscribe(&pattern, From::Beginning);
        let Ok(mut follower) = subscribed else { return broken("out cannot be followed") };
        let mut outputs = BTreeMap::new();
        while let Poll::Ready(step) = follower.poll_next(&mut Context::from_waker(Waker::noop())) {
            let step = match step {
                Ok(step) => step,
                Err(error) => return broken(format!("out cannot be read: {error}")),
            };
            let Delivery::Messages(messages) = step else { continue };
            for each in messages.iter() {
                *outputs.entry(number_of(each.message.body.as_deref())?).or_insert(0) += 1;
            }
        }
        let twice = outputs.iter().find(|(_, count)| **count > 1);
        ensure(twice.is_none(), || format!("a message has two outputs: {twice:?}"))?;
        Ok(outputs)
    }

    /// The dead letters there are: seq and number of each. None in trouble.
    pub(super) fn letters(&mut self) -> Checked<Option<Vec<(Seq, u64, u32)>>> {
        match self.broker().dead_letters(&name("g"), Seq(1), 10_000) {
            Ok(letters) => {
                let row = |each: &gapless_broker::DeadLetter| {
                    let number = number_of(each.message.body.as_deref())?;
                    Ok((each.seq, number, each.attempts))
                };
                letters.iter().map(row).collect::<Checked<_>>().map(Some)
            }
            Err(error) => {
                ensure(self.in_trouble(), || format!("dead letters cannot be read: {error}"))?;
                Ok(None)
            }
        }
    }

    /// Looks at the dead letters. Burying happens by itself, in a turn or when the group is looked
    /// at; what is seen is flushed. So is everything before the turn that began after `before`, but
    /// not in trouble: then it may be an earlier flush that is seen, the last one that worked.
    pub(super) fn look_at_letters(&mut self, before: Option<u64>) -> Checked {
        let Some(letters) = self.letters()? else { return Ok(()) };
        let dying = self.model.dying();
        let seen: BTreeMap<u64, u32> =
            letters.iter().map(|(_, number, attempts)| (*number, *attempts)).collect();
        ensure(seen.len() == letters.len(), || format!("a letter is there twice: {letters:?}"))?;
        let new: Vec<u64> = seen.keys().copied().filter(|number| dying.contains(number)).collect();
        if !new.is_empty() {
            self.note(format_args!("buried: {new:?}"));
            self.tally.buried += new.len() as u64;
            self.model.apply(&Change::Buried(new));
            if let Some(before) = before
                && !self.in_trouble()
            {
                self.model.promise(Durability::Flushed, before);
            }
        }
        self.model.see("dead letters", |state| {
            let known: BTreeSet<u64> = state.with(Fate::Letter).collect();
            // One that is on its way to the disk is not shown yet.
            if !seen.keys().all(|number| known.contains(number)) || seen.len() != known.len() {
                return Err(format!("{:?} are there, not {known:?}", seen.keys()));
            }
            let wrong =
                seen.iter().find(|(number, count)| state.inputs[number].failures != **count);
            wrong.map_or(Ok(()), |wrong| Err(format!("{wrong:?} attempts")))
        })
    }
}

/// The number of a message: its body.
pub(super) fn number_of(body: Option<&[u8]>) -> Checked<u64> {
    let text = std::str::from_utf8(body.unwrap_or_default()).ok();
    text.and_then(|text| text.parse().ok()).map_or_else(|| broken("a message is none of ours"), Ok)
}
