//! Identities from outside: proofs, rights, changes that reach callers, and what survives.

use std::path::Path;
use std::time::Duration;

use gapless_auth::{Auth, AuthOptions, Caller, Command, CommandError, Proof, Refused};
use gapless_broker::{Broker, BrokerOptions, Delivery, From};
use gapless_core::rights::Right;
use gapless_core::{Message, Pattern, PublishOptions, TopicName};
use serde_json::{Value, json};

fn open(folder: &Path) -> Auth {
    let broker = Broker::open(BrokerOptions::new(folder)).expect("a broker");
    Auth::open(&broker, AuthOptions { required: true, ..AuthOptions::default() }).expect("records")
}

fn command(caller: &Caller, json: impl Into<Value>) -> Result<Value, CommandError> {
    let json: Value = json.into();
    caller.command(Command::parse(json.to_string().as_bytes())?)
}

/// A role, an identity and a token of it; the token's text.
fn writer(auth: &Auth) -> String {
    let admin = auth.server();
    let rules = json!(["allow publish,subscribe on orders.>", "deny publish on orders.secret"]);
    command(&admin, json!({ "do": "role_set", "role": "writer", "rules": rules })).expect("a role");
    let made =
        command(&admin, json!({ "do": "token_create", "name": "shop", "roles": ["writer"] }));
    made.expect("a token")["token"].as_str().expect("a token").to_owned()
}

fn topic(name: &str) -> TopicName {
    TopicName::parse(name).expect("a name")
}

fn refused(auth: &Auth, proof: Proof<'_>) -> Refused {
    auth.caller(proof, "10.0.0.9:1").expect_err("refused")
}

#[test]
fn a_token_gives_the_rights_of_its_roles_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    auth.broker().clone().close().unwrap();
    drop(auth);
    let auth = open(folder.path());
    let mut caller = auth.caller(Proof::Token(&token), "test").expect("the token is good");
    assert_eq!(caller.name(), "shop");
    assert!(caller.may_publish(&topic("orders.eu")).is_ok());
    assert!(caller.may_publish(&topic("orders.eu")).is_ok(), "the remembered answer is the same");
    let denied = caller.may_publish(&topic("orders.secret")).unwrap_err();
    assert_eq!((denied.who.as_str(), denied.right), ("shop", Right::Publish));
    assert!(caller.may_all(Right::Subscribe, &Pattern::parse("orders.*").unwrap()).is_ok());
    assert!(caller.may_all(Right::Subscribe, &Pattern::parse(">").unwrap()).is_err());
    assert!(caller.may_area("auth").is_err());
    assert!(command(&caller, json!({ "do": "token_list" })).is_err());
    assert_eq!(command(&caller, json!({ "do": "who_am_i" })).unwrap()["name"], "shop");
}

#[test]
fn wrong_revoked_and_missing_proofs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    let wrong =
        format!("{}{}", &token[..token.len() - 1], if token.ends_with('x') { "y" } else { "x" });
    assert_eq!(refused(&auth, Proof::Token(&wrong)).why, "the token is not valid");
    assert_eq!(refused(&auth, Proof::Token("rubbish")).why, "the token is not valid");
    assert!(refused(&auth, Proof::Nothing).why.starts_with("authentication is required"));
    assert!(refused(&auth, Proof::Certificate("stranger")).why.contains("no identity"));
    assert!(auth.caller(Proof::Certificate("shop"), "test").is_ok());
    let mut caller = auth.caller(Proof::Token(&token), "test").unwrap();
    let mut changes = caller.changes();
    command(&auth.server(), json!({ "do": "token_revoke", "id": "shop" })).unwrap();
    assert!(changes.has_changed().unwrap(), "open connections are notified");
    changes.mark_unchanged();
    assert_eq!(caller.refresh().expect_err("revoked").why, "the token was revoked");
    assert_eq!(refused(&auth, Proof::Token(&token)).why, "the token is not valid");
}

#[test]
fn a_changed_role_reaches_callers_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    let mut caller = auth.caller(Proof::Token(&token), "test").unwrap();
    caller.may_publish(&topic("orders.eu")).unwrap();
    let rules = json!(["allow subscribe on orders.>"]);
    command(&auth.server(), json!({ "do": "role_set", "role": "writer", "rules": rules })).unwrap();
    caller.refresh().unwrap();
    assert!(caller.may_publish(&topic("orders.eu")).is_err());
}

