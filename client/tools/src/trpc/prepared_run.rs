//! Prepares a run of `skill_run` and `skill_exec`: checks it, looks the skill up, and stages it with the inputs. First
//! comes what can be checked without the daemon: the arguments and the host's lists. `require_loaded` needs the skill's
//! id, so it is checked at the look-up.

use std::collections::BTreeMap;
use std::time::Duration;

use skilld_client::v1::{ExecSpec, RunExecRequest};

use super::command_policy;
use super::input_staging;
use super::output_files::CollectPlan;
use super::run_arguments::RunArguments;
use super::run_result::StagedFile;
use super::scripted_editor::ScriptedEditor;
use crate::call_context::CallContext;
use crate::command_limits;
use crate::exec_run::FinishedExec;
use crate::host_environment::add_host_variables;
use crate::package_warnings::describe_staging_problems;
use crate::run_variables::add_run_variables;
use crate::skill_lookup::{self, pinned_reference, skill_id};
use crate::skill_staging::{bare_name, run_with_skills, stage_command_skill};
use crate::tool_error::{ToolError, ToolResult};
use crate::workspace_path;

/// Run of a skill's command that the limits and the host's rules permit.
#[derive(Debug)]
pub(super) struct PreparedRun {
    pub(super) arguments: RunArguments,
    pub(super) exec_id: String,
    pub(super) spec: ExecSpec,
    /// Files to collect at its end.
    pub(super) plan: CollectPlan,
    /// Warnings about the host's variables that the command does not get, and loaded skills that are not there.
    pub(super) warnings: Vec<String>,
    /// Inputs that were staged.
    pub(super) staged_inputs: Vec<StagedFile>,
    /// Warning about packages that the staged skill lacks; it matters if the command fails.
    pub(super) package_warning: Option<String>,
}

impl PreparedRun {
    /// Checks a command and specifies it, without a call to the daemon. So nothing is staged for a command that the
    /// host's rules forbid.
    pub(super) fn new(call: CallContext<'_>, arguments: RunArguments) -> ToolResult<Self> {
        // Clients need not keep to the schema.
        if arguments.skill.trim().is_empty() || arguments.command.trim().is_empty() {
            return Err(ToolError::arguments("skill and command are required"));
        }
        let exec_id = call.exec_id();
        let mut env = arguments.env.clone();
        if let Some(editor) = ScriptedEditor::new(&arguments.editor_text, &exec_id) {
            env.extend(editor.environment(&arguments.env)?);
        }
        let (mut spec, warnings) = specify_command(
            call,
            &arguments.command,
            env,
            &arguments.stdin,
            arguments.timeout,
        )?;
        spec.cwd = workspace_path::working_directory(&arguments.cwd);
        Ok(Self {
            plan: CollectPlan::new(call, &arguments),
            arguments,
            exec_id,
            spec,
            warnings,
            staged_inputs: Vec::new(),
            package_warning: None,
        })
    }

