//! Which version of a skill is the loaded one, what gives way to it, and what a preload says of that.

use serde_json::{Value, json};
use skilld_client::v1::SkillState;
use skilld_tools::ToolOptions;
use skilld_tools::prompt::{Provider, remove_skill_text};

use super::{conversation, conversation_with, hooked, options};
use crate::conversation::{Conversation, check_fields};
use skilld_testing::Fake;
use skilld_testing::skills::{Kit, digest};

/// Texts of the results in chat messages.
pub(super) fn results(messages: &[Value]) -> Vec<String> {
    let results = messages.iter().filter(|message| message["role"] == "tool");
    let texts = results.map(|result| result["content"].as_str().expect("text").to_owned());
    texts.collect()
}

/// Two versions of a skill with an alias, whose files say which version they are of.
async fn letters(options: ToolOptions) -> (Fake, Conversation) {
    let (fake, talk) = conversation(options).await;
    let kits = ["2.0.0", "1.9.0", "1.0.0"].map(|version| {
        let mut kit = Kit::new("letter", version)
            .file("assets/v", version)
            .file("scripts/run.py", "print()\n");
        kit.skill.aliases = vec!["kit/letter".into()];
        kit
    });
    fake.state.lock().kits = kits.to_vec();
    (fake, talk)
}

async fn load(talk: &mut Conversation, id: &str, version: &str) -> Value {
    let arguments = json!({"skill_id": id, "version": version});
    talk.ok("load_skill_md", arguments).await
}

async fn version_read(talk: &mut Conversation, id: &str) -> Value {
    let read = json!({"skill_id": id, "asset_path": "assets/v"});
    let read = talk.ok("load_skill_asset", read).await;
    read.get("content").cloned().unwrap_or_default()
}

#[tokio::test]
async fn running_needs_this_version_of_the_skill_to_be_loaded() {
    let (fake, mut talk) = letters(ToolOptions {
        additions: true,
        require_loaded: true,
        ..options()
    })
    .await;
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    let run = |id: &str, version: &str| json!({"skill_id": id, "version": version, "script_path": "scripts/run.py"});
    let refused = talk.refused("run_skill_script", run("letter", "*")).await;
    let said = "run_skill_script requires load_skill_md first for \"letter\"";
    assert_eq!(refused, ("NOT_LOADED".into(), said.into()));
    load(&mut talk, "letter", "1.0.0").await;
    for version in ["2.0.0", "1.9.0", "^1"] {
        let refused = talk
            .refused("run_skill_script", run("letter", version))
            .await;
        assert_eq!(refused.0, "NOT_LOADED", "{version}");
    }
    assert_eq!(fake.state.lock().starts, 0);
    for (id, version) in [("letter", "*"), ("letter", "1.0.0"), ("kit/letter", "*")] {
        talk.ok("run_skill_script", run(id, version)).await;
    }
    assert_eq!(fake.state.lock().starts, 3);
}

#[tokio::test]
async fn another_name_of_a_loaded_skill_means_the_loaded_version() {
    let (_fake, mut talk) = letters(options()).await;
    load(&mut talk, "kit/letter", "1.0.0").await;
    for id in ["letter", "kit/letter"] {
        assert_eq!(version_read(&mut talk, id).await, "1.0.0", "{id}");
    }
    let gone = talk.unload("kit/letter").await;
    check_fields(&gone, &json!({"outcome": "UNLOADED", "skill_id": "letter"}));
    assert_eq!(version_read(&mut talk, "kit/letter").await, "2.0.0");
}

#[tokio::test]
async fn files_of_what_sherma_itself_loaded_are_those_of_its_version() {
    let (_fake, mut talk) = letters(options()).await;
    let entry = json!({"version": "==1.0.0", "tools": []});
    let state =
        json!({"__sherma__": {"loaded_skills": {"letter": entry}, "loaded_tools_from_skills": []}});
    talk.state = serde_json::from_value(state).expect("a state");
    assert_eq!(version_read(&mut talk, "letter").await, "1.0.0");
    let listed = talk.ok("list_skills", json!({})).await;
    let loaded: Vec<bool> = (0..3).map(|at| listed[at]["loaded"] == true).collect();
    assert_eq!(loaded, [false, false, true]);
    // Loaded here, it is the same skill once more.
    let again = load(&mut talk, "letter", "1.0.0").await;
    assert_eq!(
        (&again["outcome"], again.get("replaced_version")),
        (&json!("RELOADED"), None)
    );
}

