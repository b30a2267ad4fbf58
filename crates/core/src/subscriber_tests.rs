//! Tests of the rules in `subscriber.rs`.

use proptest::prelude::*;

use super::*;

fn input() -> impl Strategy<Value = Input> {
    const REASONS: [FailReason; 2] = [FailReason::Timeout, FailReason::NodeUnreachable];
    prop_oneof![
        Just(Input::Delivered),
        proptest::sample::select(REASONS.to_vec()).prop_map(|reason| Input::Failed { reason }),
        Just(Input::NodeBack),
        Just(Input::Tick),
    ]
}

proptest! {
    /// Every suspension ends in exactly one resumption or removal, a removal comes exactly with
    /// the first look at the clock past the time to live, and after it nothing.
    #[test]
    fn a9_every_suspension_ends_once(
        inputs in proptest::collection::vec((0_u64..60, input()), 1..60),
    ) {
        let mut subscriber = Subscriber::new(Duration::from_millis(100));
        let mut suspended: Option<(u64, FailReason)> = None;
        let (mut now, mut removed) = (0, false);
        for (passed, input) in inputs {
            now += passed;
            let mut effects = Vec::new();
            let late = suspended.is_some_and(|(since, _)| since + 100 <= now);
            let late = late && input == Input::Tick;
            subscriber.step(Timestamp(now), input, &mut effects);
            subscriber.check();
            prop_assert_eq!(effects.iter().any(|e| matches!(e, Effect::Removed { .. })), late);
            for effect in effects {
                prop_assert!(!removed);
                match effect {
                    Effect::Suspended { reason } => {
                        prop_assert!(suspended.is_none());
                        suspended = Some((now, reason));
                    }
                    Effect::Resumed => prop_assert!(suspended.take().is_some()),
                    Effect::Removed { reason } => {
                        prop_assert_eq!(suspended.take().map(|(_, reason)| reason), Some(reason));
                        removed = true;
                    }
                }
            }
            let deadline = suspended.map(|(since, _)| Timestamp(since + 100));
            prop_assert_eq!(subscriber.deadline(), deadline);
        }
    }
}
