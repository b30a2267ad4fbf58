//! Publishing: acks, order, limits, sending again.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use gapless_client::{
    Atomic, ClientLimits, Fate, Ids, Message, PublishError, PublishOptions, RejectReason, Seq,
    State, TopicName,
};
use gapless_protocol::{ErrorAnswer, ErrorCode, Limits, PartAck, PublishAck, Rejection, Verb};

use crate::server::{BRIEF, LIMITS, Server, accepted, duplicate, small};

fn orders() -> TopicName {
    "orders".parse().unwrap()
}

fn body(publish: &gapless_protocol::Publish) -> String {
    let record = publish.records.iter().next().unwrap();
    String::from_utf8(record.body.unwrap().to_vec()).unwrap()
}

fn id(publish: &gapless_protocol::Publish) -> Option<Bytes> {
    publish.records.iter().next().unwrap().id.map(Bytes::copy_from_slice)
}

#[tokio::test]
async fn publishes_go_out_in_the_order_of_the_calls_before_any_ack() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let acks: Vec<_> =
        (0..50).map(|n| client.publish(&orders(), Message::new(n.to_string()))).collect();
    let mut asked = Vec::new();
    for n in 0..50 {
        let (publish, ids) = peer.publish().await;
        assert_eq!(body(&publish), n.to_string());
        asked.push(ids);
    }
    // Acks may overtake one another.
    for (n, ids) in (1..=50).rev().zip(asked.into_iter().rev()) {
        peer.send(accepted(n, 1), ids).await;
    }
    for (n, ack) in (1..).zip(acks) {
        assert_eq!(ack.await.unwrap().seq(), Some(Seq(n)));
    }
}

#[tokio::test]
async fn what_was_not_answered_is_sent_again_under_the_same_id() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let own = Message::new("own").with_id("mine");
    let acks = [client.publish(&orders(), Message::new("a")), client.publish(&orders(), own)];
    let first = [peer.publish().await.0, peer.publish().await.0];
    drop(peer);
    let mut peer = server.welcome().await;
    for (n, before) in (1..).zip(&first) {
        let (again, ids) = peer.publish().await;
        assert_eq!(&again, before);
        peer.send(duplicate(n), ids).await;
    }
    assert_eq!(id(&first[1]), Some(Bytes::from_static(b"mine")));
    assert_eq!(id(&first[0]).unwrap().len(), 16);
    for ack in acks {
        assert!(ack.await.unwrap().is_duplicate());
    }
}

#[tokio::test]
async fn ids_differ_between_messages_and_clients() {
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        // One each: a client that goes still comes back for its acks for a while.
        let server = Server::tcp().await;
        let (client, mut peer) = server.client().await;
        for _ in 0..10 {
            let _ack = client.publish(&orders(), Message::new("x"));
            seen.insert(id(&peer.publish().await.0));
        }
    }
    assert_eq!(seen.len(), 30);
}

#[tokio::test]
async fn without_ids_what_is_in_doubt_is_not_sent_again() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client_with(server.options().ids(Ids::Off)).await;
    let doubtful = client.publish(&orders(), Message::new("doubtful"));
    let own = client.publish(&orders(), Message::new("own").with_id("mine"));
    assert_eq!(id(&peer.publish().await.0), None);
    peer.publish().await;
    drop(peer);
    assert_eq!(doubtful.await, Err(PublishError::Disconnected { fate: Fate::Unknown }));
    let mut peer = server.welcome().await;
    let (again, ids) = peer.publish().await;
    assert_eq!(body(&again), "own");
    peer.send(accepted(1, 1), ids).await;
    own.await.unwrap();
}

#[tokio::test]
async fn what_is_published_offline_is_sent_when_online() {
    let server = Server::tcp().await;
    let client = gapless_client::Client::connect_lazy(server.options()).unwrap();
    let acks = ["a", "b"].map(|body| client.publish(&orders(), Message::new(body)));
    let mut peer = server.welcome().await;
    for (n, expected) in [(1, "a"), (2, "b")] {
        let (publish, ids) = peer.publish().await;
        assert_eq!(body(&publish), expected);
        peer.send(accepted(n, 1), ids).await;
    }
    for ack in acks {
        ack.await.unwrap();
    }
}

#[tokio::test]
async fn a3_a4_refusals_and_trouble_never_mix() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let rejected = client.publish(&orders(), Message::new("a"));
    let (_, ids) = peer.publish().await;
    let reason = RejectReason::ExpectedSeq { actual: Seq(9) };
    let parts = vec![PartAck::Rejected(Rejection::Reason(reason))];
    peer.send(PublishAck { parts }, ids).await;
    let rejected = rejected.await.unwrap_err();
    assert_eq!(rejected, PublishError::Rejected(reason));
    assert_eq!((rejected.reason(), rejected.fate()), (Some(reason), Fate::DidNotHappen));

    let poisoned = client.publish(&orders(), Message::new("b"));
    let (_, ids) = peer.publish().await;
    peer.send(ErrorAnswer::new(ErrorCode::Poisoned, "a flush failed"), ids).await;
    let poisoned = poisoned.await.unwrap_err();
    assert!(matches!(poisoned, PublishError::System(_)));
    assert_eq!((poisoned.reason(), poisoned.fate()), (None, Fate::Unknown));
}

#[tokio::test]
async fn a_server_that_shuts_down_is_left_and_the_publish_goes_to_the_next() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let publishing = client.publish(&orders(), Message::new("a"));
    let (_, ids) = peer.publish().await;
    peer.send(ErrorAnswer::new(ErrorCode::ShuttingDown, "bye"), ids).await;
    let mut peer = server.welcome().await;
    let (_, ids) = peer.publish().await;
    peer.send(accepted(1, 1), ids).await;
    publishing.await.unwrap();
}

