//! A link against a plain model: a server that forgets nothing, lines that lose everything.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;

use proptest::prelude::*;

use super::*;
use crate::id::Position;

const EPOCH: Epoch = Epoch(7);
const ADDRESSES: usize = 3;

const LIMITS: LinkLimits = LinkLimits {
    publish_count_max: 6,
    publish_bytes_max: 200,
    subscription_count_max: 2,
    welcome_wait: Duration::from_millis(100),
};

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(50),
    most: Duration::from_millis(400),
    jitter_percent: 20,
};

fn link() -> Link {
    Link::new(ADDRESSES, BACKOFF, 1, LIMITS).unwrap()
}

fn step(link: &mut Link, now: u64, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    link.step(Timestamp(now), input, &mut effects);
    link.check();
    effects
}

fn online(link: &mut Link) {
    for input in [Input::Start, Input::Connected, Input::Welcomed { epoch: EPOCH }] {
        step(link, 0, input);
    }
    assert_eq!(link.status(), Status::Online);
}

/// Loses the connection, comes back, and gives the effects of the welcome.
fn lost_and_back(link: &mut Link) -> Vec<Effect> {
    step(link, 0, Input::Lost);
    let at = link.deadline().unwrap().0;
    step(link, at, Input::Tick);
    step(link, at, Input::Connected);
    step(link, at, Input::Welcomed { epoch: EPOCH })
}

fn token(position: u64) -> Token {
    Token { epoch: EPOCH, position: Position(position) }
}

#[test]
fn a_link_to_nowhere_or_with_nothing_allowed_is_refused() {
    assert_eq!(Link::new(0, BACKOFF, 1, LIMITS), Err(LinkError::NoAddress));
    let none = LinkLimits { publish_bytes_max: 0, ..LIMITS };
    assert_eq!(Link::new(1, BACKOFF, 1, none), Err(LinkError::Zero { limit: "publish bytes" }));
    let never = Backoff { first: Duration::ZERO, ..BACKOFF };
    assert_eq!(Link::new(1, never, 1, LIMITS), Err(LinkError::Backoff(BackoffError::ZeroFirst)));
}

#[test]
fn the_longest_publish_fits_and_a_longer_one_never_will() {
    let mut link = link();
    let longer = step(&mut link, 0, Input::Publish { bytes: 201 });
    assert_eq!(longer, [Effect::Rejected(RejectReason::TooLarge { bytes: 201, max: 200 })]);
    let longest = step(&mut link, 0, Input::Publish { bytes: 200 });
    assert_eq!(longest, [Effect::Queued { number: PublishNumber(1) }]);
    let more = step(&mut link, 0, Input::Publish { bytes: 1 });
    assert_eq!(more, [Effect::Rejected(RejectReason::QueueFull)]);
}

#[test]
fn an_ack_of_what_was_never_sent_is_not_believed() {
    let mut link = link();
    let number = PublishNumber(1);
    step(&mut link, 0, Input::Publish { bytes: 1 });
    assert_eq!(step(&mut link, 0, Input::Acked { number }), [Effect::AckUnknown { number }]);
    assert_eq!(link.unacked().collect::<Vec<_>>(), [number]);
}

#[test]
fn a_subscription_beyond_the_limit_or_under_a_known_id_is_refused() {
    let mut link = link();
    online(&mut link);
    let subscribe = |id| Input::Subscribe { id: SubscriptionId(id), origin: Origin::Fixed };
    step(&mut link, 0, subscribe(1));
    let known = SubscriptionError::Known { id: SubscriptionId(1) };
    assert_eq!(step(&mut link, 0, subscribe(1)), [Effect::Refused(known)]);
    step(&mut link, 0, subscribe(2));
    let too_many = SubscriptionError::TooMany { max: 2 };
    assert_eq!(step(&mut link, 0, subscribe(3)), [Effect::Refused(too_many)]);
}

