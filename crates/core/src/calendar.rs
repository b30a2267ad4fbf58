//! Times as people write them, in UTC, without a dependency: the Gregorian calendar is short.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

const MS_PER_DAY: u64 = 86_400_000;
/// The last moment that has a year of four digits.
const LAST_MS: u64 = 253_402_300_799_999;

/// Milliseconds since 1970 as `2026-11-15T22:54:03.120Z`; `never` for what is not of this age.
pub fn format(ms: u64) -> String {
    if ms > LAST_MS {
        return "never".to_owned();
    }
    let (days, rest) = (ms / MS_PER_DAY, ms % MS_PER_DAY);
    let (year, month, day) = date_of(days);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, ms) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Reads `2026-11-15`, `2026-11-15T22:54`, with seconds, a fraction of them and a zone if
/// there are any; `None` when it is not a time after 1970.
pub fn parse(text: &str) -> Option<u64> {
    let (date, clock) = match text.split_once(['T', 't', ' ']) {
        Some((date, clock)) => (date, Some(clock)),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    if parts.next().is_some() || !(1970..=9999).contains(&year) {
        return None;
    }
    if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
        return None;
    }
    let midnight = days_until(year, month, day) * MS_PER_DAY;
    let Some(clock) = clock else { return Some(midnight) };
    let (clock, offset_minutes) = zone(clock)?;
    let ms = i64::try_from(midnight + time_of_day(clock)?).ok()?;
    u64::try_from(ms - offset_minutes * 60_000).ok()
}

/// Cuts the zone off; gives it in minutes east of Greenwich.
fn zone(clock: &str) -> Option<(&str, i64)> {
    if let Some(clock) = clock.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let Some(at) = clock.rfind(['+', '-']) else { return Some((clock, 0)) };
    let (clock, zone) = clock.split_at(at);
    let (hours, minutes) = zone[1..].split_once(':')?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let offset = i64::try_from(hours * 60 + minutes).ok()?;
    Some((clock, if zone.starts_with('-') { -offset } else { offset }))
}

fn time_of_day(clock: &str) -> Option<u64> {
    let (clock, ms) = match clock.split_once('.') {
        Some((clock, fraction)) if (1..=9).contains(&fraction.len()) => {
            number(fraction, fraction.len())?;
            let padded = format!("{fraction:0<3}");
            (clock, padded[..3].parse::<u64>().ok()?)
        }
        Some(_) => return None,
        None => (clock, 0),
    };
    let mut parts = clock.split(':');
    let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let second = match parts.next() {
        Some(second) => number(second, 2)?,
        None => 0,
    };
    let fits = hour <= 23 && minute <= 59 && second <= 59 && parts.next().is_none();
    fits.then_some(((hour * 60 + minute) * 60 + second) * 1000 + ms)
}

/// A number of exactly so many digits.
fn number(text: &str, digits: usize) -> Option<u64> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to this date.
fn days_until(year: u64, month: u64, day: u64) -> u64 {
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400;
    let years = (year - 1970) * 365 + leap_days - (1969 / 4 - 1969 / 100 + 1969 / 400);
    years + (1..month).map(|month| days_in(year, month)).sum::<u64>() + day - 1
}

/// The date so many days after 1970-01-01.
fn date_of(days: u64) -> (u64, u64, u64) {
    // The guess is never too late, and a few years too early at most.
    let mut year = 1970 + days / 366;
    while days_until(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut rest = days - days_until(year, 1, 1);
    let mut month = 1;
    while rest >= days_in(year, month) {
        rest -= days_in(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_written_as_everybody_does() {
        assert_eq!(format(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(format(1_763_247_243_120), "2025-11-15T22:54:03.120Z");
        assert_eq!(format(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
        assert_eq!(format(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert_eq!(format(LAST_MS), "9999-12-31T23:59:59.999Z");
        assert_eq!(format(u64::MAX), "never");
    }

    #[test]
    fn what_is_written_reads_back() {
        for ms in (0..4_200_000_000_000).step_by(86_399_999 * 37) {
            assert_eq!(parse(&format(ms)), Some(ms));
        }
    }

    #[test]
    fn shorter_forms_and_zones_are_read() {
        assert_eq!(parse("1970-01-02"), Some(MS_PER_DAY));
        assert_eq!(parse("1970-01-01T00:01"), Some(60_000));
        assert_eq!(parse("1970-01-01 00:00:01.5"), Some(1_500));
        assert_eq!(parse("1970-01-01T02:00:00+02:00"), Some(0));
        assert_eq!(parse("1970-01-01T00:00:00-01:30"), Some(5_400_000));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "1970",
            "1970-1-1",
            "1969-12-31",
            "2025-02-29",
            "2025-04-31",
            "2025-00-01",
            "2025-01-01T24:00",
            "2025-01-01T00:60",
            "2025-01-01T",
            "2025-01-01T00:00:00.",
            "1970-01-01T00:00+02:00",
            "2025-01-01T00:00+2",
            "2025-01-01T00:00:00:00",
            "+025-01-01",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
