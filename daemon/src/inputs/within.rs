//! What is in the workspace already: listed and read by its guest, like everything there.

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::{self as pb, FileType};

use crate::error::{Error, Result, SourceFault};
use crate::guest::GuestClient;

/// Entries of a listing that are asked for at a time.
const PAGE: u32 = 10_000;

/// Of a path, and of a link's target: nothing longer can be opened.
const PATH_BYTES_MAX: usize = 4096;
/// Of a page's token, which is a path in hex.
const TOKEN_BYTES_MAX: usize = 2 * PATH_BYTES_MAX;
/// Of all paths and targets of a folder: some hundred bytes for each of the entries that are allowed.
const LISTING_BYTES_MAX: usize = 16 << 20;
/// Of a path that is refused, in an error.
const SHOWN_CHARS_MAX: usize = 256;

/// The files of one workspace.
#[derive(Debug, Clone)]
pub(super) struct Within {
    pub(super) guest: GuestClient,
    /// For errors.
    pub(super) workspace: String,
}

/// What a path is.
#[derive(Debug)]
pub(super) enum Found {
    /// Or a link, to whatever.
    File,
    /// With everything beneath it, sorted; paths are relative to the workspace.
    Folder(Vec<pb::FileEntry>),
}

/// A listing on its way. The guest is not trusted to keep to what was asked for.
#[derive(Debug, Default)]
struct Listing {
    entries: Vec<pb::FileEntry>,
    entries_max: u64,
    bytes: usize,
}

impl Listing {
    /// Takes a page; the token of the next one, empty after the last.
    fn add(&mut self, page: pb::ListFilesResponse) -> Result<String, SourceFault> {
        let broken = |why: &str| Err(SourceFault::Unreadable(why.to_owned()));
        if page.next_page_token.len() > TOKEN_BYTES_MAX {
            return broken("its workspace listed it with too long a token");
        }
        if page.files.is_empty() && !page.next_page_token.is_empty() {
            return broken("its workspace listed it without an end");
        }
        for entry in page.files {
            if !entry.path_bytes.is_empty() || entry.path.len() > PATH_BYTES_MAX {
                let shown = entry.path.chars().take(SHOWN_CHARS_MAX).collect();
                return Err(SourceFault::Name(shown));
            }
            if entry.link_target.len() > PATH_BYTES_MAX {
                return broken("it has a link with too long a target");
            }
            self.bytes += entry.path.len() + entry.link_target.len();
            if self.entries.len() as u64 >= self.entries_max || self.bytes > LISTING_BYTES_MAX {
                return Err(SourceFault::TooMany(self.entries_max));
            }
            self.entries.push(entry);
        }
        Ok(page.next_page_token)
    }
}

impl Within {
    /// What a path is, with at most `entries_max` entries.
    pub(super) async fn find(&self, from: &str, path: &str, entries_max: u64) -> Result<Found> {
        let fault = |fault| Error::Source {
            from: from.to_owned(),
            fault,
        };
        let mut listing = Listing {
            entries_max,
            ..Listing::default()
        };
        let mut page_token = String::new();
        loop {
            let request = guest::ListFilesRequest {
                path: path.to_owned(),
                recursive: true,
                page_size: PAGE,
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
            [entry] if entry.path == path && entry.r#type() != FileType::Directory => {
                if entry.r#type() == FileType::Other {
                    return Err(fault(SourceFault::NotAFile));
                }
                Ok(Found::File)
            }
            _ => Ok(Found::Folder(entries)),
        }
    }

    /// What lstat says of a file, if there is one.
    pub(super) async fn look(&self, path: &str) -> Option<pb::FileEntry> {
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

    /// Streams a file: what it is, then its bytes.
    pub(super) async fn read(
        &self,
        path: &str,
    ) -> Result<(pb::FileEntry, tonic::Streaming<pb::ReadFileResponse>)> {
        use pb::read_file_response::Payload;
        let request = guest::ReadFileRequest {
            path: path.to_owned(),
            ..guest::ReadFileRequest::default()
        };
        let lost = |status: &tonic::Status| Error::from_guest(&self.workspace, status);
        let stream = self.guest.clone().read_file(request).await;
        let mut stream = stream.map_err(|status| lost(&status))?.into_inner();
        let first = stream.message().await.map_err(|status| lost(&status))?;
        match first.and_then(|first| first.payload) {
            Some(Payload::File(entry)) => Ok((entry, stream)),
            Some(Payload::Data(_)) | None => Err(Error::GuestLost {
                workspace: self.workspace.clone(),
                why: "it answered ReadFile without saying what the file is".into(),
            }),
        }
    }
}

/// Whether a link at `path` in a folder leads to something in that folder, by its text.
pub(super) fn stays(path: &str, target: &str) -> bool {
    if target.starts_with('/') || target.is_empty() {
        return false;
    }
    let mut depth = path.matches('/').count();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                let Some(above) = depth.checked_sub(1) else {
                    return false;
                };
                depth = above;
            }
            _ => depth += 1,
        }
    }
    true
}

/// The text of a link at `path` that leads to `target`, both relative to the workspace.
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
    fn a_listing_is_bounded_whatever_the_guest_sends() {
        let listing = || Listing {
            entries_max: 3,
            ..Listing::default()
        };
        let mut good = listing();
        assert_eq!(good.add(page(&["a", "b"], "62")), Ok("62".to_owned()));
        assert_eq!(good.add(page(&["c"], "")), Ok(String::new()));
        assert_eq!(good.add(page(&["d"], "")), Err(SourceFault::TooMany(3)));
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        let mut named = page(&["a"], "");
        named.files[0].path_bytes = vec![0xff].into();
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
        let mut heavy = Listing {
            entries_max: u64::MAX,
            ..Listing::default()
        };
        let path = "x".repeat(PATH_BYTES_MAX);
        let taken = (0..2 * LISTING_BYTES_MAX / PATH_BYTES_MAX)
            .take_while(|_| heavy.add(page(&[&path], "62")).is_ok());
        assert_eq!(taken.count(), LISTING_BYTES_MAX / PATH_BYTES_MAX);
    }

    #[test]
    fn links_stay_or_leave_by_their_text() {
        for (path, target, expected) in [
            ("a", "b", true),
            ("a/b", "../c", true),
            ("a/b", "../../c", false),
            ("a", "..", false),
            ("a/b/c", "../../x/../y", true),
            ("a", "/etc/passwd", false),
            ("a", "", false),
            ("a", "b/../../c", false),
        ] {
            assert_eq!(stays(path, target), expected, "{path} → {target}");
        }
    }

    #[test]
    fn a_link_is_relative() {
        assert_eq!(
            link_text("work/inputs/x", "skills/csv/data"),
            "../../skills/csv/data"
        );
        assert_eq!(link_text("x", "out/y"), "out/y");
    }
}
