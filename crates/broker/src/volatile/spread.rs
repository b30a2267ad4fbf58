//! The seam between a broker and the cluster it is in.
//!
//! A broker tells the cluster what its subscribers follow, and hands it what is published to
//! volatile subjects before its own subscribers get it: a publish that the cluster refuses is
//! delivered to none. The cluster hands the broker what other nodes sent. What is sent where, held
//! and repeated is the cluster's; a broker in no cluster pays one branch for all of this.
//!
//! Locks: a volatile topic's lock is held while the cluster takes its messages, so that all nodes
//! see them in the order of their seqs. The cluster in turn calls the broker with none of the locks
//! held that its own methods take.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapless_core::cluster::{
    Admitted, Named, NodeName, Policy, Sender, SubscriberResult, TopicsCounted,
};
use gapless_core::{
    Pattern, PublishOptions, Records, RejectReason, TopicDefaults, TopicName, resolve,
};

use crate::broker::{Broker, Inner};
use crate::read::subscription::Shared;
use crate::topic::live_topic::lock;
use crate::volatile::report::{Receipt, Report};
use crate::volatile::router::Mail;

/// What nodes have not seen when the wait was over.
pub type Unseen = Vec<NodeName>;

/// A cluster as its broker sees it.
pub trait Spread: Send + Sync + 'static {
    /// The name of this node.
    fn node(&self) -> NodeName;

    /// How long a subscriber may take for its part of a report.
    fn subscriber_timeout(&self) -> Duration;

    /// A subscription of this node began; once for each, so a pattern may come again. Returns the
    /// version of this node's interest that has it.
    fn subscribed(&self, pattern: &Pattern) -> u64;

    /// A subscription of this node ended.
    fn unsubscribed(&self, pattern: &Pattern);

    /// A session of a named subscription begins here; its mailbox is there. Numbers of sessions are
    /// not used twice.
    ///
    /// # Errors
    /// Says why not; nothing was changed.
    fn subscribed_named(&self, named: &Named, session: u64) -> Result<u64, NamedRefused>;

    /// A session ended with its connection: what it has not taken is to be held. One that the
    /// cluster ended itself is passed over.
    fn away(&self, session: u64);

    /// A session ended for good: nothing is to be held.
    fn unsubscribed_named(&self, session: u64);

    /// A session took all that a sender numbered up to `upto`, but what was lost since the last
    /// call, because too much waited.
    fn taken(&self, session: u64, from: &Sender, upto: u64, lost: &[(TopicName, u64)]);

    /// What became of a delivery whose sender wants a report; once for each, at the latest when
    /// [`Spread::subscriber_timeout`] is over.
    fn settled(&self, from: &Sender, number: u64, results: Vec<SubscriberResult>);

    /// Whether a message of this subject may concern other nodes or named subscriptions.
    fn wants(&self, subject: &TopicName) -> bool;

    /// Takes messages for all of them, or for none.
    ///
    /// # Errors
    /// `QueueFull` or `PartitionDrop`: nothing was sent.
    fn publish(
        &self,
        subject: &TopicName,
        records: &Records,
        policy: Policy,
        report: Option<u64>,
    ) -> Result<Admitted, RejectReason>;

    /// How the cluster is, for people and programs that look.
    fn status(&self) -> serde_json::Value;

    /// What was counted of single topics.
    fn topics_counted(&self) -> TopicsCounted {
        TopicsCounted::default()
    }

    /// Begins to leave the cluster: what waits is sent first. Returns at once.
    fn leave(&self);

    /// The same for the node of this name.
    ///
    /// # Errors
    /// Says why it cannot be told so from here.
    fn leave_node(&self, node: &str) -> Result<(), String> {
        if node != self.node().as_str() {
            return Err(format!("this is node {}: ask node {node} itself", self.node()));
        }
        self.leave();
        Ok(())
    }

    /// Resolves when every known node has seen this version of this node's interest, or with those
    /// that have not when the wait is over.
    fn await_visible(
        &self,
        version: u64,
        wait: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<(), Unseen>> + Send>>;
}

/// Why the cluster did not take a named subscription.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NamedRefused(pub String);

/// That a broker is in a cluster already. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker is in a cluster already: a broker joins one at most")]
pub struct SpreadIsSet;

/// What a cluster delivers to subscribers of this node.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Where it was published.
    pub subject: &'a TopicName,
    /// The messages.
    pub records: &'a Records,
    /// How long they were held on their way: times to live count from their publish on.
    pub age: Duration,
    /// Whether they are for all subscribers without a name that match.
    pub anonymous: bool,
    /// The sessions of named subscriptions that they are for.
    pub sessions: &'a [u64],
    /// Whether the sender is to learn what became of them.
    pub report: bool,
}

