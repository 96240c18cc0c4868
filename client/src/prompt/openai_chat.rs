//! OpenAI Chat Completions: `messages`. Calls are a field of the assistant's message, each result a message of its own.

use serde_json::{Map, Value, json};

use super::json::{self, Fields};
use super::message::{
    Extra, File, FileKind, FileSource, Malformed, Message, Part, Role, ToolCall, ToolResult, Wire,
};

const WIRE: Wire = Wire::OpenAiChat;

/// The messages of a request's body.
pub(super) fn read(body: &Value) -> Result<Vec<Message>, Malformed> {
    let messages = json::list(body.get("messages"), "messages")?;
    let numbered = messages.iter().enumerate();
    numbered
        .map(|(index, message)| read_message(message, &format!("messages[{index}]")))
        .collect()
}

fn read_message(value: &Value, place: &str) -> Result<Message, Malformed> {
    let mut fields =
        Fields::of(WIRE, value).ok_or_else(|| Malformed::new(place, "not an object"))?;
    let role = match fields.text("role").as_deref() {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        // `function` messages have no id to answer to.
        _ => {
            return Ok(Message::of(Role::User, vec![Part::Other(WIRE, value.clone())]).verbatim());
        }
    };
    let author = fields.text("name").unwrap_or_default();
    let has_content = value.get("content").is_some();
    let (mut parts, list) = json::content(fields.take("content"), place, read_part)?;
    if role == Role::Tool {
        let id = fields.text("tool_call_id").unwrap_or_default();
        parts = vec![Part::Result(ToolResult {
            id,
            parts,
            is_error: false,
            extra: Extra {
                wire: Some(WIRE),
                list,
                fields: Map::new(),
            },
        })];
    }
    if let Some(Value::Array(calls)) = fields.take("tool_calls") {
        parts.extend(calls.into_iter().map(read_call));
    }
    let mut extra = fields.rest_with_list(list);
    if !has_content {
        // Told apart from null, which is what an assistant with nothing to say is given.
        extra.fields.insert(NO_CONTENT.into(), Value::Bool(true));
    }
    Ok(Message {
        role,
        author,
        parts,
        extra,
    })
}

/// Never written: in a message without it `content` is null rather than missing.
const NO_CONTENT: &str = "\u{0}no content";
/// Never written: the one part is the whole message.
const VERBATIM: &str = "\u{0}verbatim";

impl Message {
    fn verbatim(mut self) -> Self {
        self.extra.wire = Some(WIRE);
        self.extra.fields.insert(VERBATIM.into(), Value::Bool(true));
        self
    }
}

fn read_part(value: Value) -> Part {
    known_part(&value).unwrap_or(Part::Other(WIRE, value))
}

fn known_part(value: &Value) -> Option<Part> {
    let mut fields = Fields::of(WIRE, value)?;
    let kind = fields.text("type")?;
    let file = |kind, name, (mime, source), extra| {
        Some(Part::File(File {
            kind,
            name,
            mime,
            source,
            extra,
        }))
    };
    match kind.as_str() {
        "text" => Some(json::text_part(fields.text("text")?, fields.rest())),
        "image_url" => {
            let mut inner = Fields::of(WIRE, &fields.take("image_url")?)?;
            let url = inner.text("url")?;
            fields.nest("image_url", inner);
            file(
                FileKind::Image,
                String::new(),
                json::from_url(url),
                fields.rest(),
            )
        }
        "input_audio" => {
            let mut inner = Fields::of(WIRE, &fields.take("input_audio")?)?;
            let (data, format) = (inner.text("data")?, inner.text("format")?);
            let source = (format!("audio/{format}"), FileSource::Base64(data));
            fields.nest("input_audio", inner);
            file(FileKind::Audio, String::new(), source, fields.rest())
        }
        "file" => {
            let mut inner = Fields::of(WIRE, &fields.take("file")?)?;
            let name = inner.text("filename").unwrap_or_default();
            let source = match (inner.text("file_data"), inner.text("file_id")) {
                (Some(data), None) if data.starts_with("data:") => json::from_url(data),
                (None, Some(id)) => (String::new(), FileSource::Id(id)),
                _ => return None,
            };
            fields.nest("file", inner);
            file(FileKind::Document, name, source, fields.rest())
        }
        _ => None,
    }
}

fn read_call(value: Value) -> Part {
    known_call(&value).unwrap_or(Part::Other(WIRE, value))
}

fn known_call(value: &Value) -> Option<Part> {
    let mut fields = Fields::of(WIRE, value)?;
    if fields.text("type").is_some_and(|kind| kind != "function") {
        return None;
    }
    let mut function = Fields::of(WIRE, &fields.take("function")?)?;
    let (name, arguments) = (function.text("name")?, function.take("arguments"));
    fields.nest("function", function);
    Some(Part::Call(ToolCall {
        id: fields.text("id").unwrap_or_default(),
        name,
        arguments: arguments.unwrap_or_default(),
        extra: fields.rest(),
    }))
}

