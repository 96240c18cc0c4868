//! `skillctl audit`: checks audit logs. It needs no daemon.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, ensure};
use clap::{Args, Subcommand, ValueHint};
use ring::hmac;
use serde_json::{Value, json};
use skilld_common::audit_chain::{ChainKey, ChainReport, LINE_BYTES_MAX, LineHeader, verify_chain};

use crate::output;

/// Path that stands for stdin.
const STDIN: &str = "-";
/// Length of a key in bytes.
const KEY_BYTES: usize = 32;
/// First bytes of a file that gzip compressed (RFC 1952, section 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Check audit logs.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  skillctl audit verify /var/log/skilld/audit.log")]
pub(crate) enum Audit {
    Verify(Verify),
}

/// Check that no record of an audit log was changed, removed, inserted or moved.
///
/// Takes the files of one log in any order, and checks them from the oldest to the newest record. Exit code 1 and the first
/// broken line if the chain is broken. With the daemon's key it also finds records that someone without the key wrote,
/// who may have computed new hashes. Nothing shows that records are missing at the very beginning or end: compare the
/// first sequence number, and the last hash, with what you know.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  skillctl audit verify /var/log/skilld/audit.log\n  \
                  skillctl audit verify --key-file /var/lib/skilld/audit-key /var/log/skilld/audit.log\n  \
                  zcat audit.log.2.gz | skillctl audit verify -"
)]
pub(crate) struct Verify {
    /// Files of the log, not compressed; - reads stdin.
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Key of the daemon, STATE_DIR/audit-key. Repeat it if the key was replaced.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Vec<PathBuf>,
}

/// Opened file of a log.
struct LogInput {
    name: String,
    reader: Box<dyn BufRead>,
    /// Sequence number of the first record; `None` if the file has none.
    first_sequence: Option<u64>,
}

impl Audit {
    /// Runs the command and returns the exit code of this program.
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        match self {
            Self::Verify(command) => command.run(),
        }
    }
}

impl Verify {
    fn run(&self) -> anyhow::Result<u8> {
        let keys = self
            .key_file
            .iter()
            .map(|path| read_key(path))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut inputs = self
            .files
            .iter()
            .map(|path| LogInput::open(path))
            .collect::<anyhow::Result<Vec<_>>>()?;
        // An empty file follows a rotation.
        inputs.sort_by_key(|input| input.first_sequence.unwrap_or(u64::MAX));
        let files = inputs.into_iter().map(|input| (input.name, input.reader));
        let report =
            verify_chain(files, &keys).map_err(|error| anyhow!("failed to read {error}"))?;
        match output::is_json() {
            true => output::print_value(&report_json(&report))?,
            false => output::print_text(&report_text(&report))?,
        }
        if report.broken.is_none() && report.incomplete_bytes > 0 {
            output::note!(
                "{} bytes of an incomplete record follow: the daemon is writing it, or was killed meanwhile and removes it \
                 at its next start",
                report.incomplete_bytes
            );
        }
        Ok(u8::from(report.broken.is_some()))
    }
}

/// Reads the key of a daemon.
fn read_key(path: &Path) -> anyhow::Result<ChainKey> {
    let failed = |error| anyhow!("failed to read the key {}: {error}", path.display());
    let mut key = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let limit = u64::try_from(KEY_BYTES + 1).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut key).map_err(failed)?;
    ensure!(
        key.len() == KEY_BYTES,
        "{} is no key of {KEY_BYTES} bytes: use the file audit-key of the daemon's state directory",
        path.display()
    );
    Ok(ChainKey::new(hmac::Key::new(hmac::HMAC_SHA256, &key)))
}

impl LogInput {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let is_stdin = path == Path::new(STDIN);
        let name = match is_stdin {
            true => "stdin".to_owned(),
            false => path.display().to_string(),
        };
        let failed = |error| anyhow!("failed to read {name}: {error}");
        let input: Box<dyn Read> = match is_stdin {
            true => Box::new(io::stdin()),
            false => Box::new(File::open(path).map_err(failed)?),
        };
        let (mut line, mut reader) = (Vec::new(), BufReader::new(input));
        let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
        let mut begin = reader.by_ref().take(limit);
        begin.read_until(b'\n', &mut line).map_err(failed)?;
        if line.starts_with(&GZIP_MAGIC) {
            bail!(
                "{name} is compressed: run `zcat -f FILE… | skillctl audit verify -`, the oldest file first"
            );
        }
        let header = LineHeader::parse(&line).ok();
        Ok(Self {
            name,
            first_sequence: header.map(|header| header.sequence),
            reader: Box::new(Cursor::new(line).chain(reader)),
        })
    }
}

fn report_text(report: &ChainReport) -> String {
    let mut fields = vec![
        ("records", report.records.to_string()),
        ("sequence", sequence_range(report)),
        ("last time", report.last_time.clone()),
        ("last sha256", last_hash(report)),
    ];
    if let Some(count) = report.authenticated {
        let of_all = format!("{count} of {} records", report.records);
        fields.push(("authenticated", of_all));
    }
    let mut text = output::text_fields(&fields);
    text.push_str(&match &report.broken {
        None if report.records == 0 => "there are no records\n".to_owned(),
        None => "the chain is intact\n".to_owned(),
        Some(broken) => {
            let (file, line, fault) = (&broken.file, broken.line, &broken.fault);
            format!("the chain is broken at {file}:{line}: {fault}\n")
        }
    });
    text
}

fn sequence_range(report: &ChainReport) -> String {
    match (report.first_sequence, report.last) {
        (Some(first), Some(last)) => format!("{first} to {}", last.sequence),
        _ => String::new(),
    }
}

fn last_hash(report: &ChainReport) -> String {
    report
        .last
        .map(|last| last.hash.to_string())
        .unwrap_or_default()
}

fn report_json(report: &ChainReport) -> Value {
    let last = report.last.map(|last| {
        json!({
            "sequence": last.sequence.to_string(),
            "time": report.last_time,
            "sha256": last.hash.to_string(),
        })
    });
    let broken = report.broken.as_ref().map(|broken| {
        json!({
            "file": broken.file,
            "line": broken.line.to_string(),
            "message": broken.fault.to_string(),
        })
    });
    json!({
        "intact": report.broken.is_none(),
        "records": report.records.to_string(),
        "firstSequence": report.first_sequence.map(|first| first.to_string()),
        "last": last,
        "authenticated": report.authenticated.map(|count| count.to_string()),
        "incompleteBytes": report.incomplete_bytes.to_string(),
        "broken": broken,
    })
}
