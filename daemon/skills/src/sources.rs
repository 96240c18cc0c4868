//! Sources of skills, in the order in which they win: local directories and URLs as configured, then what was
//! published.

use std::path::Path;
use std::sync::Arc;

use crate::content_store::ContentStore;
use crate::error::Result;
use crate::skills_options::{SkillRoot, SkillsOptions};
use crate::task_spawner::TaskSpawner;

pub mod archive;
pub(crate) mod directory_listing;
pub mod plugin_root;
pub mod published_skills;
pub(crate) mod remote_roots;
pub(crate) mod root_walk;
pub(crate) mod skill_source;

use published_skills::PublishedSkills;
use remote_roots::RemoteRoots;
use skill_source::{SkillSource, SourceFolders};

/// All sources of a daemon.
#[derive(Debug)]
pub(crate) struct Sources {
    roots: Vec<SkillRoot>,
    /// Roots that are URLs.
    pub(crate) remote: RemoteRoots,
    /// Records of published skills.
    pub(crate) published: PublishedSkills,
}

impl Sources {
    /// Reads the records of published skills and of remote roots. `base` is the directory of the store.
    ///
    /// # Errors
    /// `Io` when a directory cannot be made.
    pub(crate) fn open(
        options: &SkillsOptions,
        base: &Path,
        store: &Arc<ContentStore>,
        tasks: &TaskSpawner,
    ) -> Result<Self> {
        let records = base.join("published");
        Ok(Self {
            roots: options.roots.clone(),
            remote: RemoteRoots::open(options, &base.join("remote"), store, tasks.clone())?,
            published: PublishedSkills::open(&records, Arc::clone(store))?,
        })
    }

    /// Returns every source as it is now.
    pub(crate) fn list(&self) -> Vec<SkillSource> {
        let configured = self.roots.iter().map(|root| match root {
            SkillRoot::Dir { text, path } => SkillSource {
                root: text.clone(),
                origin: None,
                from_card: false,
                folders: SourceFolders::Beneath(path.clone()),
                problems: Vec::new(),
            },
            SkillRoot::Url { text, url, folder } => self.remote.source(text, url, folder),
        });
        configured.chain([self.published.source()]).collect()
    }

    /// Returns `true` if a record references a digest, which must then stay in the store.
    pub(crate) fn references(&self, digest: &str) -> bool {
        self.published.references(digest) || self.remote.references(digest)
    }
}
