//! The one task of a client: it owns the socket and the link, and performs its effects.
//!
//! Each turn it takes what the handles ask for, reads what has come, steps the link, and
//! writes what has gathered in one call. The rules of connecting, sending again and resuming
//! are the link's (`gapless_core::link`); here are the bytes, the timers and the users.
//!
//! Publishes are handed to the link only while it is online, so that those which were never
//! sent can still be given up when their time is over.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gapless_core::link::{
    Effect, Failure, Input, Origin, Place, PublishNumber, Status, SubscriptionId,
};
use gapless_core::{Amount, Fate, Link, Pattern, Registry, RejectReason, Timestamp};
use gapless_protocol::{
    Bye, Credit, Frame, Hello, Ids, Ping, PublishAck, StartFrom, Subscribe, Unsubscribe, Verb,
};
use tokio::io::Interest;
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, warn};

use crate::address::Address;
use crate::client::{CloseReport, State};
use crate::clock::Clock;
use crate::connection::{Connection, Corr};
use crate::error::{AskError, GaveUp, Lost, PublishError, SubscriptionError};
use crate::feed::{Feed, Wish};
use crate::inbox::{Command, Inbox, Load, NewFollow, Question};
use crate::options::ClientLimits;
use crate::publish::Outgoing;
use crate::socket::Socket;
use crate::token::Token;

/// Bytes that wait to be written; beyond them nothing more is made.
const OUT_BYTES_MAX: usize = 512 * 1024;
/// How long the last frames of a connection may take to be written.
const PART_WAIT: Duration = Duration::from_secs(1);
/// Questions without an answer, those included whose asker has gone.
pub(crate) const ASKS_MAX: usize = 1_024;
/// A server that says nothing for so many pings is left.
const PINGS_UNANSWERED_MAX: u32 = 3;

type Connecting = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

pub(crate) enum Line {
    Down,
    Making(Connecting),
    Up(Box<Connection>),
}

/// A publish without an answer.
pub(crate) struct Owed {
    frame: Bytes,
    outgoing: Outgoing,
    bytes: u64,
    since: Timestamp,
    /// Whether any byte of it may have reached a server.
    touched: bool,
    /// Whether it was written on this connection.
    on_wire: bool,
}

impl Owed {
    fn fate(&self) -> Fate {
        if self.touched { Fate::Unknown } else { Fate::DidNotHappen }
    }
}

/// A subscription.
pub(crate) struct Follow {
    pub(crate) feed: Arc<Feed>,
    pattern: Pattern,
    from: StartFrom,
    /// The server's number of it on this connection.
    pub(crate) server: Option<u64>,
    /// What the server may still send.
    pub(crate) left: Amount,
    /// Where it stands after what was put into the feed.
    pub(crate) last: Option<Token>,
    /// Whether its user knows that it was made.
    pub(crate) confirmed: bool,
}

impl Follow {
    pub(crate) fn is_from_now(&self) -> bool {
        self.from == StartFrom::Now
    }
}

pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) sent: bool,
}

/// What a driver is made of.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) hello: Hello,
    pub(crate) limits: ClientLimits,
    pub(crate) registry: Arc<Registry>,
    pub(crate) state: watch::Sender<State>,
    pub(crate) trouble: Arc<Mutex<Option<String>>>,
    pub(crate) link: Link,
}

/// See the head of the file.
pub(crate) struct Driver {
    pub(crate) parts: Parts,
    pub(crate) now: Timestamp,
    inputs: VecDeque<Input>,
    stepping: bool,
    pub(crate) line: Line,
    frames: Vec<Frame>,
    commands: VecDeque<Command>,
    noted: Vec<SubscriptionId>,
    /// Publishes that wait until the link is online.
    held: VecDeque<(Outgoing, Timestamp)>,
    pub(crate) owed: BTreeMap<PublishNumber, Owed>,
    /// The publish that is just being handed to the link.
    current: Option<(Outgoing, Timestamp)>,
    /// The answer that is just being told to the link.
    pub(crate) answer: Option<Result<PublishAck, PublishError>>,
    freed: Load,
    server_bytes: u64,
    pub(crate) asks: BTreeMap<u64, Asked>,
    next_ask: u64,
    pub(crate) follows: BTreeMap<SubscriptionId, Follow>,
    /// Subscriptions whose users must catch up first.
    parked: BTreeMap<SubscriptionId, Follow>,
    next_follow: u64,
    stopping: bool,
    ended: Option<Option<GaveUp>>,
}

