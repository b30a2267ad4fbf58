//! Spans to a collector: OTLP over HTTP, as JSON.
//!
//! Spans wait in a queue of [`QUEUE_MAX`]; what does not fit is counted and left out, so neither
//! publishers nor readers ever wait for a collector. A task sends what waits every second, or when
//! there is a batch of it. A batch that the collector does not take is left out too: traces are
//! samples, and a collector that is down must not cost memory.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gapless_broker::{Broker, Span, Step, TraceSink};
use gapless_core::trace::TraceContext;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::{Config, ConfigError};
use crate::exit::Failure;

/// Spans that wait to be sent, at most: some 300 bytes each.
const QUEUE_MAX: usize = 8_192;
/// Spans in one request, at most.
const BATCH_MAX: usize = 512;
/// How often what waits is sent when there is not a whole batch of it.
const EVERY: Duration = Duration::from_secs(1);
/// How long the collector may take for a request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// How long the end of the server waits for the last spans to be sent.
const LAST_MAX: Duration = Duration::from_secs(2);

/// The path of traces below the address of a collector.
const PATH: &str = "/v1/traces";

/// Kinds of spans, as OTLP numbers them.
const PRODUCER: u32 = 4;
const CONSUMER: u32 = 5;
/// The status of a span that failed.
const FAILED: u32 = 2;

const SPANS: &str = "gapless_trace_spans_total";
const LEFT_OUT: &str = "gapless_trace_spans_left_out_total";

/// The traces of one broker, on their way to the collector.
#[derive(Debug)]
pub(crate) struct Exporting {
    collector: Arc<Collector>,
    sending: JoinHandle<Result<(), Failure>>,
}

impl Exporting {
    /// Begins, if the configuration names a collector.
    pub(crate) fn start(config: &Config, broker: &Broker) -> Result<Option<Self>, ConfigError> {
        let Some(collector) = Collector::new(config)? else { return Ok(None) };
        broker.trace_to(Arc::clone(&collector) as _);
        let sending = tokio::spawn(Arc::clone(&collector).run());
        Ok(Some(Self { collector, sending }))
    }

    /// Sends what is left, in a bounded time.
    pub(crate) async fn finish(self) {
        self.sending.abort();
        self.collector.finish().await;
    }
}

/// The spans that wait, and how many traces begin here.
#[derive(Debug)]
pub(crate) struct Collector {
    endpoint: String,
    service: String,
    /// A trace begins with one in so many messages that belong to none; zero is with none.
    one_in: u64,
    /// Messages that belong to none, so far.
    seen: AtomicU64,
    /// What random ids are made from.
    seed: [u64; 2],
    ids: AtomicU64,
    waiting: Mutex<Vec<Span>>,
    wake: Notify,
}

