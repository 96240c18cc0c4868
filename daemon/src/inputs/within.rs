//! What is in the workspace already: listed and read by its guest, like everything there.

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::{self as pb, FileType};

use crate::error::{Error, Result, SourceFault};
use crate::guest::GuestClient;

/// Entries of a listing that are asked for at a time.
const PAGE: u32 = 10_000;

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

impl Within {
    /// What a path is, with at most `entries_max` entries.
    pub(super) async fn find(&self, from: &str, path: &str, entries_max: u64) -> Result<Found> {
        let fault = |fault| Error::Source {
            from: from.to_owned(),
            fault,
        };
        let mut entries: Vec<pb::FileEntry> = Vec::new();
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
            let page = page.into_inner();
            entries.extend(page.files);
            if entries.len() as u64 > entries_max {
                return Err(fault(SourceFault::TooMany(entries_max)));
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        if let Some(entry) = entries.iter().find(|entry| !entry.path_bytes.is_empty()) {
            return Err(fault(SourceFault::Name(entry.path.clone())));
        }
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
