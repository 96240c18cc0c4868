//! Loop devices over the files of workspaces: one that the kernel frees by itself, and those that a killed daemon left.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use super::tools::run_tool;
use crate::error::{Chain, Error, Result};
use crate::fault;
use crate::shutdown::Tasks;

/// End of the path of a file that is deleted and that a device still holds.
const DELETED: &str = " (deleted)";
const LOSETUP: &str = "losetup";
/// Arguments by which losetup lists all devices, each with its flag, and the inode, the device number and the path of its
/// file.
const LIST: [&str; 4] = [
    "--list",
    "--noheadings",
    "--output",
    "NAME,AUTOCLEAR,BACK-INO,BACK-MAJ:MIN,BACK-FILE",
];

/// Loop device over a file. The kernel frees it when its last user has closed it: this value, or the file system that the
/// engine has mounted meanwhile. So it outlives neither a killed daemon nor the container.
#[derive(Debug)]
pub struct LoopDevice {
    pub(crate) path: PathBuf,
    /// Keeps the device until the engine has mounted it.
    _open: File,
}

impl LoopDevice {
    /// Attaches a free device to a file. It reads and writes the file directly: otherwise the host's memory would hold each
    /// page of the workspace twice.
    ///
    /// # Errors
    /// When losetup is missing, fails or hangs.
    pub async fn attach(tasks: &Tasks, file: &Path) -> Result<Self> {
        let attach = ["--find", "--show", "--direct-io=on", "--"].map(AsRef::as_ref);
        let attached = run_tool(LOSETUP, attach.into_iter().chain([file.as_os_str()]), b"").await?;
        let path = PathBuf::from(String::from_utf8_lossy(attached.trim_ascii()).into_owned());
        let device = path.clone();
        let open = move || {
            File::open(&device)
                .map_err(|source| Error::io(format!("open {}", device.display()), source))
        };
        let open = tasks.blocking(open).await;
        // Until now the device would stay if the daemon were killed. A device in use is freed at its last close.
        fault::reach("disk.attached");
        detach(&path).await?;
        Ok(Self { path, _open: open? })
    }
}

async fn detach(device: &Path) -> Result<()> {
    run_tool(LOSETUP, ["--detach".as_ref(), device.as_os_str()], b"").await?;
    Ok(())
}

/// Files whose loop devices are to be freed.
#[derive(Debug, Default)]
pub struct BackingFiles {
    /// Inode and device number of each file that exists, as losetup prints them.
    inodes: HashSet<String>,
    /// Directory whose deleted files are meant, too.
    deleted_in: Option<PathBuf>,
}

impl BackingFiles {
    /// Looks for files, of which some may not exist. Those that were deleted beneath `deleted_in` are meant, too. Blocks.
    pub fn find(files: &[PathBuf], deleted_in: Option<&Path>) -> Self {
        let found = files.iter().filter_map(|file| fs::metadata(file).ok());
        let inodes = found.map(|found| {
            let device = found.dev();
            format!("{} {}:{}", found.ino(), major(device), minor(device))
        });
        Self {
            inodes: inodes.collect(),
            // losetup prints the path without links.
            deleted_in: deleted_in.and_then(|dir| fs::canonicalize(dir).ok()),
        }
    }

    fn includes(&self, inode: &str, disk: &str, path: &str) -> bool {
        let deleted = path.strip_suffix(DELETED).map(Path::new);
        let dir = self.deleted_in.as_deref();
        self.inodes.contains(&format!("{inode} {disk}"))
            || deleted
                .zip(dir)
                .is_some_and(|(file, dir)| file.starts_with(dir))
    }
}

/// Frees the loop devices over these files that the kernel would keep, because the attaching program or the daemon was
/// killed, or because detaching failed.
///
/// # Errors
/// When losetup is missing, fails or hangs.
pub async fn release_devices(files: &BackingFiles) -> Result<()> {
    if files.inodes.is_empty() && files.deleted_in.is_none() {
        return Ok(());
    }
    let listed = run_tool(LOSETUP, LIST.map(AsRef::as_ref), b"").await?;
    for device in left_devices(&String::from_utf8_lossy(&listed), files) {
        if let Err(error) = detach(Path::new(device)).await {
            tracing::warn!(device, error = %Chain(&error), "loop device of a workspace is left");
        }
    }
    Ok(())
}

/// Returns the devices in a listing by [`LIST`] over these files that the kernel would keep. A device that is in use has the
/// flag to be freed at its last close.
fn left_devices<'a>(listing: &'a str, files: &BackingFiles) -> Vec<&'a str> {
    let devices = listing.lines().filter_map(|line| {
        let mut rest = line;
        let [device, autoclear, inode, disk] = [(); 4].map(|()| {
            let (field, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            rest = after.trim_start();
            field
        });
        let path = rest.trim_end();
        let is_left = autoclear == "0" && files.includes(inode, disk, path);
        is_left.then_some(device)
    });
    devices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_over_the_files_that_nothing_will_free_are_left() {
        // losetup 2.38 pads fields with blanks.
        let listing = "/dev/loop0 0 10102417     254:0  /s/slots/1/workspace.ext4\n\
                       /dev/loop1 1 10102417     254:0  /s/slots/1/workspace.ext4\n\
                       /dev/loop2 0 10102417     254:1  \n/dev/loop3 0       17     254:0  /x/y\n\
                       /dev/loop4 0\n\n\
                       /dev/loop5 0       18     254:0  /s/slots/2/workspace.ext4 (deleted)\n\
                       /dev/loop6 1       18     254:0  /s/slots/2/workspace.ext4 (deleted)\n\
                       /dev/loop7 0       19     254:0  /s/slots2/a b (deleted)\n";
        let files = |texts: &[&str], dir: Option<&str>| BackingFiles {
            inodes: texts.iter().map(|&text| text.to_owned()).collect(),
            deleted_in: dir.map(PathBuf::from),
        };
        let left = |texts: &[&str]| left_devices(listing, &files(texts, None));
        assert_eq!(left(&["10102417 254:0"]), ["/dev/loop0"]);
        assert_eq!(
            left(&["17 254:0", "10102417 254:1"]),
            ["/dev/loop2", "/dev/loop3"]
        );
        let deleted = |dir| left_devices(listing, &files(&[], Some(dir)));
        assert_eq!(deleted("/s/slots"), ["/dev/loop5"]);
        assert_eq!(deleted("/s/slots2"), ["/dev/loop7"]);
        assert!(left(&["0 0:0"]).is_empty());
    }
}
