//! Translates errors about fields of the daemon's requests into errors about the tool's arguments.

use skilld_client::v1::ErrorReason;

use crate::tool_error::ToolError;

/// Translator of errors about request fields, with the names of the tool's arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldErrorTranslator<'a> {
    /// Globs as they were sent.
    pub(super) globs: &'a [String],
    /// Argument that the globs come from.
    pub(super) globs_argument: &'static str,
    /// Argument that the prefix of the artifacts' names comes from.
    pub(super) prefix_argument: &'static str,
    /// Argument that bounds the time of a command.
    pub(super) timeout: &'static str,
}

/// Prefixes of the fields of a request.
const PREFIXES: [&str; 3] = ["outputs.spec.", "spec.planned_collect.", "spec."];

impl<'a> FieldErrorTranslator<'a> {
    /// Returns the translator of a tool that collects no files and has this argument for the time of a command.
    pub(super) const fn with_timeout(timeout: &'static str) -> Self {
        Self {
            globs: &[],
            globs_argument: "output_files",
            prefix_argument: "artifact_prefix",
            timeout,
        }
    }

    /// Returns the glob that a field of a request names.
    pub(super) fn glob(&self, field: &str) -> Option<&'a String> {
        let index = strip_prefix(field)
            .strip_prefix("globs[")?
            .strip_suffix(']')?;
        self.globs.get(index.parse::<usize>().ok()?)
    }

    /// Returns the name of the argument that a field of a request comes from.
    pub(super) fn argument_name(&self, field: &str) -> String {
        if let Some(glob) = self.glob(field) {
            return format!("{} {glob:?}", self.globs_argument);
        }
        let path = strip_prefix(field);
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (first, rest) = path.split_at(end);
        match (first, rest) {
            ("globs", _) => self.globs_argument.to_owned(),
            ("save_as_artifacts", ".prefix") => self.prefix_argument.to_owned(),
            ("max_files" | "max_file_bytes" | "max_total_bytes", _) => format!("outputs.{first}"),
            ("shell" | "argv", _) => "command".to_owned(),
            ("stdin_data", _) => "stdin".to_owned(),
            ("inputs", _) => input_argument(path),
            ("timeout", _) => self.timeout.to_owned(),
            _ => path.to_owned(),
        }
    }

    /// Converts a refusal by the daemon into a mistake in the arguments, if it is one; returns any other error
    /// unchanged.
    pub(super) fn translate(&self, error: ToolError) -> ToolError {
        let ToolError::Daemon(daemon) = &error else {
            return error;
        };
        let Some(failure) = daemon.failure() else {
            return error;
        };
        let shown = failure.metadata.get("path").cloned().unwrap_or_default();
        let problem = match failure.reason {
            Some(ErrorReason::InvalidRequest) if is_of_arguments(failure) => {
                let violations = failure.violations.iter();
                let problems = violations.map(|fault| {
                    let argument = self.argument_name(&fault.field);
                    format!("{argument}: {}", fault.description)
                });
                problems.collect::<Vec<_>>().join("; ")
            }
            Some(ErrorReason::PathEscapes) if self.globs.contains(&shown) => {
                let argument = self.globs_argument;
                format!("{argument} {shown:?}: leads out of the workspace")
            }
            Some(ErrorReason::PathEscapes) => {
                format!("{shown:?} leads out of the workspace: paths are relative to it")
            }
            Some(ErrorReason::ReadOnly) => {
                format!("{shown:?} is read-only: write to work/ or out/ instead")
            }
            _ => return error,
        };
        ToolError::arguments(problem)
    }
}

/// Returns `true` if all faults are about what a call can choose, and none about the host's options.
fn is_of_arguments(failure: &skilld_client::Failure) -> bool {
    let of_call = |field: &str| {
        let is_known = ["spec.", "inputs", "outputs."]
            .iter()
            .any(|prefix| field.starts_with(prefix));
        is_known && !field.starts_with("spec.programs")
    };
    let mut violations = failure.violations.iter();
    !failure.violations.is_empty() && violations.all(|fault| of_call(&fault.field))
}

/// Returns the argument of an input: the tool calls its source and destination `from` and `to`.
fn input_argument(path: &str) -> String {
    match path.rsplit_once('.') {
        Some((input, "source" | "data")) => format!("{input}.from"),
        Some((input, "path")) => format!("{input}.to"),
        Some(_) | None => path.to_owned(),
    }
}

/// Returns a field without its prefix.
fn strip_prefix(field: &str) -> &str {
    let mut prefixes = PREFIXES.iter();
    let path = prefixes.find_map(|prefix| field.strip_prefix(prefix));
    path.unwrap_or(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_fields_are_named_by_the_argument_they_come_from() {
        let globs = ["out/a".to_owned(), "$NOPE/b".to_owned()];
        let translator = FieldErrorTranslator {
            globs: &globs,
            ..FieldErrorTranslator::with_timeout("timeout")
        };
        for (field, wanted) in [
            ("spec.planned_collect.globs[1]", "output_files \"$NOPE/b\""),
            ("spec.globs[0]", "output_files \"out/a\""),
            ("spec.planned_collect.globs[7]", "output_files"),
            ("spec.save_as_artifacts.prefix", "artifact_prefix"),
            ("spec.planned_collect.max_files", "outputs.max_files"),
            ("spec.shell", "command"),
            ("spec.argv[0]", "command"),
            ("spec.stdin_data", "stdin"),
            ("spec.cwd", "cwd"),
            ("spec.env[\"A=B\"]", "env[\"A=B\"]"),
            ("spec.timeout", "timeout"),
            ("inputs[2].source", "inputs[2].from"),
            ("inputs[2].path", "inputs[2].to"),
            ("inputs[2].mode", "inputs[2].mode"),
        ] {
            assert_eq!(translator.argument_name(field), wanted);
        }
    }
}