/// A store that was restored goes on below the token the user had reached.
#[test]
fn the_last_progress_counts_even_if_it_is_lower() {
    let (mut link, id) = (link(), SubscriptionId(1));
    online(&mut link);
    step(&mut link, 0, Input::Subscribe { id, origin: Origin::Fixed });
    step(&mut link, 0, Input::Progress { id, token: token(9) });
    step(&mut link, 0, Input::Progress { id, token: token(4) });
    let effects = lost_and_back(&mut link);
    let from = Place::After(token(4));
    assert_eq!(effects, [Effect::Online { resumed: true }, Effect::Subscribe { id, from }]);
}

/// The answer to a subscription fixes the place "now", and no other: a server need not know
/// the token of any other place.
#[test]
fn only_a_subscription_from_now_resumes_where_it_was_answered() {
    let (mut link, fixed, moving) = (link(), SubscriptionId(1), SubscriptionId(2));
    online(&mut link);
    step(&mut link, 0, Input::Subscribe { id: fixed, origin: Origin::Fixed });
    step(&mut link, 0, Input::Subscribe { id: moving, origin: Origin::Now });
    step(&mut link, 0, Input::Subscribed { id: fixed, token: token(5) });
    step(&mut link, 0, Input::Subscribed { id: moving, token: token(5) });
    let effects = lost_and_back(&mut link);
    let subscribe = |id, from| Effect::Subscribe { id, from };
    assert_eq!(
        effects[1..],
        [subscribe(fixed, Place::Start), subscribe(moving, Place::After(token(5)))]
    );
}

/// The place where the user stands is the user's: no answer of the server moves it.
#[test]
fn a_later_answer_does_not_move_a_subscription() {
    let (mut link, id) = (link(), SubscriptionId(1));
    online(&mut link);
    step(&mut link, 0, Input::Subscribe { id, origin: Origin::Now });
    step(&mut link, 0, Input::Subscribed { id, token: token(5) });
    step(&mut link, 0, Input::Subscribed { id, token: token(8) });
    let effects = lost_and_back(&mut link);
    let from = Place::After(token(5));
    assert_eq!(effects, [Effect::Online { resumed: true }, Effect::Subscribe { id, from }]);
}

#[test]
fn a_link_that_was_never_started_stops_at_once() {
    let mut link = link();
    step(&mut link, 0, Input::Publish { bytes: 1 });
    let effects = step(&mut link, 0, Input::Stop { grace: Duration::from_secs(9) });
    assert_eq!(effects, [Effect::Stopped { unacked: 1 }]);
}

#[test]
fn every_address_is_tried_in_turn_and_waits_grow_until_a_welcome() {
    let mut link = link();
    let mut tried = Vec::new();
    let mut waits = Vec::new();
    let mut effects = step(&mut link, 0, Input::Start);
    let mut now = 0;
    for _ in 0..7 {
        let [Effect::Connect { address }] = effects[..] else { panic!("{effects:?}") };
        tried.push(address);
        step(&mut link, now, Input::Failed { why: Failure::Busy });
        let at = link.deadline().unwrap().0;
        waits.push(at - now);
        now = at;
        effects = step(&mut link, now, Input::Tick);
    }
    assert_eq!(tried, [0, 1, 2, 0, 1, 2, 0]);
    for (wait, base) in waits.into_iter().zip([50, 100, 200, 400, 400, 400, 400]) {
        assert!((base * 8 / 10..=base * 12 / 10 + 1).contains(&wait), "{wait} around {base}");
    }
    step(&mut link, now, Input::Connected);
    step(&mut link, now, Input::Welcomed { epoch: EPOCH });
    step(&mut link, now, Input::Lost);
    assert!(link.deadline().unwrap().0 - now <= 61, "a welcome restarts the schedule");
}