impl Broker {
    /// Joins a cluster, which learns what is followed already.
    ///
    /// # Errors
    /// When the broker is in one.
    pub fn set_spread(&self, spread: Arc<dyn Spread>) -> Result<(), SpreadIsSet> {
        self.inner.spread.set(spread).map_err(|_| SpreadIsSet)?;
        let all: Vec<_> = lock(&self.inner.subscribers).values().map(Arc::clone).collect();
        all.iter().for_each(|shared| self.inner.tell_followed(shared));
        Ok(())
    }

    /// The cluster it is in.
    pub fn spread(&self) -> Option<&Arc<dyn Spread>> {
        self.inner.spread.get()
    }

    /// Waits until all known nodes know what is followed on this one, or returns those that do not
    /// when the wait is over. Without a cluster there is nothing to wait for.
    ///
    /// # Errors
    /// The nodes that may still answer that nothing is followed here.
    pub async fn await_visible(&self, wait: Duration) -> Result<(), Unseen> {
        let Some(spread) = self.inner.spread.get() else { return Ok(()) };
        let version = self.inner.interest.load(Ordering::Acquire);
        spread.await_visible(version, wait).await
    }

    /// Delivers what another node, or this one for its named subscriptions, has sent. Calls must be
    /// in the order of the numbers of each sender; zero is not numbered. Sessions that are not here
    /// are passed over. Waits for no subscriber.
    pub fn deliver_spread(&self, from: &Sender, number: u64, incoming: &Incoming<'_>) {
        let inner = &self.inner;
        let Incoming { subject, records, age, .. } = *incoming;
        if incoming.anonymous {
            let report =
                incoming.report.then(|| inner.report_to(subject, (from, number))).flatten();
            inner.route_incoming(subject, (records, age), report.as_ref());
            report.into_iter().for_each(|report| report.seal(false));
        }
        if incoming.sessions.is_empty() {
            return;
        }
        let batch = inner.volatile_batch(records, age);
        // What overflows of a session is reported with what it takes next.
        let mut dropped = Vec::new();
        for mailbox in incoming.sessions.iter().filter_map(|session| inner.sessions.find(*session))
        {
            let receipt = Receipt::Numbered { from: from.clone(), number };
            let receipt = (number > 0).then(|| Box::new(receipt));
            let mail = Mail { subject: subject.clone(), batch: batch.clone(), receipt };
            let waker = mailbox.put(mail, &inner.limits, &mut dropped);
            waker.into_iter().for_each(std::task::Waker::wake);
        }
    }
}

impl Inner {
    /// Tells the cluster, if there is one, that something is followed; once for each subscription.
    pub(crate) fn tell_followed(&self, shared: &Shared) {
        let Some(spread) = self.spread.get().filter(|_| shared.spreads) else { return };
        let mut told = lock(&shared.told);
        // It may have ended while the cluster was joined.
        if *told == Told::Nothing {
            *told = Told::Followed;
            let version = spread.subscribed(&shared.pattern);
            self.interest.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Tells the cluster that it is not followed any more.
    pub(crate) fn tell_unfollowed(&self, shared: &Shared) {
        let mut told = lock(&shared.told);
        let before = std::mem::replace(&mut *told, Told::Unfollowed);
        if before == Told::Followed
            && let Some(spread) = self.spread.get()
        {
            spread.unsubscribed(&shared.pattern);
        }
    }

    /// The cluster, if this subject may concern it.
    pub(crate) fn beyond(&self, subject: &TopicName) -> Option<&Arc<dyn Spread>> {
        self.spread.get().filter(|spread| spread.wants(subject))
    }

    /// Hands a publish to the cluster, if it may concern it; returns what it is for there.
    pub(crate) fn admit(
        &self,
        (subject, records): (&TopicName, &Records),
        options: &PublishOptions,
        topic: &TopicDefaults,
        report: Option<&Arc<Report>>,
    ) -> Result<Option<Admitted>, RejectReason> {
        let Some(spread) = self.beyond(subject) else { return Ok(None) };
        let resolved = resolve(options, topic, &self.defaults);
        let policy = Policy { delivery: resolved.delivery, partition: resolved.partition };
        spread.publish(subject, records, policy, report.map(|report| report.id())).map(Some)
    }
}

/// What the cluster knows of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    #[default]
    Nothing,
    Followed,
    Unfollowed,
}
