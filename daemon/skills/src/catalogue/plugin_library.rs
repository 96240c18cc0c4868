//! Files that the skills of a plugin share: everything in the plugin's folder that belongs to no skill. They are put
//! into the store when one of these skills is staged or read, as one tree for each plugin.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::catalogue_snapshot::Catalogue;
use super::skill::Skill;
use super::skill_library::SkillLibrary;
use crate::content_store::Lease;
use crate::content_store::content_hashing::{ContentBounds, ContentSource, IngestError};
use crate::content_store::metadata_fingerprint::MetadataFingerprint;
use crate::content_store::staged_skill::PluginFiles;
use crate::error::Result;
use crate::sources::directory_listing::SKIPPED;
use crate::sources::plugin_root::PluginRoot;

/// Bounds of the files that the skills of one plugin share; each of its staged skills gets a copy.
const BOUNDS: ContentBounds = ContentBounds {
    files_max: 1000,
    bytes_max: 16 << 20,
};
/// Beginnings, in lower case, of names at the top of a plugin that are for its readers, not for its skills.
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

/// Digests of plugins' shared files, as long as the files look as they did.
#[derive(Debug, Default)]
pub(crate) struct PluginCache {
    /// Plugins by their folder.
    kept: Mutex<HashMap<PathBuf, KnownPlugin>>,
}

/// Shared files of a plugin as they were when they were copied into the store.
#[derive(Debug)]
struct KnownPlugin {
    fingerprint: MetadataFingerprint,
    /// Paths that were left out.
    nested: Vec<PathBuf>,
    digest: String,
}

impl PluginCache {
    fn digest(&self, folder: &ContentSource, now: &MetadataFingerprint) -> Option<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.get(&folder.dir)?;
        let is_same = known.fingerprint == *now && known.nested == folder.nested;
        is_same.then(|| known.digest.clone())
    }

    fn insert(&self, folder: &ContentSource, fingerprint: MetadataFingerprint, digest: &str) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= PLUGINS_MAX {
            kept.clear();
        }
        let known = KnownPlugin {
            fingerprint,
            nested: folder.nested.clone(),
            digest: digest.to_owned(),
        };
        kept.insert(folder.dir.clone(), known);
    }
}

impl SkillLibrary {
    /// Returns the files that a listed skill shares with the others of its plugin, leased in the store. `None` if it
    /// belongs to no plugin, if the plugin's folder is the skill's own, or if there are no such files. Files that the
    /// store must not have, or too many, are none: the skill alone is staged then.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn lease_plugin_files(
        &self,
        catalogue: &Catalogue,
        skill: &Skill,
    ) -> Result<Option<(PluginFiles, Lease)>> {
        let Some(plugin) = &skill.plugin else {
            return Ok(None);
        };
        let path = skill.dir.strip_prefix(&plugin.dir).ok();
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
            return Ok(None);
        };
        let Some(folder) = shared_folder(catalogue, plugin) else {
            return Ok(None);
        };
        match self.lease_folder(&folder, plugin) {
            Ok(leased) => Ok(leased.map(|(digest, lease)| {
                let files = PluginFiles {
                    digest,
                    skill_path: path.to_owned(),
                };
                (files, lease)
            })),
            Err(IngestError::Host(error)) => Err(error),
            Err(IngestError::Skill(problem)) => {
                tracing::warn!(
                    plugin = plugin.name,
                    dir = %plugin.dir.display(),
                    code = problem.code,
                    problem = problem.message,
                    "files of a plugin are not staged with its skills"
                );
                Ok(None)
            }
        }
    }

    /// Leases the content of a folder; copies it into the store unless it looks as it did when it was copied. Returns
    /// `None` for a folder without files.
    fn lease_folder(
        &self,
        folder: &ContentSource,
        plugin: &PluginRoot,
    ) -> Result<Option<(String, Lease)>, IngestError> {
        let started = SystemTime::now();
        let take = || MetadataFingerprint::take(folder, BOUNDS, |_| {});
        let before = take();
        let known = before.and_then(|before| self.plugins.digest(folder, &before));
        if let Some(digest) = known
            && let Some(lease) = self.store.lease_intact(&digest)?
        {
            return Ok(Some((digest, lease)));
        }
        // No skill has such a name, so no reference leads to these files.
        let name = format!("{}:", plugin.name);
        let (content, lease) = self.store.copy_bounded(folder, &name, BOUNDS)?;
        if let Some(before) = before
            && content.files > 0
            && !before.is_recent(started)
            && take() == Some(before)
        {
            self.plugins.insert(folder, before, &content.digest);
        }
        Ok((content.files > 0).then_some((content.digest, lease)))
    }
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
        let is_for_readers = || READERS_FILES.iter().any(|known| lower.starts_with(known));
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
    })
}
