//! One connection: everything it asks for, and everything it is sent.
//!
//! One task owns it. Each time it is woken it does what can be done, in an order that keeps
//! it bounded: write what waits, answer what is durable, deliver what subscribers may have,
//! and only then read more. When too much waits it stops reading, so that the other side's
//! own socket fills up: that is the back-pressure.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use gapless_broker::{Atomic, Broker, Publishing, Subscription};
use gapless_core::{PubSubError, PublishAck, RejectReason};
use gapless_protocol::{
    Bye, CellValue, Commit, Decoder, Drain, DrainReason, Ended, ErrorCode, Features, Frame,
    FrameLimit, GroupJoin, GroupLeft, GroupStep, Hello, Ids, Kind, Limits, PartAck, Pong, Publish,
    PublishAck as AckVerb, PublishRun, Rejection, StartFrom, Subscribe, Subscribed, Unsubscribed,
    VERSION, Verb, VerbError, Welcome,
};
use tokio::time::{Instant, Sleep};

use crate::answers::{error, group_error, part_ack, subscribe_error, trouble};
use crate::native::deliver::{Followed, Stop, put_with};
use crate::native::group::{Memberships, NewMember, Said, join};
use crate::native::output::Output;
use crate::native::ready::Ready;
use crate::native::requests::{answer, client_list, delayed};
use crate::native::server::Shared;
use crate::native::stream::Stream;
use crate::sessions::Session;

/// Bytes read at once, at first: enough for a question. Large buffers that come and go would
/// leave holes in the memory between connections that stay.
const READ_BYTES_MIN: usize = 2 * 1024;
/// Bytes read at once from who sends more than that: enough for many small frames.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Frames handled before their answers are written.
const FRAMES_AT_ONCE: usize = 256;
/// Rounds of reading and writing before other connections get their turn.
const ROUNDS_PER_TURN: usize = 16;
/// Questions that may wait for a blocking answer at the same time.
const ASKED_MAX: usize = 64;
/// How long the last words may take to get out when the time to finish is over.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long what still comes is read and dropped after the end: a socket that is closed with
/// unread bytes takes back what was sent last, and with it the reason of the end.
const LINGER: Duration = Duration::from_millis(500);

/// A connection and all it owes.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    session: Arc<Session>,
    stream: Stream,
    limit: FrameLimit,
    input: BytesMut,
    /// How much is read at once; it follows what comes.
    read_bytes: usize,
    output: Output,
    stage: Stage,
    /// What both sides can do.
    features: Features,
    /// Publishes and acks of members whose answers are not out yet, in order.
    publishes: VecDeque<Owed>,
    in_flight_bytes: usize,
    /// How many of the next frames are handled one by one, because taking them together failed.
    alone: usize,
    /// A publish that must wait until the journal has room; nothing is read meanwhile.
    stalled: Option<Stalled>,
    /// Questions answered by code that may block.
    asked: VecDeque<Asked>,
    follows: BTreeMap<u64, Followed>,
    members: Memberships,
    /// Subscriptions and memberships that should be asked for more.
    hungry: VecDeque<u64>,
    ready: Arc<Ready>,
    next_follow: u64,
    /// Whether something of this turn was live.
    was_live: bool,
    /// Whether what was delivered last was history.
    recovers: bool,
    /// Until when one who recovers rests, so that live messages pass.
    rest_until: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    hello_by: Instant,
    last_heard: Instant,
    last_written: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was said yet.
    New,
    /// Hello and welcome are done.
    Open,
    /// The client was asked to finish; it is read and answered until it says bye.
    Draining,
    /// It ends when everything owed is out.
    Ending,
}

struct Owed {
    ids: Ids,
    due: Due,
    bytes: usize,
}

/// What is answered when it is durable.
enum Due {
    /// A publish or commit, and how many messages its parts have.
    Publishing(Publishing, Vec<u32>),
    /// Publishes of one message each that were taken together, and the id of each.
    Run(Publishing, Vec<[u8; 16]>),
    /// What a member of a group said.
    Said(Said),
}

