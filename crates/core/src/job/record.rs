//! A job as it is written down, and its bytes.
//!
//! The newest record of a job is its state. A leader that starts again reads the newest record
//! of each job and goes on; nothing else of it survives, and nothing else must.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::BufMut;

use crate::batch::{put_varint, take_bytes, take_varint};
use crate::retry::{RetryPolicy, Waits};
use crate::time::{Timestamp, whole_ms};

use super::JobId;

/// Version of the bytes, their first byte.
const VERSION: u8 = 4;
/// Records of before workers of the same name were told apart.
const VERSION_NAMED: u8 = 3;
/// Records of before caps were kept.
const VERSION_UNCAPPED: u8 = 2;
/// Records of before schedules.
const VERSION_PLAIN: u8 = 1;
/// Highest priority; the lowest is 0.
pub const PRIORITY_MAX: u8 = 9;
/// Most jobs one job may wait for: each is looked at when it ends.
pub const AFTER_MAX: usize = 64;
/// Longest name of a client, executable or worker, key or unique value, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// What a leader must know of a job to decide about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its id.
    pub id: JobId,
    /// Whose job it is; counted against the client's cap.
    pub client: Arc<str>,
    /// What is to be run.
    pub exec: Arc<str>,
    /// 0 to [`PRIORITY_MAX`]: higher ones go first, among the jobs of one client.
    pub priority: u8,
    /// It does not run before this time.
    pub not_before: Timestamp,
    /// Of all jobs with this key one runs at a time.
    pub key: Option<Arc<str>>,
    /// While a job with this value is not ended, no second one is accepted.
    pub unique: Option<Arc<str>>,
    /// It runs only when all these have succeeded.
    pub after: Vec<JobId>,
    /// How often it may fail until it is dead.
    pub attempts_max: u32,
    /// How many workers may be lost with it until it is dead.
    pub deaths_max: u32,
    /// How long it waits after each failure.
    pub retry: Arc<RetryPolicy>,
    /// It is a schedule: a job like it runs at these times, as a cron expression.
    pub cron: Option<Arc<str>>,
    /// A digest of the whole request: the same id with another digest is another job.
    pub digest: u128,
}

/// Who a worker is. The name is for people: others may have the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    /// What it is called.
    pub name: Arc<str>,
    /// What tells it from others of that name: on whose behalf it works, and which one it is.
    pub origin: Arc<str>,
}

impl From<&str> for WorkerId {
    /// A worker that nothing but its name is known of.
    fn from(name: &str) -> Self {
        Self { name: name.into(), origin: "".into() }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// It ran and said that all is well.
    Succeeded,
    /// It ran and said that it failed, and may not be tried again.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It failed too often.
    TooManyFailures,
    /// Too many workers were lost with it.
    TooManyDeaths,
    /// A job that it waited for did not succeed.
    Dependency,
}

impl End {
    const ALL: [Self; 6] = [
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::TooManyFailures,
        Self::TooManyDeaths,
        Self::Dependency,
    ];

    /// Whether it is a dead job: one that a person should look at.
    pub fn is_dead(self) -> bool {
        matches!(self, Self::TooManyFailures | Self::TooManyDeaths | Self::Dependency)
    }

    /// Its word, the same everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TooManyFailures => "too many failures",
            Self::TooManyDeaths => "too many lost workers",
            Self::Dependency => "dependency did not succeed",
        }
    }
}

/// Where a job stands, as far as it must survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is to run, not before `until`.
    Open {
        /// When it may run.
        until: Timestamp,
    },
    /// A worker has it.
    Running {
        /// Which worker.
        worker: WorkerId,
        /// Since when.
        started: Timestamp,
        /// It is to be cancelled.
        cancel: bool,
    },
    /// It is over.
    Ended {
        /// How.
        how: End,
        /// Since when.
        at: Timestamp,
    },
}

