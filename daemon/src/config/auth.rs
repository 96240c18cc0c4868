//! Section `[auth]`: files that say who may do what, and the issuer of JSON web tokens.

use std::path::PathBuf;

use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde::de::Deserializer;

use super::role::Role;
use super::values;

/// Section `[auth]`. Without it every caller has all roles.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthConfig {
    /// File of tenants, users of the host and certificates.
    #[serde(deserialize_with = "values::path")]
    pub tenants_file: PathBuf,
    /// File of tokens; `None` if the server accepts none.
    #[serde(default, deserialize_with = "values::optional_path")]
    pub tokens_file: Option<PathBuf>,
    /// Issuer of JSON web tokens; `None` if the server accepts none.
    #[serde(default)]
    pub jwt: Option<WebTokenConfig>,
}

/// Section `[auth.jwt]`: the one issuer whose JSON web tokens the server accepts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebTokenConfig {
    /// Required claim `iss`.
    pub issuer: String,
    /// Required claim `aud`.
    pub audience: String,
    /// Required algorithm of the signature.
    #[serde(deserialize_with = "signature_algorithm")]
    pub algorithm: Algorithm,
    /// JWKS file with the issuer's public keys.
    #[serde(deserialize_with = "values::path")]
    pub jwks_file: PathBuf,
    /// Path of the claim with the tenant's name, its parts separated by dots.
    #[serde(default = "default_tenant_claim")]
    pub tenant_claim: String,
    /// Path of the claim with the roles, a list of names or a text with names between spaces.
    #[serde(default = "default_roles_claim")]
    pub roles_claim: String,
    /// Highest role that a token may have, whatever its claim says. The names of roles are common, and other systems may
    /// have an "admin" of their own.
    #[serde(default = "default_role_max", deserialize_with = "role")]
    pub role_max: Role,
}

fn default_tenant_claim() -> String {
    "tenant".to_owned()
}

fn default_roles_claim() -> String {
    "roles".to_owned()
}

fn default_role_max() -> Role {
    Role::User
}

fn role<'de, D: Deserializer<'de>>(source: D) -> Result<Role, D::Error> {
    values::parsed(source, |text| Role::highest_of([text]))
}

fn signature_algorithm<'de, D: Deserializer<'de>>(source: D) -> Result<Algorithm, D::Error> {
    values::parsed(source, |text| match text {
        "RS256" => Ok(Algorithm::RS256),
        "ES256" => Ok(Algorithm::ES256),
        "EdDSA" => Ok(Algorithm::EdDSA),
        other => Err(format!(
            "{other:?} is not an algorithm that is accepted; use \"RS256\", \"ES256\" or \"EdDSA\""
        )),
    })
}
