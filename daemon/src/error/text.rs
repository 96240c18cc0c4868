//! How an error reads: its faults, its sources, and what it names.

use std::fmt;

/// Longest field of a violation, bytes.
const FIELD_BYTES_MAX: usize = 160;
/// Longest description of a violation, bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;

/// One field of a request that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, for instance `spec.env["FOO BAR"]`.
    pub field: String,
    /// What is wrong and what would be right.
    pub description: String,
}

impl Violation {
    /// What is said of a field, cut to a length that fits into a status: a client chooses what both of them quote.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: cut(field.into(), FIELD_BYTES_MAX),
            description: cut(description.into(), DESCRIPTION_BYTES_MAX),
        }
    }

    /// What it takes in a status, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.field.len() + self.description.len()
    }
}

/// At most so many bytes of a text, in whole characters.
fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// An error with its sources, for the log.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

pub(super) struct Violations<'a>(pub(super) &'a [Violation]);

impl fmt::Display for Violations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(
                f,
                "{separator}{}: {}",
                violation.field, violation.description
            )?;
        }
        Ok(())
    }
}

/// Names an entry of an archive, if it is about one.
pub(super) struct Entry<'a>(pub(super) &'a str);

impl fmt::Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("it ");
        }
        write!(f, "{} ", self.0)
    }
}

pub(super) struct Nearest<'a>(pub(super) &'a [String]);

impl fmt::Display for Nearest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; did you mean {}?", self.0.join(", "))
    }
}

pub(super) struct AtVersion(pub(super) Option<u64>);

impl fmt::Display for AtVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |version| write!(f, "@{version}"))
    }
}
