//! Key of the instance for MACs of lines and fingerprints of command lines. The audit log has the name of a command's
//! program and an HMAC of its argv, never the argv itself.

use std::path::Path;

use data_encoding::HEXLOWER;
use ring::hmac;
use serde::Serialize;
use skilld_common::audit_chain::ChainKey;
use skilld_common::names::base_name;

use crate::access::SecretKeyFile;
use crate::error::Result;

/// File of the key.
const KEY_FILE: SecretKeyFile = SecretKeyFile {
    name: "audit-key",
    what: "the key of the audit log",
    loss: "older records are verified with the old one, and older fingerprints can't be compared",
};
/// Maximum length of a program's name in a record, in bytes.
const PROGRAM_BYTES_MAX: usize = 64;

/// Key for fingerprints of command lines.
#[derive(Debug)]
pub(super) struct ArgvKey(hmac::Key);

/// Command of an exec, as the audit log describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExecDescription {
    /// Base name of the program; `None` if it is not a plain file name, because it may then be a whole command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    /// HMAC-SHA-256 of the arguments, each followed by a NUL byte: 64 hex digits.
    argv_hmac: String,
}

// === impl ArgvKey ===

impl ArgvKey {
    /// Reads the key of a state directory, and creates it if there is none. Blocks the thread.
    ///
    /// # Errors
    /// Those of [`SecretKeyFile::load_or_create`].
    pub(super) fn load_or_create(state_dir: &Path) -> Result<Self> {
        let key = KEY_FILE.load_or_create(state_dir)?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// Checks that [`Self::load_or_create`] would succeed, and changes nothing. Blocks the thread.
    ///
    /// # Errors
    /// Those of [`Self::load_or_create`].
    pub(super) fn check(state_dir: &Path) -> Result<()> {
        KEY_FILE.check(state_dir)
    }

    /// Returns the same key for the MACs of lines.
    pub(super) fn chain_key(&self) -> ChainKey {
        ChainKey::new(self.0.clone())
    }

    /// Describes a command for the audit log.
    pub(super) fn describe<A: AsRef<str>>(&self, argv: &[A]) -> ExecDescription {
        let mut context = hmac::Context::with_key(&self.0);
        for argument in argv {
            context.update(argument.as_ref().as_bytes());
            // Validation refuses arguments with a NUL byte later, so two accepted commands never give the same bytes.
            context.update(&[0]);
        }
        ExecDescription {
            program: argv
                .first()
                .and_then(|program| program_name(program.as_ref())),
            argv_hmac: HEXLOWER.encode(context.sign().as_ref()),
        }
    }
}

/// Returns the last part of a program's path, if it is a plain file name.
fn program_name(program: &str) -> Option<String> {
    let name = base_name(program);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let is_valid = (1..=PROGRAM_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain);
    is_valid.then(|| name.to_owned())
}
