//! What nodes say about interest and messages, as bytes.
//!
//! Messages are packed: an item of a subject that the item before it had does not repeat it, and
//! what most items do not have costs a bit. A message of 128 bytes takes some 135 on a link that is
//! busy. Numbers are varints, since most are small or close to each other.
//!
//! What these frames mean is in `gapless_core::cluster`.

use alloc::vec::Vec;
use bytes::{BufMut, BytesMut};
use gapless_core::batch::put_varint;
use gapless_core::cluster::{
    Change, DeliveryStatus, FRAME_ITEMS_MAX, FULL_ENTRIES_MAX, Frame, Identity, Item, ItemResult,
    Named, RESULTS_MAX, SubscriberName, SubscriberResult, Taken,
};
use gapless_core::{Pattern, Records, Timestamp, TopicName};

use super::handshake::node;
use super::{LinkKind, VerbError};
use crate::wire::{List, Reader, ensure, exists, put_bytes, text};

/// Most items of one frame.
pub const DELIVER_ITEMS_MAX: usize = FRAME_ITEMS_MAX;
/// Most named subscriptions that one item is for.
pub const NAMED_MAX: usize = 1_000_000;
/// Most items that one frame reports on.
pub const REPORTED_MAX: usize = FULL_ENTRIES_MAX;

const CHANGES: List = List { field: "changes", item_bytes_min: 2, count_max: FULL_ENTRIES_MAX };
const ITEMS: List = List { field: "items", item_bytes_min: 2, count_max: DELIVER_ITEMS_MAX };
const SESSIONS: List = List { field: "sessions", item_bytes_min: 1, count_max: NAMED_MAX };
const TAKEN: List = List { field: "taken", item_bytes_min: 3, count_max: FULL_ENTRIES_MAX };
const REPORTED: List = List { field: "results", item_bytes_min: 2, count_max: REPORTED_MAX };
const RESULTS: List = List { field: "subscribers", item_bytes_min: 3, count_max: RESULTS_MAX };

/// The item is of another subject than the one before it.
const NEW_SUBJECT: u8 = 1;
const ANONYMOUS: u8 = 2;
const HAS_SESSIONS: u8 = 4;
const REPORT: u8 = 8;
const HAS_AGE: u8 = 16;
/// Its place in the sender's order is not the one after that of the item before.
const HAS_ORDER: u8 = 32;
const KNOWN: u8 = NEW_SUBJECT | ANONYMOUS | HAS_SESSIONS | REPORT | HAS_AGE | HAS_ORDER;

const ADD: u8 = 1;
const REMOVE: u8 = 2;
const HERE: u8 = 3;
const AWAY: u8 = 4;
const ENDED: u8 = 5;

const HANDLE: u8 = 1;
const IDENTITY: u8 = 2;
const NODE: u8 = 3;

/// The kind of a frame.
pub(super) fn kind(frame: &Frame) -> LinkKind {
    match frame {
        Frame::Interest { .. } => LinkKind::Interest,
        Frame::InterestFull { .. } => LinkKind::InterestFull,
        Frame::InterestAsk => LinkKind::InterestAsk,
        Frame::Deliver { .. } => LinkKind::Deliver,
        Frame::Report { .. } => LinkKind::Report,
        Frame::Probe(_) => LinkKind::Probe,
        Frame::Probed(_) => LinkKind::Probed,
        Frame::Leave => LinkKind::Leave,
    }
}

/// Writes the body of a frame.
pub(super) fn put(frame: &Frame, out: &mut BytesMut) -> Result<(), VerbError> {
    match frame {
        Frame::Interest { base, version, changes } => {
            put_varint(out, *base);
            put_varint(out, *version);
            put_changes(changes, out)
        }
        Frame::InterestFull { version, part, last, entries } => {
            put_varint(out, *version);
            put_varint(out, u64::from(*part));
            out.put_u8(u8::from(*last));
            put_changes(entries, out)
        }
        Frame::Deliver { base, first, items } => {
            exists(*first, "first")?;
            put_varint(out, *base);
            put_varint(out, *first);
            put_items(items, out)
        }
        Frame::Report { received, interest_seen, taken, results } => {
            put_varint(out, *received);
            put_varint(out, *interest_seen);
            put_report(taken, results, out)
        }
        Frame::Probe(number) | Frame::Probed(number) => {
            put_varint(out, *number);
            Ok(())
        }
        Frame::InterestAsk | Frame::Leave => Ok(()),
    }
}

