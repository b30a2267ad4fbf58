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

use gapless_core::cluster::DeliveryReport;
use gapless_core::link::{Effect, Failure, Input, PublishNumber, Status, SubscriptionId};
use gapless_core::{Amount, Fate, Link, Registry, Timestamp};
use gapless_protocol::{Bye, Frame, Hello, Ids, PartAck, Ping, PublishAck, StartFrom, Verb};
use tokio::io::Interest;
use tokio::sync::{oneshot, watch};
use tokio::time::{timeout, timeout_at};
use tracing::{debug, warn};

use crate::address::Address;
use crate::client::{CloseReport, State};
use crate::clock::Clock;
use crate::connection::{Connection, Corr};
use crate::error::{AskError, GaveUp, Lost, MemberError, PublishError, SubscriptionError};
use crate::following::{Follow, window};
use crate::inbox::{Command, Inbox, Load, NewFollow, Question};
use crate::membership::Membership;
use crate::options::ClientLimits;
use crate::publish::Outgoing;
use crate::sending::Owed;
use crate::socket::Socket;
use crate::tls::{Tls, is_distrust};

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

pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) sent: bool,
}

/// What a driver is made of.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) tls: Option<Tls>,
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
    pub(crate) inputs: VecDeque<Input>,
    /// Empty but while stepping: its memory is kept for the next step.
    effects: Vec<Effect>,
    stepping: bool,
    pub(crate) line: Line,
    frames: Vec<Frame>,
    commands: VecDeque<Command>,
    noted: Vec<SubscriptionId>,
    /// Publishes that wait until the link is online.
    pub(crate) held: VecDeque<(Outgoing, Timestamp)>,
    pub(crate) owed: BTreeMap<PublishNumber, Owed>,
    /// The publish that is just being handed to the link.
    pub(crate) current: Option<(Outgoing, Timestamp)>,
    /// Where reports go of publishes that were accepted on this connection.
    pub(crate) reports: BTreeMap<PublishNumber, oneshot::Sender<DeliveryReport>>,
    /// The answer that is just being passed to the link.
    pub(crate) answer: Option<Result<PublishAck, PublishError>>,
    pub(crate) freed: Load,
    pub(crate) server_bytes: u64,
    pub(crate) asks: BTreeMap<u64, Asked>,
    pub(crate) next_ask: u64,
    pub(crate) members: BTreeMap<u64, Membership>,
    /// What members said and was not answered.
    pub(crate) says: BTreeMap<u64, oneshot::Sender<Result<Verb, AskError>>>,
    pub(crate) follows: BTreeMap<SubscriptionId, Follow>,
    /// Subscriptions whose users must catch up first.
    pub(crate) parked: BTreeMap<SubscriptionId, Follow>,
    pub(crate) next_follow: u64,
    pub(crate) stopping: bool,
    /// Whether any server has said welcome.
    welcomed: bool,
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
            effects: Vec::new(),
            stepping: false,
            line: Line::Down,
            frames: Vec::new(),
            commands: VecDeque::new(),
            noted: Vec::new(),
            held: VecDeque::new(),
            owed: BTreeMap::new(),
            current: None,
            reports: BTreeMap::new(),
            answer: None,
            freed: Load::default(),
            server_bytes: u64::MAX,
            asks: BTreeMap::new(),
            next_ask: 1,
            members: BTreeMap::new(),
            says: BTreeMap::new(),
            follows: BTreeMap::new(),
            parked: BTreeMap::new(),
            next_follow: 1,
            stopping: false,
            welcomed: false,
            ended: None,
        }
    }

    /// Runs until the link has ended, and returns what was left.
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
            Command::Follow(NewFollow { feed, pattern, from, identity }) => {
                let last = if let StartFrom::Token(token) = from { Some(token) } else { None };
                let (server, left, confirmed) = (None, Amount::default(), false);
                self.follow(Follow {
                    feed,
                    pattern,
                    from,
                    identity,
                    server,
                    left,
                    last,
                    confirmed,
                });
            }
            Command::Join(new) => self.join(new),
            Command::Say(saying) => self.say(saying),
            Command::Leave(key) => self.leave(key),
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

    /// Steps the link and performs its effects. Called from within an effect, the step is
    /// taken after it.
    pub(crate) fn step(&mut self, input: Input) {
        self.inputs.push_back(input);
        if self.stepping {
            return;
        }
        self.stepping = true;
        let mut effects = std::mem::take(&mut self.effects);
        while let Some(input) = self.inputs.pop_front() {
            self.parts.link.step(self.now, input, &mut effects);
            for effect in effects.drain(..) {
                self.perform(effect);
            }
        }
        self.effects = effects;
        self.stepping = false;
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { address } => {
                self.parts.state.send_replace(State::Connecting);
                let address = self.parts.addresses[address].clone();
                debug!(%address, "connecting");
                self.line =
                    Line::Making(Box::pin(Socket::connect(address, self.parts.tls.clone())));
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
                if let Some(mut owed) = self.owed.remove(&number) {
                    self.forget_wire(&owed);
                    let report = owed.outgoing.report.take();
                    if let Some(report) = report.filter(|_| is_accepted(&answer)) {
                        self.reports.insert(number, report);
                    }
                    self.settle(owed, answer);
                }
            }
            Effect::AckUnknown { number } => {
                self.answer = None;
                debug!(%number, "an ack for which no publish is waiting");
            }
            Effect::Subscribe { id, from } => self.subscribe(id, from),
            Effect::Unsubscribe { id } => {
                let Some(follow) = self.follows.get_mut(&id) else { return };
                let hold = follow.identity.is_some() && !follow.feed.is_for_good();
                if let Some(subscription) = follow.server.take() {
                    self.unsubscribe(subscription, hold);
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

    fn online(&mut self, resumed: bool) {
        self.welcomed = true;
        if let Line::Up(connection) = &mut self.line
            && let Some(limits) = connection.welcome
        {
            self.server_bytes = limits.in_flight_bytes;
            self.parts.inbox.release(Load::default(), self.server_bytes);
            connection.ping_at = self.now.after(ping_every(&self.parts.limits, connection));
            let own = self.parts.limits.window;
            let window = window(own, &limits);
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
        self.join_all();
    }

    /// Settles what cannot be sent again without harm.
    fn offline(&mut self) {
        // They do not come on another connection.
        self.reports.clear();
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
        self.lose_members();
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
            // What came after the end of a connection was not sent by this server.
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

    /// The connection is of no use any more.
    pub(crate) fn lose(&mut self, why: &Lost) {
        if matches!(self.line, Line::Down) {
            return;
        }
        debug!(%why, "the connection is lost");
        self.note_trouble(&why.to_string());
        self.line = Line::Down;
        let why = match why {
            Lost::Http => Failure::OtherProtocol,
            // Of a server that was good before, a certificate may be about to be renewed.
            Lost::Tls if !self.welcomed => Failure::NotTrusted,
            Lost::Io(error) if !self.welcomed && is_distrust(error) => Failure::NotTrusted,
            _ => Failure::Unreachable,
        };
        let failed = Input::Failed { why };
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
                // It counts as lost in any case.
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
                Command::Join(new) => new.seat.end(end_of_seat(why)),
                // A caller that waits for an answer sees that the sender is gone.
                Command::Say(_) | Command::Leave(_) | Command::Stop { .. } => {}
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
        self.end_members(&end_of_seat(why));
        if let Line::Up(connection) = &mut self.line {
            // A server that does not take the last frames in time does not get them.
            let _ = timeout(PART_WAIT, write_all(connection)).await;
        }
        self.parts.state.send_replace(State::Closed(why));
        report
    }
}

fn is_accepted(answer: &Result<PublishAck, PublishError>) -> bool {
    let accepted = |part: &PartAck| matches!(part, PartAck::Accepted(_));
    answer.as_ref().is_ok_and(|ack| ack.parts.iter().all(accepted))
}

fn end_of_feed(why: Option<GaveUp>) -> Result<(), SubscriptionError> {
    why.map_or(Ok(()), |why| Err(SubscriptionError::GaveUp(why)))
}

fn end_of_seat(why: Option<GaveUp>) -> Result<(), MemberError> {
    why.map_or(Ok(()), |why| Err(MemberError::GaveUp(why)))
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
