//! A client that does as little as it can: a bare socket that blocks, and large reads.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use gapless_core::{Pattern, TopicName, TopicSettings};
use gapless_protocol::{
    Credit, Decoder, Features, FrameLimit, Hello, Ids, Kind, StartFrom, Subscribe, TopicCreate,
    VERSION, Verb,
};

use super::frames::{Seen, delivered};
use crate::benches::store::Result;

/// Nothing that is waited for here takes longer; a bench that hangs ends with an error.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Bytes read at once.
const READ_BYTES: usize = 256 * 1024;

/// Credit of a subscription: half of what a server with the defaults allows. A message that is
/// larger than what is left takes only that, and who has a grant on its way cannot know it: so
/// the server may count a little more than this side does, and must have room for it.
const CREDIT_MESSAGES: u32 = 500_000;
const CREDIT_BYTES: u64 = 32 * 1024 * 1024;

/// A socket and what was read from it but not looked at.
pub(in crate::benches) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Client {
    /// A connection on which nothing was said.
    pub(in crate::benches) fn bare(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        Ok(Self { stream, buffer: Vec::new(), from: 0, to: 0 })
    }

    /// A connection after hello and welcome.
    pub(in crate::benches) fn connect(address: SocketAddr) -> Result<Self> {
        let mut client = Self::bare(address)?;
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            features: Features::NONE,
            client_name: "bench".to_owned(),
            token: None,
            extension: Bytes::new(),
        };
        match client.ask(&hello.into())? {
            Verb::Welcome(_) => Ok(client),
            other => Err(format!("no welcome but {other:?}").into()),
        }
    }

    /// The same connection for another thread, which reads while this one writes.
    pub(in crate::benches) fn reader(&self) -> io::Result<Self> {
        let stream = self.stream.try_clone()?;
        Ok(Self { stream, buffer: Vec::new(), from: 0, to: 0 })
    }

    /// Gives the buffer back, so that an idle connection costs this side nothing either.
    pub(in crate::benches) fn idle(mut self) -> Self {
        self.buffer = Vec::new();
        self
    }

    pub(in crate::benches) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Says that nothing more will be sent.
    pub(in crate::benches) fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    fn say(&mut self, verb: &Verb) -> Result<()> {
        let mut out = BytesMut::new();
        verb.encode(Ids::question([1; 16]), FrameLimit::MAX, &mut out)?;
        Ok(self.send(&out)?)
    }

    /// Asks and takes the next frame for the answer.
    pub(in crate::benches) fn ask(&mut self, verb: &Verb) -> Result<Verb> {
        self.say(verb)?;
        loop {
            if let Some(seen) = Seen::first(&self.buffer[self.from..self.to]) {
                let verb = decode(seen)?;
                self.from += seen.bytes.len();
                return Ok(verb);
            }
            if self.fill()? == 0 {
                return Err("the server closed the connection".into());
            }
        }
    }

    pub(in crate::benches) fn create(
        &mut self,
        topic: &TopicName,
        settings: TopicSettings,
    ) -> Result<()> {
        match self.ask(&TopicCreate { topic: topic.clone(), settings }.into())? {
            Verb::TopicInfo(_) => Ok(()),
            other => Err(format!("no topic but {other:?}").into()),
        }
    }

    /// Follows a topic with ample credit.
    pub(in crate::benches) fn follow(
        &mut self,
        topic: &TopicName,
        from: StartFrom,
    ) -> Result<Follower> {
        let subscribe = Subscribe {
            pattern: Pattern::literal(topic),
            credit_messages: CREDIT_MESSAGES,
            credit_bytes: CREDIT_BYTES,
            from,
            identity: None,
        };
        match self.ask(&subscribe.into())? {
            Verb::Subscribed(made) => Ok(Follower {
                subscription: made.subscription,
                credit_messages: CREDIT_MESSAGES.into(),
                credit_bytes: CREDIT_BYTES,
                ..Follower::default()
            }),
            other => Err(format!("not subscribed but {other:?}").into()),
        }
    }

    /// Reads once, at whatever there is; zero is the end.
    fn fill(&mut self) -> io::Result<usize> {
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        if self.buffer.len() - self.to < READ_BYTES {
            self.buffer.resize(self.to + READ_BYTES, 0);
        }
        let read = self.stream.read(&mut self.buffer[self.to..])?;
        self.to += read;
        Ok(read)
    }

    /// Takes the frames that were read already; reads once if there is none. False at the end.
    pub(in crate::benches) fn frames(
        &mut self,
        mut each: impl FnMut(Seen<'_>) -> Result<()>,
    ) -> Result<bool> {
        if Seen::first(&self.buffer[self.from..self.to]).is_none() && self.fill()? == 0 {
            return Ok(false);
        }
        while let Some(seen) = Seen::first(&self.buffer[self.from..self.to]) {
            each(seen)?;
            self.from += seen.bytes.len();
        }
        Ok(true)
    }

    /// Reads bytes and drops them; zero at the end.
    pub(in crate::benches) fn drop_bytes(&mut self) -> Result<usize> {
        self.from = self.to;
        Ok(self.fill()?)
    }

    /// Reads and drops exactly so many bytes.
    pub(in crate::benches) fn drop_exactly(&mut self, bytes: usize) -> Result<()> {
        while self.to - self.from < bytes {
            if self.fill()? == 0 {
                return Err("the server closed the connection".into());
            }
        }
        self.from += bytes;
        Ok(())
    }

    /// Takes acks until there are some; tells how many.
    pub(in crate::benches) fn acks(&mut self) -> Result<usize> {
        let mut acks = 0;
        while acks == 0 {
            let open = self.frames(|seen| {
                if seen.is(Kind::PublishAck) {
                    acks += 1;
                    return Ok(());
                }
                Err(format!("no ack but {:?}", decode(seen)?).into())
            })?;
            if !open {
                return Err("the server closed the connection".into());
            }
        }
        Ok(acks)
    }

    /// Takes what a subscription is sent, reading once at most, and grants what it used.
    pub(in crate::benches) fn deliveries(
        &mut self,
        follower: &mut Follower,
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let open = self.frames(|seen| follower.take(seen, &mut each))?;
        if !open {
            return Err("the server closed the connection".into());
        }
        match follower.credit() {
            Some(credit) => self.say(&credit.into()),
            None => Ok(()),
        }
    }
}

