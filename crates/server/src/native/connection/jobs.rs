//! Clients and workers of jobs: the first frame identifies them, and a session of the leader serves
//! them.
//!
//! Limits of jobs are in `gapless_jobs::session`; the place among the listener's connections stays
//! taken until the session ends, and what it holds is counted in the memory of all connections.
//! Rights are checked by the session, which knows what a frame asks for; who the client is, is said
//! here. Not here: what a frame of jobs means.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use gapless_auth::{Auth, Caller, Held, Proof};
use gapless_core::rights::Right;
use gapless_core::{Pattern, TopicName};
use gapless_jobs::guard::{Deed, Guard, Refused};
use gapless_jobs::{Room, session};
use gapless_protocol::Kind;
use gapless_protocol::link::UnixPeer;

use super::{Connection, Stage};
use crate::budget::Share;
use crate::session::stream::Stream;

/// A part of the memory of all connections.
struct SharedRoom(Share);

impl Room for SharedRoom {
    async fn grow(&mut self, bytes: usize) -> Result<(), String> {
        self.0.grow(bytes).await.map_err(|error| error.to_string())
    }

    fn set(&mut self, bytes: usize) {
        self.0.set(bytes);
    }
}

/// Who a connection of jobs is for: by the token of its hello, its certificate or its user.
struct CallerGuard {
    auth: Auth,
    certificate: Option<String>,
    peer: Option<UnixPeer>,
    address: Arc<str>,
    /// The caller, and its place among its connections.
    admitted: Option<(Caller, Held)>,
}

impl CallerGuard {
    fn caller(&self) -> &Caller {
        let (caller, _) = self.admitted.as_ref().expect("nothing is asked of who is not let in");
        caller
    }
}

fn right(deed: Deed) -> Right {
    match deed {
        Deed::Submit => Right::JobSubmit,
        Deed::Work => Right::JobWork,
    }
}

impl Guard for CallerGuard {
    fn admit(&mut self, token: Option<&str>) -> Result<(), Refused> {
        let proof = match (token, self.certificate.as_deref(), self.peer) {
            (Some(token), _, _) => Proof::Token(token),
            (None, Some(name), _) => Proof::Certificate(name),
            (None, None, Some(UnixPeer { uid, own })) => Proof::Peer { uid, own },
            (None, None, None) => Proof::Nothing,
        };
        let caller = self.auth.caller(proof, Arc::clone(&self.address));
        let caller = caller
            .map_err(|refused| Refused { why: refused.to_string(), delay: refused.delay })?
            .keeping();
        let held = caller.connect();
        let held = held.map_err(|over| Refused { why: over.to_string(), delay: Duration::ZERO })?;
        self.admitted = Some((caller, held));
        Ok(())
    }

    fn identity(&self) -> &str {
        self.caller().name()
    }

    fn may_all(&self, deed: Deed) -> bool {
        let all = Pattern::parse(">").expect("a pattern");
        // What is allowed is remembered, so that the connection ends when it is taken away.
        self.caller().sees_all(right(deed), &all) && self.may(deed, &all).is_ok()
    }

    fn may(&self, deed: Deed, execs: &Pattern) -> Result<(), String> {
        self.caller().may_all(right(deed), execs).map_err(|denied| denied.to_string())
    }

    fn sees(&self, exec: &str) -> bool {
        TopicName::parse(exec).is_ok_and(|exec| self.caller().sees(Right::JobSubmit, &exec))
    }

    async fn lost(&self) -> String {
        self.caller().clone().lost().await.to_string()
    }
}

/// Where the kind of a frame is, behind its length.
const KIND_AT: usize = 4;

impl Connection {
    /// Whether the first frame is a hello of jobs, and they are led here. The kind is enough: the
    /// frame may be longer than the hello of others.
    pub(super) fn is_of_jobs(&self) -> bool {
        let hellos = [Kind::JobClientHello.number(), Kind::JobWorkerHello.number()];
        self.stage == Stage::New
            && self.shared.jobs.is_some()
            && self.input.get(KIND_AT).is_some_and(|kind| hellos.contains(kind))
    }

    /// Serves it until it ends or the listener closes.
    pub(super) async fn serve_jobs(self: Box<Self>) {
        let Self { shared, session, stream, input, .. } = *self;
        let Some(leader) = shared.jobs.clone() else { return };
        session.rename("jobs".to_owned());
        let (number, from) = (session.number, &*session.address);
        tracing::info!(target: "clients", session = number, from, client = "jobs", "connected");
        let guard = CallerGuard {
            auth: shared.auth.clone(),
            certificate: stream.certificate(),
            peer: stream.peer(),
            address: session.address.clone(),
            admitted: None,
        };
        let rooms = [(), (), ()].map(|()| SharedRoom(shared.options.memory.share()));
        let serve = async {
            match stream {
                Stream::Tcp(stream) => session::serve(stream, input, leader, guard, rooms).await,
                Stream::Unix(stream) => session::serve(stream, input, leader, guard, rooms).await,
                Stream::Tls(stream) => session::serve(*stream, input, leader, guard, rooms).await,
                Stream::Forwarded(stream) => {
                    session::serve(stream.bytes, input, leader, guard, rooms).await
                }
            }
        };
        let closed = poll_fn(|context| match session.poll_closed(context) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let ended: io::Result<()> = tokio::select! {
            ended = serve => ended,
            () = shared.closed() => Ok(()),
            () = closed => Ok(()),
        };
        let broke = ended.err().map(|error| error.to_string());
        let reason = broke.as_deref().unwrap_or("all was done");
        tracing::info!(target: "clients", session = number, from, reason, "disconnected");
    }
}
