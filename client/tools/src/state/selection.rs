//! Selection of a skill's docs or tools, and the forms in which it is stored.

use std::collections::HashSet;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Selection of a skill's docs or tools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Everything that the skill has.
    All,
    /// Selected names, each once, in the order of their selection. An empty list selects nothing.
    These(Vec<String>),
}

impl Selection {
    /// Creates a selection of names: trimmed, without blank ones, each once.
    #[must_use]
    pub fn these<I: IntoIterator<Item: AsRef<str>>>(names: I) -> Self {
        let (mut unique, mut known) = (Vec::new(), HashSet::new());
        for name in names {
            let name = name.as_ref().trim();
            if !name.is_empty() && known.insert(name.to_owned()) {
                unique.push(name.to_owned());
            }
        }
        Self::These(unique)
    }

    /// Reads a selection that this crate or a reference system wrote: `*`, a JSON array in a string, an array, either
    /// as bytes. Returns `None` for any other value.
    #[must_use]
    pub fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Array(items) => bytes(items).map_or_else(
                || Some(Self::these(items.iter().filter_map(Value::as_str))),
                |text| Self::parse(&text),
            ),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self::All);
        }
        if let Ok(value) = serde_json::from_str::<Value>(text) {
            // A JSON string in a string: it was encoded twice.
            return match value {
                Value::Array(items) => Some(Self::these(items.iter().filter_map(Value::as_str))),
                Value::String(inner) if inner.trim() == "*" || inner.trim().starts_with('[') => {
                    Self::parse(&inner)
                }
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Object(_) => None,
            };
        }
        let decoded = decode_printed_bytes(text)?;
        // Bytes within bytes are not decoded.
        (decoded != text && decode_printed_bytes(&decoded).is_none())
            .then(|| Self::parse(&decoded))
            .flatten()
    }

    /// Returns the stored form: `*`, or a JSON array in a string.
    #[must_use]
    pub fn to_value(&self) -> Value {
        Value::String(match self {
            Self::All => "*".to_owned(),
            Self::These(names) => list(names),
        })
    }

    /// Returns the selected names that are not available.
    #[must_use]
    pub fn unknown(&self, available: &[String]) -> Vec<String> {
        let available: HashSet<&String> = available.iter().collect();
        match self {
            Self::All => Vec::new(),
            Self::These(names) => {
                let unknown = names.iter().filter(|name| !available.contains(name));
                unknown.cloned().collect()
            }
        }
    }
}

/// Effect of a list of names on an existing selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SelectionMode {
    /// Adds the names to the selection.
    Add,
    /// Replaces the selection by the names, also if all were selected.
    #[default]
    Replace,
    /// Clears the selection.
    Clear,
}

impl SelectionMode {
    /// Parses the word of a model; an unknown word means `Replace`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.trim().to_lowercase().as_str() {
            "add" => Self::Add,
            "clear" => Self::Clear,
            _ => Self::Replace,
        }
    }

    /// Returns the name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Clear => "clear",
        }
    }

    /// Returns the selection after the change.
    #[must_use]
    pub fn apply(self, previous: Option<&Selection>, names: &[String], all: bool) -> Selection {
        match self {
            Self::Clear => Selection::These(Vec::new()),
            Self::Add | Self::Replace if all => Selection::All,
            Self::Replace => Selection::these(names),
            Self::Add => match previous {
                Some(Selection::All) => Selection::All,
                Some(Selection::These(kept)) => Selection::these(kept.iter().chain(names)),
                None => Selection::these(names),
            },
        }
    }
}

/// Returns `true` if a flag is set in any spelling of the reference systems: `true`, `"1"`, bytes; anything that is not
/// empty counts.
pub(crate) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty() && text != "b''" && text != "b\"\"",
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Returns the names in an order, in any of the encodings; empty for any other value.
pub(crate) fn names(value: &Value) -> Vec<String> {
    match Selection::read(value) {
        Some(Selection::These(names)) => names,
        Some(Selection::All) | None => Vec::new(),
    }
}

