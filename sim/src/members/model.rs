//! What must hold of a group's messages, through crashes.
//!
//! A state says of each message whether it is open, about to be buried, done, or a dead
//! letter. Changes are made to it in the order in which they are written down. A crash keeps
//! a beginning of them, with everything in it that was promised: which one is not known,
//! so the model goes on with all of them, and everything that is seen rules some out. When
//! none is left, something does not hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gapless_core::{Durability, Mode, Timestamp};
use gapless_journal::faulty::CrashKind;

use crate::world::{Checked, broken};

/// What is to happen with a message next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is to be handed out.
    Open,
    /// It failed for the last time and is to be buried.
    Dying,
    /// It never comes again.
    Done,
    /// It is a dead letter.
    Letter,
}

/// A message of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Input {
    pub key: Option<u64>,
    pub seq: u64,
    pub fate: Fate,
    /// Deliveries that were counted.
    pub failures: u32,
    /// When it may come again.
    pub due: Timestamp,
}

/// A failure of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub number: u64,
    /// The attempt that failed.
    pub attempt: u32,
    pub due: Timestamp,
    pub dead: bool,
}

/// What is written down in one go. Messages are told by their numbers, which stay when a
/// dead letter is redriven and gets another seq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Publish(Vec<(u64, Option<u64>)>),
    /// Done, with an output in the same step or without.
    Done(Vec<u64>, bool),
    Failed(Vec<Failed>),
    Buried(Vec<u64>),
    Redriven(Vec<u64>),
    Removed(Vec<u64>),
    Paused(bool),
}

/// How things stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub inputs: BTreeMap<u64, Input>,
    /// Inputs that have an output.
    pub outputs: BTreeSet<u64>,
    pub last_seq: u64,
    pub paused: bool,
}

impl State {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Publish(messages) => {
                for (number, key) in messages {
                    self.publish(*number, *key);
                }
            }
            Change::Done(numbers, output) => {
                for number in numbers {
                    self.set(*number, Fate::Done);
                    if *output {
                        self.outputs.insert(*number);
                    }
                }
            }
            Change::Failed(failed) => {
                for each in failed {
                    if let Some(input) = self.inputs.get_mut(&each.number) {
                        (input.failures, input.due) = (each.attempt, each.due);
                        input.fate = if each.dead { Fate::Dying } else { Fate::Open };
                    }
                }
            }
            Change::Buried(numbers) => {
                for number in numbers {
                    if self.inputs.get(number).is_some_and(|input| input.fate == Fate::Dying) {
                        self.set(*number, Fate::Letter);
                    }
                }
            }
            Change::Redriven(numbers) => {
                for number in numbers {
                    if let Some(input) = self.inputs.get(number).copied() {
                        self.publish(*number, input.key);
                    }
                }
            }
            Change::Removed(numbers) => {
                numbers.iter().for_each(|number| self.set(*number, Fate::Done));
            }
            Change::Paused(paused) => self.paused = *paused,
        }
    }

    fn publish(&mut self, number: u64, key: Option<u64>) {
        self.last_seq += 1;
        let (seq, fate) = (self.last_seq, Fate::Open);
        let input = Input { key, seq, fate, failures: 0, due: Timestamp(0) };
        self.inputs.insert(number, input);
    }

    fn set(&mut self, number: u64, fate: Fate) {
        if let Some(input) = self.inputs.get_mut(&number) {
            input.fate = fate;
        }
    }

    /// The numbers of all with this fate.
    pub(super) fn with(&self, fate: Fate) -> impl Iterator<Item = u64> {
        let of_fate = self.inputs.iter().filter(move |(_, input)| input.fate == fate);
        of_fate.map(|(number, _)| *number)
    }

    /// Whether a message may be handed out now to a member that holds these seqs.
    pub(super) fn may_be_handed(
        &self,
        handed: &Handing,
        mode: Mode,
        held: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let Handing { number, seq, attempt, now } = *handed;
        let Some(input) = self.inputs.get(&number) else {
            return Err(format!("{number} was never published"));
        };
        let fits = input.fate == Fate::Open
            && input.seq == seq
            && input.failures + 1 == attempt
            && input.due <= now
            && !self.paused;
        if !fits {
            let paused = if self.paused { ", and it is paused" } else { "" };
            return Err(format!("{handed:?}, but it is {input:?}{paused}"));
        }
        let open = self.inputs.values().filter(|each| each.fate == Fate::Open && each.seq < seq);
        for before in open {
            let wrong = match mode {
                Mode::Shared => false,
                Mode::Keyed => input.key.is_some() && input.key == before.key,
                Mode::Ordered => !held.contains(&before.seq),
            };
            if wrong {
                return Err(format!("{seq} comes before {before:?}"));
            }
        }
        Ok(())
    }
}

