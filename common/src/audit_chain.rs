//! Chain of the audit log: the header, hash and MAC of each line, and their verification. The header has the keys that
//! every line has, the hash links a line to the one before, and only the daemon's key gives the MAC. The daemon writes
//! the lines, skillctl verifies them.

use std::fmt;

use data_encoding::HEXLOWER;
use ring::hmac;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use sha2::{Digest, Sha256};

mod verification;

pub use verification::{BrokenLine, ChainFault, ChainReport, verify_chain};

/// Maximum length of a line with its line end, in bytes.
pub const LINE_BYTES_MAX: usize = 16 << 10;

/// Text between the other keys of a line and its MAC. Earlier releases wrote lines without a MAC.
pub const MAC_BEGIN: &[u8] = b",\"mac\":\"";
/// Text after the MAC of a line.
pub const MAC_END: &[u8] = b"\"}\n";

/// Key of an instance, with which it authenticates its lines.
#[derive(Debug)]
pub struct ChainKey(hmac::Key);

/// SHA-256 of a line, line end included. Zeros stand for the line before the first one of a chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineHash([u8; 32]);

/// Position of a line in its chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct ChainPosition {
    /// Number of the line, from 1; 0 before the first one.
    pub sequence: u64,
    /// Hash of the line.
    pub hash: LineHash,
}

/// Keys that every line has. Further keys depend on the event.
#[derive(Debug, serde::Deserialize)]
pub struct LineHeader {
    /// Time of the event: RFC 3339, UTC.
    pub time: String,
    /// Number of the line.
    pub sequence: u64,
    /// Hash of the line before.
    pub prev: LineHash,
    #[serde(rename = "node")]
    _node: String,
    #[serde(rename = "event")]
    _event: String,
}

// === impl ChainKey ===

impl ChainKey {
    /// Makes the key from the key of the instance. It also makes fingerprints of command lines: each of those ends with a
    /// NUL byte, which no line has, so none is the MAC of a line.
    pub fn new(key: hmac::Key) -> Self {
        Self(key)
    }

    /// Returns the MAC of a line, 64 hex digits. `covered` is everything before [`MAC_BEGIN`].
    pub fn mac(&self, covered: &[u8]) -> String {
        HEXLOWER.encode(hmac::sign(&self.0, covered).as_ref())
    }
}

// === impl LineHash ===

impl LineHash {
    /// Hashes a line, which ends with its line end.
    pub fn of_line(line: &[u8]) -> Self {
        Self(Sha256::digest(line).into())
    }
}

impl fmt::Display for LineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl Serialize for LineHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for LineHash {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let text = String::deserialize(source)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).ok();
        let hash = bytes.and_then(|bytes| bytes.try_into().ok()).map(Self);
        hash.ok_or_else(|| D::Error::custom("a hash must be 64 lower-case hex digits"))
    }
}

// === impl LineHeader ===

impl LineHeader {
    /// Parses a line, with or without its line end.
    ///
    /// # Errors
    /// The message of the JSON parser, or about a value that no record has.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        let header: Self = serde_json::from_slice(line)?;
        let (sequence, prev) = (header.sequence, header.prev);
        if humantime::parse_rfc3339(&header.time).is_err() {
            return Err(serde_json::Error::custom(
                "time is not an RFC 3339 time in UTC",
            ));
        }
        if sequence == 0 || (sequence == 1) != (prev == LineHash::default()) {
            let message = format!(
                "sequence is {sequence} and prev is {prev}: a chain begins with 1 and zeros"
            );
            return Err(serde_json::Error::custom(message));
        }
        Ok(header)
    }
}
