//! Subscriptions: events, credit, resuming, ends.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use gapless_client::{
    Amount, ClientLimits, Event, From, Messages, PlaceRange, Registry, RegistryExt, Seq,
    Subscription, SubscriptionError, Token, Trouble, typed,
};
use gapless_core::{GapReason, Position};
use gapless_protocol::{
    Ended, ErrorAnswer, ErrorCode, GapNotice, Ids, RecoveryComplete, RecoveryResponse, StartFrom,
    Subscribed, SubscriptionGap, Unsubscribed, Verb,
};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::server::{EPOCH, Peer, SOON, Server, batch, messages, token};

async fn event(subscription: &mut Subscription) -> Event {
    let next = timeout(SOON, subscription.next()).await.expect("an event comes");
    next.expect("the stream goes on").expect("no error")
}

async fn got(subscription: &mut Subscription) -> Messages {
    loop {
        match event(subscription).await {
            Event::Messages(messages) => return messages,
            Event::Gap(gap) => panic!("{gap:?}"),
            _ => {}
        }
    }
}

fn seqs(messages: &Messages) -> Vec<u64> {
    messages.iter().map(|each| each.seq.0).collect()
}

async fn subscribe(server: &Server, from: From) -> (Subscription, Peer) {
    subscribe_with(server, from, ClientLimits::default()).await
}

async fn subscribe_with(server: &Server, from: From, limits: ClientLimits) -> (Subscription, Peer) {
    let (client, mut peer) = server.client_with(server.options().limits(limits)).await;
    let (subscription, _) = tokio::join!(client.subscribe("orders", from), peer.subscribed(1));
    (subscription.unwrap(), peer)
}

#[tokio::test]
async fn d4_the_exchange_of_recovery_is_seen() {
    let server = Server::tcp().await;
    let (mut subscription, mut peer) = subscribe(&server, From::Beginning).await;
    let range = PlaceRange::Seqs(Seq(1), Seq(3));
    peer.send(RecoveryResponse { subscription: 1, range }, Ids::NONE).await;
    let gap = GapNotice {
        topic: Some("orders".parse().unwrap()),
        from: Some(Seq(1)),
        to: Some(Seq(1)),
        positions: None,
        reason: GapReason::Retention,
    };
    peer.send(SubscriptionGap { subscription: 1, gap, token: token(1) }, Ids::NONE).await;
    peer.send(messages(1, 2, 3), Ids::NONE).await;
    peer.send(RecoveryComplete { subscription: 1, token: token(3) }, Ids::NONE).await;
    assert!(matches!(event(&mut subscription).await, Event::Recovering(told) if told == range));
    assert_eq!(subscription.token(), None);
    let Event::Gap(gap) = event(&mut subscription).await else { panic!("a gap") };
    assert_eq!(gap.reason, GapReason::Retention);
    let two = got(&mut subscription).await;
    assert_eq!((seqs(&two), two.from(), two.to()), (vec![2, 3], Seq(2), Seq(3)));
    assert_eq!(subscription.token(), Some(two.token()));
    assert!(matches!(event(&mut subscription).await, Event::Live));
    assert_eq!(subscription.token().unwrap().to_string(), "0000000000000007:3");
}

#[tokio::test]
async fn what_lies_outside_of_a_delivery_is_not_handed_out() {
    let server = Server::tcp().await;
    let (mut subscription, mut peer) = subscribe(&server, From::Seq(Seq(3))).await;
    let mut part = messages(1, 1, 6);
    (part.from, part.to) = (Seq(3), Seq(4));
    peer.send(part, Ids::NONE).await;
    let part = got(&mut subscription).await;
    assert_eq!(seqs(&part), [3, 4]);
    assert_eq!(part.count(), 2);
    assert_eq!(part.iter().next().unwrap().message.body.unwrap(), "3");
}

#[tokio::test]
async fn it_is_a_stream() {
    let server = Server::tcp().await;
    let (mut subscription, mut peer) = subscribe(&server, From::Now).await;
    peer.message(1, 1).await;
    let next = poll_fn(|context| match Pin::new(&mut subscription).poll_next(context) {
        Poll::Ready(next) => Poll::Ready(next),
        Poll::Pending => Poll::Pending,
    });
    let next = timeout(SOON, next).await.unwrap();
    assert!(matches!(next, Some(Ok(Event::Messages(_)))));
}

