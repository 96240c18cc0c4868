//! Reads a zip file by its central directory, once that agrees with the local headers. No two entries share a byte,
//! none is hidden, and nothing is encrypted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::rc::Rc;

use skilld_common::text_decoding::decode_text;
use zip::read::{ArchiveOffset, Config};
use zip::result::ZipError;
use zip::{CompressionMethod, System, ZipArchive};

use super::unpack_tree::{ArchiveEntry, EntryKind, TARGET_MAX, UnpackTree};
use super::{EXPANSION, LimitedReader, archive_error, entry_error, read_error, with_entry};
use crate::error::{Error, Result};

/// Maximum size of an entry in the directory, in bytes: a header of 46, a path, and extra fields.
const DIRECTORY_BYTES: u64 = 512;
/// Maximum number of bytes read in search of the end of the directory.
const SEARCH_BYTES: u64 = 1 << 20;
/// Bits of a Unix mode that hold the file type.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;
/// Encodings that Windows packs names in where they are the country's, as browsers name them. Elsewhere it packs them in
/// code page 437, as the format says, or in one with the same letters.
const CODE_PAGES: [&str; 9] = [
    "Big5",
    "EUC-JP",
    "EUC-KR",
    "GBK",
    "IBM866",
    "Shift_JIS",
    "gb18030",
    "windows-1251",
    "windows-874",
];

/// Header of one entry, copied so that the archive can be read.
struct EntryHeader {
    name: Vec<u8>,
    size: u64,
    mode: u32,
    /// The name begins with a drive of Windows.
    has_drive: bool,
}

/// Unpacks a zip file. `expanded_max` is the maximum size of all contents, unpacked, in bytes.
pub(super) fn unpack_zip(
    file: &mut File,
    tree: &mut UnpackTree<'_>,
    expanded_max: u64,
) -> Result<()> {
    check_end(file)?;
    let entries_max = tree.bounds.entries;
    let directory_bytes_max = entries_max
        .saturating_mul(DIRECTORY_BYTES)
        .saturating_add(SEARCH_BYTES);
    // The library reads the whole directory into memory, so reading is limited while it does.
    let left = Rc::new(Cell::new(directory_bytes_max));
    let reader = LimitedReader {
        inner: BufReader::new(file),
        left: Rc::clone(&left),
        what: "entries of the archive",
        limit: entries_max,
    };
    let config = Config {
        // Offsets count as written: a reader that searches for another start may see another archive.
        archive_offset: ArchiveOffset::Known(0),
    };
    let mut archive = ZipArchive::with_config(config, reader).map_err(zip_error)?;
    left.set(u64::MAX);
    if archive.len() as u64 > entries_max {
        return Err(Error::LimitExceeded {
            what: "entries of the archive".to_owned(),
            limit: entries_max,
        });
    }
    if archive.has_duplicate_names() {
        return Err(archive_error("has two entries of the same name"));
    }
    archive.validate_header_consistency().map_err(zip_error)?;
    let expanded_left = Rc::new(Cell::new(expanded_max));
    let mut legacy_names = decode_legacy_names(&archive)?;
    for index in 0..archive.len() {
        let header = read_header(&archive, index, legacy_names.remove(&index))?;
        let entry = archive
            .by_index(index)
            .map_err(|error| with_entry(zip_error(error), &header.name))?;
        let mut contents = LimitedReader {
            inner: entry,
            left: Rc::clone(&expanded_left),
            what: EXPANSION,
            limit: expanded_max,
        };
        add_entry(&header, &mut contents, tree).map_err(|error| with_entry(error, &header.name))?;
    }
    Ok(())
}

/// Decodes the names that are not UTF-8, by the index of their entry: Windows packs them in the encoding of its country.
/// All names together show which one that is.
fn decode_legacy_names<R: Read + Seek>(archive: &ZipArchive<R>) -> Result<BTreeMap<usize, String>> {
    let (mut latin, mut names) = (BTreeMap::new(), Vec::new());
    for index in 0..archive.len() {
        let entry = archive.by_index_data(index).map_err(zip_error)?;
        let name = entry.name_raw();
        if str::from_utf8(name).is_err() {
            // This reads it in code page 437.
            latin.insert(index, entry.name().map_err(zip_error)?.into_owned());
            names.push(name.to_vec());
        }
    }
    let joined = names.join(&b'\n');
    let decoded = decode_text(&joined, true);
    if !CODE_PAGES.contains(&decoded.encoding) {
        return Ok(latin);
    }
    let texts: Vec<&str> = decoded.text.split('\n').collect();
    if !decoded.is_text || texts.len() != latin.len() {
        return Ok(BTreeMap::new());
    }
    let decoded_names = texts.into_iter().map(str::to_owned);
    Ok(latin.into_keys().zip(decoded_names).collect())
}

