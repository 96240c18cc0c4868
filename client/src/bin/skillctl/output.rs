//! Printing: text for people, protobuf's JSON for programs, tables.

use std::io::{self, Write};

use anyhow::Context as _;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use skilld_client::v1;

use crate::cli::Format;
use crate::terminal;

/// Where results go. Notes for people go to stderr, with [`note`].
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Prints a message of the API: as JSON, or the text that `text` makes of it, without what a terminal obeys.
    pub(crate) fn message<M: Message>(
        &self,
        kind: &str,
        message: &M,
        text: impl FnOnce(&M) -> String,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Text => self.bytes(plain_text(&text(message)).as_bytes())?,
            Format::Json => self.bytes(json_line(kind, message)?.as_bytes())?,
        }
        Ok(())
    }

    /// Prints bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }
}

/// Tells people something on stderr, on one line. That nobody listens there is no reason to stop.
pub(crate) fn note(text: &str) {
    let end = if terminal::is_raw() { "\r\n" } else { "\n" };
    drop(write!(
        io::stderr().lock(),
        "skillctl: {}{end}",
        plain_line(text)
    ));
}

/// A line whose words others chose, skills, servers or programs in a workspace: nothing in it moves a terminal,
/// or looks like another line.
pub(crate) fn plain_line(text: &str) -> String {
    plain(text, |_| false)
}

/// The same for text of many lines, which keeps its lines and its tabs.
fn plain_text(text: &str) -> String {
    plain(text, |c| matches!(c, '\n' | '\t'))
}

fn plain(text: &str, keep: fn(char) -> bool) -> String {
    let shown = |c: char| match c.is_control() && !keep(c) {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    text.chars().map(shown).collect()
}

/// A message of `skilld.v1` as one line of protobuf's JSON.
pub(crate) fn json_line<M: Message>(kind: &str, message: &M) -> anyhow::Result<String> {
    let pool = DescriptorPool::decode(v1::FILE_DESCRIPTOR_SET)?;
    let descriptor = pool
        .get_message_by_name(&format!("skilld.v1.{kind}"))
        .with_context(|| format!("the API has no message {kind}"))?;
    let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())?;
    Ok(format!("{}\n", serde_json::to_string(&message)?))
}

/// Rows beneath a header, columns as wide as their widest cell.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(header: [&str; N]) -> Self {
        Self {
            rows: vec![header.map(ToOwned::to_owned)],
        }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| plain_line(&cell)));
    }

    /// The table as text.
    pub(crate) fn text(&self) -> String {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (width, cell) in widths.iter().zip(row) {
                line.push_str(&format!("{cell:<width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// `key: value` lines, values aligned; empty values are left out.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(key, _)| key.len()).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        let key = format!("{key}:");
        let value = plain_line(value);
        text.push_str(&format!("{key:<width$} {value}\n"));
    }
    text
}
