//! Finds the folders of a skill whose package.json names packages, and reads what a build of their packages needs.
//!
//! ```text
//! <folder>/package.json                            parsed; refused dependencies are taken out
//!     │  file:, workspaces                         local_packages.rs: packages in the skill's own folder
//! <folder>/npm-shrinkwrap.json, package-lock.json  lock_file.rs: checked, and left as it is
//! ```
//!
//! A dependency that is refused is a problem, and the others are installed: `npm ci` ignores what a lock file has beyond
//! the package.json. Preparing, checking and staging a skill read its packages here.

use std::collections::BTreeSet;

use skilld_common::excerpts::join_first;

use super::local_packages::{
    Acceptance, LocalBudget, LocalPackage, LocalPackages, files_beneath, join_path,
};
use super::lock_file::{LOCK_NAMES, LockedPlaces, check_lock};
use super::{ProblemList, STATED_BYTES_MAX, read_text};
use crate::catalogue::preflight::file_selection::select_node_packages;
use crate::catalogue::preflight::package_json::PackageJson;
use crate::content_store::skill_files::{Manifest, SkillFile};
use crate::error::Result;
use crate::parse::environment_need::{ENVIRONMENT_WARNING, NODE_PROJECTS_MAX, NodeProject};
use crate::parse::npm_specifier::DependencySource;
use crate::parse::problem::Problem;

/// Maximum size in bytes of a lock file.
const LOCK_BYTES_MAX: u64 = 8 << 20;
/// Lock files of other package managers.
const FOREIGN_LOCKS: [&str; 4] = ["bun.lock", "bun.lockb", "pnpm-lock.yaml", "yarn.lock"];
/// Maximum number of folders that a message names.
const SHOWN_FOLDERS_MAX: usize = 20;

/// Node.js packages that the files of a skill state.
#[derive(Debug, Default)]
pub(super) struct NodeDeclarations {
    /// Folders whose packages are installed, the root first.
    pub(super) projects: Vec<NodeProject>,
    /// Packages of the index without which programs fail: path of the package.json, and name.
    pub(super) packages: Vec<(String, String)>,
    /// Refused parts, and what else is noteworthy.
    pub(super) problems: ProblemList,
}

/// Reads the Node.js packages that the files of a skill state.
///
/// # Errors
/// `Io` when the store cannot be read.
pub(super) fn read_node_projects(manifest: &Manifest) -> Result<NodeDeclarations> {
    let mut reader = ProjectReader {
        manifest,
        found: NodeDeclarations::default(),
        members: BTreeSet::new(),
        left_out: Vec::new(),
        budget: LocalBudget::default(),
    };
    let files = select_node_packages(manifest);
    let mut packages: Vec<_> = files.map(|file| (folder_of(&file.path), file)).collect();
    packages.sort_by_key(|(folder, _)| *folder);
    for (folder, file) in packages {
        reader.project(folder, file)?;
    }
    Ok(reader.finish())
}

/// Names of packages in the files package.json of one project.
#[derive(Default)]
struct ProjectNames {
    /// Names that are left in a package.json.
    wanted: BTreeSet<String>,
    /// Names that were taken out of a package.json.
    refused: BTreeSet<String>,
    /// Packages without which programs fail, if they are no workspaces: path of the package.json, and name.
    needed: Vec<(String, String)>,
    /// Names of workspaces.
    workspaces: BTreeSet<String>,
}

/// Reads the projects of one skill.
struct ProjectReader<'a> {
    manifest: &'a Manifest,
    found: NodeDeclarations,
    /// Folders that belong to the project of another folder.
    members: BTreeSet<String>,
    /// Folders beyond the maximum.
    left_out: Vec<String>,
    budget: LocalBudget,
}

