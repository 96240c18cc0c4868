//! Sources of skills, in the order in which they win: local directories and URLs as configured, then what was published.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Result;
use crate::options::{SkillRoot, SkillsOptions};
use crate::parse::problem::Problem;
use crate::store::Store;
use crate::tasks::Tasks;

pub mod archive;
pub(crate) mod directory_listing;
pub(crate) mod local;
pub mod published;
pub(crate) mod remote;
pub(crate) mod source;

use published::PublishedSkills;
use remote::RemoteRoots;
use source::{Source, SourceFolders};

/// All sources of a daemon.
#[derive(Debug)]
pub(crate) struct Sources {
    roots: Vec<SkillRoot>,
    remote: RemoteRoots,
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
        store: &Arc<Store>,
        tasks: &Tasks,
    ) -> Result<Self> {
        let records = base.join("published");
        Ok(Self {
            roots: options.roots.clone(),
            remote: RemoteRoots::open(options, &base.join("remote"), store, tasks.clone())?,
            published: PublishedSkills::open(&records, Arc::clone(store))?,
        })
    }

    /// Returns every source as it is now.
    pub(crate) fn list(&self) -> Vec<Source> {
        let configured = self.roots.iter().map(|root| match root {
            SkillRoot::Dir { text, path } => Source {
                root: text.clone(),
                origin: None,
                from_card: false,
                folders: SourceFolders::Beneath(path.clone()),
                problems: Vec::new(),
            },
            SkillRoot::Url { text, url } => self.remote.source(text, url),
        });
        configured.chain([self.published.source()]).collect()
    }

    /// Keeps remote roots current until the daemon stops.
    pub(crate) fn start_fetching(&self) {
        self.remote.start();
    }

    /// Asks all servers; see [`RemoteRoots::refresh`].
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub(crate) async fn refresh(&self, by: Option<Instant>) -> Result<Vec<Problem>> {
        self.remote.refresh(by).await
    }

    /// Returns a receiver that changes whenever a remote root was fetched, or failed to be.
    pub(crate) fn remote_changes(&self) -> watch::Receiver<u64> {
        self.remote.watch_attempts()
    }

    /// Returns `true` if a record references a digest, which must then stay in the store.
    pub(crate) fn references(&self, digest: &str) -> bool {
        self.published.references(digest) || self.remote.references(digest)
    }
}
