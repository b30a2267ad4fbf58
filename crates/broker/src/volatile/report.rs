//! Delivery reports: who took a publish, and who did not (A8).
//!
//! A report has a part for each subscriber that the publish is for. A part is settled once: the
//! subscriber took the message, was gone before, its mailbox overflowed, or its time is over. The
//! timers thread looks at the time, so a slow subscriber holds up nothing but its own part. Parts
//! are settled when no lock of the broker is held, since the last one calls the cluster.
//!
//! Messages and mailboxes are not here.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gapless_core::cluster::{
    DeliveryReport, DeliveryStatus, NodeName, Sender, SubscriberName, SubscriberResult,
};
use gapless_core::{RejectReason, Seq, Timestamp, TopicName};
use serde_json::{Value, json};

use crate::broker::{Broker, Inner};
use crate::topic::live_topic::lock;
use crate::volatile::named::Lost;
use crate::volatile::spread::Spread;

/// How long a subscriber may take for its part of a report on a server that is in no cluster.
const SUBSCRIBER_TIMEOUT: Duration = Duration::from_secs(3);

/// Who is to learn that a mail was taken.
#[derive(Debug)]
pub(crate) enum Receipt {
    /// A report.
    Ticket(Ticket),
    /// The sender that numbered it for a named subscription.
    Numbered { from: Sender, number: u64 },
}

impl Receipt {
    pub(crate) fn ticket(report: &Arc<Report>, subscriber: u64) -> Box<Self> {
        report.add(subscriber);
        Box::new(Self::Ticket(Ticket { report: Arc::clone(report), subscriber, settled: false }))
    }

    /// The loss of a mail that its sender numbered.
    pub(crate) fn numbered(&self) -> Option<Lost> {
        match self {
            Self::Numbered { from, number } => Some(Lost::new(from.clone(), *number)),
            Self::Ticket(_) => None,
        }
    }

    /// The mailbox was full.
    pub(crate) fn overflowed(self) {
        if let Self::Ticket(ticket) = self {
            ticket.settle(DeliveryStatus::OtherError);
        }
    }
}

/// A subscriber's part of a report. Dropped, it says that the subscriber is gone.
#[derive(Debug)]
pub(crate) struct Ticket {
    report: Arc<Report>,
    subscriber: u64,
    settled: bool,
}

impl Ticket {
    pub(crate) fn settle(mut self, status: DeliveryStatus) {
        self.settled = true;
        self.report.settle(self.subscriber, status);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.settled {
            self.report.settle(self.subscriber, DeliveryStatus::SubscriberUnreachable);
        }
    }
}

/// A publish whose subscribers are waited for.
pub(crate) struct Report {
    id: u64,
    topic: TopicName,
    node: Option<NodeName>,
    /// Who gets it, if that is not the publisher on this node.
    to: Option<(Arc<dyn Spread>, Sender, u64)>,
    table: Weak<Reports>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When its time is over, for the subscribers or, after that, for the cluster.
    deadline: Timestamp,
    pending: BTreeSet<u64>,
    results: DeliveryReport,
    /// All that became of it, one by one; for another node.
    each: Vec<SubscriberResult>,
    /// Everyone that it is for has a part.
    sealed: bool,
    /// The publish was refused after all.
    refused: bool,
    /// Whether the cluster's part is still to come.
    awaits_cluster: bool,
    cluster_answered: bool,
    /// Whether the time of the subscribers is over and only the cluster is waited for.
    extended: bool,
    done: bool,
    waker: Option<Waker>,
}

impl std::fmt::Debug for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "report {}", self.id)
    }
}

