//! Connections of the native API: hello, limits, silence, shutdown, the Unix socket.

mod common;

use std::time::Duration;

use common::*;
use gapless_core::Message;
use gapless_protocol::*;
use gapless_server::ListenerError;
use gapless_server::native::{NativeListener, NativeOptions};

#[test]
fn e2_a_hello_is_answered_with_the_version_and_the_limits() {
    let server = Server::with(|options, _| {
        options.server_name = "listener".into();
        options.frame_bytes_max = 100_000;
        options.credit_messages_max = 7;
        options.idle_timeout = Duration::from_secs(9);
    });
    let mut peer = server.silent();
    let newer = Hello {
        version_max: 9,
        features: Features(u64::MAX),
        extension: "later".into(),
        ..hello()
    };
    let Verb::Welcome(welcome) = peer.ask(newer) else { panic!("a welcome") };
    let offered = Features(Features::GROUPS.0 | Features::RETRY_AFTER.0);
    assert_eq!((welcome.version, welcome.features), (VERSION, offered));
    assert_eq!((&*welcome.server_name, welcome.epoch), ("listener", server.broker.epoch()));
    let limits = welcome.limits;
    assert_eq!((limits.frame_bytes, limits.credit_messages, limits.idle_ms), (100_000, 7, 9_000));
    assert_ne!(welcome.session, server.silent().greet().session);
    server.still_works();
}

#[test]
fn e2_a_peer_of_another_version_is_told_so_and_the_connection_ends() {
    let server = Server::open();
    for (version_min, version_max) in [(VERSION + 1, VERSION + 1), (7, 9)] {
        let mut peer = server.silent();
        let answer = peer.ask(Hello { version_min, version_max, ..hello() });
        assert_eq!(code(&answer), ErrorCode::VersionMismatch);
        assert!(peer.rest().is_empty());
    }
    server.still_works();
}

#[test]
fn f3_whoever_does_not_say_hello_first_is_told_so_and_left() {
    let server = Server::open();
    let firsts: [Verb; 4] = [
        Ping::default().into(),
        Bye.into(),
        publish("a", &[Message::new("x")]).into(),
        Done.into(),
    ];
    for first in firsts {
        let mut peer = server.silent();
        assert_eq!(code(&peer.ask(first)), ErrorCode::NotHello);
        assert!(peer.rest().is_empty());
    }
    server.still_works();
}

#[test]
fn f3_a_second_hello_ends_the_connection() {
    let server = Server::open();
    let mut peer = server.peer();
    assert_eq!(code(&peer.ask(hello())), ErrorCode::HelloAgain);
    assert!(peer.rest().is_empty());
    server.still_works();
}

#[test]
fn a_ping_comes_back_with_its_bytes_and_a_bye_ends_well() {
    let server = Server::open();
    for mut peer in [server.peer(), server.unix_peer()] {
        let pong = peer.ask(Ping { echo: "echo".into() });
        assert_eq!(pong, Verb::from(Pong { echo: "echo".into() }));
        peer.send(Pong { echo: "unasked".into() });
        assert_eq!(peer.ask(Bye), Verb::from(Bye));
        assert!(peer.rest().is_empty());
    }
    server.still_works();
}

#[test]
fn whoever_stops_sending_still_gets_the_answers_to_what_was_sent() {
    let server = Server::open();
    server.create("half");
    let mut peer = server.peer();
    let ids: Vec<_> = (0..50).map(|_| peer.send(publish("half", &[Message::new("x")]))).collect();
    peer.socket.end_writing();
    for id in ids {
        accepted(&peer.answer(id));
    }
    assert!(peer.rest().is_empty());
    server.still_works();
}

#[test]
fn f3_half_a_hello_and_then_silence_ends_by_the_hello_timeout() {
    let server = Server::with(|options, _| options.hello_timeout = Duration::from_millis(300));
    let mut mute = server.silent();
    mute.ends_with(ErrorCode::IdleTimeout);
    let mut half = server.silent();
    let (_, bytes) = half.frame(hello());
    half.send_bytes(&bytes[..bytes.len() / 2]);
    half.ends_with(ErrorCode::IdleTimeout);
    server.still_works();
}

