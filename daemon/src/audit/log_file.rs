//! File of the audit log: opens, locks and repairs it, and finds the end of its chain. It removes the rest of a line
//! that was cut, and appends whole lines or nothing.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access};
use skilld_common::audit_chain::{ChainPosition, LINE_BYTES_MAX, LineHash, LineHeader};

use super::fault::AuditFault;
use super::line::LINE_BEGIN;

/// Number of bytes at the end of a file that hold its last complete line and the rest of a line that was cut.
const TAIL_BYTES: u64 = 2 * LINE_BYTES_MAX as u64;

/// Open file of the audit log, locked for this process.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    /// Shared with a sync that runs in the background.
    file: Arc<File>,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// Length after the last append, in bytes.
    length: u64,
}

/// Result of opening a file.
#[derive(Debug)]
pub(super) struct OpenedLog {
    pub(super) log: LogFile,
    /// Position of the last line; `None` in an empty file.
    pub(super) last: Option<ChainPosition>,
    /// Length of the incomplete last line that was removed, in bytes.
    pub(super) removed_bytes: u64,
}

/// End of a file's contents.
#[derive(Debug, PartialEq, Eq)]
struct FileTail {
    last: Option<ChainPosition>,
    incomplete_bytes: u64,
}

// === impl LogFile ===

impl LogFile {
    /// Opens the log at `path`, and creates it with mode 0600 if there is none. Removes an incomplete last line: its
    /// record was never acknowledged. Blocks the thread.
    ///
    /// # Errors
    /// [`AuditFault`]; nothing was changed in a file that is not an audit log.
    pub(super) fn open(path: &Path) -> Result<OpenedLog, AuditFault> {
        let failed = |operation| move |error: io::Error| AuditFault::io(operation, path, &error);
        let opened = open_options().create(true).mode(0o600).open(path);
        let file = opened.map_err(failed("open"))?;
        let metadata = regular_file_metadata(&file, path)?;
        convert_lock_error(file.try_lock(), path)?;
        let (last, length) = find_end(&file, path, metadata.len())?;
        let removed_bytes = metadata.len() - length;
        if removed_bytes > 0 {
            file.set_len(length).map_err(failed("repair"))?;
        }
        let log = Self {
            path: path.to_owned(),
            file: Arc::new(file),
            identity: identity(&metadata),
            length,
        };
        Ok(OpenedLog {
            log,
            last,
            removed_bytes,
        })
    }

    /// Checks that [`Self::open`] would succeed, and changes nothing. Blocks the thread. While a daemon `is_running`,
    /// the lock is not tried, because that daemon may just be opening the file again.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub(super) fn check(path: &Path, is_running: bool) -> Result<(), AuditFault> {
        let failed = |error: io::Error| AuditFault::io("open", path, &error);
        let file = match open_options().open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(path);
                let allowed = access(parent, AccessFlags::W_OK | AccessFlags::X_OK);
                return allowed.map_err(|errno| failed(errno.into()));
            }
            opened => opened.map_err(failed)?,
        };
        let metadata = regular_file_metadata(&file, path)?;
        if !is_running {
            // Shared, because two reports at the same time must not take each other for a daemon.
            convert_lock_error(file.try_lock_shared(), path)?;
            // A process that this one forks meanwhile would keep the lock for a moment.
            file.unlock()
                .map_err(|error| AuditFault::io("unlock", path, &error))?;
        }
        find_end(&file, path, metadata.len())?;
        Ok(())
    }

    /// Appends lines. Returns `false` if the file has no name any more, so that the lines must go to a new one.
    ///
    /// # Errors
    /// [`AuditFault`] of a failed write; the file then ends before the lines, if that was possible.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<bool, AuditFault> {
        let written = (&*self.file).write_all(lines);
        let metadata = written.and_then(|()| self.file.metadata());
        match metadata {
            Ok(metadata) => {
                self.length = metadata.len();
                Ok(metadata.nlink() > 0)
            }
            Err(error) => {
                self.remove_tail(self.length);
                Err(AuditFault::io("write", &self.path, &error))
            }
        }
    }

    /// Waits until everything that was appended is on the disk.
    ///
    /// # Errors
    /// [`AuditFault`] of the failed sync.
    pub(super) fn sync(&self) -> Result<(), AuditFault> {
        self.sync_job()()
    }

    /// Returns a function that does the same as [`Self::sync`], for another thread.
    pub(super) fn sync_job(&self) -> impl FnOnce() -> Result<(), AuditFault> + Send + use<> {
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        move || {
            let synced = file.sync_data();
            synced.map_err(|error| AuditFault::io("sync", &path, &error))
        }
    }

    /// Returns the length after the last append, in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Cuts the file to a length that it had before, so that lines which failed do not stay in it.
    pub(super) fn remove_tail(&mut self, length: u64) {
        if self
            .file
            .metadata()
            .is_ok_and(|metadata| metadata.len() > length)
            && let Err(error) = self.file.set_len(length)
        {
            // The next open finds the end of the chain again.
            tracing::warn!(%error, path = %self.path.display(), "the end of the audit log could not be removed");
        }
    }

    /// Returns `true` if the path still leads to this file.
    pub(super) fn is_current(&self) -> bool {
        let metadata = std::fs::metadata(&self.path);
        metadata.is_ok_and(|metadata| identity(&metadata) == self.identity)
    }
}

