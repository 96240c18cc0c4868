//! Opens the sources one after the other and packs what they hold.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::BytesMut;
use data_encoding::HEXLOWER;
use futures::StreamExt;
use sha2::{Digest, Sha256};
use skilld_proto::v1::{self as pb, FileType};
use tokio::io::AsyncReadExt;

use super::host::{self, HostFile};
use super::pack::{Packer, Packing};
use super::target::{self, Target};
use super::within::{self, Within, link_text, stays};
use super::{Inner, Input, Source, Staged};
use crate::artifacts::{ArtifactRef, Scope};
use crate::error::{Error, HostFault, Result, SourceFault};
use crate::fetch::{FetchError, Get, WebUrl};
use crate::workspace::lease::unix_ms;
use crate::workspace::record;

/// Bytes that are read at a time.
const SLICE: usize = 256 << 10;
/// Of what has no mode of its own.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// What its owner needs to see what is in a folder.
const FOLDER_READ: u32 = 0o500;
/// Folders within folders that a guest lists.
const LISTED_DEPTH_MAX: usize = 128;

/// What is needed to open sources.
#[derive(Debug)]
pub(super) struct Producer<'a> {
    pub(super) inner: &'a Inner,
    pub(super) within: Within,
    /// Staged ones.
    pub(super) skills: BTreeMap<String, String>,
    pub(super) scope: &'a Scope,
}

/// What becomes of one input, while it is packed.
struct Job<'a> {
    input: &'a Input,
    target: &'a Target,
}

