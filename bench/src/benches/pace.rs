//! Publishing at a fixed pace, with the time in every message.
//!
//! A message carries the time at which it was due, not the time at which it went out: so a
//! publisher that is held up makes its messages late, instead of hiding the delay. It waits
//! for the ack before the next one, as a caller in the process does.

use std::thread;
use std::time::{Duration, Instant};

use gapless_broker::Broker;
use gapless_core::{Message, PublishOptions, TopicName};

use super::store::Result;
use super::window::publish_and_wait;

/// How much before it is due the publisher wakes up, to be on time: more than the system's
/// timers and a wake-up take together.
const EARLY: Duration = Duration::from_micros(200);

/// How messages are paced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Messages per second.
    pub(crate) per_second: f64,
    /// For how long.
    pub(crate) seconds: f64,
    /// Bytes of a message, of which eight carry the time.
    pub(crate) bytes: usize,
    /// Whether the publisher never rests between messages. It keeps a core awake then, and
    /// takes it from others.
    pub(crate) spin: bool,
}

impl Pace {
    /// How many messages that are.
    pub(crate) fn messages(&self) -> u64 {
        ((self.per_second * self.seconds) as u64).max(1)
    }

    /// Publishes them. `epoch` is the moment from which times are counted.
    pub(crate) fn publish(&self, broker: &Broker, topic: &TopicName, epoch: Instant) -> Result<()> {
        let options = PublishOptions::default();
        self.each(epoch, |body| {
            let message = Message::new(body);
            publish_and_wait(broker, |broker| broker.publish(topic, &message, &options))
        })
    }

    /// Hands out each body when it is due. `epoch` is the moment from which times are counted.
    pub(crate) fn each(
        &self,
        epoch: Instant,
        mut send: impl FnMut(Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let interval = Duration::from_secs_f64(1.0 / self.per_second);
        let mut due = Instant::now() + interval;
        for _ in 0..self.messages() {
            if !self.spin {
                rest_until(due - EARLY);
            }
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            send(stamped(due - epoch, self.bytes))?;
            due += interval;
        }
        Ok(())
    }
}

/// How long ago a message was due, if it carries its time.
pub(crate) fn age(body: &[u8], epoch: Instant) -> Option<Duration> {
    let (nanos, _) = body.split_first_chunk::<8>()?;
    let due = Duration::from_nanos(u64::from_le_bytes(*nanos));
    Some(epoch.elapsed().saturating_sub(due))
}

fn stamped(due: Duration, bytes: usize) -> Vec<u8> {
    let mut body = vec![0x5A; bytes.max(8)];
    let nanos = u64::try_from(due.as_nanos()).unwrap_or(u64::MAX);
    body[..8].copy_from_slice(&nanos.to_le_bytes());
    body
}

/// Sleeps until a moment; one that is over is not waited for.
pub(crate) fn rest_until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_tells_how_long_ago_it_was_due() {
        let epoch = Instant::now() - Duration::from_secs(3);
        let body = stamped(Duration::from_secs(1), 128);
        assert_eq!(body.len(), 128);
        let age = age(&body, epoch).unwrap();
        assert!(age >= Duration::from_secs(2), "{age:?}");
        assert_eq!(super::age(&[1, 2], epoch), None);
    }
}
