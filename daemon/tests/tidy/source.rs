//! A source file as the rules see it: its path, its text, and which lines are code of the product.

use std::fmt;

/// Violation of one rule at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path relative to the repository.
    pub(crate) path: String,
    /// Line number from 1; 0 if the finding is about the whole file or directory.
    pub(crate) line: usize,
    /// Description of the violation and what to do about it.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            message,
        } = self;
        match line {
            0 => write!(formatter, "{path}: {message}"),
            _ => write!(formatter, "{path}:{line}: {message}"),
        }
    }
}

/// Text file of the repository.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceFile<'a> {
    /// Path relative to the repository.
    pub(crate) path: &'a str,
    /// Whole contents.
    pub(crate) text: &'a str,
}

impl<'a> SourceFile<'a> {
    /// Returns `true` for code of a program or library: beneath a `src/` and not a file of tests.
    pub(crate) fn is_product(&self) -> bool {
        let in_tests = self.path.starts_with("tests/") || self.path.contains("/tests/");
        self.path.contains("src/") && !in_tests && !self.path.ends_with("/tests.rs")
    }

    /// Returns the lines of code with their numbers, without comments and test modules.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let numbered = self.text.lines().enumerate();
        numbered
            .take(self.product_line_count())
            .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
    }

    /// Returns the number of lines before the test module at the end of the file.
    pub(crate) fn product_line_count(&self) -> usize {
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        let tests = lines.windows(2).position(|pair| {
            pair.first() == Some(&"#[cfg(test)]")
                && pair.last().is_some_and(|line| line.contains('{'))
        });
        tests.filter(|_| self.is_product()).unwrap_or(lines.len())
    }

    /// Builds a finding at a line of this file.
    pub(crate) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            path: self.path.to_owned(),
            line,
            message: message.into(),
        }
    }

    /// Returns a finding for every line of code that matches a predicate.
    pub(crate) fn findings_where(
        &self,
        message: &str,
        is_bad: impl Fn(&str) -> bool,
    ) -> Vec<Finding> {
        let bad = self.code_lines().filter(|(_, line)| is_bad(line));
        bad.map(|(number, _)| self.finding(number, message))
            .collect()
    }
}

/// Returns `true` if a character can be part of a Rust identifier.
pub(crate) fn is_identifier_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// Returns the identifier at the beginning of a text; empty if there is none.
pub(crate) fn leading_identifier(text: &str) -> &str {
    let end = text.find(|char| !is_identifier_char(char));
    text.get(..end.unwrap_or(text.len())).unwrap_or_default()
}

/// Returns `true` if a line contains a word that is not part of a longer identifier.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|head| head.chars().next_back());
        let after = line
            .get(at + word.len()..)
            .and_then(|tail| tail.chars().next());
        !before.is_some_and(is_identifier_char) && !after.is_some_and(is_identifier_char)
    })
}

/// Returns a line without the contents of its string literals.
pub(crate) fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}
