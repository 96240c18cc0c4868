//! Loop devices of this host, by the files beneath them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Returns the loop devices over files beneath a directory, also over deleted ones, each with its file.
///
/// # Errors
/// When the kernel does not list its devices.
pub fn loop_devices(dir: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    for device in fs::read_dir("/sys/block")? {
        let device = device?;
        // A device without a file has no such entry.
        let Ok(file) = fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        if Path::new(&file).starts_with(dir) {
            let path = Path::new("/dev").join(device.file_name());
            found.push((path, file.trim_end().to_owned()));
        }
    }
    Ok(found)
}
