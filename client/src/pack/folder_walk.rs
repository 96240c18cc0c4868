//! Walk over a skill's folder that decides what is packed. Every path is opened beneath the folder (openat2), so that
//! no link leads out of it even if the folder changes meanwhile; a file that changes before it is packed is noticed by
//! its [`FileStamp`].

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2,
    readlinkat, statat,
};
use rustix::io::Errno;

use super::ignore_rules::{self, IgnoreRules};
use super::{PackLimits, is_document, refused};
use crate::Error;
use crate::files::collect::SkippedFile;
use crate::files::local_tree::io_error;

/// Maximum depth of folders, which is the server's.
const DEPTH_MAX: usize = 32;
/// Maximum number of folders.
const FOLDERS_MAX: usize = 10_000;
/// Maximum number of documents that an error names when none is at the top.
const SHOWN_MAX: usize = 3;
/// Maximum number of attempts to open one path. Each takes microseconds and fails if any process of the host renames or
/// mounts meanwhile.
const TRIES: usize = 1000;

/// Open folder of a skill, beneath which all paths are opened.
#[derive(Debug)]
pub(super) struct SkillFolder {
    dir: OwnedFd,
    shown: PathBuf,
}

/// Folder and the files in it that go into the archive.
#[derive(Debug)]
pub(super) struct ArchivePlan {
    pub(super) root: SkillFolder,
    /// Files of the archive, sorted by the bytes of their paths.
    pub(super) entries: Vec<PackedEntry>,
    /// Entries that are left out because a skill can't have them.
    pub(super) skipped: Vec<SkippedFile>,
}

/// File that goes into the archive.
#[derive(Debug)]
pub(super) struct PackedEntry {
    /// Path in the archive; in the folder the same path leads to the file, through links or not.
    pub(super) path: String,
    pub(super) executable: bool,
    pub(super) stamp: FileStamp,
}

/// Metadata of a file that changes when the file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStamp {
    id: (u64, u64),
    pub(super) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self::new(&fstat(file)?))
    }

    fn new(stat: &Stat) -> Self {
        let nanos = |nanos| i64::try_from(nanos).unwrap_or_default();
        Self {
            id: (stat.st_dev, stat.st_ino),
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: (stat.st_mtime, nanos(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanos(stat.st_ctime_nsec)),
        }
    }
}

impl ArchivePlan {
    /// Opens a file; fails if it has changed since the walk.
    pub(super) fn open(&self, entry: &PackedEntry) -> Result<File, Error> {
        let path = Path::new(&entry.path);
        let opened = self.root.open_beneath(path, OFlags::empty());
        let file = File::from(opened.map_err(|errno| self.root.open_error(path, errno))?);
        let now = FileStamp::of(&file).map_err(io_error(&self.root.shown.join(path)))?;
        if now != entry.stamp {
            return Err(self.root.changed_error(path));
        }
        Ok(file)
    }
}

