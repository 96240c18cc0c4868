//! Finding the folders beneath a root that are skills. What a directory holds is remembered: a walk reads again only
//! those that changed, and is otherwise a walk through memory.
//!
//! A folder is a skill if it has a SKILL.md, in whatever case, or a skill-card.json; folders within it may be skills
//! too. Links are followed to what lies beneath a root, after everything that is reached without one, so that a
//! folder keeps its own name; no folder is read twice. What was not looked at is a problem that says so.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::fingerprint::Stamp;
use super::watch::Watcher;
use super::{Problem, card};

mod listing;
mod trust;

pub(super) use listing::{Listing, SKILL_MD};
pub(super) use trust::Trust;

/// How far a root is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Folders below the root.
    pub(super) depth_max: usize,
    /// Directories that are looked into.
    pub(super) dirs_max: usize,
    /// Their entries.
    pub(super) entries_max: usize,
}

/// A folder that is a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// As it was found: the root as configured and what follows, links included.
    pub(super) path: PathBuf,
    /// The same without links.
    pub(super) dir: PathBuf,
    /// There is one on the way from the root.
    pub(super) linked: bool,
    /// Name of its SKILL.md; `None` if it has a card only.
    pub(super) document: Option<String>,
    /// It has a skill-card.json.
    pub(super) card: bool,
    /// Place among what was found of the skill around it.
    pub(super) parent: Option<usize>,
    /// Folders within it that are skills, relative to it.
    pub(super) nested: Vec<PathBuf>,
    /// Of its file names.
    pub(super) problems: Vec<Problem>,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) found: Vec<Found>,
    pub(super) problems: Vec<Problem>,
    /// The root could be read.
    pub(super) readable: bool,
}

/// What is remembered of directories, and what cannot be watched.
#[derive(Debug, Default)]
pub(super) struct Memory {
    dirs: BTreeMap<PathBuf, Arc<Listing>>,
    /// What nobody tells about, as it was when it was looked at.
    looks: Vec<(PathBuf, Option<Stamp>)>,
    /// Something may have changed while it was looked at.
    unsure: bool,
}

// === impl Memory ===

impl Memory {
    /// Whether what nobody tells about is as it was.
    pub(super) fn holds(&self) -> bool {
        let same = |(path, stamp): &(PathBuf, Option<Stamp>)| stamp_of(path) == *stamp;
        !self.unsure && self.looks.iter().all(same)
    }

    /// Begins a walk of everything: what was looked at must be looked at again.
    pub(super) fn begin(&mut self) {
        self.unsure = false;
        for (path, _) in std::mem::take(&mut self.looks) {
            self.dirs.remove(&path);
        }
    }

    /// Ends it: what was not visited is forgotten.
    pub(super) fn retain(&mut self, visited: &HashSet<PathBuf>) {
        self.dirs.retain(|dir, _| visited.contains(dir));
    }

    /// Forgets one directory.
    pub(super) fn forget(&mut self, dir: &Path) {
        self.dirs.remove(dir);
    }

    /// Forgets a directory and all beneath it.
    pub(super) fn forget_beneath(&mut self, dir: &Path) {
        let beneath = self.dirs.range(dir.to_owned()..).map(|(path, _)| path);
        let beneath = beneath.take_while(|path| path.starts_with(dir));
        let paths: Vec<PathBuf> = beneath.cloned().collect();
        for path in paths {
            self.dirs.remove(&path);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Remembers how something is that nobody tells about.
    pub(super) fn look(&mut self, path: &Path, started: SystemTime) {
        let stamp = stamp_of(path);
        // What was just changed may change again without a trace.
        self.unsure |= stamp.is_some_and(|stamp| stamp.is_recent(started));
        self.looks.push((path.to_owned(), stamp));
    }
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().as_ref().map(Stamp::of)
}

/// One walk through all roots.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    memory: &'a mut Memory,
    watcher: &'a Watcher,
    trust: &'a Trust,
    limits: Limits,
    started: SystemTime,
    /// Directories by device and inode: links can make circles, and roots can lie in one another.
    visited: HashSet<(u64, u64)>,
    paths: HashSet<PathBuf>,
    /// Of the root at hand.
    walked: Walked,
    links: VecDeque<Place>,
    dirs: usize,
    entries: usize,
    too_deep: Option<PathBuf>,
}

/// A directory to be looked into.
#[derive(Debug, Clone)]
struct Place {
    path: PathBuf,
    dir: PathBuf,
    depth: usize,
    /// The skill around it.
    parent: Option<usize>,
    linked: bool,
}

// === impl Walk ===

impl<'a> Walk<'a> {
    pub(super) fn new(
        memory: &'a mut Memory,
        watcher: &'a Watcher,
        trust: &'a Trust,
        limits: Limits,
    ) -> Self {
        memory.begin();
        Self {
            memory,
            watcher,
            trust,
            limits,
            started: SystemTime::now(),
            visited: HashSet::new(),
            paths: HashSet::new(),
            walked: Walked::default(),
            links: VecDeque::new(),
            dirs: 0,
            entries: 0,
            too_deep: None,
        }
    }