#[tokio::test]
async fn a_range_that_contains_the_loaded_version_unloads_it() {
    let (_fake, mut talk) = letters(options()).await;
    for (asked, outcome) in [
        ("^1", "UNLOADED"),
        ("^2", "NOT_LOADED"),
        ("==1.0.0", "UNLOADED"),
    ] {
        load(&mut talk, "letter", "1.0.0").await;
        let arguments = json!({"skill_id": "letter", "version": asked});
        let gone = talk.ok("unload_skill", arguments).await;
        assert_eq!(gone["outcome"], outcome, "{asked}: {gone}");
    }
    load(&mut talk, "letter", "1.0.0").await;
    for (asked, outcome) in [
        (digest("letter", "2.0.0"), "NOT_LOADED"),
        (digest("letter", "1.0.0"), "UNLOADED"),
    ] {
        let arguments = json!({"skill_id": "letter", "version": asked});
        let gone = talk.ok("unload_skill", arguments).await;
        assert_eq!(gone["outcome"], outcome, "{asked}: {gone}");
    }
}

#[tokio::test]
async fn a_skill_requested_again_is_not_the_first_to_be_evicted() {
    let (_fake, mut talk) = conversation_with(|options| options.max_loaded_skills = 2).await;
    for (skill, outcome, evicted) in [
        ("maths", "LOADED", json!(null)),
        ("notes", "LOADED", json!(null)),
        ("maths", "ALREADY_ACTIVE", json!(null)),
        ("letter", "LOADED", json!(["notes"])),
    ] {
        let loaded = talk.load(skill).await;
        check_fields(&loaded, &json!({"outcome": outcome, "evicted": evicted}));
    }
    assert_eq!(talk.names().await[7..], ["add", "multiply"]);
}

#[tokio::test]
async fn hooks_see_a_replaced_version_being_unloaded() {
    let (_fake, mut talk, hooks) = hooked("", options()).await;
    for version in ["1.0.0", "2.0.0"] {
        load(&mut talk, "letter", version).await;
    }
    talk.ok(
        "load_skill_md",
        json!({"skill_id": "letter", "reload": true}),
    )
    .await;
    let calls = hooks.calls.lock().expect("no panic").clone();
    assert_eq!(
        calls,
        [
            "before_load letter@1.0.0",
            "after_load letter@1.0.0",
            "before_load letter@2.0.0",
            "before_unload letter",
            "after_load letter@2.0.0",
            "after_unload letter@1.0.0",
            "before_load letter@*",
            "after_load letter@2.0.0",
        ]
    );
}

#[tokio::test]
async fn a_hook_that_refuses_an_eviction_changes_neither_skill() {
    let cap = ToolOptions {
        max_loaded_skills: 1,
        ..options()
    };
    for refuses in ["before_unload", "after_unload"] {
        let (_fake, mut talk, _) = hooked(refuses, cap.clone()).await;
        talk.load("maths").await;
        let refused = talk
            .refused("load_skill_md", json!({"skill_id": "notes"}))
            .await;
        assert_eq!(
            refused,
            ("REFUSED_BY_HOST".into(), format!("{refuses} says no"))
        );
        assert_eq!(talk.names().await[7..], ["add", "multiply"]);
        let given = json!(["notes"]);
        let error = talk
            .tools
            .preload(&talk.session, &talk.state, &given)
            .await
            .expect_err("refused");
        assert_eq!(error.to_string(), format!("{refuses} says no"));
    }
}

#[tokio::test]
async fn a_preload_says_what_made_room_and_shows_only_what_is_loaded() {
    let (_fake, mut talk) = conversation_with(|options| options.max_loaded_skills = 2).await;
    talk.load("sums").await;
    let given = json!(["letter", "notes"]);
    let preloaded = talk
        .tools
        .preload(&talk.session, &talk.state, &given)
        .await
        .expect("preloads");
    assert_eq!(preloaded.evicted, ["sums"]);
    let said = results(&preloaded.messages(Provider::OpenAiChat));
    assert_eq!(said.len(), 2);
    assert!(
        said[0].contains("# letter 2.0.0") && said[1].contains("# notes"),
        "{said:?}"
    );
    talk.state.apply(&preloaded.delta);
    let view = &talk.stored()["__sherma__"]["loaded_skills"];
    let ids: Vec<&String> = view.as_object().expect("a map").keys().collect();
    assert_eq!(ids, ["letter", "notes"]);
}

