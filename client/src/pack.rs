//! Packer of local files, for uploads and for skills to publish. A walk first decides what goes into the archive and
//! what does not, so that the caller can refuse before anything is sent. Packing blocks, and holds no file in memory.
//!
//! ```text
//! file or directory ─ pack/walk.rs, pack/ignore_rules.rs ─► ArchivePlan ─ write ─► bytes of the file, or a tar
//! ```

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Take, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use skilld_proto::v1::SkipReason;

use crate::Error;
use crate::error::io_error;

mod ignore_rules;
mod walk;

pub(crate) use ignore_rules::IgnoreRules;
pub use walk::PackLimits;
pub(crate) use walk::SkillRules;

/// Size of a tar's header in bytes; contents are padded to a multiple of it.
const BLOCK_BYTES: u64 = 512;
/// Path of the root in its archive, which has no empty paths.
const ROOT_PATH: &str = ".";

/// Local file, or directory with everything beneath it that goes into its archive.
#[derive(Debug, Default)]
pub(crate) struct ArchivePlan {
    root: PathBuf,
    /// Path without links of a skill's folder; `None` for an upload. The same contents of such a folder always make the
    /// same archive, and nothing outside of it is read.
    skill_root: Option<PathBuf>,
    /// Entries of the archive, sorted by path, so that a directory comes before what is in it.
    pub(crate) entries: Vec<PlannedEntry>,
    /// Entries that are left out, sorted by path.
    pub(crate) skipped: Vec<SkippedEntry>,
}

/// Entry of the archive.
#[derive(Debug)]
pub(crate) struct PlannedEntry {
    local: PathBuf,
    /// Path in the archive.
    pub(crate) path: PathBuf,
    /// Metadata of the walk; of a link's target where the archive has that instead.
    pub(crate) metadata: Metadata,
}

/// Entry that is left out of the archive.
#[derive(Debug)]
pub(crate) struct SkippedEntry {
    /// Path beneath the root.
    pub(crate) path: String,
    /// Reason for programs.
    pub(crate) reason: SkipReason,
    /// Reason in words that complete a sentence about the entry: "it …".
    pub(crate) skip_reason: String,
}

impl PlannedEntry {
    /// Returns the size of the contents in bytes.
    fn size(&self) -> u64 {
        match self.metadata.is_file() {
            true => self.metadata.len(),
            false => 0,
        }
    }
}

impl ArchivePlan {
    /// Returns the root if it is a file, which is sent as it is.
    pub(crate) fn single_file(&self) -> Option<&PlannedEntry> {
        let root = self.entries.first()?;
        (root.path.as_os_str() == ROOT_PATH && root.metadata.is_file()).then_some(root)
    }

    /// Returns the approximate number of bytes that [`Self::write`] writes; long names add a few.
    pub(crate) fn bytes(&self) -> u64 {
        if let Some(file) = self.single_file() {
            return file.size();
        }
        let sizes = self.entries.iter().map(PlannedEntry::size);
        let blocks = sizes.map(|size| 1 + size.div_ceil(BLOCK_BYTES));
        // Two blocks of zeros end an archive.
        (blocks.sum::<u64>() + 2) * BLOCK_BYTES
    }

    /// Writes the single file, or a tar of all entries.
    pub(crate) fn write<W: Write>(&self, mut writer: W) -> Result<W, Error> {
        if let Some(file) = self.single_file() {
            self.copy_contents(file, |contents| io::copy(contents, &mut writer).and(Ok(())))?;
            return Ok(writer);
        }
        let mut builder = tar::Builder::new(writer);
        for entry in &self.entries {
            self.append_entry(&mut builder, entry)?;
        }
        builder.into_inner().map_err(io_error(&self.root))
    }

