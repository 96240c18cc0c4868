//! Method `execute_script`: runs a script of a skill.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_client::v1::Skill;

use super::{MethodArguments, skill_name_resolution};
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer};
use crate::script_run::{self, ScriptResult, ScriptRunRequest};
use crate::skill_lookup;
use crate::state::agent_zero;
use crate::tool_error::{ToolError, ToolResult};

/// Result of `execute_script`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ExecuteResult {
    /// For the model.
    text: String,
    #[serde(flatten)]
    run: ScriptResult,
}

pub(super) async fn execute_script(
    call: CallContext<'_>,
    arguments: MethodArguments,
) -> CallResult {
    let script = ScriptRunRequest {
        path: arguments.script_path,
        argv: arguments.argv,
        args: arguments.script_args,
        style: arguments.arg_style,
        cwd: arguments.cwd,
        stdin: arguments.stdin,
        timeout: arguments.timeout,
    };
    let spec = script.to_spec(call.tools)?;
    if script.path.trim().is_empty() {
        return Err(ToolError::arguments(
            "script_path is empty: use one that the method load shows",
        ));
    }
    let skill =
        skill_name_resolution::find_loaded_skill(call.context, &arguments.skill_name).await?;
    if call.tools.options.require_loaded && !is_loaded(call.context, &skill).await? {
        return Err(ToolError::NotLoaded {
            tool: call.tool,
            skill: skill_lookup::skill_id(&skill),
        });
    }
    let run = script_run::run_script(call, &skill, spec).await?;
    let text = describe_run(&run);
    Ok(ToolAnswer::of(json!(ExecuteResult { text, run })))
}

/// Returns `true` if this content of a skill is the loaded one.
async fn is_loaded(context: SessionContext<'_>, skill: &Skill) -> ToolResult<bool> {
    let id = skill_lookup::skill_id(skill);
    if !context.active_skills().contains(&id) {
        return Ok(false);
    }
    let reference = agent_zero::reference(context.state, context.scope(), &id);
    let loaded = skill_lookup::find_skill(context, &reference).await?;
    Ok(loaded.digest == skill.digest)
}

/// Returns the result as text: how the script ended, then both streams apart.
fn describe_run(run: &ScriptResult) -> String {
    let mut text = match run.has_succeeded() {
        true => format!("Executed script: {}/{}\n", run.skill, run.script),
        false => format!("Error: script failed: {}/{}\n", run.skill, run.script),
    };
    let outcome = &run.outcome;
    let ended = match (outcome.exit_code, outcome.signal) {
        (Some(code), _) if outcome.reason == "exited" => format!("exit code {code}"),
        (Some(code), _) => format!("{}, exit code {code}", outcome.reason),
        (None, Some(signal)) => format!("{}, signal {signal}", outcome.reason),
        (None, None) => outcome.reason.clone(),
    };
    text += &format!("Ended: {ended}, after {} ms\n", outcome.duration_ms);
    for warning in &run.warnings {
        text += &format!("Note: {warning}\n");
    }
    for (name, output) in [
        ("Output", &outcome.stdout),
        ("Error output", &outcome.stderr),
    ] {
        if !output.is_empty() {
            text += &format!("\n{name}:\n{}\n", output.trim_end_matches('\n'));
        }
    }
    if outcome.stdout.is_empty() && outcome.stderr.is_empty() {
        text += "\nIt printed nothing.\n";
    }
    if !run.files.is_empty() {
        text += "\nFiles written:\n";
    }
    for file in &run.files {
        let saved = match &file.artifact {
            Some(artifact) => format!(", saved as {artifact}"),
            None => String::new(),
        };
        text += &format!(
            "- {} ({} bytes, {}){saved}\n",
            file.path, file.size, file.mime_type
        );
    }
    text
}
