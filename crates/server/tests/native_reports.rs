//! Delivery reports, identities and requests on the native protocol of a server without a cluster.

mod common;

use common::*;
use gapless_core::cluster::{DeliveryStatus, Identity, SubscriberName};
use gapless_core::{DeliveryPolicy, Message, PublishOptions, RejectReason};
use gapless_protocol::*;

fn reported(topic: &str) -> Publish {
    let options = PublishOptions { report: true, ..PublishOptions::default() };
    Publish { options, ..publish(topic, &[Message::new("x")]) }
}

#[test]
fn a8_the_report_follows_the_ack_and_names_who_did_not_take_it() {
    let server = Server::open();
    let (mut publisher, mut quick, mut stalled) = (server.peer(), server.peer(), server.peer());
    quick.follow(subscribe("s", StartFrom::Now));
    let id = publisher.send(reported("s"));
    assert_eq!(accepted(&publisher.answer(id)).count, 1);
    let Verb::DeliveryReport(report) = publisher.answer(id) else { panic!("a report") };
    assert_eq!((report.status, report.delivered), (DeliveryStatus::Delivered, 1));
    // One without credit takes nothing.
    let none = Subscribe { credit_messages: 0, ..subscribe("s", StartFrom::Now) };
    stalled.follow(none);
    let number = server.broker.subscribers().last().expect("it is listed").id;
    let id = publisher.send(reported("s"));
    assert_eq!(accepted(&publisher.answer(id)).count, 1);
    // A publish behind it is not held up.
    assert_eq!(accepted(&publisher.ask(publish("s", &[Message::new("y")]))).count, 1);
    drop(stalled);
    let Verb::DeliveryReport(report) = publisher.answer(id) else { panic!("a report") };
    assert_eq!((report.status, report.delivered), (DeliveryStatus::SubscriberUnreachable, 1));
    let who = SubscriberName::Handle { node: None, number };
    assert_eq!(report.failed[0].subscriber, who);
}

#[test]
fn a8_a_publish_that_is_refused_has_no_report() {
    let server = Server::open();
    server.create("durable");
    let mut peer = server.peer();
    assert_eq!(rejected(&peer.ask(reported("durable"))), RejectReason::NotSupported);
    assert_eq!(rejected(&peer.ask(reported("nobody"))), RejectReason::UnknownTopic);
    assert!(peer.all_there_is().is_empty());
    server.still_works();
}

#[test]
fn what_needs_a_cluster_is_refused_without_one() {
    let server = Server::open();
    let mut peer = server.peer();
    let identity = Some(Identity::parse("billing").expect("an identity"));
    let named = Subscribe { identity, ..subscribe("s", StartFrom::Now) };
    assert_eq!(code(&peer.ask(named.clone())), ErrorCode::NotSupported);
    let from = StartFrom::Beginning;
    assert_eq!(code(&peer.ask(Subscribe { from, ..named })), ErrorCode::NeedsTopic);
    let delivery = Some(DeliveryPolicy::AtLeastOnce);
    let options = PublishOptions { delivery, ..PublishOptions::default() };
    let refused = peer.ask(Publish { options, ..publish("s", &[Message::new("x")]) });
    assert_eq!(rejected(&refused), RejectReason::NotSupported);
    assert!(server.broker.subscribers().is_empty());
    server.still_works();
}
