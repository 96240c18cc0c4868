//! Finds the file that a requested path means. Pure: nothing here opens a file.

use skilld_common::names::base_name;

use super::{Manifest, SkillFile};
use crate::error::{Error, Result};
use crate::name_similarity::{nearest_names, similarity};
use crate::skill_path::{self, fold_path};

impl Manifest {
    /// Returns the file of a path; else the only file whose path differs in case or Unicode form only.
    ///
    /// # Errors
    /// `LeavesSkill`, `Invalid`, `FileNotFound` with similar paths, `WrongFileType` for a folder.
    pub fn find(&self, path: &str) -> Result<&SkillFile> {
        let path = skill_path::normalise_skill_path("path", path)?;
        if let Some(file) = self.find_exact(&path) {
            return Ok(file);
        }
        let folder = format!("{path}/");
        let mut files = self.files.iter();
        if path.is_empty() || files.any(|file| file.path.starts_with(&folder)) {
            let wanted = "a file";
            return Err(Error::WrongFileType { path, wanted });
        }
        let folded = fold_path(&path);
        let files = self.files.iter();
        let mut alike = files.filter(|file| fold_path(&file.path) == folded);
        match (alike.next(), alike.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(Error::FileNotFound {
                nearest: suggest_paths(&self.files, &path),
                path,
            }),
        }
    }

    /// Returns the file of exactly this path.
    pub(crate) fn find_exact(&self, path: &str) -> Option<&SkillFile> {
        let place = self
            .files
            .binary_search_by(|file| file.path.as_str().cmp(path));
        place.ok().and_then(|place| self.files.get(place))
    }
}

/// Returns paths that may have been meant, best first: the same in another case, the same name elsewhere, then similar
/// ones.
fn suggest_paths(files: &[SkillFile], path: &str) -> Vec<String> {
    let wanted = fold_path(path);
    let wanted_name = base_name(&wanted);
    // The files are sorted by path, and so are those with the same score.
    nearest_names(files.iter().filter_map(|file| {
        let path = fold_path(&file.path);
        let score = if path == wanted {
            4.0
        } else if path.ends_with(&format!("/{wanted}")) || wanted.ends_with(&format!("/{path}")) {
            3.0
        } else if base_name(&path) == wanted_name {
            2.0
        } else {
            similarity(base_name(&path), wanted_name)
        };
        (score >= 0.6).then(|| (score, file.path.clone()))
    }))
}
