//! Who may do what, from outside: the same rights on the native protocol and over HTTP; and what
//! happens to connections when rights change. Verb by verb and path by path: `rights_matrix.rs`.

mod common;
#[path = "common/http.rs"]
mod http;
#[path = "common/secured.rs"]
mod secured;

use common::{Peer, Socket, code, create, hello, name, pattern, publish, rejected, subscribe};
use gapless_core::{ExpectCell, Message, RejectReason, Seq, TopicSettings};
use gapless_protocol::*;
use http::Request;
use secured::{EVERYTHING, JOB, JobPeer, Server, job_credit, refused};
use serde_json::{Value, json};

#[test]
fn f3_a_group_is_changed_only_by_those_who_may_follow_its_source() {
    let server = Server::open();
    let all = server.token("all", EVERYTHING);
    let without = server.token("without", &["allow group on >", "allow subscribe on other"]);
    server.send(&all, Request::new("PUT", "/v1/topics/orders").json(&json!({}))).is(201);
    let made = Request::new("PUT", "/v1/groups/mailer").json(&json!({ "source": "orders" }));
    server.send(&all, made).is(201);
    let change = || Request::new("PATCH", "/v1/groups/mailer").json(&json!({}));
    server.send(&without, change()).is(403);
    server.send(&all, change()).is(200);
}

#[test]
fn f3_rights_hold_for_their_names_only() {
    let server = Server::open();
    let rules = ["allow create,publish,subscribe on orders.>", "deny publish on orders.secret"];
    let mut peer = server.peer(&server.token("shop", &rules));
    assert!(matches!(peer.ask(create("orders.eu")), Verb::TopicInfo(_)));
    common::accepted(&peer.ask(publish("orders.eu", &[Message::new("x")])));
    let secret = publish("orders.secret", &[Message::new("x")]);
    assert_eq!(rejected(&peer.ask(secret)), RejectReason::NotAuthorised);
    assert_eq!(code(&peer.ask(create("mails"))), ErrorCode::NotAuthorised);
    assert_eq!(code(&peer.ask(subscribe(">", StartFrom::Now))), ErrorCode::NotAuthorised);
    assert_eq!(code(&peer.ask(subscribe("$events.>", StartFrom::Now))), ErrorCode::NotAuthorised);
    peer.follow(subscribe("orders.>", StartFrom::Beginning));
    // Many publishes that come together are refused one by one.
    let ids: Vec<_> =
        (0..5).map(|_| peer.frame(publish("orders.secret", &[Message::new("y")]))).collect();
    let bytes: Vec<u8> = ids.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
    peer.send_bytes(&bytes);
    for (id, _) in ids {
        assert_eq!(rejected(&peer.answer(id)), RejectReason::NotAuthorised);
    }
}

#[test]
fn f3_cells_of_identities_are_neither_read_nor_written_over_the_wire() {
    let server = Server::open();
    let mut peer = server.peer(&server.token("all", EVERYTHING));
    let cell = server.auth.broker().cells_under(b"$auth/token/");
    let (cell, value) = cell.first().expect("a token is kept").clone();
    assert_eq!(code(&peer.ask(CellRead { name: cell.clone() })), ErrorCode::NotAuthorised);
    let expect = ExpectCell::Value(value);
    let write = CellWrite { name: cell, value: None, expect };
    let commit = Commit { cells: vec![write], ..Commit::default() };
    assert_eq!(rejected(&peer.ask(commit)), RejectReason::NotAuthorised);
}