#[test]
fn f3_a_hello_that_comes_byte_by_byte_does_not_get_more_time() {
    let server = Server::with(|options, _| options.hello_timeout = Duration::from_millis(500));
    let mut slow = server.silent();
    // Each byte is sent when the read of the one before has timed out.
    slow.socket.set_timeouts(Duration::from_millis(100), DEADLINE);
    let (_, bytes) = slow.frame(hello());
    let mut sent = 0;
    for byte in bytes.chunks(1) {
        if slow.socket.write(byte).is_err() {
            break;
        }
        sent += 1;
        let came = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| slow.verb_or_end()));
        if let Ok(came) = came {
            assert_eq!(came.map(|(verb, _)| code(&verb)), Some(ErrorCode::IdleTimeout));
            break;
        }
    }
    assert!(sent < 30, "half a second is over after {sent} bytes of a tenth of a second each");
    server.still_works();
}

#[test]
fn a_silent_connection_ends_by_the_idle_timeout_and_pings_keep_it() {
    let server = Server::with(|options, _| options.idle_timeout = Duration::from_millis(600));
    let mut silent = server.peer();
    let mut lively = server.peer();
    lively.socket.set_timeouts(DEADLINE, DEADLINE);
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        assert!(matches!(lively.ask(Ping::default()), Verb::Pong(_)));
    }
    silent.ends_with(ErrorCode::IdleTimeout);
    assert!(matches!(lively.ask(Ping::default()), Verb::Pong(_)));
}

#[test]
fn f3_a_thousand_idle_connections_are_carried_and_one_too_many_is_refused() {
    let server = Server::with(|options, _| {
        options.connections_max = 1003;
        options.hello_timeout = Duration::from_secs(60);
    });
    let mut idle: Vec<Peer> = (0..1000)
        .map(|index| if index % 2 == 0 { server.peer() } else { server.unix_peer() })
        .collect();
    assert_eq!(server.listener().connections(), 1000);
    server.still_works();
    // The guests of `still_works` leave at their own pace.
    server.until("the guests are gone", |server| server.listener().connections() == 1000);
    let mut last: Vec<Peer> = (0..3).map(|_| server.peer()).collect();
    server.silent().ends_with(ErrorCode::TooManyConnections);
    last.pop();
    server.until("one is gone", |server| server.listener().connections() == 1002);
    last.push(server.peer());
    for peer in &mut idle {
        assert!(matches!(peer.ask(Ping::default()), Verb::Pong(_)));
    }
    drop((idle, last));
    server.until("all are gone", |server| server.listener().connections() == 0);
    server.still_works();
}

#[test]
fn the_list_of_clients_shows_who_follows_what_in_pages() {
    let server = Server::open();
    server.create("seen");
    let mut follower = server.peer();
    follower.follow(subscribe("seen", StartFrom::Beginning));
    let mut asker = server.unix_peer();
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let list = asker.ask(Clients { after, limit: 1 });
        let Verb::ClientList(list) = list else { panic!("a list: {list:?}") };
        after = list.clients.last().map_or(after, |client| client.session);
        all.extend(list.clients);
        if !list.more {
            break;
        }
    }
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].name.as_str(), all[0].follows[0].pattern.as_str()), ("peer", "seen"));
    assert_eq!((all[1].address.as_str(), all[1].follows.len()), ("unix", 0));
    let beyond = asker.ask(Clients { after: u64::MAX, limit: 1 });
    assert_eq!(beyond, Verb::from(ClientList::default()), "after the last there are no clients");
    server.still_works();
}

#[test]
fn lists_fit_into_the_smallest_frame() {
    let server = Server::with(|options, _| options.frame_bytes_max = FRAME_BYTES_MIN);
    for index in 0..200 {
        server.create(&format!("list.{}.{index:03}", "x".repeat(100)));
    }
    let mut peer = server.peer();
    for index in 0..300 {
        peer.follow(subscribe(&format!("none.{index}"), StartFrom::Now));
    }
    let mut names = Vec::new();
    loop {
        let after = names.last().cloned();
        let page = peer.ask(TopicList { pattern: pattern("list.>"), after, limit: 1000 });
        let Verb::TopicInfos(page) = page else { panic!("a page: {page:?}") };
        names.extend(page.topics.into_iter().map(|info| info.name));
        if !page.more {
            break;
        }
    }
    assert_eq!(names.len(), 200);
    assert!(names.is_sorted());
    let list = peer.ask(Clients { after: 0, limit: 1000 });
    let Verb::ClientList(list) = list else { panic!("a list: {list:?}") };
    assert_eq!(list.clients.len(), 1);
    assert!(!list.clients[0].follows.is_empty());
    server.still_works();
}

