//! `skill_load`, `skill_select_docs`, `skill_select_tools`: what the next prompt brings of a skill. Only the session's
//! state changes; nothing is staged before something runs.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::Skill;

use crate::state::{Change, Selection, SessionState, loading};
use crate::tools::hooks::{self, LoadedSkill, SkillChoice};
use crate::tools::trpc::evict::Evict;
use crate::tools::trpc::loads::{self, Choice, Of};
use crate::tools::trpc::{ALIASES, offer, skills};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments, lookup, material};

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

/// That a skill is loaded. Its text is in here only where the prompt does not bring it.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct LoadResult {
    skill: String,
    /// `loaded: NAME`.
    message: String,
    /// Of the bytes that are loaded.
    digest: String,
    /// The documents that come with it.
    selected_docs: Vec<String>,
    include_all_docs: bool,
    /// The tools of it that are offered.
    selected_tools: Vec<String>,
    /// Documents that the skill does not have; they were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_docs: Vec<String>,
    /// Tools that the skill names and that are not there; they are not offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_tools: Vec<String>,
    /// Skills that are not loaded any more, since there is room for so many only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evicted: Vec<String>,
    /// The skill's instructions and the selected documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// What is chosen now.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectDocsResult {
    skill: String,
    mode: String,
    selected_docs: Vec<String>,
    include_all_docs: bool,
    /// Documents that the skill does not have; they were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_docs: Vec<String>,
    /// The skill's instructions and the selected documents, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// What is chosen now.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SelectToolsResult {
    skill: String,
    mode: String,
    /// The tools of it that are offered once it is loaded.
    selected_tools: Vec<String>,
    include_all_tools: bool,
    /// Tools that are not there; they are not offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_tools: Vec<String>,
}

pub(super) async fn load(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: LoadArguments = arguments::decode(call.arguments, ALIASES)?;
    let mut choice = SkillChoice {
        skill_id: skills::to_load(&asked.skill)?.to_owned(),
        version: String::new(),
    };
    let hook = tools.hooks.before_skill_load(session, &mut choice).await;
    hook.map_err(hooks::refused)?;
    let reference = lookup::reference(&choice.skill_id, &choice.version);
    let skill = lookup::skill(tools, skills::to_load(&reference)?).await?;
    let name = lookup::id(&skill);
    let scope = tools.options.scope(&session.agent);
    let (docs, mut unknown_docs) = known_docs(tools, &skill, &asked.docs).await?;
    let docs = match (asked.include_all_docs, docs.is_empty()) {
        (true, _) => Some(Selection::All),
        (false, false) => Some(Selection::these(&docs)),
        (false, true) => None,
    };
    let load = loads::load(state, scope, &tools.options, &name, docs.as_ref());
    let after = state.with(&load.delta);
    let docs = loading::docs(&after, scope, &name);
    // What it declares, until something else is chosen.
    let chosen = match loading::tools(&after, scope, &name) {
        Some(Selection::These(chosen)) => chosen,
        Some(Selection::All) | None => skill.tools.clone(),
    };
    let (selected_tools, unknown_tools) = there(tools, chosen);
    let mut told = LoadedSkill {
        skill_id: name.clone(),
        version: skill.version.clone(),
        digest: skill.digest.clone(),
        content: String::new(),
        tools_loaded: selected_tools.clone(),
    };
    let inline = material::inline(tools, &after, scope, skill).await?;
    unknown_docs.extend(inline.unknown_docs);
    let has_content = inline.content.is_some();
    told.content = inline.content.unwrap_or_default();
    let evict = Evict {
        tools,
        session,
        state: &load.with,
        names: &load.evicted,
    };
    evict.before().await?;
    let hook = tools.hooks.after_skill_load(session, &mut told).await;
    hook.map_err(hooks::refused)?;
    evict.after().await?;
    let result = LoadResult {
        message: format!("loaded: {name}"),
        digest: told.digest,
        include_all_docs: docs == Some(Selection::All),
        selected_docs: named(docs.as_ref()),
        selected_tools,
        unknown_docs: unique(unknown_docs),
        unknown_tools,
        evicted: load.evicted,
        content: has_content.then_some(told.content),
        skill: name,
    };
    Ok(Answer {
        result: json!(result),
        delta: load.delta,
    })
}

