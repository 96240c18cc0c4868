//! Files that the skills of a plugin share: everything in the plugin's folder that belongs to no skill. They are put
//! into the store when one of these skills is staged or read, as one tree for each plugin.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::catalogue_snapshot::Catalogue;
use super::skill::Skill;
use crate::content_store::content_hashing::{
    ContentBounds, ContentSource, ContentSummary, IngestError,
};
use crate::content_store::metadata_fingerprint::MetadataFingerprint;
use crate::content_store::staged_skill::PluginFiles;
use crate::content_store::{ContentStore, Lease};
use crate::error::Result;
use crate::parse::problem::{PLUGIN_FILES_NOT_STAGED, Problem};
use crate::placeholders::SkillFolder;
use crate::skill_path::compose_disk_path;
use crate::sources::directory_listing::SKIPPED;
use crate::sources::plugin_root::PluginRoot;

/// Bounds of the files that the skills of one plugin share; each of its staged skills gets a copy.
const BOUNDS: ContentBounds = ContentBounds {
    files_max: 1000,
    bytes_max: 16 << 20,
};
/// Names at the top of a plugin, in lower case and up to the first dot or hyphen, that are for its readers and not for its
/// skills.
const READERS_FILES: [&str; 7] = [
    "changelog",
    "code_of_conduct",
    "contributing",
    "licence",
    "license",
    "notice",
    "readme",
];
/// Maximum number of plugins whose fingerprints are kept.
const PLUGINS_MAX: usize = 4096;

/// Files that a skill shares with the others of its plugin.
#[derive(Debug)]
pub(crate) enum SharedFiles {
    /// Empty set: the skill belongs to no plugin, its folder is the plugin's own, or nothing is left beside the skills.
    None,
    /// Files in the store, leased there, and the problem that some are missing.
    Leased(PluginFiles, Lease, Option<Problem>),
    /// Files that the store must not have, or too many of them: the skill alone is staged.
    Refused(Problem),
}

/// Puts plugins' shared files into the store. Remembers their digests, as long as the files look as they did, and the
/// problems of those that were refused.
#[derive(Debug)]
pub(crate) struct PluginLibrary {
    store: Arc<ContentStore>,
    /// Plugins by their folder.
    kept: Mutex<HashMap<PathBuf, KnownPlugin>>,
    /// Problems of plugins, by their folder, as the latest staging or reading of a skill found them.
    refused: Mutex<BTreeMap<PathBuf, Problem>>,
}

/// Shared files of a plugin as they were when they were copied into the store.
#[derive(Debug)]
struct KnownPlugin {
    fingerprint: MetadataFingerprint,
    /// Paths that were left out.
    nested: Vec<PathBuf>,
    content: ContentSummary,
}

impl PluginLibrary {
    pub(crate) fn new(store: &Arc<ContentStore>) -> Self {
        Self {
            store: Arc::clone(store),
            kept: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    fn content(&self, folder: &ContentSource, now: &MetadataFingerprint) -> Option<ContentSummary> {
        let kept = self.kept.lock();
        let known = kept.get(&folder.dir)?;
        let is_same = known.fingerprint == *now && known.nested == folder.nested;
        is_same.then(|| known.content.clone())
    }

    fn insert(
        &self,
        folder: &ContentSource,
        fingerprint: MetadataFingerprint,
        content: &ContentSummary,
    ) {
        let mut kept = self.kept.lock();
        if kept.len() >= PLUGINS_MAX {
            kept.clear();
        }
        let known = KnownPlugin {
            fingerprint,
            nested: folder.nested.clone(),
            content: content.clone(),
        };
        kept.insert(folder.dir.clone(), known);
    }

    /// Keeps or forgets the problem of a plugin. Logs a new one.
    fn set_problem(&self, plugin: &PluginRoot, problem: Option<&Problem>) {
        let mut refused = self.refused.lock();
        let Some(problem) = problem else {
            refused.remove(&plugin.dir);
            return;
        };
        if refused.len() >= PLUGINS_MAX {
            refused.clear();
        }
        let known = refused.insert(plugin.dir.clone(), problem.clone());
        if known.as_ref() != Some(problem) {
            tracing::warn!(
                plugin = plugin.name,
                dir = problem.subject,
                problem = problem.message,
                "files of a plugin are not staged with its skills"
            );
        }
    }

    /// Returns the problems of the plugins that a snapshot still has, sorted by folder.
    pub(crate) fn problems(&self, catalogue: &Catalogue) -> Vec<Problem> {
        let plugins: HashSet<&Path> = catalogue
            .skills
            .iter()
            .filter_map(|skill| Some(skill.plugin.as_ref()?.dir.as_path()))
            .collect();
        let refused = self.refused.lock();
        refused
            .iter()
            .filter(|(dir, _)| plugins.contains(dir.as_path()))
            .map(|(_, problem)| problem.clone())
            .collect()
    }

    /// Returns where a workspace has a skill.
    pub(crate) fn workspace_folder(
        &self,
        catalogue: &Catalogue,
        skill: &Skill,
    ) -> Result<SkillFolder> {
        let shared = self.lease_files(catalogue, skill)?;
        let path_in_plugin = match &shared {
            SharedFiles::Leased(files, ..) => Some(files.skill_path_text()),
            SharedFiles::None | SharedFiles::Refused(_) => None,
        };
        Ok(SkillFolder {
            name: skill.name.clone(),
            path_in_plugin,
        })
    }

    /// Returns the files that a listed skill shares with the others of its plugin, leased in the store.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn lease_files(&self, catalogue: &Catalogue, skill: &Skill) -> Result<SharedFiles> {
        let Some(plugin) = &skill.plugin else {
            return Ok(SharedFiles::None);
        };
        let path = skill.dir.strip_prefix(&plugin.dir).ok();
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(SharedFiles::None);
        };
        let Some(folder) = shared_folder(catalogue, plugin) else {
            return Ok(SharedFiles::None);
        };
        let shared = match self.lease_folder(&folder, plugin) {
            Ok((content, lease)) => {
                let problem = incomplete_files(plugin, &content);
                if content.files == 0 {
                    problem.map_or(SharedFiles::None, SharedFiles::Refused)
                } else {
                    let files = PluginFiles {
                        held_bytes: content.held_bytes(),
                        digest: content.digest,
                        // As it is staged.
                        skill_path: compose_disk_path(path.as_os_str()).into(),
                    };
                    SharedFiles::Leased(files, lease, problem)
                }
            }
            Err(IngestError::Host(error)) => return Err(error),
            Err(IngestError::Skill(problem)) => {
                SharedFiles::Refused(refused_files(plugin, &problem))
            }
        };
        let problem = match &shared {
            SharedFiles::Refused(problem) | SharedFiles::Leased(_, _, Some(problem)) => {
                Some(problem)
            }
            SharedFiles::None | SharedFiles::Leased(_, _, None) => None,
        };
        self.set_problem(plugin, problem);
        Ok(shared)
    }

