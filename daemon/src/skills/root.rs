//! Roots: directories with a folder per skill, each with its SKILL.md. Read when asked for, and again when
//! anything that was looked at has changed.
//!
//! Only names and front matter are looked at here; the rest of a folder is `content.rs`'s. A root that cannot be
//! read, and a folder that cannot be used, is a problem that is listed and logged, never an empty list.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::card;
use super::document::{self, Document};
use super::finding::Profile;
use super::fingerprint::Stamp;
use super::source::{Folders, Source, Stored};
use super::{FrontMatter, Problem, Skill, SkillState};
use crate::config::SkillsConfig;

/// Folders below a root in which skills are looked for.
const DEPTH_MAX: usize = 4;
/// Entries of one root that are looked at.
const ENTRIES_MAX: usize = 20_000;
/// The document.
const SKILL_MD: &str = "SKILL.md";

/// What all sources held at one moment.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Higher than that of every catalogue before it; equal only if nothing changed.
    pub generation: u64,
    /// Sorted by name; usable ones first among equals. Without contents.
    pub skills: Vec<Arc<Skill>>,
    /// Those that belong to no skill.
    pub problems: Vec<Problem>,
}

/// What was last seen in the sources.
#[derive(Debug)]
pub(super) struct Roots {
    skill_md_bytes_max: u64,
    skills_max: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    latest: Option<Arc<Latest>>,
    /// What was logged last, so that a standing problem is logged once.
    logged: Vec<Problem>,
    generation: u64,
}

#[derive(Debug)]
struct Latest {
    catalogue: Arc<Catalogue>,
    sources: Vec<Source>,
    /// Everything that was looked at, and how it was; `None` where there was nothing.
    stamps: Vec<(PathBuf, Option<Stamp>)>,
}

impl Roots {
    pub(super) fn new(config: &SkillsConfig) -> Self {
        Self {
            skill_md_bytes_max: config.skill_md_bytes_max,
            skills_max: config.skills_max,
            seen: Mutex::default(),
        }
    }

    /// What the sources hold now.
    pub(super) fn catalogue(&self, sources: &[Source]) -> Arc<Catalogue> {
        let latest = self.seen().latest.clone();
        if let Some(latest) = latest
            && latest.sources == sources
            && latest
                .stamps
                .iter()
                .all(|(path, stamp)| stamp_of(path) == *stamp)
        {
            return Arc::clone(&latest.catalogue);
        }
        let started = SystemTime::now();
        let mut scan = Scan::new(self, sources);
        for source in sources {
            scan.source(source);
        }
        let recent = scan.stamps.iter().any(|(_, stamp)| {
            // What was just changed may change again without a trace.
            stamp.is_some_and(|stamp| stamp.is_recent(started))
        });
        let (mut catalogue, stamps) = scan.finish();
        let mut seen = self.seen();
        seen.generation += 1;
        catalogue.generation = seen.generation;
        let catalogue = Arc::new(catalogue);
        seen.log(&catalogue);
        seen.latest = (!recent).then(|| {
            Arc::new(Latest {
                catalogue: Arc::clone(&catalogue),
                sources: sources.to_vec(),
                stamps,
            })
        });
        catalogue
    }

    /// Reads the SKILL.md and the card of a folder, whose name is `name`. An error is that neither can be read.
    pub(super) fn read(&self, dir: &Path, name: &str) -> Result<Document, Problem> {
        let skill_md = self.file(dir, SKILL_MD, self.skill_md_bytes_max)?;
        let card = self.file(dir, card::FILE_NAME, card::BYTES_MAX as u64)?;
        if skill_md.is_none() && card.is_none() {
            return Err(Problem::error("skill.unreadable", "SKILL.md is gone").about(dir));
        }
        Ok(document::read(skill_md.as_deref(), card.as_deref(), name))
    }

