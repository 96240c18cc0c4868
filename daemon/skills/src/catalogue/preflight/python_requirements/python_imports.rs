//! Imports of Python source, found without running or fully parsing it: strings and comments go, lines that belong
//! together are joined, and what then begins with `import` or `from` is read.

use super::LocatedName;

/// Maximum length of a module's name, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// Returns the top-level names of imported modules, with their lines. Leaves out those in `except` branches and for
/// type checkers only: they are imported instead of another module, or never.
pub(crate) fn find_imports(source: &str) -> Vec<LocatedName> {
    let mut found = Vec::new();
    // Indentation of the block that is left out.
    let mut skipped: Option<usize> = None;
    for (text, number) in split_logical_lines(source) {
        let statement = text.trim_start();
        let indent = text.len() - statement.len();
        if statement.is_empty() || skipped.is_some_and(|skipped| indent > skipped) {
            continue;
        }
        skipped = is_left_out(statement).then_some(indent);
        if skipped.is_none() {
            let modules = statement.split(';').flat_map(imported_modules);
            found.extend(modules.map(|name| (name.to_owned(), number)));
        }
    }
    found
}

fn is_left_out(statement: &str) -> bool {
    let word = statement.split([' ', ':', '(']).next().unwrap_or_default();
    word == "except" || (word == "if" && statement.contains("TYPE_CHECKING"))
}

/// Returns the modules that one simple statement imports.
fn imported_modules(statement: &str) -> impl Iterator<Item = &str> {
    let statement = statement.trim();
    // `try: import x`
    let colons = [": import ", ": from "].iter();
    let inner = colons.filter_map(|colon| statement.find(colon)).next();
    let statement = inner.map_or(statement, |at| statement.get(at + 2..).unwrap_or_default());
    let names = match statement.split_once(' ') {
        Some(("import", names)) => names,
        Some(("from", rest)) => rest.split_once(" import").map_or("", |(module, _)| module),
        _ => "",
    };
    let tops = names
        .split(',')
        .filter_map(|name| name.split_whitespace().next()?.split('.').next());
    let plain = |c: char| c.is_alphanumeric() || c == '_';
    tops.filter(move |name| {
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain)
    })
}

/// Splits source into logical lines without strings and comments, each with the number of its first line.
fn split_logical_lines(source: &str) -> Vec<(String, usize)> {
    let mut lines = Vec::new();
    let mut current = String::new();
    let (mut number, mut first, mut depth) = (1, 1, 0_usize);
    let mut rest = source.trim_start_matches('\u{feff}');
    while let Some(char) = rest.chars().next() {
        let mut taken = char.len_utf8();
        match char {
            '#' => taken = rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => {
                taken = string_length(rest, char);
                let text = rest.get(..taken).unwrap_or_default();
                number += text.matches('\n').count();
                current.push('"');
            }
            '\\' if rest.starts_with("\\\n") || rest.starts_with("\\\r\n") => {
                taken = rest.find('\n').map_or(taken, |at| at + 1);
                number += 1;
                current.push(' ');
            }
            '\n' => {
                number += 1;
                if depth == 0 {
                    lines.push((std::mem::take(&mut current), first));
                    first = number;
                } else {
                    current.push(' ');
                }
            }
            '(' | '[' | '{' => {
                depth += 1;
                current.push(' ');
            }
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                current.push(' ');
            }
            '\r' => {}
            other => current.push(other),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    lines.push((current, first));
    lines
}

/// Returns the length in bytes of the string literal that a text begins with. One that is not closed ends with its
/// line, a triple one with the text.
fn string_length(text: &str, quote: char) -> usize {
    let triple: String = std::iter::repeat_n(quote, 3).collect();
    let is_triple = text.starts_with(&triple);
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
            _ if is_triple && rest.starts_with(&triple) => return at + 3,
            char if !is_triple && char == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