impl SkillFolder {
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, folder, flags, Mode::empty());
        Ok(Self {
            dir: dir.map_err(|errno| io_error(folder)(errno.into()))?,
            shown: folder.to_owned(),
        })
    }

    /// Returns the path of the folder as the caller gave it.
    pub(super) fn shown(&self) -> &Path {
        &self.shown
    }

    /// Opens a path, empty for the folder itself. Links are followed as long as they stay beneath the folder.
    fn open_beneath(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        // O_PATH opens nothing, so it does not block either.
        let nonblocking = match flags.contains(OFlags::PATH) {
            true => OFlags::empty(),
            false => OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        let flags = flags | nonblocking | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..TRIES {
            match openat2(&self.dir, path, flags, Mode::empty(), within) {
                // A rename anywhere meanwhile can make it give up on `..`.
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Returns all files that belong to the skill.
    pub(super) fn walk(self, limits: PackLimits) -> Result<ArchivePlan, Error> {
        let mut walk = FolderWalk {
            ignored: IgnoreRules::new(&self.shown, &self.read_ignore_list()?)?,
            root: &self,
            limits,
            entries: Vec::new(),
            skipped: Vec::new(),
            folders: 0,
            bytes: 0,
            ancestors: Vec::new(),
        };
        walk.visit_folder(Path::new(""))?;
        let (mut entries, mut skipped) = (walk.entries, walk.skipped);
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        skipped.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        let packed = ArchivePlan {
            root: self,
            entries,
            skipped,
        };
        packed.check_names()?;
        Ok(packed)
    }

    /// Returns the text of the folder's `.skillignore`; empty if it has none.
    fn read_ignore_list(&self) -> Result<String, Error> {
        let path = Path::new(ignore_rules::FILE_NAME);
        let opened = match self.open_beneath(path, OFlags::empty()) {
            Ok(opened) => File::from(opened),
            Err(Errno::NOENT) => return Ok(String::new()),
            Err(errno) => return Err(self.open_error(path, errno)),
        };
        let shown = self.shown.join(path);
        if !opened.metadata().map_err(io_error(&shown))?.is_file() {
            return Err(self.refused(path, "is no file"));
        }
        let mut bytes = Vec::new();
        let mut bounded = opened.take(ignore_rules::BYTES_MAX + 1);
        bounded.read_to_end(&mut bytes).map_err(io_error(&shown))?;
        if bytes.len() as u64 > ignore_rules::BYTES_MAX {
            return Err(self.refused(path, "has more than 64 KiB"));
        }
        let text = ignore_rules::decode_list(&bytes);
        text.ok_or_else(|| self.refused(path, "is not UTF-8: save it as UTF-8"))
    }

    fn refused(&self, path: &Path, problem: &str) -> Error {
        refused(&self.shown, format!("{} {problem}", path.display()))
    }

    fn changed_error(&self, path: &Path) -> Error {
        self.refused(
            path,
            "changed while it was packed: try again when nobody writes there",
        )
    }

    /// Describes a path that could not be opened.
    fn open_error(&self, path: &Path, errno: Errno) -> Error {
        match self.link_problem(path, errno) {
            Some(problem) => self.refused(path, &problem),
            // A part of the path may be a link that was not one before.
            None if matches!(errno, Errno::XDEV | Errno::LOOP) => self.changed_error(path),
            None if errno == Errno::ACCESS && !path.as_os_str().is_empty() => {
                let cure = "name it in .skillignore if it is no part of the skill";
                self.refused(path, &format!("cannot be read: change its mode, or {cure}"))
            }
            None => io_error(&self.shown.join(path))(errno.into()),
        }
    }

    /// Describes where a link leads that could not be followed; `None` if the path is no link.
    fn link_problem(&self, path: &Path, errno: Errno) -> Option<String> {
        let target = readlinkat(&self.dir, path, Vec::new()).ok()?;
        let target = Path::new(OsStr::from_bytes(target.to_bytes()))
            .display()
            .to_string();
        let problem = match errno {
            Errno::XDEV if target.starts_with('/') => "which is an absolute path".to_owned(),
            Errno::XDEV => "out of the skill".to_owned(),
            Errno::NOENT => "where nothing is".to_owned(),
            Errno::LOOP => "in a circle".to_owned(),
            errno => format!("which cannot be opened: {}", io::Error::from(errno)),
        };
        Some(format!("is a link to {target}, {problem}"))
    }
}

impl ArchivePlan {
    /// Refuses names that the server would refuse.
    fn check_names(&self) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for entry in &self.entries {
            if !seen.insert(entry.path.to_lowercase()) {
                let problem = "differs from another file in case only";
                return Err(self.root.refused(Path::new(&entry.path), problem));
            }
        }
        let documents = || {
            let paths = self.entries.iter().map(|entry| Path::new(&entry.path));
            paths.filter(|path| path.file_name().is_some_and(is_document))
        };
        if documents().any(|path| path.parent() == Some(Path::new(""))) {
            return Ok(());
        }
        let mut problem = "there is no SKILL.md in it".to_owned();
        for path in documents().take(SHOWN_MAX) {
            problem.push_str(&format!("; there is {}", path.display()));
        }
        if documents().next().is_some() {
            problem.push_str(": publish each of these folders by itself");
        }
        for SkippedFile {
            path, skip_reason, ..
        } in &self.skipped
        {
            if Path::new(path).file_name().is_some_and(is_document) {
                problem.push_str(&format!("; {path} {skip_reason}"));
            }
        }
        Err(refused(&self.root.shown, problem))
    }
}

/// State of the walk over a skill's folder.
struct FolderWalk<'a> {
    root: &'a SkillFolder,
    ignored: IgnoreRules,
    limits: PackLimits,
    entries: Vec<PackedEntry>,
    skipped: Vec<SkippedFile>,
    folders: usize,
    bytes: u64,
    /// Device and inode of each folder from the root to the current one.
    ancestors: Vec<(u64, u64)>,
}

impl FolderWalk<'_> {
    fn visit_folder(&mut self, at: &Path) -> Result<(), Error> {
        let root = self.root;
        let failed = |errno| root.open_error(at, errno);
        let opened = root.open_beneath(at, OFlags::DIRECTORY).map_err(failed)?;
        let id = FileStamp::new(&fstat(&opened).map_err(failed)?).id;
        if self.ancestors.contains(&id) {
            self.skip(at, "is a link to a folder around it");
            return Ok(());
        }
        self.folders += 1;
        if self.ancestors.len() > DEPTH_MAX {
            let problem = format!("is deeper than {DEPTH_MAX} folders");
            return Err(self.root.refused(at, &problem));
        }
        if self.folders > FOLDERS_MAX {
            let problem =
                format!("it has more than {FOLDERS_MAX} folders, links to folders followed");
            return Err(refused(&self.root.shown, problem));
        }
        self.ancestors.push(id);
        for entry in Dir::read_from(&opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                self.visit_entry(&opened, at, name)?;
            }
        }
        self.ancestors.pop();
        Ok(())
    }

    fn visit_entry(&mut self, dir: &OwnedFd, at: &Path, name: &OsStr) -> Result<(), Error> {
        let path = at.join(name);
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|errno| self.root.open_error(&path, errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.ignored.has(&path, kind == FileType::Directory) {
            return Ok(());
        }
        let (stat, kind) = if kind == FileType::Symlink {
            // Without opening it: the target may be a FIFO.
            let target = self.root.open_beneath(&path, OFlags::PATH);
            let stat = match target.and_then(fstat) {
                Ok(stat) => stat,
                Err(errno) => match self.root.link_problem(&path, errno) {
                    Some(problem) => {
                        self.skip(&path, problem);
                        return Ok(());
                    }
                    None => return Err(self.root.open_error(&path, errno)),
                },
            };
            (stat, FileType::from_raw_mode(stat.st_mode))
        } else {
            (stat, kind)
        };
        match kind {
            FileType::Directory if self.ignored.has(&path, true) => {}
            FileType::Directory => self.visit_folder(&path)?,
            FileType::RegularFile => self.visit_file(&path, &stat)?,
            FileType::Fifo => self.skip(&path, "is a FIFO"),
            FileType::Socket => self.skip(&path, "is a socket"),
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Symlink
            | FileType::Unknown => self.skip(&path, "is a device"),
        }
        Ok(())
    }

    /// Leaves out one entry. The problem completes a sentence that begins with "it".
    fn skip(&mut self, path: &Path, problem: impl Into<String>) {
        self.skipped.push(SkippedFile {
            path: path.display().to_string(),
            skip_reason: problem.into(),
            is_blocked: false,
        });
    }

    fn visit_file(&mut self, path: &Path, stat: &Stat) -> Result<(), Error> {
        let Some(name) = path.to_str().filter(|name| is_portable(name)) else {
            let problem = "has a name that is not UTF-8, or a backslash or control character in it";
            self.skip(Path::new(&format!("{path:?}")), problem);
            return Ok(());
        };
        let stamp = FileStamp::new(stat);
        self.bytes = self.bytes.saturating_add(stamp.size);
        let limit = if self.entries.len() as u64 >= self.limits.files {
            Some(format!("{} files", self.limits.files))
        } else if self.bytes > self.limits.bytes {
            let size = match self.limits.bytes >> 20 {
                0 => format!("{} bytes", self.limits.bytes),
                mebibytes => format!("{mebibytes} MiB"),
            };
            Some(format!("{size} in all, with {name}"))
        } else {
            None
        };
        if let Some(limit) = limit {
            let problem = format!(
                "it has more than {limit}; name what does not belong to it in .skillignore"
            );
            return Err(refused(&self.root.shown, problem));
        }
        self.entries.push(PackedEntry {
            path: name.to_owned(),
            executable: stat.st_mode & 0o111 != 0,
            stamp,
        });
        Ok(())
    }
}

/// Returns `true` if the server accepts a name.
fn is_portable(name: &str) -> bool {
    !name.chars().any(|c| c.is_control() || c == '\\')
}
