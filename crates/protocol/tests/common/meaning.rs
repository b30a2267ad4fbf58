//! What a verb means, as JSON: bytes in hex, times in ms, enumerations by name.

use gapless_core::{
    Batch, EntryKind, Expect, Fate, Message, PublishOptions, Records, TopicSettings,
};
use gapless_protocol::*;
use serde_json::{Value, json};

use super::hex;

/// The fields of a verb.
pub(crate) fn of(verb: &Verb) -> Value {
    match verb {
        Verb::Hello(v) => json!({
            "version_min": v.version_min, "version_max": v.version_max,
            "features": v.features.0, "client_name": v.client_name,
            "token": v.token.as_ref().map(|token| hex(token)), "extension": hex(&v.extension),
        }),
        Verb::Welcome(v) => json!({
            "version": v.version, "features": v.features.0, "server_name": v.server_name,
            "server_version": v.server_version, "epoch": v.epoch.0, "session": v.session,
            "frame_bytes": v.limits.frame_bytes, "in_flight_bytes": v.limits.in_flight_bytes,
            "subscriptions": v.limits.subscriptions,
            "credit_messages": v.limits.credit_messages, "credit_bytes": v.limits.credit_bytes,
            "idle_ms": v.limits.idle_ms,
        }),
        Verb::Error(v) => error(v),
        Verb::Ping(v) => json!({ "echo": hex(&v.echo) }),
        Verb::Pong(v) => json!({ "echo": hex(&v.echo) }),
        Verb::Drain(v) => json!({ "reason": v.reason.0, "grace_ms": v.grace_ms }),
        Verb::Bye(_) | Verb::Done(_) | Verb::NotFound(_) | Verb::Stats(_) => json!({}),
        Verb::TopicCreate(v) => json!({ "settings": settings(&v.settings) }),
        Verb::TopicConfigure(v) => json!({ "settings": settings(&v.settings) }),
        Verb::TopicDescribe(_) | Verb::TopicDelete(_) => json!({}),
        Verb::TopicList(v) => {
            json!({ "limit": v.limit, "after": v.after.as_ref().map(|name| name.as_str()) })
        }
        Verb::TopicPurge(v) => json!({ "below": v.below.0 }),
        Verb::TopicInfo(v) => topic(v),
        Verb::TopicInfos(v) => {
            json!({ "more": v.more, "topics": v.topics.iter().map(topic).collect::<Vec<_>>() })
        }
        Verb::Publish(v) => json!({
            "options": options(&v.options), "not_before": v.not_before.map(|time| time.0),
            "messages": messages(&v.records),
        }),
        Verb::PublishAck(v) => json!({ "parts": v.parts.iter().map(ack).collect::<Vec<_>>() }),
        Verb::Commit(v) => commit(v),
        Verb::CancelDelayed(v) => json!({ "id": v.id.0 }),
        Verb::Cancelled(v) => json!({ "was_waiting": v.was_waiting }),
        Verb::DeliveryReport(v) => {
            let failed = v.failed.iter();
            let failed = failed.map(|each| [each.subscriber.to_string(), each.status.to_string()]);
            json!({
                "status": v.status.name(), "delivered": v.delivered, "unnamed": v.unnamed,
                "failed": failed.collect::<Vec<_>>(),
            })
        }
        Verb::Subscribe(v) => {
            let mut fields = json!({
                "credit_messages": v.credit_messages, "credit_bytes": v.credit_bytes,
                "from": start(&v.from),
            });
            if let Some(identity) = &v.identity {
                fields["identity"] = identity.as_str().into();
            }
            fields
        }
        Verb::AwaitVisible(v) => json!({ "wait_ms": v.wait_ms }),
        Verb::Visible(v) => {
            let nodes: Vec<&str> = v.nodes.iter().map(|node| node.as_str()).collect();
            json!({ "unseen": v.unseen, "nodes": nodes })
        }
        Verb::Subscribed(v) => json!({ "subscription": v.subscription, "token": token(&v.token) }),
        Verb::Unsubscribe(v) if v.hold => json!({ "subscription": v.subscription, "hold": true }),
        Verb::Unsubscribe(v) => json!({ "subscription": v.subscription }),
        Verb::Unsubscribed(v) => {
            json!({ "subscription": v.subscription, "token": token(&v.token) })
        }
        Verb::Messages(v) => json!({
            "subscription": v.subscription, "from": v.from.0, "to": v.to.0,
            "last_position": v.last_position.0,
            "batches": v.batches.iter().map(|each| batch(&each)).collect::<Vec<_>>(),
        }),
        Verb::RecoveryResponse(v) => {
            let (unit, from, to) = match v.range {
                PlaceRange::Seqs(from, to) => ("seq", from.0, to.0),
                PlaceRange::Positions(from, to) => ("position", from.0, to.0),
            };
            json!({ "subscription": v.subscription, "unit": unit, "from": from, "to": to })
        }
        Verb::RecoveryComplete(v) => {
            json!({ "subscription": v.subscription, "token": token(&v.token) })
        }
        Verb::Gap(v) => json!({
            "subscription": v.subscription, "reason": v.gap.reason.code(), "token": token(&v.token),
            "from": v.gap.from.map(|seq| seq.0), "to": v.gap.to.map(|seq| seq.0),
            "positions": v.gap.positions.map(|(first, last)| [first.0, last.0]),
        }),
        Verb::Credit(v) => {
            json!({ "subscription": v.subscription, "messages": v.messages, "bytes": v.bytes })
        }
        Verb::Ended(v) => json!({
            "subscription": v.subscription, "token": token(&v.token), "error": error(&v.error),
        }),
        Verb::Get(v) => json!({ "key": hex(&v.key) }),
        Verb::Read(v) => json!({ "seq": v.seq.0 }),
        Verb::Found(v) => json!({
            "seq": v.seq.0, "position": v.position.0, "time": v.time.0,
            "messages": messages(&v.records),
        }),
        Verb::CellRead(v) => json!({ "name": hex(&v.name) }),
        Verb::CellValue(v) => json!({ "value": v.value.as_ref().map(|value| hex(value)) }),
        Verb::Clients(v) => json!({ "after": v.after, "limit": v.limit }),
        Verb::ClientClose(v) => json!({ "session": v.session }),
        Verb::ClientList(v) => {
            json!({ "more": v.more, "clients": v.clients.iter().map(client).collect::<Vec<_>>() })
        }
        Verb::StatsText(v) => json!({ "json": v.json }),
        Verb::Auth(v) => json!({ "json": v.json }),
        Verb::AuthAnswer(v) => json!({ "json": v.json }),
        Verb::Cluster(v) => json!({ "json": v.json }),
        Verb::ClusterAnswer(v) => json!({ "json": v.json }),
        Verb::Explain(v) => json!({ "topic": v.topic.as_str(), "seq": v.seq.0 }),
        Verb::Explained(v) => json!({ "json": v.json }),
        other => super::groups::meaning(other),
    }
}

