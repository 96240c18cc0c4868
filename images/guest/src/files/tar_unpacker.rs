//! Unpacks a tar stream into a staging directory while its bytes arrive. `tar` parses headers and PAX records. Its own
//! reader pulls from a blocking source, which the guest's only thread cannot wait for, so this state machine is fed
//! instead. An entry that may not be unpacked fails the whole archive.
//!
//! ```text
//! Header ──file──► Data ──► Pad ──► Header …        Header ──zeros──► End
//!    └──long name, PAX──► EntryOverrides ──► Pad ──► Header   (the next entry gets it)
//! ```

use std::collections::BTreeMap;
use std::io;

use tar::{EntryType, Header, PaxExtensions};

use super::root::{NAME_MAX, display_path};
use super::staging::{FinishedFile, StagedFileWriter, StagingDirectory};
use crate::error::Error;

/// Size of a tar block, in bytes.
const BLOCK_BYTES: usize = 512;
/// Maximum size of a long name or a PAX header, in bytes.
const META_BYTES_MAX: u64 = 256 * 1024;
const PATH_MAX: usize = 4096;
const DEPTH_MAX: usize = 128;

/// Staged form of an archive entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StagedEntry {
    File(FinishedFile),
    /// Name of the link in the staging directory.
    Link(String),
    Directory {
        mode: u32,
    },
}

/// Entries by path, relative to the target directory. A later entry of the archive replaces an earlier one.
pub(crate) type StagedEntries = BTreeMap<Vec<u8>, StagedEntry>;

/// Limits of one archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArchiveLimits {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// Archive that is being unpacked.
#[derive(Debug)]
pub(crate) struct TarUnpacker {
    staging: StagingDirectory,
    limits: ArchiveLimits,
    /// Number of components of the target directory's path: how far links may climb.
    base_depth: usize,
    block: [u8; BLOCK_BYTES],
    filled: usize,
    step: UnpackStep,
    /// Values from extension headers for the next entry.
    next: EntryOverrides,
    entries: StagedEntries,
    seen: u64,
    bytes: u64,
    /// Cause of a failed write. `io::Error` cannot carry it through the gzip decoder.
    failure: Option<Error>,
}

