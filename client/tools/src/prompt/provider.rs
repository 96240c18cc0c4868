//! Model API formats: which messages a request body has, and how calls, results and tool definitions are written. Nothing
//! here changes a body; `content` does.

use serde_json::{Map, Value, json};

use super::content::ContentPlace;
use crate::tool::{ToolCall, ToolDefinition};

/// Format of a model API's request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// OpenAI Chat Completions: `messages`.
    OpenAiChat,
    /// OpenAI Responses: `instructions` and `input`.
    OpenAiResponses,
    /// Anthropic Messages: `system` and `messages`.
    Anthropic,
}

/// Error for a request body that is not in the provider's format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct MalformedRequest {
    /// Location in the body, for instance `messages[3]`.
    pub place: String,
    /// Description of the fault.
    pub problem: &'static str,
}

impl MalformedRequest {
    fn new(place: impl Into<String>, problem: &'static str) -> Self {
        Self {
            place: place.into(),
            problem,
        }
    }
}

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// Message of a request body: its role, its calls and results, and the location of its content.
#[derive(Debug)]
pub(super) struct MessageView<'a> {
    pub(super) role: Role,
    /// Name of the agent or user; empty if the message has none.
    pub(super) author: &'a str,
    /// Index in the provider's list; `None` for a field of the body itself, such as `system`.
    pub(super) index: Option<usize>,
    /// Location of the text and files of the message.
    pub(super) content: ContentPlace,
    pub(super) calls: Vec<ToolCallView<'a>>,
    pub(super) results: Vec<ToolResultView<'a>>,
}

/// Tool call in a request body.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToolCallView<'a> {
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    /// An object, or the string that the model wrote instead.
    pub(super) arguments: &'a Value,
}

/// Tool result in a request body.
#[derive(Debug)]
pub(super) struct ToolResultView<'a> {
    /// Id of the call that it answers.
    pub(super) id: &'a str,
    pub(super) content: ContentPlace,
    pub(super) is_error: bool,
}

const NULL: &Value = &Value::Null;

impl<'a> MessageView<'a> {
    fn new(role: Role, content: ContentPlace) -> Self {
        Self {
            role,
            author: "",
            index: None,
            content,
            calls: Vec::new(),
            results: Vec::new(),
        }
    }

    pub(super) fn is_system(&self) -> bool {
        matches!(self.role, Role::System | Role::Developer)
    }
}

impl ToolCallView<'_> {
    /// Returns the arguments as an object; empty if they are none.
    pub(super) fn object(&self) -> Map<String, Value> {
        match self.arguments {
            Value::Object(map) => map.clone(),
            Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Map::new(),
        }
    }
}

impl Provider {
    /// Every provider.
    pub const ALL: [Self; 3] = [Self::OpenAiChat, Self::OpenAiResponses, Self::Anthropic];

    /// Checks that a body is a request of this provider, as far as prompts depend on it.
    ///
    /// # Errors
    ///
    /// [`MalformedRequest`] if the messages are not a list of the provider's messages.
    pub fn check(self, body: &Value) -> Result<(), MalformedRequest> {
        self.messages(body).map(drop)
    }