pub(crate) fn error(error: &ErrorAnswer) -> Value {
    let fate = match error.fate {
        Fate::DidNotHappen => "did-not-happen",
        Fate::Unknown => "unknown",
    };
    let mut fields = json!({ "code": error.code, "fate": fate, "message": error.message });
    if let Some(ms) = error.retry_after_ms {
        fields["retry_after_ms"] = ms.into();
    }
    fields
}

fn token(token: &Token) -> Value {
    json!({ "epoch": token.epoch.0, "position": token.position.0 })
}

fn settings(s: &TopicSettings) -> Value {
    json!({
        "storage": s.storage.name(), "durability": s.durability.map(|it| it.name()),
        "retention_age_ms": s.retention.age.map(|age| age.as_millis()),
        "retention_bytes": s.retention.bytes, "retention_count": s.retention.count,
        "tombstone_grace_ms": s.compaction.map(|it| it.tombstone_grace.as_millis()),
        "dedup_time_ms": s.dedup.time.as_millis(), "dedup_count": s.dedup.count,
        "delivery": s.delivery.map(|it| it.name()), "partition": s.partition.map(|it| it.name()),
        "require_subscribers": s.require_subscribers, "max_message_bytes": s.max_message_bytes,
    })
}

fn topic(info: &TopicInfo) -> Value {
    json!({
        "name": info.name.as_str(), "id": info.id, "first": info.first.0, "next": info.next.0,
        "bytes": info.bytes, "settings": settings(&info.settings),
    })
}

fn expect(expect: Option<Expect>) -> Value {
    match expect {
        None => Value::Null,
        Some(Expect::TopicLast(seq)) => json!({ "topic_last": seq.0 }),
        Some(Expect::KeyLast(seq)) => json!({ "key_last": seq.0 }),
    }
}

fn options(o: &PublishOptions) -> Value {
    let mut fields = json!({
        "durability": o.durability.map(|it| it.name()), "delivery": o.delivery.map(|it| it.name()),
        "partition": o.partition.map(|it| it.name()),
        "require_subscribers": o.require_subscribers, "expect": expect(o.expect),
    });
    if o.report {
        fields["report"] = true.into();
    }
    fields
}

fn message(message: &Message) -> Value {
    let header = |(name, value): &(String, bytes::Bytes)| json!([name, hex(value)]);
    json!({
        "key": message.key.as_ref().map(|key| hex(key)),
        "id": message.id.as_ref().map(|id| hex(id)),
        "ttl_ms": message.ttl.map(|ttl| ttl.as_millis()),
        "headers": message.headers.iter().map(header).collect::<Vec<_>>(),
        "body": message.body.as_ref().map(|body| hex(body)),
    })
}

