//! Writable file systems of the workspace, and which of them have no room. The kernel counts no refused write, so this
//! looks at their free space at the moments when that matters.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use skilld_proto::v1::FullDisk;

use crate::files::root::WorkspaceRoot;

/// Path of the workspace in a container. In tests it is elsewhere, and the other places belong to the machine.
const WORKSPACE: &str = "/workspace";
/// Other file systems that commands can write to.
const OTHER_PLACES: [&str; 2] = ["/tmp", "/dev/shm"];
/// Part of the message of ENOSPC that all C libraries and languages print.
const NO_SPACE_MESSAGE: &[u8] = b"o space left on device";
/// Largest write that a file system on disk takes or refuses as a whole, in bytes: that of a large folio of the kernel.
const WRITE_BYTES_MAX: u64 = 2 << 20;
/// Divisor of the size of a file system on disk that gives the largest free part with which it counts as full, because
/// the largest write may be most of a small disk.
const FULL_PART: u64 = 16;

/// Writable file systems by their mount points.
#[derive(Debug)]
pub(crate) struct WritableDisks(Vec<(&'static str, OwnedFd)>);

impl WritableDisks {
    /// Opens the workspace and, in a container, the other places.
    pub(crate) fn open(root: &WorkspaceRoot) -> Self {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let workspace = root
            .as_fd()
            .try_clone_to_owned()
            .ok()
            .map(|directory| (WORKSPACE, directory));
        let others = OTHER_PLACES
            .iter()
            .filter(|_| root.is_at(WORKSPACE))
            .filter_map(|path| Some((*path, open(*path, flags, Mode::empty()).ok()?)));
        Self(workspace.into_iter().chain(others).collect())
    }

    /// Adds the file systems without room to `found`, each once.
    pub(crate) fn add_full(&self, found: &mut Vec<FullDisk>) {
        for (path, directory) in &self.0 {
            if found.iter().all(|disk| disk.path != *path)
                && let Some(size_bytes) = full_size(directory.as_fd())
            {
                let path = (*path).to_owned();
                found.push(FullDisk { path, size_bytes });
            }
        }
    }
}

/// Returns `true` if output has the message of a write that found no space. A temporary file that filled a disk is often
/// gone at the end of its command, but seldom when the command reports that.
pub(crate) fn reports_full_disk(output: &[u8]) -> bool {
    memchr::memmem::find(output, NO_SPACE_MESSAGE).is_some()
}

/// Returns the size of a file system that has no free inode, or no room for a write; `None` if it has both. A workspace
/// on disk refuses a large write as a whole, so it is full with fewer bytes left than such a write may have.
fn full_size(directory: BorrowedFd<'_>) -> Option<i64> {
    let space = fstatfs(directory).ok()?;
    let is_memory = space.filesystem_type() == TMPFS_MAGIC;
    let block = u64::try_from(space.block_size()).unwrap_or(1).max(1);
    let needed = match is_memory {
        true => 1,
        false => (WRITE_BYTES_MAX / block).min(space.blocks() / FULL_PART),
    };
    let no_files = space.files() > 0 && space.files_free() == 0;
    let is_full = space.blocks() > 0 && (space.blocks_available() < needed.max(1) || no_files);
    is_full.then(|| i64::try_from(space.blocks().saturating_mul(block)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::path::Path;

    #[test]
    fn a_directory_with_space_is_not_full() {
        let directory = tempfile::tempdir().expect("a directory");
        let size = |path: &Path| full_size(File::open(path).expect("opened").as_fd());
        assert_eq!(size(directory.path()), None);
        // /proc has neither blocks nor inodes to count.
        assert_eq!(size(Path::new("/proc")), None);
    }

    #[test]
    fn messages_of_programs_without_space_are_recognised() {
        for (output, expected) in [
            ("cat: write error: No space left on device\n", true),
            ("OSError: [Errno 28] No space left on device", true),
            ("Error: ENOSPC: no space left on device, write", true),
            ("write /tmp/x: no space left on device", true),
            ("no space left", false),
            ("", false),
        ] {
            assert_eq!(reports_full_disk(output.as_bytes()), expected, "{output}");
        }
    }
}
