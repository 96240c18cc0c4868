//! File system of a workspace on the host's disk. It is an ext4 in a file in the slot's directory, with a loop device
//! over the file.
//!
//! The daemon mounts nothing. The engine mounts the device when it starts the container, as a volume of its own, and
//! unmounts it with the container. So the daemon needs no right to mount and no part in the host's mounts, its end leaves
//! no mount, and a container that runs keeps its files.
//!
//! The file has all its blocks from the beginning. If they were taken when they are first written, a full disk of the host
//! would be an I/O error in a workspace that has not used up its size, and its file system would lose data.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;

use crate::engine::EngineInfo;
use crate::error::{Error, Result};
use crate::fault;
use crate::shutdown::Tasks;

mod geometry;
mod loop_device;
mod tools;

pub use geometry::{DiskGeometry, GeometryFault, inodes_max};
pub use loop_device::{BackingFiles, LoopDevice, release_devices};
use tools::{find_tool, run_tool};

/// Name of the file in the slot's directory.
pub const FILE_NAME: &str = "workspace.ext4";
/// Device by which loop devices are made.
const LOOP_CONTROL: &str = "/dev/loop-control";
/// Programs that are needed, and Debian's packages of them.
const PROGRAMS: [(&str, &str); 3] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("losetup", "mount (util-linux)"),
];
/// Features of the file system that differ from mkfs' default. A journal would protect files from a crash of the host,
/// which ends their workspace in any case. Nothing resizes the file system.
const FEATURES: &str = "^has_journal,^resize_inode";

/// Owner of a new file system, and the space that it must leave.
#[derive(Debug, Clone, Copy)]
pub struct DiskOptions {
    /// Uid and gid of the root directory.
    pub owner: u32,
    /// Number of bytes that have to stay free on the disk of the file.
    pub reserve_bytes: u64,
}

/// Returns the reason for which this host cannot have workspaces on disk, and what to do; `None` if it can. Blocks.
pub fn find_host_fault(info: &EngineInfo) -> Option<String> {
    if info.userns_remap {
        // The files would belong to the uid that the engine maps the container's to, which it does not report.
        let fault =
            "Docker maps uids (userns-remap or rootless): use a Docker without this mapping";
        return Some(fault.to_owned());
    }
    let missing = PROGRAMS.iter().find(|(name, _)| find_tool(name).is_none());
    if let Some((name, package)) = missing {
        return Some(format!("{name} is missing: install {package}"));
    }
    let opened = OpenOptions::new().read(true).write(true).open(LOOP_CONTROL);
    let error = opened.err()?;
    let remedy = if error.kind() == io::ErrorKind::PermissionDenied {
        "run skilld as root, with access to loop devices (docs/workspaces-on-disk.md)"
    } else {
        "run `modprobe loop`, or give skilld's container or service the loop devices (docs/workspaces-on-disk.md)"
    };
    Some(format!(
        "{LOOP_CONTROL} can't be opened ({error}): {remedy}"
    ))
}

/// Makes the file of a workspace's file system.
///
/// # Errors
/// When a program is missing or fails, and when the host's disk is full or would have less than the reserve left. The
/// file may exist then.
pub async fn create_disk(
    tasks: &Tasks,
    path: &Path,
    geometry: DiskGeometry,
    options: DiskOptions,
) -> Result<()> {
    let owned = path.to_owned();
    let file = tasks
        .blocking(move || create_file(&owned, geometry))
        .await?;
    let (blocks, inodes) = (geometry.blocks.to_string(), geometry.inodes.to_string());
    let (block, inode) = (
        geometry::BLOCK_BYTES.to_string(),
        geometry::INODE_BYTES.to_string(),
    );
    // The file reads as zeros, so tables need not be zeroed, neither now nor by the kernel later.
    let extended = format!(
        "root_owner={0}:{0},nodiscard,lazy_itable_init=0",
        options.owner
    );
    let make = [
        "-q",
        "-F",
        "-b",
        &block,
        "-I",
        &inode,
        "-N",
        &inodes,
        "-m",
        "0",
        "-e",
        "remount-ro",
        "-O",
        FEATURES,
        "-E",
        &extended,
        "--",
    ];
    let target = [path.as_os_str(), blocks.as_ref()];
    let arguments = make.iter().map(AsRef::as_ref).chain(target);
    run_tool("mkfs.ext4", arguments, b"").await?;
    // mkfs has no option for either. The workspace starts empty, and only its user gets in.
    let script = b"rmdir lost+found\nset_inode_field <2> mode 040700\n";
    let change = ["-w".as_ref(), "-f".as_ref(), "-".as_ref(), path.as_os_str()];
    run_tool("debugfs", change, script).await?;
    // At the end, since mkfs punches holes where it wants zeros.
    let (bytes, reserve) = (geometry.file_bytes(), options.reserve_bytes);
    let operation = format!(
        "take {bytes} bytes for {} and leave {reserve} on its disk (workspaces.disk_reserve)",
        path.display()
    );
    let fill =
        move || allocate(&file, bytes, reserve).map_err(|source| Error::io(operation, source));
    tasks.blocking(fill).await?;
    fault::reach("disk.made");
    Ok(())
}

fn create_file(path: &Path, geometry: DiskGeometry) -> Result<File> {
    let create = || {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.set_len(geometry.file_bytes())?;
        Ok(file)
    };
    create().map_err(|source| Error::io(format!("make {}", path.display()), source))
}

/// Takes the blocks of a file. Checks the reserve afterwards, so that files that grow at the same time see each other.
fn allocate(file: &File, bytes: u64, reserve_bytes: u64) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(io::Error::other)?;
    fallocate(file, FallocateFlags::empty(), 0, length)?;
    let space = fstatvfs(file)?;
    let free = space
        .blocks_available()
        .saturating_mul(space.fragment_size());
    if free < reserve_bytes {
        return Err(Errno::ENOSPC.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