#[test]
fn a_token_ends_at_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let made = json!({ "do": "token_create", "name": "x", "roles": ["admin"], "expires_in_ms": 0 });
    let token = command(&auth.server(), made).unwrap();
    let token = token["token"].as_str().unwrap();
    assert_eq!(refused(&auth, Proof::Token(token)).why, "the token has expired");
}

#[test]
fn failures_of_one_address_wait_longer_and_a_good_token_of_it_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    let delays: Vec<Duration> =
        (0..6).map(|_| refused(&auth, Proof::Token("rubbish")).delay).collect();
    assert!(delays[0].is_zero() && delays[5] > delays[3], "{delays:?}");
    assert!(auth.caller(Proof::Token(&token), "10.0.0.9:1").is_ok());
    assert!(
        refused(&auth, Proof::Nothing).delay.is_zero(),
        "a missing credential is not a wrong one"
    );
}

#[test]
fn f3_a_hundred_thousand_wrong_tokens_delay_no_one_else() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    // From one address, and each from an address of its own: more than are remembered.
    for each in 0..50_000_u32 {
        assert!(auth.caller(Proof::Token("gap_wrong"), "10.0.0.9:1").is_err());
        let from = format!("{}:1", std::net::Ipv4Addr::from(0x0b00_0000 + each));
        assert!(auth.caller(Proof::Token("rubbish"), from).is_err());
    }
    assert!(!refused(&auth, Proof::Token("rubbish")).delay.is_zero(), "it is remembered");
    // Not even a good token from the same address, nor a first mistake elsewhere.
    for from in ["10.0.0.9:1", "192.168.0.1:1"] {
        assert_eq!(auth.caller(Proof::Token(&token), from).expect("it is good").name(), "shop");
    }
    let first = auth.caller(Proof::Token("typo"), "192.168.0.1:1").expect_err("it is wrong");
    assert!(first.delay.is_zero());
}

#[test]
fn the_servers_own_user_is_administrator_on_its_unix_socket_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let own = auth.caller(Proof::Peer { uid: 7, own: 7 }, "unix").unwrap();
    assert!(own.may_area("auth").is_ok());
    assert!(auth.caller(Proof::Peer { uid: 8, own: 7 }, "unix").is_err());
    let grant = json!({ "do": "identity_set", "name": "unix:8", "roles": ["monitor"] });
    command(&own, grant).unwrap();
    let other = auth.caller(Proof::Peer { uid: 8, own: 7 }, "unix").unwrap();
    assert!(other.may_area("server").is_ok() && other.may_area("auth").is_err());
}

#[test]
fn check_tells_which_rule_decides() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    writer(&auth);
    let check = |on: &str| {
        let asked = json!({ "do": "check", "name": "shop", "right": "publish", "on": on });
        command(&auth.server(), asked).unwrap()
    };
    assert_eq!(check("orders.eu")["rule"], "allow publish,subscribe on orders.>");
    assert_eq!(check("orders.secret")["allowed"], false);
    assert_eq!(check("orders.secret")["rule"], "deny publish on orders.secret");
    assert_eq!(
        (&check("other")["allowed"], &check("other")["rule"]),
        (&json!(false), &Value::Null)
    );
    let bad = json!({ "do": "check", "name": "shop", "right": "fly", "on": "a" });
    assert!(matches!(command(&auth.server(), bad), Err(CommandError::Bad(_))));
}

#[test]
fn cells_of_the_server_itself_are_for_no_caller() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    for caller in [auth.server(), auth.caller(Proof::Peer { uid: 0, own: 1 }, "unix").unwrap()] {
        assert!(caller.may_cell(Right::Read, b"$auth/token/x").is_err());
        assert!(caller.may_cell(Right::Publish, b"$cluster/incarnation").is_err());
        assert!(caller.may_cell(Right::Publish, b"billing.cursor").is_ok());
        assert!(caller.may_cell(Right::Publish, b"any/thing \xff").is_ok());
    }
}

#[test]
fn the_offset_of_a_relay_is_for_those_who_may_use_its_outbox() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let rules = json!(["allow outbox on shop", "deny publish on >"]);
    command(&auth.server(), json!({ "do": "role_set", "role": "relay", "rules": rules })).unwrap();
    let grant = json!({ "do": "identity_set", "name": "unix:8", "roles": ["relay"] });
    command(&auth.server(), grant).unwrap();
    let relay = auth.caller(Proof::Peer { uid: 8, own: 7 }, "unix").unwrap();
    assert!(relay.may_cell(Right::Publish, b"$outbox/shop").is_ok());
    assert!(relay.may_cell(Right::Read, b"$outbox/other").is_err());
    assert!(relay.may_cell(Right::Publish, b"shop").is_err());
}

