//! Printing: results on stdout, as text for people or JSON for programs, and notes on stderr.

pub(crate) mod daemon_message;
pub(crate) mod download;
pub(crate) mod error_report;
pub(crate) mod event_follower;
pub(crate) mod exec_result;
pub(crate) mod proto_json;
pub(crate) mod room_report;
pub(crate) mod run_receiver;
pub(crate) mod signal_names;
pub(crate) mod skip_notes;
pub(crate) mod transcript;
pub(crate) mod transfer_bar;
pub(crate) mod value_formats;

use std::io::{self, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use prost::Name;
use serde_json::{Value, json};

use crate::terminal;
use crate::terminal::safe_text::{escape_json, plain_line, plain_text};

/// Format of what the program prints on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Text for people.
    #[default]
    Text,
    /// JSON: one object per command on stdout; errors and remarks are JSON lines on stderr.
    Json,
    /// Like json, but exec, run and attach print each event when it comes, one object per line.
    Jsonl,
}

/// Style of everything that the program prints.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutputOptions {
    pub(crate) format: OutputFormat,
    /// Prints no notes, and only the ids of lists.
    pub(crate) quiet: bool,
}

/// Style of this process, which runs one command.
static STYLE: OnceLock<OutputOptions> = OnceLock::new();

fn style() -> OutputOptions {
    STYLE.get().copied().unwrap_or_default()
}

/// Sets the output style of the process, once.
pub(crate) fn set_style(style: OutputOptions) {
    // A second command in one process would be a fault of the program; the first style stays.
    let _ = STYLE.set(style);
}

/// Returns `true` if results and errors are printed as JSON.
pub(crate) fn is_json() -> bool {
    style().format != OutputFormat::Text
}

/// Returns `true` if no notes and no progress are printed.
pub(crate) fn is_quiet() -> bool {
    style().quiet
}

/// Returns `true` if an exec's events are printed as they come, one JSON object per line.
pub(crate) fn is_event_stream() -> bool {
    style().format == OutputFormat::Jsonl
}

/// Prints a message of the API as JSON, or its text for people, without terminal control characters. Returns the exit
/// code 0, for the commands that end with it.
pub(crate) fn print_message<M: Name>(message: &M, text: &str) -> anyhow::Result<u8> {
    match is_json() {
        true => print_value(&proto_json::from_message(message)?)?,
        false => print_text(text)?,
    }
    Ok(0)
}

/// Prints a listing: the answer as JSON, with --quiet the ids of its items, one per line, else a table. Returns the
/// exit code 0.
pub(crate) fn print_list<M: Name, T, const N: usize>(
    answer: &M,
    items: &[T],
    id: impl Fn(&T) -> String,
    header: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> anyhow::Result<u8> {
    print_message(answer, &list_text(items, id, header, row))
}

/// Returns the text of a listing: a table, or with --quiet the ids of its items, one per line.
pub(crate) fn list_text<T, const N: usize>(
    items: &[T],
    id: impl Fn(&T) -> String,
    header: [&str; N],
    row: impl Fn(&T) -> [String; N],
) -> String {
    match style().quiet {
        true => text_lines(items.iter().map(id)),
        false => text_table(header, items.iter().map(row)),
    }
}

/// Prints what a command did, which had no answer to print: as JSON to stdout, or as a note.
pub(crate) fn print_outcome(value: &Value, note: &str) -> anyhow::Result<()> {
    match is_json() {
        true => print_value(value)?,
        false => print_note(note),
    }
    Ok(())
}

/// Prints one JSON value to stdout, on one line.
pub(crate) fn print_value(value: &Value) -> anyhow::Result<()> {
    print_bytes(json_line(value).as_bytes())?;
    Ok(())
}

/// Returns a JSON value as a line that is safe for a terminal.
pub(crate) fn json_line(value: &Value) -> String {
    format!("{}\n", escape_json(&value.to_string()))
}

/// Prints text to stdout without terminal control characters.
pub(crate) fn print_text(text: &str) -> io::Result<()> {
    print_bytes(plain_text(text).as_bytes())
}

/// Prints bytes to stdout as they are and flushes them.
pub(crate) fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Returns one line per item, without terminal control characters.
pub(crate) fn text_lines(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    items
        .map(|item| format!("{}\n", plain_line(item.as_ref())))
        .collect()
}

/// Prints a note for people on one line of stderr; takes the arguments of `format!`. In JSON it is `{"note": …}`.
macro_rules! note {
    ($($argument:tt)*) => {
        $crate::output::print_note(&format!($($argument)*))
    };
}
pub(crate) use note;

/// Prints a note to stderr unless --quiet is set; ignores failures.
pub(crate) fn print_note(text: &str) {
    if style().quiet {
        return;
    }
    let end = if terminal::is_raw() { "\r\n" } else { "\n" };
    let line = match is_json() {
        true => escape_json(&json!({ "note": text }).to_string()),
        false => format!("skillctl: {}", plain_line(text)),
    };
    drop(write!(io::stderr().lock(), "{line}{end}"));
}

/// Prints each line as a note, unless results are JSON, which has them already.
pub(crate) fn print_text_notes(lines: &[String]) {
    if !is_json() {
        lines.iter().for_each(|line| print_note(line));
    }
}

/// Returns a text table: rows beneath a header, columns as wide as their widest cell.
pub(crate) fn text_table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let plain_rows = rows
        .into_iter()
        .map(|row| row.map(|cell| plain_line(&cell)));
    let rows: Vec<[String; N]> = std::iter::once(header.map(str::to_owned))
        .chain(plain_rows)
        .collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = widths.iter().zip(row);
        let line: String = cells
            .map(|(width, cell)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Returns `key: value` lines with aligned values; empty values are left out.
pub(crate) fn text_fields(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(key, _)| key.len()).max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        let key = format!("{key}:");
        let value = plain_line(value);
        text.push_str(&format!("{key:<width$} {value}\n"));
    }
    text
}
