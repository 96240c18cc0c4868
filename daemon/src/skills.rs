//! Skills: where they come from, what they say about themselves, and how they get into a workspace.
//!
//! ```text
//! source.rs: directories, what was fetched, what was published
//!                 │
//!             catalogue.rs: all skills as they are now, made from discovery.rs and documents.rs
//!                                 │ content.rs: digest over what is in the folder
//!                                 ▼
//!                 store.rs: skills/sha256/<digest>/, written once, never changed
//!                                 │ copies, never hard links
//!                                 ▼
//!                 stage.rs: slots/<slot>/skills/<name>/, which the container mounts read-only
//! ```
//!
//! Nothing here ever opens a path that a workspace can write. A skill that cannot be used is listed with its
//! reason. A change on disk is seen by the next call: the kernel tells of it (watch.rs), or what is remembered is
//! checked against the file system first.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Semaphore, watch as watch_channel};

use crate::config::{SkillRoot, SkillsConfig};
use crate::error::Result;
use crate::shutdown::Tasks;

pub mod archive;
pub mod card;
mod catalogue;
mod content;
mod contents;
mod discovery;
pub mod document;
mod documents;
pub mod files;
pub mod finding;
mod fingerprint;
pub mod front_matter;
mod lookup;
pub mod preflight;
mod problem;
mod publish;
mod published;
mod reading;
mod reference;
mod remote;
mod resolve;
pub mod search;
mod skill;
mod source;
mod stage;
mod store;
pub mod version;
mod watch;

pub use card::Card;
pub use catalogue::Catalogue;
use catalogue::Roots;
pub use content::Content;
pub use document::Document;
pub use finding::Profile;
pub use front_matter::{FrontMatter, Requires};
pub use problem::{Problem, Severity};
use published::Published;
pub use published::Which;
pub use reading::Match;
pub use reference::{Select, SkillRef, is_digest, is_name};
use remote::Remote;
pub use skill::{Place, Skill, SkillState};
use source::{Folders, Source};
pub use store::Collected;
use store::{Lease, Store};
pub use version::Specifier;
use watch::Watcher;

/// Between two looks for changes that nobody asked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// A pause is so many times as long as the look before it.
const LOOK_SHARE: u32 = 50;
/// Looks at what there is, and readings or copies of whole skills, at once. Roots may be on file systems that hang, and
/// threads that wait for one of them are those that everything else needs.
const LOOKS_MAX: usize = 16;
const COPIES_MAX: usize = 16;

/// All skills.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Sorted by name; the one that a name stands for comes before those that it shadows.
    pub skills: Vec<Skill>,
    /// Of roots, and of folders that have no name to be listed under.
    pub problems: Vec<Problem>,
}

/// Some of all skills, in order.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// With contents.
    pub skills: Vec<Skill>,
    /// Others come after them.
    pub more: bool,
    /// Of the first page only: those that belong to no skill.
    pub problems: Vec<Problem>,
}

/// A skill that is in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// Its folder beneath skills/.
    pub name: String,
    /// 64 hex digits.
    pub digest: String,
    /// From its front matter; may be empty.
    pub version: String,
    /// Regular files and links, without the four links that staging adds.
    pub files: u64,
    /// Of its files.
    pub bytes: u64,
    /// It was there already, with this digest.
    pub unchanged: bool,
    /// Those of the four links whose names the skill has itself.
    pub own_links: Vec<&'static str>,
}

/// The skills of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Skills {
    inner: Arc<Inner>,
    looks: Arc<Semaphore>,
    copies: Arc<Semaphore>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Inner {
    configured: Vec<SkillRoot>,
    skill_md_bytes_max: u64,
    remote: Remote,
    roots: Roots,
    store: Store,
    published: Published,
    /// Of one published archive.
    archives: archive::Bounds,
    keep_unused: Duration,
    skills_max: usize,
    manifests: files::Manifests,
    needs: preflight::Known,
    searcher: reading::Searcher,
}

