//! Cursor tokens: one position that resumes a subscription to a topic or a pattern.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::id::{Epoch, Position};

/// A place in the journal of one store: everything up to and with this position was seen. Its
/// text is `epoch:position`, the same on every API.
///
/// ```
/// use gapless_core::Token;
///
/// let token: Token = "00000000000000ab:42".parse()?;
/// assert_eq!(token.position.0, 42);
/// assert_eq!(token.to_string(), "00000000000000ab:42");
/// # Ok::<(), gapless_core::TokenError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The store it belongs to.
    pub epoch: Epoch,
    /// The last position that was seen.
    pub position: Position,
}

/// Why a text is not a valid token. Nothing was done with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid token: write 16 hexadecimal digits, a colon and a number")]
pub struct TokenError {
    /// What was written; the beginning of it if it is long.
    pub text: String,
}

/// How much of a wrong text an error shows, in characters.
const SHOWN_MAX: usize = 64;

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parse = || {
            let (epoch, position) = text.split_once(':')?;
            let digits = epoch.len() == 16 && epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
            let plain = position.bytes().all(|byte| byte.is_ascii_digit());
            if !digits || !plain {
                return None;
            }
            let epoch = Epoch(u64::from_str_radix(epoch, 16).ok()?);
            Some(Self { epoch, position: Position(position.parse().ok()?) })
        };
        parse().ok_or_else(|| TokenError { text: text.chars().take(SHOWN_MAX).collect() })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.position)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_token_reads_back_and_rubbish_does_not() {
        let token = Token { epoch: Epoch(0xab), position: Position(42) };
        assert_eq!(token.to_string(), "00000000000000ab:42");
        assert_eq!(token.to_string().parse(), Ok(token));
        for text in [
            "",
            ":",
            "ab:42",
            "00000000000000ab:",
            "00000000000000ab:-1",
            "00000000000000ab:+1",
            "00000000000000zz:1",
            "00000000000000ab:99999999999999999999",
        ] {
            assert!(text.parse::<Token>().is_err(), "{text}");
        }
    }
}
