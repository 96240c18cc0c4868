//! Ingest: turns a folder into a skill of the catalogue. Its documents are parsed, its files are hashed and put into
//! the store, once for each state of the folder.
//!
//! The state of a local folder is its fingerprint (names, sizes, times and inodes of all files), which every scan
//! takes. A published folder lies in the store and changes only if its files are tampered with.

use std::collections::HashMap;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use super::document_reader::{DocumentReader, read_stored_skill};
use super::ingest_progress::IngestProgress;
use super::skill::{Skill, SkillState};
use crate::content_store::ContentStore;
use crate::content_store::content_hashing::{ContentSource, ContentSummary, IngestError};
use crate::content_store::link_policy::LinkPolicy;
use crate::content_store::metadata_fingerprint::MetadataFingerprint;
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::Problem;
use crate::parse::skill_name::{id_of_name, is_name};
use crate::parse::skill_ref::scoped_name;
use crate::sources::root_walk::FoundFolder;
use crate::sources::skill_source::{SkillSource, StoredFolder};

/// Minimum number of folders for which a further thread is worth its start.
const PARALLEL_MIN: usize = 16;

/// Real path of a folder, and the name under which it was published; empty for a local folder.
type FolderKey = (PathBuf, String);

/// Folder of a source, and the skill that it became.
#[derive(Debug, Clone)]
pub(crate) struct IngestedFolder {
    /// The error is the problem of a folder that has no name to be listed under.
    pub(crate) skill: Result<Arc<Skill>, Problem>,
    /// Index of the skill around it among the folders of the same source.
    pub(crate) parent: Option<usize>,
    key: FolderKey,
    /// `None` if the next scan must read the folder again in any case.
    state: Option<FolderRevision>,
}

/// State of a folder: as long as it is the same, so is the skill.
#[derive(Debug, Clone, PartialEq)]
enum FolderRevision {
    Local(FoundFolder, MetadataFingerprint),
    Stored(StoredFolder),
}

/// Ingests the folders of one source.
#[derive(Debug)]
pub(crate) struct SourceIngest<'a> {
    pub(crate) store: &'a ContentStore,
    pub(crate) link_policy: &'a Arc<LinkPolicy>,
    pub(crate) source: &'a SkillSource,
    /// Position of the source among all sources.
    pub(crate) rank: usize,
    /// Folders of the source as the last scan ingested them.
    pub(crate) known: KnownFolders<'a>,
}

/// Folders that an earlier scan ingested.
#[derive(Debug, Default)]
pub(crate) struct KnownFolders<'a>(HashMap<&'a FolderKey, &'a IngestedFolder>);

impl<'a> KnownFolders<'a> {
    pub(crate) fn new(folders: &'a [IngestedFolder]) -> Self {
        Self(folders.iter().map(|folder| (&folder.key, folder)).collect())
    }

    /// Returns the folder if it is in this state already.
    fn find_unchanged(
        &self,
        key: &FolderKey,
        state: Option<&FolderRevision>,
    ) -> Option<IngestedFolder> {
        let known = self.0.get(key)?;
        let is_unchanged = state.is_some() && known.state.as_ref() == state;
        is_unchanged.then(|| IngestedFolder::clone(known))
    }

    /// Returns the skill; the known one if it is equal, so that an unchanged skill stays the same `Arc`.
    fn prefer_known(
        &self,
        key: &FolderKey,
        skill: Result<Arc<Skill>, Problem>,
    ) -> Result<Arc<Skill>, Problem> {
        let known = self.0.get(key).map(|known| &known.skill);
        known
            .filter(|known| **known == skill)
            .cloned()
            .unwrap_or(skill)
    }
}

