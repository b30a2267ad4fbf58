//! Tokens that another service signs (JWT): EdDSA, ES256 and RS256, with keys from a JWKS file.
//!
//! The key decides the algorithm, never the token. A token must have `exp` and `sub`, and the
//! issuer and audience that the configuration names. Its name is `sub`; its roles are `roles`, and
//! those of the identity of that name, if there is one. Keys are read again when the file changes;
//! a file that cannot be read leaves the former keys in force.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gapless_core::Timestamp;
use gapless_core::rights::check_name;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;

use crate::records::ROLES_MAX;

/// Longest token, in bytes; as long as a hello may carry.
const TOKEN_BYTES_MAX: usize = 4096;
/// Most keys of a file.
const KEYS_MAX: usize = 64;
/// Most bytes of the file of keys.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Seconds that the clock of the service that signs may be ahead of ours.
const AHEAD_S: u64 = 30;

/// What signed tokens must have.
#[derive(Clone, Debug, Default)]
pub struct JwtOptions {
    /// The file of public keys, a JSON Web Key Set.
    pub keys: PathBuf,
    /// What `iss` must be, if that matters.
    pub issuer: Option<String>,
    /// What `aud` must be or hold, if that matters.
    pub audience: Option<String>,
}

/// Why keys cannot be used. Those that were in force before still are.
#[derive(Debug, thiserror::Error)]
#[error("the keys of signed tokens in {} cannot be used: {why}", path.display())]
pub struct KeysError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// What a token says that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) name: String,
    pub(crate) roles: Vec<String>,
    pub(crate) expires: Timestamp,
    /// The key that signed it: without it the token is good no more.
    key: [u8; 32],
}

/// The keys, and what tokens must have.
pub(crate) struct Keys {
    options: JwtOptions,
    loaded: RwLock<(Option<SystemTime>, Vec<Key>)>,
}

struct Key {
    id: Option<String>,
    public: Public,
}

enum Public {
    Ed25519(Vec<u8>),
    P256(Vec<u8>),
    Rsa { n: Vec<u8>, e: Vec<u8> },
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<JsonKey>,
}

