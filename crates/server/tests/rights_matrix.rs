//! Every verb and every path, with its right and without: the same on each listener. What is in no
//! list here fails a test.

mod common;
#[path = "common/http.rs"]
mod http;
#[path = "common/secured.rs"]
mod secured;

use std::collections::BTreeSet;

use common::{create, name, pattern, publish, subscribe};
use gapless_core::{
    ExpectCell, GroupSettings, GroupStart, LetterFilter, Message, RejectReason, Seq, TopicSettings,
};
use gapless_protocol::*;
use http::Request;
use secured::{EVERYTHING, JOB, JobPeer, Server, refused};
use serde_json::{Value, json};

/// What can be asked of the native protocol, once each, about `t`, group `g` and the server.
fn verbs() -> Vec<Verb> {
    let (t, g) = (name("t"), name("g"));
    let settings = TopicSettings::default();
    let groups = GroupSettings::new(pattern("t"));
    let filter = LetterFilter::default;
    let part = CommitPart {
        topic: t.clone(),
        expect: None,
        records: common::records(&[Message::new("x")]),
    };
    let cell =
        CellWrite { name: "c".into(), value: Some("1".into()), expect: ExpectCell::Anything };
    vec![
        create("t").into(),
        TopicConfigure { topic: t.clone(), settings }.into(),
        TopicDescribe { topic: t.clone() }.into(),
        publish("t", &[Message::new("x")]).into(),
        Commit { parts: vec![part], ..Commit::default() }.into(),
        Commit { cells: vec![cell], ..Commit::default() }.into(),
        subscribe("t", StartFrom::Beginning).into(),
        Get { topic: t.clone(), key: "k".into() }.into(),
        Read { topic: t.clone(), seq: Seq(1) }.into(),
        Explain { topic: t.clone(), seq: Seq(1) }.into(),
        CellRead { name: "c".into() }.into(),
        Clients { after: 0, limit: 1 }.into(),
        Stats.into(),
        Cluster { json: json!({ "do": "status" }).to_string() }.into(),
        Cluster { json: json!({ "do": "leave" }).to_string() }.into(),
        GroupCreate { group: g.clone(), settings: groups.clone() }.into(),
        GroupConfigure { group: g.clone(), settings: groups }.into(),
        GroupDescribe { group: g.clone() }.into(),
        GroupJoin { group: g.clone(), name: String::new(), window: 1 }.into(),
        GroupPause { group: g.clone() }.into(),
        GroupResume { group: g.clone() }.into(),
        LetterList { group: g.clone(), from: Seq(1), limit: 1 }.into(),
        LetterRead { group: g.clone(), seq: Seq(1) }.into(),
        LetterRedrive { group: g.clone(), filter: filter(), rate: None }.into(),
        LetterRemove { group: g.clone(), filter: filter() }.into(),
        GroupReset { group: g.clone(), to: GroupStart::Beginning, force: true }.into(),
        GroupDelete { group: g }.into(),
        TopicPurge { topic: t.clone(), below: Seq(1) }.into(),
        TopicDelete { topic: t }.into(),
        Auth { json: r#"{"do":"token_list"}"#.into() }.into(),
    ]
}

fn is_denied(verb: &Verb) -> bool {
    match verb {
        Verb::PublishAck(_) => {
            matches!(verb, Verb::PublishAck(ack) if matches!(&ack.parts[..],
                [PartAck::Rejected(Rejection::Reason(RejectReason::NotAuthorised))]))
        }
        Verb::Error(error) => error.known() == Some(ErrorCode::NotAuthorised),
        _ => false,
    }
}

/// Verbs of clients that need no right, and why.
const NO_RIGHT: &[(Kind, &str)] = &[
    (Kind::Hello, "it proves who the client is"),
    (Kind::Ping, "about the connection"),
    (Kind::Pong, "about the connection"),
    (Kind::Bye, "about the connection"),
    (Kind::Unsubscribe, "about what was allowed"),
    (Kind::Credit, "about what was allowed"),
    (Kind::AwaitVisible, "about what was allowed; nodes are named to those who may look"),
    (Kind::GroupLeave, "about what was allowed"),
    (Kind::GroupAck, "about what was allowed"),
    (Kind::GroupNack, "about what was allowed"),
    (Kind::GroupExtend, "about what was allowed"),
    (Kind::GroupTerminate, "about what was allowed"),
    (Kind::GroupCredit, "about what was allowed"),
    (Kind::TopicList, "it shows what may be seen"),
    (Kind::GroupList, "it shows what may be seen"),
    (Kind::JobCredit, "a worker's hello says what it takes"),
    (Kind::CancelDelayed, "has a test of its own: it needs what is waiting"),
    (Kind::ClientClose, "has a test of its own: it needs another client"),
    (Kind::GroupStep, "has a test of its own: it needs a membership"),
];

#[test]
fn f3_every_native_verb_needs_its_right_and_has_it_where_it_is_granted() {
    let server = Server::open();
    let (none, all) = (server.token("none", &[]), server.token("all", EVERYTHING));
    let (mut none, mut all) = (server.peer(&none), server.peer(&all));
    for verb in verbs() {
        let refused = none.ask(verb.clone());
        assert!(is_denied(&refused), "{} without a right: {refused:?}", verb.kind().name());
        let done = all.ask(verb.clone());
        assert!(!is_denied(&done), "{} with the right: {done:?}", verb.kind().name());
        assert!(!matches!(done, Verb::Error(_)), "{}: {done:?}", verb.kind().name());
    }
    // Lists show what may be seen, which here is nothing.
    server.auth.broker().create_topic(&name("t2"), TopicSettings::default()).expect("a topic");
    let list = || TopicList { pattern: pattern(">"), after: None, limit: 9 };
    let Verb::TopicInfos(infos) = none.ask(list()) else { panic!("a list") };
    assert!(infos.topics.is_empty(), "{infos:?}");
    let Verb::TopicInfos(infos) = all.ask(list()) else { panic!("a list") };
    assert_eq!(infos.topics.len(), 1);
    assert!(matches!(none.ask(Ping { echo: "x".into() }), Verb::Pong(_)), "the connection goes on");
}

#[test]
fn f3_no_verb_of_clients_is_left_out_of_the_matrix() {
    let of_jobs = job_frames().into_iter().map(|(kind, ..)| kind);
    let tried: BTreeSet<Kind> = verbs().iter().map(Verb::kind).chain(of_jobs).collect();
    for kind in Kind::ALL.iter().filter(|kind| kind.side() != Side::Server) {
        let free = NO_RIGHT.iter().any(|(each, _)| each == kind);
        assert!(tried.contains(kind) != free, "{} is in one of the lists", kind.name());
    }
}

#[test]
fn f3_what_waits_for_its_time_is_cancelled_only_by_those_who_may_publish_it() {
    let server = Server::open();
    let (none, all) = (server.token("none", &[]), server.token("all", EVERYTHING));
    let topic = Request::new("PUT", "/v1/topics/later").json(&json!({}));
    server.send(&all, topic).is(201);
    let publish = Request::new("POST", "/v1/topics/later/messages?delay_ms=10000000").body("x");
    let id = server.send(&all, publish).is(202).json()["delayed"].as_u64().expect("an id");
    let cancel = || Request::new("DELETE", &format!("/v1/delayed/{id}"));
    assert_eq!(server.send(&none, cancel()).problem(403, "NotAuthorised").json()["on"], "later");
    let verb = CancelDelayed { id: gapless_core::Position(id) };
    let refused = server.peer(&none).ask(verb);
    assert!(is_denied(&refused), "{refused:?}");
    let done = server.peer(&all).ask(verb);
    assert!(matches!(&done, Verb::Cancelled(it) if it.was_waiting), "{done:?}");
}

#[test]
fn f3_a_client_is_closed_only_by_those_who_may() {
    let server = Server::open();
    let (none, all) = (server.token("none", &[]), server.token("all", EVERYTHING));
    let (mut victim, mut admin) = (server.peer(&none), server.peer(&all));
    let Verb::ClientList(list) = admin.ask(Clients { after: 0, limit: 9 }) else {
        panic!("a list")
    };
    let session = list.clients[0].session;
    // To see who is connected is not to close them.
    let monitor = server.token("watcher", &["allow admin on server", "allow admin on clients"]);
    for (token, right) in [(&none, "clients.close"), (&monitor, "clients.close")] {
        let refused = server.peer(token).ask(ClientClose { session });
        assert!(is_denied(&refused), "{refused:?}");
        let close = Request::new("DELETE", &format!("/v1/clients/{session}"));
        assert_eq!(server.send(token, close).problem(403, "NotAuthorised").json()["on"], right);
    }
    assert!(matches!(victim.ask(Ping { echo: "x".into() }), Verb::Pong(_)), "it is still there");
    let done = admin.ask(ClientClose { session });
    assert!(matches!(done, Verb::Done(_)), "{done:?}");
    let last = victim.next();
    assert!(matches!(&last, Verb::Error(error) if error.known() == Some(ErrorCode::ClosedByAdmin)));
    let gone = admin.ask(ClientClose { session: 123_456_789 });
    assert!(matches!(&gone, Verb::Error(error) if error.known() == Some(ErrorCode::UnknownClient)));
}

#[test]
fn f3_a_step_of_a_member_publishes_only_where_it_may() {
    let server = Server::open();
    let all = server.token("all", EVERYTHING);
    for topic in ["in", "out"] {
        let settings = TopicSettings::default();
        server.auth.broker().create_topic(&name(topic), settings).expect("a topic");
    }
    let group = GroupCreate { group: name("g"), settings: GroupSettings::new(pattern("in")) };
    let made = server.peer(&all).ask(group);
    assert!(matches!(made, Verb::GroupInfo(_)), "{made:?}");
    let reader = server.token("reader", &["allow group on g", "allow subscribe on in"]);
    let mut peer = server.peer(&reader);
    let joined = peer.ask(GroupJoin { group: name("g"), name: String::new(), window: 9 });
    let Verb::GroupJoined(joined) = joined else { panic!("{joined:?}") };
    let published = server.peer(&all).ask(publish("in", &[Message::new("x")]));
    common::accepted(&published);
    let leases = loop {
        if let Verb::GroupMessages(messages) = peer.next() {
            break messages.leases;
        }
    };
    let part = CommitPart {
        topic: name("out"),
        expect: None,
        records: common::records(&[Message::new("y")]),
    };
    let acks = vec![StepAck { member: joined.member, leases }];
    let commit = Commit { parts: vec![part], ..Commit::default() };
    let refused = peer.ask(GroupStep { acks, commit });
    assert!(is_denied(&refused), "{refused:?}");
    assert_eq!(server.auth.broker().topic_place(&name("out")).expect("a topic").next, Seq(1));
}

/// What can be asked about jobs, once each, about the job of [`JOB`] of the executable `calc`.
fn job_frames() -> Vec<(Kind, &'static str, Value)> {
    let id = JOB.replace('-', "");
    let attempt = json!({ "JobId": id, "ClientId": "c", "ExecName": "calc", "Status": "OK",
        "Attempt": 1, "Epoch": "" });
    let about = json!({ "JobId": id, "Ask": "show" });
    let submit = json!({ "JobId": id, "ClientId": "c", "ExecName": "calc", "Args": [] });
    vec![
        (Kind::JobClientHello, "", json!({ "ClientId": "c", "DesiredParallelism": 1 })),
        (Kind::JobWorkerHello, "job.assign.calc", json!({ "WorkerId": "w" })),
        (Kind::JobSubmit, "job.submit.calc", submit),
        (Kind::JobAck, "", attempt.clone()),
        (Kind::JobProgress, "", attempt),
        (Kind::JobRenew, "", json!({ "Attempts": [{ "JobId": id, "Attempt": 1, "Epoch": "" }] })),
        (Kind::JobWatch, "", about.clone()),
        (Kind::JobCancel, "", about.clone()),
        (Kind::JobRetry, "", about.clone()),
        (Kind::JobQuery, "", about),
    ]
}

#[test]
fn e10_every_verb_of_jobs_needs_its_right() {
    let server = Server::open();
    let (mut all, ..) = JobPeer::client(&server, Some(&server.token("all", EVERYTHING)));
    assert_eq!(all.submit(&JOB.replace('-', ""), "calc")["Accepted"], true);
    let none = server.token("none", &["allow job.submit,job.work on other"]);
    for (kind, subject, payload) in job_frames() {
        if matches!(kind, Kind::JobClientHello | Kind::JobWorkerHello) {
            let mut stranger = JobPeer(server.silent());
            refused(&stranger.ask(kind, subject, &payload).1, "");
            continue;
        }
        let works = matches!(kind, Kind::JobAck | Kind::JobProgress | Kind::JobRenew);
        let mut peer = if works {
            JobPeer::worker(&server, Some(&none), "job.assign.other").0
        } else {
            JobPeer::client(&server, Some(&none)).0
        };
        let (answer, value) = peer.ask(kind, subject, &payload);
        assert_eq!(answer, Kind::JobAnswer, "{}: {value}", kind.name());
        refused(&value, "none may not job.");
    }
    let (_, state) = all.ask(Kind::JobQuery, "", &json!({ "JobId": JOB, "Ask": "show" }));
    assert_ne!(state["Jobs"][0]["State"], "cancelled", "{state}");
}

/// What can be asked over HTTP: method, path, body.
fn requests() -> Vec<(&'static str, &'static str, Value)> {
    let nothing = Value::Null;
    let atomic = json!({ "parts": [{ "topic": "t", "messages": [{ "text": "x" }] }] });
    vec![
        ("PUT", "/v1/topics/t", json!({})),
        ("GET", "/v1/topics/t", nothing.clone()),
        ("PATCH", "/v1/topics/t", json!({})),
        ("POST", "/v1/topics/t/messages", json!("x")),
        ("POST", "/v1/topics/u/messages?create=true", json!("x")),
        ("POST", "/v1/atomic", atomic),
        ("GET", "/v1/topics/t/messages", nothing.clone()),
        ("GET", "/v1/topics/t/messages/1", nothing.clone()),
        ("GET", "/v1/topics/t/messages/1/body", nothing.clone()),
        ("GET", "/v1/topics/t/messages/1/explain", nothing.clone()),
        ("GET", "/topic/t/config", nothing.clone()),
        ("POST", "/topic/t/config", json!({ "compaction": false })),
        ("POST", "/topic/t/push", json!({ "data": 1 })),
        ("GET", "/topic/v/create", nothing.clone()),
        ("PUT", "/v1/groups/g", json!({ "source": "t" })),
        ("GET", "/v1/groups/g", nothing.clone()),
        ("PATCH", "/v1/groups/g", json!({})),
        ("POST", "/v1/groups/g/fetch?max=1", nothing.clone()),
        ("POST", "/v1/groups/g/pause", nothing.clone()),
        ("POST", "/v1/groups/g/resume", nothing.clone()),
        ("GET", "/v1/groups/g/dead-letters", nothing.clone()),
        ("DELETE", "/v1/groups/g/dead-letters?all=true", nothing.clone()),
        ("POST", "/v1/groups/g/dead-letters/redrive", nothing.clone()),
        ("DELETE", "/v1/groups/g", nothing.clone()),
        ("GET", "/v1/server", nothing.clone()),
        ("GET", "/v1/state/history", nothing.clone()),
        ("GET", "/v1/cluster", nothing.clone()),
        ("POST", "/v1/cluster/leave", nothing.clone()),
        ("POST", "/v1/backups", nothing.clone()),
        ("PUT", "/v1/stream/s", json!([])),
        ("POST", "/v1/stream/s", json!("x")),
        ("GET", "/v1/stream/s", nothing.clone()),
        ("DELETE", "/v1/stream/s", nothing.clone()),
        ("POST", "/v1/jobs", json!({ "id": JOB, "exec": "calc", "retry_ms": [1] })),
        ("GET", "/v1/jobs/11111111-2222-4333-8444-555555555555", nothing.clone()),
        ("GET", "/v1/jobs/11111111-2222-4333-8444-555555555555/result", nothing.clone()),
        ("GET", "/v1/jobs/11111111-2222-4333-8444-555555555555/log", nothing.clone()),
        ("GET", "/v1/jobs/overview", nothing.clone()),
        ("POST", "/v1/workers/w/take?exec=calc&wait_ms=30000", nothing.clone()),
        ("POST", "/v1/workers/w/extend", json!({ "job_id": JOB, "attempt": 1 })),
        ("POST", "/v1/workers/w/output", json!({ "job_id": JOB, "attempt": 1, "text": "x" })),
        ("POST", "/v1/workers/w/fail", json!({ "job_id": JOB, "attempt": 1, "retryable": true })),
        ("POST", "/v1/workers/w/take?exec=calc&wait_ms=30000", nothing.clone()),
        ("POST", "/v1/workers/w/complete", json!({ "job_id": JOB, "attempt": 2 })),
        ("DELETE", "/v1/jobs/11111111-2222-4333-8444-555555555555", nothing.clone()),
        ("POST", "/v1/jobs", json!({ "id": JOB, "exec": "calc" })),
        ("POST", "/v1/jobs/11111111-2222-4333-8444-555555555555/cancel", nothing.clone()),
        ("POST", "/v1/jobs/11111111-2222-4333-8444-555555555555/retry", nothing.clone()),
        ("POST", "/v1/topics/t/purge?all=true", nothing.clone()),
        ("DELETE", "/v1/topics/t", nothing),
        ("POST", "/v1/auth", json!({ "do": "role_list" })),
    ]
}

/// What is not there, or not held, but must not be asked for without the right either.
fn more_requests() -> Vec<(&'static str, &'static str, Value)> {
    let leases = json!({ "leases": [] });
    vec![
        ("GET", "/v1/topics/t/latest?key=k", Value::Null),
        ("GET", "/v1/topics/t/latest/body?key=k", Value::Null),
        ("POST", "/v1/request/t?timeout_ms=1", json!("x")),
        ("DELETE", "/v1/clients/123456789", Value::Null),
        ("POST", "/v1/groups/g/reset?to=beginning", Value::Null),
        ("POST", "/v1/groups/g/ack", leases.clone()),
        ("POST", "/v1/groups/g/nack", leases.clone()),
        ("POST", "/v1/groups/g/terminate", leases.clone()),
        ("POST", "/v1/groups/g/extend", leases.clone()),
        ("POST", "/v1/groups/g/commit", leases),
        ("DELETE", "/v1/groups/g/members/m", Value::Null),
        ("GET", "/v1/groups/g/dead-letters/1", Value::Null),
        ("DELETE", "/v1/groups/g/dead-letters/1", Value::Null),
        ("POST", "/topic/w/create", Value::Null),
        ("GET", "/v1/backups/b/state", Value::Null),
        ("GET", "/v1/backups/b/blobs/x", Value::Null),
        ("GET", "/v1/backups/b/blobs/x/checksum", Value::Null),
        ("DELETE", "/v1/backups/b", Value::Null),
        ("GET", "/topic/t/push?message=x", Value::Null),
    ]
}

#[test]
fn f3_a_path_is_refused_before_it_says_what_is_there() {
    let server = Server::open();
    let (none, all) = (server.token("none", &[]), server.token("all", EVERYTHING));
    for (method, path, body) in more_requests() {
        let request = || {
            let request = Request::new(method, path);
            if body.is_null() { request } else { request.json(&body) }
        };
        let refused = server.send(&none, request());
        assert_eq!(refused.status(), 403, "{method} {path}: {}", refused.text());
        let done = server.send(&all, request()).status();
        assert!(![401, 403].contains(&done), "{method} {path}: {done}");
        let unknown = http::Client::connect(server.http.address()).send(&request());
        assert_eq!(unknown.status(), 401, "{method} {path} without a proof");
    }
}

/// Requests that are tried otherwise, or need no right, and why.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("get", "/", "the files of the page; its state is checked below"),
    ("get", "/healthz", "needs nothing"),
    ("get", "/readyz", "needs nothing"),
    ("get", "/openapi.json", "needs nothing"),
    ("get", "/about", "needs a proof only"),
    ("get", "/metrics", "checked below"),
    ("get", "/v1/state/live", "a stream, checked below"),
    ("get", "/v1/follow", "a stream, checked below"),
    ("get", "/v1/topics/{name}/follow", "a stream, checked below"),
    ("get", "/topic/{name}/subscribe", "a stream, checked below"),
    ("get", "/v1/jobs/{id}/follow", "a stream, checked below"),
    ("get", "/v1/topics", "it shows what may be seen"),
    ("get", "/v1/groups", "it shows what may be seen"),
    ("get", "/v1/jobs", "it shows what may be seen"),
    ("post", "/v1/jobs/retry", "it retries what may be seen"),
    ("delete", "/v1/delayed/{id}", "has a test of its own"),
];