#[test]
fn a_client_with_more_subscriptions_than_can_be_shown_is_shown_with_some() {
    let server = Server::open();
    let mut peer = server.peer();
    let ids: Vec<_> = (0..1100)
        .map(|index| peer.send(subscribe(&format!("many.{index}"), StartFrom::Now)))
        .collect();
    for id in ids {
        assert!(matches!(peer.answer(id), Verb::Subscribed(_)));
    }
    let list = peer.ask(Clients { after: 0, limit: 10 });
    let Verb::ClientList(list) = list else { panic!("a list: {list:?}") };
    assert_eq!(list.clients[0].follows.len(), 1024);
    server.still_works();
}

#[test]
fn shutdown_drains_answers_what_was_sent_and_ends_after_the_bye() {
    let mut server = Server::open();
    server.create("last");
    let mut peer = server.peer();
    let mut ids: Vec<_> =
        (0..200).map(|_| peer.send(publish("last", &[Message::new("x")]))).collect();
    let closing = server.begin_close();
    loop {
        let (verb, corr) = peer.verb_or_end().expect("the connection goes on");
        match verb {
            Verb::Drain(drain) => {
                assert_eq!(drain.reason, DrainReason::SHUTDOWN);
                assert_eq!(drain.grace_ms, 5000);
                break;
            }
            ack => {
                accepted(&ack);
                ids.retain(|id| *id != corr);
            }
        }
    }
    // It was on its way when the drain came.
    ids.push(peer.send(publish("last", &[Message::new("late")])));
    for id in ids {
        accepted(&peer.answer(id));
    }
    assert_eq!(code(&peer.ask(subscribe("last", StartFrom::Now))), ErrorCode::ShuttingDown);
    assert_eq!(peer.ask(Bye), Verb::from(Bye));
    assert!(peer.rest().is_empty());
    server.wait(closing);
    assert!(!server.socket().exists(), "the socket file is gone");
}

#[test]
fn shutdown_ends_whoever_does_not_leave_with_a_token_after_the_grace() {
    let mut server = Server::with(|options, _| options.drain = Duration::from_millis(200));
    server.create("stay");
    server.fill("stay", 3);
    let mut peer = server.peer();
    let subscription = peer.follow(subscribe("stay", StartFrom::Beginning));
    let mut ledger = Ledger::from(1);
    while ledger.next < 4 {
        ledger.take(peer.next());
    }
    let mute = server.silent();
    server.until("it is taken", |server| server.listener().connections() == 2);
    let closing = server.begin_close();
    let rest = peer.rest();
    let told = rest.iter().any(|verb| matches!(verb, Verb::Drain(_)));
    assert!(told, "{rest:?}");
    let Some(Verb::Ended(ended)) = rest.last() else { panic!("ended: {rest:?}") };
    assert_eq!(ended.error.known(), Some(ErrorCode::ShuttingDown));
    assert_eq!((ended.subscription, ended.token.epoch), (subscription, server.broker.epoch()));
    let place = server.broker.read(&name("stay"), gapless_core::Seq(3)).unwrap().unwrap();
    assert_eq!(ended.token.position, place.position);
    server.wait(closing);
    drop(mute);
}

#[test]
fn a_stale_socket_file_is_replaced_a_living_one_is_in_use_and_a_file_stays() {
    let server = Server::open();
    let open = |path: &std::path::Path| {
        let listener =
            NativeListener::open(server.broker.clone(), NativeOptions::default(), None, Some(path));
        server.runtime.block_on(listener)
    };
    assert!(
        matches!(open(&server.socket()), Err(ListenerError::InUse(path)) if path == server.socket())
    );
    let folder = tempfile::tempdir().unwrap();
    let stale = folder.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    let listener = open(&stale).expect("the stale one is replaced");
    server.runtime.block_on(listener.close());
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(open(&file), Err(ListenerError::Listen { .. })));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    server.still_works();
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_it() {
    let server = Server::open();
    let address = server.listener().tcp_address().unwrap().to_string();
    let listener =
        NativeListener::open(server.broker.clone(), NativeOptions::default(), Some(&address), None);
    let Err(error) = server.runtime.block_on(listener) else { panic!("it is taken") };
    assert!(error.to_string().contains(&address), "{error}");
    server.still_works();
}

#[test]
fn m5_a_token_that_is_not_valid_is_refused_even_where_none_is_needed() {
    let server = Server::open();
    for mut peer in [server.silent(), server.silent_unix()] {
        let secret = Hello { token: Some("secret".into()), ..hello() };
        assert_eq!(code(&peer.ask(secret)), ErrorCode::NotAuthenticated);
        assert!(peer.rest().is_empty());
    }
    server.still_works();
}
