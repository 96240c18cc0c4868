//! Sources of skills, in the order in which they win: local directories and URLs as configured, then what was
//! published.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::content_store::ContentStore;
use crate::error::{Error, Result};
use crate::skill_scope::DEFAULT_TENANT;
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
    /// Directory of the records of tenants other than the default one.
    tenants_dir: PathBuf,
    store: Arc<ContentStore>,
    /// Records of published skills, by tenant.
    published: Mutex<BTreeMap<String, Arc<PublishedSkills>>>,
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
        let tenants_dir = base.join("tenants");
        let failed = |source| Error::io(format!("read {}", tenants_dir.display()))(source);
        fs::create_dir_all(&tenants_dir).map_err(failed)?;
        let mut published = BTreeMap::new();
        let entries = fs::read_dir(&tenants_dir).map_err(failed)?.flatten();
        let own = entries.map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        });
        let default = (DEFAULT_TENANT.to_owned(), base.to_owned());
        for (tenant, dir) in own.chain([default]) {
            let records = PublishedSkills::open(&tenant, &dir.join("published"), store)?;
            published.insert(tenant, Arc::new(records));
        }
        Ok(Self {
            roots: options.roots.clone(),
            remote: RemoteRoots::open(options, &base.join("remote"), store, tasks.clone())?,
            tenants_dir: tenants_dir.clone(),
            store: Arc::clone(store),
            published: Mutex::new(published),
        })
    }

    /// Returns every source as it is now.
    pub(crate) fn list(&self) -> Vec<SkillSource> {
        let configured = self.roots.iter().map(|root| match root {
            SkillRoot::Dir { text, path } => SkillSource {
                root: text.clone(),
                origin: None,
                tenant: None,
                folders: SourceFolders::Beneath(path.clone()),
                problems: Vec::new(),
            },
            SkillRoot::Url { text, url, folder } => self.remote.source(text, url, folder),
        });
        let published = self.all_published();
        configured
            .chain(published.iter().map(|records| records.source()))
            .collect()
    }

    /// Returns `true` if a record references a digest, which must then stay in the store.
    pub(crate) fn references(&self, digest: &str) -> bool {
        let published = self.all_published();
        published.iter().any(|records| records.references(digest)) || self.remote.references(digest)
    }

    /// Returns the records of a tenant's publications, which may be none.
    ///
    /// # Errors
    /// `Io` when the directory of a new tenant cannot be made.
    pub(crate) fn published_by(&self, tenant: &str) -> Result<Arc<PublishedSkills>> {
        let mut published = self.published.lock();
        if let Some(known) = published.get(tenant) {
            return Ok(Arc::clone(known));
        }
        let dir = self.tenants_dir.join(tenant).join("published");
        let records = Arc::new(PublishedSkills::open(tenant, &dir, &self.store)?);
        published.insert(tenant.to_owned(), Arc::clone(&records));
        Ok(records)
    }

    /// Returns the bytes that count for a tenant's publications.
    pub(crate) fn published_bytes(&self, tenant: &str) -> u64 {
        let records = self.published.lock().get(tenant).map(Arc::clone);
        records.map_or(0, |records| records.held_bytes())
    }

    /// Returns the records of all tenants: those of the default one first, so that its rank stays the same.
    pub(crate) fn all_published(&self) -> Vec<Arc<PublishedSkills>> {
        let published = self.published.lock();
        let mut all: Vec<_> = published.iter().collect();
        all.sort_by_key(|(tenant, _)| *tenant != DEFAULT_TENANT);
        all.into_iter()
            .map(|(_, records)| Arc::clone(records))
            .collect()
    }
}