#[test]
fn quotas_refuse_what_is_too_much_and_say_when_to_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    let quotas = json!({ "connections": 1, "subscriptions": 1, "messages_per_s": 10, "topics": 1 });
    let set =
        json!({ "do": "identity_set", "name": "shop", "roles": ["writer"], "quotas": quotas });
    command(&auth.server(), set).unwrap();
    let caller = auth.caller(Proof::Token(&token), "test").unwrap();
    let held = caller.connect().unwrap();
    assert_eq!(caller.connect().unwrap_err().what, "connections");
    drop(held);
    let _held = (caller.connect().unwrap(), caller.follow().unwrap());
    assert_eq!(caller.follow().unwrap_err().limit, 1);
    assert!(caller.charge(10, 1 << 20).is_ok());
    let over = caller.charge(10, 1).unwrap_err();
    assert_eq!(over.what, "messages per second");
    assert!(over.retry_after > Duration::ZERO && over.retry_after <= Duration::from_secs(1));
}

#[test]
fn stored_bytes_are_measured_and_bound_publishing() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    let set = json!({ "do": "identity_set", "name": "shop", "roles": ["writer"],
                      "quotas": { "stored_bytes": 100 } });
    command(&auth.server(), set).unwrap();
    let caller = auth.caller(Proof::Token(&token), "test").unwrap();
    let name = topic("orders.eu");
    let broker = auth.broker();
    broker.create_topic(&name, gapless_core::TopicSettings::default()).unwrap();
    auth.tick();
    assert!(caller.charge(1, 1).is_ok());
    let message = Message::new("x".repeat(1000));
    broker.publish(&name, &message, &PublishOptions::default()).wait().unwrap();
    auth.tick();
    assert_eq!(caller.charge(1, 1).unwrap_err().what, "stored bytes");
}

#[test]
fn a_ticket_and_a_cookie_stand_for_their_caller_until_it_is_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    let caller = auth.caller(Proof::Token(&token), "test").unwrap();
    let ticket = command(&caller, json!({ "do": "ticket" })).unwrap();
    let ticket = ticket["ticket"].as_str().unwrap();
    assert_eq!(auth.caller(Proof::Ticket(ticket), "test").unwrap().name(), "shop");
    assert!(auth.caller(Proof::Ticket(ticket), "test").is_err(), "it is good once");
    let cookie = caller.cookie().unwrap();
    assert_eq!(auth.caller(Proof::Cookie(&cookie), "test").unwrap().name(), "shop");
    command(&auth.server(), json!({ "do": "token_revoke", "id": "shop" })).unwrap();
    assert!(auth.caller(Proof::Cookie(&cookie), "test").is_err());
}

#[tokio::test]
async fn a_password_logs_in_and_is_kept_as_a_hash() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    writer(&auth);
    let short = json!({ "do": "password_set", "name": "shop", "password": "short" });
    assert!(command(&auth.server(), short).is_err());
    let set = json!({ "do": "password_set", "name": "shop", "password": "correct horse" });
    command(&auth.server(), set).unwrap();
    let right = auth.login("shop", "correct horse".into(), "test").await;
    assert_eq!(right.unwrap().name(), "shop");
    for (name, password) in [("shop", "wrong horse"), ("nobody", "correct horse")] {
        let refused = auth.login(name, password.into(), "test").await.unwrap_err();
        assert_eq!(refused.why, "the name or the password is wrong");
    }
    let listed = command(&auth.server(), json!({ "do": "identity_list" })).unwrap().to_string();
    assert!(!listed.contains("argon2") && listed.contains("\"password\":true"), "{listed}");
}

