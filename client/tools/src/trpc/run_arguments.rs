//! Arguments of `skill_run` and `skill_exec`, as a model gives them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input_staging::InputArgument;

/// Arguments of `skill_run` and `skill_exec`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct RunArguments {
    /// Name of the skill to run in.
    pub(super) skill: String,
    /// Shell command, run by bash in the skill's folder.
    pub(super) command: String,
    /// Where to start: beneath the skill's folder, or `$WORK_DIR/…`, `$OUTPUT_DIR/…`, `/out/…`. The skill's folder if
    /// it is left out.
    pub(super) cwd: String,
    /// Environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// Text for the standard input of the command.
    pub(super) stdin: String,
    /// Text that a program reads back when it opens $EDITOR.
    pub(super) editor_text: String,
    /// Globs of files to return, for instance `$OUTPUT_DIR/**`. Takes the place of `outputs`.
    pub(super) output_files: Vec<String>,
    /// Files to return, as output_files, with limits on their number and size. Ignored if output_files is given.
    pub(super) outputs: Option<Outputs>,
    /// Files to put into the workspace first.
    pub(super) inputs: Vec<InputArgument>,
    /// Seconds; 300 if it is left out, of a session as long as the host permits.
    pub(super) timeout: i64,
    /// Save the returned files as artifacts, which outlive the workspace.
    pub(super) save_as_artifacts: bool,
    /// Return names, sizes and references of files without their text, or with it if this is false.
    pub(super) omit_inline_content: Option<bool>,
    /// Prefix for the names of artifacts.
    pub(super) artifact_prefix: String,
    /// Run the command in a terminal.
    pub(super) tty: bool,
    /// Close its stdin after `stdin`.
    pub(super) eof: bool,
    /// Milliseconds to wait for its first output; 1000 if it is left out.
    pub(super) yield_ms: i64,
    /// Lines to return at most; as many as fit if it is left out.
    pub(super) poll_lines: i64,
}

/// Files to return, with limits on them and whether to save them as artifacts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Outputs {
    /// Globs of files to return, for instance `$OUTPUT_DIR/**` or `work/*.csv`.
    pub(super) globs: Vec<String>,
    /// Return the text of text files.
    pub(super) inline: bool,
    /// Save the files as artifacts, which outlive the workspace.
    pub(super) save: bool,
    /// Prefix for the names of artifacts.
    pub(super) name_template: String,
    /// Maximum number of files; 100 if it is left out.
    pub(super) max_files: i64,
    /// Maximum bytes of one file, which is cut there; 4 MiB if it is left out.
    pub(super) max_file_bytes: i64,
    /// Maximum bytes of all files together; 64 MiB if it is left out.
    pub(super) max_total_bytes: i64,
}
