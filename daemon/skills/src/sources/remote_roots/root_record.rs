//! Record of a remote root: what was fetched from its URL, and the digest under which the store has it.
//!
//! `skills/remote/<sha256 of the URL>.json`, written atomically. The skills themselves are one tree in the store, which
//! the record keeps there. A record whose tree is gone or altered is ignored, so that the root is fetched anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skilld_common::excerpts::join_first;

use crate::fetch::CacheValidators;
use crate::parse::finding::quote_excerpt;
use crate::parse::problem::Problem;

/// Maximum number of folders that a problem names.
const SHOWN_MAX: usize = 5;

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
    /// Name of the one folder around everything in the archive, which the tree lacks.
    #[serde(default)]
    pub(super) wrapper: Option<String>,
    /// Folder of the tree that holds the archive's files: empty, or the skill's if the archive is one skill.
    #[serde(default)]
    pub(super) top: String,
    /// SHA-256 of each skill's archive or SKILL.md, by name, where an index pins it.
    pub(super) artifacts: BTreeMap<String, String>,
    /// Reasons why skills are missing from the tree, or not in their newest version.
    pub(super) skipped: Vec<String>,
    /// Entries of archives that were left out, by the name of the archive's skill in an index, which is else empty.
    #[serde(default)]
    pub(super) left_out: BTreeMap<String, String>,
}

impl RootRecord {
    /// Takes over what an earlier record says of one skill.
    pub(super) fn copy_skill(&mut self, name: &str, earlier: &Self) {
        for (own, earlier) in [
            (&mut self.artifacts, &earlier.artifacts),
            (&mut self.left_out, &earlier.left_out),
        ] {
            if let Some(text) = earlier.get(name) {
                own.insert(name.to_owned(), text.clone());
            }
        }
    }

    /// Returns the directory of a folder of the archive in the stored `tree`. The folder may be given with or without
    /// the one around everything.
    ///
    /// # Errors
    /// The problem of a folder that the archive does not have, or of a path that means two.
    pub(super) fn find_folder(&self, tree: &Path, folder: &str) -> Result<PathBuf, Problem> {
        if folder.is_empty() {
            return Ok(tree.to_owned());
        }
        let top = tree.join(&self.top);
        let wrapper = self.wrapper.as_deref().unwrap_or_default();
        let unwrapped = Path::new(folder)
            .strip_prefix(wrapper)
            .ok()
            .filter(|_| !wrapper.is_empty());
        let as_given = find_directory(tree, &top, Path::new(folder));
        match (
            as_given,
            unwrapped.and_then(|path| find_directory(tree, &top, path)),
        ) {
            (Some(dir), None) | (None, Some(dir)) => Ok(dir),
            (Some(_), Some(_)) => {
                let message = format!(
                    "the archive has two folders {}, with and without the folder around everything: write \
                     #{wrapper}/{folder} for the inner one, or nothing for the whole archive",
                    quote_excerpt(folder)
                );
                Err(Problem::error("root.no_folder", message))
            }
            (None, None) => {
                let message = format!(
                    "the archive has no folder {}: write one that it has after # in skills.roots; at its top are {}",
                    quote_excerpt(folder),
                    list_folders(&top)
                );
                Err(Problem::error("root.no_folder", message))
            }
        }
    }
}

/// Returns the directory at a path below `top` if it exists and no link leads out of the tree on the way to it.
fn find_directory(tree: &Path, top: &Path, path: &Path) -> Option<PathBuf> {
    let dir = top.join(path);
    let real = dir.canonicalize().ok()?;
    let is_inside = tree.canonicalize().is_ok_and(|tree| real.starts_with(tree));
    (is_inside && real.is_dir()).then_some(dir)
}

/// Lists the first folders of a directory, for people.
fn list_folders(dir: &Path) -> String {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        return "no folders".to_owned();
    }
    join_first(names.iter().map(|name| quote_excerpt(name)), SHOWN_MAX)
}
