//! The native listener of a node that shares its store with others: it accepts, and hands each connection
//! to the owner, on this node or another.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use gapless_protocol::link::ClientApi;
use gapless_protocol::{ErrorCode, FrameLimit, Ids, Verb};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ListenerError;
use crate::answers::error;
use crate::forward::{Duplex, ForwardedFrom, Routes, Way};
use crate::native::options::NativeOptions;
use crate::native::server::{Listener, listen_unix, refused};
use crate::session::sockets;
use crate::session::stream::Stream;

/// How long a client that is refused may take to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// An open native listener that serves nothing itself.
pub struct NativeFront {
    tcp: Option<SocketAddr>,
    unix: Option<PathBuf>,
    close: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

struct Front {
    options: NativeOptions,
    routes: Routes,
    permits: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl NativeFront {
    /// Listens on a TCP address, a Unix socket, or both. Port 0 takes a free one.
    ///
    /// # Errors
    /// When one of them cannot be listened on; then none is.
    pub async fn open(
        options: NativeOptions,
        routes: Routes,
        tcp: Option<&str>,
        unix: Option<&Path>,
    ) -> Result<Self, ListenerError> {
        let (close, closing) = watch::channel(false);
        let permits = Arc::new(Semaphore::new(options.connections_max));
        let front = Arc::new(Front { options, routes, permits, closing });
        let mut tasks = JoinSet::new();
        let mut tcp_address = None;
        if let Some(address) = tcp {
            let failed = |source| ListenerError::Listen { address: address.to_owned(), source };
            let listener = sockets::listen(address).await.map_err(failed)?;
            tcp_address = Some(listener.local_addr().map_err(failed)?);
            tasks.spawn(accept(Arc::clone(&front), Listener::Tcp(listener)));
        }
        if let Some(path) = unix {
            let listener = listen_unix(path).await?;
            tasks.spawn(accept(Arc::clone(&front), Listener::Unix(listener)));
        }
        Ok(Self { tcp: tcp_address, unix: unix.map(Path::to_owned), close, tasks })
    }

    /// The TCP address it listens on.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Takes no more connections, and ends those that are passed on.
    pub async fn close(mut self) {
        let _ = self.close.send(true);
        while self.tasks.join_next().await.is_some() {}
        if let Some(path) = &self.unix {
            // Whether it exists does not matter: the next server creates it again.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Front {
    async fn closed(&self) {
        // An error means that the listener is gone, which is treated as closing.
        let _ = self.closing.clone().wait_for(|closing| *closing).await;
    }
}

async fn accept(front: Arc<Front>, listener: Listener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = front.closed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let front = Arc::clone(&front);
                    connections.spawn(async move {
                        tokio::select! {
                            () = serve(&front, stream, address) => {}
                            () = front.closed() => {}
                        }
                    });
                }
                Err(error) => refused(&error).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(front: &Front, stream: Stream, address: String) {
    let place = front.options.connections.enter();
    let permit = Arc::clone(&front.permits).try_acquire_owned().ok();
    let too_many = place.is_none() || permit.is_none();
    let encrypted = match (stream, &front.options.tls) {
        // A handshake costs more than the words that one too many would get.
        (Stream::Tcp(_), Some(_)) if too_many => None,
        (Stream::Tcp(stream), Some(tls)) => {
            let stream = tls.accept(false, stream, front.options.hello_timeout).await;
            stream.map(|stream| Stream::Tls(Box::new(stream)))
        }
        (stream, _) => Some(stream),
    };
    let Some(mut stream) = encrypted else { return };
    if too_many {
        let why = "too many connections";
        return refuse(stream.into_bytes(), ErrorCode::TooManyConnections, why.to_owned()).await;
    }
    let mut held = Some((place, permit));
    let (certificate, peer) = (stream.certificate(), stream.peer());
    let from = ForwardedFrom { address, certificate, peer };
    let until = front.routes.until();
    loop {
        match front.routes.way(ClientApi::Native, &from, until).await {
            Ok(Way::Here(gate)) => {
                // The listener behind it counts it in turn.
                drop(held.take());
                match gate.give(stream, from.address.clone()).await {
                    Ok(()) => return,
                    Err(back) => stream = back,
                }
                // It closes: soon there is another way.
                front.routes.pause(until).await;
            }
            Ok(Way::There(passed)) => return front.routes.pass(stream.into_bytes(), passed).await,
            Err(none) => {
                let why = none.to_string();
                return refuse(stream.into_bytes(), ErrorCode::Unavailable, why).await;
            }
        }
    }
}

/// Says why, and ends the connection.
async fn refuse(mut stream: Box<dyn Duplex>, code: ErrorCode, why: String) {
    let mut frame = BytesMut::new();
    let answer = Verb::Error(error(code, &why));
    if answer.encode(Ids::NONE, FrameLimit::default(), &mut frame).is_err() {
        return;
    }
    let telling = async {
        stream.write_all(&frame).await?;
        stream.shutdown().await?;
        // A socket that is closed with unread bytes takes back what was sent last.
        let mut dropped = [0; 1024];
        while stream.read(&mut dropped).await? > 0 {}
        std::io::Result::Ok(())
    };
    // A client that does not listen any more is not told.
    let _ = timeout(LAST_WORDS, telling).await;
}
