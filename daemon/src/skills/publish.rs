//! Publishing: an archive becomes a skill of the store with a record in `published.rs`, and back.
//!
//! ```text
//! bytes ─► file without a name ─► tmp/…, unpacked ─► store, leased ─► record: published ─► lease let go
//! ```
//!
//! Whatever is interrupted before the record leaves files in `tmp/`, which a start empties, or a digest that nothing
//! refers to, which `store/gc.rs` removes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archive::{self, Bounds, Kind, unpack};
use super::content::{Content, Folder};
use super::documents::Documents;
use super::published::Which;
use super::store::Collected;
use super::{Document, Inner, Problem, Profile, Skill, SkillState, Skills};
use crate::config::SkillsConfig;
use crate::error::{Error, Result};
use crate::fault::{self, Point};

/// Names in a path of an archive: the directories that a skill may have, a file, and a folder around it all.
const DEPTH_MAX: usize = 34;
/// Unpacked bytes for each packed one: text and tables reach 20 to 50.
const RATIO_MAX: u64 = 200;
/// Documents that are named when none is at the top.
const SHOWN_MAX: usize = 3;
/// Folders deep that they are looked for.
const SHOWN_DEPTH_MAX: usize = 4;
/// What makes a folder a skill.
const DOCUMENTS: [&str; 2] = ["SKILL.md", "skill-card.json"];

/// What the archive of one skill may hold.
pub(super) fn bounds(config: &SkillsConfig) -> Bounds {
    Bounds {
        bytes: config.bytes_max,
        file_bytes: config.bytes_max,
        // Directories come on top of files.
        entries: config.files_max.saturating_mul(2),
        depth: DEPTH_MAX,
        ratio: RATIO_MAX,
    }
}

impl Skills {
    /// A file for the bytes of an archive. It has no name, so nothing of it is left whatever happens.
    ///
    /// # Errors
    /// `Io`.
    pub async fn upload(&self) -> Result<File> {
        let tmp = self.inner.store.tmp();
        let make = move || {
            tempfile::tempfile_in(&tmp).map_err(|source| Error::Io {
                operation: format!("make a file in {}", tmp.display()),
                source,
            })
        };
        self.tasks.blocking(make).await
    }

    /// Publishes the skill of an archive under the name that it must have. The same content again changes nothing.
    ///
    /// # Errors
    /// `ArchiveInvalid`, `LimitExceeded`, `Invalid` for another name, `SkillInvalid`, `VersionTaken`, `Io`.
    pub async fn publish(&self, name: String, file: File, kind: Option<Kind>) -> Result<Skill> {
        self.copy(move |inner| inner.publish(&name, file, kind))
            .await
    }

    /// Removes published versions of a name. What is staged stays, and so do files of the store until they are unused
    /// for a while.
    ///
    /// # Errors
    /// `SkillNotFound`; `SkillReadOnly` if only a configured root has it.
    pub async fn delete(&self, name: String, which: Which) -> Result<()> {
        self.look(move |inner| inner.delete(&name, &which)).await
    }

    /// Removes what nothing uses from the store. `staged` are digests that workspaces have.
    ///
    /// # Errors
    /// `Io`.
    pub async fn collect(&self, staged: HashSet<String>) -> Result<Collected> {
        self.copy(move |inner| inner.collect(staged)).await
    }
}

impl Inner {
    fn publish(&self, name: &str, mut file: File, kind: Option<Kind>) -> Result<Skill> {
        let place = tempfile::tempdir_in(self.store.tmp()).map_err(|source| Error::Io {
            operation: "make a directory for an archive".to_owned(),
            source,
        })?;
        let unpacked = unpack(&mut file, kind, &place.path().join("skill"), &self.archives)?;
        drop(file);
        fault::reach(Point::PublishUnpacked);
        let invalid = |problems: &[Problem]| Error::SkillInvalid {
            name: name.to_owned(),
            problem: problems_of_archive(problems, &unpacked.root),
        };
        has_document(&unpacked.root)?;
        // A skill that says no name has the one that it is published under.
        let folder = Folder::stored(&unpacked.root);
        let (bytes_max, trust) = (self.skill_md_bytes_max, &folder.trust);
        let document = Documents::read(bytes_max, &folder.dir, trust, name);
        let document = document.map_err(|problem| invalid(&[problem]))?;
        let problems = document.problems(Profile::Lenient).into_iter();
        let errors: Vec<_> = problems.filter(Problem::is_error).collect();
        if !errors.is_empty() {
            return Err(invalid(&errors));
        }
        if document.front_matter.name != name {
            let named = &document.front_matter.name;
            let message = format!("the skill in the archive is named {named}");
            return Err(Error::invalid("name", message));
        }
        let taken = self.store.take(&folder, name)?;
        self.store.contents().forget_beneath(&folder.dir);
        let (content, lease) = taken.map_err(|problem| invalid(&[problem]))?;
        self.store.sync(&content.digest)?;
        fault::reach(Point::PublishStored);
        let (digest, version) = (&content.digest, &document.front_matter.version);
        let catalogue = self.catalogue();
        if catalogue.skills.len() >= self.skills_max && !self.published.has(name, digest) {
            return Err(Error::LimitExceeded {
                what: "skills in all (skills.count_max)".to_owned(),
                limit: self.skills_max as u64,
            });
        }
        let store = self.store.digests_dir();
        if self.published.add(&store, name, version, digest)? {
            tracing::info!(skill = name, version, digest, "skill published");
        }
        let answer = self.answer(name, content, document);
        // Only now may it be collected: it is referred to, or was deleted meanwhile.
        drop(lease);
        Ok(answer)
    }

