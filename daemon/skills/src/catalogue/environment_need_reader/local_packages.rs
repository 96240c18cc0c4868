//! Packages in the skill's own folder that a package.json names by `file:` or `workspaces`. Bounded, so that a cycle, a
//! huge folder and a way out of the skill are refused by name.

use std::collections::{BTreeMap, BTreeSet};

use skilld_common::text_decoding::decode_text;

use super::{STATED_BYTES_MAX, read_bytes};
use crate::catalogue::preflight::package_json::PackageJson;
use crate::content_store::skill_files::{Manifest, SkillFile};
use crate::error::Result;
use crate::parse::npm_specifier::{is_archive_name, shown};
use crate::skill_path::{SKILL_PATH_BYTES_MAX, resolve_in_plugin};

/// Maximum size of the local packages of one skill, in bytes.
const BYTES_MAX: u64 = 2 << 20;
/// Maximum number of files of the local packages of one skill.
const FILES_MAX: usize = 500;
/// Maximum number of patterns of workspaces of one package.json. Each is compared with up to 500 folders.
const PATTERNS_MAX: usize = 20;
/// Files of a local package that a build must not see: settings of npm, and locks that npm reads in packages.
const UNWANTED: [&str; 3] = [".npmrc", "npm-shrinkwrap.json", "package-lock.json"];

/// Room that the local packages of a skill have left.
#[derive(Debug)]
pub(super) struct LocalBudget {
    files: usize,
    bytes: u64,
}

impl Default for LocalBudget {
    fn default() -> Self {
        Self {
            files: FILES_MAX,
            bytes: BYTES_MAX,
        }
    }
}

/// Package in the skill's own folder.
pub(super) struct LocalPackage {
    /// Folder of the package, relative to the skill's root.
    pub(super) folder: String,
    pub(super) package: PackageJson,
    /// Text of the package.json.
    pub(super) text: String,
}

/// Result for one local package.
pub(super) enum Acceptance {
    /// The package is part of the build.
    Accepted,
    /// The package is not part of it. The reason is the end of a sentence that begins with the dependency.
    Refused(String),
}

/// Local packages of one project.
pub(super) struct LocalPackages<'a> {
    manifest: &'a Manifest,
    /// Folder of the project, relative to the skill's root.
    project: &'a str,
    /// Folders and archives that are part of the build.
    accepted: BTreeSet<String>,
    /// Packages whose dependencies are still to be read.
    unread: Vec<LocalPackage>,
    files: BTreeMap<String, Vec<u8>>,
    budget: LocalBudget,
}

impl<'a> LocalPackages<'a> {
    pub(super) fn new(manifest: &'a Manifest, project: &'a str, budget: LocalBudget) -> Self {
        Self {
            manifest,
            project,
            accepted: BTreeSet::new(),
            unread: Vec::new(),
            files: BTreeMap::new(),
            budget,
        }
    }

