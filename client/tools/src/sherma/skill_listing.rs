//! Listing and search of skills.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use skilld_client::v1::Skill;

use super::skill_version_resolution::is_loaded;
use super::tool_arguments::SearchArguments;
use super::{decode, read_loaded};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::prompt::clean;
use crate::skill_lookup::{self, skill_id};
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
    fn new(skill: &Skill, loaded: &LoadedSkills) -> Self {
        let id = skill_id(skill);
        Self {
            name: match skill.display_name.as_str() {
                "" => id.clone(),
                name => clean(name).0,
            },
            version: match skill.version.as_str() {
                "" => "*".to_owned(),
                version => clean(version).0,
            },
            description: clean(&skill.description).0,
            loaded: is_loaded(loaded, skill),
            problem: skill_lookup::unusable_reason(skill),
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

pub(super) async fn list_skills(call: CallContext<'_>) -> CallResult {
    let loaded = read_loaded(*call);
    let skills = skill_lookup::list_skills(call.tools).await?;
    let listed = skills.iter().map(|skill| ListedSkill::new(skill, &loaded));
    Ok(ToolAnswer::of(json!(listed.collect::<Vec<_>>())))
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
    let found = skill_lookup::search_skills(call.tools, &search.query, wanted, false).await?;
    let matches = found.into_iter().map(|(skill, found)| FoundSkill {
        id: skill_id(&skill),
        version: clean(&skill.version).0,
        description: clean(&skill.description).0,
        score: found.score,
        matched_fields: found.matched_fields,
    });
    Ok(ToolAnswer::of(json!(matches.collect::<Vec<_>>())))
}
