//! Publishing: puts the skill of an archive into the store and records it, and deletes such records.
//!
//! ```text
//! bytes ─► unnamed file ─► tmp/…, unpacked ─► store, leased ─► record: published ─► lease released
//! ```
//!
//! An interruption before the record leaves files in `tmp/`, which the next start empties, or an unreferenced digest,
//! which `content_store/store_cleanup.rs` removes.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalogue_snapshot::Catalogue;
use super::document_reader::{read_stored_documents, read_stored_skill};
use super::skill::{Skill, SkillState};
use super::skill_library::SkillLibrary;
use crate::content_store::Lease;
use crate::content_store::content_hashing::{ContentSource, IngestError, read_content};
use crate::error::{Error, Result};
use crate::fault;
use crate::parse::finding::{BAD_NAME, ValidationProfile};
use crate::parse::front_matter::FrontMatter;
use crate::parse::problem::{LeftOutEntries, Problem};
use crate::parse::skill_card::{self, CardBase};
use crate::skills_options::{ArchiveBounds, SkillsOptions};
use crate::sources::archive::{ArchiveKind, UnpackedArchive, archive_error, unpack_archive};
use crate::sources::directory_listing::SKILL_MD;
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
const DOCUMENTS: [&str; 2] = [SKILL_MD, skill_card::FILE_NAME];

/// A skill that was just published. Its lease keeps the content in the store.
#[derive(Debug)]
pub(crate) struct PublishedSkill {
    /// The skill as read from the store.
    skill: Skill,
    /// Entries of the archive that the skill lacks.
    left_out: LeftOutEntries,
    _lease: Lease,
}

