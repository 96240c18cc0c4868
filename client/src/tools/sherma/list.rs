//! What skills there are, and which of them fit some words.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::{SearchSkillsRequest, Skill};

use super::arguments::Search;
use super::resolve;
use crate::prompt::clean;
use crate::state::sherma::Loaded;
use crate::tools::{Answer, Inner, ToolError, lookup};

/// Skills that a search finds, unless it says.
const FOUND: u32 = 25;
/// At most, which is the daemon's bound.
const FOUND_MAX: u32 = 100;

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
            loaded: resolve::is_loaded(loads, skill),
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
    let wanted = search.limit.filter(|limit| *limit > 0);
    let wanted = wanted.unwrap_or(FOUND).min(FOUND_MAX);
    // Those that are hidden are found, too, and take up no room.
    let limit = match tools.options.skills {
        None => wanted,
        Some(_) => FOUND_MAX,
    };
    let request = SearchSkillsRequest {
        query: search.query,
        limit: i32::try_from(limit).unwrap_or_default(),
        compat: false,
    };
    let response = tools.client.search_skills(request).await?;
    let matches = response.matches.into_iter().filter_map(|found| {
        let skill = found.skill?;
        let id = lookup::id(&skill);
        tools.options.shows(&id).then_some(Found {
            id,
            version: clean(&skill.version).0,
            description: clean(&skill.description).0,
            score: found.score,
            matched_fields: found.matched_fields,
        })
    });
    Ok(Answer::of(json!(
        matches.take(wanted as usize).collect::<Vec<_>>()
    )))
}