    /// Leases the content of a folder; copies it into the store unless it looks as it did when it was copied.
    fn lease_folder(
        &self,
        folder: &ContentSource,
        plugin: &PluginRoot,
    ) -> Result<(ContentSummary, Lease), IngestError> {
        let started = SystemTime::now();
        let take = || MetadataFingerprint::take(folder, BOUNDS, |_| {});
        let before = take();
        let known = before.and_then(|before| self.content(folder, &before));
        if let Some(content) = known
            && let Some(lease) = self.store.lease_intact(&content.digest)?
        {
            return Ok((content, lease));
        }
        // No skill has such a name, so no reference leads to these files.
        let name = format!("{}:", plugin.name);
        let (content, lease) = self.store.copy_bounded(folder, &name, BOUNDS)?;
        if let Some(before) = before
            && content.files > 0
            && !before.is_recent(started)
            && take() == Some(before)
        {
            self.insert(folder, before, &content);
        }
        Ok((content, lease))
    }
}

/// Makes the problem of a plugin of whose shared files some were left out; `None` if none were.
fn incomplete_files(plugin: &PluginRoot, content: &ContentSummary) -> Option<Problem> {
    let left_out = content.left_out.describe()?;
    let message = format!(
        "some of the files that the skills of plugin {} share are not staged; {left_out}",
        plugin.name
    );
    Some(Problem::warning(PLUGIN_FILES_NOT_STAGED, message).about(&plugin.dir))
}

/// Makes the problem of a plugin whose shared files were refused.
fn refused_files(plugin: &PluginRoot, problem: &Problem) -> Problem {
    let message = format!(
        "the files that the skills of plugin {} share are staged with none of them, because no skill may have such \
         files: {}; each skill is staged alone",
        plugin.name, problem.message
    );
    Problem::warning(PLUGIN_FILES_NOT_STAGED, message).about(&plugin.dir)
}

/// Describes what the skills of a plugin share. `None` if the plugin's own folder is a skill, which has everything.
fn shared_folder(catalogue: &Catalogue, plugin: &PluginRoot) -> Option<ContentSource> {
    let skills = catalogue.skills.iter();
    let folders = skills.filter_map(|skill| skill.dir.strip_prefix(&plugin.dir).ok());
    let mut nested: Vec<PathBuf> = folders.map(Path::to_owned).collect();
    if nested.iter().any(|path| path.as_os_str().is_empty()) {
        return None;
    }
    for entry in fs::read_dir(&plugin.dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let lower = name.to_string_lossy().to_lowercase();
        let stem = lower.split(['.', '-']).next().unwrap_or_default();
        let is_for_readers = || READERS_FILES.contains(&stem);
        let is_of_tool = || SKIPPED.iter().any(|known| name == *known);
        if lower.starts_with('.') || is_of_tool() || is_for_readers() {
            nested.push(PathBuf::from(name));
        }
    }
    nested.sort_unstable();
    Some(ContentSource {
        dir: plugin.dir.clone(),
        nested,
        link_policy: Arc::clone(&catalogue.link_policy),
        card: None,
    })
}
