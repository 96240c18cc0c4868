//! Loads a skill: looks it up, checks the requests of its card and connects its servers. Only when all of that
//! succeeded does the state change. A load that fails closes the connections that it made.

use std::time::SystemTime;

use humantime::format_rfc3339_millis;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use skilld_client::v1::Skill;

use super::card_requirements::CardRequirements;
use super::skill_unload::describe_unload;
use super::skill_version_resolution::is_loaded;
use super::tool_arguments::LoadArguments;
use super::{TOOLS, decode, read_loaded};
use crate::builtin_tool::find_tool;
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer, ToolsetContext};
use crate::hooks::{LoadedSkill, SkillChoice, UnloadedSkill};
use crate::package_warnings::describe_missing_packages;
use crate::prompt::untrusted_text::{attribute, one_line, without_tags};
use crate::result_budget::{cut_instructions, json_bytes, take_fitting};
use crate::skill_lookup::{self, skill_id};
use crate::state::StateDelta;
use crate::state::sherma::{self, LoadedSkills, RemoteTool, ServerAddress};
use crate::tool_error::{ToolError, ToolResult};

/// Maximum number of files that a text lists, and maximum size of their names in bytes of JSON.
const FILES_SHOWN_MAX: usize = 100;
const FILES_BYTES_MAX: usize = 8 * 1024;
/// Advice on reading instructions that a result has no room for.
const REST: &str = "load_skill_resource with resource_path SKILL.md reads all of it in parts";

/// Result of `load_skill_md`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(super) struct LoadReport {
    outcome: LoadOutcome,
    skill_id: String,
    /// The loaded version.
    version: String,
    digest: String,
    /// Tools that can be called from now on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_loaded: Vec<String>,
    /// Tools that the skill's card asks for and that are not available here: do without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_missing: Vec<String>,
    /// Tools that went with another version, or with skills that made room.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools_unloaded: Vec<String>,
    /// Skills that were unloaded to make room.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evicted: Vec<String>,
    /// The version that was loaded before.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_version: Option<String>,
    /// The instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Note in place of instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Effect of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum LoadOutcome {
    #[default]
    Loaded,
    /// The same content was loaded again, as requested.
    Reloaded,
    /// Another version, or other content of it, was loaded.
    Replaced,
    /// Only the order of skills changed: this one is last.
    AlreadyActive,
}

/// Loaded skill whose MCP servers are connected, with the requested tools that the host does not have.
struct ConnectedSkill {
    load: sherma::LoadedSkill,
    tools_missing: Vec<String>,
}

pub(crate) async fn load_skill_md(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: LoadArguments = decode(arguments)?;
    let choice = SkillChoice {
        skill_id: asked.skill_id,
        version: asked.version,
    };
    let loaded = read_loaded(call.context);
    let (report, next) = load_skill(call.context, &loaded, choice, asked.reload).await?;
    let delta = next.map(|next| next.delta(&loaded, &call.session.agent));
    Ok(ToolAnswer::with(
        &report,
        delta.unwrap_or_else(StateDelta::new),
    ))
}

/// Loads a skill. Returns the result, and the loaded skills afterwards if they differ.
async fn load_skill(
    context: SessionContext<'_>,
    loaded: &LoadedSkills,
    mut choice: SkillChoice,
    reload: bool,
) -> ToolResult<(LoadReport, Option<LoadedSkills>)> {
    let (tools, session) = (context.tools, context.session);
    context.before_load(&mut choice).await?;
    if choice.skill_id.trim().is_empty() {
        return Err(ToolError::arguments("skill_id is empty"));
    }
    let reference = skill_lookup::skill_reference(&choice.skill_id, &choice.version);
    let skill = skill_lookup::find_skill_to_load(context, &reference).await?;
    let id = skill_id(&skill);
    let active = loaded
        .get(&id)
        .filter(|active| active.digest == skill.digest);
    if let Some(active) = active.filter(|_| !reload) {
        // A skill that was just used is not the first to make room.
        let is_limited = tools.options.max_loaded_skills > 0;
        let touched = is_limited.then(|| loaded.with(&id, active.clone()));
        return Ok((LoadReport::already_active(id, active), touched));
    }
    // A reload connects its servers again. What fails from here on leaves them to be connected by the next call.
    if reload {
        let others = loaded.without(&id);
        let places = loaded.places_not_in(&others);
        tools.mcp.disconnect(session, &places).await;
    }
    let mut opened = Vec::new();
    let replaced = replace_loaded(context, loaded, &skill, &mut opened).await;
    if replaced.is_err() {
        tools.mcp.disconnect(session, &opened).await;
    }
    let (report, next) = replaced?;
    let places = loaded.places_not_in(&next);
    tools.mcp.disconnect(session, &places).await;
    Ok((report, Some(next)))
}