    /// Returns the reference by which the skill is staged. If the host requires a loaded skill, the skill counts, by
    /// whatever name the call uses, in the version that is loaded: the current one.
    pub(super) async fn look_up(&self, call: CallContext<'_>) -> ToolResult<String> {
        let asked = self.arguments.skill.trim();
        // Those that count now: the limit of loaded skills may leave out earlier ones.
        let loaded = call.active_skills();
        if !call.tools.options.require_loaded || loaded.iter().any(|name| name == asked) {
            return skill_lookup::resolve_reference(call.context, asked).await;
        }
        let found = skill_lookup::find_skill(call.context, asked).await?;
        let id = skill_id(&found);
        let is_current = match asked.contains('@') {
            true => skill_lookup::find_skill(call.context, &id).await?.digest == found.digest,
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

    /// Runs the command to its end by one call, which stages the skill of a reference and the inputs and collects the
    /// files.
    pub(super) async fn run(
        &mut self,
        call: CallContext<'_>,
        reference: &str,
    ) -> ToolResult<FinishedExec> {
        self.set_skill(call, bare_name(reference)).await?;
        let context = call.context;
        let inputs = input_staging::input_specs(&self.arguments.inputs);
        let request = RunExecRequest {
            exec_id: self.exec_id.clone(),
            spec: Some(ExecSpec {
                stdin_data: self.arguments.stdin.clone().into(),
                ..self.spec.clone()
            }),
            scope: (!inputs.is_empty()).then(|| call.session.scope()),
            inputs,
            outputs: Some(self.plan.run_outputs(context)),
            ..RunExecRequest::default()
        };
        if let Some(editor) = &ScriptedEditor::new(&self.arguments.editor_text, &self.exec_id) {
            let upload =
                |workspace: String| async move { editor.upload(call.tools, &workspace).await };
            call.in_workspace(upload).await?;
        }
        let text_max = call.tools.options.primary_bytes_max;
        let finished = run_with_skills(call, Some(reference), request, text_max).await;
        let (mut finished, warnings) = finished.map_err(|error| {
            let error = self.plan.error_translator().translate(error);
            input_staging::translate_input_error(error, &self.arguments.inputs)
        })?;
        self.warnings.extend(warnings);
        let staged = std::mem::take(&mut finished.staged);
        self.package_warning = staged.skills.first().and_then(describe_staging_problems);
        self.staged_inputs = staged.inputs.into_iter().map(StagedFile::from).collect();
        Ok(finished)
    }

    /// Stages the skill of a reference, and the inputs, for a command that goes on after the call. Returns the
    /// workspace's name. Only the staging of skills is repeated in a new workspace if the session's is lost.
    pub(super) async fn stage(
        &mut self,
        call: CallContext<'_>,
        reference: &str,
    ) -> ToolResult<String> {
        let tools = call.tools;
        let (workspace, skill, staging_warnings) =
            stage_command_skill(call.context, reference).await?;
        self.warnings.extend(staging_warnings);
        self.package_warning = describe_staging_problems(&skill);
        let inputs = &self.arguments.inputs;
        self.staged_inputs = input_staging::stage_arguments(call, &workspace, inputs).await?;
        self.set_skill(call, &skill.name).await?;
        if let Some(editor) = ScriptedEditor::new(&self.arguments.editor_text, &self.exec_id) {
            editor.upload(tools, &workspace).await?;
        }
        Ok(workspace)
    }

    /// Lets the command run in a skill, with the variables that the host gives this run. The call may have used another
    /// name than the one that the skill is staged under.
    async fn set_skill(&mut self, call: CallContext<'_>, name: &str) -> ToolResult<()> {
        self.spec.programs = command_policy::list_programs(&call.tools.options, Some(name));
        name.clone_into(&mut self.spec.skill);
        let warnings = add_run_variables(call, &mut self.spec).await?;
        self.warnings.extend(warnings);
        Ok(())
    }
}

/// Specifies a command that the limits and the host's rules permit. Returns it with warnings about its environment.
/// `timeout` is in seconds; the host's counts if the call gives none. `stdin` is only checked: `skill_run` sends it with
/// the request, `skill_exec` types it.
pub(super) fn specify_command(
    call: CallContext<'_>,
    command: &str,
    env: BTreeMap<String, String>,
    stdin: &str,
    timeout: i64,
) -> ToolResult<(ExecSpec, Vec<String>)> {
    command_limits::check_argument("command", command)?;
    command_limits::check_environment(&env)?;
    command_limits::check_stdin("stdin", stdin)?;
    let given = u64::try_from(timeout).ok().filter(|seconds| *seconds > 0);
    let timeout = given
        .map(Duration::from_secs)
        .or(call.tools.options.timeout);
    let mut spec = ExecSpec {
        env,
        timeout: timeout.and_then(|timeout| timeout.try_into().ok()),
        ..ExecSpec::default()
    };
    command_policy::set_command(call, command, &mut spec)?;
    let warnings = add_host_variables(&call.tools.options.env, &mut spec.env);
    Ok((spec, warnings))
}
