//! From a folder to a skill: its SKILL.md and its card, read when they changed and remembered.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::discovery::{Found, Trust};
use super::document::{self, Document};
use super::fingerprint::Stamp;
use super::source::{Folders, Source, Stored};
use super::watch::Watcher;
use super::{Problem, Profile, Skill, SkillState, card, discovery, finding};

/// The documents of all folders.
#[derive(Debug, Default)]
pub(super) struct Documents {
    skill_md_bytes_max: u64,
    known: BTreeMap<PathBuf, Known>,
    /// Of the store, where one folder may be published under several names.
    published: HashMap<(PathBuf, String), Published>,
    /// Number of the look that is under way.
    look: u64,
}

/// What a folder's documents made of it.
#[derive(Debug)]
struct Known {
    found: Found,
    rank: usize,
    root: String,
    origin: Option<String>,
    skill: Result<Arc<Skill>, Problem>,
    /// Its documents as they were.
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    /// They may have changed while they were read.
    unsure: bool,
    /// One is a link.
    linked: bool,
    /// Good until a change is told.
    told: bool,
    look: u64,
}

/// What a published folder's documents made of it.
#[derive(Debug)]
struct Published {
    folder: Stored,
    rank: usize,
    skill: Arc<Skill>,
    look: u64,
}

impl Known {
    fn holds(&self) -> bool {
        self.told
            || (!self.unsure
                && self
                    .stamps
                    .iter()
                    .all(|(path, stamp)| stamp_of(path) == *stamp))
    }
}

fn stamp_of(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().as_ref().map(Stamp::of)
}

// === impl Documents ===

impl Documents {
    pub(super) fn new(skill_md_bytes_max: u64) -> Self {
        Self {
            skill_md_bytes_max,
            ..Self::default()
        }
    }

    /// Whether what nobody tells about is as it was.
    pub(super) fn holds(&self) -> bool {
        self.known.values().all(Known::holds)
    }

    /// Those of a folder changed.
    pub(super) fn changed(&mut self, dir: &Path) {
        self.known.remove(dir);
    }

    /// Any may have changed.
    pub(super) fn all_changed(&mut self) {
        self.known.values_mut().for_each(|known| known.told = false);
    }

    /// A folder and all beneath it are elsewhere now, or nowhere.
    pub(super) fn forget_beneath(&mut self, dir: &Path) {
        let beneath = self.known.range(dir.to_owned()..).map(|(path, _)| path);
        let beneath = beneath.take_while(|path| path.starts_with(dir));
        let paths: Vec<PathBuf> = beneath.cloned().collect();
        for path in paths {
            self.known.remove(&path);
        }
    }

    /// Begins a look at all folders.
    pub(super) fn begin(&mut self) {
        self.look += 1;
    }

    /// Ends it: folders that were not asked for are forgotten.
    pub(super) fn end(&mut self) {
        let look = self.look;
        self.known.retain(|_, known| known.look == look);
        self.published.retain(|_, known| known.look == look);
    }

    /// The skill of a folder that was found in a source of this rank. An error if it has no name to be listed under.
    pub(super) fn found(
        &mut self,
        found: &Found,
        (rank, source): (usize, &Source),
        trust: &Trust,
        watcher: &Watcher,
    ) -> Result<Arc<Skill>, Problem> {
        let look = self.look;
        // Asked before anything is looked at: what changes after the look is told.
        let watched = watcher.watches(&found.dir);
        if let Some(known) = self.known.get_mut(&found.dir)
            && known.found == *found
            && (known.rank, &known.root, &known.origin) == (rank, &source.root, &source.origin)
            && known.holds()
        {
            known.look = look;
            known.told = watched && !known.linked;
            return known.skill.clone();
        }
        let started = SystemTime::now();
        let mut reading = Reading::new(trust, self.skill_md_bytes_max);
        let name = found.path.file_name().map(|name| name.to_string_lossy());
        let read = reading.folder(found, &name.unwrap_or_default());
        let place = source.origin.clone().unwrap_or_else(|| place(found));
        let skill = skill(found, read, &mut reading, (rank, source), place);
        let stamps = reading.stamps;
        let recent = |(_, stamp): &(PathBuf, Option<Stamp>)| {
            stamp.is_some_and(|stamp| stamp.is_recent(started))
        };
        let known = Known {
            found: found.clone(),
            rank,
            root: source.root.clone(),
            origin: source.origin.clone(),
            skill: skill.clone(),
            unsure: stamps.iter().any(recent),
            stamps,
            linked: reading.linked,
            told: watched && !reading.linked,
            look,
        };
        self.known.insert(found.dir.clone(), known);
        skill
    }

