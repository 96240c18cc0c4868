//! Preloading: the host loads what it knows the model will need, and puts what the model would have seen of that into
//! the conversation: one message of the assistant with the calls, and one message of a tool for each.

use serde::Serialize;
use serde_json::{Value, json};

use super::load::{self, Outcome};
use crate::state::sherma::Loaded;
use crate::state::{Delta, SessionState};
use crate::tools::hooks::SkillChoice;
use crate::tools::{Family, Session, ToolError, Toolset};

/// What a preload gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preloaded {
    /// For the conversation: none, or one of the assistant and one of a tool for each skill. Neutral: `role`, `content`,
    /// `tool_calls` of `{id, name, arguments}`; `tool_call_id` and `name` in those of tools.
    pub messages: Vec<Value>,
    /// For the session's state.
    pub delta: Delta,
    /// What was not loaded.
    pub skipped: Vec<Skipped>,
}

/// What a preload left out. It goes on without it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skipped {
    /// As given.
    pub item: Value,
    /// Why.
    pub problem: String,
}

impl Toolset {
    /// Loads skills before the model asks for them, through everything that a call of `load_skill_md` goes through.
    /// `skill_ids` is a list of ids, or of maps with `id` and, if it matters, `version`; anything else in it, and what
    /// cannot be loaded or is loaded already, is skipped. Only for sherma's tools.
    pub async fn preload(
        &self,
        session: &Session,
        state: &SessionState,
        skill_ids: &Value,
    ) -> Result<Preloaded, ToolError> {
        if self.family() != Family::Sherma {
            return Err(ToolError::Options {
                problem: format!(
                    "preload is for the family sherma, not {}",
                    self.family().name()
                ),
            });
        }
        let Value::Array(items) = skill_ids else {
            return Err(ToolError::arguments("the skills to preload are not a list"));
        };
        let tools = &self.inner;
        let before = Loaded::read(state, &session.agent);
        let mut loads = before.clone();
        let (mut preloaded, mut calls) = (Preloaded::default(), Vec::new());
        for item in items {
            let mut skip = |problem: String| {
                preloaded.skipped.push(Skipped {
                    item: item.clone(),
                    problem,
                });
            };
            let choice = match choice(item) {
                Ok(choice) => choice,
                Err(problem) => {
                    skip(problem.to_owned());
                    continue;
                }
            };
            let arguments = json!({"skill_id": choice.skill_id, "version": choice.version});
            match load::load(tools, session, &loads, choice, false).await {
                Ok((loaded, _)) if loaded.outcome == Outcome::AlreadyActive => {
                    skip("already active".into());
                }
                Ok((loaded, next)) => {
                    loads = next.unwrap_or(loads);
                    calls.push((call_id(), arguments, loaded.content.unwrap_or_default()));
                }
                Err(error) => skip(error.to_string()),
            }
        }
        if !calls.is_empty() {
            preloaded.delta = loads.delta(&before, &session.agent);
            preloaded.messages = messages(calls);
        }
        Ok(preloaded)
    }
}

fn choice(item: &Value) -> Result<SkillChoice, &'static str> {
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

/// As the model's own calls are named, and no two the same in a conversation.
fn call_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("load_skill_{}", id.get(..8).unwrap_or(&id))
}

fn messages(calls: Vec<(String, Value, String)>) -> Vec<Value> {
    let made = calls.iter().map(
        |(id, arguments, _)| json!({"id": id, "name": "load_skill_md", "arguments": arguments}),
    );
    let mut messages = vec![json!({
        "role": "assistant",
        "content": "",
        "tool_calls": made.collect::<Vec<_>>(),
    })];
    messages.extend(calls.into_iter().map(|(id, _, content)| {
        json!({
            "role": "tool",
            "tool_call_id": id,
            "name": "load_skill_md",
            "content": content,
        })
    }));
    messages
}
