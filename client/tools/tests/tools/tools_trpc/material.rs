//! Prompt material: the texts of loaded skills. A fault of one skill fails nothing else.

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::{InjectionReport, PromptMaterial, Provider, inject};
use skilld_tools::state::SessionState;
use skilld_tools::{Family, LoadMode, Profile, ToolDefinition, ToolOptions, Toolset};

use super::{Talk, skill};

async fn material(talk: &Talk) -> PromptMaterial {
    let material = talk.tools.material(&talk.session, &talk.state).await;
    material.expect("material")
}

/// The next prompt of an empty conversation, and the report on it.
async fn prompt(talk: &Talk) -> (Value, InjectionReport) {
    let options = talk.tools.prompt_options(&talk.session);
    let (mut body, material) = (json!({}), material(talk).await);
    let provider = Provider::OpenAiChat;
    let report = inject(provider, &mut body, &material, &talk.state, &options);
    (body, report.expect("a request"))
}

/// The system message of the next prompt.
async fn system_text(talk: &Talk) -> String {
    let (body, _) = prompt(talk).await;
    let text = body["messages"][0]["content"].as_str();
    text.expect("text").to_owned()
}

fn for_the_session() -> ToolOptions {
    ToolOptions {
        load_mode: LoadMode::Session,
        ..ToolOptions::default()
    }
}

fn names(material: &PromptMaterial) -> Vec<&str> {
    let loaded = material.loaded.iter();
    loaded.map(|skill| skill.name.as_str()).collect()
}

#[tokio::test]
async fn a_prompt_says_what_loaded_skills_say_and_where_they_are() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake.state.lock().kits[0].skill.body = "# demo\nDo it.\n".into();
    let docs = json!({"skill": "demo", "docs": ["references/a.md", "USAGE.md"]});
    talk.call("skill_load", docs).await;
    let material = material(&talk).await;
    let digest = format!("sha256:{}", "0f".repeat(32));
    let demo = &material.loaded[0];
    assert_eq!(
        (demo.name.as_str(), &demo.digest, demo.body.as_str()),
        ("demo", &digest, "# demo\nDo it.\n")
    );
    assert_eq!(demo.dir, "/workspace/skills/demo");
    let docs: Vec<(&str, &str)> = demo
        .docs
        .iter()
        .map(|doc| (doc.path.as_str(), doc.content.as_str()))
        .collect();
    assert_eq!(
        docs,
        [("references/a.md", "a"), ("USAGE.md", "one\ntwo\nthree\n")]
    );
    let overview: Vec<&str> = material
        .overview
        .iter()
        .map(|skill| skill.name.as_str())
        .collect();
    assert_eq!(overview, ["demo", "other"]);
    // All of them, whatever there is.
    let all = json!({"skill": "demo", "include_all_docs": true});
    talk.call("skill_select_docs", all).await;
    let text = system_text(&talk).await;
    for said in [
        "Available skills:\n- demo: What demo does.\n- other: What other does.\n",
        "<skill id=\"demo\" digest=\"sha256:0f0f",
        "dir=\"/workspace/skills/demo\">\n# demo\nDo it.\n</skill>",
        "Docs loaded: USAGE.md, references/a.md\n",
    ] {
        assert!(text.contains(said), "{said} in {text}");
    }
    // A script is no document, and is shown where it is named.
    assert!(!text.contains("#!/bin/sh"), "{text}");
    let script = json!({"skill": "demo", "docs": ["scripts/run.sh"]});
    talk.call("skill_select_docs", script).await;
    assert!(system_text(&talk).await.contains("#!/bin/sh\n</skill>"));
}

#[tokio::test]
async fn a_toolset_without_commands_names_no_skill_folder() {
    let knowledge = ToolOptions {
        profile: Profile::KnowledgeOnly,
        ..ToolOptions::default()
    };
    let reading = ToolOptions {
        tools: Some(vec!["skill_load".into(), "read_file".into()]),
        ..ToolOptions::default()
    };
    for options in [knowledge, reading] {
        let mut talk = Talk::new(options).await;
        talk.call("skill_load", json!({"skill": "demo"})).await;
        assert_eq!(material(&talk).await.loaded[0].dir, "");
    }
}

