//! Staging: copies from the store into `slots/<slot>/skills/<name>`, which the container sees read-only.
//!
//! ```text
//! .stage-*/<name>            beside skills/, where the container cannot see it: being made
//!    │ rename
//! skills/.replaced-*-<name>  whole, and as deep as a skill, so that its links lead to the workspace
//!    │ exchanged in one step with
//! skills/<name>              what commands see; the one before is now .replaced-*, and stays while a command that
//!                            started with it runs: `remove_replaced`
//! ```
//!
//! Only the daemon writes here, so no path on the way can be a tenant's.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::ContentStore;
use super::content_hashing::ContentSummary;
use crate::environments::environment_need::EnvironmentNeed;
use crate::error::{Error, Result, tolerate};
use crate::fault::{self, Point};
use crate::parse::front_matter::FrontMatter;

mod replaced_versions;
mod skill_copy;

use replaced_versions::VersionActivePeriod;
pub(crate) use replaced_versions::{has_replaced, remove_replaced};

/// Report on one skill that was staged in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedSkill {
    /// Name of its folder beneath `skills/`.
    pub name: String,
    /// Digest of its content, 64 hex digits.
    pub digest: String,
    /// Version from its front matter; may be empty.
    pub version: String,
    /// Number of regular files and links, without the four links that staging adds.
    pub files: u64,
    /// Size of its files, in bytes.
    pub bytes: u64,
    /// `true` if the workspace had this digest already.
    pub unchanged: bool,
    /// Names of the four links that the skill has itself.
    pub own_links: Vec<&'static str>,
    /// Packages that the skill needs beyond its image, as its files state them.
    pub environment_need: Arc<EnvironmentNeed>,
}

impl StagedSkill {
    pub(crate) fn new(name: &str, front_matter: &FrontMatter, content: ContentSummary) -> Self {
        Self {
            name: name.to_owned(),
            version: front_matter.version.clone(),
            digest: content.digest,
            files: content.files,
            bytes: content.bytes,
            unchanged: false,
            own_links: content.own_links,
            environment_need: Arc::default(),
        }
    }
}

/// Prefix of directories in which skills are prepared.
const PREPARED: &str = ".stage-";
/// Directory beside `skills/` with a file for each staged skill, which holds its digest.
const DIGESTS: &str = "staged";

/// Copies stored skills into `target`, the `skills/` of a slot: all or none. Sets `unchanged` where the slot had the
/// digest already. Blocks.
///
/// # Errors
/// `Invalid` for two versions of one skill; `Io`.
pub(crate) fn stage_skills(
    store: &ContentStore,
    target: &Path,
    mut skills: Vec<StagedSkill>,
) -> Result<Vec<StagedSkill>> {
    check_versions(&skills)?;
    let failed = |operation: &str| Error::io(format!("{operation} {}", target.display()));
    let slot = target.parent().unwrap_or(target);
    // One staging at a time in a slot keeps the digests beside the skills correct.
    let _turn = lock_directory(target)?;
    let digests = slot.join(DIGESTS);
    for skill in &mut skills {
        let digest = fs::read_to_string(digests.join(&skill.name));
        let is_same = digest.is_ok_and(|digest| digest == skill.digest);
        skill.unchanged = is_same && target.join(&skill.name).is_dir();
    }
    let mut changed: Vec<&StagedSkill> = skills.iter().filter(|skill| !skill.unchanged).collect();
    if changed.is_empty() {
        return Ok(skills);
    }
    changed.sort_by(|a, b| a.name.cmp(&b.name));
    changed.dedup_by(|a, b| a.name == b.name);
    remove_leftovers(slot).map_err(failed("clean"))?;
    // Parents are not created: a slot that is being removed must not reappear.
    tolerate(io::ErrorKind::AlreadyExists, fs::create_dir(&digests)).map_err(failed("prepare"))?;
    let prepared = tempfile::Builder::new().prefix(PREPARED).tempdir_in(slot);
    let prepared = prepared.map_err(failed("prepare"))?;
    for skill in &changed {
        let (stored, to) = (store.dir(&skill.digest), prepared.path().join(&skill.name));
        skill_copy::copy_skill(&stored, &to, &skill.name).map_err(failed("copy a skill to"))?;
    }
    fault::reach(Point::StagePrepared);
    let mut published = Vec::new();
    for skill in &changed {
        let (place, digest) = (target.join(&skill.name), digests.join(&skill.name));
        match publish_folder(&prepared.path().join(&skill.name), &place, &digest) {
            Ok(replaced) => published.push((place, replaced)),
            Err(error) => {
                restore_replaced(published, prepared.path());
                return Err(failed("publish a skill in")(error));
            }
        }
    }
    fault::reach(Point::StagePublished);
    for skill in &changed {
        // Without the digest file the next staging of the skill copies it again.
        if let Err(error) = fs::write(digests.join(&skill.name), &skill.digest) {
            tracing::warn!(skill = skill.name, %error, "digest of a staged skill was not noted");
        }
    }
    fault::reach(Point::StageNoted);
    Ok(skills)
}