#[derive(Deserialize)]
struct JsonKey {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Payload {
    sub: String,
    exp: u64,
    #[serde(default)]
    nbf: Option<u64>,
    #[serde(default)]
    iss: Option<String>,
    #[serde(default)]
    aud: Option<Audience>,
    #[serde(default)]
    roles: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Keys {
    pub(crate) fn open(options: JwtOptions) -> Result<Self, KeysError> {
        let keys = Self { options, loaded: RwLock::default() };
        let loaded = (keys.modified(), keys.read()?);
        Ok(Self { loaded: RwLock::new(loaded), ..keys })
    }

    fn modified(&self) -> Option<SystemTime> {
        std::fs::metadata(&self.options.keys).and_then(|file| file.modified()).ok()
    }

    fn read(&self) -> Result<Vec<Key>, KeysError> {
        let path = &self.options.keys;
        let broken =
            |why: &dyn std::fmt::Display| KeysError { path: path.clone(), why: why.to_string() };
        let file = std::fs::metadata(path).map_err(|error| broken(&error))?;
        if file.len() > FILE_BYTES_MAX {
            return Err(broken(&format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        let text = std::fs::read(path).map_err(|error| broken(&error))?;
        parse(&text).map_err(|why| broken(&why))
    }

    /// Reads the keys again if the file changed; returns whether other keys are in force now.
    pub(crate) fn reload(&self) -> bool {
        let modified = self.modified();
        if self.loaded.read().unwrap_or_else(PoisonError::into_inner).0 == modified {
            return false;
        }
        let read = self.read();
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        loaded.0 = modified;
        match read {
            Ok(keys) => {
                loaded.1 = keys;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the former keys stay in force");
                false
            }
        }
    }

    /// Whether the key that signed a token is still in the file.
    pub(crate) fn has_key_of(&self, claims: &Claims) -> bool {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.1.iter().any(|key| key.mark() == claims.key)
    }

    /// What a token says, if a key signed it and it is in force.
    pub(crate) fn verify(&self, text: &str, now: Timestamp) -> Result<Claims, &'static str> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let (key, payload) = signed_payload(text, &loaded.1).ok_or("the token is not valid")?;
        drop(loaded);
        let seconds = now.0 / 1000;
        if payload.exp <= seconds {
            return Err("the token has expired");
        }
        if payload.nbf.is_some_and(|from| from > seconds + AHEAD_S) {
            return Err("the token is not valid yet");
        }
        let wanted = &self.options;
        if wanted.issuer.is_some() && payload.iss != wanted.issuer {
            return Err("the token is of another issuer");
        }
        if let Some(audience) = &wanted.audience {
            let fits = match &payload.aud {
                Some(Audience::One(one)) => one == audience,
                Some(Audience::Many(many)) => many.contains(audience),
                None => false,
            };
            if !fits {
                return Err("the token is for another audience");
            }
        }
        if check_name(&payload.sub).is_err() || payload.roles.len() > ROLES_MAX {
            return Err("the token's subject or roles cannot be used");
        }
        let expires = Timestamp(payload.exp.saturating_mul(1000));
        Ok(Claims { name: payload.sub, roles: payload.roles, expires, key })
    }
}

fn parse(text: &[u8]) -> Result<Vec<Key>, String> {
    let set: KeySet = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if set.keys.is_empty() || set.keys.len() > KEYS_MAX {
        return Err(format!("it has {} keys: give 1 to {KEYS_MAX}", set.keys.len()));
    }
    set.keys.into_iter().map(key).collect()
}

fn key(json: JsonKey) -> Result<Key, String> {
    let bytes = |text: &str| {
        URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .filter(|bytes| !bytes.is_empty())
            .ok_or_else(|| "a key has a number that is not base64url".to_owned())
    };
    let public = match (json.kty.as_str(), json.crv.as_str()) {
        ("OKP", "Ed25519") => Public::Ed25519(bytes(&json.x)?),
        ("EC", "P-256") => {
            // The uncompressed form of a point: 4, then both coordinates.
            let (x, y) = (bytes(&json.x)?, bytes(&json.y)?);
            Public::P256([&[4], x.as_slice(), y.as_slice()].concat())
        }
        ("RSA", _) => Public::Rsa { n: bytes(&json.n)?, e: bytes(&json.e)? },
        (kind, curve) => {
            return Err(format!("a key is of {kind} {curve}; use Ed25519, P-256 or RSA"));
        }
    };
    Ok(Key { id: json.kid, public })
}

impl Key {
    /// What tells it from others.
    fn mark(&self) -> [u8; 32] {
        let mut hashed = ring::digest::Context::new(&ring::digest::SHA256);
        hashed.update(self.algorithm().as_bytes());
        match &self.public {
            Public::Ed25519(key) | Public::P256(key) => hashed.update(key),
            Public::Rsa { n, e } => {
                hashed.update(&(n.len() as u64).to_le_bytes());
                hashed.update(n);
                hashed.update(e);
            }
        }
        let mut mark = [0; 32];
        mark.copy_from_slice(hashed.finish().as_ref());
        mark
    }

    fn algorithm(&self) -> &'static str {
        match self.public {
            Public::Ed25519(_) => "EdDSA",
            Public::P256(_) => "ES256",
            Public::Rsa { .. } => "RS256",
        }
    }

    fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.public {
            Public::Ed25519(key) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
            Public::P256(key) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(message, signature)
            }
            Public::Rsa { n, e } => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
        };
        verified.is_ok()
    }
}

/// What is in a token, if one of the keys signed it.
fn signed_payload(text: &str, keys: &[Key]) -> Option<([u8; 32], Payload)> {
    if text.len() > TOKEN_BYTES_MAX {
        return None;
    }
    let (message, signature) = text.rsplit_once('.')?;
    let (header, payload) = message.split_once('.')?;
    let part = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
    let head: Header = serde_json::from_slice(&part(header)?).ok()?;
    // What must be understood and is not must be refused.
    if head.crit.is_some() {
        return None;
    }
    let signature = part(signature)?;
    let fits =
        |key: &&Key| key.algorithm() == head.alg && (head.kid.is_none() || head.kid == key.id);
    let signed = |key: &&Key| key.signed(message.as_bytes(), &signature);
    let key = keys.iter().filter(fits).find(signed)?;
    Some((key.mark(), serde_json::from_slice(&part(payload)?).ok()?))
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::rsa::PublicKeyComponents;
    use ring::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
        RsaKeyPair,
    };
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn base64(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    struct Signer {
        ed: Ed25519KeyPair,
        p256: EcdsaKeyPair,
    }

    impl Signer {
        fn new() -> Self {
            let random = SystemRandom::new();
            let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
            let p256 =
                EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
            Self {
                ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
                p256: EcdsaKeyPair::from_pkcs8(
                    &ECDSA_P256_SHA256_FIXED_SIGNING,
                    p256.as_ref(),
                    &random,
                )
                .unwrap(),
            }
        }

        fn key_set(&self) -> Value {
            let point = self.p256.public_key().as_ref();
            json!({ "keys": [
                { "kty": "OKP", "crv": "Ed25519", "kid": "e", "x": base64(self.ed.public_key()) },
                { "kty": "EC", "crv": "P-256", "kid": "p",
                  "x": base64(&point[1..33]), "y": base64(&point[33..]) },
            ] })
        }

        fn sign(&self, header: &Value, payload: &Value) -> String {
            let message = format!("{}.{}", base64(header.to_string()), base64(payload.to_string()));
            let signature = match header["alg"].as_str().unwrap() {
                "ES256" => {
                    let signed = self.p256.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
                    base64(signed)
                }
                _ => base64(self.ed.sign(message.as_bytes())),
            };
            format!("{message}.{signature}")
        }
    }

    fn keys(signer: &Signer, file: &std::path::Path) -> Keys {
        std::fs::write(file, signer.key_set().to_string()).unwrap();
        Keys::open(JwtOptions {
            keys: file.to_owned(),
            issuer: Some("login".into()),
            audience: Some("gapless".into()),
        })
        .unwrap()
    }

    fn payload() -> Value {
        json!({ "sub": "shop", "exp": 2000, "iss": "login", "aud": ["x", "gapless"],
                "roles": ["writer"] })
    }

    #[test]
    fn signed_tokens_name_their_bearer_and_roles() {
        let folder = tempfile::tempdir().unwrap();
        let signer = Signer::new();
        let keys = keys(&signer, &folder.path().join("keys.json"));
        for (alg, kid) in [("EdDSA", "e"), ("ES256", "p")] {
            let token = signer.sign(&json!({ "alg": alg, "kid": kid }), &payload());
            let claims = keys.verify(&token, NOW).expect("a good token");
            assert_eq!((claims.name.as_str(), claims.expires.0), ("shop", 2_000_000));
            assert_eq!(claims.roles, ["writer"]);
        }
    }

    #[test]
    fn tokens_signed_by_rsa_are_good_and_a_changed_one_is_not() {
        let made = std::process::Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"])
            .args(["-outform", "DER"])
            .output()
            .expect("openssl is installed");
        let pair = RsaKeyPair::from_der(&made.stdout)
            .or_else(|_| RsaKeyPair::from_pkcs8(&made.stdout))
            .expect("a key");
        let public = PublicKeyComponents::<Vec<u8>>::from(pair.public());
        let set = json!({ "keys": [
            { "kty": "RSA", "n": base64(&public.n), "e": base64(&public.e) },
        ] });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        std::fs::write(&file, set.to_string()).unwrap();
        let keys = Keys::open(JwtOptions { keys: file, issuer: None, audience: None }).unwrap();
        let header = base64(json!({ "alg": "RS256" }).to_string());
        let message = format!("{header}.{}", base64(payload().to_string()));
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature)
            .unwrap();
        let good = format!("{message}.{}", base64(&signature));
        assert_eq!(keys.verify(&good, NOW).expect("a good token").name, "shop");
        signature[0] ^= 1;
        let changed = format!("{message}.{}", base64(&signature));
        assert_eq!(keys.verify(&changed, NOW).unwrap_err(), "the token is not valid");
    }

