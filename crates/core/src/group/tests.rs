//! The machine against a plain model, through restarts; what it costs at scale; and what it
//! writes down.

mod model;
mod scale;
mod written;

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::pattern::Pattern;
use crate::retry::{RetryPolicy, Waits};
use model::{Fate, Message, Model};

pub(super) fn settings(mode: Mode) -> GroupSettings {
    let first = Duration::from_millis(50);
    let waits = Waits::Growing { first, factor: 2, most: Duration::from_millis(200) };
    GroupSettings {
        mode,
        lease: Duration::from_millis(100),
        attempts_max: 3,
        retry: RetryPolicy { waits, jitter_percent: 0 },
        ..GroupSettings::new(Pattern::parse("a").unwrap())
    }
}

#[derive(Clone, Debug)]
enum Act {
    Join {
        window: u32,
    },
    Leave {
        who: usize,
        failed: bool,
    },
    Read {
        count: usize,
    },
    Take {
        who: usize,
        max: u64,
    },
    Ack {
        who: usize,
        pick: u64,
        late: bool,
    },
    Commit {
        who: usize,
        pick: u64,
    },
    Nack {
        who: usize,
        pick: u64,
        delay: Option<u64>,
    },
    Terminate {
        who: usize,
        pick: u64,
    },
    Extend {
        who: usize,
        pick: u64,
    },
    Advance {
        ms: u64,
    },
    Pause(bool),
    Bury,
    /// All is lost but what was written down; or a checkpoint of it.
    Crash {
        checkpoint: bool,
    },
}

fn acts() -> impl Strategy<Value = Act> {
    let who = 0..4_usize;
    let pick = any::<u64>();
    prop_oneof![
        2 => (1..20_u32).prop_map(|window| Act::Join { window }),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, failed)| Act::Leave { who, failed }),
        5 => (1..9_usize).prop_map(|count| Act::Read { count }),
        8 => (who.clone(), 1..9_u64).prop_map(|(who, max)| Act::Take { who, max }),
        6 => (who.clone(), pick, proptest::bool::weighted(0.1))
            .prop_map(|(who, pick, late)| Act::Ack { who, pick, late }),
        1 => (who.clone(), pick).prop_map(|(who, pick)| Act::Commit { who, pick }),
        3 => (who.clone(), pick, proptest::option::of(0..120_u64))
            .prop_map(|(who, pick, delay)| Act::Nack { who, pick, delay }),
        1 => (who.clone(), pick).prop_map(|(who, pick)| Act::Terminate { who, pick }),
        1 => (who, pick).prop_map(|(who, pick)| Act::Extend { who, pick }),
        4 => (1..80_u64).prop_map(|ms| Act::Advance { ms }),
        1 => any::<bool>().prop_map(Act::Pause),
        1 => Just(Act::Bury),
        1 => any::<bool>().prop_map(|checkpoint| Act::Crash { checkpoint }),
    ]
}

/// Machine and model side by side.
struct Both {
    group: Group,
    model: Model,
    /// What was written down since the beginning.
    ops: Vec<Op>,
    now: Timestamp,
    next_member: u64,
}

impl Both {
    fn new(settings: &GroupSettings, messages: Vec<Message>) -> Self {
        Self {
            group: Group::new(settings.clone(), Position(0), Position(0), 7),
            model: Model::new(settings.clone(), messages),
            ops: Vec::new(),
            now: Timestamp(1_000),
            next_member: 1,
        }
    }

    fn step(&mut self, input: Input<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.group.step(self.now, input, &mut effects);
        self.group.check();
        for effect in &effects {
            if let Effect::Record(op) = effect {
                self.ops.push(op.clone());
            }
        }
        effects
    }

    fn counted(effects: &[Effect]) -> (u64, u64) {
        let counted = effects.iter().find_map(|effect| match effect {
            Effect::Counted { taken, refused } => Some((*taken, *refused)),
            _ => None,
        });
        counted.expect("it is counted")
    }

    fn member(&self, who: usize) -> Option<MemberId> {
        self.model.members.keys().nth(who % self.model.members.len().max(1)).copied()
    }

    /// Some of what a member holds, neighbours of one attempt as one lease.
    fn leases(&self, member: MemberId, pick: u64) -> Vec<Lease> {
        let mut leases: Vec<Lease> = Vec::new();
        for (index, (position, attempt)) in self.model.held(member).into_iter().enumerate() {
            if pick >> (index % 64) & 1 == 0 {
                continue;
            }
            match leases.last_mut() {
                Some(last) if last.last.next() == position && last.attempt == attempt => {
                    last.last = position;
                }
                _ => leases.push(Lease { first: position, last: position, attempt }),
            }
        }
        leases
    }

