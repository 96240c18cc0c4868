//! Writable copies of skills, which are files of the workspace. So commands can change them and they count towards its
//! disk. Only the guest writes and opens them; the host has a link in `skills/`, which it reads and never follows:
//!
//! ```text
//! .stage-*/copies/<name>              the skill as the guest gets it: `prepare_writable`
//!    │ sent to the guest, which installs it in
//! work/.skills/<time>/<name>          in the container; a new folder each time, so a failure changes nothing
//! .stage-*/links/<name>
//!    │ exchanged as in a read-only staging: `publish_writable`
//! skills/<name> -> ../work/.skills/<time>/<name>
//! ```
//!
//! A skill that shares files within its plugin lies at its place in a copy of the plugin, so that `../` leads to these
//! files:
//!
//! ```text
//! skills/.plugins/<name> -> ../../work/.skills/<time>/<name>
//! skills/<name>          -> ../work/.skills/<time>/<name>/<path of the skill in the plugin>
//! ```
//!
//! An older copy stays in `work/.skills`: commands may have changed it, and may still run in it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skilld_common::unix_time::unix_ms;
use tempfile::TempDir;

use super::node_packages::packages_links;
use super::{
    StagedSkill, changed_skills, check_versions, digest_time, has_digest, lock_directory,
    prepare_directory, publish_skills, skill_copy,
};
use crate::content_store::ContentStore;
use crate::error::{Error, Result};
use crate::placeholders::plugin_root;

/// Directory of writable copies, relative to the workspace.
const COPIES: &str = "work/.skills";
/// Target of a link in `skills/`, before the path in the workspace.
const LINK_PREFIX: &str = "../";

/// Writable staging of skills whose copies the guest has yet to get. Dropping it discards the staging.
#[derive(Debug)]
pub struct WritableStaging {
    /// Skills of the request, in its order.
    pub skills: Vec<StagedSkill>,
    /// Directory in the workspace for the new copies, each in a folder with the skill's name.
    pub directory: String,
    /// Links to add to the copies: (path beneath the directory, target).
    pub links: Vec<(String, String)>,
    /// Directory with `copies/` and `links/`; `None` if all skills are unchanged.
    prepared: Option<TempDir>,
}

impl WritableStaging {
    /// Returns the directory on the host that has the copies to send, or `None` if all skills are unchanged.
    pub fn copies(&self) -> Option<PathBuf> {
        Some(self.prepared.as_ref()?.path().join("copies"))
    }
}

/// Prepares writable copies of stored skills beside `target`, the `skills/` of a slot. `intact` has the workspace's
/// writable copies that still exist: path → time of the latest modification. A skill that has one with this digest is
/// unchanged. Blocks.
///
/// # Errors
/// `Invalid` for two versions of one skill; `Io`.
pub(crate) fn prepare_writable(
    store: &ContentStore,
    target: &Path,
    mut skills: Vec<StagedSkill>,
    intact: &BTreeMap<String, SystemTime>,
) -> Result<WritableStaging> {
    check_versions(&skills)?;
    let failed = |operation: &str| Error::io(format!("{operation} {}", target.display()));
    let _turn = lock_directory(target)?;
    let directory = format!("{COPIES}/{}", unix_ms(SystemTime::now()));
    for skill in &mut skills {
        skill.writable_path = Some(copy_path(&directory, skill));
        let copy = read_copy_path(target, &skill.name);
        let modified = copy.as_ref().and_then(|copy| intact.get(copy));
        if let Some(modified) = modified
            && has_digest(target, skill, true)
        {
            skill.unchanged = true;
            skill.writable_path = copy;
            // The digest is noted when the copy is complete.
            skill.is_modified = digest_time(target, skill).is_none_or(|time| *modified > time);
        }
    }
    let changed = changed_skills(&skills);
    let mut links = Vec::new();
    let mut prepared = None;
    if !changed.is_empty() {
        let place = prepared.insert(prepare_directory(target)?).path();
        for folder in ["copies", "links", "links/.plugins"] {
            fs::create_dir(place.join(folder)).map_err(failed("prepare"))?;
        }
        for skill in changed {
            prepare_copy(store, place, skill).map_err(failed("copy a skill beside"))?;
            links.extend(workspace_links(&directory, skill));
        }
    }
    Ok(WritableStaging {
        skills,
        directory,
        links,
        prepared,
    })
}

/// Returns the path of a skill's new copy, relative to the workspace.
fn copy_path(directory: &str, skill: &StagedSkill) -> String {
    let name = &skill.name;
    match &skill.plugin {
        None => format!("{directory}/{name}"),
        Some(plugin) => format!("{directory}/{name}/{}", plugin.skill_path.display()),
    }
}

/// Copies a skill, in its plugin if it has one, to `copies/`, and makes the links to it in `links/`.
fn prepare_copy(store: &ContentStore, prepared: &Path, skill: &StagedSkill) -> io::Result<()> {
    let (stored, copy) = (
        store.dir(&skill.digest),
        prepared.join("copies").join(&skill.name),
    );
    let links = prepared.join("links");
    let path = skill.writable_path.as_deref().unwrap_or_default();
    symlink(format!("{LINK_PREFIX}{path}"), links.join(&skill.name))?;
    let Some(plugin) = &skill.plugin else {
        return skill_copy::copy_without_links(&stored, &copy);
    };
    let place = skill_copy::copy_plugin(&store.dir(&plugin.digest), &copy, &plugin.skill_path)?;
    skill_copy::copy_without_links(&stored, &place)?;
    let root = path
        .strip_suffix(&*plugin.skill_path.to_string_lossy())
        .unwrap_or(path)
        .trim_end_matches('/');
    symlink(
        format!("../{LINK_PREFIX}{root}"),
        links.join(plugin_root(&skill.name)),
    )
}

/// Returns the links to the workspace that a copy gets: (path beneath `directory`, target). It has no link `.venv`: an
/// environment made there is a folder of the copy.
fn workspace_links(directory: &str, skill: &StagedSkill) -> Vec<(String, String)> {
    let path = skill.writable_path.as_deref().unwrap_or_default();
    let depth = path.split('/').count();
    let relative = path
        .strip_prefix(directory)
        .unwrap_or(path)
        .trim_start_matches('/');
    let added = skill_copy::LINKS
        .iter()
        .filter(|(name, _)| !skill.own_links.contains(name));
    let added = added.map(|(name, link_target)| (0, (*name).to_owned(), (*link_target).to_owned()));
    let packages = packages_links(skill)
        .into_iter()
        .map(|link| (link.depth, link.path, link.target));
    added
        .chain(packages)
        .map(|(folders, name, link_target)| {
            let up = "../".repeat(depth + folders);
            (format!("{relative}/{name}"), format!("{up}{link_target}"))
        })
        .collect()
}

/// Publishes the links to copies that the guest has. Blocks.
///
/// # Errors
/// `Io`.
pub(crate) fn publish_writable(
    target: &Path,
    staging: WritableStaging,
) -> Result<Vec<StagedSkill>> {
    if let Some(prepared) = &staging.prepared {
        let _turn = lock_directory(target)?;
        let links = prepared.path().join("links");
        publish_skills(target, &links, &changed_skills(&staging.skills))?;
    }
    Ok(staging.skills)
}

/// Returns the path in the workspace that the link of a staged skill leads to; `None` if the skill is read-only or not
/// staged.
fn read_copy_path(target: &Path, name: &str) -> Option<String> {
    let link = fs::read_link(target.join(name)).ok()?;
    Some(link.to_str()?.strip_prefix(LINK_PREFIX)?.to_owned())
}
