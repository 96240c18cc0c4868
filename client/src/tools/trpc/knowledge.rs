//! `skill_list`, `skill_list_tools`, `skill_list_docs`: what there is, without loading it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skilld_proto::v1::skill_file::Kind;
use skilld_proto::v1::{ListSkillFilesRequest, SkillFile};

use crate::tools::trpc::{ALIASES, skills};
use crate::tools::{Answer, Call, Inner, ToolError, arguments};

/// One page of files; the server's maximum.
const PAGE: i32 = 10_000;

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
    let found = skills::all(tools).await?;
    let items = found.iter().map(|skill| {
        let name = skills::id(&skill.name);
        match asked.details {
            true => json!({"name": name, "description": skill.description}),
            false => Value::from(name),
        }
    });
    Ok(Answer::of(items.collect::<Value>()))
}

pub(super) async fn list_tools(tools: &Inner, call: Call) -> Result<Answer, ToolError> {
    let asked: SkillArguments = arguments::decode(call.arguments, ALIASES)?;
    let skill = skills::one(tools, skills::required(&asked.skill)?).await?;
    Ok(Answer::of(json!({"available_tools": skill.tools})))
}

pub(super) async fn list_docs(tools: &Inner, call: Call) -> Result<Answer, ToolError> {
    let asked: SkillArguments = arguments::decode(call.arguments, ALIASES)?;
    let docs = docs(tools, skills::required(&asked.skill)?).await?;
    Ok(Answer::of(docs))
}

/// Paths of the documents of a skill: texts that are documents, references or scripts, other than SKILL.md.
pub(super) async fn docs(tools: &Inner, skill: &str) -> Result<Vec<String>, ToolError> {
    skills::shown(&tools.options, skill)?;
    let mut request = ListSkillFilesRequest {
        name: skill.to_owned(),
        page_size: PAGE,
        ..ListSkillFilesRequest::default()
    };
    let mut docs = Vec::new();
    loop {
        let page = tools.client.list_skill_files(request.clone()).await;
        let page = page.map_err(|error| skills::refused(&tools.options, skill, error))?;
        docs.extend(page.files.into_iter().filter(is_doc).map(|file| file.path));
        if page.next_page_token.is_empty() {
            return Ok(docs);
        }
        request.page_token = page.next_page_token;
    }
}

fn is_doc(file: &SkillFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let kind = matches!(file.kind(), Kind::Document | Kind::Reference | Kind::Script);
    kind && file.is_text && !name.eq_ignore_ascii_case("SKILL.md") && !name.starts_with('.')
}
