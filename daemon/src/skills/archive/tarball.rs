//! Reads a tar stream, block by block. Headers are parsed by `tar`; names, sizes and extensions are put together here,
//! so that an extension can neither grow without bound nor say one thing to us and another to the next reader.

use std::borrow::Cow;
use std::io::{self, Read};

use tar::{EntryType, Header};

use super::Refused;
use super::tree::Tree;

const BLOCK: usize = 512;
/// Of a long name or a PAX header.
const META_BYTES_MAX: u64 = 256 * 1024;

/// What extensions say of the next entry.
#[derive(Debug, Default)]
struct Meta {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Whether a file begins with a tar header.
pub(super) fn is_header(start: &[u8]) -> bool {
    let Some(block) = start.first_chunk::<BLOCK>() else {
        return false;
    };
    // The first block of an empty archive is its end.
    block.iter().all(|byte| *byte == 0) || is_sound(block)
}

/// Unpacks a tar stream, to its last byte.
pub(super) fn read(mut stream: impl Read, tree: &mut Tree<'_>) -> Result<(), Refused> {
    let mut next: Option<Meta> = None;
    loop {
        let mut block = [0; BLOCK];
        stream.read_exact(&mut block).map_err(cut_off)?;
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let header = Header::from_byte_slice(&block);
        let raw_path = header.path_bytes();
        if !is_sound(&block) {
            return Err(Refused::entry(&raw_path, "has a damaged header"));
        }
        tree.count()?;
        let size = header
            .entry_size()
            .map_err(|_| Refused::entry(&raw_path, "has no valid size"))?;
        let kind = header.entry_type();
        if is_meta(kind) {
            let data = meta_bytes(&mut stream, &raw_path, size)?;
            read_meta(kind, data, next.get_or_insert_default())?;
            continue;
        }
        let meta = next.take().unwrap_or_default();
        let size = meta.size.unwrap_or(size);
        let path = meta.path.map_or(raw_path, Cow::Owned);
        let link = meta.link.map(Cow::Owned).or(header.link_name_bytes());
        let executable = header.mode().unwrap_or(0o644) & 0o111 != 0;
        let entry = Entry {
            kind,
            path: &path,
            link: &link.unwrap_or_default(),
            size,
            executable,
        };
        entry.unpack(&mut stream, tree)?;
        skip_padding(&mut stream, size).map_err(|refused| refused.of(&super::show(&path)))?;
    }
    if next.is_some_and(|meta| meta.path.is_some() || meta.link.is_some() || meta.size.is_some()) {
        return Err(Refused::whole("ends with a name that belongs to nothing"));
    }
    only_zeros(stream)
}

struct Entry<'a> {
    kind: EntryType,
    path: &'a [u8],
    link: &'a [u8],
    size: u64,
    executable: bool,
}

impl Entry<'_> {
    fn unpack(&self, stream: &mut impl Read, tree: &mut Tree<'_>) -> Result<(), Refused> {
        // Before POSIX a directory was a file whose name ends with a slash.
        let directory = self.kind.is_dir() || (self.kind.is_file() && self.path.ends_with(b"/"));
        let file = self.kind.is_file() || self.kind == EntryType::Continuous;
        let link = self.kind.is_symlink() || self.kind.is_hard_link();
        if (directory || link) && self.size != 0 {
            return Err(Refused::entry(self.path, "is no file and has contents"));
        }
        if !(directory || file || link) {
            return Err(Refused::entry(self.path, what_is_wrong_with(self.kind)));
        }
        let Some(path) = tree.admit(self.path)? else {
            return skip(stream, self.size);
        };
        if directory {
            return tree.directory(&path);
        }
        if self.kind.is_symlink() {
            return tree.link(&path, self.link);
        }
        if self.kind.is_hard_link() {
            return tree.hard_link(&path, self.link);
        }
        tree.expect(&path, self.size)?;
        let written = tree.file(&path, self.executable, &mut stream.take(self.size))?;
        if written < self.size {
            return Err(Refused::entry(&path, "is cut off"));
        }
        Ok(())
    }
}

