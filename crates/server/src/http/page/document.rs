//! The state of the server as one JSON document: what programs get, and what the page shows.
//!
//! Each part is there if the view asks for it; lists have the lines of one page only. The
//! fields are described in `docs/http.md`.

use std::cmp::Reverse;

use gapless_auth::Caller;
use gapless_broker::{Broker, MemberInfo, SubscriberState};
use gapless_core::{Pattern, Timestamp, TopicName};
use serde_json::{Map, Value, json};

use crate::answers;
use crate::cluster;
use crate::http::page::clients::Client;
use crate::http::page::groups;
use crate::http::page::may;
use crate::http::page::sampler::Sampler;
use crate::http::page::sampling::{Point, Sampling, micros};
use crate::http::page::topics::Topic;
use crate::http::page::view::{Sort, View};

/// Builds the document of a view.
pub(crate) fn document(
    broker: &Broker,
    sampler: &Sampler,
    opened: Timestamp,
    (view, caller): (&View, &Caller),
) -> Map<String, Value> {
    let viewers = sampler.viewers();
    // Before anything is locked: it takes looks into topics.
    let groups = groups::parts(broker, view, caller);
    let sampling = &mut *sampler.sampling();
    let mut parts = Map::new();
    parts.insert("tick".into(), sampling.tick.into());
    parts.insert("server".into(), server(broker, opened, viewers));
    parts.insert("may".into(), may::server(caller));
    parts.extend(groups);
    if view.overview {
        parts.insert("totals".into(), totals(broker, sampling));
        parts.insert("rates".into(), rates(sampling));
        parts.insert("journal".into(), journal(sampling));
        parts.insert("flush".into(), flush(sampling));
        parts.insert("recovery".into(), recovery(sampling));
        parts.insert("process".into(), sampling.process.shown());
    }
    if view.overview || view.jobs {
        parts.insert("history".into(), history(sampling));
    }
    if view.topics {
        parts.insert("topics".into(), topics(broker, sampling, view));
    }
    if let Some(name) = &view.topic {
        let topic = sampling.topics.find(name);
        let row = |topic: &Topic| {
            let mut row = topic_row(broker, sampling, topic);
            row["may"] = may::topic(caller, topic.name());
            row
        };
        parts.insert("topic".into(), topic.map(row).into());
    }
    if view.clients {
        parts.insert("subscribers".into(), clients(broker, sampling, view));
    }
    if view.outbox {
        parts.insert("outbox".into(), sampler.outbox());
    }
    if view.cluster {
        parts.insert("cluster".into(), cluster::status(broker));
    }
    if view.jobs {
        parts.insert("jobs".into(), sampling.jobs.shown(view.rows));
    }
    if view.events {
        parts.insert("events".into(), events(sampling));
    }
    parts
}

fn server(broker: &Broker, opened: Timestamp, viewers: usize) -> Value {
    json!({
        "name": "gapless",
        "version": env!("CARGO_PKG_VERSION"),
        "state": answers::state_name(broker.state()),
        "trouble": broker.failure(),
        "epoch": broker.epoch().to_string(),
        "since_ms": opened.0,
        "viewers": viewers,
    })
}

fn totals(broker: &Broker, sampling: &Sampling) -> Value {
    let (messages, bytes) = sampling.topics.total();
    json!({
        "topics": sampling.topics.count(),
        "messages": messages,
        "bytes_in": bytes,
        "messages_out": sampling.topics.messages_out(),
        "bytes_out": sampling.delivery.delivered_bytes,
        "position": broker.next_position().0.saturating_sub(1),
        "delayed": broker.delayed_len(),
        "sessions": sampling.clients.sessions,
        "connected": sampling.clients.count(SubscriberState::Connected),
        "online": sampling.clients.count(SubscriberState::Online),
        "recovering": sampling.clients.count(SubscriberState::Recovering),
        "offline": sampling.clients.count(SubscriberState::Offline),
    })
}

fn rates(sampling: &Sampling) -> Value {
    json!({
        "messages_in": sampling.rate(|point| point.messages_in).map(rounded),
        "messages_out": sampling.rate(|point| point.messages_out).map(rounded),
        "bytes_in": sampling.rate(|point| point.bytes_in).map(rounded),
        "bytes_out": sampling.rate(|point| point.bytes_out).map(rounded),
        "recovered_bytes": sampling.rate(|point| point.recovered_bytes).map(rounded),
        "flushes": sampling.rate(|point| point.flushes).map(rounded),
    })
}