impl Skills {
    /// Opens the store beneath `state_dir`. Roots are read when they are asked for; one that cannot be read is a
    /// problem in the listing, not a failure.
    ///
    /// # Errors
    /// When the store's directories cannot be made.
    pub fn open(config: &SkillsConfig, state_dir: &Path, tasks: Tasks) -> Result<Self> {
        let watcher = Arc::new(Watcher::new(config.watches_max));
        let base = state_dir.join("skills");
        let roots = Roots::new(config, Arc::clone(&watcher));
        let store = Store::open(&base, config, watcher)?;
        let (records, digests) = (base.join("published"), store.digests_dir());
        let inner = Inner {
            configured: config.roots.clone(),
            remote: Remote::open(config, tasks.clone()),
            skill_md_bytes_max: config.skill_md_bytes_max,
            roots,
            published: Published::open(&records, store.tmp(), &digests)?,
            store,
            archives: publish::bounds(config),
            keep_unused: config.keep_unused,
            skills_max: config.skills_max,
            manifests: files::Manifests::default(),
            needs: preflight::Known::default(),
            searcher: reading::Searcher::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            looks: Arc::new(Semaphore::new(LOOKS_MAX)),
            copies: Arc::new(Semaphore::new(COPIES_MAX)),
            tasks,
        })
    }

    /// Looks at what there is, off the runtime's threads.
    async fn look<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner) -> Result<T> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let work = move || work(&inner);
        self.tasks.blocking_in(&self.looks, work).await
    }

    /// The same for what may read or copy all of a skill.
    async fn copy<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner) -> Result<T> + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let work = move || work(&inner);
        self.tasks.blocking_in(&self.copies, work).await
    }

    /// Reads everything in the background, so that problems are in the log from the start and the first request finds
    /// what it needs remembered; then looks for changes now and then, for health and for the kernel, which keeps
    /// only so many of them.
    pub fn warm(&self) {
        self.inner.remote.start();
        let (skills, stop) = (self.clone(), self.tasks.stop.clone());
        // Detached from here, owned by the tracker.
        drop(self.tasks.spawn(async move {
            match skills.problems().await {
                Ok(problems) => tracing::info!(problems = problems.len(), "skills read"),
                Err(error) => tracing::debug!(%error, "skills were not read"),
            }
            let mut pause = LOOK_INTERVAL;
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                let started = Instant::now();
                if skills.catalogue().await.is_err() {
                    return;
                }
                // Where nothing is watched a look costs something.
                pause = LOOK_INTERVAL.max(started.elapsed() * LOOK_SHARE);
            }
        }));
    }

    /// Whether every root can be read, whenever that changes.
    #[must_use]
    pub fn readable(&self) -> watch_channel::Receiver<bool> {
        self.inner.roots.readable()
    }

    /// All skills and problems, as they are on disk now.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn list(&self) -> Result<Listing> {
        self.look(|inner| Ok(inner.list())).await
    }

    /// At most `limit` of the skills that come after a place, with their contents, as a profile sees them.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn page(&self, after: Option<Place>, limit: usize, profile: Profile) -> Result<Page> {
        self.look(move |inner| Ok(inner.page(after.as_ref(), limit, profile)))
            .await
    }

    /// All problems of roots and skills.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn problems(&self) -> Result<Vec<Problem>> {
        self.look(|inner| Ok(inner.problems())).await
    }

    /// Reads all roots again, whatever is remembered of them. Servers of remote ones are asked first; it is over when
    /// all have answered or failed, or `by`: then those that go on being fetched are among the problems.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn refresh(&self, by: Option<tokio::time::Instant>) -> Result<Listing> {
        let pending = self.inner.remote.refresh(by).await?;
        let work = move |inner: &Inner| {
            inner.roots.forget(inner.store.contents());
            let mut listing = inner.list();
            // One that never was there says so itself.
            let said = |problem: &Problem| {
                let mut problems = listing.problems.iter();
                problems
                    .any(|other| (other.code, &other.subject) == (problem.code, &problem.subject))
            };
            let new: Vec<_> = pending.into_iter().filter(|it| !said(it)).collect();
            listing.problems.extend(new);
            Ok(listing)
        };
        self.look(work).await
    }

    /// All skills as they are now, without what depends on all of their files. What is made from it is good as long as
    /// its generation is the newest one's.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn catalogue(&self) -> Result<Arc<Catalogue>> {
        self.look(|inner| Ok(inner.catalogue())).await
    }

    /// The same skills with what depends on all of their files: digest and size, and whether they can be taken.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn with_contents(&self, skills: Vec<Arc<Skill>>) -> Result<Vec<Skill>> {
        let work = move |inner: &Inner| {
            let skills = skills.iter().map(|skill| inner.with_content(skill));
            Ok(skills.collect())
        };
        self.look(work).await
    }

    /// One skill as a profile sees it, and the body of its SKILL.md, which is empty where the
    /// skill is rejected by default.
    ///
    /// # Errors
    /// `SkillNotFound`.
    pub async fn get(&self, skill: SkillRef, profile: Profile) -> Result<(Skill, String)> {
        self.look(move |inner| inner.get(&skill, profile)).await
    }

    /// Puts skills into `slots/<slot>/skills/`, all or none; answers in the order asked for. Commands that use an
    /// older version keep what they have open.
    ///
    /// # Errors
    /// `SkillNotFound`, `SkillInvalid`, `Io`.
    pub async fn stage(
        &self,
        slot_skills_dir: &Path,
        skills: Vec<SkillRef>,
    ) -> Result<Vec<Staged>> {
        let target = slot_skills_dir.to_owned();
        self.copy(move |inner| inner.stage(&target, &skills)).await
    }

    /// Whether versions that were replaced are still in `slots/<slot>/skills/`.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn has_replaced(&self, slot_skills_dir: &Path) -> Result<bool> {
        let target = slot_skills_dir.to_owned();
        self.tasks.blocking(move || Ok(stage::any(&target))).await
    }

    /// Removes replaced versions that no command uses. `starts` are of all commands that ran at `asked`; `None` when
    /// that is not known.
    ///
    /// # Errors
    /// When the slot is gone.
    pub async fn sweep(
        &self,
        slot_skills_dir: &Path,
        asked: SystemTime,
        starts: Option<Vec<SystemTime>>,
    ) -> Result<()> {
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || stage::sweep(&target, asked, starts.as_deref()))
            .await
    }
}

