//! Patterns over topic names: `*` stands for one token, `>` for one or more at the end.
//!
//! A wildcard is a whole token, never a part of one, so that matching compares tokens and
//! nothing else. A wildcard in first place does not match the system's names: a subscriber of `>`
//! wants the messages of users, not the broker's events. `$events.>` asks for those.
//!
//! Finding the patterns that match a name among many is the work of `trie.rs`.

use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::name::{NameError, TopicName, check_length, check_token, tokens_at};

/// The token that stands for exactly one token.
pub(crate) const ONE: &str = "*";
/// The token that stands for one or more tokens, in last place only.
pub(crate) const REST: &str = ">";

/// A pattern; a plain name is one too. Cloning it copies a pointer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    text: Arc<str>,
    literal: bool,
}

/// Why a text is not a valid pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It is wrong in the way a name can be wrong.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A wildcard with something beside it in its token.
    #[error("{found:?} at byte {at} must be a token of its own, with dots around it: `a.*.b`")]
    PartOfToken {
        /// Where it stands.
        at: usize,
        /// Which one it is.
        found: char,
    },
    /// A `>` with tokens behind it.
    #[error("'>' at byte {at} must be the last token: remove what follows, or use '*'")]
    RestNotLast {
        /// Where it stands.
        at: usize,
    },
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// ```
    /// use gapless_core::{Pattern, TopicName};
    ///
    /// let pattern = Pattern::parse("orders.*.created")?;
    /// assert!(pattern.matches(&TopicName::parse("orders.eu.created").unwrap()));
    /// # Ok::<(), gapless_core::PatternError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        let mut literal = true;
        for (at, token) in tokens_at(text) {
            match token {
                ONE => literal = false,
                REST if at + token.len() < text.len() => {
                    return Err(PatternError::RestNotLast { at });
                }
                REST => literal = false,
                _ => check_token(at, token).map_err(|why| match why {
                    NameError::Wildcard { at, found } => PatternError::PartOfToken { at, found },
                    why => why.into(),
                })?,
            }
        }
        Ok(Self { text: Arc::from(text), literal })
    }

    /// The pattern that matches this one name.
    pub fn literal(name: &TopicName) -> Self {
        Self { text: Arc::from(name.as_str()), literal: true }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its tokens, from the left; never none.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.text.split('.')
    }

    /// Whether there is no wildcard, so that it can match one name only.
    pub fn is_literal(&self) -> bool {
        self.literal
    }

    /// The one name it matches, if it is literal.
    pub fn as_name(&self) -> Option<TopicName> {
        // A valid pattern without wildcards is a valid name.
        if self.literal { TopicName::parse(&self.text).ok() } else { None }
    }

    /// Whether it matches this name.
    pub fn matches(&self, name: &TopicName) -> bool {
        if self.literal {
            return *self.text == *name.as_str();
        }
        if name.is_system() && self.begins_wild() {
            return false;
        }
        let mut names = name.tokens();
        for token in self.tokens() {
            match (token, names.next()) {
                (REST, Some(_)) => return true,
                (ONE, Some(_)) => {}
                (token, Some(name)) if token == name => {}
                _ => return false,
            }
        }
        names.next().is_none()
    }

    /// Whether every name that matches `other` matches this one too.
    pub fn covers(&self, other: &Self) -> bool {
        if self.begins_wild() && other.text.starts_with('$') {
            return false;
        }
        let (mut mine, mut theirs) = (self.tokens(), other.tokens());
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => return true,
                (Some(REST), Some(_)) => return true,
                (Some(ONE), Some(b)) if b != REST => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }

    /// Whether some name could match both patterns.
    pub fn overlaps(&self, other: &Self) -> bool {
        let system = |pattern: &Self| pattern.text.starts_with('$');
        if (self.begins_wild() && system(other)) || (other.begins_wild() && system(self)) {
            return false;
        }
        let (mut mine, mut theirs) = (self.tokens(), other.tokens());
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => return true,
                (Some(REST), Some(_)) | (Some(_), Some(REST)) => return true,
                (Some(a), Some(b)) if a == b || a == ONE || b == ONE => {}
                _ => return false,
            }
        }
    }

    fn begins_wild(&self) -> bool {
        self.tokens().next().is_some_and(|first| first == ONE || first == REST)
    }
}

impl AsRef<str> for Pattern {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(&TopicName::parse(name).unwrap())
    }

    #[test]
    fn d7_a_star_is_one_token_and_an_arrow_one_or_more() {
        assert!(matches("a.*", "a.b"));
        assert!(!matches("a.*", "a"));
        assert!(!matches("a.*", "a.b.c"));
        assert!(matches("a.>", "a.b"));
        assert!(matches("a.>", "a.b.c"));
        assert!(!matches("a.>", "a"));
        assert!(matches("*.b.>", "a.b.c"));
        assert!(matches(">", "a"));
        assert!(matches("a.b", "a.b"));
        assert!(!matches("a.b", "a.c"));
    }

    #[test]
    fn a_wildcard_in_first_place_passes_the_system_by() {
        assert!(!matches(">", "$events.a"));
        assert!(!matches("*.a", "$events.a"));
        assert!(matches("$events.>", "$events.a"));
        assert!(matches("$events.*", "$events.a"));
        assert!(matches("a.*", "a.$b"));
    }

    #[test]
    fn wildcards_are_whole_tokens() {
        assert_eq!(Pattern::parse("a.b*"), Err(PatternError::PartOfToken { at: 3, found: '*' }));
        assert_eq!(Pattern::parse("a.>.b"), Err(PatternError::RestNotLast { at: 2 }));
        assert_eq!(Pattern::parse("a..>"), Err(NameError::EmptyToken { at: 2 }.into()));
        assert_eq!(Pattern::parse(">."), Err(PatternError::RestNotLast { at: 0 }));
    }

    #[test]
    fn a_literal_knows_its_name() {
        let name = TopicName::parse("a.b").unwrap();
        assert_eq!(Pattern::parse("a.b").unwrap().as_name(), Some(name.clone()));
        assert_eq!(Pattern::literal(&name), Pattern::parse("a.b").unwrap());
        assert_eq!(Pattern::parse("a.*").unwrap().as_name(), None);
    }

    #[test]
    fn overlapping_means_some_name_matches_both() {
        let overlaps = |a: &str, b: &str| {
            let (a, b) = (Pattern::parse(a).unwrap(), Pattern::parse(b).unwrap());
            assert_eq!(a.overlaps(&b), b.overlaps(&a));
            a.overlaps(&b)
        };
        assert!(overlaps("a.*", "*.b"));
        assert!(overlaps("a.>", "a.b.*"));
        assert!(!overlaps("a.>", "a"));
        assert!(!overlaps("a.*", "a.b.c"));
        assert!(!overlaps(">", "$events.>"));
        assert!(overlaps(">", "*.>"));
    }
}
