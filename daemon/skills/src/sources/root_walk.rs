//! Local directories: finds the folders beneath a root that are skills.
//!
//! A folder is a skill if it has a SKILL.md, in whatever case, or a skill-card.json; folders within it may be skills
//! too. A card without a SKILL.md beside it stands for the files to which its `base_uri` leads: a folder beneath it, or
//! what was fetched from a URL. A skill belongs to the nearest plugin around it. Links are followed beneath the roots
//! only, after everything that is reached without one, so that a folder keeps its own name; no folder is read twice.
//! Whatever a limit leaves out is reported as a problem.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory_listing::{DirectoryListing, SKILL_MD};
use super::plugin_root::PluginRoot;
use super::remote_roots::RemoteRoots;
use crate::content_store::link_policy::LinkPolicy;
use crate::parse::problem::Problem;
use crate::parse::skill_card::{self, CardBase};
use crate::skills_options::SkillsOptions;

/// Maximum number of links through which a broken one is followed: that of the kernel.
const LINKS_MAX: usize = 40;

/// Folder of a skill, as the walk found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundFolder {
    /// Path as it was found: the root as configured and what follows, links included.
    pub(crate) path: PathBuf,
    /// Path without links.
    pub(crate) dir: PathBuf,
    /// `true` if a link leads to it from the root.
    pub(crate) is_linked: bool,
    /// File name of its SKILL.md; `None` if it has a card only.
    pub(crate) document: Option<String>,
    /// `true` if it has a skill-card.json.
    pub(crate) has_card: bool,
    /// skill-card.json of a folder above whose `base_uri` leads here.
    pub(crate) outer_card: Option<Arc<[u8]>>,
    /// `true` if `dir` is in the store, with the files that were fetched for the card.
    pub(crate) is_fetched: bool,
    /// Index of the skill around it among the folders of the root.
    pub(crate) parent: Option<usize>,
    /// Plugin that it belongs to.
    pub(crate) plugin: Option<Arc<PluginRoot>>,
    /// Folders within it, relative to it, that are skills themselves.
    pub(crate) nested: Vec<PathBuf>,
    /// Problems of its file names.
    pub(crate) problems: Vec<Problem>,
}

/// Result of the walk through one root.
#[derive(Debug, Default)]
pub(crate) struct RootContents {
    pub(crate) folders: Vec<FoundFolder>,
    pub(crate) problems: Vec<Problem>,
    /// `true` if the root itself could be read.
    pub(crate) is_readable: bool,
}

/// Walks through the roots of one scan.
#[derive(Debug)]
pub(crate) struct RootWalk<'a> {
    policy: &'a LinkPolicy,
    options: &'a SkillsOptions,
    remote: &'a RemoteRoots,
    /// Keys of the cards whose files are fetched.
    fetched_cards: HashSet<String>,
    /// Device and inode of each visited directory: links can make circles, and roots can lie in one another.
    visited: HashSet<(u64, u64)>,
    /// Real paths of the visited directories.
    paths: HashSet<PathBuf>,
    /// Result for the current root.
    contents: RootContents,
    /// Links of the current root, which are followed last.
    links: VecDeque<PendingDirectory>,
    /// Number of directories of the current root.
    dirs: usize,
    /// Number of entries of the current root.
    entries: usize,
    /// First directory of the current root whose folders are too deep.
    too_deep: Option<PathBuf>,
}

/// Directory that the walk is about to read.
#[derive(Debug, Clone)]
struct PendingDirectory {
    path: PathBuf,
    dir: PathBuf,
    depth: usize,
    /// Index of the skill around it.
    parent: Option<usize>,
    /// Plugin around it.
    plugin: Option<Arc<PluginRoot>>,
    is_linked: bool,
    /// skill-card.json of a folder above whose `base_uri` leads here.
    outer_card: Option<Arc<[u8]>>,
}

impl FoundFolder {
    /// Describes a directory that is a skill.
    fn new(place: &PendingDirectory, listing: &DirectoryListing) -> Self {
        let (document, problem) = choose_document(&listing.documents);
        Self {
            path: place.path.clone(),
            dir: place.dir.clone(),
            is_linked: place.is_linked,
            document,
            has_card: listing.card,
            outer_card: place.outer_card.clone(),
            is_fetched: false,
            parent: place.parent,
            plugin: place.plugin.clone(),
            nested: Vec::new(),
            problems: problem.into_iter().collect(),
        }
    }
}