/// Where a subscription of a client stands.
#[derive(Debug, Default)]
pub(in crate::benches) struct Follower {
    /// The last seq that was accounted for.
    pub(in crate::benches) seq: u64,
    /// Messages that came.
    pub(in crate::benches) messages: u64,
    /// Seqs that will not come.
    pub(in crate::benches) missed: u64,
    /// Bytes of frames that came.
    pub(in crate::benches) wire_bytes: u64,
    /// Whether it has all history.
    pub(in crate::benches) is_live: bool,
    subscription: u64,
    credit_messages: u64,
    credit_bytes: u64,
}

impl Follower {
    fn take(&mut self, seen: Seen<'_>, each: &mut impl FnMut(&[u8])) -> Result<()> {
        self.wire_bytes += seen.bytes.len() as u64;
        if seen.is(Kind::Messages) {
            let came = delivered(seen, each).ok_or("messages that cannot be understood")?;
            self.seq = came.to;
            self.messages += came.messages;
            self.credit_messages = self.credit_messages.saturating_sub(came.messages);
            self.credit_bytes = self.credit_bytes.saturating_sub(came.bytes);
            return Ok(());
        }
        match decode(seen)? {
            Verb::RecoveryComplete(_) => self.is_live = true,
            Verb::RecoveryResponse(_) => self.is_live = false,
            Verb::Gap(gap) => {
                let to = gap.gap.to.ok_or("a gap that does not tell its end")?;
                self.missed += to.0.saturating_sub(self.seq);
                self.seq = to.0;
            }
            other => return Err(format!("not for a follower: {other:?}").into()),
        }
        Ok(())
    }

    /// What was used, once it is worth telling.
    fn credit(&mut self) -> Option<Credit> {
        let messages = u64::from(CREDIT_MESSAGES) - self.credit_messages;
        let bytes = CREDIT_BYTES - self.credit_bytes;
        if messages < u64::from(CREDIT_MESSAGES) / 4 && bytes < CREDIT_BYTES / 4 {
            return None;
        }
        (self.credit_messages, self.credit_bytes) = (CREDIT_MESSAGES.into(), CREDIT_BYTES);
        let messages = u32::try_from(messages).unwrap_or(CREDIT_MESSAGES);
        Some(Credit { subscription: self.subscription, messages, bytes })
    }
}

fn decode(seen: Seen<'_>) -> Result<Verb> {
    let mut bytes = BytesMut::from(seen.bytes);
    let frame = Decoder::new(FrameLimit::MAX).decode(&mut bytes)?;
    Ok(Verb::decode(&frame.ok_or("half a frame")?)?)
}