/// The state of a session may name skills that are gone.
#[tokio::test]
async fn a_prompt_is_made_though_a_document_a_skill_or_a_name_is_gone() {
    let mut talk = Talk::new(for_the_session()).await;
    let docs = json!({"skill": "demo", "docs": ["USAGE.md", "references/a.md"]});
    talk.call("skill_load", docs).await;
    talk.call("skill_load", json!({"skill": "other"})).await;
    let odd: SessionState = serde_json::from_value(json!({
        "skill:loaded_by_agent:a/x y": "1",
        "skill:loaded_by_agent:a/../x": "1",
        "skill:loaded_by_agent:a/gone": "1",
    }))
    .expect("a state");
    for (key, value) in odd.iter() {
        let mut delta = skilld_tools::state::StateDelta::new();
        delta.set(key, value.clone());
        talk.state.apply(&delta);
    }
    {
        let mut state = talk.fake.state.lock();
        state.kits[0].files.remove("USAGE.md");
        state.kits[1].skill.set_state(v1::SkillState::Rejected);
    }
    let (body, report) = prompt(&talk).await;
    assert_eq!(report.shown, ["demo"]);
    assert_eq!(report.missing, ["../x", "gone", "other", "x y"]);
    let unknown = &report.unknown_docs[0];
    assert_eq!(
        (unknown.skill.as_str(), unknown.path.as_str()),
        ("demo", "USAGE.md")
    );
    let system = body["messages"][0]["content"].as_str().expect("text");
    assert!(system.contains("Docs loaded: references/a.md\n"));
    // A choice can be made anew, and nothing else is offered in the meantime.
    let offered = talk.tools.definitions(&talk.session, &talk.state).await;
    assert_eq!(offered.expect("definitions").len(), 16);
    let again = json!({"skill": "demo", "docs": ["references/a.md"]});
    talk.call("skill_select_docs", again).await;
    assert!(prompt(&talk).await.1.unknown_docs.is_empty());
}

#[tokio::test]
async fn a_document_is_of_the_content_whose_digest_stands_beside_it() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let all = json!({"skill": "demo", "include_all_docs": true});
    talk.call("skill_load", all).await;
    talk.calls();
    material(&talk).await;
    let requests = talk
        .fake
        .calls
        .requests::<v1::ReadSkillFileRequest>("ReadSkillFile");
    let asked: Vec<String> = requests.into_iter().map(|request| request.name).collect();
    let pinned = format!("skills/demo@sha256:{}", "0f".repeat(32));
    assert_eq!(asked, [pinned.as_str(); 2]);
}

#[tokio::test]
async fn long_documents_are_cut_at_a_character_and_say_so() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mib = 1024 * 1024;
    {
        let mut state = talk.fake.state.lock();
        let files = &mut state.kits[0].files;
        files.clear();
        let long = "é".repeat(mib / 2 + 1);
        files.insert("a.md".into(), format!("x{long}").into());
        for number in 0..100 {
            let path = format!("b{number:02}.md");
            files.insert(path, "z".repeat(mib / 16).into());
        }
    }
    let all = json!({"skill": "demo", "include_all_docs": true});
    talk.call("skill_load", all).await;
    let demo = material(&talk).await.loaded.remove(0);
    assert_eq!(demo.docs.len(), 101, "none is left out");
    let long = &demo.docs[0].content;
    let note = "\n[cut: 1048575 of 1048579 bytes; all of it is in skill://demo/a.md, which read_file reads in parts]";
    assert!(long.ends_with(note), "{}", &long[long.len() - 100..]);
    assert!(!long.contains('\u{fffd}'));
    let read: usize = demo
        .docs
        .iter()
        .map(|doc| doc.content.matches('z').count())
        .sum();
    assert_eq!(read, 3 * mib, "and no more than so much of all together");
    let last = &demo.docs[100].content;
    assert_eq!(
        last,
        "\n[cut: 0 of 65536 bytes; all of it is in skill://demo/b99.md, which read_file reads in parts]"
    );
}

/// Two calls of one message are made from one state.
#[tokio::test]
async fn no_prompt_shows_more_skills_than_the_host_wants() {
    let options = ToolOptions {
        max_loaded_skills: 1,
        require_loaded: true,
        ..ToolOptions::default()
    };
    let mut talk = Talk::with(options, super::offer::host(&["look"])).await;
    let before = talk.state.clone();
    let mut both = before.clone();
    for name in ["demo", "other"] {
        talk.state = before.clone();
        talk.call("skill_load", json!({"skill": name})).await;
        let keys = talk
            .state
            .iter()
            .map(|(key, value)| (key.to_owned(), value.clone()));
        let mut delta = skilld_tools::state::StateDelta::new();
        for (key, value) in keys {
            delta.set(key, value);
        }
        both.apply(&delta);
    }
    talk.state = both;
    assert_eq!(names(&material(&talk).await), ["other"]);
    assert_eq!(prompt(&talk).await.1.missing, ["demo"]);
    // Nor does it count where tools are offered or something runs.
    let offered = talk.tools.definitions(&talk.session, &talk.state).await;
    assert_eq!(offered.expect("definitions").len(), 16);
    let (code, _) = talk.refused("skill_run", super::run("hello")).await;
    assert_eq!(code, "NOT_LOADED");
    // One that the host hides takes nobody's place.
    let options = ToolOptions {
        max_loaded_skills: 1,
        skills: Some(vec!["demo".into()]),
        ..ToolOptions::default()
    };
    let (fake, state) = (talk.fake, talk.state);
    let tools = Toolset::new(fake.client().await, options, HostTools::new()).expect("fit");
    let shown = tools
        .material(&talk.session, &state)
        .await
        .expect("material");
    assert_eq!(names(&shown), ["demo"]);
}

