//! Topic names: parsed once, valid ever after.
//!
//! A name is one or more tokens joined by dots, at most 255 bytes of UTF-8. Refused is everything
//! that would make two names look alike or mean something elsewhere: blanks, control and invisible
//! characters, the wildcards `*` and `>`, and the slashes of paths and addresses. A dot cannot
//! lead, end or double, so `..` is not a valid name.
//!
//! Names are compared byte by byte: there is no folding of case and no Unicode
//! normalising, since both change with the Unicode version and a name must not.
//! Which callers may use the system's names (a leading `$`) is not decided here.

use alloc::sync::Arc;
use core::borrow::Borrow;
use core::fmt;
use core::str::FromStr;

/// The most bytes a name or a pattern may have: it fits one length byte, on the wire and
/// on disk.
pub const NAME_BYTES_MAX: usize = 255;

/// The name of a topic. Cloning it copies a pointer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// Why a text is not a valid topic name. `at` counts bytes from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("the name is empty: give at least one token")]
    Empty,
    /// The text is longer than a name may be.
    #[error("the name has {bytes} bytes: shorten it to {NAME_BYTES_MAX}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// A dot stands first, last, or next to another.
    #[error("a token is missing at byte {at}: put exactly one dot between two tokens")]
    EmptyToken {
        /// Where a token should begin.
        at: usize,
    },
    /// A wildcard, which only patterns may hold.
    #[error("the wildcard {found:?} at byte {at} is for patterns only: remove it")]
    Wildcard {
        /// Where it stands.
        at: usize,
        /// Which one it is.
        found: char,
    },
    /// A blank, a control or invisible character, or a slash.
    #[error("the character {found:?} at byte {at} cannot be in a name: remove it")]
    Forbidden {
        /// Where it stands.
        at: usize,
        /// Which one it is.
        found: char,
    },
}

impl TopicName {
    /// Reads a name. The system's names are accepted too: see [`TopicName::is_system`].
    ///
    /// ```
    /// use gapless_core::TopicName;
    ///
    /// let name = TopicName::parse("orders.eu.created")?;
    /// assert_eq!(name.tokens().count(), 3);
    /// assert!(TopicName::parse("orders.*").is_err());
    /// # Ok::<(), gapless_core::NameError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, NameError> {
        check_length(text)?;
        for (at, token) in tokens_at(text) {
            check_token(at, token)?;
        }
        Ok(Self(Arc::from(text)))
    }

    /// The name as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its tokens, from the left; never none, none of them empty.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// Whether the name is the system's: its first token begins with `$`. Wildcards in
    /// first place pass such names by.
    pub fn is_system(&self) -> bool {
        self.0.starts_with('$')
    }
}

impl AsRef<str> for TopicName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for TopicName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for TopicName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Refuses what is empty or too long before anything walks over it.
pub(crate) fn check_length(text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { bytes: text.len() });
    }
    Ok(())
}

/// The tokens of a text and the byte at which each begins.
pub(crate) fn tokens_at(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split('.').map(move |token| {
        let begin = at;
        at += token.len() + 1;
        (begin, token)
    })
}

/// Checks one token that begins at byte `begin` of its text.
pub(crate) fn check_token(begin: usize, token: &str) -> Result<(), NameError> {
    if token.is_empty() {
        return Err(NameError::EmptyToken { at: begin });
    }
    for (offset, found) in token.char_indices() {
        let at = begin + offset;
        match found {
            '*' | '>' => return Err(NameError::Wildcard { at, found }),
            _ if is_forbidden(found) => return Err(NameError::Forbidden { at, found }),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a character could hide, split or redirect a name.
fn is_forbidden(found: char) -> bool {
    if found.is_ascii() {
        return found <= ' ' || matches!(found, '\x7f' | '/' | '\\');
    }
    let invisible = matches!(found,
        '\u{00ad}' | '\u{034f}' | '\u{061c}' | '\u{115f}' | '\u{1160}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}');
    invisible || found.is_whitespace() || found.is_control()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn c1_plain_and_foreign_names_are_accepted() {
        for text in
            ["a", "orders.eu.created", "заказы.новые", "注文.作成", "a-b_c:1", "$events.x", "a.$b"]
        {
            let name = TopicName::parse(text).unwrap();
            assert_eq!(name.as_str(), text);
            assert_eq!(name.tokens().collect::<Vec<_>>().join("."), text);
        }
    }

    #[test]
    fn errors_name_the_place() {
        let cases = [
            ("", NameError::Empty),
            (".a", NameError::EmptyToken { at: 0 }),
            ("a.", NameError::EmptyToken { at: 2 }),
            ("a..b", NameError::EmptyToken { at: 2 }),
            ("..", NameError::EmptyToken { at: 0 }),
            ("a.*", NameError::Wildcard { at: 2, found: '*' }),
            ("ab>c", NameError::Wildcard { at: 2, found: '>' }),
            ("é b", NameError::Forbidden { at: 2, found: ' ' }),
            ("a\u{a0}", NameError::Forbidden { at: 1, found: '\u{a0}' }),
            ("a\n", NameError::Forbidden { at: 1, found: '\n' }),
            ("a\u{85}", NameError::Forbidden { at: 1, found: '\u{85}' }),
            ("a/b", NameError::Forbidden { at: 1, found: '/' }),
            ("a\\b", NameError::Forbidden { at: 1, found: '\\' }),
            ("a\u{200b}b", NameError::Forbidden { at: 1, found: '\u{200b}' }),
            ("a\u{202e}b", NameError::Forbidden { at: 1, found: '\u{202e}' }),
            ("a\0", NameError::Forbidden { at: 1, found: '\0' }),
        ];
        for (text, error) in cases {
            assert_eq!(TopicName::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn length_is_counted_in_bytes() {
        assert!(TopicName::parse(&"x".repeat(255)).is_ok());
        assert_eq!(TopicName::parse(&"é".repeat(128)), Err(NameError::TooLong { bytes: 256 }));
    }

    #[test]
    fn only_a_leading_dollar_is_the_systems() {
        assert!(TopicName::parse("$events.a").unwrap().is_system());
        assert!(!TopicName::parse("a.$events").unwrap().is_system());
    }

    #[test]
    fn display_tells_what_to_do() {
        let error = TopicName::parse("a b").unwrap_err();
        assert_eq!(error.to_string(), "the character ' ' at byte 1 cannot be in a name: remove it");
    }
}
