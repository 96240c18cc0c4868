//! Root directory of the workspace, and the only way to open files in it. No path resolves to a file outside, whatever
//! links a command creates or moves in the meantime.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use crate::error::Error;

/// Maximum length of a path, in bytes.
const PATH_MAX: usize = 4096;
/// Maximum length of a path component, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Maximum number of links followed in one path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Mode of a directory that the guest makes for clients and commands.
const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);
/// Flags for a directory that is opened only to reach its entries.
const DIRECTORY: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

/// Root directory of the workspace.
#[derive(Debug)]
pub(crate) struct WorkspaceRoot {
    directory: OwnedFd,
    /// Path of the workspace for commands.
    path: PathBuf,
    /// `true` if the kernel has no openat2, as in older gVisor.
    walks: AtomicBool,
}

impl WorkspaceRoot {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let directory = nix::fcntl::open(path, DIRECTORY, Mode::empty());
        let directory =
            directory.map_err(|errno| Error::file(&path.display().to_string(), errno))?;
        Ok(Self {
            directory,
            path: path.to_owned(),
            walks: AtomicBool::new(false),
        })
    }

    /// Returns `true` if commands find the workspace at this path.
    pub(crate) fn is_at(&self, path: &str) -> bool {
        self.path == Path::new(path)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Opens a path; an empty one is the workspace itself. Follows links that stay beneath the workspace, the last one
    /// unless `flags` has O_NOFOLLOW. Fails with EXDEV for a path that leads out.
    pub(crate) fn openat(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlag::O_CLOEXEC;
        let path = if path.is_empty() { b"." } else { path };
        if !self.walks.load(Ordering::Relaxed) {
            let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
            let how = OpenHow::new().flags(flags).resolve(resolve);
            let opened = retry_open(|| openat2(&self.directory, path, how));
            if opened.as_ref().err() != Some(&Errno::ENOSYS) {
                return opened;
            }
            self.walks.store(true, Ordering::Relaxed);
        }
        self.walk(path, flags)
    }

    /// Opens a path without openat2, one component at a time. Resolves links by their text.
    fn walk(&self, path: &[u8], flags: OFlag) -> Result<OwnedFd, Errno> {
        if path.starts_with(b"/") {
            return Err(Errno::EXDEV);
        }
        let mut above: Vec<OwnedFd> = Vec::new();
        let mut ahead: VecDeque<Vec<u8>> = path_components(path);
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == b".." {
                above.pop().ok_or(Errno::EXDEV)?;
                continue;
            }
            let here = above.last().unwrap_or(&self.directory);
            let last = ahead.is_empty();
            let follow = !(last && flags.contains(OFlag::O_NOFOLLOW));
            if follow && let Ok(target) = readlinkat(here, name.as_slice()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                if target.as_bytes().starts_with(b"/") {
                    return Err(Errno::EXDEV);
                }
                for name in path_components(target.as_bytes()).into_iter().rev() {
                    ahead.push_front(name);
                }
                continue;
            }
            if last {
                let flags = flags | OFlag::O_NOFOLLOW;
                return openat(here, name.as_slice(), flags, Mode::empty());
            }
            let flags = DIRECTORY | OFlag::O_NOFOLLOW;
            above.push(openat(here, name.as_slice(), flags, Mode::empty())?);
        }
        let here = above.last().unwrap_or(&self.directory);
        openat(here, ".", flags, Mode::empty())
    }

    /// Refuses an absolute path that begins in the workspace and leads out of it through links. Other faults of the
    /// path show when it is used.
    pub(crate) fn check_beneath(&self, path: &str) -> Result<(), Error> {
        let Ok(beneath) = Path::new(path).strip_prefix(&self.path) else {
            return Ok(());
        };
        match self.openat(beneath.as_os_str().as_bytes(), DIRECTORY) {
            Err(Errno::EXDEV) => Err(Error::PathEscapes {
                path: path.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Opens a directory, creating it and its parents where they are missing.
    pub(crate) fn make_directories(&self, path: &[u8]) -> Result<OwnedFd, Error> {
        self.make_directories_recording(path, &mut Vec::new())
    }

    /// Opens a directory like [`Self::make_directories`] and adds the paths that it created to `made`.
    pub(crate) fn make_directories_recording(
        &self,
        path: &[u8],
        made: &mut Vec<Vec<u8>>,
    ) -> Result<OwnedFd, Error> {
        let failed = |errno| Error::file(&display_path(path), errno);
        match self.openat(path, DIRECTORY) {
            Err(Errno::ENOENT) => {}
            opened => return opened.map_err(failed),
        }
        let mut here = self.openat(b"", DIRECTORY).map_err(failed)?;
        let mut so_far = Vec::with_capacity(path.len());
        for name in path_components(path) {
            if !so_far.is_empty() {
                so_far.push(b'/');
            }
            so_far.extend_from_slice(&name);
            match mkdirat(&here, name.as_slice(), DIRECTORY_MODE) {
                Ok(()) => made.push(so_far.clone()),
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            here = self.openat(&so_far, DIRECTORY).map_err(failed)?;
        }
        Ok(here)
    }

    /// Creates `runs/{exec}`, in the usual case with two system calls: every exec waits for this.
    pub(crate) fn make_run_directory(&self, exec: &str) -> Result<(), Error> {
        let made = self
            .openat(b"runs", DIRECTORY)
            .and_then(|runs| mkdirat(runs, exec, DIRECTORY_MODE));
        match made {
            Ok(()) => Ok(()),
            Err(_) => self
                .make_directories(format!("runs/{exec}").as_bytes())
                .map(drop),
        }
    }

    /// Removes `runs/{exec}` if it is empty.
    pub(crate) fn remove_run_directory(&self, exec: &str) {
        if let Ok(runs) = self.openat(b"runs", DIRECTORY) {
            let _not_empty = unlinkat(&runs, exec, UnlinkatFlags::RemoveDir);
        }
    }

    /// Removes directories that [`Self::make_directories_recording`] created, if they are empty.
    pub(crate) fn remove_directories(&self, made: &[Vec<u8>]) {
        for path in made.iter().rev() {
            let (parent, name) = split_path(path);
            if let Ok(parent) = self.openat(parent, DIRECTORY) {
                let _not_empty = unlinkat(&parent, name, UnlinkatFlags::RemoveDir);
            }
        }
    }

    /// Creates a link to the daemon's metadata record, for a container of an earlier version in which it is not
    /// mounted.
    pub(crate) fn link_metadata(&self) -> Result<(), Error> {
        match symlinkat(c"skills/.metadata.json", &self.directory, c"metadata.json") {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(Error::file("metadata.json", errno)),
        }
    }
}

/// Retries an openat2 that concurrent renames interrupted: while anything is renamed, the kernel cannot tell whether
/// `..` stays beneath the workspace.
fn retry_open(mut open: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    for _ in 0..16 {
        match open() {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}

fn path_components(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

/// Splits a path into its directory and its last component.
pub(crate) fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (
            path.get(..slash).unwrap_or_default(),
            path.get(slash + 1..).unwrap_or_default(),
        ),
        None => (&[], path),
    }
}

/// Returns a path as text for messages, cut to a length that fits into them.
pub(crate) fn display_path(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.chars().take(1024).collect()
}

/// Normalises the path of a request: no empty components, no dots.
pub(crate) fn normalise_path(path: &str) -> Result<Vec<u8>, Error> {
    let invalid = |problem| Error::Invalid {
        field: "path",
        problem,
    };
    if path.len() > PATH_MAX {
        return Err(invalid("is longer than 4,096 bytes"));
    }
    if path.contains('\0') {
        return Err(invalid("has a NUL in it"));
    }
    let names = path_components(path.as_bytes());
    if path.starts_with('/') || names.iter().any(|name| name == b"..") {
        let path = display_path(path.as_bytes());
        return Err(Error::PathEscapes { path });
    }
    if names.iter().any(|name| name.len() > NAME_MAX) {
        return Err(invalid("has a component longer than 255 bytes"));
    }
    Ok(names.into_iter().collect::<Vec<_>>().join(&b'/'))
}

/// Refuses paths in skills/ and metadata.json, which only the daemon writes.
pub(crate) fn check_writable(path: &[u8]) -> Result<(), Error> {
    if matches!(
        path.split(|byte| *byte == b'/').next(),
        Some(b"skills" | b"metadata.json")
    ) {
        return Err(Error::ReadOnly {
            path: display_path(path),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// Checks that both ways of opening agree.
    fn check(path: &str, expected: Result<&str, Errno>) {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs::create_dir_all(root.join("a/b")).expect("directories");
        fs::write(place.path().join("secret"), "secret").expect("a file");
        fs::write(root.join("a/b/f"), "f").expect("a file");
        for (target, link) in [
            ("../../secret", "a/out"),
            ("../..", "a/up"),
            ("../a/b/f", "a/in"),
            ("/etc/passwd", "abs"),
            ("loop", "loop"),
            ("a/b", "dir"),
            ("a/up/root/a", "around"),
        ] {
            symlink(target, root.join(link)).expect("a link");
        }
        for walks in [false, true] {
            let root = WorkspaceRoot::open(&root).expect("the root");
            root.walks.store(walks, Ordering::Relaxed);
            let opened = root.openat(path.as_bytes(), OFlag::O_RDONLY);
            let read = opened.map(|fd| {
                let mut text = String::new();
                fs::File::from(fd)
                    .read_to_string(&mut text)
                    .map(|_| text)
                    .unwrap_or_default()
            });
            assert_eq!(
                read,
                expected.map(str::to_owned),
                "{path}, walking: {walks}"
            );
        }
    }

    #[test]
    fn links_are_followed_inside_and_never_outside() {
        check("a/b/f", Ok("f"));
        check("a/in", Ok("f"));
        check("dir/f", Ok("f"));
        check("a/../a/b/f", Ok("f"));
        check("", Ok(""));
        check("a/out", Err(Errno::EXDEV));
        check("a/up/secret", Err(Errno::EXDEV));
        check("around/b/f", Err(Errno::EXDEV));
        check("abs", Err(Errno::EXDEV));
        check("../secret", Err(Errno::EXDEV));
        check("/etc/passwd", Err(Errno::EXDEV));
        check("loop", Err(Errno::ELOOP));
        check("nothing", Err(Errno::ENOENT));
        check("a/b/f/x", Err(Errno::ENOTDIR));
    }

    #[test]
    fn request_paths_are_made_plain_or_refused() {
        assert_eq!(normalise_path("a//./b/").expect("good"), b"a/b");
        assert_eq!(normalise_path("").expect("good"), b"");
        assert!(matches!(
            normalise_path("/a"),
            Err(Error::PathEscapes { .. })
        ));
        assert!(matches!(
            normalise_path("a/../b"),
            Err(Error::PathEscapes { .. })
        ));
        assert!(matches!(normalise_path("a\0"), Err(Error::Invalid { .. })));
        assert!(matches!(
            normalise_path(&"x".repeat(256)),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(
            normalise_path(&"x/".repeat(4096)),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(
            check_writable(b"skills/x"),
            Err(Error::ReadOnly { .. })
        ));
        assert!(matches!(
            check_writable(b"metadata.json"),
            Err(Error::ReadOnly { .. })
        ));
        assert!(
            check_writable(b"skillset").is_ok() && check_writable(b"out/metadata.json").is_ok()
        );
    }

    #[test]
    fn missing_directories_are_made_beneath_only() {
        let place = tempfile::tempdir().expect("a directory");
        symlink("..", place.path().join("up")).expect("a link");
        let root = WorkspaceRoot::open(place.path()).expect("the root");
        let mut made = Vec::new();
        root.make_directories_recording(b"x/y", &mut made)
            .expect("made");
        assert_eq!(made, [b"x".to_vec(), b"x/y".to_vec()]);
        assert!(matches!(
            root.make_directories(b"up/z"),
            Err(Error::PathEscapes { .. })
        ));
        root.remove_directories(&made);
        assert!(!place.path().join("x").exists());
    }
}
