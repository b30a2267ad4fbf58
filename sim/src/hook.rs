//! What happens while the disk is busy: a slow flush during which others publish, or the
//! disk dies.
//!
//! The disk calls the hook within every sync, before the sync takes effect. There the
//! broker's own locks may be held, so only what never waits is done: publishing.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{Atomic, Broker, Clock, ManualClock, Publishing};
use gapless_core::{PublishOptions, Timestamp, TopicName};
use gapless_journal::faulty::{FaultyFs, Times};

use crate::decide::Offer;

/// A publish that is made up before and done later.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub names: Vec<TopicName>,
    pub offers: Vec<Offer>,
    pub cells: Vec<(Bytes, Option<Bytes>)>,
    pub options: PublishOptions,
}

impl Planned {
    /// Does it. One topic without cells goes the short way.
    pub(crate) fn publish(&self, broker: &Broker) -> Publishing {
        let messages = |offer: &Offer| -> Vec<_> {
            offer.messages.iter().map(|(_, message)| message.clone()).collect()
        };
        if let ([offer], [name], []) = (&self.offers[..], &self.names[..], &self.cells[..]) {
            let options = PublishOptions { expect: offer.expect, ..self.options };
            return match &messages(offer)[..] {
                [one] => broker.publish(name, one, &options),
                many => broker.publish_batch(name, many, &options),
            };
        }
        let mut atomic = Atomic::new();
        for (offer, name) in self.offers.iter().zip(&self.names) {
            atomic = match offer.expect {
                Some(expect) => atomic.publish_if(name, &messages(offer), expect),
                None => atomic.publish(name, &messages(offer)),
            };
        }
        for (name, value) in &self.cells {
            atomic = match value {
                Some(value) => atomic.set_cell(name.clone(), value.clone()),
                None => atomic.remove_cell(name.clone()),
            };
        }
        broker.commit(atomic, &self.options)
    }
}

/// What is to happen within the next syncs.
#[derive(Default)]
struct Script {
    broker: Option<Broker>,
    /// For each sync to come, what is published in it.
    plan: VecDeque<Vec<Planned>>,
    done: Vec<(Planned, Publishing, Timestamp)>,
    /// The sync, counted down, in which the disk dies.
    death: Option<u64>,
    is_dead: bool,
    slow: Option<Duration>,
}

/// The hook.
pub(crate) struct Hook {
    fs: FaultyFs,
    clock: Arc<ManualClock>,
    script: Mutex<Script>,
}

impl Hook {
    /// A hook in this disk.
    pub(crate) fn install(fs: &FaultyFs, clock: &Arc<ManualClock>) -> Arc<Self> {
        let (fs_of_hook, clock) = (fs.clone(), Arc::clone(clock));
        let hook = Arc::new(Self { fs: fs_of_hook, clock, script: Mutex::default() });
        let weak = Arc::downgrade(&hook);
        fs.on_sync(Some(Arc::new(move || {
            if let Some(hook) = weak.upgrade() {
                hook.run();
            }
        })));
        hook
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut script = self.script();
        if let Some(by) = script.slow {
            self.clock.advance(by);
        }
        let planned = script.plan.pop_front().unwrap_or_default();
        if let Some(broker) = script.broker.clone() {
            for each in planned {
                let publishing = each.publish(&broker);
                script.done.push((each, publishing, self.clock.now()));
            }
        }
        match script.death {
            Some(0) => {
                script.death = None;
                script.is_dead = true;
                // This sync and all after it fail, and nothing can be changed any more.
                self.fs.fail_sync(0, ErrorKind::Other, Times::UntilDisarmed);
                self.fs.set_read_only(true);
            }
            Some(left) => script.death = Some(left - 1),
            None => {}
        }
    }

    /// Publishes these, some in each of the syncs to come, until [`Hook::take`].
    pub(crate) fn publish_within(&self, broker: Broker, plan: VecDeque<Vec<Planned>>) {
        let mut script = self.script();
        script.broker = Some(broker);
        script.plan = plan;
    }

    /// What was published, in order; the rest of the plan is forgotten.
    pub(crate) fn take(&self) -> Vec<(Planned, Publishing, Timestamp)> {
        let mut script = self.script();
        script.broker = None;
        script.slow = None;
        script.plan.clear();
        std::mem::take(&mut script.done)
    }

    /// Lets the disk die within the sync after so many.
    pub(crate) fn die_within(&self, after: u64) {
        self.script().death = Some(after);
    }

    /// Makes every sync take this long, until [`Hook::take`].
    pub(crate) fn slow(&self, slow: Duration) {
        self.script().slow = Some(slow);
    }

    /// Whether the disk is dead.
    pub(crate) fn is_dead(&self) -> bool {
        self.script().is_dead
    }

    /// Forgets a death that was or was to be. Its caller ends the run.
    pub(crate) fn revive(&self) {
        let mut script = self.script();
        script.death = None;
        if std::mem::take(&mut script.is_dead) {
            self.fs.disarm();
            self.fs.set_read_only(false);
        }
    }
}
