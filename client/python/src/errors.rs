//! Converts errors of calls to the exceptions of `skilld.errors`.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use skilld_client::{Error, Failure, code_name};
use skilld_tools::ToolError;

/// Error of a call, before the interpreter is at hand.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The daemon refused, or could not be reached.
    Client(Error),
    /// A tool or its options.
    Tool(ToolError),
    /// Argument that cannot be used; holds the message.
    Argument(String),
    /// Refusal of this package, with its reason and message.
    Refused(&'static str, String),
}

/// Returns `false` for a missing resource, so that callers can remove what may be gone.
pub(crate) fn was_found<T>(answer: Result<T, Error>) -> Result<bool, CallError> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code().map(code_name).as_deref() == Some("NOT_FOUND") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<ToolError> for CallError {
    fn from(error: ToolError) -> Self {
        Self::Tool(error)
    }
}

impl CallError {
    /// Returns the exception of `skilld.errors` for this error.
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Client(error) => client_exception(py, &error),
            Self::Tool(ToolError::Daemon(error)) => client_exception(py, &error),
            Self::Tool(error) => make_exception(
                py,
                ("INVALID_ARGUMENT", Some(error.code()), &error.to_string()),
            ),
            Self::Argument(message) => invalid_argument(py, &message),
            Self::Refused(reason, message) => make_exception(py, ("", Some(reason), &message)),
        }
    }
}

/// Returns the exception for an argument that cannot be used.
pub(crate) fn invalid_argument(py: Python<'_>, message: &str) -> PyErr {
    make_exception(py, ("INVALID_ARGUMENT", Some("INVALID_REQUEST"), message))
}

/// Returns `true` for exceptions that this module makes.
pub(crate) fn is_own_exception(py: Python<'_>, error: &PyErr) -> bool {
    let attribute = error.value(py).hasattr("retry_after");
    attribute.unwrap_or(false)
}

fn make_exception(py: Python<'_>, (code, reason, message): (&str, Option<&str>, &str)) -> PyErr {
    raise(py, (code, reason, message, None::<&str>, None::<f64>))
}

fn client_exception(py: Python<'_>, error: &Error) -> PyErr {
    let failure = error.failure();
    let code = failure.map_or(String::new(), |failure| code_name(failure.code));
    let reason = failure
        .and_then(|failure| failure.reason)
        .map(|reason| reason.error_info_name())
        .or_else(|| local_reason(error));
    let hint = match error {
        Error::Connect { hint, .. } => Some(hint.as_str()),
        Error::Endpoint { .. }
        | Error::Credential { .. }
        | Error::Status(_)
        | Error::StreamLost { .. }
        | Error::Io { .. }
        | Error::Pack { .. }
        | Error::UnsafeName { .. }
        | Error::Checksum { .. }
        | Error::Protocol { .. } => None,
    };
    let retry_after = failure.and_then(|Failure { retry_after, .. }| *retry_after);
    let retry_after = retry_after.map(|time| time.as_secs_f64());
    raise(py, (code, reason, error.to_string(), hint, retry_after))
}

/// Returns the reason for an error that is not an answer of the daemon.
fn local_reason(error: &Error) -> Option<&'static str> {
    match error {
        Error::Connect { .. } => Some("CONNECTION_FAILED"),
        Error::Endpoint { .. } => Some("INVALID_ENDPOINT"),
        Error::Credential { .. } => Some("INVALID_CREDENTIAL"),
        Error::StreamLost { .. } => Some("STREAM_LOST"),
        Error::Io { .. } => Some("LOCAL_FILE"),
        Error::Pack { .. } => Some("SKILL_NOT_PACKED"),
        Error::UnsafeName { .. } => Some("UNSAFE_NAME"),
        Error::Checksum { .. } => Some("CHECKSUM_MISMATCH"),
        Error::Protocol { .. } => Some("PROTOCOL"),
        Error::Status(_) => None,
    }
}

/// Calls `skilld.errors._make` with the parts of an error.
fn raise<'py>(py: Python<'py>, parts: impl for<'a> pyo3::call::PyCallArgs<'a>) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = MAKE
        .import(py, "skilld.errors", "_make")
        .and_then(|make| make.call1(parts));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => PyImportError::new_err(format!("skilld.errors cannot be used: {error}")),
    }
}
