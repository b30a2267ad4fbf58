//! What came for one subscription and was not handed to its user yet.
//!
//! The driver puts in, the user takes out. What is in it is bounded by the credit that was
//! granted, and notices (which need no credit) by [`NOTICES_MAX`]. It outlives connections:
//! a subscription goes on after the last thing that was put in, so that nothing is missed
//! and nothing comes twice, and nothing that is here needs to be thrown away.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use gapless_core::Amount;
use gapless_core::link::SubscriptionId;

use crate::error::SubscriptionError;
use crate::subscription::Event;
use gapless_core::Token;

/// Most events that take no credit; a subscription with more of them is ended on the server
/// and asked for again when its user has caught up.
pub(crate) const NOTICES_MAX: usize = 1_024;

/// An event on its way to the user.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) event: Event,
    /// Where the user stands after it, if it says.
    pub(crate) token: Option<Token>,
    /// What it took from the credit.
    pub(crate) cost: Amount,
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    id: SubscriptionId,
    /// How much may be sent ahead of the user.
    window: Amount,
    queue: VecDeque<Item>,
    /// What the queue took from the credit.
    queued: Amount,
    notices: usize,
    /// Taken out since the driver was last notified.
    consumed: Amount,
    noted: bool,
    parked: bool,
    dropped: bool,
    /// Whether nothing is to be held for its name.
    for_good: bool,
    confirmed: bool,
    end: Option<Result<(), SubscriptionError>>,
    waker: Option<Waker>,
}

/// What a user takes out.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) item: Item,
    /// Whether the driver should look at the feed, and under which number.
    pub(crate) note: Option<SubscriptionId>,
}

/// What the driver is to do about a feed that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Its user is gone.
    Drop,
    /// Its user has caught up: ask for it again.
    Unpark,
    /// More may be sent.
    Credit,
}

impl Feed {
    pub(crate) fn new(window: Amount) -> Self {
        let state = State {
            id: SubscriptionId(0),
            window,
            queue: VecDeque::new(),
            queued: Amount::default(),
            notices: 0,
            consumed: Amount::default(),
            noted: false,
            parked: false,
            dropped: false,
            for_good: false,
            confirmed: false,
            end: None,
            waker: None,
        };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic is done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the driver: how much may be sent ahead of the user from now on.
    pub(crate) fn set_window(&self, window: Amount) {
        self.lock().window = window;
    }

    /// For the driver: the number it has from now on. Returns whether the user still holds it.
    pub(crate) fn set_id(&self, id: SubscriptionId) -> bool {
        let mut state = self.lock();
        state.id = id;
        state.parked = false;
        !state.dropped
    }

    /// For the driver: the server has taken the subscription.
    pub(crate) fn confirm(&self) {
        let mut state = self.lock();
        state.confirmed = true;
        wake(state);
    }

    /// For the driver: puts something in. Returns whether there is too much of what takes no
    /// credit; then the feed is parked, and the driver is notified when the user has caught up.
    pub(crate) fn push(&self, item: Item) -> bool {
        let mut state = self.lock();
        if state.dropped {
            return false;
        }
        if item.cost == Amount::default() {
            state.notices += 1;
        }
        state.queued.messages += item.cost.messages;
        state.queued.bytes += item.cost.bytes;
        state.queue.push_back(item);
        let too_many = state.notices > NOTICES_MAX;
        state.parked |= too_many;
        wake(state);
        too_many
    }

    /// For the driver: the subscription goes on on another connection. What was said about
    /// its state and not handed out is out of date.
    pub(crate) fn resumed(&self) {
        let mut state = self.lock();
        while state.queue.back().is_some_and(|item| item.event.is_state()) {
            state.queue.pop_back();
            state.notices -= 1;
        }
        drop(state);
        self.push(Item { event: Event::Resumed, token: None, cost: Amount::default() });
    }

    /// For the driver: nothing more comes; the queue is still handed out.
    pub(crate) fn end(&self, end: Result<(), SubscriptionError>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        wake(state);
    }

    /// For the driver: how much may be on its way, given what is here.
    pub(crate) fn allowance(&self) -> Amount {
        let state = self.lock();
        Amount {
            messages: state.window.messages.saturating_sub(state.queued.messages),
            bytes: state.window.bytes.saturating_sub(state.queued.bytes),
        }
    }

    /// For the driver: what to do about a feed that was noted.
    pub(crate) fn take_note(&self) -> Wish {
        let mut state = self.lock();
        state.noted = false;
        if state.dropped {
            Wish::Drop
        } else if state.parked {
            Wish::Unpark
        } else {
            Wish::Credit
        }
    }

    /// For the user: whether the server has taken the subscription, or never will.
    pub(crate) fn poll_confirmed(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SubscriptionError>> {
        let mut state = self.lock();
        match (&state.end, state.confirmed) {
            (Some(Err(error)), _) => Poll::Ready(Err(error.clone())),
            (Some(Ok(())), false) => Poll::Ready(Err(SubscriptionError::Closed)),
            (_, true) => Poll::Ready(Ok(())),
            (None, false) => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// For the user: the next thing.
    pub(crate) fn poll_next(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Taken, SubscriptionError>>> {
        let mut state = self.lock();
        let Some(item) = state.queue.pop_front() else {
            return match &mut state.end {
                // An error is returned once; then the stream has ended.
                Some(end) => {
                    let end = std::mem::replace(end, Ok(()));
                    Poll::Ready(end.err().map(Err))
                }
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        };
        if item.cost == Amount::default() {
            state.notices -= 1;
        }
        state.queued.messages -= item.cost.messages;
        state.queued.bytes -= item.cost.bytes;
        state.consumed.messages += item.cost.messages;
        state.consumed.bytes += item.cost.bytes;
        // Half a window at a time: often enough to keep the server going, seldom enough to
        // cost nothing.
        let half = state.consumed.messages.saturating_mul(2) >= state.window.messages
            || state.consumed.bytes.saturating_mul(2) >= state.window.bytes;
        let caught_up = state.parked && state.notices * 2 <= NOTICES_MAX;
        if half {
            state.consumed = Amount::default();
        }
        let note = ((half && !state.parked) || caught_up) && !state.noted;
        state.noted |= note;
        Poll::Ready(Some(Ok(Taken { item, note: note.then_some(state.id) })))
    }

    /// For the user: nothing is to be held for its name when it is gone.
    pub(crate) fn end_for_good(&self) {
        self.lock().for_good = true;
    }

    /// For the driver: whether nothing is to be held for its name.
    pub(crate) fn is_for_good(&self) -> bool {
        self.lock().for_good
    }

    /// For the user: it is gone. Returns whether the driver should look at the feed.
    pub(crate) fn drop_user(&self) -> Option<SubscriptionId> {
        let mut state = self.lock();
        state.dropped = true;
        state.queue.clear();
        state.queued = Amount::default();
        state.notices = 0;
        let note = !state.noted;
        state.noted = true;
        note.then_some(state.id)
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}
