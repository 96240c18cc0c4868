//! Requests as their providers document them: each is read and written back unchanged, and each can be written for
//! another provider.

use serde_json::{Map, Value, json};

use super::message::{FileSource, Message, Part, Role, Wire};

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

fn body(wire: Wire) -> Value {
    match wire {
        Wire::OpenAiChat => chat(),
        Wire::OpenAiResponses => responses(),
        Wire::Anthropic => anthropic(),
    }
}

fn written(wire: Wire, messages: &[Message], body: Value) -> Value {
    let Value::Object(mut map) = body else {
        panic!("a body is an object");
    };
    wire.write(messages, &mut map);
    Value::Object(map)
}

fn comes_back(wire: Wire, body: &Value) -> bool {
    // What is refused is not changed either.
    let Ok(messages) = wire.read(body) else {
        return true;
    };
    let again = written(wire, &messages, body.clone());
    let same = again == *body;
    if !same {
        println!("{wire:?}\n{body}\n{again}");
    }
    same
}

#[test]
fn every_request_comes_back_as_it_was() {
    for wire in Wire::ALL {
        assert!(comes_back(wire, &body(wire)));
    }
    for plain in [
        json!({"input": "hi"}),
        json!({"instructions": "x", "input": []}),
        json!({"instructions": null, "prompt": {"id": "pmpt_1"}}),
        json!({"input": []}),
    ] {
        assert!(comes_back(Wire::OpenAiResponses, &plain));
    }
    for plain in [
        json!({"system": "x", "messages": [{"role": "user", "content": "hi"}]}),
        json!({"system": null, "messages": []}),
        json!({"system": [], "messages": []}),
        json!({}),
    ] {
        assert!(comes_back(Wire::Anthropic, &plain));
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
fn a_request_with_anything_odd_in_it_comes_back_as_it_was() {
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
    for wire in Wire::ALL {
        let whole = body(wire);
        let mut found = Vec::new();
        places(&whole, "", &mut found);
        for place in found.iter().filter(|place| !place.is_empty()) {
            for odd in &odd {
                let mut body = whole.clone();
                *body.pointer_mut(place).expect("a place") = odd.clone();
                assert!(comes_back(wire, &body), "{place} {odd}");
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
            assert!(comes_back(wire, &body), "without {place}");
        }
    }
}

#[test]
fn what_the_system_says_in_a_conversation_with_anthropic_stays_where_it_is() {
    let body = json!({
        "system": "A",
        "messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "B"}],
    });
    let mut messages = Wire::Anthropic.read(&body).expect("a request");
    messages.insert(1, Message::text(Role::System, "of another"));
    let body = written(Wire::Anthropic, &messages, body);
    assert_eq!(
        body["system"],
        json!([{"type": "text", "text": "A"}, {"type": "text", "text": "of another"}])
    );
    assert_eq!(
        body["messages"][1],
        json!({"role": "system", "content": "B"})
    );
}

/// Who speaks, what is said, which calls with which arguments, which results.
fn gist(messages: &[Message]) -> Vec<String> {
    let mut gist = Vec::new();
    for part in messages.iter().flat_map(|message| &message.parts) {
        match part {
            Part::Call(call) => gist.push(format!("{} {} {:?}", call.id, call.name, call.object())),
            Part::Result(result) => gist.push(format!("{} {}", result.id, result.to_text())),
            Part::Text(text) => gist.push(text.text.clone()),
            Part::File(_) | Part::Other(..) => {}
        }
    }
    gist
}

/// What the providers refuse: nothing said, blank texts, results without calls, calls whose results do not follow.
fn is_accepted(wire: Wire, body: &Value) {
    let items = match wire {
        Wire::OpenAiResponses => &body["input"],
        Wire::OpenAiChat | Wire::Anthropic => &body["messages"],
    };
    let items = items.as_array().expect("items");
    let ids = |value: &Value, at: &str| -> Vec<String> {
        let ids = value.as_array().into_iter().flatten();
        let ids = ids.filter_map(|item| item[at].as_str());
        ids.map(ToOwned::to_owned).collect()
    };
    let mut open: Vec<String> = Vec::new();
    for item in items {
        assert_ne!(item["content"], json!([]), "{wire:?} {item}");
        match wire {
            Wire::OpenAiChat => {
                if item["role"] == "tool" {
                    let id = item["tool_call_id"].as_str().expect("an id");
                    let at = open.iter().position(|open| open == id);
                    open.remove(at.expect("the call of a result"));
                } else {
                    assert_eq!(open, Vec::<String>::new(), "{wire:?} {item}");
                    open = ids(&item["tool_calls"], "id");
                }
            }
            Wire::Anthropic => {
                for block in item["content"].as_array().into_iter().flatten() {
                    let is_blank = block["text"]
                        .as_str()
                        .is_some_and(|text| text.trim().is_empty());
                    assert!(!is_blank && *block != Value::Null, "{item}");
                }
                let mut results = ids(&item["content"], "tool_use_id");
                results.sort();
                open.sort();
                assert_eq!(results, open, "{wire:?} {item}");
                open = ids(&item["content"], "id");
            }
            Wire::OpenAiResponses => {
                let id = item["call_id"].as_str().unwrap_or_default().to_owned();
                if item["type"] == "function_call" {
                    open.push(id);
                } else if item["type"] == "function_call_output" {
                    let at = open.iter().position(|open| *open == id);
                    open.remove(at.expect("the call of a result"));
                }
            }
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn a_request_of_one_provider_can_be_written_for_another() {
    for from in Wire::ALL {
        let messages = from.read(&body(from)).expect("a request");
        for to in Wire::ALL {
            let body = written(to, &messages, json!({}));
            let again = to.read(&body).expect("what was written is a request");
            if from == Wire::OpenAiChat && to == Wire::Anthropic {
                // All that the system says comes first there.
                assert_eq!(again.first().map(|message| message.parts.len()), Some(2));
            }
            let files = |message: &Message| {
                let files = message
                    .parts
                    .iter()
                    .filter(|part| matches!(part, Part::File(_)));
                files.count()
            };
            assert!(
                again.iter().map(files).sum::<usize>() >= 3,
                "{from:?} {to:?}"
            );
            let (own, other) = (gist(&messages), gist(&again));
            for line in own.iter().filter(|line| !line.is_empty()) {
                let is_kept = other.contains(line) || line.contains("nobody else knows");
                assert!(is_kept, "{from:?} {to:?} {line}: {other:#?}");
            }
            if from != to {
                is_accepted(to, &body);
            }
        }
    }
}

#[test]
fn results_of_one_turn_are_one_message_for_anthropic_and_one_each_for_chat() {
    let messages = Wire::OpenAiChat.read(&chat()).expect("a request");
    let body = written(Wire::Anthropic, &messages, json!({}));
    let roles = |body: &Value| -> Vec<String> {
        let messages = body["messages"].as_array().expect("messages");
        messages
            .iter()
            .map(|message| message["role"].as_str().expect("a role").to_owned())
            .collect()
    };
    assert_eq!(
        roles(&body)[..4],
        ["user", "assistant", "user", "assistant"]
    );
    assert_eq!(
        body["messages"][2]["content"].as_array().map(Vec::len),
        Some(2)
    );
    let messages = Wire::Anthropic.read(&anthropic()).expect("a request");
    let body = written(Wire::OpenAiChat, &messages, json!({}));
    assert_eq!(
        roles(&body),
        [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "tool",
            "user",
            "system",
            "assistant"
        ]
    );
}

#[test]
fn what_is_no_request_is_refused_with_its_place() {
    for (wire, body, place) in [
        (Wire::OpenAiChat, json!({"messages": "x"}), "messages"),
        (
            Wire::OpenAiChat,
            json!({"messages": [{"role": "user", "content": 1}]}),
            "messages[0]",
        ),
        (Wire::OpenAiResponses, json!({"input": {}}), "input"),
        (Wire::OpenAiResponses, json!({"input": [3]}), "input[0]"),
        (
            Wire::Anthropic,
            json!({"messages": [{"role": "tool", "content": ""}]}),
            "messages[0]",
        ),
    ] {
        assert_eq!(wire.read(&body).expect_err("not a request").place, place);
    }
}

#[test]
fn bytes_of_files_are_told_from_references() {
    let messages = Wire::OpenAiChat.read(&chat()).expect("a request");
    let files: Vec<&FileSource> = messages
        .iter()
        .flat_map(|message| &message.parts)
        .filter_map(|part| match part {
            Part::File(file) => Some(&file.source),
            Part::Text(_) | Part::Call(_) | Part::Result(_) | Part::Other(..) => None,
        })
        .collect();
    assert!(matches!(
        files.as_slice(),
        [
            FileSource::Base64(_),
            FileSource::Url(_),
            FileSource::Base64(_),
            FileSource::Id(_),
            FileSource::Base64(_)
        ]
    ));
    let mut body = Map::new();
    Wire::Anthropic.write(&[Message::text(Role::Developer, "x")], &mut body);
    assert_eq!(body.get("system"), Some(&json!("x")));
}
