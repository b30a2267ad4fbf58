//! Questions about topics, messages, clients and the server, and their answers.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use gapless_auth::{Caller, Command};
use gapless_broker::{Delivered, MemberInfo, SubscriberInfo, SubscriberState};
use gapless_core::rights::Right;
use gapless_core::{Message, Pattern, Position, RecordsBuilder, Seq, Timestamp, TopicName};
use gapless_protocol::{
    AuthAnswer, Cancelled, ClientInfo, ClientList, ClientState, ClusterAnswer, Done, ErrorCode,
    Explained, FollowInfo, Found, FrameLimit, MembershipInfo, NotFound, Place, Publish, StatsText,
    TopicInfos, Verb,
};

use gapless_protocol::verbs::lookup::FOLLOWS_SHOWN_MAX;
use gapless_protocol::verbs::session::NAME_TEXT_BYTES_MAX;

use crate::answers::{self, error, journal_json, or_error, state_name, topic_error, trouble};
use crate::cluster;
use crate::json;
use crate::native::group_requests;
use crate::native::server::Shared;
use crate::session::sessions::Session;

/// Topics or clients in one answer, at most.
pub(crate) const LIST_MAX: usize = 1000;
/// Bytes of a page before its items, at most.
const PAGE_FIELDS_BYTES: usize = 16;
/// Bytes of a topic without its name, at most: numbers, settings and lengths.
const TOPIC_BYTES: usize = 160;
/// Bytes of a client without names and subscriptions, at most.
const CLIENT_BYTES: usize = 32;
/// Bytes of a subscription without its pattern, at most.
const FOLLOW_BYTES: usize = 32;
/// Bytes of a membership without its names, at most.
const MEMBERSHIP_BYTES: usize = 40;

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
pub(crate) fn answer(shared: &Shared, caller: &Caller, verb: Verb) -> Verb {
    let broker = &shared.broker;
    match verb {
        Verb::TopicConfigure(asked) => {
            or_error(broker.configure_topic(&asked.topic, asked.settings), |info| info.into())
        }
        Verb::TopicDescribe(asked) => {
            or_error(broker.describe_topic(&asked.topic), |info| info.into())
        }
        Verb::TopicDelete(asked) => or_error(broker.delete_topic(&asked.topic), |()| Done.into()),
        Verb::TopicPurge(asked) => {
            or_error(broker.purge(&asked.topic, asked.below), |_| Done.into())
        }
        Verb::TopicList(asked) => {
            let limit = (asked.limit as usize).clamp(1, LIST_MAX);
            let mut topics = broker.list_topics(&asked.pattern);
            topics.retain(|info| caller.sees(Right::Read, &info.name));
            if let Some(after) = &asked.after {
                topics.retain(|info| info.name > *after);
            }
            let room = page_bytes(shared);
            let fitting = fits(&topics, room, |info| TOPIC_BYTES + info.name.as_str().len());
            let limit = limit.min(fitting);
            let more = topics.len() > limit;
            topics.truncate(limit);
            TopicInfos { topics, more }.into()
        }
        Verb::Get(asked) => or_error(broker.latest(&asked.topic, &asked.key), found_or_not),
        Verb::Read(asked) => or_error(broker.read(&asked.topic, asked.seq), found_or_not),
        Verb::Explain(asked) => or_error(broker.explain(&asked.topic, asked.seq), |explained| {
            let sees = |group: &TopicName| caller.sees(Right::Group, group);
            Explained { json: json::explained(&explained, sees).to_string() }.into()
        }),
        Verb::Auth(asked) => auth_answer(caller, &asked.json),
        Verb::CancelDelayed(asked) => match may_cancel(caller, asked.id) {
            Err(refused) => *refused,
            Ok(()) => match broker.cancel_delayed_blocking(asked.id) {
                Ok(was_waiting) => Cancelled { was_waiting }.into(),
                Err(failed) => trouble(&failed).into(),
            },
        },
        Verb::Cluster(asked) => match cluster::answer(broker, &asked.json) {
            Ok(status) => ClusterAnswer { json: status.to_string() }.into(),
            Err(why) => error(ErrorCode::BadPayload, &why).into(),
        },
        Verb::ClientClose(asked) => close_client(shared, caller, asked.session),
        Verb::Stats(_) => StatsText { json: stats(shared).to_string() }.into(),
        other => group_requests::answer(shared, caller, other),
    }
}

fn close_client(shared: &Shared, caller: &Caller, session: u64) -> Verb {
    let neighbours = shared.neighbours();
    let mut all = std::iter::once(&shared.sessions).chain(&neighbours);
    if !all.any(|sessions| sessions.close(session)) {
        let why = format_args!("no client has session {session}");
        return error(ErrorCode::UnknownClient, &why).into();
    }
    caller.audit_change("client closed", &session.to_string());
    Done.into()
}

