//! Two servers on one object store: what was acknowledged survives the end of the one that owns it,
//! and readers go on at the other without gap or repeat (F1, F2, D3, D10).
//!
//! One publishes and two follow, by the native client and by SSE with `Last-Event-ID`, while the owner
//! is killed, or frozen and thawed after the other took over. Everything that was acknowledged must be
//! read once, in order, by both.

#[path = "support/stores.rs"]
mod support;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use gapless_client::{TopicName, TopicSettings};
use serde_json::Value;
use support::{
    Ledger, Place, Server, TOPIC, Where, check, client, folder_store, follow, follow_sse, moto,
    moto_store, publish, until,
};

/// How the owner is taken away.
#[derive(Clone, Copy, Debug)]
enum End {
    Kill,
    Freeze,
}

/// Runs two servers on the store while owners end like this, and checks what readers saw. Tells how
/// long each take over took.
fn run(store: &Where, ends: &[End]) -> Vec<Duration> {
    let places = [Place::new(), Place::new()];
    let mut owner = (0, Server::start(&places[0], store, &["--standby"]));
    owner.1.tells("ready");
    let mut other = (1, Server::start(&places[1], store, &["--standby"]));
    other.1.tells("standby");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let ledger = Arc::new(Ledger::default());
    let maker = client(&places);
    let topic: TopicName = TOPIC.parse().expect("a name");
    let made = runtime.block_on(maker.create_topic(&topic, TopicSettings::default()));
    made.expect("the topic is new");
    let publishing = runtime.spawn(publish(client(&places), Arc::clone(&ledger)));
    let following = runtime.spawn(follow(client(&places), Arc::clone(&ledger)));
    let (for_sse, hosts) = (Arc::clone(&ledger), places.each_ref().map(|place| place.http.clone()));
    let sse = thread::spawn(move || follow_sse(&hosts, &for_sse));
    let mut took = Vec::new();
    for end in ends {
        let before = ledger.acks();
        until("publishing goes on", || ledger.acks() >= before + 20);
        let began = Instant::now();
        match end {
            End::Kill => {
                owner.1.child.kill().expect("killed");
                owner.1.child.wait().expect("ended");
                other.1.tells("ready");
                took.push(began.elapsed());
                owner.1 = Server::start(&places[owner.0], store, &["--standby"]);
            }
            End::Freeze => {
                owner.1.signal("STOP");
                other.1.tells("ready");
                took.push(began.elapsed());
                owner.1.signal("CONT");
            }
        }
        // Killed or thawed, it sees that it is not the owner.
        owner.1.tells("standby");
        std::mem::swap(&mut owner, &mut other);
        eprintln!("{end:?}: served again after {:?}", took.last());
    }
    let before = ledger.acks();
    until("publishing goes on at the end", || ledger.acks() >= before + 20);
    ledger.stop.store(true, Ordering::SeqCst);
    runtime.block_on(publishing).expect("the publisher ends");
    let last = ledger.acked.lock().expect("whole").keys().next_back().copied().expect("acks");
    for (who, seen) in [("native", &ledger.native), ("SSE", &ledger.sse)] {
        until(&format!("the {who} follower has all"), || {
            seen.lock().expect("whole").last().is_some_and(|(seq, _)| *seq >= last)
        });
    }
    ledger.done.store(true, Ordering::SeqCst);
    runtime.block_on(following).expect("the follower ends");
    sse.join().expect("the SSE follower ends");
    check(&ledger);
    took
}

#[test]
fn f1_owners_that_are_killed_and_frozen_lose_nothing_on_a_folder() {
    let (_folder, store) = folder_store();
    run(&store, &[End::Kill, End::Freeze, End::Kill, End::Freeze]);
}

#[test]
fn f1_owners_that_are_killed_and_frozen_lose_nothing_on_s3() {
    let moto = moto::Moto::start();
    run(&moto_store(&moto), &[End::Kill, End::Freeze]);
}

#[test]
fn f1_a_server_that_was_replaced_says_so_and_ends() {
    let (_folder, store) = folder_store();
    let places = [Place::new(), Place::new()];
    let mut first = Server::start(&places[0], &store, &[]);
    let first_term = first.tells("ready")["term"].as_u64();
    // Without --standby a server takes the store over at once.
    let second = Server::start(&places[1], &store, &[]);
    let ready = second.tells("ready");
    assert!(ready["term"].as_u64() > first_term, "{ready}");
    assert_eq!(ready["store"], *store.url);
    assert_eq!(first.ends_with(), Some(7));
    let log: Vec<String> = first.log.iter().collect();
    let told = log.iter().any(|line| line.contains("another server has taken the store over"));
    assert!(told, "{log:#?}");
}

#[test]
fn f1_a_store_moves_to_another_machine_by_a_clean_stop_and_a_start() {
    let (_folder, store) = folder_store();
    let places = [Place::new(), Place::new()];
    let mut first = Server::start(&places[0], &store, &[]);
    let epoch = first.tells("ready")["epoch"].clone();
    first.signal("TERM");
    assert_eq!(first.ends_with(), Some(0));
    let doctor = |url: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        command.args(["doctor", "--json", "--set", &format!("store.url={url}")]);
        command.current_dir(places[0].folder.path()).output().expect("it ends")
    };
    let found = doctor(&store.url);
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    assert_eq!(found["damage"], serde_json::json!([]), "{found}");
    let nowhere = doctor(&format!("{}-not", store.url));
    assert_eq!(nowhere.status.code(), Some(6), "{nowhere:?}");
    let second = Server::start(&places[1], &store, &[]);
    let moved = second.tells("ready")["epoch"].clone();
    // The second half is the opening's.
    let store_of = |epoch: &Value| epoch.as_str().map(|text| text[..8].to_owned());
    assert_eq!(store_of(&moved), store_of(&epoch), "{moved} and {epoch} are one store");
}
