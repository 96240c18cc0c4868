//! Opens the sources of the inputs one after the other and packs their files.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use skilld_common::unix_time::unix_ms;
use skilld_proto::v1::{FileEntry, FileType};

use super::archive_packer::ArchivePacker;
use super::destination::{self, PlannedDestination};
use super::folder_listing::{FolderEntry, FolderListing};
use super::host_folder::{HostFile, HostFolder, OpenedHostPath};
use super::planned_input::PlannedInput;
use super::source_file_reader::{FILE_MODE, SourceFileReader};
use super::workspace_reader::{FoundWorkspacePath, WorkspaceReader, link_text};
use super::{InputSource, InputSpec, StagedInput, StagerContext};
use crate::artifacts::{ArtifactRef, ArtifactScope};
use crate::error::{Error, InputSourceError, Result};
use crate::exec::{self, StagedSkillRecord};
use crate::fetch::{FetchRequest, WebUrl};
use crate::guest::ARCHIVE_ENTRIES_MAX;
use crate::workspace::record;

/// Packs the inputs of one request into an archive, from sources of any kind.
#[derive(Debug)]
pub(super) struct SourcePacker<'a> {
    pub(super) inner: &'a StagerContext,
    pub(super) reader: WorkspaceReader,
    /// Staged skills by their names.
    pub(super) skills: BTreeMap<String, StagedSkillRecord>,
    pub(super) scope: &'a ArtifactScope,
    /// Archives of the request, in their order: they are unpacked already.
    pub(super) unpacked: VecDeque<StagedInput>,
}

