//! Problems of skills and roots, for the operator and the skill's author.

use std::fmt::Display;
use std::path::Path;

/// Code of the problem that a skill is staged without some or all of the files that it shares within its plugin.
pub(crate) const PLUGIN_FILES_NOT_STAGED: &str = "plugin.files_not_staged";
/// Code of the problem that a skill lacks entries of its folder or archive.
const LEFT_OUT: &str = "skill.left_out";
/// Size in bytes of the names and reasons of left out entries at which the others are only counted.
const LEFT_OUT_NAMED_BYTES: usize = 300;

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The skill or root works.
    Warning,
    /// The skill or root cannot be used.
    Error,
}

/// Problem of a skill or a root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Severity of the problem.
    pub severity: Severity,
    /// Stable, for programs: for instance `skill.no_name`.
    pub code: &'static str,
    /// Folder of the skill, the root, or a file of the skill.
    pub subject: String,
    /// Description of the problem and its remedy.
    pub message: String,
    /// First line of that file, or of SKILL.md, that it concerns; 0 if none.
    pub line: usize,
}

impl Problem {
    /// Makes a warning without a subject.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            code,
            subject: String::new(),
            message: message.into(),
            line: 0,
        }
    }

    /// Makes an error without a subject.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            ..Self::warning(code, message)
        }
    }

    /// Returns `true` if the problem makes the skill or root unusable.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Sets the line.
    #[must_use]
    pub fn at(self, line: usize) -> Self {
        Self { line, ..self }
    }

    /// Sets the subject: the folder of the skill, or the root.
    #[must_use]
    pub fn about(self, subject: &Path) -> Self {
        Self {
            subject: subject.display().to_string(),
            ..self
        }
    }
}

/// Entries of a folder or archive that no skill can have, and that are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeftOutEntries {
    /// First ones, each with its reason.
    named: Vec<String>,
    /// Number of all.
    pub(crate) total: u64,
}

impl LeftOutEntries {
    /// Adds an entry. The reason completes a sentence that begins with the entry.
    pub(crate) fn add(&mut self, entry: impl Display, reason: impl Display) {
        self.total += 1;
        if self.named.iter().map(String::len).sum::<usize>() < LEFT_OUT_NAMED_BYTES {
            self.named.push(format!("{entry} {reason}"));
        }
    }

    /// Names the first entries with their reasons, and counts the others.
    pub(crate) fn list(&self) -> String {
        let named = self.named.join("; ");
        match self.total.saturating_sub(self.named.len() as u64) {
            0 => named,
            more => format!("{named}; and {more} more"),
        }
    }

    /// Describes the entries; `None` if there are none.
    pub(crate) fn describe(&self) -> Option<String> {
        let text = format!(
            "left out, since no skill can have such entries: {}",
            self.list()
        );
        (self.total > 0).then_some(text)
    }

    /// Describes the entries as the end of a sentence; empty if there are none.
    pub(crate) fn appendix(&self) -> String {
        let text = self.describe();
        text.map_or_else(String::new, |text| format!("; {text}"))
    }

    /// Returns the warning of a skill without these entries; `None` if there are no entries.
    pub(crate) fn warning(&self) -> Option<Problem> {
        let text = self.describe()?;
        Some(Problem::warning(LEFT_OUT, text))
    }
}
