//! Reading a range of a topic, as one JSON object or as a stream of lines.
//!
//! A range ends where the topic ended when it was asked for, so that it ends at all while
//! others publish. It accounts for every seq in it: what is gone is reported as a gap, and what
//! compaction or expiry removed lies between `from` and `to` without being shown.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use gapless_broker::{Delivery, From, GapNotice, Messages, Subscription};
use gapless_core::{Pattern, Seq, Token, TopicName};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::answers::follow_error;
use crate::http::follow::event_stream::stream_permit;
use crate::http::follow::start;
use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::TopicPath;
use crate::http::topics::search::Search;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;
use crate::json::{self as shown, Shown};

/// Messages in one JSON object, at most.
const LIMIT_MAX: usize = 10_000;
/// Messages in one JSON object, unless the request says otherwise.
const LIMIT_DEFAULT: usize = 100;
/// Bytes of the messages in one JSON object, about.
const ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of lines that are sent together, about.
const PIECE_BYTES: usize = 256 * 1024;
/// How long a reader may wait for the first message.
const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn read(
    State(shared): State<Arc<Shared>>,
    TopicPath(topic): TopicPath,
    mut params: Params,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let from = params.text("from")?.map_or(Ok(From::Beginning), |text| start::parse(&text))?;
    let to = params.number("to")?.map(Seq);
    let wait = params.number("wait_ms")?.map(Duration::from_millis);
    let search = Search::parse(&mut params)?;
    let lines = match params.text("format")?.as_deref() {
        None => accepts_lines(&headers),
        Some("ndjson") => true,
        Some("json") => false,
        Some(_) => return Err(Problem::bad_request("format is json or ndjson")),
    };
    let (default, max) = if lines { (usize::MAX, usize::MAX) } else { (LIMIT_DEFAULT, LIMIT_MAX) };
    let limit = params.count("limit", default, max)?;
    params.finish()?;
    let permit = stream_permit(&shared)?;
    let mut range = Range::open(&shared, topic, from, to, permit).await?;
    (range.left, range.search) = (limit, search);
    if lines {
        return Ok(range.into_lines());
    }
    if let Some(wait) = wait {
        range.wait(wait.min(WAIT_MAX)).await?;
    }
    range.into_object().await
}

fn accepts_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("ndjson") || accept.contains("jsonl"))
}

/// A reader on its way through a range.
struct Range {
    subscription: Subscription,
    topic: TopicName,
    /// The first seq that is not in it.
    end: Seq,
    /// How many messages may still be shown.
    left: usize,
    /// Which messages are shown; without it all are.
    search: Option<Search>,
    /// Whether history is done: then what is not there at once is not in the range.
    live: bool,
    over: bool,
    first: Option<Seq>,
    next: Option<Seq>,
    cursor: Token,
    /// What came while the reader waited.
    unread: Option<Messages>,
    _permit: OwnedSemaphorePermit,
}

/// What there is next in a range.
enum Found {
    Messages(Messages),
    Gap(GapNotice),
}

