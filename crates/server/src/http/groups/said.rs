//! What members say about messages they hold: done, not done, hopeless, or needs more time.
//!
//! A lease names its session, so a request needs nothing else. Leases of sessions that are not
//! there any more are refused like others that ran out: the answer counts them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json as JsonAnswer;
use axum::extract::{RawPathParams, State};
use axum::http::StatusCode;
use gapless_broker::{AckOutcome, Acking, MemberHandle};
use gapless_core::{Lease, Position, TopicName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::members::Using;
use super::token::LeaseToken;
use super::unknown_member;
use crate::http::listener::body::Json;
use crate::http::listener::server::Shared;
use crate::http::topics::TopicPath;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

/// Leases in one request, at most.
const LEASES_MAX: usize = 10_000;
/// Longest reason, in bytes.
const REASON_BYTES_MAX: usize = 1024;

/// The body of all these requests; what one does not take is refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Said {
    leases: Option<Vec<String>>,
    member: Option<String>,
    position: Option<u64>,
    delay_ms: Option<u64>,
    reason: Option<String>,
}

impl Said {
    /// That nothing is said that would be passed over.
    fn only(&self, known: &[&str]) -> Result<(), Problem> {
        let given = [
            ("leases", self.leases.is_some()),
            ("member", self.member.is_some()),
            ("position", self.position.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("reason", self.reason.is_some()),
        ];
        match given.iter().find(|(name, is)| *is && !known.contains(name)) {
            Some((name, _)) => Err(Problem::bad_request(format_args!(
                "there is no member `{name}` here; these are: {}",
                known.join(", ")
            ))),
            None => Ok(()),
        }
    }

    fn reason(&self) -> Result<&str, Problem> {
        let reason = self.reason.as_deref().unwrap_or("");
        if reason.len() > REASON_BYTES_MAX {
            let detail = format_args!("a reason has at most {REASON_BYTES_MAX} bytes");
            return Err(Problem::bad_request(detail));
        }
        Ok(reason)
    }

    fn leases(&self) -> Result<&[String], Problem> {
        let leases = self.leases.as_deref().unwrap_or_default();
        if leases.is_empty() {
            return Err(Problem::bad_request("say which: {\"leases\": [\"…\"]}"));
        }
        Ok(leases)
    }
}

/// Leases by the session that holds them, and how many messages no session holds any more.
pub(crate) struct Held {
    sessions: Vec<(Using, Vec<Lease>)>,
    pub(crate) lost: u64,
}

impl Held {
    /// Which session holds which.
    pub(crate) fn by_member(&self) -> impl Iterator<Item = (&MemberHandle, &[Lease])> {
        self.sessions.iter().map(|(using, leases)| (&using.session.handle, leases.as_slice()))
    }
}

/// Finds the sessions that hold these; of one group, or of any.
pub(crate) fn held(
    shared: &Shared,
    group: Option<&TopicName>,
    texts: &[String],
) -> Result<Held, Problem> {
    if texts.len() > LEASES_MAX {
        let detail = format_args!("give at most {LEASES_MAX} leases at a time");
        return Err(Problem::bad_request(detail));
    }
    let mut by_session: BTreeMap<u64, Vec<Lease>> = BTreeMap::new();
    for text in texts {
        let LeaseToken { session, lease } = LeaseToken::parse(text)?;
        by_session.entry(session).or_default().push(lease);
    }
    let mut held = Held { sessions: Vec::new(), lost: 0 };
    for (number, leases) in by_session {
        let found = match group {
            Some(group) => shared.members.by_number(&shared.broker, group, number),
            None => shared.members.any(&shared.broker, number),
        };
        match found {
            Some(using) => held.sessions.push((using, leases)),
            None => held.lost += leases.iter().map(Lease::count).sum::<u64>(),
        }
    }
    Ok(held)
}

/// Whether the answer waits until it is as durable as the group asks.
fn waits(params: &mut Params) -> Result<bool, Problem> {
    Ok(params.switch("wait")?.unwrap_or(true))
}

/// Applies it for every member that holds some of them, and returns all results.
async fn outcome(
    held: Held,
    wait: bool,
    say: impl Fn(&MemberHandle, &[Lease]) -> Acking,
) -> Result<JsonAnswer<Value>, Problem> {
    let mut sum = AckOutcome { taken: 0, refused: held.lost };
    // All count already; they become durable together.
    let acks: Vec<Acking> = held.by_member().map(|(member, leases)| say(member, leases)).collect();
    for ack in acks {
        let each = if wait { ack.await? } else { ack.outcome()? };
        sum.taken += each.taken;
        sum.refused += each.refused;
    }
    Ok(JsonAnswer(json!({ "taken": sum.taken, "refused": sum.refused })))
}

pub(super) async fn ack(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
    Json(said): Json<Said>,
) -> Result<JsonAnswer<Value>, Problem> {
    let wait = waits(&mut params)?;
    params.finish()?;
    said.only(&["leases"])?;
    let held = held(&shared, Some(&group), said.leases()?)?;
    outcome(held, wait, |member, leases| member.ack(leases)).await
}

pub(super) async fn nack(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
    Json(said): Json<Said>,
) -> Result<JsonAnswer<Value>, Problem> {
    let wait = waits(&mut params)?;
    params.finish()?;
    said.only(&["leases", "delay_ms", "reason"])?;
    let (delay, reason) = (said.delay_ms.map(Duration::from_millis), said.reason()?);
    let held = held(&shared, Some(&group), said.leases()?)?;
    outcome(held, wait, |member, leases| member.nack(leases, delay, reason)).await
}

pub(super) async fn terminate(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
    Json(said): Json<Said>,
) -> Result<JsonAnswer<Value>, Problem> {
    let wait = waits(&mut params)?;
    params.finish()?;
    said.only(&["leases", "reason"])?;
    let reason = said.reason()?;
    let held = held(&shared, Some(&group), said.leases()?)?;
    outcome(held, wait, |member, leases| member.terminate(leases, reason)).await
}

pub(super) async fn extend(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    params: Params,
    Json(said): Json<Said>,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    said.only(&["leases", "member"])?;
    let held = match (&said.member, &said.leases) {
        (Some(name), None) => {
            // No leases means all that the member holds.
            let using = member(&shared, &group, name)?;
            Held { sessions: vec![(using, Vec::new())], lost: 0 }
        }
        (None, Some(_)) => held(&shared, Some(&group), said.leases()?)?,
        _ => return Err(Problem::bad_request("say `leases`, or `member` for all it holds")),
    };
    let (mut taken, mut refused, mut deadline) = (0, held.lost, None);
    for (using, leases) in &held.sessions {
        let extended = using.session.handle.extend(leases);
        using.session.leased_until(extended.deadline);
        taken += extended.taken;
        refused += extended.refused;
        deadline = Some(extended.deadline.0);
    }
    Ok(JsonAnswer(json!({ "taken": taken, "refused": refused, "deadline_ms": deadline })))
}

pub(super) async fn commit(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
    Json(said): Json<Said>,
) -> Result<JsonAnswer<Value>, Problem> {
    let wait = waits(&mut params)?;
    params.finish()?;
    said.only(&["member", "position"])?;
    let (Some(name), Some(position)) = (&said.member, said.position) else {
        let detail = "name the member and the position: {\"member\": \"…\", \"position\": 7}";
        return Err(Problem::bad_request(detail));
    };
    let using = member(&shared, &group, name)?;
    let held = Held { sessions: vec![(using, Vec::new())], lost: 0 };
    outcome(held, wait, |member, _| member.commit(Position(position))).await
}

pub(super) async fn leave(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    path: RawPathParams,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let name = path.iter().find(|(name, _)| *name == "member").map_or("", |(_, value)| value);
    if shared.members.leave(&group, name).await {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(unknown_member(&group, name))
}

fn member(shared: &Shared, group: &TopicName, name: &str) -> Result<Using, Problem> {
    let found = shared.members.by_name(&shared.broker, group, name);
    found.ok_or_else(|| unknown_member(group, name))
}