fn journal(sampling: &Sampling) -> Value {
    let stats = &sampling.journal;
    json!({
        "written_bytes": stats.bytes,
        "frames": stats.frames,
        "tail_bytes": stats.tail_bytes,
        "waiting_bytes": stats.waiting_bytes,
        "segments": stats.segments,
        "segment_bytes": stats.segment_bytes,
        "full": stats.full,
    })
}

fn flush(sampling: &Sampling) -> Value {
    let lately = sampling.flushed_lately();
    let stats = &sampling.journal;
    json!({
        "count": stats.flushes,
        "lately": lately.count(),
        "p50_us": lately.quantile(0.5).map(micros),
        "p99_us": lately.quantile(0.99).map(micros),
        "mean_us": micros(stats.flush_time).checked_div(stats.flushes),
        "max_us": micros(stats.flush_time_max),
    })
}

fn recovery(sampling: &Sampling) -> Value {
    json!({
        "recovering": sampling.clients.count(SubscriberState::Recovering),
        "waiting": sampling.journal.recovery_waiting,
        "recovered_bytes": sampling.delivery.recovered_bytes,
    })
}

fn history(sampling: &Sampling) -> Value {
    let per_second = |of: fn(&Point) -> u64| {
        let points = sampling.points.iter();
        points.map(|point| rounded(of(point) as f64 / point.seconds)).collect::<Value>()
    };
    let plain = |of: fn(&Point) -> Option<u64>| sampling.points.iter().map(of).collect::<Value>();
    let mut history = json!({
        "end_ms": plain(|point| Some(point.end_ms)),
        "messages_in": per_second(|point| point.messages_in),
        "messages_out": per_second(|point| point.messages_out),
        "bytes_in": per_second(|point| point.bytes_in),
        "bytes_out": per_second(|point| point.bytes_out),
        "recovered_bytes": per_second(|point| point.recovered_bytes),
        "flush_p50_us": plain(|point| point.flush_p50_us),
        "flush_p99_us": plain(|point| point.flush_p99_us),
        "recovering": plain(|point| Some(point.recovering as u64)),
        "memory_bytes": plain(|point| point.memory_bytes),
    });
    for (name, points) in sampling.jobs.history() {
        history[name] = points;
    }
    history
}

fn topics(broker: &Broker, sampling: &Sampling, view: &View) -> Value {
    let matching = sampling.topics.by_name().filter(|topic| view.filter.matches(topic.name()));
    let mut found: Vec<&Topic> = matching.collect();
    // In tenths, as they are shown.
    let rate = |topic: &&Topic| sampling.rates_of(topic).unwrap_or_default();
    let tenths = |rate: f64| Reverse((rate * 10.0).round() as u64);
    // A stable sort leaves equals in the order of names, so that lines do not jump about.
    match view.sort {
        Sort::Name => {}
        Sort::Rate => found.sort_by_cached_key(|topic| tenths(rate(topic)[0])),
        Sort::Throughput => found.sort_by_cached_key(|topic| tenths(rate(topic)[1])),
        Sort::Out => found.sort_by_cached_key(|topic| tenths(rate(topic)[2])),
        Sort::Size => found.sort_by_key(|topic| Reverse(topic.size())),
        Sort::Messages => found.sort_by_key(|topic| Reverse(topic.counts.next)),
    }
    let (page, pages) = page_of(found.len(), view);
    let rows = found.iter().skip((page - 1) * view.rows).take(view.rows);
    let rows: Vec<Value> = rows.map(|topic| topic_row(broker, sampling, topic)).collect();
    json!({
        "total": sampling.topics.count(), "matching": found.len(),
        "page": page, "pages": pages, "rows": rows,
    })
}

fn topic_row(broker: &Broker, sampling: &Sampling, topic: &Topic) -> Value {
    let rates = sampling.rates_of(topic);
    let size = topic.size().or_else(|| {
        // It is not looked up yet, and a single request cannot wait for that.
        broker.describe_topic(topic.name()).ok().map(|info| info.bytes)
    });
    json!({
        "id": topic.counts.id,
        "name": topic.name().as_str(),
        "first": topic.counts.first.0,
        "next": topic.counts.next.0,
        "bytes": size,
        "messages_per_s": rates.map(|[messages, ..]| rounded(messages)),
        "bytes_per_s": rates.map(|[_, bytes, _]| rounded(bytes)),
        "messages_out_per_s": rates.map(|[.., out]| rounded(out)),
        "messages_out": topic.counts.messages_out,
        "recent": topic.recent().collect::<Vec<_>>(),
    })
}

