//! Embedded seccomp profile of every container: an allow-list in Docker's JSON format.
//!
//! The profile is written by hand, and the tests evaluate its rules as the kernel does. A change of the rules goes into a
//! new file, so that the digest of a released version always denotes the same rules.

use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// SHA-256 digest of the seccomp profile, computed once.
static PROFILE_DIGEST: LazyLock<String> =
    LazyLock::new(|| format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(profile()))));

/// Returns the seccomp profile as JSON text, which Docker accepts inline in `seccomp=`.
pub fn profile() -> &'static str {
    include_str!("seccomp/v2.json")
}

/// Returns the SHA-256 digest of the seccomp profile as `sha256:<hex>`. GetServerInfo reports it.
pub fn digest() -> &'static str {
    &PROFILE_DIGEST
}

#[cfg(test)]
mod tests;
