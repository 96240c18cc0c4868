//! Opens the sources of the inputs one after the other and packs their files.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use data_encoding::HEXLOWER;
use futures::StreamExt;
use sha2::{Digest, Sha256};
use skilld_proto::v1::{self as pb, FileType};

use super::destination::{self, PlannedDestination};
use super::host::{self, HostFile};
use super::job::InputJob;
use super::pack::ArchivePacker;
use super::workspace_reader::{WorkspacePath, WorkspaceReader, link_text, stays_beneath};
use super::{InputSource, InputSpec, StagedInput, StagerState};
use crate::artifacts::{ArtifactRef, ArtifactScope};
use crate::error::{Error, Result, SourceFault};
use crate::fetch::{FetchRequest, WebUrl};
use crate::workspace::lease::unix_ms;
use crate::workspace::record;

/// Default file permission bits.
const FILE_MODE: u32 = 0o644;
/// Permission bits that the owner of a folder needs to list it.
const FOLDER_READ: u32 = 0o500;
/// Depth of nested folders that a guest lists.
const LISTED_DEPTH_MAX: usize = 128;

/// Opener of sources, with everything that they need.
#[derive(Debug)]
pub(super) struct SourcePacker<'a> {
    pub(super) inner: &'a StagerState,
    pub(super) reader: WorkspaceReader,
    /// Staged skills: name → digest.
    pub(super) skills: BTreeMap<String, String>,
    pub(super) scope: &'a ArtifactScope,
}

