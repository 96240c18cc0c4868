//! Content of a skill: reads a folder once, by descriptors, hashes it and, on request, copies it.
//!
//! Links within the folder stay links. A link that leads out of it but beneath a root becomes the file or folder that
//! it leads to. No other link is followed: it is left out and named, as FIFOs, sockets and devices are. The digest
//! covers the bytes that were read, so a file that changes meanwhile cannot make it wrong.
//!
//! digest = SHA-256 of a header line and, in order of the paths' bytes, for each file and link
//! `kind (1 byte: f file, x executable file, l link) · length of path (8 bytes, little endian) · path ·
//! sha256 of its contents or target`. Empty directories do not count.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use sha2::{Digest, Sha256};

use crate::content_store::link_policy::LinkPolicy;
use crate::error::{Error, is_out_of_descriptors, leads_nowhere, read_chunk};
use crate::held_bytes::held_bytes;
use crate::parse::problem::{LeftOutEntries, Problem};
use crate::parse::skill_card;
use crate::skill_path::{find_case_clash, printable_name};

/// First bytes that are hashed; changes with the rules above.
const HEADER: &[u8] = b"skilld skill 1\n";
/// Maximum depth of directories in a skill.
const DEPTH_MAX: usize = 32;
/// File names that are left out everywhere: they belong to the host of the folder, not to the skill.
pub(crate) const EXCLUDED_NAMES: [&str; 2] = [".git", "__pycache__"];
/// Names in a skill's root for which staging makes links, unless the skill has its own.
pub(crate) const LINKS: [&str; 4] = ["out", "work", "inputs", ".venv"];

/// Code of the problem that a file cannot be read, which says nothing about the skill.
pub(crate) const UNREADABLE: &str = "skill.unreadable";

/// Digest and size of a skill's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentSummary {
    /// SHA-256 of the content, 64 hex digits.
    pub digest: String,
    /// Number of regular files and links.
    pub files: u64,
    /// Size of its files, in bytes.
    pub bytes: u64,
    /// Number of directories beneath the skill's own.
    pub directories: u64,
    /// Names of [`LINKS`] that the skill has itself.
    pub own_links: Vec<&'static str>,
    /// Two paths that differ only in case.
    pub(crate) case_clash: Option<Box<(String, String)>>,
    /// Entries of the folder that are not in the content.
    pub(crate) left_out: LeftOutEntries,
}

impl ContentSummary {
    /// Returns the bytes that count for the content.
    pub(crate) fn held_bytes(&self) -> u64 {
        let objects = self.files.saturating_add(self.directories);
        held_bytes(self.bytes, objects.saturating_add(1))
    }

    /// Returns the error of a skill that came in an archive and has paths that differ only in case: where it was packed
    /// or unpacked, one file may have replaced the other.
    pub(crate) fn case_clash_problem(&self) -> Option<Problem> {
        let (path, other) = self.case_clash.as_deref()?;
        let message = format!("{path} differs only in case from {other}: rename one of them");
        Some(Problem::error("skill.case_clash", message))
    }

    /// Returns warnings for the user of the skill.
    pub(crate) fn warnings(&self, dir: &Path) -> impl Iterator<Item = Problem> {
        let own_links = self.own_links.iter().map(|name| {
            let message = format!(
                "the skill has its own {name}, so commands do not get the workspace's there"
            );
            Problem::warning("skill.own_link", message)
        });
        let warnings = own_links.chain(self.left_out.warning());
        warnings.map(move |warning| warning.about(dir))
    }
}

/// Folder that a skill's content is read from, without nested skills, and where its links may lead.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentSource {
    /// Path without links.
    pub(crate) dir: PathBuf,
    /// Folders of other skills in it, and what else is left out, relative to it.
    pub(crate) nested: Vec<PathBuf>,
    /// Directories to which its links may lead.
    pub(crate) link_policy: Arc<LinkPolicy>,
    /// Bytes of a skill-card.json that the content has at its top although the folder has none.
    pub(crate) card: Option<Arc<[u8]>>,
}