    /// Returns the name of the field that lists the messages.
    pub(super) fn list_field(self) -> &'static str {
        match self {
            Self::OpenAiChat | Self::Anthropic => "messages",
            Self::OpenAiResponses => "input",
        }
    }

    /// Returns the `type` of a text part that is not from the model.
    pub(super) fn text_type(self) -> &'static str {
        match self {
            Self::OpenAiChat | Self::Anthropic => "text",
            Self::OpenAiResponses => "input_text",
        }
    }

    /// Returns views of the messages in their order; items of kinds that prompts do not depend on are left out.
    pub(super) fn messages(self, body: &Value) -> Result<Vec<MessageView<'_>>, MalformedRequest> {
        if !body.is_object() {
            return Err(MalformedRequest::new("body", "not an object"));
        }
        let mut views = Vec::new();
        match self {
            Self::OpenAiChat => {}
            Self::OpenAiResponses => {
                if body.get("instructions").is_some_and(Value::is_string) {
                    let place = ContentPlace::of_body("instructions");
                    views.push(MessageView::new(Role::System, place));
                }
            }
            Self::Anthropic => {
                if let Some(system) = body.get("system").filter(|system| !system.is_null()) {
                    check_content(system).map_err(|why| MalformedRequest::new("system", why))?;
                    let place = ContentPlace::of_body("system");
                    views.push(MessageView::new(Role::System, place));
                }
            }
        }
        let list = self.list_field();
        let items = match body.get(list) {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(items)) => items.as_slice(),
            Some(Value::String(_)) if self == Self::OpenAiResponses => {
                views.push(MessageView::new(Role::User, ContentPlace::of_body(list)));
                &[][..]
            }
            Some(_) => return Err(MalformedRequest::new(list, "not a list")),
        };
        for (index, item) in items.iter().enumerate() {
            let view = self.message(item, &format!("/{list}/{index}"));
            let place = || format!("{list}[{index}]");
            if let Some(view) = view.map_err(|why| MalformedRequest::new(place(), why))? {
                views.push(MessageView {
                    index: Some(index),
                    ..view
                });
            }
        }
        Ok(views)
    }

    fn message<'a>(
        self,
        item: &'a Value,
        owner: &str,
    ) -> Result<Option<MessageView<'a>>, &'static str> {
        if !item.is_object() {
            return Err("not an object");
        }
        match self {
            Self::OpenAiChat => chat_message(item, owner),
            Self::OpenAiResponses => responses_item(item, owner),
            Self::Anthropic => anthropic_message(item, owner).map(Some),
        }
    }

    /// Returns the function calls of a model's reply: a message, or for OpenAI Responses the `output` items or the
    /// response that has them.
    pub(crate) fn reply_calls(self, reply: &Value) -> Result<Vec<ToolCall>, MalformedRequest> {
        let items = match (self, reply) {
            (Self::OpenAiResponses, Value::Object(_)) if reply.get("output").is_some() => {
                reply.get("output").unwrap_or(NULL).clone()
            }
            (_, Value::Array(_)) => reply.clone(),
            _ => json!([reply]),
        };
        let body = json!({self.list_field(): items});
        let views = self.messages(&body)?;
        let calls = views.iter().flat_map(|view| &view.calls);
        let calls = calls.map(|call| ToolCall {
            id: call.id.to_owned(),
            name: call.name.to_owned(),
            arguments: call.arguments.clone(),
        });
        Ok(calls.collect())
    }

    /// Returns `true` if the last message is the user's and answers no call: a turn begins.
    pub(crate) fn ends_with_user_message(self, body: &Value) -> bool {
        let views = self.messages(body).unwrap_or_default();
        views
            .last()
            .is_some_and(|last| last.role == Role::User && last.results.is_empty())
    }

    /// Returns messages in which the model makes these calls.
    pub(crate) fn call_messages(self, calls: &[ToolCall]) -> Vec<Value> {
        let text = |call: &ToolCall| match &call.arguments {
            Value::String(text) => text.clone(),
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_)) => other.to_string(),
        };
        let each = calls.iter().map(|call| match self {
            Self::OpenAiChat => json!({"id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": text(call)}}),
            Self::OpenAiResponses => json!({"type": "function_call", "call_id": call.id,
                "name": call.name, "arguments": text(call)}),
            Self::Anthropic => json!({"type": "tool_use", "id": call.id, "name": call.name,
                "input": call.arguments}),
        });
        let each: Vec<Value> = each.collect();
        match self {
            _ if each.is_empty() => each,
            Self::OpenAiChat => {
                vec![json!({"role": "assistant", "content": null, "tool_calls": each})]
            }
            Self::OpenAiResponses => each,
            Self::Anthropic => vec![json!({"role": "assistant", "content": each})],
        }
    }

    /// Returns messages that answer calls: each an id and the text of the result, with `true` for an error.
    pub(crate) fn result_messages(self, results: &[(String, String, bool)]) -> Vec<Value> {
        let each = results.iter().map(|(id, text, is_error)| match self {
            Self::OpenAiChat => json!({"role": "tool", "tool_call_id": id, "content": text}),
            Self::OpenAiResponses => {
                json!({"type": "function_call_output", "call_id": id, "output": text})
            }
            Self::Anthropic => {
                let mut block = json!({"type": "tool_result", "tool_use_id": id, "content": text});
                if let Some(block) = block.as_object_mut().filter(|_| *is_error) {
                    block.insert("is_error".into(), true.into());
                }
                block
            }
        });
        let each: Vec<Value> = each.collect();
        match self {
            Self::Anthropic if !each.is_empty() => vec![json!({"role": "user", "content": each})],
            Self::OpenAiChat | Self::OpenAiResponses | Self::Anthropic => each,
        }
    }

    /// Returns the entry of `tools` that defines a tool.
    pub(crate) fn tool_definition(self, tool: &ToolDefinition) -> Value {
        let (name, description) = (&tool.name, &tool.description);
        let schema = &tool.parameters;
        match self {
            Self::OpenAiChat => json!({"type": "function", "function": {
                "name": name, "description": description, "parameters": schema}}),
            Self::OpenAiResponses => json!({"type": "function", "name": name,
                "description": description, "parameters": schema, "strict": false}),
            Self::Anthropic => {
                json!({"name": name, "description": description, "input_schema": schema})
            }
        }
    }
}