fn clients(broker: &Broker, sampling: &Sampling, view: &View) -> Value {
    let topic = view.topic.as_deref().map(TopicName::parse).transpose().ok().flatten();
    let follows = |pattern: &str, name: &TopicName| {
        pattern == name.as_str()
            || Pattern::parse(pattern).is_ok_and(|pattern| pattern.matches(name))
    };
    let is_wanted = |client: &&Client| {
        let pattern = client.subscriber.as_ref().map_or("", |each| each.pattern.as_str());
        let in_state = view.state.is_none_or(|state| state == client.state());
        in_state
            && match &topic {
                Some(topic) => follows(pattern, topic),
                None => {
                    let at = client.connected.as_ref();
                    let (name, address) = at.map_or_else(Default::default, |at| {
                        (at.session.name(), &*at.session.address)
                    });
                    view.filter.finds(pattern)
                        || view.filter.finds(&name)
                        || view.filter.finds(address)
                }
            }
    };
    let found: Vec<&Client> = sampling.clients.all().filter(is_wanted).collect();
    let (page, pages) = page_of(found.len(), view);
    let position = broker.next_position().0.saturating_sub(1);
    let rows = found.iter().skip((page - 1) * view.rows).take(view.rows);
    let rows: Vec<Value> = rows.map(|client| client_row(sampling, client, position)).collect();
    json!({
        "total": sampling.clients.all().count(), "matching": found.len(),
        "page": page, "pages": pages, "rows": rows,
        "connected": sampling.clients.count(SubscriberState::Connected),
        "online": sampling.clients.count(SubscriberState::Online),
        "recovering": sampling.clients.count(SubscriberState::Recovering),
        "offline": sampling.clients.count(SubscriberState::Offline),
    })
}

fn client_row(sampling: &Sampling, client: &Client, position: u64) -> Value {
    let mut row = json!({ "id": client.key(), "state": state_name(client.state()) });
    if let Some(subscriber) = &client.subscriber {
        let topic = sampling.topics.find(&subscriber.pattern);
        let end = topic.map_or(position, |topic| topic.counts.next.0 - 1);
        row["pattern"] = subscriber.pattern.as_str().into();
        row["unit"] = if topic.is_some() { "seq" } else { "position" }.into();
        row["place"] = subscriber.place.into();
        row["behind"] = match subscriber.state {
            // One that is live of a pattern waits for what matches; the rest is not its own.
            SubscriberState::Online if topic.is_none() => 0,
            _ => end.saturating_sub(subscriber.place),
        }
        .into();
        row["recovery_to"] = subscriber.recovery_to.into();
        row["recovered_bytes"] = subscriber.recovered_bytes.into();
        row["delivered_bytes"] = subscriber.delivered_bytes.into();
    }
    if let Some(at) = &client.connected {
        row["session"] = json!({
            "listener": at.listener,
            "number": at.session.number,
            "name": at.session.name(),
            "address": &*at.session.address,
            "since_ms": at.session.since.0,
        });
        let member = |(_, group, info): (u64, TopicName, MemberInfo)| {
            json!({
                "group": group.as_str(),
                "name": info.name,
                "in_flight": info.in_flight,
                "window": info.window,
                "active": info.active,
            })
        };
        row["members"] = at.session.memberships().into_iter().map(member).collect();
    }
    row
}

fn events(sampling: &Sampling) -> Value {
    let rows = sampling.events.after(0).map(|(number, event)| {
        let mut row = event.clone();
        row["id"] = (*number).into();
        row
    });
    json!({ "total": sampling.events.count, "rows": rows.collect::<Vec<_>>() })
}

/// The page that is shown, and how many there are: the last one if there are fewer.
pub(crate) fn page_of(count: usize, view: &View) -> (usize, usize) {
    let pages = count.div_ceil(view.rows).max(1);
    (view.page.min(pages), pages)
}

pub(crate) fn state_name(state: SubscriberState) -> &'static str {
    match state {
        SubscriberState::Connected => "connected",
        SubscriberState::Recovering => "recovering",
        SubscriberState::Online => "online",
        SubscriberState::Offline => "offline",
    }
}

/// With one digit after the point: more is noise, and costs room.
fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
