//! Distributed pub/sub in a program: two nodes, a subscriber of each kind, and every answer that a
//! publish can get.
//!
//! Run it with `cargo run -p gapless-cluster --example pubsub`.

use std::time::Duration;

use gapless_broker::{Broker, BrokerOptions};
use gapless_cluster::pubsub::{
    BatchingProducerConfig, DeliveryStatus, Identity, Inbox, OnStop, PartitionBehavior, PubSubApi,
    PubSubBatch, PubSubSubscriber, PubSubTopic, PublishAck, PublishOptions, PublishRejectReason,
    PublishRequest, Received, SerializationRegistry, SubscriptionError,
};
use gapless_cluster::{Cluster, ClusterOptions, Secret};
use gapless_core::Serializer;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What is published.
#[derive(Clone, Debug, PartialEq)]
struct Order(String);

/// How it travels.
struct Text;

impl Serializer<Order> for Text {
    fn serialize(&self, order: &Order) -> Result<bytes::Bytes, &'static str> {
        Ok(bytes::Bytes::from(order.0.clone()))
    }

    fn deserialize(&self, bytes: &bytes::Bytes) -> Result<Order, &'static str> {
        String::from_utf8(bytes.to_vec()).map(Order).map_err(|_| "it is not text")
    }
}

/// A node of the cluster, and its API.
struct Node {
    api: PubSubApi,
    cluster: Cluster,
    _folder: tempfile::TempDir,
}

async fn node(name: &str, join: Option<String>) -> Outcome<Node> {
    let folder = tempfile::tempdir()?;
    let broker = Broker::open(BrokerOptions::new(folder.path()))?;
    let mut options = ClusterOptions::new(name.parse()?, "127.0.0.1:0");
    options.secret = Some(Secret::new(b"only an example: 32 bytes or more of it")?);
    options.join = join.into_iter().collect();
    // Without its registry a node could not start to publish typed values (A14).
    let mut registry = SerializationRegistry::new();
    registry.register::<Order>(100, "example.order", Text)?;
    let cluster = Cluster::start(options, &broker).await?;
    Ok(Node { api: PubSubApi::new(&broker, registry), cluster, _folder: folder })
}

/// The next value of an inbox.
async fn next(api: &PubSubApi, inbox: &Inbox) -> Outcome<String> {
    match tokio::time::timeout(Duration::from_secs(20), inbox.next()).await? {
        Received::Message(message) => {
            let order: Order = message.decode(api.registry()).ok_or("it is no envelope")??;
            Ok(order.0)
        }
        other => Err(format!("{other:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let a = node("a", None).await?;
    let b = node("b", Some(a.cluster.address().to_string())).await?;
    let orders = PubSubTopic::new("orders")?;
    let order = |text: &str| PublishRequest::new(&orders, Order(text.to_owned()));

    // It has no subscriber yet, and a publish says so.
    let ask = PublishOptions { require_subscribers: Some(true), ..PublishOptions::default() };
    let lonely = a.api.publish(PublishRequest { options: ask, ..order("none") }).await?;
    assert_eq!(lonely, PublishAck::Rejected(PublishRejectReason::NoSubscribers));

    // A subscriber is a handle of its process, or an identity of the cluster.
    let (shop, billing) = (Inbox::new(), Inbox::new());
    let local = PubSubSubscriber::Local(shop.clone());
    let named = PubSubSubscriber::Identity(Identity::parse("billing")?, billing.clone());
    a.api.subscribe(&orders, &local)?;
    b.api.subscribe(&orders, &named)?;
    let twice = b.api.subscribe(&orders, &named);
    assert!(matches!(twice, Err(SubscriptionError::AlreadySubscribed(_))));
    for node in [&a, &b] {
        let two = || node.cluster.status().nodes.len() == 1;
        while !two() {
            tokio::task::yield_now().await;
        }
        node.cluster.await_visible(Duration::from_secs(20)).await?;
    }

    // A publish on one node reaches the subscribers of both.
    let report = PublishOptions { report: true, ..PublishOptions::default() };
    let publisher = a.api.publisher();
    let asked = publisher.publish_reported(PublishRequest { options: report, ..order("one") });
    let reading = async { (next(&a.api, &shop).await, next(&b.api, &billing).await) };
    let (asked, (at_shop, at_billing)) = tokio::join!(asked, reading);
    let (ack, report) = asked?;
    assert!(ack.accepted().is_some());
    println!("shop got {}, billing got {}", at_shop?, at_billing?);
    let report = report.ok_or("a report was asked for")?;
    assert_eq!((report.status, report.delivered), (DeliveryStatus::Delivered, 2));

    // Several together, in their order; and gathered by a producer.
    let mut batch = PubSubBatch::default();
    for text in ["two", "three"] {
        batch.push(a.api.registry().encode(&Order(text.to_owned()))?);
    }
    let options = PublishOptions {
        partition: Some(PartitionBehavior::DelayQueue),
        ..PublishOptions::default()
    };
    assert!(a.api.publisher().publish_batch(&orders, batch, &options).await?.accepted().is_some());
    let producer = a.api.batching_producer(&orders, BatchingProducerConfig::default())?;
    let receipts = ["four", "five"].map(|text| producer.produce(&Order(text.to_owned())));
    let stopped = producer.stop(OnStop::Flush { wait: Duration::from_secs(10) }).await;
    for receipt in receipts {
        assert!(receipt.await?.accepted().is_some());
    }
    println!("the producer flushed {} and discarded {}", stopped.flushed, stopped.discarded);
    let mut got = Vec::new();
    for _ in 0..4 {
        got.push(next(&b.api, &billing).await?);
    }
    println!("billing got {}", got.join(", "));

    // What is not registered cannot travel.
    let unknown = a.api.publish(PublishRequest::new(&orders, 5_u64)).await?;
    assert_eq!(unknown, PublishAck::Rejected(PublishRejectReason::NotSerializable));

    // Nothing comes after unsubscribing, and unsubscribing again is an error.
    b.api.unsubscribe(&orders, &named)?;
    a.api.unsubscribe(&orders, &local)?;
    let again = a.api.unsubscribe(&orders, &local);
    assert!(matches!(again, Err(SubscriptionError::NotSubscribed(_))));
    b.cluster.leave().await;
    a.cluster.leave().await;
    println!("all left");
    Ok(())
}
