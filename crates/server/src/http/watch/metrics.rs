//! `/metrics`: what the process recorded, and what is read from the broker at that moment.
//!
//! Numbers of single topics and groups, the distribution of flush times, and the process's own
//! figures are read when they are asked for, so that what was deleted is gone at once and nothing
//! is kept without need. `docs/metrics.md` lists the families, and a test compares it with the
//! running server.

use std::fmt::{Display, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gapless_broker::{Broker, GroupInfo, TopicInfo};
use gapless_core::cluster::TopicCounts;
use gapless_core::{Pattern, Timestamp, TopicName};
use gapless_jobs::shown::{Overview, Times};
use gapless_protocol::ErrorCode;

use crate::http::listener::server::{Shared, blocking};
use crate::http::values::problem::Problem;
use crate::process;

pub(crate) async fn show(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let Some(recorder) = shared.metrics.clone() else {
        let detail = "no recorder of metrics is installed in this process";
        return Err(Problem::new(ErrorCode::NotOffered, detail).with_status(StatusCode::NOT_FOUND));
    };
    let jobs = match &shared.jobs {
        Some(leader) => leader.overview().await.ok(),
        None => None,
    };
    let text = blocking(move || {
        let mut text = Text(recorder.render());
        let (broker, max) = (&shared.broker, shared.options.metrics_topics_max);
        put_server(&mut text, &shared);
        put_process(&mut text, shared.since);
        put_disk(&mut text, &shared);
        put_deliveries(&mut text, broker);
        put_flushes(&mut text, broker);
        put_topics(&mut text, broker, max);
        put_groups(&mut text, broker, max);
        put_cluster(&mut text, broker, max);
        if let Some(jobs) = &jobs {
            put_jobs(&mut text, jobs);
        }
        text.0
    });
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text.await?).into_response())
}

/// Says what is counted; to be called before anything is.
pub(crate) fn describe() {
    use ::metrics::{counter, describe_counter};
    describe_counter!("gapless_memory_waits_total", "Times a connection waited for memory.");
    let slow = "gapless_slow_readers_ended_total";
    describe_counter!(slow, "Connections ended because the client took nothing.");
    let failed = "gapless_tls_handshakes_failed_total";
    describe_counter!(failed, "TLS handshakes that failed; why is in the log.");
    // Shown from the start, so that the first one is seen as a change.
    counter!("gapless_memory_waits_total").increment(0);
    for listener in ["native", "http"] {
        counter!(slow, "listener" => listener).increment(0);
        counter!(failed, "listener" => listener).increment(0);
    }
}

/// The text as Prometheus reads it: families, each with its rows together.
struct Text(String);

