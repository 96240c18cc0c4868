//! `skill_list`, `skill_list_tools`, `skill_list_docs`: lists skills, their tools and their documents without loading them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skilld_client::v1::Skill;

use super::decode;
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::prompt::clean;
use crate::result_budget::json_bytes;
use crate::skill_list_page::{
    EntryDetail, PathList, SkillList, SkillListPage, name_page, same_call,
};
use crate::skill_lookup;
use crate::tool_error::{ToolError, ToolResult};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ListArguments {
    /// `all` or `available`; both list every skill that can be used.
    pub(super) mode: String,
    /// Objects with name and description instead of names.
    pub(super) details: bool,
    /// Words: list only the skills that match them, best first.
    pub(super) query: String,
    /// Where to go on: `next_offset` of the call before.
    pub(super) offset: usize,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SkillArguments {
    /// Name of the skill.
    pub(super) skill: String,
    /// Where to go on: `next_offset` of the call before.
    pub(super) offset: usize,
}

/// Name and description of a skill.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SkillLine {
    name: String,
    description: String,
}

/// Names of the skills, or their names and descriptions.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ListResult {
    Names(SkillList<String>),
    Summaries(SkillList<SkillLine>),
}

/// Tools that a skill declares.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolsResult {
    /// In the order of the skill's `Tools:` section.
    available_tools: Vec<String>,
    /// `offset` of the call that goes on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<usize>,
    /// Which tools these are, if they are not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

pub(super) async fn list_skills(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ListArguments = decode(arguments)?;
    let query = asked.query.trim();
    let names = async || -> ToolResult<Vec<String>> {
        Ok(match query {
            "" => {
                let names = skill_lookup::list_skill_names(call.context).await?;
                names.into_iter().collect()
            }
            words => {
                let found = skill_lookup::find_skills_by_words(call.context, words).await?;
                found.iter().map(skill_lookup::skill_id).collect()
            }
        })
    };
    let skills = async || match query {
        "" => skill_lookup::list_current_skills(call.context).await,
        words => skill_lookup::find_skills_by_words(call.context, words).await,
    };
    let rest = |next: usize| match query {
        "" => format!(
            "the others: skill_list with offset {next}, or with query to find skills by words"
        ),
        _ => format!("the others: the same call with offset {next}, or more words"),
    };
    let result = if asked.details {
        let page = SkillListPage::new(&skills().await?, asked.offset, SkillLine::new, json_bytes);
        ListResult::Summaries(page.into_list(rest))
    } else {
        let page = name_page(&names().await?, asked.offset);
        ListResult::Names(page.into_list(rest))
    };
    Ok(ToolAnswer::of(json!(result)))
}

impl SkillLine {
    fn new(skill: &Skill, detail: EntryDetail) -> Self {
        Self {
            name: skill_lookup::skill_id(skill),
            // A model reads it: without characters that deceive the eye.
            description: detail.cut(clean(&skill_lookup::described(skill)).0),
        }
    }
}

pub(super) async fn list_tools(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SkillArguments = decode(arguments)?;
    let skill = skill_lookup::find_skill(call.context, require_name(&asked.skill)?).await?;
    let page = name_page(&skill.tools, asked.offset);
    let message = page.describe("tools", same_call);
    Ok(ToolAnswer::of(json!(ToolsResult {
        next_offset: page.next_offset(),
        message: (!page.is_whole()).then_some(message),
        available_tools: page.entries,
    })))
}

pub(super) async fn list_docs(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SkillArguments = decode(arguments)?;
    let name = require_name(&asked.skill)?;
    let reference = skill_lookup::resolve_reference(call.context, name).await?;
    let docs = skill_lookup::list_documents(call.tools, &reference).await?;
    let paths: Vec<String> = docs.into_iter().map(|file| file.path).collect();
    Ok(ToolAnswer::of(json!(PathList::new(&paths, asked.offset))))
}

/// Returns the name of a skill without surrounding blanks.
fn require_name(skill: &str) -> ToolResult<&str> {
    match skill.trim() {
        "" => Err(ToolError::arguments("skill is required")),
        skill => Ok(skill),
    }
}

/// Returns the name of a skill to load or select from. It must have no version: the state and the prompt have the
/// current one.
pub(super) fn require_unversioned_name(skill: &str) -> ToolResult<&str> {
    match require_name(skill)? {
        skill if skill.contains('@') => Err(ToolError::arguments(format!(
            "skill {skill:?}: the current version is loaded; name it without @"
        ))),
        skill => Ok(skill),
    }
}
