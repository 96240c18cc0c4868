//! Size of what is held on disk for a tenant, as quotas count it: contents, and a block for each file, directory and link.

use std::fs;
use std::path::Path;

/// Number of bytes that a file, directory or link counts beside its contents: the block of 4 KiB that it takes when it is
/// empty, and by which the last block of a file may exceed its contents.
pub const OBJECT_BYTES: u64 = 4096;

/// Returns the bytes that count for contents of this size in a number of files, directories and links.
pub fn held_bytes(contents: u64, objects: u64) -> u64 {
    contents.saturating_add(objects.saturating_mul(OBJECT_BYTES))
}

/// Returns the bytes that count for a directory and everything in it; 0 if it does not exist. Links are not followed, and
/// an entry that vanishes meanwhile does not count. Blocks.
pub fn measure_held_bytes(path: &Path) -> u64 {
    let Ok(about) = fs::symlink_metadata(path) else {
        return 0;
    };
    let contents = if about.is_file() { about.len() } else { 0 };
    let own = held_bytes(contents, 1);
    if !about.is_dir() {
        return own;
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let beneath = entries.map(|entry| measure_held_bytes(&entry.path()));
    beneath.fold(own, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_object_counts_at_least_the_blocks_that_it_takes() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("empty")).expect("mkdir");
        let sizes = [0, 1, 4095, 4096, 4097, 100_000];
        for size in sizes {
            fs::write(top.join(size.to_string()), vec![7; size]).expect("write");
        }
        symlink("/", top.join("link")).expect("a link");
        let contents: u64 = sizes.iter().map(|size| *size as u64).sum();
        // The two directories, the files and the link, which leads out.
        assert_eq!(measure_held_bytes(&top), held_bytes(contents, 2 + 6 + 1));
        for size in sizes {
            let path = top.join(size.to_string());
            let blocks = fs::metadata(&path).expect("metadata").blocks() * 512;
            assert!(measure_held_bytes(&path) >= blocks, "{size}");
        }
        assert_eq!(measure_held_bytes(&top.join("absent")), 0);
    }
}