/// A message that a member is handed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handing {
    pub number: u64,
    pub seq: u64,
    pub attempt: u32,
    pub now: Timestamp,
}

/// One way how it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    /// Everything up to here is flushed.
    base: State,
    log: VecDeque<(u64, Change)>,
    now: State,
}

/// All ways how it may be.
#[derive(Debug)]
pub(super) struct Model {
    candidates: Vec<Candidate>,
    serial: u64,
    written: u64,
}

impl Model {
    pub(super) fn new() -> Self {
        let (base, now) = (State::default(), State::default());
        Self {
            candidates: vec![Candidate { base, log: VecDeque::new(), now }],
            serial: 0,
            written: 0,
        }
    }

    /// How many ways there are.
    pub(super) fn ways(&self) -> usize {
        self.candidates.len()
    }

    /// The number of the newest change.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Something was written down; tells its number.
    pub(super) fn apply(&mut self, change: &Change) -> u64 {
        self.serial += 1;
        for candidate in &mut self.candidates {
            candidate.now.apply(change);
            candidate.log.push_back((self.serial, change.clone()));
        }
        self.serial
    }

    /// Something was written down, or not.
    pub(super) fn perhaps(&mut self, change: &Change) {
        let without = self.candidates.clone();
        self.apply(change);
        self.candidates.extend(without);
    }

    /// Everything up to this number is as durable.
    pub(super) fn promise(&mut self, durability: Durability, through: u64) {
        if durability >= Durability::Written {
            self.written = self.written.max(through);
        }
        if durability < Durability::Flushed {
            return;
        }
        for candidate in &mut self.candidates {
            while let Some((_, change)) = candidate.log.pop_front_if(|(at, _)| *at <= through) {
                candidate.base.apply(&change);
            }
        }
    }

    /// Keeps what was promised for this kind of crash, and a beginning of what follows. Tells
    /// how many changes may be gone.
    pub(super) fn crash(&mut self, kind: CrashKind) -> usize {
        let kept = if kind == CrashKind::Process { self.written } else { 0 };
        let mut states: Vec<State> = Vec::new();
        let mut doubtful = 0;
        let mut add = |state: &State| {
            if !states.contains(state) {
                states.push(state.clone());
            }
        };
        for candidate in std::mem::take(&mut self.candidates) {
            let mut state = candidate.base;
            let (sure, rest): (Vec<_>, Vec<_>) =
                candidate.log.into_iter().partition(|(at, _)| *at <= kept);
            sure.iter().for_each(|(_, change)| state.apply(change));
            add(&state);
            doubtful = doubtful.max(rest.len());
            for (_, change) in &rest {
                state.apply(change);
                add(&state);
            }
        }
        let begin =
            |state: State| Candidate { base: state.clone(), log: VecDeque::new(), now: state };
        self.candidates = states.into_iter().map(begin).collect();
        doubtful
    }

    /// Rules out the ways that do not fit what is seen.
    pub(super) fn see(
        &mut self,
        what: &str,
        fits: impl Fn(&State) -> Result<(), String>,
    ) -> Checked {
        let mut why = String::new();
        self.candidates.retain(|candidate| match fits(&candidate.now) {
            Ok(()) => true,
            Err(story) => {
                why = story;
                false
            }
        });
        if self.candidates.is_empty() { broken(format!("{what}: {why}")) } else { Ok(()) }
    }

    /// Numbers that are about to be buried in any way.
    pub(super) fn dying(&self) -> BTreeSet<u64> {
        self.candidates.iter().flat_map(|each| each.now.with(Fate::Dying)).collect()
    }
}