    /// One file of a folder, `None` if it is not there.
    fn file(&self, dir: &Path, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Problem> {
        let unreadable = |error: std::io::Error| {
            let message = format!("cannot read {name}: {error}");
            Problem::error("skill.unreadable", message).about(dir)
        };
        let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
        let mut options = fs::OpenOptions::new();
        let opened = options
            .read(true)
            .custom_flags(flags.bits())
            .open(dir.join(name));
        let file = match opened {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(unreadable)?,
        };
        if !file.metadata().map_err(unreadable)?.is_file() {
            let message = format!("{name} is not a regular file");
            return Err(Problem::error("skill.special_file", message).about(dir));
        }
        let mut bytes = Vec::new();
        let mut bounded = file.take(bytes_max + 1);
        bounded.read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > bytes_max {
            let message = format!("{name} has more than {bytes_max} bytes");
            return Err(Problem::error("skill.too_large", message).about(dir));
        }
        Ok(Some(bytes))
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn log(&mut self, catalogue: &Catalogue) {
        let of_skills = catalogue.skills.iter().flat_map(|skill| &skill.problems);
        let problems: Vec<Problem> = catalogue
            .problems
            .iter()
            .chain(of_skills)
            .cloned()
            .collect();
        for problem in problems
            .iter()
            .filter(|problem| !self.logged.contains(problem))
        {
            tracing::warn!(
                code = problem.code,
                subject = problem.subject,
                line = problem.line,
                problem = problem.message,
                "skill problem"
            );
        }
        self.logged = problems;
    }
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    fs::symlink_metadata(path).ok().as_ref().map(Stamp::of)
}

/// One look at all roots.
struct Scan<'a> {
    roots: &'a Roots,
    /// Real paths; a link may lead into any of them.
    trusted: Vec<PathBuf>,
    skills: Vec<Skill>,
    problems: Vec<Problem>,
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    /// Folders by device and inode: links can make circles.
    visited: HashSet<(u64, u64)>,
    /// Entries seen in the current root.
    entries: usize,
    /// The current root is deeper than it is read.
    too_deep: Option<PathBuf>,
    too_many: bool,
}

impl<'a> Scan<'a> {
    fn new(roots: &'a Roots, sources: &[Source]) -> Self {
        Self {
            roots,
            trusted: sources
                .iter()
                .filter_map(|source| match &source.folders {
                    Folders::Beneath(dir) => dir.canonicalize().ok(),
                    Folders::Missing | Folders::Stored(_) => None,
                })
                .collect(),
            skills: Vec::new(),
            problems: Vec::new(),
            stamps: Vec::new(),
            visited: HashSet::new(),
            entries: 0,
            too_deep: None,
            too_many: false,
        }
    }

    fn source(&mut self, source: &Source) {
        self.problems.extend(source.problems.iter().cloned());
        let before = self.skills.len();
        match &source.folders {
            Folders::Missing => {}
            Folders::Beneath(dir) => self.root(dir),
            Folders::Stored(folders) => folders.iter().for_each(|folder| self.stored(folder)),
        }
        for skill in self.skills.iter_mut().skip(before) {
            skill.root.clone_from(&source.root);
            let place = || match &source.folders {
                Folders::Stored(_) => String::new(),
                Folders::Missing | Folders::Beneath(_) => skill.dir.display().to_string(),
            };
            skill.source = source.origin.clone().unwrap_or_else(place);
        }
    }

    fn stored(&mut self, folder: &Stored) {
        self.skill(&folder.name, &folder.dir);
        if let Some(skill) = self
            .skills
            .last_mut()
            .filter(|skill| skill.dir == folder.dir)
        {
            skill.update_time = Some(folder.time);
        }
    }

    fn root(&mut self, root: &Path) {
        self.entries = 0;
        self.too_deep = None;
        self.stamps.push((root.to_owned(), stamp_of(root)));
        match root.canonicalize() {
            Ok(real) => self.directory(&real, 0),
            Err(error) => self.unreadable(root, &error),
        }
        if self.entries > ENTRIES_MAX {
            let message = format!("more than {ENTRIES_MAX} entries; the rest was not looked at");
            self.problems
                .push(Problem::error("root.too_many_entries", message).about(root));
        }
        if let Some(dir) = self.too_deep.take() {
            let message = format!(
                "{} is more than {DEPTH_MAX} folders deep and was not looked at",
                dir.display()
            );
            self.problems
                .push(Problem::warning("root.too_deep", message).about(root));
        }
    }

    fn directory(&mut self, dir: &Path, depth: usize) {
        self.stamps.push((dir.to_owned(), stamp_of(dir)));
        match fs::metadata(dir) {
            Ok(metadata) if !self.visited.insert((metadata.dev(), metadata.ino())) => return,
            Ok(_) => {}
            Err(error) => return self.unreadable(dir, &error),
        }
        let names = match self.names(dir) {
            Ok(names) => names,
            Err(error) => return self.unreadable(dir, &error),
        };
        if names
            .iter()
            .any(|name| name == SKILL_MD || name == card::FILE_NAME)
        {
            if depth > 0 {
                let name = dir.file_name().and_then(|name| name.to_str());
                return self.skill(name.unwrap_or_default(), dir);
            }
            let message = "the root is itself a skill; configure the directory above it";
            self.problems
                .push(Problem::error("root.is_skill", message).about(dir));
        } else if let Some(name) = names
            .iter()
            .find(|name| name.eq_ignore_ascii_case(SKILL_MD))
        {
            let message = format!("{name} must be named SKILL.md");
            self.problems
                .push(Problem::error("skill.file_name", message).about(dir));
        }
        for name in names {
            if !name.starts_with('.') && name != "node_modules" && name != "__pycache__" {
                self.below(&dir.join(name), depth + 1);
            }
        }
    }

