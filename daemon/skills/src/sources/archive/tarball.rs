//! Unpacks a tar stream into the tree, with the reader that the guest uses too.

use std::io::Read;

use skilld_common::tar_reader::{TarEntry, TarEntryKind, TarError, TarEvent, TarReader};

use super::unpack_tree::{ArchiveEntry, EntryKind, UnpackTree, UnpackedFile};
use super::{archive_error, entry_error, read_error, with_entry};
use crate::error::{Error, Result, read_chunk};

/// Maximum number of bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Unpacks a tar stream, to its last byte.
pub(super) fn unpack_tar(mut stream: impl Read, tree: &mut UnpackTree<'_>) -> Result<()> {
    let mut reader = TarReader::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    // File whose contents are read; `None` while those of no file are.
    let mut open: Option<UnpackedFile> = None;
    // Number of bytes that are missing of the contents.
    let mut left = 0;
    loop {
        let mut rest = read_chunk(&mut stream, &mut buffer).map_err(|error| {
            let incomplete = open.as_ref().filter(|_| left > 0);
            let name = incomplete.map_or("", UnpackedFile::path);
            with_entry(read_error(error), name.as_bytes())
        })?;
        if rest.is_empty() {
            return reader.finish().map_err(tar_error);
        }
        while let Some(event) = reader.read(&mut rest).map_err(tar_error)? {
            match event {
                TarEvent::Entry(entry) => {
                    left = entry.size;
                    open = start_entry(&entry, tree)?;
                }
                TarEvent::Contents(part) => {
                    left -= part.len() as u64;
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

/// Starts an entry, unless programs read it differently.
fn start_entry(entry: &TarEntry, tree: &mut UnpackTree<'_>) -> Result<Option<UnpackedFile>> {
    if let Some(problem) = entry.ambiguity {
        return Err(entry_error(&entry.path, problem));
    }
    let target = &entry.link;
    let kind = match entry.kind {
        TarEntryKind::File => EntryKind::File {
            is_executable: entry.mode & 0o111 != 0,
        },
        TarEntryKind::Directory => EntryKind::Directory,
        TarEntryKind::SymbolicLink => EntryKind::Link { target },
        TarEntryKind::HardLink => EntryKind::HardLink { target },
        TarEntryKind::Other(reason) => EntryKind::UnsupportedFile(reason),
    };
    tree.start_entry(&ArchiveEntry {
        name: &entry.path,
        kind,
        size: entry.size,
    })
}
