//! Templates: how `sub` prints a message, and what `pub` fills into many.
//!
//! The two differ on purpose. A format is all placeholders, so an unknown one is an error. What is
//! published may be JSON, so only known placeholders are replaced and every other brace stays.

use gapless_broker::{Clock, SystemClock, random_epoch};
use gapless_client::Token;
use gapless_core::calendar;

use crate::show::{Shown, readable};
use crate::values::nearest;

/// What `{rand}` is below.
const RAND_END: u64 = 1_000_000_000;

/// One part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
    Header(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Topic,
    Seq,
    Position,
    Cursor,
    Time,
    TimeMs,
    Key,
    Id,
    Body,
    Headers,
}

const FIELDS: [(&str, Field); 10] = [
    ("topic", Field::Topic),
    ("seq", Field::Seq),
    ("position", Field::Position),
    ("cursor", Field::Cursor),
    ("time", Field::Time),
    ("time_ms", Field::TimeMs),
    ("key", Field::Key),
    ("id", Field::Id),
    ("body", Field::Body),
    ("headers", Field::Headers),
];

/// How a message is printed, as `{topic} {seq} {key} {body}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    parts: Vec<Part>,
}

/// Reads a format. `{{` and `}}` are braces, `\n` and `\t` a line end and a tab.
pub(crate) fn format(text: &str) -> Result<Format, String> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        match (letter, rest.peek()) {
            ('{', Some('{')) | ('}', Some('}')) => {
                rest.next();
                plain.push(letter);
            }
            ('\\', Some('n' | 't' | '\\')) => plain.push(match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                _ => '\\',
            }),
            ('{', _) => {
                let name: String = rest.by_ref().take_while(|letter| *letter != '}').collect();
                if !plain.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                }
                parts.push(placeholder(&name)?);
            }
            _ => plain.push(letter),
        }
    }
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(Format { parts })
}

fn placeholder(name: &str) -> Result<Part, String> {
    if let Some(header) = name.strip_prefix("header:") {
        return Ok(Part::Header(header.to_owned()));
    }
    let known = FIELDS.iter().find(|(known, _)| *known == name);
    known.map(|(_, field)| Part::Field(*field)).ok_or_else(|| {
        let near = nearest(name, FIELDS.iter().map(|(name, _)| *name));
        let near = near.map(|near| format!(" (did you mean {{{near}}}?)")).unwrap_or_default();
        let names: Vec<String> = FIELDS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
        format!(
            "there is no placeholder {{{name}}}{near}; use {} or {{header:NAME}}; {{{{ is a brace",
            names.join(" ")
        )
    })
}

impl Format {
    /// The line of a message, without its end. What a message does not have is empty.
    pub(crate) fn line(&self, shown: &Shown<'_>) -> String {
        let message = shown.message;
        let bytes = |bytes: Option<&[u8]>| bytes.map(readable).unwrap_or_default();
        let mut line = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => line += text,
                Part::Header(name) => {
                    let value = message.headers.iter().find(|(known, _)| known == name);
                    line += &bytes(value.map(|(_, value)| value.as_ref()));
                }
                Part::Field(field) => {
                    line += &match field {
                        Field::Topic => shown.topic.to_owned(),
                        Field::Seq => shown.seq.to_string(),
                        Field::Position => shown.position.to_string(),
                        Field::Cursor => {
                            let position = shown.position;
                            let token = shown.epoch.map(|epoch| Token { epoch, position });
                            token.map(|token| token.to_string()).unwrap_or_default()
                        }
                        Field::Time => calendar::format(shown.time.0),
                        Field::TimeMs => shown.time.0.to_string(),
                        Field::Key => bytes(message.key.as_deref()),
                        Field::Id => bytes(message.id.as_deref()),
                        Field::Body => bytes(message.body.as_deref()),
                        Field::Headers => {
                            let pair = |(name, value): &(String, bytes::Bytes)| {
                                format!("{name}={}", readable(value))
                            };
                            message.headers.iter().map(pair).collect::<Vec<_>>().join(" ")
                        }
                    };
                }
            }
        }
        line
    }
}

/// What is filled into the messages of one command.
pub(crate) struct Filling {
    clock: SystemClock,
    random: fn() -> u64,
}

impl Default for Filling {
    fn default() -> Self {
        Self { clock: SystemClock::default(), random: || random_epoch().0 }
    }
}

impl Filling {
    /// Replaces `{number}` or `{n}` (the number of the message, from 1), `{time}`, `{time_ms}`, `{rand}` and
    /// `{rand:FROM-TO}`.
    pub(crate) fn fill(&self, text: &str, n: u64) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            filled += &rest[..at];
            rest = &rest[at..];
            let end = rest.find('}');
            let value = end.and_then(|end| self.value(&rest[1..end], n).map(|value| (end, value)));
            match value {
                Some((end, value)) => {
                    filled += &value;
                    rest = &rest[end + 1..];
                }
                None => {
                    filled.push('{');
                    rest = &rest[1..];
                }
            }
        }
        filled + rest
    }

    fn value(&self, name: &str, n: u64) -> Option<String> {
        match name {
            "number" | "n" => Some(n.to_string()),
            "time" => Some(calendar::format(self.clock.now().0)),
            "time_ms" => Some(self.clock.now().0.to_string()),
            "rand" => Some(((self.random)() % RAND_END).to_string()),
            _ => {
                let (from, to) = name.strip_prefix("rand:")?.split_once('-')?;
                let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
                let span = to.checked_sub(from)?.checked_add(1)?;
                Some((from + (self.random)() % span).to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_core::{Epoch, Message, Position, Seq, Timestamp};

    #[test]
    fn a_format_has_every_part_of_a_message() {
        let message = Message::new("two\nlines").with_key("k").with_header("a", "b");
        let shown = Shown {
            topic: "orders",
            seq: Seq(7),
            position: Position(9),
            time: Timestamp(1_000),
            message: &message,
            epoch: Some(Epoch(0xab)),
        };
        let line = |text: &str| format(text).unwrap().line(&shown);
        assert_eq!(line("{topic} {seq} {key} {body}"), "orders 7 k two\\nlines");
        assert_eq!(line("{time_ms}\\t{header:a}{header:none}"), "1000\tb");
        assert_eq!(line("{{{position}}} {cursor}"), "{9} 00000000000000ab:9");
        assert_eq!(line("{time} {id} {headers}"), "1970-01-01T00:00:01.000Z  a=b");
        let error = format("{boby}").unwrap_err();
        assert!(error.contains("did you mean {body}?"), "{error}");
    }

    #[test]
    fn only_known_placeholders_are_filled_in() {
        let filling = Filling { random: || 1_000_000_007, ..Filling::default() };
        assert_eq!(
            filling.fill("{\"n\": {n}, \"x\": {\"y\": 1}}", 3),
            "{\"n\": 3, \"x\": {\"y\": 1}}"
        );
        assert_eq!(
            filling.fill("{rand} {rand:10-12} {rand:9-1} {m} {", 1),
            "7 12 {rand:9-1} {m} {"
        );
        assert_eq!(filling.fill("{time}", 1).len(), "1970-01-01T00:00:01.000Z".len());
        assert_eq!(filling.fill("é{n}ü{number}", 12), "é12ü12");
        assert_eq!(
            filling.fill("{rand:0-18446744073709551615}", 1),
            "{rand:0-18446744073709551615}"
        );
    }
}
