//! Connecting, being refused, coming back, leaving.

use std::time::Duration;

use gapless_client::{
    Client, ClientLimits, ConnectError, ConnectOptions, GaveUp, Message, PublishError, State,
};
use gapless_protocol::{Drain, DrainReason, ErrorAnswer, ErrorCode, Ids, Welcome};
use tokio::time::timeout;

use crate::server::{BRIEF, FAST, LIMITS, SOON, Server, accepted};

async fn until(client: &Client, wanted: State) {
    let mut state = client.state();
    let reached = state.wait_for(|state| *state == wanted);
    timeout(SOON, reached).await.expect("the state comes").unwrap();
}

#[tokio::test]
async fn d6_tcp_and_unix_sockets_both_work() {
    for server in [Server::tcp().await, Server::unix()] {
        let (client, mut peer) = server.client().await;
        let publishing = client.publish(&"orders".parse().unwrap(), Message::new("x"));
        let (publish, ids) = peer.publish().await;
        assert_eq!(publish.records.count, 1);
        peer.send(accepted(1, 1), ids).await;
        assert_eq!(publishing.await.unwrap().seq().map(|seq| seq.0), Some(1));
    }
}

#[tokio::test]
async fn it_works_on_a_runtime_of_many_threads() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let done = runtime.spawn(async {
        let server = Server::tcp().await;
        let (client, mut peer) = server.client().await;
        let publishing = client.publish(&"orders".parse().unwrap(), Message::new("x"));
        let (_, ids) = peer.publish().await;
        peer.send(accepted(1, 1), ids).await;
        publishing.await.unwrap().seq()
    });
    assert!(done.await.unwrap().is_some());
    runtime.shutdown_background();
}

#[tokio::test]
async fn the_hello_says_who_comes() {
    let server = Server::tcp().await;
    let options = server.options().name("billing").token("secret");
    let _client = Client::connect_lazy(options).unwrap();
    let (hello, _) = server.accept().await.hello().await;
    assert_eq!(hello.client_name, "billing");
    assert_eq!(hello.token.as_deref(), Some(&b"secret"[..]));
}