#[test]
fn roles_in_use_and_built_in_roles_stay() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    writer(&auth);
    let refused = |json: Value| command(&auth.server(), json).unwrap_err();
    for command in [
        json!({ "do": "role_remove", "role": "writer" }),
        json!({ "do": "role_set", "role": "admin", "rules": [] }),
        json!({ "do": "role_set", "role": "x", "rules": ["allow everything"] }),
        json!({ "do": "role_set", "role": "a b", "rules": [] }),
        json!({ "do": "token_create", "name": "shop", "roles": ["admin"] }),
        json!({ "do": "token_create", "name": "new" }),
        json!({ "do": "nothing" }),
    ] {
        assert!(matches!(refused(command.clone()), CommandError::Bad(_)), "{command}");
    }
    for command in [
        json!({ "do": "identity_set", "name": "x", "roles": ["none"] }),
        json!({ "do": "token_show", "id": "none" }),
        json!({ "do": "identity_remove", "name": "none" }),
    ] {
        assert!(matches!(refused(command.clone()), CommandError::Unknown(_)), "{command}");
    }
    command(&auth.server(), json!({ "do": "identity_remove", "name": "shop" })).unwrap();
    let left = command(&auth.server(), json!({ "do": "token_list" })).unwrap();
    assert_eq!(left["tokens"], json!([]), "tokens go with their identity");
    command(&auth.server(), json!({ "do": "role_remove", "role": "writer" })).unwrap();
}

#[test]
fn f3_the_audit_is_kept_in_a_topic_that_no_client_can_write_to_if_that_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let entries = |broker: &Broker| {
        let log = Pattern::literal(&topic("$audit.log"));
        let mut follower = broker.subscribe(&log, From::Beginning).expect("it is there");
        let mut entries: Vec<Value> = Vec::new();
        loop {
            match gapless_broker::block_on(follower.next()).expect("it goes on") {
                Delivery::Messages(messages) => entries.extend(messages.iter().map(|each| {
                    serde_json::from_slice(&each.message.body.expect("a body")).expect("JSON")
                })),
                Delivery::Live => return entries,
                Delivery::Gap(_) | Delivery::Recovering { .. } => {}
            }
        }
    };
    let with = |audit_bytes: Option<u64>| {
        let mut options = BrokerOptions::new(folder.path());
        options.journal.seal_bytes = 64 * 1024;
        let broker = Broker::open(options).expect("a broker");
        let options = AuthOptions { required: true, audit_bytes, ..AuthOptions::default() };
        Auth::open(&broker, options).expect("records")
    };
    let auth = with(Some(64 * 1024));
    let token = writer(&auth);
    refused(&auth, Proof::Token("wrong"));
    let mut caller = auth.caller(Proof::Token(&token), "10.0.0.1:2").expect("the token is good");
    caller.may_publish(&topic("orders.secret")).unwrap_err();
    let broker = auth.broker().clone();
    broker.flush();
    let kept = entries(&broker);
    let kinds = |kind: &str| kept.iter().filter(|entry| entry["event"] == *kind).count();
    assert_eq!((kinds("audit.refused"), kinds("audit.denied")), (1, 1), "{kept:?}");
    assert!(kinds("audit.changed") >= 2, "{kept:?}");
    let denied = kept.iter().find(|entry| entry["event"] == "audit.denied").expect("one");
    assert_eq!((&denied["who"], &denied["on"]), (&json!("shop"), &json!("orders.secret")));
    assert!(denied["time_ms"].is_u64() && !json!(kept).to_string().contains(&token));
    let forged = Message::new("{}");
    let forged = broker.publish(&topic("$audit.log"), &forged, &PublishOptions::default());
    assert!(!forged.is_accepted());
    assert!(broker.delete_topic(&topic("$audit.log")).is_err());

    // It is there after a restart, and no larger than it may be.
    broker.close().unwrap();
    drop((auth, caller));
    let auth = with(Some(64 * 1024));
    let broker = auth.broker().clone();
    assert_eq!(entries(&broker).len(), kept.len());
    for _ in 0..3_000 {
        refused(&auth, Proof::Token("wrong"));
    }
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while broker.describe_topic(&topic("$audit.log")).expect("it is there").bytes > 256 * 1024 {
        assert!(std::time::Instant::now() < until, "the oldest go");
        std::thread::yield_now();
    }
    broker.close().unwrap();
    drop(auth);
    // Without the setting there is nothing more.
    let auth = with(None);
    let next = || auth.broker().describe_topic(&topic("$audit.log")).expect("it is there").next;
    let before = next();
    refused(&auth, Proof::Token("wrong"));
    auth.broker().flush();
    assert_eq!(next(), before);
}