/// Reads the body of a frame of this kind. Whether there is more is looked at by the caller.
pub(super) fn take(kind: LinkKind, rest: &mut Reader) -> Result<Frame, VerbError> {
    Ok(match kind {
        LinkKind::Interest => Frame::Interest {
            base: rest.varint("base")?,
            version: rest.varint("version")?,
            changes: take_changes(rest)?,
        },
        LinkKind::InterestFull => Frame::InterestFull {
            version: rest.varint("version")?,
            part: rest.varint_u32("part")?,
            last: rest.flag("last")?,
            entries: take_changes(rest)?,
        },
        LinkKind::InterestAsk => Frame::InterestAsk,
        LinkKind::Deliver => {
            let (base, first) = (rest.varint("base")?, rest.varint("first")?);
            exists(first, "first")?;
            Frame::Deliver { base, first, items: take_items(rest)? }
        }
        LinkKind::Report => {
            let (received, interest_seen) = (rest.varint("received")?, rest.varint("seen")?);
            let (taken, results) = take_report(rest)?;
            Frame::Report { received, interest_seen, taken, results }
        }
        LinkKind::Probe => Frame::Probe(rest.varint("probe")?),
        LinkKind::Probed => Frame::Probed(rest.varint("probe")?),
        LinkKind::Leave => Frame::Leave,
        _ => return Err(VerbError::Value { field: "kind" }),
    })
}

fn put_changes(changes: &[Change], out: &mut BytesMut) -> Result<(), VerbError> {
    CHANGES.check(changes.len())?;
    put_varint(out, changes.len() as u64);
    for change in changes {
        match change {
            Change::Add(pattern) => {
                out.put_u8(ADD);
                put_bytes(out, pattern.as_str().as_bytes());
            }
            Change::Remove(pattern) => {
                out.put_u8(REMOVE);
                put_bytes(out, pattern.as_str().as_bytes());
            }
            Change::Here { named, time, session } => {
                out.put_u8(HERE);
                put_bytes(out, named.identity.as_str().as_bytes());
                put_bytes(out, named.pattern.as_str().as_bytes());
                put_varint(out, time.0);
                put_varint(out, *session);
            }
            Change::Away { session } => {
                out.put_u8(AWAY);
                put_varint(out, *session);
            }
            Change::Ended { session } => {
                out.put_u8(ENDED);
                put_varint(out, *session);
            }
        }
    }
    Ok(())
}

fn take_changes(rest: &mut Reader) -> Result<Vec<Change>, VerbError> {
    let count = rest.count(&CHANGES)?;
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        changes.push(match rest.u8("change")? {
            ADD => Change::Add(pattern(rest)?),
            REMOVE => Change::Remove(pattern(rest)?),
            HERE => Change::Here {
                named: Named { identity: identity(rest)?, pattern: pattern(rest)? },
                time: Timestamp(rest.varint("time")?),
                session: rest.varint("session")?,
            },
            AWAY => Change::Away { session: rest.varint("session")? },
            ENDED => Change::Ended { session: rest.varint("session")? },
            _ => return Err(VerbError::Value { field: "change" }),
        });
    }
    Ok(changes)
}

fn put_items(items: &[Item], out: &mut BytesMut) -> Result<(), VerbError> {
    ITEMS.check(items.len())?;
    put_varint(out, items.len() as u64);
    let mut before: Option<&TopicName> = None;
    let mut expected = 0_u64;
    for item in items {
        ensure(item.records.count > 0, "records")?;
        SESSIONS.check(item.sessions.len())?;
        let is_new = before != Some(&item.subject);
        let mut flags = 0;
        for (holds, flag) in [
            (is_new, NEW_SUBJECT),
            (item.anonymous, ANONYMOUS),
            (!item.sessions.is_empty(), HAS_SESSIONS),
            (item.report, REPORT),
            (item.age_ms > 0, HAS_AGE),
            (item.order != expected, HAS_ORDER),
        ] {
            flags |= if holds { flag } else { 0 };
        }
        out.put_u8(flags);
        if is_new {
            put_bytes(out, item.subject.as_str().as_bytes());
            before = Some(&item.subject);
        }
        if !item.sessions.is_empty() {
            put_varint(out, item.sessions.len() as u64);
            item.sessions.iter().for_each(|session| put_varint(out, *session));
        }
        if item.age_ms > 0 {
            put_varint(out, item.age_ms);
        }
        if item.order != expected {
            put_varint(out, item.order.wrapping_sub(expected));
        }
        expected = item.order.wrapping_add(1);
        put_bytes(out, &item.records.bytes);
    }
    Ok(())
}