struct Stalled {
    frame: Frame,
    room: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The answer to a question, made on a thread that may block.
enum Answer {
    Verb(Verb),
    Subscribed(Box<Subscription>, (u64, u64)),
    Joined(Box<NewMember>),
}

struct Asked {
    ids: Ids,
    subscribes: bool,
    answer: tokio::task::JoinHandle<Answer>,
}

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// The other side closed it, or all was done.
    Done,
    /// The socket failed.
    Io(io::Error),
}

impl Owed {
    /// Puts the answers, once they are known.
    fn poll(&mut self, context: &mut Context<'_>, put: &mut dyn FnMut(Verb, Ids)) -> Poll<()> {
        match &mut self.due {
            Due::Publishing(publishing, counts) => {
                let acks = ready!(publishing.poll_all(context));
                let ack = |(ack, count): (&PublishAck, &u32)| part_ack(ack, *count);
                let answer = acks.map(|acks| {
                    AckVerb { parts: acks.iter().zip(counts.iter()).map(ack).collect() }.into()
                });
                put_ack(answer, self.ids, put);
            }
            Due::Run(publishing, msg_ids) => {
                let acks = ready!(publishing.poll_all(context));
                for (index, &msg_id) in msg_ids.iter().enumerate() {
                    let ids = Ids { msg_id: [0; 16], corr_id: msg_id };
                    let answer = acks.as_ref().map_err(Clone::clone);
                    let ack = |acks: &Vec<PublishAck>| vec![part_ack(&acks[index], 1)];
                    put_ack(answer.map(|acks| AckVerb { parts: ack(acks) }.into()), ids, put);
                }
            }
            Due::Said(said) => {
                let done = ready!(said.poll(context)).map(Verb::from);
                put(done.unwrap_or_else(|failed| trouble(&failed).into()), self.ids);
            }
        }
        Poll::Ready(())
    }
}

