//! Words that stand for values: durations, sizes, times, headers, places to begin.
//!
//! Each reader refuses with an example of what it would have taken. None reads a clock: what
//! is relative stays so until it is resolved.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use gapless_client::Token;
use gapless_core::{
    DeliveryPolicy, Durability, Mode, OnGap, PartitionBehavior, Pattern, Seq, Timestamp, TopicName,
};

/// Units of durations, in milliseconds.
const TIME_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Units of sizes, in bytes.
const SIZE_UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// A duration: `10ms`, `5s`, `2m`, `1h`, `3d`, or several in a row as `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = |why: &str| format!("{why}; write it like 10ms, 5s, 2m, 1h, 3d or 1h30m");
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = digits(rest);
        let number = number.ok_or_else(|| wrong("that is not a duration"))?;
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let known = TIME_UNITS.iter().find(|(name, _)| *name == unit);
        let (_, ms) = known.ok_or_else(|| match unit {
            "" => wrong("the unit is missing"),
            _ => wrong(&format!("there is no unit `{unit}`")),
        })?;
        let part = number.checked_mul(*ms).and_then(|part| total.checked_add(part));
        total = part.ok_or_else(|| wrong("that is too long"))?;
        rest = after;
    }
    Ok(Duration::from_millis(total))
}

/// A size: `4096`, `64KiB`, `1GiB`, `10MB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = |why: &str| format!("{why}; write it like 4096, 64KiB, 1GiB or 10MB");
    let (number, unit) = digits(text);
    let number = number.ok_or_else(|| wrong("that is not a size"))?;
    let lower = unit.trim().to_ascii_lowercase();
    let known = SIZE_UNITS.iter().find(|(name, _)| *name == lower);
    let (_, bytes) = known.ok_or_else(|| wrong(&format!("there is no unit `{}`", unit.trim())))?;
    number.checked_mul(*bytes).ok_or_else(|| wrong("that is too large"))
}

/// As [`size`], of what has 32 bits.
pub(crate) fn small_size(text: &str) -> Result<u32, String> {
    u32::try_from(size(text)?).map_err(|_| "that is too large; at most 4GiB - 1 fits".to_owned())
}

/// The number at the beginning, and what follows it.
fn digits(text: &str) -> (Option<u64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].parse().ok(), &text[end..])
}

/// A point in time, perhaps seen from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    At(Timestamp),
    Ago(Duration),
    Ahead(Duration),
}

impl When {
    pub(crate) fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Ago(duration) => now.before(duration),
            Self::Ahead(duration) => now.after(duration),
        }
    }
}

/// A time: `2026-11-15`, `2026-11-15T22:54:03Z`, `@1763247243`, `-2h`, `+5m`.
pub(crate) fn time(text: &str) -> Result<When, String> {
    if let Some(ago) = text.strip_prefix('-') {
        return duration(ago).map(When::Ago);
    }
    if let Some(ahead) = text.strip_prefix('+') {
        return duration(ahead).map(When::Ahead);
    }
    let seconds = text.strip_prefix('@').and_then(|seconds| seconds.parse::<u64>().ok());
    let ms = match seconds {
        Some(seconds) => seconds.checked_mul(1000),
        None => gapless_core::calendar::parse(text),
    };
    ms.map(|ms| When::At(Timestamp(ms))).ok_or_else(|| {
        "that is not a time; write it like 2026-11-15T22:54:03Z, 2026-11-15, @1763247243 (seconds), \
         -2h (ago) or +5m (ahead); without a zone it is UTC"
            .to_owned()
    })
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Beginning,
    Now,
    LastPerKey,
    Seq(Seq),
    Time(When),
    Token(Token),
}

