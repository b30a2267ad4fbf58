//! Tests of the rules in `batcher.rs`.

use alloc::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const LIMITS: BatcherLimits = BatcherLimits {
    batch_count_max: 3,
    batch_bytes_max: 100,
    wait: Duration::from_millis(10),
    queue_count_max: 5,
    queue_bytes_max: 250,
};

#[test]
fn limits_that_let_nothing_through_are_refused() {
    let zero = BatcherLimits { batch_count_max: 0, ..LIMITS };
    assert_eq!(Batcher::new(zero), Err(BatcherLimitsError::Zero { limit: "batch count" }));
    let above = BatcherLimits { batch_bytes_max: 251, ..LIMITS };
    assert_eq!(Batcher::new(above), Err(BatcherLimitsError::BatchAboveQueue { limit: "bytes" }));
}

#[test]
fn without_a_wait_every_message_goes_at_once() {
    let mut batcher = Batcher::new(BatcherLimits { wait: Duration::ZERO, ..LIMITS }).unwrap();
    let mut effects = Vec::new();
    batcher.step(Timestamp(5), Input::Add { bytes: 1 }, &mut effects);
    let flush = Effect::Flush { batch: 1, count: 1, bytes: 1 };
    assert_eq!(effects, [Effect::Queued { batch: 1 }, flush]);
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        6 => (0_u64..300).prop_map(|bytes| Input::Add { bytes }),
        3 => (0_u64..60).prop_map(|bytes| Input::Add { bytes }),
        2 => Just(Input::Tick),
        2 => (0_u64..8).prop_map(Input::Done),
        1 => any::<bool>().prop_map(|flush| Input::Stop { flush }),
    ]
}

proptest! {
    /// A shell that keeps the messages finds that every one taken is sent once, in order,
    /// or reported as discarded; none waits past its time; and the queue keeps its bounds.
    #[test]
    fn a6_every_message_taken_is_sent_once_or_told_as_discarded(
        inputs in proptest::collection::vec((0_u64..8, input()), 1..80),
    ) {
        let mut batcher = Batcher::new(LIMITS).unwrap();
        let mut kept: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let mut sent: BTreeMap<u64, u32> = BTreeMap::new();
        let (mut now, mut last, mut stopped) = (0, 0, false);
        // A shell is called at the deadline, if nothing else happens before.
        let inputs = inputs.into_iter().flat_map(|(passed, input)| [(passed, Input::Tick), (0, input)]);
        for (passed, input) in inputs {
            now += passed;
            let mut effects = Vec::new();
            batcher.step(Timestamp(now), input, &mut effects);
            batcher.check();
            let mut fresh = match input {
                Input::Add { bytes } => Some(bytes),
                _ => None,
            };
            if let Input::Done(batch) = input {
                sent.remove(&batch);
            }
            for effect in effects {
                match effect {
                    Effect::Queued { batch } => {
                        prop_assert!(!stopped);
                        kept.push_back((batch, fresh.take().unwrap(), now));
                    }
                    Effect::Flush { batch, count, bytes } => {
                        prop_assert_eq!(batch, last + 1);
                        last = batch;
                        let mut sum = 0;
                        for _ in 0..count {
                            let (of, bytes, _) = kept.pop_front().unwrap();
                            prop_assert_eq!(of, batch);
                            sum += bytes;
                        }
                        prop_assert_eq!(sum, bytes);
                        prop_assert!(count == 1 || bytes <= LIMITS.batch_bytes_max);
                        prop_assert!(count <= LIMITS.batch_count_max);
                        sent.insert(batch, count);
                    }
                    Effect::Stopped { flushed, discarded } => {
                        prop_assert!(!stopped && (flushed == 0 || discarded == 0));
                        prop_assert_eq!(kept.len(), usize::try_from(discarded).unwrap());
                        kept.clear();
                        stopped = true;
                    }
                    Effect::Closed => prop_assert!(stopped),
                    Effect::Drained => prop_assert!(stopped && sent.is_empty()),
                    Effect::Rejected(RejectReason::TooLarge { bytes, .. }) => {
                        prop_assert!(bytes > LIMITS.queue_bytes_max);
                    }
                    Effect::Rejected(reason) => {
                        prop_assert_eq!(reason, RejectReason::QueueFull);
                    }
                }
            }
            let waiting = u32::try_from(kept.len()).unwrap() + sent.values().sum::<u32>();
            prop_assert_eq!(batcher.queued(), waiting);
            prop_assert!(kept.iter().all(|(_, _, since)| now - since < 10));
        }
    }
}