fn take_items(rest: &mut Reader) -> Result<Vec<Item>, VerbError> {
    let count = rest.count(&ITEMS)?;
    let mut items: Vec<Item> = Vec::with_capacity(count);
    for _ in 0..count {
        let flags = rest.u8("item")?;
        let has = |flag| flags & flag != 0;
        ensure(flags & !KNOWN == 0, "item")?;
        let subject = match items.last() {
            _ if has(NEW_SUBJECT) => rest.name("subject")?,
            Some(before) => before.subject.clone(),
            None => return Err(VerbError::Value { field: "subject" }),
        };
        // A subject that is said again where it need not be would be a second encoding.
        ensure(
            !has(NEW_SUBJECT) || items.last().is_none_or(|it| it.subject != subject),
            "subject",
        )?;
        let mut sessions = Vec::new();
        if has(HAS_SESSIONS) {
            let count = rest.count(&SESSIONS)?;
            ensure(count > 0, "sessions")?;
            sessions.reserve_exact(count);
            for _ in 0..count {
                sessions.push(rest.varint("session")?);
            }
        }
        let age_ms = if has(HAS_AGE) { rest.varint("age")? } else { 0 };
        ensure(age_ms > 0 || !has(HAS_AGE), "age")?;
        let expected = items.last().map_or(0, |before| before.order.wrapping_add(1));
        let ahead = if has(HAS_ORDER) { rest.varint("order")? } else { 0 };
        ensure(ahead > 0 || !has(HAS_ORDER), "order")?;
        let order = expected.wrapping_add(ahead);
        let records = Records::parse(rest.bytes("records")?)?;
        ensure(records.count > 0, "records")?;
        items.push(Item {
            subject,
            records,
            order,
            age_ms,
            anonymous: has(ANONYMOUS),
            sessions,
            report: has(REPORT),
        });
    }
    Ok(items)
}

fn put_report(
    taken: &[Taken],
    results: &[ItemResult],
    out: &mut BytesMut,
) -> Result<(), VerbError> {
    TAKEN.check(taken.len())?;
    REPORTED.check(results.len())?;
    put_varint(out, taken.len() as u64);
    for Taken { session, upto, lost } in taken {
        put_varint(out, *session);
        put_varint(out, *upto);
        put_varint(out, *lost);
    }
    put_varint(out, results.len() as u64);
    for ItemResult { order, results } in results {
        RESULTS.check(results.len())?;
        put_varint(out, *order);
        put_varint(out, results.len() as u64);
        for SubscriberResult { subscriber, status } in results {
            out.put_u8(status.code());
            match subscriber {
                SubscriberName::Handle { node, number } => {
                    out.put_u8(HANDLE);
                    let node = node.as_ref().map_or("", |node| node.as_str());
                    put_bytes(out, node.as_bytes());
                    put_varint(out, *number);
                }
                SubscriberName::Identity(identity) => {
                    out.put_u8(IDENTITY);
                    put_bytes(out, identity.as_str().as_bytes());
                }
                SubscriberName::Node(node) => {
                    out.put_u8(NODE);
                    put_bytes(out, node.as_str().as_bytes());
                }
            }
        }
    }
    Ok(())
}

fn take_report(rest: &mut Reader) -> Result<(Vec<Taken>, Vec<ItemResult>), VerbError> {
    let count = rest.count(&TAKEN)?;
    let mut taken = Vec::with_capacity(count);
    for _ in 0..count {
        let session = rest.varint("session")?;
        taken.push(Taken { session, upto: rest.varint("upto")?, lost: rest.varint("lost")? });
    }
    let count = rest.count(&REPORTED)?;
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let order = rest.varint("order")?;
        let count = rest.count(&RESULTS)?;
        let mut results = Vec::with_capacity(count);
        for _ in 0..count {
            results.push(result(rest)?);
        }
        all.push(ItemResult { order, results });
    }
    Ok((taken, all))
}

fn result(rest: &mut Reader) -> Result<SubscriberResult, VerbError> {
    let status = DeliveryStatus::from_code(rest.u8("status")?);
    let status = status.ok_or(VerbError::Value { field: "status" })?;
    let subscriber = match rest.u8("subscriber")? {
        HANDLE => {
            let name = rest.text("node")?;
            let named = (!name.is_empty()).then(|| name.parse());
            let node = named.transpose().map_err(|_| VerbError::Value { field: "node" })?;
            SubscriberName::Handle { node, number: rest.varint("subscription")? }
        }
        IDENTITY => SubscriberName::Identity(identity(rest)?),
        NODE => SubscriberName::Node(node(rest, "node")?),
        _ => return Err(VerbError::Value { field: "subscriber" }),
    };
    Ok(SubscriberResult { subscriber, status })
}

fn pattern(rest: &mut Reader) -> Result<Pattern, VerbError> {
    Ok(Pattern::parse(text(&rest.bytes("pattern")?, "pattern")?)?)
}

fn identity(rest: &mut Reader) -> Result<Identity, VerbError> {
    let bytes = rest.bytes("identity")?;
    let parsed = Identity::parse(text(&bytes, "identity")?);
    parsed.map_err(|_| VerbError::Value { field: "identity" })
}
