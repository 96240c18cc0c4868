//! Parts of a shell word: quotes, escapes, expansions and substitutions.

use super::{DEPTH_MAX, ShellReader, ShellWord, TextCursor, read_text};

impl ShellReader<'_, '_> {
    pub(super) fn word_part(&mut self, char: char) {
        if self.words.is_empty() && self.word.is_none() {
            self.line = self.cursor.line;
        }
        self.cursor.take();
        match char {
            '\\' => match self.cursor.take() {
                Some('\n') | None => {}
                Some('\r') if self.cursor.peek() == Some('\n') => {
                    self.cursor.take();
                }
                Some(escaped) => self.push_quoted(escaped.encode_utf8(&mut [0; 4])),
            },
            '\'' => {
                let text = self.cursor.take_past("'");
                self.push_quoted(text);
            }
            '"' => self.double_quotes(),
            '$' if self.cursor.take_text("'") => {
                let text = take_escaped(&mut self.cursor, '\'');
                self.push_quoted(&text);
            }
            '$' => self.expansion(),
            '`' => self.backticks(),
            other => self.push(other),
        }
    }

    fn double_quotes(&mut self) {
        self.push_quoted("");
        while let Some(char) = self.cursor.take() {
            match char {
                '"' => return,
                '\\' => {
                    let escaped = self.cursor.take();
                    let is_special = |char: &char| "\"\\$`".contains(*char);
                    match escaped {
                        Some('\n') | None => {}
                        Some(char) if is_special(&char) => self.push(char),
                        Some(char) => {
                            self.push('\\');
                            self.push(char);
                        }
                    }
                }
                '$' => self.expansion(),
                '`' => self.backticks(),
                other => self.push(other),
            }
        }
    }

    /// Reads what follows a `$`.
    fn expansion(&mut self) {
        let line = self.cursor.line;
        self.push('$');
        let word = self.word.get_or_insert_default();
        if self.cursor.take_text("((") {
            word.is_dynamic = true;
            self.skip_arithmetic();
        } else if self.cursor.take_text("(") {
            word.is_dynamic = true;
            let inner = take_balanced(&mut self.cursor, '(', ')');
            self.nested(inner, line);
        } else if self.cursor.take_text("{") {
            word.is_dynamic = true;
            let inner = take_balanced(&mut self.cursor, '{', '}');
            word.text.push('{');
            word.text.push_str(inner);
            word.text.push('}');
            // `${name:-$(command)}` runs the command.
            if let Some((_, command)) = inner.split_once("$(") {
                self.nested(command.trim_end_matches(')'), line);
            }
        } else {
            let is_variable =
                |char: char| char.is_ascii_alphanumeric() || "_@*#?!-$".contains(char);
            word.is_dynamic |= self.cursor.peek().is_some_and(is_variable);
        }
    }

    fn backticks(&mut self) {
        let line = self.cursor.line;
        let inner = take_escaped(&mut self.cursor, '`');
        self.word.get_or_insert_default().is_dynamic = true;
        self.nested(&inner, line);
    }

    pub(super) fn nested(&mut self, text: &str, line: usize) {
        if self.depth < DEPTH_MAX {
            let is_test_of_absence = |word: &ShellWord| word.text == "-z" || word.text == "!";
            let is_negated = self.is_negated ^ self.words.iter().any(is_test_of_absence);
            let condition = (self.in_condition, is_negated);
            read_text(text, line, self.depth + 1, self.script, condition);
        }
    }

    /// Returns `true` where `((` begins arithmetic: a command of its own, or the head of a loop.
    pub(super) fn takes_arithmetic(&self) -> bool {
        self.words.iter().all(|word| word.text == "for")
    }

    pub(super) fn skip_arithmetic(&mut self) {
        let mut depth = 2_usize;
        while depth > 0 {
            match self.cursor.take() {
                Some('(') => depth += 1,
                Some(')') => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// Takes text up to a quote that is not escaped, and the quote.
fn take_escaped(cursor: &mut TextCursor<'_>, quote: char) -> String {
    let mut text = String::new();
    while let Some(char) = cursor.take() {
        if char == quote {
            break;
        }
        if char == '\\' {
            text.extend(cursor.take());
        } else {
            text.push(char);
        }
    }
    text
}

/// Takes text up to the bracket that closes one that was taken, and the bracket; all the rest if it is never closed.
pub(super) fn take_balanced<'a>(cursor: &mut TextCursor<'a>, open: char, close: char) -> &'a str {
    let begin = cursor.rest();
    let mut depth = 1_usize;
    let mut quote = None;
    while let Some(char) = cursor.take() {
        match (quote, char) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), _) => {}
            (_, '\\') => {
                cursor.take();
            }
            (None, '\'' | '"') => quote = Some(char),
            // A substitution within double quotes has quotes of its own, which pair up.
            (Some(_), _) => {}
            (None, char) if char == open => depth += 1,
            (None, char) if char == close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let end = begin.len() - cursor.rest().len() - close.len_utf8();
            return begin.get(..end).unwrap_or_default();
        }
    }
    begin
}
