//! Staging: copies from the store into `slots/<slot>/skills/<name>`, which the container sees read-only.
//!
//! ```text
//! .stage-*/<name>            beside skills/, where the container cannot see it: being made
//!    │ rename
//! skills/.replaced-*-<name>  whole, and as deep as a skill, so that its links lead to the workspace
//!    │ exchanged in one step with
//! skills/<name>              what commands see; the one before is now .replaced-*, and stays while commands run:
//!                            `remove_replaced`
//! ```
//!
//! A skill that shares files within its plugin lies in a copy of the plugin, so that `../` leads from it to these files.
//! The copy is made and replaced in the same way, one folder deeper:
//!
//! ```text
//! skills/.plugins/<name>/            the plugin's shared files, and the skill at its place among them
//! skills/.plugins/<name>/.skill  ->  the skill's path in the plugin
//! skills/<name>                  ->  .plugins/<name>/.skill
//! ```
//!
//! A skill with Node.js packages has a link to them: `node_packages.rs`.
//!
//! Only the daemon writes here, so no path on the way can be a tenant's. A writable copy of a skill, or of its plugin, is
//! in the workspace's own files instead, and `skills/<name>` is a link to it, which the daemon reads and never follows:
//! `writable_copy.rs`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use tempfile::TempDir;

use super::ContentStore;
use super::content_hashing::{ContentSummary, make_directory};
use crate::error::{Error, Result, tolerate};
use crate::fault;
use crate::held_bytes::{held_bytes, measure_held_bytes};
use crate::parse::added_packages::AddedPackages;
use crate::parse::environment_need::EnvironmentNeed;
use crate::parse::front_matter::FrontMatter;
use crate::parse::problem::Problem;
use crate::placeholders::{PLUGINS_DIR, plugin_root};

mod node_packages;
mod replaced_versions;
mod skill_copy;
mod writable_copy;

pub(crate) use node_packages::link_node_packages;
pub use replaced_versions::has_replaced_versions;
pub(crate) use replaced_versions::remove_replaced;
use replaced_versions::{count_replaced, is_directory, replaced_name};
pub use writable_copy::WritableStaging;
pub(crate) use writable_copy::{prepare_writable, publish_writable};

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
    /// Bytes that count for a copy of its files.
    pub held_bytes: u64,
    /// `true` if the workspace had this digest already.
    pub unchanged: bool,
    /// Names of the four links that the skill has itself.
    pub own_links: Vec<&'static str>,
    /// Packages that the skill needs beyond its image: stated, added and inferred ones.
    pub environment_need: Arc<EnvironmentNeed>,
    /// Packages that the operator and the tenant added to it, which are part of the need.
    pub added_packages: AddedPackages,
    /// Files that it is staged with; `None` for a skill that shares none.
    pub plugin: Option<PluginFiles>,
    /// Problems of the staging: the skill is staged, and misses something.
    pub problems: Vec<Problem>,
    /// Path of its writable copy, relative to the workspace; `None` if the skill is read-only. Commands can write there,
    /// so only the guest may open it.
    pub writable_path: Option<String>,
    /// `true` if commands changed files of that copy since it was staged.
    pub is_modified: bool,
}

/// Files that the skills of a plugin share, for the staging of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginFiles {
    /// Digest of the files in the store, 64 hex digits.
    pub digest: String,
    /// Path of the skill's folder relative to the plugin's.
    pub skill_path: PathBuf,
    /// Bytes that count for a copy of the files.
    pub held_bytes: u64,
}

impl PluginFiles {
    /// Returns the path of the skill's folder as text. A character that is not UTF-8 becomes U+FFFD.
    pub fn skill_path_text(&self) -> String {
        self.skill_path.to_string_lossy().into_owned()
    }
}

impl StagedSkill {
    pub(crate) fn new(name: &str, front_matter: &FrontMatter, content: ContentSummary) -> Self {
        Self {
            name: name.to_owned(),
            version: front_matter.version.clone(),
            held_bytes: content.held_bytes(),
            digest: content.digest,
            files: content.files,
            bytes: content.bytes,
            unchanged: false,
            own_links: content.own_links,
            environment_need: Arc::default(),
            added_packages: AddedPackages::default(),
            plugin: None,
            problems: Vec::new(),
            writable_path: None,
            is_modified: false,
        }
    }

