//! Verification of the chain of an audit log: reads lines one by one and finds the first one that breaks the chain.

use std::io::{self, BufRead, Read};

use super::{ChainKey, ChainPosition, LINE_BYTES_MAX, LineHash, LineHeader, MAC_BEGIN, MAC_END};

/// Number of hex digits of a MAC.
const MAC_DIGITS: usize = 64;

/// Outcome of a verification.
#[derive(Debug, Default)]
pub struct ChainReport {
    /// Number of records up to the end, or up to the broken line.
    pub records: u64,
    /// Sequence number of the first record; `None` without records.
    pub first_sequence: Option<u64>,
    /// Position of the last record; `None` without records.
    pub last: Option<ChainPosition>,
    /// Time of the last record; empty without records.
    pub last_time: String,
    /// Number of records whose MAC is one of the keys'; `None` if there are no keys.
    pub authenticated: Option<u64>,
    /// Number of bytes after the last line end of the last file.
    pub incomplete_bytes: u64,
    /// First line that breaks the chain.
    pub broken: Option<BrokenLine>,
}

/// Line that breaks the chain.
#[derive(Debug, PartialEq, Eq)]
pub struct BrokenLine {
    /// Name of the file.
    pub file: String,
    /// Number of the line in the file, from 1.
    pub line: u64,
    /// Reason.
    pub fault: ChainFault,
}

/// Reason why a line breaks the chain.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
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
    /// MAC that none of the keys gives.
    #[error(
        "mac is not that of the key: the record was changed, or written by someone without the key"
    )]
    WrongMac,
    /// Record without a MAC, although the log should have them.
    #[error(
        "the record has no mac: it was written by someone without the key, or by a release before skilld had one"
    )]
    NoMac,
}

/// Verifies one chain over files in their order, oldest first. The first record may have any number, because older files
/// may have been removed. Holds one line at a time in memory.
///
/// With keys, each record must have a MAC that one of them gives. Records of earlier releases have none, and may precede
/// the others: the first MAC covers the hash of the record before, and thereby all of them.
///
/// Bytes after the last line end of the last file are no fault: the daemon is writing them, or was killed meanwhile.
///
/// # Errors
/// The first failed read, with the file's name.
pub fn verify_chain<R: BufRead>(
    files: impl IntoIterator<Item = (String, R)>,
    keys: &[ChainKey],
) -> io::Result<ChainReport> {
    let mut report = ChainReport {
        authenticated: (!keys.is_empty()).then_some(0),
        ..ChainReport::default()
    };
    let mut last_line = (String::new(), 0);
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
                report.add_line(&line, keys).err()
            };
            if let Some(fault) = fault {
                let line = number;
                report.broken = Some(BrokenLine { file, line, fault });
                return Ok(report);
            }
        }
        // An empty file may follow one whose last line is incomplete.
        let complete = number.saturating_sub(u64::from(report.incomplete_bytes > 0));
        if complete > 0 {
            last_line = (file, complete);
        }
    }
    if report.records > 0 && report.authenticated == Some(0) {
        let ((file, line), fault) = (last_line, ChainFault::NoMac);
        report.broken = Some(BrokenLine { file, line, fault });
    }
    Ok(report)
}

/// Splits a line into the part that its MAC covers, and the MAC; `None` if it has none.
fn split_mac(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = line.strip_suffix(MAC_END)?;
    let (rest, mac) = rest.split_at_checked(rest.len().checked_sub(MAC_DIGITS)?)?;
    Some((rest.strip_suffix(MAC_BEGIN)?, mac))
}

// === impl ChainReport ===

impl ChainReport {
    /// Adds a line, with its line end, to the chain.
    fn add_line(&mut self, line: &[u8], keys: &[ChainKey]) -> Result<(), ChainFault> {
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
        if let Some(authenticated) = &mut self.authenticated {
            match split_mac(line) {
                Some((covered, mac)) => {
                    let is_of = |key: &ChainKey| key.mac(covered).as_bytes() == mac;
                    if !keys.iter().any(is_of) {
                        return Err(ChainFault::WrongMac);
                    }
                    *authenticated += 1;
                }
                None if *authenticated > 0 => return Err(ChainFault::NoMac),
                None => {}
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