/// Bytes of memory that this process has.
#[cfg(target_os = "linux")]
fn rss() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = statm.split(' ').nth(1).expect("a number").parse().expect("a number");
    pages * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn f3_a_hundred_thousand_wrong_tokens_do_not_slow_down_others() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    const WRONG: u32 = 100_000;
    const GOOD: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    let token = writer(&auth);
    // Those that are no token, of an id that is unknown, and with a secret that is wrong.
    let known = token.splitn(3, '_').take(2).collect::<Vec<_>>().join("_");
    let secret = "A".repeat(43);
    let wrong =
        ["wrong".to_owned(), format!("gapless_0123456789ab_{secret}"), format!("{known}_{secret}")];
    let good = || {
        let began = Instant::now();
        for _ in 0..GOOD {
            let caller = auth.caller(Proof::Token(&token), "10.0.0.2:1").expect("it is good");
            assert_eq!(caller.name(), "shop");
        }
        began.elapsed()
    };
    let best = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 4]
    };
    let alone = best((0..20).map(|_| good()).collect());
    let before = rss();
    let done = AtomicBool::new(false);
    let meanwhile = std::thread::scope(|scope| {
        scope.spawn(|| {
            for each in 0..WRONG {
                // From one address, and from very many.
                let from = if each % 2 == 0 { 0x0a00_0009 } else { each };
                let from = format!("{}:1", std::net::Ipv4Addr::from(from));
                let proof = Proof::Token(&wrong[each as usize % 3]);
                let refused = auth.caller(proof, from).expect_err("it is wrong");
                assert!(refused.delay <= Duration::from_secs(3));
            }
            done.store(true, Ordering::Release);
        });
        let mut times = vec![good()];
        while !done.load(Ordering::Acquire) {
            times.push(good());
        }
        best(times)
    });
    // They share locks for a moment each, and perhaps a processor.
    assert!(meanwhile < alone * 20 + Duration::from_millis(20), "{meanwhile:?} after {alone:?}");
    let grown = rss().saturating_sub(before);
    assert!(grown < 32 * 1024 * 1024, "{grown} bytes are held for them");
}

#[test]
fn f3_rules_in_a_file_hold_beside_those_of_the_store_and_change_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    let write = |rules: &str, seconds: u64| {
        std::fs::write(&file, rules).unwrap();
        let at = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::open(&file).unwrap().set_modified(at).unwrap();
    };
    write(
        "[roles]\nreader = ['allow subscribe on orders.>']\n[identities.app]\nroles = ['reader']\n",
        1,
    );
    let broker = Broker::open(BrokerOptions::new(folder.path().join("data"))).expect("a broker");
    let options =
        AuthOptions { required: true, rules_file: Some(file.clone()), ..AuthOptions::default() };
    let auth = Auth::open(&broker, options.clone()).expect("records");
    let stored = writer(&auth);
    let admin = auth.server();
    let made = command(&admin, json!({ "do": "token_create", "name": "app" })).expect("a token");
    let token = made["token"].as_str().expect("a token").to_owned();
    let caller = || auth.caller(Proof::Token(&token), "test");
    let orders = Pattern::parse("orders.>").unwrap();
    assert!(caller().expect("let in").may_all(Right::Subscribe, &orders).is_ok());
    // What is in the file is changed there.
    for change in [
        json!({ "do": "role_set", "role": "reader", "rules": ["allow * on >"] }),
        json!({ "do": "role_remove", "role": "reader" }),
        json!({ "do": "identity_set", "name": "app", "roles": ["admin"] }),
        json!({ "do": "identity_remove", "name": "app" }),
    ] {
        let told = command(&admin, change).expect_err("refused").to_string();
        assert!(told.contains("auth.rules_file"), "{told}");
    }
    let set = json!({ "do": "password_set", "name": "app", "password": "correct horse" });
    command(&admin, set).expect("passwords are the store's");
    assert!(caller().expect("let in").may_all(Right::Subscribe, &orders).is_ok());

    write("[roles]\nreader = [", 2);
    auth.tick();
    assert!(caller().expect("the former rules").may_all(Right::Subscribe, &orders).is_ok());
    let mut open = caller().expect("let in");
    write("[roles]\nreader = []\n[identities.app]\nroles = ['reader']\n", 3);
    auth.tick();
    open.refresh().expect("it is still known");
    assert!(open.may_all(Right::Subscribe, &orders).is_err(), "an open connection notices");
    write("", 4);
    auth.tick();
    // The store has its password, and no role of it.
    assert!(caller().expect("let in").may_all(Right::Subscribe, &orders).is_err());
    let mut shop = auth.caller(Proof::Token(&stored), "test").expect("the store's own");
    assert!(shop.may_publish(&topic("orders.eu")).is_ok());

    write("[roles]\nadmin = []\n", 5);
    let told = Auth::open(&broker, options).err().expect("not at a start").to_string();
    assert!(told.contains("rules.toml") && told.contains("built in"), "{told}");
}
