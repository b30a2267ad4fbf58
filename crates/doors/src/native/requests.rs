//! Questions about topics, messages, clients and the server, and their answers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use gapless_broker::{Delivered, SubscriberInfo, SubscriberState, block_on};
use gapless_core::{Message, Pattern, Position, RecordsBuilder, Seq, Timestamp};
use gapless_protocol::{
    Cancelled, ClientInfo, ClientList, ClientState, Done, ErrorCode, FollowInfo, Found, NotFound,
    Place, Publish, StatsText, TopicInfos, Verb,
};

use crate::native::answers::{error, or_error, topic_info, trouble};
use crate::native::server::{Session, Shared};

/// Topics or clients in one answer, at most.
const LIST_MAX: usize = 1000;

/// A delayed message; `None` when there is not exactly one.
pub(crate) fn delayed(publish: &Publish, at: Timestamp) -> Option<Message> {
    let mut records = publish.records.iter();
    match (records.next(), records.next()) {
        (Some(record), None) => {
            let message = record.to_message(&publish.records.bytes);
            Some(message.with_not_before(at))
        }
        _ => None,
    }
}

/// Answers a question; may block.
pub(crate) fn answer(shared: &Shared, verb: Verb) -> Verb {
    let broker = &shared.broker;
    match verb {
        Verb::TopicCreate(asked) => {
            or_error(broker.create_topic(&asked.topic, asked.settings), |info| {
                topic_info(info).into()
            })
        }
        Verb::TopicConfigure(asked) => {
            or_error(broker.configure_topic(&asked.topic, asked.settings), |info| {
                topic_info(info).into()
            })
        }
        Verb::TopicDescribe(asked) => {
            or_error(broker.describe_topic(&asked.topic), |info| topic_info(info).into())
        }
        Verb::TopicDelete(asked) => or_error(broker.delete_topic(&asked.topic), |()| Done.into()),
        Verb::TopicPurge(asked) => {
            or_error(broker.purge(&asked.topic, asked.below), |_| Done.into())
        }
        Verb::TopicList(asked) => {
            let limit = (asked.limit as usize).clamp(1, LIST_MAX);
            let mut topics = broker.list_topics(&asked.pattern);
            if let Some(after) = &asked.after {
                topics.retain(|info| info.name > *after);
            }
            let more = topics.len() > limit;
            topics.truncate(limit);
            TopicInfos { topics: topics.into_iter().map(topic_info).collect(), more }.into()
        }
        Verb::Get(asked) => {
            or_error(broker.latest(&asked.topic, &asked.key), found_or_not)
        }
        Verb::Read(asked) => {
            or_error(broker.read(&asked.topic, asked.seq), found_or_not)
        }
        Verb::CancelDelayed(asked) => {
            match block_on(broker.cancel_delayed(asked.id)) {
                Ok(was_waiting) => Cancelled { was_waiting }.into(),
                Err(failed) => trouble(&failed).into(),
            }
        }
        Verb::Stats(_) => StatsText { json: stats(shared).to_string() }.into(),
        other => {
            let name = other.kind().name();
            error(ErrorCode::NotOffered, &format!("{name} is not offered")).into()
        }
    }
}

fn found_or_not(found: Option<Delivered>) -> Verb {
    let Some(found) = found else { return NotFound.into() };
    let mut records = RecordsBuilder::default();
    match records.push(&found.message) {
        Ok(()) => Found {
            seq: found.seq,
            position: found.position,
            time: found.time,
            records: records.finish(),
        }
        .into(),
        Err(failed) => error(ErrorCode::Internal, &failed).into(),
    }
}

fn stats(shared: &Shared) -> serde_json::Value {
    let journal = shared.broker.journal_stats();
    serde_json::json!({
        "state": format!("{:?}", shared.broker.state()),
        "epoch": shared.broker.epoch().to_string(),
        "connections": shared.sessions().len(),
        "subscriptions": shared.broker.subscribers().len(),
        "delayed": shared.broker.delayed_len(),
        "journal": {
            "frames": journal.frames,
            "bytes": journal.bytes,
            "flushes": journal.flushes,
            "flush_us_mean": (journal.flush_time.as_micros() as u64)
                .checked_div(journal.flushes).unwrap_or(0),
            "flush_us_max": journal.flush_time_max.as_micros() as u64,
            "tail_bytes": journal.tail_bytes,
            "segments": journal.segments,
            "segment_bytes": journal.segment_bytes,
            "full": journal.full,
        },
    })
}

pub(crate) fn client_list(shared: &Shared, after: u64, limit: u32) -> ClientList {
    let limit = (limit as usize).clamp(1, LIST_MAX);
    let sessions: Vec<Arc<Session>> =
        shared.sessions().range(after + 1..).map(|(_, session)| Arc::clone(session)).collect();
    let more = sessions.len() > limit;
    let known: BTreeMap<u64, SubscriberInfo> =
        shared.broker.subscribers().into_iter().map(|info| (info.id, info)).collect();
    let clients = sessions.iter().take(limit).map(|session| client_info(session, &known));
    ClientList { clients: clients.collect(), more }
}

fn client_info(
    session: &Session,
    known: &BTreeMap<u64, SubscriberInfo>,
) -> ClientInfo {
    let state = |state: SubscriberState| match state {
        SubscriberState::Connected => ClientState::Connected,
        SubscriberState::Recovering => ClientState::Recovering,
        SubscriberState::Online => ClientState::Online,
        SubscriberState::Offline => ClientState::Offline,
    };
    let follows = session.follows.lock().unwrap_or_else(PoisonError::into_inner);
    let follow = |(number, (broker_id, by_topic)): (&u64, &(u64, bool))| {
        let info = known.get(broker_id)?;
        let place = if *by_topic {
            Place::Seq(Seq(info.place))
        } else {
            Place::Position(Position(info.place))
        };
        Some(FollowInfo {
            subscription: *number,
            state: state(info.state),
            place,
            recovery_steps: info.recovery_steps,
            pattern: Pattern::parse(&info.pattern).ok()?,
        })
    };
    let follows: Vec<FollowInfo> = follows.iter().filter_map(follow).collect();
    let recovering = follows.iter().any(|each| each.state == ClientState::Recovering);
    let connected = follows.is_empty();
    let state = match (connected, recovering) {
        (true, _) => ClientState::Connected,
        (_, true) => ClientState::Recovering,
        (_, false) => ClientState::Online,
    };
    let name = session.name.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (number, since, address) = (session.number, session.since, session.address.clone());
    ClientInfo { session: number, since, state, name, address, follows }
}
