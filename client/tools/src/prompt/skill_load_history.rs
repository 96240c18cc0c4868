//! Finds loads of skills in earlier messages. Of each result of a tool it finds the skill that the result is about, the
//! agent that loaded it, and the text that the result holds.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::message_content::{ContentPointer, for_each_text};
use super::provider::{MessageView, Provider, ToolCallView, ToolResultView};

/// Tools whose results may hold a skill's text; Agent Zero's one tool is among them when it loads.
const LOADERS: [&str; 3] = ["skill_load", "skill_select_docs", "load_skill_md"];
const SKILLS_TOOL: &str = "skills_tool";
/// Fields that hold a skill's name.
const NAME_FIELDS: [&str; 4] = ["skill", "skill_name", "skill_id", "name"];
/// Fields of a loader's result that says only what is loaded. The skill's text may replace such a result without loss.
const STUB_FIELDS: [&str; 8] = [
    "skill",
    "message",
    "mode",
    "digest",
    "selected_docs",
    "include_all_docs",
    "selected_tools",
    "include_all_tools",
];

/// Result of a tool that loads skills.
#[derive(Debug)]
pub(super) struct SkillLoadResult {
    /// Location of the result's content.
    pub(super) content: ContentPointer,
    pub(super) skill: String,
    pub(super) text: String,
    /// Agent that made the call; empty where the history does not say.
    author: String,
}

/// Returns the agent that loaded each skill last, by skill; skills whose history names no agent are left out, and a
/// body that is no request of this provider names none.
#[must_use]
pub fn owners(provider: Provider, body: &Value) -> HashMap<String, String> {
    let views = provider.messages(body).unwrap_or_default();
    let loads = loads(&views, body).into_iter();
    let mut last: HashMap<String, String> = loads.map(|load| (load.skill, load.author)).collect();
    last.retain(|_, author| !author.trim().is_empty());
    last
}

