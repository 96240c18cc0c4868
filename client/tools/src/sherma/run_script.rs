//! `run_skill_script`: runs a script of a skill.

use serde_json::{Value, json};

use super::skill_version_resolution::{find_meant_skill, is_loaded};
use super::tool_arguments::RunArguments;
use super::{decode, read_loaded};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::script_run::{self, ScriptRunRequest};
use crate::skill_lookup;
use crate::tool_error::ToolError;

pub(super) async fn run_skill_script(call: CallContext<'_>, arguments: Value) -> CallResult {
    let run: RunArguments = decode(arguments)?;
    let script = ScriptRunRequest {
        path: run.script_path,
        argv: run.argv,
        args: run.script_args,
        style: run.arg_style,
        cwd: String::new(),
        stdin: run.stdin,
        timeout: run.timeout,
    };
    let spec = script.to_spec(call.tools)?;
    let skill = find_meant_skill(call.context, &run.skill_id, &run.version).await?;
    if call.tools.options.require_loaded && !is_loaded(&read_loaded(call.context), &skill) {
        return Err(ToolError::NotLoaded {
            tool: call.tool,
            skill: skill_lookup::skill_id(&skill),
        });
    }
    let result = script_run::run_script(call, &skill, spec).await?;
    Ok(ToolAnswer::of(json!(result)))
}
