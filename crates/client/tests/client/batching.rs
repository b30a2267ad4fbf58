//! The batching producer (A6) against a server.

use std::time::{Duration, Instant};

use gapless_client::{
    BatcherLimits, Message, OnStop, PublishError, PublishOptions, RejectReason, Seq, StopReport,
    TopicName,
};

use crate::server::{BRIEF, Server, accepted};

const LIMITS: BatcherLimits = BatcherLimits {
    batch_count_max: 3,
    batch_bytes_max: 1 << 20,
    wait: BRIEF,
    queue_count_max: 5,
    queue_bytes_max: 1 << 20,
};

fn orders() -> TopicName {
    "orders".parse().unwrap()
}

#[tokio::test]
async fn a6_a_batch_goes_when_it_is_full_or_has_waited() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let producer = client.batching(&orders(), LIMITS, &PublishOptions::default()).unwrap();
    let begin = Instant::now();
    let sends = ["a", "b", "c", "d"].map(|body| producer.send(Message::new(body)));
    let (full, ids) = peer.publish().await;
    assert_eq!(full.records.count, 3);
    peer.send(accepted(1, 3), ids).await;
    let (waited, ids) = peer.publish().await;
    assert_eq!(waited.records.count, 1);
    assert!(begin.elapsed() >= BRIEF, "the fourth waits for more");
    peer.send(accepted(4, 1), ids).await;
    for (n, send) in (1..).zip(sends) {
        assert_eq!(send.await.unwrap().seq, Some(Seq(n)));
    }
}

#[tokio::test]
async fn a6_a_full_queue_rejects_until_acks_come() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let limits = BatcherLimits { wait: Duration::from_secs(60), ..LIMITS };
    let producer = client.batching(&orders(), limits, &PublishOptions::default()).unwrap();
    let mut sends: Vec<_> = (0..6).map(|_| producer.send(Message::new("x"))).collect();
    let rejected = sends.pop().unwrap().await;
    assert_eq!(rejected, Err(PublishError::Rejected(RejectReason::QueueFull)));
    assert_eq!(producer.queued(), 5);
    let (_, ids) = peer.publish().await;
    peer.send(accepted(1, 3), ids).await;
    sends.remove(0).await.unwrap();
    let invalid = producer.send(Message::default()).await.unwrap_err();
    assert_eq!(invalid.reason(), Some(RejectReason::InvalidPayload));
}

#[tokio::test]
async fn a6_a_stop_flushes_or_discards_and_reports_which() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let limits = BatcherLimits { wait: Duration::from_secs(60), ..LIMITS };
    let producer = client.batching(&orders(), limits, &PublishOptions::default()).unwrap();
    let sends = ["a", "b"].map(|body| producer.send(Message::new(body)));
    let serve = async {
        let (_, ids) = peer.publish().await;
        peer.send(accepted(1, 2), ids).await;
    };
    let (report, ()) = tokio::join!(producer.stop(OnStop::Flush), serve);
    assert_eq!(report, StopReport { flushed: 2, discarded: 0 });
    for send in sends {
        send.await.unwrap();
    }

    let producer = client.batching(&orders(), limits, &PublishOptions::default()).unwrap();
    let send = producer.send(Message::new("never"));
    let report = producer.stop(OnStop::Discard).await;
    assert_eq!(report, StopReport { flushed: 0, discarded: 1 });
    assert_eq!(send.await, Err(PublishError::Closed));
}

#[tokio::test]
async fn a6_a_lost_connection_sends_the_batch_again() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let producer = client.batching(&orders(), LIMITS, &PublishOptions::default()).unwrap();
    let sends = ["a", "b", "c"].map(|body| producer.send(Message::new(body)));
    let (before, _) = peer.publish().await;
    drop(peer);
    let mut peer = server.welcome().await;
    let (again, ids) = peer.publish().await;
    assert_eq!(again, before);
    peer.send(accepted(1, 3), ids).await;
    for send in sends {
        send.await.unwrap();
    }
}