impl Report {
    /// Its number, by which the cluster knows it.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn add(&self, subscriber: u64) {
        lock(&self.state).pending.insert(subscriber);
    }

    fn settle(&self, subscriber: u64, status: DeliveryStatus) {
        let mut state = lock(&self.state);
        if state.pending.remove(&subscriber) {
            self.note(&mut state, subscriber, status);
        }
        self.look(state);
    }

    fn note(&self, state: &mut State, number: u64, status: DeliveryStatus) {
        let subscriber = SubscriberName::Handle { node: self.node.clone(), number };
        match &self.to {
            None => state.results.add(subscriber, status),
            Some(_) => state.each.push(SubscriberResult { subscriber, status }),
        }
    }

    /// Everyone that it is for has a part, and whether the cluster has one.
    pub(crate) fn seal(&self, awaits_cluster: bool) {
        let mut state = lock(&self.state);
        state.sealed = true;
        // It may have come already.
        state.awaits_cluster = awaits_cluster && !state.cluster_answered;
        self.look(state);
    }

    /// The publish was refused: there is nothing to report.
    pub(crate) fn refuse(&self) {
        let mut state = lock(&self.state);
        (state.sealed, state.refused) = (true, true);
        self.look(state);
    }

    /// Ends it if nothing is left to wait for.
    fn look(&self, mut state: std::sync::MutexGuard<'_, State>) {
        if state.done || !state.sealed || !state.pending.is_empty() || state.awaits_cluster {
            return;
        }
        state.done = true;
        let is_told = self.to.is_none() && !state.refused;
        let told = is_told.then(|| told(&self.topic, &state.results));
        let (waker, each) = (state.waker.take(), std::mem::take(&mut state.each));
        let key = (state.deadline, self.id);
        drop(state);
        if let Some(table) = self.table.upgrade() {
            let mut open = lock(&table.open);
            open.by_id.remove(&self.id);
            open.due.remove(&key);
            drop(open);
            if let (Some((kind, fields)), Some(inner)) = (told, table.home()) {
                inner.emit(kind, &fields);
            }
        }
        waker.into_iter().for_each(Waker::wake);
        if let Some((spread, from, number)) = &self.to {
            spread.settled(from, *number, each);
        }
    }

    /// Its time is over. Returns until when it waits for the cluster.
    fn expire(&self, cluster_wait: Duration) -> Option<Timestamp> {
        let mut state = lock(&self.state);
        for subscriber in std::mem::take(&mut state.pending) {
            self.note(&mut state, subscriber, DeliveryStatus::Timeout);
        }
        if state.awaits_cluster && !std::mem::replace(&mut state.extended, true) {
            state.deadline = state.deadline.after(cluster_wait);
            return Some(state.deadline);
        }
        // The cluster always answers; but it may have been left meanwhile.
        if std::mem::take(&mut state.awaits_cluster)
            && let Some(node) = &self.node
        {
            state.results.add(SubscriberName::Node(node.clone()), DeliveryStatus::OtherError);
        }
        state.sealed = true;
        self.look(state);
        None
    }
}

/// The report of a publish, once it is known: at the latest when the time of the slowest
/// subscriber is over.
#[must_use = "await it to learn who took the message"]
pub struct Reporting(Arc<Report>);

impl Reporting {
    /// The report of a publish that was taken.
    pub(crate) fn sealed(report: Arc<Report>, awaits_cluster: bool) -> Self {
        report.seal(awaits_cluster);
        Self(report)
    }
}

impl Future for Reporting {
    type Output = DeliveryReport;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<DeliveryReport> {
        let mut state = lock(&self.0.state);
        if state.done {
            return Poll::Ready(std::mem::take(&mut state.results));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Reports that are not complete.
#[derive(Default)]
pub(crate) struct Reports {
    open: Mutex<Open>,
    last_id: AtomicU64,
    /// Parts of followers of volatile topics, which have no mailbox: by the follower and the seq
    /// with which it has taken the publish.
    by_seq: Mutex<BTreeMap<(u64, Seq), Ticket>>,
    by_seq_count: AtomicUsize,
    /// Where events are published.
    home: OnceLock<Weak<Inner>>,
}

/// The event that tells what became of a publish.
fn told(topic: &TopicName, report: &DeliveryReport) -> (&'static str, [(&'static str, Value); 3]) {
    let failed = report.failed.len() as u64 + u64::from(report.unnamed);
    let kind = if failed == 0 { "delivery.done" } else { "delivery.failed" };
    let mut reasons = BTreeMap::<&str, u64>::new();
    for result in &report.failed {
        *reasons.entry(result.status.name()).or_default() += 1;
    }
    let topic = ("topic", topic.as_str().into());
    (kind, [topic, ("delivered", report.delivered.into()), ("failed", json!(reasons))])
}

#[derive(Default)]
struct Open {
    by_id: BTreeMap<u64, Arc<Report>>,
    /// Until when each of them waits.
    due: BTreeSet<(Timestamp, u64)>,
}

impl Reports {
    /// Says where events are published; once.
    pub(crate) fn set_home(&self, inner: &Arc<Inner>) {
        let _ = self.home.set(Arc::downgrade(inner));
    }

    fn home(&self) -> Option<Arc<Inner>> {
        self.home.get()?.upgrade()
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        lock(&self.open).due.first().map(|(deadline, _)| *deadline)
    }

    /// A follower of a topic was handed everything up to a seq, or a gap instead of it.
    pub(crate) fn followed(&self, subscriber: u64, to: Seq, status: DeliveryStatus) {
        self.take_by_seq((subscriber, Seq(0)), (subscriber, to), |ticket| ticket.settle(status));
    }

