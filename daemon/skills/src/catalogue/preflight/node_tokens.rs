//! Splits JavaScript and TypeScript into tokens: names, strings and marks, without comments and regular expressions.
//! Pure.

use super::text_cursor::TextCursor;

/// Part of JavaScript or TypeScript source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeToken {
    /// Identifier or keyword.
    Name(String),
    /// String, or a template, of which each `${…}` stays as it is.
    Text(String),
    /// Number or any other character.
    Mark(char),
}

/// Splits source into tokens with their lines.
pub(super) fn split_tokens(source: &str) -> Vec<(NodeToken, usize)> {
    let mut tokens: Vec<(NodeToken, usize)> = Vec::new();
    let mut cursor = TextCursor::new(source.trim_start_matches('\u{feff}'), 1);
    if cursor.rest().starts_with("#!") {
        cursor.take_line();
    }
    while let Some(char) = cursor.peek() {
        let line = cursor.line;
        let token = match char {
            '/' if cursor.take_text("//") => {
                cursor.take_line();
                continue;
            }
            '/' if cursor.take_text("/*") => {
                cursor.take_past("*/");
                continue;
            }
            '/' if is_regular_expression(&tokens) => {
                skip_regular_expression(&mut cursor);
                NodeToken::Mark('/')
            }
            '"' | '\'' | '`' => NodeToken::Text(read_string(&mut cursor)),
            char if is_name(char) => NodeToken::Name(cursor.take_while(is_name).to_owned()),
            char if char.is_whitespace() => {
                cursor.take();
                continue;
            }
            other => {
                cursor.take();
                NodeToken::Mark(other)
            }
        };
        tokens.push((token, line));
    }
    tokens
}

fn is_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_' || char == '$'
}

/// Returns `true` if a slash after these tokens begins a regular expression.
fn is_regular_expression(tokens: &[(NodeToken, usize)]) -> bool {
    match tokens.last() {
        None => true,
        Some((NodeToken::Mark(mark), _)) => !matches!(mark, ')' | ']' | '}'),
        Some((NodeToken::Name(name), _)) => {
            matches!(
                name.as_str(),
                "return" | "typeof" | "case" | "in" | "of" | "delete" | "void" | "throw" | "await"
            )
        }
        Some((NodeToken::Text(_), _)) => false,
    }
}

fn skip_regular_expression(cursor: &mut TextCursor<'_>) {
    cursor.take();
    let mut in_class = false;
    while let Some(char) = cursor.peek() {
        if char == '\n' {
            return;
        }
        cursor.take();
        match char {
            '\\' => {
                cursor.take();
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '/' if !in_class => return,
            _ => {}
        }
    }
}

/// Reads a string or a template. A string that is not closed ends with its line.
fn read_string(cursor: &mut TextCursor<'_>) -> String {
    let quote = cursor.take().unwrap_or_default();
    let mut text = String::new();
    // Depth of braces in `${…}`.
    let mut depth = 0_usize;
    while let Some(char) = cursor.peek() {
        if char == '\n' && quote != '`' {
            break;
        }
        cursor.take();
        match char {
            '\\' => text.extend(cursor.take()),
            '$' if quote == '`' && cursor.peek() == Some('{') => {
                depth += 1;
                text.push('$');
                text.extend(cursor.take());
            }
            '{' if depth > 0 => {
                depth += 1;
                text.push(char);
            }
            '}' if depth > 0 => {
                depth -= 1;
                text.push(char);
            }
            char if char == quote && depth == 0 => break,
            char => text.push(char),
        }
    }
    text
}
