//! The beginning of a WebSocket: what its request must say, and what it is answered (RFC 6455).
//!
//! axum can do this too, but its sockets send whole messages only; a message of many megabytes is
//! to go in fragments, as the client takes them.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::http::values::problem::Problem;

/// A WebSocket of this server.
pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A request that may ask for a WebSocket.
pub(crate) struct Upgrade(Option<Asked>);

struct Asked {
    on: OnUpgrade,
    accept: HeaderValue,
}

impl<S: Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Some clients offer other protocols, and are content when that is ignored.
        if !says(parts, &header::UPGRADE, "websocket") {
            return Ok(Self(None));
        }
        if parts.method != Method::GET {
            let why = "a WebSocket begins with a GET";
            return Err(Problem::bad_request(why).with_status(StatusCode::METHOD_NOT_ALLOWED));
        }
        if !says(parts, &header::CONNECTION, "upgrade") {
            return Err(Problem::bad_request("a WebSocket needs the header Connection: Upgrade"));
        }
        if !says(parts, &header::SEC_WEBSOCKET_VERSION, "13") {
            return Err(Problem::bad_request("a WebSocket needs Sec-WebSocket-Version: 13"));
        }
        let key = parts.headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty());
        let Some(key) = key else {
            return Err(Problem::bad_request("a WebSocket needs the header Sec-WebSocket-Key"));
        };
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
        let accept = accept.map_err(Problem::bad_request)?;
        let Some(on) = parts.extensions.remove::<OnUpgrade>() else {
            let why = "this connection cannot become a WebSocket";
            return Err(Problem::bad_request(why).with_status(StatusCode::UPGRADE_REQUIRED));
        };
        Ok(Self(Some(Asked { on, accept })))
    }
}

/// Whether a header has this word in its list.
fn says(parts: &Parts, name: &HeaderName, word: &str) -> bool {
    let values = parts.headers.get_all(name).iter();
    let mut words = values.filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','));
    words.any(|each| each.trim().eq_ignore_ascii_case(word))
}

impl Upgrade {
    pub(crate) fn is_asked(&self) -> bool {
        self.0.is_some()
    }

    /// Answers, and runs `session` with the socket once the client has the answer. If nothing was
    /// asked for, nothing is run.
    pub(crate) fn accept<F>(
        self,
        config: WebSocketConfig,
        session: impl FnOnce(Socket) -> F + Send + 'static,
    ) -> Option<Response>
    where
        F: Future<Output = ()> + Send,
    {
        let Asked { on, accept } = self.0?;
        tokio::spawn(async move {
            // If the client is gone by now there is nothing to do.
            if let Ok(upgraded) = on.await {
                let io = TokioIo::new(upgraded);
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
                session(socket).await;
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        Some(response)
    }
}
