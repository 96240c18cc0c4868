//! What all sources hold, as one list that does not change: made again when something did, and only from what did.
//!
//! ```text
//! watch.rs ─ what changed ─► forgotten in: discovery.rs (directories) · documents.rs · contents.rs
//!                              └─ a walk through what is remembered, reading what is not ─► Catalogue
//! ```
//!
//! Files of skills are not looked at here but for the documents; `contents.rs` does that for the skills that are
//! answered. A root that cannot be read, and a folder that cannot be used, is a problem that is listed and logged.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch as channel;

use super::content::Folder;
use super::contents::Contents;
use super::discovery::{self, Limits, Trust, Walk};
use super::documents::Documents;
use super::skill::Place;
use super::source::{Folders, Source};
use super::watch::{Told, Watcher, What};
use super::{Problem, Skill};
use crate::config::SkillsConfig;

mod gather;

use gather::{Altered, Gathered, order};

/// Problems that are logged of one look; the others are counted.
const LOGGED_MAX: usize = 100;

/// What all sources held at one moment.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Higher than that of every catalogue before it. The same one is answered until something changed that is in it.
    pub generation: u64,
    /// Sorted by name, place of the root, version from high to low, and folder. Without contents.
    pub skills: Vec<Arc<Skill>>,
    /// Those that belong to no skill.
    pub problems: Vec<Problem>,
    /// Places of skills by aliases.
    aliases: HashMap<String, Vec<usize>>,
}

impl Catalogue {
    /// All that have a name or an alias, in order.
    pub(super) fn named(&self, name: &str) -> Vec<&Arc<Skill>> {
        let start = self
            .skills
            .partition_point(|skill| skill.name.as_str() < name);
        let named = self.skills.iter().skip(start);
        let named: Vec<_> = named.take_while(|skill| skill.name == name).collect();
        let aliased = || self.aliases.get(name).into_iter().flatten();
        match named.is_empty() {
            false => named,
            true => aliased()
                .filter_map(|place| self.skills.get(*place))
                .collect(),
        }
    }

    /// Place of the first skill after one that may be gone.
    pub(super) fn start_after(&self, after: &Place) -> usize {
        self.skills
            .partition_point(|skill| order(skill.key(), after.key()) != Ordering::Greater)
    }

    /// Whether two hold the same.
    fn equals(&self, other: &Self) -> bool {
        let pairs = || self.skills.iter().zip(&other.skills);
        self.skills.len() == other.skills.len()
            && pairs().all(|(a, b)| Arc::ptr_eq(a, b))
            && self.problems == other.problems
    }
}

/// The latest catalogue and what it was made from.
#[derive(Debug)]
pub(super) struct Roots {
    limits: Limits,
    skills_max: usize,
    watcher: Arc<Watcher>,
    seen: Mutex<Seen>,
    /// Where links may lead.
    trust: Mutex<Arc<Trust>>,
    /// Every root can be read.
    readable: channel::Sender<bool>,
}

#[derive(Debug, Default)]
struct Seen {
    latest: Option<Arc<Catalogue>>,
    sources: Vec<Source>,
    /// Real paths of roots, by device and inode too: what leads to them may be replaced.
    roots: Vec<Option<(PathBuf, u64, u64)>>,
    directories: discovery::Memory,
    documents: Documents,
    /// By folder and name.
    altered: HashMap<(PathBuf, String), Altered>,
    /// What was logged last, so that a standing problem is logged once.
    logged: HashSet<Problem>,
    generation: u64,
}

// === impl Roots ===

impl Roots {
    pub(super) fn new(config: &SkillsConfig, watcher: Arc<Watcher>) -> Self {
        Self {
            limits: Limits {
                depth_max: config.depth_max,
                dirs_max: config.dirs_max,
                entries_max: config.entries_max,
            },
            skills_max: config.skills_max,
            seen: Mutex::new(Seen {
                documents: Documents::new(config.skill_md_bytes_max),
                ..Seen::default()
            }),
            watcher,
            trust: Mutex::default(),
            readable: channel::Sender::new(true),
        }
    }

