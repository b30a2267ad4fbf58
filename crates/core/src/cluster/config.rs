//! Times and limits of a cluster node, with their units and reasons.

use core::time::Duration;

/// How long a node waits, and how much it holds. The defaults suit a local network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// How long a subscriber, or a node as a whole, may take to answer before it counts as failed.
    pub subscriber_timeout: Duration,
    /// How long what is suspended is remembered, and messages for it are held.
    pub suspended_ttl: Duration,
    /// Messages that are held for one node, or for one named subscription.
    pub queue_messages_max: usize,
    /// Bytes that are held for one node, or for one named subscription.
    pub queue_bytes_max: usize,
    /// Bytes that are held for all of them; what is held for several counts for each.
    pub queues_bytes_max: usize,
    /// Bytes sent to one node and not received by it yet; these are sent again after a reconnect.
    pub window_bytes: usize,
    /// Messages sent to one named subscription and not taken by it yet: the rest waits at the
    /// sender, so that a mailbox does not overflow because much was held.
    pub named_ahead_messages: usize,
    /// How long a node waits for progress before it sends again.
    pub resend_after: Duration,
    /// How long a node waits for more before it says that messages came. Zero says it at once.
    pub receipt_after: Duration,
    /// Patterns and named subscriptions of one node that are spread; further ones are not.
    pub interest_max: usize,
    /// Other nodes that are known at the same time.
    pub nodes_max: usize,
}

/// Why a configuration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterConfigError {
    /// A limit or time of zero would let nothing through.
    #[error("cluster.{key} is zero: give at least one")]
    Zero {
        /// Which one.
        key: &'static str,
    },
    /// A smaller limit or time is above a larger one.
    #[error("cluster.{key} is above cluster.{above}: lower it, or raise the other")]
    Above {
        /// Which one is too large.
        key: &'static str,
        /// Which one it must not exceed.
        above: &'static str,
    },
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            subscriber_timeout: Duration::from_secs(3),
            suspended_ttl: Duration::from_secs(60),
            queue_messages_max: 65_536,
            queue_bytes_max: 64 << 20,
            queues_bytes_max: 256 << 20,
            window_bytes: 4 << 20,
            named_ahead_messages: 4_096,
            resend_after: Duration::from_secs(1),
            receipt_after: Duration::from_millis(5),
            interest_max: 1_000_000,
            nodes_max: 256,
        }
    }
}

impl ClusterConfig {
    /// Checks it.
    ///
    /// # Errors
    /// Names the first value that cannot be.
    pub fn validate(&self) -> Result<(), ClusterConfigError> {
        let zeros = [
            ("subscriber_timeout", self.subscriber_timeout.is_zero()),
            ("suspended_ttl", self.suspended_ttl.is_zero()),
            ("queue_messages_max", self.queue_messages_max == 0),
            ("queue_bytes_max", self.queue_bytes_max == 0),
            ("queues_bytes_max", self.queues_bytes_max == 0),
            ("window_bytes", self.window_bytes == 0),
            ("named_ahead_messages", self.named_ahead_messages == 0),
            ("resend_after", self.resend_after.is_zero()),
            ("interest_max", self.interest_max == 0),
            ("nodes_max", self.nodes_max == 0),
        ];
        if let Some((key, _)) = zeros.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(ClusterConfigError::Zero { key });
        }
        let orders = [
            ("queue_bytes_max", "queues_bytes_max", self.queue_bytes_max > self.queues_bytes_max),
            ("window_bytes", "queue_bytes_max", self.window_bytes > self.queue_bytes_max),
            ("receipt_after", "resend_after", self.receipt_after > self.resend_after / 2),
            ("resend_after", "subscriber_timeout", self.resend_after > self.subscriber_timeout),
            ("subscriber_timeout", "suspended_ttl", self.subscriber_timeout > self.suspended_ttl),
        ];
        match orders.into_iter().find(|(_, _, is_above)| *is_above) {
            Some((key, above, _)) => Err(ClusterConfigError::Above { key, above }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_what_cannot_be_is_named() {
        let config = ClusterConfig::default();
        assert_eq!(config.validate(), Ok(()));
        let zero = ClusterConfig { nodes_max: 0, ..config };
        assert_eq!(zero.validate(), Err(ClusterConfigError::Zero { key: "nodes_max" }));
        let above = ClusterConfig { window_bytes: usize::MAX, ..config };
        let error = ClusterConfigError::Above { key: "window_bytes", above: "queue_bytes_max" };
        assert_eq!(above.validate(), Err(error));
    }
}