/// State of the unpacker.
#[derive(Debug)]
enum UnpackStep {
    Header,
    Data(Box<IncomingFile>),
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

/// File whose data is arriving.
#[derive(Debug)]
struct IncomingFile {
    path: Vec<u8>,
    mode: u32,
    left: u64,
    size: u64,
    writing: StagedFileWriter,
}

/// Name, link target and size from extension headers, which replace those of the next header.
#[derive(Debug, Default)]
struct EntryOverrides {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Returns the error for an entry that may not be unpacked.
fn invalid_entry(entry: &[u8], problem: &'static str) -> Error {
    let entry = display_path(entry).chars().take(256).collect();
    Error::ArchiveInvalid { entry, problem }
}

/// Returns the padding after `size` bytes of data, in bytes.
fn padding_after(size: u64) -> u64 {
    (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

impl TarUnpacker {
    /// Starts to unpack into `staging`. `base_depth` is the number of components of the target directory's path.
    pub(crate) fn new(staging: StagingDirectory, base_depth: usize, limits: ArchiveLimits) -> Self {
        Self {
            staging,
            limits,
            base_depth,
            block: [0; BLOCK_BYTES],
            filled: 0,
            step: UnpackStep::Header,
            next: EntryOverrides::default(),
            entries: StagedEntries::new(),
            seen: 0,
            bytes: 0,
            failure: None,
        }
    }

    /// Unpacks the next bytes of the stream.
    pub(crate) fn feed(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let used = match std::mem::replace(&mut self.step, UnpackStep::End) {
                UnpackStep::End => return Ok(()),
                UnpackStep::Header => self.take_header_bytes(data)?,
                UnpackStep::Data(open) => self.take_file_bytes(open, data)?,
                UnpackStep::Meta {
                    kind,
                    left,
                    data: so_far,
                } => self.take_meta_bytes(kind, left, so_far, data)?,
                UnpackStep::Pad { left } => {
                    let used = leading_bytes(data, left).len();
                    self.step = Self::padding_step(left - used as u64);
                    used
                }
            };
            data = data.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    /// Ends the archive. Fails if the stream had no end mark.
    pub(crate) fn finish(self) -> Result<(StagingDirectory, StagedEntries), Error> {
        match self.step {
            UnpackStep::End => Ok((self.staging, self.entries)),
            UnpackStep::Data(open) => Err(invalid_entry(&open.path, "is cut off")),
            UnpackStep::Header | UnpackStep::Meta { .. } | UnpackStep::Pad { .. } => {
                Err(invalid_entry(b"", "the archive ends without its end mark"))
            }
        }
    }

    fn padding_step(left: u64) -> UnpackStep {
        if left == 0 {
            UnpackStep::Header
        } else {
            UnpackStep::Pad { left }
        }
    }

    /// Collects the bytes of a header and parses it once it is complete.
    fn take_header_bytes(&mut self, data: &[u8]) -> Result<usize, Error> {
        let part = leading_bytes(data, (BLOCK_BYTES - self.filled) as u64);
        if let Some(space) = self.block.get_mut(self.filled..self.filled + part.len()) {
            space.copy_from_slice(part);
        }
        self.filled += part.len();
        if self.filled < BLOCK_BYTES {
            self.step = UnpackStep::Header;
        } else {
            self.filled = 0;
            let block = self.block;
            self.step = self.parse_header(&block)?;
        }
        Ok(part.len())
    }

    /// Parses a header and checks its entry.
    fn parse_header(&mut self, block: &[u8; BLOCK_BYTES]) -> Result<UnpackStep, Error> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(UnpackStep::End);
        }
        let header = Header::from_byte_slice(block);
        let raw_path = header.path_bytes();
        let checksum = block.iter().enumerate().map(|(at, byte)| {
            let in_field = (148..156).contains(&at);
            u32::from(if in_field { b' ' } else { *byte })
        });
        if header.cksum().ok() != Some(checksum.sum()) {
            return Err(invalid_entry(&raw_path, "has a damaged header"));
        }
        let size = header
            .entry_size()
            .map_err(|_| invalid_entry(&raw_path, "has no valid size"))?;
        let kind = header.entry_type();
        if kind.is_gnu_longname() || kind.is_gnu_longlink() || is_pax(kind) {
            if size > META_BYTES_MAX {
                return Err(invalid_entry(&raw_path, "has an oversized extension"));
            }
            let data = Vec::new();
            return if size == 0 {
                Ok(UnpackStep::Header)
            } else {
                Ok(UnpackStep::Meta {
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
        let path = clean_path(&given)?;
        let mode = header.mode().unwrap_or(0o644) & 0o777;
        if directory || kind.is_symlink() {
            if size != 0 {
                return Err(invalid_entry(&given, "is no file and has contents"));
            }
        } else if !(kind.is_file() || kind == EntryType::Continuous) {
            return Err(invalid_entry(&given, refusal_reason(kind)));
        }
        if directory {
            self.add_entry(path, StagedEntry::Directory { mode });
            return Ok(UnpackStep::Header);
        }
        if path.is_empty() {
            return Err(invalid_entry(&given, "has no name"));
        }
        if kind.is_symlink() {
            let target = header.link_name_bytes().map(std::borrow::Cow::into_owned);
            let target = meta.link.or(target).unwrap_or_default();
            self.check_target(&path, &target)?;
            let name = self.staging.link(&path, &target)?;
            self.add_entry(path, StagedEntry::Link(name));
            return Ok(UnpackStep::Header);
        }
        self.start_file(path, mode, size)
    }

    /// Creates the staged file of an entry.
    fn start_file(&mut self, path: Vec<u8>, mode: u32, size: u64) -> Result<UnpackStep, Error> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            let (what, limit) = ("bytes", self.limits.bytes);
            return Err(Error::LimitExceeded { what, limit });
        }
        let writing = self.staging.create(&path)?;
        if size == 0 {
            let written = writing.finish(&path, mode)?;
            self.add_entry(path, StagedEntry::File(written));
            return Ok(UnpackStep::Header);
        }
        Ok(UnpackStep::Data(Box::new(IncomingFile {
            path,
            mode,
            left: size,
            size,
            writing,
        })))
    }

    fn add_entry(&mut self, path: Vec<u8>, staged: StagedEntry) {
        // `./` is the target directory itself, which exists.
        if !path.is_empty() {
            self.entries.insert(path, staged);
        }
    }

    /// Writes data of the current file.
    fn take_file_bytes(
        &mut self,
        mut open: Box<IncomingFile>,
        data: &[u8],
    ) -> Result<usize, Error> {
        let part = leading_bytes(data, open.left);
        open.writing.write(&open.path, part)?;
        open.left -= part.len() as u64;
        if open.left > 0 {
            self.step = UnpackStep::Data(open);
        } else {
            let IncomingFile {
                path,
                mode,
                size,
                writing,
                ..
            } = *open;
            let written = writing.finish(&path, mode)?;
            self.add_entry(path, StagedEntry::File(written));
            self.step = Self::padding_step(padding_after(size));
        }
        Ok(part.len())
    }

    /// Collects data of an extension header and applies it once it is complete.
    fn take_meta_bytes(
        &mut self,
        kind: EntryType,
        left: u64,
        mut so_far: Vec<u8>,
        data: &[u8],
    ) -> Result<usize, Error> {
        let part = leading_bytes(data, left);
        so_far.extend_from_slice(part);
        let left = left - part.len() as u64;
        if left > 0 {
            self.step = UnpackStep::Meta {
                kind,
                left,
                data: so_far,
            };
        } else {
            self.step = Self::padding_step(padding_after(so_far.len() as u64));
            self.apply_meta(kind, so_far)?;
        }
        Ok(part.len())
    }

    /// Applies an extension header to the next entry.
    fn apply_meta(&mut self, kind: EntryType, mut data: Vec<u8>) -> Result<(), Error> {
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
            let record = record.map_err(|_| invalid_entry(b"", "has a damaged PAX header"))?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.next.path = Some(value.to_vec()),
                b"linkpath" => self.next.link = Some(value.to_vec()),
                b"size" => {
                    let size = str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.next.size =
                        Some(size.ok_or_else(|| invalid_entry(b"", "has a bad PAX size"))?);
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(invalid_entry(b"", "is sparse"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a link's target. It may be any relative path in the workspace.
    fn check_target(&self, path: &[u8], target: &[u8]) -> Result<(), Error> {
        if target.is_empty() || target.len() > PATH_MAX || target.contains(&0) {
            return Err(invalid_entry(path, "is a link without a valid target"));
        }
        if target.starts_with(b"/") {
            return Err(invalid_entry(path, "is a link to an absolute path"));
        }
        let mut depth = self.base_depth + path.split(|byte| *byte == b'/').count() - 1;
        for name in target.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => {
                    let up = depth.checked_sub(1);
                    depth =
                        up.ok_or_else(|| invalid_entry(path, "is a link out of the workspace"))?;
                }
                _ => depth += 1,
            }
        }
        Ok(())
    }

    /// Takes the cause of a failed write.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

/// The gzip decoder writes to the unpacker.
impl io::Write for TarUnpacker {
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

/// Returns at most `left` leading bytes.
fn leading_bytes(data: &[u8], left: u64) -> &[u8] {
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    data.get(..left).unwrap_or(data)
}

fn is_pax(kind: EntryType) -> bool {
    kind == EntryType::XHeader || kind == EntryType::XGlobalHeader
}

/// Returns why entries of this kind are refused.
fn refusal_reason(kind: EntryType) -> &'static str {
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

/// Normalises the name of an entry. Fails if it leads out of the target directory.
fn clean_path(given: &[u8]) -> Result<Vec<u8>, Error> {
    if given.starts_with(b"/") {
        return Err(invalid_entry(given, "has an absolute name"));
    }
    if given.contains(&0) || given.len() > PATH_MAX {
        return Err(invalid_entry(given, "has an invalid name"));
    }
    let names = given.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&b"..".as_slice()) {
        return Err(invalid_entry(given, "has .. in its name"));
    }
    if names.len() > DEPTH_MAX {
        return Err(invalid_entry(given, "is too deep"));
    }
    if names.iter().any(|name| name.len() > NAME_MAX) {
        return Err(invalid_entry(given, "has a name longer than 255 bytes"));
    }
    Ok(names.join(&b'/'))
}