#[test]
fn a_server_that_says_when_to_come_back_is_left_alone_until_then() {
    let mut link = link();
    step(&mut link, 0, Input::Start);
    let wait = Duration::from_secs(3);
    step(&mut link, 0, Input::Failed { why: Failure::BusyFor(wait) });
    assert_eq!(link.deadline().unwrap().0, 3_000);
    assert!(matches!(step(&mut link, 3_000, Input::Tick)[..], [Effect::Connect { .. }]));
    // A shorter time than the schedule's does not make it faster.
    step(&mut link, 3_000, Input::Failed { why: Failure::BusyFor(Duration::from_millis(1)) });
    assert!(link.deadline().unwrap().0 >= 3_080, "{:?}", link.deadline());
}

/// One server, whose log forgets nothing and knows the publishes by their numbers.
#[derive(Default)]
struct Server {
    /// The publish at each position, or none for one of another client.
    log: Vec<Option<PublishNumber>>,
    known: BTreeSet<PublishNumber>,
}

impl Server {
    fn end(&self) -> u64 {
        u64::try_from(self.log.len()).unwrap()
    }

    fn mine(&self) -> Vec<u64> {
        self.log.iter().flatten().map(|number| number.0).collect()
    }
}

/// What a client says.
enum Up {
    Hello,
    Publish(PublishNumber),
    Subscribe(SubscriptionId, Origin, Place),
    Unsubscribe(SubscriptionId),
}

/// What a server says.
enum Down {
    Welcome,
    Subscribed(SubscriptionId, Token),
    Message(SubscriptionId, u64),
}

/// One connection and the server's half of it. Acks have a lane of their own: they may
/// overtake each other.
#[derive(Default)]
struct Line {
    made: bool,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    acks: Vec<PublishNumber>,
    follows: BTreeMap<SubscriptionId, u64>,
    last_sent: u64,
}

/// What the user of the link knows of a subscription.
struct Reader {
    origin: Origin,
    /// Received, not yet handed over.
    inbox: VecDeque<u64>,
    /// The position that must come next; not known before the first answer from "now".
    next: Option<u64>,
    told: Option<Token>,
}

