//! Publishing: puts the skill of an archive into the store and records it, and deletes such records.
//!
//! ```text
//! bytes ─► unnamed file ─► tmp/…, unpacked ─► store, leased ─► record: published ─► lease released
//! ```
//!
//! An interruption before the record leaves files in `tmp/`, which the next start empties, or an unreferenced digest,
//! which `content_store/store_cleanup.rs` removes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::document_reader::{read_stored_documents, read_stored_skill};
use super::skill::{Skill, SkillState};
use super::skill_library::SkillLibrary;
use crate::content_store::Lease;
use crate::content_store::content_hashing::{ContentSource, IngestError, read_content};
use crate::error::{Error, Result};
use crate::fault::{self, Point};
use crate::parse::finding::ValidationProfile;
use crate::parse::front_matter::FrontMatter;
use crate::parse::problem::Problem;
use crate::skills_options::{ArchiveBounds, SkillsOptions};
use crate::sources::archive::{ArchiveKind, archive_error, unpack_archive};
use crate::sources::published_skills::VersionSelector;

/// Maximum number of names in a path of an archive: the directories that a skill may have, a file, and a folder around
/// it all.
const DEPTH_MAX: usize = 34;
/// Maximum number of unpacked bytes for each packed one: text and tables reach 20 to 50.
const RATIO_MAX: u64 = 200;
/// Maximum number of documents that an error names when none is at the top.
const SHOWN_MAX: usize = 3;
/// Maximum depth of folders in which they are looked for.
const SHOWN_DEPTH_MAX: usize = 4;
/// File names that make a folder a skill.
const DOCUMENTS: [&str; 2] = ["SKILL.md", "skill-card.json"];

/// A skill that was just published. Its lease keeps the content in the store.
#[derive(Debug)]
pub(crate) struct PublishedSkill {
    /// The skill as read from the store.
    skill: Skill,
    _lease: Lease,
}

impl SkillLibrary {
    /// Unpacks an archive and publishes its skill for a tenant, within its quota of bytes; it must have this name.
    /// `listed` is the number of skills that are listed already.
    ///
    /// # Errors
    /// `ArchiveInvalid`, `LimitExceeded`, `Invalid` for another name, `SkillInvalid`, `VersionTaken`, `PublishedQuota`,
    /// `Io`.
    pub(crate) fn publish(
        &self,
        (tenant, bytes_quota): (&str, Option<u64>),
        name: &str,
        mut file: File,
        kind: Option<ArchiveKind>,
        listed: usize,
    ) -> Result<PublishedSkill> {
        let temporary = tempfile::tempdir_in(self.store.tmp())
            .map_err(Error::io("make a directory for an archive"))?;
        let into = temporary.path().join("skill");
        let unpacked = unpack_archive(&mut file, kind, &into, &archive_bounds(&self.options))?;
        unpacked.check_case()?;
        drop(file);
        fault::reach(Point::PublishUnpacked);
        let version = self.check_document(name, &unpacked.root)?.version;
        let folder = ContentSource::stored(&unpacked.root);
        let published = self.sources.published_by(tenant)?;
        if bytes_quota.is_some()
            && let Ok(content) = read_content(&folder, None, self.store.bounds)
        {
            // What will be refused is not copied into the store, where it would stay for a while.
            published.check_room(name, &version, &content, bytes_quota)?;
        }
        let (content, lease) = self
            .store
            .copy(&folder, name)
            .map_err(|error| match error {
                IngestError::Skill(problem) => invalid_archive(name, &[problem], &unpacked.root),
                IngestError::Host(error) => error,
            })?;
        self.store.sync(&content.digest)?;
        fault::reach(Point::PublishStored);
        let digest = &content.digest;
        if listed >= self.options.skills_max && !published.has_digest(name, digest) {
            return Err(Error::LimitExceeded {
                what: "skills in all (skills.count_max)".to_owned(),
                limit: self.options.skills_max as u64,
            });
        }
        if published.add(name, &version, &content, bytes_quota)? {
            tracing::info!(skill = name, version, digest, "skill published");
        }
        let skill = read_stored_skill(&self.store, digest, name);
        Ok(PublishedSkill {
            skill,
            _lease: lease,
        })
    }