    /// A follower of a topic is gone.
    pub(crate) fn unfollowed(&self, subscriber: u64) {
        self.take_by_seq((subscriber, Seq(0)), (subscriber, Seq(u64::MAX)), drop);
    }

    fn take_by_seq(&self, from: (u64, Seq), to: (u64, Seq), each: impl FnMut(Ticket)) {
        if self.by_seq_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut by_seq = lock(&self.by_seq);
        let keys: Vec<_> = by_seq.range(from..=to).map(|(key, _)| *key).collect();
        let taken: Vec<_> = keys.iter().filter_map(|key| by_seq.remove(key)).collect();
        self.by_seq_count.store(by_seq.len(), Ordering::Relaxed);
        drop(by_seq);
        taken.into_iter().for_each(each);
    }
}

impl Inner {
    /// Begins a report of a publish on this node, if there may be one more.
    pub(crate) fn report(&self, topic: &TopicName) -> Result<Arc<Report>, RejectReason> {
        self.open_report(topic, None).ok_or(RejectReason::QueueFull)
    }

    /// The same for what came from a node; that node is answered even if there are too many.
    pub(crate) fn report_to(
        &self,
        topic: &TopicName,
        (from, number): (&Sender, u64),
    ) -> Option<Arc<Report>> {
        let spread = self.spread.get()?;
        let report = self.open_report(topic, Some((Arc::clone(spread), from.clone(), number)));
        if report.is_none() {
            let subscriber = SubscriberName::Node(spread.node());
            let status = DeliveryStatus::OtherError;
            spread.settled(from, number, vec![SubscriberResult { subscriber, status }]);
        }
        report
    }

    fn subscriber_timeout(&self) -> Duration {
        self.spread.get().map_or(SUBSCRIBER_TIMEOUT, |spread| spread.subscriber_timeout())
    }

    fn open_report(
        &self,
        topic: &TopicName,
        to: Option<(Arc<dyn Spread>, Sender, u64)>,
    ) -> Option<Arc<Report>> {
        let deadline = self.clock.now().after(self.subscriber_timeout());
        let id = self.reports.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let node = self.spread.get().map(|spread| spread.node());
        let table = Arc::downgrade(&self.reports);
        let state = Mutex::new(State { deadline, ..State::default() });
        let report = Arc::new(Report { id, topic: topic.clone(), node, to, table, state });
        let mut open = lock(&self.reports.open);
        if open.by_id.len() >= self.limits.reports_max {
            return None;
        }
        open.by_id.insert(id, Arc::clone(&report));
        open.due.insert((deadline, id));
        Some(report)
    }

    /// Gives a part to each subscriber that follows a volatile topic by its seqs.
    pub(crate) fn report_followers(&self, report: &Arc<Report>, topic: &TopicName, last: Seq) {
        let ids: Vec<u64> = lock(&self.subscribers)
            .values()
            .filter(|shared| shared.by_topic && shared.pattern.as_str() == topic.as_str())
            .map(|shared| shared.id)
            .collect();
        let mut by_seq = lock(&self.reports.by_seq);
        for id in ids {
            report.add(id);
            let ticket = Ticket { report: Arc::clone(report), subscriber: id, settled: false };
            by_seq.insert((id, last), ticket);
        }
        self.reports.by_seq_count.store(by_seq.len(), Ordering::Relaxed);
    }

    /// Ends the waiting of those whose time is over.
    pub(crate) fn expire_reports(&self, now: Timestamp) {
        loop {
            let mut open = lock(&self.reports.open);
            let Some(due) = open.due.first().copied().filter(|(deadline, _)| *deadline <= now)
            else {
                return;
            };
            open.due.remove(&due);
            let Some(report) = open.by_id.get(&due.1).map(Arc::clone) else { continue };
            drop(open);
            if let Some(until) = report.expire(self.subscriber_timeout() * 2) {
                lock(&self.reports.open).due.insert((until, report.id));
            }
        }
    }
}

impl Broker {
    /// How many reports wait for a subscriber or the cluster.
    pub fn open_reports(&self) -> usize {
        let open: Vec<_> = lock(&self.inner.reports.open).by_id.values().map(Arc::clone).collect();
        // One that is not sealed has not found its subscribers yet.
        open.iter().filter(|report| lock(&report.state).sealed).count()
    }

    /// The cluster's part of a report: what became of the publish on other nodes and for named
    /// subscriptions.
    pub fn reported(&self, report: u64, results: DeliveryReport) {
        let report = lock(&self.inner.reports.open).by_id.get(&report).map(Arc::clone);
        let Some(report) = report else { return };
        let mut state = lock(&report.state);
        state.results.merge(results);
        state.cluster_answered = true;
        state.awaits_cluster = false;
        report.look(state);
    }
}
