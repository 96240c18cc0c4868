//! Splits shell text into simple commands, without running or fully parsing it. Pure.
//!
//! Keywords, functions, patterns of `case`, conditions in `[[ ]]`, arithmetic, redirections and the bodies of here
//! documents are no words of commands. Command substitutions are commands of their own.

use std::collections::HashSet;

use super::text_cursor::TextCursor;
use word_parts::take_balanced;

mod word_parts;

/// Maximum depth of command substitutions; deeper ones are skipped.
const DEPTH_MAX: usize = 6;
/// Maximum number of commands of one text; further ones are not read.
const COMMANDS_MAX: usize = 10_000;
/// Words before a command that belong to the language.
const KEYWORDS: &str = "! { } coproc do done elif else esac fi if then time until while";

/// Operator after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joint {
    /// End of the list.
    End,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `|`
    Pipe,
}

/// Word of a command, without its quotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ShellWord {
    /// Text with expansions as they are written.
    pub(super) text: String,
    /// `true` if some of it is only known when the command runs.
    pub(super) is_dynamic: bool,
    /// `true` if some of it is quoted.
    pub(super) is_quoted: bool,
}

/// Simple command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShellCommand {
    /// Program and arguments; never empty.
    pub(super) words: Vec<ShellWord>,
    /// Line of the first word.
    pub(super) line: usize,
    /// Operator after the command.
    pub(super) next: Joint,
    /// Index of the command that fails before this one runs: `this` in `that || this`.
    pub(super) fallback_for: Option<usize>,
    /// `true` if the command is a condition that is not negated.
    pub(super) is_condition: bool,
    /// Body of a here document that the command reads.
    pub(super) here_document: Option<String>,
}

/// Commands of a text, and the names that the text itself defines.
#[derive(Debug, Default)]
pub(super) struct ShellScript {
    pub(super) commands: Vec<ShellCommand>,
    pub(super) functions: HashSet<String>,
}

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
}

/// Splits a text, whose first line has the number `line`, into commands.
pub(super) fn split_commands(text: &str, line: usize) -> ShellScript {
    let mut script = ShellScript::default();
    read_text(text, line, 0, &mut script);
    script
}

fn read_text(text: &str, line: usize, depth: usize, script: &mut ShellScript) {
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
            '#' if self.word.is_none() => {
                self.cursor.take_while(|char| char != '\n');
            }
            '\n' => {
                self.cursor.take();
                self.end_command(Joint::End);
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
                    self.word = None;
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
                take_balanced(&mut self.cursor, '(', ')');
                self.word = Some(word);
            }
            Some(word) => {
                let mut ahead = self.cursor;
                ahead.take_while(|char| char == ' ');
                if self.words.iter().all(|word| word.text == "function") && ahead.take_text(")") {
                    self.cursor = ahead;
                    self.script.functions.insert(word.text);
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
            self.script.functions.insert(word.text.clone());
            self.cursor = ahead;
            self.words.clear();
        } else {
            self.end_command(Joint::End);
        }
    }

    fn redirection(&mut self) {
        let line = self.cursor.line;
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
            self.cursor.take_while(is_operator);
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
        let is_test_end = word.text == "]]" && self.in_test();
        self.words.push(word);
        let head = |index: usize| self.words.get(index).map_or("", |word| word.text.as_str());
        if is_test_end {
            self.words.clear();
        } else if self.words.len() == 3 && (head(0), head(2)) == ("case", "in") {
            self.words.clear();
            self.case_depth += 1;
            self.in_pattern = true;
        } else if self.words.len() == 1 && head(0) == "esac" && self.case_depth > 0 {
            self.end_case();
        } else if self.words.len() == 2 && head(0) == "function" {
            let name = head(1).to_owned();
            self.script.functions.insert(name);
            self.words.clear();
        }
    }

    fn end_case(&mut self) {
        self.case_depth = self.case_depth.saturating_sub(1);
        self.in_pattern = false;
        self.words.clear();
    }

    /// Ends the current command, which an operator follows.
    fn end_command(&mut self, next: Joint) {
        self.end_word();
        self.drops_word = false;
        let mut words = std::mem::take(&mut self.words).into_iter().peekable();
        let (mut is_condition, mut is_negated) = (false, false);
        let is_keyword =
            |word: &ShellWord| !word.is_quoted && super::has_word(KEYWORDS, &word.text);
        let mut fallback_for = self.fallback_for.take();
        while let Some(word) = words.next_if(is_keyword) {
            // A group of commands reports the failure more often than it does the same in another way.
            fallback_for = fallback_for.filter(|_| word.text != "{");
            is_condition |= matches!(word.text.as_str(), "if" | "elif" | "while");
            is_negated |= word.text == "!";
        }
        let words = words.skip_while(|word| is_assignment(&word.text));
        let words: Vec<ShellWord> = words.collect();
        let heads = ["for", "select", "[[", "case"];
        let Some(first) = words.first() else {
            return;
        };
        if !heads.contains(&first.text.as_str()) {
            self.fallback_for = (next == Joint::Or).then_some(self.script.commands.len());
            self.script.commands.push(ShellCommand {
                words,
                line: self.line,
                next,
                fallback_for,
                is_condition: is_condition && !is_negated,
                here_document: None,
            });
        }
    }
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
