//! Reads one directory of a root: entries that may be skills or lead to skills. The others are counted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstat, fstatat};

use crate::content_store::link_policy::LinkPolicy;
use crate::parse::skill_card;
use crate::sources::plugin_root::MANIFEST_DIR;

/// The document.
pub(crate) const SKILL_MD: &str = "SKILL.md";
/// Names of folders that belong to tools: version control, package managers, caches and editors. Other folders whose
/// names begin with a dot may hold skills, such as `.claude/skills`.
pub(crate) const SKIPPED: [&str; 22] = [
    ".bzr",
    ".cache",
    ".direnv",
    ".eggs",
    ".git",
    ".gradle",
    ".hg",
    ".idea",
    ".jj",
    ".mypy_cache",
    ".nox",
    ".pytest_cache",
    ".ruff_cache",
    ".svn",
    ".terraform",
    ".tox",
    ".venv",
    ".vscode",
    ".yarn",
    "__pycache__",
    "dist",
    "node_modules",
];

/// Entries of one directory that matter for finding skills.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DirectoryListing {
    /// Device and inode.
    pub(crate) id: (u64, u64),
    /// Entries that are, or are links to, something named SKILL.md, in whatever case; sorted.
    pub(crate) documents: Vec<String>,
    /// `true` if there is a skill-card.json.
    pub(crate) card: bool,
    /// `true` if there is a folder for a plugin's manifest.
    pub(crate) has_manifest_dir: bool,
    /// Directories in which there may be skills; sorted, those whose names begin with a dot last.
    pub(crate) dirs: Vec<OsString>,
    /// Links that may lead to such; sorted.
    pub(crate) links: Vec<OsString>,
    /// Entries of any kind.
    pub(crate) entries: usize,
    /// `true` if there are more entries than the limit.
    pub(crate) cut: bool,
}

impl DirectoryListing {
    /// Reads a directory, at most `entries_max` of its entries.
    pub(crate) fn read(policy: &LinkPolicy, real: &Path, entries_max: usize) -> io::Result<Self> {
        let mut dir = Dir::from_fd(policy.open_directory(real)?)?;
        let stat = fstat(&dir)?;
        let mut listing = Self {
            id: (stat.st_dev, stat.st_ino),
            ..Self::default()
        };
        let mut unknown = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if listing.entries == entries_max {
                listing.cut = true;
                break;
            }
            listing.entries += 1;
            if may_matter(name) {
                match entry.file_type() {
                    Some(kind) => listing.add(name, kind),
                    None => unknown.push(name.to_owned()),
                }
            }
        }
        // A few file systems do not store the kind of an entry in the directory.
        for name in unknown {
            if let Ok(stat) = fstatat(&dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                listing.add(&name, kind_of(stat.st_mode));
            }
        }
        listing.documents.sort_unstable();
        // Copies in dot folders do not shadow the skills that they were made of.
        listing
            .dirs
            .sort_unstable_by(|a, b| (is_hidden(a), a).cmp(&(is_hidden(b), b)));
        listing.links.sort_unstable();
        Ok(listing)
    }

    fn add(&mut self, name: &OsStr, kind: Type) {
        match name.to_str() {
            Some(text) if text.eq_ignore_ascii_case(SKILL_MD) => {
                // A directory named like the document in another case is an ordinary directory.
                if kind != Type::Directory || text == SKILL_MD {
                    self.documents.push(text.to_owned());
                } else {
                    self.dirs.push(name.to_owned());
                }
            }
            Some(skill_card::FILE_NAME) => self.card = kind != Type::Directory,
            Some(MANIFEST_DIR) => self.has_manifest_dir = kind == Type::Directory,
            _ if kind == Type::Directory => self.dirs.push(name.to_owned()),
            _ if kind == Type::Symlink => self.links.push(name.to_owned()),
            _ => {}
        }
    }
}

fn may_matter(name: &OsStr) -> bool {
    !SKIPPED.iter().any(|skipped| name == *skipped)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().first() == Some(&b'.')
}

/// Returns the kind of an entry as far as it matters here.
fn kind_of(mode: u32) -> Type {
    match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFDIR => Type::Directory,
        SFlag::S_IFLNK => Type::Symlink,
        _ => Type::File,
    }
}
