//! Conversations through the façade: prompts, tools and answers in every provider's format.

use serde_json::{Value, json};
use skilld_testing::Fake;
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::Provider;
use skilld_tools::{SkillSession, Skills, ToolOptions, Toolset};

async fn session(fake: &Fake) -> SkillSession {
    let skill = |name| crate::tools_trpc::skill(name, &[]);
    let mut demo = skill("demo");
    demo.body = "# How to demo\n".into();
    fake.state.lock().skills = vec![demo, skill("other")];
    let tools = Toolset::new(
        fake.client().await,
        ToolOptions::default(),
        HostTools::new(),
    );
    Skills::new(tools.expect("good options")).session("chat-42")
}

fn list(provider: Provider) -> &'static str {
    match provider {
        Provider::OpenAiChat | Provider::Anthropic => "messages",
        Provider::OpenAiResponses => "input",
    }
}

/// A reply of the model that makes one call.
fn reply(provider: Provider, name: &str, arguments: &Value) -> Value {
    let text = arguments.to_string();
    match provider {
        Provider::OpenAiChat => json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": name, "arguments": text}}]}),
        Provider::OpenAiResponses => json!({"id": "r", "output": [
            {"type": "function_call", "call_id": "c1", "name": name, "arguments": text}]}),
        Provider::Anthropic => json!({"role": "assistant", "content": [
            {"type": "tool_use", "id": "c1", "name": name, "input": arguments}]}),
    }
}

#[tokio::test]
async fn a_loaded_skill_is_in_the_next_request_of_every_provider() {
    for provider in Provider::ALL {
        let fake = Fake::start();
        let skills = session(&fake).await;
        let mut messages = vec![json!({"role": "user", "content": "Demo!"})];
        let mut body = json!({"model": "m", list(provider): messages});
        skills.prepare(provider, &mut body).await.expect("prepares");
        let text = body.to_string();
        assert!(text.contains("- demo: ") && !text.contains("How to demo"));
        assert_eq!(body["tools"].as_array().map(Vec::len), Some(16));
        let prepared = body.clone();
        skills.prepare(provider, &mut body).await.expect("prepares");
        assert_eq!(body, prepared, "{provider:?}");

        let call = reply(provider, "skill_load", &json!({"skill": "demo"}));
        let results = skills.answer(provider, &call).await.expect("answers");
        assert_eq!(results.len(), 1, "{provider:?}");
        assert!(results[0].to_string().contains("loaded: demo"));
        match call.get("output").and_then(Value::as_array) {
            Some(items) => messages.extend(items.clone()),
            None => messages.push(call),
        }
        messages.extend(results);
        let mut body = json!({"model": "m", list(provider): messages});
        skills.prepare(provider, &mut body).await.expect("prepares");
        assert!(body.to_string().contains("How to demo"), "{provider:?}");
    }
}

#[tokio::test]
async fn a_failed_call_is_answered_and_a_tool_of_the_host_is_left_to_it() {
    let fake = Fake::start();
    let skills = session(&fake).await;
    let provider = Provider::OpenAiChat;
    let own = json!({"type": "function", "function": {"name": "weather", "parameters": {}}});
    let mut body = json!({"messages": [], "tools": [own]});
    skills.prepare(provider, &mut body).await.expect("prepares");
    assert_eq!(body["tools"][0], own);
    let weather = reply(provider, "weather", &json!({}));
    let none = skills.answer(provider, &weather).await.expect("answers");
    assert!(none.is_empty());
    let unknown = reply(provider, "no_such_tool", &json!({}));
    let answers = skills.answer(provider, &unknown).await.expect("answers");
    let text = answers[0]["content"].as_str().expect("text");
    assert!(text.contains("UNKNOWN_TOOL"), "{text}");
    let said = json!({"role": "assistant", "content": "Done."});
    assert!(
        skills
            .answer(provider, &said)
            .await
            .expect("answers")
            .is_empty()
    );
    skills.end().await.expect("ends");
}

#[tokio::test]
async fn a_turn_ends_what_was_loaded_for_it_and_a_stored_state_brings_it_back() {
    let fake = Fake::start();
    let skills = session(&fake).await;
    let provider = Provider::OpenAiChat;
    let load = reply(provider, "skill_load", &json!({"skill": "demo"}));
    let results = skills.answer(provider, &load).await.expect("answers");
    let stored = skills.state().await;
    let user = json!({"role": "user", "content": "Next."});
    let mut body = json!({"messages": [load, results[0], user]});
    skills.prepare(provider, &mut body).await.expect("prepares");
    assert!(!body.to_string().contains("How to demo"));
    skills.restore(stored).await;
    let mut body = json!({"messages": [load, results[0]]});
    skills.prepare(provider, &mut body).await.expect("prepares");
    assert!(body.to_string().contains("How to demo"));
}

#[tokio::test]
async fn a_body_of_another_format_is_refused() {
    let fake = Fake::start();
    let skills = session(&fake).await;
    let mut body = json!({"messages": 1});
    let refused = skills.prepare(Provider::Anthropic, &mut body).await;
    assert_eq!(refused.expect_err("refused").code(), "MALFORMED_REQUEST");
    assert_eq!(body, json!({"messages": 1}));
}
