//! Deleting groups and topics while others use them: whatever was written can be opened again,
//! and what was deleted does not come back.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::*;
use gapless_broker::{Broker, BrokerOptions, Handed, Join, Member, rehearse};
use gapless_core::group::op::{Failure, Op, OpWriter};
use gapless_core::{
    Durability, Entry, EntryHeader, EntryKind, Epoch, GroupSettings, Lease, Mode, Position,
    Timestamp, TopicId, TopicSettings,
};
use gapless_journal::faulty::CrashKind;
use gapless_journal::layout::Folder;
use gapless_journal::{Journal, JournalOptions, Lsn, Recover, Secret};

const LEASE_MS: u64 = 1_000;

fn settings(mode: Mode) -> GroupSettings {
    GroupSettings {
        mode,
        lease: Duration::from_millis(LEASE_MS),
        ..GroupSettings::new(pattern("t"))
    }
}

/// A broker with a topic `t` of five messages and a group `g` that reads it.
fn open(world: &World, mode: Mode) -> Broker {
    let broker = world.open();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
    texts(&broker, "t", 1..=5);
    broker.create_group(&name("g"), settings(mode)).expect("there is room");
    broker
}

/// Joins `g` and takes what there is.
fn holder(broker: &Broker) -> (Member, Vec<Lease>) {
    let join = Join { name: "m".to_owned(), window: 100 };
    let mut member = broker.join_group(&name("g"), &join).expect("the group is there");
    let mut leases = Vec::new();
    while let Poll::Ready(handed) = member.poll_next(&mut Context::from_waker(Waker::noop())) {
        if let Handed::Messages(leased) = handed.expect("the group is there") {
            leases.extend_from_slice(leased.leases());
        }
    }
    assert!(!leases.is_empty(), "the member holds messages");
    (member, leases)
}

fn folder(world: &World) -> Folder {
    let fs = Arc::new(world.fs.clone());
    Folder { log: world.options.log, ..Folder::new(fs, &world.options.folder) }
}

/// Ends the run in each of the three ways and opens the store again.
fn reopen(world: &World, broker: Broker, end: usize) -> Broker {
    match end {
        0 => broker.close().expect("the store closes"),
        1 => world.fs.crash(CrashKind::Process),
        _ => {
            broker.flush();
            world.fs.crash(CrashKind::Power);
        }
    }
    rehearse(&folder(world)).expect("the replay goes through");
    world.open()
}

/// What a member may do when its group is gone.
type Afterwards = fn(&World, &Broker, Member, &[Lease]);

#[test]
fn c1_a_store_opens_after_a_group_was_deleted_that_members_still_used() {
    let acts: [(&str, Afterwards); 7] = [
        ("goes away", |_, _, member, _| drop(member)),
        ("leaves", |_, _, member, _| member.leave()),
        ("acks", |_, _, member, leases| {
            let outcome = member.ack(leases).wait().expect("the broker is well");
            assert_eq!((outcome.taken, outcome.refused), (0, 5));
        }),
        ("nacks and terminates", |_, _, member, leases| {
            let nacked = member.nack(&leases[..1], None, "no").wait().expect("the broker is well");
            let ended = member.terminate(leases, "never").wait().expect("the broker is well");
            assert_eq!((nacked.taken, ended.taken), (0, 0));
        }),
        ("asks for more time", |_, _, member, leases| {
            let extended = member.extend(leases);
            assert_eq!((extended.taken, extended.refused), (0, 5));
        }),
        ("lets its lease run out", |world, broker, mut member, _| {
            world.advance(LEASE_MS + 1);
            broker.turn();
            let polled = member.poll_next(&mut Context::from_waker(Waker::noop()));
            assert!(
                matches!(polled, Poll::Ready(Err(_))),
                "the member learns that the group is gone"
            );
        }),
        ("is there at a seal, and goes after it", |_, broker, member, _| {
            broker.seal().expect("there is room");
            drop(member);
        }),
    ];
    for (what, afterwards) in acts {
        for mode in [Mode::Shared, Mode::Keyed, Mode::Ordered] {
            for end in 0..3 {
                let world = World::new(1);
                let broker = open(&world, mode);
                let (member, leases) = holder(&broker);
                broker.delete_group(&name("g")).expect("the group is there");
                let next = broker.next_position();
                afterwards(&world, &broker, member, &leases);
                assert_eq!(broker.next_position(), next, "a member {what}: nothing is written");
                let broker = reopen(&world, broker, end);
                assert!(broker.describe_group(&name("g")).is_err(), "a member {what}");
                assert_eq!(broker.describe_topic(&name("t")).expect("t is there").next.0, 6);
            }
        }
    }
}