    fn append_entry<W: Write>(
        &self,
        builder: &mut tar::Builder<W>,
        entry: &PlannedEntry,
    ) -> Result<(), Error> {
        let (path, metadata) = (&entry.path, &entry.metadata);
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.size());
        // Owners of this machine mean nothing in a workspace. With zeros the headers are the same on every machine.
        header.set_uid(0);
        header.set_gid(0);
        // Modes and times differ from checkout to checkout; the archive of a skill must not.
        if self.skill_root.is_some() {
            let is_executable = metadata.mode() & 0o111 != 0;
            header.set_mode(if is_executable { 0o755 } else { 0o644 });
        } else {
            header.set_mode(metadata.mode() & 0o777);
            header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        }
        let appended = if metadata.is_dir() {
            header.set_entry_type(tar::EntryType::Directory);
            builder.append_data(&mut header, path.join(""), io::empty())
        } else if metadata.is_symlink() {
            header.set_entry_type(tar::EntryType::Symlink);
            fs::read_link(&entry.local)
                .and_then(|target| builder.append_link(&mut header, path, target))
        } else {
            header.set_entry_type(tar::EntryType::Regular);
            return self.copy_contents(entry, |file| builder.append_data(&mut header, path, file));
        };
        appended.map_err(io_error(&entry.local))
    }

    /// Copies a file by `copy`, as many bytes as it had during the walk.
    fn copy_contents(
        &self,
        entry: &PlannedEntry,
        copy: impl FnOnce(&mut Take<File>) -> io::Result<()>,
    ) -> Result<(), Error> {
        let failed = || io_error(&entry.local);
        let file = open_file(&entry.local, self.skill_root.as_deref()).map_err(failed())?;
        let mut contents = file.take(entry.size());
        copy(&mut contents).map_err(failed())?;
        let now = contents.get_ref().metadata().map_err(failed())?;
        // A log may grow during an upload. A version of a skill is published once, so no half of an edit goes into it.
        let is_altered =
            self.skill_root.is_some() && file_stamp(&now) != file_stamp(&entry.metadata);
        if contents.limit() > 0 || is_altered {
            let problem = "changed while it was read: try again when no other program writes to it";
            return Err(failed()(io::Error::other(problem)));
        }
        Ok(())
    }
}

/// Opens a file, without waiting for the writer of a FIFO. With a root, a file outside of it is refused: a link may have
/// taken the place of a folder on the way to it after it was listed.
fn open_file(path: &Path, root: Option<&Path>) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if let Some(root) = root {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let real = fs::read_link(&link)
            .map_err(|error| io::Error::other(format!("cannot be checked by {link}: {error}")))?;
        if !real.starts_with(root) {
            return Err(io::Error::other("leads out of the folder"));
        }
    }
    Ok(file)
}

/// Returns the device and inode of a file.
fn file_id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns metadata of a file that change whenever it is written to, or replaced by another.
fn file_stamp(metadata: &Metadata) -> ((u64, u64), u64, i64, i64) {
    let (seconds, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
    (file_id(metadata), metadata.len(), seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn skill_plan(folder: &Path) -> ArchivePlan {
        let real_root = folder.canonicalize().expect("a folder");
        let rules = SkillRules {
            limits: PackLimits::default(),
            ignored: IgnoreRules::read(&real_root).expect("rules"),
            real_root,
        };
        ArchivePlan::walk(folder, Some(rules)).expect("walked")
    }

    fn check_refused(plan: &ArchivePlan, why: &str) {
        let error = plan.write(Vec::new()).expect_err(why).to_string();
        assert!(error.contains(&format!("sub/file: {why}")), "{error}");
    }

    #[test]
    fn skill_file_that_changes_after_the_walk_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (sub, canary) = (
            dir.path().join("sub"),
            tempfile::tempdir().expect("a directory"),
        );
        fs::create_dir(&sub).expect("makes");
        fs::write(sub.join("file"), "text").expect("writes");
        fs::write(canary.path().join("file"), "longer text").expect("writes");
        let plan = skill_plan(dir.path());
        plan.write(Vec::new()).expect("unchanged");
        fs::write(sub.join("file"), "longer text").expect("writes");
        check_refused(&plan, "changed while");
        let plan = skill_plan(dir.path());
        fs::remove_dir_all(&sub).expect("removes");
        symlink(canary.path(), &sub).expect("links");
        check_refused(&plan, "leads out of the folder");
    }

    #[test]
    fn uploads_take_files_that_grow_and_refuse_shorter_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("sub")).expect("makes");
        let log = dir.path().join("sub/file");
        fs::write(&log, "text").expect("writes");
        let plan = ArchivePlan::walk(dir.path(), None).expect("walked");
        fs::write(&log, "text and more").expect("writes");
        let tar = plan.write(Vec::new()).expect("grown");
        assert_eq!(plan.bytes(), tar.len() as u64);
        fs::write(&log, "t").expect("writes");
        check_refused(&plan, "changed while");
    }
}
