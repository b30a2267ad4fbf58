//! Errors as `application/problem+json` (RFC 9457), with the numbers of the one list.
//!
//! Handlers return a [`Problem`]; what axum and its extractors answer by themselves becomes
//! one on its way out, in [`of_every_error`]. So every error has the same form.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use gapless_broker::{GroupError, SubscribeError, TopicError};
use gapless_core::{Fate, PubSubError, RejectReason};
use gapless_protocol::{ErrorAnswer, ErrorCode};
use serde_json::{Map, Value, json};

use crate::answers;
use crate::http::values::publish::unknown_topic;

/// The media type of all problems.
pub(crate) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Bytes of an answer of axum's own that are kept as the detail of a problem.
const DETAIL_BYTES_MAX: usize = 4 * 1024;

/// Why a request was refused, which its answer carries to the log.
#[derive(Clone, Debug)]
pub(crate) struct Why {
    pub(crate) name: &'static str,
    pub(crate) detail: Arc<str>,
}

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

    /// A request that cannot be read.
    pub(crate) fn bad_request(detail: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::BadRequest, detail)
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

    /// The members, as they are in the body of an answer or in a line of one.
    pub(crate) fn to_json(&self) -> Value {
        let fate = match self.code.fate() {
            Fate::DidNotHappen => "did not happen",
            _ => "unknown",
        };
        let mut members = json!({
            "type": format!("urn:gapless:problem:{}", self.code.name()),
            "title": self.code.sentence(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code.number(),
            "name": self.code.name(),
            "fate": fate,
        });
        if let Some(members) = members.as_object_mut() {
            members.extend(self.facts.clone());
        }
        members
    }

    /// Whether the same request may well succeed a little later.
    fn is_passing(&self) -> bool {
        matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
    }
}

impl From<ErrorAnswer> for Problem {
    fn from(answer: ErrorAnswer) -> Self {
        let code = ErrorCode::from_number(answer.code).unwrap_or(ErrorCode::Internal);
        Self::new(code, answer.message)
    }
}

impl From<TopicError> for Problem {
    fn from(failed: TopicError) -> Self {
        match &failed {
            TopicError::Unknown(topic) => unknown_topic(topic),
            TopicError::Exists(topic) => Self::new(
                ErrorCode::TopicExists,
                format_args!(
                    "topic {topic} exists with other settings; PATCH /v1/topics/{topic} changes them"
                ),
            ),
            _ => answers::topic_error(&failed).into(),
        }
    }
}

impl From<GroupError> for Problem {
    fn from(failed: GroupError) -> Self {
        let problem = Self::from(answers::group_error(&failed));
        let (detail, problem) = match &failed {
            GroupError::Unknown(group) => {
                (format!("there is no group {group}; PUT /v1/groups/{group} creates it"), problem)
            }
            GroupError::Exists(group) => (
                format!(
                    "group {group} exists with other settings; PATCH /v1/groups/{group} changes \
                     them"
                ),
                problem,
            ),
            GroupError::Active { group, members } => (
                format!(
                    "group {group} has {members} members; let them leave first, or add force=true"
                ),
                problem.with("members", *members),
            ),
            _ => return problem,
        };
        Self { detail, ..problem }
    }
}

impl From<SubscribeError> for Problem {
    fn from(failed: SubscribeError) -> Self {
        match &failed {
            SubscribeError::NeedsTopic(source) => Self::new(
                ErrorCode::NeedsTopic,
                format_args!(
                    "a seq, a time and last-per-key need one existing topic, which {source} is not; \
                     begin at beginning, now or a cursor"
                ),
            ),
            _ => answers::subscribe_error(&failed).into(),
        }
    }
}

impl From<PubSubError> for Problem {
    fn from(failed: PubSubError) -> Self {
        answers::trouble(&failed).into()
    }
}

