//! Jobs as messages: three topics of the broker, each with the job's id as key.
//!
//! - `$jobs.state`: the newest record of a job is its state.
//! - `$jobs.requests`: what was submitted, once.
//! - `$jobs.results`: what the last attempt left.
//!
//! What changes together is one append. A forgotten job is a message without body in each of
//! them; compaction removes the rest.

use std::time::Duration;

use bytes::Bytes;
use gapless_broker::{Atomic, Broker, Delivery, From, Publishing, Subsystem, TopicError};
use gapless_core::job::JobId;
use gapless_core::job::record::Record;
use gapless_core::{Compaction, Message, Pattern, PublishOptions, TopicName, TopicSettings};

use crate::error::JobsError;

/// Every topic of jobs begins with it.
const PREFIX: &str = "$jobs";
/// How long a removed key stays as a message without body.
const TOMBSTONE_GRACE: Duration = Duration::from_secs(60);

/// The topics of jobs.
#[derive(Clone)]
pub(crate) struct Store {
    own: Subsystem,
    state: TopicName,
    requests: TopicName,
    results: TopicName,
}

/// What is to be written together.
#[derive(Default)]
pub(crate) struct Changes {
    state: Vec<Message>,
    requests: Vec<Message>,
    results: Vec<Message>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    pub(crate) fn save(&mut self, record: &Record) {
        let message = Message::new(record.encode());
        self.state.push(message.with_key(key(record.spec.id)));
    }

    pub(crate) fn request(&mut self, job: JobId, request: Bytes) {
        self.requests.push(Message::new(request).with_key(key(job)));
    }

    pub(crate) fn result(&mut self, job: JobId, result: Bytes) {
        self.results.push(Message::new(result).with_key(key(job)));
    }

    pub(crate) fn forget(&mut self, job: JobId) {
        for topic in [&mut self.state, &mut self.requests, &mut self.results] {
            topic.push(Message::tombstone(key(job)));
        }
    }
}

fn key(job: JobId) -> Bytes {
    Bytes::copy_from_slice(&job.0.to_be_bytes())
}

impl Store {
    /// The topics of this broker, whether they exist or not.
    pub(crate) fn of(broker: &Broker) -> Self {
        let own = broker.subsystem(PREFIX);
        let [state, requests, results] =
            ["state", "requests", "results"].map(|name| own.topic(name));
        Self { own, state, requests, results }
    }

    /// Creates the topics, or finds them. Blocks.
    pub(crate) fn ensure(&self) -> Result<(), JobsError> {
        let compaction = Some(Compaction { tombstone_grace: TOMBSTONE_GRACE });
        let settings = TopicSettings { compaction, ..TopicSettings::default() };
        for topic in [&self.state, &self.requests, &self.results] {
            self.own.ensure_topic(topic, settings)?;
        }
        Ok(())
    }

    /// The newest record of every job, and a number that no job ever had; none if there never was
    /// one. Every job that was accepted was written here, so there are no more of them than messages.
    pub(crate) async fn load(&self) -> Result<(Vec<Record>, u64), JobsError> {
        let pattern = Pattern::literal(&self.state);
        let broker = self.own.broker().clone();
        let next = match broker.topic_place(&self.state) {
            Ok(place) => place.next.0,
            Err(TopicError::Unknown(_)) => return Ok((Vec::new(), 1)),
            Err(error) => return Err(error.into()),
        };
        let follow = move || broker.subscribe(&pattern, From::LastPerKey);
        let mut follower =
            tokio::task::spawn_blocking(follow).await.map_err(|_| JobsError::Stopped)??;
        let mut records = Vec::new();
        loop {
            match follower.next().await? {
                Delivery::Messages(messages) => {
                    for each in messages.iter() {
                        let Some(body) = &each.message.body else { continue };
                        let damaged = |source| JobsError::Record { seq: each.seq.0, source };
                        records.push(Record::decode(body).map_err(damaged)?);
                    }
                }
                Delivery::Live => return Ok((records, next)),
                Delivery::Recovering { .. } | Delivery::Gap(_) => {}
            }
        }
    }

    /// Appends the changes; all of them are there after a crash, or none.
    pub(crate) fn write(&self, changes: &Changes) -> Publishing {
        let mut atomic = Atomic::new();
        for (topic, messages) in [
            (&self.state, &changes.state),
            (&self.requests, &changes.requests),
            (&self.results, &changes.results),
        ] {
            if !messages.is_empty() {
                atomic = atomic.publish(topic, messages);
            }
        }
        self.own.commit(atomic, &PublishOptions::default())
    }

    /// Says on `$events` what happened, if there is a listener.
    pub(crate) fn say(&self, kind: &'static str, fields: &[(&str, serde_json::Value)]) {
        self.own.say(kind, fields);
    }

    /// What was submitted. Blocks.
    pub(crate) fn request(&self, job: JobId) -> Option<Bytes> {
        self.newest(&self.requests, job)
    }

    /// What the last attempt left. Blocks.
    pub(crate) fn result(&self, job: JobId) -> Option<Bytes> {
        self.newest(&self.results, job)
    }

    fn newest(&self, topic: &TopicName, job: JobId) -> Option<Bytes> {
        match self.own.broker().latest(topic, &key(job)) {
            Ok(found) => found.and_then(|found| found.message.body),
            Err(error) => {
                tracing::error!(%job, %error, "what is stored of a job cannot be read");
                None
            }
        }
    }
}
