//! What answers of this protocol have in common: its headers, on success and on refusal.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use gapless_core::{PubSubError, PublishAck, RejectReason};
use gapless_protocol::ErrorCode;

use crate::answers;
use crate::http::values::problem::Problem;

pub(super) const NEXT_OFFSET: &str = "stream-next-offset";
pub(super) const UP_TO_DATE: &str = "stream-up-to-date";
pub(super) const CLOSED: &str = "stream-closed";
pub(super) const CURSOR: &str = "stream-cursor";
pub(super) const STREAM_SEQ: &str = "stream-seq";
pub(super) const SSE_ENCODING: &str = "stream-sse-data-encoding";
/// How the names of all headers begin that ask for a fork.
pub(super) const FORK: &str = "stream-fork";

/// A request that was not done, with the protocol's headers.
#[derive(Debug)]
pub(super) struct Refusal {
    problem: Problem,
    headers: Vec<(&'static str, String)>,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, status: StatusCode, why: impl std::fmt::Display) -> Self {
        Problem::new(code, why).with_status(status).into()
    }

    pub(super) fn with(mut self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem, headers: Vec::new() }
    }
}

impl From<&PubSubError> for Refusal {
    fn from(trouble: &PubSubError) -> Self {
        Problem::from(answers::trouble(trouble)).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        for (name, value) in self.headers {
            set(response.headers_mut(), name, value);
        }
        response
    }
}

/// Sets a header. Only valid values get this far: they came in a header, or consist of digits.
pub(super) fn set(headers: &mut HeaderMap, name: &'static str, value: impl std::fmt::Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// That there is no such stream.
pub(super) fn unknown() -> Refusal {
    Problem::new(ErrorCode::UnknownTopic, "there is no such stream; create it with PUT").into()
}

/// The answer to a publisher whose append was refused.
pub(super) fn refused(reason: RejectReason) -> Refusal {
    match reason {
        RejectReason::UnknownTopic => unknown(),
        reason => Problem::new(ErrorCode::from(&reason), reason).into(),
    }
}

/// The ack of an append, or why there is none.
pub(super) fn accepted(
    ack: Result<PublishAck, PubSubError>,
) -> Result<gapless_core::Accepted, Refusal> {
    match ack {
        Ok(PublishAck::Accepted(accepted)) => Ok(accepted),
        Ok(PublishAck::Rejected(reason)) => Err(refused(reason)),
        Ok(PublishAck::Scheduled { .. }) => {
            Err((&PubSubError::Internal("an append was put off".to_owned())).into())
        }
        Err(trouble) => Err((&trouble).into()),
    }
}
