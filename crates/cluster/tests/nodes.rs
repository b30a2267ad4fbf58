//! Nodes of one process that talk over real sockets: links, refusals, membership, delivery, leaving.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use gapless_broker::{Broker, BrokerOptions, Delivery, From, Subscription};
use gapless_cluster::{
    Cluster, ClusterOptions, ClusterTlsFiles, Members, MemoryMembers, Secret, StartError,
};
use gapless_core::cluster::{Incarnation, NodeName};
use gapless_core::subscriber::Status;
use gapless_core::{
    Message, PartitionBehavior, Pattern, PublishAck, PublishOptions, RejectReason, TopicName,
};
use gapless_protocol::link::{
    LINK_VERSION, LinkDecoder, LinkFrame, LinkHello, LinkIdentity, NONCE_BYTES, PROOF_BYTES,
    RefusalReason,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

/// Only a failing test waits for it.
const DEADLINE: Duration = Duration::from_secs(60);
const SECRET: &[u8] = b"a secret of the tests";

struct Place {
    broker: Broker,
    cluster: Cluster,
    _folder: TempDir,
}

fn name(text: &str) -> NodeName {
    NodeName::parse(text).expect("a name")
}

fn options(node: &str, join: &[&Place]) -> ClusterOptions {
    let mut options = ClusterOptions::new(name(node), "127.0.0.1:0");
    options.join = join.iter().map(|place| place.cluster.address().to_string()).collect();
    options.secret = Some(Secret::new(SECRET).expect("long enough"));
    options
}

fn broker() -> (Broker, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    (Broker::open(BrokerOptions::new(folder.path())).expect("a broker"), folder)
}

async fn start(options: ClusterOptions) -> Place {
    let (broker, folder) = broker();
    let cluster = Cluster::start(options, &broker).await.expect("a node");
    Place { broker, cluster, _folder: folder }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let mut look = interval(Duration::from_millis(5));
    within(what, async {
        while !is() {
            look.tick().await;
        }
    })
    .await;
}

impl Place {
    fn follow(&self, pattern: &str) -> Subscription {
        let pattern = Pattern::parse(pattern).expect("a pattern");
        self.broker.subscribe(&pattern, From::Now).expect("a subscription")
    }

    async fn publish(&self, subject: &str, body: &str, options: &PublishOptions) -> PublishAck {
        let subject = TopicName::parse(subject).expect("a name");
        self.broker
            .publish(&subject, &Message::new(body.to_owned()), options)
            .await
            .expect("no trouble")
    }

    /// Whether this node has a link to each of these.
    fn has_links(&self, nodes: &[&str]) -> bool {
        let status = self.cluster.status();
        let linked = |node: &&str| {
            status.nodes.iter().any(|each| each.node.as_str() == *node && each.has_link)
        };
        nodes.iter().all(linked)
    }

    /// Whether it delivers to the anonymous subscribers of this node.
    fn knows(&self, node: &str, patterns: usize) -> bool {
        let status = self.cluster.status();
        let mut nodes = status.nodes.iter().filter(|each| each.node.as_str() == node);
        nodes.any(|each| each.patterns >= patterns && each.state == Status::Active)
    }
}

/// The bodies of the next messages.
async fn bodies(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    within("messages", async {
        while seen.len() < count {
            if let Delivery::Messages(messages) = subscription.next().await.expect("it goes on") {
                seen.extend(messages.iter().map(|each| {
                    String::from_utf8(each.message.body.unwrap_or_default().to_vec()).expect("text")
                }));
            }
        }
    })
    .await;
    seen
}

/// The next event of this kind, as JSON.
async fn event(subscription: &mut Subscription) -> Value {
    serde_json::from_str(&bodies(subscription, 1).await[0]).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_a_publish_comes_to_subscribers_of_all_nodes_in_order() {
    let a = start(options("a", &[])).await;
    let b = start(options("b", &[&a])).await;
    // It learns of b by gossip, or because b dials it.
    let c = start(options("c", &[&a])).await;
    let (mut at_b, mut at_c) = (b.follow("orders.*"), c.follow("orders.>"));
    until("all are linked", || {
        a.has_links(&["b", "c"]) && b.has_links(&["a", "c"]) && c.has_links(&["a", "b"])
    })
    .await;
    for place in [&b, &c] {
        within("visible", place.cluster.await_visible(DEADLINE)).await.expect("seen by all");
    }
    until("a knows", || a.knows("b", 1) && a.knows("c", 1)).await;
    let expected: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    for body in &expected {
        let ack = a.publish("orders.eu", body, &PublishOptions::default()).await;
        assert!(ack.accepted().is_some(), "{ack:?}");
    }
    assert_eq!(bodies(&mut at_b, 500).await, expected);
    assert_eq!(bodies(&mut at_c, 500).await, expected);
    until("nothing waits", || a.cluster.status().queued_bytes == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_nothing_is_sent_to_a_node_without_a_subscriber() {
    let a = start(options("a", &[])).await;
    let b = start(options("b", &[&a])).await;
    let followed = b.follow("orders.*");
    until("a knows", || a.knows("b", 1)).await;
    drop(followed);
    until("a knows that it ended", || {
        a.cluster.status().nodes.iter().all(|node| node.patterns == 0)
    })
    .await;
    let must = PublishOptions { require_subscribers: Some(true), ..PublishOptions::default() };
    let ack = a.publish("orders.eu", "x", &must).await;
    assert!(ack.rejected().is_some(), "{ack:?}");
    assert_eq!(a.cluster.status().counts.items_sent, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_is_refused_and_said_on_both_sides() {
    let a = start(options("a", &[])).await;
    let mut at_a = a.follow("$events.cluster.link-refused");
    let mut wrong = options("b", &[&a]);
    wrong.secret = Some(Secret::new(b"another secret of the tests").expect("long enough"));
    let b = start(wrong).await;
    let mut at_b = b.follow("$events.cluster.link-refused");
    for (said, dialled) in [(event(&mut at_a).await, false), (event(&mut at_b).await, true)] {
        assert_eq!(said["reason"], "wrong-secret", "{said}");
        assert_eq!(said["dialled"], dialled, "{said}");
        assert!(said["why"].as_str().is_some_and(|why| why.contains("secret")), "{said}");
    }
    // Without a secret neither.
    let mut none = options("c", &[&a]);
    none.secret = None;
    let c = start(none).await;
    let mut at_c = c.follow("$events.cluster.link-refused");
    assert_eq!(event(&mut at_c).await["reason"], "wrong-secret");
    assert!(a.cluster.status().nodes.iter().all(|node| !node.has_link));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_refused() {
    let a = start(options("a", &[])).await;
    let mut at_a = a.follow("$events.cluster.link-refused");
    let mut foreign = options("b", &[&a]);
    foreign.cluster = "other".into();
    let b = start(foreign).await;
    let mut at_b = b.follow("$events.cluster.link-refused");
    assert_eq!(event(&mut at_a).await["reason"], "foreign-cluster");
    let said = event(&mut at_b).await;
    assert_eq!(said["reason"], "foreign-cluster");
    assert!(said["why"].as_str().is_some_and(|why| why.contains("\"other\"")), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_process_has_is_refused_until_that_one_is_gone() {
    let a = start(options("a", &[])).await;
    let first = start(options("b", &[&a])).await;
    until("linked", || first.has_links(&["a"]) && a.has_links(&["b"])).await;
    let mut later = options("b", &[&a]);
    later.incarnation = Some(Incarnation(u64::MAX / 2));
    let second = start(later).await;
    let mut at_second = second.follow("$events.cluster.link-refused");
    assert_eq!(event(&mut at_second).await["reason"], "name-taken");
    drop(first);
    until("linked", || second.has_links(&["a"]) && a.has_links(&["b"])).await;
    let known = a.cluster.status().nodes.into_iter().find(|node| node.node == name("b"));
    assert_eq!(known.expect("it is known").incarnation, Incarnation(u64::MAX / 2));
}

/// What a stranger is answered: the frames until the end of the connection.
async fn answers(address: SocketAddr, bytes: &[u8]) -> Vec<LinkFrame> {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(bytes).await.expect("sent");
    let (mut read, mut frames) = (BytesMut::new(), Vec::new());
    within("the end", async {
        // A reset is an end too.
        while stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
    })
    .await;
    while let Some(frame) = LinkDecoder::HANDSHAKE.decode(&mut read).expect("frames") {
        frames.push(frame);
    }
    frames
}

fn hello(version: u16) -> LinkFrame {
    LinkFrame::Hello(LinkHello {
        version_min: version,
        version_max: version,
        who: LinkIdentity {
            cluster: "gapless".into(),
            node: name("stranger"),
            incarnation: Incarnation(1),
            address: "127.0.0.1:1".into(),
            nonce: [3; NONCE_BYTES],
        },
    })
}

fn encoded(frames: &[LinkFrame]) -> BytesMut {
    let mut bytes = BytesMut::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes).expect("valid"));
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn f3_strangers_learn_nothing_and_change_nothing() {
    let a = start(options("a", &[])).await;
    let address = a.cluster.address();
    let refused = |frames: &[LinkFrame]| match frames.last() {
        Some(LinkFrame::Refused(refusal)) => Some(refusal.reason),
        _ => None,
    };
    let newer = answers(address, &encoded(&[hello(LINK_VERSION + 1)])).await;
    assert_eq!(refused(&newer), Some(RefusalReason::Version));
    let proof = LinkFrame::Proof([0; PROOF_BYTES]);
    let guessed = answers(address, &encoded(&[hello(LINK_VERSION), proof])).await;
    assert!(matches!(guessed[0], LinkFrame::Challenge(_)), "{guessed:?}");
    assert_eq!(refused(&guessed), Some(RefusalReason::WrongSecret));
    assert_eq!(guessed.len(), 2, "no proof for who has none");
    for rubbish in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &encoded(&[LinkFrame::Ping])] {
        assert_eq!(answers(address, rubbish).await, []);
    }
    assert!(a.cluster.status().nodes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_without_its_node_drop_is_rejected_and_the_delay_queue_holds() {
    let members = MemoryMembers::default();
    let given = |mut options: ClusterOptions| {
        options.members = Members::Given(Arc::new(members.clone()));
        options
    };
    let a = start(given(options("a", &[]))).await;
    members.add(name("a"), Incarnation(1), a.cluster.address());
    let b = start(given(options("b", &[&a]))).await;
    members.add(name("b"), Incarnation(1), b.cluster.address());
    let mut at_b = b.follow("orders.*");
    until("a knows", || a.knows("b", 1)).await;
    let drops =
        PublishOptions { partition: Some(PartitionBehavior::Drop), ..PublishOptions::default() };
    let ack = a.publish("orders.eu", "first", &drops).await;
    assert!(ack.accepted().is_some(), "{ack:?}");
    assert_eq!(bodies(&mut at_b, 1).await, ["first"]);
    // b ends without a goodbye, as kill -9 does.
    let Place { cluster, broker: _broker, _folder } = b;
    drop(cluster);
    until("a sees it", || !a.has_links(&["b"])).await;
    let ack = a.publish("orders.eu", "lost", &drops).await;
    assert_eq!(ack.rejected(), Some(&RejectReason::PartitionDrop));
    let ack = a.publish("orders.eu", "held", &PublishOptions::default()).await;
    assert!(ack.accepted().is_some(), "{ack:?}");
    assert!(a.cluster.status().queued_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a14_leaving_drains_and_says_goodbye() {
    let a = start(options("a", &[])).await;
    let b = start(options("b", &[&a])).await;
    let mut at_b = b.follow("orders.*");
    let mut left = b.follow("$events.cluster.node-left");
    until("a knows", || a.knows("b", 1)).await;
    for number in 0..2_000 {
        let ack = a.publish("orders.eu", &number.to_string(), &PublishOptions::default()).await;
        assert!(ack.accepted().is_some(), "{ack:?}");
    }
    assert!(a.cluster.drain(DEADLINE).await, "all is received");
    a.cluster.leave().await;
    let expected: Vec<String> = (0..2_000).map(|number| number.to_string()).collect();
    assert_eq!(bodies(&mut at_b, 2_000).await, expected);
    assert_eq!(event(&mut left).await["node"], "a");
    assert!(a.cluster.status().has_left);
}

#[tokio::test(flavor = "multi_thread")]
async fn a14_starting_fails_clearly() {
    let taken = start(options("a", &[])).await;
    let (broker, _folder) = broker();
    let mut wrong = options("b", &[]);
    wrong.listen = taken.cluster.address().to_string();
    let error = Cluster::start(wrong, &broker).await.err().expect("the address is taken");
    assert!(matches!(error, StartError::Listen { .. }), "{error}");
    let mut wrong = options("b", &[]);
    wrong.listen = "0.0.0.0:0".into();
    let error = Cluster::start(wrong, &broker).await.err().expect("where is it reached?");
    assert!(matches!(error, StartError::Unspecified(_)), "{error}");
    let mut wrong = options("b", &[]);
    wrong.tls = Some(ClusterTlsFiles {
        cert: "no-such.pem".into(),
        key: "no-such.key".into(),
        ca: "no-such.pem".into(),
        name: "cluster".into(),
    });
    let error = Cluster::start(wrong, &broker).await.err().expect("no certificates");
    assert!(error.to_string().contains("no-such.pem"), "{error}");
    // None of that made it a node; it can still become one, once.
    let _node = Cluster::start(options("b", &[]), &broker).await.expect("a node");
    let error = Cluster::start(options("c", &[]), &broker).await.err().expect("it is one");
    assert!(matches!(error, StartError::AlreadyStarted), "{error}");
}

/// An authority, and a node's certificate signed by it.
fn certificates(folder: &Path, authority: &str) -> ClusterTlsFiles {
    let ca_key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).expect("an authority");
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let node = rcgen::CertificateParams::new(vec!["cluster".to_owned()]).expect("parameters");
    let signed = node.signed_by(&key, &issuer).expect("signed");
    let write = |name: &str, text: String| {
        let path = folder.join(format!("{authority}-{name}"));
        std::fs::write(&path, text).expect("written");
        path
    };
    ClusterTlsFiles {
        cert: write("cert.pem", signed.pem()),
        key: write("key.pem", key.serialize_pem()),
        ca: write("ca.pem", ca.pem()),
        name: "cluster".into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_by_mutual_tls_let_in_only_nodes_of_the_same_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) =
        (certificates(folder.path(), "ours"), certificates(folder.path(), "theirs"));
    let with = |mut options: ClusterOptions, tls: &ClusterTlsFiles| {
        options.tls = Some(tls.clone());
        options.secret = None;
        options
    };
    let a = start(with(options("a", &[]), &ours)).await;
    let b = start(with(options("b", &[&a]), &ours)).await;
    let c = start(with(options("c", &[&a]), &theirs)).await;
    let mut at_b = b.follow("orders.*");
    until("a knows", || a.knows("b", 1)).await;
    let ack = a.publish("orders.eu", "over TLS", &PublishOptions::default()).await;
    assert!(ack.accepted().is_some(), "{ack:?}");
    assert_eq!(bodies(&mut at_b, 1).await, ["over TLS"]);
    assert!(c.cluster.status().nodes.iter().all(|node| !node.has_link));
}

/// Certificates that replace others under the same names.
fn replace(files: &ClusterTlsFiles, by: &ClusterTlsFiles) {
    for (to, from) in [(&files.cert, &by.cert), (&files.key, &by.key), (&files.ca, &by.ca)] {
        std::fs::copy(from, to).expect("copied");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_links_that_change_are_read_again_and_end_no_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, new) = (certificates(folder.path(), "files"), certificates(folder.path(), "new"));
    let with = |mut options: ClusterOptions, tls: &ClusterTlsFiles| {
        options.tls = Some(tls.clone());
        options.secret = None;
        options
    };
    let a = start(with(options("a", &[]), &files)).await;
    let b = start(with(options("b", &[&a]), &files)).await;
    until("linked", || a.has_links(&["b"]) && b.has_links(&["a"])).await;
    let mut suspended = a.follow("$events.cluster.node-suspended");
    // c belongs to the next authority, which a and b do not know yet.
    let c = start(with(options("c", &[&a]), &new)).await;
    replace(&files, &new);
    until("c is let in", || {
        a.has_links(&["b", "c"]) && b.has_links(&["a", "c"]) && c.has_links(&["a", "b"])
    })
    .await;
    // Half a file changes nothing.
    std::fs::write(&files.cert, "-----BEGIN CERTIFICATE-----\nhalf").expect("written");
    let d = start(with(options("d", &[&a]), &new)).await;
    until("d is let in", || a.has_links(&["b", "c", "d"]) && d.has_links(&["a"])).await;
    // Each node is suspended at first; b was known before.
    loop {
        let said = event(&mut suspended).await;
        assert_ne!(said["node"], "b", "its link stayed up: {said}");
        if said["node"] == "d" {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_was_set_back_is_taken_for_a_later_start() {
    let a = start(options("a", &[])).await;
    let (broker, folder) = broker();
    let mut ahead = options("b", &[&a]);
    // As if the clock had been far ahead at this start.
    ahead.incarnation = Some(Incarnation(u64::MAX / 2));
    let first = Cluster::start(ahead, &broker).await.expect("a node");
    until("linked", || a.has_links(&["b"])).await;
    drop(first);
    broker.close().expect("closed");
    until("it is missed", || !a.has_links(&["b"])).await;
    let broker = Broker::open(BrokerOptions::new(folder.path())).expect("a broker");
    let second = Cluster::start(options("b", &[&a]), &broker).await.expect("a node");
    assert_eq!(second.status().incarnation, Incarnation(u64::MAX / 2 + 1));
    until("linked again", || a.has_links(&["b"])).await;
}