    #[test]
    fn what_is_forged_expired_or_meant_for_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (signer, other) = (Signer::new(), Signer::new());
        let keys = keys(&signer, &folder.path().join("keys.json"));
        let good = json!({ "alg": "EdDSA", "kid": "e" });
        let refused = |token: &str| keys.verify(token, NOW).expect_err("refused");
        assert_eq!(refused(&other.sign(&good, &payload())), "the token is not valid");
        let with = |name: &str, value: Value| {
            let mut payload = payload();
            payload[name] = value;
            signer.sign(&good, &payload)
        };
        assert_eq!(refused(&with("exp", json!(1000))), "the token has expired");
        assert_eq!(refused(&with("nbf", json!(1031))), "the token is not valid yet");
        assert_eq!(refused(&with("iss", json!("evil"))), "the token is of another issuer");
        assert_eq!(refused(&with("aud", json!("other"))), "the token is for another audience");
        assert_eq!(
            refused(&with("sub", json!("a b"))),
            "the token's subject or roles cannot be used"
        );
        // The algorithm is the key's, whatever the token says.
        let header = json!({ "alg": "none" });
        let none = format!("{}.{}.", base64(header.to_string()), base64(payload().to_string()));
        for token in [
            none.as_str(),
            &signer.sign(&json!({ "alg": "HS256", "kid": "e" }), &payload()),
            &signer.sign(&json!({ "alg": "EdDSA", "kid": "p" }), &payload()),
            &signer.sign(&json!({ "alg": "EdDSA", "crit": ["x"] }), &payload()),
            "",
            ".",
            "..",
            "a.b.c",
            &"x".repeat(5000),
        ] {
            assert_eq!(refused(token), "the token is not valid");
        }
    }

    #[test]
    fn keys_are_read_again_and_a_broken_file_leaves_the_former() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        let (old, new) = (Signer::new(), Signer::new());
        let keys = keys(&old, &file);
        let header = json!({ "alg": "EdDSA" });
        let change = |text: &str, seconds| {
            std::fs::write(&file, text).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::open(&file).unwrap().set_modified(at).unwrap();
        };
        change("{", 1);
        assert!(!keys.reload() && keys.verify(&old.sign(&header, &payload()), NOW).is_ok());
        let before = keys.verify(&old.sign(&header, &payload()), NOW).expect("a good token");
        assert!(keys.has_key_of(&before));
        change(&new.key_set().to_string(), 2);
        assert!(keys.reload() && keys.verify(&new.sign(&header, &payload()), NOW).is_ok());
        assert!(keys.verify(&old.sign(&header, &payload()), NOW).is_err());
        assert!(!keys.has_key_of(&before), "what was let in by a key ends with it");
        assert!(!keys.reload());
    }
}
