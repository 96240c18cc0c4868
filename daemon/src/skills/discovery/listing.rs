//! One directory as far as discovery cares: what in it may be a skill, or lead to one. The rest is counted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::fcntl::AtFlags;
use nix::sys::stat::{SFlag, fstat, fstatat};

use super::trust::Trust;
use crate::skills::card;

/// The document.
pub(in crate::skills) const SKILL_MD: &str = "SKILL.md";
/// Folders that belong to tools and not to people. What is hidden is passed over too.
const SKIPPED: [&str; 3] = ["node_modules", "__pycache__", "dist"];

/// What is in a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::skills) struct Listing {
    /// Device and inode.
    pub(in crate::skills) id: (u64, u64),
    /// Entries that are, or are links to, something named SKILL.md, in whatever case; sorted.
    pub(in crate::skills) documents: Vec<String>,
    /// It has a skill-card.json.
    pub(in crate::skills) card: bool,
    /// Directories in which there may be skills; sorted.
    pub(in crate::skills) dirs: Vec<OsString>,
    /// Links that may lead to such; sorted.
    pub(in crate::skills) links: Vec<OsString>,
    /// Entries of any kind.
    pub(in crate::skills) entries: usize,
    /// There are more than were looked at.
    pub(in crate::skills) cut: bool,
}

impl Listing {
    /// Reads a directory, at most `entries_max` of its entries.
    pub(in crate::skills) fn read(
        trust: &Trust,
        real: &Path,
        entries_max: usize,
    ) -> io::Result<Self> {
        let mut dir = Dir::from_fd(trust.directory(real)?)?;
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
        // Few file systems do not say in the directory what an entry is.
        for name in unknown {
            if let Ok(stat) = fstatat(&dir, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                listing.add(&name, kind_of(stat.st_mode));
            }
        }
        listing.documents.sort_unstable();
        listing.dirs.sort_unstable();
        listing.links.sort_unstable();
        Ok(listing)
    }

    fn add(&mut self, name: &OsStr, kind: Type) {
        match name.to_str() {
            Some(text) if text.eq_ignore_ascii_case(SKILL_MD) => {
                // Named alike, but in another case, a directory is just a directory.
                if kind != Type::Directory || text == SKILL_MD {
                    self.documents.push(text.to_owned());
                } else {
                    self.dirs.push(name.to_owned());
                }
            }
            Some(card::FILE_NAME) => self.card = kind != Type::Directory,
            _ if kind == Type::Directory => self.dirs.push(name.to_owned()),
            _ if kind == Type::Symlink => self.links.push(name.to_owned()),
            _ => {}
        }
    }
}

fn may_matter(name: &OsStr) -> bool {
    let hidden = name.as_bytes().first() == Some(&b'.');
    !hidden && !SKIPPED.iter().any(|skipped| name == *skipped)
}

fn kind_of(mode: u32) -> Type {
    match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFDIR => Type::Directory,
        SFlag::S_IFLNK => Type::Symlink,
        SFlag::S_IFIFO => Type::Fifo,
        SFlag::S_IFSOCK => Type::Socket,
        SFlag::S_IFCHR => Type::CharacterDevice,
        SFlag::S_IFBLK => Type::BlockDevice,
        _ => Type::File,
    }
}
