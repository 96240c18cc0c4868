//! Skills: where they come from, what they say about themselves, and how they get into a workspace.
//!
//! ```text
//! source.rs: directories, what was fetched, what was published
//!                 │
//!             root.rs ─► catalogue: name → folder, front matter, problems
//!                                 │ content.rs: digest over what is in the folder
//!                                 ▼
//!                 store.rs: skills/sha256/<digest>/, written once, never changed
//!                                 │ copies, never hard links
//!                                 ▼
//!                 stage.rs: slots/<slot>/skills/<name>/, which the container mounts read-only
//! ```
//!
//! Nothing here ever opens a path that a workspace can write. A skill that cannot be used is listed with its
//! reason. A change on disk is seen by the next call; what is cached is checked against the file system first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::config::{SkillRoot, SkillsConfig};
use crate::error::{Error, Result};
use crate::shutdown::Tasks;

pub mod archive;
pub mod card;
mod content;
pub mod document;
pub mod finding;
mod fingerprint;
pub mod front_matter;
mod problem;
mod reference;
mod resolve;
mod root;
mod source;
mod stage;
mod store;
pub mod version;

pub use card::Card;
pub use content::Content;
pub use document::Document;
pub use finding::Profile;
pub use front_matter::{FrontMatter, Requires};
pub use problem::{Problem, Severity};
pub use reference::{Select, SkillRef, is_name};
use resolve::{find, not_found};
pub use root::Catalogue;
use root::Roots;
use source::{Folders, Source};
use store::Store;
pub use version::Specifier;

/// Whether a skill can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkillState {
    /// Yes.
    Loaded,
    /// Yes; see its problems.
    LoadedWithWarnings,
    /// No; see its problems.
    Rejected,
    /// An earlier one has its name.
    Shadowed,
}

/// A skill as it is listed.
#[derive(Debug, Clone)]
pub struct Skill {
    /// From its front matter; of one that has none that can be used, its folder's name.
    pub name: String,
    /// Other names that it answers to: `parent/child` for a skill within a skill.
    pub aliases: Vec<String>,
    /// The root that it came from, as configured; empty for a published one.
    pub root: String,
    /// Its folder as it was found, the URL that it was fetched from, or empty for a published one.
    pub source: String,
    /// Its folder, without links on the way.
    pub dir: PathBuf,
    /// Folders within it, relative to it, that are skills themselves: no part of this one.
    pub nested: Vec<PathBuf>,
    /// Whether it can be used.
    pub state: SkillState,
    /// Default where it could not be read.
    pub front_matter: FrontMatter,
    /// `None` where it could not be read.
    pub content: Option<Content>,
    /// Why it is rejected or shadowed, and warnings.
    pub problems: Vec<Problem>,
    /// Change of its SKILL.md.
    pub update_time: Option<SystemTime>,
}

/// All skills.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Sorted by name; the one that a name stands for comes before those that it shadows.
    pub skills: Vec<Skill>,
    /// Of roots, and of folders that have no name to be listed under.
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
}

/// The skills of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Skills {
    inner: Arc<Inner>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Inner {
    configured: Vec<SkillRoot>,
    roots: Roots,
    store: Store,
}

impl Skills {
    /// Opens the store beneath `state_dir`. Roots are read when they are asked for; one that cannot be read is a
    /// problem in the listing, not a failure.
    ///
    /// # Errors
    /// When the store's directories cannot be made.
    pub fn open(config: &SkillsConfig, state_dir: &Path, tasks: Tasks) -> Result<Self> {
        let inner = Inner {
            configured: config.roots.clone(),
            roots: Roots::new(config),
            store: Store::open(&state_dir.join("skills"), config)?,
        };
        Ok(Self {
            inner: Arc::new(inner),
            tasks,
        })
    }

    /// Reads everything once in the background, so that problems are in the log from the start and the first
    /// request finds what it needs remembered.
    pub fn warm(&self) {
        let skills = self.clone();
        // Detached from here, owned by the tracker; reading is bounded, so it needs no token.
        drop(self.tasks.spawn(async move {
            match skills.list().await {
                Ok(listing) => tracing::info!(
                    skills = listing.skills.len(),
                    problems = listing.problems.len(),
                    "skills read"
                ),
                Err(error) => tracing::debug!(%error, "skills were not read"),
            }
        }));
    }

