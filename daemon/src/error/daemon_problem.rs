//! Problem that an operator should solve.

use std::time::SystemTime;

/// Problem of a pool, of the host, of a file or of the audit log, which ListProblems shows to operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonProblem {
    /// Stable code, for programs.
    pub code: &'static str,
    /// `false` if the daemon or the operator is expected to do what the problem waits for.
    pub is_error: bool,
    /// Name of the pool or container, path of the directory, or configuration key of the file.
    pub subject: String,
    /// Problem and remedy.
    pub message: String,
    /// Time at which the problem began, or was found.
    pub time: SystemTime,
}
