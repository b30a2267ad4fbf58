//! The examples of jobs in `docs/protocol-vectors.json`, checked both ways, as those of topics are
//! in `crates/protocol/tests/vectors.rs`.
//!
//! New examples are written by `GAPLESS_WRITE_VECTORS=1 cargo test -p gapless-jobs --test vectors`.
//! Those that are there are never changed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::{env, fs};

use bytes::{Bytes, BytesMut};
use gapless_jobs::shown::{JobLog, JobQuery, Question};
use gapless_jobs::wire::{
    AttemptRef, Attempts, ClientConfig, Isolation, JobAnswer, JobProgress, JobRef, JobRequest,
    JobResult, JobWatch, JobWelcome, Status, Stream, WorkerConfig, encode,
};
use gapless_protocol::{Decoder, Frame, FrameLimit, Kind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const JOB: &str = "01234567-89ab-cdef-0123-456789abcdef";
const EPOCH: &str = "5f3c2a10";

struct Sample {
    name: &'static str,
    kind: Kind,
    subject: &'static str,
    fields: Value,
    payload: Vec<u8>,
}

/// An example, which must be read as it was written.
fn sample<T>(name: &'static str, kind: Kind, subject: &'static str, message: &T) -> Sample
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let payload = serde_json::to_vec(message).expect("plain data");
    let read: T = serde_json::from_slice(&payload).expect("it reads what it wrote");
    assert_eq!(read, *message, "{name}");
    let fields = serde_json::from_slice(&payload).expect("JSON");
    Sample { name, kind, subject, fields, payload }
}

fn samples() -> Vec<Sample> {
    let attempt = || AttemptRef { job_id: JOB.into(), attempt: 2, epoch: EPOCH.into() };
    let plain = JobRequest {
        job_id: JOB.into(),
        client_id: "clientA".into(),
        exec_name: "calcA".into(),
        args: vec!["--fast".into(), "7".into()],
        files: [("in.txt".to_owned(), encode(b"one two\n"))].into(),
        ..JobRequest::default()
    };
    let full = JobRequest {
        priority: Some(9),
        not_before_ms: Some(1_700_000_000_000),
        timeout_ms: Some(60_000),
        attempts_max: Some(3),
        deaths_max: Some(2),
        retry_ms: Some(vec![1000, 10_000]),
        retry_exit_codes: vec![75],
        key: Some("reports".into()),
        unique: Some("import".into()),
        after: vec!["ffffffff-0000-4000-8000-000000000001".into()],
        stdin: Some(encode(b"input")),
        env: [("LEVEL".to_owned(), "2".to_owned())].into(),
        memory_bytes: Some(1 << 30),
        cpu_ms: Some(30_000),
        isolation: Some(Isolation::Kernel),
        ..plain.clone()
    };
    let result = JobResult {
        job_id: JOB.into(),
        client_id: "clientA".into(),
        exec_name: "calcA".into(),
        status: Status::Ok,
        stdout: "7\n".into(),
        attempt: Some(2),
        epoch: Some(EPOCH.into()),
        exit_code: Some(0),
        run_ms: Some(12),
        isolation: Some(Isolation::Kernel),
        ..JobResult::default()
    };
    let dead = JobResult {
        status: Status::Dead,
        stdout: String::new(),
        exit_code: None,
        signal: Some(9),
        reason: Some("too many lost workers".into()),
        ..result.clone()
    };
    let client = ClientConfig {
        client_id: "clientA".into(),
        token: Some("gapless_7f3a_s3cret".into()),
        desired_parallelism: 8,
        weight: 1,
        observer: false,
        routed: false,
    };
    let answer = JobAnswer { job_id: JOB.into(), accepted: true, known: false, why: None };
    let job = || JobRef { job_id: JOB.into() };
    let list = JobQuery {
        ask: Question::List,
        state: Some("dead".into()),
        exec_name: Some("calcA".into()),
        limit: Some(10),
        ..JobQuery::default()
    };
    let piece = JobProgress {
        job_id: JOB.into(),
        attempt: 2,
        epoch: EPOCH.into(),
        stream: Stream::Stderr,
        text: "half\n".into(),
    };
    let log = JobLog { pieces: vec![json!(piece)], shortened: false };
    let worker = WorkerConfig {
        worker_id: "w-1".into(),
        instance: "b5a1c0de-0000-4000-8000-000000000001".into(),
        token: None,
        running: vec![attempt()],
    };
    let welcome = JobWelcome {
        version: 2,
        epoch: EPOCH.into(),
        lease_ms: 15_000,
        frame_bytes_max: 4_194_304,
    };
    let refused = JobAnswer {
        accepted: false,
        why: Some("another job has this id: choose a new one".into()),
        ..answer.clone()
    };
    let assigned = JobRequest { attempt: Some(2), epoch: Some(EPOCH.into()), ..plain.clone() };
    let credit = Sample {
        name: "job-credit",
        kind: Kind::JobCredit,
        subject: "",
        fields: json!({ "credit": 4 }),
        payload: 4_i32.to_le_bytes().to_vec(),
    };
    vec![
        sample("job-client-hello", Kind::JobClientHello, "", &client),
        sample("job-worker-hello", Kind::JobWorkerHello, "job.assign.*", &worker),
        sample("job-submit", Kind::JobSubmit, "job.submit.calcA", &plain),
        sample("job-submit-with-all", Kind::JobSubmit, "job.submit.calcA", &full),
        sample("job-assign", Kind::JobAssign, "job.assign.calcA", &assigned),
        sample("job-ack", Kind::JobAck, "", &result),
        sample("job-result", Kind::JobResult, "", &result),
        sample("job-result-of-a-dead-job", Kind::JobResult, "", &dead),
        sample("job-cancel", Kind::JobCancel, "", &job()),
        sample("job-cancel-of-an-attempt", Kind::JobCancel, "", &attempt()),
        sample("job-progress", Kind::JobProgress, "", &piece),
        credit,
        sample("job-welcome", Kind::JobWelcome, "", &welcome),
        sample("job-answer", Kind::JobAnswer, "", &answer),
        sample("job-answer-refused", Kind::JobAnswer, "", &refused),
        sample("job-renew", Kind::JobRenew, "", &Attempts { attempts: vec![attempt()] }),
        sample("job-watch", Kind::JobWatch, "", &JobWatch { job_id: JOB.into(), log: true }),
        sample("job-retry", Kind::JobRetry, "", &job()),
        sample("job-query", Kind::JobQuery, "", &list),
        sample("job-reply", Kind::JobReply, "", &log),
    ]
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol-vectors.json")
}

