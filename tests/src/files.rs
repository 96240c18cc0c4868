//! Staged and collected files, held in memory for tests that compare bytes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use skilld_client::{Client, UploadTarget};
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{
    CollectFormat, CollectOutputsRequest, CollectSpec, CollectSummary, CollectedFile, FileEnd,
    ReadFileRequest, StageFilesResponse,
};

/// Collected file with its bytes.
#[derive(Debug, Clone)]
pub struct File {
    /// Header of the file.
    pub file: CollectedFile,
    /// Bytes of the file, as far as the daemon sent them.
    pub data: Vec<u8>,
    /// Trailer of the file; `None` for a link.
    pub end: Option<FileEnd>,
}

/// Messages of one CollectOutputs, collected.
#[derive(Debug, Clone, Default)]
pub struct Collection {
    /// Files in the order in which they came.
    pub files: Vec<File>,
    /// Bytes of the archive, for the formats TAR and TAR_GZ.
    pub archive: Vec<u8>,
    /// Summary in the last message.
    pub summary: CollectSummary,
}

impl Collection {
    /// Returns the paths in the order in which they came.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        self.files
            .iter()
            .map(|file| file.file.path.as_str())
            .collect()
    }

    /// Returns the bytes of a file.
    ///
    /// # Errors
    /// When the file did not come.
    pub fn bytes(&self, path: &str) -> Result<&[u8]> {
        let file = self
            .files
            .iter()
            .find(|file| file.file.path == path)
            .with_context(|| format!("{path} did not come: {:?}", self.paths()))?;
        Ok(&file.data)
    }

    /// Returns the path and reason of every file that was left out, sorted.
    #[must_use]
    pub fn skipped(&self) -> BTreeMap<&str, skilld_proto::v1::SkipReason> {
        let skipped = self.summary.skipped_files.iter();
        skipped
            .map(|file| (file.path.as_str(), file.reason()))
            .collect()
    }
}

/// Returns the sha256 of bytes in hex digits.
#[must_use]
pub fn sha256(data: &[u8]) -> String {
    let digest = Sha256::digest(data);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Stages bytes as a file or an archive.
///
/// # Errors
/// As the daemon answers.
pub async fn stage(
    client: &Client,
    target: UploadTarget,
    data: impl Into<Bytes>,
) -> Result<StageFilesResponse, skilld_client::Error> {
    let source = std::io::Cursor::new(data.into());
    client.upload(target, source).await
}

/// Stages one file.
///
/// # Errors
/// As the daemon answers.
pub async fn put(
    client: &Client,
    workspace: &str,
    path: &str,
    data: impl Into<Bytes>,
) -> Result<StageFilesResponse, skilld_client::Error> {
    stage(client, UploadTarget::file(workspace, path), data).await
}

/// Reads one file whole.
///
/// # Errors
/// As the daemon answers.
pub async fn read(
    client: &Client,
    workspace: &str,
    path: &str,
) -> Result<Vec<u8>, skilld_client::Error> {
    let request = ReadFileRequest {
        workspace: workspace.to_owned(),
        path: path.to_owned(),
        ..ReadFileRequest::default()
    };
    let mut reader = client.read_file(request).await?;
    let mut data = Vec::new();
    while let Some(chunk) = reader.next().await? {
        data.extend_from_slice(&chunk);
    }
    Ok(data)
}

/// Returns a spec that collects files by globs.
#[must_use]
pub fn globs<const N: usize>(globs: [&str; N]) -> CollectSpec {
    CollectSpec {
        globs: globs.map(str::to_owned).to_vec(),
        ..CollectSpec::default()
    }
}

/// Collects files, and checks the order of messages, digests and counts.
///
/// # Errors
/// As the daemon answers, or when the stream breaks the API's rules.
pub async fn collect(client: &Client, workspace: &str, spec: CollectSpec) -> Result<Collection> {
    let archive = !matches!(
        spec.format(),
        CollectFormat::Unspecified | CollectFormat::Files
    );
    let request = CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(spec),
    };
    let mut messages = client.collect(request).await?;
    let mut collection = Collection::default();
    let mut summary = None;
    while let Some(message) = messages.next().await? {
        ensure!(
            summary.is_none(),
            "a message after the summary: {message:?}"
        );
        match message.payload.context("an empty message")? {
            Payload::Summary(last) => summary = Some(last),
            Payload::Data(data) if archive => collection.archive.extend_from_slice(&data),
            Payload::File(file) => collection.begin(file)?,
            Payload::Data(data) => collection.open()?.data.extend_from_slice(&data),
            Payload::FileEnd(end) => collection.end(end)?,
        }
    }
    collection.summary = summary.context("the stream ended without a summary")?;
    if !archive {
        let returned = i64::try_from(collection.files.len())?;
        ensure!(
            collection.summary.returned_count == returned,
            "{collection:?}"
        );
        let bytes: usize = collection.files.iter().map(|file| file.data.len()).sum();
        ensure!(collection.summary.sent_bytes == i64::try_from(bytes)?);
    }
    Ok(collection)
}

impl Collection {
    fn begin(&mut self, file: CollectedFile) -> Result<()> {
        ensure!(self.open().is_err(), "{} begins in another file", file.path);
        if let Some(last) = self.files.last() {
            // Hidden files and caches come behind all others.
            let rank = |path: &str| (path.contains("/."), path.as_bytes().to_owned());
            let order = rank(&last.file.path) < rank(&file.path);
            ensure!(order, "{} comes after {}", file.path, last.file.path);
        }
        self.files.push(File {
            file,
            data: Vec::new(),
            end: None,
        });
        Ok(())
    }

    /// Returns the file that the next bytes belong to.
    fn open(&mut self) -> Result<&mut File> {
        let last = self.files.last_mut();
        last.filter(|file| file.end.is_none() && file.file.link_target.is_empty())
            .context("no file is open")
    }

    fn end(&mut self, end: FileEnd) -> Result<()> {
        let file = self.open()?;
        ensure!(
            end.sha256 == sha256(&file.data),
            "{:?} has other bytes",
            file.file
        );
        ensure!(end.sent_bytes == i64::try_from(file.data.len())?);
        file.end = Some(end);
        Ok(())
    }
}

/// Makes a tar of files, given by path, contents and mode.
///
/// # Errors
/// When a path does not fit into an archive.
pub fn tar(files: &[(&str, &[u8], u32)]) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(data.len())?);
        header.set_mode(*mode);
        builder.append_data(&mut header, path, *data)?;
    }
    Ok(builder.into_inner()?)
}

/// Compresses bytes with gzip.
///
/// # Errors
/// Never, for bytes in memory.
pub fn gzip(data: &[u8]) -> Result<Vec<u8>> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data)?;
    Ok(encoder.finish()?)
}
