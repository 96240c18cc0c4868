//! Where the catalogue gets folders of skills from. Local directories, what was fetched from servers, and what was
//! published all look the same from here on: a [`Source`] each, in the order in which they win.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::Problem;

/// A place with folders of skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// `Skill.root` of what is in it: the root as configured, empty for what was published.
    pub(super) root: String,
    /// Said in place of the folder's own path in `Skill.source`: the URL that it was fetched from. `None` where the
    /// folder itself is the source.
    pub(super) origin: Option<String>,
    /// It is one skill whose card was fetched, and its files from the card's `base_uri`.
    pub(super) from_card: bool,
    /// The folders.
    pub(super) folders: Folders,
    /// Why it is not as it should be, for instance that its server does not answer. An error among them makes health
    /// say so.
    pub(super) problems: Vec<Problem>,
}

/// Which folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Folders {
    /// None: it cannot be had, its problems say why.
    Missing,
    /// Those that lie beneath this directory, which may change at any time.
    Beneath(PathBuf),
    /// These, which never change.
    Stored(Arc<Vec<Stored>>),
}

/// A folder of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// Its path, `skills/sha256/<digest>`.
    pub(super) dir: PathBuf,
    /// What it was published as.
    pub(super) name: String,
    /// When it was published.
    pub(super) time: SystemTime,
}
