//! `workspace_exec`: a command in the session's workspace, where loaded skills are. To its end, or going on like those of
//! skill_exec.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_client::v1::{ExecSpec, RunExecRequest, StartExecRequest};

use super::field_error_translator::FieldErrorTranslator;
use super::prepared_run::specify_command;
use super::remembered_commands::{SessionCommand, exec_name};
use super::session_poll::{SessionPollRequest, SessionResult, answer_poll};
use super::skill_exec::{InitialStdin, YIELD_MS, make_interactive, start_command};
use super::{add_warnings, command_policy, decode};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::package_warnings::describe_staging_problems;
use crate::prompt_material_reader::loaded_references;
use crate::run_outcome::RunOutcome;
use crate::run_variables::add_run_variables;
use crate::skill_file_path::SkillFilePath;
use crate::skill_lookup;
use crate::skill_staging::{run_with_skills, stage_for_command};
use crate::state::StateDelta;
use crate::tool_error::{ToolError, ToolResult};
use crate::workspace_path;

/// Wait for a command in the background, to see whether it starts, in milliseconds.
const BACKGROUND_MS: u64 = 1;
/// Translator of the daemon's errors into the words of the tool.
const ERROR_TRANSLATOR: FieldErrorTranslator<'_> =
    FieldErrorTranslator::with_timeout("timeout_sec");

/// Arguments of `workspace_exec`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ShellArguments {
    /// Shell command, run by bash in the workspace.
    pub(super) command: String,
    /// Where to start: `work/…`, `out/…`, or `skills/NAME` for a command of a loaded skill, which finds its packages
    /// then. The workspace's root if it is left out.
    pub(super) cwd: String,
    /// Environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// Text for the standard input of the command.
    pub(super) stdin: String,
    /// Seconds; 300 if it is left out, of a session as long as the host permits.
    pub(super) timeout_sec: i64,
    /// Milliseconds to wait for the command; if it still runs, it goes on as a session. Without it: to the end.
    pub(super) yield_time_ms: i64,
    /// Return at once while the command goes on as a session.
    pub(super) background: bool,
    /// Run the command in a terminal, as a session.
    pub(super) tty: bool,
}

/// Result of a command of the workspace: that of a session while it goes on. `output` of an ended one is stdout, then
/// stderr.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ShellResult {
    #[serde(flatten)]
    session: SessionResult,
    /// The output's beginning and end are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Bytes that it printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
}

