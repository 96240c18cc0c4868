//! Prompts with the text of loaded skills in the results of tools.

use super::*;

#[test]
fn tool_results_show_only_skills_that_are_loaded() {
    // math was unloaded since, text never had a result.
    let state = state(&[("csv", None), ("text", None)]);
    let made = chat_prompt(
        &material(),
        &state,
        &history(),
        &options(Placement::ToolResults),
    );
    let system = text(&made, 0);
    assert!(
        system.starts_with("Be brief.\n\nAvailable skills:") && !system.contains("[Loaded]"),
        "{system}"
    );
    let fallback = text(&made, 1);
    assert!(
        fallback.starts_with("Loaded skill context:\n\n[Loaded] text\n\n<skill id=\"text\""),
        "{fallback}"
    );
    let messages = &made.body["messages"];
    let told: Vec<&str> = messages
        .as_array()
        .expect("messages")
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().expect("text"))
        .collect();
    // Only the last result of csv, which has words of its own.
    assert_eq!(told.first(), Some(&"loaded: csv"));
    assert_eq!(
        told.get(1),
        Some(&"math was loaded earlier and is not now: load it again to read it")
    );
    assert!(
        told[2].starts_with("loaded: csv, and 2 warnings\n\n[Loaded] csv\n"),
        "{}",
        told[2]
    );
    assert_eq!(made.report.shown, ["csv", "text"]);
}

#[test]
fn a_stub_gives_way_to_what_the_skill_says() {
    let made = chat_prompt(
        &material(),
        &state(&[("math", None)]),
        &history(),
        &options(Placement::ToolResults),
    );
    let messages = &made.body["messages"];
    let told = messages
        .as_array()
        .expect("messages")
        .iter()
        .find(|message| message["tool_call_id"] == "2")
        .and_then(|message| message["content"].as_str())
        .expect("text");
    assert!(
        told.starts_with("[Loaded] math\n\n<skill id=\"math\""),
        "{told}"
    );
}

#[test]
fn a_truncated_history_needs_the_fallback_unless_summarised() {
    let state = state(&[("csv", None)]);
    let truncated = truncated(2);
    let has_fallback = |options: PromptOptions<'_>| {
        let made = chat_prompt(&material(), &state, &truncated, &options);
        let messages = made.body["messages"].as_array().expect("messages");
        let texts = messages
            .iter()
            .filter_map(|message| message["content"].as_str());
        let found = texts
            .into_iter()
            .any(|text| text.starts_with(FALLBACK_PREFIX));
        assert_eq!(made.report.left_to_summary.is_empty(), found);
        found
    };
    let plain = options(Placement::ToolResults);
    let summary = PromptOptions {
        has_summary: true,
        ..plain
    };
    assert!(has_fallback(plain));
    assert!(!has_fallback(summary));
    assert!(has_fallback(PromptOptions {
        results_were_compacted: true,
        ..summary
    }));
    assert!(has_fallback(PromptOptions {
        fallback_despite_summary: true,
        ..summary
    }));
}

#[test]
fn the_fallback_is_updated_in_place_and_removed_if_unneeded() {
    let truncated = truncated(2);
    let options = options(Placement::ToolResults);
    let first = chat_prompt(&material(), &state(&[("csv", None)]), &truncated, &options);
    let second = chat_prompt(
        &material(),
        &state(&[("math", None)]),
        &first.body,
        &options,
    );
    let count = |body: &Value| body["messages"].as_array().map(Vec::len);
    assert_eq!(count(&second.body), count(&first.body));
    assert!(
        text(&second, 1).contains("[Loaded] math") && !text(&second, 1).contains("[Loaded] csv")
    );
    let third = chat_prompt(&material(), &SessionState::new(), &second.body, &options);
    assert_eq!(count(&third.body), count(&truncated));
}

#[test]
fn every_provider_is_told_in_the_system_or_in_the_result() {
    let state = state(&[("csv", None)]);
    for provider in Provider::ALL {
        let messages = over(provider, &history());
        for placement in [Placement::System, Placement::ToolResults] {
            let make = || {
                let options = options(placement);
                prompt_for(provider, &material(), &state, &messages, &options).body
            };
            let body = make();
            let all = body.to_string();
            let system = of_system(provider, &body);
            assert!(
                system.contains("Available skills:"),
                "{provider:?} {system}"
            );
            let in_system = system.contains("[Loaded] csv");
            assert_eq!(
                in_system,
                placement == Placement::System,
                "{provider:?} {system}"
            );
            assert_eq!(all.matches("[Loaded] ").count(), 1, "{provider:?} {all}");
            assert_eq!(make().to_string(), all, "the same bytes");
        }
    }
}

