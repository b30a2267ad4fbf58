//! Every maximum of the HTTP listener, with its unit and its reason.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use crate::http::page::timeline;
use crate::session::sockets::WRITE_TIMEOUT;
use crate::{Budget, Connections, Tls};

/// Limits of the HTTP listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// Most connections at the same time.
    pub connections_max: usize,
    /// Most connections of all listeners that share it.
    pub connections: Connections,
    /// Most streams (SSE, WebSocket, long polls) at the same time.
    pub streams_max: usize,
    /// Most bytes of a request's body.
    pub body_bytes_max: usize,
    /// Most bytes of a request's line and headers.
    pub head_bytes_max: usize,
    /// How long a request's line and headers may take to arrive.
    pub head_timeout: Duration,
    /// How long a request's body may take to arrive.
    pub body_timeout: Duration,
    /// The memory that connections of all listeners share.
    pub memory: Budget,
    /// How long a client may take nothing of what is written to it.
    pub write_timeout: Duration,
    /// How long a long poll of a stream waits. Short, so that it passes every proxy, and
    /// because coming back costs one small request.
    pub long_poll: Duration,
    /// Most members of groups that live between requests.
    pub members_max: usize,
    /// How long such a member lives without a request, at least; and as long as a lease of it.
    pub member_idle: Duration,
    /// How long connections get to finish when the listener closes.
    pub drain: Duration,
    /// Most topics that `/metrics` shows one by one; with more, it shows none of them.
    pub metrics_topics_max: usize,
    /// How often the state that the page shows is sampled, while a page is open.
    pub sample_interval: Duration,
    /// How long sampling goes on after the last one looked.
    pub sample_linger: Duration,
    /// How long a step of the last hour takes, which is kept whether or not a page is open.
    pub history_step: Duration,
    /// By what connections are encrypted; they are not without it.
    pub tls: Option<Tls>,
    /// Origins that browsers may call from: `*` for all, empty for none but our own page.
    pub cors_origins: Vec<String>,
    /// Host names that clients may use beside IP addresses, `localhost` and the name that is
    /// listened on: `*` for all.
    pub hosts: Vec<String>,
    /// The data folder, whose disk `/metrics` shows.
    pub data: Option<PathBuf>,
    /// The commit that the program is built from, as `/metrics` shows it; empty if it is not known.
    pub commit: Cow<'static, str>,
    /// Whether each request is a line of the log.
    pub access_log: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            connections: Connections::default(),
            streams_max: 15_000,
            body_bytes_max: 16 * 1024 * 1024,
            head_bytes_max: 64 * 1024,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            memory: Budget::default(),
            write_timeout: WRITE_TIMEOUT,
            long_poll: Duration::from_secs(3),
            members_max: 10_000,
            member_idle: Duration::from_secs(60),
            drain: Duration::from_secs(5),
            metrics_topics_max: 1000,
            sample_interval: Duration::from_secs(1),
            sample_linger: Duration::from_secs(30),
            history_step: timeline::STEP,
            tls: None,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            data: None,
            commit: Cow::Borrowed(""),
            access_log: false,
        }
    }
}
