//! What the bytes of a stream are: its content type, and what follows from it.

use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use gapless_core::batch::BATCH_COUNT_MAX;
use gapless_core::{Message, Records, RecordsBuilder};
use gapless_protocol::ErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::http::values::problem::Problem;

/// Most bytes of a content type.
const TYPE_BYTES_MAX: usize = 255;

/// Most bytes of a message of a stream of bytes; longer appends become several messages in
/// one atomic batch. It bounds what a reader is handed at least in one answer, and leaves
/// room in every frame of every listener.
const PIECE_BYTES: usize = 1024 * 1024;

/// The content type of a stream, as it was written when the stream was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MediaType(String);

impl Default for MediaType {
    fn default() -> Self {
        Self("application/octet-stream".to_owned())
    }
}

impl MediaType {
    /// The content type of a request, if it has one.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default().trim();
        if text.is_empty() {
            return Ok(None);
        }
        let bad = || Problem::new(ErrorCode::BadRequest, "Content-Type is not a valid media type");
        let (kind, subtype) = essence(text).split_once('/').ok_or_else(bad)?;
        let is_token = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"!#$&^_.+-%'*`|~".contains(&byte))
        };
        if text.len() > TYPE_BYTES_MAX || !is_token(kind) || !is_token(subtype) {
            return Err(bad());
        }
        Ok(Some(Self(text.to_owned())))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether both name the same type; case and parameters do not count.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        essence(&self.0).eq_ignore_ascii_case(essence(&other.0))
    }

    /// Whether messages are JSON values and answers JSON arrays.
    pub(super) fn is_json(&self) -> bool {
        let essence = essence(&self.0).to_ascii_lowercase();
        essence == "application/json" || essence.ends_with("+json")
    }

    /// Whether events can carry it as it is.
    pub(super) fn is_text(&self) -> bool {
        let text = self.0.get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case("text/"));
        text || self.is_json()
    }

    /// The messages of a body: each element of a JSON array, one JSON value, or the bytes.
    /// None if there are none.
    pub(super) fn messages(&self, body: &Bytes) -> Result<Option<Records>, Problem> {
        let mut records = RecordsBuilder::with_capacity(body.len() + 64);
        if self.is_json() {
            for value in json_values(body)? {
                push(&mut records, body.slice_ref(value.get().as_bytes()))?;
            }
        } else {
            for piece in body.chunks(PIECE_BYTES) {
                push(&mut records, body.slice_ref(piece))?;
            }
        }
        Ok((records.count() > 0).then(|| records.finish()))
    }

    /// Messages as one body: a JSON array, or all their bytes.
    pub(super) fn body(&self, messages: &[Bytes]) -> Bytes {
        let json = self.is_json();
        if let ([message], false) = (messages, json) {
            return message.clone();
        }
        let mut body = Vec::with_capacity(messages.iter().map(|each| each.len() + 1).sum());
        if json {
            body.push(b'[');
        }
        for (index, message) in messages.iter().enumerate() {
            if json && index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(message);
        }
        if json {
            body.push(b']');
        }
        body.into()
    }
}

fn essence(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

/// The JSON values of a body, each as it was written; exactly one level of array is opened.
fn json_values(body: &[u8]) -> Result<Vec<&RawValue>, Problem> {
    let is_blank = |byte: &u8| b" \t\r\n".contains(byte);
    match body.iter().find(|byte| !is_blank(byte)) {
        None => return Ok(Vec::new()),
        Some(b'[') => serde_json::from_slice(body),
        Some(_) => serde_json::from_slice(body).map(|value| vec![value]),
    }
    .map_err(|error| {
        Problem::new(ErrorCode::BadRequest, format!("the body is not valid JSON: {error}"))
    })
}

fn push(records: &mut RecordsBuilder, body: Bytes) -> Result<(), Problem> {
    if records.count() == BATCH_COUNT_MAX {
        let why = format!("an append holds at most {BATCH_COUNT_MAX} messages");
        return Err(Problem::new(ErrorCode::TooLarge, why));
    }
    let pushed = records.push(&Message::new(body));
    pushed.map_err(|error| Problem::new(ErrorCode::InvalidPayload, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(text: &str) -> MediaType {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, text.parse().unwrap());
        MediaType::of(&headers).expect("a type").expect("one is given")
    }

    fn values(body: &'static str) -> Vec<String> {
        let values = json_values(body.as_bytes()).expect("JSON");
        values.iter().map(|value| value.get().to_owned()).collect()
    }

    #[test]
    fn one_level_of_array_is_opened_and_the_rest_stays_as_written() {
        assert_eq!(values(r#" {"b": 1.0, "a":1e2} "#), [r#"{"b": 1.0, "a":1e2}"#]);
        assert_eq!(
            values("[[1, 2], 12345678901234567890123]"),
            ["[1, 2]", "12345678901234567890123"]
        );
        assert_eq!(values("[[[1,2,3]]]"), ["[[1,2,3]]"]);
        assert_eq!(values("null"), ["null"]);
        assert!(values("[]").is_empty() && values(" ").is_empty());
        for bad in ["{ invalid json }", "[1,]", "1 2", "[1] 2", "\"a\nb\"", "\u{feff}1"] {
            assert!(json_values(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_went_in_comes_out() {
        let json = media("application/vnd.x+JSON; charset=utf-8");
        let parts = [Bytes::from("1"), Bytes::from("[2]")];
        assert_eq!(json.body(&parts), "[1,[2]]");
        assert_eq!(json.body(&[]), "[]");
        let text = media("text/plain");
        assert_eq!(text.body(&parts), "1[2]");
        let long = Bytes::from(vec![7; 2 * PIECE_BYTES + 1]);
        let records = text.messages(&long).unwrap().unwrap();
        assert_eq!(records.count, 3);
        assert!(text.messages(&Bytes::new()).unwrap().is_none());
    }

    #[test]
    fn types_are_compared_without_case_and_parameters() {
        assert!(media("text/plain").is_same(&media("TEXT/PLAIN; charset=utf-8")));
        assert!(!media("text/plain").is_same(&media("text/html")));
        let kinds = |text: &str| (media(text).is_json(), media(text).is_text());
        assert_eq!(kinds("application/json"), (true, true));
        assert_eq!(kinds("Text/HTML"), (false, true));
        assert_eq!(kinds("application/octet-stream"), (false, false));
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "nonsense".parse().unwrap());
        assert!(MediaType::of(&headers).is_err());
    }
}