/// A state above a journal that takes whatever there is.
struct Anything;

impl Recover for Anything {
    fn restore(&mut self, _: bytes::Bytes) -> Result<(), String> {
        Ok(())
    }

    fn replay(&mut self, _: Lsn, _: Entry) -> Result<(), String> {
        Ok(())
    }
}

/// Appends an entry to the log of a closed store, as an earlier version may have.
fn append(world: &World, header: EntryHeader, body: &[u8]) {
    let parts = folder(world).parts((Epoch(1), Secret::new(1)), Arc::new(|| Duration::ZERO), false);
    let parts = parts.expect("the store is closed");
    let (journal, _) =
        Journal::open(parts, JournalOptions::small(), &mut Anything).expect("the store opens");
    let mut append = journal.begin(64 + body.len()).expect("there is room");
    append.entry(header, body);
    append.finish(Durability::Flushed, Durability::Flushed).wait().expect("the disk is well");
    journal.close().expect("the store closes");
}

/// A failure as members wrote it that went away.
fn went_away(group: TopicId) -> (EntryHeader, Vec<u8>) {
    let failure = Failure {
        attempts: 1,
        dead: false,
        due: Timestamp(1),
        first_at: Timestamp(1),
        error: "the member went away".into(),
    };
    let mut writer = OpWriter::default();
    writer.put(&Op::Failed { first: Position(2), last: Position(6), failure });
    let header = EntryHeader { topic: group, ..EntryHeader::new(EntryKind::Group) };
    (header, writer.bytes().to_vec())
}

#[test]
fn c1_a_store_with_a_change_behind_a_deletion_opens_again() {
    for sealed in [false, true] {
        let world = World::new(2);
        let broker = open(&world, Mode::Shared);
        let group = TopicId(broker.describe_group(&name("g")).expect("g is there").id);
        let topic = TopicId(broker.create_topic(&name("u"), TopicSettings::default()).unwrap().id);
        broker.delete_group(&name("g")).expect("g is there");
        if sealed {
            // Then the checkpoint, which has every group, says that it was gone.
            broker.seal().expect("there is room");
        }
        broker.delete_topic(&name("u")).expect("u is there");
        broker.close().expect("the store closes");
        let (header, body) = went_away(group);
        append(&world, header, &body);
        let floor = EntryHeader { topic, ..EntryHeader::new(EntryKind::Floor) };
        append(&world, floor, &[0; 8]);
        rehearse(&folder(&world)).expect("the replay goes through");
        let broker = world.open();
        assert!(broker.list_groups().is_empty(), "the deleted group stays gone");
        assert!(broker.describe_topic(&name("u")).is_err(), "the deleted topic stays gone");
        assert_eq!(broker.describe_topic(&name("t")).expect("t is there").next.0, 6);
        let made = broker.create_topic(&name("u"), TopicSettings::default()).expect("it is gone");
        assert!(made.id > topic.0, "no number is given twice");
    }
}

#[test]
fn c1_a_change_that_no_deletion_explains_is_refused_and_changes_nothing() {
    let world = World::new(3);
    open(&world, Mode::Shared).close().expect("the store closes");
    let (header, body) = went_away(TopicId(77));
    append(&world, header, &body);
    let told = rehearse(&folder(&world)).expect_err("nothing explains it").to_string();
    assert!(told.contains("topic or group 77"), "{told}");
    let mut before = None;
    for _ in 0..3 {
        let opened = Broker::open(world.options.clone());
        assert_eq!(opened.err().expect("nothing explains it").to_string(), told);
        let names = gapless_journal::fs::Fs::list(&world.fs, &world.options.folder.join("blobs"));
        let names = names.expect("the folder is there");
        assert_eq!(*before.get_or_insert_with(|| names.clone()), names, "a refusal writes nothing");
    }
}

/// Seals, and does something when the frames to seal are chosen and no item of the checkpoint is
/// written yet.
fn within_a_seal(world: &World, broker: &Broker, act: fn(&Broker)) {
    broker.flush();
    let (fs, acting, done) = (world.fs.clone(), broker.clone(), Arc::new(AtomicBool::new(false)));
    let was_done = Arc::clone(&done);
    // The first sync is that of the segment, which comes before the checkpoint.
    world.fs.on_sync(Some(Arc::new(move || {
        fs.on_sync(None);
        act(&acting);
        was_done.store(true, Ordering::Relaxed);
    })));
    broker.seal().expect("there is room");
    assert!(done.load(Ordering::Relaxed), "a seal has a sync");
}