    /// Forgets what no root leads to any longer. Answers the directories that were visited.
    pub(super) fn finish(self) -> HashSet<PathBuf> {
        self.memory.retain(&self.paths);
        self.paths
    }

    /// Finds the skills beneath one root.
    pub(super) fn root(&mut self, root: &Path) -> Walked {
        (self.dirs, self.entries, self.too_deep) = (0, 0, None);
        self.walked.readable = true;
        match root.canonicalize() {
            Ok(dir) => self.directory(Place {
                path: root.to_owned(),
                dir,
                depth: 0,
                parent: None,
                linked: false,
            }),
            Err(error) => self.root_unreadable(root, &error),
        }
        while let Some(link) = self.links.pop_front() {
            self.link(link);
        }
        self.report(root);
        std::mem::take(&mut self.walked)
    }

    fn directory(&mut self, place: Place) {
        if self.dirs >= self.limits.dirs_max || self.entries > self.limits.entries_max {
            self.dirs += 1;
            return;
        }
        let listing = match self.listing(&place.dir) {
            Ok(listing) => listing,
            Err(error) if place.depth == 0 => return self.root_unreadable(&place.path, &error),
            Err(error) => return self.unreadable(&place.path, &error),
        };
        if !self.visited.insert(listing.id) {
            if place.depth == 0 {
                let message = "an earlier root holds this directory already";
                self.problem(Problem::warning("root.duplicate", message), &place.path);
            }
            return;
        }
        self.paths.insert(place.dir.clone());
        self.dirs += 1;
        self.entries += listing.entries;
        if listing.cut {
            self.entries = self.limits.entries_max.saturating_add(1);
        }
        let parent = self.skill(&place, &listing).or(place.parent);
        let below = |name: &std::ffi::OsString| Place {
            path: place.path.join(name),
            dir: place.dir.join(name),
            depth: place.depth + 1,
            parent,
            linked: place.linked,
        };
        if place.depth >= self.limits.depth_max {
            // What a skill keeps so deep is its own business.
            if parent.is_none() && !listing.dirs.is_empty() {
                self.too_deep.get_or_insert(place.path);
            }
            return;
        }
        for name in &listing.links {
            self.links.push_back(below(name));
        }
        for name in &listing.dirs {
            self.directory(below(name));
        }
    }

    /// What is in a directory, read only if it may have changed.
    fn listing(&mut self, dir: &Path) -> io::Result<Arc<Listing>> {
        if let Some(listing) = self.memory.dirs.get(dir) {
            return Ok(Arc::clone(listing));
        }
        // Watched before it is read: nothing is missed in between.
        let device = fs::symlink_metadata(dir).map(|metadata| metadata.dev());
        let watched = device.is_ok_and(|device| self.watcher.watch(dir, device));
        if !watched {
            self.memory.look(dir, self.started);
        }
        let listing = Listing::read(self.trust, dir, self.limits.entries_max);
        let listing = listing.map(Arc::new).inspect_err(|_| {
            if watched {
                self.memory.look(dir, self.started);
            }
        })?;
        self.memory
            .dirs
            .insert(dir.to_owned(), Arc::clone(&listing));
        Ok(listing)
    }

