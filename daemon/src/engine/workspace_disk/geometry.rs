//! Geometry of a workspace's ext4: the numbers of blocks and inodes that fit its limits. Pure.

/// Size of a block, in bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Size of an inode, in bytes: large enough for times in nanoseconds.
pub(super) const INODE_BYTES: u64 = 256;
/// Number of blocks of a block group, which one block of bitmap describes.
const GROUP_BLOCKS: u64 = 8 * BLOCK_BYTES;
/// Number of inodes in one block. A group has a multiple of it.
const INODES_PER_BLOCK: u64 = BLOCK_BYTES / INODE_BYTES;
/// Size below which a file system has hardly room for files, in bytes.
const DISK_BYTES_MIN: u64 = 1 << 20;
/// Number of blocks besides its inodes that a last group needs; mkfs leaves out a smaller one.
const LAST_GROUP_BLOCKS_MIN: u64 = 1024;

/// Numbers of blocks and inodes of a workspace's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskGeometry {
    /// Number of blocks.
    pub(super) blocks: u64,
    /// Number of inodes.
    pub(super) inodes: u64,
}

/// Limit that no file system can enforce, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GeometryFault {
    /// The size is too small.
    Size(String),
    /// The number of inodes does not fit the size.
    Inodes(String),
}

impl DiskGeometry {
    /// Finds the largest file system within both limits. ext4 gives each of its groups of 128 MiB the same multiple of 16
    /// inodes, so it may have a few inodes fewer than the limit, and never more.
    ///
    /// # Errors
    /// The limit that cannot be enforced.
    pub fn fit(disk_bytes: u64, inodes: u64) -> Result<Self, GeometryFault> {
        if disk_bytes < DISK_BYTES_MIN {
            let why = format!("a workspace on disk has at least {DISK_BYTES_MIN} bytes");
            return Err(GeometryFault::Size(why));
        }
        let most = inodes_max(disk_bytes);
        if inodes > most {
            let why = format!(
                "a disk of {disk_bytes} bytes has at most {most} inodes, one for each block; it is {inodes}"
            );
            return Err(GeometryFault::Inodes(why));
        }
        let mut blocks = disk_bytes / BLOCK_BYTES;
        let mut groups = blocks.div_ceil(GROUP_BLOCKS);
        let in_group = |groups| inodes / groups / INODES_PER_BLOCK * INODES_PER_BLOCK;
        let last = blocks % GROUP_BLOCKS;
        let last_min = LAST_GROUP_BLOCKS_MIN + in_group(groups) / INODES_PER_BLOCK;
        if groups > 1 && last > 0 && last < last_min {
            (blocks, groups) = (blocks - last, groups - 1);
        }
        if in_group(groups) == 0 {
            let least = groups * INODES_PER_BLOCK;
            let why = format!(
                "a disk of {disk_bytes} bytes has at least {least} inodes, {INODES_PER_BLOCK} in each group of blocks; it \
                 is {inodes}"
            );
            return Err(GeometryFault::Inodes(why));
        }
        Ok(Self {
            blocks,
            inodes: in_group(groups) * groups,
        })
    }

    /// Returns the size of the file that holds the file system, in bytes.
    pub fn file_bytes(self) -> u64 {
        self.blocks * BLOCK_BYTES
    }
}

/// Returns the largest number of inodes for a size in bytes: one for each block, so that their tables take a sixteenth.
pub fn inodes_max(disk_bytes: u64) -> u64 {
    disk_bytes / BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(disk_bytes: u64, inodes: u64) -> (u64, u64) {
        let fit = DiskGeometry::fit(disk_bytes, inodes).expect("fits");
        (fit.file_bytes(), fit.inodes)
    }

    #[test]
    fn a_geometry_is_never_over_its_limits() {
        assert_eq!(geometry(256 << 20, 65_536), (256 << 20, 65_536));
        assert_eq!(geometry(4 << 30, 65_536), (4 << 30, 65_536));
        // 32 groups of 312 inodes would be 312.5 rounded down to a multiple of 16.
        assert_eq!(geometry(4 << 30, 10_000), (4 << 30, 304 * 32));
        assert_eq!(geometry(1 << 20, 64), (1 << 20, 64));
        assert_eq!(geometry((1 << 20) + 4095, 100), (1 << 20, 96));
        // The second group would be too small for its inodes.
        assert_eq!(geometry(129 << 20, 1024), (128 << 20, 1024));
        assert_eq!(geometry(140 << 20, 1024), (140 << 20, 1024));
    }

    #[test]
    fn limits_that_no_file_system_enforces_are_refused() {
        let refused = |disk_bytes, inodes| DiskGeometry::fit(disk_bytes, inodes).expect_err("bad");
        assert!(matches!(refused(1 << 19, 64), GeometryFault::Size(_)));
        for (disk_bytes, inodes) in [(1 << 20, 257), (16 << 20, 65_536), (1 << 40, 65_536)] {
            let fault = refused(disk_bytes, inodes);
            assert!(matches!(fault, GeometryFault::Inodes(_)), "{fault:?}");
        }
        assert_eq!(inodes_max(16 << 20), 4096);
        assert_eq!(geometry(16 << 20, 4096), (16 << 20, 4096));
        assert_eq!(geometry(1 << 40, 131_072), (1 << 40, 131_072));
    }
}
