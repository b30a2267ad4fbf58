//! A subscription as its user sees it: a stream of events that survives its connections.
//!
//! The messages in it share the bytes they came in; nothing is copied out of them.

use std::any::Any;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use gapless_core::{
    BatchRef, Batches, Delivered, DeliveredRef, GapNotice, Registry, Seq, StartFrom as From, Token,
    TopicName,
};
use gapless_protocol::PlaceRange;

use crate::client::Client;
use crate::error::{SubscriptionError, TypedError};
use crate::feed::{Feed, Taken};
use crate::typed;

/// What happens to a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// History from here to there comes next; some of it may come as gaps.
    Recovering(PlaceRange),
    /// Messages, history or live.
    Messages(Messages),
    /// Numbers that will not come, and why.
    Gap(GapNotice),
    /// History is done; what comes now is live.
    Live,
    /// The connection was lost and is there again. The stream goes on where it was: nothing
    /// is missing and nothing comes twice.
    Resumed,
}

impl Event {
    /// Whether it only reports the subscription's state.
    pub(crate) fn is_state(&self) -> bool {
        matches!(self, Self::Recovering(_) | Self::Live | Self::Resumed)
    }
}

/// Messages of one topic that account for the seqs `from` to `to`: a seq between them that
/// does not come was compacted away or has expired.
#[derive(Clone, Debug)]
pub struct Messages {
    pub(crate) topic: TopicName,
    pub(crate) from: Seq,
    pub(crate) to: Seq,
    pub(crate) token: Token,
    pub(crate) batches: Batches,
    pub(crate) registry: Arc<Registry>,
}

impl Messages {
    /// Where they were published.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The first seq they account for.
    pub fn from(&self) -> Seq {
        self.from
    }

    /// The last seq they account for.
    pub fn to(&self) -> Seq {
        self.to
    }

    /// Where a subscription stands after them.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How many messages there are.
    pub fn count(&self) -> usize {
        self.records().count()
    }

    /// The messages, in order, borrowed: the fastest way to go over many.
    pub fn records(&self) -> impl Iterator<Item = DeliveredRef<'_>> {
        self.batches.views().flat_map(|batch| self.records_of(batch))
    }

    fn records_of<'a>(
        &self,
        batch: BatchRef<'a>,
    ) -> impl Iterator<Item = DeliveredRef<'a>> + use<'a> {
        let (from, to, time) = (self.from, self.to, batch.header().time);
        batch.records().filter_map(move |record| {
            let seq = batch.seq_of(&record);
            // Batches come as they are stored; what lies outside was or will be another's.
            let wanted = from <= seq && seq <= to;
            wanted.then(|| DeliveredRef { seq, position: batch.position_of(&record), time, record })
        })
    }

    /// The messages, in order, each sharing the bytes it came in.
    pub fn iter(&self) -> impl Iterator<Item = Delivered> + '_ {
        self.batches.parts().flat_map(move |part| {
            BatchRef::all(part).flat_map(|batch| self.records_of(batch)).map(|each| Delivered {
                seq: each.seq,
                position: each.position,
                time: each.time,
                message: each.record.to_message(part),
            })
        })
    }

    /// The messages as values of a type that is registered with the client (A12).
    pub fn decode<T: Any>(&self) -> impl Iterator<Item = Result<T, TypedError>> + '_ {
        self.iter().map(|each| typed::decode(&self.registry, &each.message))
    }

    /// Whether every batch holds what it says.
    fn is_whole(&self) -> bool {
        self.batches.views().all(|batch| batch.records().count() == batch.header().count as usize)
    }
}

/// A stream of what is published to a topic or a pattern, from some place on.
///
/// It goes on by itself after a lost connection, without a gap and without a repeat. Dropping
/// it ends it. It is [`Unpin`], and [`Subscription::next`] needs no extension trait.
#[derive(Debug)]
pub struct Subscription {
    feed: Arc<Feed>,
    /// Where the user stands.
    token: Option<Token>,
    /// Keeps the driver alive.
    client: Client,
}

impl Subscription {
    pub(crate) fn new(feed: Arc<Feed>, from: From, client: Client) -> Self {
        let token = if let From::Token(token) = from { Some(token) } else { None };
        Self { feed, token, client }
    }

    /// Where the user stands: a subscription from here comes after everything that was handed
    /// out. `None` as long as nothing was that says so.
    pub fn token(&self) -> Option<Token> {
        self.token
    }

    /// The next event; `None` when the client was closed.
    ///
    /// # Errors
    /// Why the subscription has ended; the stream is over then. It can be dropped at any
    /// time without losing an event.
    pub async fn next(&mut self) -> Option<Result<Event, SubscriptionError>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The next messages, skipping changes of the subscription's state; gaps are not skipped, but
    /// returned in place of messages.
    ///
    /// # Errors
    /// As [`Subscription::next`].
    pub async fn next_messages(
        &mut self,
    ) -> Option<Result<Result<Messages, GapNotice>, SubscriptionError>> {
        loop {
            match self.next().await? {
                Ok(Event::Messages(messages)) => return Some(Ok(Ok(messages))),
                Ok(Event::Gap(gap)) => return Some(Ok(Err(gap))),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Ends it for good. The same as dropping it, but that nothing is held for a named one.
    pub fn unsubscribe(self) {
        self.feed.end_for_good();
    }

    fn leave(&self) {
        if let Some(id) = self.feed.drop_user() {
            self.client.inbox().note(id);
        }
    }

    pub(crate) async fn confirmed(&self) -> Result<(), SubscriptionError> {
        poll_fn(|context| self.feed.poll_confirmed(context)).await
    }
}

impl Stream for Subscription {
    type Item = Result<Event, SubscriptionError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.feed.poll_next(context));
        Poll::Ready(next.map(|taken| {
            let Taken { item, note } = taken?;
            if let Some(id) = note {
                self.client.inbox().note(id);
            }
            if let Event::Messages(messages) = &item.event
                && !messages.is_whole()
            {
                // What comes after it must not be handed out either.
                self.feed.end(Ok(()));
                self.leave();
                return Err(SubscriptionError::Damaged);
            }
            self.token = item.token.or(self.token);
            Ok(item.event)
        }))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave();
    }
}
