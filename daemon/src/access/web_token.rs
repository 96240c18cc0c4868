//! JSON web tokens: verified with keys of a file, with issuer, audience and algorithm pinned by the configuration.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde_json::Value;

use super::principal::{CredentialKind, Principal};
use super::protected_file::{Secrecy, read_protected_text};
use super::tenant_name::TenantName;
use crate::config::{Role, WebTokenConfig};

mod ring_provider;

/// Longest time from a token's issue to its expiry, and from now to its expiry.
const LIFETIME_MAX: Duration = Duration::from_secs(60 * 60);
/// Difference between the clocks of issuer and server that is tolerated.
const CLOCK_SKEW: Duration = Duration::from_secs(30);
/// Maximum number of keys in the file.
const KEYS_MAX: usize = 100;
/// Maximum length of a subject, in bytes: it becomes the principal's id in logs.
const SUBJECT_BYTES_MAX: usize = 255;

/// Keys of an issuer, by their ids.
pub(crate) struct WebTokenKeys {
    by_id: HashMap<String, DecodingKey>,
}

impl std::fmt::Debug for WebTokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebTokenKeys({:?})", self.by_id.keys())
    }
}

impl WebTokenKeys {
    /// Reads a JWKS file (RFC 7517). Keys of other algorithms than the configured one are left out.
    ///
    /// # Errors
    /// A message that names the file and what is wrong with it.
    pub(crate) fn load(path: &Path, algorithm: Algorithm) -> Result<Self, String> {
        ring_provider::install();
        let text = read_protected_text(path, Secrecy::Public)?;
        Self::parse(&text, algorithm).map_err(|fault| format!("{}: {fault}", path.display()))
    }