impl ProjectReader<'_> {
    fn project(&mut self, folder: &str, file: &SkillFile) -> Result<()> {
        if self.members.contains(folder) || self.brings_modules(folder) {
            return Ok(());
        }
        let problems = &mut self.found.problems;
        let Some(text) = read_text(self.manifest, file, STATED_BYTES_MAX, problems)? else {
            return Ok(());
        };
        let package = match PackageJson::parse(&text) {
            Ok(package) => package,
            Err(reason) => {
                problems.refuse(&file.path, &reason);
                return Ok(());
            }
        };
        if package.dependencies().is_empty() && package.workspaces().is_none() {
            return Ok(());
        }
        if folder.contains(char::is_control) || folder.contains(char::REPLACEMENT_CHARACTER) {
            problems.refuse(
                &file.path,
                "is in a folder whose name is no plain text: rename it",
            );
            return Ok(());
        }
        if self.found.projects.len() >= NODE_PROJECTS_MAX as usize {
            self.left_out.push(folder.to_owned());
            return Ok(());
        }
        self.read_project(LocalPackage {
            folder: folder.to_owned(),
            package,
            text,
        })
    }

    /// Reads the packages of a project, those in the skill's own folder that they lead to, and the lock file.
    fn read_project(&mut self, root: LocalPackage) -> Result<()> {
        let folder = root.folder.clone();
        let budget = std::mem::take(&mut self.budget);
        let mut local = LocalPackages::new(self.manifest, &folder, budget);
        let mut project = NodeProject {
            folder: folder.clone(),
            ..NodeProject::default()
        };
        let mut names = ProjectNames::default();
        let mut next = Some(root);
        while let Some(mut read) = next {
            if read.folder == folder {
                self.workspaces(&mut read.package, &mut local)?;
            } else if self.members.contains(&read.folder) {
                names.workspaces.extend(read.package.name());
            }
            self.dependencies(&mut read, &mut local, &mut names)?;
            let content = read.package.into_content(read.text);
            match read.folder == folder {
                true => project.package_json = content,
                false => local.add_content(join_path(&read.folder, "package.json"), content),
            }
            next = local.next_package();
        }
        let lock = match names.wanted.is_empty() {
            true => None,
            false => self.lock(&folder, &local, &names)?,
        };
        (project.local_files, self.budget) = local.finish();
        // npm takes a workspace for a package of its name.
        let needed = names.needed.into_iter();
        let needed = needed.filter(|(_, name)| !names.workspaces.contains(name));
        self.found.packages.extend(needed);
        if let Some(lock) = lock {
            project.lock = lock;
            self.found.projects.push(project);
        }
        Ok(())
    }

    /// Takes what is refused out of a package.json, and adds the packages of the skill's own folder that it names.
    fn dependencies(
        &mut self,
        read: &mut LocalPackage,
        local: &mut LocalPackages<'_>,
        names: &mut ProjectNames,
    ) -> Result<()> {
        let path = join_path(&read.folder, "package.json");
        for dependency in read.package.dependencies() {
            let acceptance = match dependency.source() {
                DependencySource::Index => Acceptance::Accepted,
                DependencySource::Local(target) => local.add(&read.folder, target)?,
                DependencySource::Refused(reason) => Acceptance::Refused(reason.to_owned()),
            };
            if let Acceptance::Refused(reason) = acceptance {
                let reason = format!("{} {reason}", dependency.describe());
                self.found.problems.refuse(&path, &reason);
                read.package.remove(&dependency);
                names.refused.insert(dependency.name);
                continue;
            }
            if dependency.source() == DependencySource::Index && !dependency.is_optional {
                names.needed.push((path.clone(), dependency.name.clone()));
            }
            names.wanted.insert(dependency.name);
        }
        for name in read.package.remove_refused_overrides() {
            let reason = format!("\"{name}\" of overrides does not come from the package index");
            self.found.problems.refuse(&path, &reason);
        }
        Ok(())
    }

    /// Adds the workspaces of a project, and names them in its package.json one by one.
    fn workspaces(
        &mut self,
        package: &mut PackageJson,
        local: &mut LocalPackages<'_>,
    ) -> Result<()> {
        let Some(patterns) = package.workspaces() else {
            return Ok(());
        };
        let path = join_path(local.project(), "package.json");
        let (folders, unmatched) = local.match_workspaces(&patterns);
        for reason in unmatched {
            // npm ignores them, too.
            let message = format!("{path} names the workspace {reason}");
            self.found.problems.add(Problem {
                subject: path.clone(),
                ..Problem::warning(ENVIRONMENT_WARNING, message)
            });
        }
        let mut accepted = Vec::new();
        for folder in folders {
            match local.add(local.project(), &folder)? {
                Acceptance::Accepted => {
                    self.members.insert(join_path(local.project(), &folder));
                    accepted.push(folder);
                }
                Acceptance::Refused(reason) => {
                    let reason = format!("names the workspace {folder}, which {reason}");
                    self.found.problems.refuse(&path, &reason);
                }
            }
        }
        package.set_workspaces(accepted);
        Ok(())
    }

    /// Returns the lock file of a folder, empty if it has none; `None` if it is refused. The project is not built without
    /// it then: who adds a lock file wants its versions.
    fn lock(
        &mut self,
        folder: &str,
        local: &LocalPackages<'_>,
        names: &ProjectNames,
    ) -> Result<Option<Vec<u8>>> {
        let find = |name: &&str| self.manifest.find_exact(&join_path(folder, name));
        let Some(file) = LOCK_NAMES.iter().find_map(find) else {
            let foreign = FOREIGN_LOCKS.iter().find(|name| find(name).is_some());
            if let Some(name) = foreign {
                self.found.problems.add(Problem {
                    subject: join_path(folder, name),
                    ..Problem::warning(ENVIRONMENT_WARNING, foreign_lock_message(folder, name))
                });
            }
            return Ok(Some(Vec::new()));
        };
        let problems = &mut self.found.problems;
        let Some(text) = read_text(self.manifest, file, LOCK_BYTES_MAX, problems)? else {
            return Ok(None);
        };
        let refused = names.refused.difference(&names.wanted);
        let places = LockedPlaces {
            folder,
            local: local.accepted(),
            refused: refused.map(String::as_str).collect(),
        };
        match check_lock(&text, places) {
            Ok(()) => Ok(Some(text.into_bytes())),
            Err(reason) => {
                problems.refuse(&file.path, &reason);
                Ok(None)
            }
        }
    }

    /// Returns `true` if a folder has packages of its own: these need no installation.
    fn brings_modules(&self, folder: &str) -> bool {
        let modules = join_path(folder, "node_modules");
        let is_file = self.manifest.find_exact(&modules).is_some();
        is_file || files_beneath(self.manifest, &modules).next().is_some()
    }

    fn finish(mut self) -> NodeDeclarations {
        if let Some(first) = self.left_out.first() {
            let path = join_path(first, "package.json");
            let folders = join_first(self.left_out.iter().map(String::as_str), SHOWN_FOLDERS_MAX);
            let reason = format!(
                "is beyond the {NODE_PROJECTS_MAX} folders with Node.js packages that a skill may have: merge their \
                 dependencies; not installed are those of {folders}"
            );
            self.found.problems.refuse(&path, &reason);
        }
        self.found
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn foreign_lock_message(folder: &str, name: &str) -> String {
    let path = join_path(folder, name);
    format!(
        "{path} is left aside, because npm does not read it, and other versions may be installed tomorrow: run \
         `npm install --package-lock-only` and add package-lock.json to the skill"
    )
}
