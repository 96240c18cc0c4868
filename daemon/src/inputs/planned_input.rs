//! Packing of one input: its archive entry, its digest check and its errors.

use super::archive_packer::ArchivePacker;
use super::destination::PlannedDestination;
use super::source_file_reader::SourceFileReader;
use super::{InputSpec, StagedInput};
use crate::error::{Error, HostFault, InputSourceError, Result};
use crate::fetch::{FetchError, FetchErrorKind};

/// Default folder permission bits.
const FOLDER_MODE: u32 = 0o755;

/// Input that is being packed, with its planned destination.
pub(super) struct PlannedInput<'a> {
    pub(super) input: &'a InputSpec,
    pub(super) destination: &'a PlannedDestination,
}

impl PlannedInput<'_> {
    /// Returns the reference of the input for errors: its field if the request carries the bytes.
    pub(super) fn reference(&self) -> &str {
        match self.input.from.as_str() {
            "" => &self.input.field,
            from => from,
        }
    }

    pub(super) fn source_error(&self, fault: InputSourceError) -> Error {
        Error::Source {
            from: self.reference().to_owned(),
            fault,
        }
    }

    pub(super) fn fetch_error(&self, error: FetchError) -> Error {
        self.source_error(match error.kind {
            FetchErrorKind::Address { ref refused } if refused.allowable => {
                InputSourceError::Forbidden(format!(
                    "may not be fetched: {error} (files.input_private_addresses)"
                ))
            }
            FetchErrorKind::Address { .. } | FetchErrorKind::Downgrade { .. } => {
                InputSourceError::Forbidden(format!("may not be fetched: {error}"))
            }
            FetchErrorKind::Status { status: 404 | 410 } => InputSourceError::Missing,
            FetchErrorKind::TooLarge { limit } => InputSourceError::TooLarge(limit),
            FetchErrorKind::Checksum { expected, found } => {
                return Error::ChecksumMismatch {
                    expected,
                    actual: found,
                };
            }
            FetchErrorKind::File { source } if HostFault::of(&source).is_some() => {
                return Error::io("store a fetched input", source);
            }
            FetchErrorKind::Url { .. }
            | FetchErrorKind::Redirects { .. }
            | FetchErrorKind::Unreachable { .. }
            | FetchErrorKind::Timeout { .. }
            | FetchErrorKind::Status { .. }
            | FetchErrorKind::File { .. }
            | FetchErrorKind::Client { .. } => InputSourceError::Fetch(error.to_string()),
        })
    }

    pub(super) fn digest_of_folder_error(&self) -> Error {
        let field = format!("{}.sha256", self.input.field);
        Error::invalid(field, "is for files; this is a folder")
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

    /// Packs a file of the input.
    pub(super) async fn pack_file(
        &self,
        packer: &mut ArchivePacker,
        path_in_archive: &str,
        file: SourceFileReader,
    ) -> Result<StagedInput> {
        let (mode, size) = (file.mode, file.size);
        let sha256 = packer.add_file(path_in_archive, file).await?;
        Ok(StagedInput {
            size,
            mode,
            sha256: sha256.map_err(|fault| self.source_error(fault))?,
            files: 1,
            bytes: size,
            ..StagedInput::default()
        })
    }

    /// Packs the only file of the input.
    pub(super) async fn pack_only_file(
        &self,
        packer: &mut ArchivePacker,
        file: SourceFileReader,
    ) -> Result<StagedInput> {
        let staged = self.pack_file(packer, &self.destination.path, file).await?;
        self.check_digest(&staged.sha256)?;
        Ok(staged)
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
