//! Which frames a delivery goes into.
//!
//! A broker hands out messages in steps; a frame and a credit have limits of their own. This
//! cuts a step so that no seq is accounted for twice or not at all: the pieces' `from` and `to`
//! join without a hole, and every piece leads to a token that is true after it.
//!
//! Batches go whole wherever they can; see `split.rs` for those that cannot.

use gapless_core::{Checksum, Position};

use crate::split::{SplitError, SplitLimit, cut};
use crate::verbs::follow::Messages;

/// Cuts off the front of `messages` what `limit` allows (for all batches together); the second
/// is the rest, if any. `before` is the position of the subscription's token before them.
///
/// # Errors
/// When not even one message is within the limit, or a batch is damaged. Who has too little
/// credit in bytes for the next message asks again with the frame's limit: it is then sent
/// alone.
pub fn cut_messages(
    mut messages: Messages,
    before: Position,
    limit: SplitLimit,
    checksum: Checksum,
) -> Result<(Messages, Option<Messages>), SplitError> {
    let mut rest = core::mem::take(&mut messages.batches);
    let mut front = rest.take_front(limit.bytes, limit.messages.into());
    while front.is_empty()
        && let Some(batch) = rest.pop_front()
    {
        let (part, left) = cut(&batch, limit, checksum)?;
        // What lies outside of `from..=to` came along with its batch; cut off, it can go.
        if let Some(left) = left.filter(|left| left.first() <= messages.to) {
            rest.push_front(&left);
        }
        if part.last() >= messages.from {
            front.push(&part);
        }
    }
    let Some((first, _)) = rest.range() else {
        messages.batches = front;
        return Ok((messages, None));
    };
    // Seqs between the last batch and the next one belong to nobody; the front tells of them.
    let to = first.prev();
    let seen = front.views().last().map_or(before, |last| last.header().last_position());
    let rest = Messages {
        subscription: messages.subscription,
        topic: messages.topic.clone(),
        from: first,
        to: messages.to,
        last_position: messages.last_position,
        batches: rest,
    };
    // Messages that are in no journal have positions of another kind; the token stays where
    // the delivery says it is.
    let last_position = Position(seen.0.min(rest.last_position.0).max(before.0));
    Ok((Messages { to, last_position, batches: front, ..messages }, Some(rest)))
}