impl LoadReport {
    fn new(outcome: LoadOutcome, skill_id: String, load: &sherma::LoadedSkill) -> Self {
        Self {
            outcome,
            skill_id,
            version: load.version.clone(),
            digest: load.digest.clone(),
            ..Self::default()
        }
    }

    fn already_active(id: String, active: &sherma::LoadedSkill) -> Self {
        let message = format!(
            "{id} is already active: its instructions were given when it was loaded. Set reload to read them again."
        );
        Self {
            message: Some(message),
            ..Self::new(LoadOutcome::AlreadyActive, id, active)
        }
    }
}

/// Performs the steps of a load that can fail. `opened` receives the servers that were connected.
async fn replace_loaded(
    context: SessionContext<'_>,
    loaded: &LoadedSkills,
    skill: &Skill,
    opened: &mut Vec<ServerAddress>,
) -> ToolResult<(LoadReport, LoadedSkills)> {
    let tools = context.tools;
    let id = skill_id(skill);
    let connected = connect_skill(context, loaded, skill, opened).await?;
    let (load, tools_missing) = (connected.load, connected.tools_missing);
    let outcome = match loaded.get(&id) {
        None => LoadOutcome::Loaded,
        Some(_) if is_loaded(loaded, skill) => LoadOutcome::Reloaded,
        Some(_) => LoadOutcome::Replaced,
    };
    let mut report = LoadReport::new(outcome, id.clone(), &load);
    let mut hooked = LoadedSkill {
        content: read_text(tools, skill).await? + &missing_notes(skill, &tools_missing),
        skill_id: id.clone(),
        version: load.version.clone(),
        digest: load.digest.clone(),
        tools_loaded: load.tools.clone(),
    };
    report.tools_loaded.clone_from(&load.tools);
    let mut next = loaded.with(&id, load);
    let mut leaving: Vec<UnloadedSkill> = Vec::new();
    if outcome == LoadOutcome::Replaced {
        let unloaded = describe_unload(loaded, &next, &id);
        report.replaced_version = Some(unloaded.version.clone());
        leaving.push(unloaded);
    }
    let evicted = next.over(tools.options.max_loaded_skills);
    report.evicted = evicted.map(|(id, _)| id.to_owned()).collect();
    for id in &report.evicted {
        let without = next.without(id);
        leaving.push(describe_unload(&next, &without, id));
        next = without;
    }
    context.complete_load(&mut hooked, &leaving).await?;
    report.tools_missing = tools_missing;
    report.tools_unloaded = loaded.tools_not_in(&next);
    report.content = Some(hooked.content);
    Ok((report, next))
}