/// The frame of an example; all have the same ids.
fn frame(sample: &Sample) -> Frame {
    let msg_id = std::array::from_fn(|index| index as u8 + 1);
    Frame {
        kind: sample.kind.number(),
        msg_id,
        corr_id: [0xc0; 16],
        subject: Bytes::from_static(sample.subject.as_bytes()),
        payload: Bytes::from(sample.payload.clone()),
    }
}

fn vector(sample: &Sample) -> Value {
    let mut wire = BytesMut::new();
    frame(sample).encode(FrameLimit::MAX, &mut wire).expect("it fits");
    let hex: String = wire.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": sample.name,
        "kind": sample.kind.name(),
        "number": sample.kind.number(),
        "subject": sample.subject,
        "fields": sample.fields,
        "frame": hex,
    })
}

fn is_of_jobs(vector: &Value) -> bool {
    let number = vector["number"].as_u64().and_then(|number| u8::try_from(number).ok());
    number.and_then(Kind::from_number).is_some_and(Kind::is_of_jobs)
}

fn read() -> Vec<Value> {
    let text = fs::read_to_string(file()).expect("vectors");
    serde_json::from_str(&text).expect("a list")
}

#[test]
fn e2_every_message_of_jobs_reads_and_writes_as_documented() {
    let samples = samples();
    let made: Vec<Value> = samples.iter().map(vector).collect();
    if env::var_os("GAPLESS_WRITE_VECTORS").is_some() {
        let others = read().into_iter().filter(|each| !is_of_jobs(each));
        let lines: Vec<String> =
            others.chain(made.clone()).map(|each| format!("  {each}")).collect();
        fs::write(file(), format!("[\n{}\n]\n", lines.join(",\n"))).expect("it is written");
    }
    let vectors: Vec<Value> = read().into_iter().filter(is_of_jobs).collect();
    assert_eq!(vectors.len(), made.len(), "see the head of this file");
    for ((sample, made), vector) in samples.iter().zip(&made).zip(&vectors) {
        assert_eq!(vector, made, "{}", sample.name);
        let hex = vector["frame"].as_str().expect("hex");
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
        let mut wire: BytesMut = bytes.map(|byte| byte.expect("hex")).collect();
        let read = Decoder::new(FrameLimit::MAX).decode(&mut wire).expect("a frame");
        assert_eq!(read, Some(frame(sample)), "{}", sample.name);
    }
}

#[test]
fn e2_every_kind_of_jobs_has_an_example() {
    let shown: BTreeSet<Kind> = samples().iter().map(|sample| sample.kind).collect();
    let all = Kind::ALL.iter().copied().filter(|kind| kind.is_of_jobs());
    assert_eq!(shown, all.collect());
}
