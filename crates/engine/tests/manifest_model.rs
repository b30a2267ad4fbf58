//! Manifests, blobs and take over, model-checked: an owner seals, compacts and deletes, while another
//! takes its place at any moment.
//!
//! The log is one register here, the owner; that it can be asked reliably is the other model's
//! subject. What must always hold: the newest manifest names only blobs that are there, and it knows
//! everything that any confirmed manifest knew, since the log was trimmed of that.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 2;
/// Pieces of keeper's work of one node.
const WORKS_MAX: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// What the manifest does not need is deleted without asking who owns the log.
    Confirm,
    /// When a number is taken, the next one is tried.
    Stop,
    /// Both nodes give the same names.
    Names,
}

/// A name of a blob: who made it, and how many it had made.
type Name = (usize, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Manifest {
    /// The segments. A piece of work adds one, or puts one in the place of all.
    blobs: BTreeSet<Name>,
    /// How much of the log is in it.
    height: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Out,
    /// Has fenced the log and read the newest manifest.
    Read,
    /// Has stored a manifest, and before that perhaps made the blob that it names.
    Stored {
        old: BTreeSet<Name>,
    },
    Confirmed {
        old: BTreeSet<Name>,
    },
    Owner,
    /// Has made the blob for the next manifest.
    Made {
        name: Name,
        compacts: bool,
    },
    /// Deletes the blob that it made, since it came to nothing, and ends.
    Failed(Option<Name>),
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    phase: Phase,
    number: u8,
    manifest: Manifest,
    works: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    owner: Option<usize>,
    /// How much is in the log: what owners appended.
    height: u8,
    manifests: BTreeMap<u8, Manifest>,
    blobs: BTreeSet<Name>,
    confirmed: u8,
    nodes: [Node; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    TakeOver(usize),
    Store(usize),
    Confirm(usize),
    Delete(usize),
    Prune(usize),
    Make { node: usize, compacts: bool },
    Undo(usize),
}

impl World {
    fn newest(&self) -> Option<(u8, &Manifest)> {
        self.manifests.iter().next_back().map(|(number, manifest)| (*number, manifest))
    }
}

impl Model for Without {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let manifest = Manifest { blobs: BTreeSet::new(), height: 0 };
        let out = Node { phase: Phase::Out, number: 0, manifest, works: 0 };
        vec![World {
            owner: None,
            height: 0,
            manifests: BTreeMap::new(),
            blobs: BTreeSet::new(),
            confirmed: 0,
            nodes: [out.clone(), out],
        }]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        for (me, node) in world.nodes.iter().enumerate() {
            match &node.phase {
                Phase::Out => acts.push(Act::TakeOver(me)),
                Phase::Read | Phase::Made { .. } => acts.push(Act::Store(me)),
                Phase::Stored { .. } => acts.push(Act::Confirm(me)),
                Phase::Confirmed { .. } => acts.push(Act::Delete(me)),
                Phase::Owner => {
                    acts.push(Act::Prune(me));
                    if node.works < WORKS_MAX {
                        acts.push(Act::Make { node: me, compacts: false });
                        acts.push(Act::Make { node: me, compacts: true });
                    }
                }
                Phase::Failed(_) => acts.push(Act::Undo(me)),
                Phase::Ended => {}
            }
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        match act {
            Act::TakeOver(me) => {
                next.owner = Some(me);
                let node = &mut next.nodes[me];
                if let Some((number, manifest)) = world.newest() {
                    (node.number, node.manifest) = (number, manifest.clone());
                }
                node.phase = Phase::Read;
            }
            Act::Store(me) => {
                let node = &mut next.nodes[me];
                let mut manifest = node.manifest.clone();
                let mut old = BTreeSet::new();
                let mut made = None;
                if let Phase::Made { name, compacts } = node.phase {
                    if compacts {
                        old = std::mem::take(&mut manifest.blobs);
                    } else {
                        manifest.height += 1;
                    }
                    manifest.blobs.insert(name);
                    made = Some(name);
                }
                node.number += 1;
                let known = next.manifests.keys().any(|number| *number == node.number);
                if known {
                    // Another owner's. One that was only taking over looks again.
                    node.phase = match (made, *self == Self::Stop) {
                        (None, _) => Phase::Out,
                        (Some(_), true) => node.phase.clone(),
                        (Some(_), false) => Phase::Failed(made),
                    };
                } else {
                    next.manifests.insert(node.number, manifest.clone());
                    node.manifest = manifest;
                    node.phase = Phase::Stored { old };
                }
            }
            Act::Confirm(me) => {
                let Phase::Stored { old } = world.nodes[me].phase.clone() else { return None };
                if world.owner == Some(me) || *self == Self::Confirm {
                    next.nodes[me].phase = Phase::Confirmed { old };
                    let height = next.nodes[me].manifest.height;
                    next.confirmed = next.confirmed.max(height);
                } else {
                    next.nodes[me].phase = Phase::Ended;
                }
            }
            Act::Delete(me) => {
                let Phase::Confirmed { old } = &world.nodes[me].phase else { return None };
                next.blobs.retain(|name| !old.contains(name));
                next.nodes[me].phase = Phase::Owner;
            }
            Act::Prune(_) => {
                let (newest, _) = world.newest()?;
                next.manifests.retain(|number, _| *number == newest);
            }
            Act::Make { node: me, compacts } => {
                let node = &mut next.nodes[me];
                node.works += 1;
                let by = if *self == Self::Names { 0 } else { me };
                let name = (by, node.works);
                node.phase = Phase::Made { name, compacts };
                // Create-if-absent: one that is there stays as it is.
                next.blobs.insert(name);
            }
            Act::Undo(me) => {
                let Phase::Failed(made) = world.nodes[me].phase else { return None };
                made.map(|name| next.blobs.remove(&name));
                next.nodes[me].phase = Phase::Ended;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the newest manifest's blobs are there", |_, world: &World| {
                world.newest().is_none_or(|(_, newest)| newest.blobs.is_subset(&world.blobs))
            }),
            Property::always("the newest manifest knows all", |_, world: &World| {
                world.newest().map_or(0, |(_, manifest)| manifest.height) >= world.confirmed
            }),
            Property::sometimes("a pruned number is used again", |_, world: &World| {
                let stored = |node: &Node| matches!(node.phase, Phase::Stored { .. });
                let newest = world.newest().map_or(0, |(number, _)| number);
                world.nodes.iter().any(|node| stored(node) && node.number < newest)
            }),
            Property::sometimes("the second owner has done all its work", |_, world: &World| {
                world.nodes.iter().all(|node| node.works == WORKS_MAX)
            }),
        ]
    }
}

#[test]
fn f1_the_newest_manifest_is_whole_in_every_order_of_events() {
    let checker = Without::Nothing.checker().spawn_bfs().join();
    checker.assert_properties();
}

#[test]
fn each_rule_of_manifests_that_is_left_out_is_found() {
    for without in [Without::Confirm, Without::Stop, Without::Names] {
        let end = HasDiscoveries::AnyFailures;
        let checker = without.checker().finish_when(end).spawn_bfs().join();
        let all = ["the newest manifest's blobs are there", "the newest manifest knows all"];
        let found = all.iter().any(|name| checker.discovery(name).is_some());
        assert!(found, "leaving out {without:?} does no harm in the model");
    }
}
