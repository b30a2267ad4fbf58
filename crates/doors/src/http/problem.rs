//! Errors as `application/problem+json` (RFC 9457), with the numbers of the one list.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gapless_core::Fate;
use gapless_protocol::{ErrorAnswer, ErrorCode};
use serde_json::{Map, Value, json};

/// What went wrong with a request: a number of the one list, a status, a sentence, and facts.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) code: ErrorCode,
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    facts: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(code: ErrorCode, detail: impl std::fmt::Display) -> Self {
        Self { code, status: status(code), detail: detail.to_string(), facts: Map::new() }
    }

    /// With another status than the code's usual one.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// With a fact that a program can use, as a member of its own.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }
}

impl From<ErrorAnswer> for Problem {
    fn from(answer: ErrorAnswer) -> Self {
        let code = ErrorCode::from_number(answer.code).unwrap_or(ErrorCode::Internal);
        Self::new(code, answer.message)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let fate = match self.code.fate() {
            Fate::DidNotHappen => "did not happen",
            _ => "unknown",
        };
        let mut body = json!({
            "type": format!("about:blank#{}", self.code.name()),
            "title": self.code.sentence(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code.number(),
            "name": self.code.name(),
            "fate": fate,
        });
        if let Some(members) = body.as_object_mut() {
            members.extend(self.facts);
        }
        let json = HeaderValue::from_static("application/problem+json");
        (self.status, [(header::CONTENT_TYPE, json)], body.to_string()).into_response()
    }
}

/// The status of each number. A match without a catch-all would be better still, but the
/// list is open: what is unknown here is the server's fault.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::UnknownTopic | ErrorCode::UnknownSubscription => StatusCode::NOT_FOUND,
        ErrorCode::TopicDeleted => StatusCode::GONE,
        ErrorCode::TopicExists | ErrorCode::StorageFixed | ErrorCode::Ahead => StatusCode::CONFLICT,
        ErrorCode::ExpectedSeq => StatusCode::PRECONDITION_FAILED,
        ErrorCode::TooLarge | ErrorCode::FrameTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::NotAuthorised | ErrorCode::ReservedName => StatusCode::FORBIDDEN,
        ErrorCode::NotAuthenticated => StatusCode::UNAUTHORIZED,
        ErrorCode::QueueFull
        | ErrorCode::TooManyConnections
        | ErrorCode::TooManySubscriptions
        | ErrorCode::TooMuchInFlight => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::StorageFull | ErrorCode::TooManyTopics => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::NotStarted
        | ErrorCode::Stopped
        | ErrorCode::Poisoned
        | ErrorCode::Unavailable
        | ErrorCode::Fenced
        | ErrorCode::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::Internal | ErrorCode::Damaged | ErrorCode::ReadFailed => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        ErrorCode::IdleTimeout => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::BAD_REQUEST,
    }
}
