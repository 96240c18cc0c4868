//! [`Skills`]: every question about skills, answered from the catalogue's latest snapshot and the store.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::catalogue::catalogue_snapshot::Catalogue;
use crate::catalogue::catalogue_task::CatalogueHandle;
use crate::catalogue::plugin_library::PluginCache;
use crate::catalogue::preflight::Need;
use crate::catalogue::search::SearchMatch;
use crate::catalogue::skill::{PageCursor, Skill};
use crate::catalogue::skill_library::{SkillFilePath, SkillLibrary};
use crate::catalogue::source_scanner::ScanExtent;
use crate::content_store::digest_cache::{DigestCache, WEIGHT_BYTES};
use crate::content_store::skill_files::{FileContent, Manifest, SkillFile};
use crate::content_store::staged_skill::{self, StagedSkill, WritableStaging};
use crate::content_store::{ContentStore, DAMAGED, Lease, StoreCleanup};
use crate::environments::environment_record::PreparedEnvironment;
use crate::error::{Error, Result};
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::Problem;
use crate::parse::skill_ref::SkillRef;
use crate::skills_options::SkillsOptions;
use crate::sources::Sources;
use crate::sources::archive::ArchiveKind;
use crate::sources::published_skills::VersionSelector;
use crate::task_spawner::TaskSpawner;

/// Maximum number of blocking calls on skills at once. The store may be on a file system that hangs, and everything
/// else needs the other threads.
const BLOCKING_MAX: usize = 16;

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

/// Skills to stage, whose content stays in the store as long as this exists.
#[derive(Debug)]
pub struct LeasedSkills {
    skills: Vec<StagedSkill>,
    leases: Vec<Lease>,
}

impl LeasedSkills {
    /// Returns the skills as their staging will report them, in the order of the request.
    #[must_use]
    pub fn skills(&self) -> &[StagedSkill] {
        &self.skills
    }
}

