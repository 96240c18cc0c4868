//! What somebody should look at: of a skill, or of a place that skills come from.

use std::path::Path;

/// How much a problem matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// It works.
    Warning,
    /// It cannot be used.
    Error,
}

/// Something about a skill or a root that somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    /// How much it matters.
    pub severity: Severity,
    /// Stable, for programs: for instance `skill.no_name`.
    pub code: &'static str,
    /// Folder of the skill, or the root.
    pub subject: String,
    /// What is wrong and what to do.
    pub message: String,
    /// First line of SKILL.md that it concerns; 0 if none.
    pub line: usize,
}

impl Problem {
    pub(crate) fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            code,
            subject: String::new(),
            message: message.into(),
            line: 0,
        }
    }

    pub(crate) fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            ..Self::warning(code, message)
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    pub(crate) fn at(self, line: usize) -> Self {
        Self { line, ..self }
    }

    pub(crate) fn about(self, subject: &Path) -> Self {
        Self {
            subject: subject.display().to_string(),
            ..self
        }
    }
}
