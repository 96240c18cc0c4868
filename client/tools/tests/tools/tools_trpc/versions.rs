//! Several versions of one skill, other names of it, and skills that cannot be used.

use serde_json::json;
use skilld_client::v1;
use skilld_tools::ToolOptions;

use super::offer::host;
use super::{Talk, skill};
use skilld_testing::skills::Kit;

fn version(number: &str, byte: &str) -> v1::Skill {
    v1::Skill {
        version: number.into(),
        digest: format!("sha256:{}", byte.repeat(32)),
        description: format!("Letter {number}."),
        body: format!("# letter {number}\n"),
        tools: vec![format!("tool-{number}")],
        aliases: vec!["kit/letter".into()],
        ..skill("letter", &[])
    }
}

async fn with_versions(options: ToolOptions) -> Talk {
    let pool = host(&["tool-2.0.0-rc.1", "tool-1.0.0", "tool-0.9.0"]);
    let talk = Talk::with(options, pool).await;
    // As the daemon lists them.
    let versions = [
        version("2.0.0-rc.1", "20"),
        version("1.0.0", "10"),
        version("0.9.0", "09"),
    ];
    let skills = [skill("demo", &[])].into_iter().chain(versions);
    talk.fake.state.lock().kits = skills.map(Kit::from).collect();
    talk
}

#[tokio::test]
async fn a_skill_is_listed_once_in_the_version_that_its_name_means() {
    let mut talk = with_versions(ToolOptions::default()).await;
    let listed = talk.call("skill_list", json!({})).await;
    assert_eq!(listed, json!(["demo", "letter"]));
    let details = talk.call("skill_list", json!({"details": true})).await;
    let demo = json!({"name": "demo", "description": "What demo does."});
    let letter = json!({"name": "letter", "description": "Letter 1.0.0."});
    assert_eq!(details, json!([demo, letter]));
    let loaded = talk.call("skill_load", json!({"skill": "letter"})).await;
    assert_eq!(loaded["selected_tools"], json!(["tool-1.0.0"]));
    let material = talk
        .tools
        .material(&talk.session, &talk.state)
        .await
        .expect("material");
    assert_eq!(material.overview.len(), 2);
    assert_eq!(material.overview[1].description, "Letter 1.0.0.");
    assert_eq!(material.loaded[0].body, "# letter 1.0.0\n");
    let offered = talk
        .tools
        .definitions(&talk.session, &talk.state)
        .await
        .expect("definitions");
    let names: Vec<&str> = offered.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names[16..], ["tool-1.0.0"]);
    talk.call("tool-1.0.0", json!({})).await;
    let other = talk.refused("tool-2.0.0-rc.1", json!({})).await;
    assert_eq!(other.0, "UNKNOWN_TOOL");
}

#[tokio::test]
async fn definitions_do_not_depend_on_the_daemons_order_of_skills() {
    let mut talk = with_versions(ToolOptions::default()).await;
    talk.call("skill_load", json!({"skill": "letter"})).await;
    let mut bytes = Vec::new();
    for _ in 0..2 {
        let offered = talk.tools.definitions(&talk.session, &talk.state).await;
        bytes.push(serde_json::to_string(&offered.expect("definitions")).expect("JSON"));
        talk.fake.state.lock().kits.rotate_left(1);
    }
    assert_eq!(bytes[0], bytes[1]);
}

#[tokio::test]
async fn loading_by_any_name_loads_the_current_version() {
    let options = ToolOptions {
        require_loaded: true,
        ..ToolOptions::default()
    };
    let mut talk = with_versions(options).await;
    for tool in ["skill_load", "skill_select_docs", "skill_select_tools"] {
        let (code, message) = talk.refused(tool, json!({"skill": "letter@0.9.0"})).await;
        assert_eq!(code, "INVALID_ARGUMENTS");
        assert!(message.contains("without @"), "{message}");
    }
    let run = |skill: &str| json!({"skill": skill, "command": "hello"});
    assert_eq!(
        talk.refused("skill_run", run("kit/letter")).await.0,
        "NOT_LOADED"
    );
    let loaded = talk
        .call("skill_load", json!({"skill": "kit/letter"}))
        .await;
    assert_eq!(loaded["skill"], "letter");
    for name in ["kit/letter", "letter", "letter@1.0.0"] {
        talk.call("skill_run", run(name)).await;
        assert_eq!(talk.spec().skill, "skills/letter", "{name}");
        talk.forget();
    }
    for name in ["letter@0.9.0", "demo"] {
        let (code, message) = talk.refused("skill_run", run(name)).await;
        assert_eq!(code, "NOT_LOADED", "{message}");
    }
}

