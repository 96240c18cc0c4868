//! What the messages of a conversation say of skills: which result of a tool is about which, who loaded it, and whether
//! its text is there already.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::message::{Message, Part, ToolCall, ToolResult};

/// Tools whose results stand for what a skill says; Agent Zero's one tool does where it loads.
const LOADERS: [&str; 3] = ["skill_load", "skill_select_docs", "load_skill_md"];
const SKILLS_TOOL: &str = "skills_tool";
/// What the fields are called that name a skill.
const NAMES: [&str; 4] = ["skill", "skill_name", "skill_id", "name"];
/// What the result of a loader has that says no more than what is loaded. Nothing is lost when the text takes its place.
const SAYS_LOADED: [&str; 8] = [
    "skill",
    "message",
    "mode",
    "digest",
    "selected_docs",
    "include_all_docs",
    "selected_tools",
    "include_all_tools",
];

/// Where in the messages a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) message: usize,
    pub(super) part: usize,
}

/// A result of a loader.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) at: At,
    pub(super) skill: String,
    pub(super) text: String,
    /// Who made the call; empty where the history does not say.
    author: &'a str,
}

/// The agent that loaded a skill last: who made the call. None if the history does not say.
#[must_use]
pub fn owner(messages: &[Message], skill: &str) -> Option<String> {
    owners(messages).remove(skill)
}

/// The same of all skills that the history has.
#[must_use]
pub fn owners(messages: &[Message]) -> HashMap<String, String> {
    let loads = loads(messages).into_iter();
    let last: HashMap<String, &str> = loads.map(|load| (load.skill, load.author)).collect();
    let named = last
        .into_iter()
        .filter(|(_, author)| !author.trim().is_empty());
    named
        .map(|(skill, author)| (skill, author.to_owned()))
        .collect()
}

/// The results that are about skills, in their order.
pub(super) fn loads(messages: &[Message]) -> Vec<Load<'_>> {
    // Ids may begin anew each turn: a result belongs to the nearest call before it.
    let mut calls: HashMap<&str, (&str, &ToolCall)> = HashMap::new();
    let mut loads = Vec::new();
    for (message, own) in messages.iter().enumerate() {
        for (part, piece) in own.parts.iter().enumerate() {
            match piece {
                Part::Call(call) => {
                    calls.insert(call.id.as_str(), (own.author.as_str(), call));
                }
                Part::Result(result) => {
                    let call = calls.get(result.id.as_str()).copied();
                    let text = result.to_text();
                    if let Some(skill) = about(result, &text, call.map(|(_, call)| call)) {
                        loads.push(Load {
                            at: At { message, part },
                            skill,
                            text,
                            author: call.map_or("", |(author, _)| author),
                        });
                    }
                }
                Part::Text(_) | Part::File(_) | Part::Other(..) => {}
            }
        }
    }
    loads
}

/// A result that only says that this skill is loaded, or what is chosen of it.
pub(super) fn is_stub(text: &str, skill: &str) -> bool {
    stub(text, skill, |map| {
        let mut keys = map.keys();
        let knows = |key: &String| SAYS_LOADED.contains(&key.as_str());
        map.contains_key("selected_docs") && keys.all(knows)
    })
}

/// A result that says that this skill is loaded, and not what it says.
pub(super) fn claims_loaded(text: &str, skill: &str) -> bool {
    stub(text, skill, |map| {
        let message = map.get("message").and_then(Value::as_str);
        !map.contains_key("content") && message.and_then(said).as_deref() == Some(skill)
    })
}

fn stub(text: &str, skill: &str, is_one: impl Fn(&Map<String, Value>) -> bool + Copy) -> bool {
    let text = text.trim();
    match serde_json::from_str::<Value>(text) {
        Ok(Value::String(inner)) => stub(&inner, skill, is_one),
        Ok(Value::Object(map)) => match map.get("result").and_then(Value::as_str) {
            Some(inner) if map.len() == 1 => stub(inner, skill, is_one),
            _ => named(&map).as_deref() == Some(skill) && is_one(&map),
        },
        _ => said(text).as_deref() == Some(skill),
    }
}

/// What stands in the tags of skills that a text has, also where it is JSON: their attributes.
pub(super) fn tags(text: &str) -> Vec<String> {
    let mut tags = Vec::new();
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => push_tags_of_json(&value, &mut tags),
        Err(_) => push_tags(text, &mut tags),
    }
    tags
}