impl Producer<'_> {
    /// Packs all inputs. The archive is whole when this is OK.
    pub(super) async fn produce(
        &self,
        mut packer: Packer,
        inputs: &[Input],
        targets: &[Target],
    ) -> Result<Vec<Staged>> {
        let mut all = Vec::with_capacity(inputs.len());
        for (input, target) in inputs.iter().zip(targets) {
            let job = Job { input, target };
            let mut staged = self.one(&mut packer, &job).await?;
            staged.path.clone_from(&target.path);
            if input.link && !staged.linked && staged.note.is_empty() && !staged.unchanged {
                staged.note = "copied: only what is in the workspace can be linked".into();
            }
            all.push(staged);
        }
        packer.finish().await?;
        Ok(all)
    }

    async fn one(&self, packer: &mut Packer, job: &Job<'_>) -> Result<Staged> {
        match &job.input.source {
            Source::Data(data) => {
                let sha256 = target::sha256(data);
                if let Some(staged) = self.unchanged(job, data.len() as u64, &sha256).await {
                    return Ok(staged);
                }
                let mut packing = job.begin(packer, FILE_MODE, data.len() as u64).await?;
                packing.data(data.clone()).await?;
                job.file(packing, FILE_MODE, data.len() as u64).await
            }
            Source::Artifact(artifact) => self.artifact(packer, job, artifact).await,
            Source::Host(path) => self.host(packer, job, path).await,
            Source::Workspace(path) => self.copy(packer, job, path).await,
            Source::Skill { name, path } => {
                if !self.skills.contains_key(name) {
                    return Err(Error::SkillNotStaged {
                        name: name.clone(),
                        nearest: self.skills.keys().take(3).cloned().collect(),
                    });
                }
                let path = format!("skills/{name}/{path}");
                self.copy(packer, job, path.trim_end_matches('/')).await
            }
            Source::Url(url) => self.fetch(packer, job, url).await,
        }
    }

    async fn artifact(
        &self,
        packer: &mut Packer,
        job: &Job<'_>,
        wanted: &ArtifactRef,
    ) -> Result<Staged> {
        let version = wanted.version.or(job.target.pinned);
        let artifacts = &self.inner.artifacts;
        if job.target.before.is_some() {
            let artifact = artifacts.get(self.scope, &wanted.name, version).await?;
            let there = self.unchanged(job, artifact.size, &artifact.sha256).await;
            if let Some(staged) = there {
                let version = Some(artifact.version);
                return Ok(Staged { version, ..staged });
            }
        }
        let (artifact, mut bytes) = artifacts.load(self.scope, &wanted.name, version).await?;
        let mut packing = job.begin(packer, FILE_MODE, artifact.size).await?;
        while let Some(data) = bytes.next().await {
            packing.data(data?).await?;
        }
        let staged = job.file(packing, FILE_MODE, artifact.size).await?;
        Ok(Staged {
            version: Some(artifact.version),
            ..staged
        })
    }

    async fn fetch(&self, packer: &mut Packer, job: &Job<'_>, url: &WebUrl) -> Result<Staged> {
        let Some(fetcher) = &self.inner.fetcher else {
            let why = "is a URL, and files.input_urls does not allow them here".to_owned();
            return Err(job.fault(SourceFault::Forbidden(why)));
        };
        let place = self.inner.fetches.acquire().await;
        let _place = place.map_err(|_| Error::Draining)?;
        let (state_dir, tasks) = (self.inner.state_dir.clone(), &self.inner.tasks);
        let make = move || {
            tempfile::tempfile_in(state_dir).map_err(|source| Error::Io {
                operation: "make a temporary file for a fetched input".into(),
                source,
            })
        };
        let mut file = tokio::fs::File::from_std(tasks.blocking(make).await?);
        let get = Get {
            url: url.clone(),
            bytes_max: self.inner.bytes_max,
            validators: None,
        };
        let fetched = fetcher.fetch(&get, &mut file).await;
        fetched.map_err(|error| job.not_fetched(error))?;
        let file = file.into_std().await;
        let opened = tasks.blocking(move || Ok(rewound(file))).await?;
        let opened = opened.map_err(|error| job.fault(error.into()))?;
        self.file(packer, job, opened).await
    }

    async fn host(&self, packer: &mut Packer, job: &Job<'_>, path: &str) -> Result<Staged> {
        let (from, path) = (job.input.from.clone(), path.to_owned());
        let roots = self.inner.roots.clone();
        let entries_max = self.inner.entries_max;
        let tasks = &self.inner.tasks;
        let open = move || roots.open(&from, &path, entries_max);
        let tree = match tasks.blocking(open).await? {
            host::Found::File(file) => return self.file(packer, job, file).await,
            host::Found::Folder(tree) => Arc::new(tree),
        };
        let mut staged = job.folder(packer).await?;
        for (path, entry) in &tree.entries {
            let place = format!("{}/{path}", job.target.path);
            match entry {
                host::Entry::Folder { mode } => packer.folder(&place, *mode).await?,
                host::Entry::Link { target } => {
                    packer.link(&place, target).await?;
                    staged.files += 1;
                }
                host::Entry::File => {
                    let (tree, path) = (Arc::clone(&tree), path.clone());
                    let opened = tasks.blocking(move || Ok(tree.file(&path))).await?;
                    let file = opened.map_err(|fault| job.fault(fault))?;
                    let (mode, size) = (file.mode, file.size);
                    let packing = packer.file(&place, mode, size).await?;
                    job.pour(packing, file).await?;
                    staged.files += 1;
                    staged.bytes += size;
                }
            }
        }
        staged.note = left_out(tree.left_out);
        Ok(staged)
    }

    async fn file(&self, packer: &mut Packer, job: &Job<'_>, file: HostFile) -> Result<Staged> {
        let (mode, size) = (file.mode, file.size);
        let packing = job.begin(packer, mode, size).await?;
        let sha256 = job.pour(packing, file).await?;
        job.done(mode, size, sha256)
    }

    /// Something of the workspace itself.
    async fn copy(&self, packer: &mut Packer, job: &Job<'_>, path: &str) -> Result<Staged> {
        let from = &job.input.from;
        let found = self.within.find(from, path, self.inner.entries_max).await?;
        if job.input.link {
            if !job.input.sha256.is_empty() {
                match &found {
                    within::Found::File => job.check(&self.digest(job, path).await?)?,
                    within::Found::Folder(_) => return Err(job.not_a_file()),
                }
            }
            packer
                .link(&job.target.path, &link_text(&job.target.path, path))
                .await?;
            return Ok(Staged {
                linked: true,
                mode: 0o777,
                files: 1,
                ..Staged::default()
            });
        }
        let entries = match found {
            within::Found::File => {
                let (size, mode, sha256) = self.relay(packer, job, path, &job.target.path).await?;
                return job.done(mode, size, sha256);
            }
            within::Found::Folder(entries) => entries,
        };
        let mut staged = job.folder(packer).await?;
        let mut skipped = closed(path, &entries);
        for entry in &entries {
            let below = entry.path.strip_prefix(path).unwrap_or(&entry.path);
            let below = below.trim_start_matches('/');
            let place = format!("{}/{below}", job.target.path);
            match entry.r#type() {
                FileType::Directory => packer.folder(&place, entry.mode & 0o777).await?,
                FileType::File => {
                    let (size, ..) = self.relay(packer, job, &entry.path, &place).await?;
                    staged.files += 1;
                    staged.bytes += size;
                }
                FileType::Symlink if stays(below, &entry.link_target) => {
                    packer.link(&place, &entry.link_target).await?;
                    staged.files += 1;
                }
                FileType::Symlink | FileType::Other | FileType::Unspecified => skipped += 1,
            }
        }
        staged.note = left_out(skipped);
        Ok(staged)
    }

    /// Packs a file of the workspace: its size, mode and digest.
    async fn relay(
        &self,
        packer: &mut Packer,
        job: &Job<'_>,
        path: &str,
        place: &str,
    ) -> Result<(u64, u32, String)> {
        use pb::read_file_response::Payload;
        let (entry, mut stream) = self.within.read(path).await?;
        let size = u64::try_from(entry.size).unwrap_or(0);
        let mode = entry.mode & 0o777;
        let mut packing = packer.file(place, mode, size).await?;
        let lost = |status: &tonic::Status| Error::from_guest(&self.within.workspace, status);
        // What a file has grown by meanwhile is not wanted, and may never end.
        while packing.wants() {
            let message = stream.message().await.map_err(|status| lost(&status))?;
            match message.and_then(|message| message.payload) {
                Some(Payload::Data(data)) => packing.data(data).await?,
                Some(Payload::File(_)) | None => break,
            }
        }
        let sha256 = packing.finish().await?;
        let sha256 = sha256.ok_or_else(|| job.fault(SourceFault::Changed))?;
        Ok((size, mode, sha256))
    }

    /// Reads a file of the workspace for its digest only.
    async fn digest(&self, job: &Job<'_>, path: &str) -> Result<String> {
        use pb::read_file_response::Payload;
        let (entry, mut stream) = self.within.read(path).await?;
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
                message.map_err(|status| Error::from_guest(&self.within.workspace, &status))?;
            let Some(Payload::Data(mut data)) = message.and_then(|message| message.payload) else {
                return Err(job.fault(SourceFault::Changed));
            };
            data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= data.len() as u64;
            sha256.update(&data);
        }
        Ok(HEXLOWER.encode(&sha256.finalize()))
    }

    /// What was staged before, if that is what would be staged now.
    async fn unchanged(&self, job: &Job<'_>, size: u64, sha256: &str) -> Option<Staged> {
        let before = job.target.before.as_ref()?;
        job.check(sha256).ok()?;
        if before.size != size || before.sha256 != sha256 {
            return None;
        }
        let entry = self.within.look(&before.path).await?;
        let same = entry.r#type() == FileType::File
            && u64::try_from(entry.size) == Ok(size)
            && entry.mtime.is_some_and(|time| is_before(time, before));
        same.then(|| Staged {
            size,
            mode: entry.mode & 0o777,
            sha256: sha256.to_owned(),
            files: 1,
            bytes: size,
            unchanged: true,
            ..Staged::default()
        })
    }
}

