//! Names and link targets of archive entries: which a file can have, and which lead out.

use skilld_common::tar_reader::TarError;
use skilld_proto::v1::SkipReason;

use crate::error::Error;
use crate::files::root::{NAME_MAX, display_path};

/// Maximum length of a path in bytes.
pub(super) const PATH_MAX: usize = 4096;
const DEPTH_MAX: usize = 128;

/// Returns the error for an archive with an entry that may not be unpacked.
pub(super) fn invalid_entry(entry: &[u8], problem: &'static str) -> Error {
    let entry = display_path(entry).chars().take(256).collect();
    Error::ArchiveInvalid { entry, problem }
}

impl From<TarError> for Error {
    fn from(error: TarError) -> Self {
        invalid_entry(&error.entry, error.problem)
    }
}

/// Returns `true` for a text that a link can have as its target.
pub(super) fn is_link_target(target: &[u8]) -> bool {
    !target.is_empty() && target.len() < PATH_MAX && !target.contains(&0)
}

/// Normalises the name of an entry, or returns why no file can have it. Fails if it leads out of the target directory.
pub(super) fn clean_path(given: &[u8]) -> Result<Result<Vec<u8>, SkipReason>, Error> {
    let names: Vec<&[u8]> = given
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&b"..".as_slice()) {
        return Err(invalid_entry(given, "has .. in its name"));
    }
    let is_too_long = given.len() > PATH_MAX || names.iter().any(|name| name.len() > NAME_MAX);
    if given.starts_with(b"/") || given.contains(&0) || is_too_long {
        return Ok(Err(SkipReason::Name));
    }
    if names.len() > DEPTH_MAX {
        return Ok(Err(SkipReason::Depth));
    }
    Ok(Ok(names.join(&b'/')))
}
