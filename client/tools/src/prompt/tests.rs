//! Requests as their providers document them: an injection changes nothing but what it inserts.

use serde_json::{Value, json};

use super::{PromptMaterial, PromptOptions, Provider, UploadContent, find_uploads, inject};
use crate::state::{LoadScope, SessionState, skill_loads};
use crate::tool_definition::{LoadMode, ToolCall};

fn chat() -> Value {
    json!({
        "model": "gpt-x",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]},
            {"role": "user", "name": "ann", "content": [
                {"type": "text", "text": "What is in these?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0=", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
                {"type": "shiny", "thing": 1},
            ]},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "skill_load", "arguments": "{\"skill\": \"csv\"}"}},
                {"id": "call_2", "type": "custom", "custom": {"name": "grep", "input": "x"}},
            ]},
            {"role": "tool", "tool_call_id": "call_1", "content": "loaded: csv"},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "none"}]},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_3", "type": "function", "function": {"name": "skill_run", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "call_3", "content": ""},
            {"role": "assistant", "tool_calls": [{"id": "call_4", "type": "shiny", "shiny": {}}]},
            {"role": "tool", "tool_call_id": "call_4", "content": "of a call that nobody else knows"},
            {"role": "assistant", "content": "Done.", "annotations": [], "tool_calls": null},
            {"role": "function", "name": "old", "content": "x"},
        ],
        "tools": [],
    })
}

fn responses() -> Value {
    json!({
        "model": "gpt-x",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [
                {"type": "input_text", "text": "What is in these?"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0=", "detail": "auto"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
                {"type": "input_file", "file_url": "https://example.com/a.pdf"},
                {"type": "input_file", "file_id": "file-1"},
            ]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "skill_load",
                "arguments": "{\"skill\": \"csv\"}", "status": "completed"},
            {"type": "function_call", "call_id": "call_2", "name": "skill_list", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "loaded: csv"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "none"}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Done.", "annotations": []}]},
            {"type": "message", "role": "user", "content": "Thanks."},
        ],
        "store": false,
    })
}

fn anthropic() -> Value {
    json!({
        "model": "claude-x",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "What is in these?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}},
                {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
                {"type": "document", "title": "a.pdf", "citations": {"enabled": true},
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}},
                {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "…", "signature": "x"},
                {"type": "tool_use", "id": "call_1", "name": "skill_load", "input": {"skill": "csv"}},
                {"type": "tool_use", "id": "call_2", "name": "skill_load", "input": {}, "cache_control": null},
                {"type": "tool_use", "id": "call_3", "name": "skill_list", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "loaded: csv"},
                {"type": "tool_result", "tool_use_id": "call_2", "is_error": true,
                    "content": [{"type": "text", "text": "skill is required"}]},
                {"type": "tool_result", "tool_use_id": "call_3", "is_error": false},
                {"type": "text", "text": "Go on."},
            ]},
            {"role": "system", "content": "It is late."},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "…", "signature": "x"}]},
            {"role": "assistant", "content": "Done."},
        ],
    })
}

fn body(provider: Provider) -> Value {
    match provider {
        Provider::OpenAiChat => chat(),
        Provider::OpenAiResponses => responses(),
        Provider::Anthropic => anthropic(),
    }
}

/// Converts a chat body of texts, calls and results to the format of another provider.
pub(super) fn over(provider: Provider, chat: &Value) -> Value {
    let messages = chat["messages"].as_array().expect("messages");
    let system = messages.first().filter(|first| first["role"] == "system");
    let rest = messages.iter().skip(usize::from(system.is_some()));
    let mut items: Vec<Value> = Vec::new();
    for message in rest {
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        match (provider, message["role"].as_str().expect("a role")) {
            (Provider::OpenAiChat, _) => return chat.clone(),
            (Provider::OpenAiResponses, "assistant") => items.extend(calls.map(|call| {
                let function = &call["function"];
                json!({"type": "function_call", "call_id": call["id"], "name": function["name"],
                    "arguments": function["arguments"]})
            })),
            (Provider::OpenAiResponses, "tool") => items
                .push(json!({"type": "function_call_output",
                "call_id": message["tool_call_id"], "output": message["content"]})),
            (Provider::Anthropic, "assistant") => {
                let blocks = calls.map(|call| {
                    let arguments = call["function"]["arguments"].as_str().expect("text");
                    let input: Value = serde_json::from_str(arguments).expect("JSON");
                    json!({"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                        "input": input})
                });
                items.push(json!({"role": "assistant", "content": blocks.collect::<Vec<_>>()}));
            }
            (Provider::Anthropic, "tool") => items.push(json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": message["tool_call_id"],
                    "content": message["content"]}]})),
            (_, _) => items.push(message.clone()),
        }
    }
    let (list, of_system) = match provider {
        Provider::OpenAiChat => return chat.clone(),
        Provider::OpenAiResponses => ("input", "instructions"),
        Provider::Anthropic => ("messages", "system"),
    };
    let mut body = json!({list: items});
    if let Some(system) = system {
        body[of_system] = system["content"].clone();
    }
    body
}

