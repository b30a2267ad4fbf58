//! The examples in `docs/protocol-vectors.json`, checked both ways, so that a client written
//! from the documentation and this crate cannot disagree.
//!
//! New examples are written by `GAPLESS_WRITE_VECTORS=1 cargo test -p gapless-protocol --test
//! vectors`, with the seeds of the fuzzer. Those that are there are never changed. The examples of
//! jobs, whose payloads are JSON, stand behind them and are checked in `crates/jobs/tests/vectors.rs`.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use common::{encode, frame_of, hex, meaning, samples, unhex};
use gapless_protocol::{Ids, Kind, Verb};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The ids of all examples.
fn ids() -> Ids {
    let mut ids = Ids::NONE;
    for (index, byte) in (0_u8..).zip(&mut ids.msg_id) {
        *byte = index + 1;
    }
    ids.corr_id = [0xc0; 16];
    ids
}

fn vector(name: &str, verb: &Verb) -> Value {
    let wire = encode(verb, ids());
    let frame = frame_of(&wire);
    json!({
        "name": name,
        "kind": verb.kind().name(),
        "number": verb.kind().number(),
        "subject": String::from_utf8(frame.subject.to_vec()).expect("text"),
        "fields": meaning::of(verb),
        "frame": hex(&wire),
    })
}

/// All examples of the file: those of verbs, and those of jobs.
fn read_all() -> (Vec<Value>, Vec<Value>) {
    let text = fs::read_to_string(root().join("docs/protocol-vectors.json")).expect("vectors");
    let vectors: Vec<Value> = serde_json::from_str(&text).expect("a list");
    vectors.into_iter().partition(|each| {
        let number = each["number"].as_u64().and_then(|number| u8::try_from(number).ok());
        !number.and_then(Kind::from_number).is_some_and(Kind::is_of_jobs)
    })
}

fn write_all(vectors: &[Value]) {
    let (_, jobs) = read_all();
    let lines: Vec<String> = vectors.iter().chain(&jobs).map(|each| format!("  {each}")).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    fs::write(root().join("docs/protocol-vectors.json"), text).expect("the file is written");
    for target in ["frame", "verbs", "records"] {
        fs::create_dir_all(root().join("fuzz/corpus").join(target)).expect("a folder");
    }
    for (name, verb) in samples::all() {
        let wire = encode(&verb, ids());
        for target in ["frame", "verbs"] {
            let path = root().join("fuzz/corpus").join(target).join(name);
            fs::write(path, &wire).expect("the seed is written");
        }
        if let Verb::Publish(publish) = &verb {
            let path = root().join("fuzz/corpus/records").join(name);
            fs::write(path, &publish.records.bytes).expect("the seed is written");
        }
    }
}

#[test]
fn every_vector_reads_and_writes_as_documented() {
    let samples = samples::all();
    let made: Vec<Value> = samples.iter().map(|(name, verb)| vector(name, verb)).collect();
    if env::var_os("GAPLESS_WRITE_VECTORS").is_some() {
        write_all(&made);
    }
    let (vectors, _) = read_all();
    assert_eq!(vectors.len(), samples.len(), "see the head of this file");
    for ((name, verb), vector) in samples.iter().zip(&vectors) {
        assert_eq!(vector["name"], *name);
        let wire = unhex(vector["frame"].as_str().expect("hex"));
        let frame = frame_of(&wire);
        let read = Verb::decode(&frame).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read, *verb, "{name}");
        assert_eq!(meaning::of(&read), vector["fields"], "{name}");
        assert_eq!(vector["kind"], read.kind().name(), "{name}");
        assert_eq!(vector["number"], read.kind().number(), "{name}");
        assert_eq!(vector["subject"].as_str().map(str::as_bytes), Some(&frame.subject[..]));
        assert_eq!(frame.ids(), ids(), "{name}");
        assert_eq!(hex(&encode(verb, ids())), hex(&wire), "{name}");
    }
}

#[test]
fn every_kind_that_is_not_of_jobs_has_a_vector() {
    let shown: BTreeSet<Kind> = samples::all().iter().map(|(_, verb)| verb.kind()).collect();
    for kind in Kind::ALL {
        assert_eq!(shown.contains(kind), !kind.is_of_jobs(), "{}", kind.name());
    }
}

#[test]
fn names_of_vectors_differ() {
    let names: BTreeSet<&str> = samples::all().iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), samples::all().len());
}