/// Puts messages in place of those in the body.
pub(super) fn write(messages: &[Message], body: &mut Map<String, Value>) {
    let written = messages.iter().flat_map(write_message).collect();
    body.insert("messages".into(), written);
}

fn write_message(message: &Message) -> Vec<Value> {
    if message.extra.of(WIRE).contains_key(VERBATIM) {
        let parts = message.parts.iter();
        let whole = parts.filter_map(|part| match part {
            Part::Other(WIRE, value) => Some(value.clone()),
            Part::Text(_) | Part::File(_) | Part::Call(_) | Part::Result(_) | Part::Other(..) => {
                None
            }
        });
        return whole.collect();
    }
    let mut written = Vec::new();
    let (mut said, mut calls) = (Vec::new(), Vec::new());
    for part in &message.parts {
        match part {
            Part::Result(result) => written.push(write_result(message, result)),
            Part::Call(call) => calls.push(write_call(call)),
            Part::Other(WIRE, value) if message.role == Role::Assistant && is_call(value) => {
                calls.push(value.clone());
            }
            Part::Text(_) | Part::File(_) | Part::Other(..) => said.push(part),
        }
    }
    if written.is_empty() || !said.is_empty() {
        written.push(write_said(message, &said, calls));
    }
    written
}

/// A call that is no function's stands among the calls, too.
fn is_call(value: &Value) -> bool {
    value.get("id").is_some() && value.get("type").is_some_and(|kind| kind != "text")
}

fn write_said(message: &Message, said: &[&Part], calls: Vec<Value>) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut map = Map::new();
    map.insert("role".into(), role.into());
    let mut extra = message.extra.of(WIRE);
    let no_content = extra.shift_remove(NO_CONTENT).is_some();
    let list = message.extra.wire == Some(WIRE) && message.extra.list;
    if !said.is_empty() || list {
        let content = json::write_content(said, list, |part| write_part(part, message.role));
        map.insert("content".into(), content);
    } else if !no_content {
        map.insert("content".into(), Value::Null);
    }
    if !message.author.is_empty() {
        map.insert("name".into(), message.author.clone().into());
    }
    if !calls.is_empty() {
        map.insert("tool_calls".into(), calls.into());
    }
    map.extend(extra);
    Value::Object(map)
}

fn write_result(message: &Message, result: &ToolResult) -> Value {
    let parts: Vec<&Part> = result.parts.iter().collect();
    let list = result.extra.wire == Some(WIRE) && result.extra.list;
    // Tools speak in text here.
    let content = json::write_content(&parts, list || parts.len() > 1, |part| {
        write_part(part, Role::Tool)
    });
    let content = if parts.is_empty() && !list {
        json!("")
    } else {
        content
    };
    let own = json!({"role": "tool", "tool_call_id": result.id, "content": content});
    let mut extra = message.extra.clone();
    extra.fields.shift_remove(NO_CONTENT);
    if !message.author.is_empty() && message.role == Role::Tool {
        extra
            .fields
            .insert("name".into(), message.author.clone().into());
    }
    if message.role == Role::Tool {
        json::with_extra(own, &extra, WIRE)
    } else {
        own
    }
}

fn write_call(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.to_text()});
    let own = json!({"id": call.id, "type": "function", "function": function});
    json::with_extra(own, &call.extra, WIRE)
}

fn write_part(part: &Part, role: Role) -> Option<Value> {
    match part {
        Part::Text(text) => {
            let own = json!({"type": "text", "text": text.text});
            Some(json::with_extra(own, &text.extra, WIRE))
        }
        Part::File(file) if matches!(role, Role::User) => Some(write_file(file)),
        Part::File(file) => Some(json!({"type": "text", "text": json::mention(file)})),
        Part::Other(WIRE, value) => Some(value.clone()),
        Part::Other(..) | Part::Call(_) | Part::Result(_) => None,
    }
}

fn write_file(file: &File) -> Value {
    match (file.kind, &file.source, json::to_url(file)) {
        (FileKind::Image, _, Some(url)) => {
            let own = json!({"type": "image_url", "image_url": {"url": url}});
            json::with_extra(own, &file.extra, WIRE)
        }
        (FileKind::Audio, FileSource::Base64(data), _) => {
            let format = json::mime(file).trim_start_matches("audio/");
            let own =
                json!({"type": "input_audio", "input_audio": {"data": data, "format": format}});
            json::with_extra(own, &file.extra, WIRE)
        }
        (_, FileSource::Id(id), _) => {
            let mut inner = Map::new();
            inner.insert("file_id".into(), id.clone().into());
            write_named(file, inner)
        }
        // A URL is no file's data here.
        (_, FileSource::Url(_), _) => json!({"type": "text", "text": json::mention(file)}),
        (_, _, url) => {
            let mut inner = Map::new();
            inner.insert("file_data".into(), url.into());
            write_named(file, inner)
        }
    }
}

fn write_named(file: &File, mut inner: Map<String, Value>) -> Value {
    if !file.name.is_empty() {
        inner.insert("filename".into(), file.name.clone().into());
    }
    json::with_extra(json!({"type": "file", "file": inner}), &file.extra, WIRE)
}
