//! Limits on the texts that a command is started with, checked before anything is staged for it. Each error names a way
//! out.

use std::collections::BTreeMap;

use crate::tool_error::{ToolError, ToolResult};

/// Longest text that Linux passes to a program as one argument, or as one `NAME=value`, in bytes.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;
/// Maximum size of a stdin that a request holds, and of a text that is typed at once, in bytes; the daemon's maximum.
const STDIN_BYTES_MAX: usize = 1024 * 1024;
/// Way out for a text that no program can be given.
const LONG_TEXT: &str = "pass long text with stdin or in a file";
/// Maximum number of characters of a variable's name that an error repeats.
const NAME_CHARS_MAX: usize = 80;

/// Checks a command or an argument of a script. `name` is that of the tool's argument.
pub(crate) fn check_argument(name: &str, text: &str) -> ToolResult<()> {
    check_bytes(name, text.len(), ARGUMENT_BYTES_MAX, LONG_TEXT)
}

/// Checks the environment that a call gives.
pub(crate) fn check_environment(env: &BTreeMap<String, String>) -> ToolResult<()> {
    env.iter().try_for_each(|(name, value)| {
        let bytes = name.len() + 1 + value.len();
        let shown: String = name.chars().take(NAME_CHARS_MAX).collect();
        let argument = format!("env.{shown} with its name");
        check_bytes(&argument, bytes, ARGUMENT_BYTES_MAX, LONG_TEXT)
    })
}

/// Checks a text for the stdin of a command. `name` is that of the tool's argument.
pub(crate) fn check_stdin(name: &str, text: &str) -> ToolResult<()> {
    check_bytes(name, text.len(), STDIN_BYTES_MAX, "stage a file instead")
}

fn check_bytes(name: &str, bytes: usize, bytes_max: usize, way_out: &str) -> ToolResult<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(ToolError::ArgumentTooLong {
        argument: name.to_owned(),
        bytes,
        bytes_max,
        way_out: way_out.to_owned(),
    })
}
