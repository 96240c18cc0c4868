//! Adds the variables that the host's hook gives to one run, such as secrets, to the environment of its command.

use skilld_client::v1::ExecSpec;

use crate::call_context::{CallContext, hook_error};
use crate::hooks::{RunIdentity, RunVariables};
use crate::host_environment::add_host_variables;
use crate::tool_error::ToolResult;

/// Adds the variables that the host's hook gives to a run, in place of others of their names. Returns warnings about
/// others that have no room beside them. The skill of the run is that of its specification.
///
/// # Errors
///
/// [`ToolError::Hook`](crate::ToolError::Hook) if the hook refuses, or gives a variable that the command cannot have:
/// it must not run with the call's own value instead.
pub(crate) async fn add_run_variables(
    call: CallContext<'_>,
    spec: &mut ExecSpec,
) -> ToolResult<Vec<String>> {
    let run = RunIdentity {
        tool: call.tool,
        skill: &spec.skill,
        call_id: call.id,
    };
    let answer = call.tools.hooks.run_environment(call.session, run).await;
    let RunVariables { plain, secret } = answer.map_err(hook_error)?;
    if plain.is_empty() && secret.is_empty() {
        return Ok(Vec::new());
    }
    let others = std::mem::take(&mut spec.env);
    let problems = add_host_variables(secret.iter().chain(&plain), &mut spec.env);
    if !problems.is_empty() {
        let problem = format!("the command was not started: {}", problems.join("; "));
        return Err(hook_error(problem));
    }
    spec.secret_env = secret.keys().cloned().collect();
    call.tools
        .secrets
        .remember(call.session, secret.into_values());
    Ok(add_host_variables(&others, &mut spec.env))
}
