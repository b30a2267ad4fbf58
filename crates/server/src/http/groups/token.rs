//! What a message is acked by, as a text: the session that holds it, where it lies, and which
//! attempt it is.
//!
//! Sessions have numbers that no other has had, in this run of the server or another: so a
//! text of yesterday is refused and never taken for something else.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gapless_core::group::OPEN_MAX;
use gapless_core::{Lease, Position};

use crate::http::values::problem::Problem;

/// Bytes behind the text.
const BYTES: usize = 28;

/// A lease and the session that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseToken {
    pub(super) session: u64,
    pub(super) lease: Lease,
}

impl LeaseToken {
    pub(super) fn text(self) -> String {
        let Lease { first, last, attempt } = self.lease;
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..16].copy_from_slice(&first.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&last.0.to_le_bytes());
        bytes[24..].copy_from_slice(&attempt.to_le_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// # Errors
    /// When the text was not returned by [`LeaseToken::text`].
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = || Problem::bad_request("a lease is a text as a fetch gave it");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
        let bytes: [u8; BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let mut attempt = [0; 4];
        attempt.copy_from_slice(&bytes[24..]);
        let (first, last) = (Position(number(8)), Position(number(16)));
        if first > last || last.distance(first) >= u64::from(OPEN_MAX) {
            return Err(wrong());
        }
        let lease = Lease { first, last, attempt: u32::from_le_bytes(attempt) };
        Ok(Self { session: number(0), lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_reads_back_and_other_texts_are_refused() {
        let lease = Lease { first: Position(7), last: Position(1 << 20), attempt: 3 };
        let token = LeaseToken { session: 1 << 60, lease };
        let text = token.text();
        assert_eq!(LeaseToken::parse(&text).unwrap(), token);
        let backwards = Lease { first: Position(8), last: Position(7), attempt: 1 };
        let backwards = LeaseToken { session: 1, lease: backwards }.text();
        let endless = Lease { first: Position(0), last: Position(u64::MAX), attempt: 1 };
        let endless = LeaseToken { session: 1, lease: endless }.text();
        for wrong in ["", &endless, "x", "====", &text[1..], &backwards] {
            assert!(LeaseToken::parse(wrong).is_err(), "{wrong}");
        }
    }
}
