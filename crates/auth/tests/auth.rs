//! Identities from outside: proofs, rights, changes that reach callers, and what survives.

use std::path::Path;
use std::time::Duration;

use gapless_auth::{Auth, AuthOptions, Caller, Command, CommandError, Proof, Refused};
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::rights::Right;
use gapless_core::{Pattern, TopicName};
use serde_json::{Value, json};

fn open(folder: &Path) -> Auth {
    let broker = Broker::open(BrokerOptions::new(folder)).expect("a broker");
    Auth::open(&broker, AuthOptions { required: true, jwt: None }).expect("records")
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
    assert!(refused(&auth, Proof::Nothing).why.starts_with("prove who you are"));
    assert!(refused(&auth, Proof::Certificate("stranger")).why.contains("no identity"));
    assert!(auth.caller(Proof::Certificate("shop"), "test").is_ok());
    let mut caller = auth.caller(Proof::Token(&token), "test").unwrap();
    let mut changes = caller.changes();
    command(&auth.server(), json!({ "do": "token_revoke", "id": "shop" })).unwrap();
    assert!(changes.has_changed().unwrap(), "open connections are told");
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
    assert!(refused(&auth, Proof::Nothing).delay.is_zero(), "no proof is no wrong proof");
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
fn cells_of_identities_are_for_no_caller() {
    let folder = tempfile::tempdir().unwrap();
    let auth = open(folder.path());
    for caller in [auth.server(), auth.caller(Proof::Peer { uid: 0, own: 1 }, "unix").unwrap()] {
        assert!(caller.may_cell(Right::Read, b"$auth/token/x").is_err());
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
    let message = gapless_core::Message::new("x".repeat(1000));
    broker.publish(&name, &message, &gapless_core::PublishOptions::default()).wait().unwrap();
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
