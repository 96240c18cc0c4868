//! ListFiles: status of the entries of a directory, one page at a time.

use data_encoding::HEXLOWER;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::fstatat;
use skilld_proto::guest::v1::ListFilesRequest;
use skilld_proto::v1::{FileEntry, FileType, ListFilesResponse};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use super::root::{WorkspaceRoot, display_path, normalise_path, split_path};
use super::walk::{DirectoryWalk, WalkStep};
use super::{ANSWER_BYTES_MAX, file_entry, file_type};
use crate::error::Error;

const PAGE_DEFAULT: usize = 1000;
const PAGE_MAX: usize = 10_000;
/// Number of entries described before other tasks get their turn.
const SLICE: usize = 128;

/// Returns one page of the entries of a directory, or of everything beneath it.
pub(crate) async fn list_files(
    root: &WorkspaceRoot,
    request: &ListFilesRequest,
) -> Result<ListFilesResponse, Error> {
    let path = normalise_path(&request.path)?;
    let failed = |errno| Error::file(&display_path(&path), errno);
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let directory = match root.openat(&path, flags) {
        Err(Errno::ENOTDIR) => return list_single(root, &path).map_err(failed),
        opened => opened.map_err(failed)?,
    };
    let prefix = if path.is_empty() {
        Vec::new()
    } else {
        [&path, b"/".as_slice()].concat()
    };
    let recursive = request.recursive;
    let mut walk =
        DirectoryWalk::new(directory, prefix, Box::new(move |_| recursive)).map_err(failed)?;
    walk.start_after(decode_page_token(&request.page_token)?);
    let size = match usize::try_from(request.page_size) {
        Ok(0) => PAGE_DEFAULT,
        Ok(size) => size.min(PAGE_MAX),
        Err(_) => PAGE_MAX,
    };
    read_page(&mut walk, size).await
}

/// Reads at most `size` entries from the walk.
async fn read_page(walk: &mut DirectoryWalk, size: usize) -> Result<ListFilesResponse, Error> {
    let mut response = ListFilesResponse::default();
    let mut last = Vec::new();
    let mut bytes = 0;
    while let Some(step) = walk.next().await {
        // A directory that cannot be entered is listed itself, without its contents.
        let WalkStep::Entry { path, .. } = step else {
            continue;
        };
        if response.files.len() == size || bytes > ANSWER_BYTES_MAX {
            response.next_page_token = HEXLOWER.encode(&last);
            break;
        }
        // A command has removed the entry in the meantime.
        let Some(entry) = walk
            .parent()
            .and_then(|parent| describe_entry(parent, &path).ok())
        else {
            continue;
        };
        bytes += entry.path.len() + entry.raw_path.len() + entry.link_target.len() + 64;
        response.files.push(entry);
        last = path;
        if response.files.len().is_multiple_of(SLICE) {
            tokio::task::yield_now().await;
        }
    }
    Ok(response)
}

/// Returns the status of an entry in a directory, with the target of a link.
pub(crate) fn describe_entry(parent: impl AsFd, path: &[u8]) -> Result<FileEntry, Errno> {
    let (_, name) = split_path(path);
    let parent = parent.as_fd();
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let mut target = String::new();
    if file_type(&stat) == FileType::Symlink {
        let read = readlinkat(parent, name)?;
        target = String::from_utf8_lossy(read.as_bytes()).into_owned();
    }
    Ok(file_entry(path, &stat, target))
}

/// Describes a path that is no directory.
fn list_single(root: &WorkspaceRoot, path: &[u8]) -> Result<ListFilesResponse, Errno> {
    let (parent, _) = split_path(path);
    let parent = root.openat(parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    let files = vec![describe_entry(parent, path)?];
    Ok(ListFilesResponse {
        files,
        next_page_token: String::new(),
    })
}

/// Decodes a page token: the last path in hexadecimal digits, because paths are bytes.
fn decode_page_token(token: &str) -> Result<Vec<u8>, Error> {
    let decoded = HEXLOWER.decode(token.as_bytes());
    decoded.map_err(|_| Error::invalid("page_token", "is not one of ours"))
}
