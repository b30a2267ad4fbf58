//! Groups over HTTP: made and changed, and members that take, ack and come back.

#[path = "common/http.rs"]
mod http;

use std::time::{Duration, Instant};

use http::{Answer, DEADLINE, Request, Server};
use serde_json::{Value, json};

fn post(server: &Server, path: &str, json: &Value) -> Value {
    server.post_json(path, json).is(200).json()
}

fn publish(server: &Server, topic: &str, bodies: &[&str]) {
    for body in bodies {
        server.post(&format!("/v1/topics/{topic}/messages?create=true"), *body).is(201);
    }
}

/// A topic with these messages and a group `work` that reads it.
fn prepared(server: &Server, settings: &Value, bodies: &[&str]) {
    server.put("/v1/topics/orders", &json!({})).is(201);
    publish(server, "orders", bodies);
    let mut whole = json!({ "source": "orders" });
    for (name, value) in settings.as_object().expect("settings") {
        whole[name] = value.clone();
    }
    server.put("/v1/groups/work", &whole).is(201);
}

fn fetch(server: &Server, query: &str) -> Value {
    server.post(&format!("/v1/groups/work/fetch?{query}"), "").is(200).json()
}

fn texts(fetched: &Value) -> Vec<String> {
    let messages = fetched["messages"].as_array().expect("messages").iter();
    messages.map(|message| message["text"].as_str().expect("text").to_owned()).collect()
}

fn group(server: &Server) -> Value {
    server.get("/v1/groups/work").is(200).json()
}

/// Waits until the group is like that.
#[track_caller]
fn until(server: &Server, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let now = group(server);
        if is(&now) {
            return now;
        }
        assert!(began.elapsed() < DEADLINE, "{what}: {now:#}");
        std::thread::yield_now();
    }
}

#[test]
fn c6_a_group_is_made_described_configured_and_deleted() {
    let server = Server::open();
    let settings = json!({
        "source": "orders.>", "mode": "keyed", "lease_ms": 5000, "attempts_max": 3,
        "retry": { "steps_ms": [0, 250], "jitter_percent": 0 },
    });
    let made = server.put("/v1/groups/work", &settings).is(201).json();
    assert_eq!(made["name"], "work");
    assert_eq!(made["state"], "running");
    assert_eq!(made["lag"], 0);
    assert_eq!(made["settings"]["mode"], "keyed");
    assert_eq!(made["settings"]["retry"]["steps_ms"], json!([0, 250]));
    server.put("/v1/groups/work", &settings).is(200);
    server.put("/v1/groups/work", &json!({ "source": "other" })).problem(409, "GroupExists");

    let patch = |json: Value| server.send(&Request::new("PATCH", "/v1/groups/work").json(&json));
    let changed = patch(json!({ "attempts_max": 9, "lease_ms": null })).is(200).json();
    assert_eq!(changed["settings"]["attempts_max"], 9);
    assert_eq!(changed["settings"]["lease_ms"], 30_000);
    assert_eq!(changed["settings"]["mode"], "keyed", "what is not named stays");
    patch(json!({ "mode": "shared" })).problem(409, "GroupFixed");
    patch(json!({ "start": "now" })).problem(400, "BadSettings");

    server.delete("/v1/groups/work").is(204);
    server.get("/v1/groups/work").problem(404, "UnknownGroup");
    server.delete("/v1/groups/work").problem(404, "UnknownGroup");
}

#[test]
fn groups_are_listed_by_pattern_and_page() {
    let server = Server::open();
    for name in ["a.1", "a.2", "a.3", "b.1"] {
        server.put(&format!("/v1/groups/{name}"), &json!({ "source": "x" })).is(201);
    }
    let names = |path: &str| {
        let list = server.get(path).is(200).json();
        let names = list["groups"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|group| group["name"].as_str().unwrap().to_owned()).collect();
        (names.join(" "), list["next"].as_str().map(str::to_owned))
    };
    assert_eq!(names("/v1/groups"), ("a.1 a.2 a.3 b.1".into(), None));
    assert_eq!(names("/v1/groups?pattern=a.*&limit=2"), ("a.1 a.2".into(), Some("a.2".into())));
    assert_eq!(names("/v1/groups?pattern=a.*&limit=2&after=a.2"), ("a.3".into(), None));
}