    /// Until this is dropped every look hangs.
    #[cfg(test)]
    pub(super) fn hang(&self) -> impl Sized + '_ {
        self.seen()
    }

    /// Whether every root can be read, whenever that changes.
    pub(super) fn readable(&self) -> channel::Receiver<bool> {
        self.readable.subscribe()
    }

    /// What the sources hold now.
    pub(super) fn catalogue(&self, sources: &[Source], contents: &Contents) -> Arc<Catalogue> {
        let mut seen = self.seen();
        let told = self.watcher.told();
        let mut changed = seen.apply(told, contents);
        let roots: Vec<_> = sources.iter().map(identity).collect();
        if seen.roots != roots {
            for (real, _, _) in seen.roots.iter().flatten() {
                self.watcher.forget(real);
            }
            seen.directories.clear();
            contents.all_changed();
            seen.documents.all_changed();
            changed = true;
        }
        if seen.sources != sources {
            changed = true;
        }
        let held = seen.directories.holds() && seen.documents.holds();
        if let Some(latest) = &seen.latest
            && !changed
            && held
        {
            return Arc::clone(latest);
        }
        seen.roots = roots;
        sources.clone_into(&mut seen.sources);
        self.look(&mut seen, contents)
    }

    /// The folder of a skill.
    pub(super) fn folder(&self, skill: &Skill) -> Folder {
        if skill.fixed {
            return Folder::stored(&skill.dir);
        }
        let trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        Folder {
            dir: skill.dir.clone(),
            nested: skill.nested.clone(),
            trust: Arc::clone(&trust),
            fixed: false,
        }
    }

    /// Reads everything again, whatever was told.
    pub(super) fn forget(&self, contents: &Contents) {
        let mut seen = self.seen();
        seen.latest = None;
        seen.directories.clear();
        seen.documents.all_changed();
        contents.all_changed();
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a catalogue; the latest one stays if it is the same.
    fn look(&self, seen: &mut Seen, contents: &Contents) -> Arc<Catalogue> {
        let mut catalogue = self.gather(seen);
        seen.log(&catalogue);
        if let Some(latest) = seen.latest.as_ref().filter(|it| it.equals(&catalogue)) {
            return Arc::clone(latest);
        }
        let dirs: HashSet<&Path> = catalogue
            .skills
            .iter()
            .map(|skill| skill.dir.as_path())
            .collect();
        if let Some(latest) = &seen.latest {
            let gone = latest
                .skills
                .iter()
                .filter(|skill| !dirs.contains(skill.dir.as_path()));
            gone.for_each(|skill| contents.forget_beneath(&skill.dir));
        }
        seen.generation += 1;
        catalogue.generation = seen.generation;
        let catalogue = Arc::new(catalogue);
        seen.latest = Some(Arc::clone(&catalogue));
        catalogue
    }

    fn gather(&self, seen: &mut Seen) -> Catalogue {
        let Seen {
            sources,
            roots,
            directories,
            documents,
            altered,
            ..
        } = seen;
        let real = roots.iter().flatten().map(|(real, _, _)| real.clone());
        let trust = Arc::new(Trust::new(real.collect()));
        self.trust
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&trust);
        documents.begin();
        let mut gathered = Gathered::default();
        let mut walk = Walk::new(directories, &self.watcher, &trust, self.limits);
        let mut readable = true;
        for (rank, source) in sources.iter().enumerate() {
            gathered.problems.extend(source.problems.iter().cloned());
            readable &= !source.problems.iter().any(Problem::is_error);
            match &source.folders {
                Folders::Missing => readable = false,
                Folders::Beneath(dir) => {
                    let walked = walk.root(dir);
                    readable &= walked.readable;
                    gathered.problems.extend(walked.problems);
                    let first = gathered.entries.len();
                    for found in &walked.found {
                        let read = documents.found(found, (rank, source), &trust, &self.watcher);
                        let parent = found.parent.map(|parent| first + parent);
                        gathered.add(read, parent, self.skills_max);
                    }
                }
                Folders::Stored(folders) => {
                    for folder in folders.iter() {
                        let read = documents.stored(folder, (rank, source));
                        gathered.add(read, None, self.skills_max);
                    }
                }
            }
        }
        let visited = walk.finish();
        let folders = gathered.folders();
        // What a skill keeps in hidden folders is watched for its content.
        self.watcher.retain(|dir| {
            visited.contains(dir) || dir.ancestors().any(|above| folders.contains(above))
        });
        documents.end();
        self.readable
            .send_if_modified(|before| std::mem::replace(before, readable) != readable);
        gathered.finish(altered)
    }
}

// === impl Seen ===

impl Seen {
    /// Forgets what changed. True if a catalogue may be another one because of it.
    fn apply(&mut self, told: Told, contents: &Contents) -> bool {
        let Told::Changes(changes) = told else {
            self.directories.clear();
            self.documents.all_changed();
            contents.all_changed();
            return true;
        };
        let mut matters = false;
        for change in changes {
            match &change.what {
                What::Itself => self.forget_beneath(&change.dir, contents),
                What::Dir(dir) => self.forget_beneath(dir, contents),
                What::Entry | What::File(_) => {}
            }
            let document = match &change.what {
                What::File(path) => discovery::is_document(path),
                What::Itself | What::Dir(_) | What::Entry => {
                    self.directories.forget(&change.dir);
                    true
                }
            };
            matters |= document;
            // It may belong to any of the skills around it.
            for dir in change.dir.ancestors() {
                contents.changed(dir);
                if document {
                    self.documents.changed(dir);
                }
            }
        }
        matters
    }

    fn forget_beneath(&mut self, dir: &Path, contents: &Contents) {
        self.directories.forget_beneath(dir);
        self.documents.forget_beneath(dir);
        contents.forget_beneath(dir);
    }

    fn log(&mut self, catalogue: &Catalogue) {
        let of_skills = catalogue.skills.iter().flat_map(|skill| &skill.problems);
        let all: HashSet<Problem> = catalogue
            .problems
            .iter()
            .chain(of_skills)
            .cloned()
            .collect();
        let new = || all.difference(&self.logged);
        for problem in new().take(LOGGED_MAX) {
            tracing::warn!(
                code = problem.code,
                subject = problem.subject,
                line = problem.line,
                problem = problem.message,
                "skill problem"
            );
        }
        let more = new().count().saturating_sub(LOGGED_MAX);
        if more > 0 {
            tracing::warn!(more, "more skill problems: see GetProblems");
        }
        self.logged = all;
    }
}

/// The real path of a source's directory.
fn identity(source: &Source) -> Option<(PathBuf, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let Folders::Beneath(dir) = &source.folders else {
        return None;
    };
    let real = dir.canonicalize().ok()?;
    let metadata = std::fs::metadata(&real).ok()?;
    Some((real, metadata.dev(), metadata.ino()))
}
