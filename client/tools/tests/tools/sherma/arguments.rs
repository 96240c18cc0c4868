//! Arguments of sherma's tools: accepted spellings and refused values.

use serde_json::{Value, json};
use skilld_client::v1::ArgStyle;
use skilld_tools::ToolOptions;

use super::{conversation, options};
use skilld_testing::skills::{Kit, digest};

fn additions() -> ToolOptions {
    ToolOptions {
        additions: true,
        ..options()
    }
}

#[tokio::test]
async fn other_systems_names_of_a_field_are_understood() {
    let (fake, mut talk) = conversation(additions()).await;
    fake.state.lock().collect = vec![skilld_testing::collection_messages::summary()];
    for field in ["skill", "skill_name", "id", "name", "SkillId"] {
        let listed = talk.ok("list_skill_assets", json!({field: "notes"})).await;
        assert_eq!(listed[0], "assets/logo.png", "{field}");
    }
    for (tool, field, path) in [
        ("load_skill_resource", "path", "references/style.md"),
        ("load_skill_resource", "resource", "references/style.md"),
        ("load_skill_asset", "path", "assets/page.html"),
        ("load_skill_asset", "asset", "assets/page.html"),
    ] {
        let read = talk.ok(tool, json!({"skill": "notes", field: path})).await;
        assert_eq!(read["path"], path, "{tool} {field}");
    }
    for field in ["path", "script"] {
        let run = json!({"skill": "notes", field: "scripts/run.py", "args": {"x": 1}});
        talk.ok("run_skill_script", run).await;
    }
    for exec in fake.state.lock().execs.values() {
        let script = exec.spec.script.as_ref().expect("a script");
        assert_eq!(
            (script.path.as_str(), script.args.len()),
            ("scripts/run.py", 1)
        );
    }
}

#[tokio::test]
async fn a_version_that_a_call_asks_for_is_the_one_that_is_read_and_run() {
    let (fake, mut talk) = conversation(additions()).await;
    {
        let mut state = fake.state.lock();
        state.collect = vec![skilld_testing::collection_messages::summary()];
        state.kits = ["1.0.0", "2.0.0"]
            .map(|version| {
                let file = |folder: &str| format!("{folder}/{version}");
                Kit::new("letter", version)
                    .file(&file("references"), version)
                    .file(&file("assets"), "0123456789")
                    .file(&file("scripts"), "")
            })
            .to_vec();
    }
    talk.load("letter").await;
    let old =
        |field: &str, value: &str| json!({"skill_id": "letter", "version": "^1", field: value});
    for (tool, path) in [
        ("list_skill_resources", "references/1.0.0"),
        ("list_skill_assets", "assets/1.0.0"),
        ("list_skill_scripts", "scripts/1.0.0"),
    ] {
        assert_eq!(talk.ok(tool, old("x", "")).await, json!([path]), "{tool}");
    }
    let read = talk
        .ok(
            "load_skill_resource",
            old("resource_path", "references/1.0.0"),
        )
        .await;
    assert_eq!(read["content"], "1.0.0");
    let mut part = old("asset_path", "assets/1.0.0");
    part["offset"] = json!(7);
    assert_eq!(talk.ok("load_skill_asset", part).await["content"], "789");
    talk.ok("run_skill_script", old("script_path", "scripts/1.0.0"))
        .await;
    let staged = format!("letter@{}", digest("letter", "1.0.0"));
    assert_eq!(fake.state.lock().asked.last(), Some(&staged));
}

#[tokio::test]
async fn a_scripts_stdin_timeout_and_style_reach_the_daemon_or_are_refused() {
    let (fake, mut talk) = conversation(additions()).await;
    fake.state.lock().collect = vec![skilld_testing::collection_messages::summary()];
    let run = |field: &str, value: Value| json!({"skill_id": "notes", "script_path": "scripts/run.py", field: value});
    let mut good = run("stdin", json!("typed"));
    good["timeout"] = json!(1.5);
    good["arg_style"] = json!("env");
    talk.ok("run_skill_script", good).await;
    {
        let state = fake.state.lock();
        let spec = &state.execs.values().next().expect("one").spec;
        let stdin = spec.stdin.as_ref().and_then(|stdin| stdin.source.clone());
        let typed = skilld_client::v1::stdin::Source::Data("typed".into());
        assert_eq!(stdin, Some(typed));
        let timeout = spec.timeout.expect("one");
        assert_eq!((timeout.seconds, timeout.nanos), (1, 500_000_000));
        assert_eq!(
            spec.script.as_ref().expect("one").arg_style(),
            ArgStyle::Env
        );
    }
    for (field, value, said) in [
        ("arg_style", json!("posix"), "unknown arg_style \"posix\""),
        ("timeout", json!(-1), "timeout -1 is no number of seconds"),
        ("timeout", json!("1"), "timeout must be a number, not \"1\""),
        (
            "script_args",
            json!([1]),
            "script_args must be a map of names to values",
        ),
    ] {
        let (code, message) = talk.refused("run_skill_script", run(field, value)).await;
        assert_eq!(code, "INVALID_ARGUMENTS", "{message}");
        assert!(message.contains(said), "{message}");
    }
    assert_eq!(fake.state.lock().starts, 1);
}

#[tokio::test]
async fn the_hosts_lists_of_programs_hold_for_scripts() {
    for (allowed, denied, said) in [
        (
            vec!["notes/scripts/other.py".to_owned()],
            vec![],
            "is not in allowed_commands",
        ),
        (
            vec![],
            vec!["notes/scripts/run.py".to_owned()],
            "is denied by denied_commands",
        ),
    ] {
        let (fake, mut talk) = conversation(ToolOptions {
            allowed_commands: allowed,
            denied_commands: denied,
            ..additions()
        })
        .await;
        for path in ["scripts/run.py", "./scripts//run.py"] {
            let run = json!({"skill_id": "notes", "script_path": path});
            let (code, message) = talk.refused("run_skill_script", run).await;
            assert_eq!(code, "COMMAND_REFUSED", "{path}: {message}");
            assert!(message.contains(said), "{path}: {message}");
        }
        assert_eq!(fake.state.lock().starts, 0);
    }
}

#[tokio::test]
async fn a_search_finds_as_many_as_are_wanted_of_those_that_may_be_seen() {
    let many: Vec<Kit> = (0..30)
        .map(|at| Kit::new(&format!("note-{at:02}"), "1.0.0"))
        .collect();
    let (fake, mut talk) = conversation(additions()).await;
    fake.state.lock().kits = many.clone();
    let count = |found: &Value| found.as_array().map(Vec::len);
    assert_eq!(
        count(&talk.ok("search_skills", json!({"query": "note"})).await),
        Some(25)
    );
    let few = talk
        .ok("search_skills", json!({"query": "note", "limit": 2}))
        .await;
    assert_eq!(count(&few), Some(2));
    let words = talk
        .refused("search_skills", json!({"query": "of the"}))
        .await;
    assert!(words.1.contains("has no word to look for"), "{words:?}");
    let (fake, mut talk) = conversation(ToolOptions {
        skills: Some(vec!["note-27".into(), "note-28".into(), "note-29".into()]),
        ..additions()
    })
    .await;
    fake.state.lock().kits = many;
    let found = talk.ok("search_skills", json!({"query": "note"})).await;
    assert_eq!(
        (count(&found), &found[0]["id"]),
        (Some(3), &json!("note-27"))
    );
    let few = talk
        .ok("search_skills", json!({"query": "note", "limit": 2}))
        .await;
    assert_eq!(count(&few), Some(2));
}
