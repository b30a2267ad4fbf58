//! What a group is: what it reads, how it hands out, and when it gives up.
//!
//! Settings are part of journal entries, so their bytes outlive the program: a version byte,
//! then tag, length and value of each setting. An unknown tag is an error, since a program
//! that dropped a setting silently would treat messages as the user had decided otherwise.

use alloc::vec::Vec;
use core::time::Duration;

use crate::batch::{put_varint, take_bytes, take_varint};
use crate::id::{Position, Seq};
use crate::options::{Durability, coded};
use crate::pattern::Pattern;
use crate::retry::{RetryError, RetryPolicy, Waits};
use crate::time::{Timestamp, whole_ms};

/// Most messages in flight of one group, and most that may be open: some 100 bytes each at
/// worst, so a slip of the keyboard above it.
pub const OPEN_MAX: u32 = 10_000_000;
/// Shortest lease: below it a member cannot answer in time over any network.
pub const LEASE_MIN: Duration = Duration::from_millis(10);
/// Longest lease: above it a member that died would hold its messages for too long to notice.
pub const LEASE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

const VERSION: u8 = 1;

/// Which member gets which message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Any member gets any message.
    #[default]
    Shared,
    /// As shared, but messages of one key go one after the other; those without are free.
    Keyed,
    /// One member gets all, in order; the others stand by.
    Ordered,
}

coded!(Mode, 1 Shared "shared", 2 Keyed "keyed", 3 Ordered "ordered");

/// What a group does when messages it had not read are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnGap {
    /// It hands out nothing more until it is resumed or reset.
    #[default]
    Stop,
    /// It reports the gap and goes on with the first message that is kept.
    Continue,
}

coded!(OnGap, 1 Stop "stop", 2 Continue "continue");

/// Where a group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupStart {
    /// With the oldest message that is kept.
    #[default]
    Beginning,
    /// With the next message to come.
    Now,
    /// With this seq; for one topic only.
    Seq(Seq),
    /// After this position.
    Position(Position),
    /// With the first message accepted at this time or later.
    Time(Timestamp),
}

/// The settings of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// The topics it reads: a name or a pattern.
    pub source: Pattern,
    /// Which member gets which message.
    pub mode: Mode,
    /// Where it began.
    pub start: GroupStart,
    /// How long a member may work on a message before it must ack or extend.
    pub lease: Duration,
    /// How many deliveries may fail before the message is a dead letter.
    pub attempts_max: u32,
    /// How long to wait before a failed message is tried again.
    pub retry: RetryPolicy,
    /// Whether what failed too often is kept as a dead letter, or let go.
    pub dead_letters: bool,
    /// What to do when messages it had not read are gone.
    pub on_gap: OnGap,
    /// Most messages in flight with all members.
    pub in_flight_max: u32,
    /// Most messages in flight with one member, whatever it asks for.
    pub member_in_flight_max: u32,
    /// Most messages that are read and not done: in flight, waiting for their next attempt,
    /// or behind another of their key.
    pub open_max: u32,
    /// What an ack has reached when it is confirmed.
    pub durability: Durability,
}

impl GroupSettings {
    /// The defaults, for this source.
    pub fn new(source: Pattern) -> Self {
        Self {
            source,
            mode: Mode::default(),
            start: GroupStart::default(),
            lease: Duration::from_secs(30),
            attempts_max: 5,
            retry: RetryPolicy::default(),
            dead_letters: true,
            on_gap: OnGap::default(),
            in_flight_max: 1_000_000,
            member_in_flight_max: 65_536,
            open_max: 1_000_000,
            durability: Durability::Flushed,
        }
    }
}

/// Why settings of a group were refused, or bytes are none. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupSettingsError {
    /// A number is outside its range.
    #[error("{setting} must be between {min} and {max}")]
    Range {
        /// Which setting.
        setting: &'static str,
        /// The least it may be.
        min: u64,
        /// The most it may be.
        max: u64,
    },
    /// The waits between attempts make no sense.
    #[error(transparent)]
    Retry(#[from] RetryError),
    /// Bytes of settings that cannot be read.
    #[error("setting {tag} of a group cannot be read: written by a newer program, or damaged")]
    Unreadable {
        /// Which one; zero when it is the whole.
        tag: u8,
    },
}

mod tag {
    pub(super) const SOURCE: u8 = 1;
    pub(super) const MODE: u8 = 2;
    pub(super) const START: u8 = 3;
    pub(super) const LEASE_MS: u8 = 4;
    pub(super) const ATTEMPTS_MAX: u8 = 5;
    pub(super) const RETRY: u8 = 6;
    pub(super) const DEAD_LETTERS: u8 = 7;
    pub(super) const ON_GAP: u8 = 8;
    pub(super) const IN_FLIGHT_MAX: u8 = 9;
    pub(super) const MEMBER_IN_FLIGHT_MAX: u8 = 10;
    pub(super) const OPEN_MAX: u8 = 11;
    pub(super) const DURABILITY: u8 = 12;
}

