//! Tests of the rules in `credit.rs`.

use alloc::string::ToString;

use proptest::prelude::*;

use super::*;

#[test]
fn a_window_of_nothing_is_refused() {
    assert_eq!(Credit::new(Amount { messages: 0, bytes: 9 }), Err(CreditError::NoWindow));
    assert_eq!(Credit::new(Amount { messages: 9, bytes: 0 }), Err(CreditError::NoWindow));
}

#[test]
fn an_overdraft_says_what_is_needed() {
    let left = Amount { messages: 1, bytes: 10 };
    let needed = Amount { messages: 2, bytes: 5 };
    assert_eq!(
        CreditError::Overdrawn { left, needed }.to_string(),
        "1 messages and 10 bytes are left, 2 and 5 are needed: grant more"
    );
}

proptest! {
    #[test]
    fn credit_is_what_was_granted_less_what_was_taken(
        steps in proptest::collection::vec((any::<bool>(), 0_u64..8, 0_u64..80), 0..80),
    ) {
        let max = Amount { messages: 10, bytes: 100 };
        let mut credit = Credit::new(max).unwrap();
        let (mut messages, mut bytes) = (0_i64, 0_i64);
        for (grant, m, b) in steps {
            let amount = Amount { messages: m, bytes: b };
            let input = if grant { Input::Grant(amount) } else { Input::Take(amount) };
            let sign = if grant { 1 } else { -1 };
            let after = (messages + sign * m.cast_signed(), bytes + sign * b.cast_signed());
            let fine = (0..=10).contains(&after.0)
                && (0..=100).contains(&after.1)
                && !(grant && m == 0 && b == 0);
            let was_open = messages > 0 && bytes > 0;
            let mut effects = Vec::new();
            credit.step(Timestamp(0), input, &mut effects);
            credit.check();
            if fine {
                (messages, bytes) = after;
                let open = messages > 0 && bytes > 0;
                let expected: &[Effect] = match (was_open, open) {
                    (false, true) => &[Effect::Opened],
                    (true, false) => &[Effect::Closed],
                    _ => &[],
                };
                prop_assert_eq!(&effects[..], expected);
            } else {
                prop_assert!(matches!(effects[..], [Effect::Refused(_)]));
            }
            prop_assert_eq!(credit.left().messages.cast_signed(), messages);
            prop_assert_eq!(credit.left().bytes.cast_signed(), bytes);
        }
    }

    #[test]
    fn no_amount_overflows(messages in any::<u64>(), bytes in any::<u64>()) {
        let mut credit = Credit::new(Amount { messages: u64::MAX, bytes: u64::MAX }).unwrap();
        let mut effects = Vec::new();
        for _ in 0..3 {
            credit.step(Timestamp(0), Input::Grant(Amount { messages, bytes }), &mut effects);
            credit.check();
        }
    }
}