/// Returns the options that open a log. A pipe must not block the daemon, and a terminal must not become its own.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    options.read(true).append(true).custom_flags(flags.bits());
    options
}

fn regular_file_metadata(file: &File, path: &Path) -> Result<Metadata, AuditFault> {
    let metadata = file
        .metadata()
        .map_err(|error| AuditFault::io("look at", path, &error))?;
    match metadata.is_file() {
        true => Ok(metadata),
        false => Err(AuditFault::WrongFileType(path.to_owned())),
    }
}

/// Converts the error of a lock on a log.
fn convert_lock_error(tried: Result<(), TryLockError>, path: &Path) -> Result<(), AuditFault> {
    tried.map_err(|error| match error {
        TryLockError::WouldBlock => AuditFault::InUse(path.to_owned()),
        TryLockError::Error(error) => AuditFault::io("lock", path, &error),
    })
}

/// Returns the position of the last complete line of a file with `file_bytes`, and the length of the file up to there.
///
/// # Errors
/// [`AuditFault::ForeignFile`] if the file is not an audit log.
fn find_end(
    file: &File,
    path: &Path,
    file_bytes: u64,
) -> Result<(Option<ChainPosition>, u64), AuditFault> {
    let failed = |error: io::Error| AuditFault::io("read", path, &error);
    // A power cut can leave NUL bytes instead of what was written last.
    let length = length_without_nuls(file, file_bytes).map_err(failed)?;
    if length == 0 && file_bytes > TAIL_BYTES {
        return Err(AuditFault::ForeignFile(path.to_owned()));
    }
    let mut tail = vec![0; usize::try_from(length.min(TAIL_BYTES)).unwrap_or(0)];
    file.read_exact_at(&mut tail, length.saturating_sub(TAIL_BYTES))
        .map_err(failed)?;
    let found = parse_tail(&tail, length > TAIL_BYTES)
        .ok_or_else(|| AuditFault::ForeignFile(path.to_owned()))?;
    Ok((found.last, length - found.incomplete_bytes))
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns the length of a file without the NUL bytes at its end.
fn length_without_nuls(file: &File, mut length: u64) -> io::Result<u64> {
    while length > 0 {
        let block_len = length.min(TAIL_BYTES);
        let mut block = vec![0; usize::try_from(block_len).unwrap_or(0)];
        file.read_exact_at(&mut block, length - block_len)?;
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            return Ok(length - block_len + last as u64 + 1);
        }
        length -= block_len;
    }
    Ok(0)
}

