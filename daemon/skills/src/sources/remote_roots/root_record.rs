//! Record of a remote root: what was fetched from its URL, and the digest under which the store has it.
//!
//! `skills/remote/<sha256 of the URL>.json`, written atomically. The skills themselves are one tree in the store, which
//! the record keeps there. A record whose tree is gone or altered is ignored, so that the root is fetched anew.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fetch::CacheValidators;

/// Record of what was fetched from one URL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RootRecord {
    /// Digest of the tree of skills in the store.
    pub(super) tree: String,
    /// SHA-256 of the document that the URL leads to.
    pub(super) sha256: String,
    /// Validators of that document, for the next request.
    pub(super) validators: CacheValidators,
    /// `true` if the tree stays the same as long as the document does.
    pub(super) is_final: bool,
    /// `true` if the document is a skill card.
    pub(super) is_card: bool,
    /// SHA-256 of each skill's archive or SKILL.md, by name, where an index pins it.
    pub(super) artifacts: BTreeMap<String, String>,
    /// Reasons why skills are missing from the tree, or not in their newest version.
    pub(super) skipped: Vec<String>,
}
