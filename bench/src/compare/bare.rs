//! A bare HTTP server: hyper, which takes a body and answers, and does nothing else. What it reaches
//! is the most that any server on it could on this machine.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::server::{Ready, Server};
use super::systems::Who;
use crate::benches::store::Result;

/// What it is called in a table.
pub(super) const NAME: &str = "bare hyper";

/// As long as what gapless answers a publish.
const ANSWER: &[u8] =
    br#"{"topic":"posted","seq":1000000,"position":1000000,"durability":"flushed","duplicate":false}"#;

/// Starts one in a process of its own; its address is that of its HTTP.
pub(super) fn start(folder: &Path) -> Result<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bare-http");
    // It ends when this does, or when the server is dropped.
    command.stdin(Stdio::piped());
    Server::launch(Who::Gapless, command, Ready::Line, folder)
}

/// Serves until its standard input ends.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    writeln!(std::io::stdout().lock(), "{}", ready(address))?;
    runtime.spawn(accept(listener));
    // Whatever comes, it only says that the other side lives.
    let mut input = std::io::stdin().lock();
    while input.read(&mut [0; 64])? > 0 {}
    Ok(())
}

fn ready(address: SocketAddr) -> String {
    format!(r#"{{"native":"{address}","http":"http://{address}"}}"#)
}

async fn accept(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        // As gapless does; without it, an answer could wait for the other side's ack.
        let _ = stream.set_nodelay(true);
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(connection);
    }
}

async fn answer(mut request: Request<Incoming>) -> std::result::Result<Response<Once>, Infallible> {
    let body = request.body_mut();
    while let Some(Ok(_)) =
        std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    {}
    let mut response = Response::new(Once(Some(Bytes::from_static(ANSWER))));
    *response.status_mut() = StatusCode::CREATED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// A body of one piece.
struct Once(Option<Bytes>);

impl Body for Once {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