/// The skills of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Skills {
    library: Arc<SkillLibrary>,
    catalogue: CatalogueHandle,
    permits: Arc<Semaphore>,
    tasks: TaskSpawner,
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
                store,
                sources,
                options: options.clone(),
                manifests: DigestCache::new(|manifest| manifest.files().len()),
                environment_needs: DigestCache::new(|need| need.size() / WEIGHT_BYTES),
                plugins: PluginCache::default(),
            }),
            catalogue,
            permits: Arc::new(Semaphore::new(BLOCKING_MAX)),
            tasks,
        })
    }

    /// Keeps remote roots current until the daemon stops.
    pub fn start_fetching(&self) {
        self.library.sources.remote.start();
    }

    /// Returns a receiver that tells whether every root can be read.
    #[must_use]
    pub fn is_readable(&self) -> watch::Receiver<bool> {
        self.catalogue.is_readable()
    }

    /// Returns the latest snapshot of all skills; waits for the first scan.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn catalogue(&self) -> Result<Arc<Catalogue>> {
        self.catalogue.snapshot().await
    }

    /// Looks for changes in all folders now, without asking servers.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn rescan(&self) -> Result<Arc<Catalogue>> {
        self.catalogue.rescan(ScanExtent::Changed).await
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
        let mut listing = Listing::new(&catalogue, None, usize::MAX, ValidationProfile::Lenient);
        let is_listed = |problem: &Problem| {
            let mut problems = catalogue.problems.iter();
            problems.any(|other| (other.code, &other.subject) == (problem.code, &problem.subject))
        };
        // A root that was never fetched reports that itself.
        let new = pending.into_iter().filter(|problem| !is_listed(problem));
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

    /// Returns the best skills for a query, at most `limit`. `is_compat` scores as Agent Zero does.
    ///
    /// # Errors
    /// `Invalid` for a query without a word to look for.
    pub async fn search(
        &self,
        query: String,
        limit: usize,
        is_compat: bool,
    ) -> Result<Vec<SearchMatch>> {
        self.read(move |_, catalogue| catalogue.search(&query, limit, is_compat))
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

    /// Returns what a skill needs of an image.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn needs(&self, wanted: SkillRef) -> Result<Vec<Need>> {
        self.read(move |library, catalogue| library.needs(catalogue, &wanted))
            .await
    }

    /// Makes sure that skills are in the store with everything that staging needs, and keeps them there.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn lease_to_stage(&self, wanted: Vec<SkillRef>) -> Result<LeasedSkills> {
        self.read(move |library, catalogue| {
            let leased = wanted
                .iter()
                .map(|wanted| library.lease_to_stage(catalogue, wanted));
            let (skills, leases): (Vec<_>, Vec<_>) =
                leased.collect::<Result<Vec<_>>>()?.into_iter().unzip();
            Ok(LeasedSkills {
                skills,
                leases: leases.into_iter().flatten().collect(),
            })
        })
        .await
    }

    /// Puts skills into `slots/<slot>/skills/`, all or none; answers in the order of the request. Commands that use an
    /// older version keep what they have open.
    ///
    /// # Errors
    /// `Invalid` for two versions of one skill; `Io`.
    pub async fn stage(
        &self,
        slot_skills_dir: &Path,
        leased: LeasedSkills,
    ) -> Result<Vec<StagedSkill>> {
        let (target, library) = (slot_skills_dir.to_owned(), Arc::clone(&self.library));
        let stage = move || {
            let LeasedSkills {
                skills,
                leases: _leases,
            } = leased;
            staged_skill::stage_skills(&library.store, &target, skills)
        };
        self.tasks.blocking_in(&self.permits, stage).await
    }

    /// Prepares writable copies of skills for a workspace, all or none; the guest has to get them before
    /// [`Self::publish_writable`]. `intact` has the workspace's writable copies that still exist: path → time of the
    /// latest modification.
    ///
    /// # Errors
    /// `Invalid` for two versions of one skill; `Io`.
    pub async fn prepare_writable(
        &self,
        slot_skills_dir: &Path,
        leased: LeasedSkills,
        intact: BTreeMap<String, SystemTime>,
    ) -> Result<WritableStaging> {
        let (target, library) = (slot_skills_dir.to_owned(), Arc::clone(&self.library));
        let prepare = move || {
            let LeasedSkills {
                skills,
                leases: _leases,
            } = leased;
            staged_skill::prepare_writable(&library.store, &target, skills, &intact)
        };
        self.tasks.blocking_in(&self.permits, prepare).await
    }

    /// Makes `slots/<slot>/skills/` lead to the writable copies that the guest has now, all or none.
    ///
    /// # Errors
    /// `Io`.
    pub async fn publish_writable(
        &self,
        slot_skills_dir: &Path,
        staging: WritableStaging,
    ) -> Result<Vec<StagedSkill>> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || staged_skill::publish_writable(&target, staging))
            .await
    }

    /// Makes Node.js packages available to the skills in `slots/<slot>/skills/` that are staged with these needs.
    /// `packages` has the digest of each need and the path of its packages in the container.
    ///
    /// # Errors
    /// `Io`.
    pub async fn link_node_packages(
        &self,
        slot_skills_dir: &Path,
        packages: Vec<(String, String)>,
    ) -> Result<()> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || staged_skill::link_node_packages(&target, &packages))
            .await
    }

    /// Returns a skill as staging it would report it, with the packages that it needs.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn environment_need(&self, wanted: SkillRef) -> Result<StagedSkill> {
        self.read(move |library, catalogue| library.environment_need(catalogue, &wanted))
            .await
    }

    /// Returns the names of the environments that a skill still needs for which they were prepared.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub async fn find_needed(&self, prepared: Vec<PreparedEnvironment>) -> Result<HashSet<String>> {
        self.read(move |library, catalogue| {
            let is_needed = |prepared: &&PreparedEnvironment| {
                let need = &prepared.key.need;
                let mut skills = prepared.skills.iter();
                skills.any(|skill| library.is_needed(catalogue, skill, need))
            };
            let needed = prepared.iter().filter(is_needed);
            Ok(needed.map(|prepared| prepared.name.clone()).collect())
        })
        .await
    }

    /// Returns `true` if replaced versions are left in `slots/<slot>/skills/`.
    ///
    /// # Errors
    /// `Internal` when the runtime is shutting down.
    pub async fn has_replaced(&self, slot_skills_dir: &Path) -> Result<bool> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || Ok(staged_skill::has_replaced(&target)))
            .await
    }

    /// Removes replaced versions that no command uses. `starts` are the start times of all commands that ran at
    /// `asked`;
    /// `None` when they are not known.
    ///
    /// # Errors
    /// `Io` when the slot is gone.
    pub async fn remove_replaced(
        &self,
        slot_skills_dir: &Path,
        asked: SystemTime,
        starts: Option<Vec<SystemTime>>,
    ) -> Result<()> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || staged_skill::remove_replaced(&target, asked, starts.as_deref()))
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

    /// Publishes the skill of an archive, which must have this name. The same content again changes nothing.
    ///
    /// # Errors
    /// `ArchiveInvalid`, `LimitExceeded`, `Invalid` for another name, `SkillInvalid`, `VersionTaken`, `Io`.
    pub async fn publish(
        &self,
        name: String,
        file: File,
        kind: Option<ArchiveKind>,
    ) -> Result<Skill> {
        let library = Arc::clone(&self.library);
        let skills = self.catalogue().await?.skills.len();
        let publish = move || library.publish(&name, file, kind, skills);
        let published = self.tasks.blocking_in(&self.permits, publish).await?;
        let catalogue = self.catalogue.rescan(ScanExtent::Published).await?;
        // Only now may the digest be collected: it is referenced, or was deleted meanwhile.
        Ok(published.into_skill(&catalogue.skills))
    }

    /// Removes published versions of a name. Staged copies stay, and files of the store stay until they are unused for
    /// `keep_unused`.
    ///
    /// # Errors
    /// `SkillNotFound`; `SkillReadOnly` if only a configured root has the skill.
    pub async fn delete(&self, name: String, versions: VersionSelector) -> Result<()> {
        let library = Arc::clone(&self.library);
        let catalogue = self.catalogue().await?;
        let delete = move || library.delete(&catalogue.skills, &name, &versions);
        self.tasks.blocking_in(&self.permits, delete).await?;
        self.catalogue.rescan(ScanExtent::Published).await.map(drop)
    }

    /// Removes unused digests from the store. `staged` are the digests that workspaces have.
    ///
    /// # Errors
    /// `Io`.
    pub async fn collect(&self, staged: HashSet<String>) -> Result<StoreCleanup> {
        let catalogue = self.catalogue().await?;
        let library = Arc::clone(&self.library);
        let collect = move || {
            let listed = catalogue
                .skills
                .iter()
                .map(|skill| skill.digest().to_owned());
            let referenced: HashSet<String> = staged.into_iter().chain(listed).collect();
            let is_pinned = |digest: &str| library.sources.references(digest);
            let keep = library.options.keep_unused;
            let collected = library.store.collect(keep, &referenced, is_pinned)?;
            tracing::debug!(?collected, "store collected");
            Ok(collected)
        };
        self.tasks.blocking_in(&self.permits, collect).await
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
        let done = self.tasks.blocking_in(&self.permits, work).await;
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
        let skills = catalogue.skills.iter().skip(start).take(limit);
        let skills = skills.map(|skill| {
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
