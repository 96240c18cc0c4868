//! File of tokens: one line for each, with the hash of the token and what it permits.
//!
//! ```text
//! # id  sha256 of the token, in hex     tenant   roles           expiry                comment
//! ci-1  9f86d081884c7d659a2feaa0c55a…   billing  user,publisher  2027-01-01T00:00:00Z  CI of the billing team
//! ```
//!
//! `-` as expiry means never. A token is `skt_<id>_<secret>`, with 32 random bytes in base64url as the secret, so a
//! plain hash of it cannot be guessed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER_PERMISSIVE};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::principal::{CredentialKind, Principal};
use super::protected_file::{Secrecy, read_protected_text};
use super::tenant_name::TenantName;
use crate::config::Role;

/// Start of every token.
pub(crate) const TOKEN_PREFIX: &str = "skt_";
/// Number of random bytes in a token.
const SECRET_BYTES: usize = 32;
/// Maximum length of a token's id, in bytes.
const ID_BYTES_MAX: usize = 63;

/// Parsed file of tokens.
#[derive(Debug, Default)]
pub(crate) struct TokensFile {
    by_id: HashMap<String, TokenEntry>,
}

struct TokenEntry {
    hash: [u8; 32],
    principal: Arc<Principal>,
}

impl std::fmt::Debug for TokenEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenEntry({:?})", self.principal)
    }
}

impl TokensFile {
    /// Reads and parses the file.
    ///
    /// # Errors
    /// A message with the first faulty line.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let text = read_protected_text(path, Secrecy::Secret)?;
        Self::parse(&text).map_err(|fault| format!("{}: {fault}", path.display()))
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// A message with the first faulty line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut by_id = HashMap::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let entry = parse_line(line).map_err(|fault| format!("line {number}: {fault}"))?;
            let id = entry.principal.id.clone();
            if by_id.insert(id.clone(), entry).is_some() {
                return Err(format!(
                    "line {number}: there are two tokens with the id {id:?}"
                ));
            }
        }
        Ok(Self { by_id })
    }

    /// Returns the principal of a token; `None` if the token is unknown. Takes the same time for any wrong secret.
    pub(crate) fn find(&self, token: &str) -> Option<Arc<Principal>> {
        let (id, _) = split_token(token)?;
        let entry = self.by_id.get(id)?;
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        bool::from(hash.ct_eq(&entry.hash)).then(|| Arc::clone(&entry.principal))
    }
}

/// Splits a token into id and secret; `None` if it is malformed. The secret may contain `_`, an id does not.
fn split_token(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    let bytes = BASE64URL_NOPAD.decode(secret.as_bytes()).ok()?;
    (is_token_id(id) && bytes.len() == SECRET_BYTES).then_some((id, secret))
}

fn is_token_id(id: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_valid)
}

fn parse_line(line: &str) -> Result<TokenEntry, String> {
    let mut fields = line.split_whitespace();
    let mut next = |name: &str| {
        fields.next().ok_or_else(|| {
            format!("{name} is missing; a line has id, sha256, tenant, roles and expiry")
        })
    };
    let id = next("the id")?;
    // Messages never show this field: it may be a token that was pasted.
    if id.starts_with(TOKEN_PREFIX) {
        return Err(
            "it begins with a token, which does not belong in this file: add the line that \
             skillctl token create --file adds"
                .to_owned(),
        );
    }
    if !is_token_id(id) {
        return Err(format!(
            "its first field is not an id: 1 to {ID_BYTES_MAX} letters, digits, '-' and '.'"
        ));
    }
    let hash = HEXLOWER_PERMISSIVE
        .decode(next("the sha256")?.as_bytes())
        .ok()
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
        .ok_or("the sha256 is not 64 hex digits")?;
    let tenant = TenantName::parse(next("the tenant")?)?;
    let role = Role::highest_of(next("the list of roles")?.split(','))?;
    let expires = match next("the expiry")? {
        "-" => None,
        text => Some(parse_time(text)?),
    };
    Ok(TokenEntry {
        hash,
        principal: Arc::new(Principal {
            id: id.to_owned(),
            tenant,
            role,
            workspace: None,
            via: CredentialKind::Token,
            expires,
        }),
    })
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339(text).map_err(|_| {
        format!("{text:?} is not a time like 2027-01-01T00:00:00Z, or \"-\" for never")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "ci-1";

    fn token(id: &str, byte: u8) -> String {
        let secret = BASE64URL_NOPAD.encode(&[byte; SECRET_BYTES]);
        format!("{TOKEN_PREFIX}{id}_{secret}")
    }

    fn hash(token: &str) -> String {
        HEXLOWER_PERMISSIVE.encode(&Sha256::digest(token.as_bytes()))
    }

    #[test]
    fn a_token_is_found_by_its_hash_only() {
        let right = token(ID, 0xff);
        let text = format!(
            "# tokens\n\n{ID} {} billing user,publisher 2027-01-01T00:00:00Z two words\n",
            hash(&right)
        );
        let file = TokensFile::parse(&text).expect("parses");
        let found = file.find(&right).expect("known");
        assert_eq!((found.id.as_str(), found.role), (ID, Role::Publisher));
        assert_eq!(found.tenant.as_str(), "billing");
        assert!(found.expires.is_some());
        for wrong in [
            token(ID, 1),
            token("ci-2", 0xff),
            right.replace("skt_", "skw_"),
            format!("{right}A"),
            "skt_ci-1_".to_owned(),
            "skt_".to_owned(),
            String::new(),
            hash(&right),
        ] {
            assert!(file.find(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_faulty_line_is_named() {
        let good = hash(&token(ID, 1));
        for (line, word) in [
            ("ci-1".to_owned(), "sha256"),
            ("ci_1 x".to_owned(), "not an id"),
            ("ci-1 abc billing user -".to_owned(), "64 hex"),
            (format!("ci-1 {good}"), "tenant"),
            (format!("ci-1 {good} Billing user -"), "tenant's name"),
            (format!("ci-1 {good} billing root -"), "not a role"),
            (format!("ci-1 {good} billing user"), "expiry"),
            (format!("ci-1 {good} billing user tomorrow"), "not a time"),
            (
                format!("ci-1 {good} billing user -\nci-1 {good} b user -"),
                "two tokens",
            ),
        ] {
            let error = TokensFile::parse(&line).expect_err(&line);
            assert!(
                error.contains("line ") && error.contains(word),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn a_token_in_the_file_is_refused_without_showing_it() {
        let secret = token(ID, 7);
        let without_prefix = secret.strip_prefix(TOKEN_PREFIX).expect("a prefix");
        for (line, word) in [
            (secret.as_str(), "skillctl token create --file"),
            (without_prefix, "not an id"),
        ] {
            for line in [line.to_owned(), format!("{line} x billing user -")] {
                let error = TokensFile::parse(&line).expect_err(&line);
                assert!(error.contains(word), "{error}");
                assert!(!error.contains(without_prefix), "{error}");
            }
        }
    }
}