impl Inner {
    /// Where skills come from now, in the order in which they win.
    fn sources(&self) -> Vec<Source> {
        let configured = self.configured.iter().map(|root| match root {
            SkillRoot::Dir { text, path } => Source {
                root: text.clone(),
                origin: None,
                from_card: false,
                folders: Folders::Beneath(path.clone()),
                problems: Vec::new(),
            },
            SkillRoot::Url { text, url } => self.remote.source(text, url),
        });
        configured.chain([self.published.source()]).collect()
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        self.roots.catalogue(&self.sources(), self.store.contents())
    }

    fn list(&self) -> Listing {
        let catalogue = self.catalogue();
        let skills = catalogue.skills.iter();
        Listing {
            skills: skills.map(|skill| self.with_content(skill)).collect(),
            problems: catalogue.problems.clone(),
        }
    }

    fn page(&self, after: Option<&Place>, limit: usize, profile: Profile) -> Page {
        let catalogue = self.catalogue();
        let start = after.map_or(0, |after| catalogue.start_after(after));
        let skills = catalogue.skills.iter().skip(start).take(limit);
        let skills = skills.map(|skill| {
            let mut skill = self.with_content(skill);
            if profile != Profile::Lenient {
                skill.judge(profile);
            }
            skill
        });
        Page {
            skills: skills.collect(),
            more: catalogue.skills.len() > start.saturating_add(limit),
            problems: match after {
                None => catalogue.problems.clone(),
                Some(_) => Vec::new(),
            },
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let catalogue = self.catalogue();
        let mut problems = catalogue.problems.clone();
        for skill in &catalogue.skills {
            problems.extend(self.of_content(skill).1);
            problems.extend(skill.problems.iter().cloned());
        }
        problems
    }

    /// What depends on all files of a skill, and the problems with them.
    fn of_content(&self, skill: &Skill) -> (Option<Content>, Vec<Problem>) {
        if skill.state == SkillState::Rejected {
            return (None, Vec::new());
        }
        match self.store.inspect(&self.roots.folder(skill)) {
            Ok(content) => {
                let warnings = content.warnings(&skill.found_at).collect();
                (Some(content), warnings)
            }
            Err(problem) => (None, vec![problem.about(&skill.found_at)]),
        }
    }

    /// Adds what depends on all files of the skill, and rejects it if they cannot be taken.
    fn with_content(&self, skill: &Skill) -> Skill {
        let (content, problems) = self.of_content(skill);
        let mut skill = skill.clone();
        skill.content = content;
        if !problems.is_empty() {
            skill.others.extend(problems);
            skill.judge(Profile::Lenient);
        }
        skill
    }

    fn stage(&self, target: &Path, wanted: &[SkillRef]) -> Result<Vec<Staged>> {
        let catalogue = self.catalogue();
        let stored = wanted.iter().map(|wanted| self.stored(&catalogue, wanted));
        // The leases last until everything is copied.
        let (staged, leases): (Vec<Staged>, Vec<Lease>) =
            stored.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let published = stage::publish(&self.store, target, staged);
        drop(leases);
        published
    }
}

#[cfg(test)]
mod tests;
