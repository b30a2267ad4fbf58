//! Runs the machine that decides who owns the journal: gives it what is seen, does what it says.
//!
//! One task does all of it. What takes long (looking at the store, opening, closing, confirming)
//! runs beside it, at most one of each kind, and comes back as an outcome.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gapless_broker::BrokerOptions;
use gapless_cluster::PeerNode;
use gapless_core::Timestamp;
use gapless_core::cluster::{Incarnation, NodeName};
use gapless_core::owner::{Act, Owner, OwnerConfig, Route, Sign, Stage};
use gapless_engine::{Store, Watch};
use gapless_server::forward::Target;
use gapless_server::native::NativeOptions;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::turn::{NotServed, Parts, Turn};
use super::view::{self, Figures, Heard, Leave, View};
use super::{Fronts, clock};
use crate::config::Config;
use crate::engine::Place;
use crate::exit::Failure;
use crate::output::Output;
use crate::remote::Interrupt;

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How often figures of the journal are said and shown.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a preferred node must be linked before it is given the journal.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a node with others to join waits for links.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long a node whose opening failed leaves it to others.
const REST: Duration = Duration::from_secs(5);

/// See the head of the file.
pub(super) struct Control {
    machine: Owner,
    me: (NodeName, Incarnation),
    parts: Parts,
    place: Place,
    began: Instant,
    turn: Option<Turn>,
    figures: Figures,
    confirmed: Instant,
    watch: Option<Watch>,
    working: JoinSet<Outcome>,
    confirming: bool,
    confirm_at: Instant,
    told_at: Option<Instant>,
    route: Route,
    leaving: bool,
    leave: Arc<Mutex<Leave>>,
    asked: Arc<Notify>,
}

/// What came of something that took long.
enum Outcome {
    Looked(Box<Watch>, Option<Sign>),
    Opened(Box<Result<Turn, NotServed>>),
    Closed,
    Confirmed { fenced: bool, confirmed: bool },
}

