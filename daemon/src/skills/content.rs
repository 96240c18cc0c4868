//! What is in a skill's folder: read once, by descriptors, hashed and, if asked for, copied. Links within the folder
//! stay links; one that leads out of it, to what lies beneath a root, becomes the file or folder that it leads to; no other
//! is followed. The digest is of the bytes that were read, so a file that changes meanwhile cannot make it lie.
//!
//! digest = sha256 of a header line and, in order of the paths' bytes, for each file and link
//! `kind (1 byte: f file, x executable file, l link) · length of path (8 bytes, little endian) · path ·
//! sha256 of its contents or target`. Directories count only by what is in them.

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

use super::Problem;
use super::discovery::Trust;
use crate::error::{Error, HostFault};

/// First bytes that are hashed; changes with the rules above.
const HEADER: &[u8] = b"skilld skill 1\n";
/// Directories below one another in a skill.
const DEPTH_MAX: usize = 32;
/// Left out wherever they are: they belong to the machine that the folder is on, not to the skill.
pub(super) const LEFT_OUT: [&str; 2] = [".git", "__pycache__"];
/// Names in a skill's root for which staging makes links, unless the skill has its own.
pub(super) const LINKS: [&str; 4] = ["out", "work", "inputs", ".venv"];

/// The code of what the file system does not let us read, which says nothing about the skill.
pub(super) const UNREADABLE: &str = "skill.unreadable";

/// What a skill consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// 64 hex digits.
    pub digest: String,
    /// Regular files and links.
    pub files: u64,
    /// Of its files.
    pub bytes: u64,
    /// Those of `LINKS` that the skill has itself.
    pub own_links: Vec<&'static str>,
    /// Links that became the files and folders that they lead to.
    pub followed: u64,
}

impl Content {
    /// What its user should know.
    pub(super) fn warnings(&self, dir: &Path) -> impl Iterator<Item = Problem> {
        self.own_links.iter().map(move |name| {
            let message = format!(
                "the skill has its own {name}, so commands do not get the workspace's there"
            );
            Problem::warning("skill.own_link", message).about(dir)
        })
    }
}

/// A skill's folder and what of it belongs to the skill.
#[derive(Debug, Clone, Default)]
pub(super) struct Folder {
    /// Its real path.
    pub(super) dir: PathBuf,
    /// Folders in it that are skills themselves, relative to it.
    pub(super) nested: Vec<PathBuf>,
    /// Where its links may lead.
    pub(super) trust: Arc<Trust>,
    /// It never changes.
    pub(super) fixed: bool,
}

impl Folder {
    /// Of the store: nobody but the daemon writes there.
    pub(super) fn stored(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            nested: Vec::new(),
            trust: Arc::new(Trust::new(vec![dir.to_owned()])),
            fixed: true,
        }
    }

    pub(super) fn is_nested(&self, path: &Path) -> bool {
        let below = path.strip_prefix(&self.dir).unwrap_or(path);
        self.nested.iter().any(|nested| nested == below)
    }
}

/// How much a skill may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Files and links.
    pub files_max: u64,
    /// Bytes of files.
    pub bytes_max: u64,
}

/// Why a folder was not taken.
#[derive(Debug)]
pub(super) enum Fault {
    /// The skill's.
    Skill(Problem),
    /// The store's.
    Store(Error),
}

impl Fault {
    /// As a listing says it.
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Skill(problem) => problem,
            Self::Store(error) => Problem::error(UNREADABLE, error.to_string()),
        }
    }
}

/// Reads a folder, and copies it to `into` if given (which must not exist). A copy has files of mode 0444 or
/// 0555 and directories of 0755; `Store::sync` waits for the disk.
pub(super) fn read(folder: &Folder, into: Option<&Path>, bounds: Bounds) -> Result<Content, Fault> {
    let opened = folder.trust.directory(&folder.dir);
    let opened = opened.and_then(|opened| Ok(Dir::from_fd(opened)?));
    let opened = opened.map_err(|error| unreadable(Path::new("."), error))?;
    let mut walk = Walk {
        folder,
        into,
        bounds,
        entries: BTreeMap::new(),
        directories: HashSet::new(),
        walked: 0,
        bytes: 0,
        followed: 0,
        through: None,
        buffer: vec![0; 64 * 1024],
    };
    walk.make_directory(Path::new("")).map_err(Fault::Store)?;
    walk.directory(opened, Path::new(""), 0)?;
    Ok(walk.finish())
}

