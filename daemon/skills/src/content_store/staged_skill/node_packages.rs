//! Links by which ES modules find the packages of their skill's environment. `import` does not read NODE_PATH: it looks
//! for `node_modules` beside the importing file and in the folders above it.
//!
//! ```text
//! skills/<name>/node_modules         ->  ../../skills/.node_modules/<need>    made when the skill is copied
//! skills/.node_modules/<need>        ->  .../<environment>/node_modules       made when the environment exists
//! ```
//!
//! The first link dangles until the environment is built, which may be after the staging. `<need>` is the digest of what
//! the skill needs, so a version that needs other packages has another link, and no skill finds those of another one.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{lock_directory, make_directory};
use crate::error::{Error, Result, tolerate};
use crate::parse::environment_need::EnvironmentNeed;

/// Name of the folder in which Node.js looks for packages.
pub(super) const NODE_MODULES: &str = "node_modules";
/// Directory in `skills/` with the links to packages. No skill's name begins with a dot.
const LINKS_DIR: &str = ".node_modules";

/// Returns the path, relative to the workspace, of the link to the Node.js packages of a need; `None` if it has none.
pub(super) fn packages_path(need: &EnvironmentNeed) -> Option<String> {
    let is_built = !need.package_json.is_empty() && need.problems.is_empty();
    is_built.then(|| format!("skills/{LINKS_DIR}/{}", need.digest()))
}

/// Makes the Node.js packages of needs available to the skills that are staged with them. `target` is the `skills/` of a
/// slot; `packages` has the digest of each need and the path of its packages in the container, `None` if they are missing.
/// Blocks.
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
        for (need, path) in packages {
            let place = directory.join(need);
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