/// Whether a file was not written to since it was staged: the guest's clock is ours.
fn is_before(changed: prost_types::Timestamp, staged: &record::Input) -> bool {
    std::time::SystemTime::try_from(changed).is_ok_and(|changed| unix_ms(changed) <= staged.time_ms)
}

fn rewound(mut file: std::fs::File) -> std::io::Result<HostFile> {
    use std::io::Seek;
    file.rewind()?;
    let size = file.metadata()?.len();
    Ok(HostFile {
        file,
        size,
        mode: FILE_MODE,
    })
}

fn left_out(count: u64) -> String {
    if count == 0 {
        return String::new();
    }
    format!(
        "left out {count}: special files, links that lead out of the folder, and what is in folders that cannot be read"
    )
}

/// Folders of which a workspace may not have listed what is in them: it may not read them, or they are too far down.
fn closed(path: &str, entries: &[pb::FileEntry]) -> u64 {
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

impl Job<'_> {
    fn fault(&self, fault: SourceFault) -> Error {
        let from = if self.input.from.is_empty() {
            &self.input.field
        } else {
            &self.input.from
        };
        Error::Source {
            from: from.clone(),
            fault,
        }
    }

    fn not_fetched(&self, error: FetchError) -> Error {
        self.fault(match error {
            FetchError::Address {
                allowable: true, ..
            } => SourceFault::Forbidden(format!(
                "may not be fetched: {error} (files.input_private_addresses)"
            )),
            FetchError::Address { .. } | FetchError::Downgrade { .. } => {
                SourceFault::Forbidden(format!("may not be fetched: {error}"))
            }
            FetchError::Status {
                status: 404 | 410, ..
            } => SourceFault::Missing,
            FetchError::TooLarge { limit, .. } => SourceFault::TooLarge(limit),
            FetchError::Checksum {
                expected, found, ..
            } => {
                return Error::ChecksumMismatch {
                    expected,
                    actual: found,
                };
            }
            FetchError::File { source, .. } if HostFault::of(&source).is_some() => {
                return Error::Io {
                    operation: "store a fetched input".into(),
                    source,
                };
            }
            FetchError::Url { .. }
            | FetchError::Redirects { .. }
            | FetchError::Unreachable { .. }
            | FetchError::Timeout { .. }
            | FetchError::Status { .. }
            | FetchError::File { .. }
            | FetchError::Client { .. } => SourceFault::Fetch(error.to_string()),
        })
    }

    fn not_a_file(&self) -> Error {
        let field = format!("{}.sha256", self.input.field);
        Error::invalid(field, "is for files; this is a folder")
    }

    async fn begin<'p>(&self, packer: &'p mut Packer, mode: u32, size: u64) -> Result<Packing<'p>> {
        packer.file(&self.target.path, mode, size).await
    }

    async fn folder(&self, packer: &mut Packer) -> Result<Staged> {
        if !self.input.sha256.is_empty() {
            return Err(self.not_a_file());
        }
        packer.folder(&self.target.path, FOLDER_MODE).await?;
        Ok(Staged {
            mode: FOLDER_MODE,
            ..Staged::default()
        })
    }

    /// Packs an open file's bytes: its digest.
    async fn pour(&self, mut packing: Packing<'_>, file: HostFile) -> Result<String> {
        let failed = |error: std::io::Error| self.fault(error.into());
        let mut file = tokio::fs::File::from_std(file.file);
        file.set_max_buf_size(SLICE);
        while packing.wants() {
            let mut buffer = BytesMut::with_capacity(SLICE);
            if file.read_buf(&mut buffer).await.map_err(failed)? == 0 {
                break;
            }
            packing.data(buffer.freeze()).await?;
        }
        let sha256 = packing.finish().await?;
        sha256.ok_or_else(|| self.fault(SourceFault::Changed))
    }

    async fn file(&self, packing: Packing<'_>, mode: u32, size: u64) -> Result<Staged> {
        let sha256 = packing.finish().await?;
        let sha256 = sha256.ok_or_else(|| self.fault(SourceFault::Changed))?;
        self.done(mode, size, sha256)
    }

    fn done(&self, mode: u32, size: u64, sha256: String) -> Result<Staged> {
        self.check(&sha256)?;
        Ok(Staged {
            size,
            mode,
            sha256,
            files: 1,
            bytes: size,
            ..Staged::default()
        })
    }

    fn check(&self, sha256: &str) -> Result<()> {
        let wanted = &self.input.sha256;
        if wanted.is_empty() || wanted == sha256 {
            return Ok(());
        }
        Err(Error::ChecksumMismatch {
            expected: wanted.clone(),
            actual: sha256.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_a_workspace_could_not_list_are_counted() {
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
        assert_eq!(closed("work/d", &entries), 3);
    }
}