/// Reads the card of a skill, connects its servers and returns the loaded skill with their tools.
async fn connect_skill(
    context: SessionContext<'_>,
    loaded: &LoadedSkills,
    skill: &Skill,
    opened: &mut Vec<ServerAddress>,
) -> ToolResult<ConnectedSkill> {
    let (tools, id) = (context.tools, skill_id(skill));
    let card = CardRequirements::read(skill, &tools.host)?;
    let mut load = sherma::LoadedSkill {
        version: skill.version.clone(),
        digest: skill.digest.clone(),
        tools: card.local_tools,
        loaded_at: format_rfc3339_millis(SystemTime::now()).to_string(),
        ..sherma::LoadedSkill::default()
    };
    for server in card.servers {
        let (connection, made) = tools.mcp.connect(context.session, &server).await?;
        if made {
            opened.push(server.at.clone());
        }
        for definition in &connection.tools {
            let definition = definition.clone();
            if let Some(owner) =
                find_tool_owner(tools, loaded, (&id, &load), &server.at, &definition.name)
            {
                return Err(ToolError::ToolTaken {
                    tool: definition.name,
                    owners: (id, owner),
                });
            }
            load.tools.push(definition.name.clone());
            let server = server.clone();
            load.remote.push(RemoteTool { server, definition });
        }
    }
    Ok(ConnectedSkill {
        load,
        tools_missing: card.tools_missing,
    })
}

/// Returns the present owner of a server's tool: the tools of the family, the host, or another skill or server. Two
/// skills may bring the same tool of the same server.
fn find_tool_owner(
    tools: &ToolsetContext,
    loaded: &LoadedSkills,
    (id, load): (&str, &sherma::LoadedSkill),
    at: &ServerAddress,
    name: &str,
) -> Option<String> {
    if find_tool(&TOOLS, name).is_some() {
        return Some("the skill tools themselves".into());
    }
    if tools.host.definition(name).is_some() {
        return Some("the host application".into());
    }
    if load.tools.iter().any(|other| other == name) {
        return Some(format!("{id} (another server of it)"));
    }
    let others = loaded.without(id);
    let owner = others.owners(name).next()?;
    let is_same = others
        .remote(name)
        .is_some_and(|(_, remote)| remote.server.at == *at);
    (!is_same).then(|| owner.to_owned())
}

/// Reads the text that a model gets: the instructions in a tag that names the skill. The text can neither end that tag
/// nor begin another one.
async fn read_text(tools: &ToolsetContext, skill: &Skill) -> ToolResult<String> {
    let files = skill_lookup::list_files(tools, &skill_lookup::pinned_reference(skill), "").await?;
    let id = skill_id(skill);
    let body = cut_instructions(skill.body.trim_end(), REST);
    let mut text = format!("{body}\n\n");
    if tools.options.runs_commands() {
        text += &format!("Its folder, in the workspace: /workspace/skills/{id}\n");
    }
    let mut shown: Vec<&str> = files
        .iter()
        .filter(|file| file.path != "SKILL.md")
        .map(|file| file.path.as_str())
        .collect();
    // Hidden files come last: they say the least of what the skill has.
    shown.sort_by_key(|path| path.split('/').any(|name| name.starts_with('.')));
    if !shown.is_empty() {
        text += "Its files:\n";
    }
    let first = shown.iter().copied().take(FILES_SHOWN_MAX);
    let first: Vec<&str> = take_fitting(first, FILES_BYTES_MAX, json_bytes).collect();
    for path in &first {
        text += &format!("- {path}\n");
    }
    if shown.len() > first.len() {
        text += &format!(
            "and {} more: list_skill_resources and list_skill_assets list theirs\n",
            shown.len() - first.len()
        );
    }
    Ok(format!(
        "<skill id=\"{}\" version=\"{}\" digest=\"{}\">\n{}</skill>",
        attribute(&id),
        attribute(&skill.version),
        attribute(&skill.digest),
        without_tags(&text)
    ))
}

/// Returns notes for the model, which follow the tag: tools that the skill's card asks for and the host does not have,
/// and packages that the skill's scripts would miss.
fn missing_notes(skill: &Skill, tools_missing: &[String]) -> String {
    let mut notes = String::new();
    if !tools_missing.is_empty() {
        let names: Vec<String> = tools_missing.iter().map(|name| one_line(name)).collect();
        notes += &format!(
            "\nNot available here, since the host application has registered no tools of its own: {}\n",
            names.join(", ")
        );
    }
    if let Some(warning) = describe_missing_packages(skill) {
        notes += &format!("\nNote: {warning}\n");
    }
    notes
}