// === impl RootWalk ===

impl<'a> RootWalk<'a> {
    pub(crate) fn new(
        policy: &'a LinkPolicy,
        options: &'a SkillsOptions,
        remote: &'a RemoteRoots,
    ) -> Self {
        Self {
            policy,
            options,
            remote,
            fetched_cards: HashSet::new(),
            visited: HashSet::new(),
            paths: HashSet::new(),
            contents: RootContents::default(),
            links: VecDeque::new(),
            dirs: 0,
            entries: 0,
            too_deep: None,
        }
    }

    /// Returns the real paths of all visited directories, and the keys of the cards whose files are fetched.
    pub(crate) fn into_paths_and_cards(self) -> (HashSet<PathBuf>, HashSet<String>) {
        (self.paths, self.fetched_cards)
    }

    /// Finds the skills beneath one root.
    pub(crate) fn walk_root(&mut self, root: &Path) -> RootContents {
        (self.dirs, self.entries, self.too_deep) = (0, 0, None);
        self.contents.is_readable = true;
        match root.canonicalize() {
            Ok(dir) => self.visit_directory(PendingDirectory {
                path: root.to_owned(),
                dir,
                depth: 0,
                parent: None,
                plugin: None,
                is_linked: false,
                outer_card: None,
            }),
            Err(error) => self.report_unreadable_root(root, &error),
        }
        while let Some(link) = self.links.pop_front() {
            self.follow_link(link);
        }
        self.report_limits(root);
        std::mem::take(&mut self.contents)
    }

    fn visit_directory(&mut self, mut place: PendingDirectory) {
        if self.dirs >= self.options.dirs_max || self.entries > self.options.entries_max {
            self.dirs += 1;
            return;
        }
        let listing = DirectoryListing::read(self.policy, &place.dir, self.options.entries_max);
        let mut listing = match listing {
            Ok(listing) => listing,
            Err(error) if place.depth == 0 => {
                return self.report_unreadable_root(&place.path, &error);
            }
            Err(error) => return self.report_unreadable(&place.path, &error),
        };
        if !self.visited.insert(listing.id) {
            if place.depth == 0 {
                let message = "an earlier root holds this directory already";
                self.add_problem(Problem::warning("root.duplicate", message), &place.path);
            }
            return;
        }
        self.paths.insert(place.dir.clone());
        self.dirs += 1;
        self.entries += listing.entries;
        if listing.cut {
            self.entries = self.options.entries_max.saturating_add(1);
        }
        if let Some(plugin) = self.find_plugin(&place, &listing) {
            place.plugin = Some(Arc::new(plugin));
        }
        let mut parent = place.parent;
        if listing.card && listing.documents.is_empty() {
            parent = self.add_card(&place, &mut listing).or(parent);
        }
        parent = self.add_if_skill(&place, &listing).or(parent);
        let below = |name: &OsStr| PendingDirectory {
            path: place.path.join(name),
            dir: place.dir.join(name),
            depth: place.depth + 1,
            parent,
            plugin: place.plugin.clone(),
            is_linked: place.is_linked,
            outer_card: None,
        };
        if place.depth >= self.options.depth_max {
            // Deep folders inside a skill belong to the skill.
            if parent.is_none() && !listing.dirs.is_empty() {
                self.too_deep.get_or_insert(place.path);
            }
            return;
        }
        for name in &listing.links {
            self.links.push_back(below(name));
        }
        for name in &listing.dirs {
            self.visit_directory(below(name));
        }
    }

    /// Follows a link if it leads to a directory beneath a root.
    fn follow_link(&mut self, link: PendingDirectory) {
        let real = match link.path.canonicalize() {
            Ok(real) => real,
            // Hashing a skill's files checks its own links.
            Err(_) if link.parent.is_some() => return,
            Err(error) => return self.report_broken_link(&link.path, &error),
        };
        if !real.is_dir() {
            return;
        }
        if self.policy.allows(&real) {
            self.visit_directory(PendingDirectory {
                dir: real,
                is_linked: true,
                ..link
            });
        } else if link.parent.is_none() {
            let message = format!("the link leads out of the roots, to {}", real.display());
            self.add_problem(Problem::error("root.link_outside", message), &link.path);
        }
    }