pub(super) async fn select_docs(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: SelectDocsArguments = arguments::decode(call.arguments, ALIASES)?;
    let skill = lookup::skill(tools, skills::to_load(&asked.skill)?).await?;
    let name = lookup::id(&skill);
    let (items, unknown) = known_docs(tools, &skill, &asked.docs).await?;
    let choice = Choice {
        change: Change::parse(&asked.mode),
        all: asked.include_all_docs,
        items,
        unknown,
    };
    let scope = tools.options.scope(&session.agent);
    let selected = loads::select(state, scope, Of::Docs, &skill, &choice);
    let after = state.with(&selected.delta);
    let inline = material::inline(tools, &after, scope, skill).await?;
    let mut unknown_docs = choice.unknown;
    unknown_docs.extend(inline.unknown_docs);
    let result = SelectDocsResult {
        skill: name,
        mode: choice.change.name().to_owned(),
        selected_docs: named(Some(&selected.selection)),
        include_all_docs: selected.selection == Selection::All,
        unknown_docs: unique(unknown_docs),
        content: inline.content,
    };
    Ok(Answer {
        result: json!(result),
        delta: selected.delta,
    })
}

pub(super) async fn select_tools(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: SelectToolsArguments = arguments::decode(call.arguments, ALIASES)?;
    let skill = lookup::skill(tools, skills::to_load(&asked.skill)?).await?;
    let asked_for = asked.tools.iter().map(|tool| tool.trim().to_owned());
    // The host's pool may have some that the skill does not name.
    let known = |tool: &String| skill.tools.contains(tool) || offer::has_tool(tools, tool);
    let (items, unknown) = asked_for.filter(|tool| !tool.is_empty()).partition(known);
    let choice = Choice {
        change: Change::parse(&asked.mode),
        all: asked.include_all_tools,
        items,
        unknown,
    };
    let scope = tools.options.scope(&session.agent);
    let selected = loads::select(state, scope, Of::Tools, &skill, &choice);
    let all = selected.selection == Selection::All;
    let chosen = match selected.selection {
        Selection::These(chosen) => chosen,
        Selection::All => skill.tools.clone(),
    };
    let (selected_tools, absent) = there(tools, chosen);
    let mut unknown_tools = choice.unknown;
    unknown_tools.extend(absent);
    let result = SelectToolsResult {
        skill: lookup::id(&skill),
        mode: choice.change.name().to_owned(),
        selected_tools: if all { Vec::new() } else { selected_tools },
        include_all_tools: all,
        unknown_tools: unique(unknown_tools),
    };
    Ok(Answer {
        result: json!(result),
        delta: selected.delta,
    })
}

/// The tools that a model can be offered, and the others.
fn there(tools: &Inner, chosen: Vec<String>) -> (Vec<String>, Vec<String>) {
    let chosen = unique(chosen).into_iter();
    chosen.partition(|tool| offer::has_tool(tools, tool))
}

fn unique(names: Vec<String>) -> Vec<String> {
    let mut known = HashSet::new();
    let names = names.into_iter();
    names.filter(|name| known.insert(name.clone())).collect()
}

/// The names of a choice; none for all.
fn named(selection: Option<&Selection>) -> Vec<String> {
    match selection {
        Some(Selection::These(names)) => names.clone(),
        Some(Selection::All) | None => Vec::new(),
    }
}

/// Those of the documents that the skill has, and the others.
async fn known_docs(
    tools: &Inner,
    skill: &Skill,
    asked: &[String],
) -> Result<(Vec<String>, Vec<String>), ToolError> {
    let asked: Vec<String> = asked.iter().map(|doc| doc.trim().to_owned()).collect();
    if asked.iter().all(String::is_empty) {
        return Ok((Vec::new(), Vec::new()));
    }
    let docs = lookup::docs(tools, &lookup::pinned(skill)).await?;
    let docs: HashSet<String> = docs.into_iter().map(|file| file.path).collect();
    let asked = asked.into_iter().filter(|doc| !doc.is_empty());
    Ok(asked.partition(|doc| docs.contains(doc)))
}
