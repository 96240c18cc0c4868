//! Packages that a skill needs beyond its image, as its files state them. Pure.

use std::sync::OnceLock;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::problem::Problem;

/// Need of a skill for packages that its image may lack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentNeed {
    /// Checked lines of a requirements.txt, sorted, without duplicates.
    pub requirements: Vec<String>,
    /// Content of the skill's package.json; empty if it has none or if that names no dependencies.
    pub package_json: Vec<u8>,
    /// Content of the skill's package-lock.json; empty if it has none.
    pub package_lock: Vec<u8>,
    /// Reasons for which the environment is not built.
    pub problems: Vec<Problem>,
    /// Digest of the other fields, once it was computed.
    digest: OnceLock<String>,
}

impl EnvironmentNeed {
    /// Returns `true` if the skill needs no environment.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty() && self.package_json.is_empty() && self.problems.is_empty()
    }

    /// Returns the number of bytes that the need takes in memory, without the little that every need takes.
    pub(crate) fn size(&self) -> usize {
        let requirements = self.requirements.iter().map(String::len);
        self.package_json.len() + self.package_lock.len() + requirements.sum::<usize>()
    }

    /// Returns the digest of everything that a build reads, 64 hex digits. Computed once, because a lock file may have
    /// 8 MiB; the fields must not change afterwards.
    pub fn digest(&self) -> String {
        self.digest.get_or_init(|| self.compute_digest()).clone()
    }

    fn compute_digest(&self) -> String {
        let mut hash = Sha256::new();
        let requirements = self.requirements.join("\n");
        for part in [
            requirements.as_bytes(),
            &self.package_json,
            &self.package_lock,
        ] {
            // The length keeps the end of one part from being read as the beginning of the next.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        HEXLOWER.encode(&hash.finalize())
    }
}