/// A place to begin: `beginning`, `now`, `last-per-key`, `seq:42`, `time:…`, `-2h`, a token.
pub(crate) fn start(text: &str) -> Result<Start, String> {
    match text {
        "beginning" => return Ok(Start::Beginning),
        "now" => return Ok(Start::Now),
        "last-per-key" => return Ok(Start::LastPerKey),
        _ => {}
    }
    if let Some(number) = text.strip_prefix("seq:") {
        let seq = number.parse().ok().filter(|seq| *seq > 0);
        return seq.map(|seq| Start::Seq(Seq(seq))).ok_or_else(|| {
            "that is not a seq; they begin with 1, so write it like seq:42".to_owned()
        });
    }
    if let Some(when) = text.strip_prefix("time:") {
        return time(when).map(Start::Time);
    }
    if text.starts_with('-') {
        return time(text).map(Start::Time);
    }
    if let Ok(token) = text.parse() {
        return Ok(Start::Token(token));
    }
    let word = nearest(text, ["beginning", "now", "last-per-key"]);
    let meant = word.map(|word| format!(" (did you mean `{word}`?)")).unwrap_or_default();
    Err(format!(
        "that is not a place to begin{meant}; use beginning, now, last-per-key, seq:42, \
         time:2026-11-15T22:54:03Z, -2h (two hours ago), or a token as `sub` prints it"
    ))
}

/// A header: `name=value`, or `Name: value` as curl has it.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let at = text.find(['=', ':']);
    let pair = at.map(|at| (text[..at].trim_end(), &text[at + 1..], &text[at..=at]));
    match pair {
        Some((name, value, "=")) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some((name, value, _)) if !name.is_empty() => {
            Ok((name.to_owned(), value.trim().to_owned()))
        }
        _ => Err("that is not a header; write it like trace=abc123 or 'Trace: abc123'".to_owned()),
    }
}

/// One of a few words: shells complete them, and help texts list them.
#[derive(Clone)]
pub(crate) struct Words<T> {
    words: &'static [&'static str],
    parse: fn(&str) -> Result<T, String>,
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Words<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        self.parse.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().map(PossibleValue::new)))
    }
}

/// `memory`, `written` or `flushed`.
pub(crate) fn durability() -> Words<Durability> {
    let parse = |text: &str| {
        Durability::from_name(text).ok_or_else(|| {
            "use memory (fast), written (survives kill -9) or flushed (survives power loss)"
                .to_owned()
        })
    };
    Words { words: &["memory", "written", "flushed"], parse }
}

/// `at-most-once` or `at-least-once`.
pub(crate) fn delivery() -> Words<DeliveryPolicy> {
    let parse = |text: &str| {
        let words = "use at-most-once (sent once) or at-least-once (sent until it has arrived)";
        DeliveryPolicy::from_name(text).ok_or_else(|| words.to_owned())
    };
    Words { words: &["at-most-once", "at-least-once"], parse }
}

/// `delay-queue` or `drop`.
pub(crate) fn partition() -> Words<PartitionBehavior> {
    let parse = |text: &str| {
        let words = "use delay-queue (kept for unreachable nodes) or drop (refused)";
        PartitionBehavior::from_name(text).ok_or_else(|| words.to_owned())
    };
    Words { words: &["delay-queue", "drop"], parse }
}

/// `shared`, `keyed` or `ordered`.
pub(crate) fn mode() -> Words<Mode> {
    let parse = |text: &str| {
        Mode::from_name(text).ok_or_else(|| {
            "use shared (any member gets any message), keyed (a key's messages one after the \
             other) or ordered (one member gets all)"
                .to_owned()
        })
    };
    Words { words: &["shared", "keyed", "ordered"], parse }
}

/// `stop` or `continue`.
pub(crate) fn on_gap() -> Words<OnGap> {
    let parse = |text: &str| {
        OnGap::from_name(text)
            .ok_or_else(|| "use stop (until it is resumed) or continue".to_owned())
    };
    Words { words: &["stop", "continue"], parse }
}

/// A level, or a filter of levels by module, which is checked where logging begins.
pub(crate) fn log_level() -> Words<String> {
    let parse = |text: &str| Ok(text.to_owned());
    Words { words: &["off", "error", "warn", "info", "debug", "trace"], parse }
}

/// The name of a topic.
pub(crate) fn topic(text: &str) -> Result<TopicName, String> {
    TopicName::parse(text).map_err(|error| format!("{error}; a name looks like orders.eu.created"))
}

