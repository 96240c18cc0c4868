//! Facts about directories and files that the configuration names: the state directory, roots, the guest. Reads only, with
//! a deadline for each path, because a network mount can hang.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use nix::sys::statfs::{
    AFS_SUPER_MAGIC, CODA_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC, TMPFS_MAGIC, statfs,
};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};
use skilld_skills::SkillRoot;

use crate::config::Config;
use crate::engine::workspace_disk;
use crate::shutdown::Tasks;

/// Longest wait for one path.
pub(super) const PATH_TIMEOUT: Duration = Duration::from_secs(5);
/// Unit of the allocated size of a file, in bytes.
const DISK_BLOCK_BYTES: u64 = 512;
/// First bytes of a program in the format ELF.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// Numbers of network file systems. Those that nix does not name are 9P, SMB2, CIFS, Ceph, Lustre and GPFS.
const NETWORK_TYPES: [FsType; 10] = [
    AFS_SUPER_MAGIC,
    CODA_SUPER_MAGIC,
    NFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC,
    FsType(0x0102_1997),
    FsType(0xFE53_4D42),
    FsType(0xFF53_4D42),
    FsType(0x00C3_6400),
    FsType(0x0BD0_0BD0),
    FsType(0x4750_4653),
];

/// Kind of a file system, as far as the state directory is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileSystemKind {
    /// Disk of this host, or a kind that is not known.
    Local,
    /// Server: its locks and its sockets can't be relied on.
    Network,
    /// Memory: lost when the host restarts.
    Memory,
    /// Root file system of a container, which Docker does not see at the same path.
    Overlay,
}

/// File system of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileSystemFacts {
    /// Kind.
    pub(super) kind: FileSystemKind,
    /// `true` if it is mounted read-only.
    pub(super) read_only: bool,
    /// Number of bytes that a user other than root can still write.
    pub(super) free_bytes: u64,
    /// Number of files that can still be created; `None` if the file system has no limit.
    pub(super) free_inodes: Option<u64>,
}

/// Facts about the state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StateDirFacts {
    /// Owner (uid) and permission bits of the directory; `None` if it does not exist yet.
    pub(super) found: Option<(u32, u32)>,
    /// The directory itself, or its closest ancestor that exists.
    pub(super) nearest: PathBuf,
    /// `true` if `nearest` is a directory.
    pub(super) is_directory: bool,
    /// `true` if this process may create files in `nearest`.
    pub(super) is_writable: bool,
    /// File system of `nearest`.
    pub(super) file_system: FileSystemFacts,
}

/// Access of this process to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathAccess {
    /// The directory can be listed, or the program can be run.
    Usable,
    /// The path does not exist.
    Missing,
    /// The path is no directory, or no file.
    WrongKind,
    /// This user has no permission, or the program has no permission to be run.
    Denied,
    /// The file is no program of Linux.
    NotAProgram,
    /// The file system did not answer in time.
    Hung,
    /// Other failure, with its reason.
    Failed(String),
}

/// Directory that the daemon reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RootFacts {
    /// Configuration key that names the directory.
    pub(super) key: &'static str,
    /// Path or URL as configured.
    pub(super) text: String,
    /// Access to the directory; `None` for a URL, which is not fetched.
    pub(super) access: Option<PathAccess>,
}

/// Facts about all paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathFacts {
    /// State directory, or the reason why it can't be looked at.
    pub(super) state_dir: Result<StateDirFacts, String>,
    /// Access to the guest binary.
    pub(super) guest: PathAccess,
    /// Space of the state directory for disks of workspaces, in bytes; `None` if it is not known.
    pub(super) disk_space_bytes: Option<u64>,
    /// Fault of the directory of wheels, with its remedy; `None` if it is usable, or not configured.
    pub(super) wheelhouse: Option<String>,
}

/// Looks at all paths except roots.
pub(super) async fn read_path_facts(config: &Config, tasks: &Tasks) -> PathFacts {
    let state_dir = config.state_dir.clone();
    let guest = config.engine.guest_path.clone();
    let environments = config.skills.environments.clone();
    let disks = state_dir.clone();
    let (state_dir, disk_space_bytes, guest, wheelhouse) = tokio::join!(
        run_within(PATH_TIMEOUT, tasks, move || read_state_dir(&state_dir)),
        run_within(PATH_TIMEOUT, tasks, move || read_disk_space(&disks)),
        run_within(PATH_TIMEOUT, tasks, move || check_program(&guest)),
        run_within(PATH_TIMEOUT, tasks, move || environments.wheelhouse_fault()),
    );
    let hung = format!("its file system did not answer within {PATH_TIMEOUT:?}");
    PathFacts {
        state_dir: match state_dir {
            Some(facts) => facts.map_err(|error| error.to_string()),
            None => Err(hung.clone()),
        },
        disk_space_bytes: disk_space_bytes.flatten(),
        guest: guest.unwrap_or(PathAccess::Hung),
        wheelhouse: wheelhouse.unwrap_or(Some(hung)),
    }
}

