//! Model API formats: which messages a request body has, and how calls, results and tool definitions are written.
//! Nothing here changes a body; `message_content` does.

use serde_json::{Map, Value, json};

use super::message_content::ContentPointer;
use crate::tool_definition::{ToolCall, ToolDefinition};

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
    pub(super) content: ContentPointer,
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
    pub(super) content: ContentPointer,
    pub(super) is_error: bool,
}

const NULL: &Value = &Value::Null;

impl Role {
    /// Reads the role of a message; `None` if it has none that prompts depend on.
    fn read(message: &Value) -> Option<Self> {
        Some(match text_field(message, "role")? {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => return None,
        })
    }
}

impl<'a> MessageView<'a> {
    fn new(role: Role, content: ContentPointer) -> Self {
        Self {
            role,
            author: "",
            index: None,
            content,
            calls: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Adds a call; a call without an id or a name is left out.
    fn push_call(&mut self, id: Option<&'a str>, call: &'a Value, arguments: &str) {
        if let (Some(id), Some(name)) = (id, text_field(call, "name")) {
            self.calls.push(ToolCallView {
                id,
                name,
                arguments: call.get(arguments).unwrap_or(NULL),
            });
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
        let system = match self {
            Self::OpenAiChat => None,
            Self::OpenAiResponses => {
                let text = body.get("instructions").filter(|text| text.is_string());
                text.map(|text| ("instructions", text))
            }
            Self::Anthropic => {
                let system = body.get("system").filter(|system| !system.is_null());
                system.map(|system| ("system", system))
            }
        };
        if let Some((field, content)) = system {
            check_content(content).map_err(|why| MalformedRequest::new(field, why))?;
            let place = ContentPointer::of_body(field);
            views.push(MessageView::new(Role::System, place));
        }
        let list = self.list_field();
        let items = match body.get(list) {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(items)) => items.as_slice(),
            Some(Value::String(_)) if self == Self::OpenAiResponses => {
                views.push(MessageView::new(Role::User, ContentPointer::of_body(list)));
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
        let output = reply
            .get("output")
            .filter(|_| self == Self::OpenAiResponses);
        let items = match output {
            Some(output) => output.clone(),
            None if reply.is_array() => reply.clone(),
            None => json!([reply]),
        };
        let body = json!({self.list_field(): items});
        let views = self.messages(&body)?;
        let calls = views
            .iter()
            .flat_map(|view| &view.calls)
            .map(|call| ToolCall {
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
        let text = |call: &ToolCall| match call.arguments.as_str() {
            Some(text) => text.to_owned(),
            None => call.arguments.to_string(),
        };
        let each: Vec<Value> = calls
            .iter()
            .map(|call| match self {
                Self::OpenAiChat => json!({"id": call.id, "type": "function",
                    "function": {"name": call.name, "arguments": text(call)}}),
                Self::OpenAiResponses => json!({"type": "function_call", "call_id": call.id,
                    "name": call.name, "arguments": text(call)}),
                Self::Anthropic => json!({"type": "tool_use", "id": call.id, "name": call.name,
                    "input": call.arguments}),
            })
            .collect();
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
        let each: Vec<Value> = results
            .iter()
            .map(|(id, text, is_error)| match self {
                Self::OpenAiChat => json!({"role": "tool", "tool_call_id": id, "content": text}),
                Self::OpenAiResponses => {
                    json!({"type": "function_call_output", "call_id": id, "output": text})
                }
                Self::Anthropic => {
                    let mut block =
                        json!({"type": "tool_result", "tool_use_id": id, "content": text});
                    if let Some(block) = block.as_object_mut().filter(|_| *is_error) {
                        block.insert("is_error".into(), true.into());
                    }
                    block
                }
            })
            .collect();
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
    // `function` messages have no id to answer to.
    let Some(role) = Role::read(item) else {
        return Ok(None);
    };
    let content = content_of(item, owner, "content")?;
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
    for call in calls.into_iter().flatten() {
        let id = text_field(call, "id").unwrap_or_default();
        let function = call.get("function").unwrap_or(NULL);
        view.push_call(Some(id), function, "arguments");
    }
    Ok(Some(view))
}

fn responses_item<'a>(
    item: &'a Value,
    owner: &str,
) -> Result<Option<MessageView<'a>>, &'static str> {
    let id = text_field(item, "call_id");
    Ok(match text_field(item, "type") {
        None | Some("message") => match Role::read(item).filter(|role| *role != Role::Tool) {
            Some(role) => Some(MessageView::new(role, content_of(item, owner, "content")?)),
            None => None,
        },
        Some("function_call") => {
            let place = ContentPointer::new(owner, "content");
            let mut view = MessageView::new(Role::Assistant, place);
            view.push_call(id, item, "arguments");
            (!view.calls.is_empty()).then_some(view)
        }
        Some("function_call_output") => {
            let content = content_of(item, owner, "output")?;
            let mut view = MessageView::new(Role::Tool, content.clone());
            view.results.push(ToolResultView {
                id: id.unwrap_or_default(),
                content,
                is_error: false,
            });
            Some(view)
        }
        Some(_) => None,
    })
}

fn anthropic_message<'a>(item: &'a Value, owner: &str) -> Result<MessageView<'a>, &'static str> {
    let role = Role::read(item)
        .filter(|role| !matches!(role, Role::Developer | Role::Tool))
        .ok_or("no role that is known")?;
    let mut view = MessageView::new(role, content_of(item, owner, "content")?);
    let blocks = item.get("content").and_then(Value::as_array);
    for (index, block) in blocks.into_iter().flatten().enumerate() {
        match text_field(block, "type") {
            Some("tool_use") => view.push_call(text_field(block, "id"), block, "input"),
            Some("tool_result") => {
                let content = content_of(block, &format!("{owner}/content/{index}"), "content");
                if let (Some(id), Ok(content)) = (text_field(block, "tool_use_id"), content) {
                    view.results.push(ToolResultView {
                        id,
                        content,
                        is_error: block.get("is_error") == Some(&Value::Bool(true)),
                    });
                }
            }
            Some(_) | None => {}
        }
    }
    Ok(view)
}

/// Returns the place of a content field that is text, a list of parts or absent.
fn content_of(
    item: &Value,
    owner: &str,
    field: &'static str,
) -> Result<ContentPointer, &'static str> {
    check_content(item.get(field).unwrap_or(NULL))?;
    Ok(ContentPointer::new(owner, field))
}

fn check_content(content: &Value) -> Result<(), &'static str> {
    match content.is_null() || content.is_string() || content.is_array() {
        true => Ok(()),
        false => Err("neither text nor a list of parts"),
    }
}

fn text_field<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}
