//! Files of the host, beneath the folders that the configuration lists and nowhere else: no link leads out of them,
//! and whether something exists elsewhere is not told. Blocks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstatat};

use super::within::stays;
use crate::beneath;
use crate::error::{Error, Result, SourceFault};

/// Folders within folders.
const DEPTH_MAX: usize = 128;

/// The folders that may be read.
#[derive(Debug, Clone)]
pub(super) struct Roots(Vec<PathBuf>);

/// Something on the host that may be read.
#[derive(Debug)]
pub(super) enum Found {
    /// A regular file, open.
    File(HostFile),
    /// A folder.
    Folder(Tree),
}

/// An open file.
#[derive(Debug)]
pub(super) struct HostFile {
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) mode: u32,
}

/// A folder and what was in it.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    /// Beneath the root.
    base: PathBuf,
    /// Sorted; folders come before what is in them.
    pub(super) entries: Vec<(String, Entry)>,
    /// Special files, and links that lead out of the folder.
    pub(super) left_out: u64,
}

/// What is in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    File,
    Folder { mode: u32 },
    Link { target: String },
}

impl Roots {
    /// `roots` are absolute.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self(roots)
    }

    /// Opens an absolute path; of a folder with at most `entries_max` entries.
    pub(super) fn open(&self, from: &str, path: &str, entries_max: u64) -> Result<Found> {
        let fault = |fault| Error::Source {
            from: from.to_owned(),
            fault,
        };
        let path = Path::new(path);
        let climbs = path.components().any(|part| part == Component::ParentDir);
        let root = self.0.iter().filter(|root| path.starts_with(root));
        // The innermost one: it may be a mount of its own.
        let root = root.max_by_key(|root| root.components().count());
        let Some(root) = root.filter(|_| !climbs) else {
            let why = "is beneath none of the folders that files.host_roots lists".to_owned();
            return Err(fault(SourceFault::Forbidden(why)));
        };
        let relative = path.strip_prefix(root).unwrap_or(path);
        let failed = |errno| fault(SourceFault::from_errno(errno));
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(root, flags, Mode::empty()).map_err(failed)?;
        let opened = beneath::open(&root, relative, OFlag::empty());
        let file = File::from(opened.map_err(failed)?);
        let metadata = file.metadata().map_err(|error| failed(errno(&error)))?;
        if metadata.is_dir() {
            let tree = Tree::read(root, relative, file.into(), entries_max);
            return tree.map(Found::Folder).map_err(fault);
        }
        if !metadata.is_file() {
            return Err(fault(SourceFault::NotAFile));
        }
        Ok(Found::File(HostFile::new(file, &metadata)))
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

impl Tree {
    fn read(
        root: OwnedFd,
        base: &Path,
        directory: OwnedFd,
        entries_max: u64,
    ) -> Result<Self, SourceFault> {
        let mut tree = Self {
            root,
            base: base.to_owned(),
            entries: Vec::new(),
            left_out: 0,
        };
        // Names, and not what is open: there may be more folders than a process may have descriptors.
        let mut ahead = vec![(String::new(), Some(directory))];
        while let Some((path, directory)) = ahead.pop() {
            let directory = match directory.map_or_else(|| tree.directory(&path), Ok) {
                // It went away meanwhile.
                Err(Errno::ENOENT) => continue,
                opened => opened?,
            };
            let names = names(directory.as_fd().try_clone_to_owned()?)?;
            for name in names {
                let name = name.map_err(|name| SourceFault::Name(format!("{path}{name}")))?;
                let below = format!("{path}{name}");
                if tree.entries.len() as u64 >= entries_max {
                    return Err(SourceFault::TooMany(entries_max));
                }
                let stat = match fstatat(&directory, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                    // It went away meanwhile.
                    Err(Errno::ENOENT) => continue,
                    stat => stat?,
                };
                let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
                if kind == SFlag::S_IFREG {
                    tree.entries.push((below, Entry::File));
                } else if kind == SFlag::S_IFDIR {
                    if below.matches('/').count() >= DEPTH_MAX {
                        return Err(SourceFault::TooMany(DEPTH_MAX as u64));
                    }
                    let mode = stat.st_mode & 0o777;
                    tree.entries.push((below.clone(), Entry::Folder { mode }));
                    ahead.push((format!("{below}/"), None));
                } else if kind == SFlag::S_IFLNK
                    && let Ok(target) = readlinkat(&directory, name.as_str())
                    && let Ok(target) = target.into_string()
                    && stays(&below, &target)
                {
                    tree.entries.push((below, Entry::Link { target }));
                } else {
                    tree.left_out += 1;
                }
            }
        }
        tree.entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(tree)
    }

    fn directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        let path = self.base.join(path);
        beneath::open_without_links(&self.root, &path, OFlag::O_DIRECTORY)
    }

    /// Opens a file of it.
    pub(super) fn file(&self, path: &str) -> Result<HostFile, SourceFault> {
        let path = self.base.join(path);
        // The way to the folder itself may have links; what is in it was looked at without following any.
        let opened = beneath::open(&self.root, &path, OFlag::O_NOFOLLOW)?;
        let file = File::from(opened);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(SourceFault::NotAFile);
        }
        Ok(HostFile::new(file, &metadata))
    }
}

