//! One machine by itself, then several over one store, with nodes that die, freeze and are cut off.

use alloc::collections::BTreeSet;
use alloc::vec;

use super::*;

const CONFIG: OwnerConfig = OwnerConfig {
    beat: Duration::from_secs(1),
    takeover: Duration::from_secs(3),
    settle: Duration::from_secs(3),
    first_wait: Duration::from_secs(1),
    rest: Duration::from_secs(5),
};

fn name(text: &str) -> NodeName {
    NodeName::parse(text).expect("a name")
}

fn note(stage: Stage, term: u64) -> OwnerNote {
    OwnerNote { stage, term, given: None, able: true }
}

fn at(ms: u64) -> Timestamp {
    Timestamp(10_000 + ms)
}

/// The machine of a node that is preferred to (or not to) the node `other`.
fn machine(preferred: bool) -> (Owner, NodeName) {
    let (one, two) = (name("a"), name("b"));
    let first = weight(0, &one) > weight(0, &two);
    let (me, other) = if first == preferred { (one, two) } else { (two, one) };
    (Owner::new(CONFIG, me, 0, at(0)), other)
}

fn links(machine: &mut Owner, ms: u64, node: &NodeName, note: OwnerNote) {
    machine.seen(at(ms), vec![(node.clone(), Incarnation(1), note)]);
}

#[test]
fn a_store_without_an_owner_is_opened_when_links_had_their_time() {
    let (mut machine, _) = machine(true);
    assert_eq!(machine.step(at(999)), None);
    assert_eq!(machine.step(at(1000)), Some(Act::Look));
    assert_eq!(machine.step(at(1000)), None, "one look at a time");
    machine.looked(at(1000), Some(Sign::Unowned));
    assert_eq!(machine.step(at(1000)), Some(Act::Open));
    assert_eq!(machine.route(), Route::Nowhere);
    machine.opened(at(1100), 1);
    assert_eq!(machine.route(), Route::Here);
}

#[test]
fn a_node_that_is_not_preferred_waits_for_the_other_and_then_opens() {
    let (mut machine, other) = machine(false);
    links(&mut machine, 0, &other, note(Stage::Away, 0));
    assert_eq!(machine.step(at(1000)), Some(Act::Look));
    machine.looked(at(1000), Some(Sign::Unowned));
    assert_eq!(machine.step(at(1000)), None);
    machine.looked(at(3999), Some(Sign::Unowned));
    assert_eq!(machine.step(at(3999)), None);
    assert_eq!(machine.step(at(4000)), Some(Act::Open));
}

#[test]
fn the_owner_is_followed_and_when_its_link_is_lost_the_store_decides() {
    let (mut machine, other) = machine(true);
    links(&mut machine, 0, &other, note(Stage::Serving, 7));
    assert_eq!(machine.step(at(2000)), None);
    let route = Route::There { node: other, incarnation: Incarnation(1), term: 7 };
    assert_eq!(machine.route(), route);
    machine.seen(at(5000), vec![]);
    assert_eq!(machine.route(), Route::Nowhere);
    assert_eq!(machine.step(at(5000)), Some(Act::Look));
    machine.looked(at(5000), Some(Sign::Alive));
    // It was cut off only: it goes on showing that it lives.
    for ms in [6000, 7000, 8000, 20_000] {
        assert_eq!(machine.step(at(ms)), Some(Act::Look), "at {ms}");
        machine.looked(at(ms), Some(Sign::Alive));
    }
    // Now it dies.
    for ms in [20_250, 20_500, 21_250] {
        assert_eq!(machine.step(at(ms)), Some(Act::Look), "at {ms}");
        machine.looked(at(ms), Some(Sign::Silent));
    }
    assert_eq!(machine.step(at(21_500)), Some(Act::Look), "a look may show a sign of life");
    machine.looked(at(21_500), Some(Sign::Silent));
    assert_eq!(machine.step(at(21_500)), Some(Act::Open));
}

#[test]
fn without_a_lost_link_a_silent_store_is_waited_for_longer() {
    let (mut machine, _) = machine(true);
    assert_eq!(machine.step(at(1000)), Some(Act::Look));
    machine.looked(at(1000), Some(Sign::Alive));
    machine.looked(at(3999), Some(Sign::Silent));
    assert_eq!(machine.step(at(3999)), None);
    machine.looked(at(4000), Some(Sign::Silent));
    assert_eq!(machine.step(at(4000)), Some(Act::Open));
}

#[test]
fn a_store_that_does_not_answer_shows_nothing() {
    let (mut machine, _) = machine(true);
    assert_eq!(machine.step(at(1000)), Some(Act::Look));
    machine.looked(at(1000), None);
    assert_eq!(machine.step(at(9000)), Some(Act::Look));
    machine.looked(at(9000), Some(Sign::Silent));
    assert_eq!(machine.step(at(9000)), None, "its silence begins with the first look");
}

