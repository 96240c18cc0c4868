//! Loading: a skill is looked up, what its card asks for is checked and connected, and only when all of that succeeded
//! does the state say so. What a load that failed has connected is closed again.

use std::time::SystemTime;

use humantime::format_rfc3339_millis;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::Skill;

use super::arguments;
use super::card::Card;
use super::{content, resolve, unload};
use crate::state::sherma::{self, Loaded, Place, RemoteTool};
use crate::tools::hooks::{self, LoadedSkill, SkillChoice};
use crate::tools::{Answer, Inner, Session, ToolError, lookup};

/// What `load_skill_md` returns.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Report {
    pub(super) outcome: Outcome,
    pub(super) skill_id: String,
    /// The one that was chosen.
    pub(super) version: String,
    pub(super) digest: String,
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
    pub(super) content: Option<String>,
    /// In place of instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<String>,
}

/// What a load did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Outcome {
    Loaded,
    /// The same once more, as asked.
    Reloaded,
    /// Another version, or other content of it, was loaded.
    Replaced,
    /// It is as it was; of several skills it is the last one that was asked for.
    AlreadyActive,
}

pub(super) async fn call(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    arguments: arguments::Load,
) -> Result<Answer, ToolError> {
    let choice = SkillChoice {
        skill_id: arguments.skill_id,
        version: arguments.version,
    };
    let (report, next) = load(tools, session, loads, choice, arguments.reload).await?;
    let mut answer = Answer::of(json!(report));
    if let Some(next) = next {
        answer.delta = next.delta(loads, &session.agent);
    }
    Ok(answer)
}

/// Loads a skill: what to say, and what is loaded now if that is something else.
pub(super) async fn load(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    mut choice: SkillChoice,
    reload: bool,
) -> Result<(Report, Option<Loaded>), ToolError> {
    let hook = tools.hooks.before_skill_load(session, &mut choice).await;
    hook.map_err(hooks::refused)?;
    if choice.skill_id.trim().is_empty() {
        return Err(ToolError::arguments("skill_id is empty"));
    }
    let reference = lookup::reference(&choice.skill_id, &choice.version);
    let skill = lookup::skill(tools, &reference).await?;
    let id = lookup::id(&skill);
    if !reload
        && let Some(active) = loads.get(&id)
        && active.digest == skill.digest
    {
        // Asked for, it is not the first to make room.
        let touched =
            (tools.options.max_loaded_skills > 0).then(|| loads.with(&id, active.clone()));
        return Ok((already_active(id, active), touched));
    }
    // Asked for once more, its servers are too. What fails from here on leaves them to be connected by the next call.
    let others = loads.without(&id);
    if reload {
        tools
            .mcp
            .disconnect(session, &loads.places_not_in(&others))
            .await;
    }
    let mut opened = Vec::new();
    let brought = bring(tools, session, loads, &skill, &mut opened).await;
    if brought.is_err() {
        tools.mcp.disconnect(session, &opened).await;
    }
    let (report, next) = brought?;
    tools
        .mcp
        .disconnect(session, &loads.places_not_in(&next))
        .await;
    Ok((report, Some(next)))
}

fn already_active(id: String, active: &sherma::LoadedSkill) -> Report {
    Report {
        outcome: Outcome::AlreadyActive,
        version: active.version.clone(),
        digest: active.digest.clone(),
        tools_loaded: Vec::new(),
        tools_missing: Vec::new(),
        tools_unloaded: Vec::new(),
        evicted: Vec::new(),
        replaced_version: None,
        content: None,
        message: Some(format!(
            "{id} is already active: its instructions were given when it was loaded. Set reload to read them again."
        )),
        skill_id: id,
    }
}

