//! Writes a skill's tar.gz reproducibly, and computes its size and SHA-256.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use super::folder_walk::{ArchivePlan, FileStamp, PackedEntry};
use super::refused;
use crate::Error;
use crate::files::local_tree::io_error;

/// Operating system "unknown" in a gzip header, so that the bytes do not depend on the machine.
const NO_SYSTEM: u8 = 255;

/// Writer that counts and hashes what passes through.
struct HashingWriter<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for HashingWriter<W> {
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

impl<W> HashingWriter<W> {
    fn new(inner: W) -> Self {
        let (hash, bytes) = (Sha256::new(), 0);
        Self { inner, hash, bytes }
    }

    fn into_digest(self) -> (u64, String) {
        (self.bytes, HEXLOWER.encode(&self.hash.finalize()))
    }
}

/// Returns the size of a file in bytes and its SHA-256.
pub(super) fn hash_file(file: &mut File) -> io::Result<(u64, String)> {
    let mut hashed = HashingWriter::new(io::sink());
    io::copy(file, &mut hashed)?;
    Ok(hashed.into_digest())
}

/// Writes the archive of a folder; returns its size in bytes and its SHA-256.
pub(super) fn write_archive(packed: &ArchivePlan, file: &mut File) -> Result<(u64, String), Error> {
    let spool = std::env::temp_dir();
    let hashed = HashingWriter::new(BufWriter::new(file));
    let header = GzBuilder::new().mtime(0).operating_system(NO_SYSTEM);
    let mut builder = tar::Builder::new(header.write(hashed, Compression::default()));
    for entry in &packed.entries {
        append_file(&mut builder, packed, entry)?;
    }
    let finished = builder
        .into_inner()
        .and_then(flate2::write::GzEncoder::finish);
    let mut hashed = finished.map_err(io_error(&spool))?;
    hashed.flush().map_err(io_error(&spool))?;
    Ok(hashed.into_digest())
}

/// Appends one file, which must still be as it was when the folder was walked.
fn append_file<W: Write>(
    builder: &mut tar::Builder<W>,
    packed: &ArchivePlan,
    entry: &PackedEntry,
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
    let mut contents = (&mut file).take(entry.stamp.size);
    let appended = builder.append_data(&mut header, Path::new(&entry.path), &mut contents);
    let missing = contents.limit();
    appended.map_err(io_error(&path))?;
    let after = FileStamp::of(&file).map_err(io_error(&path))?;
    if missing != 0 || after != entry.stamp {
        let problem = format!(
            "{} changed while it was packed: try again when nobody writes there",
            entry.path
        );
        return Err(refused(shown, problem));
    }
    Ok(())
}