/// Checks that skills of one name are of one version: a folder holds one.
fn check_versions(skills: &[StagedSkill]) -> Result<()> {
    let mut digests: HashMap<&str, &str> = HashMap::new();
    for (index, skill) in skills.iter().enumerate() {
        let other = digests.insert(&skill.name, &skill.digest);
        if other.is_some_and(|other| other != skill.digest) {
            let message = format!(
                "is another version of {} than one before it; a workspace has one at a time, in skills/{}",
                skill.name, skill.name
            );
            return Err(Error::invalid(format!("skills[{index}]"), message));
        }
    }
    Ok(())
}

/// Locks a directory until the result is dropped.
fn lock_directory(dir: &Path) -> Result<File> {
    let operation = |verb| format!("{verb} {}", dir.display());
    let file = File::open(dir).map_err(Error::io(operation("open")))?;
    file.lock().map_err(Error::io(operation("lock")))?;
    Ok(file)
}

/// Removes directories that a killed daemon left behind while staging.
fn remove_leftovers(slot: &Path) -> io::Result<()> {
    for entry in fs::read_dir(slot)? {
        let entry = entry?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREPARED.as_bytes())
        {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Moves a prepared folder to its place. Returns the path of the version that it replaced, if any.
fn publish_folder(
    prepared: &Path,
    place: &Path,
    digest_file: &Path,
) -> io::Result<Option<PathBuf>> {
    let since = fs::metadata(digest_file).and_then(|noted| noted.modified());
    tolerate(io::ErrorKind::NotFound, fs::remove_file(digest_file))?;
    match rename(prepared, place, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => return Ok(None),
        // EINVAL: the file system does not support flags.
        Err(Errno::EINVAL) if !place.exists() => {
            return fs::rename(prepared, place).map(|()| None);
        }
        Err(Errno::EEXIST | Errno::EINVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
    let replaced = VersionActivePeriod::new(since, SystemTime::now());
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let aside = place.with_file_name(replaced.file_name(&name));
    fs::rename(prepared, &aside)?;
    fault::reach(Point::StageReplacing);
    match exchange_folders(&aside, place, prepared) {
        Ok(()) => Ok(Some(aside)),
        Err(error) => {
            fs::rename(&aside, prepared)?;
            Err(error)
        }
    }
}

fn rename(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat2(AT_FDCWD, from, AT_FDCWD, to, flags)
}

/// Exchanges two folders; `free` is an unused path.
fn exchange_folders(one: &Path, other: &Path, free: &Path) -> io::Result<()> {
    match rename(one, other, RenameFlags::RENAME_EXCHANGE) {
        Err(Errno::EINVAL) => {
            fs::rename(one, free)?;
            fs::rename(other, one)?;
            fs::rename(free, other)
        }
        done => Ok(done?),
    }
}

/// Puts replaced versions back after a failure.
fn restore_replaced(published: Vec<(PathBuf, Option<PathBuf>)>, prepared: &Path) {
    for (place, replaced) in published.into_iter().rev() {
        let free = prepared.join(place.file_name().unwrap_or_default());
        let undone = match replaced {
            Some(replaced) => exchange_folders(&replaced, &place, &free)
                // The rejected version is removed with the prepared directory.
                .and_then(|()| fs::rename(&replaced, &free)),
            None => fs::rename(&place, &free),
        };
        if let Err(error) = undone {
            tracing::error!(skill = %place.display(), %error, "cannot undo a failed staging");
        }
    }
}
