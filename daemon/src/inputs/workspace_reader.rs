//! Lists and reads files inside a workspace, through its guest.

use std::collections::HashSet;

use futures::{StreamExt, stream};
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::{self as pb, FileType};

use super::folder_listing::{FolderEntry, FolderListing, stays_beneath};
use super::source_file_reader::SourceFileReader;
use crate::error::{Error, InputSourceError, Result};
use crate::guest::GuestClient;

/// Number of entries per page of a listing.
const PAGE_SIZE: u32 = 10_000;

/// Maximum length of a path or link target in bytes; the kernel opens no longer one.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum length of a page token in bytes; a token is a path in hex.
const TOKEN_BYTES_MAX: usize = 2 * PATH_BYTES_MAX;
/// Maximum length of all paths and targets of one folder in bytes: some hundred per allowed entry.
const LISTING_BYTES_MAX: usize = 16 << 20;
/// Permission bits that the owner of a folder needs to list it.
const FOLDER_READ: u32 = 0o500;
/// Depth of nested folders that a guest lists.
const LISTED_DEPTH_MAX: usize = 128;
/// Maximum length of a path in an error message, in characters.
const SHOWN_CHARS_MAX: usize = 256;

/// Reader of the files of one workspace.
#[derive(Debug, Clone)]
pub(super) struct WorkspaceReader {
    pub(super) guest: GuestClient,
    /// Name of the workspace, for errors.
    pub(super) workspace: String,
}

/// Result of finding a path in a workspace: a file, or a folder with its entries.
#[derive(Debug)]
pub(super) enum FoundWorkspacePath {
    /// File, or a link to anything.
    File,
    /// Folder with the list of its entries.
    Folder(FolderListing),
}

/// Listing that is being received. The guest is not trusted to respect the requested limits.
#[derive(Debug, Default)]
struct ReceivedListing {
    entries: Vec<pb::FileEntry>,
    entries_max: u64,
    bytes: usize,
}

impl ReceivedListing {
    /// Adds a page. Returns the token of the next page, empty after the last.
    fn add(&mut self, page: pb::ListFilesResponse) -> Result<String, InputSourceError> {
        let broken = |why: &str| Err(InputSourceError::Unreadable(why.to_owned()));
        if page.next_page_token.len() > TOKEN_BYTES_MAX {
            return broken("its workspace listed it with too long a token");
        }
        if page.files.is_empty() && !page.next_page_token.is_empty() {
            return broken("its workspace listed it without an end");
        }
        for entry in page.files {
            if !entry.raw_path.is_empty() || entry.path.len() > PATH_BYTES_MAX {
                let shown = entry.path.chars().take(SHOWN_CHARS_MAX).collect();
                return Err(InputSourceError::Name(shown));
            }
            if entry.link_target.len() > PATH_BYTES_MAX {
                return broken("it has a link with too long a target");
            }
            self.bytes += entry.path.len() + entry.link_target.len();
            if self.entries.len() as u64 >= self.entries_max || self.bytes > LISTING_BYTES_MAX {
                return Err(InputSourceError::TooMany(self.entries_max));
            }
            self.entries.push(entry);
        }
        Ok(page.next_page_token)
    }
}

impl WorkspaceReader {
    /// Finds a path. A folder is listed with at most `entries_max` entries.
    pub(super) async fn find_path(
        &self,
        from: &str,
        path: &str,
        entries_max: u64,
    ) -> Result<FoundWorkspacePath> {
        let fault = |fault| Error::Source {
            from: from.to_owned(),
            fault,
        };
        let mut listing = ReceivedListing {
            entries_max,
            ..ReceivedListing::default()
        };
        let mut page_token = String::new();
        loop {
            let request = guest::ListFilesRequest {
                path: path.to_owned(),
                recursive: true,
                page_size: PAGE_SIZE,
                page_token,
            };
            let listed = self.guest.clone().list_files(request).await;
            let page = listed.map_err(|status| Error::from_guest(&self.workspace, &status))?;
            page_token = listing.add(page.into_inner()).map_err(fault)?;
            if page_token.is_empty() {
                break;
            }
        }
        let entries = listing.entries;
        match entries.as_slice() {
            [entry] if entry.path == path && entry.file_type() != FileType::Directory => {
                if entry.file_type() == FileType::Other {
                    return Err(fault(InputSourceError::NotAFile));
                }
                Ok(FoundWorkspacePath::File)
            }
            _ => Ok(FoundWorkspacePath::Folder(folder_listing(path, entries))),
        }
    }

    /// Returns the metadata of a single file, without following links; `None` if there is no such file.
    pub(super) async fn stat_file(&self, path: &str) -> Option<pb::FileEntry> {
        let request = guest::ListFilesRequest {
            path: path.to_owned(),
            page_size: 2,
            ..guest::ListFilesRequest::default()
        };
        let page = self.guest.clone().list_files(request).await.ok()?;
        let mut files = page.into_inner().files;
        let entry = files.pop().filter(|entry| entry.path == path)?;
        files.is_empty().then_some(entry)
    }