enum Woken {
    Work,
    Made(io::Result<Socket>),
    Ready(io::Result<bool>),
    Time,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            now: parts.clock.now(),
            parts,
            inputs: VecDeque::new(),
            stepping: false,
            line: Line::Down,
            frames: Vec::new(),
            commands: VecDeque::new(),
            noted: Vec::new(),
            held: VecDeque::new(),
            owed: BTreeMap::new(),
            current: None,
            answer: None,
            freed: Load::default(),
            server_bytes: u64::MAX,
            asks: BTreeMap::new(),
            next_ask: 1,
            follows: BTreeMap::new(),
            parked: BTreeMap::new(),
            next_follow: 1,
            stopping: false,
            ended: None,
        }
    }

    /// Runs until the link has ended, and tells what was left.
    pub(crate) async fn run(mut self) -> CloseReport {
        self.step(Input::Start);
        loop {
            self.now = self.parts.clock.now();
            self.tick();
            self.take_commands();
            self.hand_over();
            self.write();
            self.release();
            if let Some(why) = self.ended {
                return self.finish(why).await;
            }
            let woken = self.wait().await;
            self.now = self.parts.clock.now();
            match woken {
                Woken::Work | Woken::Time => {}
                Woken::Made(Ok(socket)) => {
                    self.line = Line::Up(Box::new(Connection::new(socket, self.now)));
                    self.step(Input::Connected);
                }
                Woken::Made(Err(error)) => self.lose(&Lost::Io(error)),
                Woken::Ready(Ok(false)) => {}
                Woken::Ready(Ok(true)) => self.read(),
                Woken::Ready(Err(error)) => self.lose(&Lost::Io(error)),
            }
        }
    }

    async fn wait(&mut self) -> Woken {
        let deadline = self.parts.clock.instant(self.deadline());
        let inbox = &self.parts.inbox;
        let line = &mut self.line;
        let woken = async {
            match line {
                Line::Down => {
                    inbox.work().await;
                    Woken::Work
                }
                Line::Making(connecting) => tokio::select! {
                    biased;
                    made = connecting => Woken::Made(made),
                    () = inbox.work() => Woken::Work,
                },
                Line::Up(connection) => {
                    let writes = connection.out.bytes() > 0;
                    let writable = if writes { Interest::WRITABLE } else { Interest::READABLE };
                    tokio::select! {
                        biased;
                        ready = connection.socket.ready(Interest::READABLE | writable) => {
                            Woken::Ready(ready.map(|ready| !ready.is_empty() && !only_writable(ready)))
                        }
                        () = inbox.work() => Woken::Work,
                    }
                }
            }
        };
        timeout_at(deadline, woken).await.unwrap_or(Woken::Time)
    }

    fn deadline(&self) -> Option<Timestamp> {
        let of_connection = match &self.line {
            Line::Up(connection) => Some(connection.ping_at),
            _ => None,
        };
        let of_link = self.parts.link.deadline();
        of_link.into_iter().chain(of_connection).chain(self.publish_deadline()).min()
    }

    /// When the oldest publish has waited long enough. One that stops has its own deadline.
    fn publish_deadline(&self) -> Option<Timestamp> {
        if self.stopping {
            return None;
        }
        // What is held came after what is owed.
        let since = self.owed.first_key_value().map(|(_, owed)| owed.since);
        let since = since.or_else(|| self.held.front().map(|(_, since)| *since));
        since.map(|since| since.after(self.parts.limits.publish_wait))
    }

    fn tick(&mut self) {
        if self.parts.link.deadline().is_some_and(|at| at <= self.now) {
            if matches!(
                self.parts.link.status(),
                Status::Connecting { .. } | Status::Greeting { .. }
            ) {
                self.note_trouble("no welcome in time");
            }
            self.step(Input::Tick);
        }
        while self.publish_deadline().is_some_and(|at| at <= self.now) {
            self.give_up_oldest();
        }
        let Line::Up(connection) = &mut self.line else { return };
        if connection.ping_at <= self.now {
            let every = ping_every(&self.parts.limits, connection);
            let silent = every.saturating_mul(PINGS_UNANSWERED_MAX);
            if connection.heard.after(silent) <= self.now {
                return self.lose(&Lost::Silent);
            }
            connection.ping_at = self.now.after(every);
            self.send(&Ping::default().into(), Corr::Other.ids());
        }
    }

    fn give_up_oldest(&mut self) {
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

    fn take_commands(&mut self) {
        let (mut commands, mut noted) =
            (std::mem::take(&mut self.commands), std::mem::take(&mut self.noted));
        self.parts.inbox.take(&mut commands, &mut noted);
        for command in commands.drain(..) {
            self.command(command);
        }
        for id in noted.drain(..) {
            self.look_at(id);
        }
        (self.commands, self.noted) = (commands, noted);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Publish(outgoing) => self.held.push_back((outgoing, self.now)),
            Command::Ask(question) => self.ask(question),
            Command::Follow(NewFollow { feed, pattern, from }) => {
                let last =
                    if let StartFrom::Token(token) = from { Some(token.into()) } else { None };
                let (server, left, confirmed) = (None, Amount::default(), false);
                self.follow(Follow { feed, pattern, from, server, left, last, confirmed });
            }
            Command::Stop { grace } => {
                self.stopping = true;
                // The link waits for what it knows of.
                while let Some(held) = self.held.pop_front() {
                    self.hand(held);
                }
                self.step(Input::Stop { grace });
            }
        }
    }

    /// Hands what waited for it to a link that is online.
    fn hand_over(&mut self) {
        while self.parts.link.status() == Status::Online {
            let Some(held) = self.held.pop_front() else { break };
            self.hand(held);
        }
    }

    fn hand(&mut self, held: (Outgoing, Timestamp)) {
        let bytes = held.0.bytes();
        self.current = Some(held);
        self.step(Input::Publish { bytes });
    }

    fn ask(&mut self, question: Question) {
        if self.asks.len() >= ASKS_MAX {
            self.asks.retain(|_, asked| !asked.question.reply.is_closed());
        }
        let number = self.next_ask;
        self.next_ask += 1;
        self.asks.insert(number, Asked { question, sent: false });
        if self.parts.link.status() == Status::Online {
            self.send_ask(number);
        }
    }

    fn send_ask(&mut self, number: u64) {
        let Line::Up(connection) = &mut self.line else { return };
        let Some(asked) = self.asks.get_mut(&number) else { return };
        match connection.put(&asked.question.verb, Corr::Ask(number).ids()) {
            Ok(()) => asked.sent = true,
            Err(error) => {
                if let Some(asked) = self.asks.remove(&number) {
                    let _ = asked.question.reply.send(Err(AskError::Invalid(error)));
                }
            }
        }
    }

    fn follow(&mut self, follow: Follow) {
        let id = SubscriptionId(self.next_follow);
        self.next_follow += 1;
        if !follow.feed.set_id(id) {
            return;
        }
        let origin = if follow.from == StartFrom::Now { Origin::Now } else { Origin::Fixed };
        self.follows.insert(id, follow);
        self.step(Input::Subscribe { id, origin });
    }

    /// Does what the user of a subscription has made necessary.
    fn look_at(&mut self, id: SubscriptionId) {
        let Some(feed) = self.follows.get(&id).or_else(|| self.parked.get(&id)) else { return };
        match feed.feed.take_note() {
            Wish::Drop => {
                self.parked.remove(&id);
                self.step(Input::Unsubscribe { id });
                self.follows.remove(&id);
            }
            Wish::Unpark => {
                if let Some(follow) = self.parked.remove(&id) {
                    self.follow(follow);
                }
            }
            Wish::Credit => self.grant(id),
        }
    }

    /// Allows as much more as the user has taken.
    pub(crate) fn grant(&mut self, id: SubscriptionId) {
        let (Some(follow), Line::Up(connection)) = (self.follows.get_mut(&id), &mut self.line)
        else {
            return;
        };
        let Some(subscription) = follow.server else { return };
        let may = follow.feed.allowance();
        let bytes = may.bytes.saturating_sub(follow.left.bytes);
        let messages = u32::try_from(may.messages.saturating_sub(follow.left.messages));
        let messages = messages.unwrap_or(u32::MAX);
        if messages == 0 && bytes == 0 {
            return;
        }
        follow.left.messages += u64::from(messages);
        follow.left.bytes += bytes;
        let credit = Credit { subscription, messages, bytes };
        if let Err(error) = connection.put(&credit.into(), Ids::NONE) {
            warn!(%error, "a credit was not sent");
        }
    }

    /// Ends a subscription on the server until its user has caught up.
    pub(crate) fn park(&mut self, id: SubscriptionId) {
        debug!(%id, "a subscription waits for its user");
        self.step(Input::Unsubscribe { id });
        let Some(mut follow) = self.follows.remove(&id) else { return };
        if let Some(last) = follow.last {
            follow.from = StartFrom::Token(last.into());
        }
        follow.server = None;
        self.parked.insert(id, follow);
    }

    /// Steps the link and performs its effects. Called from within an effect, the step is
    /// taken after it.
    pub(crate) fn step(&mut self, input: Input) {
        self.inputs.push_back(input);
        if self.stepping {
            return;
        }
        self.stepping = true;
        let mut effects = Vec::new();
        while let Some(input) = self.inputs.pop_front() {
            self.parts.link.step(self.now, input, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect);
            }
        }
        self.stepping = false;
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { address } => {
                self.parts.state.send_replace(State::Connecting);
                let address = self.parts.addresses[address].clone();
                debug!(%address, "connecting");
                self.line = Line::Making(Box::pin(Socket::connect(address)));
            }
            Effect::SendHello => {
                let hello = Verb::from(self.parts.hello.clone());
                self.send(&hello, Corr::Other.ids());
            }
            Effect::Disconnect => self.part(),
            Effect::Online { resumed } => self.online(resumed),
            Effect::StoreChanged { from, to } => {
                warn!(%from, %to, "the server has another store than before");
            }
            Effect::Offline => self.offline(),
            Effect::RetryAt { .. } => {
                self.line = Line::Down;
                self.parts.state.send_replace(State::Offline);
            }
            Effect::Queued { number } => self.queued(number),
            Effect::Rejected(reason) => {
                if let Some((outgoing, _)) = self.current.take() {
                    self.settle_outgoing(outgoing, Err(PublishError::Rejected(reason)));
                }
            }
            Effect::Send { number, .. } => {
                if let Line::Up(connection) = &mut self.line {
                    connection.pending.push_back(number);
                }
            }
            Effect::Acked { number } => {
                let gone = Err(PublishError::Disconnected { fate: Fate::Unknown });
                let answer = self.answer.take().unwrap_or(gone);
                if let Some(owed) = self.owed.remove(&number) {
                    self.forget_wire(&owed);
                    self.settle(owed, answer);
                }
            }
            Effect::AckUnknown { number } => {
                self.answer = None;
                debug!(%number, "an ack of what nobody waits for");
            }
            Effect::Subscribe { id, from } => self.subscribe(id, from),
            Effect::Unsubscribe { id } => {
                let server = self.follows.get_mut(&id).and_then(|follow| follow.server.take());
                if let Some(subscription) = server {
                    self.unsubscribe(subscription);
                }
            }
            Effect::Refused(_) => {
                let max = self.parts.limits.subscriptions;
                self.refuse_follow(&SubscriptionError::TooMany { max });
            }
            Effect::Closed => match self.current.take() {
                Some((outgoing, _)) => self.settle_outgoing(outgoing, Err(PublishError::Closed)),
                None => self.refuse_follow(&SubscriptionError::Closed),
            },
            Effect::GaveUp { why, .. } => self.ended = Some(Some(why.into())),
            Effect::Stopped { .. } => self.ended = Some(None),
        }
    }

    fn queued(&mut self, number: PublishNumber) {
        let Some((mut outgoing, since)) = self.current.take() else { return };
        let bytes = outgoing.bytes();
        Corr::Publish(number).stamp(&mut outgoing.frame);
        let frame = outgoing.frame.split().freeze();
        let (touched, on_wire) = (false, false);
        self.owed.insert(number, Owed { frame, outgoing, bytes, since, touched, on_wire });
    }

    fn online(&mut self, resumed: bool) {
        if let Line::Up(connection) = &mut self.line
            && let Some(limits) = connection.welcome
        {
            self.server_bytes = limits.in_flight_bytes;
            self.parts.inbox.release(Load::default(), self.server_bytes);
            connection.ping_at = self.now.after(ping_every(&self.parts.limits, connection));
            let own = self.parts.limits.window;
            let window = Amount {
                messages: own.messages.min(u64::from(limits.credit_messages.max(1))),
                bytes: own.bytes.min(limits.credit_bytes.max(1)),
            };
            self.follows.values().chain(self.parked.values()).for_each(|follow| {
                follow.feed.set_window(window);
            });
        }
        debug!(resumed, "online");
        self.parts.state.send_replace(State::Online);
        let waiting: Vec<u64> =
            self.asks.iter().filter(|(_, asked)| !asked.sent).map(|(number, _)| *number).collect();
        for number in waiting {
            self.send_ask(number);
        }
    }

    /// Settles what cannot be sent again without harm.
    fn offline(&mut self) {
        let fate = Fate::Unknown;
        let doubtful = |owed: &Owed| owed.touched && !owed.outgoing.repeatable;
        let lost: Vec<PublishNumber> = self
            .owed
            .iter()
            .filter(|(_, owed)| doubtful(owed))
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(owed) = self.owed.remove(&number) {
                self.settle(owed, Err(PublishError::Disconnected { fate }));
                self.inputs.push_back(Input::Acked { number });
            }
        }
        for owed in self.owed.values_mut() {
            owed.on_wire = false;
        }
        let sent: Vec<u64> =
            self.asks.iter().filter(|(_, asked)| asked.sent).map(|(number, _)| *number).collect();
        for number in sent {
            let Some(asked) = self.asks.get_mut(&number) else { continue };
            asked.sent = false;
            if !asked.question.repeatable
                && let Some(asked) = self.asks.remove(&number)
            {
                let _ = asked.question.reply.send(Err(AskError::Disconnected { fate }));
            }
        }
        for follow in self.follows.values_mut() {
            follow.server = None;
        }
    }

    fn subscribe(&mut self, id: SubscriptionId, from: Place) {
        let (Some(follow), Line::Up(connection)) = (self.follows.get_mut(&id), &mut self.line)
        else {
            return;
        };
        let Some(limits) = connection.welcome else { return };
        let own = self.parts.limits.window;
        follow.feed.set_window(Amount {
            messages: own.messages.min(u64::from(limits.credit_messages.max(1))),
            bytes: own.bytes.min(limits.credit_bytes.max(1)),
        });
        let from = match from {
            Place::Start => follow.from,
            Place::After(token) => StartFrom::Token(Token::from(token).into()),
        };
        let may = follow.feed.allowance();
        let credit_messages = u32::try_from(may.messages).unwrap_or(u32::MAX);
        let credit_bytes = may.bytes;
        follow.server = None;
        follow.left = Amount { messages: u64::from(credit_messages), bytes: credit_bytes };
        let pattern = follow.pattern.clone();
        let subscribe = Subscribe { pattern, credit_messages, credit_bytes, from };
        if let Err(error) = connection.put(&subscribe.into(), Corr::Follow(id).ids()) {
            warn!(%error, "a subscription was not asked for");
        }
    }

    pub(crate) fn unsubscribe(&mut self, subscription: u64) {
        if let Line::Up(connection) = &mut self.line {
            connection.follows.remove(&subscription);
        }
        self.send(&Unsubscribe { subscription }.into(), Corr::Other.ids());
    }

    /// The subscription that was just handed to the link is refused.
    fn refuse_follow(&mut self, error: &SubscriptionError) {
        let newest = SubscriptionId(self.next_follow - 1);
        if let Some(follow) = self.follows.remove(&newest) {
            follow.feed.end(Err(error.clone()));
        }
    }

    pub(crate) fn settle(&mut self, owed: Owed, answer: Result<PublishAck, PublishError>) {
        self.freed.count += 1;
        self.freed.bytes += owed.bytes;
        owed.outgoing.answer(answer);
    }

    fn settle_outgoing(&mut self, outgoing: Outgoing, answer: Result<PublishAck, PublishError>) {
        self.freed.count += 1;
        self.freed.bytes += outgoing.bytes();
        outgoing.answer(answer);
    }

    fn forget_wire(&mut self, owed: &Owed) {
        if let Line::Up(connection) = &mut self.line
            && owed.on_wire
        {
            connection.wire_bytes = connection.wire_bytes.saturating_sub(owed.bytes);
        }
    }

    /// Sends a small frame at once.
    pub(crate) fn send(&mut self, verb: &Verb, ids: Ids) {
        if let Line::Up(connection) = &mut self.line
            && let Err(error) = connection.put(verb, ids)
        {
            warn!(%error, kind = verb.kind().name(), "a frame was not sent");
        }
    }

    fn read(&mut self) {
        let Line::Up(connection) = &mut self.line else { return };
        let mut frames = std::mem::take(&mut self.frames);
        let outcome = connection.read(&mut frames);
        if !frames.is_empty() {
            connection.heard = self.now;
        }
        for frame in frames.drain(..) {
            // Whatever came after the end of a connection was not sent by this server.
            if !matches!(self.line, Line::Up(_)) {
                break;
            }
            if let Err(why) = self.receive(&frame) {
                self.lose(&why);
            }
        }
        frames.clear();
        self.frames = frames;
        if let Err(why) = outcome {
            self.lose(&why);
        }
    }

    /// Puts publishes into the output as far as there is room, and writes.
    fn write(&mut self) {
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

    fn pump(&mut self) {
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
                connection.out.put(&owed.frame);
                owed.outgoing.tail.iter().for_each(|tail| connection.out.put(tail));
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
    fn release(&mut self) {
        if self.freed != Load::default() {
            let freed = std::mem::take(&mut self.freed);
            self.parts.inbox.release(freed, self.server_bytes);
        }
    }

    /// The connection is of no use any more.
    pub(crate) fn lose(&mut self, why: &Lost) {
        if matches!(self.line, Line::Down) {
            return;
        }
        debug!(%why, "the connection is lost");
        self.note_trouble(&why.to_string());
        self.line = Line::Down;
        let failed = Input::Failed { why: Failure::Unreachable };
        let greeted = matches!(self.parts.link.status(), Status::Online | Status::Leaving { .. });
        self.step(if greeted { Input::Lost } else { failed });
    }

    /// The server has refused the client.
    pub(crate) fn refused(&mut self, why: Failure, text: &str) {
        warn!(?why, text, "the server refuses this client");
        self.note_trouble(text);
        self.line = Line::Down;
        self.step(Input::Failed { why });
    }

    fn note_trouble(&self, text: &str) {
        let mut trouble = self.parts.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        *trouble = Some(text.to_owned());
    }

    /// Says bye and leaves. What cannot be written at once is not waited for, unless the
    /// client ends.
    fn part(&mut self) {
        self.send(&Bye.into(), Ids::NONE);
        match &mut self.line {
            Line::Up(connection) if !self.stopping => {
                // It is lost to us whatever comes of it.
                let _ = connection.socket.write(&mut connection.out);
                self.line = Line::Down;
            }
            Line::Up(_) => {}
            _ => self.line = Line::Down,
        }
    }

    async fn finish(mut self, why: Option<GaveUp>) -> CloseReport {
        let mut report = CloseReport::default();
        for owed in std::mem::take(&mut self.owed).into_values() {
            let fate = owed.fate();
            match fate {
                Fate::Unknown => report.unknown += 1,
                Fate::DidNotHappen => report.unsent += 1,
            }
            self.settle(owed, Err(PublishError::Disconnected { fate }));
        }
        for (outgoing, _) in std::mem::take(&mut self.held) {
            report.unsent += 1;
            let fate = Fate::DidNotHappen;
            self.settle_outgoing(outgoing, Err(PublishError::Disconnected { fate }));
        }
        for command in self.parts.inbox.close() {
            match command {
                Command::Publish(outgoing) => {
                    report.unsent += 1;
                    outgoing.answer(Err(PublishError::Closed));
                }
                Command::Ask(question) => {
                    let _ = question.reply.send(Err(AskError::Closed));
                }
                Command::Follow(follow) => follow.feed.end(end_of_feed(why)),
                Command::Stop { .. } => {}
            }
        }
        for asked in std::mem::take(&mut self.asks).into_values() {
            let fate = if asked.sent { Fate::Unknown } else { Fate::DidNotHappen };
            let _ = asked.question.reply.send(Err(AskError::Disconnected { fate }));
        }
        let follows = std::mem::take(&mut self.follows).into_values();
        for follow in follows.chain(std::mem::take(&mut self.parked).into_values()) {
            follow.feed.end(end_of_feed(why));
        }
        if let Line::Up(connection) = &mut self.line {
            // Who does not take the last frames in time does not get them.
            let _ = timeout(PART_WAIT, write_all(connection)).await;
        }
        self.parts.state.send_replace(State::Closed(why));
        report
    }
}

fn end_of_feed(why: Option<GaveUp>) -> Result<(), SubscriptionError> {
    why.map_or(Ok(()), |why| Err(SubscriptionError::GaveUp(why)))
}

async fn write_all(connection: &mut Connection) -> io::Result<()> {
    while !connection.socket.write(&mut connection.out)? {
        connection.socket.ready(Interest::WRITABLE).await?;
    }
    Ok(())
}

fn only_writable(ready: tokio::io::Ready) -> bool {
    ready.is_writable() && !ready.is_readable() && !ready.is_read_closed()
}

/// As often as the client likes, and often enough for the server not to think it idle.
fn ping_every(limits: &ClientLimits, connection: &Connection) -> Duration {
    let idle = connection.welcome.map_or(0, |limits| limits.idle_ms);
    let third = Duration::from_millis(u64::from(idle / 3).max(1));
    if idle == 0 { limits.ping_every } else { limits.ping_every.min(third) }
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
