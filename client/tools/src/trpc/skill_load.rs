//! `skill_load`: puts a skill into the next prompts. Only the session's state changes; nothing is staged before
//! something runs.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decode;
use super::doc_and_tool_selection::{self, SelectedDocs, SelectedTools, find_requested_docs};
use super::skill_listing::require_unversioned_name;
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer};
use crate::hooks::{LoadedSkill, SkillChoice, UnloadedSkill};
use crate::package_warnings::describe_missing_packages;
use crate::state::skill_loads::Eviction;
use crate::state::{Selection, SessionState, skill_loads};
use crate::tool_error::ToolResult;
use crate::{host_tool_offer, prompt_material_reader, skill_lookup};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct LoadArguments {
    /// Name of the skill.
    pub(super) skill: String,
    /// Documents to load with it, as skill_list_docs names them. Without, an earlier choice stays.
    pub(super) docs: Vec<String>,
    /// All of its documents.
    pub(super) include_all_docs: bool,
}

/// Result of `skill_load`. It holds the skill's text only if the prompt does not.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LoadResult {
    skill: String,
    /// `loaded: NAME`.
    message: String,
    /// Digest of the loaded content.
    digest: String,
    #[serde(flatten)]
    docs: SelectedDocs,
    #[serde(flatten)]
    tools: SelectedTools,
    /// Skills that are not loaded any more, since there is room for so many only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evicted: Vec<String>,
    /// The skill's instructions and the selected documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Packages that scripts of the skill would miss, and documents that `content` has no room for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(crate) async fn load_skill(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: LoadArguments = decode(arguments)?;
    let (tools, state, scope) = (call.tools, call.state, call.scope());
    let mut choice = SkillChoice {
        skill_id: require_unversioned_name(&asked.skill)?.to_owned(),
        version: String::new(),
    };
    call.before_load(&mut choice).await?;
    let reference = skill_lookup::skill_reference(&choice.skill_id, &choice.version);
    let reference = require_unversioned_name(&reference)?;
    let skill = skill_lookup::find_skill_to_load(call.context, reference).await?;
    let warning = describe_missing_packages(&skill);
    let name = skill_lookup::skill_id(&skill);
    let mut requested = find_requested_docs(tools, &skill, &asked.docs).await?;
    let docs = match (asked.include_all_docs, requested.known.is_empty()) {
        (true, _) => Some(Selection::All),
        (false, false) => Some(Selection::these(&requested.known)),
        (false, true) => None,
    };
    let mut delta = skill_loads::load(state, scope, &name, docs.as_ref(), None);
    // It still has the skills that are evicted for this one.
    let loaded = state.with(&delta);
    let evicted = skill_loads::evict(&loaded, scope, tools.options.loaded_max());
    let leaving = describe_evicted(call.context, &loaded, &evicted).await?;
    delta.then(evicted.delta);
    let after = state.with(&delta);
    let docs = skill_loads::docs(&after, scope, &name);
    let before = skill_loads::docs(state, scope, &name);
    requested.dropped =
        doc_and_tool_selection::find_dropped_docs(tools, &skill, before, docs.as_ref()).await?;
    // The declared tools count until something else is chosen.
    let chosen = match skill_loads::tools(&after, scope, &name) {
        Some(Selection::These(chosen)) => chosen,
        Some(Selection::All) | None => skill.tools.clone(),
    };
    let selected_tools = doc_and_tool_selection::split_available_tools(tools, chosen, Vec::new());
    let mut report = LoadedSkill {
        skill_id: name.clone(),
        version: skill.version.clone(),
        digest: skill.digest.clone(),
        content: String::new(),
        tools_loaded: selected_tools.selected_tools.clone(),
    };
    let context = SessionContext {
        state: &after,
        ..call.context
    };
    let inline = prompt_material_reader::read_inline_content(context, skill).await?;
    requested.unknown.extend(inline.unknown_docs);
    let warnings = warning.into_iter().chain(inline.warning);
    let has_content = inline.content.is_some();
    report.content = inline.content.unwrap_or_default();
    call.complete_load(&mut report, &leaving).await?;
    let result = LoadResult {
        message: format!("loaded: {name}"),
        digest: report.digest,
        docs: SelectedDocs::new(docs.as_ref(), requested),
        tools: selected_tools,
        evicted: evicted.names,
        content: has_content.then_some(report.content),
        warnings: warnings.collect(),
        skill: name,
    };
    Ok(ToolAnswer::with(&result, delta))
}

/// Describes the skills that a load evicts, least recently used first, for the host's hooks. `loaded` is the state with
/// both the new skill and the evicted ones. A tool goes with the last skill that brought it.
async fn describe_evicted(
    context: SessionContext<'_>,
    loaded: &SessionState,
    evicted: &Eviction,
) -> ToolResult<Vec<UnloadedSkill>> {
    if evicted.names.is_empty() {
        return Ok(Vec::new());
    }
    let (tools, scope) = (context.tools, context.scope());
    let skills = skill_loads::loaded(loaded, scope);
    let declared = host_tool_offer::find_declarations(context, skills).await?;
    let mut brought: HashMap<&str, Vec<String>> = HashMap::new();
    let mut owners: HashMap<String, usize> = HashMap::new();
    for own in &declared {
        let own_alone = std::slice::from_ref(own);
        let offer =
            host_tool_offer::select_host_tools(loaded, scope, own_alone, tools.host.names());
        for tool in &offer.names {
            *owners.entry(tool.clone()).or_default() += 1;
        }
        brought.insert(&own.skill, offer.names);
    }
    let leaving = evicted.names.iter().map(|name| {
        let mut tools_unloaded = brought.remove(name.as_str()).unwrap_or_default();
        tools_unloaded.retain(|tool| {
            owners.get_mut(tool).is_some_and(|left| {
                *left -= 1;
                *left == 0
            })
        });
        UnloadedSkill {
            skill_id: name.clone(),
            version: String::new(),
            tools_unloaded,
        }
    });
    Ok(leaving.collect())
}
