//! The listener of the HTTP door, its limits, and all its paths put together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use gapless_broker::Broker;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::DoorError;
use crate::http::options::HttpOptions;
use crate::http::{durable, follow, groups, health, messages, page, source, topics};

/// How long accepting rests after it failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) broker: Broker,
    pub(crate) options: HttpOptions,
    /// A permit for each open stream.
    pub(crate) streams: Arc<Semaphore>,
    /// The streams of the Durable Streams protocol.
    pub(crate) durable: durable::Streams,
    closing: watch::Receiver<bool>,
}

impl Shared {
    /// Resolves when the door is closing; streams end then.
    pub(crate) async fn closed(&self) {
        // An error means that the door is gone, which is as good.
        let _ = self.closing.clone().wait_for(|closing| *closing).await;
    }
}

/// An open HTTP door.
pub struct HttpDoor {
    address: SocketAddr,
    close: watch::Sender<bool>,
    accepting: tokio::task::JoinHandle<()>,
}

impl HttpDoor {
    /// Opens the door on a TCP address. Port 0 takes a free one.
    ///
    /// # Errors
    /// When it cannot be listened on.
    pub async fn open(
        broker: Broker,
        options: HttpOptions,
        address: &str,
    ) -> Result<Self, DoorError> {
        let failed = |source| DoorError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (close, closing) = watch::channel(false);
        let streams = Arc::new(Semaphore::new(options.streams_max));
        let durable = durable::Streams::open(&broker);
        let shared = Arc::new(Shared { broker, options, streams, durable, closing });
        let accepting = tokio::spawn(accept(shared, listener));
        Ok(Self { address: bound, close, accepting })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, ends streams, and waits for requests under way.
    pub async fn close(self) {
        let _ = self.close.send(true);
        // A panic in it is told by the runtime; there is nothing left to end.
        let _ = self.accepting.await;
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .merge(source::routes())
        .merge(topics::routes())
        .merge(messages::routes())
        .merge(follow::routes())
        .merge(groups::routes())
        .merge(health::routes())
        .merge(durable::routes())
        .merge(page::routes())
        .with_state(shared)
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let router = router(Arc::clone(&shared));
    let permits = Arc::new(Semaphore::new(shared.options.connections_max));
    let mut connections = JoinSet::new();
    connections.spawn(durable::sweep(Arc::clone(&shared)));
    loop {
        tokio::select! {
            () = shared.closed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Past the limit the connection is closed at once: it costs nothing.
                    if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                        let serving = serve(Arc::clone(&shared), router.clone(), stream);
                        connections.spawn(async move {
                            serving.await;
                            drop(permit);
                        });
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

async fn serve(shared: Arc<Shared>, router: Router, stream: TcpStream) {
    // Without it small answers wait for the other side's delayed acks.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.options.head_timeout)
        .max_buf_size(shared.options.head_bytes_max)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        // An error is the peer's: it is gone or spoke no HTTP, and hyper has answered.
        _ = connection.as_mut() => return,
        () = shared.closed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(shared.options.drain, connection).await;
}