/// The messages of records, read the way a batch is.
pub(crate) fn messages(records: &Records) -> Vec<Value> {
    let header = gapless_core::EntryHeader::new(EntryKind::Batch);
    let mut bytes = bytes::BytesMut::new();
    header.put(&mut bytes, &records.bytes, 0, |_| 0);
    let entry = gapless_core::Entry { header, bytes: bytes.freeze() };
    let batch = Batch::new(entry).expect("a batch");
    batch.records().map(|record| message(&batch.message(&record))).collect()
}

pub(crate) fn batch(batch: &Batch) -> Value {
    let header = batch.header();
    let one = |record: gapless_core::Record<'_>| {
        let mut value = message(&batch.message(&record));
        value["seq"] = batch.seq_of(&record).0.into();
        value
    };
    json!({
        "topic": header.topic.0, "seq": header.seq.0, "position": header.position.0,
        "time": header.time.0, "span": header.span, "count": header.count,
        "flags": header.flags, "ttl_min_ms": header.ttl_min_ms,
        "messages": batch.records().map(one).collect::<Vec<_>>(),
    })
}

fn ack(part: &PartAck) -> Value {
    match part {
        PartAck::Accepted(PartAccepted { accepted, count, known }) => json!({
            "ack": "accepted", "first": accepted.first.0, "last": accepted.last.0,
            "position": accepted.position.0, "durability": accepted.durability.name(),
            "duplicate": accepted.duplicate, "count": count,
            "known": match known {
                Known::None => json!("none"),
                Known::These(these) => {
                    let one = |(index, seq): &(u32, gapless_core::Seq)| json!([index, seq.0]);
                    these.iter().map(one).collect::<Value>()
                }
                Known::Some => json!("some"),
            },
        }),
        PartAck::Scheduled { id, due } => json!({ "ack": "scheduled", "id": id.0, "due": due.0 }),
        PartAck::Rejected(rejection) => {
            let detail = match rejection {
                Rejection::Reason(gapless_core::RejectReason::ExpectedSeq { actual }) => {
                    json!({ "actual": actual.0 })
                }
                Rejection::Reason(gapless_core::RejectReason::TooLarge { bytes, max }) => {
                    json!({ "bytes": bytes, "max": max })
                }
                Rejection::Reason(_) => Value::Null,
                Rejection::Other { detail, .. } => json!(hex(detail)),
            };
            json!({ "ack": "rejected", "code": rejection.code(), "detail": detail })
        }
    }
}

pub(crate) fn commit(v: &Commit) -> Value {
    let part = |part: &CommitPart| {
        json!({
            "topic": part.topic.as_str(), "expect": expect(part.expect),
            "messages": messages(&part.records),
        })
    };
    let cell = |cell: &CellWrite| {
        let value = cell.value.as_ref().map(|value| hex(value));
        let mut shown = json!({ "name": hex(&cell.name), "value": value });
        match &cell.expect {
            ExpectCell::Anything => {}
            ExpectCell::Absent => shown["expect"] = json!("absent"),
            ExpectCell::Value(value) => shown["expect"] = json!(hex(value)),
        }
        shown
    };
    json!({
        "options": options(&v.options), "parts": v.parts.iter().map(part).collect::<Vec<_>>(),
        "cells": v.cells.iter().map(cell).collect::<Vec<_>>(),
    })
}

fn start(from: &StartFrom) -> Value {
    match from {
        StartFrom::Beginning => json!("beginning"),
        StartFrom::Seq(seq) => json!({ "seq": seq.0 }),
        StartFrom::Token(it) => json!({ "token": token(it) }),
        StartFrom::Time(time) => json!({ "time": time.0 }),
        StartFrom::Now => json!("now"),
        StartFrom::LastPerKey => json!("last-per-key"),
    }
}

fn client(client: &ClientInfo) -> Value {
    let follow = |follow: &FollowInfo| {
        let place = match follow.place {
            Place::Seq(seq) => json!({ "seq": seq.0 }),
            Place::Position(position) => json!({ "position": position.0 }),
        };
        json!({
            "subscription": follow.subscription, "state": follow.state.name(), "place": place,
            "recovery_steps": follow.recovery_steps, "pattern": follow.pattern.as_str(),
        })
    };
    let membership = |each: &MembershipInfo| {
        json!({
            "membership": each.membership, "id": each.id, "in_flight": each.in_flight,
            "window": each.window, "active": each.active, "group": each.group.as_str(),
            "name": each.name,
        })
    };
    let mut shown = json!({
        "session": client.session, "since": client.since.0, "state": client.state.name(),
        "name": client.name, "address": client.address,
        "follows": client.follows.iter().map(follow).collect::<Vec<_>>(),
    });
    if !client.memberships.is_empty() {
        shown["memberships"] = client.memberships.iter().map(membership).collect();
    }
    shown
}
