//! Reads a tar stream while its bytes arrive. `tar` parses headers; names, sizes and extensions are put together here,
//! so that extensions can neither grow without bound nor mean one thing to skilld and another to the next program.
//!
//! Callers feed the bytes, because the guest's only thread cannot wait for a source as the reader of `tar` does. The
//! reader judges no name and writes nothing: the callers decide which entries they take, and where to.
//!
//! ```text
//! Header ──entry──► Contents ──► Header …            Header ──zeros──► End
//!    ├──long name, PAX──► Extension ──► Header       (the next entry gets its values)
//!    └──sparse file──► SparseMap ──► Contents
//! ```

use std::borrow::Cow;
use std::time::SystemTime;

use tar::{EntryType, Header};

mod entry_overrides;

use entry_overrides::{EntryOverrides, header_time};

/// Size of a tar block, in bytes.
const BLOCK_BYTES: usize = 512;
/// Maximum size of a long name or a PAX header, in bytes.
const EXTENSION_BYTES_MAX: u64 = 256 * 1024;
/// Maximum number of headers that describe the next entry, which no other bound counts. Programs write at most four: a
/// long name, a long target, and one PAX header each for the entry and for all that follow.
const EXTENSIONS_MAX: u32 = 16;
/// Offset of the byte of a sparse map's block that is not 0 if another block follows.
const MAP_CONTINUES_AT: usize = 504;
/// Kind of a sparse file, whose contents are its parts and a list of them.
const SPARSE: TarEntryKind = TarEntryKind::Other("is sparse");

/// Part of an archive.
#[derive(Debug, PartialEq, Eq)]
pub enum TarEvent<'a> {
    /// Entry, before its contents.
    Entry(TarEntry),
    /// Next bytes of the contents of the last entry.
    Contents(&'a [u8]),
}

/// Entry as its headers describe it. Its name and its target may lead anywhere.
#[derive(Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// Name with its folders.
    pub path: Vec<u8>,
    /// Kind of the entry.
    pub kind: TarEntryKind,
    /// Target of a link; empty for other entries.
    pub link: Vec<u8>,
    /// Size that the headers state, in bytes. Directories and links have no contents, whatever they state.
    pub size: u64,
    /// Mode bits.
    pub mode: u32,
    /// Modification time; `None` if the headers have none.
    pub modified: Option<SystemTime>,
    /// Problem of an entry whose end programs find in different places. It completes a sentence that begins with its
    /// name.
    pub ambiguity: Option<&'static str>,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TarEntryKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    SymbolicLink,
    /// Another name of an earlier file.
    HardLink,
    /// Entry of another kind. The text completes a sentence that begins with its name.
    Other(&'static str),
}

/// Reason why a stream is no archive.
#[derive(Debug, PartialEq, Eq)]
pub struct TarError {
    /// Name of the entry at fault; empty if it is the whole archive.
    pub entry: Vec<u8>,
    /// Problem, which completes a sentence that begins with the name or with `the archive`.
    pub problem: &'static str,
}

/// Reader of one archive.
#[derive(Debug)]
pub struct TarReader {
    block: [u8; BLOCK_BYTES],
    filled: usize,
    step: ReadStep,
    /// Values from extension headers for the next entry.
    next: EntryOverrides,
    /// Number of extension headers since the last entry.
    extensions: u32,
    /// Name of the current entry, for errors.
    current: Vec<u8>,
}

/// State of the reader.
#[derive(Debug)]
enum ReadStep {
    Header,
    Extension {
        kind: EntryType,
        left: u64,
        data: Vec<u8>,
    },
    /// Further blocks of a sparse file's header, before its contents.
    SparseMap {
        contents: u64,
    },
    Contents {
        left: u64,
        padding: u64,
    },
    End,
}

// === impl TarReader ===

impl Default for TarReader {
    fn default() -> Self {
        Self {
            block: [0; BLOCK_BYTES],
            filled: 0,
            step: ReadStep::Header,
            next: EntryOverrides::default(),
            extensions: 0,
            current: Vec::new(),
        }
    }
}

