//! Packing of one input: its archive entry, its digest check and its errors.

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use super::destination::PlannedDestination;
use super::host::HostFile;
use super::pack::{ArchivePacker, FilePacking};
use super::{InputSpec, StagedInput};
use crate::error::{Error, HostFault, Result, SourceFault};
use crate::fetch::FetchError;

/// Size of one read, in bytes.
const READ_BYTES: usize = 256 << 10;
/// Default folder permission bits.
const FOLDER_MODE: u32 = 0o755;

/// Input that is being packed, with its planned destination.
pub(super) struct InputJob<'a> {
    pub(super) input: &'a InputSpec,
    pub(super) destination: &'a PlannedDestination,
}

impl InputJob<'_> {
    pub(super) fn source_error(&self, fault: SourceFault) -> Error {
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

    pub(super) fn fetch_error(&self, error: FetchError) -> Error {
        self.source_error(match error {
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

    pub(super) fn digest_of_folder_error(&self) -> Error {
        let field = format!("{}.sha256", self.input.field);
        Error::invalid(field, "is for files; this is a folder")
    }

    pub(super) async fn begin_file<'p>(
        &self,
        packer: &'p mut ArchivePacker,
        mode: u32,
        size: u64,
    ) -> Result<FilePacking<'p>> {
        packer.add_file(&self.destination.path, mode, size).await
    }

    pub(super) async fn begin_folder(&self, packer: &mut ArchivePacker) -> Result<StagedInput> {
        if !self.input.sha256.is_empty() {
            return Err(self.digest_of_folder_error());
        }
        packer
            .add_folder(&self.destination.path, FOLDER_MODE)
            .await?;
        Ok(StagedInput {
            mode: FOLDER_MODE,
            ..StagedInput::default()
        })
    }

    /// Packs the bytes of an open file. Returns its SHA-256.
    pub(super) async fn pack_bytes(
        &self,
        mut packing: FilePacking<'_>,
        file: HostFile,
    ) -> Result<String> {
        let failed = |error: std::io::Error| self.source_error(error.into());
        let mut file = tokio::fs::File::from_std(file.file);
        file.set_max_buf_size(READ_BYTES);
        while packing.is_incomplete() {
            let mut buffer = BytesMut::with_capacity(READ_BYTES);
            if file.read_buf(&mut buffer).await.map_err(failed)? == 0 {
                break;
            }
            packing.append(buffer.freeze()).await?;
        }
        let sha256 = packing.finish().await?;
        sha256.ok_or_else(|| self.source_error(SourceFault::Changed))
    }

    pub(super) async fn finish_file(
        &self,
        packing: FilePacking<'_>,
        mode: u32,
        size: u64,
    ) -> Result<StagedInput> {
        let sha256 = packing.finish().await?;
        let sha256 = sha256.ok_or_else(|| self.source_error(SourceFault::Changed))?;
        self.finish(mode, size, sha256)
    }

    pub(super) fn finish(&self, mode: u32, size: u64, sha256: String) -> Result<StagedInput> {
        self.check_digest(&sha256)?;
        Ok(StagedInput {
            size,
            mode,
            sha256,
            files: 1,
            bytes: size,
            ..StagedInput::default()
        })
    }

    pub(super) fn check_digest(&self, sha256: &str) -> Result<()> {
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