impl SourcePacker<'_> {
    /// Packs all inputs and completes the archive.
    pub(super) async fn produce(
        &self,
        mut packer: ArchivePacker,
        inputs: &[InputSpec],
        destinations: &[PlannedDestination],
    ) -> Result<Vec<StagedInput>> {
        let mut all = Vec::with_capacity(inputs.len());
        for (input, destination) in inputs.iter().zip(destinations) {
            let job = InputJob { input, destination };
            let mut staged = self.pack_input(&mut packer, &job).await?;
            staged.path.clone_from(&destination.path);
            if input.link && !staged.linked && staged.note.is_empty() && !staged.unchanged {
                staged.note = "copied: only what is in the workspace can be linked".into();
            }
            all.push(staged);
        }
        packer.finish().await?;
        Ok(all)
    }

    async fn pack_input(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
    ) -> Result<StagedInput> {
        match &job.input.source {
            InputSource::Data(data) => {
                let sha256 = destination::sha256_hex(data);
                if let Some(staged) = self.find_unchanged(job, data.len() as u64, &sha256).await {
                    return Ok(staged);
                }
                let mut packing = job.begin_file(packer, FILE_MODE, data.len() as u64).await?;
                packing.append(data.clone()).await?;
                job.finish_file(packing, FILE_MODE, data.len() as u64).await
            }
            InputSource::Artifact(artifact) => self.pack_artifact(packer, job, artifact).await,
            InputSource::Host(path) => self.pack_host_path(packer, job, path).await,
            InputSource::Workspace(path) => self.pack_workspace_path(packer, job, path).await,
            InputSource::Skill { name, path } => {
                if !self.skills.contains_key(name) {
                    return Err(Error::SkillNotStaged {
                        name: name.clone(),
                        nearest: self.skills.keys().take(3).cloned().collect(),
                    });
                }
                let path = format!("skills/{name}/{path}");
                self.pack_workspace_path(packer, job, path.trim_end_matches('/'))
                    .await
            }
            InputSource::Url(url) => self.pack_url(packer, job, url).await,
        }
    }

    async fn pack_artifact(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
        wanted: &ArtifactRef,
    ) -> Result<StagedInput> {
        let version = wanted.version.or(job.destination.pinned);
        let artifacts = &self.inner.artifacts;
        if job.destination.before.is_some() {
            let artifact = artifacts.get(self.scope, &wanted.name, version).await?;
            let there = self
                .find_unchanged(job, artifact.size, &artifact.sha256)
                .await;
            if let Some(staged) = there {
                let version = Some(artifact.version);
                return Ok(StagedInput { version, ..staged });
            }
        }
        let (artifact, mut bytes) = artifacts.load(self.scope, &wanted.name, version).await?;
        let mut packing = job.begin_file(packer, FILE_MODE, artifact.size).await?;
        while let Some(data) = bytes.next().await {
            packing.append(data?).await?;
        }
        let staged = job.finish_file(packing, FILE_MODE, artifact.size).await?;
        Ok(StagedInput {
            version: Some(artifact.version),
            ..staged
        })
    }

    async fn pack_url(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
        url: &WebUrl,
    ) -> Result<StagedInput> {
        let Some(fetcher) = &self.inner.fetcher else {
            let why = "is a URL, and files.input_urls does not allow them here".to_owned();
            return Err(job.source_error(SourceFault::Forbidden(why)));
        };
        let permit = self.inner.fetches.acquire().await;
        let _permit = permit.map_err(|_| Error::Draining)?;
        let (state_dir, tasks) = (self.inner.state_dir.clone(), &self.inner.tasks);
        let make = move || {
            tempfile::tempfile_in(state_dir).map_err(|source| Error::Io {
                operation: "make a temporary file for a fetched input".into(),
                source,
            })
        };
        let mut file = tokio::fs::File::from_std(tasks.blocking(make).await?);
        let get = FetchRequest {
            url: url.clone(),
            bytes_max: self.inner.bytes_max,
            validators: None,
        };
        let fetched = fetcher.fetch(&get, &mut file).await;
        fetched.map_err(|error| job.fetch_error(error))?;
        let file = file.into_std().await;
        let opened = tasks
            .blocking(move || Ok(rewind_fetched_file(file)))
            .await?;
        let opened = opened.map_err(|error| job.source_error(error.into()))?;
        self.pack_open_file(packer, job, opened).await
    }

    async fn pack_host_path(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
        path: &str,
    ) -> Result<StagedInput> {
        let (from, path) = (job.input.from.clone(), path.to_owned());
        let roots = self.inner.roots.clone();
        let entries_max = self.inner.entries_max;
        let tasks = &self.inner.tasks;
        let open = move || roots.open(&from, &path, entries_max);
        let tree = match tasks.blocking(open).await? {
            host::HostPath::File(file) => return self.pack_open_file(packer, job, file).await,
            host::HostPath::Folder(tree) => Arc::new(tree),
        };
        let mut staged = job.begin_folder(packer).await?;
        for (path, entry) in &tree.entries {
            let path_in_archive = format!("{}/{path}", job.destination.path);
            match entry {
                host::FolderEntry::Folder { mode } => {
                    packer.add_folder(&path_in_archive, *mode).await?;
                }
                host::FolderEntry::Link { target } => {
                    packer.add_link(&path_in_archive, target).await?;
                    staged.files += 1;
                }
                host::FolderEntry::File => {
                    let (tree, path) = (Arc::clone(&tree), path.clone());
                    let opened = tasks.blocking(move || Ok(tree.open_file(&path))).await?;
                    let file = opened.map_err(|fault| job.source_error(fault))?;
                    let (mode, size) = (file.mode, file.size);
                    let packing = packer.add_file(&path_in_archive, mode, size).await?;
                    job.pack_bytes(packing, file).await?;
                    staged.files += 1;
                    staged.bytes += size;
                }
            }
        }
        staged.note = left_out_note(tree.left_out);
        Ok(staged)
    }

    async fn pack_open_file(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
        file: HostFile,
    ) -> Result<StagedInput> {
        let (mode, size) = (file.mode, file.size);
        let packing = job.begin_file(packer, mode, size).await?;
        let sha256 = job.pack_bytes(packing, file).await?;
        job.finish(mode, size, sha256)
    }

    /// Packs a copy of, or a link to, a path of the workspace.
    async fn pack_workspace_path(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
        path: &str,
    ) -> Result<StagedInput> {
        let from = &job.input.from;
        let found = self
            .reader
            .find_path(from, path, self.inner.entries_max)
            .await?;
        if job.input.link {
            if !job.input.sha256.is_empty() {
                match &found {
                    WorkspacePath::File => {
                        job.check_digest(&self.digest_workspace_file(job, path).await?)?;
                    }
                    WorkspacePath::Folder(_) => return Err(job.digest_of_folder_error()),
                }
            }
            packer
                .add_link(
                    &job.destination.path,
                    &link_text(&job.destination.path, path),
                )
                .await?;
            return Ok(StagedInput {
                linked: true,
                mode: 0o777,
                files: 1,
                ..StagedInput::default()
            });
        }
        let entries = match found {
            WorkspacePath::File => {
                let (size, mode, sha256) = self
                    .pack_workspace_file(packer, job, path, &job.destination.path)
                    .await?;
                return job.finish(mode, size, sha256);
            }
            WorkspacePath::Folder(entries) => entries,
        };
        let mut staged = job.begin_folder(packer).await?;
        let mut skipped = count_unlisted_folders(path, &entries);
        for entry in &entries {
            let below = entry.path.strip_prefix(path).unwrap_or(&entry.path);
            let below = below.trim_start_matches('/');
            let path_in_archive = format!("{}/{below}", job.destination.path);
            match entry.r#type() {
                FileType::Directory => {
                    packer
                        .add_folder(&path_in_archive, entry.mode & 0o777)
                        .await?;
                }
                FileType::File => {
                    let (size, ..) = self
                        .pack_workspace_file(packer, job, &entry.path, &path_in_archive)
                        .await?;
                    staged.files += 1;
                    staged.bytes += size;
                }
                FileType::Symlink if stays_beneath(below, &entry.link_target) => {
                    packer
                        .add_link(&path_in_archive, &entry.link_target)
                        .await?;
                    staged.files += 1;
                }
                FileType::Symlink | FileType::Other | FileType::Unspecified => skipped += 1,
            }
        }
        staged.note = left_out_note(skipped);
        Ok(staged)
    }

    /// Packs a file of the workspace. Returns its size, mode and SHA-256.
    async fn pack_workspace_file(
        &self,
        packer: &mut ArchivePacker,
        job: &InputJob<'_>,
        path: &str,
        path_in_archive: &str,
    ) -> Result<(u64, u32, String)> {
        use pb::read_file_response::Payload;
        let (entry, mut stream) = self.reader.open_file(path).await?;
        let size = u64::try_from(entry.size).unwrap_or(0);
        let mode = entry.mode & 0o777;
        let mut packing = packer.add_file(path_in_archive, mode, size).await?;
        let lost = |status: &tonic::Status| Error::from_guest(&self.reader.workspace, status);
        // A file that grows meanwhile may never end; bytes beyond its first size are ignored.
        while packing.is_incomplete() {
            let message = stream.message().await.map_err(|status| lost(&status))?;
            match message.and_then(|message| message.payload) {
                Some(Payload::Data(data)) => packing.append(data).await?,
                Some(Payload::File(_)) | None => break,
            }
        }
        let sha256 = packing.finish().await?;
        let sha256 = sha256.ok_or_else(|| job.source_error(SourceFault::Changed))?;
        Ok((size, mode, sha256))
    }

    /// Returns the SHA-256 of a file of the workspace.
    async fn digest_workspace_file(&self, job: &InputJob<'_>, path: &str) -> Result<String> {
        use pb::read_file_response::Payload;
        let (entry, mut stream) = self.reader.open_file(path).await?;
        let mut left = u64::try_from(entry.size).unwrap_or(0);
        if left > self.inner.bytes_max {
            return Err(Error::LimitExceeded {
                what: format!("{} (files.stage_bytes_max)", job.input.from),
                limit: self.inner.bytes_max,
            });
        }
        let mut sha256 = Sha256::new();
        while left > 0 {
            let message = stream.message().await;
            let message =
                message.map_err(|status| Error::from_guest(&self.reader.workspace, &status))?;
            let Some(Payload::Data(mut data)) = message.and_then(|message| message.payload) else {
                return Err(job.source_error(SourceFault::Changed));
            };
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= data.len() as u64;
            sha256.update(&data);
        }
        Ok(HEXLOWER.encode(&sha256.finalize()))
    }

    /// Returns the result of an earlier staging if the workspace still has the same file.
    async fn find_unchanged(
        &self,
        job: &InputJob<'_>,
        size: u64,
        sha256: &str,
    ) -> Option<StagedInput> {
        let before = job.destination.before.as_ref()?;
        job.check_digest(sha256).ok()?;
        if before.size != size || before.sha256 != sha256 {
            return None;
        }
        let entry = self.reader.stat_file(&before.path).await?;
        let same = entry.r#type() == FileType::File
            && u64::try_from(entry.size) == Ok(size)
            && entry.mtime.is_some_and(|time| is_unmodified(time, before));
        same.then(|| StagedInput {
            size,
            mode: entry.mode & 0o777,
            sha256: sha256.to_owned(),
            files: 1,
            bytes: size,
            unchanged: true,
            ..StagedInput::default()
        })
    }
}

