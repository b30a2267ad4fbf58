//! Take over, append and trim, model-checked: every order of what two writers, the network and the
//! clock can do in a small world, with the rule that the real writer follows.
//!
//! A writer that does nothing while the clock goes on is a frozen one. A request stays in the network
//! for as long as it likes, also after its sender gave up. What must always hold: what was
//! acknowledged is what the log, or the segment made from it, has at that number. The same worlds
//! with one rule left out must break that, or the model would prove nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gapless_engine::rule::{Mark, Seen, Step, next_step};
use stateright::{Checker, HasDiscoveries, Model, Property};

const WRITERS: usize = 2;
/// Ticks between raising the floor and deleting.
const TRIM_WAIT: u8 = 2;
const NOW_MAX: u8 = 4;
/// Appends of one writer, beside the objects with which it takes over.
const APPENDS_MAX: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A place that is taken counts as ours.
    Fence,
    /// Acknowledged when the create is sent.
    Create,
    /// Deleted as soon as the floor is raised.
    Wait,
    /// A create that succeeded counts, however old the check.
    Confirm,
    /// The newest object is trimmed too.
    Newest,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Out,
    /// Owns the log, or has looked at it to take it over.
    Idle,
    /// A create was sent and no answer is there yet; perhaps one is.
    Waiting {
        own: Mark,
        answer: Option<bool>,
    },
    Looking {
        own: Mark,
    },
    Confirming {
        own: Mark,
    },
    Fenced,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writer {
    term: u64,
    owner: bool,
    /// The number of its newest object, or of the newest that it saw when it looked.
    last: u8,
    appends: u64,
    checked: u8,
    /// When its last create was sent.
    sent_at: u8,
    phase: Phase,
    /// Its create that is in the network.
    sent: Option<(u8, Mark)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    objects: BTreeMap<u8, Mark>,
    /// The first number that is needed.
    floor: u8,
    raised: u8,
    /// What was written out of the log below the floor.
    sealed: BTreeMap<u8, Mark>,
    acked: BTreeSet<(u8, Mark)>,
    writers: [Writer; WRITERS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Tick,
    List(usize),
    Send(usize),
    /// The network does what was sent.
    Land(usize),
    /// The network drops it.
    Drop(usize),
    Hear(usize),
    GiveUp(usize),
    Look(usize),
    Confirm(usize),
    Raise(usize),
    Delete,
}

fn ticks(count: u8) -> Duration {
    Duration::from_secs(count.into())
}

impl World {
    fn newest(&self) -> u8 {
        self.objects.keys().next_back().copied().unwrap_or(0)
    }

    fn ago(&self, writer: usize) -> Duration {
        ticks(self.now - self.writers[writer].checked)
    }

    fn done(&mut self, writer: usize, own: Mark) {
        let me = &mut self.writers[writer];
        me.last += 1;
        me.phase = Phase::Idle;
        // Its first object only takes over.
        if std::mem::replace(&mut me.owner, true) {
            let last = me.last;
            self.acked.insert((last, own));
        }
    }
}

impl Writer {
    /// What it becomes when another has its place: one that was about to take over looks again.
    fn lost(&self) -> Phase {
        if self.owner { Phase::Fenced } else { Phase::Out }
    }
}

impl Without {
    fn step(self, seen: Seen, own: Mark, ago: Duration) -> Step {
        match next_step(seen, own, ago, ticks(TRIM_WAIT)) {
            Step::Fenced if self == Self::Fence => Step::Done,
            Step::Confirm if self == Self::Confirm => Step::Done,
            step => step,
        }
    }

    fn follow(self, world: &mut World, writer: usize, own: Mark, seen: Seen) {
        let step = self.step(seen, own, world.ago(writer));
        let at = world.writers[writer].last + 1;
        let now = world.now;
        let me = &mut world.writers[writer];
        match step {
            Step::Done => {
                if seen == Seen::Created {
                    me.checked = me.sent_at;
                }
                world.done(writer, own);
            }
            Step::Confirm => me.phase = Phase::Confirming { own },
            Step::Look => me.phase = Phase::Looking { own },
            Step::Fenced => me.phase = me.lost(),
            Step::Again => {
                (me.sent, me.sent_at) = (Some((at, own)), now);
                me.phase = Phase::Waiting { own, answer: None };
            }
        }
    }
}

impl Model for Without {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let out = Writer {
            term: 0,
            owner: false,
            last: 0,
            appends: 0,
            checked: 0,
            sent_at: 0,
            phase: Phase::Out,
            sent: None,
        };
        vec![World {
            now: 0,
            objects: BTreeMap::new(),
            floor: 1,
            raised: 0,
            sealed: BTreeMap::new(),
            acked: BTreeSet::new(),
            writers: [out.clone(), out],
        }]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        if world.now < NOW_MAX {
            acts.push(Act::Tick);
        }
        for (number, writer) in world.writers.iter().enumerate() {
            match &writer.phase {
                Phase::Out => acts.push(Act::List(number)),
                Phase::Idle => {
                    if writer.appends <= APPENDS_MAX {
                        acts.push(Act::Send(number));
                    }
                    // That a manifest counts only for the owner is the other model's subject.
                    let owns = writer.owner && world.newest() == writer.last;
                    if owns && world.floor < writer.last {
                        acts.push(Act::Raise(number));
                    }
                }
                Phase::Waiting { answer, .. } => {
                    acts.extend(answer.map(|_| Act::Hear(number)));
                    acts.push(Act::GiveUp(number));
                }
                Phase::Looking { .. } => acts.push(Act::Look(number)),
                Phase::Confirming { .. } => acts.push(Act::Confirm(number)),
                Phase::Fenced => {}
            }
            if writer.sent.is_some() {
                acts.push(Act::Land(number));
                acts.push(Act::Drop(number));
            }
        }
        let waited = world.now - world.raised > TRIM_WAIT || *self == Self::Wait;
        if waited && world.objects.keys().any(|number| *number < world.floor) {
            acts.push(Act::Delete);
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        let (now, newest) = (world.now, world.newest());
        match act {
            Act::Tick => next.now += 1,
            Act::List(w) => {
                // The term is in the newest object, which is never deleted.
                let term = world.objects.get(&newest).map_or(0, |mark| mark.term) + 1;
                let me = &mut next.writers[w];
                (me.last, me.term, me.checked) = (newest.max(world.floor - 1), term, now);
                me.phase = Phase::Idle;
            }
            Act::Send(w) => {
                let me = &mut next.writers[w];
                me.appends += 1;
                let own = Mark { term: me.term, nonce: w as u64 * 100 + me.appends };
                (me.sent, me.sent_at) = (Some((me.last + 1, own)), now);
                me.phase = Phase::Waiting { own, answer: None };
                if *self == Self::Create && me.owner {
                    let at = me.last + 1;
                    next.acked.insert((at, own));
                }
            }
            Act::Land(w) => {
                let (at, mark) = next.writers[w].sent.take()?;
                let created = !next.objects.contains_key(&at);
                if created {
                    next.objects.insert(at, mark);
                }
                if let Phase::Waiting { own, answer } = &mut next.writers[w].phase
                    && *own == mark
                {
                    *answer = Some(created);
                }
            }
            Act::Drop(w) => next.writers[w].sent = None,
            Act::Hear(w) => {
                let Phase::Waiting { own, answer } = world.writers[w].phase else { return None };
                match answer? {
                    true => self.follow(&mut next, w, own, Seen::Created),
                    false => next.writers[w].phase = Phase::Looking { own },
                }
            }
            Act::GiveUp(w) => {
                let Phase::Waiting { own, .. } = world.writers[w].phase else { return None };
                self.follow(&mut next, w, own, Seen::Unclear);
            }
            Act::Look(w) => {
                let Phase::Looking { own } = world.writers[w].phase else { return None };
                let found = world.objects.get(&(world.writers[w].last + 1));
                self.follow(&mut next, w, own, found.map_or(Seen::Free, |m| Seen::Taken(*m)));
            }
            Act::Confirm(w) => {
                let Phase::Confirming { own } = world.writers[w].phase else { return None };
                if newest > world.writers[w].last + 1 {
                    next.writers[w].phase = next.writers[w].lost();
                } else {
                    next.writers[w].checked = now;
                    next.done(w, own);
                }
            }
            Act::Raise(w) => {
                let last = world.writers[w].last;
                let through = if *self == Self::Newest { last } else { last - 1 };
                for number in world.floor..=through {
                    next.sealed.insert(number, *world.objects.get(&number)?);
                }
                (next.floor, next.raised) = (through + 1, now);
                next.writers[w].checked = now;
            }
            Act::Delete => next.objects.retain(|number, _| *number >= world.floor),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what was acknowledged is there", |_, world: &World| {
                world.acked.iter().all(|(number, mark)| {
                    let kept = if *number < world.floor { &world.sealed } else { &world.objects };
                    kept.get(number) == Some(mark)
                })
            }),
            Property::always("all that is needed is there", |_, world: &World| {
                (world.floor..=world.newest()).all(|number| world.objects.contains_key(&number))
            }),
            Property::sometimes("the second owner appends", |_, world: &World| {
                world.acked.iter().any(|(_, mark)| mark.term == 2)
            }),
            Property::sometimes("one is fenced", |_, world: &World| {
                world.writers.iter().any(|writer| writer.phase == Phase::Fenced)
            }),
            Property::sometimes("a create lands in the trimmed past", |_, world: &World| {
                world.objects.keys().any(|number| {
                    *number < world.floor && world.sealed.get(number) != world.objects.get(number)
                })
            }),
        ]
    }
}

const PROPERTIES: [&str; 2] = ["what was acknowledged is there", "all that is needed is there"];

#[test]
fn f1_what_two_writers_acknowledged_is_in_the_log_in_every_order_of_events() {
    let checker = Without::Nothing.checker().spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn each_rule_of_the_log_that_is_left_out_is_found() {
    for without in
        [Without::Fence, Without::Create, Without::Wait, Without::Confirm, Without::Newest]
    {
        let end = HasDiscoveries::AnyFailures;
        let checker = without.checker().finish_when(end).spawn_bfs().join();
        let found = PROPERTIES.iter().any(|name| checker.discovery(name).is_some());
        assert!(found, "leaving out {without:?} does no harm in the model");
    }
}
