//! Unloading: what was loaded goes, with the tools that only it brought and the servers that only it needed. What was
//! not loaded stays so, and the answer says it.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::state::sherma::{Loaded, LoadedSkill};
use crate::tools::hooks::{self, SkillChoice, UnloadedSkill};
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
    hook.map_err(hooks::refused)?;
    let asked = choice.skill_id.trim();
    let id = loaded_id(tools, loads, asked).await?;
    let id = id.as_deref().unwrap_or(asked);
    let Some(load) = loads.get(id) else {
        let loaded: Vec<&str> = loads.iter().map(|(id, _)| id).collect();
        let message = match loaded.as_slice() {
            [] => format!("{id} is not loaded; nothing is"),
            loaded => format!("{id} is not loaded; loaded are {}", loaded.join(", ")),
        };
        return Ok(not_loaded(id, message));
    };
    if !is_meant(tools, id, &choice.version, load).await? {
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

/// The id under which a skill is loaded that was asked for by this or another of its names.
async fn loaded_id(
    tools: &Inner,
    loads: &Loaded,
    asked: &str,
) -> Result<Option<String>, ToolError> {
    if loads.get(asked).is_some() || asked.is_empty() {
        return Ok(loads.get(asked).map(|_| asked.to_owned()));
    }
    match lookup::skill(tools, asked).await {
        Ok(skill) => Ok(Some(lookup::id(&skill)).filter(|id| loads.get(id).is_some())),
        Err(error) if error.is_of_skill() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The loaded version is one that was asked for. Only the daemon knows what a range means: it is asked for a version that
/// is in the range and this one.
async fn is_meant(
    tools: &Inner,
    id: &str,
    asked: &str,
    load: &LoadedSkill,
) -> Result<bool, ToolError> {
    let (asked, version) = (asked.trim(), load.version.as_str());
    let bare = asked
        .trim_start_matches("==")
        .trim_start_matches('v')
        .trim();
    if matches!(asked, "" | "*" | "latest") || bare == version || asked == load.digest {
        return Ok(true);
    }
    if version.is_empty() || asked.starts_with("sha256:") {
        return Ok(false);
    }
    let both = format!("{asked},=={version}");
    match lookup::skill(tools, &lookup::reference(id, &both)).await {
        Ok(_) | Err(ToolError::SkillUnusable { .. }) => Ok(true),
        Err(ToolError::UnknownSkill { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks the host whether one that is loaded may go, where nobody asked for that by its name.
pub(super) async fn may_go(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    id: &str,
) -> Result<(), ToolError> {
    hooks::may_go(tools, session, id, version(loads, id)).await
}

/// Without one that is loaded, which the hooks are told of.
pub(super) async fn without(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    id: &str,
) -> Result<(Loaded, UnloadedSkill), ToolError> {
    let next = loads.without(id);
    let unloaded = tell(tools, session, (loads, &next), id).await?;
    Ok((next, unloaded))
}

/// Tells the hooks what goes between two states.
pub(super) async fn tell(
    tools: &Inner,
    session: &Session,
    (loads, next): (&Loaded, &Loaded),
    id: &str,
) -> Result<UnloadedSkill, ToolError> {
    let unloaded = UnloadedSkill {
        skill_id: id.to_owned(),
        version: version(loads, id),
        tools_unloaded: loads.tools_not_in(next),
    };
    let hook = tools.hooks.after_skill_unload(session, &unloaded).await;
    hook.map_err(hooks::refused)?;
    Ok(unloaded)
}

fn version(loads: &Loaded, id: &str) -> String {
    loads
        .get(id)
        .map(|load| load.version.clone())
        .unwrap_or_default()
}
