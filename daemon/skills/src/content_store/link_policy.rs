//! Link policy: links of skills may lead beneath a root only. Callers resolve a path first; opening follows no link, so
//! it fails if a directory of the path has become a link meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::openat2::open_without_links;

/// Real paths of all roots: links may lead beneath them only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LinkPolicy {
    roots: Vec<PathBuf>,
}

impl LinkPolicy {
    /// Allows what lies beneath these real paths.
    pub(crate) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots }
    }

    /// Allows what lies beneath one directory, in which only the daemon writes.
    pub(crate) fn of_folder(dir: &Path) -> Arc<Self> {
        Arc::new(Self::new(vec![dir.to_owned()]))
    }

    /// Returns the policy for the folder of a skill: one that was fetched has links within itself only, others to all
    /// roots.
    pub(crate) fn of_skill(roots: &Arc<Self>, dir: &Path, is_fetched: bool) -> Arc<Self> {
        match is_fetched {
            true => Self::of_folder(dir),
            false => Arc::clone(roots),
        }
    }

    /// Returns `true` if a real path lies beneath a root.
    pub(crate) fn allows(&self, real: &Path) -> bool {
        self.root_of(real).is_some()
    }

    fn root_of(&self, real: &Path) -> Option<&Path> {
        let roots = self.roots.iter().map(PathBuf::as_path);
        // Of nested roots the inner one counts.
        roots
            .filter(|root| real.starts_with(root))
            .max_by_key(|root| root.as_os_str().len())
    }

    /// Opens a directory by its real path.
    pub(crate) fn open_directory(&self, real: &Path) -> io::Result<OwnedFd> {
        self.open(real, OFlag::O_DIRECTORY)
    }

    /// Opens a regular file by its real path, without waiting for the other end of a FIFO.
    pub(crate) fn open_file(&self, real: &Path) -> io::Result<File> {
        let file = File::from(self.open(real, OFlag::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(file)
    }

    fn open(&self, real: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let outside = || io::Error::other("it is outside of the roots");
        let root = self.root_of(real).ok_or_else(outside)?;
        let below = real.strip_prefix(root).map_err(|_| outside())?;
        let root_flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let root = open(root, root_flags, Mode::empty())?;
        Ok(open_without_links(&root, below, flags)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_is_opened_through_a_link_or_outside() {
        let dir = tempfile::tempdir().expect("temp dir");
        let base = dir.path().canonicalize().expect("there");
        let root = base.join("root");
        fs::create_dir_all(root.join("a/b")).expect("mkdir");
        fs::create_dir_all(base.join("secret/b")).expect("mkdir");
        for path in ["root/a/b/f", "root/f", "secret/b/f", "secret/f"] {
            fs::write(base.join(path), path).expect("write");
        }
        symlink(base.join("secret"), root.join("out")).expect("symlink");
        symlink(base.join("secret/f"), root.join("a/link")).expect("symlink");
        let policy = LinkPolicy::new(vec![root.clone()]);
        for (path, opens) in [
            ("root/f", true),
            ("root/a/b/f", true),
            ("root/a/link", false),
            ("root/out/f", false),
            ("root/out/b/f", false),
            ("root/a/../../secret/f", false),
            ("secret/f", false),
            ("root/a/b", false),
            ("root/none", false),
        ] {
            assert_eq!(policy.open_file(&base.join(path)).is_ok(), opens, "{path}");
        }
        assert!(
            policy.open_directory(&root).is_ok()
                && policy.open_directory(&root.join("a/b")).is_ok()
        );
        assert!(policy.open_directory(&root.join("out")).is_err());
        assert!(policy.open_directory(&root.join("out/b")).is_err());
    }

    #[test]
    fn a_fifo_is_no_file_and_nobody_waits_for_it() {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().canonicalize().expect("there");
        let fifo = root.join("SKILL.md");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("mkfifo");
        let error = LinkPolicy::new(vec![root])
            .open_file(&fifo)
            .expect_err("a FIFO");
        assert!(error.to_string().contains("regular"), "{error}");
    }
}
