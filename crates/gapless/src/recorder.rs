//! Where metrics are recorded, created while the store is being opened.
//!
//! A recorder has a clock that is calibrated against the system's when it is created: a
//! millisecond, but on a busy machine 30 to 65 were measured. So that is begun on a thread of its
//! own, and only the first user of the recorder, which is the broker once its journal is open,
//! waits for the rest of it.

use std::sync::OnceLock;

use gapless_broker::{ACK_SECONDS_BUCKETS, DELIVERY_SECONDS_BUCKETS};
use gapless_server::http::HTTP_SECONDS_BUCKETS;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::exit::Failure;

static RECORDER: OnceLock<PrometheusRecorder> = OnceLock::new();

fn recorder() -> &'static PrometheusRecorder {
    RECORDER.get_or_init(|| {
        // Buckets can be added up over servers, which quantiles cannot.
        let histograms: [(&str, &[f64]); 3] = [
            ("gapless_ack_seconds", &ACK_SECONDS_BUCKETS),
            ("gapless_delivery_seconds", &DELIVERY_SECONDS_BUCKETS),
            ("gapless_http_request_seconds", &HTTP_SECONDS_BUCKETS),
        ];
        let with = |builder: PrometheusBuilder, (name, buckets): (&str, &[f64])| {
            let of = Matcher::Full(name.to_owned());
            builder.set_buckets_for_metric(of, buckets).expect("there are buckets")
        };
        histograms.into_iter().fold(PrometheusBuilder::new(), with).build_recorder()
    })
}

/// Installs it for this process, and begins to create it.
pub(crate) fn begin() -> Result<(), Failure> {
    metrics::set_global_recorder(Later).map_err(Failure::failed)?;
    tokio::task::spawn_blocking(recorder);
    Ok(())
}

/// What renders it, once it is created.
pub(crate) fn handle() -> PrometheusHandle {
    recorder().handle()
}

/// Hands everything on to the recorder when there is one.
struct Later;

impl Recorder for Later {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        recorder().describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        recorder().describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        recorder().describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        recorder().register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        recorder().register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        recorder().register_histogram(key, metadata)
    }
}
