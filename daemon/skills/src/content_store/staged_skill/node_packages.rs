//! Links by which ES modules find the packages of their skill's environment. `import` does not read NODE_PATH: it looks
//! for `node_modules` beside the importing file and in the folders above it.
//!
//! ```text
//! skills/<name>/<folder>/node_modules   ->  ../../skills/.node_modules/<name>.<digest>/<N>/node_modules
//! skills/.node_modules/<name>.<digest>  ->  .../<environment>/node
//! ```
//!
//! The first link is made when the skill is copied, one for each folder whose package.json names packages; `<N>` is the
//! number of the folder in the need. It dangles until the environment is built and the second one is made.
//!
//! `<digest>` is that of the Node.js packages that the skill needs, so a version that needs others has another link, and
//! the copy stays when only Python packages change.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{StagedSkill, lock_directory, make_directory};
use crate::error::{Error, Result, tolerate};
use crate::parse::environment_need::NodeProject;

/// Name of the folder in which Node.js looks for packages.
const NODE_MODULES: &str = "node_modules";
/// Directory in `skills/` with the links to packages. No skill's name begins with a dot.
const LINKS_DIR: &str = ".node_modules";

/// Link from a folder of a skill to its packages.
pub(super) struct PackagesLink {
    /// Path of the link, relative to the skill's root.
    pub(super) path: String,
    /// Number of folders from the skill's root to the one with the link.
    pub(super) depth: usize,
    /// Target, relative to the workspace.
    pub(super) target: String,
}

/// Returns the links to the Node.js packages of a skill, in the order of its projects.
pub(super) fn packages_links(skill: &StagedSkill) -> Vec<PackagesLink> {
    let projects = &skill.environment_need.node_projects;
    let name = skill.node_packages_name();
    let link = |(number, project): (usize, &NodeProject)| {
        let path = Path::new(&project.folder).join(NODE_MODULES);
        PackagesLink {
            depth: path.components().count() - 1,
            path: path.to_string_lossy().into_owned(),
            target: format!("skills/{LINKS_DIR}/{name}/{number}/{NODE_MODULES}"),
        }
    };
    projects.iter().enumerate().map(link).collect()
}

/// Makes Node.js packages available to the skills that are staged with them. `target` is the `skills/` of a slot;
/// `packages` has the name of each link ([`StagedSkill::node_packages_name`]) and the path of the packages in the
/// container, `None` if they are missing. Blocks.
///
/// # Errors
/// `Io`.
pub(crate) fn link_node_packages(
    target: &Path,
    packages: &[(String, Option<String>)],
) -> Result<()> {
    let _turn = lock_directory(target)?;
    let directory = target.join(LINKS_DIR);
    let link = || -> io::Result<()> {
        tolerate(io::ErrorKind::AlreadyExists, make_directory(&directory))?;
        for (name, path) in packages {
            let place = directory.join(name);
            let Some(path) = path else {
                tolerate(io::ErrorKind::NotFound, fs::remove_file(&place))?;
                continue;
            };
            // An environment that was built anew has another path.
            if fs::read_link(&place).is_ok_and(|found| found == Path::new(path)) {
                continue;
            }
            let new = directory.join(".new");
            tolerate(io::ErrorKind::NotFound, fs::remove_file(&new))?;
            symlink(path, &new)?;
            fs::rename(&new, &place)?;
        }
        Ok(())
    };
    link().map_err(Error::io(format!(
        "link the packages of skills in {}",
        directory.display()
    )))
}
