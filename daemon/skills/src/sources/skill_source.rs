//! Common form of all sources, a [`SkillSource`] each, in the order in which they win. Sources are local directories,
//! remote roots and published skills.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::parse::problem::Problem;

/// Source of skills: a configured root, or everything that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillSource {
    /// `Skill.root` of what is in it: the root as configured, empty for what was published.
    pub(crate) root: String,
    /// Said in place of the folder's own path in `Skill.source`: the URL that it was fetched from. `None` where the
    /// folder itself is the source.
    pub(crate) origin: Option<String>,
    /// Tenant that published it; `None` for a configured root.
    pub(crate) tenant: Option<String>,
    /// The folders.
    pub(crate) folders: SourceFolders,
    /// Why it is not as it should be, for instance that its server does not answer. An error among them makes health
    /// say so.
    pub(crate) problems: Vec<Problem>,
}

impl SkillSource {
    /// Returns the path of a folder relative to the source: it stays the same when a remote root is fetched again.
    pub(crate) fn relative_path(&self, found_at: &Path) -> String {
        let SourceFolders::Beneath(root) = &self.folders else {
            return String::new();
        };
        let within = found_at.strip_prefix(root).unwrap_or(found_at);
        within.to_string_lossy().into_owned()
    }
}

/// Folders of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SourceFolders {
    /// No folders: the source cannot be read, for the reasons in its problems.
    Missing,
    /// Folders beneath this directory, which may change at any time.
    Beneath(PathBuf),
    /// Folders of the store, which never change.
    Stored(Vec<StoredFolder>),
}

/// A folder of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredFolder {
    /// Path of the folder, `skills/sha256/<digest>`.
    pub(crate) dir: PathBuf,
    /// Digest of the folder's content.
    pub(crate) digest: String,
    /// Name under which it was published.
    pub(crate) name: String,
    /// Time of the publication.
    pub(crate) time: SystemTime,
}
