//! Reads a tar stream, block by block. Headers are parsed by `tar`; names, sizes and extensions are put together here,
//! so that an extension can neither grow without bound nor say one thing to us and another to the next reader.

use std::borrow::Cow;
use std::io::{self, Read};

use tar::{EntryType, Header};

use super::unpack_tree::{ArchiveEntry, EntryKind, UnpackTree};
use super::{archive_error, entry_error, read_error, with_entry};
use crate::error::{Error, Result, read_chunk};

const BLOCK: usize = 512;
/// Maximum size of a long name or a PAX header, in bytes.
const EXTENSION_BYTES_MAX: u64 = 256 * 1024;
/// Offset of the byte of a sparse map's block that is not 0 if another block follows.
const MAP_CONTINUES_AT: usize = 504;
/// Reason to leave a sparse file out.
const SPARSE: &str = "is sparse";
/// Problem of a sparse file whose end programs find in different places.
const AMBIGUOUS_SPARSE: &str = "is sparse in a way that programs read differently";

/// Extended headers for the next entry.
#[derive(Debug, Default)]
struct ExtendedHeaders {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    /// The contents are the parts of a sparse file, and a list of them.
    is_sparse: bool,
}

/// Returns `true` if a file begins with a tar header.
pub(super) fn is_tar_header(start: &[u8]) -> bool {
    let Some(block) = start.first_chunk::<BLOCK>() else {
        return false;
    };
    // The first block of an empty archive is its end.
    block.iter().all(|byte| *byte == 0) || has_valid_checksum(block)
}

/// Unpacks a tar stream, to its last byte.
pub(super) fn unpack_tar(mut stream: impl Read, tree: &mut UnpackTree<'_>) -> Result<()> {
    let mut next: Option<ExtendedHeaders> = None;
    loop {
        let mut block = [0; BLOCK];
        stream.read_exact(&mut block).map_err(header_error)?;
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let header = Header::from_byte_slice(&block);
        let raw_path = header.path_bytes();
        if !has_valid_checksum(&block) {
            return Err(entry_error(&raw_path, "has a damaged header"));
        }
        tree.count_header()?;
        let size = header
            .entry_size()
            .map_err(|_| entry_error(&raw_path, "has no valid size"))?;
        let kind = header.entry_type();
        if is_extension(kind) {
            let data = read_extension_bytes(&mut stream, &raw_path, size)?;
            parse_extension(kind, data, next.get_or_insert_default())?;
            continue;
        }
        let meta = next.take().unwrap_or_default();
        let size = meta.size.unwrap_or(size);
        let path = meta.path.map_or(raw_path, Cow::Owned);
        let link = meta.link.map(Cow::Owned).or(header.link_name_bytes());
        let mut kind = entry_kind(header, &path, link.as_deref().unwrap_or_default());
        if meta.is_sparse {
            if meta.size.is_some() || !matches!(kind, EntryKind::File { .. }) {
                return Err(entry_error(&path, AMBIGUOUS_SPARSE));
            }
            kind = EntryKind::UnsupportedFile(SPARSE);
        }
        if header.entry_type().is_gnu_sparse() {
            skip_sparse_map(&mut stream, header, &path)?;
        }
        let entry = ArchiveEntry {
            name: &path,
            kind,
            size,
        };
        let read = tree.add_entry(&entry, &mut (&mut stream).take(size))?;
        skip(&mut stream, size - read)?;
        skip_padding(&mut stream, size).map_err(|error| with_entry(error, &path))?;
    }
    if next.is_some_and(|meta| meta.path.is_some() || meta.link.is_some() || meta.size.is_some()) {
        return Err(archive_error("ends with a name that belongs to nothing"));
    }
    check_zeros(stream)
}

fn entry_kind<'a>(header: &Header, name: &[u8], target: &'a [u8]) -> EntryKind<'a> {
    let kind = header.entry_type();
    // Before POSIX a directory was a file whose name ends with a slash.
    if kind.is_dir() || (kind.is_file() && name.ends_with(b"/")) {
        return EntryKind::Directory;
    }
    if kind.is_file() || kind == EntryType::Continuous {
        let is_executable = header.mode().unwrap_or(0o644) & 0o111 != 0;
        return EntryKind::File { is_executable };
    }
    if kind.is_symlink() {
        return EntryKind::Link { target };
    }
    if kind.is_hard_link() {
        return EntryKind::HardLink { target };
    }
    if kind.is_character_special() || kind.is_block_special() {
        EntryKind::Unsupported("is a device")
    } else if kind.is_fifo() {
        EntryKind::Unsupported("is a FIFO")
    } else if kind.is_gnu_sparse() {
        EntryKind::UnsupportedFile(SPARSE)
    } else {
        EntryKind::UnsupportedFile("is of an unknown kind")
    }
}