const SCOPE: LoadScope<'static> = LoadScope {
    agent: "a",
    mode: LoadMode::Turn,
};

/// State that has the skill loaded which the requests loaded.
fn csv_is_loaded() -> SessionState {
    let state = SessionState::new();
    state.with(&skill_loads::load(&state, SCOPE, "csv", None, None))
}

/// Returns `true` if an injection of nothing leaves a body as it is. A body that is refused is not changed either.
fn is_untouched(provider: Provider, body: &Value) -> bool {
    let options = PromptOptions::new(SCOPE);
    let mut after = body.clone();
    let state = csv_is_loaded();
    drop(inject(
        provider,
        &mut after,
        &PromptMaterial::default(),
        &state,
        &options,
    ));
    if after != *body {
        println!("{provider:?}\n{body}\n{after}");
    }
    after == *body
}

#[test]
fn an_injection_of_nothing_changes_nothing() {
    for provider in Provider::ALL {
        assert!(is_untouched(provider, &body(provider)));
    }
    for plain in [
        json!({"input": "hi"}),
        json!({"instructions": "x", "input": []}),
        json!({"instructions": null, "prompt": {"id": "pmpt_1"}}),
        json!({"input": []}),
    ] {
        assert!(is_untouched(Provider::OpenAiResponses, &plain));
    }
    for plain in [
        json!({"system": "x", "messages": [{"role": "user", "content": "hi"}]}),
        json!({"system": null, "messages": []}),
        json!({"system": [], "messages": []}),
        json!({}),
    ] {
        assert!(is_untouched(Provider::Anthropic, &plain));
    }
}

/// Places in a JSON value, as pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                places(inner, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                places(inner, &format!("{at}/{index}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn an_injection_of_nothing_leaves_odd_requests_alone() {
    let odd = [
        json!(null),
        json!([]),
        json!({}),
        json!(""),
        json!("odd"),
        json!(7),
        json!("data:;base64,QQ=="),
        json!([{"type": "odd", "id": "1"}]),
    ];
    for provider in Provider::ALL {
        let whole = body(provider);
        let mut found = Vec::new();
        places(&whole, "", &mut found);
        for place in found.iter().filter(|place| !place.is_empty()) {
            for odd in &odd {
                let mut body = whole.clone();
                *body.pointer_mut(place).expect("a place") = odd.clone();
                assert!(is_untouched(provider, &body), "{place} {odd}");
            }
            let (outer, name) = place.rsplit_once('/').expect("a place");
            let mut body = whole.clone();
            match body.pointer_mut(outer).expect("a place") {
                Value::Object(map) => drop(map.shift_remove(name)),
                Value::Array(items) => drop(items.remove(name.parse().expect("an index"))),
                other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                    panic!("{other} has no place in it")
                }
            }
            assert!(is_untouched(provider, &body), "without {place}");
        }
    }
}

/// Material of one skill that is listed and not loaded.
fn one_skill() -> PromptMaterial {
    let mut material = PromptMaterial::default();
    material.overview.push(super::SkillSummary {
        name: "csv".into(),
        description: "For csv.".into(),
    });
    material
}

fn injected(provider: Provider, mut body: Value) -> Value {
    let options = PromptOptions::new(SCOPE);
    let state = csv_is_loaded();
    inject(provider, &mut body, &one_skill(), &state, &options).expect("a request");
    body
}

