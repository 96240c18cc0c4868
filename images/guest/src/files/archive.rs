//! Unpacks a tar stream into a staging directory, as its bytes come. Headers are parsed by `tar`, but
//! nothing of it writes: every entry is judged here. What may not be unpacked fails the whole archive.
//!
//! ```text
//! Header ──file──► Data ──► Pad ──► Header …        Header ──zeros──► End
//!    └──long name, PAX──► Meta ──► Pad ──► Header   (the next entry gets it)
//! ```

use std::collections::BTreeMap;
use std::io;

use tar::{EntryType, Header, PaxExtensions};

use super::root::{NAME_MAX, show};
use super::staging::{Staging, Writing, Written};
use crate::error::Error;

const BLOCK: usize = 512;
/// Of a long name or a PAX header.
const META_BYTES_MAX: u64 = 256 * 1024;
const PATH_MAX: usize = 4096;
const DEPTH_MAX: usize = 128;

/// What an entry became.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    File(Written),
    /// Its name in the staging directory.
    Link(String),
    Directory {
        mode: u32,
    },
}

/// By path, relative to the directory that is unpacked into. A later entry replaces an earlier one.
pub(crate) type Entries = BTreeMap<Vec<u8>, Staged>;

/// Bounds of one archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// An archive that is being unpacked.
#[derive(Debug)]
pub(crate) struct Unpacker {
    staging: Staging,
    limits: Limits,
    /// Components of the directory that is unpacked into: how far links may climb.
    base_depth: usize,
    block: [u8; BLOCK],
    filled: usize,
    step: Step,
    /// What meta entries said of the next one.
    next: Meta,
    entries: Entries,
    seen: u64,
    bytes: u64,
    /// Why a write failed; `io::Error` cannot carry it.
    failure: Option<Error>,
}

#[derive(Debug)]
enum Step {
    Header,
    Data(Box<Open>),
    Meta {
        kind: EntryType,
        left: u64,
        data: Vec<u8>,
    },
    Pad {
        left: u64,
    },
    End,
}

#[derive(Debug)]
struct Open {
    path: Vec<u8>,
    mode: u32,
    left: u64,
    size: u64,
    writing: Writing,
}

