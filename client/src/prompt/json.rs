//! What the adapters share: taking fields out of an object, what is left over, data URLs.

use serde_json::{Map, Value, json};

use super::message::{Extra, File, FileKind, FileSource, Malformed, Message, Part, Text, Wire};

/// Never written: what a message was read from, where its parts cannot say it exactly.
const WAS: &str = "\u{0}was";

/// An object whose fields are taken one by one; what is left is kept.
pub(super) struct Fields {
    wire: Wire,
    map: Map<String, Value>,
}

impl Fields {
    pub(super) fn of(wire: Wire, value: &Value) -> Option<Self> {
        let map = value.as_object()?.clone();
        Some(Self { wire, map })
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name)
    }

    /// A string; anything else stays where it is.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.map.get(name)?.as_str()?;
        match self.take(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// A string that says something; an empty one stays where it is, too.
    pub(super) fn name(&mut self, name: &str) -> Option<String> {
        let text = self.map.get(name)?.as_str()?;
        if text.is_empty() {
            None
        } else {
            self.text(name)
        }
    }

    /// A list with something in it; anything else stays where it is.
    pub(super) fn items(&mut self, name: &str) -> Vec<Value> {
        match self.map.get(name) {
            Some(Value::Array(items)) if !items.is_empty() => {}
            _ => return Vec::new(),
        }
        match self.take(name) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        }
    }

    /// Puts back what is left of an object that was taken from a field.
    pub(super) fn nest(&mut self, name: &str, inner: Self) {
        if !inner.map.is_empty() {
            self.map.insert(name.to_owned(), Value::Object(inner.map));
        }
    }

    pub(super) fn rest(self) -> Extra {
        Extra {
            wire: Some(self.wire),
            list: false,
            fields: self.map,
        }
    }

    pub(super) fn rest_with_list(self, list: bool) -> Extra {
        Extra {
            list,
            ..self.rest()
        }
    }
}

/// A message that is written as it was read, whatever that was: where its parts would give something else it remembers.
pub(super) fn exact(mut message: Message, wire: Wire, value: &Value, written: &[Value]) -> Message {
    if written != std::slice::from_ref(value) {
        message.extra.wire = Some(wire);
        message.extra.fields.insert(WAS.into(), value.clone());
    }
    message
}

/// What a message was read from, if it had to be remembered and the message was not changed since.
pub(super) fn unchanged(
    message: &Message,
    wire: Wire,
    read: impl Fn(&Value) -> Result<Message, Malformed>,
) -> Option<Value> {
    let was = message.extra.mark(wire, WAS)?;
    let again = read(was).ok()?;
    (again == *message).then(|| was.clone())
}

/// A part that is understood, if it can be written as it was.
pub(super) fn faithful(
    value: Value,
    wire: Wire,
    part: Option<Part>,
    write: impl Fn(&Part) -> Option<Value>,
) -> Part {
    let part = part.filter(|part| write(part).as_ref() == Some(&value));
    part.unwrap_or(Part::Other(wire, value))
}

/// A field that must be a list, or may be missing.
pub(super) fn list<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a [Value], Malformed> {
    match value {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(Malformed::new(place, "not a list")),
    }
}

/// A string, or a list of parts.
pub(super) fn content(
    value: Option<Value>,
    place: &str,
    part: impl Fn(Value) -> Part,
) -> Result<(Vec<Part>, bool), Malformed> {
    match value {
        None | Some(Value::Null) => Ok((Vec::new(), false)),
        Some(Value::String(text)) => Ok((vec![Part::text(text)], false)),
        Some(Value::Array(items)) => Ok((items.into_iter().map(part).collect(), true)),
        Some(_) => Err(Malformed::new(place, "neither text nor a list of parts")),
    }
}

/// A string where one will do, else a list.
pub(super) fn write_content(
    parts: &[&Part],
    keep_list: bool,
    part: impl Fn(&Part) -> Option<Value>,
) -> Value {
    if let ([Part::Text(text)], false) = (parts, keep_list)
        && text.extra.fields.is_empty()
    {
        return Value::String(text.text.clone());
    }
    parts.iter().filter_map(|own| part(own)).collect()
}

/// Fields of ours, then what else was there.
pub(super) fn with_extra(own: Value, extra: &Extra, wire: Wire) -> Value {
    let mut own = own;
    if let Value::Object(map) = &mut own {
        fill(map, extra.of(wire));
    }
    own
}

/// What is there stays; objects in objects are filled, too.
fn fill(map: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (map.get_mut(&name), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => fill(inner, value),
            (Some(_), _) => {}
            (None, value) => {
                map.insert(name, value);
            }
        }
    }
}

pub(super) fn text_part(text: String, extra: Extra) -> Part {
    Part::Text(Text { text, extra })
}

/// `data:TYPE;base64,BYTES` taken apart, any other URL as it is.
pub(super) fn from_url(url: String) -> (String, FileSource) {
    let parts = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match parts {
        Some((mime, bytes)) => (mime.to_owned(), FileSource::Base64(bytes.to_owned())),
        None => (String::new(), FileSource::Url(url)),
    }
}

/// The other way round; none for what only an id leads to.
pub(super) fn to_url(file: &File, wire: Wire) -> Option<String> {
    // As it was there, also where it said nothing.
    let mime = match file.extra.wire == Some(wire) {
        true => &file.mime,
        false => mime(file),
    };
    match &file.source {
        FileSource::Url(url) => Some(url.clone()),
        FileSource::Base64(bytes) => Some(format!("data:{mime};base64,{bytes}")),
        FileSource::Text(text) => Some(format!(
            "data:{mime};base64,{}",
            data_encoding::BASE64.encode(text.as_bytes())
        )),
        FileSource::Id(_) => None,
    }
}

/// The media type, or what to say where none is known.
pub(super) fn mime(file: &File) -> &str {
    match (file.mime.as_str(), file.kind, &file.source) {
        ("", FileKind::Image, _) => "image/png",
        ("", FileKind::Audio, _) => "audio/wav",
        ("", FileKind::Document, FileSource::Text(_)) => "text/plain",
        ("", FileKind::Document, _) => "application/octet-stream",
        (mime, _, _) => mime,
    }
}

/// What is said in place of a file that this provider cannot be given there.
pub(super) fn mention(file: &File) -> Value {
    let name = if file.name.is_empty() {
        "without a name"
    } else {
        &file.name
    };
    let place = match &file.source {
        FileSource::Url(url) => format!(" at {url}"),
        FileSource::Id(id) => format!(" with id {id}"),
        FileSource::Base64(_) | FileSource::Text(_) => String::new(),
    };
    json!(format!("[file {name}{place}]"))
}
