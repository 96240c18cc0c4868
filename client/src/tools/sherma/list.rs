//! What skills there are, and which of them fit some words.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::Skill;

use super::arguments::Search;
use super::resolve;
use crate::prompt::clean;
use crate::state::sherma::Loaded;
use crate::tools::{Answer, Inner, ToolError, lookup};

/// Skills that a search finds, unless it says.
const FOUND: u32 = 25;

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
    let wanted = search.limit.filter(|limit| *limit > 0).unwrap_or(FOUND);
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    let found = lookup::search(tools, &search.query, wanted, false).await?;
    let matches = found.into_iter().map(|(skill, found)| Found {
        id: lookup::id(&skill),
        version: clean(&skill.version).0,
        description: clean(&skill.description).0,
        score: found.score,
        matched_fields: found.matched_fields,
    });
    Ok(Answer::of(json!(matches.collect::<Vec<_>>())))
}
