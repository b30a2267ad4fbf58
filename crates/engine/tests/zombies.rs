//! Writers that another has replaced, lost answers, outages: what the contract cannot make happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gapless_engine::clock::ManualTime;
use gapless_engine::faulty::{Fate, FaultyStore, Request};
use gapless_engine::log::ObjectLog;
use gapless_engine::{Store, StoreOptions};
use gapless_journal::log::{AppendError, Floor, Log, LogError, Lsn, TakeOver};
use gapless_journal::{FrameMarks, Secret};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

const MINUTE: Duration = Duration::from_secs(60);

struct World {
    memory: Arc<dyn ObjectStore>,
    time: Arc<ManualTime>,
}

impl World {
    fn new() -> Self {
        Self { memory: Arc::new(InMemory::new()), time: Arc::new(ManualTime::new(1)) }
    }

    fn log_on(&self, store: Arc<dyn ObjectStore>) -> ObjectLog {
        let time = Arc::clone(&self.time) as Arc<_>;
        let options = StoreOptions { time, ..StoreOptions::default() };
        let store = Store::open_on(store, Path::default(), options).expect("opens");
        store.log(0, &FrameMarks::secret(Secret::new(7)))
    }

    fn log(&self) -> ObjectLog {
        self.log_on(Arc::clone(&self.memory))
    }

    fn has(&self, number: u64) -> bool {
        let path = Path::from(format!("j/0000/log/{number:020}"));
        let (memory, runtime) = (Arc::clone(&self.memory), runtime());
        runtime.block_on(async move { memory.head(&path).await.is_ok() })
    }