/// A pattern of topics.
pub(crate) fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|error| {
        format!("{error}; a pattern looks like orders.created, orders.* or orders.> (in quotes)")
    })
}

/// The word that was most likely meant, if one is near enough.
pub(crate) fn nearest<'a>(
    wrong: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let distance = |word: &str| strsim::damerau_levenshtein(word, wrong);
    let far = (wrong.chars().count() / 3).clamp(1, 3);
    let near = words.into_iter().map(|word| (distance(word), word));
    near.filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let ms = |text: &str| duration(text).unwrap().as_millis();
        assert_eq!(ms("10ms"), 10);
        assert_eq!(ms("5s"), 5_000);
        assert_eq!(ms("2m"), 120_000);
        assert_eq!(ms("1h"), 3_600_000);
        assert_eq!(ms("3d"), 259_200_000);
        assert_eq!(ms("1h30m"), 5_400_000);
        assert_eq!(ms("0s"), 0);
        for text in ["", "s", "10", "5 s", "5x", "-5s", "1.5h", "ten", "99999999999999999999s"] {
            let error = duration(text).unwrap_err();
            assert!(error.contains("1h30m"), "{text}: {error}");
        }
        assert!(duration("999999999999999999d").unwrap_err().contains("too long"));
        assert!(duration("10").unwrap_err().contains("unit is missing"));
    }

    #[test]
    fn sizes_take_both_kinds_of_units() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1gib"), Ok(1 << 30));
        assert_eq!(size("10MB"), Ok(10_000_000));
        assert_eq!(size("10 MB"), Ok(10_000_000));
        for text in ["", "MB", "1XB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(size(text).unwrap_err().contains("64KiB"), "{text}");
        }
        assert!(small_size("4GiB").is_err());
    }

    #[test]
    fn times_are_absolute_or_seen_from_now() {
        assert_eq!(time("@5"), Ok(When::At(Timestamp(5000))));
        assert_eq!(time("1970-01-02"), Ok(When::At(Timestamp(86_400_000))));
        assert_eq!(time("-2h").unwrap().resolve(Timestamp(7_200_001)), Timestamp(1));
        assert_eq!(time("+5m").unwrap().resolve(Timestamp(1)), Timestamp(300_001));
        for text in ["", "soon", "2026-13-01", "@", "@x", "-", "-2", "+x"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_place_to_begin_has_a_word() {
        assert_eq!(start("beginning"), Ok(Start::Beginning));
        assert_eq!(start("now"), Ok(Start::Now));
        assert_eq!(start("last-per-key"), Ok(Start::LastPerKey));
        assert_eq!(start("seq:42"), Ok(Start::Seq(Seq(42))));
        assert_eq!(start("-2h"), Ok(Start::Time(When::Ago(Duration::from_secs(7200)))));
        assert_eq!(start("time:@1"), Ok(Start::Time(When::At(Timestamp(1000)))));
        let token = "00000000000000ab:7".parse().unwrap();
        assert_eq!(start("00000000000000ab:7"), Ok(Start::Token(token)));
        for text in ["seq:0", "seq:x", "time:never", "-2", "middle", "ab:7", ""] {
            assert!(start(text).is_err(), "{text}");
        }
        assert!(start("begining").unwrap_err().contains("did you mean `beginning`?"));
    }

    #[test]
    fn a_header_is_a_pair() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(header("a="), Ok(("a".into(), String::new())));
        assert_eq!(header("Trace-Id: x y: z "), Ok(("Trace-Id".into(), "x y: z".into())));
        assert_eq!(header("a=b: c"), Ok(("a".into(), "b: c".into())));
        assert!(header("a").is_err() && header("=b").is_err() && header(": b").is_err());
    }

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        assert_eq!(nearest("ordres", ["orders", "mails"]), Some("orders"));
        assert_eq!(nearest("zebra", ["orders", "mails"]), None);
        assert_eq!(nearest("x", []), None);
    }
}
