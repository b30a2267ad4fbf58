//! Leases, delayed messages and redrives keep their time, whatever the keeper is doing.

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use common::*;
use gapless_broker::{
    Broker, BrokerOptions, Clock, Delivery, From, Handed, Join, SystemClock, block_on,
};
use gapless_core::{Epoch, GroupSettings, Message, PublishOptions, TopicSettings};
use gapless_journal::blobs::{Blob, BlobError, BlobWriter, Blobs};
use gapless_journal::memory::{MemoryBlobs, MemoryLog};
use gapless_journal::{Parts, Secret};

/// Blobs whose segments are not written before the gate opens.
#[derive(Debug)]
struct Gated {
    blobs: MemoryBlobs,
    /// Says that a segment is being written; then waits until the other end says or goes.
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Blobs for Gated {
    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((begun, opened)) = gate {
            begun.send(()).expect("the test waits for it");
            let _open_or_gone = opened.recv();
        }
        self.blobs.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        self.blobs.open(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        self.blobs.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.blobs.delete(name)
    }
}

#[test]
fn leases_and_delayed_messages_keep_their_time_while_a_segment_is_written() {
    let gated = Arc::new(Gated { blobs: MemoryBlobs::new(), gate: Mutex::new(None) });
    let clock = Arc::new(SystemClock::default());
    let parts = Parts {
        blobs: Arc::clone(&gated) as _,
        log: Box::new(|_| Arc::new(MemoryLog::new())),
        new_epoch: Epoch(7),
        new_secret: Secret::new(7),
        monotonic: {
            let clock = Arc::clone(&clock);
            Arc::new(move || clock.monotonic())
        },
        flusher_thread: true,
    };
    let options = BrokerOptions { clock, ..BrokerOptions::new("not-used") };
    let broker = Broker::open_on(parts, options).expect("it is new");
    for topic in ["work", "later"] {
        broker.create_topic(&name(topic), TopicSettings::default()).expect("there is room");
    }
    let lease = Duration::from_millis(100);
    let settings = GroupSettings { lease, ..GroupSettings::new(pattern("work")) };
    broker.create_group(&name("g"), settings).expect("there is room");
    publish(&broker, "work", &Message::new("one"));
    let join = |name: &str| Join { name: name.to_owned(), window: 1 };
    let mut hangs = broker.join_group(&name("g"), &join("hangs")).expect("there is a place");
    let first = within(PATIENCE, move || (block_on(hangs.next()), hangs));
    let (Ok(Handed::Messages(first)), hangs) = first else { panic!("it has the message") };
    assert_eq!(first.attempt(), 1);

    // From here on the keeper would have to wait for the segment.
    let (begun, has_begun) = channel();
    let (open, opened) = channel();
    *gated.gate.lock().expect("no test panics") = Some((begun, opened));
    let sealing = {
        let broker = broker.clone();
        std::thread::spawn(move || broker.seal().is_ok())
    };
    has_begun.recv_timeout(PATIENCE).expect("a segment is begun");

    let mut follower = broker.subscribe(&pattern("later"), From::Now).expect("there is a place");
    let due = broker.now().after(Duration::from_millis(100));
    let delayed = Message { not_before: Some(due), ..Message::new("in time") };
    let ack = broker.publish(&name("later"), &delayed, &PublishOptions::default()).wait();
    assert!(ack.is_ok(), "{ack:?}");
    let delivered = within(PATIENCE, move || {
        loop {
            if let Delivery::Messages(messages) = block_on(follower.next()).expect("it is followed")
            {
                return messages.iter().count();
            }
        }
    });
    assert_eq!(delivered, 1);
    let mut waits = broker.join_group(&name("g"), &join("waits")).expect("there is a place");
    let second = within(PATIENCE, move || (block_on(waits.next()), waits));
    let (Ok(Handed::Messages(second)), _waits) = second else { panic!("it has the message") };
    assert_eq!(second.attempt(), 2, "the lease of the one that hangs ran out");
    assert!(!sealing.is_finished(), "the segment is still being written");

    drop(open);
    assert!(sealing.join().expect("it does not panic"));
    drop(hangs);
}
