//! Publishes as the driver keeps them: handed to the link, written, answered, given up.

use std::collections::BTreeMap;

use bytes::Bytes;
use gapless_core::link::{Input, PublishNumber, Status};
use gapless_core::{Fate, RejectReason, Timestamp};
use gapless_protocol::PublishAck;

use crate::connection::{Connection, Corr};
use crate::driver::{Driver, Line};
use crate::error::{Lost, PublishError};
use crate::inbox::Load;
use crate::publish::Outgoing;

/// Bytes that wait to be written; beyond them nothing more is encoded.
const OUT_BYTES_MAX: usize = 512 * 1024;

/// A publish without an answer.
pub(crate) struct Owed {
    pub(crate) frame: Bytes,
    pub(crate) outgoing: Outgoing,
    pub(crate) bytes: u64,
    pub(crate) since: Timestamp,
    /// Whether any byte of it may have reached a server.
    pub(crate) touched: bool,
    /// Whether it was written on this connection.
    pub(crate) on_wire: bool,
}

impl Owed {
    pub(crate) fn fate(&self) -> Fate {
        if self.touched { Fate::Unknown } else { Fate::DidNotHappen }
    }
}

impl Driver {
    /// When the oldest publish has waited long enough. One that stops has its own deadline.
    pub(crate) fn publish_deadline(&self) -> Option<Timestamp> {
        if self.stopping {
            return None;
        }
        // What is held came after what is owed.
        let since = self.owed.first_key_value().map(|(_, owed)| owed.since);
        let since = since.or_else(|| self.held.front().map(|(_, since)| *since));
        since.map(|since| since.after(self.parts.limits.publish_wait))
    }

    pub(crate) fn give_up_oldest(&mut self) {
        if let Some((number, owed)) = self.owed.pop_first() {
            self.forget_wire(&owed);
            let fate = owed.fate();
            self.settle(owed, Err(PublishError::TimedOut { fate }));
            self.step(Input::Acked { number });
        } else if let Some((outgoing, _)) = self.held.pop_front() {
            let fate = Fate::DidNotHappen;
            self.settle_outgoing(outgoing, Err(PublishError::TimedOut { fate }));
        }
    }

    /// Hands what waited for it to a link that is online.
    pub(crate) fn hand_over(&mut self) {
        while self.parts.link.status() == Status::Online {
            let Some(held) = self.held.pop_front() else { break };
            self.hand(held);
        }
    }

    pub(crate) fn hand(&mut self, held: (Outgoing, Timestamp)) {
        let bytes = held.0.bytes();
        self.current = Some(held);
        self.step(Input::Publish { bytes });
    }

    pub(crate) fn queued(&mut self, number: PublishNumber) {
        let Some((mut outgoing, since)) = self.current.take() else { return };
        let bytes = outgoing.bytes();
        Corr::Publish(number).stamp(&mut outgoing.frame);
        let frame = outgoing.frame.split().freeze();
        let (touched, on_wire) = (false, false);
        self.owed.insert(number, Owed { frame, outgoing, bytes, since, touched, on_wire });
    }

    pub(crate) fn settle(&mut self, owed: Owed, answer: Result<PublishAck, PublishError>) {
        self.freed.count += 1;
        self.freed.bytes += owed.bytes;
        owed.outgoing.answer(answer);
    }

    pub(crate) fn settle_outgoing(
        &mut self,
        outgoing: Outgoing,
        answer: Result<PublishAck, PublishError>,
    ) {
        self.freed.count += 1;
        self.freed.bytes += outgoing.bytes();
        outgoing.answer(answer);
    }

    pub(crate) fn forget_wire(&mut self, owed: &Owed) {
        if let Line::Up(connection) = &mut self.line
            && owed.on_wire
        {
            connection.wire_bytes = connection.wire_bytes.saturating_sub(owed.bytes);
        }
    }

    /// Puts publishes into the output as far as there is room, and writes.
    pub(crate) fn write(&mut self) {
        loop {
            self.pump();
            let Line::Up(connection) = &mut self.line else { return };
            if connection.out.bytes() == 0 {
                return;
            }
            match connection.socket.write(&mut connection.out) {
                Ok(true) if connection.pending.is_empty() => return,
                Ok(true) => {
                    if !can_pump(connection, &self.owed) {
                        return;
                    }
                }
                Ok(false) => return,
                Err(error) => return self.lose(&Lost::Io(error)),
            }
        }
    }

    pub(crate) fn pump(&mut self) {
        let mut too_large = Vec::new();
        let Line::Up(connection) = &mut self.line else { return };
        while let Some(number) = connection.pending.front() {
            let Some(owed) = self.owed.get_mut(number) else {
                connection.pending.pop_front();
                continue;
            };
            if !has_room(connection, owed) {
                break;
            }
            if owed.bytes > connection.limit.bytes() as u64 {
                too_large.push((*number, connection.limit.bytes() as u64));
            } else {
                connection.out.put(owed.frame.clone());
                owed.outgoing.tail.iter().for_each(|tail| connection.out.put(tail.clone()));
                connection.wire_bytes += owed.bytes;
                owed.touched = true;
                owed.on_wire = true;
            }
            connection.pending.pop_front();
        }
        for (number, max) in too_large {
            let Some(bytes) = self.owed.get(&number).map(|owed| owed.bytes) else { continue };
            let reason = RejectReason::TooLarge { bytes, max };
            self.answer = Some(Err(PublishError::Rejected(reason)));
            self.step(Input::Acked { number });
        }
    }

    /// Gives room back to publishers, once a turn.
    pub(crate) fn release(&mut self) {
        if self.freed != Load::default() {
            let freed = std::mem::take(&mut self.freed);
            self.parts.inbox.release(freed, self.server_bytes);
        }
    }
}

/// Whether one more publish may be written. The server's limit lets a single one pass.
fn has_room(connection: &Connection, owed: &Owed) -> bool {
    let allowed = connection.welcome.map_or(0, |limits| limits.in_flight_bytes);
    let fits = connection.wire_bytes == 0 || connection.wire_bytes + owed.bytes <= allowed;
    fits && connection.out.bytes() < OUT_BYTES_MAX
}

fn can_pump(connection: &Connection, owed: &BTreeMap<PublishNumber, Owed>) -> bool {
    let next = connection.pending.front();
    next.is_some_and(|next| owed.get(next).is_none_or(|owed| has_room(connection, owed)))
}
