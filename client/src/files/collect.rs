//! Collection of a workspace's files into a local directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{
    CollectFormat, CollectOutputsRequest, CollectSummary, CollectedFile, FileEnd,
};

use crate::files::target_directory::{EntryAttributes, PendingFile, SkipReason, TargetDirectory};
use crate::{Client, Error, TransferProgress};

/// Files and links that a collection wrote, and what it left out.
#[derive(Clone, Debug, Default)]
pub struct CollectedFiles {
    /// Files written, in the order of their paths in the workspace.
    pub files: Vec<PathBuf>,
    /// Symbolic links made.
    pub links: Vec<CollectedLink>,
    /// Files that were not written, each with its reason.
    pub skipped: Vec<SkippedFile>,
    /// Number of bytes written.
    pub bytes: u64,
    /// Summary of the server: what was cut and what was left out.
    pub summary: CollectSummary,
}

/// A symbolic link that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedLink {
    /// Path in the workspace, and beneath the target directory.
    pub path: String,
    /// Target of the link.
    pub target: String,
}

/// Received file or link that was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedFile {
    /// Path in the workspace.
    pub path: String,
    /// Reason in words that complete a sentence about the file: "it …".
    pub skip_reason: String,
    /// Set if a local directory has the name, or a local file or link that of a directory that it needs; collecting
    /// into another directory helps then.
    pub is_blocked: bool,
}

impl Client {
    /// Collects files into a directory, which is made if it does not exist. Each file gets its name when all of it has
    /// come and its SHA-256 is right; it replaces a file of the same name. Files and the directories that are made keep
    /// their modification times, and their modes as far as the user's umask permits. A name that leads out of the
    /// directory ends the call with an error. A link that leads out is left out, and so is an entry with the name of a
    /// local directory, or beneath a local file or link.
    ///
    /// # Errors
    ///
    /// [`Error::UnsafeName`] for a name that leads out of the directory, [`Error::Checksum`] for damaged bytes,
    /// [`Error::Io`] if a file cannot be written, [`Error::Status`] if the daemon refuses.
    pub async fn collect_to_dir(
        &self,
        request: CollectOutputsRequest,
        dir: &Path,
        progress: TransferProgress,
    ) -> Result<CollectedFiles, Error> {
        self.copy_out(request, "", dir, progress).await
    }

    /// Copies a directory of a workspace, which becomes `dir` or is merged into it, with everything in it, as
    /// [`Self::collect_to_dir`] collects. `path` is the directory relative to the workspace, and the request's only
    /// glob matches it.
    ///
    /// # Errors
    ///
    /// As [`Self::collect_to_dir`].
    pub async fn copy_directory_out(
        &self,
        mut request: CollectOutputsRequest,
        path: &str,
        dir: &Path,
        progress: TransferProgress,
    ) -> Result<CollectedFiles, Error> {
        if let Some(spec) = &mut request.spec {
            spec.include_directories = true;
        }
        self.copy_out(request, path, dir, progress).await
    }

    /// Writes what is collected beneath `prefix` into a directory.
    async fn copy_out(
        &self,
        mut request: CollectOutputsRequest,
        prefix: &str,
        dir: &Path,
        progress: TransferProgress,
    ) -> Result<CollectedFiles, Error> {
        if let Some(spec) = &mut request.spec {
            spec.set_format(CollectFormat::Files);
        }
        let mut messages = self.collect(request).await?;
        let mut writer = CollectionWriter::open(dir).await?;
        prefix.trim_end_matches('/').clone_into(&mut writer.prefix);
        while let Some(message) = messages.next().await? {
            match message.payload {
                Some(Payload::File(file)) => writer.begin(file).await?,
                Some(Payload::Data(data)) => {
                    writer.write(&data).await?;
                    progress.tell(writer.collected.bytes, None);
                }
                Some(Payload::FileEnd(end)) => writer.end(&end).await?,
                Some(Payload::Summary(summary)) => return writer.finish(summary).await,
                // Of a newer server.
                None => {}
            }
        }
        Err(Error::protocol("it ended the files without a summary"))
    }
}

/// Writer of a stream of collected files into a directory, as [`Client::collect_to_dir`] writes them.
#[derive(Debug)]
pub struct CollectionWriter {
    directory: TargetDirectory,
    /// Path in the workspace that the names have in front and the local ones don't; empty for none.
    prefix: String,
    current: Option<CurrentFile>,
    collected: CollectedFiles,
}

