//! Preloading: the host loads what it knows the model will need, and puts what the model would have seen of that into
//! the conversation: one message of the assistant with the calls, and one message of a tool for each.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::{Value, json};

use super::load;
use crate::prompt::{Extra, Message, Part, Role, ToolCall, ToolResult};
use crate::state::sherma::Loaded;
use crate::state::{Delta, SessionState};
use crate::tools::hooks::SkillChoice;
use crate::tools::{Family, Session, ToolError, Toolset};

/// What a preload gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preloaded {
    /// For the conversation, to be written by any [`Wire`](crate::prompt::Wire): none, or one of the assistant with the calls
    /// and one of a tool for each skill that is loaded now.
    pub messages: Vec<Message>,
    /// For the session's state.
    pub delta: Delta,
    /// What was not loaded, or had to make room for a later one of the list.
    pub skipped: Vec<Skipped>,
    /// Skills that were loaded before and had to make room.
    pub evicted: Vec<String>,
}

/// A skill of the list that was loaded, and what the model would have seen of that.
struct Made {
    item: Value,
    id: String,
    call: ToolCall,
    content: String,
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
        let before = super::loads(&self.inner, session, state);
        let mut loads = before.clone();
        let (mut preloaded, mut made) = (Preloaded::default(), Vec::new());
        for item in items {
            match self.preload_one(session, &mut loads, item).await {
                Ok(one) => made.push(one),
                Err(problem) => preloaded.skip(item, problem),
            }
        }
        let mut kept: VecDeque<Made> = VecDeque::new();
        for one in made.into_iter().rev() {
            if loads.get(&one.id).is_none() || kept.iter().any(|later| later.id == one.id) {
                preloaded.skip(&one.item, "it made room for a later one");
            } else {
                kept.push_front(one);
            }
        }
        let gone = before.iter().filter(|(id, _)| loads.get(id).is_none());
        preloaded.evicted = gone.map(|(id, _)| id.to_owned()).collect();
        preloaded.delta = loads.delta(&before, &session.agent);
        preloaded.messages = messages(kept);
        Ok(preloaded)
    }

    async fn preload_one(
        &self,
        session: &Session,
        loads: &mut Loaded,
        item: &Value,
    ) -> Result<Made, String> {
        let choice = choice(item)?;
        let arguments = json!({"skill_id": choice.skill_id, "version": choice.version});
        let loaded = load::load(&self.inner, session, loads, choice, false).await;
        let (report, next) = loaded.map_err(|error| error.to_string())?;
        if let Some(next) = next {
            *loads = next;
        }
        let content = report.content.ok_or("already active")?;
        let call = ToolCall {
            id: call_id(),
            name: "load_skill_md".into(),
            arguments,
            extra: Extra::default(),
        };
        Ok(Made {
            item: item.clone(),
            id: report.skill_id,
            call,
            content,
        })
    }
}

impl Preloaded {
    fn skip(&mut self, item: &Value, problem: impl Into<String>) {
        self.skipped.push(Skipped {
            item: item.clone(),
            problem: problem.into(),
        });
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

fn messages(made: VecDeque<Made>) -> Vec<Message> {
    if made.is_empty() {
        return Vec::new();
    }
    let calls = made.iter().map(|one| Part::Call(one.call.clone()));
    let mut messages = vec![Message::of(Role::Assistant, calls.collect())];
    messages.extend(made.into_iter().map(|one| {
        let result = ToolResult {
            id: one.call.id,
            parts: vec![Part::text(one.content)],
            is_error: false,
            extra: Extra::default(),
        };
        Message::of(Role::Tool, vec![Part::Result(result)])
    }));
    messages
}
