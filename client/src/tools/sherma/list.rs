//! What skills there are, and which of them fit some words.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::{SearchSkillsRequest, Skill};

use super::arguments::Search;
use crate::state::sherma::Loaded;
use crate::tools::{Answer, Inner, ToolError, lookup};

/// One skill of `list_skills`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    id: String,
    version: String,
    name: String,
    description: String,
    /// This version of it is loaded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    loaded: bool,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Listed {
    fn of(skill: &Skill, loads: &Loaded) -> Self {
        let id = lookup::id(skill);
        let loaded = loads
            .get(&id)
            .is_some_and(|load| load.digest == skill.digest);
        Self {
            name: match skill.display_name.as_str() {
                "" => id.clone(),
                name => name.to_owned(),
            },
            version: match skill.version.as_str() {
                "" => "*".to_owned(),
                version => version.to_owned(),
            },
            description: skill.description.clone(),
            loaded,
            problem: lookup::unusable(skill),
            id,
        }
    }
}

/// One skill of `search_skills`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Found {
    id: String,
    version: String,
    description: String,
    score: f64,
    matched_fields: Vec<String>,
}

pub(super) async fn all(tools: &Inner, loads: &Loaded) -> Result<Answer, ToolError> {
    let skills = lookup::skills(tools).await?;
    let listed: Vec<Listed> = skills
        .iter()
        .map(|skill| Listed::of(skill, loads))
        .collect();
    Ok(Answer::of(json!(listed)))
}

pub(super) async fn search(tools: &Inner, search: Search) -> Result<Answer, ToolError> {
    if search.query.trim().is_empty() {
        return Err(ToolError::arguments("query is empty: give some words"));
    }
    let request = SearchSkillsRequest {
        query: search.query,
        limit: search
            .limit
            .map_or(0, |limit| i32::try_from(limit).unwrap_or(i32::MAX)),
        compat: false,
    };
    let response = tools.client.search_skills(request).await?;
    let matches = response.matches.into_iter().filter_map(|found| {
        let skill = found.skill?;
        let id = lookup::id(&skill);
        tools.options.shows(&id).then_some(Found {
            id,
            version: skill.version,
            description: skill.description,
            score: found.score,
            matched_fields: found.matched_fields,
        })
    });
    Ok(Answer::of(json!(matches.collect::<Vec<_>>())))
}
