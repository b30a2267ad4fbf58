//! One connection: its socket, what was read of it and what waits to be written to it.
//!
//! It knows frames and the limits of the welcome; what frames mean is the driver's.

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use gapless_core::link::{PublishNumber, SubscriptionId};
use gapless_core::{Epoch, Timestamp};
use gapless_protocol::{Decoder, EncodeError, Frame, FrameLimit, Ids, Limits, Output, Verb};

use crate::error::Lost;
use crate::socket::Socket;

/// Reads of one turn, so that writing gets its turn too.
const READS_PER_TURN: usize = 16;
/// How the answer of an HTTP server begins; no frame before a welcome is so long.
const HTTP: &[u8] = b"HTTP";
/// How a server that speaks TLS ends a connection that does not; no frame before a welcome is so long.
const TLS_ALERT: &[u8] = &[0x15, 0x03];
/// Where the id of a frame stands in it (E2).
const MSG_ID_AT: std::ops::Range<usize> = 5..21;

/// What a frame of this client is about; its answer has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corr {
    Publish(PublishNumber),
    Ask(u64),
    Follow(SubscriptionId),
    /// A membership to be requested.
    Join(u64),
    /// Something a member says.
    Say(u64),
    /// An answer for which no request is waiting.
    Other,
}

impl Corr {
    pub(crate) fn ids(self) -> Ids {
        Ids::question(self.bytes())
    }

    /// Puts it into a frame that was encoded before it was known.
    pub(crate) fn stamp(self, frame: &mut BytesMut) {
        frame[MSG_ID_AT].copy_from_slice(&self.bytes());
    }

    fn bytes(self) -> [u8; 16] {
        let (tag, number) = match self {
            Self::Publish(number) => (1, number.0),
            Self::Ask(number) => (2, number),
            Self::Follow(id) => (3, id.0),
            Self::Other => (4_u64, 0),
            Self::Join(key) => (5, key),
            Self::Say(number) => (6, number),
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&tag.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// What an answer is about; `None` when it answers nothing.
    pub(crate) fn of(frame: &Frame) -> Option<Self> {
        let id = u128::from_le_bytes(frame.corr_id);
        let (tag, number) = (id as u64, (id >> 64) as u64);
        match tag {
            0 => None,
            1 => Some(Self::Publish(PublishNumber(number))),
            2 => Some(Self::Ask(number)),
            3 => Some(Self::Follow(SubscriptionId(number))),
            5 => Some(Self::Join(number)),
            6 => Some(Self::Say(number)),
            _ => Some(Self::Other),
        }
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    input: BytesMut,
    pub(crate) out: Output,
    pub(crate) limit: FrameLimit,
    /// What the welcome allows; none before it.
    pub(crate) welcome: Option<Limits>,
    pub(crate) epoch: Epoch,
    /// Publishes that are to be written, in order.
    pub(crate) pending: VecDeque<PublishNumber>,
    /// Bytes of publishes that were written and not answered.
    pub(crate) wire_bytes: u64,
    /// The server's numbers of subscriptions.
    pub(crate) follows: BTreeMap<u64, SubscriptionId>,
    /// The server's numbers of memberships.
    pub(crate) members: BTreeMap<u64, u64>,
    pub(crate) heard: Timestamp,
    pub(crate) ping_at: Timestamp,
}

impl Connection {
    pub(crate) fn new(socket: Socket, now: Timestamp) -> Self {
        Self {
            socket,
            input: BytesMut::new(),
            out: Output::default(),
            limit: FrameLimit::MAX,
            welcome: None,
            epoch: Epoch::default(),
            pending: VecDeque::new(),
            wire_bytes: 0,
            follows: BTreeMap::new(),
            members: BTreeMap::new(),
            heard: now,
            ping_at: Timestamp::NEVER,
        }
    }

    /// Adds a frame to what is written.
    pub(crate) fn put(&mut self, verb: &Verb, ids: Ids) -> Result<(), EncodeError> {
        let mut tail = Vec::new();
        let limit = self.limit;
        self.out
            .encode(|out| verb.encode_head(ids, limit, out, &mut |part| tail.push(part.clone())))?;
        tail.into_iter().for_each(|part| self.out.put(part));
        Ok(())
    }

    /// Reads what is there. `Err` comes after the frames that were whole before it.
    pub(crate) fn read(&mut self, frames: &mut Vec<Frame>) -> Result<(), Lost> {
        let decoder = Decoder::new(self.limit);
        for _ in 0..READS_PER_TURN {
            match self.socket.read(&mut self.input)? {
                None => break,
                Some(0) => return Err(Lost::Closed),
                Some(_) => {}
            }
            if self.welcome.is_none() && self.input.starts_with(HTTP) {
                return Err(Lost::Http);
            }
            if self.welcome.is_none() && self.input.starts_with(TLS_ALERT) {
                return Err(Lost::Tls);
            }
            while let Some(frame) = decoder.decode(&mut self.input)? {
                frames.push(frame);
            }
        }
        if self.input.is_empty() {
            // An idle connection holds no buffer.
            self.input = BytesMut::new();
        }
        Ok(())
    }
}