/// Returns names as a JSON array in a string.
pub(crate) fn list(names: &[String]) -> String {
    Value::from(names).to_string()
}

/// Returns the text whose bytes an array of numbers holds.
fn bytes(items: &[Value]) -> Option<String> {
    if items.is_empty() {
        return None;
    }
    let bytes: Option<Vec<u8>> = items
        .iter()
        .map(|item| item.as_u64().and_then(|byte| u8::try_from(byte).ok()))
        .collect();
    String::from_utf8(bytes?).ok()
}

/// Decodes bytes as Python prints them, or as Go puts them into JSON, which is base64.
fn decode_printed_bytes(text: &str) -> Option<String> {
    for quote in ['\'', '"'] {
        let inner = text
            .strip_prefix('b')
            .and_then(|text| text.strip_prefix(quote));
        if let Some(inner) = inner.and_then(|text| text.strip_suffix(quote)) {
            return Some(inner.to_owned());
        }
    }
    let decoded = BASE64.decode(text.as_bytes()).ok()?;
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn these(names: &[&str]) -> Option<Selection> {
        Some(Selection::these(names))
    }

    #[test]
    fn a_selection_is_read_in_every_spelling() {
        for value in [
            json!("*"),
            json!(" * "),
            json!([42]),
            json!("b'*'"),
            json!("Kg=="),
        ] {
            assert_eq!(Selection::read(&value), Some(Selection::All), "{value}");
        }
        for value in [
            json!("[\"a\", \" b \", \"a\", \"\", 3]"),
            json!(["a", "b"]),
            json!("b'[\"a\",\"b\"]'"),
            json!("WyJhIiwiYiJd"),
            json!("\"[\\\"a\\\",\\\"b\\\"]\""),
        ] {
            assert_eq!(Selection::read(&value), these(&["a", "b"]), "{value}");
        }
        assert_eq!(Selection::read(&json!("[]")), these(&[]));
        assert_eq!(Selection::read(&json!([])), these(&[]));
        for value in [
            json!(null),
            json!(""),
            json!("x"),
            json!({"a": 1}),
            json!("{}"),
            json!(7),
        ] {
            assert_eq!(Selection::read(&value), None, "{value}");
        }
    }

    #[test]
    fn a_written_selection_reads_back_the_same() {
        for selection in [Selection::All, Selection::these(["é", "*", "[x]"])] {
            assert_eq!(Selection::read(&selection.to_value()), Some(selection));
        }
    }

    #[test]
    fn a_skill_is_loaded_by_true_one_and_bytes_and_not_by_null() {
        for value in [
            json!(true),
            json!("1"),
            json!(1),
            json!("MQ=="),
            json!([49]),
            json!("b'1'"),
        ] {
            assert!(is_set(&value), "{value}");
        }
        for value in [
            json!(null),
            json!(false),
            json!(""),
            json!(0),
            json!([]),
            json!("b''"),
        ] {
            assert!(!is_set(&value), "{value}");
        }
    }

    #[test]
    fn replace_narrows_all_and_add_keeps_the_order() {
        let names = ["c".to_owned(), "a".to_owned()];
        let before = Selection::these(["a", "b"]);
        let apply = |change: SelectionMode, before: &Selection, all| {
            change.apply(Some(before), &names, all)
        };
        assert_eq!(
            apply(SelectionMode::Replace, &Selection::All, false),
            Selection::these(["c", "a"])
        );
        assert_eq!(
            apply(SelectionMode::Add, &before, false),
            Selection::these(["a", "b", "c"])
        );
        assert_eq!(
            apply(SelectionMode::Add, &Selection::All, false),
            Selection::All
        );
        assert_eq!(apply(SelectionMode::Add, &before, true), Selection::All);
        assert_eq!(
            apply(SelectionMode::Clear, &Selection::All, true),
            Selection::these::<[&str; 0]>([])
        );
        assert_eq!(SelectionMode::parse(" ADD "), SelectionMode::Add);
        assert_eq!(SelectionMode::parse("whatever"), SelectionMode::Replace);
    }
}
