//! Opens files of the host beneath the configured folders. No link leads out of them, and no answer reveals whether a
//! path elsewhere exists. Everything here blocks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstatat};

use super::folder_listing::{FolderEntry, FolderListing, stays_beneath};
use crate::error::{Error, InputSourceError, Result};
use crate::openat2;

/// Maximum depth of nested folders.
const DEPTH_MAX: usize = 128;

/// Host folders that clients may read.
#[derive(Debug, Clone)]
pub(super) struct HostRoots(Vec<PathBuf>);

/// Opened path on the host.
#[derive(Debug)]
pub(super) enum OpenedHostPath {
    /// Regular file.
    File(HostFile),
    /// Folder with the list of its entries.
    Folder(HostFolder),
}

/// Open regular file with its size and permission bits.
#[derive(Debug)]
pub(super) struct HostFile {
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) mode: u32,
}

/// Folder and all entries beneath it.
#[derive(Debug)]
pub(super) struct HostFolder {
    root: OwnedFd,
    /// Path of the folder beneath the root.
    base: PathBuf,
    pub(super) listing: FolderListing,
}

impl HostRoots {
    /// Creates the list of allowed folders, which are absolute paths.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self(roots)
    }

    /// Opens an absolute path. A folder may have at most `entries_max` entries.
    pub(super) fn open(&self, from: &str, path: &str, entries_max: u64) -> Result<OpenedHostPath> {
        let fault = |fault| Error::Source {
            from: from.to_owned(),
            fault,
        };
        let path = Path::new(path);
        let climbs = path.components().any(|part| part == Component::ParentDir);
        // The innermost root, since it may be a mount of its own.
        let innermost = self
            .0
            .iter()
            .filter(|root| path.starts_with(root))
            .max_by_key(|root| root.components().count());
        let Some(root) = innermost.filter(|_| !climbs) else {
            let why = "is beneath none of the folders that files.host_roots lists".to_owned();
            return Err(fault(InputSourceError::Forbidden(why)));
        };
        let relative = path.strip_prefix(root).unwrap_or(path);
        let failed = |errno| fault(InputSourceError::from_errno(errno));
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(root, flags, Mode::empty()).map_err(failed)?;
        let opened = openat2::open_following_links(&root, relative, OFlag::empty());
        let file = File::from(opened.map_err(failed)?);
        let metadata = file.metadata().map_err(|error| failed(io_errno(&error)))?;
        if metadata.is_dir() {
            let tree = HostFolder::read(root, relative, file.into(), entries_max);
            return tree.map(OpenedHostPath::Folder).map_err(fault);
        }
        if !metadata.is_file() {
            return Err(fault(InputSourceError::NotAFile));
        }
        Ok(OpenedHostPath::File(HostFile::new(file, &metadata)))
    }
}

impl HostFile {
    fn new(file: File, metadata: &std::fs::Metadata) -> Self {
        Self {
            file,
            size: metadata.len(),
            mode: metadata.mode() & 0o777,
        }
    }
}

