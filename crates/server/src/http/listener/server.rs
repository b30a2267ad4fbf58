//! The listener of the HTTP API, its limits, and all its paths put together.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use gapless_auth::{Auth, Places};
use gapless_broker::Broker;
use gapless_core::Timestamp;
use gapless_jobs::Leader;
use gapless_protocol::ErrorCode;
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::io::ReadBuf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};

use crate::Sessions;
use crate::forward::{Duplex, ForwardedFrom, Routes};
use crate::http::access::{login, rights};
use crate::http::listener::around::{around, around_before};
use crate::http::listener::front::{Front, Node, Upstream};
use crate::http::listener::host::Hosts;
use crate::http::listener::http2::Streams;
use crate::http::listener::options::HttpOptions;
use crate::http::listener::outgoing::Outgoing;
use crate::http::listener::socket::Socket;
use crate::http::listener::wire::{self, Io, Wire};
use crate::http::listener::{http2, origin};
use crate::http::page::{Sampler, Sources};
use crate::http::topics::{atomic, direct, messages, request, source};
use crate::http::values::problem;
use crate::http::values::problem::Problem;
use crate::http::watch::requests::Requests;
use crate::http::watch::{health, metrics};
use crate::http::{backups, clients, durable, follow, groups, jobs, page, topics};
use crate::native::NativeListener;
use crate::session::sessions::{Counted, count_connections};
use crate::session::sockets;
use crate::{ListenerError, certificate};

/// How long accepting rests after it failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a connection that the server ends is listened to, so that its peer can read the
/// last answer: with unread bytes the system would throw that away.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are thrown away meanwhile, at most.
const LINGER_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Bytes of a body that are read in one go, at most; what publishers stream comes in large
/// pieces then.
const READ_BYTES_MAX: usize = 256 * 1024;

/// Answers that are smaller are not compressed: a packet is a packet.
const COMPRESSED_BYTES_MIN: u16 = 1400;

/// How often the recorder of metrics compacts what was recorded since the last scrape.
const UPKEEP: Duration = Duration::from_secs(5);

/// The connection that a request came by; every request has it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its other end.
    pub(crate) address: SocketAddr,
    /// The identities that it counts for; they are given back with it.
    pub(crate) places: Arc<Places>,
}

/// The name in the client's certificate, which TLS has verified; a request has it if there is one.
#[derive(Debug)]
pub(crate) struct Certificate(pub(crate) String);

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) broker: Broker,
    /// Who clients are, and what they may do.
    pub(crate) auth: Auth,
    /// Whether all connections are encrypted.
    pub(crate) secure: bool,
    pub(crate) options: HttpOptions,
    /// A permit for each open stream.
    pub(crate) streams: Arc<Semaphore>,
    /// Members of groups, which live between requests.
    pub(crate) members: groups::Members,
    /// Snapshots that are held for those who copy the store.
    pub(crate) backups: backups::Backups,
    /// The streams of the Durable Streams protocol.
    pub(crate) durable: durable::Streams,
    /// How many publishes of one message wait for their durability.
    pub(crate) publishing: AtomicUsize,
    /// What is recorded for Prometheus, if the process records it.
    pub(crate) metrics: Option<PrometheusHandle>,
    /// Who follows over this listener.
    pub(crate) sessions: Sessions,
    /// What the page shows.
    pub(crate) sampler: Arc<Sampler>,
    /// The leader of jobs in this process, if there is one.
    pub(crate) jobs: Option<Leader>,
    /// When the listener got its broker.
    pub(crate) since: Timestamp,
    closing: watch::Receiver<bool>,
}

impl Shared {
    /// Resolves when the listener is closing; streams end then.
    pub(crate) async fn closed(&self) {
        closed(self.closing.clone()).await;
    }

    /// The same, for a task that does not hold this.
    pub(crate) fn closed_later(&self) -> impl Future<Output = ()> + Send + use<> {
        closed(self.closing.clone())
    }
}

async fn closed(mut closing: watch::Receiver<bool>) {
    // An error means that the listener is gone, which is as good.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Runs what may block where blocking is allowed.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::new(ErrorCode::Internal, error))
}