#[test]
fn c6_what_is_fetched_and_acked_does_not_come_again() {
    let server = Server::open();
    prepared(&server, &json!({}), &["1", "2", "3"]);
    let two = fetch(&server, "max=2&member=m");
    assert_eq!(texts(&two), ["1", "2"]);
    assert_eq!((two["member"].clone(), two["count"].clone()), ("m".into(), 2.into()));
    assert_eq!(two["messages"][0]["attempt"], 1);
    assert_eq!(two["leases"].as_array().unwrap().len(), 1, "neighbours share a lease");
    assert!(two["deadline_ms"].as_u64() > Some(0));
    let held = group(&server);
    assert_eq!((held["in_flight"].clone(), held["lag"].clone()), (2.into(), 3.into()));
    assert_eq!(held["members"][0]["name"], "m");

    // One by its own lease, then both: the first is refused then.
    let one = json!({ "leases": [two["messages"][0]["lease"]] });
    let acked = post(&server, "/v1/groups/work/ack", &one);
    assert_eq!(acked, json!({ "taken": 1, "refused": 0 }));
    let both = json!({ "leases": two["leases"] });
    let acked = post(&server, "/v1/groups/work/ack?wait=false", &both);
    assert_eq!(acked, json!({ "taken": 1, "refused": 1 }));
    let last = fetch(&server, "member=m");
    assert_eq!(texts(&last), ["3"]);
    let through = json!({ "member": "m", "position": last["messages"][0]["position"] });
    let done = post(&server, "/v1/groups/work/commit", &through);
    assert_eq!(done, json!({ "taken": 1, "refused": 0 }));
    let done = group(&server);
    assert_eq!(done["lag"], 0);
    assert_eq!(done["why"], "It is caught up: everything is done.");
    assert_eq!(texts(&fetch(&server, "member=m")), [""; 0]);
}

#[test]
fn c6_a_nack_brings_it_again_and_a_terminate_ends_it_as_a_dead_letter() {
    let server = Server::open();
    prepared(&server, &json!({ "attempts_max": 5 }), &["good", "bad"]);
    let both = fetch(&server, "member=m");
    let lease = |at: usize| json!([both["messages"][at]["lease"]]);
    let again = json!({ "leases": lease(0), "delay_ms": 0, "reason": "not today" });
    assert_eq!(post(&server, "/v1/groups/work/nack", &again)["taken"], 1);
    let ends = json!({ "leases": lease(1), "reason": "cannot be read" });
    assert_eq!(post(&server, "/v1/groups/work/terminate", &ends)["taken"], 1);
    let second = fetch(&server, "member=m&wait_ms=30000");
    assert_eq!(texts(&second), ["good"]);
    assert_eq!(second["messages"][0]["attempt"], 2);

    let dead = until(&server, "a dead letter", |group| group["dead_letters"] == 1);
    assert_eq!(dead["redelivered"], 1);
    let list = server.get("/v1/groups/work/dead-letters").is(200).json();
    let letter = &list["letters"][0];
    assert_eq!(letter["text"], "bad");
    assert_eq!(letter["error"], "cannot be read");
    assert_eq!(
        (letter["topic"].clone(), letter["origin_seq"].clone()),
        ("orders".into(), 2.into())
    );
    assert_eq!(list["next"], Value::Null);
    let seq = letter["seq"].as_u64().unwrap();
    let one = server.get(&format!("/v1/groups/work/dead-letters/{seq}")).is(200).json();
    assert_eq!(&one, letter);
    server.get("/v1/groups/work/dead-letters/99").problem(404, "NoSuchMessage");
}