impl HostFolder {
    fn read(
        root: OwnedFd,
        base: &Path,
        directory: OwnedFd,
        entries_max: u64,
    ) -> Result<Self, InputSourceError> {
        let mut tree = Self {
            root,
            base: base.to_owned(),
            listing: FolderListing::default(),
        };
        // Paths instead of open folders: there may be more folders than descriptors.
        let mut ahead = vec![(String::new(), Some(directory))];
        while let Some((path, directory)) = ahead.pop() {
            let directory = match directory.map_or_else(|| tree.open_directory(&path), Ok) {
                // The entry was removed meanwhile.
                Err(Errno::ENOENT) => continue,
                opened => opened?,
            };
            let names = list_names(directory.as_fd().try_clone_to_owned()?)?;
            for name in names {
                let name = name.map_err(|name| InputSourceError::Name(format!("{path}{name}")))?;
                let below = format!("{path}{name}");
                if tree.listing.entries.len() as u64 >= entries_max {
                    return Err(InputSourceError::TooMany(entries_max));
                }
                let stat = match fstatat(&directory, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                    // The entry was removed meanwhile.
                    Err(Errno::ENOENT) => continue,
                    stat => stat?,
                };
                let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
                if kind == SFlag::S_IFREG {
                    tree.listing.entries.push((below, FolderEntry::File));
                } else if kind == SFlag::S_IFDIR {
                    if below.matches('/').count() >= DEPTH_MAX {
                        return Err(InputSourceError::TooMany(DEPTH_MAX as u64));
                    }
                    let mode = stat.st_mode & 0o777;
                    tree.listing
                        .entries
                        .push((below.clone(), FolderEntry::Folder { mode }));
                    ahead.push((format!("{below}/"), None));
                } else if kind == SFlag::S_IFLNK
                    && let Ok(target) = readlinkat(&directory, name.as_str())
                    && let Ok(target) = target.into_string()
                    && stays_beneath(&below, &target)
                {
                    tree.listing
                        .entries
                        .push((below, FolderEntry::Link { target }));
                } else {
                    tree.listing.left_out += 1;
                }
            }
        }
        tree.listing.entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(tree)
    }

    fn open_directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        let path = self.base.join(path);
        openat2::open_without_links(&self.root, &path, OFlag::O_DIRECTORY)
    }

    /// Opens a file of the folder.
    pub(super) fn open_file(&self, path: &str) -> Result<HostFile, InputSourceError> {
        let path = self.base.join(path);
        // Links on the path to the folder itself are followed; entries beneath it were listed without following any.
        let opened = openat2::open_following_links(&self.root, &path, OFlag::O_NOFOLLOW)?;
        let file = File::from(opened);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(InputSourceError::NotAFile);
        }
        Ok(HostFile::new(file, &metadata))
    }
}

