//! The bytes of an archive: the same for the same files, whoever packs them and when.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use super::refused;
use super::walk::{Entry, Packed, Stamp};
use crate::Error;
use crate::files::tree::io_error;

/// "Unknown" in a gzip header: the machine is no part of it.
const NO_SYSTEM: u8 = 255;

/// Counts and hashes what is written.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(data)?;
        self.hash.update(data.get(..count).unwrap_or_default());
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Writes the archive; how many bytes it has, and their sha256.
pub(super) fn write(packed: &Packed, file: &mut File) -> Result<(u64, String), Error> {
    let spool = std::env::temp_dir();
    let hashed = Hashed {
        inner: BufWriter::new(file),
        hash: Sha256::new(),
        bytes: 0,
    };
    let header = GzBuilder::new().mtime(0).operating_system(NO_SYSTEM);
    let mut builder = tar::Builder::new(header.write(hashed, Compression::default()));
    for entry in &packed.entries {
        append(&mut builder, packed, entry)?;
    }
    let finished = builder
        .into_inner()
        .and_then(flate2::write::GzEncoder::finish);
    let mut hashed = finished.map_err(io_error(&spool))?;
    hashed.flush().map_err(io_error(&spool))?;
    Ok((hashed.bytes, HEXLOWER.encode(&hashed.hash.finalize())))
}

fn append<W: Write>(
    builder: &mut tar::Builder<W>,
    packed: &Packed,
    entry: &Entry,
) -> Result<(), Error> {
    let shown = packed.root.shown();
    let path = shown.join(&entry.path);
    let mut file = packed.open(entry)?;
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(if entry.executable { 0o755 } else { 0o644 });
    header.set_size(entry.stamp.size);
    for clear in [
        tar::Header::set_uid,
        tar::Header::set_gid,
        tar::Header::set_mtime,
    ] {
        clear(&mut header, 0);
    }
    let mut contents = Counted {
        inner: (&mut file).take(entry.stamp.size),
        bytes: 0,
    };
    let appended = builder.append_data(&mut header, Path::new(&entry.path), &mut contents);
    let read = contents.bytes;
    appended.map_err(io_error(&path))?;
    let after = Stamp::of(&file).map_err(io_error(&path))?;
    if read != entry.stamp.size || after != entry.stamp {
        let problem = format!(
            "{} changed while it was packed: try again when nobody writes there",
            entry.path
        );
        return Err(refused(shown, problem));
    }
    Ok(())
}

/// Counts what is read.
struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}