    /// All skills and problems, as they are on disk now.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn list(&self) -> Result<Listing> {
        let inner = Arc::clone(&self.inner);
        self.tasks.blocking(move || Ok(inner.list())).await
    }

    /// All skills as they are now, without what depends on all of their files. What is made from it is good as long as
    /// its generation is the newest one's.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn catalogue(&self) -> Result<Arc<Catalogue>> {
        let inner = Arc::clone(&self.inner);
        self.tasks.blocking(move || Ok(inner.catalogue())).await
    }

    /// The same skills with what depends on all of their files: digest and size, and whether they can be taken.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub async fn with_contents(&self, skills: Vec<Arc<Skill>>) -> Result<Vec<Skill>> {
        let inner = Arc::clone(&self.inner);
        let work = move || {
            let skills = skills.iter().map(|skill| inner.with_content(skill));
            Ok(skills.collect())
        };
        self.tasks.blocking(work).await
    }

    /// One skill and the body of its SKILL.md, which is empty for one that is rejected.
    ///
    /// # Errors
    /// `SkillNotFound`.
    pub async fn get(&self, skill: SkillRef) -> Result<(Skill, String)> {
        let inner = Arc::clone(&self.inner);
        self.tasks.blocking(move || inner.get(&skill)).await
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
        let inner = Arc::clone(&self.inner);
        let target = slot_skills_dir.to_owned();
        self.tasks
            .blocking(move || inner.stage(&target, &skills))
            .await
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
                folders: Folders::Beneath(path.clone()),
                problems: Vec::new(),
            },
            SkillRoot::Url { text, .. } => {
                let message = "this version fetches nothing from servers";
                let problem = Problem::error("root.unreadable", message);
                Source {
                    root: text.clone(),
                    origin: Some(text.clone()),
                    folders: Folders::Missing,
                    problems: vec![problem.about(Path::new(text))],
                }
            }
        });
        configured.collect()
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        self.roots.catalogue(&self.sources())
    }

    fn list(&self) -> Listing {
        let catalogue = self.catalogue();
        let skills = catalogue
            .skills
            .iter()
            .map(|skill| self.with_content(skill));
        Listing {
            skills: skills.collect(),
            problems: catalogue.problems.clone(),
        }
    }

    /// Adds what depends on all files of the skill, and rejects it if they cannot be taken.
    fn with_content(&self, skill: &Skill) -> Skill {
        let mut skill = skill.clone();
        if skill.state == SkillState::Rejected {
            return skill;
        }
        match self.store.inspect(&skill.dir) {
            Ok(content) => {
                skill.problems.extend(content.warnings(&skill.dir));
                skill.content = Some(content);
                if skill.state == SkillState::Loaded && !skill.problems.is_empty() {
                    skill.state = SkillState::LoadedWithWarnings;
                }
            }
            Err(problem) => {
                skill.problems.insert(0, problem);
                skill.state = SkillState::Rejected;
            }
        }
        skill
    }

    fn get(&self, wanted: &SkillRef) -> Result<(Skill, String)> {
        let catalogue = self.catalogue();
        let skill = self.with_content(find(&catalogue, wanted)?);
        if let (Select::Digest(digest), Some(content)) = (&wanted.select, &skill.content)
            && *digest != content.digest
        {
            return Err(not_found(&catalogue, wanted));
        }
        let document = self.roots.read(&skill.dir, "");
        let usable = skill.state != SkillState::Rejected;
        let body = document
            .ok()
            .filter(|_| usable)
            .map(|document| document.body);
        Ok((skill, body.unwrap_or_default()))
    }

    fn stage(&self, target: &Path, wanted: &[SkillRef]) -> Result<Vec<Staged>> {
        let catalogue = self.catalogue();
        let stored = wanted.iter().map(|wanted| self.stored(&catalogue, wanted));
        let stored = stored.collect::<Result<Vec<_>>>()?;
        stage::publish(&self.store, target, stored)
    }

    /// Makes sure that a skill is in the store.
    fn stored(&self, catalogue: &Catalogue, wanted: &SkillRef) -> Result<Staged> {
        let skill = match (find(catalogue, wanted), &wanted.select) {
            (Ok(skill), Select::Digest(digest)) if skill.state != SkillState::Rejected => {
                let current = self.store.inspect(&skill.dir);
                if current.is_ok_and(|content| content.digest == *digest) {
                    skill
                } else {
                    return self.stored_before(wanted, digest, catalogue);
                }
            }
            (Err(_), Select::Digest(digest)) => {
                return self.stored_before(wanted, digest, catalogue);
            }
            (found, _) => found?,
        };
        let invalid = |problem: &Problem| Error::SkillInvalid {
            name: wanted.to_string(),
            problem: format!("{}: {}", problem.code, problem.message),
        };
        let error = skill
            .problems
            .iter()
            .find(|problem| problem.severity == Severity::Error);
        if let (SkillState::Rejected, Some(problem)) = (skill.state, error) {
            return Err(invalid(problem));
        }
        let content = self
            .store
            .take(&skill.dir)?
            .map_err(|problem| invalid(&problem))?;
        Ok(Staged {
            name: skill.name.clone(),
            version: skill.front_matter.version.clone(),
            digest: content.digest,
            files: content.files,
            bytes: content.bytes,
            unchanged: false,
        })
    }

    /// A version that is no longer in a root, from the store.
    fn stored_before(
        &self,
        wanted: &SkillRef,
        digest: &str,
        catalogue: &Catalogue,
    ) -> Result<Staged> {
        let missing = || not_found(catalogue, wanted);
        let dir = self.store.dir(digest);
        let document = self.roots.read(&dir, &wanted.name).map_err(|_| missing())?;
        if document.front_matter.name != wanted.name {
            return Err(missing());
        }
        let content = self.store.inspect(&dir).map_err(|_| missing())?;
        Ok(Staged {
            name: wanted.name.clone(),
            version: document.front_matter.version,
            digest: digest.to_owned(),
            files: content.files,
            bytes: content.bytes,
            unchanged: false,
        })
    }
}
