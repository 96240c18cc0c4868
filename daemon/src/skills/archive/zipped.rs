//! Reads a zip file by its central directory, once that agrees with the local headers: no two entries share a byte, none
//! is hidden, and nothing is encrypted.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::rc::Rc;

use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::{CompressionMethod, System, ZipArchive};

use super::tree::Tree;
use super::{Capped, EXPANSION, Over, Refused};

/// Bytes of the directory for each entry that is allowed: a header of 46, a path, and extra fields.
const DIRECTORY_BYTES: u64 = 512;
/// For the search for its end.
const SEARCH_BYTES: u64 = 1 << 20;
/// Bits of a Unix mode that say what a file is.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// What one entry is, copied out so that the archive can be read.
struct Entry {
    name: Vec<u8>,
    size: u64,
    mode: u32,
}

/// Unpacks a zip file. `expanded_max` is how much this much compressed may become.
pub(super) fn read(file: &mut File, tree: &mut Tree<'_>, expanded_max: u64) -> Result<(), Refused> {
    only_one_end(file)?;
    let entries_max = tree.entries_max();
    let directory = entries_max
        .saturating_mul(DIRECTORY_BYTES)
        .saturating_add(SEARCH_BYTES);
    let left = Rc::new(Cell::new(Some(directory)));
    let reader = Metered {
        inner: BufReader::new(file),
        left: Rc::clone(&left),
        limit: entries_max,
    };
    let config = Config {
        // As written: a reader that looks for another beginning may see another archive.
        archive_offset: ArchiveOffset::Known(0),
    };
    let mut archive = ZipArchive::with_config(config, reader).map_err(damaged)?;
    left.set(None);
    if archive.len() as u64 > entries_max {
        return Err(Refused::Limit {
            what: "entries of the archive".to_owned(),
            limit: entries_max,
        });
    }
    if archive.has_duplicate_names() {
        return Err(Refused::whole("has two entries of the same name"));
    }
    archive.validate_header_consistency().map_err(damaged)?;
    let mut expanded = 0;
    for index in 0..archive.len() {
        tree.count()?;
        let entry = entry(&archive, index)?;
        let left = expanded_max.saturating_sub(expanded);
        expanded += unpack(&mut archive, index, &entry, tree, (left, expanded_max))
            .map_err(|refused| refused.of(&super::show(&entry.name)))?;
    }
    Ok(())
}

fn entry<R: Read + Seek>(archive: &ZipArchive<R>, index: usize) -> Result<Entry, Refused> {
    let entry = archive.by_index_data(index).map_err(damaged)?;
    let name = entry.name_raw().to_vec();
    if entry.encrypted() {
        return Err(Refused::entry(&name, "is encrypted"));
    }
    let known = [CompressionMethod::Stored, CompressionMethod::Deflated];
    if !known.contains(&entry.compression()) {
        let problem = "is compressed by another method than deflate";
        return Err(Refused::entry(&name, problem));
    }
    // Elsewhere a backslash is part of a name, which `tree.rs` refuses.
    let windows = [System::Dos, System::WindowsNTFS, System::VFAT];
    let is_of_windows = windows.contains(&entry.system());
    Ok(Entry {
        size: entry.size(),
        mode: entry.unix_mode().unwrap_or_default(),
        name: if is_of_windows { portable(name)? } else { name },
    })
}

/// The name of an entry that was made on Windows, where some programs write backslashes between folders.
fn portable(mut name: Vec<u8>) -> Result<Vec<u8>, Refused> {
    if let [drive, b':', ..] = name.as_slice()
        && drive.is_ascii_alphabetic()
    {
        return Err(Refused::entry(&name, "has an absolute name"));
    }
    for byte in name.iter_mut().filter(|byte| **byte == b'\\') {
        *byte = b'/';
    }
    Ok(name)
}

/// Unpacks one entry; answers how many bytes that was.
fn unpack(
    archive: &mut ZipArchive<Metered<BufReader<&mut File>>>,
    index: usize,
    entry: &Entry,
    tree: &mut Tree<'_>,
    (left, limit): (u64, u64),
) -> Result<u64, Refused> {
    let kind = entry.mode & TYPE;
    let directory = entry.name.ends_with(b"/") || kind == DIRECTORY;
    if directory && (entry.size != 0 || ![0, DIRECTORY].contains(&kind)) {
        return Err(Refused::entry(&entry.name, "is no file and has contents"));
    }
    if ![0, REGULAR, DIRECTORY, LINK].contains(&kind) {
        let problem = "is a device, a FIFO or a socket";
        return Err(Refused::entry(&entry.name, problem));
    }
    let Some(path) = tree.admit(&entry.name)? else {
        return Ok(0);
    };
    if directory {
        return tree.directory(&path).map(|()| 0);
    }
    tree.expect(&path, entry.size)?;
    let contents = archive.by_index(index).map_err(damaged)?;
    let mut contents = Capped {
        inner: contents,
        left,
        what: EXPANSION,
        limit,
    };
    if kind == LINK {
        let mut target = Vec::new();
        let mut bounded = Read::by_ref(&mut contents).take(super::tree::TARGET_MAX as u64 + 1);
        bounded.read_to_end(&mut target).map_err(Refused::read)?;
        tree.link(&path, &target)?;
        return Ok(0);
    }
    let written = tree.file(&path, entry.mode & 0o111 != 0, &mut contents)?;
    if written != entry.size {
        return Err(Refused::entry(&path, "has not the size that it says"));
    }
    Ok(written)
}

/// The file must end with its directory's end: what follows could be another one.
fn only_one_end(file: &mut File) -> Result<(), Refused> {
    const MARK: &[u8] = b"PK\x05\x06";
    const BYTES: u64 = 22;
    let size = file.seek(SeekFrom::End(0)).map_err(Refused::read)?;
    let start = size.saturating_sub(BYTES + u64::from(u16::MAX));
    file.seek(SeekFrom::Start(start)).map_err(Refused::read)?;
    let mut tail = Vec::new();
    let mut rest = Read::by_ref(file).take(size - start);
    rest.read_to_end(&mut tail).map_err(Refused::read)?;
    file.rewind().map_err(Refused::read)?;
    let last = tail.windows(MARK.len()).rposition(|window| window == MARK);
    let Some(end) = last.and_then(|at| tail.get(at..)) else {
        return Err(Refused::whole("ends without its directory: it is cut off"));
    };
    let comment = match end.get(20..22) {
        Some([low, high]) => u16::from_le_bytes([*low, *high]),
        _ => return Err(Refused::whole("is cut off")),
    };
    if end.len() as u64 != BYTES + u64::from(comment) {
        return Err(Refused::whole(
            "has something after its end, or less than it says",
        ));
    }
    Ok(())
}

fn damaged(error: ZipError) -> Refused {
    if let ZipError::Io(error) = error {
        return Refused::read(error);
    }
    Refused::whole(format!("cannot be read: {error}"))
}

/// A reader that fails when the directory at the end of a file is larger than its entries may be: the library reads all
/// of it into memory at once.
struct Metered<R> {
    inner: R,
    /// `None` once the directory was read.
    left: Rc<Cell<Option<u64>>>,
    limit: u64,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(left) = self.left.get() {
            let over = || Over {
                what: "entries of the archive",
                limit: self.limit,
            };
            let left = left.checked_sub(count as u64);
            self.left
                .set(Some(left.ok_or_else(|| io::Error::other(over()))?));
        }
        Ok(count)
    }
}

impl<R: Seek> Seek for Metered<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}
