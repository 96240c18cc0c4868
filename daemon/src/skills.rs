//! Skills: where they come from, what they say about themselves, and how they get into a workspace.
//!
//! ```text
//! root directory ─ root.rs ─► catalogue: name → folder, front matter, problems
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

use crate::config::SkillsConfig;
use crate::error::{Error, Result};
use crate::shutdown::Tasks;

pub mod archive;
pub mod card;
mod content;
mod fingerprint;
pub mod front_matter;
mod root;
mod stage;
mod store;
pub mod version;

pub use card::Card;
pub use content::Content;
pub use front_matter::{FrontMatter, Requires};
use root::{Catalogue, Roots};
use store::Store;
pub use version::Specifier;

/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Names in an alias; no root is read deeper.
const ALIAS_NAMES_MAX: usize = 8;

/// How much a problem matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It works.
    Warning,
    /// It cannot be used.
    Error,
}

/// Something about a skill or a root that somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How much it matters.
    pub severity: Severity,
    /// Stable, for programs: for instance `skill.no_name`.
    pub code: &'static str,
    /// Folder of the skill, or the root.
    pub subject: String,
    /// What is wrong and what to do.
    pub message: String,
    /// First line of SKILL.md that it concerns; 0 if none.
    pub line: usize,
}

impl Problem {
    pub(crate) fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            code,
            subject: String::new(),
            message: message.into(),
            line: 0,
        }
    }

    pub(crate) fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            ..Self::warning(code, message)
        }
    }

    pub(crate) fn at(self, line: usize) -> Self {
        Self { line, ..self }
    }

    pub(crate) fn about(self, subject: &Path) -> Self {
        Self {
            subject: subject.display().to_string(),
            ..self
        }
    }
}

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
    /// The root that it came from, as configured.
    pub root: PathBuf,
    /// Its folder.
    pub dir: PathBuf,
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

/// How a request names a skill: `name`, `name@specifier` or `name@sha256:digest`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SkillRef {
    /// A name, or an alias: the names of a skill and of one within it, with `/` between them. Never a path.
    pub name: String,
    /// Which one of that name.
    pub select: Select,
}

/// Which version of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Select {
    /// The one that a name stands for.
    Current,
    /// The highest version that fits.
    Version(Specifier),
    /// The one with this digest, 64 hex digits; older ones are still in the store.
    Digest(String),
}

impl SkillRef {
    /// Reads a reference. `field` is named in the error.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        let (name, select) = text
            .split_once('@')
            .map_or((text, None), |(name, rest)| (name, Some(rest)));
        if !is_alias(name) {
            let message = "must be NAME, NAME@VERSION or NAME@sha256:DIGEST, the name of the form \
                           [A-Za-z0-9][A-Za-z0-9._-]{0,63}, or of two and more of these with / between them";
            return Err(Error::invalid(field, message));
        }
        let select = match select {
            None => Select::Current,
            Some("") => return Err(Error::invalid(field, "the version after @ is missing")),
            Some(select) => match select.strip_prefix("sha256:") {
                Some(digest) if is_digest(digest) => Select::Digest(digest.to_owned()),
                Some(_) => {
                    return Err(Error::invalid(
                        field,
                        "a digest has 64 lower-case hex digits",
                    ));
                }
                None => match Specifier::parse(select) {
                    Ok(specifier) if specifier.is_any() => Select::Current,
                    Ok(specifier) => Select::Version(specifier),
                    Err(error) => return Err(Error::invalid(field, error.to_string())),
                },
            },
        };
        Ok(Self {
            name: name.to_owned(),
            select,
        })
    }
}

impl std::fmt::Display for SkillRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.select {
            Select::Current => write!(f, "{}", self.name),
            Select::Version(version) => write!(f, "{}@{version}", self.name),
            Select::Digest(digest) => write!(f, "{}@sha256:{digest}", self.name),
        }
    }
}

/// Whether a name is one path segment `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(plain)
}

/// Whether it is a name, or names with `/` between them.
fn is_alias(alias: &str) -> bool {
    alias.split('/').count() <= ALIAS_NAMES_MAX && alias.split('/').all(is_name)
}

fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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
}

impl Inner {
    fn list(&self) -> Listing {
        let catalogue = self.roots.catalogue();
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
        let catalogue = self.roots.catalogue();
        let skill = self.with_content(find(&catalogue, wanted)?);
        if let (Select::Digest(digest), Some(content)) = (&wanted.select, &skill.content)
            && *digest != content.digest
        {
            return Err(not_found(&catalogue, wanted));
        }
        let body = self.roots.read(&skill.dir).map(|document| document.body);
        Ok((skill, body.unwrap_or_default()))
    }

    fn stage(&self, target: &Path, wanted: &[SkillRef]) -> Result<Vec<Staged>> {
        let catalogue = self.roots.catalogue();
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
        let document = self.roots.read(&dir).map_err(|_| missing())?;
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

/// The skill that a reference stands for; of a digest only the name is looked at.
fn find<'a>(catalogue: &'a Catalogue, wanted: &SkillRef) -> Result<&'a Skill> {
    let named = catalogue
        .skills
        .iter()
        .find(|skill| skill.name == wanted.name && skill.state != SkillState::Shadowed);
    named
        .filter(|skill| match &wanted.select {
            Select::Version(specifier) => specifier.accepts(&skill.front_matter.version),
            Select::Current | Select::Digest(_) => true,
        })
        .ok_or_else(|| not_found(catalogue, wanted))
}

fn not_found(catalogue: &Catalogue, wanted: &SkillRef) -> Error {
    let usable = catalogue
        .skills
        .iter()
        .filter(|skill| !matches!(skill.state, SkillState::Rejected | SkillState::Shadowed));
    let mut scored: Vec<(f64, String)> = usable
        .map(|skill| {
            if skill.name == wanted.name && !skill.front_matter.version.is_empty() {
                return (
                    2.0,
                    format!("{}@{}", skill.name, skill.front_matter.version),
                );
            }
            let (a, b) = (skill.name.to_lowercase(), wanted.name.to_lowercase());
            let contained = if a.contains(&b) || b.contains(&a) {
                0.5
            } else {
                0.0
            };
            (
                contained + strsim::normalized_damerau_levenshtein(&a, &b),
                skill.name.clone(),
            )
        })
        .filter(|(score, _)| *score >= 0.5)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    Error::SkillNotFound {
        name: wanted.to_string(),
        nearest: scored.into_iter().take(3).map(|(_, name)| name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read() {
        let digest = "0".repeat(64);
        let long = "n".repeat(64);
        let version = |name, text| {
            let specifier = Specifier::parse(text).expect("a specifier");
            Some((name, Select::Version(specifier)))
        };
        for (text, expected) in [
            ("csv-report", Some(("csv-report", Select::Current))),
            ("a@1.2.3+x", version("a", "1.2.3+x")),
            ("a@>=1.0, <2", version("a", ">=1.0, <2")),
            ("a@^1.2", version("a", "^1.2")),
            ("a@*", Some(("a", Select::Current))),
            ("a@latest", Some(("a", Select::Current))),
            ("a@^", None),
            ("a@ ", Some(("a", Select::Current))),
            ("a/b", Some(("a/b", Select::Current))),
            ("a/b@~=1.0", version("a/b", "~=1.0")),
            ("a/../b", None),
            ("a//b", None),
            ("/a", None),
            ("a/", None),
            ("a/a/a/a/a/a/a/a/a", None),
            (
                &format!("a@sha256:{digest}"),
                Some(("a", Select::Digest(digest.clone()))),
            ),
            (&long, Some((long.as_str(), Select::Current))),
            (&format!("{long}n"), None),
            ("", None),
            (".", None),
            ("..", None),
            ("a\0", None),
            ("-a", None),
            ("a+b", None),
            ("a@", None),
            ("a@1/2", None),
            ("a@sha256:abc", None),
            (&format!("a@sha256:{}", "G".repeat(64)), None),
        ] {
            let read = SkillRef::parse("skills[0]", text).ok();
            let expected = expected.map(|(name, select)| SkillRef {
                name: name.to_owned(),
                select,
            });
            assert_eq!(read, expected, "{text:?}");
        }
    }
}
