//! When the time of a schedule comes: cron expressions, in UTC.

use std::str::FromStr;

use chrono::DateTime;
use croner::Cron;
use gapless_core::Timestamp;

/// Says what is wrong with an expression.
pub(crate) fn check(text: &str) -> Result<(), String> {
    Cron::from_str(text).map(|_| ()).map_err(|error| error.to_string())
}

/// The next time after this one; `None` if there is none.
pub(crate) fn next(text: &str, after: Timestamp) -> Option<Timestamp> {
    let after = DateTime::from_timestamp_millis(i64::try_from(after.0).ok()?)?;
    let next = Cron::from_str(text).ok()?.find_next_occurrence(&after, false).ok()?;
    u64::try_from(next.timestamp_millis()).ok().map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_after_the_one_given() {
        let at = |text: &str| Timestamp(gapless_core::calendar::parse(text).expect("a time"));
        let noon = at("2026-11-15T12:00:00Z");
        assert_eq!(next("0 12 * * *", noon), Some(at("2026-11-16T12:00:00Z")));
        assert_eq!(next("*/15 * * * *", noon), Some(at("2026-11-15T12:15:00Z")));
        // Six fields begin with the seconds.
        assert_eq!(next("*/10 * * * * *", Timestamp(noon.0 + 1)), Some(Timestamp(noon.0 + 10_000)));
        assert_eq!(next("0 0 30 2 *", noon), None, "there is no such day");
        assert!(check("61 * * * *").is_err() && check("").is_err() && check("@daily").is_ok());
    }
}
