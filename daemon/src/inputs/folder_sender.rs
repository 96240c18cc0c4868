//! Sends a folder that the daemon made on the host into a workspace: writable copies of skills.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use super::archive_packer::{ArchivePacker, archive_channel};
use super::folder_listing::FolderEntry;
use super::host_folder::{HostFolder, HostRoots, OpenedHostPath};
use super::source_file_reader::SourceFileReader;
use super::{ARCHIVE_MESSAGES_MAX, InputStager, ended_early};
use crate::error::{Error, InputSourceError, Result};
use crate::workspace::WorkspaceGrant;

impl InputStager {
    /// Sends everything in `folder`, and `links` as (path, target), into the directory `to` of the workspace: all or
    /// nothing. The folder's content is the daemon's, so its number of entries has no further limit.
    ///
    /// # Errors
    /// Errors of the guest that writes the files; `Source` if the folder cannot be read; `Draining`.
    pub async fn send_folder(
        &self,
        grant: &WorkspaceGrant,
        folder: PathBuf,
        to: &str,
        links: &[(String, String)],
    ) -> Result<()> {
        let from = folder.display().to_string();
        let (path, shown) = (from.clone(), from.clone());
        let open = move || HostRoots::new(vec![folder]).open(&shown, &path, u64::MAX);
        let opened = self.inner.tasks.blocking(open).await?;
        let OpenedHostPath::Folder(folder) = opened else {
            return Err(source_error(&from, InputSourceError::NotAFile));
        };
        let entries = folder.listing.entries.len() + links.len();
        let header = guest::PutFilesHeader {
            file: Some(pb::StageFilesHeader {
                format: pb::StageFormat::Tar.into(),
                path: to.to_owned(),
                ..pb::StageFilesHeader::default()
            }),
            entries_max: entries as u64,
            bytes_max: u64::MAX,
        };
        let (packer, messages) = archive_channel(ARCHIVE_MESSAGES_MAX, header);
        let mut client = grant.guest.clone();
        let put = grant.call(client.put_files(messages));
        let packed = self.pack_folder(packer, &from, Arc::new(folder), links);
        let (mut put, mut packed) = (pin!(put), pin!(packed));
        tokio::select! {
            packed = &mut packed => packed?,
            // The guest answers before the archive is complete only with an error.
            answer = &mut put => return Err(answer.err().unwrap_or_else(ended_early)),
            () = self.inner.tasks.stop.cancelled() => return Err(Error::Draining),
        }
        put.await?;
        Ok(())
    }

    /// Packs a folder and links, and completes the archive.
    async fn pack_folder(
        &self,
        mut packer: ArchivePacker,
        from: &str,
        folder: Arc<HostFolder>,
        links: &[(String, String)],
    ) -> Result<()> {
        for (path, entry) in &folder.listing.entries {
            match entry {
                FolderEntry::Folder { mode } => packer.add_folder(path, *mode).await?,
                FolderEntry::Link { target } => packer.add_link(path, target).await?,
                FolderEntry::File => {
                    let (opener, name) = (Arc::clone(&folder), path.clone());
                    let open = move || Ok(opener.open_file(&name));
                    let file = self
                        .inner
                        .tasks
                        .blocking(open)
                        .await?
                        .map_err(|fault| source_error(from, fault))?;
                    let reader = SourceFileReader::from_host(file, from.to_owned());
                    let packed = packer.add_file(path, reader).await?;
                    packed.map_err(|fault| source_error(from, fault))?;
                }
            }
        }
        for (path, target) in links {
            packer.add_link(path, target).await?;
        }
        packer.finish().await
    }
}

fn source_error(from: &str, fault: InputSourceError) -> Error {
    Error::Source {
        from: from.to_owned(),
        fault,
    }
}
