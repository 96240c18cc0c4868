//! OpenAI Responses: `instructions` and `input`. Input is text, or a list of items; a call and its result are items of
//! their own, and items of other kinds (reasoning, built-in tools) are kept as they are.

use serde_json::{Map, Value, json};

use super::json::{self, Fields};
use super::message::{
    Extra, File, FileKind, FileSource, Malformed, Message, Part, Role, ToolCall, ToolResult, Wire,
};
use super::portable::portable;

const WIRE: Wire = Wire::OpenAiResponses;
/// Never written: the message is the body's `instructions`.
const INSTRUCTIONS: &str = "\u{0}instructions";
/// Never written: the message is the whole of `input`, as plain text.
const PLAIN: &str = "\u{0}input";

/// The messages of a request's body, `instructions` as the first.
pub(super) fn read(body: &Value) -> Result<Vec<Message>, Malformed> {
    let mut messages = Vec::new();
    if let Some(Value::String(text)) = body.get("instructions") {
        messages.push(marked(
            Message::text(Role::System, text.clone()),
            INSTRUCTIONS,
        ));
    }
    match body.get("input") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => {
            messages.push(marked(Message::text(Role::User, text.clone()), PLAIN));
        }
        input => {
            let items = json::list(input, "input")?.iter().enumerate();
            for (index, item) in items {
                messages.push(read_item(item, &format!("input[{index}]"))?);
            }
        }
    }
    Ok(messages)
}

fn marked(mut message: Message, mark: &str) -> Message {
    message.extra.wire = Some(WIRE);
    message.extra.fields.insert(mark.into(), Value::Bool(true));
    message
}

fn read_item(value: &Value, place: &str) -> Result<Message, Malformed> {
    let mut message = known_item(value, place)?;
    message.extra.wire = Some(WIRE);
    let written = write_message(&message);
    Ok(json::exact(message, WIRE, value, &written))
}

fn known_item(value: &Value, place: &str) -> Result<Message, Malformed> {
    let mut fields =
        Fields::of(WIRE, value).ok_or_else(|| Malformed::new(place, "not an object"))?;
    let other = || Message::of(Role::Assistant, vec![Part::Other(WIRE, value.clone())]);
    Ok(match value.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            let role = match fields.text("role").as_deref() {
                Some("system") => Role::System,
                Some("developer") => Role::Developer,
                Some("user") => Role::User,
                Some("assistant") => Role::Assistant,
                _ => return Ok(other()),
            };
            let (parts, list) = read_content(fields.take("content"), place, role)?;
            Message {
                role,
                author: String::new(),
                parts,
                extra: fields.rest_with_list(list),
            }
        }
        Some("function_call") => match known_call(fields) {
            Some(call) => Message::of(Role::Assistant, vec![Part::Call(call)]),
            None => other(),
        },
        Some("function_call_output") => {
            fields.take("type");
            let id = fields.text("call_id").unwrap_or_default();
            let (parts, list) = read_content(fields.take("output"), place, Role::Tool)?;
            let result = ToolResult {
                id,
                parts,
                is_error: false,
                extra: fields.rest_with_list(list),
            };
            Message::of(Role::Tool, vec![Part::Result(result)])
        }
        Some(_) => other(),
    })
}

fn read_content(
    content: Option<Value>,
    place: &str,
    role: Role,
) -> Result<(Vec<Part>, bool), Malformed> {
    json::content(content, place, |part| {
        json::faithful(part.clone(), WIRE, known_part(&part), |part| {
            write_part(part, role)
        })
    })
}

fn known_call(mut fields: Fields) -> Option<ToolCall> {
    fields.take("type");
    Some(ToolCall {
        id: fields.text("call_id")?,
        name: fields.text("name")?,
        arguments: fields.take("arguments").unwrap_or_default(),
        extra: fields.rest(),
    })
}

fn known_part(value: &Value) -> Option<Part> {
    let mut fields = Fields::of(WIRE, value)?;
    let kind = fields.text("type")?;
    match kind.as_str() {
        "input_text" | "output_text" => {
            let text = fields.text("text")?;
            let mut extra = fields.rest();
            // A message of the assistant may be given as input or as output.
            extra.fields.insert("type".into(), kind.into());
            Some(json::text_part(text, extra))
        }
        "input_image" => {
            let (mime, source) = match (fields.text("image_url"), fields.text("file_id")) {
                (Some(url), None) => json::from_url(url),
                (None, Some(id)) => (String::new(), FileSource::Id(id)),
                _ => return None,
            };
            Some(file(
                FileKind::Image,
                String::new(),
                mime,
                source,
                fields.rest(),
            ))
        }
        "input_file" => {
            let name = fields.name("filename").unwrap_or_default();
            let data = fields.text("file_data");
            let (mime, source) = match (data, fields.text("file_url"), fields.text("file_id")) {
                (Some(data), None, None) if data.starts_with("data:") => json::from_url(data),
                (None, Some(url), None) => (String::new(), FileSource::Url(url)),
                (None, None, Some(id)) => (String::new(), FileSource::Id(id)),
                _ => return None,
            };
            Some(file(FileKind::Document, name, mime, source, fields.rest()))
        }
        _ => None,
    }
}

fn file(kind: FileKind, name: String, mime: String, source: FileSource, extra: Extra) -> Part {
    Part::File(File {
        kind,
        name,
        mime,
        source,
        extra,
    })
}