impl Collector {
    /// What the configuration says; `None` if nothing is traced.
    pub(crate) fn new(config: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        let ratio: f64 = config.get("trace.ratio")?;
        if !(0.0..=1.0).contains(&ratio) {
            return Err(config.bad("trace.ratio", "use a number from 0 to 1"));
        }
        let endpoint = config.text("trace.endpoint").trim_end_matches('/');
        if endpoint.is_empty() {
            return Ok(None);
        }
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(config.bad("trace.endpoint", "write it as http://host:4318"));
        }
        let endpoint = match endpoint.ends_with(PATH) {
            true => endpoint.to_owned(),
            false => format!("{endpoint}{PATH}"),
        };
        let random = |word: u64| {
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u64(word);
            hasher.finish()
        };
        Ok(Some(Arc::new(Self {
            endpoint,
            service: config.text("trace.service").to_owned(),
            one_in: if ratio > 0.0 { (1.0 / ratio).round() as u64 } else { 0 },
            seen: AtomicU64::new(0),
            seed: [random(1), random(2)],
            ids: AtomicU64::new(0),
            waiting: Mutex::default(),
            wake: Notify::new(),
        })))
    }

    /// Sends what waits, again and again.
    async fn run(self: Arc<Self>) -> Result<(), Failure> {
        metrics::describe_counter!(SPANS, "Spans sent to the collector of traces.");
        metrics::describe_counter!(LEFT_OUT, "Spans that were not sent, by reason.");
        metrics::counter!(SPANS).increment(0);
        for reason in ["queue full", "not taken"] {
            metrics::counter!(LEFT_OUT, "reason" => reason).increment(0);
        }
        // It may be installed already; all are the same.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().timeout(REQUEST_MAX).build();
        let client = client.map_err(|error| Failure::failed(format!("no traces: {error}")))?;
        loop {
            // A batch that is full wakes it earlier.
            let _ = tokio::time::timeout(EVERY, self.wake.notified()).await;
            self.send_all(&client).await;
        }
    }

    /// Sends what waits for the last time.
    async fn finish(&self) {
        let Ok(client) = reqwest::Client::builder().timeout(LAST_MAX).build() else { return };
        let _ = tokio::time::timeout(LAST_MAX, self.send_all(&client)).await;
    }

    async fn send_all(&self, client: &reqwest::Client) {
        loop {
            let batch = {
                let mut waiting = self.lock();
                let count = waiting.len().min(BATCH_MAX);
                waiting.drain(..count).collect::<Vec<_>>()
            };
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            match self.send(client, &batch).await {
                Ok(()) => metrics::counter!(SPANS).increment(count),
                Err(why) => {
                    metrics::counter!(LEFT_OUT, "reason" => "not taken").increment(count);
                    let why = &*why;
                    tracing::warn!(spans = count, why, "the collector did not take traces");
                }
            }
        }
    }

    async fn send(&self, client: &reqwest::Client, batch: &[Span]) -> Result<(), String> {
        let body = self.document(batch).to_string();
        let request = client.post(&self.endpoint).header("content-type", "application/json");
        // Without the address: it may hold a password.
        let answer =
            request.body(body).send().await.map_err(|error| error.without_url().to_string())?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("it answered {status}")),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Span>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random number that is not zero.
    fn random(&self) -> u64 {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        mixed(self.seed[0] ^ mixed(count ^ self.seed[1])).max(1)
    }

    /// The body of a request.
    fn document(&self, batch: &[Span]) -> Value {
        let spans: Vec<Value> = batch.iter().map(|span| self.span(span)).collect();
        let version = env!("CARGO_PKG_VERSION");
        json!({ "resourceSpans": [{
            "resource": { "attributes": [
                attribute("service.name", &self.service),
                attribute("service.version", version),
            ]},
            "scopeSpans": [{ "scope": { "name": "gapless", "version": version }, "spans": spans }],
        }]})
    }

    fn span(&self, span: &Span) -> Value {
        // Names of operations are those of the conventions for messaging.
        let (verb, operation, kind) = match span.step {
            Step::Publish => ("publish", "send", PRODUCER),
            Step::Deliver => ("deliver", "receive", CONSUMER),
            Step::Process => ("process", "process", CONSUMER),
        };
        let mut attributes = vec![
            attribute("messaging.system", "gapless"),
            attribute("messaging.destination.name", span.topic.as_str()),
            attribute("messaging.operation.name", verb),
            attribute("messaging.operation.type", operation),
            attribute("gapless.outcome", span.outcome),
        ];
        if let Some(seq) = span.seq {
            attributes.push(attribute("messaging.message.id", &seq.0.to_string()));
        }
        if let Some(group) = &span.group {
            attributes.push(attribute("messaging.consumer.group.name", group.as_str()));
        }
        if let Some(attempt) = span.attempt {
            attributes.push(
                json!({ "key": "gapless.attempt", "value": { "intValue": attempt.to_string() } }),
            );
        }
        if let Some(number) = span.subscriber {
            attributes.push(
                json!({ "key": "gapless.subscriber", "value": { "intValue": number.to_string() } }),
            );
        }
        let mut value = json!({
            "traceId": hex(&span.parent.trace_id),
            "spanId": hex(&self.random().to_be_bytes()),
            "parentSpanId": hex(&span.parent.span_id),
            "name": format!("{verb} {}", span.topic),
            "kind": kind,
            // Numbers of 64 bits are strings in this form.
            "startTimeUnixNano": span.begin_ns.to_string(),
            "endTimeUnixNano": span.end_ns.to_string(),
            "attributes": attributes,
        });
        if span.failed {
            value["status"] = json!({ "code": FAILED, "message": span.outcome });
        }
        value
    }
}