/// Names in a directory, sorted; one that is not UTF-8 as it can be shown.
fn names(directory: OwnedFd) -> Result<Vec<Result<String, String>>, Errno> {
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

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

impl From<Errno> for SourceFault {
    fn from(errno: Errno) -> Self {
        Self::from_errno(errno)
    }
}

impl From<io::Error> for SourceFault {
    fn from(error: io::Error) -> Self {
        Self::from_errno(errno(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn reason(found: Result<Found>) -> String {
        match found {
            Ok(Found::File(file)) => io::read_to_string(file.file).expect("text"),
            Ok(Found::Folder(tree)) => format!("{:?}", tree.entries),
            Err(Error::Source { fault, .. }) => match fault {
                SourceFault::Forbidden(_) => "forbidden",
                SourceFault::Missing => "missing",
                SourceFault::NotAFile => "not a file",
                SourceFault::Unreadable(_) => "unreadable",
                SourceFault::TooMany(_) => "too many",
                SourceFault::Name(_) => "name",
                SourceFault::Changed | SourceFault::TooLarge(_) | SourceFault::Fetch(_) => "other",
            }
            .to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn nothing_outside_the_roots_is_read() {
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
        let roots = Roots::new(vec![base.join("root")]);
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
            reason(Roots::new(vec![]).open("host:///", "/", 10)),
            "forbidden"
        );
    }

    #[test]
    fn a_folder_is_read_without_what_leads_out_of_it() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs::create_dir_all(root.join("b/c")).expect("directories");
        fs::write(root.join("b/c/f"), "f").expect("a file");
        fs::write(root.join("a"), "a").expect("a file");
        symlink("../a", root.join("b/stays")).expect("a link");
        symlink("../../secret", root.join("b/leaves")).expect("a link");
        symlink("/etc", root.join("absolute")).expect("a link");
        nix::unistd::mkfifo(&root.join("fifo"), Mode::S_IRWXU).expect("a FIFO");
        let roots = Roots::new(vec![root.clone()]);
        let from = root.display().to_string();
        let Ok(Found::Folder(tree)) = roots.open("host://x", &from, 5) else {
            panic!("it is a folder");
        };
        let names: Vec<&str> = tree.entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "b/c", "b/c/f", "b/stays"]);
        assert_eq!(tree.left_out, 3);
        assert_eq!(tree.file("b/c/f").expect("a file").size, 1);
        // What became a link after it was listed is not followed.
        fs::remove_file(root.join("a")).expect("removed");
        symlink("b/c/f", root.join("a")).expect("a link");
        assert!(tree.file("a").is_err());
        assert_eq!(reason(roots.open("host://x", &from, 4)), "too many");
    }

    /// Also run by the next one, with few descriptors.
    #[test]
    fn a_folder_of_many_folders_is_read() {
        let place = tempfile::tempdir().expect("a directory");
        for number in 0..500 {
            fs::create_dir(place.path().join(number.to_string())).expect("a directory");
        }
        let roots = Roots::new(vec![place.path().to_owned()]);
        let path = place.path().display().to_string();
        match roots.open("host://x", &path, 1000) {
            Ok(Found::Folder(tree)) => assert_eq!(tree.entries.len(), 500),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_folder_of_many_folders_needs_few_descriptors() {
        let run = std::process::Command::new("bash")
            .args(["-c", "ulimit -n 200 && exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().expect("own path"))
            .arg("inputs::host::tests::a_folder_of_many_folders_is_read")
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
    }
}
