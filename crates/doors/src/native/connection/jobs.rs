//! Clients and workers of jobs: the first frame tells, and a session of the leader serves them.
//!
//! Limits of jobs are in `gapless_jobs::session`; the place among the door's connections stays
//! taken until the session ends, and what it holds is counted in the memory of all connections.
//! Not here: what a frame of jobs means.

use std::io;

use gapless_core::Pattern;
use gapless_core::rights::Right;
use gapless_jobs::{Room, session};
use gapless_protocol::{ErrorCode, Ids, Kind};

use super::{Connection, Stage};
use crate::budget::Share;
use crate::native::stream::Stream;

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

    /// Whether it may be handed to the leader. If not it is told why, and the connection ends. The
    /// hello of jobs has no token: the certificate, the user of a Unix socket, or what is granted to
    /// those who prove nothing decides, for all executables at once.
    pub(super) fn may_use_jobs(&mut self) -> bool {
        let submits = self.input.get(KIND_AT) == Some(&Kind::JobClientHello.number());
        if !self.introduce(None, Ids::NONE) {
            return false;
        }
        self.caller = self.caller.clone().keeping();
        let right = if submits { Right::JobSubmit } else { Right::JobWork };
        let all = Pattern::parse(">").expect("a pattern");
        let may = self.caller.may_all(right, &all);
        if let Err(denied) = &may {
            self.end_with(ErrorCode::NotAuthorised, denied, Ids::NONE);
        }
        may.is_ok()
    }

    /// Serves it until it ends or the door closes.
    pub(super) async fn serve_jobs(self: Box<Self>) {
        let Self { shared, session, stream, input, caller, counted: _counted, .. } = *self;
        let Some(leader) = shared.jobs.clone() else { return };
        session.rename("jobs".to_owned());
        let rooms = [(), (), ()].map(|()| SharedRoom(shared.options.memory.share()));
        let serve = async {
            match stream {
                Stream::Tcp(stream) => session::serve(stream, input, leader, rooms).await,
                Stream::Unix(stream) => session::serve(stream, input, leader, rooms).await,
                Stream::Tls(stream) => session::serve(*stream, input, leader, rooms).await,
            }
        };
        let ended: io::Result<()> = tokio::select! {
            ended = serve => ended,
            () = shared.closed() => Ok(()),
            why = caller.lost() => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        };
        if let Err(error) = ended {
            tracing::debug!(session = session.number, %error, "a connection of jobs broke");
        }
    }
}
