//! Lines of the audit log, each a flat JSON object of printable ASCII characters. So no value of a client can forge a
//! line or control a terminal.

use std::io::{self, Write};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::ser::Formatter;
use skilld_common::audit_chain::{ChainKey, ChainPosition, LineHash, MAC_BEGIN, MAC_END};

use super::chain_file::{UnreportedLosses, is_zero};
use super::record::{AuditRecord, BoundedText, CallOutcome};

/// First bytes of every line. They distinguish the rest of a line that was cut from the contents of a foreign file.
pub(super) const LINE_BEGIN: &[u8] = b"{\"time\":\"";

/// Event of one line.
#[derive(Debug)]
pub(super) enum LineEvent<'a> {
    /// Decision about a call.
    Call(&'a AuditRecord),
    /// Event of the log itself.
    Log(&'a LogEvent),
}

/// Event of the log itself.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum LogEvent {
    /// The daemon started.
    Started {
        /// Version of the daemon.
        version: &'static str,
        /// Losses before the start.
        #[serde(flatten)]
        losses: UnreportedLosses,
        /// Number of records at the end of the file that existed when the daemon stopped and are gone.
        #[serde(skip_serializing_if = "is_zero")]
        missing: u64,
    },
    /// The daemon stopped in an orderly way.
    Stopped {},
    /// The log continues in this file.
    Reopened {
        /// Length of an incomplete line at its end that was removed, in bytes.
        #[serde(skip_serializing_if = "is_zero")]
        removed_bytes: u64,
    },
    /// Records are written again, or were lost in between.
    Recovered {
        /// Fault that is over.
        cause: BoundedText<512>,
        /// Number of records that were not written because of it.
        lost: u64,
        /// Number of records before this one that may not have reached the disk.
        #[serde(skip_serializing_if = "is_zero")]
        unsynced: u64,
        /// Length of incomplete lines that were removed, in bytes.
        #[serde(skip_serializing_if = "is_zero")]
        removed_bytes: u64,
        /// Number of records at the end of the file that were written and are gone.
        #[serde(skip_serializing_if = "is_zero")]
        missing: u64,
    },
}

/// Keys of a line, in their order.
#[derive(Debug, Serialize)]
struct LineFields<'a> {
    time: String,
    sequence: u64,
    prev: LineHash,
    node: &'a str,
    event: &'static str,
    #[serde(flatten)]
    call: Option<&'a AuditRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusals: Option<u64>,
    #[serde(flatten)]
    outcome: Option<CallOutcome>,
    #[serde(flatten)]
    log: Option<&'a LogEvent>,
}

/// JSON format that escapes all characters which are not printable ASCII.
#[derive(Debug)]
struct AsciiFormatter;

/// Appends the line that follows `position` to `out`, with its MAC and line end, and returns its position.
pub(super) fn append_line(
    out: &mut Vec<u8>,
    position: ChainPosition,
    key: &ChainKey,
    node: &str,
    time: SystemTime,
    event: &LineEvent<'_>,
) -> ChainPosition {
    let sequence = position.sequence + 1;
    let (name, call, log) = match event {
        LineEvent::Call(record) => (record.stage.event(), Some(*record), None),
        LineEvent::Log(event) => (event.name(), None, Some(*event)),
    };
    let fields = LineFields {
        // The formatter has no times before 1970.
        time: humantime::format_rfc3339_millis(time.max(SystemTime::UNIX_EPOCH)).to_string(),
        sequence,
        prev: position.hash,
        node,
        event: name,
        call,
        decision: call.map(|record| record.stage.decision()),
        refusals: call.and_then(|record| record.stage.refusals()),
        outcome: call.and_then(|record| record.stage.outcome()),
        log,
    };
    let start = out.len();
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, AsciiFormatter);
    if let Err(error) = fields.serialize(&mut serializer) {
        // Memory takes every byte, and all keys are texts.
        tracing::error!(%error, "a record of the audit log has no JSON form");
    }
    // The MAC is the last key of the object, so its brace follows.
    out.pop();
    let mac = key.mac(out.get(start..).unwrap_or_default());
    for part in [MAC_BEGIN, mac.as_bytes(), MAC_END] {
        out.extend_from_slice(part);
    }
    let line = out.get(start..).unwrap_or_default();
    ChainPosition {
        sequence,
        hash: LineHash::of_line(line),
    }
}

// === impl LogEvent ===

impl LogEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stopped {} => "stopped",
            Self::Reopened { .. } => "reopened",
            Self::Recovered { .. } => "recovered",
        }
    }
}

// === impl AsciiFormatter ===

impl Formatter for AsciiFormatter {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let is_printable = |char: char| matches!(char, ' '..='~');
        if fragment.chars().all(is_printable) {
            return writer.write_all(fragment.as_bytes());
        }
        for char in fragment.chars() {
            if is_printable(char) {
                write!(writer, "{char}")?;
                continue;
            }
            for unit in char.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
