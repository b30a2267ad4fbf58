//! What is to be sent over one link, in order.
//!
//! The machine says what goes there, under its lock; the link's writer takes all of it at once. The
//! machine bounds messages by its window; interest has a bound of its own here. A link whose output
//! grows beyond it is cut: the machine then sends again what its peer does not have.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gapless_core::cluster::Frame;
use gapless_protocol::link::LinkFrame;
use tokio::sync::Notify;

/// Most bytes that wait for one link beyond the machine's window: all of a large interest.
const BEYOND_WINDOW_BYTES_MAX: usize = 64 * 1024 * 1024;

/// About how many bytes a frame has beside its messages and patterns.
const FRAME_BYTES: usize = 64;
/// About how many bytes an item or a change has beside its content.
const ITEM_BYTES: usize = 32;

/// The output of one link.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    changed: Notify,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    frames: Vec<LinkFrame>,
    bytes: usize,
    /// Whether the writer has something that it has not sent yet.
    writing: bool,
    over: Option<Over>,
}

/// Why nothing more goes over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// More waited than may.
    Full,
    /// Another link to the same node took its place, or the node leaves.
    Closed,
}

impl Outbox {
    /// An empty one, for a window of so many bytes.
    pub(crate) fn new(window_bytes: usize) -> Self {
        let bytes_max = window_bytes.saturating_add(BEYOND_WINDOW_BYTES_MAX);
        Self { state: Mutex::default(), changed: Notify::new(), bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame. What comes after the end is dropped.
    pub(crate) fn push(&self, frame: LinkFrame) {
        let mut state = self.lock();
        if state.over.is_some() {
            return;
        }
        state.bytes = state.bytes.saturating_add(bytes_of(&frame));
        state.frames.push(frame);
        if state.bytes > self.bytes_max {
            state.over = Some(Over::Full);
            state.frames = Vec::new();
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Ends the link, after what is there is sent.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.over.get_or_insert(Over::Closed);
        drop(state);
        self.changed.notify_one();
    }

    /// All that is there, once something is; why not, when nothing more will be.
    pub(crate) async fn take(&self) -> Result<Vec<LinkFrame>, Over> {
        loop {
            {
                let mut state = self.lock();
                state.writing = !state.frames.is_empty();
                if state.writing {
                    state.bytes = 0;
                    return Ok(std::mem::take(&mut state.frames));
                }
                if let Some(over) = state.over {
                    return Err(over);
                }
            }
            self.changed.notified().await;
        }
    }

    /// Whether all that was added is with the system.
    pub(crate) fn is_sent(&self) -> bool {
        let state = self.lock();
        state.frames.is_empty() && !state.writing
    }
}

/// About how many bytes a frame has.
fn bytes_of(frame: &LinkFrame) -> usize {
    let content = match frame {
        LinkFrame::Gossip(bytes) | LinkFrame::Note(bytes) => bytes.len(),
        LinkFrame::Node(Frame::Deliver { items, .. }) => {
            items.iter().map(|item| item.records.bytes.len() + ITEM_BYTES).sum()
        }
        LinkFrame::Node(
            Frame::Interest { changes, .. } | Frame::InterestFull { entries: changes, .. },
        ) => changes.len() * 2 * ITEM_BYTES,
        LinkFrame::Node(Frame::Report { taken, results, .. }) => {
            (taken.len() + results.len()) * ITEM_BYTES
        }
        _ => 0,
    };
    content + FRAME_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gossip(bytes: usize) -> LinkFrame {
        LinkFrame::Gossip(vec![0; bytes].into())
    }

    #[tokio::test]
    async fn all_that_waits_is_taken_at_once_and_in_order() {
        let outbox = Outbox::new(0);
        outbox.push(gossip(1));
        outbox.push(LinkFrame::Ping);
        assert!(!outbox.is_sent());
        assert_eq!(outbox.take().await, Ok(vec![gossip(1), LinkFrame::Ping]));
        assert!(!outbox.is_sent(), "the writer has it");
        outbox.close();
        outbox.push(LinkFrame::Pong);
        assert_eq!(outbox.take().await, Err(Over::Closed));
        assert!(outbox.is_sent());
    }

    #[tokio::test]
    async fn a_link_whose_output_is_not_taken_is_cut_and_holds_nothing() {
        let outbox = Outbox::new(0);
        for _ in 0..9 {
            outbox.push(gossip(BEYOND_WINDOW_BYTES_MAX / 8));
        }
        assert_eq!(outbox.take().await, Err(Over::Full));
    }
}