    /// Returns the plugin that begins with a directory.
    fn find_plugin(
        &mut self,
        place: &PendingDirectory,
        listing: &DirectoryListing,
    ) -> Option<PluginRoot> {
        if listing.has_manifest_dir {
            match PluginRoot::read(self.policy, &place.dir) {
                Ok(None) => {}
                Ok(Some(plugin)) => return Some(plugin),
                Err(problem) => self.add_problem(problem, &place.path),
            }
        }
        // The folders above the root are not looked at.
        let plugin = PluginRoot::of_layout(&place.path, &place.dir).filter(|_| place.depth > 0)?;
        let around = place.plugin.as_ref();
        let has_manifest = around.is_some_and(|around| around.dir.starts_with(&plugin.dir));
        (!has_manifest).then_some(plugin)
    }

    /// Adds a directory to the result if it is a skill. Returns its index.
    fn add_if_skill(
        &mut self,
        place: &PendingDirectory,
        listing: &DirectoryListing,
    ) -> Option<usize> {
        if listing.documents.is_empty() && !listing.card {
            return None;
        }
        let this = self.contents.folders.len();
        let mut around = place.parent;
        while let Some(skill) = around.and_then(|index| self.contents.folders.get_mut(index)) {
            // A folder that a link leads out to is no part of the skill around it.
            if let Ok(below) = place.dir.strip_prefix(&skill.dir) {
                skill.nested.push(below.to_owned());
            }
            around = skill.parent;
        }
        let found = FoundFolder::new(place, listing);
        self.contents.folders.push(found);
        Some(this)
    }

    /// Adds the skill of a card that has no SKILL.md beside it, if its `base_uri` leads elsewhere; the listing has no card
    /// then. Returns its index if it is the skill around the directory's folders.
    fn add_card(
        &mut self,
        place: &PendingDirectory,
        listing: &mut DirectoryListing,
    ) -> Option<usize> {
        let card = read_card(self.policy, &place.dir)?;
        let base = skill_card::read_base(&card)?;
        let moved: Arc<[u8]> = skill_card::with_own_base(&card).into();
        match base {
            CardBase::Beneath(path) => {
                let dir = place.dir.join(&path);
                let files = DirectoryListing::read(self.policy, &dir, self.options.entries_max);
                if files.is_ok_and(|files| !files.documents.is_empty() && !files.card) {
                    listing.card = false;
                    self.visit_directory(PendingDirectory {
                        path: place.path.join(&path),
                        dir,
                        depth: place.depth + path.split('/').count(),
                        outer_card: Some(moved),
                        ..place.clone()
                    });
                }
                None
            }
            CardBase::Remote(url) => {
                let files = self.remote.fetched_files(&moved, &url);
                self.fetched_cards.insert(files.key);
                let this = self.add_if_skill(place, listing)?;
                listing.card = false;
                let found = self.contents.folders.get_mut(this)?;
                found.problems.extend(files.problems);
                if let Some(dir) = files.dir {
                    (found.dir, found.is_fetched) = (dir, true);
                    found.document = Some(SKILL_MD.to_owned());
                }
                Some(this)
            }
        }
    }

    fn report_unreadable_root(&mut self, root: &Path, error: &io::Error) {
        self.contents.is_readable = false;
        let message = format!("cannot read {}: {error}", root.display());
        self.add_problem(Problem::error("root.unreadable", message), root);
    }

    fn report_unreadable(&mut self, path: &Path, error: &io::Error) {
        let message = format!("cannot read {}: {error}", path.display());
        self.add_problem(Problem::error("root.folder_unreadable", message), path);
    }

    fn report_broken_link(&mut self, link: &Path, error: &io::Error) {
        let message = format!(
            "the link leads to {}, which cannot be read ({error}): create that folder, or remove the link",
            last_target(self.policy, link).display()
        );
        self.add_problem(Problem::error("root.folder_unreadable", message), link);
    }

    fn add_problem(&mut self, problem: Problem, subject: &Path) {
        self.contents.problems.push(problem.about(subject));
    }

    /// Adds a problem for each limit that left something out.
    fn report_limits(&mut self, root: &Path) {
        let SkillsOptions {
            depth_max,
            dirs_max,
            entries_max,
            ..
        } = *self.options;
        if self.entries > entries_max {
            let message = format!(
                "more than {entries_max} entries; the rest was not looked at: put skills into a folder of their own, \
                 or name their folders in skills.roots"
            );
            self.add_problem(Problem::error("root.too_many_entries", message), root);
        } else if self.dirs > dirs_max {
            let message = format!(
                "more than {dirs_max} directories; the rest was not looked at: put skills into a folder of their \
                 own, or name their folders in skills.roots"
            );
            self.add_problem(Problem::error("root.too_many_dirs", message), root);
        }
        if let Some(dir) = self.too_deep.take() {
            let message = format!(
                "folders in {} are more than {depth_max} deep and were not looked at: name them in skills.roots",
                dir.display()
            );
            self.add_problem(Problem::warning("root.too_deep", message), root);
        }
    }
}

