//! Verification of the chain of an audit log: reads lines one by one and finds the first one that breaks the chain. The
//! tests of the daemon compile this file too.

use std::io::{self, BufRead, Read};

use super::chain::{ChainPosition, LINE_BYTES_MAX, LineHash, LineHeader};

/// Outcome of a verification.
#[derive(Debug, Default)]
pub(crate) struct ChainReport {
    /// Number of records up to the end, or up to the broken line.
    pub(crate) records: u64,
    /// Sequence number of the first record; `None` without records.
    pub(crate) first_sequence: Option<u64>,
    /// Position of the last record; `None` without records.
    pub(crate) last: Option<ChainPosition>,
    /// Time of the last record; empty without records.
    pub(crate) last_time: String,
    /// Number of bytes after the last line end of the last file.
    pub(crate) incomplete_bytes: u64,
    /// First line that breaks the chain.
    pub(crate) broken: Option<BrokenLine>,
}

/// Line that breaks the chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BrokenLine {
    /// Name of the file.
    pub(crate) file: String,
    /// Number of the line in the file, from 1.
    pub(crate) line: u64,
    /// Reason.
    pub(crate) fault: ChainFault,
}

/// Reason why a line breaks the chain.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainFault {
    /// Line over [`LINE_BYTES_MAX`].
    #[error("the line has over {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// Line that is not a record.
    #[error("the line is not a record: {0}")]
    Format(String),
    /// Line without an end that further lines follow.
    #[error("the line is cut: it has no line end, and another file follows")]
    Cut,
    /// Sequence number that is too large.
    #[error("sequence {found} follows {before}: missing records: {}", found - before - 1)]
    Missing {
        /// Number of the record before.
        before: u64,
        /// Number of this record.
        found: u64,
    },
    /// Sequence number that is too small.
    #[error("sequence {found} follows {before}: records are out of order or repeated")]
    OutOfOrder {
        /// Number of the record before.
        before: u64,
        /// Number of this record.
        found: u64,
    },
    /// Hash that is not the one of the record before.
    #[error(
        "prev is {found}, but the record before has the hash {expected}: one of both was changed"
    )]
    WrongHash {
        /// Hash of the record before.
        expected: LineHash,
        /// Hash in this record.
        found: LineHash,
    },
}

/// Verifies one chain over files in their order, oldest first. The first record may have any number, because older files
/// may have been removed. Holds one line at a time in memory.
///
/// Bytes after the last line end of the last file are no fault: the daemon is writing them, or was killed meanwhile.
///
/// # Errors
/// The first failed read, with the file's name.
pub(crate) fn verify_chain<R: BufRead>(
    files: impl IntoIterator<Item = (String, R)>,
) -> io::Result<ChainReport> {
    let mut report = ChainReport::default();
    // File and number of a line without an end.
    let mut open_line: Option<(String, u64)> = None;
    for (file, mut reader) in files {
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let limit = u64::try_from(LINE_BYTES_MAX + 1).unwrap_or(u64::MAX);
            let read = reader.by_ref().take(limit).read_until(b'\n', &mut line);
            let length =
                read.map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))?;
            if length == 0 {
                break;
            }
            number += 1;
            let fault = if let Some(open) = open_line.take() {
                report.broken = Some(BrokenLine {
                    file: open.0,
                    line: open.1,
                    fault: ChainFault::Cut,
                });
                return Ok(report);
            } else if length > LINE_BYTES_MAX {
                Some(ChainFault::TooLong)
            } else if line.last() != Some(&b'\n') {
                report.incomplete_bytes = u64::try_from(length).unwrap_or(u64::MAX);
                open_line = Some((file.clone(), number));
                None
            } else {
                report.add_line(&line).err()
            };
            if let Some(fault) = fault {
                let line = number;
                report.broken = Some(BrokenLine { file, line, fault });
                return Ok(report);
            }
        }
    }
    Ok(report)
}

// === impl ChainReport ===

impl ChainReport {
    /// Adds a line, with its line end, to the chain.
    fn add_line(&mut self, line: &[u8]) -> Result<(), ChainFault> {
        let header =
            LineHeader::parse(line).map_err(|error| ChainFault::Format(error.to_string()))?;
        let (found, prev) = (header.sequence, header.prev);
        if let Some(last) = self.last {
            let before = last.sequence;
            if found <= before {
                return Err(ChainFault::OutOfOrder { before, found });
            }
            if found - before > 1 {
                return Err(ChainFault::Missing { before, found });
            }
            if prev != last.hash {
                let expected = last.hash;
                let found = prev;
                return Err(ChainFault::WrongHash { expected, found });
            }
        }
        self.records += 1;
        self.first_sequence.get_or_insert(found);
        self.last = Some(ChainPosition {
            sequence: found,
            hash: LineHash::of_line(line),
        });
        self.last_time = header.time;
        Ok(())
    }
}