    /// Returns the folder of the project.
    pub(super) fn project(&self) -> &'a str {
        self.project
    }

    /// Returns the folders and archives that are part of the build, relative to the skill's root.
    pub(super) fn accepted(&self) -> &BTreeSet<String> {
        &self.accepted
    }

    /// Adds the package at a path relative to a folder.
    pub(super) fn add(&mut self, folder: &str, path: &str) -> Result<Acceptance> {
        if path.contains(['%', '?', '#']) {
            // npm reads the path as that of a URL.
            return refused("has %, ? or # in its path: rename the folder or archive");
        }
        let Ok(target) = resolve_in_plugin(folder, path) else {
            return refused("leads out of the skill");
        };
        if self.accepted.contains(&target) {
            return Ok(Acceptance::Accepted);
        }
        let archive = self.manifest.find_exact(&target);
        if let Some(archive) = archive.filter(|file| is_archive_name(&file.path)) {
            return self.add_files(target, &[archive]);
        }
        let is_above = |rest: &str| rest.is_empty() || rest.starts_with('/') || target.is_empty();
        if self.project.strip_prefix(&target).is_some_and(is_above) {
            return refused("leads to a folder that contains the package.json itself");
        }
        let stated = self
            .manifest
            .find_exact(&join_path(&target, "package.json"));
        let Some(stated) = stated.filter(|file| file.size <= STATED_BYTES_MAX) else {
            return refused("leads to no folder of the skill with a package.json of at most 1 MiB");
        };
        let text = decode_text(&read_bytes(self.manifest, stated, STATED_BYTES_MAX)?, true)
            .text
            .into_owned();
        let package = match PackageJson::parse(&text) {
            Ok(package) => package,
            Err(reason) => return refused(&format!("leads to {}, which {reason}", stated.path)),
        };
        let files: Vec<_> = files_beneath(self.manifest, &target)
            .filter(|file| is_wanted(&file.path, &target))
            .take(FILES_MAX + 1)
            .collect();
        let acceptance = self.add_files(target.clone(), &files)?;
        if matches!(acceptance, Acceptance::Accepted) {
            self.unread.push(LocalPackage {
                folder: target,
                package,
                text,
            });
        }
        Ok(acceptance)
    }

    fn add_files(&mut self, target: String, files: &[&SkillFile]) -> Result<Acceptance> {
        let new = files
            .iter()
            .filter(|file| !self.files.contains_key(&file.path));
        let new: Vec<&SkillFile> = new.copied().collect();
        let bytes = new.iter().map(|file| file.size).sum::<u64>();
        if new.len() > self.budget.files || bytes > self.budget.bytes {
            return refused(&format!(
                "does not fit: the packages in a skill's own folder have at most {} MiB and {FILES_MAX} files in all",
                BYTES_MAX >> 20
            ));
        }
        self.budget.files -= new.len();
        self.budget.bytes -= bytes;
        for file in new {
            let content = read_bytes(self.manifest, file, file.size)?;
            self.files.insert(file.path.clone(), content);
        }
        self.accepted.insert(target);
        Ok(Acceptance::Accepted)
    }

    /// Adds a file with other content than it has in the skill.
    pub(super) fn add_content(&mut self, path: String, content: Vec<u8>) {
        self.files.insert(path, content);
    }

    /// Returns a package whose dependencies are still to be read; `None` after the last one.
    pub(super) fn next_package(&mut self) -> Option<LocalPackage> {
        self.unread.pop()
    }

    /// Returns the files of the accepted packages, and the room that is left.
    pub(super) fn finish(self) -> (Vec<(String, Vec<u8>)>, LocalBudget) {
        (self.files.into_iter().collect(), self.budget)
    }

    /// Returns the folders, relative to the project, that patterns of workspaces match, and the patterns that match none,
    /// each as the rest of a sentence.
    pub(super) fn match_workspaces(&self, patterns: &[&str]) -> (Vec<String>, Vec<String>) {
        let prefix_len = join_path(self.project, "x").len() - 1;
        let files = files_beneath(self.manifest, self.project);
        let candidates: Vec<Vec<&str>> = files
            .filter_map(|file| file.path.get(prefix_len..)?.strip_suffix("/package.json"))
            .map(|folder| folder.split('/').collect())
            .filter(|names: &Vec<&str>| !names.contains(&"node_modules"))
            // Each has a file, so more are never accepted.
            .take(FILES_MAX)
            .collect();
        let (mut matched, mut unmatched) = (BTreeSet::new(), Vec::new());
        for pattern in patterns.iter().take(PATTERNS_MAX) {
            let excluded = pattern.strip_prefix('!');
            let parts = excluded.unwrap_or(pattern).split('/');
            let parts: Vec<&str> = parts.filter(|part| !["", "."].contains(part)).collect();
            // No path of a skill is longer.
            let is_read = pattern.len() <= SKILL_PATH_BYTES_MAX;
            let candidates = candidates.iter().filter(|_| is_read);
            let found: Vec<String> = candidates
                .filter(|names| {
                    matches(
                        &parts,
                        names,
                        |part| *part == "**",
                        |part, name| matches_name(part, name),
                    )
                })
                .map(|names| names.join("/"))
                .collect();
            if excluded.is_some() {
                matched.retain(|folder| !found.contains(folder));
            } else if found.is_empty() {
                unmatched.push(format!(
                    "{}, which leads to no folder with a package.json",
                    shown(pattern)
                ));
            } else {
                matched.extend(found);
            }
        }
        if patterns.len() > PATTERNS_MAX {
            unmatched.push(format!(
                "number {}, and {PATTERNS_MAX} are read: merge them",
                PATTERNS_MAX + 1
            ));
        }
        (matched.into_iter().collect(), unmatched)
    }
}

/// Returns the files beneath a folder, sorted by path.
pub(super) fn files_beneath<'a>(
    manifest: &'a Manifest,
    folder: &str,
) -> impl Iterator<Item = &'a SkillFile> {
    let prefix = match folder {
        "" => String::new(),
        folder => format!("{folder}/"),
    };
    let files = manifest.files();
    let start = files.partition_point(|file| file.path.as_str() < prefix.as_str());
    let rest = files.get(start..).unwrap_or_default().iter();
    rest.take_while(move |file| file.path.starts_with(&prefix))
}

/// Joins a folder, empty for the skill's root, and a name.
pub(super) fn join_path(folder: &str, name: &str) -> String {
    match folder {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

fn refused(reason: &str) -> Result<Acceptance> {
    Ok(Acceptance::Refused(reason.to_owned()))
}

/// Returns `true` for a file that is part of the package in a folder.
fn is_wanted(path: &str, folder: &str) -> bool {
    let below = path.get(folder.len()..).unwrap_or_default();
    let mut names = below.split('/');
    names.all(|name| name != "node_modules" && !UNWANTED.contains(&name))
}

fn matches_name(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    matches(&pattern, &name, |part| *part == '*', |part, c| part == c)
}

/// Returns `true` if a pattern matches a whole text. Some parts of the pattern match any number of parts of the text.
/// Only the last of these is ever tried again, so the time is bounded by the product of both lengths.
fn matches<P, T>(
    pattern: &[P],
    text: &[T],
    is_any: impl Fn(&P) -> bool,
    is_same: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut position) = (0, 0);
    let mut retry = None;
    while let Some(part) = text.get(position) {
        match pattern.get(at) {
            Some(any) if is_any(any) => {
                retry = Some((at + 1, position));
                at += 1;
            }
            Some(same) if is_same(same, part) => {
                at += 1;
                position += 1;
            }
            Some(_) | None => {
                let Some((after, from)) = retry else {
                    return false;
                };
                (at, position) = (after, from + 1);
                retry = Some((after, position));
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(is_any)
}