impl From<RejectReason> for Problem {
    fn from(reason: RejectReason) -> Self {
        let problem = Self::new(ErrorCode::from(&reason), reason);
        match reason {
            RejectReason::ExpectedSeq { actual } => problem.with("actual", actual.0),
            RejectReason::TooLarge { bytes, max } => problem.with("bytes", bytes).with("max", max),
            RejectReason::LimitReached { limit, max } => {
                problem.with("limit", limit.key()).with("max", max)
            }
            _ => problem,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
        let wait = self.facts.get("retry_after_ms").and_then(Value::as_u64);
        if self.is_passing() || wait.is_some() {
            let ms = wait.unwrap_or(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let mut response = (self.status, headers, self.to_json().to_string()).into_response();
        response
            .extensions_mut()
            .insert(Why { name: self.code.name(), detail: self.detail.into() });
        response
    }
}

/// Answers `404` for an unknown path.
pub(crate) async fn no_such_path(request: Request) -> Problem {
    let path = request.uri().path();
    Problem::new(
        ErrorCode::NoSuchPath,
        format_args!("there is nothing at {path}; /openapi.json lists what there is"),
    )
}

/// Refuses paths and queries whose percent signs are none.
pub(crate) fn check_address(uri: &Uri) -> Result<(), Problem> {
    if percent_signs_are_escapes(uri.path()) && percent_signs_are_escapes(uri.query().unwrap_or(""))
    {
        return Ok(());
    }
    Err(Problem::bad_request(
        "a percent sign in the address is not followed by two hexadecimal digits; write %25 for \
         the sign itself",
    ))
}

/// Turns an error that is not a problem yet into one: those of axum and of its extractors are
/// plain text or empty.
pub(crate) async fn of_every_error(method: &Method, response: Response) -> Response {
    let code = match response.status() {
        StatusCode::NOT_FOUND => ErrorCode::NoSuchPath,
        StatusCode::METHOD_NOT_ALLOWED => ErrorCode::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::BodyTooLarge,
        StatusCode::REQUEST_TIMEOUT => ErrorCode::RequestTimeout,
        status if status.is_client_error() => ErrorCode::BadRequest,
        status if status.is_server_error() => ErrorCode::Internal,
        _ => return response,
    };
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let plain = content_type.is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !plain {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let said = to_bytes(body, DETAIL_BYTES_MAX).await.unwrap_or_default();
    let detail = match (code, std::str::from_utf8(&said)) {
        (ErrorCode::MethodNotAllowed, _) => {
            let allowed = parts.headers.get(header::ALLOW).and_then(|allow| allow.to_str().ok());
            let allowed = allowed.unwrap_or("none").replace(',', ", ");
            format!("{method} is not offered here; these are: {allowed}")
        }
        (_, Ok(said)) if !said.is_empty() => said.to_owned(),
        _ => code.sentence().to_owned(),
    };
    let problem = Problem::new(code, detail).with_status(parts.status);
    parts.extensions.insert(Why { name: code.name(), detail: problem.detail.as_str().into() });
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
    Response::from_parts(parts, problem.to_json().to_string().into())
}

fn percent_signs_are_escapes(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_escape = |at: usize| {
        let digits = bytes.get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    (0..bytes.len()).all(|at| bytes[at] != b'%' || is_escape(at))
}

/// The status of each number.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::UnknownTopic
        | ErrorCode::UnknownSubscription
        | ErrorCode::UnknownGroup
        | ErrorCode::UnknownMember
        | ErrorCode::UnknownClient
        | ErrorCode::NoSuchPath
        | ErrorCode::NoSuchMessage
        | ErrorCode::NoSuchJob => StatusCode::NOT_FOUND,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::TopicDeleted | ErrorCode::GroupDeleted => StatusCode::GONE,
        ErrorCode::TopicExists
        | ErrorCode::GroupExists
        | ErrorCode::GroupFixed
        | ErrorCode::GroupActive
        | ErrorCode::NoOrigin
        | ErrorCode::StorageFixed
        | ErrorCode::Ahead
        | ErrorCode::NoSubscribers
        | ErrorCode::NotDurable
        | ErrorCode::LeaseLost
        | ErrorCode::JobRefused
        | ErrorCode::StaleAttempt
        | ErrorCode::TakenOver
        | ErrorCode::AlreadySubscribed
        | ErrorCode::ClosedByAdmin => StatusCode::CONFLICT,
        ErrorCode::ExpectedSeq | ErrorCode::ExpectedCell => StatusCode::PRECONDITION_FAILED,
        ErrorCode::TooLarge | ErrorCode::FrameTooLarge | ErrorCode::BodyTooLarge => {
            StatusCode::PAYLOAD_TOO_LARGE
        }
        ErrorCode::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        ErrorCode::NotAuthorised | ErrorCode::ReservedName => StatusCode::FORBIDDEN,
        ErrorCode::NotAuthenticated => StatusCode::UNAUTHORIZED,
        ErrorCode::QueueFull
        | ErrorCode::TooManyConnections
        | ErrorCode::TooManySubscriptions
        | ErrorCode::TooManyMembers
        | ErrorCode::QuotaExceeded
        | ErrorCode::TooMuchInFlight => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::StorageFull
        | ErrorCode::TooManyTopics
        | ErrorCode::TooManyGroups
        | ErrorCode::LimitReached => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::NotStarted
        | ErrorCode::Stopped
        | ErrorCode::Poisoned
        | ErrorCode::JournalFailed
        | ErrorCode::Unavailable
        | ErrorCode::Fenced
        | ErrorCode::PartitionDrop
        | ErrorCode::OutOfMemory
        | ErrorCode::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::Internal | ErrorCode::Damaged | ErrorCode::ReadFailed => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        ErrorCode::IdleTimeout | ErrorCode::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        ErrorCode::InvalidTopic
        | ErrorCode::InvalidPayload
        | ErrorCode::NotSerializable
        | ErrorCode::NotSupported
        | ErrorCode::Expired
        | ErrorCode::BadSettings
        | ErrorCode::BadPattern
        | ErrorCode::NeedsTopic
        | ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
        // Of the native protocol only.
        ErrorCode::BadFrame
        | ErrorCode::UnknownKind
        | ErrorCode::BadPayload
        | ErrorCode::VersionMismatch
        | ErrorCode::NotHello
        | ErrorCode::HelloAgain
        | ErrorCode::CreditExceeded
        | ErrorCode::NotOffered
        | ErrorCode::UnexpectedKind
        | ErrorCode::WriteTimeout
        | ErrorCode::TooLargeToDeliver => StatusCode::BAD_REQUEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_list_has_an_error_status_and_a_fate() {
        for code in ErrorCode::ALL {
            let problem = Problem::new(*code, "why");
            assert!(problem.status.as_u16() >= 400, "{}", code.name());
            let json = problem.to_json();
            assert_eq!(json["code"], code.number());
            assert!(["did not happen", "unknown"].contains(&json["fate"].as_str().unwrap()));
        }
    }

    #[test]
    fn a_percent_sign_needs_two_digits() {
        for good in ["", "/a", "/a%20b", "%c3%A9"] {
            assert!(percent_signs_are_escapes(good), "{good}");
        }
        for bad in ["%", "/a%2", "/a%zz", "%%20", "%e"] {
            assert!(!percent_signs_are_escapes(bad), "{bad}");
        }
    }
}