pub(super) async fn run_shell(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ShellArguments = decode(arguments)?;
    let (mut spec, mut warnings) = build_spec(call, &asked)?;
    let reference = start_in_skill(call, &mut spec).await?;
    warnings.extend(add_run_variables(call, &mut spec).await?);
    let skill = reference.as_deref();
    if asked.background || asked.tty || asked.yield_time_ms > 0 {
        let mut answer = start_session(call, &asked, spec, skill).await?;
        add_warnings(&mut answer, warnings);
        return Ok(answer);
    }
    spec.stdin_data = asked.stdin.clone().into();
    let request = RunExecRequest {
        exec_id: call.exec_id(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let finished = run_with_skills(call, skill, request, 0).await;
    let (finished, staging_warnings) =
        finished.map_err(|error| ERROR_TRANSLATOR.translate(error))?;
    let own = finished.staged.skills.first().filter(|_| skill.is_some());
    let package_warning = own.and_then(describe_staging_problems);
    let mut outcome = RunOutcome::new(&call.tools.options, finished);
    outcome.add_preparation_warnings(warnings, package_warning);
    outcome.warnings.extend(staging_warnings);
    let result = ShellResult::new(outcome);
    Ok(ToolAnswer::with(&result, StateDelta::new()))
}

/// Makes a command that starts in the folder of a loaded skill one of this skill, with its variables and packages.
/// Returns the reference that stages the skill; `None` if the command starts elsewhere.
async fn start_in_skill(call: CallContext<'_>, spec: &mut ExecSpec) -> ToolResult<Option<String>> {
    // A path of the folder itself counts too.
    let inside = format!("{}/.", spec.cwd);
    let SkillFilePath::Named(name, _) = SkillFilePath::parse(&inside) else {
        return Ok(None);
    };
    let mut id = name.to_owned();
    let is_of_id = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    if !name.chars().all(is_of_id)
        && let Some(skill) = skill_lookup::find_usable_skill(call.context, name).await?
    {
        // The name is as the skill's author wrote it, and the folder has the id.
        id = skill_lookup::skill_id(&skill);
        spec.cwd = spec.cwd.replacen(name, &id, 1);
    }
    let mut loaded = loaded_references(call.context).into_iter();
    let Some((name, reference)) = loaded.find(|(loaded, _)| *loaded == id) else {
        return Ok(None);
    };
    if !spec.cwd.starts_with(['/', '$']) {
        // Relative paths of a skill's command begin at the skill.
        spec.cwd = format!("/workspace/{}", spec.cwd);
    }
    spec.programs = command_policy::list_programs(&call.tools.options, Some(&name));
    spec.skill = name;
    Ok(Some(reference))
}

/// Returns the specification of the command, and warnings about its environment.
fn build_spec(
    call: CallContext<'_>,
    asked: &ShellArguments,
) -> ToolResult<(ExecSpec, Vec<String>)> {
    if asked.command.trim().is_empty() {
        return Err(ToolError::arguments("command is required"));
    }
    let (command, env) = (&asked.command, asked.env.clone());
    let (mut spec, warnings) =
        specify_command(call, command, env, &asked.stdin, asked.timeout_sec)?;
    let cwd = workspace_path::working_directory(&asked.cwd);
    spec.cwd = match cwd.as_str() {
        "" => "$WORKSPACE_DIR".to_owned(),
        _ => cwd,
    };
    Ok((spec, warnings))
}

/// Starts a command that goes on after the call. `skill` is the reference of the skill that it runs in.
async fn start_session(
    call: CallContext<'_>,
    asked: &ShellArguments,
    mut spec: ExecSpec,
    skill: Option<&str>,
) -> CallResult {
    let exec_id = call.exec_id();
    make_interactive(call.tools, &mut spec, asked.timeout_sec, asked.tty);
    let typed = InitialStdin {
        text: &asked.stdin,
        eof: false,
    };
    let started = call.in_workspace(|workspace| {
        let name = exec_name(&workspace, &exec_id);
        let command = SessionCommand::read(call.state, &exec_id).unwrap_or_default();
        let request = StartExecRequest {
            parent: workspace,
            exec_id: exec_id.clone(),
            spec: Some(spec.clone()),
        };
        async move {
            let staging = stage_for_command(call.context, &request.parent, skill).await?;
            let mut touched = start_command(call, request, command, typed).await?;
            // How it ends is not known yet.
            let package_warning = staging.skill.as_ref().and_then(describe_staging_problems);
            touched.warnings.extend(package_warning);
            touched.warnings.extend(staging.warnings);
            Ok((name, touched))
        }
    });
    let (name, touched) = started
        .await
        .map_err(|error| ERROR_TRANSLATOR.translate(error))?;
    let default_ms = match asked.background {
        true => BACKGROUND_MS,
        false => YIELD_MS,
    };
    let request = SessionPollRequest::new(name, asked.yield_time_ms, default_ms, 0);
    answer_poll(call, request, touched).await
}

impl ShellResult {
    /// Creates the result of a command that has ended.
    fn new(outcome: RunOutcome) -> Self {
        let total = outcome.stdout_bytes + outcome.stderr_bytes;
        let truncated = outcome.stdout_truncated || outcome.stderr_truncated;
        Self {
            truncated,
            total_bytes: truncated.then_some(total),
            timed_out: outcome.timed_out,
            duration_ms: Some(outcome.duration_ms),
            session: SessionResult {
                status: "exited",
                output: outcome.stdout + &outcome.stderr,
                next_offset: total,
                exit_code: Some(outcome.exit_code.unwrap_or(-1)),
                reason: Some(outcome.reason),
                warnings: outcome.warnings,
                ..SessionResult::default()
            },
        }
    }
}
