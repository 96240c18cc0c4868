//! Conversations through the façade: prompts, tools and answers in every provider's format.

use serde_json::{Value, json};
use skilld_testing::Fake;
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::Provider;
use skilld_tools::{Family, Profile, SkillSession, Skills, ToolOptions, Toolset};

async fn session(fake: &Fake) -> SkillSession {
    session_with(fake, ToolOptions::default()).await
}

async fn session_with(fake: &Fake, options: ToolOptions) -> SkillSession {
    let skill = |name| crate::tools_trpc::skill(name, &[]);
    let mut demo = skill("demo");
    demo.body = "# How to demo\n".into();
    fake.state.lock().kits = vec![demo.into(), skill("other").into()];
    let tools = Toolset::new(fake.client().await, options, HostTools::new());
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
async fn a_failed_call_is_answered_and_host_tools_are_left_alone() {
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
async fn a_turns_loads_end_with_it_and_return_with_a_stored_state() {
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

/// Makes a call, and returns the conversation's next request with the call and its answer.
async fn request_after(skills: &SkillSession, name: &str, arguments: &Value) -> Value {
    let provider = Provider::OpenAiChat;
    let call = reply(provider, name, arguments);
    let results = skills.answer(provider, &call).await.expect("answers");
    let mut messages = vec![json!({"role": "user", "content": "Demo!"}), call];
    messages.extend(results);
    let mut body = json!({"messages": messages});
    skills.prepare(provider, &mut body).await.expect("prepares");
    body
}

#[tokio::test]
async fn a_loaded_skills_text_is_in_a_request_once_in_every_family() {
    let sherma = json!({"skill_id": "demo"});
    let agent_zero = json!({"method": "load", "skill_name": "demo"});
    let trpc = json!({"skill": "demo"});
    for (family, inline_skills, tool, arguments) in [
        (Family::Trpc, false, "skill_load", &trpc),
        (Family::Trpc, true, "skill_load", &trpc),
        (Family::Sherma, false, "load_skill_md", &sherma),
        (Family::AgentZero, false, "skills_tool", &agent_zero),
    ] {
        let fake = Fake::start();
        let options = ToolOptions {
            family,
            inline_skills,
            ..ToolOptions::default()
        };
        let skills = session_with(&fake, options).await;
        let body = request_after(&skills, tool, arguments).await;
        let text = body.to_string();
        assert_eq!(text.matches("How to demo").count(), 1, "{family:?}: {text}");
        // Without the result, as after a compaction, the request has the text itself.
        let mut body = json!({"messages": [{"role": "assistant", "content": "Done."}]});
        let prepared = skills.prepare(Provider::OpenAiChat, &mut body).await;
        prepared.expect("prepares");
        let text = body.to_string();
        assert_eq!(text.matches("How to demo").count(), 1, "{family:?}: {text}");
    }
}

#[tokio::test]
async fn skill_texts_in_a_request_are_bounded_and_name_the_rest() {
    let fake = Fake::start();
    let skills = session(&fake).await;
    let docs = ["a", "b", "c", "d"].map(|name| format!("references/{name}.md"));
    for doc in &docs {
        let long = "word ".repeat(40 * 1024);
        let mut state = fake.state.lock();
        state.kits[0].files.insert(doc.clone(), long.into());
    }
    let all = json!({"skill": "demo", "include_all_docs": true});
    let body = request_after(&skills, "skill_load", &all).await;
    let text = body["messages"].to_string();
    let kib = text.len() / 1024;
    assert!((240..300).contains(&kib), "{kib} KiB");
    assert!(text.contains("How to demo"), "a short text stays whole");
    for doc in docs {
        let rest = format!("all of it is in skill://demo/{doc}, which read_file reads in parts]");
        assert!(text.contains(&rest), "{doc}");
    }
}

#[tokio::test]
async fn agent_zeros_models_get_the_text_of_a_result_alone() {
    let fake = Fake::start();
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    let options = ToolOptions {
        family: Family::AgentZero,
        ..ToolOptions::default()
    };
    let skills = session_with(&fake, options).await;
    let run = json!({"method": "execute_script", "skill_name": "demo", "script_path": "scripts/run.sh",
        "argv": ["hello", "once"]});
    let body = request_after(&skills, "skills_tool", &run).await;
    let results = body["messages"].as_array().expect("messages").last();
    let text = results
        .and_then(|result| result["content"].as_str())
        .expect("text");
    assert!(text.starts_with("Executed script: demo/"), "{text}");
    assert_eq!(text.matches("hello").count(), 1, "{text}");
}

#[tokio::test]
async fn files_of_the_user_are_staged_and_named_in_the_request() {
    let fake = Fake::start();
    let skills = session(&fake).await;
    let provider = Provider::OpenAiChat;
    let file = |name: &str, data: &str| json!({"type": "file", "file": {"filename": name, "file_data": format!("data:text/csv;base64,{data}")}});
    let said = json!({"role": "user", "content": [{"type": "text", "text": "Sum!"},
        file("a.csv", "YSxi"), file("b.csv", "%")]});
    let mut body = json!({"messages": [said]});
    skills.prepare(provider, &mut body).await.expect("prepares");
    let text = body["messages"][0]["content"].as_str().expect("text");
    let files = "\n\nFiles of the user, in the workspace:\n- work/inputs/a.csv\n";
    assert!(text.contains(files), "{text}");
    let others = "Files of the user that are not there:\n- user file input: b.csv: not base64\n";
    assert!(text.contains(others), "{text}");
    assert_eq!(fake.calls.count("StageInputs"), 1);
    // The next request of the turn brings nothing new, and the next turn stages all of them again.
    let mut next = json!({"messages": [said, {"role": "assistant", "content": "Well …"}]});
    skills.prepare(provider, &mut next).await.expect("prepares");
    assert_eq!(fake.calls.count("StageInputs"), 1);
    assert!(next.to_string().contains("work/inputs/a.csv"));
    let mut turn = json!({"messages": [said, {"role": "user", "content": "And?"}]});
    skills.prepare(provider, &mut turn).await.expect("prepares");
    assert_eq!(fake.calls.count("StageInputs"), 2);
}

#[tokio::test]
async fn a_request_without_staged_files_says_nothing_of_them() {
    for (profile, pool, said) in [
        (Profile::Full, "", "Hello."),
        // No tool runs anything.
        (Profile::KnowledgeOnly, "", "with a file"),
        // The file cannot be staged, which is said.
        (Profile::Full, "full", "with a file"),
    ] {
        let fake = Fake::start();
        let options = ToolOptions {
            profile,
            pool: pool.into(),
            ..ToolOptions::default()
        };
        let skills = session_with(&fake, options).await;
        let content = match said {
            "Hello." => json!(said),
            _ => {
                json!([{"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"}}])
            }
        };
        let mut body = json!({"messages": [{"role": "user", "content": content}]});
        let prepared = skills.prepare(Provider::OpenAiChat, &mut body).await;
        prepared.expect("prepares");
        let text = body["messages"][0]["content"].as_str().expect("text");
        assert!(!text.contains("work/inputs"), "{text}");
        assert!(
            !text.contains("Files of the user, in the workspace"),
            "{text}"
        );
        let is_said = text.contains("not there:\n- a.csv: ");
        assert_eq!(is_said, pool == "full", "{text}");
        assert_eq!(fake.calls.count("StageInputs"), 0);
    }
}

#[tokio::test]
async fn a_preloaded_skill_is_in_the_next_turns_requests() {
    for family in Family::ALL {
        let fake = Fake::start();
        let options = ToolOptions {
            family,
            ..ToolOptions::default()
        };
        let skills = session_with(&fake, options).await;
        let evicted = skills.preload(&json!(["demo"])).await;
        assert_eq!(evicted.expect("preloads"), Vec::<String>::new());
        let provider = Provider::OpenAiChat;
        let mut body = json!({"messages": [{"role": "user", "content": "Demo!"}]});
        // A request may be prepared again.
        for _ in 0..2 {
            skills.prepare(provider, &mut body).await.expect("prepares");
            let text = body.to_string();
            assert_eq!(text.matches("How to demo").count(), 1, "{family:?}: {text}");
        }
        let said = json!({"role": "assistant", "content": "Done."});
        skills.answer(provider, &said).await.expect("answers");
        let mut body = json!({"messages": [{"role": "user", "content": "Next."}]});
        skills.prepare(provider, &mut body).await.expect("prepares");
        // What was loaded for one turn has ended with it.
        let is_kept = family != Family::Trpc;
        assert_eq!(body.to_string().contains("How to demo"), is_kept);
        let refused = skills.preload(&json!(["nope"])).await;
        assert_eq!(refused.expect_err("refused").code(), "UNKNOWN_SKILL");
    }
}