/// Returns the results that are about skills, in their order.
pub(super) fn loads(views: &[MessageView<'_>], body: &Value) -> Vec<SkillLoadResult> {
    // Ids may begin anew each turn: a result belongs to the nearest call before it.
    let mut calls: HashMap<&str, (&str, ToolCallView<'_>)> = HashMap::new();
    let mut loads = Vec::new();
    for view in views {
        for call in &view.calls {
            calls.insert(call.id, (view.author, *call));
        }
        for result in &view.results {
            let call = calls.get(result.id);
            let text = result.content.text(body);
            if let Some(skill) = skill_of_result(result, &text, call.map(|(_, call)| call)) {
                loads.push(SkillLoadResult {
                    content: result.content.clone(),
                    skill,
                    text,
                    author: call.map_or("", |(author, _)| author).to_owned(),
                });
            }
        }
    }
    loads
}

/// Returns `true` for a result that only reports this skill as loaded, or its selections.
pub(super) fn is_stub(text: &str, skill: &str) -> bool {
    matches_stub(text, skill, |map| {
        let mut keys = map.keys();
        let knows = |key: &String| STUB_FIELDS.contains(&key.as_str());
        map.contains_key("selected_docs") && keys.all(knows)
    })
}

/// Returns `true` for a result that reports this skill as loaded without its text.
pub(super) fn claims_loaded(text: &str, skill: &str) -> bool {
    matches_stub(text, skill, |map| {
        let message = map.get("message").and_then(Value::as_str);
        !map.contains_key("content") && message.and_then(name_in_line).as_deref() == Some(skill)
    })
}

/// Returns `true` if a text is a line that reports the skill as loaded, or JSON about the skill that `is_one` accepts.
fn matches_stub(
    text: &str,
    skill: &str,
    is_one: impl Fn(&Map<String, Value>) -> bool + Copy,
) -> bool {
    let text = text.trim();
    match serde_json::from_str::<Value>(text) {
        Ok(Value::String(inner)) => matches_stub(&inner, skill, is_one),
        Ok(Value::Object(map)) => match map.get("result").and_then(Value::as_str) {
            Some(inner) if map.len() == 1 => matches_stub(inner, skill, is_one),
            _ => name_in_fields(&map).as_deref() == Some(skill) && is_one(&map),
        },
        _ => name_in_line(text).as_deref() == Some(skill),
    }
}

/// Returns the attributes of the skill tags in a text, which may be JSON.
pub(super) fn tags(text: &str) -> Vec<String> {
    let mut tags = Vec::new();
    let mut push_tags = |text: &mut String| {
        let found = text.split("<skill ").skip(1);
        tags.extend(found.filter_map(|rest| Some(rest.split_once('>')?.0.to_owned())));
    };
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(mut value) => for_each_text(&mut value, &mut push_tags),
        Err(_) => push_tags(&mut text.to_owned()),
    }
    tags
}

/// Returns the skill that a loader's result is about. The result knows its name; a call may use another one for it.
fn skill_of_result(
    result: &ToolResultView<'_>,
    text: &str,
    call: Option<&ToolCallView<'_>>,
) -> Option<String> {
    if result.is_error || is_failure(text) {
        return None;
    }
    let Some(call) = call else {
        return name_in_result(text, false);
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
        .or_else(|| name_in_result(text, true).filter(is_name))
        .or_else(|| name_in_fields(&call.object()))
}

fn is_loader(call: &ToolCallView<'_>) -> bool {
    let loads = || {
        let arguments = call.object();
        let method = arguments
            .get("method")
            .or(arguments.get("action"))
            .and_then(Value::as_str)
            .unwrap_or_default();
        method.trim().eq_ignore_ascii_case("load")
    };
    LOADERS.contains(&call.name) || (call.name == SKILLS_TOOL && loads())
}

/// Returns `true` for the answer of a failed call of these tools; most providers do not mark errors.
fn is_failure(text: &str) -> bool {
    let Ok(Value::Object(map)) = serde_json::from_str::<Value>(text.trim()) else {
        return false;
    };
    map.contains_key("error") && map.get("status").is_some_and(|status| status == "failed")
}

/// Returns the first field that names a skill.
fn name_in_fields(fields: &Map<String, Value>) -> Option<String> {
    let mut names = NAME_FIELDS
        .iter()
        .filter_map(|name| fields.get(*name)?.as_str());
    let name = names.next()?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

/// Returns the skill that the text of a result names: in `loaded: X`, `skill 'X' loaded` or JSON of a loader.
fn name_in_result(text: &str, of_loader: bool) -> Option<String> {
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(Value::String(inner)) => name_in_line(&inner),
        Ok(Value::Object(map)) => {
            let inner = map.get("result").and_then(Value::as_str);
            // Other tools name skills, too.
            let is_loads = of_loader
                || ["selected_docs", "include_all_docs"]
                    .iter()
                    .any(|key| map.contains_key(*key));
            inner
                .and_then(|inner| name_in_result(inner, of_loader))
                .or_else(|| is_loads.then(|| name_in_fields(&map)).flatten())
        }
        _ => name_in_line(text.lines().next().unwrap_or_default()),
    }
}

/// Returns the name in a line `loaded: X` or `skill 'X' loaded`.
fn name_in_line(line: &str) -> Option<String> {
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
    use crate::prompt::tests::over;

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
            r#"{"skill": "csv", "message": "loaded: csv", "selected_docs": [], "warnings": ["packages"]}"#,
            "skill csv",
            "",
        ] {
            assert!(!is_stub(text, "csv"), "{text}");
        }
    }

    #[test]
    fn the_owner_is_the_agent_that_called_last() {
        let mut body = json!({"messages": [
            {"role": "assistant", "name": "first", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "skill_load", "arguments": "{\"skill\": \"csv\"}"}}]},
            {"role": "tool", "name": "skill_load", "tool_call_id": "1", "content": "loaded: csv"},
            {"role": "assistant", "name": "second", "content": null, "tool_calls": [
                {"id": "2", "type": "function", "function": {"name": "skill_select_docs", "arguments": "{\"skill_name\": \"csv\"}"}},
                {"id": "3", "type": "function", "function": {"name": "skill_run", "arguments": "{\"skill\": \"math\"}"}}]},
            {"role": "tool", "tool_call_id": "2", "content": "{}"},
            {"role": "tool", "tool_call_id": "3", "content": "{}"},
        ]});
        let owner = |body: &Value, skill: &str| owners(Provider::OpenAiChat, body).remove(skill);
        assert_eq!(owner(&body, "csv").as_deref(), Some("second"));
        assert_eq!(owner(&body, "math"), None);
        body["messages"]
            .as_array_mut()
            .expect("messages")
            .truncate(2);
        assert_eq!(owner(&body, "csv").as_deref(), Some("first"));
        assert_eq!(owner(&json!({"messages": 1}), "csv"), None);
    }

    #[test]
    fn an_error_stands_for_no_skill() {
        let body = json!({"messages": [
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "is_error": true, "content": "loaded: csv"},
                {"type": "tool_result", "tool_use_id": "2", "content": "loaded: math"}]},
        ]});
        let found = found(Provider::Anthropic, &body);
        let math = ContentPointer::new("/messages/0/content/1", "content");
        assert_eq!(found, [("math".to_owned(), math)]);
    }

    fn found(provider: Provider, body: &Value) -> Vec<(String, ContentPointer)> {
        let views = provider.messages(body).expect("a request");
        let loads = loads(&views, body).into_iter();
        loads.map(|load| (load.skill, load.content)).collect()
    }

    /// Calls and results in turn, in each provider's format.
    fn make_histories(said: &[(&str, &str, Value, &str)]) -> [(Provider, Value); 3] {
        let mut messages = Vec::new();
        for (id, tool, arguments, result) in said {
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
                "function": {"name": tool, "arguments": arguments.to_string()}}]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        let chat = json!({"messages": messages});
        Provider::ALL.map(|provider| (provider, over(provider, &chat)))
    }

    fn skills(said: &[(&str, &str, Value, &str)]) -> [Vec<String>; 3] {
        make_histories(said).map(|(provider, body)| {
            let found = found(provider, &body).into_iter();
            found.map(|(skill, _)| skill).collect()
        })
    }

    #[test]
    fn a_load_result_names_its_skill_whatever_the_call_requested() {
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
        for (provider, body) in make_histories(&said) {
            let found = found(provider, &body);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].1.text(&body), "loaded: csv");
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