/// An open HTTP API.
pub struct HttpListener {
    address: SocketAddr,
    options: HttpOptions,
    paths: Arc<Paths>,
    streams: Arc<Semaphore>,
    close: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
    turn: Option<Turn>,
    /// Who is connected at other listeners, by the listener's name.
    neighbours: Vec<(&'static str, Sessions)>,
    /// The clients of this listener.
    sessions: Sessions,
    outbox: Option<watch::Receiver<Value>>,
    jobs: Option<Leader>,
}

/// The time in which a broker is served.
struct Turn {
    close: watch::Sender<bool>,
    /// What is done now and then meanwhile.
    chores: JoinSet<()>,
}

/// What is answered: little until the broker is there, then everything.
pub(crate) struct Paths {
    hosts: Hosts,
    before: Router,
    all: RwLock<Option<Serving>>,
    requests: Requests,
}

/// All paths of a broker, and when that is over.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) router: Router,
    shared: Arc<Shared>,
    closing: watch::Receiver<bool>,
}

impl Paths {
    pub(crate) fn all(&self) -> Option<Serving> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, all: Option<Serving>) {
        *self.all.write().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// What all requests to the broker share, while it is served.
    fn shared(&self) -> Option<Arc<Shared>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.as_ref().map(|serving| Arc::clone(&serving.shared))
    }

    /// Paths of a connection that came here, or that another node forwarded.
    fn router(&self, forwarded: bool) -> Result<Router, Problem> {
        match self.all() {
            Some(serving) => Ok(serving.router),
            None if !forwarded => Ok(self.before.clone()),
            None => {
                let detail = "this node serves the store no longer";
                Err(Problem::new(ErrorCode::Unavailable, detail))
            }
        }
    }
}

/// Gives the listener clients that other nodes forward. Clones give to the same one.
#[derive(Clone)]
pub struct HttpGate {
    options: Arc<HttpOptions>,
    paths: Arc<Paths>,
}

impl HttpGate {
    /// Serves the client of another node, in a task of its own. If no broker is served its connection
    /// ends.
    pub fn give_forwarded(&self, from: ForwardedFrom, bytes: Box<dyn Duplex>) {
        let Some(Serving { closing, .. }) = self.paths.all() else { return };
        let (options, paths) = (Arc::clone(&self.options), Arc::clone(&self.paths));
        let Some(place) = options.connections.enter() else { return };
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = from.address.parse().unwrap_or(unknown);
        let certificate = from.certificate.map(|name| Arc::new(Certificate(name)));
        let accepted = Accepted {
            socket: Socket::Forwarded(bytes),
            is_second: false,
            certificate,
            address,
            forwarded: true,
        };
        tokio::spawn(async move {
            serve_accepted(options, paths, closing, accepted).await;
            drop(place);
        });
    }
}

impl HttpListener {
    /// Opens the listener on a TCP address. Port 0 takes a free one. Until [`HttpListener::serve`]
    /// it only says that the store is being opened.
    ///
    /// # Errors
    /// When it cannot be listened on.
    pub async fn listen(options: HttpOptions, address: &str) -> Result<Self, ListenerError> {
        let before =
            |_: &Weak<Paths>| health::routes_before_opening().layer(from_fn(around_before));
        Self::listen_before(options, address, before).await
    }

    /// Opens the listener of a node that shares its store with others. What is about the node is
    /// answered by it; everything else goes where these routes say while no broker is served here.
    ///
    /// # Errors
    /// When it cannot be listened on, or the node's own broker cannot be asked.
    pub async fn listen_shared(
        options: HttpOptions,
        address: &str,
        routes: Routes,
        node: Node<'_>,
    ) -> Result<Self, ListenerError> {
        let auth = Auth::open_to_all(node.broker)?;
        let streams = Arc::new(Semaphore::new(options.streams_max));
        // It serves no stream, so nothing waits for its end.
        let closing = watch::channel(false).1;
        let shared = Shared {
            since: node.broker.now(),
            sessions: Sessions::default(),
            sampler: Sampler::new(
                node.broker.clone(),
                Sources {
                    listeners: Vec::new(),
                    outbox: None,
                    jobs: None,
                    data: options.data.clone(),
                },
                &options,
                closing.clone(),
            ),
            members: groups::Members::new(node.broker.now()),
            durable: durable::Streams::open(node.broker),
            publishing: AtomicUsize::new(0),
            jobs: None,
            backups: backups::Backups::default(),
            broker: node.broker.clone(),
            auth,
            secure: options.tls.is_some(),
            options: options.clone(),
            streams,
            metrics: node.metrics,
            closing,
        };
        let shared = Arc::new(shared);
        let own = health::routes_of_node()
            .with_state(Arc::clone(&shared))
            .layer(from_fn_with_state(shared, around));
        let asks = node.asks;
        let before =
            move |paths: &Weak<Paths>| Front::new(routes, Weak::clone(paths), own, asks).router();
        Self::listen_before(options, address, before).await
    }