impl ContentSource {
    /// Creates the [`ContentSource`] of a directory in the store, in which only the daemon writes.
    pub(crate) fn stored(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            nested: Vec::new(),
            link_policy: LinkPolicy::of_folder(dir),
            card: None,
        }
    }

    pub(crate) fn is_nested(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.dir).unwrap_or(path);
        self.nested.iter().any(|nested| nested == below)
    }
}

/// Bounds of a skill's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContentBounds {
    /// Maximum number of files and links.
    pub files_max: u64,
    /// Maximum size of all files, in bytes.
    pub bytes_max: u64,
}

/// Reason why a folder could not be read or stored.
#[derive(Debug)]
pub(crate) enum IngestError {
    /// The skill has something that it must not have.
    Skill(Problem),
    /// The host failed.
    Host(Error),
}

impl IngestError {
    /// Makes the error of a skill that has something that it must not have.
    fn refused(code: &'static str, message: String) -> Self {
        Self::Skill(Problem::error(code, message))
    }

    /// Converts the error to a problem for the listing.
    pub(crate) fn into_problem(self) -> Problem {
        match self {
            Self::Skill(problem) => problem,
            Self::Host(error) => Problem::error(UNREADABLE, error.to_string()),
        }
    }
}

impl From<Error> for IngestError {
    fn from(error: Error) -> Self {
        Self::Host(error)
    }
}

/// Reads and hashes a folder, and copies it if `into` is given, an existing empty directory. Files of the copy have mode
/// 0444 or 0555, directories 0755, `into` included. `ContentStore::sync` waits for the disk.
///
/// # Errors
/// `Skill` for what the skill must not have; `Host` when the host failed.
pub(crate) fn read_content(
    folder: &ContentSource,
    into: Option<&Path>,
    bounds: ContentBounds,
) -> Result<ContentSummary, IngestError> {
    let opened = folder
        .link_policy
        .open_directory(&folder.dir)
        .and_then(|opened| Ok(Dir::from_fd(opened)?))
        .map_err(|error| unreadable(Path::new("."), error))?;
    let mut walk = ContentWalk {
        folder,
        into,
        bounds,
        entries: BTreeMap::new(),
        directories: HashSet::from([PathBuf::new()]),
        walked: 0,
        bytes: 0,
        left_out: LeftOutEntries::default(),
        through: None,
        buffer: vec![0; 64 * 1024],
    };
    if let Some(into) = into {
        // Every uid reads the copy, whatever the umask.
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(into, mode).map_err(io_error("make", Path::new(".")))?;
    }
    walk.read_directory(opened, Path::new(""), 0)?;
    if let Some(card) = &folder.card {
        walk.read_file(Path::new(skill_card::FILE_NAME), &**card, false)?;
    }
    Ok(walk.finish())
}

struct ContentWalk<'a> {
    folder: &'a ContentSource,
    into: Option<&'a Path>,
    bounds: ContentBounds,
    /// Kind and SHA-256 of the contents, by path.
    entries: BTreeMap<OsString, (u8, [u8; 32])>,
    /// Directories of the copy that exist, relative to it; the empty path is the copy itself.
    directories: HashSet<PathBuf>,
    /// Number of directories that were read. Empty ones are no part of the content and cost time all the same.
    walked: u64,
    bytes: u64,
    left_out: LeftOutEntries,
    /// Folder outside of the skill that is being read through a link: the link's path in the skill, and the real path.
    through: Option<(PathBuf, PathBuf)>,
    buffer: Vec<u8>,
}

