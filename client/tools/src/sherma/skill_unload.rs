//! Unloads a skill, with the tools that only it brought and the servers that only it needed. The answer for a skill
//! that is not loaded says so, and nothing changes.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::tool_arguments::SkillArguments;
use super::{decode, read_loaded};
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer};
use crate::hooks::{SkillChoice, UnloadedSkill};
use crate::skill_lookup;
use crate::state::sherma::{LoadedSkill, LoadedSkills};
use crate::tool_error::{ToolError, ToolResult};

/// Result of `unload_skill`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(super) struct UnloadReport {
    outcome: UnloadOutcome,
    skill_id: String,
    /// The version that was loaded.
    #[serde(skip_serializing_if = "String::is_empty")]
    version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_unloaded: Vec<String>,
    /// Tag around the text of the skill in the conversation, which may now drop it.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<TextTagAttributes>,
    message: String,
}

/// Attributes of the tag around a skill's text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct TextTagAttributes {
    id: String,
    digest: String,
}

/// Effect of an unload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum UnloadOutcome {
    Unloaded,
    #[default]
    NotLoaded,
}

pub(super) async fn unload_skill(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SkillArguments = decode(arguments)?;
    let mut choice = SkillChoice {
        skill_id: asked.skill_id,
        version: asked.version,
    };
    let (tools, loaded) = (call.tools, read_loaded(call.context));
    call.before_unload(&mut choice).await?;
    let asked = choice.skill_id.trim();
    let loaded_id = find_loaded_id(call.context, &loaded, asked).await?;
    let id = loaded_id.as_deref().unwrap_or(asked);
    let Some(load) = loaded.get(id) else {
        let ids: Vec<&str> = loaded.iter().map(|(id, _)| id).collect();
        let message = match ids.as_slice() {
            [] => format!("{id} is not loaded; nothing is"),
            ids => format!("{id} is not loaded; loaded are {}", ids.join(", ")),
        };
        return Ok(answer_not_loaded(id, message));
    };
    if !includes_version(call.context, id, &choice.version, load).await? {
        let (version, asked) = (&load.version, &choice.version);
        let message = format!("{id} is loaded in version {version}, which is not {asked}");
        return Ok(answer_not_loaded(id, message));
    }
    let tag = TextTagAttributes {
        id: id.to_owned(),
        digest: load.digest.clone(),
    };
    let next = loaded.without(id);
    let unloaded = describe_unload(&loaded, &next, id);
    call.after_unload(&unloaded).await?;
    let places = loaded.places_not_in(&next);
    tools.mcp.disconnect(call.session, &places).await;
    let message = match unloaded.tools_unloaded.as_slice() {
        [] => format!("unloaded {id}; no tool went with it"),
        gone => format!(
            "unloaded {id}; these tools went with it: {}",
            gone.join(", ")
        ),
    };
    let report = UnloadReport {
        outcome: UnloadOutcome::Unloaded,
        skill_id: unloaded.skill_id,
        version: unloaded.version,
        tools_unloaded: unloaded.tools_unloaded,
        tag: Some(tag),
        message,
    };
    let delta = next.delta(&loaded, &call.session.agent);
    Ok(ToolAnswer::with(&report, delta))
}

fn answer_not_loaded(id: &str, message: String) -> ToolAnswer {
    ToolAnswer::of(json!(UnloadReport {
        skill_id: id.to_owned(),
        message,
        ..UnloadReport::default()
    }))
}

/// Returns the id under which a skill is loaded, by this or another of its names.
async fn find_loaded_id(
    context: SessionContext<'_>,
    loaded: &LoadedSkills,
    asked: &str,
) -> ToolResult<Option<String>> {
    if loaded.get(asked).is_some() || asked.is_empty() {
        return Ok(loaded.get(asked).map(|_| asked.to_owned()));
    }
    let found = skill_lookup::find_usable_skill(context, asked).await?;
    let id = found.map(|skill| skill_lookup::skill_id(&skill));
    Ok(id.filter(|id| loaded.get(id).is_some()))
}

/// Returns `true` if the requested version or range includes the loaded version. Only the daemon knows what a range
/// means: it is asked for a version that is in the range and equals this one.
async fn includes_version(
    context: SessionContext<'_>,
    id: &str,
    asked: &str,
    load: &LoadedSkill,
) -> ToolResult<bool> {
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
    match skill_lookup::find_skill(context, &skill_lookup::skill_reference(id, &both)).await {
        Ok(_) | Err(ToolError::SkillUnusable { .. }) => Ok(true),
        Err(ToolError::UnknownSkill { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Describes for the host's hooks the unload of a skill, or of a version of it, between two sets of loaded skills.
pub(super) fn describe_unload(
    loaded: &LoadedSkills,
    next: &LoadedSkills,
    id: &str,
) -> UnloadedSkill {
    let version = loaded.get(id).map(|load| load.version.clone());
    UnloadedSkill {
        skill_id: id.to_owned(),
        version: version.unwrap_or_default(),
        tools_unloaded: loaded.tools_not_in(next),
    }
}