fn chat_message<'a>(item: &'a Value, owner: &str) -> Result<Option<MessageView<'a>>, &'static str> {
    let role = match text_field(item, "role") {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        // `function` messages have no id to answer to.
        Some(_) | None => return Ok(None),
    };
    check_content(item.get("content").unwrap_or(NULL))?;
    let content = ContentPlace::new(owner, "content");
    let mut view = MessageView::new(role, content.clone());
    view.author = text_field(item, "name").unwrap_or_default();
    if role == Role::Tool {
        view.results.push(ToolResultView {
            id: text_field(item, "tool_call_id").unwrap_or_default(),
            content,
            is_error: false,
        });
    }
    let calls = item.get("tool_calls").and_then(Value::as_array);
    let calls = calls.into_iter().flatten().filter_map(|call| {
        let function = call.get("function")?;
        Some(ToolCallView {
            id: text_field(call, "id").unwrap_or_default(),
            name: text_field(function, "name")?,
            arguments: function.get("arguments").unwrap_or(NULL),
        })
    });
    view.calls = calls.collect();
    Ok(Some(view))
}

fn responses_item<'a>(
    item: &'a Value,
    owner: &str,
) -> Result<Option<MessageView<'a>>, &'static str> {
    let content = |field| -> Result<ContentPlace, &'static str> {
        check_content(item.get(field).unwrap_or(NULL))?;
        Ok(ContentPlace::new(owner, field))
    };
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            let role = match text_field(item, "role") {
                Some("system") => Role::System,
                Some("developer") => Role::Developer,
                Some("user") => Role::User,
                Some("assistant") => Role::Assistant,
                Some(_) | None => return Ok(None),
            };
            Ok(Some(MessageView::new(role, content("content")?)))
        }
        Some("function_call") => {
            let (id, name) = (text_field(item, "call_id"), text_field(item, "name"));
            let (Some(id), Some(name)) = (id, name) else {
                return Ok(None);
            };
            let place = ContentPlace::new(owner, "content");
            let mut view = MessageView::new(Role::Assistant, place);
            view.calls.push(ToolCallView {
                id,
                name,
                arguments: item.get("arguments").unwrap_or(NULL),
            });
            Ok(Some(view))
        }
        Some("function_call_output") => {
            let place = content("output")?;
            let mut view = MessageView::new(Role::Tool, place.clone());
            view.results.push(ToolResultView {
                id: text_field(item, "call_id").unwrap_or_default(),
                content: place,
                is_error: false,
            });
            Ok(Some(view))
        }
        Some(_) => Ok(None),
    }
}

fn anthropic_message<'a>(item: &'a Value, owner: &str) -> Result<MessageView<'a>, &'static str> {
    let role = match text_field(item, "role") {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        Some(_) | None => return Err("no role that is known"),
    };
    let content = item.get("content").unwrap_or(NULL);
    check_content(content)?;
    let mut view = MessageView::new(role, ContentPlace::new(owner, "content"));
    let blocks = content.as_array().into_iter().flatten();
    for (index, block) in blocks.enumerate() {
        match text_field(block, "type") {
            Some("tool_use") => {
                let (id, name) = (text_field(block, "id"), text_field(block, "name"));
                if let (Some(id), Some(name)) = (id, name) {
                    view.calls.push(ToolCallView {
                        id,
                        name,
                        arguments: block.get("input").unwrap_or(NULL),
                    });
                }
            }
            Some("tool_result") => {
                let is_valid = check_content(block.get("content").unwrap_or(NULL)).is_ok();
                if let Some(id) = text_field(block, "tool_use_id").filter(|_| is_valid) {
                    let owner = format!("{owner}/content/{index}");
                    view.results.push(ToolResultView {
                        id,
                        content: ContentPlace::new(&owner, "content"),
                        is_error: block.get("is_error") == Some(&Value::Bool(true)),
                    });
                }
            }
            Some(_) | None => {}
        }
    }
    Ok(view)
}

fn check_content(content: &Value) -> Result<(), &'static str> {
    match content {
        Value::Null | Value::String(_) | Value::Array(_) => Ok(()),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err("neither text nor a list of parts")
        }
    }
}

fn text_field<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}