impl Range {
    async fn open(
        shared: &Arc<Shared>,
        topic: TopicName,
        from: From,
        to: Option<Seq>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, Problem> {
        let broker = shared.broker.clone();
        let opened = blocking(move || {
            let info = broker.describe_topic(&topic)?;
            let pattern = Pattern::parse(topic.as_str()).map_err(Problem::bad_request)?;
            let subscription = broker.subscribe(&pattern, from)?;
            Ok((topic, info, subscription))
        });
        let (topic, info, subscription): (_, _, Subscription) =
            opened.await?.map_err(|problem: Problem| problem)?;
        let end = to.map_or(info.next, |to| info.next.min(to.next()));
        let cursor = subscription.token();
        let next = match from {
            From::Seq(seq) => Some(seq),
            From::Now => Some(info.next),
            From::Beginning | From::LastPerKey => Some(info.first),
            From::Token(_) | From::Time(_) => None,
        };
        // If all of it is gone, the subscription reports that, and where it goes on.
        let over = next.is_some_and(|next| next >= end);
        Ok(Self {
            subscription,
            topic,
            end,
            left: 0,
            search: None,
            live: false,
            over,
            first: None,
            next,
            cursor,
            unread: None,
            _permit: permit,
        })
    }

    /// Waits for something behind the end, if there is nothing before it.
    async fn wait(&mut self, wait: Duration) -> Result<(), Problem> {
        if !self.over {
            return Ok(());
        }
        let arrived = async {
            loop {
                match self.subscription.next().await {
                    Ok(Delivery::Messages(messages)) => return Ok(messages),
                    Ok(_) => {}
                    Err(failed) => return Err(Problem::from(follow_error(&failed))),
                }
            }
        };
        let Ok(messages) = tokio::time::timeout(wait, arrived).await else { return Ok(()) };
        let messages = messages?;
        self.end = messages.to().next();
        self.over = false;
        self.live = true;
        self.unread = Some(messages);
        Ok(())
    }

    /// The next part of the range; `None` when it is over.
    async fn step(&mut self) -> Result<Option<Found>, Problem> {
        if let Some(messages) = self.unread.take() {
            return Ok(Some(Found::Messages(messages)));
        }
        while !self.over && self.left > 0 {
            let live = self.live;
            let delivery =
                std::future::poll_fn(|context| match self.subscription.poll_next(context) {
                    Poll::Pending if live => Poll::Ready(None),
                    polled => polled.map(Some),
                });
            match delivery.await.transpose().map_err(|failed| follow_error(&failed))? {
                None => self.over = true,
                Some(Delivery::Live) => self.live = true,
                Some(Delivery::Recovering { .. }) => self.live = false,
                Some(Delivery::Gap(gap)) => {
                    if let Some(to) = gap.to {
                        self.account(gap.from.unwrap_or(to), to.next());
                        self.cursor = self.subscription.token();
                    }
                    return Ok(Some(Found::Gap(gap)));
                }
                Some(Delivery::Messages(messages)) => {
                    if messages.from() < self.end {
                        return Ok(Some(Found::Messages(messages)));
                    }
                    self.over = true;
                }
            }
        }
        Ok(None)
    }

    fn account(&mut self, from: Seq, next: Seq) {
        self.first.get_or_insert(from);
        self.next = Some(next);
        self.over |= next >= self.end;
    }

    /// Appends messages until enough are shown, or looked at; `end` goes behind each.
    fn put(&mut self, messages: &Messages, out: &mut Vec<u8>, end: &[u8], bytes_max: usize) {
        let epoch = self.subscription.token().epoch;
        for each in messages.iter() {
            if each.seq >= self.end {
                self.account(messages.from(), self.end);
                return;
            }
            self.cursor = Token { epoch, position: each.position };
            let is_shown = self.search.as_mut().is_none_or(|search| search.finds(&each.message));
            if is_shown {
                Shown::of(&self.topic, Some(epoch), &each).put(out);
                out.extend_from_slice(end);
                self.left -= 1;
            }
            // A stream of lines looks at everything, as fast as its reader takes it.
            let is_bounded = bytes_max != usize::MAX;
            let is_over = is_bounded && self.search.as_ref().is_some_and(Search::is_over);
            if self.left == 0 || out.len() >= bytes_max || is_over {
                self.left = 0;
                return self.account(messages.from(), each.seq.next());
            }
        }
        let next = messages.to().next().min(self.end);
        if next > messages.to() {
            self.cursor = self.subscription.token();
        }
        self.account(messages.from(), next);
    }

    /// What a reader needs to go on.
    fn place(&self) -> Value {
        let next = self.next.map(|next| next.0);
        let mut place = json!({
            "from": self.first.map(|first| first.0),
            "to": self.first.and(next).map(|next| next - 1),
            "next": next,
            "cursor": self.cursor.to_string(),
            "more": !self.over,
        });
        if let Some(search) = &self.search {
            place["looked_at"] = search.looked_at.into();
        }
        place
    }

    async fn into_object(mut self) -> Result<Response, Problem> {
        let mut gaps = Vec::new();
        let mut shown = Vec::new();
        while let Some(found) = self.step().await? {
            match found {
                Found::Gap(gap) => gaps.push(shown::gap(&gap)),
                Found::Messages(messages) => {
                    self.put(&messages, &mut shown, b",", ANSWER_BYTES);
                }
            }
        }
        shown.pop();
        let mut place = self.place();
        place["topic"] = self.topic.as_str().into();
        place["gaps"] = gaps.into();
        let place = place.to_string();
        let mut out = Vec::with_capacity(shown.len() + place.len() + 16);
        out.extend_from_slice(&place.as_bytes()[..place.len() - 1]);
        out.extend_from_slice(b",\"messages\":[");
        out.extend_from_slice(&shown);
        out.extend_from_slice(b"]}");
        let json = HeaderValue::from_static("application/json");
        Ok(([(header::CONTENT_TYPE, json)], out).into_response())
    }

    fn into_lines(self) -> Response {
        let stream = futures_util::stream::unfold(Some(self), |range| async move {
            let mut range = range?;
            let (piece, goes_on) = range.lines().await;
            Some((Ok::<_, Infallible>(Bytes::from(piece)), goes_on.then_some(range)))
        });
        // Compression polls a stream again after its end.
        let stream = stream.fuse();
        let lines = HeaderValue::from_static("application/x-ndjson");
        ([(header::CONTENT_TYPE, lines)], Body::from_stream(stream)).into_response()
    }

    /// The next lines, and whether more come after them.
    async fn lines(&mut self) -> (Vec<u8>, bool) {
        let mut out = Vec::new();
        let (last, goes_on) = match self.step().await {
            Ok(Some(Found::Gap(gap))) => (json!({ "gap": shown::gap(&gap) }), true),
            Ok(Some(Found::Messages(messages))) => {
                out.reserve(PIECE_BYTES);
                self.put(&messages, &mut out, b"\n", usize::MAX);
                return (out, true);
            }
            Ok(None) => {
                let mut place = self.place();
                place["end"] = true.into();
                (place, false)
            }
            Err(problem) => (problem.to_json(), false),
        };
        out.extend_from_slice(last.to_string().as_bytes());
        out.push(b'\n');
        (out, goes_on)
    }
}
