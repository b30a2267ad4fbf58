//! Where a follower or a read begins: `from=`, as on the command line, or the `Last-Event-ID`
//! of a browser that comes back.

use axum::http::HeaderMap;
use gapless_broker::From;
use gapless_core::{Seq, Timestamp, calendar};

use crate::http::values::problem::Problem;

/// How much of a wrong text an answer shows, in characters.
const SHOWN_MAX: usize = 64;

/// Where to begin. `Last-Event-ID` wins: it comes from a reconnect, and `from` is where the first
/// connection began.
///
/// # Errors
/// When either makes no sense. Nothing was done.
pub(crate) fn start(headers: &HeaderMap, from: Option<&str>) -> Result<From, Problem> {
    match headers.get("last-event-id") {
        Some(id) if !id.is_empty() => {
            let token = id.to_str().ok().and_then(|text| text.parse().ok());
            token.map(From::Token).ok_or_else(|| {
                Problem::bad_request("Last-Event-ID is not the id of an event of this server")
                    .with("header", "Last-Event-ID")
            })
        }
        _ => from.map_or(Ok(From::Beginning), parse),
    }
}

/// `beginning`, `now`, `last-per-key`, `seq:42` or `42`, a token, or `time:` with a time as
/// people write it, `@` and seconds, or milliseconds.
///
/// # Errors
/// When it is none of them.
pub(crate) fn parse(text: &str) -> Result<From, Problem> {
    let found = match text {
        "beginning" => Some(From::Beginning),
        "now" => Some(From::Now),
        "last-per-key" => Some(From::LastPerKey),
        _ => {
            if let Some(when) = text.strip_prefix("time:") {
                time(when).map(From::Time)
            } else if let Some(number) = text.strip_prefix("seq:").or(digits(text)) {
                number.parse().ok().filter(|seq| *seq > 0).map(|seq| From::Seq(Seq(seq)))
            } else {
                text.parse().ok().map(From::Token)
            }
        }
    };
    found.ok_or_else(|| refused(text))
}

fn time(text: &str) -> Option<Timestamp> {
    let ms = if let Some(seconds) = text.strip_prefix('@') {
        seconds.parse::<u64>().ok()?.checked_mul(1000)
    } else if let Some(ms) = digits(text) {
        ms.parse().ok()
    } else {
        calendar::parse(text)
    };
    ms.map(Timestamp)
}

/// The text, if it is a number.
fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

fn refused(text: &str) -> Problem {
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    let detail = format!(
        "{shown:?} is not a place to begin; use beginning, now, last-per-key, seq:42, \
         time:2026-11-15T22:54:03Z, time:1763247243000 (ms), or a cursor"
    );
    Problem::bad_request(detail).with("parameter", "from")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_on_the_command_line() {
        let known = [
            ("beginning", From::Beginning),
            ("now", From::Now),
            ("last-per-key", From::LastPerKey),
            ("seq:7", From::Seq(Seq(7))),
            ("7", From::Seq(Seq(7))),
            ("time:1970-01-01T00:00:01Z", From::Time(Timestamp(1000))),
            ("time:@2", From::Time(Timestamp(2000))),
            ("time:2", From::Time(Timestamp(2))),
        ];
        for (text, from) in known {
            assert_eq!(parse(text).ok(), Some(from), "{text}");
        }
        assert!(matches!(parse("00000000000000ab:42"), Ok(From::Token(_))));
        for text in ["", "0", "seq:", "seq:0", "seq:-1", "time:", "time:@", "time:soon", "ab:42"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