#[test]
fn dead_letters_are_driven_again_by_filter_and_rate_and_removed() {
    let server = Server::open();
    prepared(&server, &json!({ "attempts_max": 1 }), &[]);
    for key in ["a", "b", "c", "d"] {
        server.post(&format!("/v1/topics/orders/messages?key={key}"), key).is(201);
    }
    let all = fetch(&server, "member=m");
    for message in all["messages"].as_array().unwrap() {
        let reason = format!("cannot do {}", message["key"].as_str().unwrap());
        let said = json!({ "leases": [message["lease"]], "reason": reason });
        post(&server, "/v1/groups/work/nack", &said);
    }
    until(&server, "four letters", |group| group["dead_letters"] == 4);
    let page = server.get("/v1/groups/work/dead-letters?limit=3").is(200).json();
    assert_eq!(page["letters"].as_array().unwrap().len(), 3);
    let next = page["next"].as_u64().unwrap();
    let path = format!("/v1/groups/work/dead-letters?from={next}");
    assert_eq!(server.get(&path).is(200).json()["letters"].as_array().unwrap().len(), 1);

    let found = server.get("/v1/groups/work/dead-letters?error=do+b&topic=orders&to=4").is(200);
    assert_eq!(found.json()["letters"][0]["key"], "b");
    assert_eq!(found.json()["letters"].as_array().unwrap().len(), 1);

    let redrive = |query: &str| {
        let path = format!("/v1/groups/work/dead-letters/redrive?{query}");
        server.post(&path, "").is(200).json()
    };
    assert_eq!(redrive("key=a"), json!({ "moved": 1, "goes_on": false }));
    assert_eq!(redrive("error=do+b"), json!({ "moved": 1, "goes_on": false }));
    assert_eq!(redrive("topic=other.*"), json!({ "moved": 0, "goes_on": false }));
    let again = fetch(&server, "member=m&wait_ms=30000&max=2");
    assert_eq!(texts(&again), ["a", "b"]);
    assert_eq!(redrive("rate=0"), json!({ "moved": 0, "goes_on": false }), "none to end");
    assert_eq!(redrive("rate=1000&key=c"), json!({ "moved": 0, "goes_on": true }));
    assert_eq!(texts(&fetch(&server, "member=m&wait_ms=30000")), ["c"]);

    server.delete("/v1/groups/work/dead-letters").problem(400, "BadRequest");
    until(&server, "one letter", |group| group["dead_letters"] == 1);
    let left = server.get("/v1/groups/work/dead-letters").is(200).json();
    let seq = left["letters"][0]["seq"].as_u64().unwrap();
    server.delete(&format!("/v1/groups/work/dead-letters/{seq}")).is(204);
    server.delete(&format!("/v1/groups/work/dead-letters/{seq}")).problem(404, "NoSuchMessage");
    let none = server.delete("/v1/groups/work/dead-letters?all=true").is(200).json();
    assert_eq!(none["removed"], 0);
}

#[test]
fn c6_a_lease_that_is_extended_stays_and_one_that_ran_out_comes_again() {
    let server = Server::open();
    let retry = json!({ "steps_ms": [0] });
    prepared(&server, &json!({ "lease_ms": 400, "retry": retry }), &["1"]);
    let first = fetch(&server, "member=m");
    for said in [json!({ "leases": first["leases"] }), json!({ "member": "m" })] {
        let extended = post(&server, "/v1/groups/work/extend", &said);
        assert_eq!((extended["taken"].clone(), extended["refused"].clone()), (1.into(), 0.into()));
        assert!(extended["deadline_ms"].as_u64() >= first["deadline_ms"].as_u64());
    }
    // No further request: another member gets it when the lease has expired.
    let other = fetch(&server, "member=other&wait_ms=30000");
    assert_eq!(
        (texts(&other), other["messages"][0]["attempt"].clone()),
        (vec!["1".into()], 2.into())
    );
    let late = json!({ "leases": first["leases"] });
    for verb in ["ack", "nack", "extend", "terminate"] {
        let answer = post(&server, &format!("/v1/groups/work/{verb}"), &late);
        assert_eq!((answer["taken"].clone(), answer["refused"].clone()), (0.into(), 1.into()));
    }
    let done = json!({ "leases": other["leases"] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &done)["taken"], 1);
}

#[test]
fn a_long_poll_is_woken_by_a_publish() {
    let server = Server::open();
    prepared(&server, &json!({}), &[]);
    let mut waiting = server.connect();
    waiting.write(&Request::new("POST", "/v1/groups/work/fetch?member=m&wait_ms=30000").bytes());
    until(&server, "it is a member", |group| group["member_count"] == 1);
    publish(&server, "orders", &["now"]);
    assert_eq!(texts(&waiting.answer().is(200).json()), ["now"]);
}

