//! Writable copies of skills. They are files of the workspace, so commands can change them and they count towards its
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
//! An older copy stays in `work/.skills`: commands may have changed it, and may still run in it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use super::node_packages::{NODE_MODULES, packages_path};
use super::replaced_versions::unix_ms;
use super::{
    StagedSkill, changed_skills, check_versions, has_digest, lock_directory, prepare_directory,
    publish_skills, skill_copy,
};
use crate::content_store::ContentStore;
use crate::error::{Error, Result};
use crate::parse::problem::{PLUGIN_FILES_NOT_STAGED, Problem};

/// Directory of writable copies, relative to the workspace.
const COPIES: &str = "work/.skills";
/// Target of a link in `skills/`, before the path in the workspace.
const LINK_PREFIX: &str = "../";
/// Links in the root of a writable copy, `work/.skills/<time>/<name>`: (name, target). It has no link `.venv`: an
/// environment made there is a folder of the copy.
const LINKS: [(&str, &str); 3] = [
    ("out", "../../../../out"),
    ("work", "../../../../work"),
    ("inputs", "../../../../work/inputs"),
];

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
    #[must_use]
    pub fn copies(&self) -> Option<PathBuf> {
        Some(self.prepared.as_ref()?.path().join("copies"))
    }
}

/// Prepares writable copies of stored skills beside `target`, the `skills/` of a slot. `intact` has the paths of the
/// workspace's writable copies that still exist; a skill that has one with this digest is unchanged. Blocks.
///
/// # Errors
/// `Invalid` for two versions of one skill; `Io`.
pub(crate) fn prepare_writable(
    store: &ContentStore,
    target: &Path,
    mut skills: Vec<StagedSkill>,
    intact: &BTreeSet<String>,
) -> Result<WritableStaging> {
    check_versions(&skills)?;
    let failed = |operation: &str| Error::io(format!("{operation} {}", target.display()));
    let _turn = lock_directory(target)?;
    let directory = format!("{COPIES}/{}", unix_ms(SystemTime::now()));
    for skill in &mut skills {
        // Files shared within a plugin stay read-only, so the copy stands alone.
        if skill.plugin.take().is_some() {
            let message = "a writable copy stands alone: the files that the skill shares within its plugin are not beside it";
            let problem = Problem::warning(PLUGIN_FILES_NOT_STAGED, message);
            skill.problems.push(problem);
        }
        skill.writable_path = Some(format!("{directory}/{}", skill.name));
        let copy = read_copy_path(target, &skill.name).filter(|copy| intact.contains(copy));
        if copy.is_some() && has_digest(target, skill) {
            skill.unchanged = true;
            skill.writable_path = copy;
        }
    }
    let changed = changed_skills(&skills);
    let mut links = Vec::new();
    let mut prepared = None;
    if !changed.is_empty() {
        let directory = prepared
            .insert(prepare_directory(target)?)
            .path()
            .to_owned();
        for folder in ["copies", "links"] {
            fs::create_dir(directory.join(folder)).map_err(failed("prepare"))?;
        }
        for skill in changed {
            let copy = directory.join("copies").join(&skill.name);
            let copied = skill_copy::copy_without_links(&store.dir(&skill.digest), &copy);
            copied.map_err(failed("copy a skill beside"))?;
            let path = skill.writable_path.as_deref().unwrap_or_default();
            let link = directory.join("links").join(&skill.name);
            symlink(format!("{LINK_PREFIX}{path}"), link).map_err(failed("prepare"))?;
            let added = LINKS
                .iter()
                .filter(|(name, _)| !skill.own_links.contains(name));
            links.extend(added.map(|(name, link_target)| {
                (format!("{}/{name}", skill.name), (*link_target).to_owned())
            }));
            if let Some(path) = packages_path(&skill.environment_need) {
                let link = format!("{}/{NODE_MODULES}", skill.name);
                links.push((link, format!("../../../../{path}")));
            }
        }
    }
    Ok(WritableStaging {
        skills,
        directory,
        links,
        prepared,
    })
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
