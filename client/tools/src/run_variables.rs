//! Adds the variables that the host's hook gives to one run, such as secrets, to the environment of its command.

use skilld_client::v1::ExecSpec;

use crate::call_context::{CallContext, hook_error};
use crate::hooks::RunIdentity;
use crate::host_environment::add_host_variables;
use crate::tool_error::ToolResult;

/// Adds the variables that the host's hook gives to a run, in place of others of their names. Returns a warning for each
/// that no command can have. The skill of the run is that of its specification.
pub(crate) async fn add_run_variables(
    call: CallContext<'_>,
    spec: &mut ExecSpec,
) -> ToolResult<Vec<String>> {
    let run = RunIdentity {
        tool: call.tool,
        skill: &spec.skill,
        call_id: call.id,
    };
    let asked = call.tools.hooks.run_environment(call.session, run).await;
    let given = asked.map_err(hook_error)?;
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let others = std::mem::take(&mut spec.env);
    let mut warnings = add_host_variables(&given, &mut spec.env);
    warnings.extend(add_host_variables(&others, &mut spec.env));
    call.tools
        .secrets
        .remember(call.session, given.into_values());
    Ok(warnings)
}
