//! Problems of skills and roots, for the operator and the skill's author.

use std::path::Path;

/// Code of the problem that a skill is staged without the files that it shares within its plugin.
pub(crate) const PLUGIN_FILES_NOT_STAGED: &str = "plugin.files_not_staged";

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
    /// Folder of the skill, or the root.
    pub subject: String,
    /// Description of the problem and its remedy.
    pub message: String,
    /// First line of SKILL.md that it concerns; 0 if none.
    pub line: usize,
}

impl Problem {
    /// Makes a warning without a subject.
    #[must_use]
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
    #[must_use]
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            ..Self::warning(code, message)
        }
    }

    /// Returns `true` if the problem makes the skill or root unusable.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Sets the line of SKILL.md.
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