fn read_header<R: Read + Seek>(
    archive: &ZipArchive<R>,
    index: usize,
    decoded_name: Option<String>,
) -> Result<EntryHeader> {
    let entry = archive.by_index_data(index).map_err(zip_error)?;
    let name = match decoded_name {
        Some(name) => name.into_bytes(),
        None => entry.name_raw().to_vec(),
    };
    if entry.encrypted() {
        return Err(entry_error(&name, "is encrypted"));
    }
    let known = [CompressionMethod::Stored, CompressionMethod::Deflated];
    if !known.contains(&entry.compression()) {
        let problem = "is compressed by another method than deflate";
        return Err(entry_error(&name, problem));
    }
    // Elsewhere a backslash is part of a name, which `unpack_tree.rs` refuses.
    let windows = [System::Dos, System::WindowsNTFS, System::VFAT];
    let is_of_windows = windows.contains(&entry.system());
    Ok(EntryHeader {
        size: entry.size(),
        mode: entry.unix_mode().unwrap_or_default(),
        has_drive: is_of_windows
            && matches!(name.as_slice(), [drive, b':', ..] if drive.is_ascii_alphabetic()),
        name: match is_of_windows {
            true => with_slashes(name),
            false => name,
        },
    })
}

/// Returns the name of an entry that was made on Windows, where some programs write backslashes between folders.
fn with_slashes(mut name: Vec<u8>) -> Vec<u8> {
    for byte in name.iter_mut().filter(|byte| **byte == b'\\') {
        *byte = b'/';
    }
    name
}

fn add_entry(
    header: &EntryHeader,
    contents: &mut impl Read,
    tree: &mut UnpackTree<'_>,
) -> Result<()> {
    let mut target = Vec::new();
    let (kind, size) = match header.mode & TYPE {
        _ if header.has_drive => {
            let reason = "has an absolute name";
            (EntryKind::UnsupportedFile(reason), header.size)
        }
        0 | DIRECTORY if header.name.ends_with(b"/") => (EntryKind::Directory, header.size),
        _ if header.name.ends_with(b"/") => {
            let problem = "is no file and has contents";
            return Err(entry_error(&header.name, problem));
        }
        DIRECTORY => (EntryKind::Directory, header.size),
        LINK => {
            let mut bounded = contents.take(TARGET_MAX as u64 + 1);
            bounded.read_to_end(&mut target).map_err(read_error)?;
            (EntryKind::Link { target: &target }, 0)
        }
        0 | REGULAR => {
            let is_executable = header.mode & 0o111 != 0;
            (EntryKind::File { is_executable }, header.size)
        }
        _ => {
            let reason = "is a device, a FIFO or a socket";
            (EntryKind::Unsupported(reason), header.size)
        }
    };
    let entry = ArchiveEntry {
        name: &header.name,
        kind,
        size,
    };
    tree.add_entry(&entry, contents)
}

/// Checks that the file ends with the end of its directory: bytes after it could be another archive.
fn check_end(file: &mut File) -> Result<()> {
    const MARK: &[u8] = b"PK\x05\x06";
    const BYTES: u64 = 22;
    let size = file.seek(SeekFrom::End(0)).map_err(read_error)?;
    let start = size.saturating_sub(BYTES + u64::from(u16::MAX));
    file.seek(SeekFrom::Start(start)).map_err(read_error)?;
    let mut tail = Vec::new();
    let mut rest = Read::by_ref(file).take(size - start);
    rest.read_to_end(&mut tail).map_err(read_error)?;
    file.rewind().map_err(read_error)?;
    let last = tail.windows(MARK.len()).rposition(|window| window == MARK);
    let Some(end) = last.and_then(|at| tail.get(at..)) else {
        return Err(archive_error("ends without its directory: it is cut off"));
    };
    let comment = match end.get(20..22) {
        Some([low, high]) => u16::from_le_bytes([*low, *high]),
        _ => return Err(archive_error("is cut off")),
    };
    if end.len() as u64 != BYTES + u64::from(comment) {
        return Err(archive_error(
            "has something after its end, or less than it says",
        ));
    }
    Ok(())
}

fn zip_error(error: ZipError) -> Error {
    if let ZipError::Io(error) = error {
        return read_error(error);
    }
    archive_error(format!("cannot be read: {error}"))
}
