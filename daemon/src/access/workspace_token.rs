//! Tokens for one workspace: minted by the daemon, verified without a store.
//!
//! ```text
//! skw_<base64url of: version, role, expiry, creation of the workspace, tenant, workspace, id, HMAC-SHA-256 over these>
//! ```
//!
//! The key is made once and kept in the state directory, so tokens survive a restart. A token is for the workspace that
//! existed when it was minted: a later one of the same name has another creation time.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use ring::hmac;

use super::principal::{BoundWorkspace, CredentialKind, Principal};
use super::secret_key_file::SecretKeyFile;
use super::tenant_name::TenantName;
use crate::config::Role;
use crate::error::{Error, Result, tolerate};

/// Start of every token.
pub(crate) const WORKSPACE_TOKEN_PREFIX: &str = "skw_";
/// File of the key.
const KEY_FILE: SecretKeyFile = SecretKeyFile {
    name: "workspace_token.key",
    what: "the key of workspace tokens",
    loss: "older tokens of workspaces are invalid",
};
/// Version of the format.
const VERSION: u8 = 1;
/// First byte of what the id of a principal is made from, which distinguishes it from the claims of a token.
const PRINCIPAL_ID: u8 = 0;
/// Length of the id of a principal that is made from an idempotency key, in bytes; its text is twice as long.
const PRINCIPAL_ID_BYTES: usize = 16;
/// Length of the HMAC at the end, in bytes.
const TAG_BYTES: usize = 32;
/// Maximum length of a token, in bytes; the longest names make about 330.
const TOKEN_BYTES_MAX: usize = 512;

/// Key with which this instance mints and verifies tokens.
#[derive(Debug)]
pub(crate) struct WorkspaceTokenKey(hmac::Key);

impl WorkspaceTokenKey {
    /// Reads the key, or makes it at the first start. Blocks.
    ///
    /// # Errors
    /// Those of [`SecretKeyFile::load_or_create`].
    pub(crate) fn open(state_dir: &Path) -> Result<Self> {
        let key = KEY_FILE.load_or_create(state_dir)?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// Checks that [`Self::open`] would succeed, and changes nothing. Blocks.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub(crate) fn check(state_dir: &Path) -> Result<()> {
        KEY_FILE.check(state_dir)
    }

    /// Removes the key of a state directory that was copied, so that the copy refuses the original's tokens. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn remove(state_dir: &Path) -> Result<()> {
        let path = state_dir.join(KEY_FILE.name);
        let removed = tolerate(io::ErrorKind::NotFound, std::fs::remove_file(&path));
        removed.map_err(|source| Error::io(format!("remove {}", path.display()), source))
    }

    /// Makes a token that stands for `principal`, which must be bound to a workspace and expire.
    pub(crate) fn mint(&self, principal: &Principal) -> String {
        let mut bytes = encode_claims(principal);
        let tag = hmac::sign(&self.0, &bytes);
        bytes.extend_from_slice(tag.as_ref());
        format!("{WORKSPACE_TOKEN_PREFIX}{}", BASE64URL_NOPAD.encode(&bytes))
    }

    /// Returns the id of the principal for a workspace and an idempotency key.
    pub(super) fn principal_id(
        &self,
        tenant: &TenantName,
        workspace: &BoundWorkspace,
        request_id: &str,
    ) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[PRINCIPAL_ID]);
        context.update(&workspace.create_time_ms.to_be_bytes());
        for text in [tenant.as_str(), workspace.id.as_str(), request_id] {
            context.update(text.as_bytes());
            // None of them has a NUL byte.
            context.update(&[0]);
        }
        let tag = context.sign();
        let id = tag.as_ref().get(..PRINCIPAL_ID_BYTES);
        HEXLOWER.encode(id.unwrap_or_default())
    }

    /// Returns the principal of a token, also of one that has expired; `None` if this instance did not mint it.
    pub(crate) fn verify(&self, token: &str) -> Option<Principal> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let encoded = token.strip_prefix(WORKSPACE_TOKEN_PREFIX)?;
        let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok()?;
        let (claims, tag) = bytes.split_at_checked(bytes.len().checked_sub(TAG_BYTES)?)?;
        hmac::verify(&self.0, claims, tag).ok()?;
        decode_claims(claims)
    }
}

fn encode_claims(principal: &Principal) -> Vec<u8> {
    let expires = principal
        .expires
        .unwrap_or(UNIX_EPOCH)
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let (workspace, create_time_ms) = principal
        .workspace
        .as_ref()
        .map_or(("", 0), |bound| (bound.id.as_str(), bound.create_time_ms));
    let mut bytes = vec![VERSION, role_byte(principal.role)];
    bytes.extend(expires.as_secs().to_be_bytes());
    bytes.extend(create_time_ms.to_be_bytes());
    for text in [principal.tenant.as_str(), workspace, principal.id.as_str()] {
        // All three are ids, far shorter than 255 bytes.
        bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        bytes.extend(text.bytes().take(u8::MAX.into()));
    }
    bytes
}

fn decode_claims(bytes: &[u8]) -> Option<Principal> {
    let ([version, role], rest) = bytes.split_first_chunk::<2>()?;
    let (expires, rest) = rest.split_first_chunk::<8>()?;
    let (create_time_ms, mut rest) = rest.split_first_chunk::<8>()?;
    let mut text = || {
        let (length, after) = rest.split_first()?;
        let (text, after) = after.split_at_checked(usize::from(*length))?;
        rest = after;
        String::from_utf8(text.to_vec()).ok()
    };
    let (tenant, workspace, id) = (text()?, text()?, text()?);
    if *version != VERSION {
        return None;
    }
    Some(Principal {
        id,
        tenant: TenantName::parse(&tenant).ok()?,
        role: Role::from_number(i32::from(*role))?,
        workspace: Some(BoundWorkspace {
            id: workspace,
            create_time_ms: u64::from_be_bytes(*create_time_ms),
        }),
        via: CredentialKind::WorkspaceToken,
        expires: UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_be_bytes(*expires))),
    })
}

fn role_byte(role: Role) -> u8 {
    // Roles have numbers below 10 in the API.
    u8::try_from(role.message() as i32).unwrap_or_default()
}

/// Returns a time without its fraction of a second, as a token carries it.
pub(crate) fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal() -> Principal {
        Principal {
            id: "w1-token".to_owned(),
            tenant: TenantName::parse("billing").expect("name"),
            role: Role::User,
            workspace: Some(BoundWorkspace {
                id: "w1".to_owned(),
                create_time_ms: 1_700_000_000_123,
            }),
            via: CredentialKind::WorkspaceToken,
            expires: Some(UNIX_EPOCH + Duration::from_secs(1_800_000_000)),
        }
    }

    #[test]
    fn a_token_survives_a_restart_and_no_change_of_a_byte() {
        let dir = tempfile::tempdir().expect("directory");
        let token = WorkspaceTokenKey::open(dir.path())
            .expect("made")
            .mint(&principal());
        let key = WorkspaceTokenKey::open(dir.path()).expect("read again");
        assert_eq!(key.verify(&token), Some(principal()));
        let other = tempfile::tempdir().expect("directory");
        let foreign = WorkspaceTokenKey::open(other.path()).expect("made");
        assert_eq!(foreign.verify(&token), None);
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            let byte = bytes.get_mut(at).expect("inside");
            *byte = if *byte == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).expect("ascii");
            assert_eq!(key.verify(&changed), None, "byte {at}");
            assert_eq!(key.verify(token.get(..at).expect("ascii")), None);
        }
    }
}