    async fn listen_before(
        options: HttpOptions,
        address: &str,
        before: impl FnOnce(&Weak<Paths>) -> Router,
    ) -> Result<Self, ListenerError> {
        let failed = |source| ListenerError::Listen { address: address.to_owned(), source };
        let listener = sockets::listen(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        metrics::describe();
        let (close, closing) = watch::channel(false);
        let hosts = Hosts::new(address, &options.hosts);
        let requests = Requests::new(options.access_log);
        let paths = Arc::new_cyclic(|paths| Paths {
            hosts,
            before: before(paths),
            all: RwLock::default(),
            requests,
        });
        let limits = options.clone();
        let accepting = accept(limits, Arc::clone(&paths), closing, listener);
        let accepting = tokio::spawn(accepting);
        let neighbours = Vec::new();
        let streams = Arc::new(Semaphore::new(options.streams_max));
        Ok(Self {
            address: bound,
            options,
            paths,
            streams,
            close,
            accepting,
            turn: None,
            neighbours,
            sessions: Sessions::default(),
            outbox: None,
            jobs: None,
        })
    }

    /// Shows the clients of the native API on the page too, and those of this listener in the
    /// other's list. To be said before [`HttpListener::serve`].
    pub fn beside(&mut self, native: &NativeListener) {
        self.sessions = native.sessions().neighbour();
        native.list_beside(self.sessions.clone());
        self.neighbours.push(("native", native.sessions()));
    }

    /// Shows the state of the outbox that this process moves, as JSON, on the page too. To be
    /// said before [`HttpListener::serve`].
    pub fn outbox(&mut self, state: watch::Receiver<Value>) {
        self.outbox = Some(state);
    }

    /// Offers the jobs that this leader leads. To be said before [`HttpListener::serve`].
    pub fn leads(&mut self, leader: Leader) {
        self.jobs = Some(leader);
    }

    /// Serves this broker from now on, in the runtime that this is called in. `metrics` is
    /// what `/metrics` shows, if anything is recorded.
    ///
    /// # Errors
    /// When roles and identities cannot be read.
    pub fn serve(
        &mut self,
        broker: &Broker,
        metrics: Option<PrometheusHandle>,
    ) -> Result<(), ListenerError> {
        self.serve_for(Auth::open_to_all(broker)?, metrics);
        Ok(())
    }

    /// The same, for clients that authenticate.
    pub fn serve_for(&mut self, auth: Auth, metrics: Option<PrometheusHandle>) {
        let (close, closing) = watch::channel(false);
        let broker = auth.broker().clone();
        let since = broker.now();
        let sessions = self.sessions.clone();
        let mut listeners = std::mem::take(&mut self.neighbours);
        listeners.push(("http", sessions.clone()));
        let shared = Shared {
            since,
            sessions,
            sampler: Sampler::new(
                broker.clone(),
                Sources {
                    listeners,
                    outbox: self.outbox.take(),
                    jobs: self.jobs.clone(),
                    data: self.options.data.clone(),
                },
                &self.options,
                closing.clone(),
            ),
            members: groups::Members::new(since),
            backups: backups::Backups::default(),
            durable: durable::Streams::open(&broker),
            publishing: AtomicUsize::new(0),
            jobs: self.jobs.take(),
            broker,
            auth,
            secure: self.options.tls.is_some(),
            options: self.options.clone(),
            streams: Arc::clone(&self.streams),
            metrics,
            closing: closing.clone(),
        };
        let shared = Arc::new(shared);
        // A listener serves one broker at a time: the first it was given.
        if self.turn.is_some() {
            return;
        }
        self.paths.set(Some(Serving {
            router: router(Arc::clone(&shared)),
            shared: Arc::clone(&shared),
            closing,
        }));
        let mut chores = JoinSet::new();
        chores.spawn(Arc::clone(&shared.sampler).run());
        chores.spawn(groups::sweep(Arc::clone(&shared)));
        chores.spawn(durable::sweep(shared));
        self.turn = Some(Turn { close, chores });
    }

    /// Serves its broker no longer: streams and forwarded connections end, and requests under way get
    /// so long. The listener stays open.
    pub async fn stop_serving(&mut self, drain: Duration) {
        let Some(turn) = self.turn.take() else { return };
        self.paths.set(None);
        let _ = turn.close.send(true);
        self.until_quiet(drain).await;
        turn.chores.join_all().await;
    }

    /// Waits until no stream is open, but not longer than that.
    async fn until_quiet(&self, drain: Duration) {
        let all = u32::try_from(self.options.streams_max).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(drain, self.streams.acquire_many(all)).await;
    }

    /// By what clients are given to it that other nodes forward.
    pub fn gate(&self) -> HttpGate {
        HttpGate { options: Arc::new(self.options.clone()), paths: Arc::clone(&self.paths) }
    }

    /// Opens the listener on a TCP address for a broker that is there already.
    ///
    /// # Errors
    /// When it cannot be listened on.
    pub async fn open(
        broker: Broker,
        options: HttpOptions,
        address: &str,
    ) -> Result<Self, ListenerError> {
        let mut listener = Self::listen(options, address).await?;
        listener.serve(&broker, None)?;
        Ok(listener)
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, ends streams, and waits for requests under way.
    pub async fn close(mut self) {
        let turn = self.turn.take();
        if let Some(turn) = &turn {
            let _ = turn.close.send(true);
        }
        let _ = self.close.send(true);
        // The runtime reports a panic in it; there is nothing left to end.
        let _ = (&mut self.accepting).await;
        // WebSockets have left their connections; each gives its permit back when it ends.
        self.until_quiet(self.options.drain).await;
        if let Some(turn) = turn {
            turn.chores.join_all().await;
        }
    }
}

/// Keeps the recorder small while `/metrics` is not scraped.
pub async fn keep_metrics_small(recorder: PrometheusHandle) {
    let mut due = tokio::time::interval(UPKEEP);
    loop {
        due.tick().await;
        recorder.run_upkeep();
    }
}

fn router(shared: Arc<Shared>) -> Router {
    // Those that stream flush each piece, or are not compressed at all.
    let worth_it = SizeAbove::new(COMPRESSED_BYTES_MIN)
        .and(NotForContentType::SSE)
        .and(NotForContentType::IMAGES)
        .and(NotForContentType::const_new("application/octet-stream"))
        .and(NotForContentType::const_new("font/"));
    let compression =
        CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth_it);
    let options = &shared.options;
    let cors = origin::cors(&options.cors_origins);
    let paths = Router::new()
        .merge(source::routes())
        .merge(topics::routes())
        .merge(messages::routes())
        .merge(atomic::routes())
        .merge(follow::routes())
        .merge(request::routes())
        .merge(groups::routes())
        .merge(clients::routes())
        .merge(jobs::routes())
        .merge(health::routes())
        .merge(backups::routes())
        .merge(durable::routes())
        .merge(login::routes())
        .merge(page::routes())
        .route_layer(from_fn(rights::gate))
        .fallback(problem::no_such_path)
        .layer(DefaultBodyLimit::max(options.body_bytes_max))
        .with_state(Arc::clone(&shared));
    // What is around all paths sees their answers whole, with what axum adds to them at last.
    Router::new()
        .fallback_service(paths)
        .layer(from_fn_with_state(shared, around))
        .layer(compression)
        .layer(cors)
}

async fn accept(
    options: HttpOptions,
    paths: Arc<Paths>,
    closing: watch::Receiver<bool>,
    listener: TcpListener,
) {
    let permits = Arc::new(Semaphore::new(options.connections_max));
    let options = Arc::new(options);
    let count = count_connections("http");
    let mut connections = JoinSet::new();
    let closed = closed(closing.clone());
    tokio::pin!(closed);
    loop {
        tokio::select! {
            () = &mut closed => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let permit = Arc::clone(&permits).try_acquire_owned().ok();
                    let place = options.connections.enter();
                    if let (Some(permit), Some(place)) = (permit, place) {
                        let (options, paths) = (Arc::clone(&options), Arc::clone(&paths));
                        let closing = closing.clone();
                        let counted = Counted::new(&count);
                        connections.spawn(async move {
                            serve(options, paths, closing, (stream, peer)).await;
                            drop((permit, place, counted));
                        });
                    } else if options.tls.is_none() {
                        // It gets an error and is closed at once: that costs nothing. A handshake
                        // would.
                        let why = "the server has all the connections it may have";
                        tracing::warn!(target: "clients", from = %peer, why, "connection refused");
                        wire::refuse(&stream, &Problem::new(ErrorCode::TooManyConnections, why));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(
    options: Arc<HttpOptions>,
    paths: Arc<Paths>,
    closing: watch::Receiver<bool>,
    (stream, address): (TcpStream, SocketAddr),
) {
    tracing::debug!(target: "clients", from = %address, "HTTP connection");
    let Some((socket, is_second, certificate)) = encrypt(&options, stream, &closing).await else {
        return;
    };
    let accepted = Accepted { socket, is_second, certificate, address, forwarded: false };
    serve_accepted(options, paths, closing, accepted).await;
}

/// A connection, after its handshake.
struct Accepted {
    socket: Socket,
    /// Whether it speaks HTTP/2.
    is_second: bool,
    certificate: Option<Arc<Certificate>>,
    /// The client's.
    address: SocketAddr,
    /// Whether another node has it from its client.
    forwarded: bool,
}

async fn serve_accepted(
    options: Arc<HttpOptions>,
    paths: Arc<Paths>,
    closing: watch::Receiver<bool>,
    accepted: Accepted,
) {
    let Accepted { socket, is_second, certificate, address, forwarded } = accepted;
    let upstream = Arc::new(Upstream::default());
    let streams = is_second.then(Streams::new);
    let peer = Peer { address, places: Arc::default() };
    let wire = Wire::new(streams, peer.clone(), options.memory.clone());
    let watched = Arc::clone(&wire);
    let from: Arc<str> = address.to_string().into();
    let service =
        hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let (wire, answering) = (Arc::clone(&watched), watched.answering());
            let (paths, peer) = (Arc::clone(&paths), peer.clone());
            let (begun, certificate) =
                (paths.requests.begin(&request, address), certificate.clone());
            name_host(&mut request);
            // Of a forwarded request the first node has checked that.
            let checked = if forwarded { Ok(()) } else { paths.hosts.check(&request) };
            without_host(&mut request);
            let (from, upstream) = (Arc::clone(&from), Arc::clone(&upstream));
            async move {
                let direct = checked.is_ok() && direct::is_direct(&request);
                let answer = match (checked, direct.then(|| paths.shared()).flatten()) {
                    (Ok(()), Some(shared)) => {
                        let from = (from, &*peer.places);
                        direct::publish(&shared, (from, certificate.as_ref()), request).await
                    }
                    (Ok(()), None) => match paths.router(forwarded) {
                        Ok(router) => {
                            request.extensions_mut().insert(peer);
                            request.extensions_mut().insert(upstream);
                            if let Some(certificate) = certificate {
                                request.extensions_mut().insert(certificate);
                            }
                            // Boxed: a request that needs no router does not pay for its size.
                            Box::pin(tower::ServiceExt::oneshot(router, request)).await?
                        }
                        Err(problem) => problem.into_response(),
                    },
                    (Err(problem), _) => problem.into_response(),
                };
                paths.requests.end(&begun, &answer);
                if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                    wire.upgraded();
                }
                Ok::<_, Infallible>(answer.map(|body| Outgoing::new(body, wire, answering)))
            }
        });
    if is_second {
        http2::serve(&options, (&wire, socket), service, closed(closing)).await;
        tracing::debug!(target: "clients", from = %address, "HTTP connection ended");
        return end(wire).await;
    }
    let ended = {
        let connection = hyper::server::conn::http1::Builder::new()
            // A timer of our own looks after heads: hyper would set one for each request.
            .header_read_timeout(None)
            .max_header_size(options.head_bytes_max)
            .max_buf_size(options.head_bytes_max.max(READ_BYTES_MAX))
            .serve_connection(
                TokioIo::new(Io::new(Arc::clone(&wire), socket, options.write_timeout)),
                service,
            )
            .with_upgrades();
        tokio::pin!(connection);
        // The connection first: what ends it otherwise is looked at when it has nothing to do.
        tokio::select! {
            biased;
            _ = connection.as_mut() => Ended::ByItself,
            () = wire.head_is_late(options.head_timeout) => Ended::Late,
            () = closed(closing) => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(options.drain, connection).await {
                    Ok(_) => Ended::ByItself,
                    Err(_) => Ended::InTheMiddle,
                }
            }
        }
    };
    let reason = match ended {
        Ended::ByItself => "all was done, or the client closed it",
        Ended::Late => "its next request did not arrive in time",
        Ended::InTheMiddle => "the server is shutting down",
    };
    tracing::debug!(target: "clients", from = %address, reason, "HTTP connection ended");
    if ended == Ended::Late {
        let detail = format!("the head did not arrive within {:?}", options.head_timeout);
        wire.tell_timeout(&Problem::new(ErrorCode::RequestTimeout, detail));
    }
    if ended != Ended::InTheMiddle {
        end(wire).await;
    }
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// hyper is done with it.
    ByItself,
    /// The next head did not come in time.
    Late,
    /// An answer was not done when the listener closed.
    InTheMiddle,
}

/// Ends a connection, unless it became a WebSocket.
async fn end(wire: Arc<Wire>) {
    if let Some(socket) = Arc::into_inner(wire).and_then(Wire::into_socket) {
        // The peer is gone or takes too long; both end it.
        let _ = tokio::time::timeout(LINGER, linger(socket)).await;
    }
}

/// Shakes hands, if connections are encrypted. Returns whether both agreed on HTTP/2, and the name
/// in the client's certificate.
async fn encrypt(
    options: &HttpOptions,
    stream: TcpStream,
    closing: &watch::Receiver<bool>,
) -> Option<(Socket, bool, Option<Arc<Certificate>>)> {
    let Some(tls) = &options.tls else { return Some((Socket::Plain(stream), false, None)) };
    let stream = tokio::select! {
        stream = tls.accept(true, stream, options.head_timeout) => stream?,
        () = closed(closing.clone()) => return None,
    };
    let is_second = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let certificates = stream.get_ref().1.peer_certificates();
    let name = certificates.and_then(|all| certificate::name(all.first()?));
    let certificate = name.map(|name| Arc::new(Certificate(name)));
    Some((Socket::tls(stream), is_second, certificate))
}

/// Leaves the path and what follows it of an address that names the server too.
fn without_host<B>(request: &mut hyper::Request<B>) {
    if let Some(path) = request.uri().path_and_query().filter(|_| request.uri().host().is_some()) {
        *request.uri_mut() = path.clone().into();
    }
}

/// HTTP/2 has the host in the address; everything behind looks for it in its header.
fn name_host<B>(request: &mut hyper::Request<B>) {
    if request.headers().contains_key(header::HOST) {
        return;
    }
    let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// Says that nothing more comes, and waits until the peer has heard it.
async fn linger(mut stream: Socket) -> std::io::Result<()> {
    poll_fn(|context| stream.poll_shutdown(context)).await?;
    let mut unread = [0; 4096];
    let mut left = LINGER_BYTES_MAX;
    while left > 0 {
        let mut buffer = ReadBuf::new(&mut unread);
        match poll_fn(|context| stream.poll_read(context, &mut buffer)).await? {
            0 => break,
            bytes => left = left.saturating_sub(bytes),
        }
    }
    Ok(())
}
