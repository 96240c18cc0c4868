//! Content of messages and tool results in a request body, edited in place: a string, a list of parts, or null. Fields
//! and parts that an edit does not concern stay as they are, marks for the provider's prompt cache included.

use serde_json::{Value, json};

/// Location of a content value: a field of an object in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContentPointer {
    /// JSON pointer to the object.
    owner: String,
    field: &'static str,
}

impl ContentPointer {
    pub(super) fn new(owner: &str, field: &'static str) -> Self {
        Self {
            owner: owner.to_owned(),
            field,
        }
    }

    /// Returns the place of a field of the body itself.
    pub(super) fn of_body(field: &'static str) -> Self {
        Self::new("", field)
    }

    /// Returns the content; null if the field is missing.
    pub(super) fn get<'a>(&self, body: &'a Value) -> &'a Value {
        let owner = body.pointer(&self.owner);
        owner
            .and_then(|owner| owner.get(self.field))
            .unwrap_or(&Value::Null)
    }

    /// Returns the content for an edit; `None` if the message is not there any more.
    pub(super) fn get_mut<'a>(&self, body: &'a mut Value) -> Option<&'a mut Value> {
        let owner = body.pointer_mut(&self.owner)?.as_object_mut()?;
        Some(owner.entry(self.field).or_insert(Value::Null))
    }

    /// Removes the field.
    pub(super) fn remove(&self, body: &mut Value) {
        let owner = body.pointer_mut(&self.owner);
        if let Some(owner) = owner.and_then(Value::as_object_mut) {
            owner.shift_remove(self.field);
        }
    }

    /// Returns all text of the content, line by line.
    pub(super) fn text(&self, body: &Value) -> String {
        texts(self.get(body)).join("\n")
    }
}

/// Returns the text of a part; `None` for parts of other kinds.
fn text_part(part: &Value) -> Option<&str> {
    let kind = part.get("type")?.as_str()?;
    let is_text = matches!(kind, "text" | "input_text" | "output_text");
    part.get("text")?.as_str().filter(|_| is_text)
}

/// Returns the texts of a content value in their order.
pub(super) fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(text_part).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// Calls `edit` for each text in a JSON value, at any depth; the names of fields are no texts.
pub(crate) fn for_each_text(value: &mut Value, edit: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => edit(text),
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_text(item, edit)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|item| for_each_text(item, edit)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns the texts of a content value for an edit, in their order.
pub(super) fn texts_mut(content: &mut Value) -> Vec<&mut String> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter_mut().filter_map(text_part_mut).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn text_part_mut(part: &mut Value) -> Option<&mut String> {
    text_part(part)?;
    match part.get_mut("text") {
        Some(Value::String(text)) => Some(text),
        Some(_) | None => None,
    }
}

/// Returns the text of content that is nothing but one text.
pub(super) fn sole_text_mut(content: &mut Value) -> Option<&mut String> {
    let is_sole = content.as_array().is_none_or(|parts| parts.len() == 1);
    texts_mut(content).into_iter().next().filter(|_| is_sole)
}

/// Appends a text: a paragraph of a string, a part of a list, or the whole of content that is null.
pub(super) fn append_text(content: &mut Value, text_type: &str, text: &str) {
    match content {
        Value::String(whole) => {
            let gap = if whole.is_empty() { "" } else { "\n\n" };
            whole.push_str(gap);
            whole.push_str(text);
        }
        // Texts in a list may carry marks for the provider's cache, so a new part leaves them alone.
        Value::Array(parts) => parts.push(json!({"type": text_type, "text": text})),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            *content = text.into();
        }
    }
}

/// Converts a string to a list of one text part; null to an empty list.
pub(super) fn make_list<'a>(content: &'a mut Value, text_type: &str) -> Option<&'a mut Vec<Value>> {
    if let Value::String(text) = content {
        *content = json!([{"type": text_type, "text": std::mem::take(text)}]);
    } else if content.is_null() {
        *content = json!([]);
    }
    content.as_array_mut()
}

/// Removes the texts that `is_removed` selects; a string becomes null.
pub(super) fn remove_texts(content: &mut Value, is_removed: impl Fn(&str) -> bool) {
    match content {
        Value::String(text) if is_removed(text) => *content = Value::Null,
        Value::Array(parts) => parts.retain(|part| !text_part(part).is_some_and(&is_removed)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {}
    }
}
