//! Proof of A13: a program without `std` in which a publish reaches its subscriber, in the same
//! program and at another node of a cluster.
//!
//! It ends with status 0 if the message arrived, with 1 to 15 for the step that failed, and
//! by abort if anything panicked. It has a panic handler of its own: were `std` linked,
//! by this program or by anything it uses, there would be two, and it would not compile.
//!
//! This file is the one place of the crate with `unsafe`, and exists for it: without `std`
//! it must provide memory, an entry point and an end. The memory is an array that is
//! handed out from front to back and never taken back; the reasons stand at each block.
#![no_std]
#![no_main]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::panic::PanicInfo;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use alloc::vec::Vec;

use gapless_core::cluster::{ClusterConfig, Effect, Frame, Incarnation, Node, NodeName, Policy};
use gapless_core::{
    DeliveryPolicy, Local, LocalLimits, Message, PartitionBehavior, Pattern, PublishAck,
    RecordsBuilder, RejectReason, SubscribeError, SubscriberId, Timestamp, TopicName,
};

/// All the memory there is, in bytes.
const ARENA_BYTES: usize = 1024 * 1024;

/// The largest alignment handed out, in bytes.
const ALIGN_MAX: usize = 4096;

#[repr(align(4096))]
struct Arena {
    memory: UnsafeCell<[u8; ARENA_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: the cell is only reached through `alloc`, which hands out each byte once.
unsafe impl Sync for Arena {}

// SAFETY: `alloc` answers null, or a place of the asked size and alignment inside the
// arena: the arena itself is aligned to `ALIGN_MAX`, so an offset rounded up to the asked
// alignment is an address so aligned. `used` moves past each place in one atomic step and
// never back, so no two places overlap. `dealloc` keeps them taken.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > ALIGN_MAX {
            return null_mut();
        }
        let place = |used: usize| {
            let begin = used.checked_next_multiple_of(layout.align())?;
            let end = begin.checked_add(layout.size())?;
            (end <= ARENA_BYTES).then_some((begin, end))
        };
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let Some((begin, end)) = place(used) else {
                return null_mut();
            };
            match self.used.compare_exchange(used, end, Ordering::Relaxed, Ordering::Relaxed) {
                // SAFETY: `begin` is at most `ARENA_BYTES`, so the address stays inside.
                Ok(_) => return unsafe { self.memory.get().cast::<u8>().add(begin) },
                Err(now) => used = now,
            }
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ARENA: Arena =
    Arena { memory: UnsafeCell::new([0; ARENA_BYTES]), used: AtomicUsize::new(0) };

// SAFETY: this is how the C library declares it. The C library is linked for it and for
// the code that calls `main`; no Rust `std` is.
#[link(name = "c")]
unsafe extern "C" {
    safe fn abort() -> !;
}

#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    abort()
}

/// Where the C library begins.
// SAFETY: the name is the C library's own for it, and nothing else here has it.
#[unsafe(no_mangle)]
extern "C" fn main(_: i32, _: *const *const u8) -> i32 {
    match prove().and_then(|()| prove_cluster()) {
        Ok(()) => 0,
        Err(step) => step,
    }
}

/// Subscribes, publishes and polls; an error is the number of the step that failed.
fn prove() -> Result<(), i32> {
    let (now, ann, bob) = (Timestamp(1), SubscriberId(1), SubscriberId(2));
    let topic = TopicName::parse("orders.eu.created").map_err(|_| 1)?;
    let pattern = Pattern::parse("orders.*.created").map_err(|_| 2)?;
    let message = Message::new("hello");
    let mut local = Local::new(LocalLimits::default());

    let alone = local.publish(now, &topic, &message);
    ensure(alone == PublishAck::Rejected(RejectReason::NoSubscribers), 3)?;
    local.subscribe(ann, &pattern).map_err(|_| 4)?;
    let twice = local.subscribe(ann, &pattern);
    ensure(twice == Err(SubscribeError::AlreadySubscribed), 5)?;
    ensure(local.publish(now, &topic, &message).accepted().is_some(), 6)?;

    let delivery = local.poll(now, ann).ok_or(7)?;
    ensure(delivery.message == message && delivery.topic == topic, 8)?;
    ensure(local.poll(now, ann).is_none() && local.poll(now, bob).is_none(), 9)
}

/// The rules of delivery between nodes: a message waits until its node has answered, and then goes
/// out once.
fn prove_cluster() -> Result<(), i32> {
    let (now, life) = (Timestamp(1), Incarnation(1));
    let (me, peer) = (NodeName::parse("a").map_err(|_| 10)?, NodeName::parse("b").map_err(|_| 10)?);
    let (mut a, mut b) = (
        Node::new(ClusterConfig::default(), me.clone(), life),
        Node::new(ClusterConfig::default(), peer.clone(), life),
    );
    let subject = TopicName::parse("orders.eu").map_err(|_| 11)?;
    b.subscribe(&Pattern::parse("orders.*").map_err(|_| 11)?);
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    b.link_up(now, &me, life, &mut from_b);
    pass(now, &mut b, &mut from_b, &mut a, &mut from_a);
    let mut records = RecordsBuilder::default();
    records.push(&Message::new("hello")).map_err(|_| 12)?;
    let policy =
        Policy { delivery: DeliveryPolicy::AtLeastOnce, partition: PartitionBehavior::DelayQueue };
    let admitted = a.publish(now, &subject, &records.finish(), policy, None, &mut from_a);
    ensure(admitted.is_ok_and(|admitted| admitted.delayed == 1), 13)?;
    a.link_up(now, &peer, life, &mut from_a);
    let mut delivered = 0;
    for _ in 0..4 {
        delivered += pass(now, &mut a, &mut from_a, &mut b, &mut from_b);
        // That it came is said at its time.
        let now = b.deadline().unwrap_or(now);
        pass(now, &mut b, &mut from_b, &mut a, &mut from_a);
    }
    ensure(delivered == 1, 14)?;
    ensure(a.is_idle(), 15)
}

/// Carries everything that one node says to the other; how many messages it delivered.
fn pass(
    now: Timestamp,
    from: &mut Node,
    said: &mut Vec<Effect>,
    to: &mut Node,
    answers: &mut Vec<Effect>,
) -> usize {
    from.settle(now, said);
    let frames: Vec<Frame> = said
        .drain(..)
        .filter_map(|effect| match effect {
            Effect::Send { frame, .. } => Some(frame),
            _ => None,
        })
        .collect();
    let before = delivered(answers);
    for frame in frames {
        let sender = from.me().clone();
        to.frame(now, &sender, frame, answers);
    }
    delivered(answers) - before
}

fn delivered(effects: &[Effect]) -> usize {
    let is_delivery = |effect: &&Effect| matches!(effect, Effect::Deliver { .. });
    effects.iter().filter(is_delivery).count()
}

fn ensure(holds: bool, step: i32) -> Result<(), i32> {
    if holds { Ok(()) } else { Err(step) }
}