    /// Opens a file.
    pub(super) async fn open_file(&self, path: &str) -> Result<SourceFileReader> {
        use pb::read_file_response::Payload;
        let request = guest::ReadFileRequest {
            path: path.to_owned(),
            ..guest::ReadFileRequest::default()
        };
        let workspace = self.workspace.clone();
        let lost = move |status: tonic::Status| Error::from_guest(&workspace, &status);
        let mut stream = self
            .guest
            .clone()
            .read_file(request)
            .await
            .map_err(&lost)?
            .into_inner();
        let first = stream.message().await.map_err(&lost)?;
        let Some(Payload::File(entry)) = first.and_then(|first| first.payload) else {
            let why = "it answered ReadFile without saying what the file is";
            return Err(Error::guest_lost(&self.workspace, why));
        };
        let size = u64::try_from(entry.size_bytes).unwrap_or(0);
        // A file that grows meanwhile may never end; bytes beyond its first size are not awaited.
        let bytes = stream::try_unfold((stream, size, lost), async |(mut stream, left, lost)| {
            if left == 0 {
                return Ok(None);
            }
            let message = stream.message().await.map_err(&lost)?;
            Ok(match message.and_then(|message| message.payload) {
                Some(Payload::Data(data)) => {
                    let rest = left.saturating_sub(data.len() as u64);
                    Some((data, (stream, rest, lost)))
                }
                Some(Payload::File(_)) | None => None,
            })
        });
        Ok(SourceFileReader::new(
            size,
            entry.mode & 0o777,
            bytes.boxed(),
        ))
    }
}

/// Converts the listing of the folder `path`, whose entries have paths in the workspace.
fn folder_listing(path: &str, entries: Vec<pb::FileEntry>) -> FolderListing {
    let mut listing = FolderListing {
        left_out: count_unlisted_folders(path, &entries),
        ..FolderListing::default()
    };
    for entry in entries {
        let below = entry
            .path
            .strip_prefix(path)
            .unwrap_or(&entry.path)
            .trim_start_matches('/')
            .to_owned();
        let kind = match entry.file_type() {
            FileType::Directory => FolderEntry::Folder {
                mode: entry.mode & 0o777,
            },
            FileType::File => FolderEntry::File,
            FileType::Symlink if stays_beneath(&below, &entry.link_target) => FolderEntry::Link {
                target: entry.link_target,
            },
            FileType::Symlink | FileType::Other | FileType::Unspecified => {
                listing.left_out += 1;
                continue;
            }
        };
        listing.entries.push((below, kind));
    }
    listing
}

/// Counts folders that the guest could not list: it lacks the permission, or they are too deep.
fn count_unlisted_folders(path: &str, entries: &[pb::FileEntry]) -> u64 {
    let parent = |entry: &pb::FileEntry| Some(entry.path.rsplit_once('/')?.0.to_owned());
    let listed: HashSet<String> = entries.iter().filter_map(parent).collect();
    let folders = entries.iter().filter(|entry| {
        let below = entry.path.strip_prefix(path).unwrap_or(&entry.path);
        let depth = below.trim_start_matches('/').matches('/').count() + 1;
        entry.file_type() == FileType::Directory
            && (entry.mode & FOLDER_READ != FOLDER_READ || depth >= LISTED_DEPTH_MAX)
            && !listed.contains(&entry.path)
    });
    folders.count() as u64
}

/// Returns the text of a link from `path` to `target`, both relative to the workspace.
pub(super) fn link_text(path: &str, target: &str) -> String {
    format!("{}{target}", "../".repeat(path.matches('/').count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(paths: &[&str], token: &str) -> pb::ListFilesResponse {
        let entry = |path: &&str| pb::FileEntry {
            path: (*path).to_owned(),
            ..pb::FileEntry::default()
        };
        pb::ListFilesResponse {
            files: paths.iter().map(entry).collect(),
            next_page_token: token.to_owned(),
        }
    }

    #[test]
    fn listing_is_bounded_against_a_hostile_guest() {
        let listing = || ReceivedListing {
            entries_max: 3,
            ..ReceivedListing::default()
        };
        let mut good = listing();
        assert_eq!(good.add(page(&["a", "b"], "62")), Ok("62".to_owned()));
        assert_eq!(good.add(page(&["c"], "")), Ok(String::new()));
        assert_eq!(
            good.add(page(&["d"], "")),
            Err(InputSourceError::TooMany(3))
        );
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        let mut named = page(&["a"], "");
        named.files[0].raw_path = vec![0xff].into();
        let mut far = page(&["a"], "");
        far.files[0].link_target.clone_from(&long);
        for bad in [
            page(&[], "62"),
            page(&["a"], &"6".repeat(TOKEN_BYTES_MAX + 1)),
            page(&[&long], ""),
            named,
            far,
        ] {
            let refused = listing().add(bad).expect_err("refused");
            assert!(refused.to_string().len() < 1024);
        }
        let mut heavy = ReceivedListing {
            entries_max: u64::MAX,
            ..ReceivedListing::default()
        };
        let path = "x".repeat(PATH_BYTES_MAX);
        let taken = (0..2 * LISTING_BYTES_MAX / PATH_BYTES_MAX)
            .take_while(|_| heavy.add(page(&[&path], "62")).is_ok());
        assert_eq!(taken.count(), LISTING_BYTES_MAX / PATH_BYTES_MAX);
    }

    #[test]
    fn link_text_is_relative() {
        assert_eq!(
            link_text("work/inputs/x", "skills/csv/data"),
            "../../skills/csv/data"
        );
        assert_eq!(link_text("x", "out/y"), "out/y");
    }

    #[test]
    fn folders_that_the_guest_could_not_list_are_counted() {
        let entry = |path: &str, mode: u32, kind: FileType| pb::FileEntry {
            path: path.to_owned(),
            mode,
            file_type: kind.into(),
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