#[test]
fn a_journal_is_given_to_the_preferred_node_once_it_is_linked_for_a_while() {
    let (mut machine, other) = machine(false);
    machine.opened(at(1000), 4);
    links(&mut machine, 1000, &other, note(Stage::Away, 0));
    machine.confirmed(at(3000));
    assert_eq!(machine.step(at(3999)), None);
    let to = Some(other.clone());
    assert_eq!(machine.step(at(4000)), Some(Act::Close { to: to.clone() }));
    assert_eq!(machine.note(at(4000)).given, None, "not before it is closed");
    machine.closed();
    assert_eq!(machine.note(at(4001)).given, to);
    // The other sees that, and opens without looking.
    let (me, given) = (machine.me.clone(), machine.note(at(4001)));
    let mut next = Owner::new(CONFIG, other, 0, at(0));
    links(&mut next, 4001, &me, given);
    assert_eq!(next.step(at(4001)), Some(Act::Open));
}

#[test]
fn a_gift_counts_once() {
    let (mut machine, other) = machine(true);
    let given = OwnerNote { given: Some(machine.me.clone()), ..note(Stage::Away, 4) };
    links(&mut machine, 1000, &other, given);
    assert_eq!(machine.step(at(1000)), Some(Act::Open));
    machine.opened(at(1100), 5);
    machine.fenced();
    machine.closed();
    assert_eq!(machine.step(at(1200)), Some(Act::Look), "it was used: the store decides");
}

#[test]
fn a_node_that_leaves_gives_the_journal_to_another_at_once_or_releases_it() {
    for with_other in [true, false] {
        let (mut machine, other) = machine(true);
        machine.opened(at(1000), 4);
        if with_other {
            links(&mut machine, 1000, &other, note(Stage::Away, 0));
        }
        machine.confirmed(at(9000));
        assert_eq!(machine.step(at(9000)), None, "it is the preferred one");
        machine.leave();
        let to = with_other.then_some(other);
        assert_eq!(machine.step(at(9000)), Some(Act::Close { to }));
        machine.closed();
        assert_eq!(machine.step(at(90_000)), None, "it opens nothing any more");
    }
}

#[test]
fn an_owner_that_is_fenced_closes_and_names_no_next_one() {
    let (mut machine, other) = machine(true);
    machine.opened(at(1000), 4);
    links(&mut machine, 2000, &other, note(Stage::Serving, 5));
    assert_eq!(machine.step(at(2000)), Some(Act::Confirm), "another has a higher term");
    assert_eq!(machine.step(at(2001)), None, "which is looked at once");
    assert_eq!(machine.route(), Route::Here);
    machine.fenced();
    let route = Route::There { node: other, incarnation: Incarnation(1), term: 5 };
    assert_eq!(machine.route(), route);
    machine.closed();
    assert_eq!(machine.note(at(3000)).given, None);
}

#[test]
fn a_zombie_with_a_lower_term_is_not_routed_to() {
    let (mut machine, _) = machine(true);
    let seen = |node: &str, term| (name(node), Incarnation(1), note(Stage::Serving, term));
    machine.seen(at(0), vec![seen("x", 3), seen("y", 9), seen("z", 4)]);
    let route = Route::There { node: name("y"), incarnation: Incarnation(1), term: 9 };
    assert_eq!(machine.route(), route);
}

#[test]
fn a_node_whose_opening_failed_lets_others_go_first() {
    let (mut machine, _) = machine(true);
    assert_eq!(machine.step(at(1000)), Some(Act::Look));
    machine.looked(at(1000), Some(Sign::Unowned));
    assert_eq!(machine.step(at(1000)), Some(Act::Open));
    machine.not_opened(at(1100), false);
    assert!(!machine.note(at(1100)).able);
    assert_eq!(machine.step(at(6099)), None);
    assert_eq!(machine.step(at(6100)), Some(Act::Look));
    assert!(machine.note(at(6100)).able);
}

#[test]
fn an_owner_that_is_cut_off_from_the_store_does_not_hold_up_others() {
    let (mut machine, other) = machine(true);
    machine.opened(at(1000), 4);
    assert!(machine.note(at(3999)).able);
    let cut_off = machine.note(at(4000));
    assert!(!cut_off.able && cut_off.stage == Stage::Serving);
    let me = machine.me.clone();
    let mut next = Owner::new(CONFIG, other, 0, at(0));
    links(&mut next, 4000, &me, cut_off);
    assert_eq!(next.step(at(4000)), Some(Act::Look), "the store decides");
    machine.confirmed(at(5000));
    assert!(machine.note(at(5000)).able);
}

#[test]
fn nodes_are_preferred_for_about_as_many_journals_each() {
    let nodes = ["a", "b", "c", "node-1", "node-2"].map(name);
    let mut firsts = BTreeMap::new();
    for journal in 0..1000 {
        let first = nodes.iter().max_by_key(|node| weight(journal, node)).expect("some");
        *firsts.entry(first).or_insert(0) += 1;
    }
    assert!(firsts.values().all(|count| (150..250).contains(count)), "{firsts:?}");
}

/// A store as far as nodes see it, and nodes over it.
struct World {
    now: u64,
    random: u64,
    nodes: Vec<Simulated>,
    /// Who appended the newest object, and the signs of life.
    owner: Option<usize>,
    term: u64,
    signs: u64,
    released: bool,
}

