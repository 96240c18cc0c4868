//! Arguments of sherma's tools: accepted spellings and refused values.

use serde_json::{Value, json};
use skilld_client::v1::ScriptArgStyle;
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
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
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
async fn calls_read_and_run_the_version_that_they_request() {
    let (fake, mut talk) = conversation(additions()).await;
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    {
        let mut state = fake.state.lock();
        state.kits = ["2.0.0", "1.0.0"]
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
    let pinned = format!("skills/letter@{}", digest("letter", "1.0.0"));
    let requests = fake.staged_skills();
    let staged = requests.last().expect("staged");
    assert_eq!(staged.skills.last(), Some(&pinned));
}

#[tokio::test]
async fn stdin_timeout_and_style_reach_the_daemon_or_are_refused() {
    let (fake, mut talk) = conversation(additions()).await;
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    let run = |field: &str, value: Value| json!({"skill_id": "notes", "script_path": "scripts/run.py", field: value});
    let mut good = run("stdin", json!("typed"));
    good["timeout"] = json!(1.5);
    good["arg_style"] = json!("env");
    talk.ok("run_skill_script", good).await;
    {
        let state = fake.state.lock();
        let spec = &state.execs.values().next().expect("one").spec;
        assert_eq!(spec.stdin_data, "typed");
        let timeout = spec.timeout.expect("one");
        assert_eq!((timeout.seconds, timeout.nanos), (1, 500_000_000));
        assert_eq!(
            spec.script.as_ref().expect("one").arg_style(),
            ScriptArgStyle::Env
        );
    }
    for (field, value, said) in [
        ("arg_style", json!("posix"), "unknown arg_style \"posix\""),
        ("timeout", json!(-1), "timeout -1 is no number of seconds"),
        (
            "timeout",
            json!("soon"),
            "timeout must be a number, not \"soon\"",
        ),
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

/// Id of a skill whose author wrote `redacteur-français`.
const REDACTEUR: &str = "redacteur-fran-ais-1a2b3c4d";

/// Returns skills with scripts: their ids, titles and aliases.
fn kits_of_many_names() -> Vec<Kit> {
    let alias = format!("office:{REDACTEUR}");
    let kits = [
        (REDACTEUR, "redacteur-français", alias.as_str()),
        ("other", REDACTEUR, ""),
        ("x", "pdf-tools", ""),
        ("pdf", "", ""),
        ("y", "pdf/scripts", ""),
        ("deploy", "", "acme:deploy"),
        ("other--deploy", "", "other:deploy"),
        ("replaced", "", ""),
    ]
    .map(|(id, title, alias)| {
        let mut kit = Kit::new(id, "1.0.0")
            .file("scripts/run.py", "")
            .file("run.py", "");
        kit.skill.display_name = title.into();
        let aliases = [alias].into_iter().filter(|alias| !alias.is_empty());
        kit.skill.aliases = aliases.map(str::to_owned).collect();
        kit
    });
    kits.to_vec()
}

#[tokio::test]
async fn skills_are_allowed_by_id_or_alias_and_denied_by_any_name() {
    let (by_id, by_alias) = (
        format!("{REDACTEUR}/scripts/run.py"),
        format!("office:{REDACTEUR}/scripts/run.py"),
    );
    let (by_id, by_alias) = (by_id.as_str(), by_alias.as_str());
    let by_title = "redacteur-français/scripts/run.py";
    for (allowed, denied, skill, path, runs) in [
        (by_id, "", REDACTEUR, "scripts/run.py", true),
        (by_alias, "", REDACTEUR, "scripts/run.py", true),
        (by_title, "", REDACTEUR, "scripts/run.py", false),
        // A skill chooses its title, which is no permission.
        (by_id, "", "other", "scripts/run.py", false),
        ("pdf-tools/scripts/run.py", "", "x", "scripts/run.py", false),
        ("pdf/scripts/run.py", "", "y", "run.py", false),
        ("pdf/scripts/run.py", "", "pdf", "scripts/run.py", true),
        ("", by_id, REDACTEUR, "scripts/run.py", false),
        ("", by_alias, REDACTEUR, "scripts/run.py", false),
        ("", by_title, REDACTEUR, "scripts/run.py", false),
        ("", by_id, "other", "scripts/run.py", false),
        ("", by_id, "x", "scripts/run.py", true),
        // The same skill in another plugin, and a version that was replaced, which has no aliases.
        ("", "deploy/run.py", "other--deploy", "run.py", false),
        ("", "acme:replaced/run.py", "replaced", "run.py", false),
    ] {
        let list = |entry: &str| {
            let entries = [entry].into_iter().filter(|entry| !entry.is_empty());
            entries.map(str::to_owned).collect()
        };
        let (fake, mut talk) = conversation(ToolOptions {
            allowed_commands: list(allowed),
            denied_commands: list(denied),
            ..additions()
        })
        .await;
        fake.state.lock().kits = kits_of_many_names();
        let run = json!({"skill_id": skill, "script_path": path});
        let ran = talk.call("run_skill_script", run).await;
        let code = ran.as_ref().err().map(|error| &error["error"]);
        let refusal = (!runs).then(|| json!("COMMAND_REFUSED"));
        assert_eq!(code, refusal.as_ref(), "{allowed} {denied}: {ran:?}");
        assert_eq!(fake.state.lock().starts == 1, runs, "{allowed} {denied}");
    }
}

#[tokio::test]
async fn a_search_returns_up_to_its_limit_of_visible_skills() {
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