/// Whether a header's checksum is right.
fn is_sound(block: &[u8; BLOCK]) -> bool {
    let sum = block.iter().enumerate().map(|(at, byte)| {
        let in_field = (148..156).contains(&at);
        u32::from(if in_field { b' ' } else { *byte })
    });
    Header::from_byte_slice(block).cksum().ok() == Some(sum.sum())
}

fn is_meta(kind: EntryType) -> bool {
    kind.is_gnu_longname()
        || kind.is_gnu_longlink()
        || kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
}

fn meta_bytes(stream: &mut impl Read, path: &[u8], size: u64) -> Result<Vec<u8>, Refused> {
    if size > META_BYTES_MAX {
        return Err(Refused::entry(path, "has an oversized extension"));
    }
    let mut data = Vec::new();
    let read = stream.take(size).read_to_end(&mut data);
    if read.map_err(Refused::read)? as u64 != size {
        return Err(Refused::whole("is cut off"));
    }
    skip_padding(stream, size)?;
    Ok(data)
}

fn read_meta(kind: EntryType, mut data: Vec<u8>, next: &mut Meta) -> Result<(), Refused> {
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
    let mut rest = data.as_slice();
    while !rest.is_empty() {
        let (key, value, after) =
            record(rest).ok_or_else(|| Refused::whole("has a damaged PAX header"))?;
        rest = after;
        if key.starts_with(b"GNU.sparse.") {
            return Err(Refused::whole("has a sparse file, which no skill needs"));
        }
        if !matches!(key, b"path" | b"linkpath" | b"size") {
            continue;
        }
        if kind.is_pax_global_extensions() {
            let problem = "has a PAX header that names or sizes all of its entries";
            return Err(Refused::whole(problem));
        }
        match key {
            b"path" => next.path = Some(value.to_vec()),
            b"linkpath" => next.link = Some(value.to_vec()),
            _ => {
                let digits = str::from_utf8(value).ok().filter(|text| {
                    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
                });
                let size = digits.and_then(|digits| digits.parse().ok());
                next.size = Some(size.ok_or_else(|| Refused::whole("has a bad PAX size"))?);
            }
        }
    }
    Ok(())
}

/// The first PAX record, `LENGTH KEY=VALUE\n`, and what follows. The length counts all of it, so a value may hold
/// anything.
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(8).position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(data.get(..space)?).ok()?.parse().ok()?;
    let (whole, rest) = data.split_at_checked(length)?;
    let pair = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (key, value) = pair.split_at_checked(equals)?;
    (!key.is_empty()).then_some((key, value.get(1..)?, rest))
}

fn skip_padding(stream: &mut impl Read, size: u64) -> Result<(), Refused> {
    let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    skip(stream, padding)
}

fn skip(stream: &mut impl Read, bytes: u64) -> Result<(), Refused> {
    let skipped = io::copy(&mut stream.take(bytes), &mut io::sink()).map_err(Refused::read)?;
    if skipped < bytes {
        return Err(Refused::whole("is cut off"));
    }
    Ok(())
}

/// After the end mark there is padding, and nothing else that another reader could take for entries.
fn only_zeros(mut stream: impl Read) -> Result<(), Refused> {
    let mut buffer = [0; 4096];
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Refused::read(error)),
        };
        if buffer.iter().take(count).any(|byte| *byte != 0) {
            return Err(Refused::whole("has something after its end"));
        }
    }
}

fn cut_off(error: io::Error) -> Refused {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Refused::whole("ends without its end mark: it is cut off");
    }
    Refused::read(error)
}

fn what_is_wrong_with(kind: EntryType) -> &'static str {
    if kind.is_character_special() || kind.is_block_special() {
        "is a device"
    } else if kind.is_fifo() {
        "is a FIFO"
    } else if kind.is_gnu_sparse() {
        "is sparse, which no file of a skill needs to be"
    } else {
        "is of an unknown kind"
    }
}
