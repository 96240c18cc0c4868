//! Fuzz target for skill archives, as PublishSkill and URL roots unpack them. Unpacked files stay within the limits and
//! within their directory, and a rejected archive leaves no files.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::skills::archive::{
    ArchiveKind, UnpackedArchive, archive_problem, detect_archive_kind, unpack_archive,
};
use crate::skills::{ArchiveBounds, Error};

const BOUNDS: ArchiveBounds = ArchiveBounds {
    bytes: 256 << 10,
    file_bytes: 64 << 10,
    entries: 64,
    depth: 8,
    ratio: 100,
};
const KINDS: [ArchiveKind; 4] = [
    ArchiveKind::Tar,
    ArchiveKind::TarGz,
    ArchiveKind::Zip,
    ArchiveKind::SkillMd,
];
const BLOCK_BYTES: usize = 512;
/// Name and content of a file beside the unpacked folder, which must stay unchanged.
const CANARY: &str = "canary";

/// Unpacks an archive and checks the result. The first byte selects how the archive is passed: unchanged; as a tar with
/// corrected checksums, plain or compressed, so that mutations pass the checksum test; or with a declared format.
pub fn archive(data: &[u8]) {
    if let Some((first, archive)) = data.split_first() {
        let _counts = unpack_and_check(*first, archive);
    }
}

/// Unpacks an archive and checks the result. Returns the number of files and bytes, or `None` if it was rejected.
pub(super) fn unpack_and_check(first: u8, archive: &[u8]) -> Option<(u64, u64)> {
    let (given, kind) = match first & 3 {
        0 => (archive.to_vec(), None),
        1 => (with_valid_checksums(archive), None),
        2 => (gzip(&with_valid_checksums(archive)), None),
        _ => {
            let kind = KINDS.get(usize::from(first >> 2) % KINDS.len());
            (archive.to_vec(), kind.copied())
        }
    };
    let place = tempfile::tempdir().expect("a directory");
    let (canary, into) = (place.path().join(CANARY), place.path().join("into"));
    fs::write(&canary, CANARY).expect("a canary");
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&given).expect("written");
    let unpacked = unpack_archive(&mut file, kind, &into, &BOUNDS);
    let beside = fs::read_dir(place.path()).expect("the directory").count();
    assert_eq!(
        beside,
        1 + usize::from(unpacked.is_ok()),
        "something is left"
    );
    assert_eq!(fs::read(&canary).expect("the canary"), CANARY.as_bytes());
    file.rewind().expect("rewound");
    match unpacked {
        Ok(unpacked) => Some(check_unpacked(&unpacked, &into, &mut file, kind)),
        Err(Error::Io { source, .. }) => panic!("the host failed: {source}"),
        Err(refused) => {
            let problem = archive_problem(&refused);
            let harmless = super::is_safe_to_print(&problem.message);
            assert!(harmless && problem.message.len() <= 1024, "{problem:?}");
            None
        }
    }
}

/// Checks the invariants of an unpacked archive. Returns the number of files and bytes.
fn check_unpacked(
    unpacked: &UnpackedArchive,
    into: &Path,
    file: &mut File,
    kind: Option<ArchiveKind>,
) -> (u64, u64) {
    if kind.is_none() {
        detect_archive_kind(file).expect("what was unpacked is something");
    }
    match &unpacked.wrapper {
        Some(wrapper) => assert_eq!(unpacked.root, into.join(wrapper)),
        None => assert_eq!(unpacked.root, into),
    }
    let mut tree = UnpackedTree::default();
    tree.check_directory(into, &unpacked.root, 1);
    assert!(tree.entries <= BOUNDS.entries, "{} entries", tree.entries);
    assert!(tree.bytes <= BOUNDS.bytes, "{} bytes", tree.bytes);
    assert_eq!((tree.files, tree.bytes), (unpacked.files, unpacked.bytes));
    (tree.files, tree.bytes)
}

/// Counts of an unpacked archive's entries on disk.
#[derive(Default)]
struct UnpackedTree {
    entries: u64,
    files: u64,
    bytes: u64,
}

impl UnpackedTree {
    /// Checks the names and entries of a directory, recursively.
    fn check_directory(&mut self, directory: &Path, root: &Path, depth: usize) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            assert!(depth <= BOUNDS.depth, "{} is too deep", path.display());
            let name = path.file_name().expect("a name").to_str();
            let name = name.expect("a name that is text");
            assert!(!name.chars().any(char::is_control), "{name:?}");
            self.check_entry(&path, root, depth);
        }
    }

    /// Checks mode, size and link target of an entry, and counts it.
    fn check_entry(&mut self, path: &Path, root: &Path, depth: usize) {
        self.entries += 1;
        let stat = path.symlink_metadata().expect("an entry");
        let mode = stat.permissions().mode() & 0o7777;
        if stat.is_dir() {
            assert_eq!(mode & !0o755, 0, "{mode:o} of {}", path.display());
            return self.check_directory(path, root, depth + 1);
        }
        self.files += 1;
        if stat.is_symlink() {
            let target = fs::read_link(path).expect("a link");
            assert!(
                stays_in_root(path, &target, root),
                "{} leads to {}",
                path.display(),
                target.display()
            );
            return;
        }
        assert!(
            stat.is_file() && stat.nlink() == 1,
            "{} is shared",
            path.display()
        );
        assert!(
            matches!(mode, 0o644 | 0o755),
            "{mode:o} of {}",
            path.display()
        );
        assert!(
            stat.len() <= BOUNDS.file_bytes,
            "{} is too large",
            path.display()
        );
        self.bytes += stat.len();
    }
}

/// Returns `true` if no prefix of a symbolic link's target leaves the root.
fn stays_in_root(path: &Path, target: &Path, root: &Path) -> bool {
    let within = path.strip_prefix(root).expect("beneath the root");
    let mut depth = within.components().count().saturating_sub(1);
    target.components().all(|component| match component {
        Component::Normal(name) => {
            depth += 1;
            !name.as_bytes().contains(&0)
        }
        Component::CurDir => true,
        Component::ParentDir => match depth.checked_sub(1) {
            Some(above) => {
                depth = above;
                true
            }
            None => false,
        },
        Component::RootDir | Component::Prefix(_) => false,
    })
}

/// Returns a tar with corrected checksums in all headers.
fn with_valid_checksums(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    let mut at = 0;
    while let Some(block) = tar
        .get_mut(at..)
        .and_then(<[u8]>::first_chunk_mut::<BLOCK_BYTES>)
    {
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let mut header = tar::Header::from_byte_slice(block).clone();
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
        let size = header.entry_size().unwrap_or_default();
        let blocks = usize::try_from(size.div_ceil(BLOCK_BYTES as u64)).unwrap_or(usize::MAX);
        at = at
            .saturating_add(BLOCK_BYTES)
            .saturating_add(blocks.saturating_mul(BLOCK_BYTES));
    }
    tar
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("compressed");
    encoder.finish().expect("compressed")
}
