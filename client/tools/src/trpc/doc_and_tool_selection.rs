//! `skill_select_docs`, `skill_select_tools`: chooses the documents and tools of a skill that the next prompts bring.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_client::v1::Skill;

use super::decode;
use super::skill_listing::require_unversioned_name;
use super::tool_table::has_tool;
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer, ToolsetContext};
use crate::state::skill_loads::{self, SelectionOutcome};
use crate::state::{Selection, SelectionMode, StateDelta};
use crate::tool_error::ToolResult;
use crate::{prompt_material_reader, skill_lookup};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SelectDocsArguments {
    /// Name of the skill.
    pub(super) skill: String,
    /// Documents, as skill_list_docs names them.
    pub(super) docs: Vec<String>,
    /// All of its documents.
    pub(super) include_all_docs: bool,
    /// `replace` (default), `add` to what was chosen earlier, or `clear`.
    pub(super) mode: String,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SelectToolsArguments {
    /// Name of the skill.
    pub(super) skill: String,
    /// Tools, as skill_list_tools names them.
    pub(super) tools: Vec<String>,
    /// All of its tools.
    pub(super) include_all_tools: bool,
    /// `replace` (default), `add` to what was chosen earlier, or `clear`.
    pub(super) mode: String,
}

/// Documents of a skill that the prompt brings.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectedDocs {
    selected_docs: Vec<String>,
    include_all_docs: bool,
    /// Documents that the skill does not have; they were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_docs: Vec<String>,
}

/// Tools of a skill that are offered.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectedTools {
    /// The tools of it that are offered once it is loaded.
    pub(super) selected_tools: Vec<String>,
    /// Tools that do not exist; they are not offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_tools: Vec<String>,
}

/// Result of `skill_select_docs`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectDocsResult {
    skill: String,
    mode: String,
    #[serde(flatten)]
    docs: SelectedDocs,
    /// The skill's instructions and the selected documents, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// Result of `skill_select_tools`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectToolsResult {
    skill: String,
    mode: String,
    #[serde(flatten)]
    tools: SelectedTools,
    include_all_tools: bool,
}

impl SelectedDocs {
    pub(super) fn new(selection: Option<&Selection>, unknown: Vec<String>) -> Self {
        Self {
            selected_docs: match selection {
                Some(Selection::These(names)) => names.clone(),
                Some(Selection::All) | None => Vec::new(),
            },
            include_all_docs: selection == Some(&Selection::All),
            unknown_docs: unique(unknown),
        }
    }
}

pub(super) async fn select_docs(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SelectDocsArguments = decode(arguments)?;
    let (tools, state, scope) = (call.tools, call.state, call.scope());
    let skill = skill_lookup::find_skill(tools, require_unversioned_name(&asked.skill)?).await?;
    let name = skill_lookup::skill_id(&skill);
    let (items, mut unknown_docs) = split_known_docs(tools, &skill, &asked.docs).await?;
    let change = SelectionMode::parse(&asked.mode);
    let selected = if has_effect(change, asked.include_all_docs, &items, &unknown_docs) {
        skill_loads::select_docs(state, scope, &name, change, &items, asked.include_all_docs)
    } else {
        unchanged(skill_loads::docs(state, scope, &name), &[])
    };
    let after = state.with(&selected.delta);
    let context = SessionContext {
        state: &after,
        ..*call
    };
    let inline = prompt_material_reader::read_inline_content(context, skill).await?;
    unknown_docs.extend(inline.unknown_docs);
    let result = SelectDocsResult {
        skill: name,
        mode: change.name().to_owned(),
        docs: SelectedDocs::new(Some(&selected.selection), unknown_docs),
        content: inline.content,
    };
    Ok(ToolAnswer::with(&result, selected.delta))
}

pub(super) async fn select_tools(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SelectToolsArguments = decode(arguments)?;
    let (tools, state, scope) = (call.tools, call.state, call.scope());
    let skill = skill_lookup::find_skill(tools, require_unversioned_name(&asked.skill)?).await?;
    let name = skill_lookup::skill_id(&skill);
    let items = asked.tools.iter().map(|tool| tool.trim().to_owned());
    // The host's pool may have some that the skill does not name.
    let (items, unknown): (Vec<String>, Vec<String>) = items
        .filter(|tool| !tool.is_empty())
        .partition(|tool| skill.tools.contains(tool) || has_tool(tools, tool));
    let change = SelectionMode::parse(&asked.mode);
    let selected = if has_effect(change, asked.include_all_tools, &items, &unknown) {
        let declared = (name.as_str(), skill.tools.as_slice());
        skill_loads::select_tools(
            state,
            scope,
            declared,
            change,
            &items,
            asked.include_all_tools,
        )
    } else {
        unchanged(skill_loads::tools(state, scope, &name), &skill.tools)
    };
    let (chosen, include_all_tools) = match selected.selection {
        Selection::These(chosen) => (chosen, false),
        Selection::All => (skill.tools, true),
    };
    let mut tools = split_available_tools(tools, chosen, unknown);
    if include_all_tools {
        tools.selected_tools.clear();
    }
    let result = SelectToolsResult {
        skill: name,
        mode: change.name().to_owned(),
        tools,
        include_all_tools,
    };
    Ok(ToolAnswer::with(&result, selected.delta))
}

/// Returns `false` for a choice of nothing but unknown names, which changes nothing.
fn has_effect(change: SelectionMode, all: bool, items: &[String], unknown: &[String]) -> bool {
    change == SelectionMode::Clear || all || !items.is_empty() || unknown.is_empty()
}

/// Returns the earlier selection, or else what the skill brings by itself.
fn unchanged(before: Option<Selection>, own: &[String]) -> SelectionOutcome {
    SelectionOutcome {
        selection: before.unwrap_or_else(|| Selection::these(own)),
        delta: StateDelta::new(),
    }
}

/// Splits chosen tools into those that a model can be offered and the others, which join `unknown`.
pub(super) fn split_available_tools(
    tools: &ToolsetContext,
    chosen: Vec<String>,
    mut unknown: Vec<String>,
) -> SelectedTools {
    let chosen = unique(chosen).into_iter();
    let (selected_tools, absent): (Vec<String>, Vec<String>) =
        chosen.partition(|tool| has_tool(tools, tool));
    unknown.extend(absent);
    SelectedTools {
        selected_tools,
        unknown_tools: unique(unknown),
    }
}

/// Splits documents into those that the skill has and the others.
pub(super) async fn split_known_docs(
    tools: &ToolsetContext,
    skill: &Skill,
    asked: &[String],
) -> ToolResult<(Vec<String>, Vec<String>)> {
    let asked = asked.iter().map(|doc| doc.trim().to_owned());
    let asked: Vec<String> = asked.filter(|doc| !doc.is_empty()).collect();
    if asked.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let docs = skill_lookup::list_documents(tools, &skill_lookup::pinned_reference(skill)).await?;
    let docs: HashSet<String> = docs.into_iter().map(|file| file.path).collect();
    Ok(asked.into_iter().partition(|doc| docs.contains(doc)))
}

fn unique(names: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    let names = names.into_iter();
    names.filter(|name| known.insert(name.clone())).collect()
}