impl Control {
    pub(super) fn new(
        (config, place): (&Config, &Place),
        store: Store,
        (options, native): (BrokerOptions, NativeOptions),
        fronts: &Fronts,
        asked: Arc<Notify>,
    ) -> Self {
        let (beat, takeover) = place.spans();
        let alone = config.text("cluster.join").is_empty();
        let first_wait = if alone { Duration::ZERO } else { FIRST_WAIT };
        let rules = OwnerConfig { beat, takeover, settle: SETTLE, first_wait, rest: REST };
        let began = clock::now();
        let me = (fronts.cluster.node().clone(), fronts.cluster.status().incarnation);
        let leave = Arc::<Mutex<Leave>>::default();
        let view = Arc::new(View::new(&fronts.cluster, &asked, &leave));
        let watch = Some(store.watch(0));
        let config = config.clone();
        describe();
        Self {
            machine: Owner::new(rules, me.0.clone(), 0, Timestamp(0)),
            me,
            parts: Parts { config, store, options, native, view },
            place: place.clone(),
            began,
            turn: None,
            figures: Figures::default(),
            confirmed: began,
            watch,
            working: JoinSet::new(),
            confirming: false,
            confirm_at: began,
            told_at: None,
            route: Route::Nowhere,
            leaving: false,
            leave,
            asked,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Runs until the node is told to stop, and owns nothing any more.
    pub(super) async fn run(mut self, fronts: &Fronts, out: &mut Output) -> Result<(), Failure> {
        let mut interrupt = Interrupt::listen()?;
        let (mut changes, asked) = (fronts.cluster.changes(), Arc::clone(&self.asked));
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ready = false;
        loop {
            let others = self.look_around(fronts);
            self.act(fronts);
            self.tell(fronts, &others, out).await?;
            if !ready && fronts.routes.is_known() {
                ready = true;
                fronts.tell_ready(self.place.url(), out)?;
            }
            if self.leaving && self.machine.stage() == Stage::Away && self.turn.is_none() {
                return Ok(());
            }
            tokio::select! {
                _ = tick.tick() => {}
                // The cluster lives as long as this does.
                _ = changes.changed() => {}
                Some(outcome) = self.working.join_next() => self.came(outcome?, fronts).await,
                () = interrupt.came(), if !self.leaving => self.begin_to_leave("it was told to stop"),
                () = asked.notified(), if !self.leaving => self.begin_to_leave("it was asked to leave"),
            }
        }
    }

    fn begin_to_leave(&mut self, why: &str) {
        tracing::info!(why, "stopping: what this node owns is given to another");
        self.leaving = true;
        self.machine.leave();
    }

    /// Gives the machine what is seen of other nodes.
    fn look_around(&mut self, fronts: &Fronts) -> Vec<(PeerNode, Heard)> {
        let heard = |peer: PeerNode| {
            let heard = view::decode(&peer.note);
            (peer, heard)
        };
        let others: Vec<_> = fronts.cluster.linked_nodes().into_iter().map(heard).collect();
        let seen = others
            .iter()
            .map(|(peer, heard)| (peer.node.clone(), peer.incarnation, heard.note.clone()));
        self.machine.seen(self.now(), seen.collect());
        if !self.leaving && view::is_asked_to_leave(&others, (&self.me.0, self.me.1)) {
            self.begin_to_leave("it was asked to leave at another node");
        }
        others
    }

    /// Does what the machine says, and what is due.
    fn act(&mut self, fronts: &Fronts) {
        if self.turn.as_ref().is_some_and(|turn| turn.broker.is_fenced()) {
            self.step_down(fronts);
        }
        match self.machine.step(self.now()) {
            Some(Act::Look) => self.look(),
            Some(Act::Open) => {
                tracing::info!("no other node owns the journal: taking it over");
                let parts = self.parts.clone();
                self.working
                    .spawn(async move { Outcome::Opened(Box::new(Turn::open(parts).await)) });
            }
            Some(Act::Confirm) => self.confirm_at = clock::now(),
            Some(Act::Close { to }) => self.hand_over(to.as_ref(), fronts),
            None => {}
        }
        if self.machine.stage() == Stage::Serving
            && !self.confirming
            && self.confirm_at <= clock::now()
        {
            self.confirm();
        }
    }

    fn look(&mut self) {
        let Some(mut watch) = self.watch.take() else { return };
        self.working.spawn_blocking(move || {
            let sign = match watch.look() {
                Ok(_) if !watch.has_owner() => Some(Sign::Unowned),
                Ok(true) => Some(Sign::Alive),
                Ok(false) if watch.is_released() => Some(Sign::Released),
                Ok(false) => Some(Sign::Silent),
                Err(error) => {
                    tracing::warn!(%error, "this node cannot see the store");
                    None
                }
            };
            Outcome::Looked(Box::new(watch), sign)
        });
    }

    /// Asks the store whether this node is the owner, and shows that it lives.
    fn confirm(&mut self) {
        let Some(turn) = &self.turn else { return };
        self.confirming = true;
        let (beat, _) = self.place.spans();
        self.confirm_at = clock::now() + beat;
        let (broker, store, me) =
            (turn.broker.clone(), self.parts.store.clone(), self.me.0.to_string());
        self.working.spawn_blocking(move || {
            // First, so that one that was replaced does not look alive.
            let confirmed = broker.confirm_owner().is_ok();
            if confirmed && let Err(error) = store.beat(0, &me) {
                tracing::debug!(%error, "a beat was not written");
            }
            Outcome::Confirmed { fenced: broker.is_fenced(), confirmed }
        });
    }

    async fn came(&mut self, outcome: Outcome, fronts: &Fronts) {
        let now = self.now();
        match outcome {
            Outcome::Looked(watch, sign) => {
                self.watch = Some(*watch);
                self.machine.looked(now, sign);
            }
            Outcome::Opened(opened) => self.opened(*opened, fronts).await,
            Outcome::Closed => self.machine.closed(),
            Outcome::Confirmed { fenced, confirmed } => {
                self.confirming = false;
                if confirmed && self.turn.is_some() {
                    self.confirmed = clock::now();
                    self.machine.confirmed(now);
                }
                if fenced {
                    self.step_down(fronts);
                }
            }
        }
    }

    async fn opened(&mut self, opened: Result<Turn, NotServed>, fronts: &Fronts) {
        let now = self.now();
        let turn = match opened {
            Ok(turn) => turn,
            Err(NotServed::Faster) => {
                tracing::info!("another node was faster");
                return self.machine.not_opened(now, true);
            }
            Err(NotServed::Failed(failure)) => {
                let why = failure.message;
                tracing::error!(why, "the journal cannot be taken over; another node may");
                return self.machine.not_opened(now, false);
            }
        };
        let (term, found) = (turn.broker.term(), turn.broker.opened());
        self.figures = Figures {
            opening_ms: u64::try_from(turn.opening.as_millis()).unwrap_or(u64::MAX),
            replayed_frames: found.frames_replayed,
            ..Figures::default()
        };
        if let Some(http) = &fronts.http {
            turn.serve_http(&mut *http.lock().await);
        }
        let opening_ms = self.figures.opening_ms;
        tracing::info!(term, opening_ms, "this node owns the journal");
        let node = self.me.0.as_str();
        let fields = [
            ("journal", json!(0)),
            ("node", json!(node)),
            ("term", json!(term)),
            ("opening_ms", json!(opening_ms)),
        ];
        turn.broker.emit_event("journal.taken-over", &fields);
        metrics::counter!("gapless_journal_takeovers_total").increment(1);
        metrics::gauge!("gapless_journal_opening_seconds").set(turn.opening.as_secs_f64());
        self.machine.opened(now, term);
        self.turn = Some(turn);
        (self.confirmed, self.confirm_at) = (clock::now(), clock::now());
    }

    /// Another node owns the journal.
    fn step_down(&mut self, fronts: &Fronts) {
        if self.machine.stage() != Stage::Serving {
            return;
        }
        tracing::warn!("another node owns the journal now: this one forwards to it");
        self.machine.fenced();
        self.end_turn(("fenced", None), fronts);
    }

    fn hand_over(&mut self, to: Option<&NodeName>, fronts: &Fronts) {
        let to = to.map(|node| node.as_str());
        tracing::info!(to, "the journal is given to another node");
        self.end_turn((if self.leaving { "leaves" } else { "preferred" }, to), fronts);
    }

    fn end_turn(&mut self, (why, to): (&'static str, Option<&str>), fronts: &Fronts) {
        let Some(turn) = self.turn.take() else {
            // Nothing is open.
            return self.machine.closed();
        };
        // First: from now on no connection comes to what ends.
        self.set_route(fronts);
        let fields = [
            ("journal", json!(0)),
            ("node", json!(self.me.0.as_str())),
            ("term", json!(turn.broker.term())),
            ("why", json!(why)),
            ("to", json!(to)),
        ];
        turn.broker.emit_event("journal.stepped-down", &fields);
        metrics::counter!("gapless_journal_stepdowns_total", "why" => why).increment(1);
        let (http, store) = (fronts.http.clone(), self.parts.store.clone());
        let me = self.me.0.to_string();
        self.working.spawn(async move {
            let began = clock::now();
            let whole = turn.close(http, (store, me)).await;
            tracing::info!(whole, took = ?began.elapsed(), "the journal is closed");
            Outcome::Closed
        });
    }

    /// Sends connections where the machine says.
    fn set_route(&mut self, fronts: &Fronts) -> bool {
        let route = match self.machine.route() {
            // It counts once its listener is there.
            Route::Here if self.turn.is_none() => Route::Nowhere,
            route => route,
        };
        if route == self.route {
            return false;
        }
        fronts.routes.set(match (&route, &self.turn) {
            (Route::Here, Some(turn)) => Target::Here(turn.gate()),
            (Route::There { node, .. }, _) => Target::There(node.to_string()),
            _ => Target::Nowhere,
        });
        self.route = route;
        true
    }

    /// Tells other nodes, listeners and people how it stands.
    async fn tell(
        &mut self,
        fronts: &Fronts,
        others: &[(PeerNode, Heard)],
        out: &mut Output,
    ) -> Result<(), Failure> {
        let changed = self.set_route(fronts);
        if changed {
            self.tell_route(out)?;
        }
        let due = self.told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY);
        if due {
            self.told_at = Some(clock::now());
            let waiting = self.turn.as_ref().map(|turn| turn.broker.journal_stats().waiting_bytes);
            self.figures.waiting_bytes = waiting.unwrap_or_default();
            let confirmed = self.turn.as_ref().map(|_| self.confirmed.elapsed().as_millis());
            self.figures.confirmed_ms =
                confirmed.map_or(0, |ms| u64::try_from(ms).unwrap_or(u64::MAX));
            self.measure();
        }
        let note = self.machine.note(self.now());
        let leave = self.leave.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The same words as before are not sent again.
        fronts.cluster.say(view::encode(&note, &self.figures, &leave));
        fronts.cluster.show_journals(view::journals((&self.me.0, &note, &self.figures), others));
        Ok(())
    }

    fn tell_route(&self, out: &mut Output) -> Result<(), Failure> {
        let (node, term) = match &self.route {
            Route::Here => {
                (json!(self.me.0.as_str()), self.turn.as_ref().map(|turn| turn.broker.term()))
            }
            Route::There { node, term, .. } => (json!(node.as_str()), Some(*term)),
            Route::Nowhere => (Value::Null, None),
        };
        tracing::info!(owner = %node, term, "requests go there");
        if out.json {
            out.json_line(&json!({ "event": "owner", "node": node, "term": term }))?;
            out.flush()?;
        }
        Ok(())
    }

    fn measure(&self) {
        let serving = self.turn.is_some();
        metrics::gauge!("gapless_journal_owned").set(if serving { 1.0 } else { 0.0 });
        let term = self.turn.as_ref().map_or(0, |turn| turn.broker.term());
        metrics::gauge!("gapless_journal_term").set(term as f64);
        metrics::gauge!("gapless_journal_waiting_bytes").set(self.figures.waiting_bytes as f64);
    }
}

/// Says what is measured, and shows all of it from the start.
fn describe() {
    use metrics::{counter, describe_counter, describe_gauge, gauge};
    describe_gauge!("gapless_journal_owned", "Whether this node owns the journal.");
    describe_gauge!("gapless_journal_term", "The term it owns it with; 0 if it does not.");
    describe_gauge!("gapless_journal_waiting_bytes", "Bytes that wait to be written to the store.");
    describe_gauge!("gapless_journal_opening_seconds", "How long the last take-over took.");
    describe_gauge!("gapless_forwarded_connections", "Connections passed on to the owner.");
    describe_counter!("gapless_journal_takeovers_total", "Times this node took the journal over.");
    describe_counter!("gapless_journal_stepdowns_total", "Times it ended serving it, by reason.");
    gauge!("gapless_journal_opening_seconds").set(0.0);
    gauge!("gapless_forwarded_connections").set(0.0);
    counter!("gapless_journal_takeovers_total").increment(0);
    for why in ["fenced", "preferred", "leaves"] {
        counter!("gapless_journal_stepdowns_total", "why" => why).increment(0);
    }
}
