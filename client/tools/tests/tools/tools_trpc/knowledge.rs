//! Tools that run nothing: what they answer, and what they leave in the state.

use serde_json::json;
use skilld_client::v1;
use skilld_tools::{LoadMode, ToolOptions};

use super::{Talk, skill};
use crate::conversation::{check_fields, parse_json, results, rows};

#[tokio::test]
async fn skills_their_tools_and_documents_are_listed() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut rejected = skill("bad", &[]);
    rejected.set_state(v1::SkillState::Rejected);
    talk.fake.state.lock().kits.push(rejected.into());
    let cases = r#"
        skill_list {} => ["demo", "other"]
        skill_list {"mode": "available"} => ["demo", "other"]
        skill_list "{\"details\": true}" => [{"name": "demo", "description": "What demo does."}, {"name": "other", "description": "What other does."}]
        skill_list_tools {"skill": "demo"} => {"available_tools": ["look", "touch"]}
        skill_list_tools {"skill_name": " other "} => {"available_tools": []}
        // Scripts are no documents.
        skill_list_docs {"skill": "demo"} => ["USAGE.md", "references/a.md"]
        skill_list_docs {"Skill": "other"} => []
    "#;
    for (line, call, wanted) in rows(cases) {
        let (tool, arguments) = call.split_once(' ').expect("arguments");
        let listed = talk.call(tool, parse_json(arguments)).await;
        assert_eq!(listed, parse_json(wanted), "{line}");
    }
    assert!(
        talk.state.iter().next().is_none(),
        "looking changes nothing"
    );
}

#[tokio::test]
async fn loading_says_what_is_loaded_and_keeps_what_was_chosen() {
    let mut talk = Talk::with(ToolOptions::default(), super::offer::host(&["touch"])).await;
    let docs =
        json!({"skill_name": "demo", "docs": ["USAGE.md", " references/a.md ", "", "nope.md"]});
    let loaded = talk.call("skill_load", docs).await;
    let digest = format!("sha256:{}", "0f".repeat(32));
    let wanted = json!({
        "skill": "demo",
        "message": "loaded: demo",
        "digest": digest,
        "selected_docs": ["USAGE.md", "references/a.md"],
        "include_all_docs": false,
        "selected_tools": ["touch"],
        "unknown_docs": ["nope.md"],
        // The skill declares it, and the host has none of that name.
        "unknown_tools": ["look"],
    });
    assert_eq!(loaded, wanted);
    let key = |family: &str| format!("temp:skill:{family}_by_agent:a/demo");
    let get = |talk: &Talk, family: &str| talk.state.get(&key(family)).cloned();
    assert_eq!(get(&talk, "loaded"), Some(json!("1")));
    assert_eq!(
        get(&talk, "docs"),
        Some(json!("[\"USAGE.md\",\"references/a.md\"]"))
    );
    let tools = json!({"skill": "demo", "tools": ["touch"]});
    talk.call("skill_select_tools", tools).await;
    // Again, without saying anything of documents and tools: the choices stay.
    let again = talk.call("skill_load", json!({"skill": "demo"})).await;
    assert_eq!(
        again["selected_docs"],
        json!(["USAGE.md", "references/a.md"])
    );
    assert_eq!(again["selected_tools"], json!(["touch"]));
    let fewer = json!({"skill": "demo", "docs": ["USAGE.md"]});
    let fewer = talk.call("skill_load", fewer).await;
    assert_eq!(fewer["dropped_docs"], json!(["references/a.md"]));
    let all = talk
        .call(
            "skill_load",
            json!({"skill": "demo", "include_all_docs": true, "docs": ["USAGE.md"]}),
        )
        .await;
    check_fields(
        &all,
        &json!({"include_all_docs": true, "selected_docs": []}),
    );
    assert_eq!(get(&talk, "docs"), Some(json!("*")));
}

#[tokio::test]
async fn loading_is_of_one_agent_and_as_long_as_the_host_says() {
    let options = ToolOptions {
        load_mode: LoadMode::Session,
        max_loaded_skills: 1,
        require_loaded: true,
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(options).await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    assert_eq!(
        talk.state.get("skill:loaded_by_agent:a/demo"),
        Some(&json!("1"))
    );
    talk.call("skill_run", super::run("hello")).await;
    talk.session.agent = "a/b".into();
    let not_loaded = (
        "NOT_LOADED".into(),
        "skill_run requires skill_load first for \"demo\"".into(),
    );
    assert_eq!(
        talk.refused("skill_run", super::run("hello")).await,
        not_loaded
    );
    talk.session.agent = "a".into();
    let loaded = talk.call("skill_load", json!({"skill": "other"})).await;
    assert_eq!(loaded["evicted"], json!(["demo"]));
    assert_eq!(
        talk.refused("skill_run", super::run("hello")).await,
        not_loaded
    );
    let exec = talk.refused("skill_exec", super::run("hello")).await;
    assert_eq!(exec.1, "skill_exec requires skill_load first for \"demo\"");
}

#[tokio::test]
async fn a_choice_adds_replaces_clears_and_names_what_is_missing() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let usage = "USAGE.md";
    let cases = r#"
        {"docs": ["scripts/run.sh", "USAGE.md"]} => {"mode": "replace", "selected_docs": ["scripts/run.sh", "USAGE.md"], "include_all_docs": false}
        {"docs": ["references/a.md", "USAGE.md"], "mode": " ADD "} => {"mode": "add", "selected_docs": ["scripts/run.sh", "USAGE.md", "references/a.md"], "include_all_docs": false}
        {"include_all_docs": true, "mode": "add"} => {"mode": "add", "selected_docs": [], "include_all_docs": true}
        {"docs": ["USAGE.md"], "mode": "add"} => {"mode": "add", "selected_docs": [], "include_all_docs": true}
        // After all of them a narrower choice counts, and names what it drops.
        {"docs": ["references/a.md", "references/a.md"]} => {"mode": "replace", "selected_docs": ["references/a.md"], "include_all_docs": false, "dropped_docs": ["USAGE.md"]}
        {"mode": "clear", "docs": ["USAGE.md"]} => {"mode": "clear", "selected_docs": [], "include_all_docs": false, "dropped_docs": ["references/a.md"]}
        {"docs": ["USAGE.md"], "mode": "whatever"} => {"mode": "replace", "selected_docs": ["USAGE.md"], "include_all_docs": false}
    "#;
    for (line, mut arguments, mut wanted) in results(cases) {
        arguments["skill"] = "demo".into();
        wanted["skill"] = "demo".into();
        let result = talk.call("skill_select_docs", arguments).await;
        assert_eq!(result, wanted, "{line}");
    }
    let unknown = json!({"skill": "demo", "docs": ["x.md", usage]});
    assert_eq!(
        talk.call("skill_select_docs", unknown).await["unknown_docs"],
        json!(["x.md"])
    );
    // It neither needs a loaded skill nor loads it.
    assert_eq!(talk.state.get("temp:skill:loaded_by_agent:a/demo"), None);
    let nothing = json!({"skill": "demo", "docs": ["x.md"]});
    let unchanged = talk.call("skill_select_docs", nothing).await;
    assert_eq!(unchanged["selected_docs"], json!([usage]), "{unchanged}");
    assert_eq!(unchanged["unknown_docs"], json!(["x.md"]));
}

