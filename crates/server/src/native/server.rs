//! The listeners of the native protocol, and what all connections share.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless_auth::Auth;
use gapless_broker::Broker;
use gapless_jobs::Leader;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ListenerError;
use crate::forward::ForwardedFrom;
use crate::native::connection::Connection;
use crate::native::options::NativeOptions;
use crate::native::signals::{Signals, tell_all};
use crate::session::awake::Awake;
use crate::session::fairness::Fairness;
use crate::session::sessions::{Counted, Session, Sessions, count_connections};
use crate::session::sockets;
use crate::session::stream::{Forwarded, Stream};

/// How long accepting rests after it failed.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that were given and are not taken yet.
const GIVEN_MAX: usize = 64;

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) broker: Broker,
    /// Who clients are, and what they may do.
    pub(crate) auth: Auth,
    /// The leader of jobs in this process; without one their hellos are refused.
    pub(crate) jobs: Option<Leader>,
    pub(crate) options: NativeOptions,
    pub(crate) sessions: Sessions,
    pub(crate) in_flight_bytes: AtomicUsize,
    pub(crate) fairness: Fairness,
    pub(crate) signals: Signals,
    /// The number of the session that published last.
    pub(crate) published_last: AtomicU64,
    pub(crate) awake: Option<Awake>,
    /// Clients of other listeners, which are listed beside its own.
    neighbours: Mutex<Vec<Sessions>>,
    connections: metrics::Gauge,
    closing: watch::Receiver<bool>,
}

impl Shared {
    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Session>>> {
        self.sessions.lock()
    }

    pub(crate) fn neighbours(&self) -> Vec<Sessions> {
        self.neighbours.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when the listener is closing.
    pub(crate) async fn closed(&self) {
        // An error means that the listener is gone, which is treated as closing.
        let _ = self.closing.clone().wait_for(|closing| *closing).await;
    }
}

/// Gives connections to a native listener that were accepted elsewhere. Clones give to the same one.
#[derive(Clone, Debug)]
pub struct NativeGate(mpsc::Sender<(Stream, String)>);

impl NativeGate {
    /// Gives a connection that was accepted here; it comes back if the listener is closed.
    pub(crate) async fn give(&self, stream: Stream, address: String) -> Result<(), Stream> {
        self.0.send((stream, address)).await.map_err(|back| back.0.0)
    }

    /// Gives the client of another node; if the listener is closed its connection ends.
    pub async fn give_forwarded(&self, from: ForwardedFrom, bytes: Box<dyn crate::Duplex>) {
        let ForwardedFrom { address, certificate, peer } = from;
        let stream = Forwarded { bytes, certificate, peer };
        let _ = self.give(Stream::Forwarded(Box::new(stream)), address).await;
    }
}

/// An open native listener.
pub struct NativeListener {
    shared: Arc<Shared>,
    tcp: Option<SocketAddr>,
    unix: Option<PathBuf>,
    close: watch::Sender<bool>,
    given: mpsc::Sender<(Stream, String)>,
    tasks: JoinSet<()>,
}

impl NativeListener {
    /// Listens on a TCP address, a Unix socket, or both. Port 0 takes a free one.
    ///
    /// # Errors
    /// When one of them cannot be listened on; then none is.
    pub async fn open(
        broker: Broker,
        options: NativeOptions,
        tcp: Option<&str>,
        unix: Option<&Path>,
    ) -> Result<Self, ListenerError> {
        let auth = Auth::open_to_all(&broker)?;
        Self::open_for(auth, None, options, tcp, unix).await
    }

