//! OpenAI Chat Completions: `messages`. Calls are a field of the assistant's message, each result a message of its own.

use serde_json::{Map, Value, json};

use super::json::{self, Fields};
use super::message::{
    Extra, File, FileKind, FileSource, Malformed, Message, Part, Role, ToolCall, ToolResult, Wire,
};
use super::portable::portable;

const WIRE: Wire = Wire::OpenAiChat;
/// A call whose argument is text.
const CUSTOM: &str = "custom";

/// The messages of a request's body.
pub(super) fn read(body: &Value) -> Result<Vec<Message>, Malformed> {
    let messages = json::list(body.get("messages"), "messages")?;
    let numbered = messages.iter().enumerate();
    numbered
        .map(|(index, message)| read_message(message, &format!("messages[{index}]")))
        .collect()
}

fn read_message(value: &Value, place: &str) -> Result<Message, Malformed> {
    let message = known_message(value, place)?;
    let written = write_message(&message);
    Ok(json::exact(message, WIRE, value, &written))
}

fn known_message(value: &Value, place: &str) -> Result<Message, Malformed> {
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
            return Ok(Message::of(
                Role::User,
                vec![Part::Other(WIRE, value.clone())],
            ));
        }
    };
    let author = fields.name("name").unwrap_or_default();
    let (mut parts, list) = json::content(fields.take("content"), place, |part| {
        json::faithful(part.clone(), WIRE, known_part(&part), |part| {
            write_part(part, role)
        })
    })?;
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
    let calls = fields.items("tool_calls").into_iter();
    parts.extend(calls.map(|call| known_call(&call).unwrap_or(Part::Other(WIRE, call))));
    Ok(Message {
        role,
        author,
        parts,
        extra: fields.rest_with_list(list),
    })
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
            let name = inner.name("filename").unwrap_or_default();
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

fn known_call(value: &Value) -> Option<Part> {
    let mut fields = Fields::of(WIRE, value)?;
    // A custom tool is given text where a function is given an object.
    let is_custom = value.get("type").and_then(Value::as_str) == Some(CUSTOM);
    let kind = if is_custom { CUSTOM } else { "function" };
    if !is_custom && fields.text("type").is_some_and(|own| own != kind) {
        return None;
    }
    let mut inner = Fields::of(WIRE, &fields.take(kind)?)?;
    let name = inner.text("name")?;
    let arguments = match is_custom {
        true => json!({"input": inner.text("input")?}),
        false => inner.take("arguments").unwrap_or_default(),
    };
    fields.nest(kind, inner);
    Some(Part::Call(ToolCall {
        id: fields.text("id").unwrap_or_default(),
        name,
        arguments,
        extra: fields.rest(),
    }))
}

/// Puts messages in place of those in the body.
pub(super) fn write(messages: &[Message], body: &mut Map<String, Value>) {
    let messages = portable(messages, WIRE);
    let written = messages.iter().flat_map(|message| write_message(message));
    let written: Vec<Value> = written.collect();
    if !written.is_empty() || body.get("messages").is_some_and(Value::is_array) {
        body.insert("messages".into(), written.into());
    }
}

fn write_message(message: &Message) -> Vec<Value> {
    if let Some(was) = json::unchanged(message, WIRE, |was| read_message(was, "")) {
        return vec![was];
    }
    let mut written = Vec::new();
    let (mut said, mut calls) = (Vec::new(), Vec::new());
    for part in &message.parts {
        match part {
            Part::Result(result) => written.push(write_result(message, result)),
            Part::Call(call) => calls.push(write_call(call)),
            Part::Text(_) | Part::File(_) | Part::Other(..) => said.push(part),
        }
    }
    if written.is_empty() || !said.is_empty() {
        written.push(write_said(message, &said, calls));
    }
    written
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
    let list = message.extra.wire == Some(WIRE) && message.extra.list;
    if !said.is_empty() || list {
        let content = json::write_content(said, list, |part| write_part(part, message.role));
        map.insert("content".into(), content);
    } else {
        map.insert("content".into(), Value::Null);
    }
    if !message.author.is_empty() {
        map.insert("name".into(), message.author.clone().into());
    }
    if !calls.is_empty() {
        map.insert("tool_calls".into(), calls.into());
    }
    json::with_extra(Value::Object(map), &message.extra, WIRE)
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
    if message.role != Role::Tool {
        return own;
    }
    let mut own = json::with_extra(own, &message.extra, WIRE);
    if let Some(map) = own.as_object_mut().filter(|_| !message.author.is_empty()) {
        map.insert("name".into(), message.author.clone().into());
    }
    own
}

fn write_call(call: &ToolCall) -> Value {
    let extra = call.extra.of(WIRE);
    if extra.get("type").and_then(Value::as_str) == Some(CUSTOM) {
        let object = call.object();
        let custom = json!({"name": call.name, "input": object.get("input")});
        return json::with_extra(json!({"id": call.id, CUSTOM: custom}), &call.extra, WIRE);
    }
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
    match (file.kind, &file.source, json::to_url(file, WIRE)) {
        (FileKind::Image, _, Some(url)) => {
            let own = json!({"type": "image_url", "image_url": {"url": url}});
            json::with_extra(own, &file.extra, WIRE)
        }
        (FileKind::Audio, FileSource::Base64(data), _) => {
            let mime = json::mime(file);
            let format = mime.strip_prefix("audio/").unwrap_or(mime);
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