    fn act(&mut self, act: &Act) {
        let now = self.now;
        match act {
            Act::Join { window } => {
                if self.model.members.len() < 4 {
                    let member = MemberId(self.next_member);
                    self.next_member += 1;
                    self.step(Input::Join { member, window: *window });
                    self.model.join(member, *window);
                }
            }
            Act::Leave { who, failed } => {
                if let Some(member) = self.member(*who) {
                    self.step(Input::Leave { member, failed: *failed });
                    self.model.leave(now, member, *failed);
                }
            }
            Act::Read { count } => self.read(*count),
            Act::Take { who, max } => {
                let Some(member) = self.member(*who) else { return };
                let mut got = Vec::new();
                for effect in self.step(Input::Take { member, max: *max }) {
                    let Effect::Deliver(granted) = effect else { panic!("{effect:?}") };
                    assert_eq!(granted.deadline, now.after(self.group.settings.lease));
                    let Lease { first, last, attempt } = granted.lease;
                    assert_eq!(granted.seq.0, first.0, "seqs go with their positions");
                    // Only neighbours without holes are recorded as one.
                    got.extend((first.0..=last.0).map(|each| (Position(each), attempt)));
                    if first != last {
                        assert!(self.group.settings.mode != Mode::Keyed || granted.topic.0 == 1);
                    }
                }
                assert_eq!(got, self.model.take(now, member, *max));
            }
            Act::Ack { who, pick, late } => {
                let Some(member) = self.member(*who) else { return };
                let mut leases = self.leases(member, *pick);
                if *late {
                    leases.iter_mut().for_each(|lease| lease.attempt += 1);
                    leases.push(Lease { first: Position(1), last: Position(9), attempt: 1 });
                }
                let all = self.group.holds(member, &leases);
                let counted = Self::counted(&self.step(Input::Ack { member, leases: &leases }));
                assert_eq!(counted, self.model.ack(now, member, &leases));
                assert_eq!(all, counted.1 == 0);
            }
            Act::Commit { who, pick } => {
                let Some(member) = self.member(*who) else { return };
                let through = Position(pick % (self.group.frontier().0 + 1));
                let mut unread = self.leases(member, pick / 7);
                unread.sort_unstable();
                let input = Input::Commit { member, through, unread: &unread };
                let counted = Self::counted(&self.step(input));
                assert_eq!(counted, (self.model.commit(now, member, through, &unread), 0));
            }
            Act::Nack { who, pick, delay } => {
                let Some(member) = self.member(*who) else { return };
                let leases = self.leases(member, *pick);
                let delay = delay.map(Duration::from_millis);
                let input = Input::Nack { member, leases: &leases, delay, reason: "no" };
                let counted = Self::counted(&self.step(input));
                assert_eq!(counted, self.model.give_back(now, member, &leases, delay, false));
            }
            Act::Terminate { who, pick } => {
                let Some(member) = self.member(*who) else { return };
                let leases = self.leases(member, *pick);
                let input = Input::Terminate { member, leases: &leases, reason: "never" };
                let counted = Self::counted(&self.step(input));
                assert_eq!(counted, self.model.give_back(now, member, &leases, None, true));
            }
            Act::Extend { who, pick } => {
                let Some(member) = self.member(*who) else { return };
                let leases = self.leases(member, *pick);
                let counted = Self::counted(&self.step(Input::Extend { member, leases: &leases }));
                assert_eq!(counted, self.model.extend(now, member, &leases));
            }
            Act::Advance { ms } => {
                self.now = now.after(Duration::from_millis(*ms));
                self.step(Input::Tick);
                self.model.tick(self.now);
            }
            Act::Pause(pause) => {
                self.step(if *pause { Input::Pause } else { Input::Resume });
                self.model.paused = *pause;
            }
            Act::Bury => {
                for dying in self.group.dying(1_000) {
                    self.step(Input::Buried { first: dying.first, last: dying.last });
                }
                self.model.bury();
            }
            Act::Crash { checkpoint } => self.crash(*checkpoint),
        }
        assert_eq!(self.group.counts().open(), self.model.open());
        assert_eq!(self.group.counts().in_flight, self.model.leased());
        assert_eq!(self.group.active(), self.model.active);
    }