impl SkillLibrary {
    /// Unpacks an archive and publishes its skill for a tenant, within its quota of bytes; it must have this name, which may
    /// be empty. `listed` is the number of skills that are listed already.
    ///
    /// # Errors
    /// `ArchiveInvalid`, `LimitExceeded`, `Invalid` for another name, `SkillInvalid`, `VersionTaken`, `TenantQuota`,
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
        let published = self.sources.published_by(tenant)?;
        let largest = archive_bounds(&self.options);
        // What is published already may fill the quota, and can be published again.
        let bounds = largest.within(bytes_quota);
        let unpacked = unpack_archive(&mut file, kind, &into, &bounds).map_err(|error| {
            match (error, bytes_quota) {
                // The quota is less than what an archive may have.
                (Error::LimitExceeded { .. }, Some(quota)) if bounds != largest => {
                    published.quota_error(quota)
                }
                (error, _) => error,
            }
        })?;
        unpacked.check_case()?;
        // The upload has no name: this frees its space before the store takes as much.
        drop(file);
        fault::reach("publish.unpacked");
        let root = self.place_card(name, &unpacked.root, temporary.path())?;
        let front = self.check_document(name, &unpacked, &root)?;
        let (name, version) = (front.name.as_str(), front.version);
        let folder = ContentSource::stored(&root);
        let _turn = bytes_quota.map(|_| published.publishing.lock());
        if bytes_quota.is_some()
            && let Ok(content) = read_content(&folder, None, self.store.bounds)
        {
            // What will be refused is not copied into the store.
            published.check_room(name, &version, &content, bytes_quota)?;
        }
        let (content, lease) = self
            .store
            .copy(&folder, name)
            .map_err(|error| match error {
                IngestError::Skill(problem) => invalid_archive(name, &[problem], &root),
                IngestError::Host(error) => error,
            })?;
        let record = || {
            self.store.sync(&content.digest)?;
            fault::reach("publish.stored");
            if listed >= self.options.skills_max && !published.has_digest(name, &content.digest) {
                return Err(Error::LimitExceeded {
                    what: "skills in all".to_owned(),
                    limit: self.options.skills_max as u64,
                });
            }
            published.add(name, &version, &content, bytes_quota)
        };
        let digest = &content.digest;
        if record().inspect_err(|_| published.add_orphan(&content))? {
            tracing::info!(skill = name, version, digest, "skill published");
        }
        let skill = read_stored_skill(&self.store, digest, name);
        Ok(PublishedSkill {
            skill,
            left_out: unpacked.left_out,
            _lease: lease,
        })
    }

    /// Returns the folder of an unpacked archive that has the skill's files with its card: the `base_uri` of a card at the
    /// top that has no SKILL.md beside it may be a folder beneath it, or a URL from which the files are fetched into
    /// `temporary`.
    fn place_card(&self, name: &str, root: &Path, temporary: &Path) -> Result<PathBuf> {
        let failed = |source| Error::io("move a card of an archive")(source);
        let path = root.join(skill_card::FILE_NAME);
        let is_card = fs::symlink_metadata(&path)
            .is_ok_and(|card| card.is_file() && card.len() <= skill_card::BYTES_MAX as u64);
        if !is_card || has_skill_md(root) {
            return Ok(root.to_owned());
        }
        let card = fs::read(&path).map_err(failed)?;
        match skill_card::read_base(&card) {
            None => Ok(root.to_owned()),
            Some(CardBase::Beneath(base)) => {
                let top = root.canonicalize().map_err(failed)?;
                let base = root.join(base).canonicalize().unwrap_or_default();
                let card_path = base.join(skill_card::FILE_NAME);
                let has_card = fs::symlink_metadata(&card_path).is_ok();
                if !base.starts_with(&top) || !has_skill_md(&base) || has_card {
                    return Ok(root.to_owned());
                }
                fs::write(card_path, skill_card::with_own_base(&card)).map_err(failed)?;
                Ok(base)
            }
            Some(CardBase::Remote(url)) => {
                let card = skill_card::with_own_base(&card);
                let fetched = self.sources.remote.fetch_card(&card, &url, temporary);
                fetched.map_err(|problem| invalid_archive(name, &[problem], root))
            }
        }
    }

    /// Reads the documents of an unpacked archive, and checks that they are those of a usable skill of this name. Without
    /// one, the skill has its own name, else that of the folder around everything.
    fn check_document(
        &self,
        name: &str,
        unpacked: &UnpackedArchive,
        root: &Path,
    ) -> Result<FrontMatter> {
        check_has_document(root, &unpacked.left_out)?;
        let wrapper = unpacked.wrapper.as_deref().unwrap_or_default();
        let default = if name.is_empty() { wrapper } else { name };
        let document = read_stored_documents(root, self.store.skill_md_bytes_max, default)
            .map_err(|problem| invalid_archive(name, &[problem], root))?;
        let problems = document.problems(ValidationProfile::Lenient).into_iter();
        let errors: Vec<_> = problems.filter(Problem::is_error).collect();
        if default.is_empty()
            && let [error] = errors.as_slice()
            && error.code == BAD_NAME.name
        {
            let message =
                "is needed: neither the documents of the skill nor a folder around them name it";
            return Err(Error::invalid("name", message));
        }
        if !errors.is_empty() {
            return Err(invalid_archive(name, &errors, root));
        }
        let own_name = &document.front_matter.name;
        if !name.is_empty() && own_name != name {
            let message = format!("the skill in the archive is named {own_name}");
            return Err(Error::invalid("name", message));
        }
        Ok(document.front_matter)
    }

    /// Removes content from the store that tenants put there and that has no record any more, unless a workspace has it
    /// `staged`, or a call uses it. What nothing but such a workspace or call keeps counts for its tenant until then.
    /// Returns the number of removed digests.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn remove_orphans(
        &self,
        catalogue: &Catalogue,
        staged: &HashSet<String>,
    ) -> Result<usize> {
        let mut removed = 0;
        for published in self.sources.all_published() {
            for digest in published.list_orphans() {
                let is_listed = || {
                    catalogue
                        .skills
                        .iter()
                        .any(|skill| skill.digest() == digest)
                };
                let is_stored = || self.store.dir(&digest).is_dir();
                let is_needed = || self.sources.references(&digest) || is_listed();
                let may_go = || is_stored() && !staged.contains(&digest) && !is_needed();
                let gone = self
                    .store
                    .remove_unleased(&digest, may_go)
                    .map_err(Error::io(format!("remove {digest} from the store")))?;
                removed += usize::from(gone);
                if gone || !is_stored() || is_needed() {
                    published.forget_orphan(&digest);
                }
            }
        }
        Ok(removed)
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
    /// Returns the skill as it is listed; as the publication itself read it, if it was deleted meanwhile. A warning names
    /// what it lacks of its archive.
    pub(crate) fn into_skill(self, listed: &[Arc<Skill>]) -> Skill {
        let own = self.skill;
        let found = listed
            .iter()
            .find(|skill| skill.dir == own.dir && skill.name == own.name)
            .filter(|skill| skill.state != SkillState::Rejected);
        let mut skill = found.map_or(own, |skill| Skill::clone(skill));
        if let Some(warning) = self.left_out.warning() {
            skill.other_problems.push(warning.about(&skill.found_at));
            skill.judge(ValidationProfile::Lenient);
        }
        skill
    }
}

/// Returns the bounds of an uploaded archive: those of a skill.
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
        name: match name {
            "" => "in the archive".to_owned(),
            name => name.to_owned(),
        },
        // The caller does not know the directory of an unpacked archive.
        problem: text.replace(&root.display().to_string(), "the archive"),
    }
}

/// Returns `true` if a folder has a SKILL.md, in whatever case.
fn has_skill_md(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().eq_ignore_ascii_case(SKILL_MD))
}

/// Checks that an archive has its skill at its top.
fn check_has_document(root: &Path, left_out: &LeftOutEntries) -> Result<()> {
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
    problem.push_str(&left_out.appendix());
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