/// Looks at the roots of skills and the directories of inputs.
pub(super) async fn read_root_facts(config: &Config, tasks: &Tasks) -> Vec<RootFacts> {
    let skills = config.skills.options.roots.iter().map(|root| match root {
        SkillRoot::Dir { text, path } => ("skills.roots", text.clone(), Some(path.clone())),
        SkillRoot::Url { text, .. } => ("skills.roots", text.clone(), None),
    });
    let inputs = config.files.host_roots.iter().map(|path| {
        let text = path.display().to_string();
        ("files.host_roots", text, Some(path.clone()))
    });
    let looked = skills.chain(inputs).map(async |(key, text, path)| {
        let access = match path {
            Some(path) => {
                let access = run_within(PATH_TIMEOUT, tasks, move || check_directory(&path)).await;
                Some(access.unwrap_or(PathAccess::Hung))
            }
            None => None,
        };
        RootFacts { key, text, access }
    });
    join_all(looked).await
}

/// Runs blocking work; `None` if it does not end in time. Its thread is then abandoned.
pub(super) async fn run_within<T: Send + 'static>(
    timeout: Duration,
    tasks: &Tasks,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let work = tasks.blocking(move || Ok(work()));
    tokio::time::timeout(timeout, work).await.ok()?.ok()
}