/// A link, its shell, its user and its server.
struct World {
    link: Link,
    now: u64,
    server: Server,
    line: Option<Line>,
    online: bool,
    /// Publishes that wait for their answer, with their sizes.
    owed: BTreeMap<PublishNumber, u64>,
    ever_sent: BTreeSet<PublishNumber>,
    acked: BTreeSet<PublishNumber>,
    readers: BTreeMap<SubscriptionId, Reader>,
    last_id: u64,
    stopping: bool,
    reported: Option<u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            link: Link::new(ADDRESSES, BACKOFF, seed, LIMITS).unwrap(),
            now: 0,
            server: Server::default(),
            line: None,
            online: false,
            owed: BTreeMap::new(),
            ever_sent: BTreeSet::new(),
            acked: BTreeSet::new(),
            readers: BTreeMap::new(),
            last_id: 0,
            stopping: false,
            reported: None,
        };
        world.step(Input::Start);
        world
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.link.step(Timestamp(self.now), input, &mut effects);
        self.link.check();
        for effect in &effects {
            if self.reported.is_some() {
                let quiet = matches!(effect, Effect::Closed | Effect::AckUnknown { .. });
                assert!(quiet, "{effect:?} after the end");
            }
            self.perform(*effect, input);
        }
        assert_eq!(self.link.unacked().collect::<Vec<_>>(), self.owed_numbers());
        effects
    }

    fn owed_numbers(&self) -> Vec<PublishNumber> {
        let ended = self.reported.is_some();
        if ended { Vec::new() } else { self.owed.keys().copied().collect() }
    }

    fn line(&mut self) -> &mut Line {
        self.line.as_mut().expect("there is a connection")
    }

    fn perform(&mut self, effect: Effect, input: Input) {
        match effect {
            Effect::Connect { address } => {
                assert!(self.line.is_none() && address < ADDRESSES);
                self.line = Some(Line::default());
            }
            Effect::SendHello => self.line().up.push_back(Up::Hello),
            Effect::Disconnect => {
                // Half of what was said still arrives.
                let half = self.line().up.len() / 2;
                self.cut(half);
            }
            Effect::Online { .. } => {
                assert!(!self.online && self.line.is_some());
                self.online = true;
            }
            Effect::Offline => {
                assert!(self.online && self.line.is_none(), "offline comes with a loss");
                self.online = false;
            }
            Effect::Queued { number } => {
                let Input::Publish { bytes } = input else { panic!("{input:?} queues nothing") };
                assert!(self.owed.insert(number, bytes).is_none());
            }
            Effect::Send { number, again } => {
                assert!(self.online, "nothing is sent while offline");
                assert_eq!(self.link.status(), Status::Online, "nor while leaving");
                assert!(self.owed.contains_key(&number), "only what is owed is sent");
                assert_eq!(again, !self.ever_sent.insert(number));
                let line = self.line();
                assert!(number.0 > line.last_sent, "in order, and once per connection");
                line.last_sent = number.0;
                line.up.push_back(Up::Publish(number));
            }
            Effect::Acked { number } => {
                assert!(self.owed.remove(&number).is_some(), "only what is owed is acked");
                assert!(self.acked.insert(number), "acked once");
                assert!(self.server.known.contains(&number), "what is acked has happened");
            }
            Effect::AckUnknown { number } => {
                let owed = self.owed.contains_key(&number) && self.ever_sent.contains(&number);
                assert!(!owed || self.reported.is_some(), "a good ack is taken");
            }
            Effect::Subscribe { id, from } => {
                assert!(self.online);
                let reader = self.readers.get_mut(&id).expect("only what is wanted is asked for");
                assert_eq!(from, reader.told.map_or(Place::Start, Place::After));
                reader.inbox.clear();
                let origin = reader.origin;
                self.line().up.push_back(Up::Subscribe(id, origin, from));
            }
            Effect::Unsubscribe { id } => {
                assert!(self.online);
                self.line().up.push_back(Up::Unsubscribe(id));
            }
            Effect::GaveUp { unacked, .. } | Effect::Stopped { unacked } => {
                assert!(!self.online && self.line.is_none());
                assert_eq!(self.reported, None, "a link ends once");
                assert_eq!(self.owed.len(), usize::try_from(unacked).unwrap());
                self.reported = Some(unacked);
            }
            Effect::Closed => assert!(self.stopping || self.reported.is_some()),
            Effect::StoreChanged { .. } => panic!("there is one store"),
            Effect::RetryAt { at } => {
                assert_eq!(at, self.link.deadline().map_or(at, |due| due.max(at)));
            }
            Effect::Rejected(_) | Effect::Refused(_) => {}
        }
    }

    /// Ends the connection; the first `arrive` frames of the client still reach the server.
    fn cut(&mut self, arrive: usize) {
        for _ in 0..arrive {
            self.server_hears();
        }
        self.line = None;
    }

    fn server_hears(&mut self) {
        let Some(line) = &mut self.line else { return };
        match line.up.pop_front() {
            None => {}
            Some(Up::Hello) => line.down.push_back(Down::Welcome),
            Some(Up::Publish(number)) => {
                if self.server.known.insert(number) {
                    self.server.log.push(Some(number));
                }
                line.acks.push(number);
            }
            Some(Up::Subscribe(id, origin, from)) => {
                let seen = match (from, origin) {
                    (Place::After(token), _) => token.position.0,
                    (Place::Start, Origin::Fixed) => 0,
                    (Place::Start, Origin::Now) => self.server.end(),
                };
                line.follows.insert(id, seen);
                line.down.push_back(Down::Subscribed(id, token(seen)));
            }
            Some(Up::Unsubscribe(id)) => {
                assert!(line.follows.remove(&id).is_some(), "only what was asked for is ended");
            }
        }
    }

    fn server_delivers(&mut self) {
        let Some(line) = &mut self.line else { return };
        for (id, seen) in &mut line.follows {
            if *seen < self.server.end() {
                *seen += 1;
                line.down.push_back(Down::Message(*id, *seen));
            }
        }
    }

    fn client_hears(&mut self) {
        let Some(line) = &mut self.line else { return };
        match line.down.pop_front() {
            None => {}
            Some(Down::Welcome) => {
                self.step(Input::Welcomed { epoch: EPOCH });
            }
            Some(Down::Subscribed(id, token)) => {
                if let Some(reader) = self.readers.get_mut(&id)
                    && reader.next.is_none()
                {
                    reader.next = Some(token.position.0 + 1);
                    reader.told = Some(token);
                }
                self.step(Input::Subscribed { id, token });
            }
            Some(Down::Message(id, position)) => {
                if let Some(reader) = self.readers.get_mut(&id) {
                    reader.inbox.push_back(position);
                }
            }
        }
    }

    fn client_hears_ack(&mut self, which: usize) {
        let Some(line) = self.line.as_mut().filter(|line| !line.acks.is_empty()) else { return };
        let number = line.acks.remove(which % line.acks.len());
        self.step(Input::Acked { number });
    }

    /// The user takes the next message of each subscription.
    fn hand_over(&mut self) {
        for id in self.readers.keys().copied().collect::<Vec<_>>() {
            let reader = self.readers.get_mut(&id).unwrap();
            let Some(position) = reader.inbox.pop_front() else { continue };
            assert_eq!(Some(position), reader.next, "no gap, no repeat");
            reader.next = Some(position + 1);
            reader.told = Some(token(position));
            self.step(Input::Progress { id, token: token(position) });
        }
    }

    fn publish(&mut self, bytes: u64) {
        let room = LIMITS.publish_bytes_max - self.owed.values().sum::<u64>();
        let full = self.owed.len() >= 6 || bytes > room;
        let open = !self.stopping && self.reported.is_none();
        let effects = self.step(Input::Publish { bytes });
        match effects[..] {
            [Effect::Closed] => assert!(!open),
            [Effect::Rejected(RejectReason::QueueFull)] => assert!(open && full),
            [Effect::Rejected(RejectReason::TooLarge { .. })] => assert!(open && bytes > 200),
            [Effect::Queued { .. }, ..] => assert!(open && !full),
            _ => panic!("{effects:?}"),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Publish(bytes) => self.publish(bytes),
            Act::SomebodyPublishes => self.server.log.push(None),
            Act::Connected => {
                if let Some(line) = &mut self.line
                    && !line.made
                {
                    line.made = true;
                    self.step(Input::Connected);
                }
            }
            Act::ServerHears => self.server_hears(),
            Act::ServerDelivers => self.server_delivers(),
            Act::ClientHears => self.client_hears(),
            Act::ClientHearsAck(which) => self.client_hears_ack(which),
            Act::HandOver => self.hand_over(),
            Act::Lose(arrive) => {
                if self.line.is_some() {
                    let failed = !self.online && arrive % 2 == 0;
                    self.cut(arrive);
                    let failed_input = Input::Failed { why: Failure::Unreachable };
                    self.step(if failed { failed_input } else { Input::Lost });
                }
            }
            Act::Drain(grace) => {
                self.step(Input::Drain { grace: Duration::from_millis(grace) });
            }
            Act::Pass(ms) => {
                self.now += ms;
                self.step(Input::Tick);
            }
            Act::Subscribe(origin) => {
                if self.readers.len() < 2 && !self.stopping && self.reported.is_none() {
                    self.last_id += 1;
                    let id = SubscriptionId(self.last_id);
                    let next = (origin == Origin::Fixed).then_some(1);
                    let reader = Reader { origin, inbox: VecDeque::new(), next, told: None };
                    self.readers.insert(id, reader);
                    self.step(Input::Subscribe { id, origin });
                }
            }
            Act::Unsubscribe => {
                if let Some((id, _)) = self.readers.pop_first() {
                    self.step(Input::Unsubscribe { id });
                }
            }
            Act::StrayAck(number) => {
                let number = PublishNumber(number);
                if self.server.known.contains(&number) || !self.ever_sent.contains(&number) {
                    self.step(Input::Acked { number });
                }
            }
            Act::Stop(grace) => {
                self.stopping = true;
                self.readers.clear();
                self.step(Input::Stop { grace: Duration::from_millis(grace) });
            }
            Act::GetRefused => {
                if self.line.is_some() {
                    self.cut(0);
                    self.step(Input::Failed { why: Failure::NotAuthorised });
                    self.readers.clear();
                }
            }
        }
        // Sends ascend and none is skipped, so the server has a beginning of what was taken.
        let mine = self.server.mine();
        assert!(mine.iter().copied().eq(1..=mine.len() as u64), "in order, none twice: {mine:?}");
    }

    /// Everything works from now on, until nothing is left to do.
    fn calm(&mut self) {
        for _ in 0..300 {
            if self.line.is_none() {
                let Some(deadline) = self.link.deadline() else { return };
                self.now = self.now.max(deadline.0);
                self.step(Input::Tick);
            }
            for act in [
                Act::Connected,
                Act::ServerHears,
                Act::ServerDelivers,
                Act::ClientHears,
                Act::ClientHearsAck(0),
                Act::HandOver,
            ] {
                self.act(act);
            }
            let read = Some(self.server.end() + 1);
            let all_read = self.readers.values().all(|reader| reader.next == read);
            if self.online && self.owed.is_empty() && all_read {
                return;
            }
        }
        panic!("the world does not calm down");
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Publish(u64),
    SomebodyPublishes,
    Connected,
    ServerHears,
    ServerDelivers,
    ClientHears,
    ClientHearsAck(usize),
    HandOver,
    Lose(usize),
    Drain(u64),
    Pass(u64),
    Subscribe(Origin),
    Unsubscribe,
    StrayAck(u64),
    Stop(u64),
    GetRefused,
}