#[tokio::test]
async fn it_resumes_after_what_has_come_even_if_it_was_not_handed_out() {
    let server = Server::tcp().await;
    let (mut subscription, mut peer) = subscribe(&server, From::Beginning).await;
    peer.message(1, 1).await;
    peer.message(1, 2).await;
    assert_eq!(seqs(&got(&mut subscription).await), [1]);
    // The second waits for its user when the connection is lost.
    drop(peer);
    let mut peer = server.welcome().await;
    let (again, ids) = peer.subscribe().await;
    assert_eq!(again.from, StartFrom::Token(token(2)));
    peer.send(Subscribed { subscription: 9, token: token(2) }, ids).await;
    peer.message(9, 3).await;
    assert_eq!(seqs(&got(&mut subscription).await), [2]);
    assert!(matches!(event(&mut subscription).await, Event::Resumed));
    assert_eq!(seqs(&got(&mut subscription).await), [3]);
    let here = Token { epoch: EPOCH, position: Position(3) };
    assert_eq!(subscription.token(), Some(here));
}

#[tokio::test]
async fn from_now_goes_on_where_now_was() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let serve = async {
        let (subscribe, ids) = peer.subscribe().await;
        assert_eq!(subscribe.from, StartFrom::Now);
        peer.send(Subscribed { subscription: 1, token: token(5) }, ids).await;
    };
    let (_subscription, ()) = tokio::join!(client.subscribe("orders", From::Now), serve);
    drop(peer);
    let (again, _) = server.welcome().await.subscribe().await;
    assert_eq!(again.from, StartFrom::Token(token(5)));
}

#[tokio::test]
async fn d11_a_slow_user_is_sent_no_more_than_a_window() {
    let server = Server::tcp().await;
    let window = Amount { messages: 10, bytes: 1 << 20 };
    let limits = ClientLimits { window, ..ClientLimits::default() };
    let (client, mut peer) = server.client_with(server.options().limits(limits)).await;
    let (subscription, asked) =
        tokio::join!(client.subscribe("orders", From::Beginning), peer.subscribed(1));
    let mut subscription = subscription.unwrap();
    assert_eq!(asked.credit_messages, 10);
    for seq in 1..=10 {
        peer.message(1, seq).await;
    }
    for seq in 1..=4 {
        assert_eq!(seqs(&got(&mut subscription).await), [seq]);
    }
    // Credit comes by half windows.
    peer.expect_nothing(&client).await;
    got(&mut subscription).await;
    let (Verb::Credit(credit), _) = peer.expect("Credit").await else { panic!("a credit") };
    assert_eq!(credit.messages, 5);
    // After a lost connection only what the user has taken is granted again.
    got(&mut subscription).await;
    drop(peer);
    let (again, _) = server.welcome().await.subscribe().await;
    assert_eq!(again.credit_messages, 6);
    assert_eq!(again.from, StartFrom::Token(token(10)));
}

#[tokio::test]
async fn a_server_that_sends_more_than_was_allowed_is_left() {
    let server = Server::tcp().await;
    let window = Amount { messages: 2, bytes: 1 << 20 };
    let limits = ClientLimits { window, ..ClientLimits::default() };
    let (_subscription, mut peer) = subscribe_with(&server, From::Beginning, limits).await;
    for seq in 1..=3 {
        peer.message(1, seq).await;
    }
    let (again, _) = server.welcome().await.subscribe().await;
    assert_eq!(again.from, StartFrom::Token(token(2)));
}

#[tokio::test]
async fn notices_without_end_do_not_fill_memory() {
    let server = Server::tcp().await;
    let (mut subscription, mut peer) = subscribe(&server, From::Beginning).await;
    let serve = async {
        for position in 1..=1_100 {
            let (from, to, positions, topic) = (None, None, None, None);
            let reason = GapReason::Purge;
            let token = token(position);
            let gap = GapNotice { topic, from, to, positions, reason };
            peer.send(SubscriptionGap { subscription: 1, gap, token }, Ids::NONE).await;
        }
        peer.expect("Unsubscribe").await;
        peer
    };
    let mut peer = serve.await;
    let mut gaps = 0;
    let user = async {
        while let Event::Gap(_) = event(&mut subscription).await {
            gaps += 1;
        }
    };
    let serve = async {
        let (again, ids) = peer.subscribe().await;
        let StartFrom::Token(after) = again.from else { panic!("{again:?}") };
        peer.send(Subscribed { subscription: 2, token: after }, ids).await;
        after.position.0
    };
    let ((), after) = tokio::join!(user, serve);
    assert_eq!(gaps, after, "it goes on after the last that was kept");
    assert!((1_024..1_100).contains(&gaps), "{gaps}");
}

#[tokio::test]
async fn dropping_it_unsubscribes() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let (subscription, _) = tokio::join!(client.subscribe("orders", From::Now), peer.subscribed(4));
    drop(subscription);
    let (Verb::Unsubscribe(asked), ids) = peer.expect("Unsubscribe").await else { panic!() };
    assert_eq!(asked.subscription, 4);
    peer.send(Unsubscribed { subscription: 4, token: token(0) }, ids).await;
    // One that is dropped before the server has answered is ended when it has.
    let lazy = client.subscribe_lazy("orders", From::Now).unwrap();
    let (_, ids) = peer.subscribe().await;
    drop(lazy);
    peer.send(Subscribed { subscription: 5, token: token(0) }, ids).await;
    peer.expect("Unsubscribe").await;
    drop(peer);
    let mut peer = server.welcome().await;
    peer.expect_nothing(&client).await;
}

