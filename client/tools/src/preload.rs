//! Loads skills that the host declares before a request, in every family: all skills of a list, or none. The host acts
//! for the user, so skills that only the user may start are loaded too.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::call_context::{CallContext, SessionContext, ToolAnswer};
use crate::hooks::UnloadedSkill;
use crate::prompt::Provider;
use crate::skill_lookup::skill_reference;
use crate::state::{self, SessionState, StateDelta};
use crate::tool_definition::{Family, ToolCall};
use crate::tool_error::{ToolError, ToolResult};
use crate::{agent_zero, sherma, trpc};

/// Result of a preload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreloadOutcome {
    /// Calls that load the skills, each with the text of its result.
    loads: Vec<(ToolCall, String)>,
    /// Change of the session's state.
    pub delta: StateDelta,
    /// Skills that were loaded before and had to make room.
    pub evicted: Vec<String>,
}

/// Skill that the host declares.
#[derive(Debug, Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "the name of a skill or a map with its id"
)]
struct DeclaredSkill {
    /// Name of the skill, with or without a version.
    #[serde(alias = "skill", alias = "skill_id", alias = "name")]
    id: String,
    version: Option<String>,
    /// Documents that the prompt brings; for the family trpc.
    docs: Vec<String>,
    include_all_docs: bool,
}

/// Loads the skills of a list, in its order. An error changes nothing: the hooks learn that the loads before it are
/// undone, and their connections are closed.
pub(crate) async fn preload_skills(
    context: SessionContext<'_>,
    skills: &Value,
) -> ToolResult<PreloadOutcome> {
    let declared = parse_declarations(context, skills)?;
    let (mut outcome, mut names) = (PreloadOutcome::default(), Vec::new());
    let loaded = load_all(context, &declared, &mut outcome, &mut names).await;
    let (family, after) = (
        context.tools.options.family,
        context.state.with(&outcome.delta),
    );
    if loaded.is_err() {
        undo_loads(context, names, &after).await;
    }
    loaded?;
    let after = state::loaded(&after, family, context.scope());
    outcome.evicted = state::loaded(context.state, family, context.scope());
    outcome.evicted.retain(|name| !after.contains(name));
    Ok(outcome)
}

/// Reads the list of declared skills.
fn parse_declarations(
    context: SessionContext<'_>,
    skills: &Value,
) -> ToolResult<Vec<DeclaredSkill>> {
    let wrong = |problem: String| ToolError::arguments(format!("preload: {problem}"));
    let Value::Array(items) = skills else {
        return Err(wrong("the skills are not a list".to_owned()));
    };
    let options = &context.tools.options;
    let max = options.loaded_max();
    if max > 0 && items.len() > max {
        let count = items.len();
        return Err(wrong(format!(
            "{count} skills, and at most {max} can be loaded at once (max_loaded_skills)"
        )));
    }
    let declared = items.iter().map(|item| {
        let skill = if let Value::String(id) = item {
            DeclaredSkill {
                id: id.clone(),
                ..DeclaredSkill::default()
            }
        } else {
            DeclaredSkill::deserialize(item).map_err(|error| wrong(format!("{item}: {error}")))?
        };
        let has_docs = skill.include_all_docs || !skill.docs.is_empty();
        let problem = if skill.id.trim().is_empty() {
            "names no skill: give its name, or a map with id"
        } else if has_docs && options.family != Family::Trpc {
            "has docs, which only the family trpc chooses"
        } else if skill.include_all_docs && !skill.docs.is_empty() {
            "has docs and include_all_docs: give one of them"
        } else {
            return Ok(skill);
        };
        Err(wrong(format!("{item} {problem}")))
    });
    declared.collect()
}