struct Simulated {
    machine: Owner,
    runs: bool,
    frozen: bool,
    alone: bool,
    seen_signs: Option<u64>,
    /// When what it does is done.
    busy_until: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let nodes = ["a", "b", "c"].map(|node| Simulated {
            machine: Owner::new(CONFIG, name(node), 0, at(0)),
            runs: true,
            frozen: false,
            alone: false,
            seen_signs: None,
            busy_until: 0,
        });
        let (nodes, random) = (nodes.into(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { now: 0, random, nodes, owner: None, term: 0, signs: 0, released: false }
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % of
    }

    fn talks(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.runs && !node.frozen && !node.alone
    }

    fn turn(&mut self, node: usize) {
        let now = at(self.now);
        let linked: Vec<_> = (0..self.nodes.len())
            .filter(|other| *other != node && self.talks(*other) && self.talks(node))
            .map(|other| {
                let machine = &self.nodes[other].machine;
                (machine.me.clone(), Incarnation(1), machine.note(now))
            })
            .collect();
        let me = &mut self.nodes[node];
        me.machine.seen(now, linked);
        let done = me.busy_until <= self.now;
        match me.machine.stage() {
            Stage::Opening if done => {
                self.term += 1;
                (self.owner, self.released) = (Some(node), false);
                me.machine.opened(now, self.term);
            }
            Stage::Closing if done => {
                self.released |= self.owner == Some(node);
                me.machine.closed();
            }
            Stage::Serving if self.now.is_multiple_of(1000) => {
                if self.owner == Some(node) {
                    self.signs += 1;
                    me.machine.confirmed(now);
                } else {
                    me.machine.fenced();
                    me.busy_until = self.now + 200;
                }
            }
            _ => {}
        }
        let act = self.nodes[node].machine.step(now);
        let me = &mut self.nodes[node];
        match act {
            Some(Act::Look) => {
                let new = me.seen_signs.replace(self.signs) != Some(self.signs);
                let sign = match (self.owner, self.released, new) {
                    (None, ..) => Sign::Unowned,
                    (_, true, _) => Sign::Released,
                    (_, _, true) => Sign::Alive,
                    (_, _, false) => Sign::Silent,
                };
                me.machine.looked(now, Some(sign));
            }
            Some(Act::Open | Act::Close { .. }) => me.busy_until = self.now + 300,
            Some(Act::Confirm) if self.owner != Some(node) => {
                me.machine.fenced();
                me.busy_until = self.now + 200;
            }
            Some(Act::Confirm) | None => {}
        }
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            self.now += 50;
            for node in 0..self.nodes.len() {
                if self.nodes[node].runs && !self.nodes[node].frozen {
                    self.turn(node);
                }
            }
        }
    }

    fn disturb(&mut self) {
        let node = usize::try_from(self.chance(3)).expect("small");
        let what = self.chance(5);
        let now = at(self.now);
        let it = &mut self.nodes[node];
        match what {
            0 => it.runs = false,
            1 => it.frozen = true,
            2 => it.alone = true,
            3 if !it.runs => {
                it.runs = true;
                it.machine = Owner::new(CONFIG, it.machine.me.clone(), 0, now);
                (it.seen_signs, it.frozen) = (None, false);
            }
            _ => (it.frozen, it.alone) = (false, false),
        }
    }
}

#[test]
fn f1_after_any_trouble_one_node_serves_and_all_others_route_to_it() {
    for seed in 1..=300 {
        let mut world = World::new(seed);
        for _ in 0..8 {
            let pause = world.chance(8) * 500;
            world.run(pause);
            world.disturb();
        }
        for node in 0..3 {
            let it = &mut world.nodes[node];
            (it.frozen, it.alone) = (false, false);
        }
        if world.nodes.iter().all(|node| !node.runs) {
            continue;
        }
        world.run(30_000);
        let routes: BTreeSet<NodeName> = world
            .nodes
            .iter()
            .filter(|node| node.runs)
            .map(|node| match node.machine.route() {
                Route::Here => node.machine.me.clone(),
                Route::There { node, .. } => node,
                Route::Nowhere => panic!("seed {seed}: no owner"),
            })
            .collect();
        assert_eq!(routes.len(), 1, "seed {seed}: {routes:?}");
        let owner = world.owner.expect("there is one");
        assert!(routes.contains(&world.nodes[owner].machine.me), "seed {seed}");
        let before = world.term;
        world.run(60_000);
        assert_eq!(world.term, before, "seed {seed}: it stays where it is");
    }
}

#[test]
fn f2_an_owner_that_dies_is_replaced_within_three_seconds() {
    for seed in 1..=50 {
        let mut world = World::new(seed);
        world.run(12_000);
        let pause = world.chance(20) * 50;
        world.run(pause);
        let owner = world.owner.expect("there is one");
        world.nodes[owner].runs = false;
        let (began, term) = (world.now, world.term);
        while world.term == term {
            world.run(50);
            assert!(world.now - began <= 3_000, "seed {seed}: no one took over");
        }
    }
}
