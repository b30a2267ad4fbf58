//! A writer in place of the flusher's thread: what many append is written in one turn, and no caller is
//! forgotten when it comes or goes.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use common::*;
use gapless_core::Message;
use gapless_journal::Ticket;
use gapless_journal::faulty::FaultyFs;

#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn woken(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

fn counter() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (Arc::clone(&count), Waker::from(count))
}

fn one(topic: u64) -> Vec<Part> {
    vec![(topic, vec![Message::new("x")])]
}

/// Appends of five publishers that wait, each with its own waker.
fn five(store: &Store) -> Vec<(Ticket, Arc<Count>)> {
    let append = |topic| {
        let (mut ticket, _) = store.append(&one(topic), WRITTEN, WRITTEN).expect("accepted");
        ticket.gather();
        let (count, waker) = counter();
        assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
        (ticket, count)
    };
    (1..=5).map(append).collect()
}

#[test]
fn what_many_append_is_written_in_one_turn_of_the_writer() {
    let store = open(&FaultyFs::new(1));
    let (asked, writer) = counter();
    store.journal.set_writer(&writer);
    let frames = store.journal.stats().frames;
    let waiting = five(&store);
    assert_eq!((asked.woken(), store.journal.stats().frames), (1, frames), "asked once");
    assert!(store.journal.wants_writer());
    store.journal.write_gathered();
    assert_eq!(store.journal.stats().frames, frames + 1);
    assert!(!store.journal.wants_writer());
    for (mut ticket, count) in waiting {
        assert_eq!(count.woken(), 1);
        assert_eq!(ready(&mut ticket), Some(Ok(WRITTEN)));
    }
    let before = asked.woken();
    drop(five(&store));
    assert_eq!(asked.woken(), before + 1, "what comes after its turn asks for another");
}

#[test]
fn a_memory_append_asks_the_writer_too() {
    let store = open(&FaultyFs::new(1));
    let (asked, writer) = counter();
    store.journal.set_writer(&writer);
    for _ in 0..3 {
        drop(store.append(&one(1), MEMORY, MEMORY).unwrap());
    }
    assert_eq!(asked.woken(), 1);
    store.journal.write_gathered();
    drop(store.append(&one(1), MEMORY, MEMORY).unwrap());
    assert_eq!(asked.woken(), 2);
}

#[test]
fn the_writer_leaves_what_must_be_flushed_to_the_flusher() {
    let fs = FaultyFs::new(1);
    let store = open(&fs);
    let (_, writer) = counter();
    store.journal.set_writer(&writer);
    let waiting = five(&store);
    let (mut flushed, _) = store.append(&one(1), FLUSHED, FLUSHED).unwrap();
    let syncs = fs.syncs();
    store.journal.write_gathered();
    assert_eq!(fs.syncs(), syncs, "it never waits for the disk");
    assert_eq!(ready(&mut flushed), None);
    store.journal.turn();
    assert_eq!(ready(&mut flushed), Some(Ok(FLUSHED)));
    assert!(waiting.iter().all(|(_, count)| count.woken() == 0), "that is left to the writer");
    store.journal.wake_settled();
    assert!(waiting.iter().all(|(_, count)| count.woken() == 1));
}

#[test]
fn nobody_waits_for_a_writer_that_has_left() {
    let store = open(&FaultyFs::new(1));
    let (asked, writer) = counter();
    store.journal.set_writer(&writer);
    let waiting = five(&store);
    store.journal.turn();
    assert!(waiting.iter().all(|(_, count)| count.woken() == 0));
    store.journal.forget_writer(&writer);
    assert!(waiting.iter().all(|(_, count)| count.woken() == 1), "woken when it leaves");
    let before = asked.woken();
    let waiting = five(&store);
    store.journal.turn();
    assert!(waiting.iter().all(|(_, count)| count.woken() == 1), "and by each turn from then on");
    assert_eq!(asked.woken(), before);
}

#[test]
fn a_writer_that_leaves_late_does_not_end_the_one_after_it() {
    let store = open(&FaultyFs::new(1));
    let ((_, first), (asked, second)) = (counter(), counter());
    store.journal.set_writer(&first);
    store.journal.set_writer(&second);
    store.journal.forget_writer(&first);
    drop(five(&store));
    assert_eq!(asked.woken(), 1);
}