#[test]
fn f3_a_revoked_token_ends_its_connections_and_streams() {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    let other = server.token("other", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let (mut peer, mut stays) = (server.peer(&token), server.peer(&other));
    peer.follow(subscribe("t", StartFrom::Beginning));
    let follow = Request::new("GET", "/v1/topics/t/follow")
        .header("Authorization", &format!("Bearer {token}"));
    let mut stream = http::Client::connect(server.http.address());
    assert_eq!(stream.begin(&follow).status, 200);
    let (mut worker, greeted, _) = JobPeer::worker(&server, Some(&token), ">");
    assert_eq!(greeted, Kind::JobWelcome);
    server.command(&json!({ "do": "token_revoke", "id": "shop" }));
    peer.ends_with(ErrorCode::NotAuthenticated);
    while worker.0.frame_or_end().is_some() {}
    while stream.chunk().is_some() {}
    assert!(matches!(stays.ask(Ping { echo: "x".into() }), Verb::Pong(_)));
    let mut late = server.silent();
    let again = Hello { token: Some(token.clone().into()), ..hello() };
    assert_eq!(code(&late.ask(again)), ErrorCode::NotAuthenticated);
    server.get(&token, "/v1/topics").is(401);
}

#[test]
fn f3_what_is_held_for_a_name_is_taken_over_by_its_owner_only() {
    let server = Server::open();
    let token = server.token("shop", &["allow subscribe on a.>"]);
    let mut peer = server.peer(&token);
    // Without a cluster there are no names; but who may have one is asked first.
    for (identity, allowed) in
        [("shop", true), ("shop.eu", true), ("shopping", false), ("ana", false)]
    {
        let named = Subscribe {
            identity: Some(identity.parse().expect("an identity")),
            ..subscribe("a.>", StartFrom::Now)
        };
        let expected = if allowed { ErrorCode::NotSupported } else { ErrorCode::NotAuthorised };
        assert_eq!(code(&peer.ask(named)), expected, "{identity}");
        let path = format!("/v1/follow?pattern=a.%3E&identity={identity}");
        server.get(&token, &path).is(if allowed { 400 } else { 403 });
    }
}

#[test]
fn f3_a_right_that_is_taken_away_ends_its_subscription_with_a_reason() {
    let server = Server::open();
    let token = server.token("shop", &["allow subscribe on a.>", "allow subscribe on b.>"]);
    let mut peer = server.peer(&token);
    let a = peer.follow(subscribe("a.>", StartFrom::Now));
    let b = peer.follow(subscribe("b.>", StartFrom::Now));
    server
        .command(&json!({ "do": "role_set", "role": "shop", "rules": ["allow subscribe on b.>"] }));
    let ended = loop {
        if let Verb::Ended(ended) = peer.next() {
            break ended;
        }
    };
    assert_eq!((ended.subscription, ended.error.known()), (a, Some(ErrorCode::NotAuthorised)));
    assert!(ended.error.message.contains("shop may not subscribe on a.>"), "{ended:?}");
    assert!(matches!(
        peer.ask(Unsubscribe { subscription: b, hold: false }),
        Verb::Unsubscribed(_)
    ));
}

/// The last event of a stream, with what comes behind its name.
fn last_event(stream: &mut http::Client) -> (String, Value) {
    let mut text = String::new();
    while let Some(chunk) = stream.chunk() {
        text += &String::from_utf8(chunk).expect("text");
    }
    let last = text.trim_end().rsplit("\n\n").next().expect("an event");
    let (name, data) = last.split_once('\n').expect("a name and data");
    let name = name.strip_prefix("event: ").expect("a name");
    let data = data.strip_prefix("data: ").expect("data");
    (name.to_owned(), serde_json::from_str(data).expect("JSON"))
}

#[test]
fn f3_a_stream_over_http_whose_right_is_taken_away_ends_with_a_reason() {
    let server = Server::open();
    let rules = &["allow subscribe on a.>", "allow subscribe on b.>"];
    let (token, revoked) = (server.token("shop", rules), server.token("other", rules));
    for topic in ["a.t", "b.t"] {
        server.auth.broker().create_topic(&name(topic), TopicSettings::default()).expect("a topic");
    }
    let follow = |token: &str, path: &str| {
        let request = Request::new("GET", path).header("Authorization", &format!("Bearer {token}"));
        let mut stream = http::Client::connect(server.http.address());
        assert_eq!(stream.begin(&request).status, 200);
        stream
    };
    let mut by_topic = follow(&token, "/v1/topics/a.t/follow");
    let mut by_pattern = follow(&token, "/v1/follow?pattern=a.%3E");
    let mut stays = follow(&token, "/v1/topics/b.t/follow");
    let mut by_proof = follow(&revoked, "/v1/topics/b.t/follow");
    let socket = |token: &str| {
        let address = server.http.address();
        let stream = std::net::TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(http::DEADLINE)).expect("a deadline");
        let uri = format!("ws://{address}/v1/topics/a.t/follow").parse().expect("an address");
        let request = tungstenite::ClientRequestBuilder::new(uri)
            .with_header("Authorization", format!("Bearer {token}"));
        tungstenite::client(request, stream).expect("an upgrade").0
    };
    let mut sockets = [socket(&token), socket(&revoked)];

    server
        .command(&json!({ "do": "role_set", "role": "shop", "rules": ["allow subscribe on b.>"] }));
    server.command(&json!({ "do": "token_revoke", "id": "other" }));
    for (stream, code, why) in [
        (&mut by_topic, ErrorCode::NotAuthorised, "shop may not subscribe on a.t"),
        (&mut by_pattern, ErrorCode::NotAuthorised, "shop may not subscribe on a.>"),
        (&mut by_proof, ErrorCode::NotAuthenticated, "revoked"),
    ] {
        let (name, facts) = last_event(stream);
        assert_eq!((name.as_str(), &facts["code"]), ("failed", &json!(code.number())));
        assert!(facts["detail"].as_str().is_some_and(|it| it.contains(why)), "{facts}");
    }
    for (socket, why) in sockets.iter_mut().zip(["may not subscribe on a.t", "revoked"]) {
        let close = loop {
            if let tungstenite::Message::Close(Some(close)) = socket.read().expect("a close") {
                break close;
            }
        };
        assert_eq!(u16::from(close.code), 1008);
        assert!(close.reason.contains(why), "{close:?}");
    }
    // What is still allowed goes on.
    let message = Message::new("for those who may");
    let published = server.auth.broker().publish(&name("b.t"), &message, &Default::default());
    published.wait().expect("an ack");
    loop {
        let chunk = stays.chunk().expect("it goes on");
        if String::from_utf8(chunk).expect("text").contains("for those who may") {
            break;
        }
    }
}

