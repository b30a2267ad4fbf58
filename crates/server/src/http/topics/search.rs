//! Which messages of a range are shown: those with a key, those that contain a text.
//!
//! Messages are not indexed by content, so a search looks at them one by one. One answer looks at a
//! bounded number of messages and bytes; the reader goes on from `next`.

use bytes::Bytes;
use gapless_core::Message;

use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

/// Messages that one answer looks at, at most.
pub(crate) const LOOKED_AT_MAX: u64 = 20_000;
/// Bytes of messages that one answer looks at, about.
pub(crate) const LOOKED_AT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Longest text that is looked for, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// What a message must have to be shown, and how many were looked at.
#[derive(Debug)]
pub(crate) struct Search {
    key: Option<Bytes>,
    /// In ASCII lower case.
    text: Option<Vec<u8>>,
    pub(crate) looked_at: u64,
    looked_at_bytes: usize,
    pub(crate) found: u64,
}

impl Search {
    /// Reads `key` and `text`; `None` when neither is given.
    pub(crate) fn parse(params: &mut Params) -> Result<Option<Self>, Problem> {
        let key = params.bytes("key")?;
        let text = params.bytes("text")?.filter(|text| !text.is_empty());
        if text.as_ref().is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
            let detail = format_args!("`text` has at most {TEXT_BYTES_MAX} bytes");
            return Err(Problem::bad_request(detail));
        }
        if key.is_none() && text.is_none() {
            return Ok(None);
        }
        let text = text.map(|text| text.to_ascii_lowercase());
        Ok(Some(Self { key, text, looked_at: 0, looked_at_bytes: 0, found: 0 }))
    }

    /// Looks at a message: whether it is to be shown.
    pub(crate) fn finds(&mut self, message: &Message) -> bool {
        let body = message.body.as_deref().unwrap_or_default();
        self.looked_at += 1;
        self.looked_at_bytes += body.len();
        let has_key = self.key.as_deref().is_none_or(|key| message.key.as_deref() == Some(key));
        let found = has_key && self.text.as_deref().is_none_or(|text| contains(message, text));
        self.found += u64::from(found);
        found
    }

    /// Whether one answer may not look at more.
    pub(crate) fn is_over(&self) -> bool {
        self.looked_at >= LOOKED_AT_MAX || self.looked_at_bytes >= LOOKED_AT_BYTES_MAX
    }
}

/// Whether the body, the key or a header contains the text, ignoring the case of ASCII letters.
fn contains(message: &Message, lower: &[u8]) -> bool {
    let has = |bytes: &[u8]| {
        let (first, rest) = (lower[0], &lower[1..]);
        let upper = first.to_ascii_uppercase();
        let ends = |at: usize| bytes.get(at + 1..at + lower.len());
        (0..bytes.len().saturating_sub(rest.len())).any(|at| {
            (bytes[at] == first || bytes[at] == upper)
                && ends(at).is_some_and(|end| end.eq_ignore_ascii_case(rest))
        })
    };
    message.body.as_deref().is_some_and(has)
        || message.key.as_deref().is_some_and(has)
        || message.headers.iter().any(|(name, value)| has(name.as_bytes()) || has(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(query: &str) -> Search {
        let mut params = Params::parse(query);
        Search::parse(&mut params).expect("parameters").expect("a search")
    }

    #[test]
    fn a_text_is_found_in_body_key_and_headers_whatever_its_case() {
        let message =
            Message::new("The Card was REFUSED").with_key("eu-7").with_header("Who", "Ada");
        for text in ["card", "refused", "The", "EU-7", "ada", "who", "d"] {
            assert!(search(&format!("text={text}")).finds(&message), "{text}");
        }
        for text in ["cards", "refusedd", "us-7", "x"] {
            assert!(!search(&format!("text={text}")).finds(&message), "{text}");
        }
        assert!(!search("text=a").finds(&Message::new("")));
    }

    #[test]
    fn a_key_is_the_whole_key_and_both_must_fit() {
        let message = Message::new("refused").with_key("eu-7");
        assert!(search("key=eu-7").finds(&message));
        assert!(!search("key=eu").finds(&message));
        assert!(search("key=eu-7&text=fus").finds(&message));
        assert!(!search("key=eu-7&text=paid").finds(&message));
    }

    #[test]
    fn one_answer_looks_at_a_bounded_number_of_messages_and_bytes() {
        let mut small = search("text=x");
        for _ in 0..LOOKED_AT_MAX {
            assert!(!small.is_over());
            small.finds(&Message::new("y"));
        }
        assert!(small.is_over());
        let mut large = search("text=x");
        large.finds(&Message::new(vec![b'y'; LOOKED_AT_BYTES_MAX]));
        assert!(large.is_over());
        assert!(Search::parse(&mut Params::parse(&format!("text={}", "x".repeat(300)))).is_err());
        assert!(Search::parse(&mut Params::parse("text=")).unwrap().is_none());
    }
}
