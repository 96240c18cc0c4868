//! Calls of the tools that loaded skills brought, of the host and of MCP servers. One of a skill that is not loaded cannot
//! be called, whatever its name.

use serde_json::Value;

use super::{card, resolve};
use crate::state::sherma::{Loaded, Place, Server};
use crate::tools::arguments::object;
use crate::tools::{Answer, Call, Inner, Session, ToolError, lookup};

pub(super) async fn call(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    call: Call,
) -> Result<Answer, ToolError> {
    let of_host = tools.host.definition(&call.name).is_some();
    let offered = loads.owners(&call.name).next().is_some() || !tools.options.only_active_skills;
    if of_host && offered {
        let arguments = Value::Object(object(call.arguments)?);
        return tools.host.call(&call.name, arguments).await.map(Answer::of);
    }
    let Some((skill, remote)) = loads.remote(&call.name) else {
        return Err(super::unknown(tools, loads, call.name));
    };
    let arguments = Value::Object(object(call.arguments)?);
    named_by_card(tools, loads, skill, &remote.server).await?;
    let called = tools
        .mcp
        .call(session, &remote.server, &call.name, arguments);
    called.await.map(Answer::of)
}

/// The option that lets cards name programs means the catalogue's cards. A state is data that travels: a program that only
/// it names is not started.
async fn named_by_card(
    tools: &Inner,
    loads: &Loaded,
    id: &str,
    server: &Server,
) -> Result<(), ToolError> {
    let (Place::Program(_), Some(load)) = (&server.at, loads.get(id)) else {
        return Ok(());
    };
    let found = match lookup::skill(tools, &resolve::reference(id, load)).await {
        Ok(found) => Some(found).filter(|found| resolve::is_loaded(loads, found)),
        Err(error) if error.is_of_skill() => None,
        Err(error) => return Err(error),
    };
    if found.is_some_and(|found| card::names(&found, &server.at)) {
        return Ok(());
    }
    Err(server.failed(format!(
        "its program is named by the session's state and not by the card of {id} as it was loaded"
    )))
}