    fn remove(&self, number: u64) {
        let path = Path::from(format!("j/0000/log/{number:020}"));
        let memory = Arc::clone(&self.memory);
        runtime().block_on(async move { memory.delete(&path).await }).expect("deleted");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

fn take(log: &ObjectLog, first_needed: u64) -> TakeOver {
    let floor = Floor { first_needed: Lsn(first_needed), ..Floor::default() };
    log.take_over(floor).expect("taken over")
}

fn frame(n: u64) -> Bytes {
    Bytes::from(format!("frame {n}"))
}

fn append(taken: &mut TakeOver, count: u64) {
    for _ in 0..count {
        let at = taken.writer.next();
        taken.writer.append(at, &frame(at.0)).expect("appended");
    }
}

fn frames(taken: &mut TakeOver) -> Vec<u64> {
    let mut all = Vec::new();
    let first = taken.first;
    let done = taken.reader.replay(first, &mut |lsn, bytes| {
        assert_eq!(bytes, frame(lsn.0));
        all.push(lsn.0);
        Ok(())
    });
    done.expect("replayed");
    all
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + MINUTE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn f1_a_zombie_never_appends_into_the_trimmed_past() {
    let world = World::new();
    let mut old = take(&world.log(), 1);
    append(&mut old, 3);
    let mut new = take(&world.log(), 1);
    assert_eq!(frames(&mut new), [1, 2, 3]);
    append(&mut new, 10);
    new.writer.trim(Lsn(11)).expect("trimmed");
    // Objects 1 to 4 are the old one's, 5 is the fence.
    assert!(world.has(5), "not before the time");
    world.time.advance(MINUTE + Duration::from_secs(1));
    new.writer.confirm().expect("it owns the log");
    wait_until("the fence is trimmed", || !world.has(5));
    // The place that the zombie believes to be next is free; and yet it is told.
    let told = old.writer.append(Lsn(4), &frame(99));
    assert!(matches!(told, Err(AppendError::Fenced { .. })), "{told:?}");
    append(&mut new, 1);
    // What it left there is below the floor and does no harm.
    assert!(world.has(5), "the zombie's create succeeded");
    let mut third = take(&world.log(), 11);
    assert_eq!(frames(&mut third), [11, 12, 13, 14]);
}

#[test]
fn the_newest_object_is_never_trimmed_and_shows_the_owner() {
    let world = World::new();
    let mut old = take(&world.log(), 1);
    append(&mut old, 2);
    let mut new = take(&world.log(), 1);
    new.writer.trim(Lsn(3)).expect("all is trimmed");
    world.time.advance(2 * MINUTE);
    new.writer.confirm().expect("it owns the log");
    wait_until("object 3 is trimmed", || !world.has(3));
    assert!(world.has(4), "the newest stays");
    let told = old.writer.confirm();
    assert!(matches!(told, Err(AppendError::Fenced { .. })), "{told:?}");
    assert!(matches!(old.writer.flush(), Err(AppendError::Fenced { .. })));
}

/// What becomes of puts into the log.
fn steered(world: &World, fate: &Arc<AtomicU8>) -> ObjectLog {
    let fate = Arc::clone(fate);
    let fates = move |request: Request, path: &Path| {
        let hit = request == Request::Put && path.as_ref().contains("log/");
        let fate = if hit { fate.load(Ordering::SeqCst) } else { 0 };
        Fate { lost: fate == 1, unanswered: fate == 2, ..Fate::default() }
    };
    let faulty = FaultyStore::new(Arc::clone(&world.memory), Arc::new(fates));
    world.log_on(Arc::new(faulty))
}

#[test]
fn f1_frames_whose_answer_was_lost_are_there_once() {
    let world = World::new();
    let fate = Arc::new(AtomicU8::new(0));
    let mut taken = take(&steered(&world, &fate), 1);
    append(&mut taken, 1);
    fate.store(2, Ordering::SeqCst);
    append(&mut taken, 2);
    fate.store(0, Ordering::SeqCst);
    append(&mut taken, 1);
    assert_eq!(frames(&mut take(&world.log(), 1)), [1, 2, 3, 4]);
}

#[test]
fn f1_after_an_outage_the_same_frames_go_on_with_more_behind_them() {
    for kind in [1, 2] {
        let world = World::new();
        let fate = Arc::new(AtomicU8::new(0));
        // Everything fails, so that it cannot be looked up either.
        let down = Arc::new(AtomicBool::new(false));
        let is_down = Arc::clone(&down);
        let put = Arc::clone(&fate);
        let fates = move |request: Request, _: &Path| {
            let down = is_down.load(Ordering::SeqCst);
            let put = if request == Request::Put { put.load(Ordering::SeqCst) } else { 1 };
            Fate { lost: down && put == 1, unanswered: down && put == 2, ..Fate::default() }
        };
        let faulty = FaultyStore::new(Arc::clone(&world.memory), Arc::new(fates));
        let mut taken = take(&world.log_on(Arc::new(faulty)), 1);
        append(&mut taken, 1);
        fate.store(kind, Ordering::SeqCst);
        down.store(true, Ordering::SeqCst);
        let all: Vec<Bytes> = (2..=4).map(frame).collect();
        for _ in 0..2 {
            let (count, told) = taken.writer.append_all(Lsn(2), &all[..2], true);
            assert!(matches!(told, Err(AppendError::Unavailable(_))), "{told:?}");
            assert_eq!(count, 0);
        }
        down.store(false, Ordering::SeqCst);
        let (count, told) = taken.writer.append_all(Lsn(2), &all, true);
        told.expect("it answers again");
        assert_eq!(count, 3);
        assert_eq!(frames(&mut take(&world.log(), 1)), [1, 2, 3, 4]);
    }
}

#[test]
fn f1_a_busy_owner_is_taken_over_and_nothing_it_was_told_is_lost() {
    let world = World::new();
    // Both take as long for a request.
    let slow = || {
        let fates = |request: Request, path: &Path| {
            let hit = request == Request::Put && path.as_ref().contains("log/");
            Fate { delay: Duration::from_millis(if hit { 2 } else { 0 }), ..Fate::default() }
        };
        world.log_on(Arc::new(FaultyStore::new(Arc::clone(&world.memory), Arc::new(fates))))
    };
    let mut busy = take(&slow(), 1);
    let appended = std::thread::spawn(move || {
        for n in 1.. {
            match busy.writer.append(Lsn(n), &frame(n)) {
                Ok(()) => {}
                Err(AppendError::Fenced { .. }) => return n - 1,
                Err(other) => panic!("{other}"),
            }
        }
        0
    });
    wait_until("it has begun", || world.has(20));
    let mut taken = take(&slow(), 1);
    let acked = appended.join().expect("it ends");
    let found = frames(&mut taken);
    assert_eq!(found, (1..=acked).collect::<Vec<_>>(), "exactly what was acknowledged");
    append(&mut taken, 2);
    assert_eq!(frames(&mut take(&world.log(), 1)).len() as u64, acked + 2);
}

#[test]
fn an_object_that_is_missing_or_of_another_store_is_told() {
    let world = World::new();
    let mut taken = take(&world.log(), 1);
    append(&mut taken, 5);
    let other = {
        let options = StoreOptions::default();
        let store = Store::open_on(Arc::clone(&world.memory), Path::default(), options).unwrap();
        store.log(0, &FrameMarks::secret(Secret::new(8)))
    };
    let refused = other.take_over(Floor::default());
    assert!(matches!(refused, Err(LogError::OtherStore { .. })), "{refused:?}");
    append(&mut taken, 1);
    world.remove(3);
    let refused = world.log().take_over(Floor::default());
    let Err(LogError::Damaged { lsn: Lsn(1), place, .. }) = &refused else { panic!("{refused:?}") };
    assert!(place.ends_with("00000000000000000003"), "{place}");
    append(&mut taken, 1);
}

#[test]
fn a_log_of_many_objects_is_read_from_where_it_is_needed() {
    let world = World::new();
    for _ in 0..5 {
        let mut taken = take(&world.log(), 1);
        append(&mut taken, 20);
    }
    for needed in [1, 2, 37, 60, 61, 99, 100, 101] {
        let mut taken = take(&world.log(), needed);
        assert_eq!(frames(&mut taken), (needed..=100).collect::<Vec<_>>(), "from {needed}");
        assert_eq!(taken.next, Lsn(101));
    }
}