impl TarReader {
    /// Takes bytes from the beginning of `data` up to the next event; `None` if there is none in them. After the end
    /// mark it takes nothing.
    ///
    /// # Errors
    /// [`TarError`] for a stream that is no archive, or that programs read differently.
    pub fn read<'a>(&mut self, data: &mut &'a [u8]) -> Result<Option<TarEvent<'a>>, TarError> {
        while !data.is_empty() {
            match &mut self.step {
                ReadStep::End => return Ok(None),
                ReadStep::Header => {
                    if let Some(block) = self.take_block(data)
                        && let Some(entry) = self.read_header(&block)?
                    {
                        return Ok(Some(TarEvent::Entry(entry)));
                    }
                }
                ReadStep::Extension {
                    kind,
                    left,
                    data: collected,
                } => {
                    collected.extend_from_slice(take_leading(data, left));
                    if *left == 0 {
                        let (kind, collected) = (*kind, std::mem::take(collected));
                        self.step = ReadStep::contents(0, padding_after(collected.len() as u64));
                        self.next.add_extension(kind, collected)?;
                    }
                }
                ReadStep::SparseMap { contents } => {
                    let contents = *contents;
                    let block = self.take_block(data);
                    if block.is_some_and(|block| block.get(MAP_CONTINUES_AT) == Some(&0)) {
                        self.step = ReadStep::contents(contents, padding_after(contents));
                    }
                }
                ReadStep::Contents { left, padding } => {
                    let part = take_leading(data, left);
                    if part.is_empty() {
                        take_leading(data, padding);
                    }
                    if *left == 0 && *padding == 0 {
                        self.step = ReadStep::Header;
                    }
                    if !part.is_empty() {
                        return Ok(Some(TarEvent::Contents(part)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// [`TarError`] if its end mark has not come.
    pub fn finish(self) -> Result<(), TarError> {
        match self.step {
            ReadStep::End => Ok(()),
            ReadStep::Header => Err(archive_error("ends without its end mark: it is cut off")),
            ReadStep::Extension { .. } | ReadStep::SparseMap { .. } | ReadStep::Contents { .. } => {
                Err(TarError {
                    entry: self.current,
                    problem: "is cut off",
                })
            }
        }
    }

    /// Collects the bytes of a block, and returns it once it is complete.
    fn take_block(&mut self, data: &mut &[u8]) -> Option<[u8; BLOCK_BYTES]> {
        let mut left = (BLOCK_BYTES - self.filled) as u64;
        let part = take_leading(data, &mut left);
        let end = self.filled + part.len();
        self.block.get_mut(self.filled..end)?.copy_from_slice(part);
        self.filled = end % BLOCK_BYTES;
        (end == BLOCK_BYTES).then_some(self.block)
    }

    /// Reads a header and prepares for what follows it. Returns an entry, unless it is the end mark or describes the
    /// next entry.
    fn read_header(&mut self, block: &[u8; BLOCK_BYTES]) -> Result<Option<TarEntry>, TarError> {
        if is_end_mark(block) {
            if self.next.is_pending() {
                return Err(archive_error("ends with a name that belongs to nothing"));
            }
            self.step = ReadStep::End;
            return Ok(None);
        }
        let header = Header::from_byte_slice(block);
        let raw_path = header.path_bytes();
        let failed = |problem| TarError {
            entry: raw_path.to_vec(),
            problem,
        };
        if !has_valid_checksum(block) {
            return Err(failed("has a damaged header"));
        }
        let size = header
            .entry_size()
            .map_err(|_| failed("has no valid size"))?;
        let kind = header.entry_type();
        if is_extension(kind) {
            self.begin_extension(kind, size).map_err(failed)?;
            return Ok(None);
        }
        self.extensions = 0;
        let mut overrides = std::mem::take(&mut self.next);
        let path = overrides
            .path
            .take()
            .unwrap_or_else(|| raw_path.into_owned());
        let link = overrides
            .link
            .take()
            .or_else(|| header.link_name_bytes().map(Cow::into_owned));
        let size = overrides.size.unwrap_or(size);
        let own_kind = entry_kind(kind, &path);
        let entry = TarEntry {
            kind: match overrides.is_sparse {
                true => SPARSE,
                false => own_kind,
            },
            ambiguity: find_ambiguity(header, own_kind, size, &overrides),
            path,
            link: link.unwrap_or_default(),
            size,
            mode: header.mode().unwrap_or(0o644),
            modified: overrides.modified.or_else(|| header_time(header)),
        };
        let contents = match entry.kind {
            TarEntryKind::File | TarEntryKind::Other(_) => size,
            TarEntryKind::Directory | TarEntryKind::SymbolicLink | TarEntryKind::HardLink => 0,
        };
        let gnu = header.as_gnu().filter(|_| kind.is_gnu_sparse());
        self.step = match gnu.is_some_and(|gnu| gnu.isextended != [0]) {
            true => ReadStep::SparseMap { contents },
            false => ReadStep::contents(contents, padding_after(contents)),
        };
        self.current.clone_from(&entry.path);
        Ok(Some(entry))
    }

    /// Prepares for an extension of this size.
    ///
    /// # Errors
    /// The problem of an extension beyond the bounds.
    fn begin_extension(&mut self, kind: EntryType, size: u64) -> Result<(), &'static str> {
        if size > EXTENSION_BYTES_MAX {
            return Err("has an oversized extension");
        }
        self.extensions += 1;
        if self.extensions > EXTENSIONS_MAX {
            return Err("has too many extensions");
        }
        self.current.clear();
        self.step = ReadStep::Extension {
            kind,
            left: size,
            data: Vec::new(),
        };
        Ok(())
    }
}

// === impl ReadStep ===

impl ReadStep {
    /// Returns the step for these numbers of bytes of contents, and of padding after them.
    fn contents(left: u64, padding: u64) -> Self {
        match (left, padding) {
            (0, 0) => Self::Header,
            (left, padding) => Self::Contents { left, padding },
        }
    }
}

/// Returns `true` if a file begins with a tar header.
pub fn is_tar_header(start: &[u8]) -> bool {
    // The first block of an empty archive is its end.
    let block = start.first_chunk::<BLOCK_BYTES>();
    block.is_some_and(|block| is_end_mark(block) || has_valid_checksum(block))
}

fn is_end_mark(block: &[u8; BLOCK_BYTES]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

fn has_valid_checksum(block: &[u8; BLOCK_BYTES]) -> bool {
    let sum = block.iter().enumerate().map(|(at, byte)| {
        // The format sums the header with blanks in the field of the sum.
        let in_field = (148..156).contains(&at);
        u32::from(if in_field { b' ' } else { *byte })
    });
    Header::from_byte_slice(block).cksum().ok() == Some(sum.sum())
}

/// Returns `true` for an entry that only describes the next one.
fn is_extension(kind: EntryType) -> bool {
    kind.is_gnu_longname()
        || kind.is_gnu_longlink()
        || kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
}

/// Returns the kind of an entry by its own header.
fn entry_kind(kind: EntryType, path: &[u8]) -> TarEntryKind {
    // Before POSIX a directory was a file whose name ends with a slash.
    if kind.is_dir() || (kind.is_file() && path.ends_with(b"/")) {
        TarEntryKind::Directory
    } else if kind.is_file() || kind == EntryType::Continuous {
        TarEntryKind::File
    } else if kind.is_symlink() {
        TarEntryKind::SymbolicLink
    } else if kind.is_hard_link() {
        TarEntryKind::HardLink
    } else if kind.is_character_special() || kind.is_block_special() {
        TarEntryKind::Other("is a device")
    } else if kind.is_fifo() {
        TarEntryKind::Other("is a FIFO")
    } else if kind.is_gnu_sparse() {
        SPARSE
    } else {
        TarEntryKind::Other("is of an unknown kind")
    }
}

/// Returns the problem of an entry whose end programs find in different places.
fn find_ambiguity(
    header: &Header,
    own_kind: TarEntryKind,
    size: u64,
    overrides: &EntryOverrides,
) -> Option<&'static str> {
    // Some programs read a map in a header of another format too.
    let has_unclear_map = own_kind == SPARSE && header.as_gnu().is_none();
    let has_unclear_size = overrides.size.is_some() || own_kind != TarEntryKind::File;
    if has_unclear_map || (overrides.is_sparse && has_unclear_size) {
        return Some("is sparse in a way that programs read differently");
    }
    let kind = header.entry_type();
    let is_special = kind.is_character_special() || kind.is_block_special() || kind.is_fifo();
    let has_contents = matches!(own_kind, TarEntryKind::File | TarEntryKind::Other(_));
    ((is_special || !has_contents) && size != 0).then_some("is no file and has contents")
}

/// Returns the padding after `size` bytes of data, in bytes.
fn padding_after(size: u64) -> u64 {
    (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

/// Takes at most `left` bytes from the beginning of `data`, and subtracts them from `left`.
fn take_leading<'a>(data: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let length = usize::try_from(*left).unwrap_or(usize::MAX);
    let (part, rest) = data.split_at(length.min(data.len()));
    *data = rest;
    *left -= part.len() as u64;
    part
}

/// Returns the error of a whole archive.
fn archive_error(problem: &'static str) -> TarError {
    TarError {
        entry: Vec::new(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryType, name: &str, data: &[u8]) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name).expect("short");
        header.set_size(data.len() as u64);
        header.set_mode(0o640);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    /// Describes the entries of an archive that arrives in pieces, with their contents.
    fn read_pieces(archive: &[u8], size: usize) -> Result<Vec<(String, Vec<u8>)>, TarError> {
        let (mut reader, mut found) = (TarReader::default(), Vec::new());
        for mut piece in archive.chunks(size) {
            while let Some(event) = reader.read(&mut piece)? {
                match event {
                    TarEvent::Entry(entry) => {
                        let path = String::from_utf8_lossy(&entry.path).into_owned();
                        found.push((format!("{:?} {path}", entry.kind), Vec::new()));
                    }
                    TarEvent::Contents(part) => {
                        let (_, contents) = found.last_mut().expect("an entry");
                        contents.extend_from_slice(part);
                    }
                }
            }
        }
        reader.finish().map(|()| found)
    }

    #[test]
    fn pieces_of_any_size_give_the_same_entries() {
        let long = "n".repeat(300);
        let (text, exact) = ([b'x'; 700], [b'y'; BLOCK_BYTES]);
        let archive = [
            entry(EntryType::Directory, "d/", b""),
            entry(EntryType::Regular, "d/text", &text),
            entry(EntryType::GNULongName, "long", long.as_bytes()),
            entry(EntryType::Regular, "short", &exact),
            entry(EntryType::Fifo, "pipe", b""),
            vec![0; 2 * BLOCK_BYTES],
        ]
        .concat();
        let expected = [
            ("Directory d/".to_owned(), Vec::new()),
            ("File d/text".to_owned(), text.to_vec()),
            (format!("File {long}"), exact.to_vec()),
            ("Other(\"is a FIFO\") pipe".to_owned(), Vec::new()),
        ];
        for size in [1, 7, 511, 512, 513, archive.len()] {
            let found = read_pieces(&archive, size).expect("an archive");
            assert_eq!(found, expected, "{size}");
        }
        let cut = archive.get(..BLOCK_BYTES + BLOCK_BYTES + 100);
        let error = read_pieces(cut.expect("longer"), 64).expect_err("cut off");
        assert_eq!(error.entry, b"d/text");
    }

    #[test]
    fn an_entry_has_a_limited_number_of_extensions() {
        let archive = |extensions: usize| {
            let longs = entry(EntryType::GNULongName, "long", b"name").repeat(extensions);
            let file = entry(EntryType::Regular, "file", b"x");
            [longs, file].concat()
        };
        let end = [0; BLOCK_BYTES];
        let limit = EXTENSIONS_MAX as usize;
        let twice = [archive(limit).repeat(2), end.to_vec()].concat();
        assert_eq!(read_pieces(&twice, 700).expect("few for each").len(), 2);
        let error = read_pieces(&archive(limit + 1), 700).expect_err("too many");
        assert_eq!(error.problem, "has too many extensions");
    }

    #[test]
    fn bytes_after_the_end_mark_are_left() {
        let mut reader = TarReader::default();
        let bytes = [vec![0; BLOCK_BYTES], b"more".to_vec()].concat();
        let mut rest = bytes.as_slice();
        assert_eq!(reader.read(&mut rest), Ok(None));
        assert_eq!(rest, b"more");
    }
}
