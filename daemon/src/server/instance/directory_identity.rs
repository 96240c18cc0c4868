//! Binding of a state directory to its place on the host, by which a copy is recognised.
//!
//! Only [`DirectoryIdentity::of_directory`] reads the file system; nothing here writes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// File with the host's id. A host without it is not distinguished from others.
const MACHINE_ID: &str = "/etc/machine-id";

/// Identity of a directory: the properties that differ between it and its copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DirectoryIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Creation time of the directory, in nanoseconds since 1970; `None` if the file system keeps none. File systems of
    /// one kind give their root the same inode number, so only this value reveals the copy of a root.
    pub(super) birth: Option<u64>,
    /// `/etc/machine-id`; empty if the host has none.
    pub(super) machine: String,
    /// Canonical path in Rust's debug format, which escapes line breaks.
    pub(super) path: String,
}

impl DirectoryIdentity {
    /// Reads the current binding of a directory. Blocks the thread.
    ///
    /// # Errors
    /// [`io::Error`] if the directory's metadata cannot be read.
    pub(super) fn of_directory(dir: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(dir)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            birth: birth_ns(&metadata),
            machine: fs::read_to_string(MACHINE_ID)
                .unwrap_or_default()
                .trim()
                .to_owned(),
            path: format!("{:?}", dir.canonicalize()?),
        })
    }

    /// Parses `key value` lines. Returns `None` if a key other than `birth` is missing or damaged. Unknown lines, which
    /// later versions may write, are ignored.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find_map(|(name, value)| (name == key).then_some(value))
        };
        Some(Self {
            device: value("device")?.parse().ok()?,
            inode: value("inode")?.parse().ok()?,
            birth: match value("birth") {
                Some(birth) => Some(birth.parse().ok()?),
                None => None,
            },
            machine: value("machine")?.to_owned(),
            path: value("path")?.to_owned(),
        })
    }

    /// The lines that [`Self::parse`] reads.
    pub(super) fn to_lines(&self) -> String {
        let Self {
            device,
            inode,
            birth,
            machine,
            path,
        } = self;
        let birth_line = birth.map_or_else(String::new, |birth| format!("birth {birth}\n"));
        format!("device {device}\ninode {inode}\n{birth_line}machine {machine}\npath {path}\n")
    }

    /// Returns why this directory is a copy of the `recorded` one, `None` if it is the same.
    ///
    /// A directory that was moved keeps device, inode and time of birth. One whose file system was mounted again may
    /// have another device number, but is at the same path: then the recorded one cannot be there any more.
    pub(super) fn copy_of(&self, recorded: &Self) -> Option<&'static str> {
        let unknown = self.machine.is_empty() || recorded.machine.is_empty();
        if !unknown && self.machine != recorded.machine {
            return Some("it was made on another host, whose /etc/machine-id differs");
        }
        if let (Some(now), Some(recorded)) = (self.birth, recorded.birth)
            && now != recorded
        {
            return Some("it was made at another time");
        }
        let moved = self.device == recorded.device;
        let mounted_again = self.path == recorded.path;
        if self.inode == recorded.inode && (moved || mounted_again) {
            return None;
        }
        Some("its device and inode differ")
    }
}

/// Returns the time at which a file was made, in nanoseconds since 1970.
fn birth_ns(metadata: &fs::Metadata) -> Option<u64> {
    let since = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> DirectoryIdentity {
        DirectoryIdentity {
            device: 2049,
            inode: 77,
            birth: Some(5),
            machine: "0f".into(),
            path: "\"/var/lib/skilld\"".into(),
        }
    }

    #[test]
    fn a_binding_reads_back_as_written() {
        let dir = tempfile::tempdir().expect("temp dir");
        let strange = dir.path().join("new\nline \u{e9}");
        fs::create_dir(&strange).expect("mkdir");
        let without_birth = DirectoryIdentity {
            birth: None,
            ..binding()
        };
        let here = DirectoryIdentity::of_directory(&strange).expect("there");
        for written in [binding(), without_birth, here] {
            let lines = written.to_lines();
            let count = 4 + usize::from(written.birth.is_some());
            assert_eq!(lines.lines().count(), count, "{lines}");
            assert_eq!(DirectoryIdentity::parse(&lines), Some(written));
        }
        assert_eq!(DirectoryIdentity::parse("device 1\ninode x\n"), None);
    }

    #[test]
    fn moved_directories_keep_their_identity_and_copies_do_not() {
        let here = binding;
        let is_copy = |now: DirectoryIdentity| now.copy_of(&binding()).is_some();
        assert!(!is_copy(here()), "restarted");
        let path = || "\"/srv/skilld\"".to_owned();
        assert!(
            !is_copy(DirectoryIdentity {
                path: path(),
                ..here()
            }),
            "moved"
        );
        assert!(
            !is_copy(DirectoryIdentity {
                device: 3,
                ..here()
            }),
            "mounted again"
        );
        assert!(
            !is_copy(DirectoryIdentity {
                machine: String::new(),
                ..here()
            }),
            "no machine id"
        );
        assert!(
            !is_copy(DirectoryIdentity {
                birth: None,
                ..here()
            }),
            "no time of birth"
        );
        assert!(
            is_copy(DirectoryIdentity {
                inode: 78,
                ..here()
            }),
            "restored in its place"
        );
        let copied = DirectoryIdentity {
            inode: 78,
            path: path(),
            ..here()
        };
        assert!(is_copy(copied), "copied beside it");
        let root = DirectoryIdentity {
            birth: Some(6),
            ..here()
        };
        assert!(
            is_copy(root),
            "the root of a file system, copied into the root of another one"
        );
        let snapshot = DirectoryIdentity {
            device: 3,
            path: path(),
            ..here()
        };
        assert!(is_copy(snapshot), "a snapshot mounted elsewhere");
        assert!(
            is_copy(DirectoryIdentity {
                machine: "aa".into(),
                ..here()
            }),
            "another host"
        );
    }
}