impl ContentWalk<'_> {
    fn read_directory(&mut self, mut dir: Dir, at: &Path, depth: usize) -> Result<(), IngestError> {
        if depth > DEPTH_MAX {
            let message = format!("{} is deeper than {DEPTH_MAX} directories", at.display());
            return Err(IngestError::refused("skill.too_deep", message));
        }
        self.walked += 1;
        if self.walked > self.bounds.files_max.saturating_add(1) {
            let message = format!(
                "the skill has more than {} directories",
                self.bounds.files_max
            );
            return Err(IngestError::refused("skill.too_many_files", message));
        }
        let mut names: Vec<OsString> = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(|errno| unreadable(at, errno))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "."
                && name != ".."
                && !EXCLUDED_NAMES.iter().any(|left_out| name == *left_out)
            {
                names.push(name.to_owned());
            }
            if names.len() as u64 > self.bounds.files_max {
                return Err(self.too_many_files());
            }
        }
        for name in names {
            self.read_entry(&dir, &name, at, depth)?;
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        dir: &Dir,
        name: &OsStr,
        at: &Path,
        depth: usize,
    ) -> Result<(), IngestError> {
        let path = at.join(name);
        if self.folder.nested.contains(&path) {
            return Ok(());
        }
        let stat = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| unreadable(&path, errno))?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let open = |flags| {
            openat(dir, name, flags, Mode::empty()).map_err(|errno| unreadable(&path, errno))
        };
        if kind == SFlag::S_IFDIR {
            let opened = Dir::from_fd(open(flags | OFlag::O_DIRECTORY)?)
                .map_err(|errno| unreadable(&path, errno))?;
            return self.read_directory(opened, &path, depth + 1);
        }
        if self.entries.len() as u64 + self.left_out.total >= self.bounds.files_max {
            return Err(self.too_many_files());
        }
        if kind == SFlag::S_IFLNK {
            let target = readlinkat(dir, name).map_err(|errno| unreadable(&path, errno))?;
            return self.read_link(&path, &target, depth);
        }
        if kind != SFlag::S_IFREG {
            self.leave_out(&path, "is a FIFO, socket or device");
            return Ok(());
        }
        // The entry may have been replaced since it was examined, so the opened file is examined again.
        let file = open(flags)?;
        let stat = fstat(&file).map_err(|errno| unreadable(&path, errno))?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(unreadable(&path, Errno::EBUSY));
        }
        self.read_file(&path, File::from(file), stat.st_mode & 0o111 != 0)
    }

    fn read_file(
        &mut self,
        path: &Path,
        mut source: impl Read,
        executable: bool,
    ) -> Result<(), IngestError> {
        let mut copy = self.create_copy(path)?;
        let mut hash = Sha256::new();
        loop {
            let chunk = read_chunk(&mut source, &mut self.buffer)
                .map_err(|error| unreadable(path, error))?;
            if chunk.is_empty() {
                break;
            }
            self.bytes += chunk.len() as u64;
            if self.bytes > self.bounds.bytes_max {
                let message = format!("the skill has more than {} bytes", self.bounds.bytes_max);
                return Err(IngestError::refused("skill.too_large", message));
            }
            hash.update(chunk);
            if let Some(copy) = &mut copy {
                copy.write_all(chunk).map_err(io_error("copy", path))?;
            }
        }
        if let Some(copy) = copy {
            let mode = if executable { 0o555 } else { 0o444 };
            copy.set_permissions(fs::Permissions::from_mode(mode))
                .map_err(io_error("copy", path))?;
        }
        let kind = if executable { b'x' } else { b'f' };
        self.entries
            .insert(path.as_os_str().to_owned(), (kind, hash.finalize().into()));
        Ok(())
    }

    fn read_link(&mut self, path: &Path, target: &OsStr, depth: usize) -> Result<(), IngestError> {
        if self.through.is_some() || !stays_inside(path, Path::new(target)) {
            return self.follow_link(path, target, depth);
        }
        if let Some(into) = self.into {
            self.make_parents(path)?;
            std::os::unix::fs::symlink(target, into.join(path)).map_err(io_error("copy", path))?;
        }
        let hash = Sha256::digest(target.as_bytes()).into();
        self.entries
            .insert(path.as_os_str().to_owned(), (b'l', hash));
        Ok(())
    }

    /// Reads the file or folder of a root to which a link leads. In such a folder links may lead to files only: a link
    /// to a folder could lead in circles.
    fn follow_link(
        &mut self,
        path: &Path,
        target: &OsStr,
        depth: usize,
    ) -> Result<(), IngestError> {
        let place = match &self.through {
            Some((at, real)) => real.join(path.strip_prefix(at).unwrap_or(path)),
            None => self.folder.dir.join(path),
        };
        let policy = &self.folder.link_policy;
        let failed = |error: io::Error| unreadable(path, error);
        let real = match place.canonicalize() {
            Err(error) if !leads_nowhere(&error) => return Err(failed(error)),
            resolved => resolved.ok().filter(|real| policy.allows(real)),
        };
        if let Some(real) = real {
            let metadata = fs::symlink_metadata(&real).map_err(failed)?;
            if metadata.is_file() {
                let file = policy.open_file(&real).map_err(failed)?;
                let mode = file.metadata().map_err(failed)?.permissions().mode();
                return self.read_file(path, file, mode & 0o111 != 0);
            }
            if metadata.is_dir() && self.through.is_none() && !self.folder.dir.starts_with(&real) {
                let dir = policy
                    .open_directory(&real)
                    .and_then(|opened| Ok(Dir::from_fd(opened)?))
                    .map_err(failed)?;
                self.through = Some((path.to_owned(), real));
                let read = self.read_directory(dir, path, depth + 1);
                self.through = None;
                return read;
            }
        }
        let target = printable_name(target.as_bytes());
        let reason = format!(
            "is a link out of the skill, to {target}, which is no file or folder of a root that can be taken for it"
        );
        self.leave_out(path, &reason);
        Ok(())
    }

    fn leave_out(&mut self, path: &Path, reason: &str) {
        let name = printable_name(path.as_os_str().as_bytes());
        self.left_out.add(name, reason);
    }

    fn create_copy(&mut self, path: &Path) -> Result<Option<File>, Error> {
        let Some(into) = self.into else {
            return Ok(None);
        };
        self.make_parents(path)?;
        File::create_new(into.join(path))
            .map(Some)
            .map_err(io_error("copy", path))
    }

    fn make_parents(&mut self, path: &Path) -> Result<(), Error> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.directories.contains(parent) {
            return Ok(());
        }
        self.make_parents(parent)?;
        self.make_directory(parent)
    }

    fn make_directory(&mut self, path: &Path) -> Result<(), Error> {
        let Some(into) = self.into else { return Ok(()) };
        make_directory(&into.join(path)).map_err(io_error("make", path))?;
        self.directories.insert(path.to_owned());
        Ok(())
    }

    fn finish(self) -> ContentSummary {
        let mut hash = Sha256::new_with_prefix(HEADER);
        for (path, (kind, content)) in &self.entries {
            hash.update([*kind]);
            hash.update((path.len() as u64).to_le_bytes());
            hash.update(path.as_bytes());
            hash.update(content);
        }
        let own = |name: &&str| {
            let beneath = |path: &OsString| Path::new(path).starts_with(name);
            self.entries.keys().any(beneath)
        };
        ContentSummary {
            digest: HEXLOWER.encode(&hash.finalize()),
            files: self.entries.len() as u64,
            bytes: self.bytes,
            directories: self.walked.saturating_sub(1),
            own_links: LINKS.into_iter().filter(own).collect(),
            case_clash: find_case_clash(self.entries.keys().map(Path::new)),
            left_out: self.left_out,
        }
    }

    fn too_many_files(&self) -> IngestError {
        let message = format!("the skill has more than {} files", self.bounds.files_max);
        IngestError::refused("skill.too_many_files", message)
    }
}

/// Makes one directory of mode 0755, whatever the umask.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Returns `true` if a link's target stays in the skill. `..` may only come first: after a name it could follow another
/// link.
pub(crate) fn stays_inside(link: &Path, target: &Path) -> bool {
    let mut height = link.components().count().saturating_sub(1);
    let mut down = false;
    for component in target.components() {
        match component {
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            Component::ParentDir if !down && height > 0 => height -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

fn unreadable(path: &Path, error: impl Into<io::Error>) -> IngestError {
    let error: io::Error = error.into();
    if is_out_of_descriptors(&error) {
        // A lack of descriptors is the host's fault, not the skill's.
        return io_error("read", path)(error).into();
    }
    let message = format!("cannot read {}: {error}", path.display());
    IngestError::refused(UNREADABLE, message)
}

fn io_error(verb: &str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io(format!("{verb} {} of a skill", path.display()))
}

#[cfg(test)]
mod tests;
