//! The seccomp profile of every container: an allow-list in Docker's JSON format, embedded.
//!
//! It is written by hand; the tests evaluate its rules as the kernel would. A change that lets more or less through
//! gets a new file, so that the digest of a released version keeps its meaning.

use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

static DIGEST: LazyLock<String> =
    LazyLock::new(|| format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(profile()))));

/// The profile, as Docker takes it inline.
#[must_use]
pub fn profile() -> &'static str {
    include_str!("seccomp/v2.json")
}

/// `sha256:…` over the profile's bytes, shown by GetServerInfo.
#[must_use]
pub fn digest() -> &'static str {
    &DIGEST
}

#[cfg(test)]
mod tests;