#[test]
fn an_injection_touches_only_the_system_message() {
    let overview = "Available skills:\n- csv: For csv.\n";
    let text = |text: &str| format!("{text}\n\n{overview}");
    let mut expected = chat();
    expected["messages"][0]["content"] = text("Be brief.").into();
    assert_eq!(injected(Provider::OpenAiChat, chat()), expected);
    let mut expected = responses();
    expected["instructions"] = text("Be brief.").into();
    assert_eq!(injected(Provider::OpenAiResponses, responses()), expected);
    let mut expected = anthropic();
    let system = expected["system"].as_array_mut().expect("a list");
    system.push(json!({"type": "text", "text": overview}));
    assert_eq!(injected(Provider::Anthropic, anthropic()), expected);
}

#[test]
fn a_body_without_a_system_message_gets_one() {
    let overview = "Available skills:\n- csv: For csv.\n";
    let hi = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(
        injected(Provider::OpenAiResponses, json!({"input": "hi"})),
        json!({"input": "hi", "instructions": overview})
    );
    assert_eq!(
        injected(Provider::Anthropic, json!({"messages": hi})),
        json!({"messages": hi, "system": overview})
    );
    let chat = injected(Provider::OpenAiChat, json!({"messages": hi}));
    assert_eq!(
        chat["messages"][0],
        json!({"role": "system", "content": overview})
    );
    assert_eq!(chat["messages"][1], hi[0]);
}

#[test]
fn a_malformed_request_is_refused_with_the_faulty_place() {
    for (provider, body, place) in [
        (Provider::OpenAiChat, json!({"messages": "x"}), "messages"),
        (
            Provider::OpenAiChat,
            json!({"messages": [{"role": "user", "content": 1}]}),
            "messages[0]",
        ),
        (Provider::OpenAiResponses, json!({"input": {}}), "input"),
        (Provider::OpenAiResponses, json!({"input": [3]}), "input[0]"),
        (
            Provider::Anthropic,
            json!({"messages": [{"role": "tool", "content": ""}]}),
            "messages[0]",
        ),
    ] {
        let error = provider.check(&body).expect_err("not a request");
        assert_eq!(error.place, place);
    }
}

#[test]
fn uploads_are_found_in_every_format() {
    use UploadContent::{Bytes, ProviderId, Reference};
    let kinds = |provider| -> Vec<&'static str> {
        let uploads = find_uploads(provider, &body(provider)).expect("a request");
        let kind = |content: &UploadContent| match content {
            Bytes(_) => "bytes",
            Reference(_) => "url",
            ProviderId(_) => "id",
        };
        uploads
            .files
            .iter()
            .map(|file| kind(&file.content))
            .collect()
    };
    let [chat, responses, anthropic] = Provider::ALL;
    assert_eq!(kinds(chat), ["bytes", "url", "bytes", "id", "bytes"]);
    assert_eq!(kinds(responses), ["bytes", "bytes", "url", "id"]);
    assert_eq!(kinds(anthropic), ["bytes", "url", "bytes", "bytes", "id"]);
}

#[test]
fn calls_and_results_are_written_in_each_providers_format() {
    let call = ToolCall {
        id: "1".into(),
        name: "skill_load".into(),
        arguments: json!({"skill": "csv"}),
    };
    for provider in Provider::ALL {
        let mut messages = provider.call_messages(std::slice::from_ref(&call));
        let reply = match provider {
            Provider::OpenAiResponses => json!({"output": messages}),
            Provider::OpenAiChat | Provider::Anthropic => messages[0].clone(),
        };
        let calls = provider.reply_calls(&reply).expect("a reply");
        let read: Vec<(&str, &str)> = calls
            .iter()
            .map(|call| (call.id.as_str(), call.name.as_str()))
            .collect();
        assert_eq!(read, [("1", "skill_load")], "{provider:?}");
        messages.extend(provider.result_messages(&[("1".into(), "loaded: csv".into(), false)]));
        let body = json!({provider.list_field(): messages});
        let views = provider.messages(&body).expect("a request");
        let loads = super::skill_load_history::loads(&views, &body);
        assert_eq!(loads.len(), 1, "{provider:?} {body}");
    }
}