    /// Returns the path of its plugin's staged files relative to `skills/`; `None` if it is staged alone.
    pub fn plugin_root(&self) -> Option<String> {
        self.plugin.as_ref().map(|_| plugin_root(&self.name))
    }

    /// Returns the text of its digest file. That of a writable copy differs, so a switch replaces the skill.
    fn digest_text(&self, is_writable: bool) -> String {
        let prefix = if is_writable { WRITABLE_PREFIX } else { "" };
        let mut text = format!("{prefix}{}", self.digest);
        if let Some(plugin) = &self.plugin {
            text += &format!(" {} {}", plugin.digest, plugin.skill_path.display());
        }
        // The copy's links to packages change without the skill when packages of Node.js are added to it. A writable copy
        // keeps its links, because replacing it would lose what commands wrote: NODE_PATH has the packages.
        if !is_writable && !self.environment_need.node_projects.is_empty() {
            text += &format!(" {}", self.node_packages_name());
        }
        text
    }

    /// Returns the name of the link in `skills/` to the Node.js packages of the skill, of which each set has its own.
    pub fn node_packages_name(&self) -> String {
        format!("{}.{}", self.name, self.environment_need.node_digest())
    }
}

/// Effect that a staging would have on the slot's disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StagingEffect {
    /// Bytes that count for the copies to make; 0 if the slot has all skills already.
    pub copied_bytes: u64,
    /// Number of replaced versions that the slot would have then.
    pub replaced: usize,
}

/// Folder or link that a staging moved to its place.
struct PublishedFolder {
    place: PathBuf,
    /// Path of the version that it replaced.
    replaced: Option<PathBuf>,
}

/// Number of links that a copy of a skill gets at most; each takes a block of the disk.
const LINKS_MAX: u64 = 16;
/// Prefix of directories in which skills are prepared.
const PREPARED: &str = ".stage-";
/// Directory beside `skills/` with a file for each staged skill, which holds its digest.
const DIGESTS: &str = "staged";
/// Prefix of the digest of a skill that is staged as a writable copy.
const WRITABLE_PREFIX: &str = "writable:";

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
    // One staging at a time in a slot keeps the digests beside the skills correct.
    let _turn = lock_directory(target)?;
    for skill in &mut skills {
        // A writable copy has another digest text, so its link is not followed here.
        skill.unchanged = has_digest(target, skill, false) && target.join(&skill.name).is_dir();
    }
    let changed = changed_skills(&skills);
    if changed.is_empty() {
        return Ok(skills);
    }
    let prepared = prepare_directory(target)?;
    for skill in &changed {
        prepare_skill(store, prepared.path(), skill).map_err(failed("copy a skill to"))?;
    }
    publish_skills(target, prepared.path(), &changed)?;
    Ok(skills)
}

/// Returns the effect of staging skills in `target`, the `skills/` of a slot; as writable copies if `is_writable`. Blocks.
pub(crate) fn examine_staging(
    target: &Path,
    skills: &[StagedSkill],
    is_writable: bool,
) -> StagingEffect {
    let mut effect = StagingEffect {
        copied_bytes: 0,
        replaced: count_replaced(target),
    };
    for skill in changed_skills(skills) {
        if has_digest(target, skill, is_writable) {
            continue;
        }
        let plugin = skill.plugin.as_ref().map_or(0, |plugin| plugin.held_bytes);
        let copy = held_bytes(skill.held_bytes, LINKS_MAX);
        effect.copied_bytes = effect.copied_bytes.saturating_add(copy + plugin);
        let places = [skill.name.clone(), plugin_root(&skill.name)];
        let replaced = places
            .iter()
            .filter(|place| is_directory(&target.join(place)));
        effect.replaced += replaced.count();
    }
    effect
}

/// Returns the bytes that count for all that was staged in `target`, the `skills/` of a slot, with what it replaced. Blocks.
pub fn measure_staged_bytes(target: &Path) -> u64 {
    measure_held_bytes(target).saturating_add(measure_held_bytes(&digests_directory(target)))
}

