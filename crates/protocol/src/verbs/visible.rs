//! Whether all nodes of a cluster know what is followed on this one.
//!
//! A publisher's node sends a message to the nodes that it knows to want it. A subscriber that must
//! not miss the first message asks, after its subscription was answered, and waits.

use alloc::vec::Vec;
use core::time::Duration;

use bytes::{BufMut, BytesMut};
use gapless_core::batch::put_varint;
use gapless_core::cluster::NodeName;

use crate::verb::{Fields, VerbError, no_subject};
use crate::wire::{List, Reader, ensure, put_bytes};

/// The longest that [`AwaitVisible`] may wait, in ms: a node that is away for longer is given up.
pub const AWAIT_VISIBLE_MS_MAX: u32 = 60_000;

/// Nodes that [`Visible`] names at most; it counts all of them.
pub const UNSEEN_SHOWN_MAX: usize = 64;

/// The names of nodes in [`Visible`].
const NODES: List = List { field: "nodes", item_bytes_min: 2, count_max: UNSEEN_SHOWN_MAX };

/// Waits until every node of the cluster that is known and not given up knows what is followed on this
/// server, by this connection or another, at the time it is asked. Answered by [`Visible`], not in the
/// order of other questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitVisible {
    /// How long to wait, in ms; zero asks how it stands.
    pub wait_ms: u32,
}

impl AwaitVisible {
    /// A wait of this length, or the longest there is.
    pub fn for_at_most(wait: Duration) -> Self {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        Self { wait_ms: wait_ms.min(AWAIT_VISIBLE_MS_MAX) }
    }
}

impl Fields for AwaitVisible {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        Ok(Self { wait_ms: payload.u32("wait_ms")? })
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.wait_ms);
    }

    fn check(&self) -> Result<(), VerbError> {
        ensure(self.wait_ms <= AWAIT_VISIBLE_MS_MAX, "wait_ms")
    }
}

/// How many nodes do not know yet what is followed: none if it is visible everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// How many nodes do not know it.
    pub unseen: u32,
    /// Their names; without them for a client that may not look at the cluster, and at most
    /// [`UNSEEN_SHOWN_MAX`].
    pub nodes: Vec<NodeName>,
}

impl Visible {
    /// What is said of these nodes.
    pub fn unseen(mut nodes: Vec<NodeName>, named: bool) -> Self {
        let unseen = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        nodes.truncate(if named { UNSEEN_SHOWN_MAX } else { 0 });
        Self { unseen, nodes }
    }
}

impl Fields for Visible {
    fn take(subject: &str, payload: &mut Reader) -> Result<Self, VerbError> {
        no_subject(subject)?;
        let unseen = payload.varint_u32("unseen")?;
        let count = payload.count(&NODES)?;
        let mut nodes = Vec::with_capacity(count);
        for _ in 0..count {
            let name = NodeName::parse(&payload.text("nodes")?);
            nodes.push(name.map_err(|_| VerbError::Value { field: "nodes" })?);
        }
        Ok(Self { unseen, nodes })
    }

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.unseen.into());
        put_varint(out, self.nodes.len() as u64);
        self.nodes.iter().for_each(|node| put_bytes(out, node.as_str().as_bytes()));
    }

    fn check(&self) -> Result<(), VerbError> {
        NODES.check(self.nodes.len())?;
        ensure(self.nodes.len() <= self.unseen as usize, "nodes")
    }
}
