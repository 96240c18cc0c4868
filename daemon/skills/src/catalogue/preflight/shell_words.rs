//! Splits shell text into simple commands, without running or fully parsing it. Pure.
//!
//! Keywords, functions, patterns of `case`, arithmetic, redirections and the bodies of here documents are no words of
//! commands. Command substitutions are commands of their own. Marks between the commands tell branches and variables.

pub(super) use self::commands::{
    CommentSign, Joint, ShellCommand, ShellMark, ShellScript, ShellWord, sign_of_text,
};
use super::text_cursor::TextCursor;
use word_parts::take_balanced;

mod commands;
mod word_parts;

/// Maximum depth of command substitutions; deeper ones are skipped.
const DEPTH_MAX: usize = 6;
/// Maximum number of commands of one text; further ones are not read.
const COMMANDS_MAX: usize = 10_000;
/// Maximum number of marks between them.
const MARKS_MAX: usize = 4 * COMMANDS_MAX;
/// Maximum number of values of one variable.
pub(super) const VALUES_MAX: usize = 16;
/// Words before a command that belong to the language.
const KEYWORDS: &str = "! { } coproc do done elif else esac fi if then time until while";

/// Here document whose body has not been reached.
#[derive(Debug)]
struct PendingDocument {
    end: String,
    strips_tabs: bool,
    command: usize,
}

/// Reader of one text at one depth.
struct ShellReader<'a, 'b> {
    cursor: TextCursor<'a>,
    script: &'b mut ShellScript,
    depth: usize,
    words: Vec<ShellWord>,
    word: Option<ShellWord>,
    line: usize,
    /// Command that fails before the current one runs.
    fallback_for: Option<usize>,
    /// `true` if the next word belongs to a redirection.
    drops_word: bool,
    pending: Vec<PendingDocument>,
    case_depth: usize,
    in_pattern: bool,
    in_condition: bool,
    is_negated: bool,
    /// Sign of the comment above the current line.
    comment_above: Option<CommentSign>,
    /// Sign of the comment in the current line.
    comment_in_line: Option<CommentSign>,
    is_line_empty: bool,
    keeps_output: bool,
}

/// Splits a text, whose first line has the number `line`, into commands.
pub(super) fn split_commands(text: &str, line: usize) -> ShellScript {
    let mut script = ShellScript::default();
    read_text(text, line, 0, &mut script, (false, false));
    script
}

/// Reads a text at a depth. `condition` is `true` and `true` in a condition, and in a negated one.
fn read_text(
    text: &str,
    line: usize,
    depth: usize,
    script: &mut ShellScript,
    condition: (bool, bool),
) {
    let mut reader = ShellReader {
        cursor: TextCursor::new(text, line),
        script,
        depth,
        words: Vec::new(),
        word: None,
        line,
        fallback_for: None,
        drops_word: false,
        pending: Vec::new(),
        case_depth: 0,
        in_pattern: false,
        in_condition: condition.0,
        is_negated: condition.1,
        comment_above: None,
        comment_in_line: None,
        is_line_empty: true,
        keeps_output: false,
    };
    while reader.script.commands.len() < COMMANDS_MAX && reader.step() {}
    reader.end_command(Joint::End);
}

