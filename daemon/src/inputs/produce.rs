//! Opens the sources one after the other and packs what they hold.

use std::collections::BTreeMap;

use bytes::BytesMut;
use futures::StreamExt;
use skilld_proto::v1::{self as pb, FileType};
use tokio::io::AsyncReadExt;

use super::host::{self, HostFile};
use super::pack::{Packer, Packing};
use super::target::{self, Target};
use super::within::{self, Within, link_text, stays};
use super::{Inner, Input, Source, Staged};
use crate::artifacts::{ArtifactRef, Scope};
use crate::error::{Error, Result, SourceFault};
use crate::fetch::{FetchError, Get, WebUrl};
use crate::workspace::lease::unix_ms;
use crate::workspace::record;

/// Bytes that are read at a time.
const SLICE: usize = 256 << 10;
/// Of what has no mode of its own.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

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
        let make = || tempfile::tempfile_in(&self.inner.state_dir);
        let file = make().map_err(|source| Error::Io {
            operation: "make a temporary file for a fetched input".into(),
            source,
        })?;
        let mut file = tokio::fs::File::from_std(file);
        let get = Get {
            url: url.clone(),
            bytes_max: self.inner.bytes_max,
            validators: None,
        };
        let fetched = fetcher.fetch(&get, &mut file).await;
        fetched.map_err(|error| job.not_fetched(error))?;
        let opened = rewound(file.into_std().await).map_err(|error| job.fault(error.into()))?;
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
            host::Found::Folder(tree) => tree,
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
                    let file = tree.file(path).map_err(|fault| job.fault(fault))?;
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
        let mut skipped = 0;
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
    format!("left out {count}: special files, and links that lead out of the folder")
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
            FetchError::Url { .. }
            | FetchError::Redirects { .. }
            | FetchError::Unreachable { .. }
            | FetchError::Timeout { .. }
            | FetchError::Status { .. }
            | FetchError::File { .. }
            | FetchError::Client { .. } => SourceFault::Fetch(error.to_string()),
        })
    }

    async fn begin<'p>(&self, packer: &'p mut Packer, mode: u32, size: u64) -> Result<Packing<'p>> {
        packer.file(&self.target.path, mode, size).await
    }

    async fn folder(&self, packer: &mut Packer) -> Result<Staged> {
        if !self.input.sha256.is_empty() {
            let field = format!("{}.sha256", self.input.field);
            return Err(Error::invalid(field, "is for files; this is a folder"));
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
