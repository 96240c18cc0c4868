//! The trpc family: its sixteen tools, under the names and with the arguments of trpc-agent-go and trpc-agent-python.
//!
//! ```text
//! tool_table ──► skill_listing, skill_load,
//!                doc_and_tool_selection      skills that exist or are loaded               SkillService, session state
//!            ──► skill_run, skill_exec,  ──► prepared_run    commands that are ready to run
//!                workspace_exec          ──► command_policy  commands that may run         this crate, daemon
//!                                        ──► input_staging   files that a command needs    FileService
//!                                        ──► output_files    files that a command changed  FileService
//!            ──► session_tools           ──► session_poll    commands that go on           ExecService, session state
//!            ──► read_file, save_artifact    files by reference                            FileService, ArtifactService
//! ```

mod command_policy;
mod doc_and_tool_selection;
mod field_error_translator;
mod file_reference;
mod file_text;
mod input_staging;
mod line_selector;
mod output_delivery;
mod output_files;
mod prepared_run;
mod read_file;
mod remembered_commands;
mod run_arguments;
mod run_result;
mod save_artifact;
mod scripted_editor;
mod session_poll;
mod session_tools;
mod skill_exec;
mod skill_listing;
mod skill_load;
mod skill_run;
mod stdin_prompt;
mod tool_schemas;
mod tool_table;
mod upload_staging;
mod workspace_exec;

pub(crate) use skill_load::load_skill;
pub(crate) use tool_table::check;
pub(crate) use upload_staging::stage_uploads;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::arguments::{self, argument_object};
use crate::builtin_tool::{find_tool, list_offered};
use crate::call_context::{CallResult, SessionContext, ToolAnswer};
use crate::host_tool_offer;
use crate::result_budget;
use crate::tool_definition::{ToolCall, ToolDefinition};
use crate::tool_error::{ToolError, ToolResult};
use tool_table::TOOLS;

/// Names of fields in other systems, valid wherever a tool has the field.
const ALIASES: &[(&str, &str)] = &[
    ("skill_name", "skill"),
    ("src", "from"),
    ("dst", "to"),
    ("cmd", "command"),
    ("yield_time_ms", "yield_ms"),
    ("yield_ms", "yield_time_ms"),
    ("timeout_sec", "timeout"),
    ("timeout", "timeout_sec"),
    ("pty", "tty"),
    ("append_newline", "submit"),
    ("path", "file_name"),
    ("file_path", "file_name"),
    ("file_name", "path"),
];

/// Returns the definitions of the offered tools, those of the host included.
pub(crate) async fn definitions(context: SessionContext<'_>) -> ToolResult<Vec<ToolDefinition>> {
    let tools = context.tools;
    let own = list_offered(&TOOLS, &tools.options);
    let mut definitions: Vec<ToolDefinition> = own
        .map(|tool| tool_schemas::build_definition(tool, &tools.options))
        .collect();
    for name in host_tool_offer::list_offered_tools(context).await? {
        // A host's tool never takes the place of one of the family.
        if find_tool(&TOOLS, &name).is_none() {
            definitions.extend(tools.host.definition(&name).cloned());
        }
    }
    Ok(definitions)
}

/// Makes one call.
pub(crate) async fn call(context: SessionContext<'_>, call: ToolCall) -> CallResult {
    let tools = context.tools;
    let own = find_tool(&TOOLS, &call.name).filter(|own| own.is_offered(&tools.options));
    let Some(own) = own else {
        return call_offered_host_tool(context, call).await;
    };
    let mut answer = own.call(context, call).await?;
    if tool_table::COMMAND_TOOLS.contains(&own.name)
        && let Some(warning) = tools.workspaces.take_replacement_warning(context.session)
    {
        answer.add_warning(warning);
    }
    Ok(answer)
}

/// Reads the arguments of a call, with the names of other systems.
fn decode<T: DeserializeOwned + schemars::JsonSchema>(arguments: Value) -> ToolResult<T> {
    arguments::decode(arguments, ALIASES)
}

/// Adds warnings to a result.
fn add_warnings(answer: &mut ToolAnswer, more: impl IntoIterator<Item = String>) {
    let more: Vec<String> = more.into_iter().collect();
    if !more.is_empty() && answer.result.is_object() {
        result_budget::add_warnings(&mut answer.result, more);
    }
}

/// Calls a tool of the host, if a loaded skill brought it.
async fn call_offered_host_tool(context: SessionContext<'_>, call: ToolCall) -> CallResult {
    let tools = context.tools;
    let is_own = find_tool(&TOOLS, &call.name).is_some();
    let offered = match is_own || tools.host.definition(&call.name).is_none() {
        true => Vec::new(),
        false => host_tool_offer::list_offered_tools(context).await?,
    };
    if offered.contains(&call.name) {
        let arguments = argument_object(call.arguments)?.into();
        return tools
            .host
            .call(&call.name, arguments)
            .await
            .map(ToolAnswer::of);
    }
    let own = list_offered(&TOOLS, &tools.options).map(|tool| tool.name.to_owned());
    Err(ToolError::UnknownTool {
        name: call.name,
        known: own.chain(offered).collect(),
    })
}
