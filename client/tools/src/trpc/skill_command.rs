//! Prepares the command of `skill_run` and `skill_exec`: arguments, rules of the host, skill and inputs, and the
//! specification for the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_client::v1::ExecSpec;

use super::command_policy;
use super::input_staging::{self, InputArgument};
use super::output_files::Outputs;
use super::run_result::StagedFile;
use super::scripted_editor::ScriptedEditor;
use crate::call_context::{CallContext, ToolsetContext};
use crate::command_limits;
use crate::host_environment::add_host_variables;
use crate::package_warnings::describe_staging_problems;
use crate::skill_lookup::{self, pinned_reference, skill_id};
use crate::skill_staging::stage_command_skill;
use crate::tool_error::{ToolError, ToolResult};
use crate::workspace_path;

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

/// Command that is ready to run, with its skill and inputs staged.
#[derive(Debug)]
pub(super) struct PreparedCommand {
    pub(super) workspace: String,
    pub(super) exec_id: String,
    pub(super) spec: ExecSpec,
    pub(super) staged: Vec<StagedFile>,
    /// Warnings about the host's variables that the command does not get, and loaded skills that are not there.
    pub(super) warnings: Vec<String>,
    /// Warning about packages that the skill lacks; it matters if the command fails.
    pub(super) package_warning: Option<String>,
}

/// Checks a command, stages its skill and inputs, and specifies it. Nothing is staged if the host's rules are against
/// it.
pub(super) async fn prepare_command(
    call: CallContext<'_>,
    run: &RunArguments,
) -> ToolResult<PreparedCommand> {
    let (skill, command) = (run.skill.trim(), run.command.trim());
    if skill.is_empty() || command.is_empty() {
        return Err(ToolError::arguments("skill and command are required"));
    }
    command_limits::check_argument("command", &run.command)?;
    command_limits::check_environment(&run.env)?;
    command_limits::check_stdin("stdin", &run.stdin)?;
    let tools = call.tools;
    let skill = find_skill_to_run(call, skill).await?;
    let exec_id = call.exec_id();
    let editor = ScriptedEditor {
        text: &run.editor_text,
        exec_id: &exec_id,
    };
    let mut spec = ExecSpec {
        env: run.env.clone(),
        cwd: workspace_path::working_directory(&run.cwd),
        timeout: choose_timeout(tools, run.timeout),
        ..ExecSpec::default()
    };
    if !run.editor_text.is_empty() {
        spec.env.extend(editor.environment(&run.env)?);
    }
    command_policy::set_command(call, &run.command, &mut spec)?;
    let mut warnings = add_host_variables(&tools.options.env, &mut spec.env);
    let (workspace, staged, unstaged) = stage_command_skill(call.context, &skill).await?;
    warnings.extend(unstaged);
    let files = input_staging::stage_arguments(call, &workspace, &run.inputs).await?;
    let package_warning = describe_staging_problems(&staged);
    // The call may have used another name of the skill than the one that it is staged under.
    spec.programs = command_policy::list_programs(&tools.options, Some(&staged.name));
    spec.skill = staged.name;
    if !run.editor_text.is_empty() {
        editor.upload(tools, &workspace).await?;
    }
    Ok(PreparedCommand {
        workspace,
        exec_id,
        spec,
        staged: files,
        warnings,
        package_warning,
    })
}

/// Returns the reference for staging the skill of a command. If the host requires a loaded skill, the skill counts, by
/// whatever name the call uses, in the version that is loaded: the current one.
async fn find_skill_to_run(call: CallContext<'_>, asked: &str) -> ToolResult<String> {
    let tools = call.tools;
    let loaded = call.active_skills();
    if !tools.options.require_loaded || loaded.iter().any(|name| name == asked) {
        return skill_lookup::visible_reference(*call, asked).await;
    }
    let found = skill_lookup::find_skill(*call, asked).await?;
    let id = skill_id(&found);
    let is_current = match asked.contains('@') {
        true => skill_lookup::find_skill(*call, &id).await?.digest == found.digest,
        false => true,
    };
    if is_current && loaded.contains(&id) {
        return Ok(pinned_reference(&found));
    }
    Err(ToolError::NotLoaded {
        tool: call.tool,
        skill: asked.to_owned(),
    })
}

/// Returns the timeout of the call, else that of the host.
pub(super) fn choose_timeout(
    tools: &ToolsetContext,
    seconds: i64,
) -> Option<prost_types::Duration> {
    let given = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
    let timeout = given.map(Duration::from_secs).or(tools.options.timeout);
    timeout.and_then(|timeout| timeout.try_into().ok())
}