/// Skips the blocks after a header that list further parts of a sparse file.
fn skip_sparse_map(stream: &mut impl Read, header: &Header, path: &[u8]) -> Result<()> {
    // Some programs read a map in a header of another format too.
    let gnu = header.as_gnu();
    let gnu = gnu.ok_or_else(|| entry_error(path, AMBIGUOUS_SPARSE))?;
    let mut goes_on = gnu.isextended != [0];
    while goes_on {
        let mut block = [0; BLOCK];
        stream.read_exact(&mut block).map_err(read_error)?;
        goes_on = block.get(MAP_CONTINUES_AT) != Some(&0);
    }
    Ok(())
}

/// Returns `true` if a header's checksum is right.
fn has_valid_checksum(block: &[u8; BLOCK]) -> bool {
    let sum = block.iter().enumerate().map(|(at, byte)| {
        let in_field = (148..156).contains(&at);
        u32::from(if in_field { b' ' } else { *byte })
    });
    Header::from_byte_slice(block).cksum().ok() == Some(sum.sum())
}

fn is_extension(kind: EntryType) -> bool {
    kind.is_gnu_longname()
        || kind.is_gnu_longlink()
        || kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
}

fn read_extension_bytes(stream: &mut impl Read, path: &[u8], size: u64) -> Result<Vec<u8>> {
    if size > EXTENSION_BYTES_MAX {
        return Err(entry_error(path, "has an oversized extension"));
    }
    let mut data = Vec::new();
    let read = stream.take(size).read_to_end(&mut data);
    if read.map_err(read_error)? as u64 != size {
        return Err(archive_error("is cut off"));
    }
    skip_padding(stream, size)?;
    Ok(data)
}

fn parse_extension(kind: EntryType, mut data: Vec<u8>, next: &mut ExtendedHeaders) -> Result<()> {
    if kind.is_gnu_longname() || kind.is_gnu_longlink() {
        while data.last() == Some(&0) {
            data.pop();
        }
        let field = if kind.is_gnu_longname() {
            &mut next.path
        } else {
            &mut next.link
        };
        *field = Some(data);
        return Ok(());
    }
    let mut sparse_name = None;
    let mut rest = data.as_slice();
    while !rest.is_empty() {
        let (key, value, after) =
            split_pax_record(rest).ok_or_else(|| archive_error("has a damaged PAX header"))?;
        rest = after;
        let is_sparse = key.starts_with(b"GNU.sparse.");
        if !is_sparse && !matches!(key, b"path" | b"linkpath" | b"size") {
            continue;
        }
        if kind.is_pax_global_extensions() {
            let problem = "has a PAX header that names or sizes all of its entries";
            return Err(archive_error(problem));
        }
        match key {
            b"path" => next.path = Some(value.to_vec()),
            b"linkpath" => next.link = Some(value.to_vec()),
            b"GNU.sparse.name" => sparse_name = Some(value.to_vec()),
            _ if is_sparse => next.is_sparse = true,
            _ => {
                let digits = str::from_utf8(value).ok().filter(|text| {
                    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
                });
                let size = digits.and_then(|digits| digits.parse().ok());
                next.size = Some(size.ok_or_else(|| archive_error("has a bad PAX size"))?);
            }
        }
    }
    // Instead of it `path` has a name for programs that do not know sparse files.
    if sparse_name.is_some() {
        next.path = sparse_name;
    }
    Ok(())
}

/// Returns key and value of the first PAX record, `LENGTH KEY=VALUE\n`, and the bytes after it. The length counts all
/// of the record, so a value may hold any byte.
fn split_pax_record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(8).position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(data.get(..space)?).ok()?.parse().ok()?;
    let (whole, rest) = data.split_at_checked(length)?;
    let pair = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (key, value) = pair.split_at_checked(equals)?;
    (!key.is_empty()).then_some((key, value.get(1..)?, rest))
}

fn skip_padding(stream: &mut impl Read, size: u64) -> Result<()> {
    let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    skip(stream, padding)
}

fn skip(stream: &mut impl Read, bytes: u64) -> Result<()> {
    let skipped = io::copy(&mut stream.take(bytes), &mut io::sink()).map_err(read_error)?;
    if skipped < bytes {
        return Err(archive_error("is cut off"));
    }
    Ok(())
}

/// Checks that nothing but padding follows the end mark, which another reader could take for entries.
fn check_zeros(mut stream: impl Read) -> Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let chunk = read_chunk(&mut stream, &mut buffer).map_err(read_error)?;
        if chunk.is_empty() {
            return Ok(());
        }
        if chunk.iter().any(|byte| *byte != 0) {
            return Err(archive_error("has something after its end"));
        }
    }
}

fn header_error(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return archive_error("ends without its end mark: it is cut off");
    }
    read_error(error)
}