/// Puts messages in place of those in the body. What the system says first becomes `instructions` where it was that,
/// or where the messages come from elsewhere.
pub(super) fn write(messages: &[Message], body: &mut Map<String, Value>) {
    let has = |message: &Message, mark: &str| message.extra.mark(WIRE, mark).is_some();
    let is_ours = body.contains_key("instructions") || body.contains_key("input");
    let messages = portable(messages, WIRE);
    let mut rest = messages.as_slice();
    // Other values were not read.
    if body.get("instructions").is_some_and(Value::is_string) {
        body.shift_remove("instructions");
    }
    if let Some((first, others)) = messages.split_first()
        && first.role == Role::System
        && (has(first, INSTRUCTIONS)
            || (!is_ours && first.extra.wire != Some(WIRE))
            || is_new(first))
    {
        body.insert("instructions".into(), first.to_text().into());
        rest = others;
    }
    let input: Value = match rest {
        [only] if has(only, PLAIN) => only.to_text().into(),
        rest => rest
            .iter()
            .flat_map(|message| write_message(message))
            .collect(),
    };
    let is_empty = input.as_array().is_some_and(Vec::is_empty);
    if !is_empty || body.get("input").is_some_and(|input| !input.is_null()) {
        body.insert("input".into(), input);
    }
}

/// Made here, not read from anywhere.
fn is_new(message: &Message) -> bool {
    message.extra.wire.is_none()
}

fn write_message(message: &Message) -> Vec<Value> {
    if let Some(was) = json::unchanged(message, WIRE, |was| read_item(was, "")) {
        return vec![was];
    }
    // An item of a kind of its own; in a message such parts stand in a list.
    if let ([Part::Other(WIRE, item)], false) = (message.parts.as_slice(), message.extra.list) {
        return vec![item.clone()];
    }
    let mut items: Vec<Value> = Vec::new();
    let mut said: Vec<&Part> = Vec::new();
    for part in &message.parts {
        let item = match part {
            Part::Call(call) => write_call(call),
            Part::Result(result) => write_result(result),
            Part::Text(_) | Part::File(_) | Part::Other(..) => {
                said.push(part);
                continue;
            }
        };
        flush(message, &mut said, &mut items);
        items.push(item);
    }
    // A message that says nothing is still one where it was one.
    if !said.is_empty() || (items.is_empty() && message.extra.wire == Some(WIRE)) {
        items.push(write_said(message, &said));
    }
    items
}

fn flush(message: &Message, said: &mut Vec<&Part>, items: &mut Vec<Value>) {
    if !said.is_empty() {
        items.push(write_said(message, said));
        said.clear();
    }
}

fn write_said(message: &Message, said: &[&Part]) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User | Role::Tool => "user",
        Role::Assistant => "assistant",
    };
    let mut map = Map::new();
    map.insert("role".into(), role.into());
    let list = message.extra.wire == Some(WIRE) && message.extra.list;
    let content = json::write_content(said, list, |part| write_part(part, message.role));
    map.insert("content".into(), content);
    json::with_extra(Value::Object(map), &message.extra, WIRE)
}

fn write_call(call: &ToolCall) -> Value {
    let own = json!({
        "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.to_text(),
    });
    json::with_extra(own, &call.extra, WIRE)
}

fn write_result(result: &ToolResult) -> Value {
    let parts: Vec<&Part> = result.parts.iter().collect();
    let list = result.extra.wire == Some(WIRE) && result.extra.list;
    let output = if parts.is_empty() && !list {
        json!("")
    } else {
        json::write_content(&parts, list || parts.len() > 1, |part| {
            write_part(part, Role::Tool)
        })
    };
    let own = json!({"type": "function_call_output", "call_id": result.id, "output": output});
    json::with_extra(own, &result.extra, WIRE)
}

fn write_part(part: &Part, role: Role) -> Option<Value> {
    match part {
        Part::Text(text) => {
            let said =
                text.extra.of(WIRE).get("type").and_then(Value::as_str) == Some("output_text");
            let is_output = said || (role == Role::Assistant && text.extra.wire != Some(WIRE));
            let kind = if is_output {
                "output_text"
            } else {
                "input_text"
            };
            let own = json!({"type": kind, "text": text.text});
            Some(json::with_extra(own, &text.extra, WIRE))
        }
        Part::File(file) => Some(write_file(file)),
        Part::Other(WIRE, value) => Some(value.clone()),
        Part::Other(..) | Part::Call(_) | Part::Result(_) => None,
    }
}

fn write_file(file: &File) -> Value {
    let mut map = Map::new();
    let kind = match file.kind {
        FileKind::Image => "input_image",
        FileKind::Audio | FileKind::Document => "input_file",
    };
    map.insert("type".into(), kind.into());
    if file.kind != FileKind::Image && !file.name.is_empty() {
        map.insert("filename".into(), file.name.clone().into());
    }
    let (field, value) = match (&file.source, json::to_url(file, WIRE)) {
        (FileSource::Id(id), _) => ("file_id", id.clone().into()),
        (_, url) if file.kind == FileKind::Image => ("image_url", url.into()),
        (FileSource::Url(url), _) => ("file_url", url.clone().into()),
        (_, url) => ("file_data", url.into()),
    };
    map.insert(field.into(), value);
    json::with_extra(Value::Object(map), &file.extra, WIRE)
}