/// Whether the caller may take back a message: it may if it may publish to the topic.
fn may_cancel(caller: &Caller, id: Position) -> Result<(), Box<Verb>> {
    let topic = caller.broker().delayed_topic(id);
    let topic = topic.map_err(|failed| Box::new(Verb::Error(topic_error(&failed))))?;
    let Some(topic) = topic else { return Ok(()) };
    let may = caller.may(Right::Publish, &topic);
    may.map_err(|denied| Box::new(error(ErrorCode::NotAuthorised, &denied).into()))
}

fn auth_answer(caller: &Caller, json: &str) -> Verb {
    let done = Command::parse(json.as_bytes()).and_then(|command| caller.command(command));
    match done {
        Ok(answer) => AuthAnswer { json: answer.to_string() }.into(),
        Err(failed) => error(answers::command_code(&failed), &failed).into(),
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
    serde_json::json!({
        "state": state_name(shared.broker.state()),
        "epoch": shared.broker.epoch().to_string(),
        "connections": shared.sessions().len(),
        "subscriptions": shared.broker.subscribers().len(),
        "delayed": shared.broker.delayed_len(),
        "journal": journal_json(&shared.broker.journal_stats()),
    })
}

pub(crate) fn client_list(shared: &Shared, after: u64, limit: u32) -> ClientList {
    let limit = (limit as usize).clamp(1, LIST_MAX);
    let mut sessions = shared.sessions.after(after);
    for neighbour in shared.neighbours() {
        sessions.extend(neighbour.after(after));
    }
    sessions.sort_unstable_by_key(|session| session.number);
    let known: BTreeMap<u64, SubscriberInfo> =
        shared.broker.subscribers().into_iter().map(|info| (info.id, info)).collect();
    let room = page_bytes(shared);
    let clients = sessions.iter().take(limit).map(|session| client_info(session, &known, room));
    let mut clients: Vec<ClientInfo> = clients.collect();
    clients.truncate(fits(&clients, room, client_bytes));
    let more = sessions.len() > clients.len();
    ClientList { clients, more }
}

/// Bytes of the items of one page, so that it fits into a frame.
pub(crate) fn page_bytes(shared: &Shared) -> usize {
    FrameLimit::at_most(shared.options.frame_bytes_max).payload_bytes("") - PAGE_FIELDS_BYTES
}

/// How many of the items fit into a page; at least one.
pub(crate) fn fits<T>(items: &[T], room: usize, bytes_of: impl Fn(&T) -> usize) -> usize {
    let mut left = room;
    let fit = |item: &&T| left.checked_sub(bytes_of(item)).map(|rest| left = rest).is_some();
    items.iter().take_while(fit).count().max(1)
}

fn client_bytes(client: &ClientInfo) -> usize {
    let follows = client.follows.iter().map(follow_bytes).sum::<usize>();
    let memberships = client.memberships.iter().map(membership_bytes).sum::<usize>();
    CLIENT_BYTES + client.name.len() + client.address.len() + follows + memberships
}

fn membership_bytes(each: &MembershipInfo) -> usize {
    MEMBERSHIP_BYTES + each.group.as_str().len() + each.name.len()
}

fn follow_bytes(follow: &FollowInfo) -> usize {
    FOLLOW_BYTES + follow.pattern.as_str().len()
}

fn client_info(
    session: &Session,
    known: &BTreeMap<u64, SubscriberInfo>,
    room: usize,
) -> ClientInfo {
    let state = |state: SubscriberState| match state {
        SubscriberState::Connected => ClientState::Connected,
        SubscriberState::Recovering => ClientState::Recovering,
        SubscriberState::Online => ClientState::Online,
        SubscriberState::Offline => ClientState::Offline,
    };
    let follows = session.follows.lock().unwrap_or_else(PoisonError::into_inner);
    let follow = |(number, (broker_id, by_topic)): &(u64, (u64, bool))| {
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
    let mut follows: Vec<FollowInfo> =
        follows.iter().filter_map(follow).take(FOLLOWS_SHOWN_MAX).collect();
    // One client alone must fit too, with the longest of names.
    // Half of the room is for either of both lists.
    let room = (room - CLIENT_BYTES - 2 * NAME_TEXT_BYTES_MAX) / 2;
    follows.truncate(fits(&follows, room, follow_bytes));
    let membership = |(number, group, info): (u64, TopicName, MemberInfo)| MembershipInfo {
        membership: number,
        id: info.id,
        in_flight: info.in_flight,
        window: info.window,
        active: info.active,
        group,
        name: info.name,
    };
    let mut memberships: Vec<MembershipInfo> =
        session.memberships().into_iter().map(membership).take(FOLLOWS_SHOWN_MAX).collect();
    memberships.truncate(fits(&memberships, room, membership_bytes));
    let recovering = follows.iter().any(|each| each.state == ClientState::Recovering);
    let connected = follows.is_empty() && memberships.is_empty();
    let state = match (connected, recovering) {
        (true, _) => ClientState::Connected,
        (_, true) => ClientState::Recovering,
        (_, false) => ClientState::Online,
    };
    let name = session.name();
    let (number, since, address) = (session.number, session.since, session.address.to_string());
    ClientInfo { session: number, since, state, name, address, follows, memberships }
}
