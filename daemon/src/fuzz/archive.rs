//! Archives as PublishSkill and roots that are URLs unpack them: whatever the bytes are, what they become is within its
//! bounds and its directory, and of what is refused nothing is left.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::skills::archive::{Bounds, Kind, Refused, Unpacked, detect, unpack};

const BOUNDS: Bounds = Bounds {
    bytes: 256 << 10,
    file_bytes: 64 << 10,
    entries: 64,
    depth: 8,
    ratio: 100,
};
const KINDS: [Kind; 4] = [Kind::Tar, Kind::TarGz, Kind::Zip, Kind::SkillMd];
const BLOCK: usize = 512;
/// Beside what is unpacked, and none of its business.
const CANARY: &str = "canary";

/// An archive after a byte that says how it is given: as it is; as a tar whose checksums are put right, plain or
/// compressed, so that changes get behind them; as something that its sender calls a tar, tar.gz, zip or SKILL.md.
pub fn archive(data: &[u8]) {
    if let Some((first, archive)) = data.split_first() {
        let _judged = judge(*first, archive);
    }
}

/// What became of it: how many files and bytes, or `None` where it was refused.
pub(super) fn judge(first: u8, archive: &[u8]) -> Option<(u64, u64)> {
    let (given, kind) = match first & 3 {
        0 => (archive.to_vec(), None),
        1 => (repaired(archive), None),
        2 => (gzip(&repaired(archive)), None),
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
    let unpacked = unpack(&mut file, kind, &into, &BOUNDS);
    let beside = fs::read_dir(place.path()).expect("the directory").count();
    assert_eq!(
        beside,
        1 + usize::from(unpacked.is_ok()),
        "something is left"
    );
    assert_eq!(fs::read(&canary).expect("the canary"), CANARY.as_bytes());
    file.rewind().expect("rewound");
    match unpacked {
        Ok(unpacked) => Some(check(&unpacked, &into, &mut file, kind)),
        Err(Refused::Host(error)) => panic!("the host failed: {error}"),
        Err(refused) => {
            let problem = refused.into_problem();
            let harmless = super::is_harmless(&problem.message);
            assert!(harmless && problem.message.len() <= 1024, "{problem:?}");
            None
        }
    }
}

/// What holds for everything that was unpacked.
fn check(unpacked: &Unpacked, into: &Path, file: &mut File, kind: Option<Kind>) -> (u64, u64) {
    if kind.is_none() {
        detect(file).expect("what was unpacked is something");
    }
    match &unpacked.wrapper {
        Some(wrapper) => assert_eq!(unpacked.root, into.join(wrapper)),
        None => assert_eq!(unpacked.root, into),
    }
    let mut seen = Seen::default();
    seen.directory(into, &unpacked.root, 1);
    assert!(seen.entries <= BOUNDS.entries, "{} entries", seen.entries);
    assert!(seen.bytes <= BOUNDS.bytes, "{} bytes", seen.bytes);
    assert_eq!((seen.files, seen.bytes), (unpacked.files, unpacked.bytes));
    (seen.files, seen.bytes)
}

/// What is on disk.
#[derive(Default)]
struct Seen {
    entries: u64,
    files: u64,
    bytes: u64,
}

impl Seen {
    fn directory(&mut self, directory: &Path, root: &Path, depth: usize) {
        let mut names = HashSet::new();
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            assert!(depth <= BOUNDS.depth, "{} is too deep", path.display());
            let name = path.file_name().expect("a name").to_str();
            let name = name.expect("a name that is text");
            assert!(!name.chars().any(char::is_control), "{name:?}");
            assert!(names.insert(name.to_lowercase()), "{name:?} is there twice");
            self.entry(&path, root, depth);
        }
    }

    fn entry(&mut self, path: &Path, root: &Path, depth: usize) {
        self.entries += 1;
        let stat = path.symlink_metadata().expect("an entry");
        let mode = stat.permissions().mode() & 0o7777;
        if stat.is_dir() {
            assert_eq!(mode & !0o755, 0, "{mode:o} of {}", path.display());
            return self.directory(path, root, depth + 1);
        }
        self.files += 1;
        if stat.is_symlink() {
            let target = fs::read_link(path).expect("a link");
            assert!(
                stays(path, &target, root),
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

/// Whether a link's target, step by step, never leaves the root.
fn stays(path: &Path, target: &Path, root: &Path) -> bool {
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

/// A tar with right checksums wherever a header should be.
fn repaired(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    let mut at = 0;
    while let Some(block) = tar.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<BLOCK>) {
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let mut header = tar::Header::from_byte_slice(block).clone();
        header.set_cksum();
        block.copy_from_slice(header.as_bytes());
        let size = header.entry_size().unwrap_or_default();
        let blocks = usize::try_from(size.div_ceil(BLOCK as u64)).unwrap_or(usize::MAX);
        at = at
            .saturating_add(BLOCK)
            .saturating_add(blocks.saturating_mul(BLOCK));
    }
    tar
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("compressed");
    encoder.finish().expect("compressed")
}
