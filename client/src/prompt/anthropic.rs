//! Anthropic Messages: `system` and `messages`, all content in blocks. Results of tools are blocks of a message of the
//! user's; all results of one turn of calls belong into one such message. What the system says in the middle of a
//! conversation stays there.

use serde_json::{Map, Value, json};

use super::json::{self, Fields};
use super::message::{
    Extra, File, FileKind, FileSource, Malformed, Message, Part, Role, ToolCall, ToolResult, Wire,
};
use super::portable::portable;

const WIRE: Wire = Wire::Anthropic;
/// Never written: the message is the body's `system`.
const SYSTEM: &str = "\u{0}system";

/// The messages of a request's body, `system` as the first.
pub(super) fn read(body: &Value) -> Result<Vec<Message>, Malformed> {
    let mut messages = Vec::new();
    let system = body.get("system").filter(|value| !value.is_null());
    if let Some(system) = system {
        let (parts, list) = json::content(Some(system.clone()), "system", read_block)?;
        let mut message = Message::of(Role::System, parts);
        message.extra = Extra {
            wire: Some(WIRE),
            list,
            fields: Map::from_iter([(SYSTEM.to_owned(), Value::Bool(true))]),
        };
        messages.push(message);
    }
    let items = json::list(body.get("messages"), "messages")?
        .iter()
        .enumerate();
    for (index, item) in items {
        messages.push(read_message(item, &format!("messages[{index}]"))?);
    }
    Ok(messages)
}

fn read_message(value: &Value, place: &str) -> Result<Message, Malformed> {
    let message = known_message(value, place)?;
    let written = write_message(&message);
    Ok(json::exact(message, WIRE, value, &[written]))
}

fn known_message(value: &Value, place: &str) -> Result<Message, Malformed> {
    let mut fields =
        Fields::of(WIRE, value).ok_or_else(|| Malformed::new(place, "not an object"))?;
    let role = match fields.text("role").as_deref() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        _ => return Err(Malformed::new(place, "no role that is known")),
    };
    let (parts, list) = json::content(fields.take("content"), place, read_block)?;
    Ok(Message {
        role,
        author: String::new(),
        parts,
        extra: fields.rest_with_list(list),
    })
}

fn read_block(value: Value) -> Part {
    match known_block(&value) {
        // These are understood also where they are not as they should be; the message remembers what it was.
        Some(part @ (Part::Call(_) | Part::Result(_))) => part,
        part => json::faithful(value, WIRE, part, write_block),
    }
}

fn known_block(value: &Value) -> Option<Part> {
    let mut fields = Fields::of(WIRE, value)?;
    let kind = fields.text("type")?;
    match kind.as_str() {
        "text" => Some(json::text_part(fields.text("text")?, fields.rest())),
        "image" => read_file(FileKind::Image, fields),
        "document" => read_file(FileKind::Document, fields),
        "tool_use" => Some(Part::Call(ToolCall {
            id: fields.text("id")?,
            name: fields.text("name")?,
            arguments: fields.take("input").unwrap_or_default(),
            extra: fields.rest(),
        })),
        "tool_result" => {
            let id = fields.text("tool_use_id")?;
            let is_error = value.get("is_error") == Some(&Value::Bool(true));
            if is_error {
                fields.take("is_error");
            }
            let (parts, list) = json::content(fields.take("content"), "", read_block).ok()?;
            Some(Part::Result(ToolResult {
                id,
                parts,
                is_error,
                extra: fields.rest_with_list(list),
            }))
        }
        _ => None,
    }
}

fn read_file(kind: FileKind, mut fields: Fields) -> Option<Part> {
    let mut source = Fields::of(WIRE, &fields.take("source")?)?;
    let (mime, from) = match source.text("type")?.as_str() {
        "base64" => {
            let mime = source.text("media_type")?;
            (mime, FileSource::Base64(source.text("data")?))
        }
        "text" => {
            let mime = source.text("media_type")?;
            (mime, FileSource::Text(source.text("data")?))
        }
        "url" => (String::new(), FileSource::Url(source.text("url")?)),
        "file" => (String::new(), FileSource::Id(source.text("file_id")?)),
        _ => return None,
    };
    fields.nest("source", source);
    let name = match kind {
        FileKind::Document => fields.name("title").unwrap_or_default(),
        FileKind::Image | FileKind::Audio => String::new(),
    };
    Some(Part::File(File {
        kind,
        name,
        mime,
        source: from,
        extra: fields.rest(),
    }))
}