#[derive(Debug, Default)]
struct Meta {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

fn refused(entry: &[u8], problem: &'static str) -> Error {
    let entry = show(entry).chars().take(256).collect();
    Error::ArchiveInvalid { entry, problem }
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

impl Unpacker {
    pub(crate) fn new(staging: Staging, base_depth: usize, limits: Limits) -> Self {
        Self {
            staging,
            limits,
            base_depth,
            block: [0; BLOCK],
            filled: 0,
            step: Step::Header,
            next: Meta::default(),
            entries: Entries::new(),
            seen: 0,
            bytes: 0,
            failure: None,
        }
    }

    /// Takes the next bytes of the stream.
    pub(crate) fn feed(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let used = match std::mem::replace(&mut self.step, Step::End) {
                Step::End => return Ok(()),
                Step::Header => self.header_bytes(data)?,
                Step::Data(open) => self.file_bytes(open, data)?,
                Step::Meta {
                    kind,
                    left,
                    data: so_far,
                } => self.meta_bytes(kind, left, so_far, data)?,
                Step::Pad { left } => {
                    let used = at_most(data, left).len();
                    self.step = Self::pad(left - used as u64);
                    used
                }
            };
            data = data.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    /// The stream is over: it must have said so itself.
    pub(crate) fn finish(self) -> Result<(Staging, Entries), Error> {
        match self.step {
            Step::End => Ok((self.staging, self.entries)),
            Step::Data(open) => Err(refused(&open.path, "is cut off")),
            Step::Header | Step::Meta { .. } | Step::Pad { .. } => {
                Err(refused(b"", "the archive ends without its end mark"))
            }
        }
    }

    fn pad(left: u64) -> Step {
        if left == 0 {
            Step::Header
        } else {
            Step::Pad { left }
        }
    }

    fn header_bytes(&mut self, data: &[u8]) -> Result<usize, Error> {
        let part = at_most(data, (BLOCK - self.filled) as u64);
        if let Some(space) = self.block.get_mut(self.filled..self.filled + part.len()) {
            space.copy_from_slice(part);
        }
        self.filled += part.len();
        if self.filled < BLOCK {
            self.step = Step::Header;
        } else {
            self.filled = 0;
            let block = self.block;
            self.step = self.header(&block)?;
        }
        Ok(part.len())
    }

    fn header(&mut self, block: &[u8; BLOCK]) -> Result<Step, Error> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(Step::End);
        }
        let header = Header::from_byte_slice(block);
        let raw_path = header.path_bytes();
        let checksum = block.iter().enumerate().map(|(at, byte)| {
            let in_field = (148..156).contains(&at);
            u32::from(if in_field { b' ' } else { *byte })
        });
        if header.cksum().ok() != Some(checksum.sum()) {
            return Err(refused(&raw_path, "has a damaged header"));
        }
        let size = header
            .entry_size()
            .map_err(|_| refused(&raw_path, "has no valid size"))?;
        let kind = header.entry_type();
        if kind.is_gnu_longname() || kind.is_gnu_longlink() || is_pax(kind) {
            if size > META_BYTES_MAX {
                return Err(refused(&raw_path, "has an oversized extension"));
            }
            let data = Vec::new();
            return if size == 0 {
                Ok(Step::Header)
            } else {
                Ok(Step::Meta {
                    kind,
                    left: size,
                    data,
                })
            };
        }
        let meta = std::mem::take(&mut self.next);
        let size = meta.size.unwrap_or(size);
        self.seen += 1;
        if self.seen > self.limits.entries {
            let (what, limit) = ("entries", self.limits.entries);
            return Err(Error::LimitExceeded { what, limit });
        }
        let given = meta.path.unwrap_or_else(|| raw_path.into_owned());
        // Before POSIX a directory was a file whose name ends with a slash.
        let directory = kind.is_dir() || (kind.is_file() && given.ends_with(b"/"));
        let path = clean(&given)?;
        let mode = header.mode().unwrap_or(0o644) & 0o777;
        if directory || kind.is_symlink() {
            if size != 0 {
                return Err(refused(&given, "is no file and has contents"));
            }
        } else if !(kind.is_file() || kind == EntryType::Continuous) {
            return Err(refused(&given, what_is_wrong_with(kind)));
        }
        if directory {
            self.put(path, Staged::Directory { mode });
            return Ok(Step::Header);
        }
        if path.is_empty() {
            return Err(refused(&given, "has no name"));
        }
        if kind.is_symlink() {
            let target = header.link_name_bytes().map(std::borrow::Cow::into_owned);
            let target = meta.link.or(target).unwrap_or_default();
            self.check_target(&path, &target)?;
            let name = self.staging.link(&path, &target)?;
            self.put(path, Staged::Link(name));
            return Ok(Step::Header);
        }
        self.open(path, mode, size)
    }

    fn open(&mut self, path: Vec<u8>, mode: u32, size: u64) -> Result<Step, Error> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            let (what, limit) = ("bytes", self.limits.bytes);
            return Err(Error::LimitExceeded { what, limit });
        }
        let writing = self.staging.create(&path)?;
        if size == 0 {
            let written = writing.finish(&path, mode)?;
            self.put(path, Staged::File(written));
            return Ok(Step::Header);
        }
        Ok(Step::Data(Box::new(Open {
            path,
            mode,
            left: size,
            size,
            writing,
        })))
    }

    fn put(&mut self, path: Vec<u8>, staged: Staged) {
        // `./` stands for the directory itself, which is there.
        if !path.is_empty() {
            self.entries.insert(path, staged);
        }
    }

    fn file_bytes(&mut self, mut open: Box<Open>, data: &[u8]) -> Result<usize, Error> {
        let part = at_most(data, open.left);
        open.writing.write(&open.path, part)?;
        open.left -= part.len() as u64;
        if open.left > 0 {
            self.step = Step::Data(open);
        } else {
            let Open {
                path,
                mode,
                size,
                writing,
                ..
            } = *open;
            let written = writing.finish(&path, mode)?;
            self.put(path, Staged::File(written));
            self.step = Self::pad(padding(size));
        }
        Ok(part.len())
    }

    fn meta_bytes(
        &mut self,
        kind: EntryType,
        left: u64,
        mut so_far: Vec<u8>,
        data: &[u8],
    ) -> Result<usize, Error> {
        let part = at_most(data, left);
        so_far.extend_from_slice(part);
        let left = left - part.len() as u64;
        if left > 0 {
            self.step = Step::Meta {
                kind,
                left,
                data: so_far,
            };
        } else {
            self.step = Self::pad(padding(so_far.len() as u64));
            self.meta(kind, so_far)?;
        }
        Ok(part.len())
    }

    fn meta(&mut self, kind: EntryType, mut data: Vec<u8>) -> Result<(), Error> {
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        if kind != EntryType::XHeader {
            while data.last() == Some(&0) {
                data.pop();
            }
            let field = if kind.is_gnu_longname() {
                &mut self.next.path
            } else {
                &mut self.next.link
            };
            *field = Some(data);
            return Ok(());
        }
        for record in PaxExtensions::new(&data) {
            let record = record.map_err(|_| refused(b"", "has a damaged PAX header"))?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.next.path = Some(value.to_vec()),
                b"linkpath" => self.next.link = Some(value.to_vec()),
                b"size" => {
                    let size = str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.next.size = Some(size.ok_or_else(|| refused(b"", "has a bad PAX size"))?);
                }
                key if key.starts_with(b"GNU.sparse.") => return Err(refused(b"", "is sparse")),
                _ => {}
            }
        }
        Ok(())
    }

    /// A link may point anywhere in the workspace, by a relative path.
    fn check_target(&self, path: &[u8], target: &[u8]) -> Result<(), Error> {
        if target.is_empty() || target.len() > PATH_MAX || target.contains(&0) {
            return Err(refused(path, "is a link without a valid target"));
        }
        if target.starts_with(b"/") {
            return Err(refused(path, "is a link to an absolute path"));
        }
        let mut depth = self.base_depth + path.split(|byte| *byte == b'/').count() - 1;
        for name in target.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => {
                    let up = depth.checked_sub(1);
                    depth = up.ok_or_else(|| refused(path, "is a link out of the workspace"))?;
                }
                _ => depth += 1,
            }
        }
        Ok(())
    }

    /// What a failed write was about.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