struct Walk<'a> {
    folder: &'a Folder,
    into: Option<&'a Path>,
    bounds: Bounds,
    /// By path: kind, and sha256 of contents.
    entries: BTreeMap<OsString, (u8, [u8; 32])>,
    /// Those made in `into`.
    directories: HashSet<PathBuf>,
    /// Directories that were looked into: empty ones are no part of it, and cost time all the same.
    walked: u64,
    bytes: u64,
    followed: u64,
    /// The folder that a link led to and that is being read: where it is in the skill, and where it is.
    through: Option<(PathBuf, PathBuf)>,
    buffer: Vec<u8>,
}

impl Walk<'_> {
    fn directory(&mut self, mut dir: Dir, at: &Path, depth: usize) -> Result<(), Fault> {
        if depth > DEPTH_MAX {
            let message = format!("{} is deeper than {DEPTH_MAX} directories", at.display());
            return Err(Fault::Skill(Problem::error("skill.too_deep", message)));
        }
        self.walked += 1;
        if self.walked > self.bounds.files_max.saturating_add(1) {
            let message = format!(
                "the skill has more than {} directories",
                self.bounds.files_max
            );
            return Err(Fault::Skill(Problem::error(
                "skill.too_many_files",
                message,
            )));
        }
        let mut names: Vec<OsString> = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(|errno| unreadable(at, errno))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." && !LEFT_OUT.iter().any(|left_out| name == *left_out) {
                names.push(name.to_owned());
            }
            if names.len() as u64 > self.bounds.files_max {
                return Err(self.too_many_files());
            }
        }
        for name in names {
            self.entry(&dir, &name, at, depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: &Dir, name: &OsStr, at: &Path, depth: usize) -> Result<(), Fault> {
        let path = at.join(name);
        let stat = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| unreadable(&path, errno))?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let open = |flags| {
            openat(dir, name, flags, Mode::empty()).map_err(|errno| unreadable(&path, errno))
        };
        if kind == SFlag::S_IFDIR {
            if self.folder.nested.contains(&path) {
                return Ok(());
            }
            let opened = Dir::from_fd(open(flags | OFlag::O_DIRECTORY)?)
                .map_err(|errno| unreadable(&path, errno))?;
            return self.directory(opened, &path, depth + 1);
        }
        if self.entries.len() as u64 >= self.bounds.files_max {
            return Err(self.too_many_files());
        }
        if kind == SFlag::S_IFLNK {
            let target = readlinkat(dir, name).map_err(|errno| unreadable(&path, errno))?;
            return self.link(&path, &target, depth);
        }
        if kind != SFlag::S_IFREG {
            let message = format!(
                "{} is a FIFO, socket or device; a skill has none",
                path.display()
            );
            return Err(Fault::Skill(Problem::error("skill.special_file", message)));
        }
        // Opened without following or waiting, then looked at again: it may have been replaced.
        let file = open(flags)?;
        let stat = fstat(&file).map_err(|errno| unreadable(&path, errno))?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(unreadable(&path, Errno::EBUSY));
        }
        self.file(&path, File::from(file), stat.st_mode & 0o111 != 0)
    }

    fn file(&mut self, path: &Path, mut source: File, executable: bool) -> Result<(), Fault> {
        let mut copy = self.create(path).map_err(Fault::Store)?;
        let mut hash = Sha256::new();
        loop {
            let count = match source.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(path, error)),
            };
            self.bytes += count as u64;
            if self.bytes > self.bounds.bytes_max {
                let message = format!("the skill has more than {} bytes", self.bounds.bytes_max);
                return Err(Fault::Skill(Problem::error("skill.too_large", message)));
            }
            let chunk = self.buffer.get(..count).unwrap_or_default();
            hash.update(chunk);
            if let Some(copy) = &mut copy {
                copy.write_all(chunk)
                    .map_err(|error| store_fault(path, error))?;
            }
        }
        if let Some(copy) = copy {
            let mode = if executable { 0o555 } else { 0o444 };
            copy.set_permissions(fs::Permissions::from_mode(mode))
                .map_err(|error| store_fault(path, error))?;
        }
        let kind = if executable { b'x' } else { b'f' };
        self.entries
            .insert(path.as_os_str().to_owned(), (kind, hash.finalize().into()));
        Ok(())
    }

    fn link(&mut self, path: &Path, target: &OsStr, depth: usize) -> Result<(), Fault> {
        if self.through.is_some() || !stays_inside(path, Path::new(target)) {
            return self.follow(path, target, depth);
        }
        if let Some(into) = self.into {
            self.make_parents(path).map_err(Fault::Store)?;
            std::os::unix::fs::symlink(target, into.join(path))
                .map_err(|error| store_fault(path, error))?;
        }
        let hash = Sha256::digest(target.as_bytes()).into();
        self.entries
            .insert(path.as_os_str().to_owned(), (b'l', hash));
        Ok(())
    }

    /// Takes the file or folder of a root that a link leads to. In such a folder links lead to files only: one to a folder
    /// could lead on in circles.
    fn follow(&mut self, path: &Path, target: &OsStr, depth: usize) -> Result<(), Fault> {
        let place = match &self.through {
            Some((at, real)) => real.join(path.strip_prefix(at).unwrap_or(path)),
            None => self.folder.dir.join(path),
        };
        let trust = &self.folder.trust;
        if let Some(real) = place.canonicalize().ok().filter(|real| trust.holds(real)) {
            if let Ok(file) = trust.file(&real) {
                let metadata = file.metadata().map_err(|error| unreadable(path, error))?;
                self.followed += 1;
                return self.file(path, file, metadata.permissions().mode() & 0o111 != 0);
            }
            let opened = trust
                .directory(&real)
                .and_then(|dir| Ok(Dir::from_fd(dir)?));
            if self.through.is_none()
                && !self.folder.dir.starts_with(&real)
                && let Ok(dir) = opened
            {
                self.followed += 1;
                self.through = Some((path.to_owned(), real));
                let read = self.directory(dir, path, depth + 1);
                self.through = None;
                return read;
            }
        }
        let message = format!(
            "the link {} leads out of the skill, to {}, which is no file or folder of a root that can be taken for it; put a \
             copy in its place",
            path.display(),
            Path::new(target).display()
        );
        Err(Fault::Skill(Problem::error("skill.link_outside", message)))
    }

    fn create(&mut self, path: &Path) -> Result<Option<File>, Error> {
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

    fn finish(self) -> Content {
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
        Content {
            digest: HEXLOWER.encode(&hash.finalize()),
            files: self.entries.len() as u64,
            bytes: self.bytes,
            own_links: LINKS.into_iter().filter(own).collect(),
            followed: self.followed,
        }
    }

    fn too_many_files(&self) -> Fault {
        let message = format!("the skill has more than {} files", self.bounds.files_max);
        Fault::Skill(Problem::error("skill.too_many_files", message))
    }
}