    /// The skill of a folder of the store, which does not change.
    pub(super) fn stored(
        &mut self,
        folder: &Stored,
        (rank, source): (usize, &Source),
    ) -> Result<Arc<Skill>, Problem> {
        let key = (folder.dir.clone(), folder.name.clone());
        if let Some(known) = self.published.get_mut(&key)
            && (&known.folder, known.rank) == (folder, rank)
        {
            known.look = self.look;
            return Ok(Arc::clone(&known.skill));
        }
        let trust = Trust::new(vec![folder.dir.clone()]);
        let mut reading = Reading::new(&trust, self.skill_md_bytes_max);
        let found = discovery::stored(&trust, &folder.dir);
        let read = reading.folder(&found, &folder.name);
        let mut skill = skill(&found, read, &mut reading, (rank, source), String::new())?;
        if let Some(skill) = Arc::get_mut(&mut skill) {
            skill.update_time = Some(folder.time);
            skill.fixed = true;
            if skill.front_matter.name.is_empty() {
                skill.name.clone_from(&folder.name);
            }
        }
        // What is broken may be put there again, or was read while it was taken away.
        if skill.state != SkillState::Rejected {
            let known = Published {
                folder: folder.clone(),
                rank,
                skill: Arc::clone(&skill),
                look: self.look,
            };
            self.published.insert(key, known);
        }
        Ok(skill)
    }

    /// The documents of a skill, read now.
    pub(super) fn read(
        bytes_max: u64,
        dir: &Path,
        trust: &Trust,
        name: &str,
    ) -> Result<Document, Problem> {
        let found = discovery::stored(trust, dir);
        Reading::new(trust, bytes_max).folder(&found, name)
    }
}

/// Where a folder lies, with what a link led to as `ls -l` shows it.
fn place(found: &Found) -> String {
    let path = found.path.display();
    match found.linked {
        false => path.to_string(),
        true => format!("{path} -> {}", found.dir.display()),
    }
}

/// Where a folder lies in its source: the same after a remote one was fetched again, which then lies elsewhere.
fn within(found: &Found, source: &Source) -> String {
    let Folders::Beneath(root) = &source.folders else {
        return String::new();
    };
    let within = found.path.strip_prefix(root).unwrap_or(&found.path);
    within.to_string_lossy().into_owned()
}

/// What the documents make of a folder.
fn skill(
    found: &Found,
    read: Result<Document, Problem>,
    reading: &mut Reading<'_>,
    (rank, source): (usize, &Source),
    place: String,
) -> Result<Arc<Skill>, Problem> {
    let name = found.path.file_name().and_then(|name| name.to_str());
    let mut skill = Skill {
        name: name.unwrap_or_default().to_owned(),
        root: source.root.clone(),
        rank,
        source: place,
        found_at: found.path.clone(),
        within: within(found, source),
        dir: found.dir.clone(),
        nested: found.nested.clone(),
        others: found.problems.clone(),
        update_time: reading.modified,
        ..Skill::default()
    };
    match read {
        Ok(document) => {
            if !document.front_matter.name.is_empty() {
                skill.name.clone_from(&document.front_matter.name);
            }
            let card = document.front_matter.card.as_ref();
            let there = |file: &str| fs::symlink_metadata(found.dir.join(file)).is_ok();
            skill
                .others
                .extend(card.and_then(|card| card.missing(there)));
            skill.front_matter = Arc::new(document.front_matter);
            skill.findings = document.findings;
            if source.from_card {
                skill.findings.remove(finding::CARD_BASE_URI);
            }
        }
        Err(problem) => skill.others.push(problem),
    }
    let others = std::mem::take(&mut skill.others);
    skill.others = others
        .into_iter()
        .chain(reading.elsewhere.drain(..))
        .map(|problem| problem.about(&found.path))
        .collect();
    skill.judge(Profile::Lenient);
    if skill.state == SkillState::Rejected
        && !super::is_name(&skill.name)
        && let Some(problem) = skill.problems.first()
    {
        return Err(problem.clone());
    }
    Ok(Arc::new(skill))
}

/// One look at the documents of a folder.
#[derive(Debug)]
struct Reading<'a> {
    trust: &'a Trust,
    skill_md_bytes_max: u64,
    stamps: Vec<(PathBuf, Option<Stamp>)>,
    /// A document is a link: what it leads to may change without a word.
    linked: bool,
    /// Documents that lie in another folder.
    elsewhere: Vec<Problem>,
    modified: Option<SystemTime>,
}

impl<'a> Reading<'a> {
    fn new(trust: &'a Trust, skill_md_bytes_max: u64) -> Self {
        Self {
            trust,
            skill_md_bytes_max,
            stamps: Vec::new(),
            linked: false,
            elsewhere: Vec::new(),
            modified: None,
        }
    }