    /// The same, for clients that prove their identity; connections whose first frame is a hello
    /// of jobs are served by the leader, if there is one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_for(
        auth: Auth,
        jobs: Option<Leader>,
        options: NativeOptions,
        tcp: Option<&str>,
        unix: Option<&Path>,
    ) -> Result<Self, ListenerError> {
        let (close, closing) = watch::channel(false);
        let awake = Awake::new(options.awake).map_err(ListenerError::Threads)?;
        let shared = Arc::new(Shared {
            broker: auth.broker().clone(),
            auth,
            jobs,
            options,
            sessions: Sessions::default(),
            in_flight_bytes: AtomicUsize::new(0),
            fairness: Fairness::new(Instant::now()),
            signals: Signals::default(),
            published_last: AtomicU64::new(0),
            awake,
            neighbours: Mutex::default(),
            connections: count_connections("native"),
            closing,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(tell_all(Arc::clone(&shared)));
        tasks.spawn(write(Arc::clone(&shared)));
        let mut tcp_address = None;
        if let Some(address) = tcp {
            let failed = |source| ListenerError::Listen { address: address.to_owned(), source };
            let listener = sockets::listen(address).await.map_err(failed)?;
            tcp_address = Some(listener.local_addr().map_err(failed)?);
            tasks.spawn(accept(Arc::clone(&shared), Listener::Tcp(listener)));
        }
        if let Some(path) = unix {
            let listener = listen_unix(path).await?;
            tasks.spawn(accept(Arc::clone(&shared), Listener::Unix(listener)));
        }
        let (given, giving) = mpsc::channel(GIVEN_MAX);
        tasks.spawn(accept_given(Arc::clone(&shared), giving));
        Ok(Self { shared, tcp: tcp_address, unix: unix.map(Path::to_owned), close, given, tasks })
    }

    /// By what connections are given to it that were accepted elsewhere.
    pub fn gate(&self) -> NativeGate {
        NativeGate(self.given.clone())
    }

    /// The TCP address it listens on.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Its clients, for the page and the CLI.
    pub fn sessions(&self) -> Sessions {
        self.shared.sessions.clone()
    }

    /// Lists the clients of another listener too, whose numbers must come from the same count.
    pub(crate) fn list_beside(&self, sessions: Sessions) {
        let neighbours = &self.shared.neighbours;
        neighbours.lock().unwrap_or_else(PoisonError::into_inner).push(sessions);
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.shared.sessions().len()
    }

    /// Takes no more connections, asks those there are to finish, and ends them when they
    /// have or their time is over.
    pub async fn close(mut self) {
        let _ = self.close.send(true);
        while self.tasks.join_next().await.is_some() {}
        if let Some(path) = &self.unix {
            // Whether it exists does not matter: the next server creates it again.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes what connections publish, until the listener closes.
async fn write(shared: Arc<Shared>) {
    tokio::select! {
        () = shared.closed() => {}
        () = shared.broker.write_here() => {}
    }
}

/// Listens on a Unix socket; one without a listening process is replaced.
pub(crate) async fn listen_unix(path: &Path) -> Result<UnixListener, ListenerError> {
    let failed = |source| ListenerError::Listen { address: path.display().to_string(), source };
    match UnixListener::bind(path) {
        // Anything but a socket is a user's file and stays.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_socket(path) => {
            if tokio::net::UnixStream::connect(path).await.is_ok() {
                return Err(ListenerError::InUse(path.to_owned()));
            }
            std::fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Serves connections that were accepted elsewhere.
async fn accept_given(shared: Arc<Shared>, mut given: mpsc::Receiver<(Stream, String)>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = shared.closed() => break,
            Some((stream, address)) = given.recv() => {
                serve(&shared, &mut connections, stream, address);
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(given);
    while connections.join_next().await.is_some() {}
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub(crate) async fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Stream::Tcp(stream), address.to_string()))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), "unix".to_owned()))
            }
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: Listener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = shared.closed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => serve(&shared, &mut connections, stream, address),
                Err(error) => refused(&error).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// An accept that failed, mostly for want of file descriptors: others may close, so it is
/// tried again, but not in a tight loop.
pub(crate) async fn refused(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Shakes hands, if connections over TCP are encrypted; `None` when that fails, or the listener closes.
async fn encrypt(shared: &Shared, stream: Stream, too_many: bool) -> Option<Stream> {
    match (stream, &shared.options.tls) {
        // A handshake costs more than the words that one too many would get.
        (Stream::Tcp(_), Some(_)) if too_many => None,
        // Boxed: open connections must not pay for the state of a handshake.
        (Stream::Tcp(stream), Some(tls)) => {
            Box::pin(async {
                tokio::select! {
                    stream = tls.accept(false, stream, shared.options.hello_timeout) => {
                        stream.map(|stream| Stream::Tls(Box::new(stream)))
                    }
                    () = shared.closed() => None,
                }
            })
            .await
        }
        (stream, _) => Some(stream),
    }
}

fn serve(shared: &Arc<Shared>, connections: &mut JoinSet<()>, stream: Stream, address: String) {
    let session = shared.sessions.new_session(address, shared.broker.now());
    let number = session.number;
    let mut sessions = shared.sessions();
    let place = shared.options.connections.enter();
    let too_many = place.is_none() || sessions.len() >= shared.options.connections_max;
    if !too_many {
        sessions.insert(number, Arc::clone(&session));
    }
    drop(sessions);
    let counted = (!too_many).then(|| Counted::new(&shared.connections));
    let shared = Arc::clone(shared);
    connections.spawn(async move {
        if let Some(stream) = encrypt(&shared, stream, too_many).await {
            Connection::new(Arc::clone(&shared), session, stream, too_many).run().await;
        }
        shared.sessions().remove(&number);
        drop(counted);
        drop(place);
    });
}
