//! Issuer of JSON web tokens for tests.

use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

/// Issuer with one key for ES256.
#[derive(Debug)]
pub struct WebTokenIssuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl WebTokenIssuer {
    /// Makes an issuer with a new key.
    pub fn generate() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("key");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).expect("key");
        Self { key, random }
    }

    /// Returns the public key as JWK.
    pub fn public_key(&self, id: &str) -> Value {
        let point = self.key.public_key().as_ref();
        let (_, coordinates) = point.split_first().expect("an uncompressed point");
        let (x, y) = coordinates.split_at(32);
        json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": id,
            "x": BASE64URL_NOPAD.encode(x), "y": BASE64URL_NOPAD.encode(y),
        })
    }

    /// Signs claims with the header of ES256 and the key `id`.
    pub fn sign(&self, id: &str, claims: &Value) -> String {
        self.sign_with_header(&json!({"alg": "ES256", "typ": "JWT", "kid": id}), claims)
    }

    /// Signs claims with any header.
    pub fn sign_with_header(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self
            .key
            .sign(&self.random, signed.as_bytes())
            .expect("signed");
        format!("{signed}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }
}

/// Returns valid claims of a tenant's principal, which expire in `seconds`.
pub fn claims(tenant: &str, role: &str, seconds: i64) -> Value {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    let now = i64::try_from(now.as_secs()).expect("small");
    json!({
        "iss": "https://issuer.test", "aud": "skilld", "sub": format!("{tenant}-{role}"),
        "iat": now, "exp": now + seconds, "tenant": tenant, "realm_access": {"roles": ["other", role]},
    })
}
