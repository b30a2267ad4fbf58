//! What came for one membership and was not handed to its user yet.
//!
//! The driver puts in, the user takes out. What is in it is bounded by the window, which the
//! server keeps, and notices by [`NOTICES_MAX`]. Unlike a subscription's feed it does not
//! outlive a connection: with the connection the leases are lost, so that what is here would
//! be worked on for nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gapless_core::Mode;

use crate::error::MemberError;
use crate::member::GroupEvent;

/// Most notices that wait; older ones of them go.
const NOTICES_MAX: usize = 64;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    joined: Option<Joined>,
    queue: VecDeque<GroupEvent>,
    notices: usize,
    end: Option<Result<(), MemberError>>,
    waker: Option<Waker>,
}

/// What holds for a membership on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Which of its connections this is; the first is 1.
    pub(crate) session: u64,
    pub(crate) id: u64,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic is done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the driver: the server has taken the member.
    pub(crate) fn joined(&self, joined: Joined) {
        let mut state = self.lock();
        let again = state.joined.replace(joined).is_some();
        if again {
            state.queue.push_back(GroupEvent::Rejoined);
            state.notices += 1;
        }
        wake(state);
    }

    /// For the driver: puts something in.
    pub(crate) fn push(&self, event: GroupEvent) {
        let mut state = self.lock();
        if !matches!(event, GroupEvent::Messages(_)) {
            if state.notices == NOTICES_MAX
                && let Some(oldest) = state.queue.iter().position(is_notice)
            {
                state.queue.remove(oldest);
                state.notices -= 1;
            }
            state.notices += 1;
        }
        state.queue.push_back(event);
        wake(state);
    }

    /// For the driver: the connection is gone, and what it brought with it.
    pub(crate) fn lost(&self) {
        let mut state = self.lock();
        state.queue.clear();
        state.notices = 0;
    }

    /// For the driver: nothing more comes.
    pub(crate) fn end(&self, end: Result<(), MemberError>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        wake(state);
    }

    /// For the user: what holds at the moment.
    pub(crate) fn now(&self) -> Option<Joined> {
        self.lock().joined
    }

    /// For the user: whether the server has taken the member, or never will.
    pub(crate) fn poll_joined(&self, context: &mut Context<'_>) -> Poll<Result<(), MemberError>> {
        let mut state = self.lock();
        match (&state.end, state.joined) {
            (Some(Err(error)), _) => Poll::Ready(Err(error.clone())),
            (Some(Ok(())), None) => Poll::Ready(Err(MemberError::Closed)),
            (_, Some(_)) => Poll::Ready(Ok(())),
            (None, None) => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// For the user: the next thing; `None` at the end.
    pub(crate) fn poll_next(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<GroupEvent, MemberError>>> {
        let mut state = self.lock();
        if let Some(event) = state.queue.pop_front() {
            state.notices -= usize::from(is_notice(&event));
            return Poll::Ready(Some(Ok(event)));
        }
        match &mut state.end {
            // An error is returned once; then it has ended.
            Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn is_notice(event: &GroupEvent) -> bool {
    !matches!(event, GroupEvent::Messages(_))
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}
