//! Names in the database: checked once, so that they can be put into SQL as they are.

use std::fmt;
use std::str::FromStr;

/// Longest name: PostgreSQL cuts names at 63 bytes, and ours get suffixes.
const NAME_BYTES_MAX: usize = 40;

/// The name of a schema or table: small letters, digits and `_`, not beginning with a digit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(String);

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a name here: use at most 40 small letters, digits and underscores, the \
     first not a digit"
)]
pub struct NameError(String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        let good = text.len() <= NAME_BYTES_MAX
            && text.bytes().next().is_some_and(letter)
            && text.bytes().all(|byte| letter(byte) || byte.is_ascii_digit());
        if good { Ok(Self(text.to_owned())) } else { Err(NameError(text.to_owned())) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_end_a_statement_is_refused() {
        for bad in ["", "1a", "a b", "a;drop", "A", "a\"", &"a".repeat(41)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
        assert_eq!("shop_2".parse::<Name>().expect("a good name").as_str(), "shop_2");
    }
}
