//! Entries of a folder of the host or of a workspace, and which of its links may be staged.

/// Entries beneath a folder of the host or of a workspace.
#[derive(Debug, Default)]
pub(super) struct FolderListing {
    /// Entries by their path in the folder, sorted; a folder comes before its own entries.
    pub(super) entries: Vec<(String, FolderEntry)>,
    /// Number of entries that cannot be staged: special files, links that lead out of the folder, unreadable folders.
    pub(super) left_out: u64,
}

/// Entry of a folder listing: a file, a folder or a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FolderEntry {
    File,
    Folder { mode: u32 },
    Link { target: String },
}

/// Returns `true` if the text of a link at `path` in a folder leads to a path in that folder.
pub(super) fn stays_beneath(path: &str, target: &str) -> bool {
    if target.starts_with('/') || target.is_empty() {
        return false;
    }
    let mut depth = path.matches('/').count();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                let Some(above) = depth.checked_sub(1) else {
                    return false;
                };
                depth = above;
            }
            _ => depth += 1,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_a_folder_are_recognised() {
        for (path, target, expected) in [
            ("a", "b", true),
            ("a/b", "../c", true),
            ("a/b", "../../c", false),
            ("a", "..", false),
            ("a/b/c", "../../x/../y", true),
            ("a", "/etc/passwd", false),
            ("a", "", false),
            ("a", "b/../../c", false),
        ] {
            assert_eq!(stays_beneath(path, target), expected, "{path} → {target}");
        }
    }
}