/// Returns the directory of a slot that has the digest files.
fn digests_directory(target: &Path) -> PathBuf {
    target.with_file_name(DIGESTS)
}

/// Returns `true` if the slot's digest file of a skill is that of this content, staged in the same way.
fn has_digest(target: &Path, skill: &StagedSkill, is_writable: bool) -> bool {
    let digest = fs::read_to_string(digests_directory(target).join(&skill.name));
    digest.is_ok_and(|digest| digest == skill.digest_text(is_writable))
}

/// Returns the time at which a skill was staged, as its digest file has it.
fn digest_time(target: &Path, skill: &StagedSkill) -> Option<SystemTime> {
    let noted = fs::metadata(digests_directory(target).join(&skill.name));
    noted.and_then(|noted| noted.modified()).ok()
}

/// Returns the skills to stage, each once, sorted by name.
fn changed_skills(skills: &[StagedSkill]) -> Vec<&StagedSkill> {
    let mut changed: Vec<&StagedSkill> = skills.iter().filter(|skill| !skill.unchanged).collect();
    changed.sort_by(|a, b| a.name.cmp(&b.name));
    changed.dedup_by(|a, b| a.name == b.name);
    changed
}

/// Creates an empty directory beside `target`, in which skills are prepared, and removes those of a killed daemon.
fn prepare_directory(target: &Path) -> Result<TempDir> {
    let failed = |operation: &str| Error::io(format!("{operation} {}", target.display()));
    let slot = target.parent().unwrap_or(target);
    remove_leftovers(slot).map_err(failed("clean"))?;
    // Parents are not created: a slot that is being removed must not reappear.
    let made = fs::create_dir(digests_directory(target));
    tolerate(io::ErrorKind::AlreadyExists, made).map_err(failed("prepare"))?;
    let prepared = tempfile::Builder::new().prefix(PREPARED).tempdir_in(slot);
    prepared.map_err(failed("prepare"))
}

/// Moves prepared skills, or links to writable ones, to their places in `target`: all or none. Writes their digests.
fn publish_skills(target: &Path, prepared: &Path, changed: &[&StagedSkill]) -> Result<()> {
    fault::reach("stage.prepared");
    let digests = digests_directory(target);
    let mut published = Vec::new();
    for skill in changed {
        let digest = digests.join(&skill.name);
        let done = publish_skill(prepared, target, skill, &digest, &mut published);
        if let Err(error) = done {
            restore_replaced(published, prepared);
            let operation = format!("publish a skill in {}", target.display());
            return Err(Error::io(operation)(error));
        }
    }
    retire_plugins(target, changed, &published);
    remove_replaced_links(&published);
    fault::reach("stage.published");
    for skill in changed {
        // Without the digest file the next staging of the skill copies it again.
        let text = skill.digest_text(skill.writable_path.is_some());
        if let Err(error) = fs::write(digests.join(&skill.name), text) {
            tracing::warn!(skill = skill.name, %error, "digest of a staged skill was not noted");
        }
    }
    fault::reach("stage.noted");
    Ok(())
}

/// Copies a skill, and its plugin if it has one, into a directory that is not published yet.
fn prepare_skill(store: &ContentStore, prepared: &Path, skill: &StagedSkill) -> io::Result<()> {
    let (stored, place) = (store.dir(&skill.digest), prepared.join(&skill.name));
    let Some(plugin) = &skill.plugin else {
        // skills/ is above the skill.
        return skill_copy::copy_skill(&stored, &place, skill, 2);
    };
    let (shared, to) = (
        store.dir(&plugin.digest),
        prepared.join(plugin_root(&skill.name)),
    );
    let plugins = prepared.join(PLUGINS_DIR);
    tolerate(io::ErrorKind::AlreadyExists, fs::create_dir(plugins))?;
    skill_copy::copy_skill_in_plugin(&shared, &stored, &to, &plugin.skill_path, skill)?;
    symlink(skill_link(&skill.name), place)
}

/// Returns the target of `skills/<name>` for a skill in a plugin.
fn skill_link(skill: &str) -> PathBuf {
    Path::new(&plugin_root(skill)).join(skill_copy::SKILL_LINK)
}