fn push_tags_of_json(value: &Value, tags: &mut Vec<String>) {
    match value {
        Value::String(text) => push_tags(text, tags),
        Value::Array(items) => items.iter().for_each(|item| push_tags_of_json(item, tags)),
        Value::Object(map) => map.values().for_each(|item| push_tags_of_json(item, tags)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn push_tags(text: &str, tags: &mut Vec<String>) {
    let found = text.split("<skill ").skip(1);
    tags.extend(found.filter_map(|rest| Some(rest.split_once('>')?.0.to_owned())));
}

/// The skill that a loader's result is about. The result knows its name; a call may have another one for it.
fn about(result: &ToolResult, text: &str, call: Option<&ToolCall>) -> Option<String> {
    if result.is_error || is_failure(text) {
        return None;
    }
    let Some(call) = call else {
        return told(text, false);
    };
    if !is_loader(call) {
        return None;
    }
    let tagged = || {
        let tags = tags(text);
        let id = tags.first()?.strip_prefix("id=\"")?.split('"').next()?;
        (!id.contains('&')).then(|| id.to_owned())
    };
    // Some say more than a name on that line.
    let is_name = |name: &String| !name.contains([' ', ',']);
    tagged()
        .or_else(|| told(text, true).filter(is_name))
        .or_else(|| named(&call.object()))
}

fn is_loader(call: &ToolCall) -> bool {
    let loads = || {
        let arguments = call.object();
        let method = arguments.get("method").or(arguments.get("action"));
        let method = method.and_then(Value::as_str).unwrap_or_default();
        method.trim().eq_ignore_ascii_case("load")
    };
    LOADERS.contains(&call.name.as_str()) || (call.name == SKILLS_TOOL && loads())
}

/// As our tools answer where they have no result; most providers have no mark for that.
fn is_failure(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(text.trim()) else {
        return false;
    };
    map.contains_key("error") && map.get("status").is_some_and(|status| status == "failed")
}

fn named(fields: &Map<String, Value>) -> Option<String> {
    let mut names = NAMES.iter().filter_map(|name| fields.get(*name)?.as_str());
    let name = names.next()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// The name in `loaded: X`, `skill 'X' loaded` or JSON of a loader.
fn told(text: &str, of_loader: bool) -> Option<String> {
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(Value::String(inner)) => said(&inner),
        Ok(Value::Object(map)) => {
            let inner = map.get("result").and_then(Value::as_str);
            // Other tools name skills, too.
            let is_loads = of_loader
                || ["selected_docs", "include_all_docs"]
                    .iter()
                    .any(|key| map.contains_key(*key));
            inner
                .and_then(|inner| told(inner, of_loader))
                .or_else(|| is_loads.then(|| named(&map)).flatten())
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
            r#"{"skill": "csv", "message": "loaded: csv", "digest": "sha256:1", "selected_docs": [], "include_all_docs": false,
                "selected_tools": []}"#,
            r#"{"skill": "csv", "mode": "add", "selected_docs": ["a.md"], "include_all_docs": false}"#,
        ] {
            let skill = if stub.contains("it's") { "it's" } else { "csv" };
            assert!(is_stub(stub, skill), "{stub}");
        }
        for text in [
            "loaded: csv\nand more",
            "loaded: csv, and more",
            "{\"skill\": \"csv\", \"mode\": \"add\"}",
            r#"{"skill": "csv", "message": "loaded: csv", "selected_docs": [], "evicted": ["math"]}"#,
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
        assert_eq!(
            found(&messages),
            [(
                "math".to_owned(),
                At {
                    message: 0,
                    part: 1
                }
            )]
        );
    }

    fn found(messages: &[Message]) -> Vec<(String, At)> {
        let loads = loads(messages).into_iter();
        loads.map(|load| (load.skill, load.at)).collect()
    }

    /// Calls and results in turn, over each provider's format.
    fn talk(said: &[(&str, &str, Value, &str)]) -> Vec<Vec<Message>> {
        let mut messages = Vec::new();
        for (id, tool, arguments, result) in said {
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
                "function": {"name": tool, "arguments": arguments.to_string()}}]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        let messages = Wire::OpenAiChat.read(&json!({"messages": messages}));
        let messages = messages.expect("a request");
        let over = |wire: Wire| {
            let mut body = Map::new();
            wire.write(&messages, &mut body);
            wire.read(&Value::Object(body)).expect("a request")
        };
        Wire::ALL.map(over).into()
    }

    fn skills(said: &[(&str, &str, Value, &str)]) -> Vec<Vec<String>> {
        let talks = talk(said).into_iter();
        let skills = |messages: Vec<Message>| {
            loads(&messages)
                .into_iter()
                .map(|load| load.skill)
                .collect()
        };
        talks.map(skills).collect()
    }

    #[test]
    fn a_result_is_of_the_skill_that_was_loaded_whatever_the_call_named() {
        let loaded = r#"{"skill": "csv", "message": "loaded: csv", "selected_docs": []}"#;
        for names in skills(&[
            ("1", "skill_load", json!({"skill": "csv@^1.2"}), loaded),
            (
                "2",
                "load_skill_md",
                json!({"skill_id": "tools/csv"}),
                r#"{"outcome": "LOADED", "skill_id": "csv"}"#,
            ),
            (
                "3",
                "skills_tool",
                json!({"action": "load", "skill_name": "**csv**"}),
                "Skill: csv\n<skill id=\"csv\" digest=\"sha256:1\">\nDo it.\n</skill>",
            ),
            ("4", "skills_tool", json!({"method": "list"}), "Skill: csv"),
        ]) {
            assert_eq!(names, ["csv", "csv", "csv"]);
        }
    }

    #[test]
    fn a_call_that_failed_stands_for_no_skill_with_any_provider() {
        let failed =
            r#"{"error": "FILE_NOT_FOUND", "message": "file not found: x", "status": "failed"}"#;
        let said = [
            ("1", "skill_load", json!({"skill": "csv"}), "loaded: csv"),
            (
                "2",
                "skill_select_docs",
                json!({"skill": "csv", "docs": ["x"]}),
                failed,
            ),
        ];
        for messages in talk(&said) {
            let found = found(&messages);
            assert_eq!(found.len(), 1, "{found:?}");
            let result = messages
                .get(found[0].1.message)
                .map(|message| &message.parts);
            let result = result.and_then(|parts| parts.get(found[0].1.part));
            assert!(matches!(result, Some(Part::Result(result)) if result.id == "1"));
        }
    }

    #[test]
    fn ids_that_begin_anew_each_turn_mix_nothing_up() {
        for names in skills(&[
            ("call_0", "skill_load", json!({"skill": "csv"}), "done"),
            (
                "call_0",
                "skill_run",
                json!({"skill": "math"}),
                r#"{"skill": "math", "stdout": ""}"#,
            ),
            ("call_0", "skill_load", json!({"skill": "text"}), "done"),
        ]) {
            assert_eq!(names, ["csv", "text"]);
        }
    }
}
