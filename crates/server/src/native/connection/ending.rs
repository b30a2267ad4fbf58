//! How a connection ends: after its last words, and with a reason.

use std::future::poll_fn;
use std::time::Duration;

use bytes::BytesMut;
use gapless_protocol::{Drain, DrainReason, Ended, ErrorCode, GroupLeft, Ids};

use super::{Connection, End, READ_BYTES_MIN, Stage};
use crate::answers::error;

/// How long the last words may take to get out when the time to finish is over.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long what still comes is read and dropped after the end: a socket that is closed with
/// unread bytes takes back what was sent last, and with it the reason of the end.
const LINGER: Duration = Duration::from_millis(500);

impl Connection {
    /// Ends it: after pending answers were sent, if the listener is closing.
    pub(super) async fn wind_up(mut self: Box<Self>, ended: Option<End>) {
        let ended = match ended {
            Some(ended) => ended,
            None => {
                self.drain();
                let drain = self.shared.options.drain;
                let rest = poll_fn(|context| self.poll_end(context));
                match tokio::time::timeout(drain, rest).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        self.stop();
                        let rest = poll_fn(|context| self.poll_end(context));
                        tokio::time::timeout(LAST_WORDS, rest).await.unwrap_or(End::Done)
                    }
                }
            }
        };
        self.follows.clear();
        self.members.lose_all();
        self.settle_in_flight(self.in_flight_bytes);
        self.log_disconnected(&ended);
        match ended {
            End::Io(_) => {}
            // A hello of jobs that arrives while the listener closes is not taken over any more.
            End::Done | End::Jobs => {
                let _ = poll_fn(|context| self.stream.poll_shutdown(context)).await;
                let _ = tokio::time::timeout(LINGER, self.linger()).await;
            }
        }
    }

    /// Reads and drops what still comes, until the other side closes too.
    pub(super) async fn linger(&mut self) {
        let mut dropped = BytesMut::new();
        loop {
            dropped.clear();
            let read =
                poll_fn(|context| self.stream.poll_read(context, &mut dropped, READ_BYTES_MIN))
                    .await;
            if !read.is_ok_and(|bytes| bytes > 0) {
                return;
            }
        }
    }

    /// Says why, and ends the connection once that is out.
    pub(super) fn end_with(&mut self, code: ErrorCode, why: impl std::fmt::Display, ids: Ids) {
        self.refuse(code, &why, ids);
        self.ends_because(format!("{}: {why}", code.name()));
        self.finish();
    }

    /// Reads no more, and ends when everything owed is out.
    pub(super) fn finish(&mut self) {
        self.stage = Stage::Ending;
        self.follows.clear();
        self.members.lose_all();
        self.input = BytesMut::new();
    }

    /// Asks the client to finish; what it has sent is still answered.
    pub(super) fn drain(&mut self) {
        self.ends_because("the server is shutting down");
        let grace_ms = u32::try_from(self.shared.options.drain.as_millis()).unwrap_or(u32::MAX);
        match self.stage {
            Stage::New => {
                self.end_with(ErrorCode::ShuttingDown, "the server is shutting down", Ids::NONE);
            }
            Stage::Open => {
                self.put(Drain { reason: DrainReason::SHUTDOWN, grace_ms }, Ids::NONE);
                self.stage = Stage::Draining;
            }
            Stage::Draining | Stage::Ending => {}
        }
    }

    /// The time to finish is over: ends the subscriptions, then the connection.
    pub(super) fn stop(&mut self) {
        for (subscription, followed) in std::mem::take(&mut self.follows) {
            let why = error(ErrorCode::ShuttingDown, &"the server is shutting down");
            self.put(Ended { subscription, token: followed.token(), error: why }, Ids::NONE);
        }
        for member in self.members.leave_all() {
            let why = error(ErrorCode::ShuttingDown, &"the server is shutting down");
            self.put(GroupLeft { member, error: Some(why) }, Ids::NONE);
        }
        self.finish();
    }
}