impl GroupSettings {
    /// Whether these settings make sense together.
    ///
    /// # Errors
    /// Says what does not.
    pub fn validate(&self) -> Result<(), GroupSettingsError> {
        let open = u64::from(OPEN_MAX);
        let lease = (whole_ms(LEASE_MIN), whole_ms(LEASE_MAX));
        let numbers = [
            ("lease (ms)", whole_ms(self.lease), lease),
            ("attempts_max", u64::from(self.attempts_max), (1, 1_000_000)),
            ("in_flight_max", u64::from(self.in_flight_max), (1, open)),
            ("member_in_flight_max", u64::from(self.member_in_flight_max), (1, open)),
            ("open_max", u64::from(self.open_max), (1, open)),
        ];
        for (setting, value, (min, max)) in numbers {
            if !(min..=max).contains(&value) {
                return Err(GroupSettingsError::Range { setting, min, max });
            }
        }
        Ok(self.retry.validate()?)
    }

    /// Appends the bytes of these settings.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        let at = out.len();
        out.push(0);
        let mut put = |tag: u8, value: &[u8]| {
            out[at] += 1;
            out.push(tag);
            put_varint(out, value.len() as u64);
            out.extend_from_slice(value);
        };
        put(tag::SOURCE, self.source.as_str().as_bytes());
        put(tag::MODE, &[self.mode.code()]);
        put(tag::START, &start_bytes(self.start));
        put(tag::LEASE_MS, &whole_ms(self.lease).to_le_bytes());
        put(tag::ATTEMPTS_MAX, &self.attempts_max.to_le_bytes());
        put(tag::RETRY, &retry_bytes(&self.retry));
        put(tag::DEAD_LETTERS, &[u8::from(self.dead_letters)]);
        put(tag::ON_GAP, &[self.on_gap.code()]);
        put(tag::IN_FLIGHT_MAX, &self.in_flight_max.to_le_bytes());
        put(tag::MEMBER_IN_FLIGHT_MAX, &self.member_in_flight_max.to_le_bytes());
        put(tag::OPEN_MAX, &self.open_max.to_le_bytes());
        put(tag::DURABILITY, &[self.durability.code()]);
    }

    /// Reads settings back, whole and valid.
    ///
    /// # Errors
    /// Says what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, GroupSettingsError> {
        let whole = GroupSettingsError::Unreadable { tag: 0 };
        let (&[version, count], mut rest) = bytes.split_first_chunk().ok_or(whole)?;
        if version != VERSION {
            return Err(whole);
        }
        let mut left = count;
        let mut settings = None;
        let mut last = 0;
        while let Some((&tag, after)) = rest.split_first() {
            let bad = GroupSettingsError::Unreadable { tag };
            rest = after;
            let value =
                take_varint(&mut rest).and_then(|len| take_bytes(&mut rest, len)).ok_or(bad)?;
            if tag <= last {
                return Err(bad);
            }
            last = tag;
            left = left.checked_sub(1).ok_or(whole)?;
            match &mut settings {
                None if tag == tag::SOURCE => {
                    let text = core::str::from_utf8(value).map_err(|_| bad)?;
                    settings = Some(Self::new(Pattern::parse(text).map_err(|_| bad)?));
                }
                None => return Err(whole),
                Some(settings) => settings.set(tag, value).ok_or(bad)?,
            }
        }
        // Without the count, settings that are cut short would be others, with defaults.
        let settings = settings.filter(|_| left == 0).ok_or(whole)?;
        settings.validate()?;
        Ok(settings)
    }

    fn set(&mut self, tag: u8, value: &[u8]) -> Option<()> {
        let byte = || <[u8; 1]>::try_from(value).ok().map(|[byte]| byte);
        let int = || value.try_into().ok().map(u32::from_le_bytes);
        let long = || value.try_into().ok().map(u64::from_le_bytes);
        match tag {
            tag::MODE => self.mode = Mode::from_code(byte()?)?,
            tag::START => self.start = start_of(value)?,
            tag::LEASE_MS => self.lease = Duration::from_millis(long()?),
            tag::ATTEMPTS_MAX => self.attempts_max = int()?,
            tag::RETRY => self.retry = retry_of(value)?,
            tag::DEAD_LETTERS => self.dead_letters = byte()? == 1,
            tag::ON_GAP => self.on_gap = OnGap::from_code(byte()?)?,
            tag::IN_FLIGHT_MAX => self.in_flight_max = int()?,
            tag::MEMBER_IN_FLIGHT_MAX => self.member_in_flight_max = int()?,
            tag::OPEN_MAX => self.open_max = int()?,
            tag::DURABILITY => self.durability = Durability::from_code(byte()?)?,
            _ => return None,
        }
        Some(())
    }
}

