//! Printing: text for people, JSON for programs, tables.

use std::io::{self, Write};
use std::sync::OnceLock;

use prost::Message;
use serde_json::{Value, json};

use crate::cli::Format;
use crate::{json, terminal};

/// How this run prints, also where no [`Output`] is at hand.
static STYLE: OnceLock<Style> = OnceLock::new();

#[derive(Clone, Copy, Debug)]
struct Style {
    json: bool,
    quiet: bool,
}

fn style() -> Style {
    STYLE.get().copied().unwrap_or(Style {
        json: false,
        quiet: false,
    })
}

/// Returns `true` if results and errors are printed as JSON.
pub(crate) fn is_json() -> bool {
    style().json
}

/// Prints results on stdout. Remarks go to stderr, with [`note`].
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
    quiet: bool,
}

impl Output {
    pub(crate) fn new(format: Format, quiet: bool) -> Self {
        // Set once per process, which runs one command.
        let _ = STYLE.set(Style {
            json: format != Format::Text,
            quiet,
        });
        Self { format, quiet }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format != Format::Text
    }

    /// Returns `true` if an exec's events are printed as they come, one JSON object per line.
    pub(crate) fn is_event_stream(&self) -> bool {
        self.format == Format::Jsonl
    }

    /// Prints a message of the API as JSON, or the text that `text` makes of it, without terminal control characters.
    pub(crate) fn message<M: Message>(
        &self,
        kind: &str,
        message: &M,
        text: impl FnOnce(&M) -> String,
    ) -> anyhow::Result<()> {
        if self.is_json() {
            return self.value(&json::from_message(kind, message)?);
        }
        self.text(&text(message))?;
        Ok(())
    }

    /// Prints a list like [`Output::message`]; with --quiet only the ids, one per line.
    pub(crate) fn list<M: Message>(
        &self,
        kind: &str,
        message: &M,
        ids: impl FnOnce(&M) -> Vec<String>,
        text: impl FnOnce(&M) -> String,
    ) -> anyhow::Result<()> {
        if self.quiet && !self.is_json() {
            self.text(&lines(&ids(message)))?;
            return Ok(());
        }
        self.message(kind, message, text)
    }

    /// Prints one JSON object on one line.
    pub(crate) fn value(&self, value: &Value) -> anyhow::Result<()> {
        self.bytes(format!("{}\n", serde_json::to_string(value)?).as_bytes())?;
        Ok(())
    }

    /// Prints text without terminal control characters.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        self.bytes(plain_text(text).as_bytes())
    }

    /// Prints bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }
}

/// Returns one line per item.
pub(crate) fn lines(items: &[String]) -> String {
    items
        .iter()
        .map(|item| format!("{}\n", plain_line(item)))
        .collect()
}

/// Prints a remark for people on one line of stderr; in JSON `{"note": …}`. Failure to print it is ignored.
pub(crate) fn note(text: &str) {
    let Style { json, quiet } = style();
    if quiet {
        return;
    }
    let end = if terminal::is_raw() { "\r\n" } else { "\n" };
    let line = match json {
        true => json!({ "note": text }).to_string(),
        false => format!("skillctl: {}", plain_line(text)),
    };
    drop(write!(io::stderr().lock(), "{line}{end}"));
}

/// Returns text from skills, servers or programs as one line without terminal control characters.
pub(crate) fn plain_line(text: &str) -> String {
    plain(text, |_| false)
}

/// Like [`plain_line`], but keeps line ends and tabs.
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

/// Returns `key: value` lines with aligned values; empty values are left out.
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