#[test]
fn one_that_stopped_waiting_does_not_keep_a_wake_from_another() {
    let server = Server::open();
    prepared(&server, &json!({}), &[]);
    // The first gives up by itself, the second because its client goes.
    fetch(&server, "member=gave-up&wait_ms=1");
    let mut gone = server.connect();
    gone.write(&Request::new("POST", "/v1/groups/work/fetch?member=gone&wait_ms=60000").bytes());
    until(&server, "two members", |group| group["member_count"] == 2);
    let mut waiting = server.connect();
    let request = Request::new("POST", "/v1/groups/work/fetch?member=here&wait_ms=30000");
    waiting.write(&request.bytes());
    until(&server, "three members", |group| group["member_count"] == 3);
    drop(gone);
    server.delete("/v1/groups/work/members/gone").is(204);
    publish(&server, "orders", &["now"]);
    assert_eq!(texts(&waiting.answer().is(200).json()), ["now"]);
}

#[test]
fn c6_what_was_leased_for_one_who_went_away_comes_to_another() {
    let server = Server::open();
    let retry = json!({ "steps_ms": [0] });
    prepared(&server, &json!({ "lease_ms": 300, "retry": retry }), &[]);
    let mut gone = server.connect();
    gone.write(&Request::new("POST", "/v1/groups/work/fetch?member=gone&wait_ms=60000").bytes());
    until(&server, "it is a member", |group| group["member_count"] == 1);
    // Whether the server has noticed or not when they come: nothing is lost.
    drop(gone);
    publish(&server, "orders", &["1", "2", "3"]);
    let mut got = Vec::new();
    while got.len() < 3 {
        let fetched = fetch(&server, "member=here&wait_ms=30000");
        let taken = post(&server, "/v1/groups/work/ack", &json!({ "leases": fetched["leases"] }));
        assert_eq!(taken["taken"], fetched["count"]);
        got.extend(texts(&fetched));
    }
    got.sort();
    assert_eq!(got, ["1", "2", "3"]);
    assert_eq!(group(&server)["lag"], 0);
}

#[test]
fn c6_two_members_share_and_one_that_leaves_gives_its_messages_back() {
    let server = Server::open();
    prepared(&server, &json!({}), &["1", "2", "3", "4"]);
    let a = fetch(&server, "member=a&max=2");
    let b = fetch(&server, "member=b&max=2");
    assert_eq!(
        (texts(&a), texts(&b)),
        (vec!["1".into(), "2".into()], vec!["3".into(), "4".into()])
    );
    // A lease is its member's: the other's is not touched.
    let mixed = json!({ "leases": [a["messages"][0]["lease"], b["messages"][0]["lease"]] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &mixed)["taken"], 2);
    server.delete("/v1/groups/work/members/a").is(204);
    server.delete("/v1/groups/work/members/a").problem(404, "UnknownMember");
    let given_back = fetch(&server, "member=b&wait_ms=30000");
    assert_eq!(texts(&given_back), ["2"]);
    assert_eq!(given_back["messages"][0]["attempt"], 1, "leaving is not a failure");
    let late = json!({ "leases": a["leases"] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &late), json!({ "taken": 0, "refused": 2 }));
}

#[test]
fn c6_in_an_ordered_group_one_is_active_and_the_other_takes_over() {
    let server = Server::open();
    prepared(&server, &json!({ "mode": "ordered" }), &["1", "2"]);
    let a = fetch(&server, "member=a&max=1");
    assert_eq!((texts(&a), a["active"].clone()), (vec!["1".into()], true.into()));
    let b = fetch(&server, "member=b");
    assert_eq!((texts(&b), b["active"].clone()), (vec![], false.into()));
    server.delete("/v1/groups/work/members/a").is(204);
    let b = fetch(&server, "member=b&wait_ms=30000");
    assert_eq!((texts(&b), b["active"].clone()), (vec!["1".into(), "2".into()], true.into()));
}

#[test]
fn sessions_without_a_name_get_one_and_expire_when_nobody_uses_them() {
    let server = Server::with(|http, _| http.member_idle = Duration::from_millis(300));
    let retry = json!({ "steps_ms": [0] });
    prepared(&server, &json!({ "lease_ms": 300, "retry": retry }), &["1"]);
    let first = fetch(&server, "");
    let name = first["member"].as_str().unwrap().to_owned();
    assert_eq!(texts(&first), ["1"]);
    until(&server, "it is gone", |group| group["member_count"] == 0);
    let again = fetch(&server, "wait_ms=30000");
    assert_ne!(again["member"], name.as_str());
    assert_eq!(
        (texts(&again), again["messages"][0]["attempt"].clone()),
        (vec!["1".into()], 2.into())
    );
    let late = json!({ "leases": first["leases"] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &late), json!({ "taken": 0, "refused": 1 }));
    server
        .post_json("/v1/groups/work/extend", &json!({ "member": name }))
        .problem(404, "UnknownMember");
}

