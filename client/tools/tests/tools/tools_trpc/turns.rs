//! Prompts and turns: what a session's state goes through around them, and what the model is told then.

use serde_json::{Value, json};
use skilld_tools::prompt::{InjectionReport, Provider, inject};
use skilld_tools::state::{SessionState, merge, skill_loads};
use skilld_tools::{Family, LoadMode, ToolOptions};

use crate::tools_trpc::Talk;

const CHAT: Provider = Provider::OpenAiChat;

fn options(load_mode: LoadMode) -> ToolOptions {
    ToolOptions {
        load_mode,
        ..ToolOptions::default()
    }
}

/// Renders a prompt of a turn and applies its transitions to the state.
async fn prompt(talk: &mut Talk, is_first: bool) -> InjectionReport {
    let mut body = json!({});
    let ready = match is_first {
        true => talk
            .tools
            .begin_turn(&talk.session, &talk.state, CHAT, &body),
        false => talk
            .tools
            .before_prompt(&talk.session, &talk.state, CHAT, &body),
    };
    talk.state.apply(&ready.delta);
    let material = talk
        .tools
        .material(&talk.session, &talk.state)
        .await
        .expect("material");
    let options = talk.tools.prompt_options(&talk.session);
    let report = inject(CHAT, &mut body, &material, &talk.state, &options).expect("a request");
    let after = talk
        .tools
        .after_prompt(&talk.session, &talk.state, &report.shown);
    talk.state.apply(&after);
    report
}

#[tokio::test]
async fn a_skill_is_shown_once_until_the_next_turn_or_in_every_turn() {
    // In the prompt after it was loaded, in the one after that, in the first of the next turn.
    for (mode, shown) in [
        (LoadMode::Once, [true, false, false]),
        (LoadMode::Turn, [true, true, false]),
        (LoadMode::Session, [true, true, true]),
    ] {
        let mut talk = Talk::new(options(mode)).await;
        assert!(prompt(&mut talk, true).await.shown.is_empty());
        talk.call("skill_load", json!({"skill": "demo"})).await;
        for (index, shown) in shown.into_iter().enumerate() {
            let report = prompt(&mut talk, index == 2).await;
            assert_eq!(report.shown == ["demo"], shown, "{mode:?} {index}");
            assert!(report.missing.is_empty());
        }
    }
}

#[tokio::test]
async fn merged_branches_keep_the_cap_and_report_evicted_skills() {
    let mut talk = Talk::new(ToolOptions {
        max_loaded_skills: 1,
        ..options(LoadMode::Session)
    })
    .await;
    let base = SessionState::new();
    let mut deltas = Vec::new();
    for skill in ["demo", "other"] {
        let scope = talk.tools.scope(&talk.session);
        deltas.push(skill_loads::load(&base, scope, skill, None, None));
    }
    talk.state.apply(&merge(&base, &deltas[0], &deltas[1]));
    let ready = talk
        .tools
        .before_prompt(&talk.session, &talk.state, CHAT, &Value::Null);
    assert_eq!(ready.names, ["demo"]);
    assert_eq!(prompt(&mut talk, false).await.shown, ["other"]);
    let again = talk
        .tools
        .before_prompt(&talk.session, &talk.state, CHAT, &Value::Null);
    assert!(again.names.is_empty() && again.delta.is_empty());
}

#[tokio::test]
async fn legacy_loads_move_to_their_agents_before_a_prompt() {
    let mut talk = Talk::new(options(LoadMode::Session)).await;
    let old = json!({"skill:loaded:demo": "1", "temp:skill:loaded:other": "1"});
    talk.state = serde_json::from_value(old).expect("a map");
    let body = json!({"messages": [
        {"role": "assistant", "name": "b", "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "skill_load", "arguments": "{\"skill\": \"other\"}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "loaded: other"},
    ]});
    let ready = talk
        .tools
        .before_prompt(&talk.session, &talk.state, CHAT, &body);
    talk.state.apply(&ready.delta);
    assert_eq!(
        json!(talk.state),
        json!({"skill:loaded_by_agent:a/demo": "1", "skill:loaded_by_agent:b/other": "1"})
    );
    assert_eq!(prompt(&mut talk, false).await.shown, ["demo"]);
}

#[tokio::test]
async fn a_family_that_keeps_skills_for_the_session_has_that_scope() {
    let talk = Talk::new(ToolOptions {
        family: Family::AgentZero,
        ..options(LoadMode::Turn)
    })
    .await;
    assert_eq!(talk.tools.scope(&talk.session).mode, LoadMode::Session);
    let options = talk.tools.prompt_options(&talk.session);
    assert_eq!(options.family, Family::AgentZero);
}