#[test]
fn every_provider_gets_lost_skills_again_unless_summarised() {
    let loaded = state(&[("csv", None)]);
    for provider in Provider::ALL {
        let messages = over(provider, &truncated(2));
        let told = |state: &SessionState, body: &Value, options: PromptOptions<'_>| {
            let made = prompt_for(provider, &material(), state, body, &options);
            let in_system = of_system(provider, &made.body).contains("Loaded skill context:");
            let all = made.body.to_string();
            assert_eq!(
                all.contains("Loaded skill context:"),
                in_system,
                "{provider:?}"
            );
            (made, in_system)
        };
        let plain = options(Placement::ToolResults);
        let summary = PromptOptions {
            has_summary: true,
            ..plain
        };
        let compacted = PromptOptions {
            results_were_compacted: true,
            ..summary
        };
        assert!(told(&loaded, &messages, plain).1 && told(&loaded, &messages, compacted).1);
        let (made, _) = told(&loaded, &messages, summary);
        assert_eq!(made.report.left_to_summary, ["csv"]);
        assert!(!made.body.to_string().contains("[Loaded]"));

        // The next request of a host that keeps what was sent as its history.
        let (fed_back, _) = told(&loaded, &messages, plain);
        let (next, is_there) = told(&state(&[("math", None)]), &fed_back.body, plain);
        let next_body = next.body.to_string();
        assert!(
            is_there && next_body.contains("[Loaded] math") && !next_body.contains("[Loaded] csv")
        );
        let (last, is_there) = told(&SessionState::new(), &fed_back.body, plain);
        let last_body = last.body.to_string();
        assert!(
            !is_there && !last_body.contains("[Loaded]"),
            "{provider:?} {last_body}"
        );
    }
}

#[test]
fn a_result_that_says_loaded_of_a_skill_that_is_not_says_so() {
    let ours = json!({"skill": "csv", "message": "loaded: csv", "digest": "sha256:csv", "selected_docs": [],
        "include_all_docs": false, "selected_tools": [], "evicted": ["math"]});
    let mut history = history();
    let messages = history["messages"].as_array_mut().expect("messages");
    messages.last_mut().expect("a result")["content"] = ours.to_string().into();
    for provider in Provider::ALL {
        for placement in [Placement::System, Placement::ToolResults] {
            let body = over(provider, &history);
            let (state, options) = (SessionState::new(), options(placement));
            let made = prompt_for(provider, &material(), &state, &body, &options);
            let all = made.body.to_string();
            assert_eq!(
                all.matches("csv was loaded earlier and is not now").count(),
                2,
                "{all}"
            );
            assert_eq!(
                all.matches("math was loaded earlier and is not now")
                    .count(),
                1,
                "{all}"
            );
            assert!(!all.contains("loaded: csv"), "{all}");
        }
    }
}

#[test]
fn skill_text_replaces_a_skill_load_result_and_keeps_its_marks() {
    let messages = json!({"messages": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "skill_load", "input": {"skill": "csv"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
            {"type": "text", "cache_control": {"type": "ephemeral"}, "text": json!({
                "skill": "csv", "message": "loaded: csv", "digest": "sha256:csv", "selected_docs": [],
                "include_all_docs": false, "selected_tools": []}).to_string()}]}]},
    ]});
    let made = prompt_for(
        Provider::Anthropic,
        &material(),
        &state(&[("csv", None)]),
        &messages,
        &options(Placement::ToolResults),
    );
    let block = &made.body["messages"][1]["content"][0]["content"][0];
    assert_eq!(block["cache_control"], json!({"type": "ephemeral"}));
    let text = block["text"].as_str().expect("text");
    assert!(
        text.starts_with("[Loaded] csv\n") && !text.contains("message"),
        "{text}"
    );
}

#[test]
fn a_result_that_holds_the_text_is_not_told_twice() {
    let tag = "<skill id=\"csv\" version=\"1\" digest=\"sha256:csv\">\nDo csv.\n</skill>";
    let calls = [
        (
            "load_skill_md",
            json!({"skill_id": "csv"}),
            json!({"outcome": "LOADED", "skill_id": "csv", "content": tag}),
        ),
        (
            "skills_tool",
            json!({"method": "load", "skill_name": "csv"}),
            json!({"text": tag, "name": "csv"}),
        ),
        (
            "skill_load",
            json!({"skill": "csv"}),
            json!({"skill": "csv", "message": "loaded: csv", "content": tag}),
        ),
    ];
    for (tool, arguments, result) in calls {
        let messages = |digest: &str| {
            let content = result.to_string().replace("sha256:csv", digest);
            let call = json!({"id": "1", "type": "function", "function": {"name": tool, "arguments": arguments.to_string()}});
            json!({"messages": [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": content},
            ]})
        };
        let shown = |docs: Option<Selection>, digest: &str| {
            let made = chat_prompt(
                &material(),
                &state(&[("csv", docs)]),
                &messages(digest),
                &options(Placement::ToolResults),
            );
            assert_eq!(made.report.shown, ["csv"]);
            made.body.to_string().matches("Do csv.").count()
        };
        assert_eq!(shown(None, "sha256:csv"), 1, "{tool}");
        // Of other bytes, or without the doc that is wanted.
        assert_eq!(shown(None, "sha256:old"), 2, "{tool}");
        assert_eq!(shown(Some(Selection::All), "sha256:csv"), 2, "{tool}");
    }
}

#[test]
fn sherma_skills_are_repeated_when_their_result_is_gone() {
    let loaded = state::sherma::LoadedSkills::default();
    let next = loaded.with("csv", state::sherma::LoadedSkill::default());
    let state = SessionState::new().with(&next.delta(&loaded, SCOPE.agent));
    let options = PromptOptions {
        family: Family::Sherma,
        ..options(Placement::ToolResults)
    };
    let made = chat_prompt(&material(), &state, &said(&[]), &options);
    assert_eq!(made.report.shown, ["csv"]);
    assert!(text(&made, 1).starts_with("Loaded skill context:\n\n[Loaded] csv\n"));
}
