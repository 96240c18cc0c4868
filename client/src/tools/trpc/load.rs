//! `skill_load`, `skill_select_docs`, `skill_select_tools`: what the next prompt brings of a skill. Only the session's
//! state changes; nothing is staged before something runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use skilld_proto::v1::Skill;

use crate::state::{Change, Scope, Selection, SessionState, loading};
use crate::tools::trpc::loads::{self, Choice, Of};
use crate::tools::trpc::{ALIASES, knowledge, material, skills};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments};

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
    /// Skills that are not loaded any more, since there is room for so many only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evicted: Vec<String>,
    /// The skill's instructions and the selected documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// What is chosen now. `selected_docs` and `include_all_docs`, or the same of tools.
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
    selected_tools: Vec<String>,
    include_all_tools: bool,
    /// Tools that neither the skill declares nor the host has; they were left out.
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
    let skill = skills::one(tools, skills::required(&asked.skill)?).await?;
    let name = skills::id(&skill.name);
    let scope = loads::scope(session, &tools.options);
    let (docs, unknown_docs) = known_docs(tools, name, &asked.docs).await?;
    let docs = match (asked.include_all_docs, docs.is_empty()) {
        (true, _) => Some(Selection::All),
        (false, false) => Some(Selection::these(&docs)),
        (false, true) => None,
    };
    let (delta, evicted) = loads::load(state, scope, &tools.options, name, docs.as_ref());
    let after = state.with(&delta);
    let docs = loading::docs(&after, scope, name);
    // What it declares, until something else is chosen.
    let selected_tools = match loading::tools(&after, scope, name) {
        Some(Selection::These(chosen)) => chosen,
        Some(Selection::All) | None => skill.tools.clone(),
    };
    let result = LoadResult {
        skill: name.to_owned(),
        message: format!("loaded: {name}"),
        digest: skill.digest.clone(),
        include_all_docs: docs == Some(Selection::All),
        selected_docs: named(docs.as_ref()),
        selected_tools,
        unknown_docs,
        evicted,
        content: material::inline(tools, &after, scope, name).await?,
    };
    Ok(Answer {
        result: json!(result),
        delta,
    })
}

pub(super) async fn select_docs(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: SelectDocsArguments = arguments::decode(call.arguments, ALIASES)?;
    let skill = skills::one(tools, skills::required(&asked.skill)?).await?;
    let (items, unknown) = known_docs(tools, skills::id(&skill.name), &asked.docs).await?;
    let choice = Choice {
        change: Change::parse(&asked.mode),
        all: asked.include_all_docs,
        items,
        unknown,
    };
    let scope = loads::scope(session, &tools.options);
    let mut answer = select(state, scope, Of::Docs, &skill, &choice);
    let name = skills::id(&skill.name);
    let content = material::inline(tools, &state.with(&answer.delta), scope, name).await?;
    if let (Some(result), Some(content)) = (answer.result.as_object_mut(), content)
        && !content.is_empty()
    {
        result.insert("content".into(), content.into());
    }
    Ok(answer)
}

pub(super) async fn select_tools(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: SelectToolsArguments = arguments::decode(call.arguments, ALIASES)?;
    let skill = skills::one(tools, skills::required(&asked.skill)?).await?;
    let asked_for = asked.tools.iter().map(|tool| tool.trim().to_owned());
    // The host's pool may have some that the skill does not name.
    let known = |tool: &String| skill.tools.contains(tool) || tools.host.definition(tool).is_some();
    let (items, unknown) = asked_for.filter(|tool| !tool.is_empty()).partition(known);
    let choice = Choice {
        change: Change::parse(&asked.mode),
        all: asked.include_all_tools,
        items,
        unknown,
    };
    let scope = loads::scope(session, &tools.options);
    Ok(select(state, scope, Of::Tools, &skill, &choice))
}

fn select(
    state: &SessionState,
    scope: Scope<'_>,
    of: Of,
    skill: &Skill,
    choice: &Choice,
) -> Answer {
    let selected = loads::select(state, scope, of, skill, choice);
    let word = match of {
        Of::Docs => "docs",
        Of::Tools => "tools",
    };
    let all = selected.selection == Selection::All;
    let mut result = Map::new();
    result.insert("skill".into(), skills::id(&skill.name).into());
    result.insert("mode".into(), choice.change.name().into());
    let names = named(Some(&selected.selection));
    result.insert(format!("selected_{word}"), names.into());
    result.insert(format!("include_all_{word}"), all.into());
    if !choice.unknown.is_empty() {
        let unknown = choice.unknown.clone();
        result.insert(format!("unknown_{word}"), unknown.into());
    }
    Answer {
        result: Value::Object(result),
        delta: selected.delta,
    }
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
    skill: &str,
    asked: &[String],
) -> Result<(Vec<String>, Vec<String>), ToolError> {
    let asked: Vec<String> = asked.iter().map(|doc| doc.trim().to_owned()).collect();
    if asked.iter().all(String::is_empty) {
        return Ok((Vec::new(), Vec::new()));
    }
    let docs = knowledge::docs(tools, skill).await?;
    let asked = asked.into_iter().filter(|doc| !doc.is_empty());
    Ok(asked.partition(|doc| docs.contains(doc)))
}