#[tokio::test]
async fn a_preload_is_written_as_every_provider_reads_it() {
    let (_fake, talk) = conversation(options()).await;
    let given = json!(["letter", "notes"]);
    let preloaded = talk
        .tools
        .preload(&talk.session, &talk.state, &given)
        .await
        .expect("preloads");
    let chat = preloaded.messages(Provider::OpenAiChat);
    let texts = results(&chat);
    let call = &chat[0]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    let arguments = call["function"]["arguments"].as_str().expect("text");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    assert_eq!(arguments["skill_id"], "letter");
    assert_eq!(chat[1]["tool_call_id"], call["id"]);
    let anthropic = preloaded.messages(Provider::Anthropic);
    let (calls, answers) = (&anthropic[0]["content"], &anthropic[1]["content"]);
    let responses = preloaded.messages(Provider::OpenAiResponses);
    for (at, skill) in ["letter", "notes"].into_iter().enumerate() {
        assert_eq!(calls[at]["name"], "load_skill_md");
        assert_eq!(calls[at]["input"]["skill_id"], skill);
        assert_eq!(answers[at]["tool_use_id"], calls[at]["id"]);
        assert_eq!(answers[at]["content"], texts[at]);
        assert_eq!(responses[at]["name"], "load_skill_md");
        assert_eq!(responses[at + 2]["call_id"], responses[at]["call_id"]);
        assert_eq!(responses[at + 2]["output"], texts[at]);
    }
}

#[tokio::test]
async fn a_skill_that_cannot_be_used_can_still_be_unloaded_by_a_range() {
    let (fake, mut talk) = letters(options()).await;
    load(&mut talk, "letter", "1.0.0").await;
    for kit in &mut fake.state.lock().kits {
        kit.skill.state = SkillState::Rejected.into();
    }
    let arguments = json!({"skill_id": "letter", "version": "^1"});
    let gone = talk.ok("unload_skill", arguments).await;
    assert_eq!(gone["outcome"], "UNLOADED");
}

#[tokio::test]
async fn text_of_an_unloaded_skill_can_be_removed_by_its_tag() {
    let (_fake, mut talk) = conversation(options()).await;
    let given = json!(["letter", "notes"]);
    let preloaded = talk
        .tools
        .preload(&talk.session, &talk.state, &given)
        .await
        .expect("preloads");
    talk.state.apply(&preloaded.delta);
    let again = json!({"skill_id": "letter", "reload": true});
    let loaded = talk.ok("load_skill_md", again).await;
    let gone = talk.unload("letter").await;
    let tag = |key: &str| gone["tag"][key].as_str().expect("text").to_owned();
    for provider in Provider::ALL {
        let mut messages = preloaded.messages(provider);
        messages.push(json!({"role": "user", "content": loaded.to_string()}));
        let list = match provider {
            Provider::OpenAiResponses => "input",
            Provider::OpenAiChat | Provider::Anthropic => "messages",
        };
        let mut body = json!({list: messages});
        let removed = remove_skill_text(provider, &mut body, &tag("id"), &tag("digest"));
        removed.expect("a request");
        let text = body.to_string();
        assert_eq!(text.matches("the text of letter was dropped").count(), 2);
        assert!(
            !text.contains("# letter") && text.contains("# notes"),
            "{provider:?}: {text}"
        );
    }
}

#[tokio::test]
async fn a_load_lists_hidden_files_last() {
    let (fake, mut talk) = conversation(options()).await;
    let mut kit = Kit::new("tool", "1.0.0").file("scripts/run.py", "print()\n");
    for number in 0..120 {
        kit = kit.file(&format!(".github/{number}.yml"), "on: push\n");
    }
    fake.state.lock().kits = vec![kit];
    let loaded = talk.load("tool").await;
    let text = loaded["content"].as_str().expect("text");
    assert!(text.contains("Its files:\n- scripts/run.py\n"), "{text}");
    assert!(text.contains("and 21 more: "), "{text}");
}