/// Makes one directory of mode 0755, whatever the umask.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Whether a link's target stays in the skill. `..` may only come first: after a name it could follow
/// another link.
pub(super) fn stays_inside(link: &Path, target: &Path) -> bool {
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

fn unreadable(path: &Path, error: impl Into<io::Error>) -> Fault {
    let error: io::Error = error.into();
    if HostFault::of(&error) == Some(HostFault::TooManyFiles) {
        // That is no fault of the skill's.
        return Fault::Store(io_error("read", path)(error));
    }
    let message = format!("cannot read {}: {error}", path.display());
    Fault::Skill(Problem::error(UNREADABLE, message))
}

fn store_fault(path: &Path, error: io::Error) -> Fault {
    Fault::Store(io_error("copy", path)(error))
}

fn io_error<'a>(verb: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::Io {
        operation: format!("{verb} {} of a skill", path.display()),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        files_max: 100,
        bytes_max: 1 << 20,
    };

    /// Makes a folder of files; `!` at the end of a name makes it executable.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temp dir");
        for (name, text) in files {
            let path = dir.path().join(name.trim_end_matches('!'));
            fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
            fs::write(&path, text).expect("write");
            let mode = if name.ends_with('!') { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        }
        dir
    }

    fn read_dir(dir: &Path, into: Option<&Path>) -> Content {
        read(&Folder::stored(dir), into, BOUNDS).expect("readable")
    }

    fn digest(files: &[(&str, &str)]) -> String {
        read_dir(folder(files).path(), None).digest
    }

    #[test]
    fn a_digest_depends_on_paths_contents_and_the_exec_bit_only() {
        let base = digest(&[("SKILL.md", "x"), ("a/b", "y"), ("a.txt", "z")]);
        assert_eq!(
            base,
            digest(&[("a.txt", "z"), ("a/b", "y"), ("SKILL.md", "x")])
        );
        assert_eq!(base.len(), 64);
        for other in [
            digest(&[("SKILL.md", "x"), ("a/b", "y")]),
            digest(&[("SKILL.md", "x"), ("a/b", "y"), ("a.txt", "Z")]),
            digest(&[("SKILL.md", "x"), ("a/c", "y"), ("a.txt", "z")]),
            digest(&[("SKILL.md", "x"), ("a/b!", "y"), ("a.txt", "z")]),
            digest(&[("SKILL.md", "xa/by"), ("a.txt", "z")]),
        ] {
            assert_ne!(base, other);
        }
        let dir = folder(&[("SKILL.md", "x"), ("a/b", "y"), ("a.txt", "z")]);
        fs::set_permissions(dir.path().join("a.txt"), fs::Permissions::from_mode(0o600))
            .expect("chmod");
        fs::create_dir_all(dir.path().join("empty/.git")).expect("mkdir");
        fs::create_dir(dir.path().join("__pycache__")).expect("mkdir");
        fs::write(dir.path().join("__pycache__/x.pyc"), "x").expect("write");
        assert_eq!(base, read_dir(dir.path(), None).digest);
    }

    #[test]
    fn the_digest_is_what_it_always_was() {
        // Changing this changes every digest that anybody has pinned.
        let dir = folder(&[("SKILL.md", "x"), ("bin/run!", "y")]);
        std::os::unix::fs::symlink("bin/run", dir.path().join("link")).expect("symlink");
        let content = read_dir(dir.path(), None);
        assert_eq!(
            content.digest,
            "1ddfd1e0b5e79eccc2932608f576bcee89b01b78aa4a3a34ee3b2185abc8fe00"
        );
        assert_eq!((content.files, content.bytes), (3, 2));
    }

    #[test]
    fn a_copy_has_the_digest_of_its_source_and_fixed_modes() {
        let source = folder(&[("SKILL.md", "x"), ("a/b/c!", "y")]);
        std::os::unix::fs::symlink("../SKILL.md", source.path().join("a/link")).expect("symlink");
        let target = tempfile::tempdir().expect("temp dir");
        let copy = target.path().join("copy");
        let content = read_dir(source.path(), Some(&copy));
        assert_eq!(content, read_dir(&copy, None));
        let mode = |path: &str| fs::metadata(copy.join(path)).expect("there").mode() & 0o7777;
        assert_eq!(
            [mode("."), mode("a"), mode("SKILL.md"), mode("a/b/c")],
            [0o755, 0o755, 0o444, 0o555]
        );
    }

    #[test]
    fn directories_are_bounded_as_files_are() {
        let refused = |count: usize| {
            let dir = folder(&[("SKILL.md", "x")]);
            for n in 0..count {
                fs::create_dir_all(dir.path().join(format!("{}/{n}", n % 7))).expect("mkdir");
            }
            match read(&Folder::stored(dir.path()), None, BOUNDS) {
                Ok(_) => None,
                Err(Fault::Skill(problem)) => Some(problem.message),
                Err(Fault::Store(error)) => panic!("{error}"),
            }
        };
        assert_eq!(refused(93), None);
        let why = refused(94).expect("101 directories");
        assert!(why.contains("more than 100 directories"), "{why}");
    }

    #[test]
    fn links_must_stay_inside() {
        for (link, target, inside) in [
            ("a", "b", true),
            ("a", "./b/c", true),
            ("d/a", "../b", true),
            ("d/a", "..", true),
            ("d/a", "../..", false),
            ("a", "..", false),
            ("a", "../skill/b", false),
            ("a", "b/../c", false),
            ("a", "/etc/passwd", false),
            ("d/e/a", "../../b", true),
        ] {
            assert_eq!(
                stays_inside(Path::new(link), Path::new(target)),
                inside,
                "{link} → {target}"
            );
        }
    }
}