/// Found by bursts of calls: what gave a topic other settings was taken for its creation when
/// the checkpoint did not have it any more, and then its next message did not fit.
#[test]
fn c1_a_store_opens_after_a_topic_was_configured_and_deleted_while_a_checkpoint_was_taken() {
    for end in 0..3 {
        let world = World::new(6);
        let broker = open(&world, Mode::Shared);
        within_a_seal(&world, &broker, |broker| {
            for durability in [Durability::Written, Durability::Memory] {
                let settings =
                    TopicSettings { durability: Some(durability), ..TopicSettings::default() };
                broker.configure_topic(&name("t"), settings).expect("t is there");
                texts(broker, "t", 6..=7);
            }
            broker.delete_topic(&name("t")).expect("t is there");
        });
        let broker = reopen(&world, broker, end);
        assert!(broker.describe_topic(&name("t")).is_err(), "the deleted topic stays gone");
    }
}

/// The replay deletes the first one again, when the checkpoint has brought the second.
#[test]
fn c1_what_is_created_again_while_a_checkpoint_is_taken_keeps_its_name() {
    for end in 0..3 {
        let world = World::new(7);
        let broker = open(&world, Mode::Shared);
        within_a_seal(&world, &broker, |broker| {
            for _ in 0..2 {
                broker.create_topic(&name("u"), TopicSettings::default()).expect("there is room");
                text(broker, "u", "body");
                broker.create_group(&name("h"), settings(Mode::Keyed)).expect("there is room");
                broker.delete_topic(&name("u")).expect("u is there");
                broker.delete_group(&name("h")).expect("h is there");
            }
            broker.create_topic(&name("u"), TopicSettings::default()).expect("there is room");
            text(broker, "u", "body");
            broker.create_group(&name("h"), settings(Mode::Ordered)).expect("there is room");
        });
        let topic = broker.describe_topic(&name("u")).expect("u is there");
        let group = broker.describe_group(&name("h")).expect("h is there");
        let broker = reopen(&world, broker, end);
        let found = broker.describe_topic(&name("u")).expect("u keeps its name");
        assert_eq!((found.id, found.next), (topic.id, topic.next));
        let found = broker.describe_group(&name("h")).expect("h keeps its name");
        assert_eq!((found.id, found.settings), (group.id, group.settings));
    }
}

#[test]
fn the_dead_letters_of_a_deleted_group_are_gone_with_it_whatever_crashes() {
    for end in 0..3 {
        let world = World::new(5);
        let broker = open(&world, Mode::Shared);
        let (member, leases) = holder(&broker);
        member.terminate(&leases, "never").wait().expect("the broker is well");
        broker.turn();
        assert_eq!(broker.describe_group(&name("g")).expect("g is there").dead_letters, 5);
        // One write, so that no crash can come between the group and its letters.
        let writes = world.fs.writes();
        broker.delete_group(&name("g")).expect("g is there");
        assert_eq!(world.fs.writes(), writes + 1, "both are deleted in one append");
        drop(member);
        let broker = reopen(&world, broker, end);
        broker.create_group(&name("g"), settings(Mode::Shared)).expect("the name is free");
        assert_eq!(broker.describe_group(&name("g")).expect("g is there").dead_letters, 0);
    }
}

/// Found by bursts of calls: deleting held the gathering frame while it asked for the topic,
/// and publishing the topic while it asked for the frame.
#[test]
fn a_group_can_be_deleted_while_its_source_is_published_to() {
    within(PATIENCE, || {
        let folder = tempfile::tempdir().expect("there is room");
        let options = BrokerOptions::new(folder.path());
        let broker = Broker::open(options).expect("the folder is empty");
        broker.create_topic(&name("t"), TopicSettings::default()).expect("there is room");
        text(&broker, "t", "first");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&done);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        text(&broker, "t", "x");
                    }
                });
            }
            for _ in 0..100 {
                broker.create_group(&name("g"), settings(Mode::Shared)).expect("it is not there");
                let join = Join { name: "m".to_owned(), window: 1 };
                let mut member = broker.join_group(&name("g"), &join).expect("the group is there");
                // With a place in the source, which is what deleting has to let go of.
                until("the source is read", || {
                    member.poll_next(&mut Context::from_waker(Waker::noop())).is_ready()
                });
                broker.delete_group(&name("g")).expect("the group is there");
            }
        });
    });
}