/// A job as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub spec: Arc<Spec>,
    /// Jobs are numbered as they are accepted; equals go in this order.
    pub number: u64,
    /// When it was accepted.
    pub submitted: Timestamp,
    /// The number of its last attempt; 0 if there was none.
    pub attempt: u32,
    /// How often it failed since it was submitted or retried.
    pub failures: u32,
    /// How many workers were lost with it since then.
    pub deaths: u32,
    /// The schedule that it was made by.
    pub origin: Option<JobId>,
    /// How many jobs of its client may run at a time, as the client said last; `None` if it never
    /// did.
    pub cap: Option<u32>,
    /// Where it stands.
    pub stage: Stage,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// They end too early, or a number or text in them is wrong.
    #[error("the record of a job is damaged")]
    Damaged,
    /// A later release wrote them.
    #[error("the record of a job has version {0}, which this release does not know")]
    Version(u8),
}

impl Record {
    /// Its bytes, as `docs/format.md` describes them.
    pub fn encode(&self) -> Vec<u8> {
        let spec = &self.spec;
        let mut out = Vec::with_capacity(160);
        out.put_u8(VERSION);
        out.put_u128_le(spec.id.0);
        out.put_u128_le(spec.digest);
        put_text(&mut out, &spec.client);
        put_text(&mut out, &spec.exec);
        out.put_u8(spec.priority);
        put_varint(&mut out, spec.not_before.0);
        put_text(&mut out, spec.key.as_deref().unwrap_or_default());
        put_text(&mut out, spec.unique.as_deref().unwrap_or_default());
        put_varint(&mut out, spec.after.len() as u64);
        spec.after.iter().for_each(|id| out.put_u128_le(id.0));
        put_varint(&mut out, u64::from(spec.attempts_max));
        put_varint(&mut out, u64::from(spec.deaths_max));
        put_retry(&mut out, &spec.retry);
        for number in [self.number, self.submitted.0] {
            put_varint(&mut out, number);
        }
        for number in [self.attempt, self.failures, self.deaths] {
            put_varint(&mut out, u64::from(number));
        }
        match &self.stage {
            Stage::Open { until } => {
                out.put_u8(0);
                put_varint(&mut out, until.0);
            }
            Stage::Running { worker, started, cancel } => {
                out.put_u8(1);
                put_text(&mut out, &worker.name);
                put_text(&mut out, &worker.origin);
                put_varint(&mut out, started.0);
                out.put_u8(u8::from(*cancel));
            }
            Stage::Ended { how, at } => {
                out.put_u8(2);
                out.put_u8(*how as u8);
                put_varint(&mut out, at.0);
            }
        }
        put_text(&mut out, spec.cron.as_deref().unwrap_or_default());
        out.put_u8(u8::from(self.origin.is_some()));
        self.origin.iter().for_each(|origin| out.put_u128_le(origin.0));
        put_varint(&mut out, u64::from(self.cap.unwrap_or(0)));
        out
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut rest = Rest(bytes);
        let version = rest.byte()?;
        if !(VERSION_PLAIN..=VERSION).contains(&version) {
            return Err(RecordError::Version(version));
        }
        let mut spec = Spec {
            id: JobId(rest.wide()?),
            digest: rest.wide()?,
            client: rest.text()?,
            exec: rest.text()?,
            priority: rest.byte()?.min(PRIORITY_MAX),
            not_before: Timestamp(rest.number()?),
            key: Some(rest.text()?).filter(|text| !text.is_empty()),
            unique: Some(rest.text()?).filter(|text| !text.is_empty()),
            after: rest.after()?,
            attempts_max: rest.small()?,
            deaths_max: rest.small()?,
            retry: Arc::new(rest.retry()?),
            cron: None,
        };
        let number = rest.number()?;
        let submitted = Timestamp(rest.number()?);
        let (attempt, failures, deaths) = (rest.small()?, rest.small()?, rest.small()?);
        let stage = match rest.byte()? {
            0 => Stage::Open { until: Timestamp(rest.number()?) },
            1 => Stage::Running {
                worker: WorkerId {
                    name: rest.text()?,
                    origin: if version > VERSION_NAMED { rest.text()? } else { "".into() },
                },
                started: Timestamp(rest.number()?),
                cancel: rest.byte()? == 1,
            },
            2 => Stage::Ended {
                how: *End::ALL.get(usize::from(rest.byte()?)).ok_or(RecordError::Damaged)?,
                at: Timestamp(rest.number()?),
            },
            _ => return Err(RecordError::Damaged),
        };
        let mut origin = None;
        if version > VERSION_PLAIN {
            spec.cron = Some(rest.text()?).filter(|text| !text.is_empty());
            if rest.byte()? == 1 {
                origin = Some(JobId(rest.wide()?));
            }
        }
        let cap = match version {
            VERSION_PLAIN | VERSION_UNCAPPED => None,
            _ => Some(rest.small()?).filter(|cap| *cap > 0),
        };
        if !rest.0.is_empty() {
            return Err(RecordError::Damaged);
        }
        let spec = Arc::new(spec);
        Ok(Self { spec, number, submitted, attempt, failures, deaths, origin, cap, stage })
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.put_slice(text.as_bytes());
}

fn put_retry(out: &mut Vec<u8>, retry: &RetryPolicy) {
    out.put_u8(retry.jitter_percent);
    match &retry.waits {
        Waits::Steps(steps) => {
            put_varint(out, steps.len() as u64);
            steps.iter().for_each(|step| put_varint(out, whole_ms(*step)));
        }
        // No list has this length (`STEPS_MAX`), so it marks the other form.
        Waits::Growing { first, factor, most } => {
            put_varint(out, GROWING);
            put_varint(out, whole_ms(*first));
            put_varint(out, u64::from(*factor));
            put_varint(out, whole_ms(*most));
        }
    }
}

/// Stands for the number of steps where waits grow instead.
const GROWING: u64 = 255;

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Result<u8, RecordError> {
        let (byte, rest) = self.0.split_first().ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn wide(&mut self) -> Result<u128, RecordError> {
        let (bytes, rest) = self.0.split_first_chunk::<16>().ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(u128::from_le_bytes(*bytes))
    }

    fn number(&mut self) -> Result<u64, RecordError> {
        take_varint(&mut self.0).ok_or(RecordError::Damaged)
    }

    fn small(&mut self) -> Result<u32, RecordError> {
        u32::try_from(self.number()?).map_err(|_| RecordError::Damaged)
    }

    fn text(&mut self) -> Result<Arc<str>, RecordError> {
        let len = self.number()?;
        let bytes = take_bytes(&mut self.0, len).ok_or(RecordError::Damaged)?;
        core::str::from_utf8(bytes).map(Arc::from).map_err(|_| RecordError::Damaged)
    }

    fn after(&mut self) -> Result<Vec<JobId>, RecordError> {
        let count = self.number()?;
        if count > AFTER_MAX as u64 {
            return Err(RecordError::Damaged);
        }
        (0..count).map(|_| self.wide().map(JobId)).collect()
    }

    fn retry(&mut self) -> Result<RetryPolicy, RecordError> {
        let jitter_percent = self.byte()?;
        let count = self.number()?;
        let waits = if count == GROWING {
            Waits::Growing { first: self.wait()?, factor: self.small()?, most: self.wait()? }
        } else if count <= crate::retry::STEPS_MAX as u64 {
            Waits::Steps((0..count).map(|_| self.wait()).collect::<Result<_, _>>()?)
        } else {
            return Err(RecordError::Damaged);
        };
        let policy = RetryPolicy { waits, jitter_percent };
        policy.validate().map_err(|_| RecordError::Damaged)?;
        Ok(policy)
    }

    fn wait(&mut self) -> Result<Duration, RecordError> {
        Ok(Duration::from_millis(self.number()?))
    }
}