/// A code and a number.
fn start_bytes(start: GroupStart) -> [u8; 9] {
    let (code, number) = match start {
        GroupStart::Beginning => (1, 0),
        GroupStart::Now => (2, 0),
        GroupStart::Seq(seq) => (3, seq.0),
        GroupStart::Position(position) => (4, position.0),
        GroupStart::Time(time) => (5, time.0),
    };
    let mut bytes = [code; 9];
    bytes[1..].copy_from_slice(&u64::to_le_bytes(number));
    bytes
}

fn start_of(bytes: &[u8]) -> Option<GroupStart> {
    let (&code, number) = bytes.split_first()?;
    let number = u64::from_le_bytes(number.try_into().ok()?);
    Some(match code {
        1 => GroupStart::Beginning,
        2 => GroupStart::Now,
        3 => GroupStart::Seq(Seq(number)),
        4 => GroupStart::Position(Position(number)),
        5 => GroupStart::Time(Timestamp(number)),
        _ => return None,
    })
}

/// The jitter; zero and the steps, or the factor and first and most; waits in ms.
fn retry_bytes(retry: &RetryPolicy) -> Vec<u8> {
    let mut out = Vec::new();
    out.push(retry.jitter_percent);
    match &retry.waits {
        Waits::Steps(steps) => {
            put_varint(&mut out, 0);
            steps.iter().for_each(|step| put_varint(&mut out, whole_ms(*step)));
        }
        Waits::Growing { first, factor, most } => {
            put_varint(&mut out, u64::from(*factor));
            put_varint(&mut out, whole_ms(*first));
            put_varint(&mut out, whole_ms(*most));
        }
    }
    out
}

fn retry_of(bytes: &[u8]) -> Option<RetryPolicy> {
    let (&jitter_percent, mut rest) = bytes.split_first()?;
    let factor = u32::try_from(take_varint(&mut rest)?).ok()?;
    let mut waits = Vec::new();
    while !rest.is_empty() {
        waits.push(Duration::from_millis(take_varint(&mut rest)?));
    }
    let waits = match (factor, waits.as_slice()) {
        (0, _) => Waits::Steps(waits),
        (factor, &[first, most]) => Waits::Growing { first, factor, most },
        _ => return None,
    };
    Some(RetryPolicy { waits, jitter_percent })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn settings() -> GroupSettings {
        GroupSettings::new(Pattern::parse("orders.>").unwrap())
    }

    #[test]
    fn settings_read_back() {
        let plain = settings();
        let steps = Waits::Steps(vec![Duration::ZERO, Duration::from_millis(250)]);
        let other = GroupSettings {
            mode: Mode::Keyed,
            start: GroupStart::Time(Timestamp(7)),
            lease: Duration::from_millis(10),
            attempts_max: 1,
            retry: RetryPolicy { waits: steps, jitter_percent: 0 },
            dead_letters: false,
            on_gap: OnGap::Continue,
            in_flight_max: 5,
            member_in_flight_max: 6,
            open_max: 7,
            durability: Durability::Written,
            ..settings()
        };
        for settings in [plain, other] {
            let mut bytes = Vec::new();
            settings.encode(&mut bytes);
            assert_eq!(GroupSettings::decode(&bytes), Ok(settings));
            for len in 0..bytes.len() {
                let cut = GroupSettings::decode(&bytes[..len]);
                assert!(cut.is_err(), "cut at {len} they are {cut:?}");
            }
            bytes[1] += 1;
            bytes.extend_from_slice(&[99, 0]);
            let unknown = GroupSettingsError::Unreadable { tag: 99 };
            assert_eq!(GroupSettings::decode(&bytes), Err(unknown));
        }
    }

    #[test]
    fn settings_outside_their_range_are_refused() {
        let zero = GroupSettings { attempts_max: 0, ..settings() };
        assert!(matches!(zero.validate(), Err(GroupSettingsError::Range { .. })));
        let short = GroupSettings { lease: Duration::from_millis(1), ..settings() };
        assert!(matches!(short.validate(), Err(GroupSettingsError::Range { .. })));
        let many = GroupSettings { open_max: OPEN_MAX + 1, ..settings() };
        assert!(matches!(many.validate(), Err(GroupSettingsError::Range { .. })));
    }
}
