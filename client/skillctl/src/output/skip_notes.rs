//! Notes on stderr, and errors, about files that were left out of a transfer.

use anyhow::bail;
use skilld_client::SkippedFile;
use skilld_client::v1::SkipReason;
use skilld_client::v1::{self, StageFilesResponse};

use crate::output;

/// Maximum number of files that are named; the others are counted.
const NAMED_MAX: usize = 100;

/// Notes what this program left out, with the reasons.
pub(crate) fn note_skipped(skipped: &[SkippedFile]) {
    let notes = skipped
        .iter()
        .map(|file| format!("left out {}: it {}", file.path, file.skip_reason));
    print_notes(notes, skipped.len());
}

/// Notes what the daemon or the client left out, `total` files of which some are listed.
pub(crate) fn note_skipped_entries(skipped: &[v1::SkippedFile], total: usize) {
    let notes = skipped
        .iter()
        .map(|file| format!("left out {}: {}", file.path, describe_reason(file.reason())));
    print_notes(notes, total);
}

/// Fails if an upload lacks what could not be read. Other kinds of files are left out on purpose.
pub(crate) fn check_readable(staged: &StageFilesResponse) -> anyhow::Result<()> {
    let skipped = staged.skipped_files.iter();
    let mut unreadable = skipped.filter(|file| file.reason() == SkipReason::Permission);
    let Some(first) = unreadable.next() else {
        return Ok(());
    };
    let others = unreadable.next().map_or("", |_| " and others");
    bail!(
        "the copy lacks {}{others}: the local file cannot be read",
        first.path
    )
}

fn print_notes(notes: impl Iterator<Item = String>, total: usize) {
    let named = notes
        .take(NAMED_MAX)
        .inspect(|note| output::print_note(note))
        .count();
    if total > named {
        output::note!("left out {} more", total - named);
    }
}

/// Returns why a file was left out, and what to do where that helps.
fn describe_reason(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::FileType => "it is a FIFO, a socket or a device",
        SkipReason::MaxFiles => {
            "there are more files than --max-files, or than the daemon collects at once; copy it by itself"
        }
        SkipReason::MaxTotalBytes => {
            "it does not fit into --max-total-bytes, or into what the daemon collects at once; copy it by itself"
        }
        SkipReason::Permission => "its mode or owner does not allow reading it",
        SkipReason::Gone => "it was removed meanwhile",
        SkipReason::IoError => "it cannot be read",
        SkipReason::Depth => "it lies too deep",
        SkipReason::NotWhole => "it was cut, so it is no artifact",
        SkipReason::NotSaved => "it could not be saved as an artifact",
        SkipReason::EmptyAfterFailure => "it is empty and the command failed, so it is no artifact",
        SkipReason::Unchanged => "the command did not change it",
        SkipReason::QuotaExceeded => {
            "the quota of artifacts is used up; see `skillctl usage`, and delete artifacts"
        }
        SkipReason::LinkTarget => "it is a link without a usable target",
        SkipReason::Name => "its name in the archive is absolute or too long",
        SkipReason::Unspecified => "the daemon gave no reason",
    }
}
