//! What the messages of a conversation say of skills: which result of a tool is about which, and who loaded it.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::message::{Message, Part, ToolCall, ToolResult};

/// Tools whose results stand for what a skill says.
const LOADERS: [&str; 2] = ["skill_load", "skill_select_docs"];
/// What the fields are called that name a skill.
const NAMES: [&str; 3] = ["skill", "skill_name", "name"];

/// Where in the messages a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) message: usize,
    pub(super) part: usize,
}

/// The agent that loaded a skill last: who made the call. None if the history does not say.
#[must_use]
pub fn owner(messages: &[Message], skill: &str) -> Option<String> {
    let calls = calls(messages);
    let named = results(messages).into_iter().rev();
    let mut ours = named.filter(|(_, result)| names(result, &calls).as_deref() == Some(skill));
    let (_, result) = ours.next()?;
    let (author, _) = calls.get(result.id.as_str())?;
    (!author.trim().is_empty()).then(|| (*author).to_owned())
}

/// The last result that is about each skill.
pub(super) fn last_results(messages: &[Message]) -> HashMap<String, At> {
    let calls = calls(messages);
    let named = results(messages).into_iter();
    named
        .filter_map(|(at, result)| Some((names(result, &calls)?, at)))
        .collect()
}

/// A result that only says that this skill is loaded.
pub(super) fn is_stub(text: &str, skill: &str) -> bool {
    let text = text.trim();
    match serde_json::from_str::<Value>(text) {
        Ok(Value::String(inner)) => is_stub(&inner, skill),
        Ok(Value::Object(map)) if map.len() == 1 => {
            let inner = map.get("result").and_then(Value::as_str);
            inner.is_some_and(|inner| is_stub(inner, skill))
        }
        _ => said(text).as_deref() == Some(skill),
    }
}

type Calls<'a> = HashMap<&'a str, (&'a str, &'a ToolCall)>;

/// Calls by their id, with who made them.
fn calls(messages: &[Message]) -> Calls<'_> {
    let mut calls = HashMap::new();
    for message in messages {
        for part in &message.parts {
            if let Part::Call(call) = part {
                calls.insert(call.id.as_str(), (message.author.as_str(), call));
            }
        }
    }
    calls
}

fn results(messages: &[Message]) -> Vec<(At, &ToolResult)> {
    let mut results = Vec::new();
    for (message, own) in messages.iter().enumerate() {
        for (part, own) in own.parts.iter().enumerate() {
            if let Part::Result(result) = own {
                results.push((At { message, part }, result));
            }
        }
    }
    results
}

/// The skill that a loader's result is about: by its call, or where that is gone from the history, by its own words.
fn names(result: &ToolResult, calls: &Calls<'_>) -> Option<String> {
    if result.is_error {
        return None;
    }
    match calls.get(result.id.as_str()) {
        Some((_, call)) => LOADERS
            .contains(&call.name.as_str())
            .then(|| named(&call.object()).or_else(|| told(&result.to_text())))?,
        None => told(&result.to_text()),
    }
}

fn named(fields: &Map<String, Value>) -> Option<String> {
    let mut names = NAMES.iter().filter_map(|name| fields.get(*name)?.as_str());
    let name = names.next()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The name in `loaded: X`, `skill 'X' loaded` or JSON of a loader.
fn told(text: &str) -> Option<String> {
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(Value::String(inner)) => said(&inner),
        Ok(Value::Object(map)) => {
            let inner = map.get("result").and_then(Value::as_str);
            // Other tools name skills, too.
            let is_selection = ["selected_docs", "include_all_docs"]
                .iter()
                .any(|key| map.contains_key(*key));
            inner
                .and_then(told)
                .or_else(|| is_selection.then(|| named(&map)).flatten())
        }
        _ => said(text.lines().next().unwrap_or_default()),
    }
}

fn said(line: &str) -> Option<String> {
    let line = line.trim();
    let (head, rest) = line.split_at_checked("loaded:".len()).unwrap_or((line, ""));
    let name = if head.eq_ignore_ascii_case("loaded:") {
        rest.trim()
    } else {
        let quoted = line.strip_prefix("skill ")?.strip_suffix(" loaded")?;
        let quote = quoted.chars().next().filter(|char| "'\"".contains(*char))?;
        quoted.strip_prefix(quote)?.strip_suffix(quote)?
    };
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::prompt::{Role, Wire};

    #[test]
    fn a_stub_is_told_from_text() {
        for stub in [
            "loaded: csv",
            " Loaded: csv\n",
            "skill 'csv' loaded",
            "skill \"it's\" loaded",
            "\"loaded: csv\"",
            "{\"result\": \"skill 'csv' loaded\"}",
        ] {
            let skill = if stub.contains("it's") { "it's" } else { "csv" };
            assert!(is_stub(stub, skill), "{stub}");
        }
        for text in [
            "loaded: csv\nand more",
            "loaded: csv, and more",
            "{\"skill\": \"csv\", \"mode\": \"add\"}",
            "skill csv",
            "",
        ] {
            assert!(!is_stub(text, "csv"), "{text}");
        }
    }

    #[test]
    fn the_owner_is_who_called_last() {
        let mut messages = Wire::OpenAiChat.read(&json!({"messages": [
            {"role": "assistant", "name": "first", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "skill_load", "arguments": "{\"skill\": \"csv\"}"}}]},
            {"role": "tool", "name": "skill_load", "tool_call_id": "1", "content": "loaded: csv"},
            {"role": "assistant", "name": "second", "content": null, "tool_calls": [
                {"id": "2", "type": "function", "function": {"name": "skill_select_docs", "arguments": "{\"skill_name\": \"csv\"}"}},
                {"id": "3", "type": "function", "function": {"name": "skill_run", "arguments": "{\"skill\": \"math\"}"}}]},
            {"role": "tool", "tool_call_id": "2", "content": "{}"},
            {"role": "tool", "tool_call_id": "3", "content": "{}"},
        ]})).expect("a request");
        assert_eq!(owner(&messages, "csv").as_deref(), Some("second"));
        assert_eq!(owner(&messages, "math"), None);
        messages.truncate(2);
        assert_eq!(owner(&messages, "csv").as_deref(), Some("first"));
        assert_eq!(
            messages.first().map(|message| message.role),
            Some(Role::Assistant)
        );
    }

    #[test]
    fn an_error_stands_for_no_skill() {
        let messages = Wire::Anthropic.read(&json!({"messages": [
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "is_error": true, "content": "loaded: csv"},
                {"type": "tool_result", "tool_use_id": "2", "content": "loaded: math"}]},
        ]})).expect("a request");
        let last = last_results(&messages);
        assert_eq!(
            last.get("math"),
            Some(&At {
                message: 0,
                part: 1
            })
        );
        assert_eq!(last.len(), 1);
    }
}
