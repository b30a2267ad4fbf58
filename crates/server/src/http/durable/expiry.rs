//! When a stream ends by itself: after so many seconds without use, or at a moment.

use std::time::Duration;

use axum::http::HeaderMap;
use gapless_core::Timestamp;
use gapless_protocol::ErrorCode;
use serde::{Deserialize, Serialize};

use crate::http::values::problem::Problem;

pub(super) const TTL: &str = "stream-ttl";
pub(super) const EXPIRES_AT: &str = "stream-expires-at";

/// The shortest while after which a use is noted in the journal again.
const NOTE_MIN: Duration = Duration::from_secs(1);

/// A use is noted when it is later than the last noted one by this part of the time to live.
const NOTE_PART: u32 = 8;

/// When a stream ends by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Expiry {
    #[default]
    Never,
    /// So many seconds after it was read or written last.
    Idle { secs: u64 },
    /// At this moment, which is also kept as it was written.
    At { ms: u64, text: String },
}

impl Expiry {
    /// What the headers of a request ask for.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let bad = |why: &str| Problem::new(ErrorCode::BadRequest, why);
        match (headers.get(TTL), headers.get(EXPIRES_AT)) {
            (None, None) => Ok(Self::Never),
            (Some(_), Some(_)) => Err(bad("give Stream-TTL or Stream-Expires-At, not both")),
            (Some(ttl), None) => {
                let text = ttl.to_str().unwrap_or_default();
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                let plain = digits && (text == "0" || !text.starts_with('0'));
                let secs = text.parse().ok().filter(|_| plain);
                secs.map(|secs| Self::Idle { secs })
                    .ok_or_else(|| bad("Stream-TTL is a whole number of seconds, as in 3600"))
            }
            (None, Some(at)) => {
                let text = at.to_str().unwrap_or_default();
                let ms = parse_rfc3339_ms(text);
                ms.map(|ms| Self::At { ms, text: text.to_owned() }).ok_or_else(|| {
                    bad("Stream-Expires-At is a time of RFC 3339, as in 2030-01-31T12:00:00Z")
                })
            }
        }
    }

    /// Whether it asks for the same, however it is written.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::At { ms, .. }, Self::At { ms: other, .. }) => ms == other,
            _ => self == other,
        }
    }

    /// When the stream ends, if it was used last at `used`.
    pub(super) fn deadline(&self, used: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::Idle { secs } => Some(used.after(Duration::from_secs(*secs))),
            Self::At { ms, .. } => Some(Timestamp(*ms)),
        }
    }

    /// How far the noted use of a stream may lie behind the real one; none if uses do not
    /// count. After a restart it is given on top, so that nothing ends too early.
    pub(super) fn slack(&self) -> Option<Duration> {
        match self {
            Self::Idle { secs } => Some((Duration::from_secs(*secs) / NOTE_PART).max(NOTE_MIN)),
            Self::Never | Self::At { .. } => None,
        }
    }
}

/// Milliseconds since 1970 of a time such as `2030-01-31T12:00:00.5+01:00`; earlier ones
/// count as 1970.
fn parse_rfc3339_ms(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let is =
        |at: usize, wanted: &str| text.get(at..=at).is_some_and(|found| wanted.contains(found));
    if !(is(4, "-") && is(7, "-") && is(10, "Tt ") && is(13, ":") && is(16, ":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days_in_month = match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return None;
        }
        let thousandths = format!("{:0<3}", &fraction[..digits.min(3)]);
        ms = thousandths.parse::<i64>().ok()?;
        rest = &fraction[digits..];
    }
    let zone_minutes = match rest.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let (hours, minutes) = (number(at, at + 2)?, number(at + 3, at + 5)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    // Days since 1970 by counting years from March, so that the leap day is the last one.
    let (shifted_year, shifted_month) =
        if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (shifted_year.div_euclid(400), shifted_year.rem_euclid(400));
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    let minutes = (days * 24 + hour) * 60 + minute - zone_minutes;
    Some(u64::try_from((minutes * 60 + second) * 1000 + ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &str) -> Result<Expiry, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        Expiry::of(&headers)
    }

    #[test]
    fn times_are_read_as_rfc_3339_says() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2026-11-16T00:43:20.25Z", 1_794_789_800_250),
            ("2026-11-16T01:43:20.2509+01:00", 1_794_789_800_250),
            ("2026-11-15t23:13:20-01:30", 1_794_789_800_000),
            ("1969-12-31T23:59:59Z", 0),
        ] {
            assert_eq!(parse_rfc3339_ms(text), Some(ms), "{text}");
        }
        for text in [
            "",
            "not-a-timestamp",
            "2026-11-16",
            "2026-11-16T00:43:20",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-16T24:00:00Z",
            "2026-11-16T00:43:20.Z",
            "2026-11-16T00:43:20+1:00",
            "2026-11-16T00:43:20Zx",
            "+026-11-16T00:43:20Z",
            "2026-11-16T00:43:20+0é:0",
        ] {
            assert_eq!(parse_rfc3339_ms(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_to_live_is_a_plain_whole_number() {
        assert_eq!(of(TTL, "3600").unwrap(), Expiry::Idle { secs: 3600 });
        assert_eq!(of(TTL, "0").unwrap(), Expiry::Idle { secs: 0 });
        for text in ["abc", "-1", "+60", "00060", "60.5", "1e3", "", "99999999999999999999"] {
            assert!(of(TTL, text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_use_moves_the_end_of_an_idle_stream_only() {
        let used = Timestamp(5_000);
        let idle = Expiry::Idle { secs: 2 };
        assert_eq!(idle.deadline(used), Some(Timestamp(7_000)));
        assert_eq!(idle.slack(), Some(Duration::from_secs(1)));
        let at = of(EXPIRES_AT, "1970-01-01T00:00:09Z").unwrap();
        assert_eq!(at.deadline(used), Some(Timestamp(9_000)));
        assert!(at.is_same(&of(EXPIRES_AT, "1970-01-01T01:00:09+01:00").unwrap()));
        assert_eq!((Expiry::Never.deadline(used), at.slack()), (None, None));
    }
}