/// Returns `true` if a file was not written since it was staged. Guest and daemon share the host's clock.
fn is_unmodified(changed: prost_types::Timestamp, staged: &record::InputRecord) -> bool {
    std::time::SystemTime::try_from(changed).is_ok_and(|changed| unix_ms(changed) <= staged.time_ms)
}

fn rewind_fetched_file(mut file: std::fs::File) -> std::io::Result<HostFile> {
    use std::io::Seek;
    file.rewind()?;
    let size = file.metadata()?.len();
    Ok(HostFile {
        file,
        size,
        mode: FILE_MODE,
    })
}

fn left_out_note(count: u64) -> String {
    if count == 0 {
        return String::new();
    }
    format!(
        "left out {count}: special files, links that lead out of the folder, and what is in folders that cannot be read"
    )
}

/// Counts folders that the guest could not list: it lacks the permission, or they are too deep.
fn count_unlisted_folders(path: &str, entries: &[pb::FileEntry]) -> u64 {
    let parent = |entry: &pb::FileEntry| Some(entry.path.rsplit_once('/')?.0.to_owned());
    let listed: HashSet<String> = entries.iter().filter_map(parent).collect();
    let folders = entries.iter().filter(|entry| {
        let below = entry.path.strip_prefix(path).unwrap_or(&entry.path);
        let depth = below.trim_start_matches('/').matches('/').count() + 1;
        entry.r#type() == FileType::Directory
            && (entry.mode & FOLDER_READ != FOLDER_READ || depth >= LISTED_DEPTH_MAX)
            && !listed.contains(&entry.path)
    });
    folders.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_the_guest_could_not_list_are_counted() {
        let entry = |path: &str, mode: u32, kind: FileType| pb::FileEntry {
            path: path.to_owned(),
            mode,
            r#type: kind.into(),
            ..pb::FileEntry::default()
        };
        let folder = |path: &str, mode| entry(path, mode, FileType::Directory);
        let deep = |depth: usize| format!("work/d{}", "/x".repeat(depth));
        let entries = [
            folder("work/d/closed", 0),
            folder("work/d/empty", 0o755),
            folder("work/d/read", 0o055),
            folder("work/d/read-not", 0o600),
            entry("work/d/read/by-others", 0, FileType::File),
            folder(&deep(LISTED_DEPTH_MAX - 1), 0o755),
            folder(&deep(LISTED_DEPTH_MAX), 0o755),
        ];
        assert_eq!(count_unlisted_folders("work/d", &entries), 3);
    }
}
