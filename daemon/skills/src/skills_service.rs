//! [`Skills`]: every question about skills, answered from the catalogue's latest snapshot and the store.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::catalogue::catalogue_assembly::make_view;
use crate::catalogue::catalogue_snapshot::Catalogue;
use crate::catalogue::catalogue_task::CatalogueHandle;
use crate::catalogue::plugin_library::PluginLibrary;
use crate::catalogue::preflight::Need;
use crate::catalogue::search::SearchMatch;
use crate::catalogue::skill::{PageCursor, Skill};
use crate::catalogue::skill_library::{SkillFilePath, SkillLibrary};
use crate::catalogue::skill_material::{DocumentChoice, SkillMaterial};
use crate::catalogue::source_scanner::ScanExtent;
use crate::content_store::digest_cache::{DigestCache, WEIGHT_BYTES};
use crate::content_store::skill_files::{FileContent, Manifest, SkillFile};
use crate::content_store::{ContentStore, DAMAGED, StoreCleanup};
use crate::environments::remembered_packages::RememberedPackages;
use crate::error::{Error, Result};
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::Problem;
use crate::parse::skill_ref::SkillRef;
use crate::skill_scope::SkillScope;
use crate::skills_options::SkillsOptions;
use crate::sources::Sources;
use crate::sources::archive::ArchiveKind;
use crate::sources::published_skills::VersionSelector;
use crate::task_spawner::TaskSpawner;
use crate::tenant_permits::{DAEMON_HOLDER, TenantPermits};

mod staging;

pub use staging::LeasedSkills;

/// Maximum number of blocking calls on skills at once; of one tenant, and without a tenant, at most half. The store may
/// be on a file system that hangs, and everything else needs the other threads.
const BLOCKING_MAX: usize = 32;

/// Skills and the problems that belong to no skill, or one page of them.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Sorted by name; a skill comes before those that it shadows.
    pub skills: Vec<Skill>,
    /// `true` if further skills follow.
    pub has_more: bool,
    /// Problems of roots, and of folders that have no name to be listed under; on the first page only.
    pub problems: Vec<Problem>,
}

/// The skills of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Skills {
    library: Arc<SkillLibrary>,
    catalogue: CatalogueHandle,
    permits: TenantPermits,
    /// Tenant whose permits blocking calls need, or [`DAEMON_HOLDER`].
    holder: Arc<str>,
    tasks: TaskSpawner,
    scope: SkillScope,
}

impl Skills {
    /// Opens the store beneath `state_dir` and starts the catalogue's task. Must be called within a runtime. A root
    /// that cannot be read is a problem in the listing, not a failure.
    ///
    /// # Errors
    /// `Io` when the store's directories cannot be made.
    pub fn open(options: &SkillsOptions, state_dir: &Path, tasks: TaskSpawner) -> Result<Self> {
        let base = state_dir.join("skills");
        let store = Arc::new(ContentStore::open(&base, options)?);
        let sources = Arc::new(Sources::open(options, &base, &store, &tasks)?);
        let catalogue =
            CatalogueHandle::start(options, Arc::clone(&sources), Arc::clone(&store), &tasks);
        Ok(Self {
            library: Arc::new(SkillLibrary {
                plugins: PluginLibrary::new(&store),
                remembered: RememberedPackages::new(base.join("added"), store.tmp()),
                store,
                sources,
                options: options.clone(),
                manifests: DigestCache::new(|manifest| manifest.files().len()),
                environment_needs: DigestCache::new(|need| need.size() / WEIGHT_BYTES),
                needs: DigestCache::new(|needs| {
                    needs.iter().map(Need::size).sum::<usize>() / WEIGHT_BYTES
                }),
            }),
            catalogue,
            permits: TenantPermits::new(BLOCKING_MAX, true),
            holder: DAEMON_HOLDER.into(),
            tasks,
            scope: SkillScope::Single,
        })
    }

