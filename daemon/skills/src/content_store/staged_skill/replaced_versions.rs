//! Replaced versions of staged skills, which stay while commands use them. A command that began with a version keeps
//! its open files, working directory and relative paths, so a replaced version stays while commands, or processes that
//! they left, run in the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use skilld_common::unix_time::unix_ms;

use super::lock_directory;
use crate::error::Result;
use crate::placeholders::PLUGINS_DIR;

/// Prefix of the file name: hidden, and no skill's name begins with it.
const PREFIX: &str = ".replaced-";

/// Returns an unused file name for a replaced version of a skill.
pub(super) fn replaced_name(skill: &str) -> String {
    static REPLACEMENTS: AtomicU64 = AtomicU64::new(0);
    let number = REPLACEMENTS.fetch_add(1, Ordering::Relaxed);
    // The number starts anew with the daemon.
    format!("{PREFIX}{}-{number}-{skill}", unix_ms(SystemTime::now()))
}

/// Returns the number of replaced versions in a slot that hold files. A link holds none, and only a crash leaves one.
pub(super) fn count_replaced(target: &Path) -> usize {
    let replaced = list_replaced(target).into_iter();
    replaced.filter(|path| is_directory(path)).count()
}

/// Returns `true` if a path is a directory, and no link to one.
pub(super) fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
}

/// Returns `true` if the `skills/` of a slot has replaced versions. Blocks.
pub fn has_replaced_versions(target: &Path) -> bool {
    !list_replaced(target).is_empty()
}

/// Removes the replaced versions of a slot, in which no command runs. Blocks.
///
/// # Errors
/// `Io` when the slot is gone.
pub(crate) fn remove_replaced(target: &Path) -> Result<()> {
    let _turn = lock_directory(target)?;
    for path in list_replaced(target) {
        // This removes a link as a link.
        match fs::remove_dir_all(&path) {
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a replaced skill was not removed");
            }
            Ok(()) => tracing::debug!(path = %path.display(), "replaced skill removed"),
        }
    }
    Ok(())
}

/// Lists the replaced versions of skills, and of plugins.
fn list_replaced(target: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in [target.to_owned(), target.join(PLUGINS_DIR)] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn replaced_versions_are_counted_and_removed_and_nothing_else() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (target, kept) = (dir.path().join("skills"), dir.path().join("kept"));
        for path in [
            target.join("a/scripts"),
            target.join(".plugins/b"),
            kept.clone(),
        ] {
            fs::create_dir_all(path).expect("mkdir");
        }
        fs::write(target.join(".metadata.json"), "{}").expect("write");
        for _ in 0..2 {
            fs::create_dir_all(target.join(replaced_name("a")).join("scripts")).expect("mkdir");
        }
        let plugin = target.join(".plugins").join(replaced_name("b"));
        fs::create_dir(plugin).expect("mkdir");
        symlink(&kept, target.join(replaced_name("c"))).expect("a link");
        assert_eq!(count_replaced(&target), 3);
        remove_replaced(&target).expect("removed");
        assert_eq!(list_replaced(&target), Vec::<PathBuf>::new());
        let left = [".metadata.json", ".plugins/b", "a/scripts"].map(|path| target.join(path));
        assert!(left.iter().all(|path| path.exists()), "{left:?}");
        assert!(kept.exists(), "only the link goes");
    }
}