#[test]
fn f3_a_logout_and_a_new_password_end_a_login_and_its_streams() {
    let server = Server::open();
    server.token("ada", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let set = |password: &str| {
        server.command(&json!({ "do": "password_set", "name": "ada", "password": password }))
    };
    let send = |request: &Request| http::Client::connect(server.http.address()).send(request);
    let login = |password: &str| {
        let json = json!({ "name": "ada", "password": password });
        let answer = send(&Request::new("POST", "/v1/auth/login").json(&json)).is(200);
        let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
        cookie.split(';').next().expect("a pair").to_owned()
    };
    let follow = |cookie: &str| {
        let request = Request::new("GET", "/v1/topics/t/follow").header("Cookie", cookie);
        let mut stream = http::Client::connect(server.http.address());
        assert_eq!(stream.begin(&request).status, 200);
        stream
    };
    let list = |cookie: &str| send(&Request::new("GET", "/v1/topics").header("Cookie", cookie));
    let who = |cookie: &str| {
        let json = json!({ "do": "who_am_i" });
        send(&Request::new("POST", "/v1/auth").header("Cookie", cookie).json(&json)).is(200).json()
    };
    set("correct horse");
    let (first, second) = (login("correct horse"), login("correct horse"));
    assert_eq!((&who(&first)["name"], &who(&first)["login"]), (&json!("ada"), &json!(true)));
    assert!(who(&first)["login_ends_in_ms"].is_u64());
    let mut streams = [follow(&first), follow(&second)];
    let out = send(&Request::new("POST", "/v1/auth/logout").header("Cookie", &first)).is(204);
    assert!(out.header("set-cookie").is_some_and(|it| it.contains("Max-Age=0")));
    list(&first).is(401);
    list(&second).is(200);
    set("another horse");
    list(&second).is(401);
    for stream in &mut streams {
        let (name, facts) = last_event(stream);
        assert_eq!((name.as_str(), &facts["code"]), ("failed", &json!(207)));
        assert!(facts["detail"].as_str().is_some_and(|it| it.contains("log in again")), "{facts}");
    }
}

#[test]
fn f3_the_servers_own_user_comes_in_by_the_unix_socket() {
    let server = Server::open();
    let socket = server.folder.path().join("socket");
    let stream = std::os::unix::net::UnixStream::connect(socket).expect("a connection");
    let mut peer = Peer::new(Socket::Unix(stream));
    peer.greet();
    let made = peer
        .ask(Auth { json: r#"{"do":"token_create","name":"rescue","roles":["admin"]}"#.into() });
    assert!(matches!(made, Verb::AuthAnswer(_)), "{made:?}");
    let mut stranger = server.silent();
    assert_eq!(code(&stranger.ask(hello())), ErrorCode::NotAuthenticated);
    assert!(stranger.rest().is_empty(), "the connection ends");
}

#[test]
fn e10_jobs_are_for_those_who_may_submit_or_run_them() {
    let server = Server::open();
    let (mut stranger, _, answer) = JobPeer::client(&server, None);
    refused(&answer, "");
    assert!(stranger.0.frame_or_end().is_none(), "the connection ends");
    let (_, _, answer) = JobPeer::client(&server, Some("gapless_1_wrong"));
    refused(&answer, "");
    let token = server.token("shop", &["allow job.submit on >"]);
    assert_eq!(JobPeer::client(&server, Some(&token)).1, Kind::JobWelcome);
    let (_, kind, answer) = JobPeer::worker(&server, Some(&token), "job.assign.calc");
    assert_eq!(kind, Kind::JobAnswer);
    refused(&answer, "shop may not job.work on calc");
    // Without a token what is granted to those who prove nothing decides.
    server.command(&json!({ "do": "identity_set", "name": "anonymous", "roles": ["shop"] }));
    assert_eq!(JobPeer::client(&server, None).1, Kind::JobWelcome);
}

#[test]
fn f3_rights_to_jobs_hold_for_their_executables_only() {
    let server = Server::open();
    let id = |digit: &str| digit.repeat(32);
    let (mail, render, other) = (id("a"), id("b"), id("c"));
    let (mut all, ..) = JobPeer::client(&server, Some(&server.token("all", EVERYTHING)));
    assert_eq!(all.submit(&mail, "mail")["Accepted"], true);
    let token = server.token("studio", &["allow job.submit,job.work on render"]);
    let (mut peer, kind, _) = JobPeer::client(&server, Some(&token));
    assert_eq!(kind, Kind::JobWelcome);
    assert_eq!(peer.submit(&render, "render")["Accepted"], true);
    refused(&peer.submit(&other, "mail"), "studio may not job.submit on mail");
    // It neither sees nor changes the jobs of others.
    let mail_job = json!({ "JobId": mail, "Ask": "show" });
    for kind in [Kind::JobWatch, Kind::JobCancel, Kind::JobRetry, Kind::JobQuery] {
        refused(&peer.ask(kind, "", &mail_job).1, "studio may not job.submit on mail");
    }
    refused(&peer.ask(Kind::JobQuery, "", &json!({ "Ask": "overview" })).1, "job.submit on all");
    let (_, list) = peer.ask(Kind::JobQuery, "", &json!({ "Ask": "list" }));
    let seen: Vec<&Value> =
        list["Jobs"].as_array().expect("jobs").iter().map(|job| &job["ExecName"]).collect();
    assert_eq!(seen, ["render"]);
    // A worker takes what it may run, and ends no attempt of another's.
    let (_, _, answer) = JobPeer::worker(&server, Some(&token), "job.assign.*");
    refused(&answer, "studio may not job.work on *");
    let (mut worker, kind, _) = JobPeer::worker(&server, Some(&token), "job.assign.render");
    assert_eq!(kind, Kind::JobWelcome);
    let ack = json!({ "JobId": mail, "ClientId": "c", "ExecName": "mail", "Status": "OK",
        "Attempt": 1, "Epoch": "" });
    refused(&worker.ask(Kind::JobAck, "", &ack).1, "studio may not job.work on mail");
    // What is taken away ends the connection.
    server.command(&json!({ "do": "role_set", "role": "studio", "rules": [] }));
    for (peer, why) in [(&mut worker, "may not job.work"), (&mut peer, "may not job.submit")] {
        let mut last = None;
        while let Some(frame) = peer.0.frame_or_end() {
            last = Some(frame);
        }
        let last = last.expect("the reason");
        let told: Value = serde_json::from_slice(&last.payload).expect("JSON");
        refused(&told, why);
    }
    assert_eq!(all.submit(&mail, "mail")["Known"], true);
}

#[test]
fn f3_a_worker_s_name_takes_nothing_from_another_identity_s_worker() {
    let server = Server::open();
    let tokens = ["alice", "mallory"].map(|who| server.token(who, EVERYTHING));
    let id = "a".repeat(32);
    let (mut client, ..) = JobPeer::client(&server, Some(&tokens[0]));
    assert_eq!(client.submit(&id, "calc")["Accepted"], true);
    let (mut alice, ..) = JobPeer::worker(&server, Some(&tokens[0]), "job.assign.*");
    alice.0.send_bytes(&job_credit(2));
    let (kind, assigned) = alice.answer();
    assert_eq!((kind, &assigned["Attempt"]), (Kind::JobAssign, &json!(1)));
    // By the same name: over a connection of its own, and over HTTP.
    let ack = json!({ "JobId": id, "ClientId": "c", "ExecName": "calc", "Status": "OK",
        "Attempt": 1, "Epoch": assigned["Epoch"] });
    let (mut mallory, ..) = JobPeer::worker(&server, Some(&tokens[1]), "job.assign.*");
    refused(&mallory.ask(Kind::JobAck, "", &ack).1, "does not count");
    let spoken = json!({ "job_id": id, "attempt": 1, "epoch": assigned["Epoch"] });
    for verb in ["extend", "complete", "fail"] {
        let request = Request::new("POST", &format!("/v1/workers/w/{verb}")).json(&spoken);
        server.send(&tokens[1], request).problem(409, "StaleAttempt");
    }
    let take = Request::new("POST", "/v1/workers/w/take?wait_ms=1");
    server.send(&tokens[1], take).is(204);
    // The first is still there, with its credit and its attempt.
    assert_eq!(client.submit(&"b".repeat(32), "calc")["Accepted"], true);
    assert_eq!(alice.ask(Kind::JobAck, "", &ack).1["Accepted"], true);
    assert_eq!(alice.answer().0, Kind::JobAssign);
    // It comes back by another connection, and takes the place of the one before.
    let (_again, kind, _) = JobPeer::worker(&server, Some(&tokens[0]), "job.assign.*");
    assert_eq!(kind, Kind::JobWelcome);
    while alice.0.frame_or_end().is_some() {}
}

#[test]
fn f3_a_login_gives_a_cookie_and_a_ticket_opens_one_stream() {
    let server = Server::open();
    let token = server.token("ada", EVERYTHING);
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    server.command(&json!({ "do": "password_set", "name": "ada", "password": "correct horse" }));
    let login = |json: Value| {
        let request = Request::new("POST", "/v1/auth/login").json(&json);
        http::Client::connect(server.http.address()).send(&request)
    };
    login(json!({ "name": "ada", "password": "wrong horse" })).problem(401, "NotAuthenticated");
    for good in [json!({ "name": "ada", "password": "correct horse" }), json!({ "token": token })] {
        let answer = login(good).is(200);
        let cookie = answer.header("set-cookie").expect("a cookie").to_owned();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().expect("a pair");
        let with = Request::new("GET", "/v1/topics").header("Cookie", cookie);
        let seen = http::Client::connect(server.http.address()).send(&with).is(200);
        assert_eq!(seen.json()["topics"][0]["name"], "t");
    }
    let ticket = Request::new("POST", "/v1/auth").json(&json!({ "do": "ticket" }));
    let ticket =
        server.send(&token, ticket).is(200).json()["ticket"].as_str().expect("text").to_owned();
    let follow = Request::new("GET", &format!("/v1/topics/t/follow?ticket={ticket}&from=now"));
    let mut stream = http::Client::connect(server.http.address());
    assert_eq!(stream.begin(&follow).status, 200);
    http::Client::connect(server.http.address()).send(&follow).problem(401, "NotAuthenticated");
}

#[test]
fn f3_the_audit_tells_who_was_refused_what_from_where() {
    let server = Server::open();
    let admin = server.token("root", &["allow * on >", "allow subscribe on $events.audit.>"]);
    let mut watcher = server.peer(&admin);
    watcher.follow(subscribe("$events.audit.>", StartFrom::Now));
    let mut peer = server.peer(&server.token("shop", &[]));
    assert_eq!(code(&peer.ask(create("orders"))), ErrorCode::NotAuthorised);
    let mut stranger = server.silent();
    stranger.ask(Hello { token: Some("wrong".into()), ..hello() });
    let mut seen = Vec::new();
    while !["audit.changed", "audit.denied", "audit.refused"]
        .iter()
        .all(|kind| seen.iter().any(|event: &Value| event["event"] == **kind))
    {
        if let Verb::Messages(messages) = watcher.next() {
            for batch in messages.batches.views() {
                let bodies = batch.records().filter_map(|record| record.body);
                seen.extend(
                    bodies.map(|body| serde_json::from_slice::<Value>(body).expect("JSON")),
                );
            }
        }
    }
    let denied = seen.iter().find(|event| event["event"] == "audit.denied").expect("one");
    assert_eq!(
        (&denied["who"], &denied["right"], &denied["on"]),
        (&json!("shop"), &json!("create"), &json!("orders"))
    );
    assert!(denied["from"].as_str().expect("an address").starts_with("127.0.0.1:"), "{denied}");
    let text = json!(seen).to_string();
    assert!(!text.contains(&admin) && !text.contains("wrong"), "no secret is shown: {text}");
}

#[test]
fn f3_wrong_tokens_of_one_client_do_not_slow_down_another() {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    let mut peer = server.peer(&token);
    // Attackers are answered later and later; other clients must not wait for them.
    let mut tries: Vec<Peer> = (0..50).map(|_| server.silent()).collect();
    for each in &mut tries {
        each.send(Hello { token: Some("wrong".into()), ..hello() });
    }
    assert!(matches!(peer.ask(Ping { echo: "x".into() }), Verb::Pong(_)));
    server.get(&token, "/v1/topics").is(200);
    drop(tries);
    server.runtime.block_on(async { tokio::task::yield_now().await });
}

/// A PUT of a stream with these headers.
fn put_stream(path: &str, headers: &[(&str, &str)], body: &str) -> Request {
    let request = Request::new("PUT", &format!("/v1/stream/{path}")).body(body);
    headers.iter().fold(request, |request, (name, value)| request.header(name, value))
}

const TEXT: (&str, &str) = ("Content-Type", "text/plain");

#[test]
fn f3_every_effect_of_putting_a_stream_needs_its_own_right() {
    let server = Server::open();
    let broker = server.auth.broker();
    let old = name("orders.old");
    broker.create_topic(&old, TopicSettings::default()).expect("a topic");
    let creator = server.token("creator", &["allow create on orders.>", "deny publish on >"]);
    let ttl = ("Stream-TTL", "1");
    let closed = ("Stream-Closed", "true");
    // The topic exists: to make a stream of it changes it, with a time to live it deletes it.
    for (headers, body) in
        [(&[TEXT][..], ""), (&[TEXT], "x"), (&[TEXT, closed], ""), (&[TEXT, ttl], "")]
    {
        let put = put_stream("orders/old", headers, body);
        server.send(&creator, put).problem(403, "NotAuthorised");
    }
    let changer = server.token("changer", &["allow create,configure,publish on orders.>"]);
    let refused = server.send(&changer, put_stream("orders/old", &[TEXT, ttl], ""));
    assert_eq!(refused.problem(403, "NotAuthorised").json()["right"], "delete");
    // A body is published, or there is no stream at all.
    let refused = server.send(&creator, put_stream("orders/new", &[TEXT], "injected"));
    assert_eq!(refused.problem(403, "NotAuthorised").json()["right"], "publish");
    assert!(!broker.has_topic(&name("orders.new")), "what was refused left a topic");
    assert_eq!(broker.topic_place(&old).expect("it is there").next, Seq(1));
    let all = server.token("all", EVERYTHING);
    let append = Request::new("POST", "/v1/stream/orders/old").header(TEXT.0, TEXT.1).body("x");
    server.send(&all, append).problem(409, "BadRequest");
    let append = Request::new("POST", "/v1/stream/orders/old")
        .header(TEXT.0, "application/octet-stream")
        .body("x");
    server.send(&all, append).is(204);
    // What is its own may be as it likes, and a stream that exists stays as it is.
    server.send(&creator, put_stream("orders/own", &[TEXT, closed], "")).is(201);
    server.send(&creator, put_stream("orders/own", &[TEXT, closed], "")).is(200);
    server.send(&creator, put_stream("orders/own", &[TEXT, closed, ttl], "")).is(409);
    server.send(&changer, put_stream("orders/old", &[TEXT], "")).is(201);
    server.send(&creator, put_stream("orders/old", &[TEXT, ttl], "")).is(409);
    server.send(&creator, put_stream("orders/old", &[TEXT, closed], "")).is(409);
}

#[test]
fn f3_a_topic_of_another_protocol_is_closed_as_a_stream_only_by_those_who_may_configure_it() {
    let server = Server::open();
    server.auth.broker().create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let writer = server.token("writer", &["allow publish,create on >"]);
    let close = |path: &str| {
        Request::new("POST", &format!("/v1/stream/{path}")).header("Stream-Closed", "true")
    };
    let refused = server.send(&writer, close("t")).problem(403, "NotAuthorised");
    assert_eq!(refused.json()["right"], "configure");
    server.send(&writer, put_stream("own", &[TEXT], "first")).is(201);
    server.send(&writer, close("own")).is(204);
}

#[test]
fn f3_each_message_in_the_body_of_a_stream_counts_for_the_quotas() {
    let server = Server::open();
    let token = server.token("shop", EVERYTHING);
    let quotas = |per_second: u64, topics: u64| {
        let quotas = json!({ "messages_per_s": per_second, "topics": topics });
        server.command(
            &json!({ "do": "identity_set", "name": "shop", "roles": ["shop"], "quotas": quotas }),
        );
    };
    let json = ("Content-Type", "application/json");
    let many = json!(vec!["x"; 6_000]).to_string();
    let append = || Request::new("POST", "/v1/stream/s").header(json.0, json.1);
    // A full bucket lets a large request pass, and is empty for a quarter of an hour then.
    quotas(5, 2);
    server.send(&token, put_stream("s", &[json], &many)).is(201);
    server.send(&token, append().body("1")).problem(429, "QuotaExceeded");
    server.send(&token, put_stream("more", &[json], "1")).problem(429, "QuotaExceeded");
    assert!(!server.auth.broker().has_topic(&name("more")), "what was refused left a topic");
    quotas(6, 1);
    server.send(&token, append().body(many)).is(204);
    server.send(&token, append().body("1")).problem(429, "QuotaExceeded");
    // One that exists is no topic more.
    server.send(&token, put_stream("s", &[json], "")).is(200);
    server.send(&token, put_stream("more", &[json], "")).problem(429, "QuotaExceeded");
}

#[test]
fn f3_paths_of_the_source_change_only_what_their_rights_allow() {
    let server = Server::open();
    let broker = server.auth.broker();
    let topic = name("t");
    broker.create_topic(&topic, TopicSettings::default()).expect("a topic");
    let before = broker.describe_topic(&topic).expect("it is there").settings;
    let creator = server.token("creator", &["allow create,read,subscribe on t"]);
    for (method, path, status) in [
        ("GET", "/topic/t/create?retention=60000", 409),
        ("GET", "/topic/t/create", 200),
        ("GET", "/topic/t/config?retention=60000", 403),
        ("POST", "/topic/t/config?compaction=true", 403),
        ("GET", "/topic/t/push?message=x", 403),
        ("GET", "/topic/u/subscribe?anyway=true", 403),
        ("POST", "/v1/topics/t/messages?create=true", 403),
        ("PUT", "/v1/groups/g", 403),
    ] {
        let request = Request::new(method, path);
        let request = if method == "GET" { request } else { request.json(&json!({})) };
        let answer = server.send(&creator, request);
        assert_eq!(answer.status(), status, "{method} {path}: {}", answer.text());
    }
    let follower = server.token("follower", &["allow subscribe on u"]);
    server.get(&follower, "/v1/topics/u/follow?anyway=true").is(403);
    let after = broker.describe_topic(&topic).expect("it is there");
    assert_eq!((after.settings, after.next), (before, Seq(1)));
    assert!(!broker.has_topic(&name("u")) && broker.group_names().is_empty());
}

/// What a request that waits is answered with when `taken` was done and messages are published.
fn waits_until(taken: impl Fn(&Server), status: u16) {
    let server = Server::open();
    let broker = server.auth.broker();
    broker.create_topic(&name("t"), TopicSettings::default()).expect("a topic");
    let (all, token) = (server.token("all", EVERYTHING), server.token("shop", EVERYTHING));
    let group = Request::new("PUT", "/v1/groups/g").json(&json!({ "source": "t" }));
    server.send(&all, group).is(201);
    let job = json!({ "id": JOB, "exec": "calc" });
    server.send(&all, Request::new("POST", "/v1/jobs").json(&job)).is(201);
    let _responder = broker.subscribe(&pattern("asked"), gapless_broker::From::Now).expect("one");
    let waiting = [
        ("GET", "/v1/topics/t/messages?from=now&wait_ms=60000"),
        ("GET", "/v1/stream/t?offset=now&live=long-poll"),
        ("POST", "/v1/groups/g/fetch?max=1&wait_ms=60000"),
        ("POST", "/v1/workers/w/take?exec=other&wait_ms=60000"),
        ("GET", "/v1/jobs/11111111-2222-4333-8444-555555555555/result?wait_ms=60000"),
        ("POST", "/v1/request/asked?timeout_ms=60000"),
    ];
    let mut clients = waiting.map(|(method, path)| {
        let proof = format!("Bearer {token}");
        let request = Request::new(method, path).header("Authorization", &proof);
        let mut client = http::Client::connect(server.http.address());
        client.write(&request.bytes());
        client
    });
    let deadline = std::time::Instant::now() + http::DEADLINE;
    while server.get(&all, "/v1/server").is(200).json()["streams"] != waiting.len() {
        assert!(std::time::Instant::now() < deadline, "not all requests wait");
    }
    taken(&server);
    let published = broker.publish(&name("t"), &Message::new("late"), &Default::default());
    published.wait().expect("an ack");
    for (client, (method, path)) in clients.iter_mut().zip(waiting) {
        let answer = client.answer();
        assert_eq!(answer.status(), status, "{method} {path}: {}", answer.text());
    }
}

#[test]
fn f3_a_request_that_waits_ends_when_its_token_is_revoked_and_hands_out_nothing() {
    waits_until(|server| drop(server.command(&json!({ "do": "token_revoke", "id": "shop" }))), 401);
}

#[test]
fn f3_a_request_that_waits_ends_when_its_right_is_taken_away_and_hands_out_nothing() {
    let nothing = json!({ "do": "role_set", "role": "shop", "rules": [] });
    waits_until(|server| drop(server.command(&nothing)), 403);
}
