//! The API of distributed pub/sub in a process: its example runs, and its producer keeps its rules.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{Broker, BrokerOptions};
use gapless_cluster::pubsub::{
    BatchingProducerConfig, Identity, Inbox, OnStop, PubSubApi, PubSubError, PubSubSubscriber,
    PubSubTopic, PublishAck, PublishRejectReason, PublishRequest, Received, SerializationRegistry,
    SubscriptionError,
};
use gapless_core::Serializer;

const HOUR: Duration = Duration::from_secs(3600);

struct Text;

impl Serializer<String> for Text {
    fn serialize(&self, text: &String) -> Result<Bytes, &'static str> {
        Ok(Bytes::from(text.clone()))
    }

    fn deserialize(&self, bytes: &Bytes) -> Result<String, &'static str> {
        String::from_utf8(bytes.to_vec()).map_err(|_| "it is not text")
    }
}

fn api() -> (PubSubApi, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::open(BrokerOptions::new(folder.path())).expect("it opens");
    let mut registry = SerializationRegistry::new();
    registry.register::<String>(100, "text", Text).expect("a new type");
    (PubSubApi::new(&broker, registry), folder)
}

async fn next(api: &PubSubApi, inbox: &Inbox) -> String {
    match inbox.next().await {
        Received::Message(message) => {
            let decoded = message.decode(api.registry()).expect("an envelope");
            decoded.expect("it is text")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a1_a3_a6_a8_a12_the_example_runs_on_two_nodes() {
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", "gapless-cluster", "--example", "pubsub"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("shop got one, billing got one"), "{said}");
    assert!(said.contains("billing got two, three, four, five"), "{said}");
}

#[tokio::test]
async fn a2_subscribing_twice_and_unsubscribing_what_is_not_subscribed_change_nothing() {
    let (api, _folder) = api();
    let (topic, inbox) = (PubSubTopic::new("t").unwrap(), Inbox::new());
    let subscriber = PubSubSubscriber::Local(inbox.clone());
    let ended = api.unsubscribe(&topic, &subscriber);
    assert!(matches!(ended, Err(SubscriptionError::NotSubscribed(_))));
    api.subscribe(&topic, &subscriber).unwrap();
    let twice = api.subscribe(&topic, &subscriber);
    assert!(matches!(twice, Err(SubscriptionError::AlreadySubscribed(_))));
    let publish = |text: &str| api.publish(PublishRequest::new(&topic, text.to_owned()));
    assert!(publish("once").await.unwrap().accepted().is_some());
    assert_eq!(next(&api, &inbox).await, "once");
    assert!(publish("waits").await.unwrap().accepted().is_some());
    api.unsubscribe(&topic, &subscriber).unwrap();
    let alone = publish("nobody").await.unwrap();
    assert_eq!(alone, PublishAck::Rejected(PublishRejectReason::UnknownTopic));
    // Subscribed again, it gets nothing of what waited.
    api.subscribe(&topic, &subscriber).unwrap();
    assert!(publish("again").await.unwrap().accepted().is_some());
    assert_eq!(next(&api, &inbox).await, "again");
    let identity = PubSubSubscriber::Identity(Identity::parse("i").unwrap(), inbox);
    assert!(matches!(api.subscribe(&topic, &identity), Err(SubscriptionError::Refused(_))));
}

#[tokio::test]
async fn a6_a_producer_sends_by_size_or_time_and_refuses_at_its_limit() {
    let (api, _folder) = api();
    let (topic, inbox) = (PubSubTopic::new("t").unwrap(), Inbox::new());
    api.subscribe(&topic, &PubSubSubscriber::Local(inbox.clone())).unwrap();
    let config = BatchingProducerConfig {
        batch_count_max: 2,
        queue_count_max: 2,
        wait: HOUR,
        ..BatchingProducerConfig::default()
    };
    let producer = api.batching_producer::<String>(&topic, config).unwrap();
    let produce = |text: &str| producer.produce(&text.to_owned());
    // The batch is full with the second, and the task has not run yet when the third comes.
    let receipts = [produce("1"), produce("2")];
    let refused = PublishAck::Rejected(PublishRejectReason::QueueFull);
    assert_eq!(produce("3").await.unwrap(), refused);
    let mut seqs = Vec::new();
    for receipt in receipts {
        seqs.push(receipt.await.unwrap().accepted().unwrap().last.0);
    }
    assert_eq!(seqs[1], seqs[0] + 1);
    assert_eq!([next(&api, &inbox).await, next(&api, &inbox).await], ["1", "2"]);
    let gathered = produce("discarded");
    let report = producer.stop(OnStop::Discard).await;
    assert_eq!((report.flushed, report.discarded), (0, 1));
    assert_eq!(gathered.await, Err(PubSubError::Stopped));

    let soon = BatchingProducerConfig { wait: Duration::from_millis(1), ..config };
    let producer = api.batching_producer::<String>(&topic, soon).unwrap();
    assert!(producer.produce(&"by time".to_owned()).await.unwrap().accepted().is_some());
    assert_eq!(next(&api, &inbox).await, "by time");
    let last = producer.produce(&"at the end".to_owned());
    let report = producer.stop(OnStop::Flush { wait: HOUR }).await;
    assert_eq!((report.flushed, report.discarded, report.unanswered), (1, 0, 0));
    assert!(last.await.unwrap().accepted().is_some());
}

#[tokio::test]
async fn a6_a_batch_that_is_refused_refuses_all_its_receipts() {
    let (api, _folder) = api();
    let topic = PubSubTopic::new("nobody.follows").unwrap();
    let config = BatchingProducerConfig { batch_count_max: 2, ..BatchingProducerConfig::default() };
    let producer = api.batching_producer::<String>(&topic, config).unwrap();
    let receipts = ["1", "2"].map(|text| producer.produce(&text.to_owned()));
    for receipt in receipts {
        let refused = PublishAck::Rejected(PublishRejectReason::UnknownTopic);
        assert_eq!(receipt.await.unwrap(), refused);
    }
}
