//! Which frames a delivery goes into.
//!
//! A broker hands out messages in steps; a frame and a credit have limits of their own. This
//! cuts a step so that no seq is accounted for twice or not at all: the pieces' `from` and `to`
//! join without a hole, and every piece leads to a token that is true after it.
//!
//! Batches go whole wherever they can; see `split.rs` for those that cannot.

use alloc::vec::Vec;
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
    let mut front = Vec::new();
    let mut left = limit;
    let mut waiting = messages.batches.into_iter();
    let mut next = waiting.next();
    while let Some(batch) = next.take() {
        let (part, rest) = match cut(&batch, left, checksum) {
            Ok(parts) => parts,
            Err(SplitError::MessageTooLarge { .. } | SplitError::NoRoom) if !front.is_empty() => {
                next = Some(batch);
                break;
            }
            Err(error) => return Err(error),
        };
        // What lies outside of `from..=to` came along with its batch; cut off, it can go.
        next = rest.filter(|rest| rest.first() <= messages.to);
        let was_cut = next.is_some();
        if part.last() >= messages.from {
            left.bytes = left.bytes.saturating_sub(part.bytes().len());
            left.messages = left.messages.saturating_sub(part.header().count);
            front.push(part);
            if was_cut {
                break;
            }
        }
        if next.is_none() {
            next = waiting.next();
        }
    }
    let Some(first_of_rest) = next else {
        messages.batches = front;
        return Ok((messages, None));
    };
    // Seqs between the last batch and the next one belong to nobody; the front tells of them.
    let to = first_of_rest.first().prev();
    let seen = front.last().map_or(before, |last| last.header().last_position());
    let rest = Messages {
        subscription: messages.subscription,
        topic: messages.topic.clone(),
        from: to.next(),
        to: messages.to,
        last_position: messages.last_position,
        batches: core::iter::once(first_of_rest).chain(waiting).collect(),
    };
    // Messages that are in no journal have positions of another kind; the token stays where
    // the delivery says it is.
    let last_position = Position(seen.0.min(rest.last_position.0).max(before.0));
    Ok((Messages { to, last_position, batches: front, ..messages }, Some(rest)))
}