#[tokio::test]
async fn tools_are_chosen_of_what_the_skill_declares_and_the_host_has() {
    let mut talk = Talk::with(
        ToolOptions::default(),
        super::offer::host(&["touch", "more"]),
    )
    .await;
    let cases = r#"
        {"tools": ["touch", "x"]} => {"mode": "replace", "selected_tools": ["touch"], "include_all_tools": false, "unknown_tools": ["x"]}
        // Nothing of it is there: nothing changes.
        {"tools": ["x"]} => {"mode": "replace", "selected_tools": ["touch"], "include_all_tools": false, "unknown_tools": ["x"]}
        {"tools": ["more"], "mode": "add"} => {"mode": "add", "selected_tools": ["touch", "more"], "include_all_tools": false}
        {"include_all_tools": true} => {"mode": "replace", "selected_tools": [], "include_all_tools": true, "unknown_tools": ["look"]}
        // Beside all of its own one that it does not declare.
        {"tools": ["more"], "mode": "add"} => {"mode": "add", "selected_tools": ["touch", "more"], "include_all_tools": false, "unknown_tools": ["look"]}
        {"tools": ["more"], "mode": "clear"} => {"mode": "clear", "selected_tools": [], "include_all_tools": false}
    "#;
    for (line, mut arguments, mut wanted) in results(cases) {
        arguments["skill"] = "demo".into();
        wanted["skill"] = "demo".into();
        let result = talk.call("skill_select_tools", arguments).await;
        assert_eq!(result, wanted, "{line}");
    }
}

#[tokio::test]
async fn a_hidden_skill_is_as_one_that_is_not_there() {
    let mut talk =
        Talk::with_options(|options| options.skills = Some(vec!["other".into(), "ghost".into()]))
            .await;
    assert_eq!(talk.call("skill_list", json!({})).await, json!(["other"]));
    for (tool, arguments) in [
        ("skill_load", json!({"skill": "demo"})),
        ("skill_list_tools", json!({"skill": "demo"})),
        ("skill_list_docs", json!({"skill": "demo"})),
        ("skill_select_docs", json!({"skill": "demo"})),
        ("skill_select_tools", json!({"skill": "demo"})),
        ("skill_list_tools", json!({"skill": "demo@1"})),
        ("skill_run", super::run("x")),
        ("skill_exec", super::run("x")),
        ("read_file", json!({"file_name": "skill://demo/USAGE.md"})),
    ] {
        let (code, message) = talk.refused(tool, arguments).await;
        assert_eq!(code, "UNKNOWN_SKILL", "{tool}: {message}");
        assert!(!message.contains("did you mean demo"), "{message}");
    }
    // Of names like one that is not there, only those that may be known.
    for name in ["oter", "ghost"] {
        let near = talk.refused("skill_load", json!({"skill": name})).await;
        let said = format!("unknown skill: {name}; did you mean other?");
        assert_eq!(near.1, said);
    }
    let definitions = talk
        .tools
        .definitions(&talk.session, &talk.state)
        .await
        .expect("definitions");
    assert!(
        !serde_json::to_string(&definitions)
            .expect("JSON")
            .contains("demo")
    );
}

#[tokio::test]
async fn agents_whose_names_look_alike_have_their_own_skills() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let names = ["a/b", "a%2Fb", "a", "a%", "a%25", ""];
    for agent in names {
        talk.session.agent = agent.into();
        let loaded = talk.call("skill_load", json!({"skill": "demo"})).await;
        assert_eq!(
            loaded["selected_docs"],
            json!([]),
            "{agent:?} has chosen nothing yet"
        );
        let docs = json!({"skill": "demo", "docs": ["USAGE.md"]});
        talk.call("skill_select_docs", docs).await;
    }
    let loaded = talk
        .state
        .iter()
        .filter(|(key, _)| key.starts_with("temp:skill:loaded_by_agent:"));
    assert_eq!(loaded.count(), names.len() - 1);
}
