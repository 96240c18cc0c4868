//! Logical lines of Python source: without comments, with what brackets and backslashes join. Pure.

/// Line of source that holds a whole statement, or the head of a compound one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogicalLine {
    /// Text with its indentation; a string is one quotation mark, and brackets are spaces.
    pub(crate) text: String,
    /// Number of its first line.
    pub(crate) number: usize,
    /// `true` if it compares with the name of another system than Linux.
    has_foreign_platform: bool,
}

/// Returns `true` for a condition that holds on other systems only.
pub(crate) fn is_foreign_platform(line: &LogicalLine) -> bool {
    let is_equal = line.text.contains("==") || line.text.contains("startswith");
    line.has_foreign_platform
        && is_equal
        && !line.text.contains(" not ")
        && !line.text.contains(" or ")
}

/// Splits source into logical lines.
pub(crate) fn split_logical_lines(source: &str) -> Vec<LogicalLine> {
    let mut lines = Vec::new();
    let mut current = new_line(1);
    let (mut number, mut depth) = (1, 0_usize);
    let mut rest = source.trim_start_matches('\u{feff}');
    while let Some(char) = rest.chars().next() {
        let mut taken = char.len_utf8();
        match char {
            '#' => taken = rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => {
                taken = string_length(rest, char);
                let text = rest.get(..taken).unwrap_or_default();
                number += text.matches('\n').count();
                let foreign = ["darwin", "win32", "windows", "nt", "cygwin"];
                let value = text.trim_matches(char);
                current.has_foreign_platform |=
                    foreign.iter().any(|name| name.eq_ignore_ascii_case(value));
                current.text.push('"');
            }
            '\\' if rest.starts_with("\\\n") || rest.starts_with("\\\r\n") => {
                taken = rest.find('\n').map_or(taken, |at| at + 1);
                number += 1;
                current.text.push(' ');
            }
            '\n' => {
                number += 1;
                if depth == 0 {
                    lines.push(std::mem::replace(&mut current, new_line(number)));
                } else {
                    current.text.push(' ');
                }
            }
            '(' | '[' | '{' => {
                depth += 1;
                // A call in an `except` branch is told from a name.
                current.text.push(if char == '(' { '(' } else { ' ' });
            }
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                current.text.push(' ');
            }
            '\r' => {}
            other => current.text.push(other),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    lines.push(current);
    lines
}

fn new_line(number: usize) -> LogicalLine {
    LogicalLine {
        text: String::new(),
        number,
        has_foreign_platform: false,
    }
}

/// Returns the length in bytes of the string literal that a text begins with. One that is not closed ends with its
/// line, a triple one with the text.
pub(crate) fn string_length(text: &str, quote: char) -> usize {
    let triple = if quote == '"' { "\"\"\"" } else { "'''" };
    let is_triple = text.starts_with(triple);
    let begin = if is_triple { 3 } else { 1 };
    let mut escaped = false;
    for (at, char) in text.char_indices().skip(begin) {
        let rest = text.get(at..).unwrap_or_default();
        if std::mem::take(&mut escaped) {
            continue;
        }
        match char {
            '\\' => escaped = true,
            '\n' if !is_triple => return at,
            _ if is_triple && rest.starts_with(triple) => return at + 3,
            char if !is_triple && char == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