/// File that is being received.
#[derive(Debug)]
struct CurrentFile {
    path: String,
    /// File to write to, or the reason why it is left out.
    pending: Result<PendingFile, SkipReason>,
    digest: Sha256,
}

impl CollectionWriter {
    /// Opens the directory, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be made or read.
    pub async fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            directory: TargetDirectory::open(dir).await?,
            prefix: String::new(),
            current: None,
            collected: CollectedFiles::default(),
        })
    }

    /// Begins a file, or makes a link or directory.
    ///
    /// # Errors
    ///
    /// [`Error::UnsafeName`] for a name that leads out of the directory, [`Error::Io`] if it cannot be written.
    pub async fn begin(&mut self, file: CollectedFile) -> Result<(), Error> {
        if self.current.is_some() {
            return Err(Error::protocol("it began a file before the last one's end"));
        }
        let name = if file.raw_path.is_empty() {
            file.path.as_bytes()
        } else {
            &file.raw_path
        };
        let Some(name) = beneath(name, self.prefix.as_bytes()) else {
            return Err(Error::protocol("it sent a file that was not requested"));
        };
        let modified = file.modify_time.map(SystemTime::try_from);
        let attributes = EntryAttributes {
            mode: file.mode,
            modified: modified.and_then(Result::ok),
        };
        if file.is_directory {
            if let Err(reason) = self.directory.directory(name, attributes).await? {
                self.skip(file.path, &reason);
            }
            return Ok(());
        }
        if !file.link_target.is_empty() {
            return self.link(name, &file).await;
        }
        self.current = Some(CurrentFile {
            pending: self.directory.create(name, attributes).await?,
            path: file.path,
            digest: Sha256::new(),
        });
        Ok(())
    }

    async fn link(&mut self, name: &[u8], file: &CollectedFile) -> Result<(), Error> {
        if name.is_empty() && !self.prefix.is_empty() {
            let reason = SkipReason::NotADirectory(file.link_target.clone());
            self.skip(file.path.clone(), &reason);
            return Ok(());
        }
        match self.directory.link(name, &file.link_target).await? {
            Ok(_) => self.collected.links.push(CollectedLink {
                path: file.path.clone(),
                target: file.link_target.clone(),
            }),
            Err(reason) => self.skip(file.path.clone(), &reason),
        }
        Ok(())
    }

    /// Writes bytes of the current file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if they cannot be written.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let Some(current) = &mut self.current else {
            return Err(Error::protocol("it sent bytes of no file"));
        };
        current.digest.update(data);
        if let Ok(pending) = &mut current.pending {
            self.collected.bytes += data.len() as u64;
            pending.write(data).await?;
        }
        Ok(())
    }

    /// Ends the current file, which gets its name now.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`] if its bytes are damaged, [`Error::Io`] if it cannot be written.
    pub async fn end(&mut self, end: &FileEnd) -> Result<(), Error> {
        // A link may be closed like a file.
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let actual = HEXLOWER.encode(&current.digest.finalize());
        if actual != end.sha256 {
            return Err(Error::Checksum {
                path: current.path,
                expected: end.sha256.clone(),
                actual,
            });
        }
        let written = match current.pending {
            Ok(pending) => pending.finish().await?,
            Err(reason) => Err(reason),
        };
        match written {
            Ok(file) => self.collected.files.push(file),
            Err(reason) => self.skip(current.path, &reason),
        }
        Ok(())
    }

    fn skip(&mut self, path: String, reason: &SkipReason) {
        self.collected.skipped.push(SkippedFile {
            path,
            skip_reason: reason.to_string(),
            is_blocked: matches!(
                reason,
                SkipReason::DirectoryExists | SkipReason::NoDirectory(_)
            ),
        });
    }

    /// Ends the collection with the server's summary. Returns what was written.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the modes and times of directories cannot be set.
    pub async fn finish(mut self, summary: CollectSummary) -> Result<CollectedFiles, Error> {
        self.collected.summary = summary;
        if self.current.is_some() {
            return Err(Error::protocol("it ended the files in the middle of one"));
        }
        self.directory.finish().await?;
        Ok(self.collected)
    }
}

/// Returns the rest of a name beneath a prefix, empty for the prefix itself; `None` for a name that is elsewhere.
fn beneath<'a>(name: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    match name.strip_prefix(prefix)? {
        rest if rest.is_empty() || prefix.is_empty() => Some(rest),
        rest => rest.strip_prefix(b"/"),
    }
}
