//! Tests of the rules in `trie.rs`.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap()
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).unwrap()
}

fn found(index: &SubscriptionIndex<u8>, text: &str) -> Vec<u8> {
    let mut ids = Vec::new();
    index.for_each_match(&name(text), |id| ids.push(*id));
    ids.sort_unstable();
    ids
}

#[test]
fn a2_subscribing_twice_is_an_error_and_changes_nothing() {
    let mut index = SubscriptionIndex::new();
    assert_eq!(index.insert(&pattern("a.*"), 1), Ok(()));
    assert_eq!(index.insert(&pattern("a.*"), 1), Err(SubscribeError::AlreadySubscribed));
    assert_eq!(index.insert(&pattern("a.>"), 1), Ok(()));
    assert_eq!(index.len(), 2);
    assert_eq!(found(&index, "a.b"), [1, 1]);
    index.check();
}

#[test]
fn a2_unsubscribing_what_is_not_there_is_an_error_and_changes_nothing() {
    let mut index = SubscriptionIndex::new();
    index.insert(&pattern("a.b"), 1).unwrap();
    for (text, id) in [("a.b", 2), ("a", 1), ("a.b.c", 1), ("a.*", 1), ("a.>", 1), (">", 1)] {
        let answer = index.remove(&pattern(text), &id);
        assert_eq!(answer, Err(UnsubscribeError::NotSubscribed), "{text}");
    }
    assert_eq!(found(&index, "a.b"), [1]);
    index.check();
}

#[test]
fn memory_comes_back() {
    let mut index = SubscriptionIndex::new();
    let texts = ["a.b.c", "a.*.c", "a.b.>", "*.*", ">", "a"];
    for text in texts {
        index.insert(&pattern(text), 7).unwrap();
    }
    for text in texts {
        index.remove(&pattern(text), &7).unwrap();
        index.check();
    }
    assert!(index.is_empty());
    assert!(index.root.is_empty());
}

#[test]
fn system_names_are_matched_by_their_own_patterns_only() {
    let mut index = SubscriptionIndex::new();
    for (id, text) in [">", "*.a", "*.>", "$events.>", "$events.*", "$events.a"].iter().enumerate()
    {
        index.insert(&pattern(text), u8::try_from(id).unwrap()).unwrap();
    }
    assert_eq!(found(&index, "$events.a"), [3, 4, 5]);
    assert_eq!(found(&index, "x.a"), [0, 1, 2]);
}

/// Shows that matching does not scan: a million patterns, and a match looks at a handful of
/// nodes, however many patterns lie beside.
#[test]
fn a_million_patterns_are_not_scanned() {
    let mut index = SubscriptionIndex::new();
    for id in 0..1_000_000_u32 {
        let text = match id % 4 {
            0 => format!("orders.{id}.created"),
            1 => format!("orders.{id}.*"),
            2 => format!("orders.{id}.>"),
            _ => format!("users.*.{id}"),
        };
        index.insert(&pattern(&text), id).unwrap();
    }
    assert_eq!(index.len(), 1_000_000);

    let mut seen = Vec::new();
    index.for_each_match(&name("orders.400001.created"), |id| seen.push(*id));
    assert_eq!(seen, [400_001]);
    assert!(index.visited.get() <= 4, "visited {}", index.visited.get());

    seen.clear();
    index.for_each_match(&name("users.anybody.400003"), |id| seen.push(*id));
    assert_eq!(seen, [400_003]);
    assert!(index.visited.get() <= 4, "visited {}", index.visited.get());

    assert!(!index.matches_any(&name("nobody.listens.here")));
    assert_eq!(index.visited.get(), 1);
}

fn token(wild: bool) -> impl Strategy<Value = &'static str> {
    let tokens: &'static [&'static str] =
        if wild { &["a", "b", "$s", "*", "*"] } else { &["a", "b", "$s"] };
    proptest::sample::select(tokens)
}

fn some_name() -> impl Strategy<Value = TopicName> {
    proptest::collection::vec(token(false), 1..5).prop_map(|tokens| name(&tokens.join(".")))
}

fn some_pattern() -> impl Strategy<Value = Pattern> {
    (proptest::collection::vec(token(true), 0..4), any::<bool>()).prop_map(|(tokens, rest)| {
        let mut tokens = tokens;
        if rest || tokens.is_empty() {
            tokens.push(">");
        }
        let text: String = tokens.join(".");
        pattern(&text)
    })
}

proptest! {
    #[test]
    fn the_index_finds_what_the_naive_matcher_finds(
        steps in proptest::collection::vec((any::<bool>(), some_pattern(), 0_u8..3), 0..60),
        names in proptest::collection::vec(some_name(), 1..10),
    ) {
        let mut index = SubscriptionIndex::new();
        let mut model = BTreeSet::new();
        for (add, pattern, id) in steps {
            if add {
                let added = index.insert(&pattern, id).is_ok();
                prop_assert_eq!(added, model.insert((pattern, id)));
            } else {
                let removed = index.remove(&pattern, &id).is_ok();
                prop_assert_eq!(removed, model.remove(&(pattern, id)));
            }
            index.check();
        }
        for name in names {
            let mut found = Vec::new();
            index.for_each_match(&name, |id| found.push(*id));
            found.sort_unstable();
            let mut expected: Vec<u8> =
                model.iter().filter(|(p, _)| p.matches(&name)).map(|(_, id)| *id).collect();
            expected.sort_unstable();
            prop_assert_eq!(index.matches_any(&name), !expected.is_empty());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn patterns_that_share_a_name_overlap(
        a in some_pattern(), b in some_pattern(), name in some_name(),
    ) {
        if a.matches(&name) && b.matches(&name) {
            prop_assert!(a.overlaps(&b));
        }
    }
}