#[tokio::test]
async fn refusals_and_ends_are_told_once() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let serve = async {
        let (_, ids) = peer.subscribe().await;
        peer.send(ErrorAnswer::new(ErrorCode::NeedsTopic, "no"), ids).await;
        peer.subscribed(1).await;
        peer.message(1, 1).await;
        let error = ErrorAnswer::new(ErrorCode::TopicDeleted, "gone");
        peer.send(Ended { subscription: 1, token: token(1), error }, Ids::NONE).await;
    };
    let follow = async {
        let refused = client.subscribe("orders.>", From::Seq(Seq(1))).await.unwrap_err();
        assert!(matches!(refused, SubscriptionError::Refused(Trouble { code: 220, .. })));
        let wrong = client.subscribe("a..b", From::Now).await.unwrap_err();
        assert!(matches!(wrong, SubscriptionError::Pattern(_)));
        let mut subscription = client.subscribe("orders", From::Beginning).await.unwrap();
        got(&mut subscription).await;
        let ended = subscription.next().await.unwrap().unwrap_err();
        assert!(matches!(ended, SubscriptionError::Ended { .. }), "{ended:?}");
        assert!(subscription.next().await.is_none());
    };
    tokio::join!(serve, follow);
}

#[tokio::test]
async fn closing_the_client_ends_its_streams() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let (subscription, _) = tokio::join!(client.subscribe("orders", From::Now), peer.subscribed(1));
    let mut subscription = subscription.unwrap();
    peer.message(1, 1).await;
    got(&mut subscription).await;
    client.close(Duration::from_secs(1)).await;
    assert!(subscription.next().await.is_none());
    let late = client.subscribe("orders", From::Now).await.unwrap_err();
    assert_eq!(late, SubscriptionError::Closed);
}

#[tokio::test]
async fn more_subscriptions_than_allowed_are_refused() {
    let server = Server::tcp().await;
    let limits = ClientLimits { subscriptions: 1, ..ClientLimits::default() };
    let (client, mut peer) = server.client_with(server.options().limits(limits)).await;
    let (first, _) = tokio::join!(client.subscribe("orders", From::Now), peer.subscribed(1));
    let _first = first.unwrap();
    let second = client.subscribe("orders", From::Now).await.unwrap_err();
    assert_eq!(second, SubscriptionError::TooMany { max: 1 });
}

#[tokio::test]
async fn a_damaged_batch_ends_the_stream_before_anything_is_skipped() {
    let server = Server::tcp().await;
    let (mut subscription, mut peer) = subscribe(&server, From::Beginning).await;
    peer.message(1, 1).await;
    let mut damaged = messages(1, 2, 3);
    let whole = &damaged.batches.iter().next().unwrap();
    let mut bytes = whole.bytes().to_vec();
    let last = bytes.len() - 3;
    // The second record says it is longer than there are bytes.
    bytes[last - 1] = 0x7f;
    let entry = gapless_core::Entry { header: *whole.header(), bytes: bytes.into() };
    damaged.batches = [gapless_core::Batch::new(entry).unwrap()].into_iter().collect();
    peer.send(damaged, Ids::NONE).await;
    peer.message(1, 4).await;
    got(&mut subscription).await;
    let next = subscription.next().await.unwrap();
    assert!(matches!(next, Err(SubscriptionError::Damaged)), "{next:?}");
    assert!(subscription.next().await.is_none());
    assert_eq!(subscription.token().unwrap().position, Position(1));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    number: u32,
}

#[tokio::test]
async fn a12_typed_payloads_go_there_and_back() {
    let server = Server::tcp().await;
    let mut registry = Registry::new();
    registry.message_pack::<Order>("shop.order").unwrap();
    let (client, mut peer) = server.client_with(server.options().registry(registry)).await;
    let _ack = client.publish_typed(&"orders".parse().unwrap(), &Order { number: 7 });
    let (publish, _) = peer.publish().await;
    let record = publish.records.iter().next().unwrap();
    let message = record.to_message(&publish.records.bytes);
    assert_eq!(message.header(typed::TYPE_HEADER).unwrap(), "shop.order");
    let (subscription, _) = tokio::join!(client.subscribe("orders", From::Now), peer.subscribed(1));
    let mut delivery = messages(1, 1, 1);
    delivery.batches = [batch(1, &[message])].into_iter().collect();
    peer.send(delivery, Ids::NONE).await;
    let orders: Vec<_> = got(&mut subscription.unwrap()).await.decode::<Order>().collect();
    assert_eq!(orders, [Ok(Order { number: 7 })]);
}
