//! `skill_select_docs`, `skill_select_tools`: chooses the documents and tools of a skill that the next prompts bring.

use std::collections::{BTreeMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_client::v1::Skill;

use super::decode;
use super::skill_listing::require_unversioned_name;
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer, ToolsetContext};
use crate::skill_file_path::{DocumentMatch, find_document};
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
    /// Documents that were chosen before and are not any more; the mode `add` keeps them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dropped_docs: Vec<String>,
    /// Documents that the skill does not have; they were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_docs: Vec<String>,
    /// For unknown documents: those that may have been meant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    similar_docs: BTreeMap<String, Vec<String>>,
}

/// Documents that a call names, by whether the skill has them.
#[derive(Debug, Default)]
pub(super) struct RequestedDocs {
    /// Paths as the skill has them.
    pub(super) known: Vec<String>,
    pub(super) unknown: Vec<String>,
    /// Documents that the call drops from the earlier choice.
    pub(super) dropped: Vec<String>,
    /// Documents that may have been meant by unknown names.
    similar: BTreeMap<String, Vec<String>>,
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
    /// Documents that the result has no room for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Result of `skill_select_tools`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectToolsResult {
    skill: String,
    mode: String,
    #[serde(flatten)]
    tools: SelectedTools,
    include_all_tools: bool,
    /// Lists that the result has no room for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl SelectedDocs {
    pub(super) fn new(selection: Option<&Selection>, requested: RequestedDocs) -> Self {
        Self {
            selected_docs: match selection {
                Some(Selection::These(names)) => names.clone(),
                Some(Selection::All) | None => Vec::new(),
            },
            include_all_docs: selection == Some(&Selection::All),
            dropped_docs: requested.dropped,
            unknown_docs: unique(requested.unknown),
            similar_docs: requested.similar,
        }
    }
}

pub(super) async fn select_docs(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SelectDocsArguments = decode(arguments)?;
    let (tools, state, scope) = (call.tools, call.state, call.scope());
    let skill =
        skill_lookup::find_skill(call.context, require_unversioned_name(&asked.skill)?).await?;
    let name = skill_lookup::skill_id(&skill);
    let mut docs = find_requested_docs(tools, &skill, &asked.docs).await?;
    let items = std::mem::take(&mut docs.known);
    let change = SelectionMode::parse(&asked.mode);
    let selected = if has_effect(change, asked.include_all_docs, &items, &docs.unknown) {
        skill_loads::select_docs(state, scope, &name, change, &items, asked.include_all_docs)
    } else {
        unchanged(skill_loads::docs(state, scope, &name), &[])
    };
    let before = skill_loads::docs(state, scope, &name);
    docs.dropped = find_dropped_docs(tools, &skill, before, Some(&selected.selection)).await?;
    let after = state.with(&selected.delta);
    let context = SessionContext {
        state: &after,
        ..call.context
    };
    let inline = prompt_material_reader::read_inline_content(context, skill).await?;
    docs.unknown.extend(inline.unknown_docs);
    let result = SelectDocsResult {
        skill: name,
        mode: change.name().to_owned(),
        docs: SelectedDocs::new(Some(&selected.selection), docs),
        content: inline.content,
        warnings: inline.warning.into_iter().collect(),
    };
    Ok(ToolAnswer::with(&result, selected.delta))
}

pub(super) async fn select_tools(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SelectToolsArguments = decode(arguments)?;
    let (tools, state, scope) = (call.tools, call.state, call.scope());
    let skill =
        skill_lookup::find_skill(call.context, require_unversioned_name(&asked.skill)?).await?;
    let name = skill_lookup::skill_id(&skill);
    let items = asked.tools.iter().map(|tool| tool.trim().to_owned());
    // The host's pool may have some that the skill does not name.
    let (items, unknown): (Vec<String>, Vec<String>) = items
        .filter(|tool| !tool.is_empty())
        .partition(|tool| skill.tools.contains(tool) || tools.has_tool(tool));
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
        warnings: Vec::new(),
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
        chosen.partition(|tool| tools.has_tool(tool));
    unknown.extend(absent);
    SelectedTools {
        selected_tools,
        unknown_tools: unique(unknown),
    }
}

/// Finds the documents that a call names among those that the skill has. A script counts too where it is named.
pub(super) async fn find_requested_docs(
    tools: &ToolsetContext,
    skill: &Skill,
    asked: &[String],
) -> ToolResult<RequestedDocs> {
    let asked: Vec<&str> = asked
        .iter()
        .map(|doc| doc.trim())
        .filter(|doc| !doc.is_empty())
        .collect();
    let mut requested = RequestedDocs::default();
    if asked.is_empty() {
        return Ok(requested);
    }
    let pinned = skill_lookup::pinned_reference(skill);
    let files = skill_lookup::list_readable_files(tools, &pinned).await?;
    let docs: Vec<String> = files.into_iter().map(|file| file.path).collect();
    let id = skill_lookup::skill_id(skill);
    let mut shared = skill_lookup::find_shared_files(tools, skill, &asked).await?;
    for doc in asked {
        match (find_document(&id, &docs, doc), shared.remove(doc)) {
            (DocumentMatch::Found(path), _) => requested.known.push(path),
            (DocumentMatch::Unknown(_), Some(file)) => requested.known.push(file.path),
            (DocumentMatch::Unknown(similar), None) => {
                requested.unknown.push(doc.to_owned());
                if !similar.is_empty() {
                    requested.similar.insert(doc.to_owned(), similar);
                }
            }
        }
    }
    Ok(requested)
}

/// Returns the documents of an earlier choice that a new one does not have.
pub(super) async fn find_dropped_docs(
    tools: &ToolsetContext,
    skill: &Skill,
    before: Option<Selection>,
    after: Option<&Selection>,
) -> ToolResult<Vec<String>> {
    let (Some(before), Some(Selection::These(kept))) = (before, after) else {
        return Ok(Vec::new());
    };
    let before = match before {
        Selection::These(names) => names,
        Selection::All => {
            let pinned = skill_lookup::pinned_reference(skill);
            let docs = skill_lookup::list_documents(tools, &pinned).await?;
            docs.into_iter().map(|file| file.path).collect()
        }
    };
    let kept: HashSet<&String> = kept.iter().collect();
    let dropped = before.into_iter().filter(|doc| !kept.contains(doc));
    Ok(dropped.collect())
}

fn unique(names: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    names
        .into_iter()
        .filter(|name| known.insert(name.clone()))
        .collect()
}