    /// Reads the documents of an unpacked archive, and checks that they are those of a usable skill of this name.
    fn check_document(&self, name: &str, root: &Path) -> Result<FrontMatter> {
        check_has_document(root)?;
        let document = read_stored_documents(root, self.store.skill_md_bytes_max, name);
        let document = document.map_err(|problem| invalid_archive(name, &[problem], root))?;
        let problems = document.problems(ValidationProfile::Lenient).into_iter();
        let errors: Vec<_> = problems.filter(Problem::is_error).collect();
        if !errors.is_empty() {
            return Err(invalid_archive(name, &errors, root));
        }
        let own_name = &document.front_matter.name;
        if own_name != name {
            let message = format!("the skill in the archive is named {own_name}");
            return Err(Error::invalid("name", message));
        }
        Ok(document.front_matter)
    }

    /// Deletes versions of a name that a tenant published.
    ///
    /// # Errors
    /// `SkillNotFound`; `SkillReadOnly` if only a configured root has the skill.
    pub(crate) fn delete(
        &self,
        tenant: &str,
        listed: &[Arc<Skill>],
        name: &str,
        versions: &VersionSelector,
    ) -> Result<()> {
        let published = self.sources.published_by(tenant)?;
        let removed = published.remove(name, versions)?;
        if removed > 0 {
            tracing::info!(skill = name, ?versions, removed, "published skill deleted");
            return Ok(());
        }
        let of_root = listed.iter().find(|skill| {
            let is_selected = versions.selects(&skill.front_matter.version, skill.digest());
            skill.name == name && !skill.root.is_empty() && is_selected
        });
        let wanted = versions.reference(name);
        Err(match of_root {
            Some(skill) => Error::SkillReadOnly {
                name: wanted,
                root: skill.root.clone(),
            },
            None => Error::SkillNotFound {
                name: wanted,
                nearest: published.newest_versions(name),
            },
        })
    }
}

impl PublishedSkill {
    /// Returns the skill as it is listed; as the publication itself read it, if it was deleted meanwhile.
    pub(crate) fn into_skill(self, listed: &[Arc<Skill>]) -> Skill {
        let own = self.skill;
        let mut listed = listed.iter();
        let found = listed.find(|skill| skill.dir == own.dir && skill.name == own.name);
        let found = found.filter(|skill| skill.state != SkillState::Rejected);
        found.map_or(own, |skill| Skill::clone(skill))
    }
}

/// Returns the bounds of an uploaded archive.
fn archive_bounds(options: &SkillsOptions) -> ArchiveBounds {
    ArchiveBounds {
        bytes: options.bytes_max,
        file_bytes: options.bytes_max,
        // Directories count in addition to files.
        entries: options.files_max.saturating_mul(2),
        depth: DEPTH_MAX,
        ratio: RATIO_MAX,
    }
}

/// Makes the error of an archive whose skill cannot be used. It names all problems with the lines of their document.
fn invalid_archive(name: &str, problems: &[Problem], root: &Path) -> Error {
    let texts = problems.iter().map(|problem| match problem.line {
        0 => format!("{}: {}", problem.code, problem.message),
        line => format!("{} (line {line}): {}", problem.code, problem.message),
    });
    let text = texts.collect::<Vec<_>>().join("; ");
    Error::SkillInvalid {
        name: name.to_owned(),
        // The caller does not know the directory of an unpacked archive.
        problem: text.replace(&root.display().to_string(), "the archive"),
    }
}

/// Checks that an archive has its skill at its top.
fn check_has_document(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    find_skill_documents(root, Path::new(""), 0, &mut found);
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
    Err(archive_error(problem))
}

/// Adds the documents in and below a directory to `found`. Unreadable entries are skipped; reading the skill reports
/// them.
fn find_skill_documents(root: &Path, at: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root.join(at)).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), at.join(entry.file_name()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth < SHOWN_DEPTH_MAX {
                find_skill_documents(root, &path, depth + 1, found);
            }
        } else if DOCUMENTS
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
        {
            found.push(path);
        }
    }
}
