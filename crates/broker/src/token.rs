//! Cursor tokens: one position that resumes a subscription, whatever it follows.

use std::fmt;
use std::str::FromStr;

use gapless_core::{Epoch, Position};

use crate::error::TokenError;

/// A place in the journal of one store, as `epoch:position`. Everything up to and with this
/// position was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The store it belongs to.
    pub epoch: Epoch,
    /// The last position that was seen.
    pub position: Position,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.position)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parse = || {
            let (epoch, position) = text.split_once(':')?;
            let digits = epoch.len() == 16 && epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
            let plain = !position.is_empty() && position.bytes().all(|b| b.is_ascii_digit());
            if !digits || !plain {
                return None;
            }
            let epoch = Epoch(u64::from_str_radix(epoch, 16).ok()?);
            Some(Self { epoch, position: Position(position.parse().ok()?) })
        };
        parse().ok_or_else(|| TokenError { text: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
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