    /// Reads what there is. `name` is the folder's.
    fn folder(&mut self, found: &Found, name: &str) -> Result<Document, Problem> {
        let (document, bytes_max) = (found.document.as_deref(), self.skill_md_bytes_max);
        let skill_md = document.map(|file| self.file(&found.dir, file, bytes_max));
        let card = found
            .card
            .then(|| self.file(&found.dir, card::FILE_NAME, card::BYTES_MAX as u64));
        let (skill_md, card) = (skill_md.transpose()?, card.transpose()?);
        Ok(document::read(skill_md.as_deref(), card.as_deref(), name))
    }

    fn file(&mut self, dir: &Path, name: &str, bytes_max: u64) -> Result<Vec<u8>, Problem> {
        let path = dir.join(name);
        self.stamps.push((path.clone(), stamp_of(&path)));
        let unreadable = |error: io::Error| {
            Problem::error("skill.unreadable", format!("cannot read {name}: {error}"))
        };
        let metadata = fs::symlink_metadata(&path).map_err(unreadable)?;
        let real = if metadata.is_symlink() {
            self.linked = true;
            path.canonicalize().map_err(unreadable)?
        } else {
            path
        };
        if !self.trust.holds(&real) {
            let message = format!(
                "{name} is a link that leads out of the roots, to {}",
                real.display()
            );
            return Err(Problem::error("skill.link_outside", message));
        }
        let metadata = fs::symlink_metadata(&real).map_err(unreadable)?;
        if !metadata.is_file() {
            let message = format!("{name} is not a regular file");
            return Err(Problem::error("skill.special_file", message));
        }
        if !real.starts_with(dir) {
            let message = format!("{name} is a link; taken is {}", real.display());
            let problem = Problem::warning("skill.linked_document", message);
            self.elsewhere.push(problem);
        }
        self.modified = self.modified.or(metadata.modified().ok());
        let file = self.trust.file(&real).map_err(unreadable)?;
        let mut bytes = Vec::new();
        let mut bounded = file.take(bytes_max + 1);
        bounded.read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > bytes_max {
            let message = format!("{name} has more than {bytes_max} bytes");
            return Err(Problem::error("skill.too_large", message));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_not_looked_at_again_after_a_refresh() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().canonicalize().expect("a real path");
        let path = root.join(discovery::SKILL_MD);
        fs::write(&path, "---\nname: a\ndescription: b\n---\n").expect("written");
        // Later than the clock tick in which the file was written.
        while stamp_of(&path).is_some_and(|stamp| stamp.is_recent(SystemTime::now())) {
            std::thread::yield_now();
        }
        let source = Source {
            root: root.display().to_string(),
            origin: None,
            from_card: false,
            folders: Folders::Beneath(root.clone()),
            problems: Vec::new(),
        };
        let (trust, watcher) = (Trust::new(vec![root.clone()]), Watcher::new(8));
        let found = discovery::stored(&trust, &root);
        let mut documents = Documents::new(1 << 20);
        let mut told = |watcher: &Watcher| {
            let read = documents.found(&found, (0, &source), &trust, watcher);
            read.expect("a skill");
            let told = documents.known.values().all(|known| known.told);
            documents.all_changed();
            told
        };
        assert!(!told(&watcher), "nobody watches it");
        let device = std::os::unix::fs::MetadataExt::dev(&fs::metadata(&root).expect("there"));
        // Where inotify is used up there is nothing to see.
        if watcher.watch(&root, device) {
            assert!(told(&watcher), "it is looked at though it is watched");
            assert!(told(&watcher), "it is looked at for ever after a refresh");
        }
    }

    #[test]
    fn a_base_uri_is_a_warning_unless_the_files_were_fetched_from_it() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().canonicalize().expect("a real path");
        fs::write(root.join(discovery::SKILL_MD), "Do it.\n").expect("written");
        let card = r#"{"id": "a", "description": "b", "base_uri": "../files/"}"#;
        fs::write(root.join(card::FILE_NAME), card).expect("written");
        let (trust, watcher) = (Trust::new(vec![root.clone()]), Watcher::new(8));
        let found = discovery::stored(&trust, &root);
        let codes = |from_card: bool| {
            let source = Source {
                root: "https://skills.example/skill-card.json".to_owned(),
                origin: Some("https://skills.example/skill-card.json".to_owned()),
                from_card,
                folders: Folders::Beneath(root.clone()),
                problems: Vec::new(),
            };
            let mut documents = Documents::new(1 << 20);
            let skill = documents.found(&found, (0, &source), &trust, &watcher);
            let problems = skill.expect("a skill").problems.clone();
            problems.iter().map(|it| it.code).collect::<Vec<_>>()
        };
        assert_eq!(codes(false), ["card.base_uri"]);
        assert_eq!(codes(true), Vec::<&str>::new());
    }
}
