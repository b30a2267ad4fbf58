//! How large a run is: so that it ends in time, and says how large it was.

use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::goals;
use super::publish::{IN_FLIGHT, IN_FLIGHT_MANY, LARGE_BYTES};

/// One kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Work {
    /// Publishing without subscribers and without waiting for acks.
    Publish,
    /// Live deliveries: 1 → 1, 1 → 10, 1 → 100, 8 → 8, and 1 → 1 of 16 KiB.
    Live,
    /// A message there and one back.
    RoundTrip,
    /// Live messages at a fixed pace: how late each one is.
    Paced,
    /// Publishing with acks, in each durability: one at a time, and 256 in flight.
    Durable,
    /// Publishing with acks by many connections, one in flight on each.
    Crowd,
    /// Publishing with acks to many topics, one after the other.
    Spread,
    /// Publishing over HTTP, one message for each request.
    Http,
    /// Reading what is stored; live deliveries meanwhile; starting again.
    Stored,
    /// Memory of idle connections.
    Idle,
    /// Memory of topics.
    Topics,
    /// Groups: taking messages and acknowledging each.
    Groups,
    /// Groups that keep the order of keys, with a backlog on few keys; gapless alone has them.
    Keyed,
    /// TLS against plain: publishing, delivering 1 → 1 and 1 → 100, new connections.
    Tls,
    /// Clients with a token and a role against those of whom nothing is asked; gapless alone.
    Rights,
}

impl Work {
    /// Whether one of the goals is about it.
    pub(super) fn has_goals(self) -> bool {
        use Work::{Crowd, Durable, Groups, Http, Live, Paced, Spread, Stored};
        matches!(self, Live | Paced | Durable | Crowd | Spread | Http | Stored | Groups)
    }
}

/// Sizes, times and rounds.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) started: Instant,
    pub(super) name: &'static str,
    pub(super) rounds: usize,
    /// The same for work that takes long.
    pub(super) rounds_stored: usize,
    /// Time of one measurement.
    pub(super) time: Duration,
    /// Sizes of messages that are published without acks.
    pub(super) sizes: Vec<usize>,
    /// Sizes of messages that are published with acks.
    pub(super) sizes_acked: Vec<usize>,
    /// Publishers, subscribers of each, and bytes of a message.
    pub(super) shapes: Vec<(usize, usize, usize)>,
    /// Publishes with acks that are in flight on one connection.
    pub(super) windows: Vec<usize>,
    /// Live messages a second, at a fixed pace.
    pub(super) paces: Vec<u32>,
    /// Messages that wait for a keyed group, at most.
    pub(super) backlog: u64,
    /// Connections that publish at the same time, one in flight on each.
    pub(super) crowds: Vec<usize>,
    /// Connections that publish over HTTP at the same time.
    pub(super) posts: Vec<usize>,
    /// Topics that one connection publishes to in turn.
    pub(super) spreads: Vec<usize>,
    /// Stored messages.
    pub(super) stored: u64,
    /// Stored messages that a group takes.
    pub(super) grouped: u64,
    pub(super) connections: usize,
    pub(super) topics: usize,
    /// Streams of JetStream, which are made more slowly and take more memory.
    pub(super) streams: usize,
    /// A text that the titles of cases must contain; what is stored is always whole.
    pub(super) case: String,
    /// Only what the goals need.
    pub(super) for_goals: bool,
}

impl Plan {
    /// Under half an hour on two cores.
    pub(super) fn full() -> Self {
        Self {
            started: Instant::now(),
            name: "full",
            rounds: 5,
            rounds_stored: 3,
            time: Duration::from_secs(1),
            sizes: vec![16, 128, 1024, LARGE_BYTES],
            sizes_acked: vec![128, 1024, LARGE_BYTES],
            shapes: vec![
                (1, 1, 128),
                (1, 10, 128),
                (1, 100, 128),
                (8, 1, 128),
                (1, 1, LARGE_BYTES),
            ],
            windows: vec![IN_FLIGHT],
            paces: vec![1_000, 10_000, 50_000],
            backlog: 1_000_000,
            crowds: vec![16, 100, 1_000],
            posts: vec![1, 128, 1_000],
            spreads: vec![10, 1_000, 100_000],
            stored: 5_000_000,
            grouped: 300_000,
            connections: 10_000,
            topics: 100_000,
            streams: 5_000,
            case: String::new(),
            for_goals: false,
        }
    }

    /// Whether this case is asked for.
    pub(super) fn has_case(&self, title: &str) -> bool {
        title.contains(&self.case) && (!self.for_goals || goals::wants(title))
    }

    /// What the goals need, in three rounds: about ten minutes.
    pub(super) fn goals() -> Self {
        Self {
            name: "goals",
            rounds: 3,
            sizes_acked: vec![128, 1024, LARGE_BYTES],
            windows: vec![IN_FLIGHT, IN_FLIGHT_MANY],
            paces: vec![10_000, 50_000],
            grouped: 1_000_000,
            for_goals: true,
            ..Self::full()
        }
    }

    /// The same at a size that measures nothing.
    pub(super) fn tiny_goals() -> Self {
        let Self { rounds, rounds_stored, time, stored, grouped, .. } = Self::tiny();
        Self { name: "tiny goals", rounds, rounds_stored, time, stored, grouped, ..Self::goals() }
    }

    /// Under three minutes: to see that it runs, and roughly where things are.
    pub(super) fn quick() -> Self {
        Self {
            name: "quick",
            rounds: 3,
            rounds_stored: 2,
            time: Duration::from_millis(200),
            sizes_acked: vec![128],
            paces: vec![10_000],
            backlog: 100_000,
            crowds: vec![100],
            posts: vec![128],
            spreads: vec![10, 1_000],
            stored: 200_000,
            grouped: 30_000,
            connections: 1_000,
            topics: 10_000,
            streams: 500,
            ..Self::full()
        }
    }

    /// A second or so, with no figure worth anything: for the test that it works at all.
    pub(super) fn tiny() -> Self {
        Self {
            name: "tiny",
            rounds: 1,
            rounds_stored: 1,
            time: Duration::from_millis(5),
            sizes: vec![16, 128],
            shapes: vec![(1, 1, 128), (2, 1, 128), (1, 3, 128)],
            paces: vec![1_000],
            backlog: 1_000,
            crowds: vec![3],
            posts: vec![3],
            spreads: vec![7],
            stored: 2_000,
            grouped: 500,
            connections: 20,
            topics: 50,
            streams: 10,
            ..Self::quick()
        }
    }
}
