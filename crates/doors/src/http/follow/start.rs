//! Where a follower begins: `from=`, as on the command line, or the `Last-Event-ID` of a
//! browser that comes back.

use axum::http::HeaderMap;
use gapless_broker::From;
use gapless_core::{Seq, Timestamp};
use gapless_protocol::ErrorCode;

use crate::http::problem::Problem;

/// Where to begin. `Last-Event-ID` wins: who sends it was here before, and `from` is where
/// that visit began.
///
/// # Errors
/// When either makes no sense. Nothing was done.
pub(crate) fn start(headers: &HeaderMap, from: Option<&str>) -> Result<From, Problem> {
    match headers.get("last-event-id") {
        Some(id) if !id.is_empty() => {
            let token = id.to_str().ok().and_then(|text| text.parse().ok());
            token.map(From::Token).ok_or_else(|| {
                Problem::new(ErrorCode::BadPayload, "Last-Event-ID is no id of an event of ours")
            })
        }
        _ => from.map_or(Ok(From::Beginning), parse),
    }
}

/// `beginning`, `now`, `last-per-key`, `seq:42` or `42`, `time:` with milliseconds, or a token.
pub(crate) fn parse(text: &str) -> Result<From, Problem> {
    if let Some(ms) = text.strip_prefix("time:") {
        let time = ms.parse().ok().map(Timestamp);
        return time.map(From::Time).ok_or_else(|| refused(text));
    }
    let number = text.strip_prefix("seq:");
    if let Some(number) = number.or_else(|| is_number(text).then_some(text)) {
        let seq = number.parse().ok().filter(|seq| *seq > 0).map(Seq);
        return seq.map(From::Seq).ok_or_else(|| refused(text));
    }
    match text {
        "beginning" => Ok(From::Beginning),
        "now" => Ok(From::Now),
        "last-per-key" => Ok(From::LastPerKey),
        _ => text.parse().map(From::Token).map_err(|_| refused(text)),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn refused(text: &str) -> Problem {
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    let detail = format!(
        "{shown:?} is no place to begin; use beginning, now, last-per-key, seq:42, \
         time:1763247243000 (ms), or a token"
    );
    Problem::new(ErrorCode::BadPayload, detail).with("parameter", "from")
}

/// How much of a wrong text an answer shows, in characters.
const SHOWN_MAX: usize = 64;