impl Text {
    fn family(&mut self, kind: &str, name: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn row(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A family of one row.
    fn single(&mut self, kind: &str, name: &str, help: &str, value: impl Display) {
        self.family(kind, name, help);
        self.row(name, "", value);
    }

    /// A family with a row for each of many.
    fn each<T, V: Display>(
        &mut self,
        (kind, name, help): (&str, &str, &str),
        all: &[(String, T)],
        value: impl Fn(&T) -> V,
    ) {
        self.family(kind, name, help);
        for (labels, one) in all {
            self.row(name, labels, value(one));
        }
    }
}

/// A label with a name in it: names have no control characters and no backslash.
fn label(of: &str, name: &str) -> String {
    format!("{{{of}=\"{}\"}}", name.replace('"', "\\\""))
}

/// Several of them.
fn labels(all: &[(&str, &str)]) -> String {
    let each: Vec<String> = all
        .iter()
        .map(|(of, name)| format!("{of}=\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"")))
        .collect();
    format!("{{{}}}", each.join(","))
}

fn put_server(text: &mut Text, shared: &Shared) {
    text.family("gauge", "gapless_build_info", "Which version this is; the value is always 1.");
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", &*shared.options.commit)];
    text.row("gapless_build_info", &labels(&build), 1);
    let streams = shared.options.streams_max - shared.streams.available_permits();
    let help = "Open streams: SSE, WebSocket, long polls.";
    text.single("gauge", "gapless_http_streams", help, streams);
    let memory = &shared.options.memory;
    let help = "Bytes held by unfinished requests and unsent answers.";
    text.single("gauge", "gapless_memory_bytes", help, memory.used());
    let help = "How many bytes these may be.";
    text.single("gauge", "gapless_memory_bytes_max", help, memory.bytes_max());
    let expires = "gapless_tls_certificate_expires_timestamp_seconds";
    text.family("gauge", expires, "When the server's certificate expires, in seconds since 1970.");
    if let Some(tls) = &shared.options.tls {
        text.row(expires, "", tls.expires().as_secs());
    }
}

fn put_process(text: &mut Text, since: Timestamp) {
    let help = "When the server began to serve, in seconds since 1970.";
    text.single("gauge", "process_start_time_seconds", help, since.0 as f64 / 1000.0);
    let seconds = process::cpu_time().as_secs_f64();
    let help = "Processor time used, user and system.";
    text.single("counter", "process_cpu_seconds_total", help, seconds);
    if let Some(bytes) = process::resident_bytes() {
        let help = "Memory that is resident.";
        text.single("gauge", "process_resident_memory_bytes", help, bytes);
    }
    if let Some(open) = process::open_files() {
        text.single("gauge", "process_open_fds", "Open file descriptors.", open);
    }
    if let Some(max) = process::open_files_max() {
        text.single("gauge", "process_max_fds", "Most file descriptors that may be open.", max);
    }
}

/// The disk that the data folder is on. A server that embeds the listener may have none.
fn put_disk(text: &mut Text, shared: &Shared) {
    let Some(disk) = shared.options.data.as_deref().and_then(process::disk) else { return };
    let help = "Bytes that the disk of the data folder has left for this process.";
    text.single("gauge", "gapless_disk_free_bytes", help, disk.free_bytes);
    let help = "Bytes of the disk of the data folder.";
    text.single("gauge", "gapless_disk_size_bytes", help, disk.size_bytes);
}

fn put_deliveries(text: &mut Text, broker: &Broker) {
    let help = "Messages delivered to subscribers.";
    let count = broker.delivery_counts().delivered_messages;
    text.single("counter", "gapless_delivered_messages_total", help, count);
}

fn put_flushes(text: &mut Text, broker: &Broker) {
    let name = "gapless_journal_flush_seconds";
    text.family("histogram", name, "How long flushes (fsync) took that publishers waited for.");
    let (stats, times) = (broker.journal_stats(), broker.flush_times());
    for (bound, count) in times.cumulative() {
        let le = format!("{{le=\"{}\"}}", bound.as_secs_f64());
        text.row(&format!("{name}_bucket"), &le, count);
    }
    text.row(&format!("{name}_bucket"), "{le=\"+Inf\"}", times.count());
    text.row(&format!("{name}_sum"), "", stats.flush_time.as_secs_f64());
    text.row(&format!("{name}_count"), "", times.count());
}

/// Numbers of each topic, as long as there are not more than a monitoring system should keep.
fn put_topics(text: &mut Text, broker: &Broker, max: usize) {
    let everything = Pattern::parse(">").expect("`>` is a pattern");
    let topics = broker.list_topics(&everything);
    let left_out = if topics.len() > max { topics.len() } else { 0 };
    let help = "Topics without metrics of their own, because there are too many.";
    text.single("gauge", "gapless_topics_left_out", help, left_out);
    if left_out > 0 {
        return;
    }
    let named = |topic: TopicInfo| (label("topic", topic.name.as_str()), topic);
    let topics: Vec<_> = topics.into_iter().map(named).collect();
    let mut each = |name: &str, help: &str, value: &dyn Fn(&TopicInfo) -> u64| {
        text.each(("gauge", name, help), &topics, value);
    };
    each("gapless_topic_first_seq", "First seq that can be read.", &|topic| topic.first.0);
    each("gapless_topic_next_seq", "Seq that the next message gets.", &|topic| topic.next.0);
    each("gapless_topic_bytes", "Bytes kept, about.", &|topic| topic.bytes);
}

/// Numbers of the topics that went over the cluster, if the server is a node of one.
fn put_cluster(text: &mut Text, broker: &Broker, max: usize) {
    let Some(spread) = broker.spread() else { return };
    let mut counted = spread.topics_counted();
    counted.topics.sort_by(|one, other| one.0.cmp(&other.0));
    let left_out = counted.topics.split_off(counted.topics.len().min(max));
    let of = |counts: &TopicCounts| counts.published + counts.rejected + counts.received;
    let left_out: u64 = left_out.iter().map(|(_, counts)| of(counts)).sum();
    let named =
        |(topic, counts): (TopicName, TopicCounts)| (label("topic", topic.as_str()), counts);
    let topics: Vec<_> = counted.topics.into_iter().map(named).collect();
    let mut total = |name: &str, help: &str, value: &dyn Fn(&TopicCounts) -> u64| {
        text.each(("counter", name, help), &topics, value);
    };
    total(
        "gapless_cluster_topic_published_total",
        "Messages accepted for other nodes.",
        &|topic| topic.published,
    );
    total("gapless_cluster_topic_rejected_total", "Messages rejected because of them.", &|topic| {
        topic.rejected
    });
    total("gapless_cluster_topic_received_total", "Messages received from them.", &|topic| {
        topic.received
    });
    total("gapless_cluster_topic_lost_total", "Messages lost; events name them.", &|topic| {
        topic.lost
    });
    let help = "Messages of topics that have no rows of their own, because there are too many.";
    let name = "gapless_cluster_topics_left_out_total";
    text.single("counter", name, help, counted.uncounted + left_out);
}

/// Numbers of each group, under the same condition.
fn put_groups(text: &mut Text, broker: &Broker, max: usize) {
    let count = broker.group_names().len();
    text.single("gauge", "gapless_groups", "Groups.", count);
    let left_out = if count > max { count } else { 0 };
    let help = "Groups without metrics of their own, because there are too many.";
    text.single("gauge", "gapless_groups_left_out", help, left_out);
    if left_out > 0 {
        return;
    }
    let named = |group: GroupInfo| (label("group", group.name.as_str()), group);
    let groups: Vec<_> = broker.list_groups().into_iter().map(named).collect();
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&GroupInfo) -> u64| {
        text.each(("gauge", name, help), &groups, value);
    };
    gauge("gapless_group_lag", "Messages of the source that are not done.", &|group| group.lag);
    gauge("gapless_group_in_flight", "Messages that members hold.", &|group| {
        group.counts.in_flight
    });
    gauge("gapless_group_parked", "Messages that wait for their next attempt.", &|group| {
        group.counts.parked
    });
    gauge("gapless_group_dead_letters", "Dead letters.", &|group| group.dead_letters);
    gauge("gapless_group_members", "Members.", &|group| group.members.len() as u64);
    let age = ("gauge", "gapless_group_oldest_seconds", "Age of the oldest message not done.");
    text.each(age, &groups, |group| group.oldest_age.unwrap_or_default().as_secs_f64());
    let mut total = |name: &str, help: &str, value: &dyn Fn(&GroupInfo) -> u64| {
        text.each(("counter", name, help), &groups, value);
    };
    total("gapless_group_delivered_total", "Messages handed to members.", &|group| {
        group.totals.delivered
    });
    total("gapless_group_redelivered_total", "Of these, in a second or later attempt.", &|group| {
        group.totals.redelivered
    });
    total("gapless_group_acked_total", "Messages acked.", &|group| group.totals.acked);
    total("gapless_group_nacked_total", "Messages given back or terminated.", &|group| {
        group.totals.nacked
    });
    total("gapless_group_expired_total", "Messages whose lease ran out.", &|group| {
        group.totals.expired
    });
    total("gapless_group_dead_lettered_total", "Messages that became dead letters.", &|group| {
        group.totals.buried
    });
    total("gapless_group_dropped_total", "Messages dropped after the last attempt.", &|group| {
        group.totals.dropped
    });
    total("gapless_group_lost_total", "Messages gone before they were handed out.", &|group| {
        group.totals.lost
    });
}

/// Numbers of jobs, of a server that leads them.
fn put_jobs(text: &mut Text, jobs: &Overview) {
    let states = [
        ("waiting", jobs.waiting),
        ("ready", jobs.ready),
        ("running", jobs.running),
        ("ended", jobs.ended - jobs.dead),
        ("dead", jobs.dead),
    ];
    let states = states.map(|(state, count)| (label("state", state), count));
    text.each(("gauge", "gapless_jobs", "Jobs that are remembered."), &states, |count| *count);
    let totals = &jobs.totals;
    let help = "Jobs accepted.";
    text.single("counter", "gapless_jobs_submitted_total", help, totals.submitted);
    let ends = [
        ("succeeded", totals.succeeded),
        ("failed", totals.failed),
        ("cancelled", totals.cancelled),
        ("dead", totals.dead),
    ];
    let ends = ends.map(|(how, count)| (label("how", how), count));
    text.each(("counter", "gapless_jobs_ended_total", "Jobs ended."), &ends, |count| *count);
    let help = "Attempts after the first one of a job.";
    text.single("counter", "gapless_job_resends_total", help, totals.resends);
    let help = "What workers said of attempts that did not count any more.";
    text.single("counter", "gapless_job_stale_total", help, totals.stale);
    let connected = jobs.workers.iter().filter(|worker| worker.connected).count();
    text.single("gauge", "gapless_job_workers", "Workers that are connected.", connected);
    let help = "From being accepted, or ready again, until a worker got it.";
    put_times(text, "gapless_job_wait_seconds", help, &jobs.wait);
    let help = "From when a worker got it until the attempt was over.";
    put_times(text, "gapless_job_run_seconds", help, &jobs.run);
}

fn put_times(text: &mut Text, name: &str, help: &str, times: &Times) {
    let seconds = |ms: u64| ms as f64 / 1000.0;
    text.family("summary", name, help);
    for (share, ms) in [("0.5", times.p50_ms), ("0.95", times.p95_ms), ("0.99", times.p99_ms)] {
        if let Some(ms) = ms {
            text.row(name, &label("quantile", share), seconds(ms));
        }
    }
    text.row(&format!("{name}_sum"), "", seconds(times.sum_ms));
    text.row(&format!("{name}_count"), "", times.count);
}
