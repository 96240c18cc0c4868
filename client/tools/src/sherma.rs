//! sherma's tools under sherma's names: list, load and unload skills, read references and assets. Loading a skill
//! brings the tools that its card names, of the host and of MCP servers; unloading it takes them away.
//!
//! The session's state holds what is loaded ([`crate::state::sherma`]); `card_requirements` reads the requirements of a
//! card; `skill_load` and `skill_unload` are the two transitions, which happen wholly or not at all.

mod card_requirements;
mod run_script;
mod skill_files;
mod skill_listing;
mod skill_load;
mod skill_tool_calls;
mod skill_unload;
mod skill_version_resolution;
mod tool_arguments;

use serde::de::DeserializeOwned;
use serde_json::Value;
use skilld_client::v1::SkillFileKind;

pub(crate) use skill_load::load_skill_md;

use crate::builtin_tool::{BuiltinTool, check_tools, find_tool, list_offered};
use crate::call_context::{CallResult, SessionContext};
use crate::script_run::ScriptResult;
use crate::skill_list_page::{PathList, SkillList};
use crate::state::SessionState;
use crate::state::sherma::LoadedSkills;
use crate::tool_definition::{ToolCall, ToolDefinition};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;
use tool_arguments::{
    AssetArguments, ListArguments, LoadArguments, PathsArguments, ResourceArguments, RunArguments,
    SearchArguments, SkillArguments,
};

/// Tools of the family, in the order in which they are offered.
static TOOLS: [BuiltinTool; 10] = [
    BuiltinTool::new::<ListArguments, SkillList<skill_listing::ListedSkill>>(
        "list_skills",
        "Lists the skills, or finds some by words: id, version, name and what each is for. Load one with load_skill_md \
         before you use it.",
        |call, arguments| Box::pin(skill_listing::list_skills(call, arguments)),
    ),
    BuiltinTool::new::<LoadArguments, skill_load::LoadReport>(
        "load_skill_md",
        "Loads a skill: returns its instructions and makes the tools that it brings available. Loading what is loaded \
         returns a short note; set reload to read the instructions again.",
        |call, arguments| Box::pin(load_skill_md(call, arguments)),
    ),
    BuiltinTool::new::<SkillArguments, skill_unload::UnloadReport>(
        "unload_skill",
        "Unloads a skill that is not needed any more; the tools that only it brought go with it.",
        |call, arguments| Box::pin(skill_unload::unload_skill(call, arguments)),
    ),
    BuiltinTool::new::<PathsArguments, PathList>(
        "list_skill_resources",
        "Lists the reference documents of a skill (its references/ folder).",
        |call, arguments| Box::pin(skill_files::list_paths(call, arguments, "references", |_| true)),
    ),
    BuiltinTool::new::<ResourceArguments, skill_files::FileResult>(
        "load_skill_resource",
        "Reads a reference document of a skill, or another text file of it.",
        |call, arguments| Box::pin(skill_files::read_resource(call, arguments)),
    ),
    BuiltinTool::new::<PathsArguments, PathList>(
        "list_skill_assets",
        "Lists the assets of a skill (its assets/ folder): templates, data, images.",
        |call, arguments| Box::pin(skill_files::list_paths(call, arguments, "assets", |_| true)),
    ),
    BuiltinTool::new::<AssetArguments, skill_files::FileResult>(
        "load_skill_asset",
        "Reads an asset of a skill. Of a binary file it tells type, size and sha256 only.",
        |call, arguments| Box::pin(skill_files::read_asset(call, arguments)),
    ),
    BuiltinTool::new::<PathsArguments, PathList>(
        "list_skill_scripts",
        "Lists the scripts of a skill that run_skill_script can run.",
        |call, arguments| Box::pin(skill_files::list_paths(call, arguments, "", |file| file.kind() == SkillFileKind::Script)),
    )
    .addition(),
    BuiltinTool::new::<RunArguments, ScriptResult>(
        "run_skill_script",
        "Runs a script of a skill in this conversation's workspace and returns its exit code, its output and the files \
         that it wrote. There is no network.",
        |call, arguments| Box::pin(run_script::run_skill_script(call, arguments)),
    )
    .addition()
    .running(),
    BuiltinTool::new::<SearchArguments, SkillList<skill_listing::FoundSkill>>(
        "search_skills",
        "Finds skills by words, best first.",
        |call, arguments| Box::pin(skill_listing::search_skills(call, arguments)),
    )
    .addition(),
];

/// Checks that the options do not contradict each other. Returns the names of the tools that they offer.
pub(crate) fn check(options: &ToolOptions) -> ToolResult<Vec<&'static str>> {
    let offered = check_tools(&TOOLS, options)?;
    options.check_script_family()?;
    Ok(offered)
}

/// Reads the arguments of a call, with the names that models give to fields.
fn decode<T: DeserializeOwned + schemars::JsonSchema>(arguments: Value) -> ToolResult<T> {
    crate::arguments::decode(arguments, &tool_arguments::ALIASES)
}

/// Returns the loaded skills of the state that the options show; a state may come from elsewhere.
fn read_loaded(context: SessionContext<'_>) -> LoadedSkills {
    let loaded = LoadedSkills::read(context.state, &context.session.agent);
    loaded.only(|id| context.tools.options.shows(id))
}

/// Closes the connections that the skills loaded in `after` need and those of the session's state do not.
pub(crate) async fn disconnect_loads(context: SessionContext<'_>, after: &SessionState) {
    let loaded = LoadedSkills::read(after, &context.session.agent);
    let places = loaded.places_not_in(&read_loaded(context));
    context.tools.mcp.disconnect(context.session, &places).await;
}

/// Returns the definitions of the offered tools, those that loaded skills brought included.
pub(crate) fn definitions(context: SessionContext<'_>) -> Vec<ToolDefinition> {
    let tools = context.tools;
    let own = list_offered(&TOOLS, &tools.options);
    let mut definitions: Vec<ToolDefinition> = own.map(BuiltinTool::definition).collect();
    let loaded = read_loaded(context);
    let mut names = loaded.tools();
    if !tools.options.only_active_skills {
        let known = names.clone();
        let others = tools.host.names().filter(|name| !known.contains(name));
        names.extend(others);
    }
    // Nothing takes the place of a tool of the family, whatever a state or the host calls it.
    names.retain(|name| find_tool(&TOOLS, name).is_none());
    for name in names {
        // A tool that the host has registered no more is not offered.
        let host = tools.host.definition(name);
        let remote = || loaded.remote(name).map(|(_, remote)| &remote.definition);
        definitions.extend(host.or_else(remote).cloned());
    }
    definitions
}

/// Makes one call.
pub(crate) async fn call(context: SessionContext<'_>, call: ToolCall) -> CallResult {
    match find_tool(&TOOLS, &call.name) {
        Some(tool) if tool.is_offered(&context.tools.options) => tool.call(context, call).await,
        Some(_) => Err(unknown_tool(context, call.name)),
        None => skill_tool_calls::call_skill_tool(context, call).await,
    }
}

fn unknown_tool(context: SessionContext<'_>, name: String) -> ToolError {
    let own = list_offered(&TOOLS, &context.tools.options);
    let mut known: Vec<String> = own.map(|tool| tool.name.to_owned()).collect();
    let loaded = read_loaded(context);
    known.extend(loaded.tools().into_iter().map(str::to_owned));
    ToolError::UnknownTool { name, known }
}
