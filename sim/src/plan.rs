//! What a seed decides before anything happens: sizes, and how often each thing is done.
//!
//! Every seed leaves some things out and does others often, so that all seeds together
//! reach corners that an even mixture would not.

use std::sync::Arc;
use std::time::Duration;

use gapless_broker::{BrokerOptions, JournalOptions, Limits, ManualClock};
use gapless_core::{
    Compaction, DedupWindow, Durability, Epoch, Retention, TopicName, TopicSettings,
};
use gapless_journal::faulty::FaultyFs;
use gapless_journal::file_log::FileLogOptions;

use crate::random::Random;

/// Everything a world can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Publish,
    Atomic,
    Retry,
    Delay,
    Cancel,
    Turn,
    Flush,
    Seal,
    Compact,
    Poll,
    Subscribe,
    Leave,
    Resume,
    Lookup,
    Clock,
    Create,
    Configure,
    Delete,
    Purge,
    Kill,
    PowerLoss,
    ArmCrash,
    ArmWriteFault,
    ArmSyncFault,
    FillDisk,
    MakeRoom,
    Close,
}

/// Every action with how often it is done, and whether a seed may leave it out.
const ACTIONS: [(Action, u32, bool); 27] = [
    (Action::Publish, 120, false),
    (Action::Atomic, 30, true),
    (Action::Retry, 24, true),
    (Action::Delay, 16, true),
    (Action::Cancel, 6, true),
    (Action::Turn, 80, false),
    (Action::Flush, 16, true),
    (Action::Seal, 8, true),
    (Action::Compact, 4, true),
    (Action::Poll, 160, false),
    (Action::Subscribe, 20, false),
    (Action::Leave, 10, true),
    (Action::Resume, 16, true),
    (Action::Lookup, 20, true),
    (Action::Clock, 40, false),
    (Action::Create, 8, true),
    (Action::Configure, 8, true),
    (Action::Delete, 3, true),
    (Action::Purge, 6, true),
    (Action::Kill, 4, true),
    (Action::PowerLoss, 4, true),
    (Action::ArmCrash, 6, true),
    (Action::ArmWriteFault, 2, true),
    (Action::ArmSyncFault, 2, true),
    (Action::FillDisk, 3, true),
    (Action::MakeRoom, 6, false),
    (Action::Close, 3, true),
];

/// What holds for a whole run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub journal: JournalOptions,
    pub log: FileLogOptions,
    pub limits: Limits,
    /// Names of topics that may be made.
    pub names: Vec<TopicName>,
    /// How many different keys there are.
    pub keys: u64,
    /// The most bytes of an ordinary body.
    pub body_bytes: u64,
    /// How often a message has an id, a time to live, or a key, in percent.
    pub ids: u64,
    pub ttls: u64,
    pub keyed: u64,
    weights: Vec<u32>,
}

impl Plan {
    /// How a broker is opened in the world of this seed.
    pub(crate) fn options(
        &self,
        seed: u64,
        fs: &FaultyFs,
        clock: &Arc<ManualClock>,
    ) -> BrokerOptions {
        BrokerOptions {
            limits: self.limits.clone(),
            journal: self.journal.clone(),
            log: self.log,
            fs: Arc::new(fs.clone()),
            clock: Arc::clone(clock) as _,
            epoch: Some(Epoch(seed ^ 0x5eed)),
            threads: false,
            ..BrokerOptions::new("/store")
        }
    }

    /// The plan of a seed.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let weight = |random: &mut Random, base: u32, may_go: bool| {
            let factor =
                if may_go { *random.pick(&[0, 0, 1, 1, 2, 4]) } else { *random.pick(&[1, 2]) };
            base * factor
        };
        let weights =
            ACTIONS.iter().map(|(_, base, may_go)| weight(random, *base, *may_go)).collect();
        let (journal, log) = sizes(random);
        let step_bytes = *random.pick(&[1, 512, 4096, 64 * 1024]);
        // Small steps of history end anywhere, also before what is in memory too.
        let history_step_bytes = if step_bytes > 4096 { 1024 * 1024 } else { step_bytes };
        let limits = Limits { step_bytes, history_step_bytes, ..Limits::default() };
        let names = ["a.one", "a.two", "a.b.three", "b.one", "b.two", "c", "c.x", "d.e.f"];
        let count = random.between(2, names.len() as u64) as usize;
        let parse = |name: &&str| TopicName::parse(name).expect("the names are well formed");
        Self {
            journal,
            log,
            limits,
            names: names[..count].iter().map(parse).collect(),
            keys: random.between(1, 8),
            body_bytes: *random.pick(&[16, 100, 400, 1500]),
            ids: *random.pick(&[0, 30, 60]),
            ttls: *random.pick(&[0, 0, 10, 40]),
            keyed: *random.pick(&[0, 30, 90]),
            weights,
        }
    }

    /// The sizes are changed before the next opening.
    pub(crate) fn resize(&mut self, random: &mut Random) {
        (self.journal, self.log) = sizes(random);
    }

    /// What is done next.
    pub(crate) fn next(&self, random: &mut Random) -> Action {
        ACTIONS[random.weighted(&self.weights)].0
    }

    /// Settings for a topic.
    pub(crate) fn settings(&self, random: &mut Random) -> TopicSettings {
        let maybe = |random: &mut Random, percent: u64| random.chance(percent);
        let retention = Retention {
            age: maybe(random, 20).then(|| random.ms(2_000, 60_000)),
            bytes: maybe(random, 15).then(|| random.between(500, 8_000)),
            count: maybe(random, 15).then(|| random.between(1, 30)),
        };
        let dedup = DedupWindow {
            time: *random.pick(&[Duration::ZERO, Duration::from_secs(5), Duration::from_secs(120)]),
            count: *random.pick(&[0, 3, 50, 1000]),
        };
        TopicSettings {
            durability: *random.pick(&[
                None,
                None,
                Some(Durability::Memory),
                Some(Durability::Written),
                Some(Durability::Flushed),
            ]),
            retention,
            compaction: maybe(random, 30)
                .then(|| Compaction { tombstone_grace: random.ms(1, 20_000) }),
            dedup: if maybe(random, 40) { DedupWindow::default() } else { dedup },
            ..TopicSettings::default()
        }
    }
}

/// Sizes of the journal and its log; small, so that everything happens often.
fn sizes(random: &mut Random) -> (JournalOptions, FileLogOptions) {
    let journal = JournalOptions {
        frame_bytes: *random.pick(&[1024, 4096, 8192]),
        waiting_bytes_max: *random.pick(&[16 * 1024, 64 * 1024]),
        seal_bytes: *random.pick(&[16 * 1024, 32 * 1024, 64 * 1024]),
        tail_bytes: *random.pick(&[0, 4 * 1024, 16 * 1024]),
        unsealed_bytes_max: *random.pick(&[64 * 1024, 256 * 1024]),
        block_bytes: *random.pick(&[256, 1024, 2048]),
        merged_bytes_max: *random.pick(&[16 * 1024, 64 * 1024, 256 * 1024]),
        dead_percent: *random.pick(&[10, 50, 90]),
        compact_within: Duration::from_secs(2),
        ..JournalOptions::small()
    };
    let log = FileLogOptions {
        first_file_bytes: *random.pick(&[16 * 1024, 32 * 1024]),
        file_bytes_max: *random.pick(&[32 * 1024, 64 * 1024, 256 * 1024]),
    };
    (journal, log)
}