/// Whether a request is one of a described path.
fn is_of(path: &str, request: &str) -> bool {
    let request = request.split('?').next().expect("a path");
    let (described, asked): (Vec<&str>, Vec<&str>) =
        (path.split('/').collect(), request.split('/').collect());
    let fits = |(of, part): (&&str, &&str)| of == part || (of.starts_with('{') && !part.is_empty());
    described.len() == asked.len() && described.iter().zip(&asked).all(fits)
}

#[test]
fn f3_no_path_of_the_description_is_left_out_of_the_matrix() {
    let text = include_str!("../../../docs/openapi.json");
    let described: Value = serde_json::from_str(text).expect("JSON");
    let all = described["paths"].as_object().expect("paths");
    // A path with a fixed word fits also one with a parameter in its place.
    let best = |request: &str| {
        let fitting = all.keys().filter(|path| is_of(path, request));
        fitting.min_by_key(|path| path.matches('{').count()).cloned()
    };
    let tried: BTreeSet<(String, String)> = requests()
        .into_iter()
        .chain(more_requests())
        .filter_map(|(method, path, _)| Some((method.to_lowercase(), best(path)?)))
        .collect();
    for (path, item) in all {
        for method in ["get", "put", "post", "patch", "delete"] {
            if item.get(method).is_none() {
                continue;
            }
            let free = ELSEWHERE.iter().any(|(of, at, _)| *of == method && *at == path);
            let tried = tried.contains(&(method.to_owned(), path.clone()));
            assert!(tried || free, "{method} {path} is in none of the lists");
        }
    }
}

