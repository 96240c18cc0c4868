//! Archives that a request carries: the guest unpacks them, each by itself.

use bytes::Bytes;
use futures::stream;
use skilld_proto::count_from_int64;
use skilld_proto::guest::v1 as guest;
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::v1 as pb;

use super::StagedInput;
use super::planned_input::PlannedInput;
use crate::error::{Error, Result};
use crate::workspace::WorkspaceGrant;

/// First bytes of gzip.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Room that the archives of a request leave for what follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArchiveRoom {
    /// Number of entries.
    pub(super) entries: u64,
    /// Number of bytes.
    pub(super) bytes: u64,
}

/// Has the guest unpack an archive, and takes from the room what that wrote.
pub(super) async fn unpack_archive(
    grant: &WorkspaceGrant,
    job: &PlannedInput<'_>,
    data: &Bytes,
    room: &mut ArchiveRoom,
) -> Result<StagedInput> {
    let format = match data.starts_with(&GZIP_MAGIC) {
        true => pb::StageFormat::TarGz,
        false => pb::StageFormat::Tar,
    };
    let file = pb::StageFilesHeader {
        format: format.into(),
        path: job.destination.path.clone(),
        sha256: job.input.sha256.clone(),
        ..pb::StageFilesHeader::default()
    };
    let header = guest::PutFilesHeader {
        file: Some(file),
        entries_max: room.entries,
        bytes_max: room.bytes,
    };
    let messages = [Payload::Header(header), Payload::Data(data.clone())];
    let messages = messages.map(|payload| guest::PutFilesRequest {
        payload: Some(payload),
    });
    let mut client = grant.guest.clone();
    let put = grant.call(client.put_files(stream::iter(messages))).await;
    let put = put.map_err(|error| name_input(error, job))?.into_inner();
    let staged = StagedInput {
        path: job.destination.path.clone(),
        files: count_from_int64(put.file_count),
        bytes: count_from_int64(put.size_bytes),
        note: put.skipped_files.first().map_or_else(String::new, |first| {
            format!("left out {}: {} …", put.skipped_count, first.path)
        }),
        ..StagedInput::default()
    };
    room.entries = room.entries.saturating_sub(staged.files);
    room.bytes = room.bytes.saturating_sub(staged.bytes);
    Ok(staged)
}

/// Puts the field of the input before the message of an error of the guest.
fn name_input(error: Error, job: &PlannedInput<'_>) -> Error {
    if let Error::Guest {
        workspace,
        code,
        reason,
        message,
        metadata,
    } = error
    {
        let message = format!("{}: {message}", job.reference());
        return Error::Guest {
            workspace,
            code,
            reason,
            message,
            metadata,
        };
    }
    error
}
