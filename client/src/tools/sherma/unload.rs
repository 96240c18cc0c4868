//! Unloading: what was loaded goes, with the tools that only it brought and the servers that only it needed. What was
//! not loaded stays so, and the answer says it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::state::sherma::Loaded;
use crate::tools::hooks::{SkillChoice, UnloadedSkill};
use crate::tools::{Answer, Inner, Session, ToolError, lookup};

/// What `unload_skill` returns.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Unloaded {
    outcome: Outcome,
    skill_id: String,
    /// The one that was loaded.
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_unloaded: Vec<String>,
    /// What the text of the skill is marked with in the conversation, which may now drop it.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<Tag>,
    message: String,
}

/// The attributes of the tag around a skill's text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Tag {
    id: String,
    digest: String,
}

/// What an unload did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Outcome {
    Unloaded,
    /// Nothing was done.
    NotLoaded,
}

pub(super) async fn call(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    mut choice: SkillChoice,
) -> Result<Answer, ToolError> {
    let hook = tools.hooks.before_skill_unload(session, &mut choice).await;
    hook.map_err(|problem| ToolError::Hook { problem })?;
    let id = choice.skill_id.trim();
    let Some(load) = loads.get(id) else {
        let loaded: Vec<&str> = loads.iter().map(|(id, _)| id).collect();
        let message = match loaded.as_slice() {
            [] => format!("{id} is not loaded; nothing is"),
            loaded => format!("{id} is not loaded; loaded are {}", loaded.join(", ")),
        };
        return Ok(not_loaded(id, message));
    };
    if !is_meant(tools, id, &choice.version, &load.version, &load.digest).await? {
        let message = format!(
            "{id} is loaded in version {}, which is not {}",
            load.version, choice.version
        );
        return Ok(not_loaded(id, message));
    }
    let tag = Tag {
        id: id.to_owned(),
        digest: load.digest.clone(),
    };
    let (next, unloaded) = without(tools, session, loads, id).await?;
    tools
        .mcp
        .disconnect(session, &loads.places_not_in(&next))
        .await;
    let message = match unloaded.tools_unloaded.as_slice() {
        [] => format!("unloaded {id}; no tool went with it"),
        tools => format!(
            "unloaded {id}; these tools went with it: {}",
            tools.join(", ")
        ),
    };
    let result = json!(Unloaded {
        outcome: Outcome::Unloaded,
        skill_id: unloaded.skill_id,
        version: unloaded.version,
        tools_unloaded: unloaded.tools_unloaded,
        tag: Some(tag),
        message,
    });
    Ok(Answer {
        result,
        delta: next.delta(loads, &session.agent),
    })
}

fn not_loaded(id: &str, message: String) -> Answer {
    Answer::of(json!(Unloaded {
        outcome: Outcome::NotLoaded,
        skill_id: id.to_owned(),
        version: String::new(),
        tools_unloaded: Vec::new(),
        tag: None,
        message,
    }))
}

/// The loaded version is one that was asked for. Only the daemon knows what a range means.
async fn is_meant(
    tools: &Inner,
    id: &str,
    asked: &str,
    version: &str,
    digest: &str,
) -> Result<bool, ToolError> {
    let asked = asked.trim();
    let bare = asked
        .trim_start_matches("==")
        .trim_start_matches('v')
        .trim();
    if matches!(asked, "" | "*" | "latest") || bare == version || asked == digest {
        return Ok(true);
    }
    match lookup::skill(tools, &lookup::reference(id, asked)).await {
        Ok(skill) => Ok(skill.digest == digest),
        Err(ToolError::UnknownSkill { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Without one that is loaded, which the hooks are told of.
pub(super) async fn without(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    id: &str,
) -> Result<(Loaded, UnloadedSkill), ToolError> {
    let next = loads.without(id);
    let unloaded = UnloadedSkill {
        skill_id: id.to_owned(),
        version: loads
            .get(id)
            .map(|load| load.version.clone())
            .unwrap_or_default(),
        tools_unloaded: loads.tools_not_in(&next),
    };
    let hook = tools.hooks.after_skill_unload(session, &unloaded).await;
    hook.map_err(|problem| ToolError::Hook { problem })?;
    Ok((next, unloaded))
}