#[tokio::test]
async fn a_full_client_lets_publishes_wait_in_line_and_then_refuses() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client_with(server.options().limits(small())).await;
    let mut acks: Vec<_> =
        (1..=5).map(|n| client.publish(&orders(), Message::new(n.to_string()))).collect();
    let refused = acks.pop().unwrap().await;
    assert_eq!(refused, Err(PublishError::Rejected(RejectReason::QueueFull)));
    let (_, first) = peer.publish().await;
    let (_, second) = peer.publish().await;
    let mut ready = Box::pin(client.ready());
    peer.expect_nothing(&client).await;
    let waits = tokio::time::timeout(Duration::ZERO, &mut ready).await;
    assert!(waits.is_err(), "no more than two are on their way");
    peer.send(accepted(1, 1), first).await;
    let (third, ids) = peer.publish().await;
    assert_eq!(body(&third), "3");
    peer.send(accepted(2, 1), second).await;
    peer.send(accepted(3, 1), ids).await;
    let (fourth, ids) = peer.publish().await;
    assert_eq!(body(&fourth), "4");
    peer.send(accepted(4, 1), ids).await;
    for (n, ack) in (1..).zip(acks) {
        assert_eq!(ack.await.unwrap().seq(), Some(Seq(n)));
    }
    ready.await;
}

#[tokio::test]
async fn the_servers_limit_of_bytes_in_flight_holds_also_when_sending_again() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let _acks: Vec<_> =
        (0..4).map(|_| client.publish(&orders(), Message::new(vec![0; 300]))).collect();
    for _ in 0..4 {
        peer.publish().await;
    }
    drop(peer);
    let mut peer = server.accept().await;
    peer.welcome(Limits { in_flight_bytes: 1_000, ..LIMITS }).await;
    let (_, first) = peer.publish().await;
    peer.publish().await;
    peer.expect_nothing(&client).await;
    peer.send(accepted(1, 1), first).await;
    peer.publish().await;
}

#[tokio::test]
async fn messages_too_large_for_anybody_or_for_this_server_are_refused() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let too_large = |error: PublishError| {
        matches!(error, PublishError::Rejected(RejectReason::TooLarge { .. }))
    };
    let for_anybody = client.publish(&orders(), Message::new(vec![0; 5 << 20])).await;
    assert!(too_large(for_anybody.unwrap_err()));
    let for_this = client.publish(&orders(), Message::new(vec![0; 2 << 20])).await;
    assert!(too_large(for_this.unwrap_err()));
    let large = client.publish(&orders(), Message::new(vec![7; 900 << 10]));
    let (publish, ids) = peer.publish().await;
    assert_eq!(publish.records.iter().next().unwrap().body.unwrap().len(), 900 << 10);
    peer.send(accepted(1, 1), ids).await;
    large.await.unwrap();
}

#[tokio::test]
async fn messages_that_are_none_are_refused_and_not_sent() {
    let server = Server::tcp().await;
    let (client, _peer) = server.client().await;
    let empty = client.publish(&orders(), Message::default()).await.unwrap_err();
    assert_eq!(empty.reason(), Some(RejectReason::InvalidPayload));
    let none = client.publish_batch(&orders(), Vec::new(), &PublishOptions::default()).await;
    assert_eq!(none.unwrap_err().reason(), Some(RejectReason::InvalidPayload));
    let untyped = client.publish_typed(&orders(), &7_u32).await.unwrap_err();
    assert_eq!(untyped.reason(), Some(RejectReason::NotSerializable));
}

/// Longer than a topic remembers ids, sending again could double.
#[tokio::test]
async fn publishes_are_given_up_in_time() {
    let server = Server::tcp().await;
    let limits = ClientLimits { publish_wait: BRIEF, ..ClientLimits::default() };
    let (client, mut peer) = server.client_with(server.options().limits(limits)).await;
    let sent = client.publish(&orders(), Message::new("sent"));
    peer.publish().await;
    assert_eq!(sent.await, Err(PublishError::TimedOut { fate: Fate::Unknown }));
    drop((peer, server));
    let mut state = client.state();
    state.wait_for(|state| *state == State::Offline).await.unwrap();
    let unsent = client.publish(&orders(), Message::new("unsent")).await;
    assert_eq!(unsent.unwrap_err().fate(), Fate::DidNotHappen);
}

#[tokio::test]
async fn a_batch_tells_the_seq_of_each_message() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let batch = ["a", "b", "c"].map(Message::new).to_vec();
    let publishing = client.publish_batch(&orders(), batch, &PublishOptions::default());
    let (publish, ids) = peer.publish().await;
    assert_eq!(publish.records.count, 3);
    peer.send(accepted(5, 3), ids).await;
    let ack = publishing.await.unwrap();
    assert_eq!(
        [0, 1, 2, 3].map(|n| ack.seq_of(n)),
        [Some(Seq(5)), Some(Seq(6)), Some(Seq(7)), None]
    );
}

#[tokio::test]
async fn a_commit_is_sent_again_unless_it_writes_cells() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let plain = client.commit(Atomic::new().message(&orders(), Message::new("a")));
    let cells = Atomic::new().message(&orders(), Message::new("b")).cell("cursor", "7");
    let cells = client.commit(cells);
    for _ in 0..2 {
        peer.expect("Commit").await;
    }
    drop(peer);
    assert_eq!(cells.await, Err(PublishError::Disconnected { fate: Fate::Unknown }));
    let mut peer = server.welcome().await;
    let (Verb::Commit(commit), ids) = peer.expect("Commit").await else { panic!("a commit") };
    assert!(commit.cells.is_empty());
    peer.send(accepted(3, 1), ids).await;
    assert_eq!(plain.await.unwrap()[0].seq(), Some(Seq(3)));
}
