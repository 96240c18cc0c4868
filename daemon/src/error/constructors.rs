//! Constructors of errors that many places make.

use std::io;

use super::{Error, Violation};

impl Error {
    /// Makes an error with one violation of one field.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::Invalid(vec![Violation::new(field, description)])
    }

    /// Makes the error of an operation on the host, for instance `read /var/lib/…`.
    pub(crate) fn io(operation: impl Into<String>, source: io::Error) -> Self {
        let operation = operation.into();
        Self::Io { operation, source }
    }
}