    /// Returns the skills as a caller of this scope sees them.
    pub fn in_scope(&self, scope: SkillScope) -> Self {
        Self {
            holder: scope.tenant().into(),
            scope,
            ..self.clone()
        }
    }

    /// Returns the skills for work on a tenant's workspaces: the same, whose blocking calls need the tenant's permits.
    pub fn working_for(&self, tenant: &str) -> Self {
        Self {
            holder: tenant.into(),
            ..self.clone()
        }
    }

    /// Keeps remote roots current until the daemon stops.
    pub fn start_fetching(&self) {
        self.library.sources.remote.start();
    }

    /// Returns a receiver that tells whether every root can be read.
    pub fn is_readable(&self) -> watch::Receiver<bool> {
        self.catalogue.is_readable.clone()
    }

    /// Returns the latest snapshot of the scope's skills; waits for the first scan.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn catalogue(&self) -> Result<Arc<Catalogue>> {
        self.view(&self.catalogue.snapshot().await?).await
    }

    /// Returns the part of a snapshot that the scope sees.
    async fn view(&self, catalogue: &Arc<Catalogue>) -> Result<Arc<Catalogue>> {
        if let Some(known) = Catalogue::known_view(catalogue, &self.scope) {
            return Ok(known);
        }
        let (catalogue, scope) = (Arc::clone(catalogue), self.scope.clone());
        let skills_max = self.library.options.skills_max;
        let make = move || Ok(make_view(&catalogue, &scope, skills_max));
        self.tasks.blocking(make).await
    }

    /// Looks for changes in all folders now, without asking servers.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn rescan(&self) -> Result<Arc<Catalogue>> {
        let catalogue = self.catalogue.rescan(ScanExtent::Changed).await?;
        self.view(&catalogue).await
    }

    /// Returns all skills and problems.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn list(&self) -> Result<Listing> {
        self.list_page(None, usize::MAX, ValidationProfile::Lenient)
            .await
    }

    /// Returns at most `limit` skills after a cursor, judged by a profile.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn list_page(
        &self,
        after: Option<PageCursor>,
        limit: usize,
        profile: ValidationProfile,
    ) -> Result<Listing> {
        let catalogue = self.catalogue().await?;
        Ok(Listing::new(&catalogue, after.as_ref(), limit, profile))
    }

    /// Returns the problems of all roots and skills, and of plugins whose shared files were refused when one of their
    /// skills was staged or read.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn problems(&self) -> Result<Vec<Problem>> {
        let catalogue = self.catalogue().await?;
        let mut problems: Vec<Problem> = catalogue.all_problems().cloned().collect();
        problems.extend(catalogue.problems_of_other_tenants());
        problems.extend(self.library.plugins.problems(&catalogue));
        Ok(problems)
    }

    /// Asks all servers, then reads every file of every root again. Returns when all servers have answered or failed,
    /// or at `by`: roots that are still being fetched are then among the problems.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn refresh(&self, by: Option<Instant>) -> Result<Listing> {
        let pending = self.library.sources.remote.refresh(by).await?;
        let catalogue = self.catalogue.rescan(ScanExtent::Everything).await?;
        let catalogue = self.view(&catalogue).await?;
        let mut listing = Listing::new(&catalogue, None, usize::MAX, ValidationProfile::Lenient);
        let is_listed = |problem: &Problem| {
            let mut problems = catalogue.problems.iter();
            problems.any(|other| (other.code, &other.subject) == (problem.code, &problem.subject))
        };
        // A root that was never fetched reports that itself. The URL of another tenant's root may be a secret.
        let is_seen = |problem: &Problem| self.scope.sees_root(&problem.subject);
        let mut new = pending;
        new.retain(|problem| is_seen(problem) && !is_listed(problem));
        listing.problems.extend(new);
        Ok(listing)
    }

    /// Returns one skill as a profile judges it, and the body of its SKILL.md; the body of a rejected skill is empty.
    ///
    /// # Errors
    /// `SkillNotFound`.
    pub async fn get(
        &self,
        wanted: SkillRef,
        profile: ValidationProfile,
    ) -> Result<(Skill, String)> {
        self.read(move |library, catalogue| library.get(catalogue, &wanted, profile))
            .await
    }

    /// Returns the best skills for a query, at most `limit`. `is_compat` scores as Agent Zero does; `is_for_model` leaves
    /// out skills that only a person may start.
    ///
    /// # Errors
    /// `Invalid` for a query without a word to look for.
    pub async fn search(
        &self,
        query: String,
        limit: usize,
        is_compat: bool,
        is_for_model: bool,
    ) -> Result<Vec<SearchMatch>> {
        self.read(move |_, catalogue| {
            let index = catalogue.index();
            index.find_matches(&query, limit, is_compat, is_for_model)
        })
        .await
    }

    /// Returns the files of a skill.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn list_files(&self, wanted: SkillRef) -> Result<Arc<Manifest>> {
        self.read(move |library, catalogue| library.list_files(catalogue, &wanted))
            .await
    }

    /// Opens a file of a skill; with `is_in_plugin` by its path in the skill's plugin, so also a file that the skill
    /// shares. With `is_workspace_text`, placeholders of the skill's folder in a text are replaced by its path in a
    /// workspace.
    ///
    /// # Errors
    /// As [`Self::list_files`] and [`Manifest::find`].
    pub async fn open_file(
        &self,
        wanted: SkillRef,
        path: String,
        is_in_plugin: bool,
        is_workspace_text: bool,
    ) -> Result<(SkillFile, FileContent)> {
        self.read(move |library, catalogue| {
            let path = match is_in_plugin {
                true => SkillFilePath::InPlugin(&path),
                false => SkillFilePath::InSkill(&path),
            };
            library.open_file(catalogue, &wanted, path, is_workspace_text)
        })
        .await
    }

    /// Returns a skill with its body and chosen documents, all of one digest. Paths and texts of the documents together
    /// have at most `bytes_max` bytes, unless the paths alone have more.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn read_material(
        &self,
        wanted: SkillRef,
        choice: DocumentChoice,
        bytes_max: usize,
    ) -> Result<SkillMaterial> {
        self.read(move |library, catalogue| {
            library.read_material(catalogue, &wanted, choice, bytes_max)
        })
        .await
    }

    /// Returns what a skill needs of an image.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn needs(&self, wanted: SkillRef) -> Result<Arc<Vec<Need>>> {
        self.read(move |library, catalogue| library.needs(catalogue, &wanted))
            .await
    }

    /// Makes an unnamed temporary file for the bytes of an archive.
    ///
    /// # Errors
    /// `Io`.
    pub async fn create_upload(&self) -> Result<File> {
        let tmp = self.library.store.tmp();
        let make = move || {
            tempfile::tempfile_in(&tmp)
                .map_err(Error::io(format!("make a file in {}", tmp.display())))
        };
        self.tasks.blocking(make).await
    }

    /// Publishes the skill of an archive, which must have this name. The same content again changes nothing. With a
    /// quota, the publications of the scope's tenant count at most that many bytes. After a failure the store may have
    /// content that [`Self::remove_orphans`] removes.
    ///
    /// # Errors
    /// `ArchiveInvalid`, `LimitExceeded`, `Invalid` for another name, `SkillInvalid`, `VersionTaken`, `TenantQuota`, `Io`.
    pub async fn publish(
        &self,
        name: String,
        file: File,
        kind: Option<ArchiveKind>,
        bytes_quota: Option<u64>,
    ) -> Result<Skill> {
        let library = Arc::clone(&self.library);
        let skills = self.catalogue().await?.skills.len();
        let tenant = self.scope.tenant().to_owned();
        let publish = move || library.publish((&tenant, bytes_quota), &name, file, kind, skills);
        // Without one of `permits`: it may wait for a server, or for its tenant's turn, and the caller bounds the number of
        // publications.
        let published = self.tasks.blocking(publish).await?;
        let catalogue = self.catalogue.rescan(ScanExtent::Published).await?;
        let catalogue = self.view(&catalogue).await?;
        // Only now may the digest be collected: it is referenced, or was deleted meanwhile.
        Ok(published.into_skill(&catalogue.skills))
    }

    /// Returns the bytes that count for a tenant's publications, also for deleted ones that the store still has. Content
    /// that several tenants published counts for each.
    pub fn published_bytes(&self, tenant: &str) -> u64 {
        self.library.sources.published_bytes(tenant)
    }

    /// Removes published versions of a name. Staged copies stay. [`Self::remove_orphans`] removes the files of the store.
    ///
    /// # Errors
    /// `SkillNotFound`; `SkillReadOnly` if only a configured root has the skill.
    pub async fn delete(&self, name: String, versions: VersionSelector) -> Result<()> {
        let library = Arc::clone(&self.library);
        let catalogue = self.catalogue().await?;
        let tenant = self.scope.tenant().to_owned();
        let delete = move || library.delete(&tenant, &catalogue.skills, &name, &versions);
        self.blocking(delete).await?;
        self.catalogue.rescan(ScanExtent::Published).await.map(drop)
    }

    /// Removes the files of deleted publications from the store, and those of publications that failed. `staged` are the
    /// digests that workspaces have: these stay, and count for the tenant that published them.
    ///
    /// # Errors
    /// `Io`.
    pub async fn remove_orphans(&self, staged: HashSet<String>) -> Result<usize> {
        let catalogue = self.catalogue().await?;
        let library = Arc::clone(&self.library);
        let remove = move || library.remove_orphans(&catalogue, &staged);
        self.blocking(remove).await
    }

    /// Removes unused digests from the store. `staged` are the digests that workspaces have.
    ///
    /// # Errors
    /// `Io`.
    pub async fn collect(&self, staged: HashSet<String>) -> Result<StoreCleanup> {
        let catalogue = self.catalogue().await?;
        let library = Arc::clone(&self.library);
        let collect = move || {
            let orphans = library.remove_orphans(&catalogue, &staged)?;
            let listed = catalogue
                .skills
                .iter()
                .map(|skill| skill.digest().to_owned());
            let referenced: HashSet<String> = staged.into_iter().chain(listed).collect();
            let is_pinned = |digest: &str| library.sources.references(digest);
            let keep = library.options.keep_unused;
            let mut collected = library.store.collect(keep, &referenced, is_pinned)?;
            collected.removed += orphans;
            tracing::debug!(?collected, "store collected");
            Ok(collected)
        };
        self.blocking(collect).await
    }

    /// Runs blocking work with one of the holder's permits.
    async fn blocking<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let (permits, holder) = (&self.permits, &self.holder);
        self.tasks.blocking_in(permits, holder, work).await
    }

    /// Runs blocking work on the latest snapshot. After a published skill was found damaged, the next listing says so.
    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&SkillLibrary, &Catalogue) -> Result<T> + Send + 'static,
    {
        let catalogue = self.catalogue().await?;
        let library = Arc::clone(&self.library);
        let work = move || work(&library, &catalogue);
        let done = self.blocking(work).await;
        if let Err(Error::SkillInvalid { problem, .. }) = &done
            && problem.starts_with(DAMAGED)
        {
            self.catalogue.rescan(ScanExtent::Published).await?;
        }
        done
    }
}

impl Listing {
    fn new(
        catalogue: &Catalogue,
        after: Option<&PageCursor>,
        limit: usize,
        profile: ValidationProfile,
    ) -> Self {
        let start = after.map_or(0, |after| catalogue.index_after(after));
        let page = catalogue.skills.iter().skip(start).take(limit);
        let skills = page.map(|skill| {
            let mut skill = Skill::clone(skill);
            if profile != ValidationProfile::Lenient {
                skill.judge(profile);
            }
            skill
        });
        Self {
            skills: skills.collect(),
            has_more: catalogue.skills.len() > start.saturating_add(limit),
            problems: match after {
                None => catalogue.problems.clone(),
                Some(_) => Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
