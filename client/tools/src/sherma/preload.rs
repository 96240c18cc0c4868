//! Preloading: the host loads skills that it knows the model will need, and puts the calls and results that the model
//! would have made into the conversation.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::{Value, json};

use super::skill_load::load_skill;
use crate::call_context::SessionContext;
use crate::hooks::SkillChoice;
use crate::prompt::Provider;
use crate::state::StateDelta;
use crate::state::sherma::LoadedSkills;
use crate::tool_definition::ToolCall;
use crate::tool_error::{ToolError, ToolResult};

/// Result of a preload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreloadOutcome {
    /// Calls that load the skills which are loaded now, each with the text of its result.
    loads: Vec<(ToolCall, String)>,
    /// Change of the session's state.
    pub delta: StateDelta,
    /// Items that were not loaded, or had to make room for a later one of the list.
    pub skipped: Vec<SkippedPreload>,
    /// Skills that were loaded before and had to make room.
    pub evicted: Vec<String>,
}

/// Loaded skill of the list, and the call and text that the model would have seen.
struct PreloadedSkill {
    item: Value,
    id: String,
    call: ToolCall,
    content: String,
}

/// Item that a preload left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SkippedPreload {
    /// Item as the caller gave it.
    pub item: Value,
    /// Reason, for a person.
    pub problem: String,
}

/// Loads the skills of a list, in its order.
pub(crate) async fn preload_skills(
    context: SessionContext<'_>,
    skill_ids: &Value,
) -> ToolResult<PreloadOutcome> {
    let Value::Array(items) = skill_ids else {
        return Err(ToolError::arguments("the skills to preload are not a list"));
    };
    let before = super::read_loaded(context);
    let mut loads = before.clone();
    let (mut preloaded, mut made) = (PreloadOutcome::default(), Vec::new());
    for item in items {
        match preload_skill(context, &mut loads, item).await {
            Ok(one) => made.push(one),
            Err(problem) => preloaded.skip(item, problem),
        }
    }
    let mut kept: VecDeque<PreloadedSkill> = VecDeque::new();
    for one in made.into_iter().rev() {
        if loads.get(&one.id).is_none() || kept.iter().any(|later| later.id == one.id) {
            preloaded.skip(&one.item, "it made room for a later one");
        } else {
            kept.push_front(one);
        }
    }
    let gone = before.iter().filter(|(id, _)| loads.get(id).is_none());
    preloaded.evicted = gone.map(|(id, _)| id.to_owned()).collect();
    preloaded.delta = loads.delta(&before, &context.session.agent);
    let loads = kept.into_iter().map(|one| (one.call, one.content));
    preloaded.loads = loads.collect();
    Ok(preloaded)
}

/// Loads one skill of the list, if it is not loaded already.
async fn preload_skill(
    context: SessionContext<'_>,
    loads: &mut LoadedSkills,
    item: &Value,
) -> Result<PreloadedSkill, String> {
    let choice = parse_choice(item)?;
    let arguments = json!({"skill_id": choice.skill_id, "version": choice.version});
    let loaded = load_skill(context, loads, choice, false).await;
    let (report, next) = loaded.map_err(|error| error.to_string())?;
    if let Some(next) = next {
        *loads = next;
    }
    Ok(PreloadedSkill {
        content: report.content.ok_or("already active")?,
        item: item.clone(),
        id: report.skill_id,
        call: ToolCall {
            id: new_call_id(),
            name: "load_skill_md".into(),
            arguments,
        },
    })
}

impl PreloadOutcome {
    /// Returns messages for the conversation, in the provider's format: the model calls `load_skill_md` for each skill
    /// that is loaded now, and gets its text. Empty if no skill was loaded.
    #[must_use]
    pub fn messages(&self, provider: Provider) -> Vec<Value> {
        let calls: Vec<ToolCall> = self.loads.iter().map(|(call, _)| call.clone()).collect();
        let results = self.loads.iter();
        let results: Vec<(String, String, bool)> = results
            .map(|(call, text)| (call.id.clone(), text.clone(), false))
            .collect();
        let mut messages = provider.call_messages(&calls);
        messages.extend(provider.result_messages(&results));
        messages
    }

    fn skip(&mut self, item: &Value, problem: impl Into<String>) {
        self.skipped.push(SkippedPreload {
            item: item.clone(),
            problem: problem.into(),
        });
    }
}

/// Reads an item of the list: an id, or a map with an id and a version.
fn parse_choice(item: &Value) -> Result<SkillChoice, &'static str> {
    let (id, version) = match item {
        Value::String(id) => (Some(id.as_str()), None),
        Value::Object(fields) => {
            let text = |key: &str| fields.get(key).and_then(Value::as_str);
            (text("id").or_else(|| text("skill_id")), text("version"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => (None, None),
    };
    match id {
        Some(id) if !id.trim().is_empty() => Ok(SkillChoice {
            skill_id: id.to_owned(),
            version: version.unwrap_or("*").to_owned(),
        }),
        Some(_) | None => Err("neither a skill's id nor a map that has one"),
    }
}

/// Returns a new id in the form of the model's own calls.
fn new_call_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("load_skill_{}", id.get(..8).unwrap_or(&id))
}
