//! What travels between clients, leaders and workers: frames of the native protocol with JSON
//! in them.
//!
//! Names are in the form in which other programs of this kind write them (`JobId`, `ExecName`).
//! Fields that a reader does not know are ignored, and all but the first few may be left out,
//! so either side can be newer than the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gapless_core::job::record::{AFTER_MAX, NAME_BYTES_MAX, PRIORITY_MAX, Spec};
use gapless_core::job::{JobId, Token};
use gapless_core::retry::{RetryPolicy, Waits};
use gapless_core::{Timestamp, TopicName};
use gapless_protocol::FrameLimit;
use serde::{Deserialize, Serialize};

use crate::calendar;

/// The version of these messages: from 2 on a renewal with a message id is answered.
pub const VERSION: u32 = 2;
/// What submits are addressed to: this, and the name of the executable.
pub const SUBMIT_PREFIX: &str = "job.submit.";
/// Cap of a client that told none.
pub const CAP_DEFAULT: u32 = 4;
/// Highest cap of a client: more than this is taken for a mistake.
pub const CAP_MAX: u32 = 65_536;
/// Priority of a job that told none.
const PRIORITY_DEFAULT: u8 = 4;
/// How often a job may fail, unless it says otherwise.
const ATTEMPTS_DEFAULT: u32 = 5;
/// How many workers may be lost with a job, unless it says otherwise.
const DEATHS_DEFAULT: u32 = 3;
/// Most arguments of a job.
pub const ARGS_MAX: usize = 1024;
/// Most variables of a job's environment.
pub const ENV_MAX: usize = 128;
/// Most bytes of a job's environment, names and values.
pub const ENV_BYTES_MAX: usize = 64 * 1024;
/// Most input files of a job.
pub const FILES_MAX: usize = 1024;

/// What the leader may add to a request or result on its way: attempt, store, reason.
const ADDED_BYTES_MAX: usize = 1024;

/// Longest request, and longest result: what is added to it must fit into a frame too.
pub fn message_bytes_max() -> usize {
    FrameLimit::MAX.payload_bytes("") - NAME_BYTES_MAX - ADDED_BYTES_MAX
}

/// The first message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClientConfig {
    /// Who it is.
    pub client_id: String,
    /// By what it proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// How many of its jobs may run at a time.
    #[serde(default = "cap_default")]
    pub desired_parallelism: u32,
    /// Its share of the run time beside other clients.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u32,
    /// It has no jobs of its own: it looks and manages.
    #[serde(default, skip_serializing_if = "is_false")]
    pub observer: bool,
    /// Another leader passes its jobs on to this one; they are not passed on again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub routed: bool,
}

/// The first message of a worker. The subject of its frame is the pattern it takes jobs by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WorkerConfig {
    /// What it is called: the same after a lost connection, another after a restart is fine.
    pub worker_id: String,
    /// Which one of that name it is. Only a connection with the same value, on behalf of the same
    /// identity, goes on with its attempts or takes its place.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance: String,
    /// By what it proves who it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The attempts it is still at.
    pub running: Vec<AttemptRef>,
}

/// The answer to the first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobWelcome {
    /// The version of these messages.
    pub version: u32,
    /// The leader's store.
    pub epoch: String,
    /// How long a worker may be silent about an attempt.
    pub lease_ms: u64,
    /// The longest frame.
    pub frame_bytes_max: u64,
}

/// One attempt at a job: its fencing token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AttemptRef {
    /// The job.
    pub job_id: String,
    /// Which attempt.
    pub attempt: u32,
    /// The leader's store and which submission of the id it is; opaque to workers.
    #[serde(default)]
    pub epoch: String,
}

