//! Unpacks the archive of a build and checks its report. Nothing in the archive is trusted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::super::environment_record::BuildReport;
use crate::error::{Error, Result};
use crate::skills_options::ArchiveBounds;
use crate::sources::archive::{ArchiveKind, UnpackedArchive, archive_error, unpack_archive};

/// File at the top of a build's archive that reports what it did.
pub(super) const REPORT: &str = "environment.json";
/// Maximum size of a report in bytes: a thousand packages with their hashes.
const REPORT_BYTES_MAX: u64 = 4 << 20;

/// Unpacks the archive of a build into `tree`, reads its report, and makes the links that no archive contains.
///
/// # Errors
/// `ArchiveInvalid` for an archive or a report that a build does not make; `LimitExceeded`; `Io`.
pub(super) fn unpack_build(
    archive: &mut File,
    tree: &Path,
    bounds: &ArchiveBounds,
) -> Result<(UnpackedArchive, BuildReport)> {
    let unpacked = unpack_archive(archive, Some(ArchiveKind::Tar), tree, bounds)?;
    if unpacked.left_out.total > 0 {
        let left_out = unpacked.left_out.list();
        let problem = format!("has entries that no environment can have: {left_out}");
        return Err(archive_error(problem));
    }
    let report = read_report(&unpacked.root)?;
    let linked = make_python_links(&unpacked.root, &report);
    linked.map_err(Error::io("link the interpreter of an environment"))?;
    Ok((unpacked, report))
}

/// Reads and checks the report of an unpacked build.
fn read_report(root: &Path) -> Result<BuildReport> {
    let invalid = |why: String| archive_error(format!("has a {REPORT} that {why}"));
    let path = root.join(REPORT);
    // No link was made of this name: the archive is the daemon's own script's, but its container is not trusted.
    let metadata = fs::symlink_metadata(&path).map_err(|_| invalid("is missing".to_owned()))?;
    if !metadata.is_file() || metadata.len() > REPORT_BYTES_MAX {
        return Err(invalid("is no file of at most 4 MiB".to_owned()));
    }
    let bytes = fs::read(&path).map_err(Error::io(format!("read {}", path.display())))?;
    let report: BuildReport =
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("is invalid: {error}")))?;
    report.check().map_err(invalid)?;
    Ok(report)
}

/// Makes the links to the image's interpreter in `venv/bin`. No archive contains them, because they lead out of it.
fn make_python_links(root: &Path, report: &BuildReport) -> io::Result<()> {
    let Some(python) = &report.python else {
        return Ok(());
    };
    let bin = root.join("venv/bin");
    // The daemon follows no link that a build made.
    for directory in [root.join("venv"), bin.clone()] {
        if fs::symlink_metadata(&directory).is_ok_and(|metadata| !metadata.is_dir()) {
            return Err(io::Error::other("venv/bin is no directory"));
        }
    }
    fs::create_dir_all(&bin)?;
    symlink(&python.executable, bin.join("python"))?;
    symlink("python", bin.join("python3"))?;
    let minor = python.minor_version().unwrap_or_default();
    symlink("python", bin.join(format!("python{minor}")))
}