impl SourceIngest<'_> {
    /// Ingests local folders. Returns them in their order, and all directories in them.
    pub(crate) fn ingest_local(
        &self,
        folders: &[FoundFolder],
    ) -> (Vec<IngestedFolder>, Vec<PathBuf>) {
        let progress = IngestProgress::new(folders.len());
        let ingested = map_in_parallel(folders, |found| {
            let ingested = self.ingest_local_folder(found);
            progress.count_folder();
            ingested
        });
        let (ingested, directories): (_, Vec<Vec<PathBuf>>) = ingested.into_iter().unzip();
        (ingested, directories.concat())
    }

    fn ingest_local_folder(&self, found: &FoundFolder) -> (IngestedFolder, Vec<PathBuf>) {
        let folder = ContentSource {
            dir: found.dir.clone(),
            nested: found.nested.clone(),
            link_policy: LinkPolicy::of_skill(self.link_policy, &found.dir, found.is_fetched),
            card: found.outer_card.clone(),
        };
        let (started, mut directories) = (SystemTime::now(), Vec::new());
        let before = MetadataFingerprint::take(&folder, self.store.bounds, |dir| {
            directories.push(dir.to_owned());
        });
        let key = (found.dir.clone(), String::new());
        let state = before.map(|before| FolderRevision::Local(found.clone(), before));
        if let Some(unchanged) = self.known.find_unchanged(&key, state.as_ref()) {
            return (unchanged, directories);
        }
        let skill = self.read_local_skill(found, &folder);
        // Changes during the read, or too shortly before it, would not be noticed later.
        let is_settled = before.is_some_and(|before| {
            let after = MetadataFingerprint::take(&folder, self.store.bounds, |_| {});
            !before.is_recent(started) && after == Some(before)
        });
        let ingested = IngestedFolder {
            skill: self.known.prefer_known(&key, skill),
            parent: found.parent,
            key,
            state: state.filter(|_| is_settled),
        };
        (ingested, directories)
    }

    /// Ingests a published folder.
    pub(crate) fn ingest_published(&self, folder: &StoredFolder) -> IngestedFolder {
        let key = (folder.dir.clone(), folder.name.clone());
        let state = FolderRevision::Stored(folder.clone());
        if self.store.is_unchanged(&folder.digest)
            && let Some(unchanged) = self.known.find_unchanged(&key, Some(&state))
        {
            return unchanged;
        }
        let mut skill = read_stored_skill(self.store, &folder.digest, &folder.name);
        skill.rank = self.rank;
        skill.update_time = Some(folder.time);
        // A rejected one may be repaired by publishing it again.
        let is_settled = skill.state != SkillState::Rejected;
        IngestedFolder {
            skill: self.known.prefer_known(&key, Ok(Arc::new(skill))),
            parent: None,
            key,
            state: is_settled.then_some(state),
        }
    }

    /// Reads a folder's documents and, unless they reject it, puts its files into the store.
    fn read_local_skill(
        &self,
        found: &FoundFolder,
        folder: &ContentSource,
    ) -> Result<Arc<Skill>, Problem> {
        let folder_name = found.path.file_name().unwrap_or_default();
        let origin = self.source.origin.clone();
        let shown = folder_name.to_string_lossy();
        let mut skill = Skill {
            name: id_of_name(&shown).unwrap_or_else(|| shown.into_owned()),
            root: self.source.root.clone(),
            rank: self.rank,
            source: origin.unwrap_or_else(|| describe_location(found)),
            found_at: found.path.clone(),
            within: self.source.relative_path(&found.path),
            dir: found.dir.clone(),
            nested: found.nested.clone(),
            outer_card: found.outer_card.clone(),
            is_fetched: found.is_fetched,
            plugin: found.plugin.clone(),
            other_problems: found.problems.clone(),
            ..Skill::default()
        };
        let mut reader = DocumentReader::new(&folder.link_policy, self.store.skill_md_bytes_max);
        match reader.read_documents(found, &folder_name.to_string_lossy()) {
            Ok(document) => {
                if !document.front_matter.name.is_empty() {
                    skill.name.clone_from(&document.front_matter.name);
                }
                skill.apply_document(document, &found.dir);
            }
            Err(problem) => skill.other_problems.push(problem),
        }
        skill.update_time = reader.modified;
        skill.other_problems.append(&mut reader.problems);
        for problem in &mut skill.other_problems {
            *problem = problem.clone().about(&found.path);
        }
        if let Some(plugin) = skill.plugin.as_ref().filter(|_| is_name(&skill.name)) {
            skill.aliases = vec![scoped_name(&plugin.name, &skill.name)];
        }
        skill.judge(ValidationProfile::Lenient);
        if skill.state != SkillState::Rejected {
            let content = self
                .store
                .ingest(folder, &skill.name)
                .map_err(IngestError::into_problem);
            let clash = content
                .as_ref()
                .ok()
                .and_then(ContentSummary::case_clash_problem);
            skill.apply_content(match clash.filter(|_| self.source.origin.is_some()) {
                Some(problem) => Err(problem),
                None => content,
            });
        } else if !is_name(&skill.name)
            && let Some(problem) = skill.problems.first()
        {
            return Err(problem.clone());
        }
        Ok(Arc::new(skill))
    }
}

/// Describes where a folder lies, with the target of a link as `ls -l` shows it.
fn describe_location(found: &FoundFolder) -> String {
    let path = found.path.display();
    if found.is_linked {
        format!("{path} -> {}", found.dir.display())
    } else {
        path.to_string()
    }
}

/// Applies blocking work to all items on half of the processors: the first scan hashes every skill, and the first
/// listing waits for it, but commands run on the host meanwhile.
fn map_in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (processors / 2).max(1);
    let share = items.len().div_ceil(threads).max(PARALLEL_MIN);
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = items
            .chunks(share)
            .map(|items| scope.spawn(move || items.iter().map(work).collect::<Vec<_>>()))
            .collect();
        let results = workers.into_iter().flat_map(|worker| {
            let result = worker.join();
            result.unwrap_or_else(|panic| resume_unwind(panic))
        });
        results.collect()
    })
}
