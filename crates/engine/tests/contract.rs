//! The journal's contract on every kind of object store, and on one that fails.

#[path = "support/moto.rs"]
mod moto;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gapless_engine::clock::ManualTime;
use gapless_engine::faulty::{Fate, FaultyStore, Request};
use gapless_engine::{Store, StoreError, StoreOptions};
use gapless_journal::contract::{check_blobs, check_log};
use gapless_journal::{FrameMarks, Secret};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;

fn marks() -> FrameMarks {
    FrameMarks::secret(Secret::new(7))
}

fn on(store: Arc<dyn ObjectStore>, prefix: &str) -> Store {
    let time = Arc::new(ManualTime::new(1));
    let options = StoreOptions { time, ..StoreOptions::default() };
    Store::open_on(store, Path::from(prefix), options).expect("the store can be used")
}

/// Checks both parts; each check has a store of its own.
fn check(make: impl Fn(u64) -> Store) {
    let count = Cell::new(0);
    let next = || {
        count.set(count.get() + 1);
        make(count.get())
    };
    check_log(|| next().log(0, &marks()));
    check_blobs(|| next().blobs(0));
}

#[test]
fn f1_a_store_in_memory_keeps_the_contract() {
    check(|_| on(Arc::new(InMemory::new()), ""));
}

#[test]
fn f1_a_store_in_a_folder_keeps_the_contract() {
    let root = tempfile::tempdir().expect("temp dir");
    check(|number| {
        let url = format!("file://{}/{number}", root.path().display());
        Store::open(&url, StoreOptions::default()).expect("the store can be used")
    });
}

#[test]
fn f1_a_store_with_a_cache_keeps_the_contract() {
    let root = tempfile::tempdir().expect("temp dir");
    let count = Cell::new(0);
    check_blobs(|| {
        count.set(count.get() + 1);
        let cache = Some((root.path().join(count.get().to_string()), 1 << 20));
        let options = StoreOptions { cache, ..StoreOptions::default() };
        Store::open_on(Arc::new(InMemory::new()), Path::default(), options).expect("opens").blobs(0)
    });
}

#[test]
fn f1_a_store_behind_the_protocol_of_s3_keeps_the_contract() {
    // TLS is not used here, but the client wants to know whose it would be.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let moto = moto::Moto::start();
    moto.bucket("contract");
    let s3: Arc<dyn ObjectStore> = Arc::new(
        AmazonS3Builder::new()
            .with_endpoint(moto.url())
            .with_allow_http(true)
            .with_bucket_name("contract")
            .with_region("us-east-1")
            .with_access_key_id("test")
            .with_secret_access_key("test")
            .build()
            .expect("a client"),
    );
    check(|number| on(Arc::clone(&s3), &format!("some/prefix/{number}")));
}

/// Loses some questions and some answers, and is slow now and then.
fn unreliable(inner: Arc<dyn ObjectStore>, seed: u64) -> Arc<dyn ObjectStore> {
    let drawn = AtomicU64::new(seed);
    let fates = move |request: Request, _: &Path| {
        let n = drawn.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let roll = (n >> 32) % 100;
        let slow = roll % 7 == 3;
        Fate {
            delay: Duration::from_millis(if slow { 2 } else { 0 }),
            lost: roll < 15,
            unanswered: (15..30).contains(&roll) && request != Request::Delete,
        }
    };
    Arc::new(FaultyStore::new(inner, Arc::new(fates)))
}

#[test]
fn f1_a_store_that_loses_questions_and_answers_keeps_the_contract() {
    for seed in 0..5 {
        check(|number| on(unreliable(Arc::new(InMemory::new()), seed * 1000 + number), ""));
    }
}

#[test]
fn a_folder_that_loses_questions_and_answers_keeps_the_contract() {
    let root = tempfile::tempdir().expect("temp dir");
    check(|number| {
        let folder = root.path().join(number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        let local = LocalFileSystem::new_with_prefix(folder).expect("a folder");
        on(unreliable(Arc::new(local), number), "")
    });
}

#[test]
fn f1_a_store_that_lets_two_create_one_name_is_refused() {
    let careless = Arc::new(FaultyStore::careless(Arc::new(InMemory::new())));
    let refused = Store::open_on(careless, Path::default(), StoreOptions::default());
    let Err(StoreError::NotEnforced { .. }) = &refused else { panic!("{refused:?}") };
    let told = refused.expect_err("refused").to_string();
    assert!(told.contains("8 of 8 could create one name"), "{told}");
}

#[test]
fn the_number_of_journals_is_fixed_when_a_store_is_made() {
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let open = |journals| {
        let options = StoreOptions { journals, ..StoreOptions::default() };
        Store::open_on(Arc::clone(&memory), Path::default(), options)
    };
    open(1).expect("new");
    open(1).expect("the same");
    let refused = open(16);
    assert!(matches!(refused, Err(StoreError::Journals { found: 1, wanted: 16 })), "{refused:?}");
}

#[test]
fn what_is_no_place_of_a_store_is_told() {
    for wrong in ["", "s3:", "ftp://host/x", "bucket/prefix", "s3://"] {
        let refused = Store::open(wrong, StoreOptions::default());
        assert!(matches!(refused, Err(StoreError::Url { .. })), "{wrong:?}: {refused:?}");
    }
}
