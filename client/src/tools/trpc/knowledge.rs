//! `skill_list`, `skill_list_tools`, `skill_list_docs`: what there is, without loading it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::prompt::clean;
use crate::tools::trpc::{ALIASES, skills};
use crate::tools::{Answer, Call, Inner, ToolError, arguments, lookup};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ListArguments {
    /// `all` or `available`; both list every skill that can be used.
    pub(super) mode: String,
    /// Objects with name and description instead of names.
    pub(super) details: bool,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SkillArguments {
    /// Name of the skill.
    pub(super) skill: String,
}

/// A skill in few words.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Summary {
    name: String,
    description: String,
}

/// Names of the skills, or what they are in few words.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it is made as JSON; the type is its schema")]
pub(super) enum ListResult {
    Names(Vec<String>),
    Summaries(Vec<Summary>),
}

/// Tools that a skill declares.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ToolsResult {
    /// In the order of the skill's `Tools:` section.
    available_tools: Vec<String>,
}

pub(super) async fn list(tools: &Inner, call: Call) -> Result<Answer, ToolError> {
    let asked: ListArguments = arguments::decode(call.arguments, ALIASES)?;
    if !asked.details {
        let names = lookup::names(tools).await?;
        return Ok(Answer::of(names.into_iter().collect::<Value>()));
    }
    let found = lookup::current(tools).await?;
    let items = found.iter().map(|skill| {
        // A model reads it: without what deceives the eye.
        let (description, _) = clean(&skill.description);
        json!({"name": lookup::id(skill), "description": description})
    });
    Ok(Answer::of(items.collect::<Value>()))
}

pub(super) async fn list_tools(tools: &Inner, call: Call) -> Result<Answer, ToolError> {
    let asked: SkillArguments = arguments::decode(call.arguments, ALIASES)?;
    let skill = lookup::skill(tools, skills::required(&asked.skill)?).await?;
    Ok(Answer::of(json!({"available_tools": skill.tools})))
}

pub(super) async fn list_docs(tools: &Inner, call: Call) -> Result<Answer, ToolError> {
    let asked: SkillArguments = arguments::decode(call.arguments, ALIASES)?;
    let address = lookup::address(tools, skills::required(&asked.skill)?).await?;
    let docs = lookup::docs(tools, &address).await?;
    let paths = docs.into_iter().map(|file| Value::from(file.path));
    Ok(Answer::of(paths.collect::<Value>()))
}
