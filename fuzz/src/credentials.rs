//! What must hold for tokens, signed tokens and certificates from anyone. Each function panics when
//! it does not.
//!
//! They are driven by libFuzzer (`fuzz_targets/`) and, on a stable compiler, by
//! `crates/server/tests/credentials.rs`, which includes this file.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gapless_auth::jwt::JwtOptions;
use gapless_auth::{Auth, AuthOptions, Proof};
use gapless_broker::{Broker, BrokerOptions};
use gapless_core::credential::TokenText;
use gapless_core::rights::check_name;
use ring::signature::{Ed25519KeyPair, KeyPair};

/// The seed of the key that signs here; any will do.
const SEED: [u8; 32] = [7; 32];

/// The text of a token: read into two parts that give it again, of which one is never shown.
pub fn token(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some(token) = TokenText::parse(text) else { return };
    assert_eq!(format!("gapless_{}_{}", token.id, token.secret), text);
    assert!(!format!("{token:?}").contains(token.secret), "debugging shows the secret");
}

/// The name and the end of a certificate: an answer for any bytes, and no name is empty.
pub fn certificate(input: &[u8]) {
    if let Some(name) = gapless_server::certificate::name(input) {
        assert!(!name.is_empty() && name.len() <= input.len());
        assert!(gapless_server::certificate::expires(input).is_ok());
    }
}

/// A server that takes tokens signed by one key.
pub struct Signed {
    auth: Auth,
    key: Ed25519KeyPair,
}

impl Signed {
    /// Opens it in a folder of its own.
    pub fn open(folder: &Path) -> Self {
        let key = Ed25519KeyPair::from_seed_unchecked(&SEED).expect("a key");
        let x = URL_SAFE_NO_PAD.encode(key.public_key());
        let keys = folder.join("keys.json");
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"k","x":"{x}"}}]}}"#);
        std::fs::write(&keys, set).expect("a file");
        let broker = Broker::open(BrokerOptions::new(folder.join("data"))).expect("a broker");
        let jwt = Some(JwtOptions { keys, issuer: None, audience: None });
        let options = AuthOptions { required: true, jwt, ..AuthOptions::default() };
        Self { auth: Auth::open(&broker, options).expect("records"), key }
    }

    /// Signed tokens: no bytes are taken for one that was not signed; one that was signed names an
    /// identity, or is refused, whatever its header and its payload are.
    pub fn jwt(&self, input: &[u8]) {
        if let Ok(text) = std::str::from_utf8(input) {
            // The key signs nothing outside of this function.
            assert!(!self.lets_in(text), "{text} was let in");
        }
        let (at, rest) = input.split_first().map_or((0, input), |(at, rest)| (*at, rest));
        let (header, payload) = rest.split_at(usize::from(at).min(rest.len()));
        for header in [header, br#"{"alg":"EdDSA","kid":"k"}"#] {
            let text = self.sign(header, payload);
            if let Ok(caller) = self.auth.caller(Proof::Token(&text), "") {
                assert!(check_name(caller.name()).is_ok(), "{}", caller.name());
            }
        }
    }

    /// Whether a token is let in.
    pub fn lets_in(&self, token: &str) -> bool {
        self.auth.caller(Proof::Token(token), "").is_ok()
    }

    /// Signs anything.
    pub fn sign(&self, header: &[u8], payload: &[u8]) -> String {
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let message = format!("{}.{}", part(header), part(payload));
        let signature = part(self.key.sign(message.as_bytes()).as_ref());
        format!("{message}.{signature}")
    }
}