#[test]
fn there_are_no_more_sessions_than_the_options_allow() {
    let server = Server::with(|http, _| http.members_max = 2);
    prepared(&server, &json!({}), &[]);
    fetch(&server, "member=a");
    fetch(&server, "member=b");
    server.post("/v1/groups/work/fetch?member=c", "").problem(429, "TooManyMembers");
    fetch(&server, "member=a");
    server.delete("/v1/groups/work/members/a").is(204);
    fetch(&server, "member=c");
}

#[test]
fn c6_after_a_restart_the_unacked_comes_again_and_old_leases_are_refused() {
    let server = Server::open();
    prepared(&server, &json!({}), &["1", "2", "3"]);
    let before = fetch(&server, "member=m");
    let first = json!({ "leases": [before["messages"][0]["lease"]] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &first)["taken"], 1);
    let server = Server::on(server.close(), |_, _| ());
    let after = fetch(&server, "member=m&wait_ms=30000");
    assert_eq!(texts(&after), ["2", "3"]);
    let old = json!({ "leases": [before["messages"][1]["lease"]] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &old), json!({ "taken": 0, "refused": 1 }));
    let new = json!({ "leases": after["leases"] });
    assert_eq!(post(&server, "/v1/groups/work/ack", &new), json!({ "taken": 2, "refused": 0 }));
}

#[test]
fn c6_acks_and_messages_are_one_step() {
    let server = Server::open();
    prepared(&server, &json!({}), &["1", "2"]);
    server.put("/v1/topics/copy", &json!({})).is(201);
    let fetched = fetch(&server, "member=m");
    let message = &fetched["messages"][0];
    // A message can be published as it was fetched.
    let step = |acks: Value| json!({ "acks": acks, "parts": [{ "topic": "copy", "messages": [message] }] });
    let done = post(&server, "/v1/atomic", &step(json!([message["lease"]])));
    assert_eq!(done["parts"][0]["first"], 1);
    assert_eq!(group(&server)["lag"], 1);
    // Again: the lease is spent, so nothing is published.
    server.post_json("/v1/atomic", &step(json!([message["lease"]]))).problem(409, "LeaseLost");
    assert_eq!(server.get("/v1/topics/copy").is(200).json()["next"], 2);
    post(&server, "/v1/atomic", &json!({ "acks": [fetched["messages"][1]["lease"]] }));
    assert_eq!(group(&server)["lag"], 0);
}

#[test]
fn a_group_is_paused_resumed_and_reset() {
    let server = Server::open();
    prepared(&server, &json!({}), &["1", "2"]);
    let paused = server.post("/v1/groups/work/pause", "").is(200).json();
    assert_eq!(paused["state"], "paused");
    assert!(paused["why"].as_str().unwrap().contains("paused"));
    assert_eq!(texts(&fetch(&server, "member=m")), [""; 0]);
    assert_eq!(server.post("/v1/groups/work/resume", "").is(200).json()["state"], "running");
    let all = fetch(&server, "member=m&wait_ms=30000");
    post(&server, "/v1/groups/work/ack", &json!({ "leases": all["leases"] }));

    let refused = server.post("/v1/groups/work/reset?to=beginning", "").problem(409, "GroupActive");
    assert_eq!(refused.json()["members"], 1);
    server.post("/v1/groups/work/reset?to=seq:2&force=true", "").is(200);
    assert_eq!(texts(&fetch(&server, "member=m&wait_ms=30000")), ["2"]);
    server.delete("/v1/groups/work/members/m").is(204);
    assert_eq!(server.post("/v1/groups/work/reset?to=now", "").is(200).json()["lag"], 0);
    assert_eq!(server.post("/v1/groups/work/reset?to=beginning", "").is(200).json()["lag"], 2);
    server.post("/v1/groups/work/reset", "").problem(400, "BadRequest");
}