    /// Offers the next messages of the source, neighbours as one run.
    fn read(&mut self, count: usize) {
        let frontier = self.group.frontier();
        let new = self.model.messages.iter().filter(|each| each.position > frontier);
        let mut runs: Vec<Offered> = Vec::new();
        for message in new.take(count) {
            let (first, key) = (message.position, message.key);
            match runs.last_mut() {
                Some(run) if run.first.plus(run.count) == first && run.key.or(key).is_none() => {
                    run.count += 1;
                }
                _ => {
                    let (topic, seq) = (TopicId(1), Seq(first.0));
                    runs.push(Offered { first, count: 1, topic, seq, time: Timestamp(1), key });
                }
            }
        }
        let through = runs.last().map_or(frontier, |run| run.first.plus(run.count - 1));
        self.step(Input::Offer { runs: &runs, through });
        // It may know of done ones after these, and pass over them.
        self.model.offer(self.group.frontier());
    }

    fn crash(&mut self, checkpoint: bool) {
        if checkpoint {
            self.ops.clear();
            let name = TopicName::parse("g").unwrap();
            let mut ops = Vec::new();
            self.group.state_ops(&name, &mut |op| ops.push(op));
            self.ops = ops;
        }
        let mut writer = op::OpWriter::default();
        self.ops.iter().for_each(|op| writer.put(op));
        let read: Result<Vec<Op>, _> = op::OpReader::new(writer.bytes()).collect();
        let read = read.expect("what was written reads back");
        assert_eq!(read, self.ops);
        let floor = match read.first() {
            Some(Op::Created { floor, .. }) => *floor,
            _ => Position(0),
        };
        let settings = self.model.settings.clone();
        self.group = Group::new(settings, floor, Position(0), 7);
        read.into_iter().for_each(|op| self.group.replay(op));
        self.group.check();
        self.model.crash();
        let undone = self.model.messages.iter().find(|each| each.fate != Fate::Done);
        assert!(undone.is_none_or(|each| self.group.floor() < each.position), "nothing forgotten");
    }

    /// Everything that is left is taken and acked.
    fn drain(&mut self) {
        self.act(&Act::Pause(false));
        self.act(&Act::Join { window: 1_000 });
        for _ in 0..200 {
            if self.model.messages.iter().all(|each| each.fate == Fate::Done) {
                break;
            }
            self.act(&Act::Read { count: 1_000 });
            for who in 0..4 {
                self.act(&Act::Take { who, max: 1_000 });
                for part in [u64::MAX, u64::MAX] {
                    self.act(&Act::Ack { who, pick: part, late: false });
                }
            }
            self.act(&Act::Advance { ms: 500 });
            self.act(&Act::Bury);
        }
        assert!(self.model.messages.iter().all(|each| each.fate == Fate::Done));
        let last = self.model.messages.last().map(|each| each.position).unwrap_or_default();
        assert_eq!(self.group.floor(), last);
        assert_eq!(self.group.counts(), Counts::default());
    }
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    // Positions have holes, where others were published; some messages have one of few keys.
    proptest::collection::vec((1..3_u64, 0..4_u128), 1..40).prop_map(|steps| {
        let mut at = 0;
        let message = |(step, key): (u64, u128)| {
            at += step;
            Message {
                position: Position(at),
                key: NonZeroU128::new(key),
                fate: Fate::Unread,
                attempts: 0,
                failed: 0,
                due: Timestamp(0),
            }
        };
        steps.into_iter().map(message).collect()
    })
}

fn agrees(settings: &GroupSettings, mut messages: Vec<Message>, acts: &[Act]) {
    if settings.mode != Mode::Keyed {
        messages.iter_mut().for_each(|message| message.key = None);
    }
    let mut both = Both::new(settings, messages);
    for act in acts {
        both.act(act);
    }
    both.drain();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_shared_group_does_as_the_model(
        messages in messages(), acts in proptest::collection::vec(acts(), 1..80),
        dead_letters in any::<bool>(), in_flight_max in 1..40_u32,
    ) {
        agrees(&GroupSettings { dead_letters, in_flight_max, ..settings(Mode::Shared) }, messages, &acts);
    }

    #[test]
    fn a_keyed_group_does_as_the_model(
        messages in messages(), acts in proptest::collection::vec(acts(), 1..80),
        dead_letters in any::<bool>(),
    ) {
        agrees(&GroupSettings { dead_letters, ..settings(Mode::Keyed) }, messages, &acts);
    }

    #[test]
    fn an_ordered_group_does_as_the_model(
        messages in messages(), acts in proptest::collection::vec(acts(), 1..80),
        dead_letters in any::<bool>(),
    ) {
        agrees(&GroupSettings { dead_letters, ..settings(Mode::Ordered) }, messages, &acts);
    }
}
