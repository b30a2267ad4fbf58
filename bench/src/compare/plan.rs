//! How large a run is: so that it ends in time, and says how large it was.

use std::time::{Duration, Instant};

use clap::ValueEnum;

/// One kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Work {
    /// Publishing to nobody, without waiting for acks.
    Publish,
    /// Live deliveries: 1 → 1, 1 → 10, 1 → 100, 8 → 8.
    Live,
    /// A message there and one back.
    RoundTrip,
    /// Publishing with acks, in each durability: one at a time, and 256 in flight.
    Durable,
    /// Reading what is stored; live deliveries meanwhile; starting again.
    Stored,
    /// Memory of idle connections.
    Idle,
    /// Memory of topics.
    Topics,
    /// Groups: taking messages and acknowledging each.
    Groups,
    /// TLS against plain: publishing, delivering 1 → 1, new connections.
    Tls,
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
    /// Publishers, and subscribers of each.
    pub(super) shapes: Vec<(usize, usize)>,
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
            sizes: vec![16, 128, 1024, 16 * 1024],
            sizes_acked: vec![128, 1024],
            shapes: vec![(1, 1), (1, 10), (1, 100), (8, 1)],
            stored: 5_000_000,
            grouped: 300_000,
            connections: 10_000,
            topics: 100_000,
            streams: 5_000,
            case: String::new(),
        }
    }

    /// Whether this case is asked for.
    pub(super) fn has_case(&self, title: &str) -> bool {
        title.contains(&self.case)
    }

    /// Under three minutes: to see that it runs, and roughly where things are.
    pub(super) fn quick() -> Self {
        Self {
            name: "quick",
            rounds: 3,
            rounds_stored: 2,
            time: Duration::from_millis(200),
            sizes_acked: vec![128],
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
            shapes: vec![(1, 1), (2, 1), (1, 3)],
            stored: 2_000,
            grouped: 500,
            connections: 20,
            topics: 50,
            streams: 10,
            ..Self::quick()
        }
    }
}
