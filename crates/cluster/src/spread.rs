//! The broker's hook: what a broker tells its cluster, given to the machine.
//!
//! The broker keeps the hook for as long as it lives; the hook does not keep the cluster, which keeps the
//! broker. A broker whose cluster is gone is on its own again.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use gapless_broker::{NamedRefused, Spread};
use gapless_core::cluster::{
    Admitted, Named, Node, NodeName, Policy, Sender, SubscriberResult, TopicsCounted,
};
use gapless_core::{Pattern, Records, RejectReason, TopicName};
use gapless_protocol::link::LINK_FRAME_BYTES_MAX;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::shell::Shell;
use crate::status;

/// Largest publish that is sent to other nodes: it must fit into a frame with all that is around it.
pub(crate) const PUBLISH_BYTES_MAX: usize = LINK_FRAME_BYTES_MAX / 2;

/// What the broker holds of its cluster.
pub(crate) struct Hook {
    pub(crate) shell: Weak<Shell>,
    pub(crate) node: NodeName,
    pub(crate) subscriber_timeout: Duration,
    /// Where leaving is waited for.
    /// Is told in place of leaving at once.
    pub(crate) asked_to_leave: Option<Arc<Notify>>,
    pub(crate) runtime: Handle,
}

/// How long a node that is told to leave waits until others have what it sent.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

impl Hook {
    fn shell(&self) -> Option<Arc<Shell>> {
        self.shell.upgrade()
    }
}

impl Spread for Hook {
    fn node(&self) -> NodeName {
        self.node.clone()
    }

    fn subscriber_timeout(&self) -> Duration {
        self.subscriber_timeout
    }

    fn subscribed(&self, pattern: &Pattern) -> u64 {
        self.shell().map_or(0, |shell| shell.with(|node, _, _| node.subscribe(pattern)))
    }

    fn unsubscribed(&self, pattern: &Pattern) {
        if let Some(shell) = self.shell() {
            shell.with(|node, _, _| node.unsubscribe(pattern));
        }
    }

    fn subscribed_named(&self, named: &Named, session: u64) -> Result<u64, NamedRefused> {
        let Some(shell) = self.shell() else {
            return Err(NamedRefused("this node has left its cluster".to_owned()));
        };
        let begun =
            shell.with(|node, now, effects| node.subscribe_named(now, named, session, effects));
        begun.map_err(|error| NamedRefused(error.to_string()))
    }

    fn away(&self, session: u64) {
        if let Some(shell) = self.shell() {
            shell.with(|node, now, effects| node.away(now, session, effects));
        }
    }

    fn unsubscribed_named(&self, session: u64) {
        if let Some(shell) = self.shell() {
            shell.with(|node, now, effects| node.unsubscribe_named(now, session, effects));
        }
    }

    fn taken(&self, session: u64, from: &Sender, upto: u64, lost: &[(TopicName, u64)]) {
        if let Some(shell) = self.shell() {
            shell.with(|node, now, _| node.taken(now, session, from, upto, lost));
        }
    }

    fn settled(&self, from: &Sender, number: u64, results: Vec<SubscriberResult>) {
        if let Some(shell) = self.shell() {
            shell.with(|node, _, _| node.settled(from, number, results));
        }
    }

    fn wants(&self, _: &TopicName) -> bool {
        // Which subjects others follow is looked up once, by the publish.
        self.shell().is_some_and(|shell| shell.has_targets())
    }

    fn publish(
        &self,
        subject: &TopicName,
        records: &Records,
        policy: Policy,
        report: Option<u64>,
    ) -> Result<Admitted, RejectReason> {
        let Some(shell) = self.shell() else { return Ok(Admitted::default()) };
        if records.bytes.len() > PUBLISH_BYTES_MAX && shell.look(|node| node.wants(subject)) {
            let (bytes, max) = (records.bytes.len() as u64, PUBLISH_BYTES_MAX as u64);
            return Err(RejectReason::TooLarge { bytes, max });
        }
        shell
            .with(|node, now, effects| node.publish(now, subject, records, policy, report, effects))
    }

    fn status(&self) -> Value {
        self.shell().map_or(Value::Null, |shell| status::of(&shell))
    }

    fn topics_counted(&self) -> TopicsCounted {
        self.shell().map_or_else(TopicsCounted::default, |shell| shell.look(Node::topics_counted))
    }

    fn leave(&self) {
        if let Some(asked) = &self.asked_to_leave {
            return asked.notify_one();
        }
        if let Some(shell) = self.shell() {
            self.runtime.spawn(async move {
                shell.drain(DRAIN_WAIT).await;
                shell.leave();
            });
        }
    }

    fn await_visible(
        &self,
        version: u64,
        wait: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<(), Vec<NodeName>>> + Send>> {
        let shell = self.shell();
        Box::pin(async move {
            let Some(shell) = shell else { return Ok(()) };
            await_visible(&shell, version, wait).await
        })
    }
}

/// Waits until all known nodes have seen this version of the node's interest; names those that have not.
pub(crate) async fn await_visible(
    shell: &Shell,
    version: u64,
    wait: Duration,
) -> Result<(), Vec<NodeName>> {
    let mut seen = shell.visible.subscribe();
    let waiting = async {
        while shell.watch_visible() < version {
            if seen.changed().await.is_err() {
                return;
            }
        }
    };
    match timeout(wait, waiting).await {
        Ok(()) => Ok(()),
        Err(_) => match shell.look(|node| node.unseen(version)) {
            unseen if unseen.is_empty() => Ok(()),
            unseen => Err(unseen),
        },
    }
}