/// Origin of a folder's files.
#[derive(Debug, Clone, Copy)]
enum FolderSource<'a> {
    Host(&'a Arc<HostFolder>),
    /// Path of the folder in the workspace.
    Workspace(&'a str),
}

impl SourcePacker<'_> {
    /// Packs all inputs and completes the archive.
    pub(super) async fn produce(
        &mut self,
        mut packer: ArchivePacker,
        inputs: &[InputSpec],
        destinations: &[PlannedDestination],
    ) -> Result<Vec<StagedInput>> {
        let mut all = Vec::with_capacity(inputs.len());
        for (input, destination) in inputs.iter().zip(destinations) {
            let job = PlannedInput { input, destination };
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
        &mut self,
        packer: &mut ArchivePacker,
        job: &PlannedInput<'_>,
    ) -> Result<StagedInput> {
        match &job.input.source {
            InputSource::Data(data) => {
                let sha256 = destination::sha256_hex(data);
                if let Some(staged) = self.find_unchanged(job, data.len() as u64, &sha256).await {
                    return Ok(staged);
                }
                job.pack_only_file(packer, SourceFileReader::from_bytes(data))
                    .await
            }
            InputSource::Archive(_) => {
                let unpacked = self.unpacked.pop_front();
                unpacked.ok_or_else(|| Error::Internal("an archive was not unpacked".into()))
            }
            InputSource::Artifact(artifact) => self.pack_artifact(packer, job, artifact).await,
            InputSource::Host(path) => self.pack_host_path(packer, job, path).await,
            InputSource::Workspace(path) => self.pack_workspace_path(packer, job, path).await,
            InputSource::Skill { name, path } => {
                exec::require_staged_skill(name, &self.skills)?;
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
        job: &PlannedInput<'_>,
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
        let (artifact, bytes) = artifacts.load(self.scope, &wanted.name, version).await?;
        let file = SourceFileReader::new(artifact.size, FILE_MODE, bytes);
        Ok(StagedInput {
            version: Some(artifact.version),
            ..job.pack_only_file(packer, file).await?
        })
    }

    async fn pack_url(
        &self,
        packer: &mut ArchivePacker,
        job: &PlannedInput<'_>,
        url: &WebUrl,
    ) -> Result<StagedInput> {
        let Some(fetcher) = &self.inner.fetcher else {
            let why = "is a URL, and files.input_urls does not allow them here".to_owned();
            return Err(job.source_error(InputSourceError::Forbidden(why)));
        };
        let tenant = self.scope.tenant().as_str();
        let _permit = self.inner.fetches.acquire(tenant).await;
        let (state_dir, tasks) = (self.inner.state_dir.clone(), &self.inner.tasks);
        let make = move || {
            tempfile::tempfile_in(state_dir)
                .map_err(|source| Error::io("make a temporary file for a fetched input", source))
        };
        let mut file = tokio::fs::File::from_std(tasks.blocking(make).await?);
        let get = FetchRequest {
            url: url.clone(),
            bytes_max: self.inner.bytes_max,
            validators: None,
        };
        let fetched = fetcher.fetch(&get, &mut file).await;
        fetched.map_err(|error| job.fetch_error(error))?;
        let written = file.into_std().await;
        let opened = tasks
            .blocking(move || Ok(rewind_fetched_file(written)))
            .await?
            .map_err(|error| job.source_error(error.into()))?;
        let reader = SourceFileReader::from_host(opened, job.reference().to_owned());
        job.pack_only_file(packer, reader).await
    }

    async fn pack_host_path(
        &self,
        packer: &mut ArchivePacker,
        job: &PlannedInput<'_>,
        path: &str,
    ) -> Result<StagedInput> {
        let (from, path) = (job.input.from.clone(), path.to_owned());
        let roots = self.inner.roots.clone();
        let tasks = &self.inner.tasks;
        let open = move || roots.open(&from, &path, ARCHIVE_ENTRIES_MAX);
        let tree = match tasks.blocking(open).await? {
            OpenedHostPath::File(file) => {
                let file = SourceFileReader::from_host(file, job.reference().to_owned());
                return job.pack_only_file(packer, file).await;
            }
            OpenedHostPath::Folder(tree) => Arc::new(tree),
        };
        self.pack_folder(packer, job, &tree.listing, FolderSource::Host(&tree))
            .await
    }

    /// Packs a copy of, or a link to, a path of the workspace.
    async fn pack_workspace_path(
        &self,
        packer: &mut ArchivePacker,
        job: &PlannedInput<'_>,
        path: &str,
    ) -> Result<StagedInput> {
        let found = self
            .reader
            .find_path(&job.input.from, path, ARCHIVE_ENTRIES_MAX)
            .await?;
        if job.input.link {
            return self.pack_workspace_link(packer, job, path, &found).await;
        }
        match found {
            FoundWorkspacePath::File => {
                let file = self.reader.open_file(path).await?;
                job.pack_only_file(packer, file).await
            }
            FoundWorkspacePath::Folder(listing) => {
                self.pack_folder(packer, job, &listing, FolderSource::Workspace(path))
                    .await
            }
        }
    }

    async fn pack_workspace_link(
        &self,
        packer: &mut ArchivePacker,
        job: &PlannedInput<'_>,
        path: &str,
        found: &FoundWorkspacePath,
    ) -> Result<StagedInput> {
        if !job.input.sha256.is_empty() {
            match found {
                FoundWorkspacePath::File => {
                    job.check_digest(&self.digest_workspace_file(job, path).await?)?;
                }
                FoundWorkspacePath::Folder(_) => return Err(job.digest_of_folder_error()),
            }
        }
        let link = &job.destination.path;
        packer.add_link(link, &link_text(link, path)).await?;
        Ok(StagedInput {
            linked: true,
            mode: 0o777,
            files: 1,
            ..StagedInput::default()
        })
    }

    /// Packs a folder with all its entries.
    async fn pack_folder(
        &self,
        packer: &mut ArchivePacker,
        job: &PlannedInput<'_>,
        listing: &FolderListing,
        source: FolderSource<'_>,
    ) -> Result<StagedInput> {
        let mut staged = job.begin_folder(packer).await?;
        for (path, entry) in &listing.entries {
            let path_in_archive = format!("{}/{path}", job.destination.path);
            match entry {
                FolderEntry::Folder { mode } => packer.add_folder(&path_in_archive, *mode).await?,
                FolderEntry::Link { target } => {
                    packer.add_link(&path_in_archive, target).await?;
                    staged.files += 1;
                }
                FolderEntry::File => {
                    let file = self.open_file_of_folder(job, source, path).await?;
                    let packed = job.pack_file(packer, &path_in_archive, file).await?;
                    staged.files += 1;
                    staged.bytes += packed.size;
                }
            }
        }
        staged.note = left_out_note(listing.left_out);
        Ok(staged)
    }

    /// Opens a file by its path in a folder.
    async fn open_file_of_folder(
        &self,
        job: &PlannedInput<'_>,
        source: FolderSource<'_>,
        path: &str,
    ) -> Result<SourceFileReader> {
        match source {
            FolderSource::Host(folder) => {
                let (folder, path) = (Arc::clone(folder), path.to_owned());
                let open = move || Ok(folder.open_file(&path));
                let file = self
                    .inner
                    .tasks
                    .blocking(open)
                    .await?
                    .map_err(|fault| job.source_error(fault))?;
                Ok(SourceFileReader::from_host(
                    file,
                    job.reference().to_owned(),
                ))
            }
            FolderSource::Workspace(folder) => {
                let path = format!("{folder}/{path}");
                self.reader.open_file(path.trim_start_matches('/')).await
            }
        }
    }

    /// Returns the SHA-256 of a file of the workspace.
    async fn digest_workspace_file(&self, job: &PlannedInput<'_>, path: &str) -> Result<String> {
        let mut file = self.reader.open_file(path).await?;
        if file.size > self.inner.bytes_max {
            let what = format!("{} (files.stage_bytes_max)", job.input.from);
            return Err(Error::limit_exceeded(what, self.inner.bytes_max));
        }
        while file.next_chunk().await?.is_some() {}
        file.finish().map_err(|fault| job.source_error(fault))
    }

    /// Returns the result of an earlier staging if the workspace still has the same file.
    async fn find_unchanged(
        &self,
        job: &PlannedInput<'_>,
        size: u64,
        sha256: &str,
    ) -> Option<StagedInput> {
        let before = job.destination.before.as_ref()?;
        job.check_digest(sha256).ok()?;
        if before.size != size || before.sha256 != sha256 {
            return None;
        }
        let entry = self.reader.stat_file(&before.path).await?;
        let same = entry.file_type() == FileType::File
            && u64::try_from(entry.size_bytes) == Ok(size)
            && is_unmodified(&entry, before);
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

/// Returns `true` if a file was not written or replaced since it was staged. Guest and daemon share the host's clock. The
/// modification time would not do, since an upload and `mv` keep it; only guests of earlier daemons report no other.
fn is_unmodified(entry: &FileEntry, staged: &record::InputRecord) -> bool {
    let changed = entry
        .change_time
        .or(entry.modify_time)
        .and_then(|time| std::time::SystemTime::try_from(time).ok());
    changed.is_some_and(|changed| unix_ms(changed) <= staged.time_ms)
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
