//! Settings of a group as JSON, and changes to them.
//!
//! As with topics a change names what shall be different, and what it does not name stays;
//! `null` gives a setting back to the default.

use std::time::Duration;

use gapless_core::retry::{RetryPolicy, Waits};
use gapless_core::{Durability, GroupSettings, Mode, OnGap};
use gapless_protocol::ErrorCode;
use serde::Deserialize;

use super::start_of;
use crate::http::topics::pattern_of;
use crate::http::values::problem::Problem;
use crate::http::values::settings::{Named, Object, named, word};

/// What a request wants to be different.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Changes {
    source: Option<String>,
    mode: Option<String>,
    start: Option<String>,
    #[serde(deserialize_with = "named")]
    lease_ms: Named<u64>,
    #[serde(deserialize_with = "named")]
    attempts_max: Named<u32>,
    #[serde(deserialize_with = "named")]
    retry: Named<Object<RetryIn>>,
    #[serde(deserialize_with = "named")]
    dead_letters: Named<bool>,
    #[serde(deserialize_with = "named")]
    on_gap: Named<String>,
    #[serde(deserialize_with = "named")]
    in_flight_max: Named<u32>,
    #[serde(deserialize_with = "named")]
    member_in_flight_max: Named<u32>,
    #[serde(deserialize_with = "named")]
    open_max: Named<u32>,
    #[serde(deserialize_with = "named")]
    durability: Named<String>,
}

/// Waits that are listed, or that grow.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RetryIn {
    steps_ms: Option<Vec<u64>>,
    first_ms: Option<u64>,
    factor: Option<u32>,
    most_ms: Option<u64>,
    jitter_percent: Option<u8>,
}

impl Changes {
    /// The settings of a new group.
    pub(super) fn whole(self) -> Result<GroupSettings, Problem> {
        let source = self.source.as_deref().ok_or_else(|| {
            Problem::bad_request("say what the group reads: {\"source\": \"orders.>\"}")
        })?;
        let settings = GroupSettings::new(pattern_of(source)?);
        self.apply(settings)
    }

    /// The settings with these changes.
    pub(super) fn apply(self, mut settings: GroupSettings) -> Result<GroupSettings, Problem> {
        let plain = GroupSettings::new(settings.source.clone());
        if let Some(source) = self.source {
            settings.source = pattern_of(&source)?;
        }
        if let Some(mode) = self.mode {
            settings.mode = word("mode", &mode, Mode::from_name)?;
        }
        if let Some(start) = self.start {
            settings.start = start_of(&start)?;
        }
        if let Some(lease) = self.lease_ms {
            settings.lease = lease.map_or(plain.lease, Duration::from_millis);
        }
        if let Some(retry) = self.retry {
            settings.retry = retry.map_or(Ok(plain.retry), |Object(retry)| retry.policy())?;
        }
        if let Some(on_gap) = self.on_gap {
            let read = |text: String| word("on_gap", &text, OnGap::from_name);
            settings.on_gap = on_gap.map_or(Ok(plain.on_gap), read)?;
        }
        if let Some(durability) = self.durability {
            let read = |text: String| word("durability", &text, Durability::from_name);
            settings.durability = durability.map_or(Ok(plain.durability), read)?;
        }
        let set = |named: Named<u32>, now: &mut u32, plain: u32| {
            if let Some(number) = named {
                *now = number.unwrap_or(plain);
            }
        };
        set(self.attempts_max, &mut settings.attempts_max, plain.attempts_max);
        set(self.in_flight_max, &mut settings.in_flight_max, plain.in_flight_max);
        let most = &mut settings.member_in_flight_max;
        set(self.member_in_flight_max, most, plain.member_in_flight_max);
        set(self.open_max, &mut settings.open_max, plain.open_max);
        if let Some(dead_letters) = self.dead_letters {
            settings.dead_letters = dead_letters.unwrap_or(plain.dead_letters);
        }
        Ok(settings)
    }
}

impl RetryIn {
    fn policy(self) -> Result<RetryPolicy, Problem> {
        let plain = RetryPolicy::default();
        let ms = Duration::from_millis;
        let grows = self.first_ms.is_some() || self.factor.is_some() || self.most_ms.is_some();
        let waits = match (self.steps_ms, plain.waits) {
            (Some(_), _) if grows => {
                let detail = "`retry` has `steps_ms`, or `first_ms`, `factor` and `most_ms`";
                return Err(Problem::new(ErrorCode::BadSettings, detail));
            }
            (Some(steps), _) => Waits::Steps(steps.into_iter().map(ms).collect()),
            (None, Waits::Growing { first, factor, most }) => Waits::Growing {
                first: self.first_ms.map_or(first, ms),
                factor: self.factor.unwrap_or(factor),
                most: self.most_ms.map_or(most, ms),
            },
            (None, steps) => steps,
        };
        let jitter_percent = self.jitter_percent.unwrap_or(plain.jitter_percent);
        Ok(RetryPolicy { waits, jitter_percent })
    }
}

#[cfg(test)]
mod tests {
    use gapless_core::{GroupStart, Pattern, Timestamp};
    use serde_json::json;

    use super::*;
    use crate::json::group_settings;

    #[test]
    fn what_is_shown_can_be_set_again() {
        let plain = GroupSettings::new(Pattern::parse("orders.>").unwrap());
        let steps = Waits::Steps(vec![Duration::ZERO, Duration::from_millis(7)]);
        let other = GroupSettings {
            mode: Mode::Keyed,
            start: GroupStart::Time(Timestamp(7)),
            lease: Duration::from_millis(10),
            attempts_max: 1,
            retry: RetryPolicy { waits: steps, jitter_percent: 3 },
            dead_letters: false,
            on_gap: OnGap::Continue,
            in_flight_max: 5,
            member_in_flight_max: 6,
            open_max: 7,
            durability: Durability::Written,
            ..plain.clone()
        };
        for settings in [plain, other] {
            let shown = group_settings(&settings);
            let again: Changes = serde_json::from_value(shown).unwrap();
            assert_eq!(again.whole().unwrap(), settings);
        }
    }

    #[test]
    fn null_gives_a_setting_back_to_the_default() {
        let plain = GroupSettings::new(Pattern::parse("a").unwrap());
        let other = GroupSettings { attempts_max: 9, on_gap: OnGap::Continue, ..plain.clone() };
        let back = json!({ "attempts_max": null, "on_gap": null });
        let back: Changes = serde_json::from_value(back).unwrap();
        assert_eq!(back.apply(other).unwrap(), plain);
    }
}