#[tokio::test]
async fn addresses_that_dead_listens_at_are_passed_over() {
    let server = Server::tcp().await;
    let dead = Server::tcp().await.address();
    let addresses = [dead, "unix:/nowhere/at/all.sock".to_owned(), server.address()];
    let options = ConnectOptions::new(addresses).backoff(FAST);
    let (client, _peer) = server.client_with(options).await;
    assert_eq!(*client.state().borrow(), State::Online);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_time() {
    let dead = Server::tcp().await.address();
    let limits = ClientLimits { connect_wait: BRIEF, ..ClientLimits::default() };
    let options = ConnectOptions::new([dead]).backoff(FAST).limits(limits);
    let failed = Client::connect(options).await.unwrap_err();
    let ConnectError::TimedOut { last: Some(last) } = failed else { panic!("{failed:?}") };
    assert!(last.contains("refused"), "{last}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_left() {
    let server = Server::tcp().await;
    let limits = ClientLimits { welcome_wait: BRIEF, ..ClientLimits::default() };
    let _client = Client::connect_lazy(server.options().limits(limits)).unwrap();
    let mut silent = server.accept().await;
    silent.hello().await;
    assert!(silent.frame().await.is_none_or(|frame| frame.kind == 7), "it leaves");
    server.welcome().await;
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused() {
    let refused = |options| Client::connect_lazy(options).unwrap_err();
    let none = refused(ConnectOptions::new(Vec::<String>::new()));
    assert!(matches!(none, ConnectError::Options(_)));
    let wrong = refused(ConnectOptions::new([":x"]));
    assert!(matches!(wrong, ConnectError::Address(_)));
    let limits = ClientLimits { in_flight_count: 0, ..ClientLimits::default() };
    let zero = refused(ConnectOptions::default().limits(limits));
    assert!(matches!(zero, ConnectError::Options(_)));
    let long = refused(ConnectOptions::default().name("x".repeat(300)));
    assert!(matches!(long, ConnectError::Hello(_)));
}

#[tokio::test]
async fn another_version_is_final() {
    let server = Server::tcp().await;
    let serve = async {
        let mut peer = server.accept().await;
        let (_, ids) = peer.hello().await;
        peer.send(ErrorAnswer::new(ErrorCode::VersionMismatch, "version 9 only"), ids).await;
        peer
    };
    let (client, _peer) = tokio::join!(Client::connect(server.options()), serve);
    let error = client.unwrap_err();
    assert!(matches!(error, ConnectError::GaveUp(GaveUp::VersionMismatch)), "{error:?}");
    let again = timeout(BRIEF, server.accept()).await;
    assert!(again.is_err(), "it does not come back");
}

#[tokio::test]
async fn a_welcome_of_another_version_and_a_bad_token_are_final_too() {
    let server = Server::tcp().await;
    let client = Client::connect_lazy(server.options()).unwrap();
    let mut peer = server.accept().await;
    let (_, ids) = peer.hello().await;
    peer.send(Welcome { version: 9, limits: LIMITS, ..Welcome::default() }, ids).await;
    until(&client, State::Closed(Some(GaveUp::VersionMismatch))).await;
    let refused = client.publish(&"orders".parse().unwrap(), Message::new("x")).await;
    assert_eq!(refused, Err(PublishError::Closed));

    let client = Client::connect_lazy(server.options()).unwrap();
    let mut peer = server.accept().await;
    let (_, ids) = peer.hello().await;
    peer.send(ErrorAnswer::new(ErrorCode::NotAuthenticated, "who are you"), ids).await;
    until(&client, State::Closed(Some(GaveUp::NotAuthorised))).await;
}

#[tokio::test]
async fn a_full_server_is_tried_again() {
    let server = Server::tcp().await;
    let client = Client::connect_lazy(server.options()).unwrap();
    let mut peer = server.accept().await;
    let (_, ids) = peer.hello().await;
    peer.send(ErrorAnswer::new(ErrorCode::TooManyConnections, "full"), ids).await;
    let _peer = server.welcome().await;
    until(&client, State::Online).await;
}

#[tokio::test]
async fn rubbish_ends_the_connection_and_the_next_one_is_made() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    peer.raw(&[1, 2, 3, 4, 5, 6, 7, 8]).await;
    let mut peer = server.welcome().await;
    until(&client, State::Online).await;
    // A frame that is whole but of no kind.
    let mut unknown = [0; 43];
    unknown[..5].copy_from_slice(&[39, 0, 0, 0, 250]);
    peer.raw(&unknown).await;
    server.welcome().await;
}

#[tokio::test]
async fn a_server_that_falls_silent_is_left() {
    let server = Server::tcp().await;
    let limits = ClientLimits { ping_every: BRIEF / 3, ..ClientLimits::default() };
    let (_client, mut silent) = server.client_with(server.options().limits(limits)).await;
    let mut pings = 0;
    while let Some(frame) = silent.frame().await {
        pings += u32::from(frame.kind == 4);
    }
    assert!((1..=3).contains(&pings), "{pings} pings without an answer are enough");
    server.welcome().await;
}

#[tokio::test]
async fn a_client_that_only_listens_is_not_idle() {
    let server = Server::tcp().await;
    let _client = Client::connect_lazy(server.options()).unwrap();
    let mut peer = server.accept().await;
    peer.welcome(gapless_protocol::Limits { idle_ms: 3_000, ..LIMITS }).await;
    let ping = timeout(Duration::from_millis(2_500), peer.frame()).await;
    assert_eq!(ping.expect("it says something in time").unwrap().kind, 4);
}

#[tokio::test]
async fn draining_waits_for_acks_and_comes_back() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let orders = "orders".parse().unwrap();
    let before = ["a", "b"].map(|body| client.publish(&orders, Message::new(body)));
    let (_, first) = peer.publish().await;
    let (_, second) = peer.publish().await;
    peer.send(Drain { reason: DrainReason::RESTART, grace_ms: 60_000 }, Ids::NONE).await;
    peer.send(accepted(1, 1), first).await;
    let [a, b] = before;
    a.await.unwrap();
    // The drain came before the ack, so nothing new is sent any more.
    let during = client.publish(&orders, Message::new("during"));
    peer.send(accepted(2, 1), second).await;
    b.await.unwrap();
    peer.expect("Bye").await;
    let mut peer = server.welcome().await;
    let (_, ids) = peer.publish().await;
    peer.send(accepted(3, 1), ids).await;
    assert_eq!(during.await.unwrap().seq().map(|seq| seq.0), Some(3));
}

#[tokio::test]
async fn closing_waits_for_acks_and_says_bye() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let publishing = client.publish(&"orders".parse().unwrap(), Message::new("x"));
    let serve = async {
        let (_, ids) = peer.publish().await;
        peer.send(accepted(1, 1), ids).await;
        peer.expect("Bye").await;
        assert!(peer.frame().await.is_none());
    };
    let (report, ()) = tokio::join!(client.close(Duration::from_secs(5)), serve);
    assert_eq!((report.unknown, report.unsent), (0, 0));
    publishing.await.unwrap();
    assert_eq!(*client.state().borrow(), State::Closed(None));
    assert_eq!(client.close(SOON).await, report);
}

