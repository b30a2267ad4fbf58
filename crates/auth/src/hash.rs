//! Secrets: drawn, hashed, compared. Nothing here is ever printed.
//!
//! Secrets of 256 random bits are hashed by SHA-256: they cannot be guessed, so a slow hash would
//! only help attackers that send many. Passwords can be guessed, and are hashed by argon2id.

use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gapless_core::credential::{ID_CHARS, PREFIX};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The system gives no randomness. Nothing was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers; nothing was created")]
pub struct NoRandomness;

fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// A new secret, as text.
pub(crate) fn new_secret() -> Result<String, NoRandomness> {
    Ok(URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>()?))
}

/// A new id of a token.
pub(crate) fn new_id() -> Result<String, NoRandomness> {
    Ok(random::<{ ID_CHARS / 2 }>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A whole token of its parts.
pub(crate) fn token_text(id: &str, secret: &str) -> String {
    format!("{PREFIX}{id}_{secret}")
}

/// The hash of a secret, as text.
pub(crate) fn hash(secret: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, secret.as_bytes()))
}

/// Whether a secret has this hash. Takes as long wherever the two differ.
pub(crate) fn is_hash_of(hashed: &str, secret: &str) -> bool {
    let own = hash(secret);
    let differs = own.bytes().zip(hashed.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differs) == 0 && own.len() == hashed.len()
}

/// The slow hash of a password, with its salt and cost in it. Takes tens of milliseconds.
pub(crate) fn hash_password(password: &str) -> Result<String, NoRandomness> {
    let salt = SaltString::encode_b64(&random::<16>()?).map_err(|_| NoRandomness)?;
    let hashed = Argon2::default().hash_password(password.as_bytes(), &salt);
    hashed.map(|hashed| hashed.to_string()).map_err(|_| NoRandomness)
}

/// Whether a password has this hash. Takes tens of milliseconds.
pub(crate) fn is_password(hashed: &str, password: &str) -> bool {
    let Ok(hashed) = PasswordHash::new(hashed) else { return false };
    Argon2::default().verify_password(password.as_bytes(), &hashed).is_ok()
}

#[cfg(test)]
mod tests {
    use gapless_core::credential::TokenText;

    use super::*;

    #[test]
    fn a_new_token_can_be_read_and_its_hash_fits_it_alone() {
        let (id, secret) = (new_id().unwrap(), new_secret().unwrap());
        let text = token_text(&id, &secret);
        let read = TokenText::parse(&text).expect("a token");
        assert_eq!((read.id, read.secret), (id.as_str(), secret.as_str()));
        assert!(is_hash_of(&hash(&secret), &secret));
        assert!(!is_hash_of(&hash(&secret), &new_secret().unwrap()));
        assert!(!is_hash_of("", &secret) && !is_hash_of(&hash(&secret)[1..], &secret));
    }

    #[test]
    fn a_password_fits_its_own_hash_alone() {
        let hashed = hash_password("correct horse").unwrap();
        assert!(hashed.starts_with("$argon2id$") && !hashed.contains("horse"));
        assert!(is_password(&hashed, "correct horse"));
        assert!(!is_password(&hashed, "correct hors") && !is_password("no hash", ""));
        assert_ne!(hashed, hash_password("correct horse").unwrap(), "each has a salt of its own");
    }
}