/// Finds the last complete line in the last bytes of a file. `is_cut` is `true` if the file has bytes before them.
/// Returns `None` if the file is no audit log.
fn parse_tail(tail: &[u8], is_cut: bool) -> Option<FileTail> {
    let is_line_end = |byte: &u8| *byte == b'\n';
    let end = tail.iter().rposition(is_line_end).map_or(0, |at| at + 1);
    let (complete, rest) = tail.split_at_checked(end)?;
    let prefix = rest.len().min(LINE_BEGIN.len());
    if rest.get(..prefix) != LINE_BEGIN.get(..prefix) || rest.len() > LINE_BYTES_MAX {
        return None;
    }
    let incomplete_bytes = u64::try_from(rest.len()).ok()?;
    let Some((_, body)) = complete.split_last() else {
        let last = None;
        return (!is_cut).then_some(FileTail {
            last,
            incomplete_bytes,
        });
    };
    let start = body.iter().rposition(is_line_end).map(|at| at + 1);
    if start.is_none() && is_cut {
        return None;
    }
    let line = complete.get(start.unwrap_or(0)..)?;
    let header = LineHeader::parse(line).ok()?;
    Some(FileTail {
        last: Some(ChainPosition {
            sequence: header.sequence,
            hash: LineHash::of_line(line),
        }),
        incomplete_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::retry_while_in_use;
    use super::*;

    fn line(sequence: u64) -> String {
        let hash = match sequence {
            1 => LineHash::default(),
            _ => LineHash::of_line(b""),
        };
        format!(
            "{{\"time\":\"2026-11-27T00:00:00.000Z\",\"sequence\":{sequence},\"prev\":\"{hash}\",\"node\":\"n\",\"event\":\"e\"}}\n"
        )
    }

    #[test]
    fn the_last_complete_line_is_found_and_the_rest_of_a_cut_one() {
        let (first, second) = (line(1), line(2));
        let found = |text: &str| {
            let tail = parse_tail(text.as_bytes(), false)?;
            Some((tail.last.map(|last| last.sequence), tail.incomplete_bytes))
        };
        assert_eq!(found(""), Some((None, 0)));
        assert_eq!(found(&first), Some((Some(1), 0)));
        for cut in 1..second.len() {
            let text = format!("{first}{}", &second[..cut]);
            assert_eq!(found(&text), Some((Some(1), cut as u64)), "{text}");
            assert_eq!(found(&second[..cut]), Some((None, cut as u64)));
        }
        assert_eq!(found(&format!("{first}{second}")), Some((Some(2), 0)));
    }

    #[test]
    fn nul_bytes_of_any_length_at_the_end_are_removed() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("audit.log");
        let (first, cut) = (line(1), &line(2)[..40]);
        for nuls in [1, 3, LINE_BYTES_MAX * 9 + 7] {
            for rest in ["", cut] {
                let bytes = [first.as_bytes(), rest.as_bytes(), &vec![0; nuls]].concat();
                std::fs::write(&path, &bytes).expect("write");
                retry_while_in_use(|| LogFile::check(&path, false));
                let checked = std::fs::read(&path).expect("read");
                assert!(checked == bytes, "a check repairs nothing");
                let opened = retry_while_in_use(|| LogFile::open(&path));
                assert_eq!(opened.last.map(|last| last.sequence), Some(1));
                assert_eq!(opened.removed_bytes, (rest.len() + nuls) as u64);
                let kept = std::fs::read_to_string(&path).expect("read");
                assert_eq!(kept, first);
            }
        }
        std::fs::write(&path, vec![0; LINE_BYTES_MAX * 3]).expect("write");
        LogFile::open(&path).expect_err("it may be anything");
    }

    #[test]
    fn a_foreign_file_is_no_audit_log() {
        for text in [
            "x",
            "root:x:0:0\n",
            "{\"time\":1}\n",
            "\n",
            "{\"time\":\"\"}\nx",
        ] {
            assert_eq!(parse_tail(text.as_bytes(), false), None, "{text:?}");
        }
        let good = line(7);
        assert_eq!(
            parse_tail(&good.as_bytes()[1..], true),
            None,
            "a longer line"
        );
        let text = format!("\n{good}");
        assert!(parse_tail(text.as_bytes(), true).is_some());
    }
}