#[test]
fn f3_every_http_path_needs_its_right_and_has_it_where_it_is_granted() {
    let server = Server::open();
    let (none, all) = (server.token("none", &[]), server.token("all", EVERYTHING));
    for (method, path, body) in requests() {
        let request = || {
            let request = Request::new(method, path);
            if body.is_null() { request } else { request.json(&body) }
        };
        let refused = server.send(&none, request());
        assert_eq!(refused.status(), 403, "{method} {path}: {}", refused.text());
        let done = server.send(&all, request());
        assert!(done.status() < 300, "{method} {path}: {} {}", done.status(), done.text());
        let unknown = http::Client::connect(server.http.address()).send(&request());
        assert_eq!(unknown.status(), 401, "{method} {path} without a proof");
        assert_eq!(unknown.header("www-authenticate"), Some("Bearer"));
    }
    for path in
        ["/v1/follow?pattern=t", "/v1/topics/t/follow", "/topic/t/subscribe", "/v1/state/live"]
    {
        server.get(&none, path).is(403);
    }
    server.get(&none, &format!("/v1/jobs/{JOB}/follow")).is(403);
    assert_eq!(server.get(&none, "/v1/topics").is(200).json()["topics"], json!([]));
    assert_eq!(server.get(&none, "/v1/jobs").is(200).json()["jobs"], json!([]));
    let retry = Request::new("POST", "/v1/jobs/retry?state=cancelled");
    assert_eq!(server.send(&none, retry).is(200).json()["retried"], json!([]));
    assert_eq!(server.get(&all, "/v1/jobs").is(200).json()["jobs"][0]["job_id"], JOB);
    let open =
        |path: &str| http::Client::connect(server.http.address()).send(&Request::new("GET", path));
    for path in ["/healthz", "/readyz", "/openapi.json", "/"] {
        open(path).is(200);
    }
    open("/metrics").is(401);
    open("/about").is(401);
    server.get(&none, "/metrics").is(403);
    server.get(&none, "/about").is(200);
    let state = |token: &str| {
        server.send(token, Request::new("GET", "/").header("Accept", "application/json"))
    };
    state(&none).is(403);
    state(&all).is(200);
    assert_eq!(server.get(&none, "/v1/groups").is(200).json()["groups"], json!([]));
}