    fn parse(text: &str, algorithm: Algorithm) -> Result<Self, String> {
        let set: JwkSet = serde_json::from_str(text)
            .map_err(|error| format!("it is not a JSON web key set: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
        let mut by_id = HashMap::new();
        let mut ids = HashSet::new();
        for (index, key) in set.keys.iter().enumerate() {
            let id = key
                .common
                .key_id
                .as_deref()
                .ok_or_else(|| format!("the key at index {index} has no kid"))?;
            if !ids.insert(id) {
                return Err(format!("two keys have the kid {id:?}"));
            }
            if !is_usable(key, algorithm) {
                continue;
            }
            let decoding = DecodingKey::from_jwk(key)
                .map_err(|error| format!("the key {id:?} cannot be read: {error}"))?;
            if decoding.family() == algorithm.family() {
                by_id.insert(id.to_owned(), decoding);
            }
        }
        if by_id.is_empty() {
            return Err(format!("it has no key for {algorithm:?}"));
        }
        Ok(Self { by_id })
    }

    /// Verifies a token and returns its principal.
    ///
    /// # Errors
    /// A fragment that says what is wrong with the token, without any part of it.
    pub(crate) fn verify(
        &self,
        token: &str,
        config: &WebTokenConfig,
        now: SystemTime,
    ) -> Result<Principal, String> {
        let header = decode_header(token).map_err(|_| "is malformed".to_owned())?;
        if header.alg != config.algorithm {
            return Err(format!(
                "is not signed with {:?}, the only algorithm that is accepted",
                config.algorithm
            ));
        }
        if requires_extensions(token) {
            return Err("requires extensions (crit), of which this server has none".to_owned());
        }
        let id = header.kid.ok_or("names no key (kid)")?;
        let key = self
            .by_id
            .get(&id)
            .ok_or("is signed with a key that is not in the JWKS file")?;
        let mut validation = Validation::new(config.algorithm);
        validation.set_issuer(&[&config.issuer]);
        validation.set_audience(&[&config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.leeway = CLOCK_SKEW.as_secs();
        // Expiry and begin are checked below, with the clock of the caller.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        let claims = decode::<Value>(token, key, &validation)
            .map_err(|error| describe_fault(&error))?
            .claims;
        // The library also accepts a list that has the issuer in it (RFC 7519, section 4.1.1: one text).
        if !claims.get("iss").is_some_and(Value::is_string) {
            return Err("has an issuer (iss) that is not a text".to_owned());
        }
        let expires = check_times(&claims, now)?;
        let subject = claims.get("sub").and_then(Value::as_str).filter(|subject| {
            (1..=SUBJECT_BYTES_MAX).contains(&subject.len())
                && !subject.chars().any(char::is_control)
        });
        let tenant = find_claim(&claims, &config.tenant_claim)
            .and_then(Value::as_str)
            .and_then(|tenant| TenantName::parse(tenant).ok())
            .ok_or_else(|| format!("names no tenant in its claim {}", config.tenant_claim))?;
        let role = find_claim(&claims, &config.roles_claim)
            .and_then(highest_known_role)
            .ok_or_else(|| format!("has no role in its claim {}", config.roles_claim))?;
        Ok(Principal {
            id: subject.ok_or("has no usable subject (sub)")?.to_owned(),
            tenant,
            role: role.min(config.role_max),
            workspace: None,
            via: CredentialKind::WebToken,
            expires: Some(expires),
        })
    }
}

/// Returns `true` if the header of a token has the member `crit`, whatever its value: extensions that a token requires
/// must be understood (RFC 7515, section 4.1.11). The library reads `null` as if the member were missing.
fn requires_extensions(token: &str) -> bool {
    let encoded = token.split('.').next().unwrap_or_default();
    let header: Option<Value> = BASE64URL_NOPAD
        .decode(encoded.as_bytes())
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    header.is_none_or(|header| header.get("crit").is_some())
}

/// Returns `true` if a key is for signatures of the algorithm, as far as the key says.
fn is_usable(key: &Jwk, algorithm: Algorithm) -> bool {
    let purpose = key.common.public_key_use.as_ref();
    let named = key.common.key_algorithm.map(|named| named.to_string());
    !matches!(key.algorithm, AlgorithmParameters::Other(_))
        && purpose.is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
        && named.is_none_or(|named| named == format!("{algorithm:?}"))
}

/// Checks `exp`, `nbf` and `iat`, and returns the time at which the token expires.
fn check_times(claims: &Value, now: SystemTime) -> Result<SystemTime, String> {
    let time = |name: &str| -> Result<Option<SystemTime>, String> {
        match claims.get(name) {
            None => Ok(None),
            Some(value) => {
                let seconds = value
                    .as_f64()
                    // Beyond this range the conversion, or a sum of times, could panic.
                    .filter(|seconds| (0.0..1e11).contains(seconds))
                    .ok_or_else(|| format!("has no valid time in its claim {name}"))?;
                Ok(Some(UNIX_EPOCH + Duration::from_secs_f64(seconds)))
            }
        }
    };
    let expires = time("exp")?.ok_or("has no expiry (exp)")?;
    if expires + CLOCK_SKEW <= now {
        return Err("has expired".to_owned());
    }
    if time("nbf")?.is_some_and(|begin| begin > now + CLOCK_SKEW) {
        return Err("is not valid yet".to_owned());
    }
    let issued = time("iat")?.ok_or("has no time of issue (iat)")?.min(now);
    if expires > issued + LIFETIME_MAX + CLOCK_SKEW {
        return Err("is valid for longer than an hour".to_owned());
    }
    Ok(expires + CLOCK_SKEW)
}

/// Finds a claim by its path: names separated by dots.
fn find_claim<'a>(claims: &'a Value, path: &str) -> Option<&'a Value> {
    // A claim such as "https://example.org/tenant" has dots in its own name.
    claims.get(path).or_else(|| {
        path.split('.')
            .try_fold(claims, |value, name| value.get(name))
    })
}

/// Returns the highest role among a list of names or a text with names between spaces. Other names are ignored, because
/// issuers put the groups of all systems into one claim.
fn highest_known_role(value: &Value) -> Option<Role> {
    match value {
        Value::String(text) => text.split_whitespace().filter_map(Role::parse).max(),
        Value::Array(names) => names
            .iter()
            .filter_map(|name| Role::parse(name.as_str()?))
            .max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is open, and other faults are not told apart"
)]
fn describe_fault(error: &jsonwebtoken::errors::Error) -> String {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::InvalidSignature => "has a wrong signature".to_owned(),
        ErrorKind::InvalidIssuer => "is of another issuer".to_owned(),
        ErrorKind::InvalidAudience => "is for another audience".to_owned(),
        ErrorKind::MissingRequiredClaim(name) => format!("lacks the claim {name}"),
        _ => "is malformed".to_owned(),
    }
}
