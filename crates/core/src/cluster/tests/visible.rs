//! When all nodes know what is followed on one, and who is told.

use super::*;

#[test]
fn interest_becomes_visible_when_every_node_has_seen_it() {
    let mut net = Net::small(&["a", "b", "c"]);
    let first = net.subscribe("a", "x");
    assert_eq!(net.visible.get(&node("a")), Some(&first));
    net.cut("a", "c");
    let live: Vec<(NodeName, Incarnation)> =
        ["a", "b", "c"].iter().map(|name| (node(name), Incarnation(1))).collect();
    net.act("a", |machine, now, effects| machine.topology(now, &live, effects));
    let second = net.subscribe("a", "y");
    assert_eq!(net.visible.get(&node("a")), Some(&first));
    assert_eq!(net.nodes[&node("a")].unseen(second), [node("c")]);
    net.link("a", "c");
    assert_eq!(net.visible.get(&node("a")), Some(&second));
}

#[test]
fn a_node_that_is_away_is_waited_for_until_it_is_given_up() {
    let mut net = Net::small(&["a", "b"]);
    net.cut("a", "b");
    net.cut("b", "a");
    let version = net.subscribe("a", "x");
    assert_eq!(net.nodes[&node("a")].unseen(version), [node("b")]);
    assert!(net.visible.get(&node("a")).is_none_or(|visible| *visible < version));
    net.pass(net.config.suspended_ttl + Duration::from_secs(1));
    assert_eq!(net.nodes[&node("a")].unseen(version), []);
    assert_eq!(net.visible.get(&node("a")), Some(&version), "those who wait are woken");
}

#[test]
fn those_who_wait_are_woken_again_when_a_node_that_came_knows_it() {
    let mut net = Net::small(&["a", "b"]);
    let version = net.subscribe("a", "x");
    // Another life of b knows nothing yet, and has no link.
    let live = [(node("a"), Incarnation(1)), (node("b"), Incarnation(2))];
    net.visible.clear();
    net.act("a", |machine, now, effects| machine.topology(now, &live, effects));
    assert_eq!(net.nodes[&node("a")].unseen(version), [node("b")]);
    // One who looks now waits for the version that was visible before.
    assert!(net.act("a", |machine, _, _| machine.watch_visible()) < version);
    net.restart("b");
    assert_eq!(net.visible.get(&node("a")), Some(&version));
}