#[tokio::test]
async fn closing_tells_what_was_left() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let orders = "orders".parse().unwrap();
    let sent = client.publish(&orders, Message::new("sent"));
    peer.publish().await;
    drop((peer, server));
    until(&client, State::Offline).await;
    let unsent = client.publish(&orders, Message::new("unsent"));
    let report = client.close(BRIEF).await;
    assert_eq!((report.unknown, report.unsent), (1, 1));
    let unknown = gapless_client::Fate::Unknown;
    assert_eq!(sent.await, Err(PublishError::Disconnected { fate: unknown }));
    assert_eq!(unsent.await.unwrap_err().fate(), gapless_client::Fate::DidNotHappen);
}

#[tokio::test]
async fn the_last_clone_that_goes_ends_the_client() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let clone = client.clone();
    drop(client);
    clone.publish(&"orders".parse().unwrap(), Message::new("x")).ignore();
    drop(clone);
    let (_, ids) = peer.publish().await;
    peer.send(accepted(1, 1), ids).await;
    peer.expect("Bye").await;
}

trait Ignore: Sized {
    /// Says that the ack is not wanted.
    fn ignore(self) {}
}

impl Ignore for gapless_client::Publishing {}

#[tokio::test]
async fn f3_a_quota_says_when_to_come_back_and_the_client_waits_for_that() {
    let server = Server::tcp().await;
    let client = Client::connect_lazy(server.options()).unwrap();
    let mut peer = server.accept().await;
    let (hello, ids) = peer.hello().await;
    assert!(hello.features.has(gapless_protocol::Features::RETRY_AFTER));
    let wait = Duration::from_millis(400);
    let over = || ErrorAnswer::new(ErrorCode::QuotaExceeded, "too many").retry_after(wait);
    let refused = std::time::Instant::now();
    peer.send(over(), ids).await;
    // Its own schedule would bring it back after two milliseconds.
    let mut peer = server.welcome().await;
    let away = refused.elapsed() + Duration::from_millis(5);
    assert!(away >= wait, "it came back after {away:?}");
    let publishing = client.publish(&"orders".parse().unwrap(), Message::new("x"));
    let (_, ids) = peer.publish().await;
    peer.send(over(), ids).await;
    let told = publishing.await.expect_err("over the quota");
    let PublishError::System(trouble) = told else { panic!("{told:?}") };
    assert_eq!(
        (trouble.known(), trouble.retry_after),
        (Some(ErrorCode::QuotaExceeded), Some(wait))
    );
}