/// Everything that can fail.
async fn bring(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    skill: &Skill,
    opened: &mut Vec<Place>,
) -> Result<(Report, Loaded), ToolError> {
    let id = lookup::id(skill);
    let card = Card::read(skill, &tools.host)?;
    let tools_missing = card.tools_missing.clone();
    let load = connected(tools, session, loads, (skill, card), opened).await?;
    let (version, digest) = (load.version.clone(), load.digest.clone());
    let mut told = LoadedSkill {
        content: content::of(tools, skill).await? + &content::unavailable(&tools_missing),
        skill_id: id.clone(),
        version: version.clone(),
        digest: digest.clone(),
        tools_loaded: load.tools.clone(),
    };
    let tools_loaded = load.tools.clone();
    let mut next = loads.with(&id, load);
    let before = loads.get(&id);
    let outcome = match before {
        None => Outcome::Loaded,
        Some(_) if resolve::is_loaded(loads, skill) => Outcome::Reloaded,
        Some(_) => Outcome::Replaced,
    };
    let replaced = before.filter(|_| outcome == Outcome::Replaced);
    let evicted: Vec<String> = next
        .over(tools.options.max_loaded_skills)
        .map(|(id, _)| id.to_owned())
        .collect();
    let going = replaced.map(|_| &id).into_iter().chain(&evicted);
    for id in going {
        unload::may_go(tools, session, loads, id).await?;
    }
    let hook = tools.hooks.after_skill_load(session, &mut told).await;
    hook.map_err(hooks::refused)?;
    if replaced.is_some() {
        unload::tell(tools, session, (loads, &next), &id).await?;
    }
    for id in &evicted {
        next = unload::without(tools, session, &next, id).await?.0;
    }
    let report = Report {
        outcome,
        skill_id: id,
        version,
        digest,
        tools_loaded,
        tools_missing,
        tools_unloaded: loads.tools_not_in(&next),
        evicted,
        replaced_version: replaced.map(|before| before.version.clone()),
        content: Some(told.content),
        message: None,
    };
    Ok((report, next))
}

/// What a skill is once its card's tools are there and its servers are connected.
async fn connected(
    tools: &Inner,
    session: &Session,
    loads: &Loaded,
    (skill, card): (&Skill, Card),
    opened: &mut Vec<Place>,
) -> Result<sherma::LoadedSkill, ToolError> {
    let id = lookup::id(skill);
    let mut load = sherma::LoadedSkill {
        version: skill.version.clone(),
        digest: skill.digest.clone(),
        tools: card.local_tools,
        loaded_at: format_rfc3339_millis(SystemTime::now()).to_string(),
        ..sherma::LoadedSkill::default()
    };
    for server in card.servers {
        let (connection, made) = tools.mcp.connect(session, &server).await?;
        if made {
            opened.push(server.at.clone());
        }
        for definition in connection.tools() {
            let definition = definition.clone();
            check(tools, loads, (&id, &load), &server.at, &definition.name)?;
            load.tools.push(definition.name.clone());
            let server = server.clone();
            load.remote.push(RemoteTool { server, definition });
        }
    }
    Ok(load)
}

/// A server's tool may not take the place of another one: not of these tools, not of the host's, not of another
/// skill's or server's. The same tool of the same server may be brought by two skills.
fn check(
    tools: &Inner,
    loads: &Loaded,
    (id, load): (&str, &sherma::LoadedSkill),
    at: &Place,
    name: &str,
) -> Result<(), ToolError> {
    let taken = |by: String| {
        Err(ToolError::ToolTaken {
            tool: name.to_owned(),
            owners: (id.to_owned(), by),
        })
    };
    if super::TOOLS.iter().any(|tool| tool.name == name) {
        return taken("the skill tools themselves".into());
    }
    if tools.host.definition(name).is_some() {
        return taken("the host application".into());
    }
    if load.tools.iter().any(|other| other == name) {
        return taken(format!("{id} (another server of it)"));
    }
    let others = loads.without(id);
    let owner = others.owners(name).next();
    match (owner, others.remote(name)) {
        (Some(owner), Some((_, remote))) if remote.server.at != *at => taken(owner.to_owned()),
        (Some(owner), None) => taken(owner.to_owned()),
        (Some(_), Some(_)) | (None, _) => Ok(()),
    }
}
