//! Rules in words, decisions in sentences, and the two laws as properties.

use alloc::format;
use alloc::vec;

use proptest::prelude::*;

use super::*;

fn grants(roles: &[(&str, &[&str])]) -> Grants {
    let role = |(name, rules): &(&str, &[&str])| {
        let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
        Arc::new(Role::new(name, rules).expect("a role"))
    };
    Grants::new(roles.iter().map(role).collect())
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("a pattern")
}

#[test]
fn without_a_rule_nothing_is_allowed() {
    let grants = grants(&[("a", &["allow publish on orders.>"])]);
    let decision = grants.decide(Right::Read, On::Name(&name("orders.eu")));
    assert_eq!(decision, Decision { allowed: false, by: None });
}

#[test]
fn a_deny_wins_in_any_order_and_is_named() {
    let rules = ["allow * on orders.>", "deny publish on orders.eu"];
    for rules in [rules, [rules[1], rules[0]]] {
        let grants = grants(&[("a", &rules[..1]), ("b", &rules[1..])]);
        let decision = grants.decide(Right::Publish, On::Name(&name("orders.eu")));
        let (_, rule) = decision.by.expect("a rule decided");
        assert!(!decision.allowed);
        assert_eq!(rule.to_string(), "deny publish on orders.eu");
        assert!(grants.decide(Right::Read, On::Name(&name("orders.eu"))).allowed);
    }
}

#[test]
fn a_pattern_needs_an_allow_that_covers_it_and_no_deny_that_touches_it() {
    let grants =
        grants(&[("a", &["allow subscribe on orders.>", "deny subscribe on orders.*.key"])]);
    let may = |text| grants.decide(Right::Subscribe, On::All(&pattern(text))).allowed;
    assert!(may("orders.eu") && may("orders.eu.new") && may("orders.*"));
    assert!(!may(">") && !may("orders.>") && !may("*.eu") && !may("orders.eu.key"));
}

#[test]
fn names_of_the_system_need_a_rule_that_names_them() {
    let all = grants(&[("a", &["allow * on >"])]);
    assert!(!all.decide(Right::Subscribe, On::All(&pattern("$events.>"))).allowed);
    let named = grants(&[("a", &["allow subscribe on $events.>"])]);
    assert!(named.decide(Right::Subscribe, On::All(&pattern("$events.topic.*"))).allowed);
}

#[test]
fn rules_read_back_as_they_are_shown() {
    for text in ["allow publish,job.submit on a.*.>", "deny * on >", "allow admin on server"] {
        assert_eq!(text.parse::<Rule>().expect("a rule").to_string(), text);
    }
    for text in [
        "",
        "allow",
        "allow publish",
        "permit publish on a",
        "allow fly on a",
        "allow publish on a b",
        "allow publish on a..b",
        "allow publish, read on a",
    ] {
        assert!(text.parse::<Rule>().is_err(), "{text}");
    }
}

#[test]
fn names_of_roles_are_plain_and_bounded() {
    for fine in ["a", "unix:1000", "svc@host.example", "a_b-c"] {
        assert_eq!(check_name(fine), Ok(()));
    }
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for bad in ["", "a b", "ä", "a/b", "a\n", "a,b", long.as_str()] {
        assert!(check_name(bad).is_err(), "{bad:?}");
    }
    let rule: Rule = "allow * on >".parse().expect("a rule");
    assert_eq!(Role::new("a", vec![rule; RULES_MAX + 1]), Err(RuleError::TooMany));
}

fn any_token() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("$s")]
}

fn any_name() -> impl Strategy<Value = String> {
    prop::collection::vec(any_token(), 1..4).prop_map(|tokens| tokens.join("."))
}

fn any_pattern() -> impl Strategy<Value = String> {
    let token = prop_oneof![3 => any_token(), 2 => Just("*")];
    (prop::collection::vec(token, 1..4), any::<bool>()).prop_map(|(mut tokens, rest)| {
        if rest {
            tokens.push(">");
        }
        tokens.join(".")
    })
}

fn any_rules() -> impl Strategy<Value = Vec<String>> {
    let rule = (any::<bool>(), any_pattern()).prop_map(|(allow, pattern)| {
        format!("{} subscribe on {pattern}", if allow { "allow" } else { "deny" })
    });
    prop::collection::vec(rule, 0..5)
}

fn one_role(rules: &[String]) -> Grants {
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    grants(&[("a", &rules)])
}

proptest! {
    #[test]
    fn what_a_pattern_covers_it_matches(a in any_pattern(), b in any_pattern(), text in any_name()) {
        let (a, b, name) = (pattern(&a), pattern(&b), name(&text));
        if a.covers(&b) && b.matches(&name) {
            prop_assert!(a.matches(&name), "{a} covers {b} but not {name}");
        }
        prop_assert!(a.covers(&a));
        if a.covers(&b) {
            prop_assert!(a.overlaps(&b), "{a} covers {b} and does not overlap it");
        }
    }

    #[test]
    fn a_pattern_that_is_allowed_delivers_no_name_that_is_not(
        rules in any_rules(), asked in any_pattern(), text in any_name(),
    ) {
        let (grants, asked, name) = (one_role(&rules), pattern(&asked), name(&text));
        if grants.decide(Right::Subscribe, On::All(&asked)).allowed && asked.matches(&name) {
            prop_assert!(grants.decide(Right::Subscribe, On::Name(&name)).allowed);
        }
    }

    #[test]
    fn the_order_of_rules_decides_nothing_and_a_deny_only_takes(
        rules in any_rules(), more in any_pattern(), text in any_name(),
    ) {
        let name = name(&text);
        let may = |rules: &[String]| {
            one_role(rules).decide(Right::Subscribe, On::Name(&name)).allowed
        };
        let mut turned = rules.clone();
        turned.reverse();
        prop_assert_eq!(may(&rules), may(&turned));
        turned.push(format!("deny subscribe on {more}"));
        prop_assert!(!may(&turned) || may(&rules));
        turned.pop();
        turned.push(format!("allow subscribe on {more}"));
        prop_assert!(may(&turned) || !may(&rules));
    }
}