fn read_state_dir(path: &Path) -> io::Result<StateDirFacts> {
    let mut nearest = path;
    let found = loop {
        match fs::metadata(nearest) {
            Ok(found) => break found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                nearest = nearest.parent().ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    };
    let access_mode = AccessFlags::W_OK | AccessFlags::X_OK;
    Ok(StateDirFacts {
        found: (nearest == path).then(|| (found.uid(), found.mode() & 0o7777)),
        nearest: nearest.to_owned(),
        is_directory: found.is_dir(),
        is_writable: access(nearest, access_mode).is_ok(),
        file_system: read_file_system(nearest)?,
    })
}

/// Returns the number of bytes that are free on the file system of the state directory, or taken by disks of workspaces in
/// it; `None` if they can't be read. Blocks.
pub(super) fn read_disk_space(state_dir: &Path) -> Option<u64> {
    let facts = read_state_dir(state_dir).ok()?;
    let slots = fs::read_dir(state_dir.join("slots")).into_iter().flatten();
    let disks = slots.flatten().filter_map(|slot| {
        let disk = fs::metadata(slot.path().join(workspace_disk::FILE_NAME));
        Some(disk.ok()?.blocks().saturating_mul(DISK_BLOCK_BYTES))
    });
    Some(disks.fold(facts.file_system.free_bytes, u64::saturating_add))
}

fn read_file_system(path: &Path) -> io::Result<FileSystemFacts> {
    let space = statvfs(path)?;
    let inodes = (space.files() > 0).then(|| space.files_available());
    Ok(FileSystemFacts {
        kind: kind_of(statfs(path)?.filesystem_type()),
        read_only: space.flags().contains(FsFlags::ST_RDONLY),
        free_bytes: space
            .blocks_available()
            .saturating_mul(space.fragment_size()),
        free_inodes: inodes,
    })
}

fn kind_of(found: FsType) -> FileSystemKind {
    if NETWORK_TYPES.contains(&found) {
        FileSystemKind::Network
    } else if found == TMPFS_MAGIC {
        FileSystemKind::Memory
    } else if found == OVERLAYFS_SUPER_MAGIC {
        FileSystemKind::Overlay
    } else {
        FileSystemKind::Local
    }
}

/// Tests whether this process can list a directory.
fn check_directory(path: &Path) -> PathAccess {
    match fs::read_dir(path).map(|mut entries| entries.next()) {
        Ok(Some(Err(error))) | Err(error) => access_of(&error),
        Ok(Some(Ok(_)) | None) => PathAccess::Usable,
    }
}

/// Tests whether a file can be copied into a container and run there.
fn check_program(path: &Path) -> PathAccess {
    let look = || -> io::Result<PathAccess> {
        let found = fs::metadata(path)?;
        if !found.is_file() {
            return Ok(PathAccess::WrongKind);
        }
        if found.permissions().mode() & 0o111 == 0 {
            return Ok(PathAccess::Denied);
        }
        let mut magic = [0; ELF_MAGIC.len()];
        let read = File::open(path)?.read_exact(&mut magic);
        Ok(match read {
            Ok(()) if magic == ELF_MAGIC => PathAccess::Usable,
            Ok(()) => PathAccess::NotAProgram,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => PathAccess::NotAProgram,
            Err(error) => return Err(error),
        })
    };
    look().unwrap_or_else(|error| access_of(&error))
}

fn access_of(error: &io::Error) -> PathAccess {
    if error.kind() == ErrorKind::NotFound {
        PathAccess::Missing
    } else if error.kind() == ErrorKind::NotADirectory {
        PathAccess::WrongKind
    } else if error.kind() == ErrorKind::PermissionDenied {
        PathAccess::Denied
    } else {
        PathAccess::Failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn state_directory_that_does_not_exist_is_judged_by_its_ancestor() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let facts = read_state_dir(&dir.path().join("a/b/c")).expect("facts");
        assert_eq!(facts.found, None);
        assert_eq!(facts.nearest, dir.path());
        assert!(facts.is_directory && facts.is_writable);
        assert!(!dir.path().join("a").exists(), "a check makes nothing");

        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
        let facts = read_state_dir(dir.path()).expect("facts");
        assert_eq!(facts.found.map(|(_, mode)| mode), Some(0o755));
        let file = dir.path().join("file");
        fs::write(&file, "").expect("write");
        assert!(!read_state_dir(&file).expect("facts").is_directory);
        // A path beneath a file has no ancestor that could hold it.
        assert!(read_state_dir(&file.join("x")).is_err());
    }

    #[test]
    fn kinds_of_file_systems_are_known_by_their_numbers() {
        for (number, kind) in [
            (0x6969, FileSystemKind::Network),
            (0x0102_1997, FileSystemKind::Network),
            (0xFF53_4D42, FileSystemKind::Network),
            (0x0102_1994, FileSystemKind::Memory),
            (0x794c_7630, FileSystemKind::Overlay),
            (0xEF53, FileSystemKind::Local),
            (0x9123_683E, FileSystemKind::Local),
            (0, FileSystemKind::Local),
        ] {
            assert_eq!(kind_of(FsType(number)), kind, "{number:x}");
        }
        let proc = read_file_system(Path::new("/proc")).expect("facts");
        assert_eq!(proc.free_bytes, 0);
    }

    #[test]
    fn directories_and_programs_are_looked_at_without_being_used() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("script"), "#!/bin/sh\n").expect("write");
        fs::write(path("short"), "\x7fE").expect("write");
        fs::write(path("program"), b"\x7fELF rest").expect("write");
        let set = |name: &str, mode| {
            fs::set_permissions(path(name), Permissions::from_mode(mode)).expect("chmod");
        };
        set("script", 0o755);
        set("short", 0o755);
        assert_eq!(check_directory(dir.path()), PathAccess::Usable);
        assert_eq!(check_directory(&path("gone")), PathAccess::Missing);
        assert_eq!(check_directory(&path("script")), PathAccess::WrongKind);
        assert_eq!(check_program(&path("gone")), PathAccess::Missing);
        assert_eq!(check_program(dir.path()), PathAccess::WrongKind);
        assert_eq!(check_program(&path("script")), PathAccess::NotAProgram);
        assert_eq!(check_program(&path("short")), PathAccess::NotAProgram);
        assert_eq!(check_program(&path("program")), PathAccess::Denied);
        set("program", 0o755);
        assert_eq!(check_program(&path("program")), PathAccess::Usable);
        let long = PathBuf::from(format!("/{}", "x".repeat(300)));
        assert!(matches!(check_directory(&long), PathAccess::Failed(_)));
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_ends_at_the_deadline() {
        let tasks = Tasks::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let outcome = run_within(Duration::from_millis(10), &tasks, move || {
            held.recv().is_ok()
        })
        .await;
        assert_eq!(outcome, None);
        release.send(()).expect("the work still waits");
    }
}