fn act() -> impl Strategy<Value = Act> {
    let origin = proptest::sample::select(vec![Origin::Fixed, Origin::Now]);
    prop_oneof![
        6 => (0_u64..60).prop_map(Act::Publish),
        1 => (0_u64..250).prop_map(Act::Publish),
        2 => Just(Act::SomebodyPublishes),
        6 => Just(Act::Connected),
        8 => Just(Act::ServerHears),
        3 => Just(Act::ServerDelivers),
        8 => Just(Act::ClientHears),
        3 => any::<usize>().prop_map(Act::ClientHearsAck),
        3 => Just(Act::HandOver),
        2 => (0_usize..9).prop_map(Act::Lose),
        1 => (0_u64..90).prop_map(Act::Drain),
        6 => (0_u64..90).prop_map(Act::Pass),
        2 => origin.prop_map(Act::Subscribe),
        1 => Just(Act::Unsubscribe),
        1 => (0_u64..20).prop_map(Act::StrayAck),
    ]
}

fn end() -> impl Strategy<Value = Act> {
    prop_oneof![4 => (0_u64..2_000).prop_map(Act::Stop), 1 => Just(Act::GetRefused)]
}

proptest! {
    /// Over lines that lose anything at any time, what is published is never doubled and
    /// keeps its order; and once the line is good, all of it is acked, and every
    /// subscription has got everything once.
    #[test]
    fn nothing_is_doubled_or_lost_over_bad_lines(
        seed in any::<u64>(),
        acts in proptest::collection::vec(act(), 1..120),
    ) {
        let mut world = World::new(seed);
        for act in acts {
            world.act(act);
        }
        world.calm();
        prop_assert!(world.online && world.owed.is_empty());
        prop_assert_eq!(world.server.mine().len(), world.acked.len());
        let end = world.server.end();
        for reader in world.readers.values() {
            prop_assert_eq!(reader.next, Some(end + 1));
        }
    }

    /// A link that ends, by stopping or by giving up, has acked or reported all it took.
    #[test]
    fn what_is_not_acked_at_the_end_is_reported(
        seed in any::<u64>(),
        before in proptest::collection::vec(act(), 1..80),
        end in end(),
        after in proptest::collection::vec(act(), 1..40),
    ) {
        let mut world = World::new(seed);
        before.into_iter().for_each(|act| world.act(act));
        world.act(end);
        after.into_iter().for_each(|act| world.act(act));
        world.calm();
        if matches!(end, Act::Stop(_)) {
            prop_assert!(world.reported.is_some(), "a stop ends by its deadline");
        }
        if world.reported.is_some() {
            prop_assert_eq!(world.link.status(), Status::Ended);
            prop_assert_eq!(world.link.deadline(), None);
        }
        let happened: BTreeSet<_> = world.server.known.iter().copied().collect();
        let told: BTreeSet<_> = world.acked.iter().chain(world.owed.keys()).copied().collect();
        prop_assert!(world.acked.is_subset(&happened), "what is acked has happened");
        prop_assert!(happened.is_subset(&told), "what has happened is acked or reported");
    }

    /// Any inputs in any order: the link stays within its rules and never panics.
    #[test]
    fn no_order_of_news_breaks_a_link(
        inputs in proptest::collection::vec((0_u64..120, input()), 1..80),
    ) {
        let mut link = link();
        let (mut now, mut online, mut ended) = (0, false, false);
        for (passed, input) in inputs {
            now += passed;
            for effect in step(&mut link, now, input) {
                match effect {
                    Effect::Online { .. } => prop_assert!(!core::mem::replace(&mut online, true)),
                    Effect::Offline => prop_assert!(core::mem::replace(&mut online, false)),
                    Effect::Send { .. } | Effect::Subscribe { .. } | Effect::Unsubscribe { .. } => {
                        prop_assert!(online);
                    }
                    Effect::GaveUp { .. } | Effect::Stopped { .. } => {
                        prop_assert!(!online && !core::mem::replace(&mut ended, true));
                    }
                    _ => {}
                }
            }
            if let Some(deadline) = link.deadline().filter(|_| matches!(input, Input::Tick)) {
                prop_assert!(deadline > Timestamp(now), "a tick does what is due");
            }
        }
    }
}