/// For the gzip decoder in front of it.
impl io::Write for Unpacker {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.feed(data) {
            Ok(()) => Ok(data.len()),
            Err(error) => {
                self.failure = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn at_most(data: &[u8], left: u64) -> &[u8] {
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    data.get(..left).unwrap_or(data)
}

fn is_pax(kind: EntryType) -> bool {
    kind == EntryType::XHeader || kind == EntryType::XGlobalHeader
}

fn what_is_wrong_with(kind: EntryType) -> &'static str {
    if kind.is_hard_link() {
        "is a hard link"
    } else if kind.is_character_special() || kind.is_block_special() {
        "is a device"
    } else if kind.is_fifo() {
        "is a FIFO"
    } else if kind.is_gnu_sparse() {
        "is sparse"
    } else {
        "is of an unknown kind"
    }
}

/// An entry's name in its plain form; refused if it is not beneath.
fn clean(given: &[u8]) -> Result<Vec<u8>, Error> {
    if given.starts_with(b"/") {
        return Err(refused(given, "has an absolute name"));
    }
    if given.contains(&0) || given.len() > PATH_MAX {
        return Err(refused(given, "has an invalid name"));
    }
    let names = given.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&b"..".as_slice()) {
        return Err(refused(given, "has .. in its name"));
    }
    if names.len() > DEPTH_MAX {
        return Err(refused(given, "is too deep"));
    }
    if names.iter().any(|name| name.len() > NAME_MAX) {
        return Err(refused(given, "has a name longer than 255 bytes"));
    }
    Ok(names.join(&b'/'))
}
