//! How a client connects, and every maximum it keeps, with its unit and its reason.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gapless_core::{Amount, Backoff, Registry};

use crate::address::DEFAULT_ADDRESS;
use crate::tls::TlsOptions;

/// Whether messages without an id get one, so that sending them again cannot double them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ids {
    /// They get one: what was not answered when a connection is lost is sent again.
    #[default]
    Unique,
    /// They get none, which is faster: what was sent and not answered when a connection is
    /// lost ends in an error whose fate is unknown. Messages with an id of their own are
    /// sent again all the same.
    Off,
}

/// How much a client keeps, and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Most publishes without an answer. As many again may wait in line for room.
    pub in_flight_count: u32,
    /// Most bytes of publishes without an answer; the server's own limit holds besides. As
    /// many again may wait in line for room.
    pub in_flight_bytes: u64,
    /// Most subscriptions.
    pub subscriptions: u32,
    /// How much of a subscription is sent ahead of its user: what one that does not read
    /// costs in memory. The server's own limit holds besides.
    pub window: Amount,
    /// How long connecting and the greeting may take before the next address is tried.
    pub welcome_wait: Duration,
    /// How long [`crate::Client::connect`] waits for the first welcome.
    pub connect_wait: Duration,
    /// How long a request waits for its answer, reconnecting included.
    pub answer_wait: Duration,
    /// How long a publish waits for its answer, sending it again included. Shorter than the
    /// two minutes for which a topic remembers message ids unless it is set otherwise:
    /// beyond them, sending again could double.
    pub publish_wait: Duration,
    /// How often the server is asked whether it is still there. One that says nothing for
    /// three times as long is left.
    pub ping_every: Duration,
    /// How long a client that is dropped and not closed still waits for answers.
    pub drop_wait: Duration,
}

impl Default for ClientLimits {
    /// Enough to keep a server busy over a long line; waits that outlast a restart.
    fn default() -> Self {
        Self {
            in_flight_count: 10_000,
            in_flight_bytes: 16 << 20,
            subscriptions: 1_000,
            window: Amount { messages: 16_384, bytes: 4 << 20 },
            welcome_wait: Duration::from_secs(5),
            connect_wait: Duration::from_secs(15),
            answer_wait: Duration::from_secs(30),
            publish_wait: Duration::from_secs(90),
            ping_every: Duration::from_secs(10),
            drop_wait: Duration::from_secs(5),
        }
    }
}

/// A value that is not shown, not even by `Debug`.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) Bytes);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Where and how to connect.
///
/// ```
/// use std::time::Duration;
/// use gapless_client::{ClientLimits, ConnectOptions};
///
/// let options = ConnectOptions::new(["127.0.0.1:4281", "unix:/run/gapless.sock"])
///     .name("billing")
///     .limits(ClientLimits { connect_wait: Duration::from_secs(3), ..Default::default() });
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub(crate) addresses: Vec<String>,
    pub(crate) name: String,
    pub(crate) token: Option<Secret>,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) backoff: Backoff,
    pub(crate) limits: ClientLimits,
    pub(crate) ids: Ids,
    pub(crate) registry: Arc<Registry>,
}

impl ConnectOptions {
    /// Servers to try in turn, as `host:port`, `host` or `unix:/path`.
    pub fn new<A: AsRef<str>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self {
            addresses: addresses.into_iter().map(|address| address.as_ref().to_owned()).collect(),
            name: String::new(),
            token: None,
            tls: None,
            backoff: Backoff::default(),
            limits: ClientLimits::default(),
            ids: Ids::default(),
            registry: Arc::default(),
        }
    }

    /// The client's name, for people who look at the server.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The client's credential.
    #[must_use]
    pub fn token(mut self, token: impl Into<Bytes>) -> Self {
        self.token = Some(Secret(token.into()));
        self
    }

    /// Encrypts connections over TCP; Unix sockets stay as they are.
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How long to wait between two attempts to connect.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How much to keep and how long to wait.
    #[must_use]
    pub fn limits(mut self, limits: ClientLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether messages without an id get one.
    #[must_use]
    pub fn ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    /// The types that can be published and read; see [`crate::RegistryExt`].
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Arc::new(registry);
        self
    }
}

impl Default for ConnectOptions {
    /// The server of this machine.
    fn default() -> Self {
        Self::new([DEFAULT_ADDRESS])
    }
}