/// Puts messages in place of those in the body: what the system says into `system`, the rest into `messages`. What was
/// read from `messages` stays there, also where the system says it.
pub(super) fn write(messages: &[Message], body: &mut Map<String, Value>) {
    let messages = portable(messages, WIRE);
    let (system, said): (Vec<&Message>, Vec<&Message>) = messages
        .iter()
        .map(|message| &**message)
        .partition(|message| is_of_system(message));
    // Null is as good as none, and was not read.
    if body.get("system").is_some_and(|system| !system.is_null()) {
        body.shift_remove("system");
    }
    if !system.is_empty() {
        let is_list = |message: &&Message| message.extra.list && message.extra.wire == Some(WIRE);
        let list = system.iter().any(is_list);
        let parts: Vec<&Part> = system.iter().flat_map(|message| &message.parts).collect();
        let content = json::write_content(&parts, list || parts.len() > 1, write_block);
        body.insert("system".into(), content);
    }
    let written = write_messages(&said);
    if !written.is_empty() || body.get("messages").is_some_and(Value::is_array) {
        body.insert("messages".into(), written.into());
    }
}

/// What the body's `system` says, and what is said by the system of another provider.
fn is_of_system(message: &Message) -> bool {
    let is_own = message.extra.wire == Some(WIRE);
    matches!(message.role, Role::System | Role::Developer)
        && (!is_own || message.extra.mark(WIRE, SYSTEM).is_some())
}

fn write_messages(messages: &[&Message]) -> Vec<Value> {
    let mut written: Vec<Value> = Vec::new();
    let mut answering = false;
    for message in messages {
        let answers = message.role == Role::Tool;
        let blocks = write_message(message);
        let open = written.last_mut().filter(|_| answering && answers);
        match open
            .and_then(|last| last.get_mut("content"))
            .and_then(Value::as_array_mut)
        {
            Some(content) => {
                let more = blocks.get("content").and_then(Value::as_array);
                content.extend(more.into_iter().flatten().cloned());
            }
            None => written.push(blocks),
        }
        answering = answers;
    }
    written
}

fn write_message(message: &Message) -> Value {
    if let Some(was) = json::unchanged(message, WIRE, |was| read_message(was, "")) {
        return was;
    }
    let role = match message.role {
        Role::Assistant => "assistant",
        Role::System | Role::Developer => "system",
        Role::User | Role::Tool => "user",
    };
    let parts: Vec<&Part> = message.parts.iter().collect();
    let list = message.extra.wire == Some(WIRE) && message.extra.list;
    let content = json::write_content(&parts, list, write_block);
    json::with_extra(
        json!({"role": role, "content": content}),
        &message.extra,
        WIRE,
    )
}

fn write_block(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => {
            let own = json!({"type": "text", "text": text.text});
            Some(json::with_extra(own, &text.extra, WIRE))
        }
        Part::File(file) => Some(write_file(file)),
        Part::Call(call) => {
            let input = Value::Object(call.object());
            let own = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input});
            Some(json::with_extra(own, &call.extra, WIRE))
        }
        Part::Result(result) => Some(write_result(result)),
        Part::Other(WIRE, value) => Some(value.clone()),
        Part::Other(..) => None,
    }
}

fn write_result(result: &ToolResult) -> Value {
    let parts: Vec<&Part> = result.parts.iter().collect();
    let list = result.extra.wire == Some(WIRE) && result.extra.list;
    let mut own = json!({"type": "tool_result", "tool_use_id": result.id});
    if let Value::Object(map) = &mut own {
        if !parts.is_empty() || list {
            let content = json::write_content(&parts, list || parts.len() > 1, write_block);
            map.insert("content".into(), content);
        }
        if result.is_error {
            map.insert("is_error".into(), Value::Bool(true));
        }
    }
    json::with_extra(own, &result.extra, WIRE)
}

fn write_file(file: &File) -> Value {
    let kind = match file.kind {
        FileKind::Image => "image",
        FileKind::Document => "document",
        // There is no block for sound.
        FileKind::Audio => return json!({"type": "text", "text": json::mention(file)}),
    };
    let source = match &file.source {
        FileSource::Base64(data) => {
            json!({"type": "base64", "media_type": json::mime(file), "data": data})
        }
        FileSource::Text(data) => {
            json!({"type": "text", "media_type": json::mime(file), "data": data})
        }
        FileSource::Url(url) => json!({"type": "url", "url": url}),
        FileSource::Id(id) => json!({"type": "file", "file_id": id}),
    };
    let mut own = json!({"type": kind, "source": source});
    if file.kind == FileKind::Document
        && !file.name.is_empty()
        && let Value::Object(map) = &mut own
    {
        map.insert("title".into(), file.name.clone().into());
    }
    json::with_extra(own, &file.extra, WIRE)
}