/// A job to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobRequest {
    /// Its id: a UUID.
    pub job_id: String,
    /// Whose it is.
    pub client_id: String,
    /// What is to be run.
    pub exec_name: String,
    /// Its arguments, as they are: no shell looks at them.
    #[serde(default)]
    pub args: Vec<String>,
    /// Input files by name, their content in base64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// 0 to 9; higher ones go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Not before this time, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<u64>,
    /// How long it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How often it may fail until it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// How many workers may be lost with it until it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaths_max: Option<u32>,
    /// How long it waits after each failure, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<Vec<u64>>,
    /// Exit codes after which it is tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retry_exit_codes: Vec<i32>,
    /// Of all jobs with this key one runs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// While a job with this value is not ended, no second one is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    /// It runs only when all these have succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// It is a schedule: a job like it runs whenever this cron expression says so, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// More input files: a zip archive in base64, unpacked into the job's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// What it reads from standard input, in base64; without it standard input is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Variables of its environment, beside the few that every job has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Most memory of each of its processes, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Most processor time of each of its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// The least isolation it may run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// In an assignment: which attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// In an assignment: the leader's store and which submission of the id it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// In an assignment: how long the worker may be silent about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// What became of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobResult {
    /// Which job.
    pub job_id: String,
    /// Whose it is.
    pub client_id: String,
    /// What was run.
    pub exec_name: String,
    /// How it ended.
    pub status: Status,
    /// What it wrote.
    #[serde(default)]
    pub stdout: String,
    /// What it wrote to standard error.
    #[serde(default)]
    pub stderr: String,
    /// Its output files, zipped, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_archive: Option<String>,
    /// Which attempt it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// As in its assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Whether it may be tried again, as its request says of this exit code.
    #[serde(default, skip_serializing_if = "is_false")]
    pub retryable: bool,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it ended so, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ms: Option<u64>,
    /// How it was kept from the rest of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// What its group of processes had, if its worker was to make one: of `memory cpu kill`, or
    /// `none:` and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Where its output files are, zipped, if they do not fit into a frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_ref: Option<OutputRef>,
}

/// An archive outside of the result. Its name is the token of the attempt that stored it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OutputRef {
    /// Where it is: a `file:` or `s3:` URL.
    pub url: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// How a job is kept from the rest of the machine. Each level has all that the ones before it
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A folder, an environment and a process tree of its own, which ends with it.
    Process,
    /// It reads only programs and its own folder, and writes only there (Landlock).
    Files,
    /// It cannot ask the kernel for what only administrators need (seccomp).
    Kernel,
    /// It runs as a user that only its worker's place has.
    User,
}

impl std::str::FromStr for Isolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "process" => Ok(Self::Process),
            "files" => Ok(Self::Files),
            "kernel" => Ok(Self::Kernel),
            "user" => Ok(Self::User),
            _ => Err("give process, files, kernel or user".to_owned()),
        }
    }
}

/// Something that a running job wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobProgress {
    /// Which job.
    pub job_id: String,
    /// Which attempt.
    pub attempt: u32,
    /// As in its assignment.
    #[serde(default)]
    pub epoch: String,
    /// Where it wrote it.
    pub stream: Stream,
    /// What it wrote.
    pub text: String,
}

/// Where a job writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// It ran and succeeded.
    #[default]
    Ok,
    /// It ran and failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It was tried too often, or what it waited for did not succeed.
    Dead,
    /// A worker says: it was not started, try another one.
    #[serde(rename = "NOT_STARTED")]
    NotStarted,
    /// A worker that ends says: it was stopped, let another one have it. That is not counted.
    Returned,
}

/// The answer to a submit, cancel or retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobAnswer {
    /// Which job.
    pub job_id: String,
    /// Whether it was taken.
    pub accepted: bool,
    /// Whether the job was known before.
    #[serde(default, skip_serializing_if = "is_false")]
    pub known: bool,
    /// Why it was not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Only the id of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobRef {
    /// Which job.
    pub job_id: String,
}

/// The end of a job is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobWatch {
    /// Which job.
    pub job_id: String,
    /// Whether what it writes is wanted too, from what the leader keeps of it on.
    #[serde(default, skip_serializing_if = "is_false")]
    pub log: bool,
}

/// Attempts that a worker is still at, or that it must stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Attempts {
    /// Which.
    pub attempts: Vec<AttemptRef>,
}

fn one() -> u32 {
    1
}