#[test]
fn d10_a_group_whose_history_is_gone_stops_and_says_why() {
    let server = Server::open();
    prepared(&server, &json!({}), &[]);
    publish(&server, "orders", &["1", "2", "3"]);
    server.post("/v1/topics/orders/purge?below=3", "").is(200);
    let told = fetch(&server, "member=m&wait_ms=30000");
    assert_eq!(told["gaps"][0]["topic"], "orders", "{told:#}");
    assert_eq!(told["gaps"][0]["reason"], "purge");
    let stopped = group(&server);
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["gap"]["reason"], "purge");
    server.post("/v1/groups/work/resume", "").is(200);
    assert_eq!(texts(&fetch(&server, "member=m&wait_ms=30000")), ["3"]);
}

#[test]
fn a_deleted_group_ends_a_wait() {
    let server = Server::open();
    prepared(&server, &json!({}), &[]);
    let mut waiting = server.connect();
    waiting.write(&Request::new("POST", "/v1/groups/work/fetch?member=m&wait_ms=30000").bytes());
    until(&server, "it is a member", |group| group["member_count"] == 1);
    let topic = gapless_core::TopicName::parse("work").unwrap();
    server.broker.delete_group(&topic).unwrap();
    waiting.answer().problem(410, "GroupDeleted");
    server.post("/v1/groups/work/fetch?member=m", "").problem(404, "UnknownGroup");
}

#[test]
fn what_makes_no_sense_is_a_problem() {
    let server = Server::open();
    prepared(&server, &json!({}), &["1"]);
    for (settings, status, name) in [
        (json!({}), 400, "BadRequest"),
        (json!({ "source": "a.>.b" }), 400, "BadPattern"),
        (json!({ "source": "a", "mode": "wild" }), 400, "BadSettings"),
        (json!({ "source": "a", "lease_ms": 1 }), 400, "BadSettings"),
        (json!({ "source": "a", "start": "last-per-key" }), 400, "BadRequest"),
        (json!({ "source": "none", "start": "seq:3" }), 400, "NeedsTopic"),
        (json!({ "source": "a", "leese_ms": 1 }), 400, "BadRequest"),
        (json!({ "source": "a", "retry": { "steps_ms": [1], "factor": 2 } }), 400, "BadSettings"),
    ] {
        server.put("/v1/groups/other", &settings).problem(status, name);
    }
    server.put("/v1/groups/$own", &json!({ "source": "a" })).problem(403, "ReservedName");
    let posted = |path: &str, json: Value| -> Answer { server.post_json(path, &json) };
    for (verb, said) in [
        ("ack", json!({})),
        ("ack", json!({ "leases": [] })),
        ("ack", json!({ "leases": ["x"] })),
        ("ack", json!({ "leases": ["x"], "reason": "r" })),
        ("nack", json!({ "leases": ["x"], "reason": "r".repeat(2000) })),
        ("extend", json!({})),
        ("commit", json!({ "member": "m" })),
        ("commit", json!({ "position": 1 })),
    ] {
        posted(&format!("/v1/groups/work/{verb}"), said).problem(400, "BadRequest");
    }
    for query in ["max=0", "max=10001", "max=x", "wait=1", "member="] {
        server.post(&format!("/v1/groups/work/fetch?{query}"), "").problem(400, "BadRequest");
    }
    server.post("/v1/groups/none/fetch", "").problem(404, "UnknownGroup");
    posted("/v1/groups/work/commit", json!({ "member": "no", "position": 1 }))
        .problem(404, "UnknownMember");
    let rate = "/v1/groups/work/dead-letters/redrive?rate=-1";
    server.post(rate, "").problem(400, "BadRequest");
    server.get("/v1/groups/none/dead-letters").problem(404, "UnknownGroup");
}

#[test]
fn more_than_fits_comes_with_the_next_fetch() {
    let server = Server::open();
    let large = "x".repeat(900_000);
    let bodies: Vec<&str> = (0..12).map(|_| large.as_str()).collect();
    prepared(&server, &json!({}), &bodies);
    let mut got = 0;
    let mut leases = Vec::new();
    let mut fetches = 0;
    while got < 12 {
        let fetched = fetch(&server, "member=m&wait_ms=30000");
        assert!(fetched["count"].as_u64() < Some(12));
        got += fetched["count"].as_u64().unwrap();
        leases.extend(fetched["leases"].as_array().unwrap().clone());
        fetches += 1;
    }
    assert!(fetches > 1);
    assert_eq!(post(&server, "/v1/groups/work/ack", &json!({ "leases": leases }))["taken"], 12);
}