/// Moves a prepared skill, and its plugin before it, to their places, and adds these to `published`.
fn publish_skill(
    prepared: &Path,
    target: &Path,
    skill: &StagedSkill,
    digest_file: &Path,
    published: &mut Vec<PublishedFolder>,
) -> io::Result<()> {
    tolerate(io::ErrorKind::NotFound, fs::remove_file(digest_file))?;
    let (place, plugin) = (target.join(&skill.name), plugin_root(&skill.name));
    let mut publish = |from: PathBuf, place: PathBuf| {
        let replaced = publish_folder(&from, &place)?;
        published.push(PublishedFolder { place, replaced });
        Ok::<_, io::Error>(())
    };
    if skill.plugin.is_none() {
        return publish(prepared.join(&skill.name), place);
    }
    let made = make_directory(&target.join(PLUGINS_DIR));
    tolerate(io::ErrorKind::AlreadyExists, made)?;
    publish(prepared.join(&plugin), target.join(&plugin))?;
    // The same link leads to every read-only version of the plugin.
    let (link, new_link) = (fs::read_link(&place), prepared.join(&skill.name));
    if link.is_ok_and(|link| fs::read_link(&new_link).is_ok_and(|new| new == link)) {
        return Ok(());
    }
    publish(new_link, place)
}

/// Moves plugins aside whose skills are staged without them now, beside the versions that they belong to.
fn retire_plugins(target: &Path, changed: &[&StagedSkill], published: &[PublishedFolder]) {
    let plugins = target.join(PLUGINS_DIR);
    for skill in changed.iter().filter(|skill| skill.plugin.is_none()) {
        let (place, plugin) = (target.join(&skill.name), plugins.join(&skill.name));
        let folder = published.iter().find(|folder| folder.place == place);
        let replaced = folder.and_then(|folder| folder.replaced.as_deref()?.file_name());
        let Some(aside) = replaced.filter(|_| fs::symlink_metadata(&plugin).is_ok()) else {
            continue;
        };
        if let Err(error) = fs::rename(&plugin, plugins.join(aside)) {
            tracing::warn!(skill = skill.name, %error, "a replaced plugin was not moved aside");
        }
    }
}

/// Removes replaced links, which no process holds: one that began there is in the folder that its link led to.
fn remove_replaced_links(published: &[PublishedFolder]) {
    let replaced = published
        .iter()
        .filter_map(|folder| folder.replaced.as_deref());
    for link in replaced.filter(|path| !is_directory(path)) {
        if let Err(error) = fs::remove_file(link) {
            tracing::warn!(path = %link.display(), %error, "a replaced link was not removed");
        }
    }
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

/// Moves a prepared folder or link to its place. Returns the path of the version that it replaced, if any.
fn publish_folder(prepared: &Path, place: &Path) -> io::Result<Option<PathBuf>> {
    match rename(prepared, place, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => return Ok(None),
        // EINVAL: the file system does not support flags.
        Err(Errno::EINVAL) if fs::symlink_metadata(place).is_err() => {
            return fs::rename(prepared, place).map(|()| None);
        }
        Err(Errno::EEXIST | Errno::EINVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let aside = place.with_file_name(replaced_name(&name));
    fs::rename(prepared, &aside)?;
    fault::reach("stage.replacing");
    match exchange_entries(&aside, place, prepared) {
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

/// Exchanges two folders or links; `free` is an unused path.
fn exchange_entries(one: &Path, other: &Path, free: &Path) -> io::Result<()> {
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
fn restore_replaced(published: Vec<PublishedFolder>, prepared: &Path) {
    for (index, folder) in published.into_iter().enumerate().rev() {
        let PublishedFolder { place, replaced } = folder;
        let free = prepared.join(format!(".undone-{index}"));
        let undone = match replaced {
            Some(replaced) => exchange_entries(&replaced, &place, &free)
                // The rejected version is removed with the prepared directory.
                .and_then(|()| fs::rename(&replaced, &free)),
            None => fs::rename(&place, &free),
        };
        if let Err(error) = undone {
            tracing::error!(skill = %place.display(), %error, "cannot undo a failed staging");
        }
    }
}
