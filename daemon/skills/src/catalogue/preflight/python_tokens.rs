//! Splits Python into tokens: names, strings, marks and line ends, without comments. Pure.

use super::python_requirements::string_length;
use super::text_cursor::TextCursor;

/// Part of Python source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PythonToken {
    /// Identifier, with the dots of attributes.
    Name(String),
    /// String; what a format fills in is `${…}`.
    Text(String),
    Mark(char),
    /// End of a physical line, with the indentation of the next one.
    Line(usize),
}

/// Splits source into tokens with their lines.
pub(super) fn split_tokens(source: &str) -> Vec<(PythonToken, usize)> {
    let mut tokens = vec![(PythonToken::Line(0), 1)];
    let mut cursor = TextCursor::new(source.trim_start_matches('\u{feff}'), 1);
    while let Some(char) = cursor.peek() {
        let line = cursor.line;
        let token = match char {
            '#' => {
                cursor.take_while(|char| char != '\n');
                continue;
            }
            '\n' => {
                cursor.take();
                let indent = cursor.take_while(|char| char == ' ' || char == '\t').len();
                PythonToken::Line(indent)
            }
            '"' | '\'' => read_string(&mut cursor, char, false),
            char if char.is_alphabetic() || char == '_' => {
                let name =
                    cursor.take_while(|char| char.is_alphanumeric() || char == '_' || char == '.');
                let is_prefix = name.len() <= 2 && name.chars().all(|c| "rRbBfFuU".contains(c));
                match cursor
                    .peek()
                    .filter(|char| is_prefix && matches!(char, '"' | '\''))
                {
                    Some(quote) => read_string(&mut cursor, quote, name.contains(['f', 'F'])),
                    None => PythonToken::Name(name.to_owned()),
                }
            }
            char if char.is_whitespace() || char == '\\' => {
                cursor.take();
                continue;
            }
            other => {
                cursor.take();
                PythonToken::Mark(other)
            }
        };
        tokens.push((token, line));
    }
    tokens
}

/// Reads a string. What a format fills in is a variable to a shell.
fn read_string(cursor: &mut TextCursor<'_>, quote: char, is_format: bool) -> PythonToken {
    let length = string_length(cursor.rest(), quote);
    let literal = cursor.rest().get(..length).unwrap_or_default();
    let before = cursor.rest().len() - length;
    while cursor.rest().len() > before && cursor.take().is_some() {}
    let value = literal.trim_matches(quote);
    match is_format {
        true => PythonToken::Text(
            value
                .replace("{{", "\u{1}")
                .replace('{', "${")
                .replace('\u{1}', "{"),
        ),
        false => PythonToken::Text(value.to_owned()),
    }
}
