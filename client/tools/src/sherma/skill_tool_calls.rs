//! Calls the tools that loaded skills brought, of the host and of MCP servers. A tool of a skill that is not loaded
//! cannot be called, whatever its name.

use super::{card_requirements, read_loaded, skill_version_resolution};
use crate::arguments::argument_object;
use crate::call_context::{CallResult, SessionContext, ToolAnswer};
use crate::result_budget::fit_result;
use crate::skill_lookup;
use crate::state::sherma::{LoadedSkills, McpServer, ServerAddress};
use crate::tool_definition::ToolCall;
use crate::tool_error::ToolResult;

/// Calls a tool of the host or of a server.
pub(super) async fn call_skill_tool(context: SessionContext<'_>, call: ToolCall) -> CallResult {
    let (tools, loaded) = (context.tools, read_loaded(context));
    let is_host = tools.host.definition(&call.name).is_some();
    let is_offered =
        loaded.owners(&call.name).next().is_some() || !tools.options.only_active_skills;
    let result = if is_host && is_offered {
        let arguments = argument_object(call.arguments)?.into();
        tools.host.call(&call.name, arguments).await
    } else if let Some((skill, remote)) = loaded.remote(&call.name) {
        let arguments = argument_object(call.arguments)?.into();
        check_program(context, &loaded, skill, &remote.server).await?;
        let (session, server) = (context.session, &remote.server);
        let called = tools.mcp.call(session, server, &call.name, arguments).await;
        called.map(fit_result)
    } else {
        return Err(super::unknown_tool(context, call.name));
    };
    result.map(ToolAnswer::of)
}

/// Refuses a program that the loaded skill's card does not name. The option that lets cards name programs means the
/// catalogue's cards, and a state is data that travels: a program that only the state names is not started.
async fn check_program(
    context: SessionContext<'_>,
    loaded: &LoadedSkills,
    id: &str,
    server: &McpServer,
) -> ToolResult<()> {
    let (ServerAddress::Program(_), Some(load)) = (&server.at, loaded.get(id)) else {
        return Ok(());
    };
    let reference = skill_version_resolution::loaded_reference(id, load);
    let found = skill_lookup::find_usable_skill(context, &reference)
        .await?
        .filter(|found| skill_version_resolution::is_loaded(loaded, found));
    if found.is_some_and(|found| card_requirements::names_server(&found, &server.at)) {
        return Ok(());
    }
    Err(server.failed(format!(
        "its program is named by the session's state and not by the card of {id} as it was loaded"
    )))
}