impl<'a> ShellReader<'a, '_> {
    /// Reads on by one character or construct. Returns `false` at the end.
    fn step(&mut self) -> bool {
        let Some(char) = self.cursor.peek() else {
            return false;
        };
        if self.in_test() && "<>()|&;".contains(char) {
            self.cursor.take();
            self.push(char);
            return true;
        }
        match char {
            '#' if self.word.is_none() => self.comment(),
            '\n' => {
                self.cursor.take();
                self.end_command(Joint::End);
                self.comment_in_line = None;
                if std::mem::replace(&mut self.is_line_empty, true) {
                    self.comment_above = None;
                }
                self.skip_here_documents();
            }
            ' ' | '\t' | '\r' => {
                self.cursor.take();
                self.end_word();
            }
            ';' => self.semicolon(),
            '&' | '|' => self.list_operator(),
            '(' => self.open_parenthesis(),
            ')' => {
                self.cursor.take();
                if self.in_pattern {
                    self.in_pattern = false;
                    self.words.clear();
                    let pattern = self.word.take().unwrap_or_default();
                    self.mark(ShellMark::Case(Some(pattern.text)));
                } else {
                    self.end_command(Joint::End);
                }
            }
            '<' | '>' => self.redirection(),
            _ => self.word_part(char),
        }
        true
    }

    fn in_test(&self) -> bool {
        self.words.first().is_some_and(|word| word.text == "[[")
            && self.words.last().is_some_and(|word| word.text != "]]")
            && self.word.as_ref().is_none_or(|word| word.text != "]]")
    }

    fn mark(&mut self, mark: ShellMark) {
        if self.script.marks.len() < MARKS_MAX {
            self.script.marks.push((self.script.commands.len(), mark));
        }
    }

    fn comment(&mut self) {
        let text = self.cursor.take_while(|char| char != '\n');
        let sign = sign_of_text(text);
        let is_own_line = self.words.is_empty() && std::mem::take(&mut self.is_line_empty);
        match is_own_line {
            true => self.comment_above = sign,
            false => self.comment_in_line = sign,
        }
    }

    fn push(&mut self, char: char) {
        if self.words.is_empty() && self.word.is_none() {
            self.line = self.cursor.line;
        }
        self.word.get_or_insert_default().text.push(char);
    }

    fn push_quoted(&mut self, text: &str) {
        let word = self.word.get_or_insert_default();
        word.text.push_str(text);
        word.is_quoted = true;
    }

    fn semicolon(&mut self) {
        self.cursor.take();
        self.end_command(Joint::End);
        if self.cursor.take_text(";") || self.cursor.take_text("&") {
            self.cursor.take_text("&");
            self.in_pattern = self.case_depth > 0;
            self.mark(ShellMark::Case(None));
        }
    }

    fn list_operator(&mut self) {
        if self.in_pattern {
            self.cursor.take();
            self.end_word();
        } else if self.cursor.take_text("&&") {
            self.end_command(Joint::And);
        } else if self.cursor.take_text("||") {
            self.end_command(Joint::Or);
        } else if self.cursor.take_text("&>") {
            self.end_word();
            self.cursor.take_text(">");
            self.drops_word = true;
        } else if self.cursor.take_text("|") {
            self.cursor.take_text("&");
            self.end_command(Joint::Pipe);
        } else {
            self.cursor.take();
            self.end_command(Joint::End);
        }
    }

    fn open_parenthesis(&mut self) {
        self.cursor.take();
        if self.in_pattern {
            return;
        }
        match self.word.take() {
            // An array: its items are no commands.
            Some(word) if word.text.ends_with('=') => {
                let items = take_balanced(&mut self.cursor, '(', ')');
                let name = word.text.trim_end_matches(['=', '+']);
                self.values(name, items.split_whitespace().map(plain_word));
                self.word = Some(word);
            }
            Some(word) => {
                let mut ahead = self.cursor;
                ahead.take_while(|char| char == ' ');
                if self.words.iter().all(|word| word.text == "function") && ahead.take_text(")") {
                    self.cursor = ahead;
                    self.mark(ShellMark::Function(word.text));
                } else {
                    // `name(x)` is no shell: the rest of the line means something else.
                    self.cursor.take_while(|char| char != '\n');
                }
                self.words.clear();
            }
            None if self.takes_arithmetic() && self.cursor.take_text("(") => {
                self.skip_arithmetic();
            }
            None => self.open_subshell(),
        }
    }

    /// Begins a subshell; `name ()` defines a function.
    fn open_subshell(&mut self) {
        let mut ahead = self.cursor;
        ahead.take_while(|char| char == ' ');
        if let ([word], true) = (self.words.as_slice(), ahead.take_text(")")) {
            let name = word.text.clone();
            self.mark(ShellMark::Function(name));
            self.cursor = ahead;
            self.words.clear();
        } else {
            self.end_command(Joint::End);
        }
    }

    fn redirection(&mut self) {
        let line = self.cursor.line;
        let is_output = self.cursor.peek() == Some('>');
        let descriptor = |word: &ShellWord| word.text.bytes().all(|byte| byte.is_ascii_digit());
        if self.word.as_ref().is_some_and(descriptor) {
            self.word = None;
        }
        self.end_word();
        if self.cursor.take_text("<<<") {
            self.drops_word = true;
        } else if self.cursor.take_text("<<") {
            let strips_tabs = self.cursor.take_text("-");
            self.cursor.take_while(|char| char == ' ');
            let word = self
                .cursor
                .take_while(|char| !char.is_whitespace() && !"|&;<>)".contains(char));
            let end: String = word.chars().filter(|c| !"'\"\\".contains(*c)).collect();
            if !end.is_empty() {
                let command = self.script.commands.len();
                self.pending.push(PendingDocument {
                    end,
                    strips_tabs,
                    command,
                });
            }
        } else if self.cursor.take_text("<(") || self.cursor.take_text(">(") {
            let inner = take_balanced(&mut self.cursor, '(', ')');
            self.nested(inner, line);
        } else {
            self.cursor.take();
            let is_operator = |char| matches!(char, '>' | '<' | '&' | '|');
            let operator = self.cursor.take_while(is_operator);
            let target = self.cursor.rest().trim_start();
            self.keeps_output |=
                is_output && !operator.contains('&') && !target.starts_with("/dev/null");
            self.drops_word = true;
        }
    }

    fn skip_here_documents(&mut self) {
        for document in std::mem::take(&mut self.pending) {
            let mut body = String::new();
            while !self.cursor.rest().is_empty() {
                let line = self.cursor.take_line();
                let line = match document.strips_tabs {
                    true => line.trim_start_matches('\t'),
                    false => line,
                };
                if line == document.end {
                    break;
                }
                body.push_str(line);
                body.push('\n');
            }
            if let Some(command) = self.script.commands.get_mut(document.command) {
                command.here_document = Some(body);
            }
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else {
            return;
        };
        if std::mem::take(&mut self.drops_word) {
            return;
        }
        if self.in_pattern {
            if word.text == "esac" && !word.is_quoted {
                self.end_case();
            }
            return;
        }
        if self.words.is_empty() && !word.is_quoted && super::has_word(KEYWORDS, &word.text) {
            self.keyword(&word.text);
            return;
        }
        self.words.push(word);
        let head = |index: usize| self.words.get(index).map_or("", |word| word.text.as_str());
        if self.words.len() == 3 && (head(0), head(2)) == ("case", "in") {
            self.words.clear();
            self.case_depth += 1;
            self.in_pattern = true;
        } else if self.words.len() == 2 && head(0) == "function" {
            let name = head(1).to_owned();
            self.mark(ShellMark::Function(name));
            self.words.clear();
        }
    }

    fn end_case(&mut self) {
        self.case_depth = self.case_depth.saturating_sub(1);
        self.in_pattern = false;
        self.words.clear();
        self.mark(ShellMark::Case(None));
    }

    /// Reads a word of the language before a command.
    fn keyword(&mut self, word: &str) {
        let mark = match word {
            "!" => {
                self.is_negated = !self.is_negated;
                return;
            }
            "esac" => return self.end_case(),
            "if" => ShellMark::If,
            "then" => ShellMark::Then,
            "elif" => ShellMark::Elif,
            "else" => ShellMark::Else,
            "fi" => ShellMark::Fi,
            "{" => {
                // A group of commands reports the failure more often than it does the same in another way.
                self.fallback_for = None;
                ShellMark::OpenBrace
            }
            "}" => ShellMark::CloseBrace,
            _ => {
                self.in_condition = match word {
                    "while" | "until" => true,
                    "do" | "done" => false,
                    _ => return,
                };
                return;
            }
        };
        if !matches!(mark, ShellMark::OpenBrace | ShellMark::CloseBrace) {
            self.in_condition = matches!(mark, ShellMark::If | ShellMark::Elif);
        }
        self.mark(mark);
    }

    fn values(&mut self, name: &str, values: impl Iterator<Item = ShellWord>) {
        for value in values.take(VALUES_MAX) {
            self.mark(ShellMark::Value(name.to_owned(), value));
        }
    }

    /// Ends the current command, which an operator follows.
    fn end_command(&mut self, next: Joint) {
        self.end_word();
        self.drops_word = false;
        let mut words = std::mem::take(&mut self.words).into_iter().peekable();
        let fallback_for = self.fallback_for.take();
        while let Some(word) = words.next_if(|word| is_assignment(&word.text)) {
            if let Some((name, value)) = split_assignment(&word) {
                self.values(name, std::iter::once(value));
            }
        }
        let words: Vec<ShellWord> = words.collect();
        let Some(first) = words.first() else {
            return;
        };
        self.is_line_empty = false;
        let is_negated = std::mem::take(&mut self.is_negated);
        match first.text.as_str() {
            "for" | "select" => {
                let name = words
                    .get(1)
                    .map_or("", |word| word.text.as_str())
                    .to_owned();
                // `for name` takes the arguments of the function.
                let arguments = (words.len() == 2).then(|| plain_word("$@"));
                let values = words.into_iter().skip(3).chain(arguments);
                self.values(&name, values);
            }
            "case" => {}
            _ => {
                self.fallback_for = (next == Joint::Or).then_some(self.script.commands.len());
                self.script.commands.push(ShellCommand {
                    words,
                    line: self.line,
                    next,
                    fallback_for,
                    is_condition: self.in_condition,
                    is_negated,
                    comment: self.comment_in_line.or(self.comment_above),
                    keeps_output: std::mem::take(&mut self.keeps_output),
                    here_document: None,
                });
            }
        }
    }
}

/// Returns a word that is not split any further.
fn plain_word(text: &str) -> ShellWord {
    let text = text.trim_matches(['"', '\'']);
    ShellWord {
        text: text.to_owned(),
        is_dynamic: text.contains('$'),
        is_quoted: true,
    }
}

/// Returns the variable and the value of an assignment.
pub(super) fn split_assignment(word: &ShellWord) -> Option<(&str, ShellWord)> {
    let (name, value) = word.text.split_once('=')?;
    let value = ShellWord {
        text: value.to_owned(),
        ..*word
    };
    Some((name.trim_end_matches('+'), value))
}

/// Returns `true` for `name=value`, `name+=value` and `name[index]=value`.
fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else {
        return false;
    };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split('[').next().unwrap_or_default();
    let is_start = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    is_start && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests;