/// Answers a publish, unless its sender gave it no id: then nobody waits for an answer.
fn put_ack(answer: Result<Verb, PubSubError>, ids: Ids, put: &mut dyn FnMut(Verb, Ids)) {
    if ids.corr_id != [0; 16] {
        put(answer.unwrap_or_else(|failed| trouble(&failed).into()), ids);
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: Arc<Session>,
        stream: Stream,
        too_many: bool,
    ) -> Box<Self> {
        let now = Instant::now();
        let hello_by = now + shared.options.hello_timeout;
        let limit = FrameLimit::at_most(shared.options.frame_bytes_max);
        let mut connection = Box::new(Self {
            shared,
            session,
            stream,
            limit,
            input: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            output: Output::default(),
            stage: Stage::New,
            publishes: VecDeque::new(),
            in_flight_bytes: 0,
            alone: 0,
            stalled: None,
            asked: VecDeque::new(),
            follows: BTreeMap::new(),
            members: Memberships::default(),
            features: Features::NONE,
            hungry: VecDeque::new(),
            ready: Arc::default(),
            next_follow: 1,
            was_live: false,
            recovers: false,
            rest_until: None,
            timer: Box::pin(tokio::time::sleep_until(hello_by)),
            hello_by,
            last_heard: now,
            last_written: now,
        });
        if too_many {
            connection.end_with(ErrorCode::TooManyConnections, "too many connections", Ids::NONE);
        }
        connection
    }

    pub(crate) async fn run(mut self: Box<Self>) {
        let shared = Arc::clone(&self.shared);
        let ended = tokio::select! {
            biased;
            ended = poll_fn(|context| self.poll(context)) => Some(ended),
            () = shared.closed() => None,
        };
        // In a box of its own: what an end needs is no cost of those who stay.
        Box::pin(self.wind_up(ended)).await;
    }

    /// Ends it: after what is owed went out, if the door is closing.
    async fn wind_up(mut self: Box<Self>, ended: Option<End>) {
        let ended = match ended {
            Some(ended) => ended,
            None => {
                self.drain();
                let drain = self.shared.options.drain;
                let rest = poll_fn(|context| self.poll(context));
                match tokio::time::timeout(drain, rest).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        self.stop();
                        let rest = poll_fn(|context| self.poll(context));
                        tokio::time::timeout(LAST_WORDS, rest).await.unwrap_or(End::Done)
                    }
                }
            }
        };
        self.follows.clear();
        self.members.lose_all();
        self.settle_in_flight(self.in_flight_bytes);
        match ended {
            End::Io(error) => {
                tracing::debug!(session = self.session.number, %error, "a connection broke");
            }
            End::Done => {
                let _ = poll_fn(|context| self.stream.poll_shutdown(context)).await;
                let _ = tokio::time::timeout(LINGER, self.linger()).await;
            }
        }
    }

    /// Reads and drops what still comes, until the other side closes too.
    async fn linger(&mut self) {
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

    /// Does what can be done; ready when the connection has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match self.turn(context) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(end),
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        if self.rests(context) {
            return Ok(());
        }
        let recovering = self.recovers.then(|| self.shared.broker.recovering());
        let share = self.shared.fairness.share(Instant::now(), recovering);
        self.was_live = false;
        let mut quantum = share.bytes;
        while quantum > 0 {
            let mut did = self.read(context)?;
            did |= self.answer_publishes(context);
            did |= self.answer_asked(context);
            did |= self.deliver(context);
            let written = self.write(quantum, context)?;
            quantum = quantum.saturating_sub(written.max(share.bytes / ROUNDS_PER_TURN));
            if self.stage == Stage::Ending && self.owes_nothing() {
                return Err(End::Done);
            }
            // Writing may have made room for those who wait for it, and for reading.
            did |= written > 0;
            if !did {
                self.note_live();
                return self.watch_time(context);
            }
        }
        self.note_live();
        // Others get their turn; this one goes on after them, or after its rest.
        self.rest_until = share.rest.map(|rest| Instant::now() + rest);
        if !self.rests(context) {
            context.waker().wake_by_ref();
        }
        Ok(())
    }

    /// Whether it rests; then it is woken when that is over.
    fn rests(&mut self, context: &mut Context<'_>) -> bool {
        let Some(until) = self.rest_until else { return false };
        self.timer.as_mut().reset(until);
        let over = self.timer.as_mut().poll(context).is_ready();
        if over {
            self.rest_until = None;
        }
        !over
    }

    fn note_live(&self) {
        if self.was_live {
            self.shared.fairness.live(Instant::now());
        }
    }

    fn owes_nothing(&self) -> bool {
        let answered = self.publishes.is_empty() && self.asked.is_empty() && self.stalled.is_none();
        answered && self.output.bytes() == 0
    }

    fn output_is_full(&self) -> bool {
        self.output.bytes() >= self.shared.options.output_bytes_max
    }

    /// Writes what waits, as far as the socket takes it; tells how much that was.
    fn write(&mut self, most: usize, context: &mut Context<'_>) -> Result<usize, End> {
        let before = self.output.bytes();
        if let Poll::Ready(written) = self.output.poll_write(&mut self.stream, most, context) {
            written?;
        }
        let written = before - self.output.bytes();
        if written > 0 || before == 0 {
            self.last_written = Instant::now();
        }
        Ok(written)
    }

    /// Reads and handles frames, unless too much waits already. Tells whether it did.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        if let Some(stalled) = &mut self.stalled {
            if stalled.room.as_mut().poll(context).is_pending() {
                return Ok(false);
            }
            let frame = self.stalled.take().map(|stalled| stalled.frame);
            frame.into_iter().for_each(|frame| self.handle(frame));
            return Ok(true);
        }
        if !self.may_handle() {
            return Ok(false);
        }
        // Publishes and acks that have come are handled together, so that answers gather. Anything
        // else is answered in its order: a pong says that what was asked before is done.
        let mut handled = 0;
        while handled < FRAMES_AT_ONCE && self.may_handle() {
            if let Some(run) = self.next_run() {
                handled += run.msg_ids.len();
                self.publish_run(run);
                continue;
            }
            handled += 1;
            match Decoder::new(self.limit).decode(&mut self.input) {
                Ok(Some(frame)) => {
                    let gathers = [Kind::Publish.number(), Kind::GroupAck.number()];
                    let gathers = gathers.contains(&frame.kind);
                    self.handle(frame);
                    if !gathers {
                        break;
                    }
                }
                Ok(None) => {
                    handled -= 1;
                    break;
                }
                Err(bad) => self.end_with(bad.code(), bad, Ids::NONE),
            }
        }
        if self.input.is_empty() {
            // Nothing is kept while nothing is in flight.
            self.input = BytesMut::new();
        }
        if handled > 0 {
            return Ok(true);
        }
        let missing = Decoder::new(self.limit).missing(&self.input).unwrap_or(self.read_bytes);
        // No more room than has come already: a length is a promise.
        let room = missing.min(self.input.len()).max(self.read_bytes);
        match self.stream.poll_read(context, &mut self.input, room) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => {
                // It sends no more, but may still read the answers to what it sent.
                self.finish();
                Ok(true)
            }
            Poll::Ready(Ok(read)) => {
                self.read_bytes = match read {
                    _ if read >= room => (room * 4).min(READ_BYTES_MAX),
                    _ if read < self.read_bytes / 8 => (room / 2).max(READ_BYTES_MIN),
                    _ => self.read_bytes,
                };
                self.last_heard = Instant::now();
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    fn may_handle(&self) -> bool {
        self.stage != Stage::Ending && self.stalled.is_none() && !self.is_full()
    }

    /// Whether reading must wait until something of what it brought is done.
    fn is_full(&self) -> bool {
        let options = &self.shared.options;
        let total = self.shared.in_flight_bytes.load(Ordering::Relaxed);
        let own = self.in_flight_bytes;
        own >= options.in_flight_bytes_max
            || (own > 0 && total >= options.in_flight_total_bytes_max)
            || self.asked.len() >= ASKED_MAX
            || self.output_is_full()
    }

    /// Ends the connection when it was silent, or took nothing, for too long.
    fn watch_time(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        let options = &self.shared.options;
        let now = Instant::now();
        let stuck = self.output.bytes() > 0;
        let (deadline, code) = if stuck {
            (self.last_written + options.write_timeout, ErrorCode::WriteTimeout)
        } else if self.stage == Stage::New {
            (self.hello_by, ErrorCode::IdleTimeout)
        } else if options.idle_timeout > Duration::ZERO
            && self.stage == Stage::Open
            && self.stalled.is_none()
        {
            (self.last_heard + options.idle_timeout, ErrorCode::IdleTimeout)
        } else {
            return Ok(());
        };
        if deadline <= now {
            if stuck {
                return Err(End::Io(io::ErrorKind::TimedOut.into()));
            }
            self.end_with(code, "nothing was heard for too long", Ids::NONE);
            context.waker().wake_by_ref();
            return Ok(());
        }
        self.timer.as_mut().reset(deadline);
        if self.timer.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Ok(())
    }

    fn put(&mut self, verb: impl Into<Verb>, ids: Ids) {
        put_with(&mut self.output, &verb.into(), ids, self.limit);
    }

    fn ack(&mut self, ack: AckVerb, ids: Ids) {
        put_ack(Ok(ack.into()), ids, &mut |verb, ids| self.put(verb, ids));
    }

    fn refuse(&mut self, code: ErrorCode, why: &dyn std::fmt::Display, ids: Ids) {
        self.put(error(code, why), ids);
    }

    /// Says why, and ends the connection once that is out.
    fn end_with(&mut self, code: ErrorCode, why: impl std::fmt::Display, ids: Ids) {
        self.refuse(code, &why, ids);
        self.finish();
    }

    /// Reads no more, and ends when everything owed is out.
    fn finish(&mut self) {
        self.stage = Stage::Ending;
        self.follows.clear();
        self.members.lose_all();
        self.input = BytesMut::new();
    }

    /// Asks the client to finish; what it has sent is still answered.
    fn drain(&mut self) {
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
    fn stop(&mut self) {
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

    fn handle(&mut self, frame: Frame) {
        let ids = Ids::answer_to(&frame);
        // Whose kind it is comes before what is in it.
        if self.stage != Stage::New
            && let Some(kind) = Kind::from_number(frame.kind)
            && !kind.is_reserved()
            && !kind.side().is_clients()
        {
            let why = format!("{} is the server's", kind.name());
            return self.refuse(ErrorCode::UnexpectedKind, &why, ids);
        }
        if self.stage != Stage::New
            && Features::GROUPS.holds(frame.kind)
            && !self.features.has(Features::GROUPS)
        {
            let why = "the hello did not offer groups (feature bit 1)";
            return self.refuse(ErrorCode::NotOffered, &why, ids);
        }
        let verb = match Verb::decode(&frame) {
            Ok(verb) => verb,
            Err(bad) => return self.bad_verb(&frame, &bad, ids),
        };
        match (self.stage, verb) {
            (Stage::New, Verb::Hello(hello)) => self.welcome(&hello, ids),
            (Stage::New, _) => self.end_with(ErrorCode::NotHello, "say hello first", ids),
            (_, Verb::Hello(_)) => {
                self.end_with(ErrorCode::HelloAgain, "hello was said already", ids);
            }
            (_, Verb::Publish(publish)) => self.publish(frame, publish, ids),
            (_, Verb::Commit(commit)) => self.commit(frame, commit, ids),
            (_, Verb::Subscribe(subscribe)) => self.subscribe(subscribe, ids),
            (_, Verb::Unsubscribe(asked)) => match self.follows.remove(&asked.subscription) {
                Some(followed) => {
                    self.forget(asked.subscription);
                    let (subscription, token) = (asked.subscription, followed.token());
                    self.put(Unsubscribed { subscription, token }, ids);
                }
                None => self.refuse(ErrorCode::UnknownSubscription, &"no such subscription", ids),
            },
            (_, Verb::Credit(credit)) => {
                let options = &self.shared.options;
                let max = (u64::from(options.credit_messages_max), options.credit_bytes_max);
                let granted = u64::from(credit.messages);
                // It may have ended while the credit was on its way.
                let Some(followed) = self.follows.get_mut(&credit.subscription) else { return };
                if followed.grant(granted, credit.bytes, max) {
                    self.hungry.push_back(credit.subscription);
                } else {
                    self.refuse(ErrorCode::CreditExceeded, &"too much credit", ids);
                }
            }
            (_, Verb::Ping(ping)) => self.put(Pong { echo: ping.echo }, ids),
            (_, Verb::Pong(_)) => {}
            (_, Verb::GroupJoin(asked)) => self.join(asked, ids),
            (_, Verb::GroupLeave(asked)) => {
                let member = asked.member;
                if self.members.leave(member) {
                    self.put(GroupLeft { member, error: None }, ids);
                } else {
                    self.refuse(ErrorCode::UnknownMember, &"no such membership", ids);
                }
            }
            (_, Verb::GroupStep(step)) => self.step(frame, step, ids),
            (
                _,
                verb @ (Verb::GroupAck(_)
                | Verb::GroupNack(_)
                | Verb::GroupExtend(_)
                | Verb::GroupTerminate(_)
                | Verb::GroupCredit(_)),
            ) => match self.members.say(&verb) {
                Ok(Some(said)) => self.owe_later(Due::Said(said), frame.bytes(), ids),
                Ok(None) => {}
                Err(failed) => self.put(failed, ids),
            },
            (_, Verb::Bye(_)) => {
                self.members.leave_all();
                self.put(Bye, ids);
                self.finish();
            }
            (_, Verb::Clients(asked)) => {
                let list = client_list(&self.shared, asked.after, asked.limit);
                self.put(list, ids);
            }
            (_, Verb::CellRead(asked)) => {
                let value = self.shared.broker.cell(&asked.name);
                self.put(CellValue { value }, ids);
            }
            (_, verb) => self.ask(verb, ids),
        }
    }

    /// A frame that is no verb: a publish is rejected, anything else is an error.
    fn bad_verb(&mut self, frame: &Frame, bad: &VerbError, ids: Ids) {
        if self.stage == Stage::New {
            let is_hello = frame.kind == Kind::Hello.number();
            let code = if is_hello { bad.code() } else { ErrorCode::NotHello };
            return self.end_with(code, bad, ids);
        }
        let publishes = [Kind::Publish.number(), Kind::Commit.number()].contains(&frame.kind);
        match bad.reject_reason() {
            Some(reason) if publishes => {
                let parts = vec![PartAck::Rejected(Rejection::Reason(reason))];
                self.ack(AckVerb { parts }, ids);
            }
            _ => self.refuse(bad.code(), bad, ids),
        }
    }

    fn welcome(&mut self, hello: &Hello, ids: Ids) {
        let Some(version) = hello.common_version() else {
            let why = format!("this server speaks version {VERSION}");
            return self.end_with(ErrorCode::VersionMismatch, why, ids);
        };
        self.features = hello.features.common(Features::GROUPS);
        let options = &self.shared.options;
        let mut name = self.session.name.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone_from(&hello.client_name);
        drop(name);
        let welcome = Welcome {
            version,
            features: self.features,
            server_name: options.server_name.clone(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: self.shared.broker.epoch(),
            session: self.session.number,
            limits: Limits {
                frame_bytes: self.limit.bytes() as u32,
                in_flight_bytes: options.in_flight_bytes_max as u64,
                subscriptions: options.subscriptions_max,
                credit_messages: options.credit_messages_max,
                credit_bytes: options.credit_bytes_max,
                idle_ms: u32::try_from(options.idle_timeout.as_millis()).unwrap_or(u32::MAX),
            },
        };
        self.stage = Stage::Open;
        self.put(welcome, ids);
    }

    /// Publishes that came one by one and can be taken together.
    fn next_run(&mut self) -> Option<PublishRun> {
        if self.alone > 0 {
            self.alone -= 1;
            return None;
        }
        if self.stage == Stage::New { None } else { PublishRun::look(&self.input, self.limit) }
    }

    fn publish_run(&mut self, run: PublishRun) {
        let PublishRun { topic, options, records, msg_ids, bytes } = run;
        match self.shared.broker.publish_run(&topic, records, &options) {
            Some(publishing) => {
                self.input.advance(bytes);
                self.owe_later(Due::Run(publishing, msg_ids), bytes, Ids::NONE);
            }
            // One of them will be refused; each is to get the answer it deserves.
            None => self.alone = msg_ids.len(),
        }
    }

    fn publish(&mut self, frame: Frame, publish: Publish, ids: Ids) {
        let broker = &self.shared.broker;
        let (count, waits) = (publish.records.count, publish.not_before.is_none());
        let publishing = match publish.not_before {
            None => broker.publish_records(&publish.topic, publish.records, &publish.options),
            Some(at) => match delayed(&publish, at) {
                Some(message) => broker.publish(&publish.topic, &message, &publish.options),
                None => {
                    let rejected = PublishAck::Rejected(RejectReason::InvalidPayload);
                    let parts = vec![part_ack(&rejected, count)];
                    return self.ack(AckVerb { parts }, ids);
                }
            },
        };
        self.owe((frame, waits), publishing, vec![count], ids);
    }

    fn commit(&mut self, frame: Frame, commit: Commit, ids: Ids) {
        self.commit_with(Atomic::new(), (frame, commit), ids);
    }

    /// A commit that acks as well.
    fn step(&mut self, frame: Frame, step: GroupStep, ids: Ids) {
        let mut atomic = Atomic::new();
        for ack in &step.acks {
            match self.members.handle_of(ack) {
                Ok(handle) => atomic = atomic.ack(handle, &ack.leases),
                Err(failed) => return self.put(failed, ids),
            }
        }
        self.commit_with(atomic, (frame, step.commit), ids);
    }

    fn commit_with(&mut self, mut atomic: Atomic, (frame, commit): (Frame, Commit), ids: Ids) {
        let waits = commit.cells.is_empty();
        let mut counts: Vec<u32> = commit.parts.iter().map(|part| part.records.count).collect();
        for part in commit.parts {
            atomic = atomic.publish_records(&part.topic, part.records, part.expect);
        }
        for cell in commit.cells {
            atomic = match cell.value {
                Some(value) => atomic.set_cell(cell.name, value),
                None => atomic.remove_cell(cell.name),
            };
        }
        if counts.is_empty() {
            counts.push(0);
        }
        let publishing = self.shared.broker.commit(atomic, &commit.options);
        self.owe((frame, waits), publishing, counts, ids);
    }

    /// Remembers to send an ack. If the journal has no room at the moment, the frame waits,
    /// and with it everything behind it: so order holds and nothing is refused. Delayed
    /// messages and cells have limits of their own that waiting does not lift: these do not.
    fn owe(
        &mut self,
        (frame, waits): (Frame, bool),
        publishing: Publishing,
        counts: Vec<u32>,
        ids: Ids,
    ) {
        if waits && publishing.rejected_with() == Some(RejectReason::QueueFull) {
            let broker: Broker = self.shared.broker.clone();
            let room = Box::pin(async move { broker.room().await });
            self.stalled = Some(Stalled { frame, room });
            return;
        }
        self.owe_later(Due::Publishing(publishing, counts), frame.bytes(), ids);
    }

    fn owe_later(&mut self, due: Due, bytes: usize, ids: Ids) {
        self.was_live = true;
        self.in_flight_bytes += bytes;
        self.shared.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.publishes.push_back(Owed { ids, due, bytes });
    }

    fn settle_in_flight(&mut self, bytes: usize) {
        self.in_flight_bytes -= bytes;
        self.shared.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Who has a single publish in flight waits for it and does nothing else: then the flush is
    /// done here, which saves two wake-ups. The runtime moves others to another thread.
    fn flush_here(&self) {
        if let [Owed { due: Due::Publishing(publishing, _), .. }] = self.publishes.as_slices().0
            && self.input.is_empty()
            && publishing.needs_flush()
        {
            tokio::task::block_in_place(|| publishing.lead());
        }
    }

    /// Sends the acks that are due, in order. Tells whether there was any.
    fn answer_publishes(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        self.flush_here();
        while let Some(owed) = self.publishes.front_mut() {
            let (output, limit) = (&mut self.output, self.limit);
            let mut put = |verb: Verb, ids| put_with(output, &verb, ids, limit);
            if owed.poll(context, &mut put).is_pending() {
                break;
            }
            let bytes = owed.bytes;
            self.publishes.pop_front();
            self.settle_in_flight(bytes);
            did = true;
        }
        did
    }

    fn subscribe(&mut self, asked: Subscribe, ids: Ids) {
        let options = &self.shared.options;
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        if self.has_all_it_may() {
            return self.refuse(ErrorCode::TooManySubscriptions, &"too many subscriptions", ids);
        }
        let credit = (u64::from(asked.credit_messages), asked.credit_bytes);
        if credit.0 > u64::from(options.credit_messages_max) || credit.1 > options.credit_bytes_max
        {
            return self.refuse(ErrorCode::CreditExceeded, &"too much credit", ids);
        }
        let from = match asked.from {
            StartFrom::Beginning => gapless_broker::From::Beginning,
            StartFrom::Seq(seq) => gapless_broker::From::Seq(seq),
            StartFrom::Token(token) => gapless_broker::From::Token(token),
            StartFrom::Time(time) => gapless_broker::From::Time(time),
            StartFrom::Now => gapless_broker::From::Now,
            StartFrom::LastPerKey => gapless_broker::From::LastPerKey,
        };
        let broker = self.shared.broker.clone();
        let answer =
            tokio::task::spawn_blocking(move || match broker.subscribe(&asked.pattern, from) {
                Ok(subscription) => Answer::Subscribed(Box::new(subscription), credit),
                Err(failed) => Answer::Verb(subscribe_error(&failed).into()),
            });
        self.asked.push_back(Asked { ids, subscribes: true, answer });
    }

    /// Whether there are as many subscriptions and memberships as there may be.
    fn has_all_it_may(&self) -> bool {
        let waiting = self.asked.iter().filter(|asked| asked.subscribes).count();
        let all = self.follows.len() + self.members.len() + waiting;
        all >= self.shared.options.subscriptions_max as usize
    }

    fn join(&mut self, asked: GroupJoin, ids: Ids) {
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        if self.has_all_it_may() {
            return self.refuse(ErrorCode::TooManyMembers, &"too many memberships", ids);
        }
        let broker = self.shared.broker.clone();
        let answer = tokio::task::spawn_blocking(move || match join(&broker, asked) {
            Ok(new) => Answer::Joined(Box::new(new)),
            Err(failed) => Answer::Verb(group_error(&failed).into()),
        });
        self.asked.push_back(Asked { ids, subscribes: true, answer });
    }

    fn joined(&mut self, new: NewMember, ids: Ids) {
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        let number = self.next_follow;
        self.next_follow += 1;
        let joined = self.members.add(new, number, &self.ready);
        self.put(joined, ids);
        self.hungry.push_back(number);
    }

    /// Has a question answered where blocking does no harm.
    fn ask(&mut self, verb: Verb, ids: Ids) {
        let shared = Arc::clone(&self.shared);
        let answer = tokio::task::spawn_blocking(move || Answer::Verb(answer(&shared, verb)));
        self.asked.push_back(Asked { ids, subscribes: false, answer });
    }

    fn answer_asked(&mut self, context: &mut Context<'_>) -> bool {
        let mut did = false;
        while let Some(asked) = self.asked.front_mut() {
            let Poll::Ready(done) = Pin::new(&mut asked.answer).poll(context) else { break };
            let Some(asked) = self.asked.pop_front() else { break };
            did = true;
            match done {
                Ok(Answer::Verb(verb)) => self.put(verb, asked.ids),
                Ok(Answer::Subscribed(subscription, credit)) => {
                    self.follow(*subscription, credit, asked.ids);
                }
                Ok(Answer::Joined(new)) => self.joined(*new, asked.ids),
                Err(failed) => self.refuse(ErrorCode::Internal, &failed, asked.ids),
            }
        }
        did
    }

    fn follow(&mut self, subscription: Subscription, credit: (u64, u64), ids: Ids) {
        if self.stage != Stage::Open {
            return self.refuse(ErrorCode::ShuttingDown, &"the connection is ending", ids);
        }
        let number = self.next_follow;
        self.next_follow += 1;
        let followed = Followed::new(number, subscription, credit, &self.ready);
        self.put(Subscribed { subscription: number, token: followed.token() }, ids);
        let mut follows = self.session.follows.lock().unwrap_or_else(PoisonError::into_inner);
        follows.insert(number, (followed.broker_id(), followed.by_topic()));
        drop(follows);
        self.follows.insert(number, followed);
        self.hungry.push_back(number);
    }

    fn forget(&self, number: u64) {
        let mut follows = self.session.follows.lock().unwrap_or_else(PoisonError::into_inner);
        follows.remove(&number);
    }

    /// Sends subscribers what there is, taking turns. Tells whether any was asked.
    fn deliver(&mut self, context: &Context<'_>) -> bool {
        self.hungry.extend(self.ready.take(context.waker()));
        let max = self.shared.options.output_bytes_max;
        let mut did = false;
        while self.output.bytes() < max {
            let Some(number) = self.hungry.pop_front() else { break };
            let before = self.output.bytes();
            let stop = match self.follows.get_mut(&number) {
                Some(followed) => followed.send(&mut self.output, max, self.limit),
                // Who is asked to finish gets nothing new to do.
                None if self.stage != Stage::Open => continue,
                None => match self.members.send(number, &mut self.output, max, self.limit) {
                    Some(stop) => stop,
                    None => continue,
                },
            };
            match stop {
                Stop::Waits | Stop::NoCredit => {}
                Stop::Full => self.hungry.push_back(number),
                Stop::Ended => {
                    self.follows.remove(&number);
                    self.forget(number);
                }
            }
            if self.output.bytes() > before {
                did = true;
                let history = self.follows.get(&number).is_some_and(Followed::is_recovering);
                self.recovers = history;
                self.was_live |= !history;
            }
        }
        did
    }
}
