//! Unpacks a tar stream into the tree, with the reader that the guest uses too.

use std::io::Read;

use skilld_common::tar_reader::{TarEntry, TarEntryKind, TarError, TarEvent, TarReader};

use super::unpack_tree::{ArchiveEntry, EntryKind, UnpackTree, UnpackedFile};
use super::{archive_error, entry_error, read_error};
use crate::error::{Error, Result, read_chunk};

/// Maximum number of bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Unpacks a tar stream, to its last byte.
pub(super) fn unpack_tar(mut stream: impl Read, tree: &mut UnpackTree<'_>) -> Result<()> {
    let mut reader = TarReader::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    // File whose contents are read; `None` while those of no file are.
    let mut open: Option<UnpackedFile> = None;
    loop {
        let mut rest = read_chunk(&mut stream, &mut buffer).map_err(read_error)?;
        if rest.is_empty() {
            return reader.finish().map_err(tar_error);
        }
        while let Some(event) = reader.read(&mut rest).map_err(tar_error)? {
            match event {
                TarEvent::Entry(entry) => open = tree.start_entry(&convert_entry(&entry)?)?,
                TarEvent::Contents(part) => {
                    if let Some(file) = &mut open {
                        tree.write_contents(file, part)?;
                    }
                }
            }
        }
        // Bytes after the end mark, which another reader could take for entries.
        if rest.iter().any(|byte| *byte != 0) {
            return Err(archive_error("has something after its end"));
        }
    }
}

fn tar_error(error: TarError) -> Error {
    entry_error(error.entry, error.problem)
}

/// Converts an entry for the tree. Fails for one that programs read differently.
fn convert_entry(entry: &TarEntry) -> Result<ArchiveEntry<'_>> {
    let kind = match entry.kind {
        TarEntryKind::File => EntryKind::File {
            is_executable: entry.mode & 0o111 != 0,
        },
        TarEntryKind::Directory => EntryKind::Directory,
        TarEntryKind::SymbolicLink => EntryKind::Link {
            target: &entry.link,
        },
        TarEntryKind::HardLink => EntryKind::HardLink {
            target: &entry.link,
        },
        TarEntryKind::Device => EntryKind::Unsupported("is a device"),
        TarEntryKind::Fifo => EntryKind::Unsupported("is a FIFO"),
        TarEntryKind::Sparse { is_ambiguous: true } => {
            let problem = "is sparse in a way that programs read differently";
            return Err(entry_error(&entry.path, problem));
        }
        TarEntryKind::Sparse { .. } => EntryKind::UnsupportedFile("is sparse"),
        TarEntryKind::Other => EntryKind::UnsupportedFile("is of an unknown kind"),
    };
    Ok(ArchiveEntry {
        name: &entry.path,
        kind,
        size: entry.size,
    })
}