/// Returns where a broken link leads in the end, as far as its links lie beneath the roots: others are none of a tenant's
/// business.
fn last_target(policy: &LinkPolicy, link: &Path) -> PathBuf {
    let mut target = link.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = target
            .parent()
            .and_then(|folder| folder.canonicalize().ok());
        let Some(folder) = folder.filter(|folder| policy.allows(folder)) else {
            break;
        };
        let Ok(next) = target.read_link() else { break };
        // A path that is absolute replaces the folder.
        target = folder.join(next);
    }
    target
}

/// Reads the card of a directory; `None` if that cannot be read or is too large, which reading the skill reports.
fn read_card(policy: &LinkPolicy, dir: &Path) -> Option<Vec<u8>> {
    let mut card = Vec::new();
    let file = policy.open_file(&dir.join(skill_card::FILE_NAME)).ok()?;
    let mut bounded = file.take(skill_card::BYTES_MAX as u64 + 1);
    bounded.read_to_end(&mut card).ok()?;
    (card.len() <= skill_card::BYTES_MAX).then_some(card)
}

/// Describes one folder of the store, whose skill is at its top.
pub(crate) fn find_documents(policy: &LinkPolicy, dir: &Path) -> FoundFolder {
    let listing = DirectoryListing::read(policy, dir, usize::MAX).unwrap_or_default();
    let place = PendingDirectory {
        path: dir.to_owned(),
        dir: dir.to_owned(),
        depth: 0,
        parent: None,
        plugin: None,
        is_linked: false,
        outer_card: None,
    };
    FoundFolder::new(&place, &listing)
}

/// Chooses the document among files named alike, and reports what is wrong with their names.
fn choose_document(documents: &[String]) -> (Option<String>, Option<Problem>) {
    let exact = documents.iter().any(|name| name == SKILL_MD);
    match documents {
        [] => (None, None),
        [only] if exact => (Some(only.clone()), None),
        [only] => {
            let message =
                format!("{only} should be named {SKILL_MD}: other readers of skills pass it over");
            let problem = Problem::warning("skill.file_name", message);
            (Some(only.clone()), Some(problem))
        }
        all if exact => {
            let message = format!("of {} only {SKILL_MD} was read", all.join(", "));
            let problem = Problem::warning("skill.two_documents", message);
            (Some(SKILL_MD.to_owned()), Some(problem))
        }
        all => {
            let message = format!("name one of {} {SKILL_MD}", all.join(", "));
            (None, Some(Problem::error("skill.two_documents", message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_link_is_followed_beneath_the_roots_only() {
        let dir = tempfile::tempdir().expect("temp dir");
        let base = dir.path().canonicalize().expect("there");
        let root = base.join("root");
        std::fs::create_dir(&root).expect("mkdir");
        let policy = LinkPolicy::new(vec![root.clone()]);
        for (link, target) in [
            ("root/first", "second"),
            ("root/second", "../host"),
            ("host", "secret"),
        ] {
            std::os::unix::fs::symlink(target, base.join(link)).expect("symlink");
        }
        let last = last_target(&policy, &root.join("first"));
        assert_eq!(last, root.join("../host"));
    }

    #[test]
    fn one_document_is_chosen_and_its_name_is_judged() {
        for (names, chosen, code) in [
            (&[][..], None, None),
            (&["SKILL.md"], Some("SKILL.md"), None),
            (&["skill.md"], Some("skill.md"), Some("skill.file_name")),
            (
                &["SKILL.md", "skill.md"],
                Some("SKILL.md"),
                Some("skill.two_documents"),
            ),
            (&["Skill.md", "skill.md"], None, Some("skill.two_documents")),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let (document, problem) = choose_document(&names);
            assert_eq!(document.as_deref(), chosen, "{names:?}");
            assert_eq!(problem.as_ref().map(|problem| problem.code), code);
            // Only one that can't be told apart costs the skill.
            let rejected = problem.is_some_and(|problem| problem.is_error());
            assert_eq!(rejected, names.len() == 2 && chosen.is_none());
        }
    }
}