#[tokio::test]
async fn skills_that_a_state_has_and_the_daemon_has_not_cost_no_calls() {
    let mut talk = Talk::with(ToolOptions::default(), super::offer::host(&["look"])).await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    let mut delta = skilld_tools::state::StateDelta::new();
    for number in 0..10_000 {
        let key = format!("temp:skill:loaded_by_agent:a/unknown-{number}");
        delta.set(key, "1");
    }
    talk.state.apply(&delta);
    talk.calls();
    assert_eq!(names(&material(&talk).await), ["demo"]);
    let offered = talk.tools.definitions(&talk.session, &talk.state).await;
    assert_eq!(offered.expect("definitions").len(), 17);
    let skills = ["SkillService/ListSkills", "SkillService/GetSkill"];
    assert_eq!(talk.calls(), [skills, skills].concat());
}

#[tokio::test]
async fn shermas_skills_are_there_in_the_version_that_was_loaded() {
    let mut talk = Talk::with_options(|options| options.family = Family::Sherma).await;
    let version = |number: &str, byte: &str| v1::Skill {
        version: number.into(),
        digest: format!("sha256:{}", byte.repeat(32)),
        body: format!("# letter {number}\n"),
        ..skill("letter", &[])
    };
    talk.fake.state.lock().kits =
        vec![version("2.0.0", "22").into(), version("1.0.0", "11").into()];
    assert!(material(&talk).await.loaded.is_empty());
    let old = json!({"skill_id": "letter", "version": "1.0.0"});
    talk.call("load_skill_md", old).await;
    let material = material(&talk).await;
    assert_eq!(material.loaded[0].name, "letter");
    assert_eq!(material.loaded[0].body, "# letter 1.0.0\n");
    assert_eq!(material.overview.len(), 1);
    // Its text is in the result; a prompt without this result has it too.
    let (body, _) = prompt(&talk).await;
    let text = body["messages"][1]["content"].as_str().expect("text");
    assert!(text.contains("# letter 1.0.0\n</skill>"), "{text}");
}

#[tokio::test]
async fn results_hold_the_text_where_the_host_wants_it_there() {
    let options = ToolOptions {
        inline_skills: true,
        ..for_the_session()
    };
    let mut talk = Talk::new(options).await;
    talk.fake.state.lock().kits[0].skill.body = "# demo\n".into();
    let docs = json!({"skill": "demo", "docs": ["USAGE.md"]});
    let chosen = talk.call("skill_select_docs", docs).await;
    assert_eq!(chosen.get("content"), None, "it is not loaded");
    let loaded = talk.call("skill_load", json!({"skill": "demo"})).await;
    let text = loaded["content"].as_str().expect("text");
    assert!(
        text.contains("# demo\n") && text.contains("one\ntwo\nthree\n"),
        "{text}"
    );
    let more = json!({"skill": "demo", "docs": ["references/a.md"], "mode": "add"});
    let chosen = talk.call("skill_select_docs", more).await;
    let text = chosen["content"].as_str().expect("text");
    assert!(
        text.contains("Docs loaded: USAGE.md, references/a.md\n"),
        "{text}"
    );
    // One that was chosen and is gone by now fails nothing.
    talk.fake.state.lock().kits[0].files.remove("USAGE.md");
    let again = talk.call("skill_load", json!({"skill": "demo"})).await;
    assert_eq!(again["unknown_docs"], json!(["USAGE.md"]));
    let text = again["content"].as_str().expect("text");
    assert!(text.contains("Docs loaded: references/a.md\n"), "{text}");
}

#[tokio::test]
async fn a_prompt_names_no_tool_that_the_host_does_not_have() {
    let definition = ToolDefinition {
        name: "look".into(),
        description: String::new(),
        parameters: json!({"type": "object"}),
        returns: json!({}),
    };
    let mut host = HostTools::new();
    host.register(definition, async |_| Ok(json!({})));
    for (host, line) in [
        (host, Some("Tools selected: look\n")),
        (HostTools::new(), None),
    ] {
        let mut talk = Talk::with(for_the_session(), host).await;
        talk.fake.state.lock().kits[0].skill.body = "Do it.".into();
        talk.call("skill_load", json!({"skill": "demo"})).await;
        let text = system_text(&talk).await;
        assert!(text.contains("Do it."), "{text}");
        assert!(!text.contains("touch"), "the host has none: {text}");
        match line {
            Some(line) => assert!(text.contains(line), "{text}"),
            None => assert!(!text.contains("Tools selected"), "{text}"),
        }
    }
}