impl TraceSink for Collector {
    fn now_ns(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn begin(&self) -> Option<TraceContext> {
        let one_in = self.one_in;
        let is_next =
            one_in > 0 && self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in);
        is_next.then(|| {
            let halves = [self.random().to_be_bytes(), self.random().to_be_bytes()];
            let mut trace_id = [0; 16];
            trace_id[..8].copy_from_slice(&halves[0]);
            trace_id[8..].copy_from_slice(&halves[1]);
            TraceContext { trace_id, span_id: self.random().to_be_bytes(), sampled: true }
        })
    }

    fn record(&self, span: Span) {
        let mut waiting = self.lock();
        if waiting.len() >= QUEUE_MAX {
            drop(waiting);
            metrics::counter!(LEFT_OUT, "reason" => "queue full").increment(1);
            return;
        }
        waiting.push(span);
        if waiting.len() == BATCH_MAX {
            drop(waiting);
            self.wake.notify_one();
        }
    }
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Spreads each bit over all others.
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use gapless_core::{Seq, TopicName};

    use super::*;

    fn collector(settings: &[&str]) -> Arc<Collector> {
        let flags: Vec<String> = settings.iter().map(|flag| (*flag).to_owned()).collect();
        let config = Config::load(None, std::iter::empty(), &flags).unwrap();
        Collector::new(&config).unwrap().unwrap()
    }

    fn span(seq: u64) -> Span {
        let parent = TraceContext { trace_id: [1; 16], span_id: [2; 8], sampled: true };
        Span {
            parent,
            step: Step::Publish,
            topic: TopicName::parse("orders").unwrap(),
            seq: Some(Seq(seq)),
            begin_ns: 1,
            end_ns: 2,
            group: None,
            attempt: None,
            subscriber: None,
            outcome: "flushed",
            failed: false,
        }
    }

    #[test]
    fn without_an_endpoint_nothing_is_traced() {
        let config = Config::load(None, std::iter::empty(), &[]).unwrap();
        assert!(Collector::new(&config).unwrap().is_none());
        for wrong in ["trace.endpoint=localhost:4318", "trace.ratio=2", "trace.ratio=half"] {
            let config = Config::load(None, std::iter::empty(), &[wrong.to_owned()]).unwrap();
            let error = Collector::new(&config).expect_err(wrong).to_string();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn the_queue_is_bounded() {
        let collector = collector(&["trace.endpoint=http://127.0.0.1:1"]);
        for seq in 0..QUEUE_MAX as u64 + 10 {
            collector.record(span(seq));
        }
        assert_eq!(collector.lock().len(), QUEUE_MAX);
    }

    #[test]
    fn a_share_of_messages_begins_a_trace() {
        let none = collector(&["trace.endpoint=http://h:4318/"]);
        assert_eq!(none.endpoint, "http://h:4318/v1/traces");
        assert!((0..100).all(|_| none.begin().is_none()));
        let tenth = collector(&["trace.endpoint=http://h/v1/traces", "trace.ratio=0.1"]);
        assert_eq!(tenth.endpoint, "http://h/v1/traces");
        let begun: Vec<TraceContext> = (0..100).filter_map(|_| tenth.begin()).collect();
        assert_eq!(begun.len(), 10);
        assert!(begun.windows(2).all(|pair| pair[0].trace_id != pair[1].trace_id));
        assert!(
            begun.iter().all(|each| TraceContext::parse(each.header().as_bytes()) == Some(*each))
        );
    }

    #[test]
    fn a_span_is_a_child_of_the_publishers_and_says_what_became_of_it() {
        let collector = collector(&["trace.endpoint=http://h", "trace.service=shop"]);
        let failed = Span { outcome: "QueueFull", failed: true, ..span(7) };
        let document = collector.document(&[span(7), failed]);
        let resource = &document["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "shop");
        let spans = &resource["scopeSpans"][0]["spans"];
        assert_eq!(spans[0]["traceId"], "01".repeat(16));
        assert_eq!(spans[0]["parentSpanId"], "02".repeat(8));
        assert_eq!(spans[0]["spanId"].as_str().unwrap().len(), 16);
        assert_eq!(spans[0]["name"], "publish orders");
        assert_eq!(spans[0]["endTimeUnixNano"], "2");
        assert_eq!(spans[0]["status"], Value::Null);
        assert_eq!(spans[1]["status"]["message"], "QueueFull");
    }
}