fn input() -> impl Strategy<Value = Input> {
    let id = || (1_u64..4).prop_map(SubscriptionId);
    let millis = || (0_u64..300).prop_map(Duration::from_millis);
    let any_token = || (0_u64..9).prop_map(token);
    let failures =
        vec![Failure::Unreachable, Failure::Busy, Failure::Unreachable, Failure::VersionMismatch];
    let origin = proptest::sample::select(vec![Origin::Fixed, Origin::Now]);
    prop_oneof![
        4 => Just(Input::Start),
        6 => Just(Input::Connected),
        6 => (1_u64..3).prop_map(|epoch| Input::Welcomed { epoch: Epoch(epoch) }),
        1 => proptest::sample::select(failures).prop_map(|why| Input::Failed { why }),
        2 => Just(Input::Lost),
        2 => millis().prop_map(|grace| Input::Drain { grace }),
        6 => Just(Input::Tick),
        1 => millis().prop_map(|grace| Input::Stop { grace }),
        6 => (0_u64..80).prop_map(|bytes| Input::Publish { bytes }),
        4 => (0_u64..20).prop_map(|number| Input::Acked { number: PublishNumber(number) }),
        3 => (id(), origin).prop_map(|(id, origin)| Input::Subscribe { id, origin }),
        2 => id().prop_map(|id| Input::Unsubscribe { id }),
        2 => (id(), any_token()).prop_map(|(id, token)| Input::Subscribed { id, token }),
        2 => (id(), any_token()).prop_map(|(id, token)| Input::Progress { id, token }),
        1 => id().prop_map(|id| Input::Ended { id }),
    ]
}