    /// What was published, as it is listed, whoever deletes it at the same moment: what the publish itself read says so,
    /// and nothing is read again. Its digest is leased.
    fn answer(&self, name: &str, content: Content, document: Document) -> Skill {
        let dir = self.store.dir(&content.digest);
        let listed = || {
            let catalogue = self.catalogue();
            let mut skills = catalogue.skills.iter();
            let listed = skills.find(|skill| skill.dir == dir && skill.name == name);
            listed.map(|skill| Skill::clone(skill))
        };
        let broken = |skill: &Skill| skill.state == SkillState::Rejected;
        let mut found = listed();
        if found.as_ref().is_some_and(broken) {
            // It was looked at before its files were there again.
            self.roots.forget(self.store.contents());
            found = listed();
        }
        let deleted = || Skill {
            name: name.to_owned(),
            found_at: dir.clone(),
            dir: dir.clone(),
            fixed: true,
            front_matter: Arc::new(document.front_matter),
            findings: document.findings,
            ..Skill::default()
        };
        let mut skill = found.unwrap_or_else(deleted);
        skill.others.extend(content.warnings(&skill.found_at));
        skill.content = Some(content);
        skill.judge(Profile::Lenient);
        skill
    }

    fn delete(&self, name: &str, which: &Which) -> Result<()> {
        let removed = self
            .published
            .remove(&self.store.digests_dir(), name, which)?;
        if removed > 0 {
            tracing::info!(skill = name, ?which, removed, "published skill deleted");
            return Ok(());
        }
        let catalogue = self.catalogue();
        let of_root = catalogue.skills.iter().find(|skill| {
            skill.name == name
                && !skill.root.is_empty()
                && match which {
                    Which::All => true,
                    Which::Version(version) => skill.front_matter.version == *version,
                    Which::Digest(digest) => self
                        .store
                        .inspect(&self.roots.folder(skill))
                        .is_ok_and(|content| content.digest == *digest),
                }
        });
        let asked = match which {
            Which::All => name.to_owned(),
            Which::Version(version) => format!("{name}@{version}"),
            Which::Digest(digest) => format!("{name}@sha256:{digest}"),
        };
        Err(match of_root {
            Some(skill) => Error::SkillReadOnly {
                name: asked,
                root: skill.root.clone(),
            },
            None => Error::SkillNotFound {
                name: asked,
                nearest: self.published.versions(name),
            },
        })
    }

    fn collect(&self, staged: HashSet<String>) -> Result<Collected> {
        let referenced = || {
            let catalogue = self.catalogue();
            let usable = catalogue
                .skills
                .iter()
                .filter(|skill| skill.state != SkillState::Rejected);
            let contents =
                usable.filter_map(|skill| self.store.inspect(&self.roots.folder(skill)).ok());
            let mut digests = staged;
            digests.extend(contents.map(|content| content.digest));
            digests
        };
        let published = |digest: &str| self.published.holds(digest);
        let collected = self
            .store
            .collect(self.keep_unused, referenced, published)?;
        tracing::debug!(?collected, "store collected");
        Ok(collected)
    }
}

/// All that is wrong, with the lines of its document. A folder of an archive has no name that anybody knows.
fn problems_of_archive(problems: &[Problem], root: &Path) -> String {
    let texts = problems.iter().map(|problem| match problem.line {
        0 => format!("{}: {}", problem.code, problem.message),
        line => format!("{} (line {line}): {}", problem.code, problem.message),
    });
    let text = texts.collect::<Vec<_>>().join("; ");
    text.replace(&root.display().to_string(), "the archive")
}

/// An archive has its skill at its top.
fn has_document(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    documents(root, Path::new(""), 0, &mut found);
    if found
        .iter()
        .any(|path| path.parent() == Some(Path::new("")))
    {
        return Ok(());
    }
    found.sort_unstable();
    let mut problem = "has no SKILL.md at its top".to_owned();
    for path in found.iter().take(SHOWN_MAX) {
        problem.push_str(&format!("; there is {}", path.display()));
    }
    if !found.is_empty() {
        problem.push_str(": publish each of these folders by itself");
    }
    Err(archive::Refused::whole(problem).into())
}

fn documents(root: &Path, at: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    // What cannot be read is no document; the reader of the skill says why.
    for entry in fs::read_dir(root.join(at)).into_iter().flatten().flatten() {
        let path = at.join(entry.file_name());
        let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if directory && depth < SHOWN_DEPTH_MAX {
            documents(root, &path, depth + 1, found);
        } else if !directory
            && DOCUMENTS
                .iter()
                .any(|name| entry.file_name().eq_ignore_ascii_case(name))
        {
            found.push(path);
        }
    }
}
