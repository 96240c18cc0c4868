//! Listing and search of skills.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use skilld_client::v1::{Skill, SkillMatch, SkillScoring};

use super::skill_version_resolution::is_loaded;
use super::tool_arguments::{ListArguments, SearchArguments};
use super::{decode, read_loaded};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::prompt::clean;
use crate::result_budget::json_bytes;
use crate::skill_list_page::{EntryDetail, SkillListPage};
use crate::skill_lookup::{self, FOUND_MAX, skill_id};
use crate::state::sherma::LoadedSkills;
use crate::tool_error::ToolError;

/// Default number of skills that a search finds.
const FOUND_DEFAULT: u32 = 25;

/// Skill of `list_skills`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListedSkill {
    id: String,
    version: String,
    name: String,
    description: String,
    /// `true` if this version of it is loaded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    loaded: bool,
    /// Reason why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl ListedSkill {
    fn new(skill: &Skill, loaded: &LoadedSkills, detail: EntryDetail) -> Self {
        let id = skill_id(skill);
        let text = |text: &str| detail.cut(clean(text).0);
        Self {
            name: match skill.display_name.as_str() {
                "" => id.clone(),
                name => text(name),
            },
            version: match skill.version.as_str() {
                "" => "*".to_owned(),
                version => text(version),
            },
            description: text(&skill.description),
            loaded: is_loaded(loaded, skill),
            problem: skill_lookup::unusable_reason(skill).map(|problem| detail.cut(problem)),
            id,
        }
    }
}

/// Skill of `search_skills`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FoundSkill {
    id: String,
    version: String,
    description: String,
    score: f64,
    matched_fields: Vec<String>,
}

pub(super) async fn list_skills(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ListArguments = decode(arguments)?;
    let loaded = read_loaded(call.context);
    let query = asked.query.trim();
    let skills = match query {
        "" => skill_lookup::list_skills(call.context).await?,
        words => {
            let found = skill_lookup::search_skills(
                call.context,
                words,
                FOUND_MAX,
                SkillScoring::Relevance,
            )
            .await?;
            found.into_iter().map(|(skill, _)| skill).collect()
        }
    };
    let describe = |skill: &Skill, detail| ListedSkill::new(skill, &loaded, detail);
    let page = SkillListPage::new(&skills, asked.offset, describe, json_bytes);
    let list = page.into_list(|next| match query {
        "" => format!(
            "the others: list_skills with offset {next}, or with query to find skills by words"
        ),
        _ => format!("the others: the same call with offset {next}, or more words"),
    });
    Ok(ToolAnswer::of(json!(list)))
}

pub(super) async fn search_skills(call: CallContext<'_>, arguments: Value) -> CallResult {
    let search: SearchArguments = decode(arguments)?;
    if search.query.trim().is_empty() {
        return Err(ToolError::arguments("query is empty: give some words"));
    }
    let wanted = search
        .limit
        .filter(|limit| *limit > 0)
        .unwrap_or(FOUND_DEFAULT);
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let found =
        skill_lookup::search_skills(call.context, &search.query, wanted, SkillScoring::Relevance)
            .await?;
    let page = SkillListPage::new(&found, search.offset, FoundSkill::new, json_bytes);
    let list = page
        .into_list(|next| format!("the others: the same call with offset {next}, or more words"));
    Ok(ToolAnswer::of(json!(list)))
}

impl FoundSkill {
    fn new((skill, found): &(Skill, SkillMatch), detail: EntryDetail) -> Self {
        Self {
            id: skill_id(skill),
            version: detail.cut(clean(&skill.version).0),
            description: detail.cut(clean(&skill_lookup::described(skill)).0),
            score: found.score,
            matched_fields: found.matched_fields.clone(),
        }
    }
}
