//! Which frames a delivery goes into.
//!
//! A broker hands out messages in steps; a frame and a credit have limits of their own. This
//! cuts a step so that no seq is accounted for twice or not at all: the pieces' `from` and `to`
//! join without a hole, and every piece leads to a token that is true after it.
//!
//! Batches go whole wherever they can; see `split.rs` for those that cannot.

use alloc::vec::Vec;
use gapless_core::{Batches, Checksum, Lease, Position};

use crate::split::{SplitError, SplitLimit, cut, only};
use crate::verbs::follow::Messages;
use crate::verbs::group::{GroupMessages, LEASE_BYTES_MAX};

/// How many messages may travel for each one that is leased, before the others are left out:
/// leaving them out costs a copy of the rest.
const STORED_PER_LEASED_MAX: u64 = 2;

/// Cuts off the front of `messages` what `limit` allows (for all batches together); the second
/// is the rest, if any. `before` is the position of the subscription's token before them.
///
/// # Errors
/// When not even one message is within the limit, or a batch is damaged. A caller that has too
/// little credit in bytes for the next message asks again with the frame's limit: it is then sent
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
    // Where seqs between the last batch and the next one stood is not known; the rest accounts for
    // them, so that the token after the front covers all that the front accounts for.
    let to = front.range().map_or(first.prev(), |(_, last)| last);
    let seen = front.views().last().map_or(before, |last| last.header().last_position());
    let rest = Messages {
        subscription: messages.subscription,
        topic: messages.topic.clone(),
        from: to.next(),
        to: messages.to,
        last_position: messages.last_position,
        batches: rest,
    };
    // Messages that are in no journal have positions of another kind; the token stays where
    // the delivery says it is.
    let last_position = Position(seen.0.min(rest.last_position.0).max(before.0));
    Ok((Messages { to, last_position, batches: front, ..messages }, Some(rest)))
}

/// Cuts off the front of leased messages what fits into `bytes`, leases included; the second
/// is the rest, if any. Mostly they go as they are; where most of what is stored is not leased,
/// only what is leased goes.
///
/// # Errors
/// When not even one message fits, or a batch is damaged.
pub fn cut_leased(
    mut messages: GroupMessages,
    bytes: usize,
    checksum: Checksum,
) -> Result<(GroupMessages, Option<GroupMessages>), SplitError> {
    let leases_max = (bytes / 2 / LEASE_BYTES_MAX).max(1);
    let leases = messages.leases.len().min(leases_max);
    let room = bytes.saturating_sub(leases * LEASE_BYTES_MAX);
    let stored = messages.batches.messages();
    let whole = messages.leases.len() <= leases_max && messages.batches.bytes() <= room;
    if whole && stored <= messages.count().saturating_mul(STORED_PER_LEASED_MAX) {
        return Ok((messages, None));
    }
    let mut all = only_leased(&messages, checksum)?;
    if messages.leases.len() <= leases_max && all.bytes() <= room {
        messages.batches = all;
        return Ok((messages, None));
    }
    // What is leased from here on goes in another frame.
    let mut bound = messages.leases.get(leases_max).map(|lease| lease.first);
    let (mut front, mut rest) = (Batches::default(), Batches::default());
    while let Some(batch) = all.pop_front() {
        let position = batch.header().position;
        if bound.is_some_and(|bound| position >= bound) {
            rest.push(&batch);
            break;
        }
        if front.bytes() + batch.bytes().len() <= room {
            front.push(&batch);
            if bound.is_some_and(|bound| batch.header().last_position() >= bound) {
                // It has some for both.
                rest.push(&batch);
                break;
            }
            continue;
        }
        if front.is_empty() {
            let limit = SplitLimit { bytes: room, messages: u32::MAX };
            let (part, left) = cut(&batch, limit, checksum)?;
            let after = part.header().last_position().next();
            bound = Some(bound.map_or(after, |bound| bound.min(after)));
            front.push(&part);
            left.iter().for_each(|left| rest.push(left));
        } else {
            bound = Some(bound.map_or(position, |bound| bound.min(position)));
            rest.push(&batch);
        }
        break;
    }
    while let Some(batch) = all.pop_front() {
        rest.push(&batch);
    }
    let (now, later) = split_leases(&messages.leases, bound);
    let later = (!later.is_empty()).then(|| GroupMessages {
        topic: messages.topic.clone(),
        leases: later,
        batches: rest,
        ..messages
    });
    Ok((GroupMessages { leases: now, batches: front, ..messages }, later))
}

/// The batches with nothing but what is leased.
fn only_leased(messages: &GroupMessages, checksum: Checksum) -> Result<Batches, SplitError> {
    let mut leases = messages.leases.iter().peekable();
    let mut batches = Batches::default();
    for batch in messages.batches.iter() {
        // Both rise, so each lease is passed once.
        let wanted = |position: Position| {
            while leases.next_if(|lease| lease.last < position).is_some() {}
            leases.peek().is_some_and(|lease| lease.first <= position)
        };
        if let Some(batch) = only(&batch, wanted, checksum)? {
            batches.push(&batch);
        }
    }
    Ok(batches)
}

/// The leases before a position, and those from it on; one that has both is cut.
fn split_leases(leases: &[Lease], bound: Option<Position>) -> (Vec<Lease>, Vec<Lease>) {
    let Some(bound) = bound else { return (leases.to_vec(), Vec::new()) };
    let (mut now, mut later) = (Vec::new(), Vec::new());
    for lease in leases {
        if lease.last < bound {
            now.push(*lease);
        } else if lease.first >= bound {
            later.push(*lease);
        } else {
            now.push(Lease { last: bound.prev(), ..*lease });
            later.push(Lease { first: bound, ..*lease });
        }
    }
    (now, later)
}
