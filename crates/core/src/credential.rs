//! The text of an access token: `gapless_ID_SECRET`.
//!
//! The id is public: it finds the record, names the token in lists and logs, and is what is
//! revoked. The secret is 256 random bits; only its hash is kept, and it is shown once. The prefix lets
//! scanners of source code recognise a token that was committed by mistake.
//!
//! Drawing, hashing and comparing are not here: they need randomness and cryptography.

use crate::Timestamp;

/// What every token begins with.
pub const PREFIX: &str = "gapless_";
/// Characters of the id: 48 bits in hexadecimal, so that two of a million tokens hardly share one.
pub const ID_CHARS: usize = 12;
/// Characters of the secret: 256 bits in base64 for addresses, without padding.
pub const SECRET_CHARS: usize = 43;
/// Bytes of a whole token.
pub const TOKEN_BYTES: usize = PREFIX.len() + ID_CHARS + 1 + SECRET_CHARS;

/// A token in its two parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenText<'a> {
    /// The public part.
    pub id: &'a str,
    /// The secret part.
    pub secret: &'a str,
}

impl core::fmt::Debug for TokenText<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{PREFIX}{}_…", self.id)
    }
}

impl<'a> TokenText<'a> {
    /// Reads a token; `None` when it is none.
    pub fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX).filter(|_| text.len() == TOKEN_BYTES)?;
        let (id, secret) = rest.split_once('_')?;
        let hexadecimal = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let base64 = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let fine = id.len() == ID_CHARS
            && id.bytes().all(hexadecimal)
            && secret.len() == SECRET_CHARS
            && secret.bytes().all(base64);
        fine.then_some(Self { id, secret })
    }
}

/// Whether something with this end is over.
pub fn is_expired(expires: Option<Timestamp>, now: Timestamp) -> bool {
    expires.is_some_and(|expires| expires <= now)
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_has_an_id_and_a_secret_that_debugging_does_not_show() {
        let text = format!("gapless_0123456789ab_{}", "s_-".repeat(14) + "Z");
        let token = TokenText::parse(&text).expect("a token");
        assert_eq!((token.id, token.secret.len()), ("0123456789ab", SECRET_CHARS));
        assert_eq!(format!("{token:?}"), "gapless_0123456789ab_…");
        for bad in [
            "",
            "gapless_",
            "Bearer x",
            &text[1..],
            &format!("{text}x"),
            &text.replace("ab_", "AB_"),
        ] {
            assert_eq!(TokenText::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_is_over_at_its_end_and_without_an_end_never() {
        let at = |ms| Some(Timestamp(ms));
        assert!(!is_expired(at(5), Timestamp(4)) && is_expired(at(5), Timestamp(5)));
        assert!(!is_expired(None, Timestamp(u64::MAX)));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,80}") {
            let text: String = text;
            if let Some(token) = TokenText::parse(&text) {
                prop_assert_eq!(format!("{PREFIX}{}_{}", token.id, token.secret), text);
            }
        }
    }
}