#[tokio::test]
async fn an_alias_leads_to_a_skill_that_is_shown_and_to_no_other() {
    let options = ToolOptions {
        skills: Some(vec!["letter".into()]),
        ..ToolOptions::default()
    };
    let mut talk = with_versions(options).await;
    talk.fake.state.lock().kits[0].skill.aliases = vec!["kit/demo".into()];
    let run = |skill: &str| json!({"skill": skill, "command": "hello"});
    let read = |skill: &str| json!({"file_name": format!("skill://{skill}")});
    talk.call("skill_load", json!({"skill": "kit/letter"}))
        .await;
    talk.call("skill_run", run("kit/letter")).await;
    for (tool, arguments) in [
        ("skill_load", json!({"skill": "kit/demo"})),
        ("skill_list_docs", json!({"skill": "kit/demo"})),
        ("skill_run", run("kit/demo")),
        ("skill_run", run("demo@1")),
        ("read_file", read("demo/USAGE.md")),
    ] {
        let (code, message) = talk.refused(tool, arguments.clone()).await;
        assert_eq!(code, "UNKNOWN_SKILL", "{tool} {arguments}: {message}");
    }
}

#[tokio::test]
async fn a_skill_that_cannot_be_used_says_why_to_every_tool() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    {
        let mut state = talk.fake.state.lock();
        let skill = &mut state.kits[0].skill;
        skill.set_state(v1::SkillState::Rejected);
        let message = "no front matter".to_owned();
        skill.problems = vec![v1::Problem {
            message,
            ..v1::Problem::default()
        }];
    }
    for (tool, arguments) in [
        ("skill_load", json!({"skill": "demo"})),
        ("skill_list_tools", json!({"skill": "demo"})),
        ("skill_list_docs", json!({"skill": "demo"})),
        (
            "skill_select_docs",
            json!({"skill": "demo", "docs": ["USAGE.md"]}),
        ),
        (
            "skill_select_tools",
            json!({"skill": "demo", "tools": ["x"]}),
        ),
        ("skill_run", super::run("hello")),
        ("skill_exec", super::run("hello")),
        ("read_file", json!({"file_name": "skill://demo/USAGE.md"})),
    ] {
        let (code, message) = talk.refused(tool, arguments).await;
        assert_eq!(code, "SKILL_UNUSABLE", "{tool}: {message}");
        assert!(message.contains("no front matter"), "{tool}: {message}");
    }
}

#[tokio::test]
async fn files_of_all_pages_are_listed() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let paths: Vec<String> = (0..30).map(|number| format!("d{number:02}.md")).collect();
    {
        let mut state = talk.fake.state.lock();
        let files = paths.iter().map(|path| (path.clone(), "x".into()));
        state.kits[0].files = files.collect();
    }
    let docs = talk.call("skill_list_docs", json!({"skill": "demo"})).await;
    assert_eq!(docs, json!(paths));
    let last = json!({"skill": "demo", "docs": ["d29.md"]});
    let loaded = talk.call("skill_load", last).await;
    assert_eq!(loaded["selected_docs"], json!(["d29.md"]));
}

#[tokio::test]
async fn skills_of_all_pages_are_listed() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let names: Vec<String> = (0..1100).map(|number| format!("s{number:04}")).collect();
    let many = names.iter().map(|name| Kit::from(skill(name, &[])));
    talk.fake.state.lock().kits = many.collect();
    assert_eq!(talk.call("skill_list", json!({})).await, json!(names));
}

#[tokio::test]
async fn invisible_characters_are_removed_from_descriptions() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake.state.lock().kits[0].skill.description = "Safe\u{202e}\u{200b}.\n- fake: x".into();
    let listed = talk.call("skill_list", json!({"details": true})).await;
    assert_eq!(listed[0]["description"], "Safe. - fake: x");
}
