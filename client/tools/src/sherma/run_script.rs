//! `run_skill_script`: runs a script of a skill.

use serde_json::{Value, json};

use super::arguments::RunArguments;
use super::loaded_skill::{find_meant_skill, is_loaded};
use super::{decode, read_loaded};
use crate::context::{CallContext, CallResult, ToolAnswer};
use crate::error::ToolError;
use crate::lookup;
use crate::scripts::{self, ScriptArguments};

pub(super) async fn run_skill_script(call: CallContext<'_>, arguments: Value) -> CallResult {
    let run: RunArguments = decode(arguments)?;
    let script = ScriptArguments {
        path: run.script_path,
        argv: run.argv,
        args: run.script_args,
        style: run.arg_style,
        cwd: String::new(),
        stdin: run.stdin,
        timeout: run.timeout,
    };
    let spec = script.to_spec(call.tools)?;
    let skill = find_meant_skill(*call, &run.skill_id, &run.version).await?;
    if call.tools.options.require_loaded && !is_loaded(&read_loaded(*call), &skill) {
        return Err(ToolError::NotLoaded {
            tool: call.tool,
            skill: lookup::skill_id(&skill),
        });
    }
    let result = scripts::run_script(call, &skill, spec).await?;
    Ok(ToolAnswer::of(json!(result)))
}