/// Loads skills one after the other. `outcome` and `names` receive the loads that succeeded, also if one fails.
async fn load_all(
    context: SessionContext<'_>,
    declared: &[DeclaredSkill],
    outcome: &mut PreloadOutcome,
    names: &mut Vec<String>,
) -> ToolResult<()> {
    let family = context.tools.options.family;
    for skill in declared {
        let state = context.state.with(&outcome.delta);
        let context = SessionContext {
            state: &state,
            ..context
        };
        let (call, answer) = load_declared(context, skill).await?;
        outcome.delta.then(answer.delta);
        let name_key = match family {
            Family::Trpc => "skill",
            Family::Sherma => "skill_id",
            Family::AgentZero => "name",
        };
        let text = |key: &str| answer.result.get(key).and_then(Value::as_str);
        let name = text(name_key).unwrap_or(&skill.id).to_owned();
        let is_repeated = names.contains(&name);
        let problem = match answer.result.get("unknown_docs") {
            Some(unknown) => Some(format!("preload: {name} has no documents {unknown}")),
            None => is_repeated.then(|| format!("preload: {name} is in the list twice")),
        };
        let content = match family {
            Family::Trpc => Some(answer.result.to_string()),
            // A skill that was loaded already has no content, and its text is in the conversation.
            Family::Sherma => text("content").map(str::to_owned),
            Family::AgentZero => text("text").map(str::to_owned),
        };
        outcome.loads.extend(content.map(|content| (call, content)));
        if !is_repeated {
            names.push(name);
        }
        if let Some(problem) = problem {
            return Err(ToolError::arguments(problem));
        }
    }
    Ok(())
}

/// Loads a skill by the tool of the family, whether or not the model is offered it. Returns the call that the model
/// would have made.
async fn load_declared(
    context: SessionContext<'_>,
    skill: &DeclaredSkill,
) -> ToolResult<(ToolCall, ToolAnswer)> {
    let version = skill.version.as_deref().unwrap_or("*");
    let reference = skill_reference(&skill.id, version);
    let (tool, arguments) = match context.tools.options.family {
        Family::Trpc if skill.include_all_docs => (
            "skill_load",
            json!({"skill": reference, "include_all_docs": true}),
        ),
        Family::Trpc => (
            "skill_load",
            json!({"skill": reference, "docs": skill.docs}),
        ),
        Family::Sherma => (
            "load_skill_md",
            json!({"skill_id": skill.id, "version": version}),
        ),
        Family::AgentZero => (
            "skills_tool",
            json!({"method": "load", "skill_name": reference}),
        ),
    };
    let call = CallContext {
        context,
        tool,
        id: "",
    };
    let answer = match context.tools.options.family {
        Family::Trpc => trpc::load_skill(call, arguments.clone()).await?,
        Family::Sherma => sherma::load_skill_md(call, arguments.clone()).await?,
        Family::AgentZero => agent_zero::load_skill(call, &reference).await?,
    };
    let made = ToolCall {
        id: new_call_id(),
        name: tool.to_owned(),
        arguments,
    };
    Ok((made, answer.fitting(context)))
}

/// Undoes loads: `after` is the state that they would have led to.
async fn undo_loads(context: SessionContext<'_>, names: Vec<String>, after: &SessionState) {
    for skill_id in names {
        if context.has_loaded(&skill_id) {
            continue;
        }
        let unloaded = UnloadedSkill {
            skill_id,
            ..UnloadedSkill::default()
        };
        // The preload has failed already; a hook cannot refuse that.
        drop(context.after_unload(&unloaded).await);
    }
    if context.tools.options.family == Family::Sherma {
        sherma::disconnect_loads(context, after).await;
    }
}

impl PreloadOutcome {
    /// Returns messages for the conversation, in the provider's format: the model calls the tool that loads, once for
    /// each skill, and gets its result. Empty if every skill was loaded already.
    #[must_use]
    pub fn messages(&self, provider: Provider) -> Vec<Value> {
        let calls: Vec<ToolCall> = self.loads.iter().map(|(call, _)| call.clone()).collect();
        let results: Vec<(String, String, bool)> = self
            .loads
            .iter()
            .map(|(call, text)| (call.id.clone(), text.clone(), false))
            .collect();
        let mut messages = provider.call_messages(&calls);
        messages.extend(provider.result_messages(&results));
        messages
    }
}

/// Returns a new id in the form of the model's own calls.
fn new_call_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("load_skill_{}", id.get(..8).unwrap_or(&id))
}