fn cap_default() -> u32 {
    CAP_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Why a request was refused. Nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is not the JSON of a request.
    #[error("the request is not valid: {0}")]
    Json(String),
    /// It would not fit into the frame that hands it to a worker.
    #[error("the request has {bytes} bytes; at most {max} are taken")]
    TooLarge {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// A field has a value that cannot be.
    #[error("{field} is not valid: {why}")]
    Field {
        /// Which.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

fn wrong(field: &'static str, why: impl Into<String>) -> RequestError {
    RequestError::Field { field, why: why.into() }
}

impl JobRequest {
    /// Reads and checks a request, and what the leader must know of it.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(payload: &[u8]) -> Result<(Self, Spec), RequestError> {
        let (bytes, max) = (payload.len(), message_bytes_max());
        if bytes > max {
            return Err(RequestError::TooLarge { bytes, max });
        }
        let request: Self = serde_json::from_slice(payload)
            .map_err(|error| RequestError::Json(error.to_string()))?;
        let spec = request.spec()?;
        Ok((request, spec))
    }

    fn spec(&self) -> Result<Spec, RequestError> {
        let id: JobId = job_id("JobId", &self.job_id)?;
        let after: Result<Vec<JobId>, _> =
            self.after.iter().map(|text| job_id("After", text)).collect();
        if self.after.len() > AFTER_MAX {
            return Err(wrong("After", format!("at most {AFTER_MAX} jobs")));
        }
        if self.args.len() > ARGS_MAX {
            return Err(wrong("Args", format!("at most {ARGS_MAX}")));
        }
        if self.files.len() > FILES_MAX {
            return Err(wrong("Files", format!("at most {FILES_MAX}")));
        }
        self.files.keys().try_for_each(|name| check_file_name(name))?;
        self.check_env()?;
        let priority = self.priority.unwrap_or(PRIORITY_DEFAULT);
        if priority > PRIORITY_MAX {
            return Err(wrong("Priority", format!("0 to {PRIORITY_MAX}")));
        }
        let at_least_one = |field, value: u32| match value {
            0 => Err(wrong(field, "at least 1")),
            value => Ok(value),
        };
        Ok(Spec {
            id,
            client: name("ClientId", &self.client_id)?,
            exec: exec_name(&self.exec_name)?,
            priority,
            not_before: Timestamp(self.not_before_ms.unwrap_or(0)),
            key: self.key.as_ref().map(|key| name("Key", key)).transpose()?,
            unique: self.unique.as_ref().map(|text| name("Unique", text)).transpose()?,
            after: after?,
            attempts_max: at_least_one(
                "AttemptsMax",
                self.attempts_max.unwrap_or(ATTEMPTS_DEFAULT),
            )?,
            deaths_max: at_least_one("DeathsMax", self.deaths_max.unwrap_or(DEATHS_DEFAULT))?,
            retry: Arc::new(self.retry()?),
            cron: self.cron()?,
            digest: self.digest(),
        })
    }

    fn check_env(&self) -> Result<(), RequestError> {
        let bytes: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.env.len() > ENV_MAX || bytes > ENV_BYTES_MAX {
            return Err(wrong("Env", format!("at most {ENV_MAX} with {ENV_BYTES_MAX} bytes")));
        }
        let is_wrong = |(name, value): (&String, &String)| {
            let reserved = name.is_empty() || name.starts_with("GAPLESS_");
            reserved || name.contains(['=', '\0']) || value.contains('\0')
        };
        match self.env.iter().any(is_wrong) {
            true => Err(wrong("Env", "names without =, and not GAPLESS_…, which are reserved")),
            false => Ok(()),
        }
    }

    fn cron(&self) -> Result<Option<Arc<str>>, RequestError> {
        let Some(text) = &self.cron else { return Ok(None) };
        if !self.after.is_empty() {
            return Err(wrong("Cron", "a schedule waits for no other jobs"));
        }
        calendar::check(text).map_err(|why| wrong("Cron", why))?;
        name("Cron", text).map(Some)
    }

    fn retry(&self) -> Result<RetryPolicy, RequestError> {
        let policy = match &self.retry_ms {
            None => RetryPolicy::default(),
            Some(waits) => RetryPolicy {
                waits: Waits::Steps(waits.iter().map(|ms| Duration::from_millis(*ms)).collect()),
                ..RetryPolicy::default()
            },
        };
        policy.validate().map_err(|error| wrong("RetryMs", error.to_string()))?;
        Ok(policy)
    }

    /// A digest of everything in it: the same id with another digest is another job.
    fn digest(&self) -> u128 {
        let bytes = serde_json::to_vec(self).expect("a request is plain data");
        siphasher::sip128::SipHasher13::new().hash(&bytes).as_u128()
    }
}

/// `Epoch` of an attempt: the leader's store, and which submission of the id it is. A job that has
/// the id of an earlier one that was forgotten has another.
pub fn epoch_of(store: &str, token: Token) -> String {
    format!("{store}.{:x}", token.number)
}

impl AttemptRef {
    /// How an attempt of this store is named.
    pub fn new(store: &str, token: Token) -> Self {
        let (job_id, attempt) = (token.job.to_string(), token.attempt);
        Self { job_id, attempt, epoch: epoch_of(store, token) }
    }

    /// The attempt, if it is one of this store's.
    pub fn token(&self, store: &str) -> Option<Token> {
        let job = self.job_id.parse().ok()?;
        let number = self.epoch.strip_prefix(store)?.strip_prefix('.')?;
        let number = u64::from_str_radix(number, 16).ok()?;
        Some(Token { job, number, attempt: self.attempt })
    }
}

fn job_id(field: &'static str, text: &str) -> Result<JobId, RequestError> {
    text.parse().map_err(|error: gapless_core::job::JobIdError| wrong(field, error.to_string()))
}

/// A name of a client or worker, a key: short, and printable.
pub(crate) fn name(field: &'static str, text: &str) -> Result<Arc<str>, RequestError> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let why = format!("1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(wrong(field, why));
    }
    Ok(text.into())
}

/// The name of an executable: one token of a subject, and never a path.
pub(crate) fn exec_name(text: &str) -> Result<Arc<str>, RequestError> {
    let exec = name("ExecName", text)?;
    let subject = TopicName::parse(&format!("{SUBMIT_PREFIX}{text}"));
    let is_path = text.contains(['.', '/', '\\']);
    if subject.is_err() || is_path {
        return Err(wrong("ExecName", "a name without dots, slashes and blanks"));
    }
    Ok(exec)
}

/// Refuses names of input files that lead out of the job's folder.
pub(crate) fn check_file_name(name: &str) -> Result<(), RequestError> {
    let leads_out = name == "." || name == ".." || name.contains(['/', '\\', '\0']);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || leads_out || name.contains("..") {
        return Err(wrong("Files", format!("{name:?} is not a plain file name")));
    }
    Ok(())
}

/// Bytes as base64.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Base64 as bytes.
///
/// # Errors
/// When it is not base64.
pub fn decode(text: &str) -> Result<Vec<u8>, RequestError> {
    STANDARD.decode(text).map_err(|error| wrong("Files", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(change: impl FnOnce(&mut JobRequest)) -> Result<Spec, RequestError> {
        let mut request = JobRequest {
            job_id: "01234567-89ab-cdef-0123-456789abcdef".to_owned(),
            client_id: "clientA".to_owned(),
            exec_name: "calcA".to_owned(),
            ..JobRequest::default()
        };
        change(&mut request);
        let bytes = serde_json::to_vec(&request).expect("plain data");
        JobRequest::parse(&bytes).map(|(_, spec)| spec)
    }

    #[test]
    fn e7_file_names_that_lead_out_of_the_folder_are_refused() {
        for name in ["..", "../x", "a/b", "/etc/passwd", "a\\b", "", "a\0b", "x..y", "."] {
            let refused = request(|job| {
                job.files.insert(name.to_owned(), String::new());
            });
            assert!(matches!(refused, Err(RequestError::Field { field: "Files", .. })), "{name:?}");
        }
        assert!(request(|job| drop(job.files.insert("in.txt".into(), String::new()))).is_ok());
    }

    #[test]
    fn e1_an_executable_is_a_name_and_never_a_path() {
        for exec in ["", "a/b", "..", "a.b", "a b", "*", ">", "\\x"] {
            let refused = request(|job| job.exec_name = exec.to_owned());
            assert!(matches!(refused, Err(RequestError::Field { .. })), "{exec:?}");
        }
    }

    #[test]
    fn e3_the_shortest_request_is_enough_and_unknown_fields_are_ignored() {
        let text = r#"{"JobId":"0123456789abcdef0123456789abcdef","ClientId":"a","ExecName":"calcA",
            "Args":["1"],"Files":{},"SomethingNew":1}"#;
        let (request, spec) = JobRequest::parse(text.as_bytes()).expect("it is fine");
        assert_eq!((request.args.len(), &*spec.exec, spec.priority), (1, "calcA", 4));
    }

    #[test]
    fn two_requests_under_one_id_differ_by_their_digest() {
        let plain = request(|_| {}).expect("it is fine").digest;
        assert_eq!(plain, request(|_| {}).expect("it is fine").digest);
        let other = request(|job| job.args.push("x".to_owned())).expect("it is fine");
        assert_ne!(plain, other.digest);
    }
}