/// Lists the names in a directory, sorted. A name that is not UTF-8 is an `Err` with its lossy text.
fn list_names(directory: OwnedFd) -> Result<Vec<Result<String, String>>, Errno> {
    let mut directory = Dir::from_fd(directory)?;
    let mut names = Vec::new();
    for entry in directory.iter() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(
                name.into_string()
                    .map_err(|error| error.into_cstring().to_string_lossy().into_owned()),
            );
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn io_errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

impl From<Errno> for InputSourceError {
    fn from(errno: Errno) -> Self {
        Self::from_errno(errno)
    }
}

impl From<io::Error> for InputSourceError {
    fn from(error: io::Error) -> Self {
        Self::from_errno(io_errno(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn reason(found: Result<OpenedHostPath>) -> String {
        match found {
            Ok(OpenedHostPath::File(file)) => io::read_to_string(file.file).expect("text"),
            Ok(OpenedHostPath::Folder(tree)) => format!("{:?}", tree.listing.entries),
            Err(Error::Source { fault, .. }) => match fault {
                InputSourceError::Forbidden(_) => "forbidden",
                InputSourceError::Missing => "missing",
                InputSourceError::NotAFile => "not a file",
                InputSourceError::Unreadable(_) => "unreadable",
                InputSourceError::TooMany(_) => "too many",
                InputSourceError::Name(_) => "name",
                InputSourceError::Changed
                | InputSourceError::TooLarge(_)
                | InputSourceError::Fetch(_) => "other",
            }
            .to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_paths_beneath_the_roots_are_read() {
        let place = tempfile::tempdir().expect("a directory");
        let base = place.path();
        fs::create_dir_all(base.join("root/sub")).expect("directories");
        fs::create_dir_all(base.join("rootling")).expect("directories");
        fs::write(base.join("secret"), "secret").expect("a file");
        fs::write(base.join("rootling/x"), "secret").expect("a file");
        fs::write(base.join("root/sub/a"), "a").expect("a file");
        for (target, link) in [
            ("../../secret", "sub/out"),
            ("/etc/hostname", "abs"),
            ("sub/a", "in"),
            ("loop", "loop"),
            ("/proc/self/root/etc/hostname", "magic"),
        ] {
            symlink(target, base.join("root").join(link)).expect("a link");
        }
        nix::unistd::mkfifo(&base.join("root/fifo"), Mode::S_IRWXU).expect("a FIFO");
        let roots = HostRoots::new(vec![base.join("root")]);
        let text = |path: &str| base.join(path).display().to_string();
        for (path, expected) in [
            (text("root/sub/a"), "a"),
            (text("root//sub/./a"), "a"),
            (text("root/in"), "a"),
            (text("root/sub/out"), "forbidden"),
            (text("root/abs"), "forbidden"),
            (text("root/magic"), "forbidden"),
            (text("root/loop"), "forbidden"),
            (text("root/sub/../../secret"), "forbidden"),
            (text("secret"), "forbidden"),
            (text("nothing"), "forbidden"),
            (text("rootling/x"), "forbidden"),
            ("/etc/hostname".to_owned(), "forbidden"),
            ("root/sub/a".to_owned(), "forbidden"),
            (String::new(), "forbidden"),
            (text("root/nothing"), "missing"),
            (text("root/sub/a/b"), "missing"),
            (text("root/fifo"), "not a file"),
        ] {
            assert_eq!(
                reason(roots.open("host://x", &path, 10)),
                expected,
                "{path}"
            );
        }
        assert_eq!(
            reason(HostRoots::new(vec![]).open("host:///", "/", 10)),
            "forbidden"
        );
    }

    #[test]
    fn folder_is_read_without_links_out_of_it() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs::create_dir_all(root.join("b/c")).expect("directories");
        fs::write(root.join("b/c/f"), "f").expect("a file");
        fs::write(root.join("a"), "a").expect("a file");
        symlink("../a", root.join("b/stays")).expect("a link");
        symlink("../../secret", root.join("b/leaves")).expect("a link");
        symlink("/etc", root.join("absolute")).expect("a link");
        nix::unistd::mkfifo(&root.join("fifo"), Mode::S_IRWXU).expect("a FIFO");
        let roots = HostRoots::new(vec![root.clone()]);
        let from = root.display().to_string();
        let Ok(OpenedHostPath::Folder(tree)) = roots.open("host://x", &from, 5) else {
            panic!("it is a folder");
        };
        let names: Vec<&str> = tree
            .listing
            .entries
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "b/c", "b/c/f", "b/stays"]);
        assert_eq!(tree.listing.left_out, 3);
        assert_eq!(tree.open_file("b/c/f").expect("a file").size, 1);
        // What became a link after it was listed is not followed.
        fs::remove_file(root.join("a")).expect("removed");
        symlink("b/c/f", root.join("a")).expect("a link");
        assert!(tree.open_file("a").is_err());
        assert_eq!(reason(roots.open("host://x", &from, 4)), "too many");
    }

    /// The next test runs this one again with few descriptors.
    #[test]
    fn a_folder_of_many_folders_is_read() {
        let place = tempfile::tempdir().expect("a directory");
        for number in 0..500 {
            fs::create_dir(place.path().join(number.to_string())).expect("a directory");
        }
        let roots = HostRoots::new(vec![place.path().to_owned()]);
        let path = place.path().display().to_string();
        match roots.open("host://x", &path, 1000) {
            Ok(OpenedHostPath::Folder(tree)) => assert_eq!(tree.listing.entries.len(), 500),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_folder_of_many_folders_needs_few_descriptors() {
        let run = std::process::Command::new("bash")
            .args(["-c", "ulimit -n 200 && exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().expect("own path"))
            .arg("inputs::host_folder::tests::a_folder_of_many_folders_is_read")
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
    }
}