    /// Names in a directory, sorted. One that is not UTF-8 cannot lead to a skill that has a name.
    fn names(&mut self, dir: &Path) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                break;
            }
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn below(&mut self, path: &Path, depth: usize) {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return;
        };
        if metadata.is_dir() {
            if depth > DEPTH_MAX {
                self.too_deep.get_or_insert_with(|| path.to_owned());
            } else {
                self.directory(path, depth);
            }
        } else if metadata.is_symlink() {
            match path.canonicalize() {
                Ok(real) if !real.is_dir() => {}
                Ok(real) if self.trusted.iter().any(|root| real.starts_with(root)) => {
                    if depth <= DEPTH_MAX {
                        self.directory(&real, depth);
                    }
                }
                Ok(real) => {
                    let message = format!("the link leads out of the roots, to {}", real.display());
                    self.problems
                        .push(Problem::error("root.link_outside", message).about(path));
                }
                Err(error) => self.unreadable(path, &error),
            }
        }
    }

    fn skill(&mut self, folder: &str, dir: &Path) {
        let path = dir.join(SKILL_MD);
        let metadata = fs::symlink_metadata(&path).ok();
        self.stamps.push((path, metadata.as_ref().map(Stamp::of)));
        let card = dir.join(card::FILE_NAME);
        let card_stamp = stamp_of(&card);
        self.stamps.push((card, card_stamp));
        if self.skills.len() >= self.roots.skills_max {
            if !std::mem::replace(&mut self.too_many, true) {
                let message = format!(
                    "there are more than {} skills; this one and others are left out",
                    self.roots.skills_max
                );
                self.problems
                    .push(Problem::error("root.too_many_skills", message).about(dir));
            }
            return;
        }
        let mut skill = Skill {
            name: folder.to_owned(),
            aliases: Vec::new(),
            root: String::new(),
            source: String::new(),
            dir: dir.to_owned(),
            nested: Vec::new(),
            state: SkillState::Loaded,
            front_matter: FrontMatter::default(),
            content: None,
            problems: Vec::new(),
            update_time: metadata.and_then(|metadata| metadata.modified().ok()),
        };
        match self.roots.read(dir, folder) {
            Ok(document) => {
                let refused = document.refusal(Profile::Lenient);
                skill.problems = document.problems(Profile::Lenient);
                let card = document.front_matter.card.as_ref();
                let there = |file: &str| fs::symlink_metadata(dir.join(file)).is_ok();
                skill.problems.extend(
                    card.filter(|card| card.remote().is_none())
                        .and_then(|card| card.missing(there)),
                );
                if let Some(problem) = refused {
                    if document.front_matter.name.is_empty() && !super::is_name(folder) {
                        self.problems.push(problem.about(dir));
                        return;
                    }
                    skill.state = SkillState::Rejected;
                } else if !skill.problems.is_empty() {
                    skill.state = SkillState::LoadedWithWarnings;
                }
                if !document.front_matter.name.is_empty() {
                    skill.name.clone_from(&document.front_matter.name);
                }
                skill.front_matter = document.front_matter;
            }
            Err(problem) if !super::is_name(folder) => {
                self.problems.push(problem.about(dir));
                return;
            }
            Err(problem) => {
                skill.problems.push(problem);
                skill.state = SkillState::Rejected;
            }
        }
        skill.problems = skill
            .problems
            .into_iter()
            .map(|problem| problem.about(dir))
            .collect();
        self.skills.push(skill);
    }

    fn unreadable(&mut self, path: &Path, error: &std::io::Error) {
        let message = format!("cannot read {}: {error}", path.display());
        self.problems
            .push(Problem::error("root.unreadable", message).about(path));
    }

    fn finish(mut self) -> (Catalogue, Vec<(PathBuf, Option<Stamp>)>) {
        let mut first: HashMap<String, PathBuf> = HashMap::new();
        for skill in &mut self.skills {
            if skill.state == SkillState::Rejected {
                continue;
            }
            if let Some(winner) = first.get(&skill.name) {
                let message = format!("{} has this name already and comes first", winner.display());
                let problem = Problem::warning("skill.shadowed", message).about(&skill.dir);
                skill.problems.insert(0, problem);
                skill.state = SkillState::Shadowed;
            } else {
                first.insert(skill.name.clone(), skill.dir.clone());
            }
        }
        let rank = |state: SkillState| match state {
            SkillState::Loaded | SkillState::LoadedWithWarnings => 0,
            SkillState::Rejected => 1,
            SkillState::Shadowed => 2,
        };
        self.skills
            .sort_by(|a, b| a.name.cmp(&b.name).then(rank(a.state).cmp(&rank(b.state))));
        let catalogue = Catalogue {
            generation: 0,
            skills: self.skills.into_iter().map(Arc::new).collect(),
            problems: self.problems,
        };
        (catalogue, self.stamps)
    }
}
