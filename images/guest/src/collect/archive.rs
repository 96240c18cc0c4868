//! Writes a tar, maybe compressed, piece by piece into memory; the collector sends it on.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::sys::stat::FileStat;
use tar::{EntryType, Header};
use tonic::codegen::Bytes;

use crate::files::mode;

const BLOCK: usize = 512;
/// Of a name in a header.
const NAME_BYTES: usize = 100;

/// An archive that is being written.
#[derive(Debug)]
pub(crate) struct Archive {
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    Plain(Vec<u8>),
    Gzip(Option<GzEncoder<Vec<u8>>>, Vec<u8>),
}

impl Archive {
    pub(crate) fn plain() -> Self {
        Self {
            sink: Sink::Plain(Vec::new()),
        }
    }

    pub(crate) fn gzip() -> Self {
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        Self {
            sink: Sink::Gzip(Some(encoder), Vec::new()),
        }
    }

    pub(crate) fn is_gzip(&self) -> bool {
        matches!(self.sink, Sink::Gzip(..))
    }

    /// Starts a file of exactly this size; its bytes and its padding follow.
    pub(crate) fn file(&mut self, path: &[u8], stat: &FileStat, size: u64) {
        self.long(EntryType::GNULongName, path);
        let header = header(EntryType::Regular, path, stat, size);
        self.data(header.as_bytes());
    }

    pub(crate) fn link(&mut self, path: &[u8], stat: &FileStat, target: &[u8]) {
        self.long(EntryType::GNULongLink, target);
        self.long(EntryType::GNULongName, path);
        let mut header = header(EntryType::Symlink, path, stat, 0);
        if let Some(gnu) = header.as_gnu_mut() {
            copy(&mut gnu.linkname, target);
        }
        header.set_cksum();
        self.data(header.as_bytes());
    }

    /// A name that no header has room for, in an entry of its own.
    fn long(&mut self, kind: EntryType, name: &[u8]) {
        if name.len() < NAME_BYTES {
            return;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(name.len() as u64 + 1);
        if let Some(gnu) = header.as_gnu_mut() {
            copy(&mut gnu.name, b"././@LongLink");
        }
        header.set_cksum();
        self.data(header.as_bytes());
        self.data(name);
        self.data(&[0]);
        self.pad(name.len() as u64 + 1);
    }

    /// Bytes of the entry that was started.
    pub(crate) fn data(&mut self, data: &[u8]) {
        match &mut self.sink {
            Sink::Plain(buffer) => buffer.extend_from_slice(data),
            Sink::Gzip(encoder, _) => {
                // Writing to memory does not fail.
                let _infallible = encoder.as_mut().map(|encoder| encoder.write_all(data));
            }
        }
    }

    /// Fills up after an entry of this size.
    pub(crate) fn pad(&mut self, size: u64) {
        let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        if over > 0 {
            self.data(&vec![0; BLOCK - over]);
        }
    }

    /// Says that this was all.
    pub(crate) fn end(&mut self) {
        self.data(&[0; 2 * BLOCK]);
        if let Sink::Gzip(encoder, rest) = &mut self.sink {
            *rest = encoder
                .take()
                .and_then(|encoder| encoder.finish().ok())
                .unwrap_or_default();
        }
    }

    /// At most `most` bytes, if there are more than `keep`.
    pub(crate) fn take(&mut self, keep: usize, most: usize) -> Option<Bytes> {
        let buffer = match &mut self.sink {
            Sink::Plain(buffer) => buffer,
            Sink::Gzip(Some(encoder), _) => encoder.get_mut(),
            Sink::Gzip(None, rest) => rest,
        };
        if buffer.len() <= keep {
            return None;
        }
        let rest = buffer.split_off(buffer.len().min(most));
        Some(std::mem::replace(buffer, rest).into())
    }
}

fn header(kind: EntryType, path: &[u8], stat: &FileStat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode(stat) & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    if let Some(gnu) = header.as_gnu_mut() {
        copy(&mut gnu.name, path);
    }
    header.set_cksum();
    header
}

/// As much as there is room for; the rest is in a long name.
fn copy(field: &mut [u8; NAME_BYTES], text: &[u8]) {
    for (to, from) in field.iter_mut().zip(text) {
        *to = *from;
    }
}
