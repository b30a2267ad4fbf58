//! A poll never waits for the disk: what is in segments is read and searched by other threads.

mod common;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use common::*;
use gapless_broker::{
    Broker, BrokerOptions, Clock, Delivery, From, Handed, Join, SystemClock, block_on,
};
use gapless_core::{Epoch, GroupSettings, Message, TopicSettings};
use gapless_journal::blobs::{Blob, BlobError, BlobWriter, Blobs};
use gapless_journal::memory::{MemoryBlobs, MemoryLog};
use gapless_journal::{JournalOptions, Parts, Secret};

/// Which threads have read.
type Readers = Arc<Mutex<HashSet<ThreadId>>>;

/// Blobs that remember who reads them.
#[derive(Debug)]
struct Watched {
    blobs: MemoryBlobs,
    readers: Readers,
}

#[derive(Debug)]
struct WatchedBlob {
    blob: Arc<dyn Blob>,
    readers: Readers,
}

impl Blobs for Watched {
    fn create(&self, name: &str) -> Result<Box<dyn BlobWriter>, BlobError> {
        self.blobs.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Blob>, BlobError> {
        let readers = Arc::clone(&self.readers);
        Ok(Arc::new(WatchedBlob { blob: self.blobs.open(name)?, readers }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, BlobError> {
        self.blobs.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<(), BlobError> {
        self.blobs.delete(name)
    }
}

impl Blob for WatchedBlob {
    fn len(&self) -> u64 {
        self.blob.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), BlobError> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.insert(std::thread::current().id());
        drop(readers);
        self.blob.read_at(buf, offset)
    }
}

#[test]
fn followers_and_members_are_polled_without_a_look_at_the_disk() {
    let readers = Readers::default();
    let clock = Arc::new(SystemClock::default());
    let parts = Parts {
        blobs: Arc::new(Watched { blobs: MemoryBlobs::new(), readers: Arc::clone(&readers) }),
        log: Box::new(|_| Arc::new(MemoryLog::new())),
        new_epoch: Epoch(7),
        new_secret: Secret::new(7),
        monotonic: {
            let clock = Arc::clone(&clock);
            Arc::new(move || clock.monotonic())
        },
        flusher_thread: true,
    };
    let journal = JournalOptions { tail_bytes: 0, ..JournalOptions::default() };
    let options = BrokerOptions { clock, journal, ..BrokerOptions::new("not-used") };
    let broker = Broker::open_on(parts, options).expect("it is new");
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    for number in 0..100 {
        let message = Message::new(format!("{number}")).with_key(format!("k{}", number % 7));
        publish(&broker, "t", &message);
    }
    let settings = GroupSettings::new(pattern("t"));
    broker.create_group(&name("g"), settings).expect("there is room");
    broker.seal().expect("there is room");
    let (mut newest, mut all) = {
        let broker = broker.clone();
        let begin = move || {
            let follow = |from| broker.subscribe(&pattern("t"), from).expect("it is there");
            (follow(From::LastPerKey), follow(From::Beginning))
        };
        std::thread::spawn(begin).join().expect("it does not panic")
    };
    let join = Join { name: "m".to_owned(), window: 1000 };
    let mut member = broker.join_group(&name("g"), &join).expect("there is a place");
    readers.lock().unwrap_or_else(PoisonError::into_inner).clear();

    for (follower, expected) in [(&mut newest, 7), (&mut all, 100)] {
        let mut count = 0;
        loop {
            match block_on(follower.next()).expect("it is followed") {
                Delivery::Messages(messages) => count += messages.iter().count(),
                Delivery::Live => break,
                Delivery::Recovering { .. } => {}
                Delivery::Gap(gap) => panic!("{gap:?}"),
            }
        }
        assert_eq!(count, expected);
    }
    let mut handed = 0;
    while handed < 100 {
        if let Handed::Messages(leased) = block_on(member.next()).expect("the group is there") {
            handed += leased.messages().iter().count();
        }
    }
    let readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(!readers.is_empty(), "it was not in segments");
    assert!(!readers.contains(&std::thread::current().id()), "the disk was read inside a poll");
}
