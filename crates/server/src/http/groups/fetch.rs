//! Taking messages of a group, with a wait for the first.
//!
//! No more is leased than the request asked for. A client that disconnects while it waits holds
//! nothing; what was being sent to it is redelivered when its lease has expired.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use gapless_auth::Caller;
use gapless_broker::{GapNotice, Handed, Leased, MemberError};
use gapless_core::rights::Right;
use gapless_core::{Epoch, Lease, Timestamp};
use serde_json::{Value, json};

use super::members::{Session, Taking};
use super::token::LeaseToken;
use super::unknown_member;
use crate::answers::member_error;
use crate::http::follow::event_stream::stream_permit;
use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::TopicPath;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;
use crate::json::{self as shown, Shown};

/// Messages in one answer, at most.
const MESSAGES_MAX: usize = 10_000;
/// Messages in one answer, unless the request says otherwise.
const MESSAGES_DEFAULT: usize = 100;
/// Bytes of the messages in one answer, about.
const ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// How long a request may wait for the first message.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a request waits at least: what is there may have to be read from the disk.
const WAIT_MIN: Duration = Duration::from_millis(20);

pub(super) async fn fetch(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    TopicPath(group): TopicPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let max = params.count("max", MESSAGES_DEFAULT, MESSAGES_MAX)? as u32;
    let wait = params.number("wait_ms")?.map_or(Duration::ZERO, Duration::from_millis);
    let name = params.text("member")?;
    params.finish()?;
    let wait = wait.clamp(WAIT_MIN, WAIT_MAX);
    let _permit = stream_permit(&shared)?;
    let (broker, asked) = (shared.broker.clone(), group.clone());
    let source = blocking(move || broker.describe_group(&asked)).await??.settings.source;
    caller.may_all(Right::Subscribe, &source)?;
    let using = shared.members.join(&shared, &caller, &group, name)?;
    let session = &using.session;
    let mut answer = Answer::new(session.number, shared.broker.epoch(), max);
    let taking = tokio::time::timeout(wait, take(session, &mut answer));
    let taken = tokio::select! {
        biased;
        // A timeout is not an error and loses nothing: what was leased by then is in the answer, or
        // comes with the next fetch.
        taken = taking => taken.unwrap_or(Ok(())),
        () = session.ended() => return Err(unknown_member(&group, &session.name)),
        () = shared.closed() => Err(MemberError::Closed),
    };
    if let Err(failed) = taken {
        if matches!(failed, MemberError::Deleted(_)) {
            shared.members.forget(session);
        }
        if answer.count == 0 {
            return Err(member_error(&failed).into());
        }
    }
    Ok(answer.into_response(&session.name))
}

/// Takes what there is, as soon as there is something.
async fn take(session: &Session, answer: &mut Answer) -> Result<(), MemberError> {
    let taking = &mut *session.taking.lock().await;
    let Taking { member: Some(member), rest, active } = taking else {
        return std::future::pending().await;
    };
    answer.active = *active;
    if let Some((leased, _)) = rest {
        // It has waited since the last fetch, and may be leased to another member by now.
        let extended = session.handle.extend(leased.leases());
        session.leased_until(extended.deadline);
        if extended.refused > 0 {
            *rest = None;
        }
    }
    if rest.is_none() && !member.has_unread() {
        member.allow_more(answer.max);
    }
    loop {
        answer.put(rest);
        let unread = rest.is_some() || member.has_unread();
        if answer.is_full() || (answer.has_something() && !unread) {
            answer.more = unread || (answer.is_full() && member.may_have_more());
            return Ok(());
        }
        match member.next().await? {
            Handed::Messages(leased) => {
                session.leased_until(leased.deadline());
                *rest = Some((leased, 0));
            }
            Handed::Gap(gap) => answer.gaps.push(gap),
            Handed::Active => (*active, answer.active) = (true, true),
            Handed::Standby => (*active, answer.active) = (false, false),
        }
    }
}

/// What a fetch answers.
struct Answer {
    session: u64,
    epoch: Epoch,
    max: u32,
    count: u32,
    /// The messages as JSON, each with a comma behind it.
    shown: Vec<u8>,
    /// Their leases, neighbours together.
    leases: Vec<Lease>,
    deadline: Option<Timestamp>,
    gaps: Vec<GapNotice>,
    active: bool,
    more: bool,
}

impl Answer {
    fn new(session: u64, epoch: Epoch, max: u32) -> Self {
        Self {
            session,
            epoch,
            max,
            count: 0,
            shown: Vec::new(),
            leases: Vec::new(),
            deadline: None,
            gaps: Vec::new(),
            active: true,
            more: false,
        }
    }

    fn is_full(&self) -> bool {
        self.count >= self.max || self.shown.len() >= ANSWER_BYTES
    }

    fn has_something(&self) -> bool {
        self.count > 0 || !self.gaps.is_empty()
    }

    /// Appends messages until it is full; what does not fit stays.
    fn put(&mut self, rest: &mut Option<(Leased, usize)>) {
        let Some((leased, done)) = rest else { return };
        let messages = leased.messages();
        for each in messages.iter().skip(*done) {
            if self.is_full() {
                return;
            }
            let lease = leased.lease_of(each.position);
            let token = LeaseToken { session: self.session, lease }.text();
            self.shown.push(b'{');
            Shown::of(messages.topic(), Some(self.epoch), &each).put_members(&mut self.shown);
            let end = format!(",\"attempt\":{},\"lease\":\"{token}\"}},", lease.attempt);
            self.shown.extend_from_slice(end.as_bytes());
            self.lease(lease);
            self.count += 1;
            *done += 1;
        }
        let deadline = leased.deadline();
        self.deadline = Some(self.deadline.map_or(deadline, |before| before.min(deadline)));
        *rest = None;
    }

    fn lease(&mut self, lease: Lease) {
        match self.leases.last_mut() {
            Some(last) if last.attempt == lease.attempt && last.last.next() == lease.first => {
                last.last = lease.last;
            }
            _ => self.leases.push(lease),
        }
    }

    fn into_response(mut self, member: &str) -> Response {
        self.shown.pop();
        let session = self.session;
        let texts = self.leases.iter().map(|lease| LeaseToken { session, lease: *lease }.text());
        let fields = json!({
            "member": member,
            "active": self.active,
            "count": self.count,
            "more": self.more,
            "deadline_ms": self.deadline.map(|time| time.0),
            "leases": texts.collect::<Value>(),
            "gaps": self.gaps.iter().map(shown::gap).collect::<Value>(),
        });
        let fields = fields.to_string();
        let mut out = Vec::with_capacity(fields.len() + self.shown.len() + 16);
        out.extend_from_slice(&fields.as_bytes()[..fields.len() - 1]);
        out.extend_from_slice(b",\"messages\":[");
        out.extend_from_slice(&self.shown);
        out.extend_from_slice(b"]}");
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], out).into_response()
    }
}