    /// Follows a link if it leads to a directory beneath a root.
    fn link(&mut self, link: Place) {
        self.memory.look(&link.path, self.started);
        let real = match link.path.canonicalize() {
            Ok(real) => real,
            // A skill's own links are looked at when its files are.
            Err(_) if link.parent.is_some() => return,
            Err(error) => return self.unreadable(&link.path, &error),
        };
        if !real.is_dir() {
            return;
        }
        if self.trust.holds(&real) {
            self.directory(Place {
                dir: real,
                linked: true,
                ..link
            });
        } else if link.parent.is_none() {
            let message = format!("the link leads out of the roots, to {}", real.display());
            self.problem(Problem::error("root.link_outside", message), &link.path);
        }
    }

    /// Notes the skill that a directory is.
    fn skill(&mut self, place: &Place, listing: &Listing) -> Option<usize> {
        if listing.documents.is_empty() && !listing.card {
            return None;
        }
        let (document, problem) = choose(&listing.documents);
        let this = self.walked.found.len();
        let mut around = place.parent;
        while let Some(skill) = around.and_then(|index| self.walked.found.get_mut(index)) {
            // A link can lead out of it; then it is no part of it.
            if let Ok(below) = place.dir.strip_prefix(&skill.dir) {
                skill.nested.push(below.to_owned());
            }
            around = skill.parent;
        }
        self.walked.found.push(Found {
            path: place.path.clone(),
            dir: place.dir.clone(),
            linked: place.linked,
            document,
            card: listing.card,
            parent: place.parent,
            nested: Vec::new(),
            problems: problem.into_iter().collect(),
        });
        Some(this)
    }

    fn root_unreadable(&mut self, root: &Path, error: &io::Error) {
        self.walked.readable = false;
        self.memory.look(root, self.started);
        let message = format!("cannot read {}: {error}", root.display());
        self.problem(Problem::error("root.unreadable", message), root);
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        let message = format!("cannot read {}: {error}", path.display());
        self.problem(Problem::error("root.folder_unreadable", message), path);
    }

    fn problem(&mut self, problem: Problem, subject: &Path) {
        self.walked.problems.push(problem.about(subject));
    }

    /// Says what was not looked at.
    fn report(&mut self, root: &Path) {
        let Limits {
            depth_max,
            dirs_max,
            entries_max,
        } = self.limits;
        if self.entries > entries_max {
            let message = format!(
                "more than {entries_max} entries; the rest was not looked at: put skills into a folder of their own, \
                 or raise skills.entries_max"
            );
            self.problem(Problem::error("root.too_many_entries", message), root);
        } else if self.dirs > dirs_max {
            let message = format!(
                "more than {dirs_max} directories; the rest was not looked at: put skills into a folder of their own, \
                 or raise skills.dirs_max"
            );
            self.problem(Problem::error("root.too_many_dirs", message), root);
        }
        if let Some(dir) = self.too_deep.take() {
            let message = format!(
                "folders in {} are more than {depth_max} deep and were not looked at",
                dir.display()
            );
            self.problem(Problem::warning("root.too_deep", message), root);
        }
    }
}

/// A folder that need not be looked for.
pub(super) fn stored(trust: &Trust, dir: &Path) -> Found {
    let listing = Listing::read(trust, dir, usize::MAX).unwrap_or_default();
    let (document, problem) = choose(&listing.documents);
    Found {
        path: dir.to_owned(),
        dir: dir.to_owned(),
        linked: false,
        document,
        card: listing.card,
        parent: None,
        nested: Vec::new(),
        problems: problem.into_iter().collect(),
    }
}

/// Whether a file of this path says what a skill is.
pub(super) fn is_document(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.eq_ignore_ascii_case(SKILL_MD) || name == card::FILE_NAME)
}

/// The document among files named alike, and what is wrong with their names.
fn choose(documents: &[String]) -> (Option<String>, Option<Problem>) {
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
            let (document, problem) = choose(&names);
            assert_eq!(document.as_deref(), chosen, "{names:?}");
            assert_eq!(problem.as_ref().map(|problem| problem.code), code);
            // Only one that can't be told apart costs the skill.
            let rejected = problem.is_some_and(|problem| problem.is_error());
            assert_eq!(rejected, names.len() == 2 && chosen.is_none());
        }
    }
}
