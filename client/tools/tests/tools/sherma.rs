//! sherma's tools: JSON in, JSON out, and the state between.

mod arguments;
mod hostile_skills;
mod loaded_skills;

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use skilld_client::v1::{GetSkillRequest, Problem, SkillState};
use skilld_tools::hooks::{HookFuture, Hooks, LoadedSkill, SkillChoice, UnloadedSkill};
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::Provider;
use skilld_tools::state::merge_all;
use skilld_tools::{Family, Profile, Session, ToolOptions};

use crate::conversation::{Conversation, check_fields, check_warning, host, refusals, tool_call};
use skilld_testing::Fake;
use skilld_testing::skills::{Kit, digest, sha256};

const SEVEN: [&str; 7] = [
    "list_skills",
    "load_skill_md",
    "unload_skill",
    "list_skill_resources",
    "load_skill_resource",
    "list_skill_assets",
    "load_skill_asset",
];

fn options() -> ToolOptions {
    ToolOptions {
        family: Family::Sherma,
        ..ToolOptions::default()
    }
}

fn kits() -> Vec<Kit> {
    let notes = Kit::new("notes", "1.0.0")
        .file("SKILL.md", "---\nname: notes\n---\n# notes\n")
        .file("references/style.md", "Be brief.\n")
        .file("references/long.md", "é".repeat(100))
        .file("assets/logo.png", vec![0x89, b'P', 0, 1])
        .file("assets/page.html", "<p>\n")
        .file("forms.md", "A form.\n")
        .file("scripts/run.py", "print()\n");
    let tool = |names: &[&str]| {
        let entries = names.iter().map(|name| {
            let entry = json!({"id": name, "import_path": "pkg.tools.attr"});
            (format!("label-of-{name}"), entry)
        });
        json!({"local_tools": entries.collect::<serde_json::Map<_, _>>()})
    };
    vec![
        notes,
        Kit::new("letter", "2.0.0"),
        Kit::new("letter", "1.9.0"),
        Kit::new("letter", "1.0.0"),
        Kit::new("maths", "1.0.0").card(tool(&["add", "multiply"])),
        Kit::new("sums", "1.0.0").card(tool(&["add"])),
        Kit::new("missing-tool", "1.0.0").card(tool(&["add", "nowhere"])),
        Kit::new("strict", "1.0.0")
            .card(json!({"extensions": [{"uri": "urn:x:unknown", "required": true}]})),
        Kit::new("lenient", "1.0.0").card(json!({"extensions": [
            {"uri": "urn:x:unknown"},
            {"uri": "urn:skill:tools:local", "required": true},
        ]})),
    ]
}

/// Starts a conversation with a change of the family's options.
async fn conversation_with(change: impl FnOnce(&mut ToolOptions)) -> (Fake, Conversation) {
    let mut options = options();
    change(&mut options);
    conversation(options).await
}

async fn conversation(options: ToolOptions) -> (Fake, Conversation) {
    let fake = Fake::start();
    fake.state.lock().kits = kits();
    let tools = host(&["add", "multiply", "unused"]);
    let conversation =
        Conversation::with(&fake, options, tools, skilld_tools::hooks::NoHooks).await;
    (fake, conversation)
}

#[tokio::test]
async fn the_seven_tools_have_their_names_and_argument_names() {
    let (_fake, talk) = conversation(options()).await;
    assert_eq!(talk.names().await, SEVEN);
    let definitions = talk.definitions().await;
    for (tool, required, optional) in [
        ("list_skills", "", "query offset"),
        ("load_skill_md", "skill_id", "version reload"),
        ("unload_skill", "skill_id", "version"),
        ("list_skill_resources", "skill_id", "version offset"),
        (
            "load_skill_resource",
            "skill_id resource_path",
            "version offset",
        ),
        ("list_skill_assets", "skill_id", "version offset"),
        ("load_skill_asset", "skill_id asset_path", "version offset"),
    ] {
        let required: Vec<&str> = required.split_whitespace().collect();
        let optional: Vec<&str> = optional.split_whitespace().collect();
        let definition = definitions.iter().find(|it| it.name == tool).expect(tool);
        let names: Vec<&String> = definition
            .parameters
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|names| names.keys())
            .collect();
        assert_eq!(names, [&required[..], &optional].concat(), "{tool}");
        let expected = (!required.is_empty()).then_some(required);
        assert_eq!(definition.parameters["required"], json!(expected), "{tool}");
        assert!(!definition.description.is_empty());
    }
}

#[tokio::test]
async fn additions_are_offered_only_when_the_options_say_so() {
    let with = |profile| ToolOptions {
        additions: true,
        profile,
        ..options()
    };
    let (_fake, talk) = conversation(with(Profile::Full)).await;
    let all = [
        &SEVEN[..],
        &["list_skill_scripts", "run_skill_script", "search_skills"],
    ]
    .concat();
    assert_eq!(talk.names().await, all);
    let (_fake, mut talk) = conversation(with(Profile::KnowledgeOnly)).await;
    assert!(!talk.names().await.contains(&"run_skill_script".to_owned()));
    let run = json!({"skill_id": "notes", "script_path": "scripts/run.py"});
    talk.check_refused("run_skill_script", run.clone(), "UNKNOWN_TOOL")
        .await;
    let (_fake, mut talk) = conversation(options()).await;
    talk.check_refused("run_skill_script", run, "UNKNOWN_TOOL")
        .await;
    let only = ToolOptions {
        tools: Some(vec!["list_skills".into()]),
        ..options()
    };
    let (_fake, mut talk) = conversation(only).await;
    assert_eq!(talk.names().await, ["list_skills"]);
    let load = talk
        .refused("load_skill_md", json!({"skill_id": "notes"}))
        .await;
    assert_eq!(load.1, "unknown tool: load_skill_md; there are list_skills");
}

#[tokio::test]
async fn list_skills_shows_every_version_and_a_bad_skill_fails_alone() {
    let (fake, mut talk) = conversation(options()).await;
    let mut bad = Kit::new("broken", "1.0.0");
    bad.skill.state = SkillState::Rejected.into();
    bad.skill.problems = vec![Problem {
        message: "no description".into(),
        ..Problem::default()
    }];
    fake.state.lock().kits.push(bad);
    talk.load_version("letter", "1.9.0").await;
    let answer = talk.ok("list_skills", json!({})).await;
    let listed = answer.as_array().expect("a list");
    assert_eq!(listed.len(), kits().len() + 1);
    assert_eq!(
        listed[0],
        json!({"id": "notes", "version": "1.0.0", "name": "notes", "description": "What notes does."})
    );
    let letters: Vec<&Value> = listed.iter().filter(|it| it["id"] == "letter").collect();
    assert_eq!(letters.len(), 3);
    assert_eq!(letters[1]["loaded"], true);
    assert_eq!(letters[2].get("loaded"), None);
    assert_eq!(listed.last().expect("one")["problem"], "no description");
    let refused = talk
        .refused("load_skill_md", json!({"skill_id": "broken"}))
        .await;
    assert_eq!(
        refused,
        (
            "SKILL_UNUSABLE".into(),
            "skill broken cannot be used: no description".into()
        )
    );
}

#[tokio::test]
async fn a_load_returns_text_and_stores_resolved_version_and_digest() {
    let (fake, mut talk) = conversation(options()).await;
    let arguments = json!({"skill_id": "letter", "version": "^1"});
    let loaded = talk.ok("load_skill_md", arguments).await;
    assert_eq!(loaded["outcome"], "LOADED");
    assert_eq!(loaded["version"], "1.9.0");
    assert_eq!(loaded["digest"], digest("letter", "1.9.0"));
    let content = loaded["content"].as_str().expect("text");
    let tag = format!(
        "<skill id=\"letter\" version=\"1.9.0\" digest=\"{}\">\n# letter 1.9.0\n",
        digest("letter", "1.9.0")
    );
    assert!(content.starts_with(&tag), "{content}");
    assert!(content.ends_with("</skill>"), "{content}");
    let stored = talk.stored();
    let entry = &stored["__sherma__"]["loaded_skills"]["letter"];
    assert_eq!(entry["version"], "1.9.0");
    assert_eq!(entry["digest"], digest("letter", "1.9.0"));
    assert_eq!(stored["__sherma__"]["loaded_tools_from_skills"], json!([]));
    let asked = fake.calls.requests::<GetSkillRequest>("GetSkill");
    assert_eq!(asked[0].name, "skills/letter@^1");
}

#[tokio::test]
async fn an_omitted_version_is_the_current_one() {
    for version in [json!(null), json!("*"), json!(""), json!("latest")] {
        let (fake, mut talk) = conversation(options()).await;
        let loaded = talk.load_version("letter", version.clone()).await;
        assert_eq!(loaded["version"], "2.0.0", "{version}");
        let asked = fake.calls.requests::<GetSkillRequest>("GetSkill");
        assert_eq!(asked[0].name, "skills/letter");
    }
}

#[tokio::test]
async fn a_loaded_skill_is_returned_again_only_on_request() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.load("maths").await;
    let before = talk.stored();
    let again = talk.load("maths").await;
    assert_eq!(again["outcome"], "ALREADY_ACTIVE");
    assert_eq!(again.get("content"), None);
    assert!(
        again["message"]
            .as_str()
            .expect("text")
            .contains("already active")
    );
    assert_eq!(talk.stored(), before);
    let again = talk
        .ok(
            "load_skill_md",
            json!({"skill_id": "maths", "reload": true}),
        )
        .await;
    assert_eq!(again["outcome"], "RELOADED");
    assert!(again["content"].is_string());
    assert_eq!(talk.names().await[7..], ["add", "multiply"]);
}

#[tokio::test]
async fn another_version_takes_the_place_of_the_loaded_one() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.load_version("letter", "1.0.0").await;
    let other = talk.load_version("letter", "2.0.0").await;
    assert_eq!(other["outcome"], "REPLACED");
    assert_eq!(other["replaced_version"], "1.0.0");
    assert_eq!(
        talk.stored()["__sherma__"]["loaded_skills"]["letter"]["version"],
        "2.0.0"
    );
}

#[tokio::test]
async fn local_tools_have_the_hosts_names_whatever_their_labels() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.check_refused("add", json!({}), "UNKNOWN_TOOL").await;
    let loaded = talk.load("maths").await;
    assert_eq!(loaded["tools_loaded"], json!(["add", "multiply"]));
    assert_eq!(talk.names().await[7..], ["add", "multiply"]);
    for arguments in [json!({"x": 1}), json!(r#"{"x": 1}"#)] {
        let called = talk.ok("add", arguments).await;
        assert_eq!(called, json!({"host": "add", "arguments": {"x": 1}}));
    }
    // Registered, but no loaded skill names it.
    talk.check_refused("unused", json!({}), "UNKNOWN_TOOL")
        .await;
    talk.unload("maths").await;
    talk.check_refused("add", json!({}), "UNKNOWN_TOOL").await;
}

#[tokio::test]
async fn a_host_without_tools_loads_the_text_and_names_missing_tools() {
    let fake = Fake::start();
    fake.state.lock().kits = kits();
    let none = HostTools::new();
    let hooks = skilld_tools::hooks::NoHooks;
    let mut talk = Conversation::with(&fake, options(), none, hooks).await;
    let loaded = talk.load("maths").await;
    assert_eq!(loaded["outcome"], "LOADED");
    assert_eq!(loaded["tools_missing"], json!(["add", "multiply"]));
    assert_eq!(loaded.get("tools_loaded"), None);
    let content = loaded["content"].as_str().expect("text");
    assert!(content.contains("# maths 1.0.0"), "{content}");
    let note = "</skill>\nNot available here, since the host application has registered no tools of its own: \
                add, multiply\n";
    assert!(content.ends_with(note), "{content}");
    assert_eq!(talk.names().await, SEVEN);
    talk.check_refused("add", json!({}), "UNKNOWN_TOOL").await;
}

#[tokio::test]
async fn a_shared_tool_stays_until_its_last_skill_is_unloaded() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.load("maths").await;
    talk.load("sums").await;
    let stored = talk.stored();
    assert_eq!(
        stored["__sherma__"]["loaded_tools_from_skills"],
        json!(["add", "multiply"])
    );
    let unloaded = talk.unload("maths").await;
    assert_eq!(unloaded["tools_unloaded"], json!(["multiply"]));
    assert_eq!(talk.names().await[7..], ["add"]);
    let unloaded = talk.unload("sums").await;
    assert_eq!(unloaded["tools_unloaded"], json!(["add"]));
    assert_eq!(talk.names().await, SEVEN);
    assert_eq!(talk.stored(), json!({}));
}

#[tokio::test]
async fn skills_that_parallel_branches_load_are_all_loaded() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.session.agent = "team/a%2Fb".into();
    talk.load("letter").await;
    let base = talk.state.clone();
    let mut deltas = Vec::new();
    for (name, skill) in [
        ("load_skill_md", "maths"),
        ("load_skill_md", "notes"),
        ("unload_skill", "letter"),
    ] {
        let call = tool_call("", name, json!({"skill_id": skill}));
        let answer = talk.tools.call(&talk.session, &base, call).await;
        deltas.push(answer.expect("an answer").delta);
    }
    let merged = merge_all(&base, &deltas.iter().collect::<Vec<_>>());
    talk.state = base.with(&merged);
    assert_eq!(talk.names().await[7..], ["add", "multiply"]);
    let view = &talk.stored()["__sherma__:team%2Fa%252Fb"];
    assert_eq!(view["loaded_tools_from_skills"], json!(["add", "multiply"]));
    let loaded = view["loaded_skills"].as_object().expect("a map");
    let ids: Vec<&String> = loaded.keys().collect();
    assert_eq!(ids, ["maths", "notes"]);
    // As by a host that applies each when it comes.
    talk.state = base;
    for delta in deltas.iter().rev() {
        talk.state.apply(delta);
    }
    for (skill, outcome) in [
        ("letter", "NOT_LOADED"),
        ("maths", "UNLOADED"),
        ("notes", "UNLOADED"),
    ] {
        let gone = talk.unload(skill).await;
        assert_eq!(gone["outcome"], outcome, "{skill}");
    }
    assert_eq!(talk.stored(), json!({}));
}

#[tokio::test]
async fn unloading_what_is_not_loaded_says_so_and_changes_nothing() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.load_version("letter", "1.9.0").await;
    let before = talk.stored();
    for (arguments, said) in [
        (
            json!({"skill_id": "notes"}),
            "notes is not loaded; loaded are letter",
        ),
        (
            json!({"skill_id": "no-such"}),
            "no-such is not loaded; loaded are letter",
        ),
        (
            json!({"skill_id": "no name"}),
            "no name is not loaded; loaded are letter",
        ),
        (
            json!({"skill_id": "letter", "version": "2.0.0"}),
            "letter is loaded in version 1.9.0, which is not 2.0.0",
        ),
        (
            json!({"skill_id": "letter", "version": "^7"}),
            "letter is loaded in version 1.9.0, which is not ^7",
        ),
    ] {
        let result = talk.ok("unload_skill", arguments).await;
        assert_eq!(result["outcome"], "NOT_LOADED");
        assert_eq!(result["message"], said);
        assert_eq!(talk.stored(), before);
    }
    for version in ["*", "1.9.0", "v1.9.0", "==1.9.0", "^1"] {
        talk.load_version("letter", "1.9.0").await;
        let result = talk
            .ok(
                "unload_skill",
                json!({"skill_id": "letter", "version": version}),
            )
            .await;
        assert_eq!(result["outcome"], "UNLOADED", "{version}");
        assert_eq!(
            result["tag"],
            json!({"id": "letter", "digest": digest("letter", "1.9.0")})
        );
    }
}

#[tokio::test]
async fn a_load_that_fails_changes_nothing() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.load("sums").await;
    let cases = r#"
        load_skill_md {"skill_id": "no-such"} => UNKNOWN_SKILL did you mean notes
        load_skill_md {"skill_id": "letter", "version": "3.0"} => UNKNOWN_SKILL letter@1.9.0
        load_skill_md {"skill_id": "letter", "version": "!"} => INVALID_ARGUMENTS use 1.2, ^1.2
        load_skill_md {"skill_id": " "} => INVALID_ARGUMENTS skill_id is empty
        load_skill_md {} => INVALID_ARGUMENTS missing field `skill_id`
        load_skill_md [] => INVALID_ARGUMENTS not an object
        load_skill_md {"skill_id": [7]} => INVALID_ARGUMENTS skill_id must be a text, not a list
        load_skill_md {"skill_id": "missing-tool"} => HOST_LACKS needs the tools nowhere, which the host application has not registered
        load_skill_md {"skill_id": "strict"} => HOST_LACKS the extension "urn:x:unknown"
    "#;
    for case in refusals(cases) {
        talk.check_refusal(&case).await;
    }
    assert_eq!(talk.names().await[7..], ["add"]);
    talk.load("lenient").await;
}

#[tokio::test]
async fn references_and_assets_are_listed_and_read() {
    let (_fake, mut talk) = conversation_with(|options| options.primary_bytes_max = 101).await;
    for (tool, paths) in [
        (
            "list_skill_resources",
            json!(["references/long.md", "references/style.md"]),
        ),
        (
            "list_skill_assets",
            json!(["assets/logo.png", "assets/page.html"]),
        ),
    ] {
        assert_eq!(talk.ok(tool, json!({"skill_id": "notes"})).await, paths);
        assert_eq!(
            talk.ok(tool, json!({"skill_id": "letter"})).await,
            json!([])
        );
    }
    for path in [
        "references/style.md",
        "./references/style.md",
        "references//style.md",
    ] {
        let arguments = json!({"skill_id": "notes", "resource_path": path});
        let read = talk.ok("load_skill_resource", arguments).await;
        assert_eq!(read["path"], "references/style.md");
        assert_eq!(read["content"], "Be brief.\n");
        assert_eq!(read["binary"], false);
        assert_eq!(read.get("next_offset"), None);
    }
    // Outside of the two folders, where skills have documents as well.
    let read = talk
        .ok(
            "load_skill_resource",
            json!({"skill_id": "notes", "resource_path": "forms.md"}),
        )
        .await;
    assert_eq!(read["content"], "A form.\n");
    let first = json!({"skill_id": "notes", "resource_path": "references/long.md"});
    let first = talk.ok("load_skill_resource", first).await;
    assert_eq!(first["next_offset"], 100);
    let rest = json!({"skill_id": "notes", "resource_path": "references/long.md", "offset": 100});
    let rest = talk.ok("load_skill_resource", rest).await;
    assert_eq!(rest.get("next_offset"), None);
    let whole = [&first, &rest]
        .map(|part| part["content"].as_str().expect("text"))
        .concat();
    assert_eq!(whole, "é".repeat(100));
    let asset = talk
        .ok(
            "load_skill_asset",
            json!({"skill_id": "notes", "asset_path": "assets/page.html"}),
        )
        .await;
    assert_eq!(asset["content"], "<p>\n");
}

#[tokio::test]
async fn a_binary_asset_is_described_and_not_decoded() {
    let (_fake, mut talk) = conversation(options()).await;
    let arguments = json!({"skill_id": "notes", "asset_path": "assets/logo.png"});
    let asset = talk.ok("load_skill_asset", arguments).await;
    assert_eq!(asset["binary"], true);
    assert_eq!(asset["mime_type"], "image/png");
    assert_eq!(asset["size"], 4);
    assert_eq!(asset.get("content"), None);
    let digest = sha256(&[0x89, b'P', 0, 1]);
    let said = format!("binary, 4 bytes, sha256 {digest}, image/png");
    assert_eq!(asset["message"], said);
}

#[tokio::test]
async fn outside_files_are_refused_and_missing_ones_get_suggestions() {
    let (_fake, mut talk) = conversation(options()).await;
    for (path, code, said) in [
        (
            "references/../../../etc/passwd",
            "INVALID_ARGUMENTS",
            "leads out of the skill",
        ),
        ("/etc/passwd", "INVALID_ARGUMENTS", "leads out of the skill"),
        ("references", "INVALID_ARGUMENTS", "is a folder, not a file"),
        ("references/none.md", "FILE_NOT_FOUND", "did you mean"),
        ("  ", "INVALID_ARGUMENTS", "the path is empty"),
    ] {
        for (tool, field) in [
            ("load_skill_resource", "resource_path"),
            ("load_skill_asset", "asset_path"),
        ] {
            let (is, message) = talk
                .refused(tool, json!({"skill_id": "notes", field: path}))
                .await;
            assert_eq!(is, code, "{path}: {message}");
            assert!(message.contains(said), "{path}: {message}");
        }
    }
    let unknown = json!({"skill_id": "no-such", "resource_path": "x"});
    talk.check_refused("load_skill_resource", unknown, "UNKNOWN_SKILL")
        .await;
}

#[tokio::test]
async fn files_are_those_of_the_loaded_version() {
    let (fake, mut talk) = conversation(options()).await;
    {
        let mut state = fake.state.lock();
        for kit in &mut state.kits {
            if kit.skill.name == "skills/letter" {
                let version = kit.skill.version.clone();
                kit.files.insert("assets/v".into(), version.into());
            }
        }
    }
    let read = json!({"skill_id": "letter", "asset_path": "assets/v"});
    assert_eq!(
        talk.ok("load_skill_asset", read.clone()).await["content"],
        "2.0.0"
    );
    talk.load_version("letter", "1.0.0").await;
    assert_eq!(talk.ok("load_skill_asset", read).await["content"], "1.0.0");
    let asked = json!({"skill_id": "letter", "asset_path": "assets/v", "version": "1.9.0"});
    assert_eq!(talk.ok("load_skill_asset", asked).await["content"], "1.9.0");
}

#[tokio::test]
async fn a_skill_that_the_options_hide_is_unknown_to_every_tool() {
    let (_fake, mut talk) = conversation(ToolOptions {
        skills: Some(vec!["letter".into()]),
        additions: true,
        ..options()
    })
    .await;
    let listed = talk.ok("list_skills", json!({})).await;
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    assert_eq!(
        talk.ok("search_skills", json!({"query": "notes"})).await,
        json!([])
    );
    for (tool, arguments) in [
        ("load_skill_md", json!({"skill_id": "notes"})),
        // Nor is it named as what may have been meant.
        ("load_skill_md", json!({"skill_id": "note"})),
        (
            "load_skill_md",
            json!({"skill_id": "notes", "version": "9"}),
        ),
        ("list_skill_resources", json!({"skill_id": "notes"})),
        (
            "load_skill_asset",
            json!({"skill_id": "notes", "asset_path": "assets/page.html"}),
        ),
        (
            "run_skill_script",
            json!({"skill_id": "notes", "script_path": "scripts/run.py"}),
        ),
    ] {
        let (code, message) = talk.refused(tool, arguments).await;
        assert_eq!(code, "UNKNOWN_SKILL", "{tool}");
        let named = message.contains("mean notes") || message.contains("notes@1");
        assert!(!named, "{message}");
    }
}

#[tokio::test]
async fn skills_over_the_limit_are_evicted_and_reported() {
    let (_fake, mut talk) = conversation_with(|options| options.max_loaded_skills = 2).await;
    for skill in ["maths", "notes"] {
        talk.load(skill).await;
    }
    let third = talk.load("letter").await;
    assert_eq!(third["evicted"], json!(["maths"]));
    assert_eq!(third["tools_unloaded"], json!(["add", "multiply"]));
    assert_eq!(talk.names().await, SEVEN);
}

#[tokio::test]
async fn scripts_are_listed_run_and_found_with_the_additions() {
    let (fake, mut talk) = conversation_with(|options| options.additions = true).await;
    let scripts = talk
        .ok("list_skill_scripts", json!({"skill_id": "notes"}))
        .await;
    assert_eq!(scripts, json!(["scripts/run.py"]));
    let found = talk.ok("search_skills", json!({"query": "note"})).await;
    assert_eq!(found[0]["id"], "notes");
    assert_eq!(found[0]["matched_fields"], json!(["name"]));
    talk.check_refused("search_skills", json!({"query": " "}), "INVALID_ARGUMENTS")
        .await;
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    let run = json!({
        "skill_id": "notes", "script_path": "scripts/run.py", "argv": ["exit", "3"],
        "script_args": {"b": 1.0, "a": [true]}, "arg_style": " Named ",
    });
    let ran = talk.ok("run_skill_script", run).await;
    check_fields(&ran, &json!({"exit_code": 3, "outcome": "exited"}));
    let requests = fake.staged_skills();
    let staged = requests.last().expect("staged");
    let pinned = format!("skills/notes@{}", digest("notes", "1.0.0"));
    assert_eq!(staged.skills.last(), Some(&pinned));
    let state = fake.state.lock();
    let exec = state.execs.values().next().expect("one");
    let script = exec.spec.script.as_ref().expect("a script");
    let keys: Vec<&str> = script.args.iter().map(|arg| arg.key.as_str()).collect();
    assert_eq!(keys, ["b", "a"]);
    assert_eq!(script.args[0].literal, "1.0");
    assert_eq!(script.arg_style(), skilld_client::v1::ScriptArgStyle::Named);
}

#[tokio::test]
async fn a_script_in_a_new_workspace_is_told_so_once() {
    let (fake, mut talk) = conversation_with(|options| options.additions = true).await;
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    let run = json!({"skill_id": "notes", "script_path": "scripts/run.py", "argv": ["hello"]});
    let ran = talk.ok("run_skill_script", run.clone()).await;
    assert_eq!(ran.get("warnings"), None);
    fake.state.lock().workspaces.clear();
    let ran = talk.ok("run_skill_script", run.clone()).await;
    assert_eq!(ran["stdout"], "hello\n");
    check_warning(&ran, "the workspace is a new one");
    let ran = talk.ok("run_skill_script", run).await;
    assert_eq!(ran.get("warnings"), None);
}

#[tokio::test]
async fn an_oom_kill_hidden_by_exit_code_0_is_a_warning() {
    let (fake, mut talk) = conversation_with(|options| options.additions = true).await;
    fake.answer_collections(vec![skilld_testing::collection_messages::summary()]);
    let script =
        json!({"skill_id": "notes", "script_path": "scripts/run.py", "argv": ["oom", "1"]});
    let ran = talk.ok("run_skill_script", script).await;
    check_fields(&ran, &json!({"exit_code": 0, "outcome": "exited"}));
    check_warning(&ran, "1 process was killed for memory");
}

/// Writes down what is called, and changes what it is told to.
#[derive(Clone, Default)]
pub(crate) struct Recorder {
    pub(crate) calls: Arc<Mutex<Vec<String>>>,
    pub(crate) refuses: &'static str,
}

impl Recorder {
    fn note<'a>(&'a self, hook: &'static str, what: &str) -> HookFuture<'a> {
        self.calls
            .lock()
            .expect("no panic")
            .push(format!("{hook} {what}"));
        let refused = self.refuses == hook;
        Box::pin(async move {
            if refused {
                Err(format!("{hook} says no"))
            } else {
                Ok(())
            }
        })
    }
}

impl Hooks for Recorder {
    fn before_skill_load<'a>(
        &'a self,
        _: &'a Session,
        choice: &'a mut SkillChoice,
    ) -> HookFuture<'a> {
        if choice.skill_id == "alias" {
            "letter".clone_into(&mut choice.skill_id);
            "1.0.0".clone_into(&mut choice.version);
        }
        self.note(
            "before_load",
            &format!("{}@{}", choice.skill_id, choice.version),
        )
    }

    fn after_skill_load<'a>(
        &'a self,
        _: &'a Session,
        loaded: &'a mut LoadedSkill,
    ) -> HookFuture<'a> {
        loaded.content = format!("rewritten {}", loaded.version);
        self.note(
            "after_load",
            &format!("{}@{}", loaded.skill_id, loaded.version),
        )
    }

    fn before_skill_unload<'a>(
        &'a self,
        _: &'a Session,
        choice: &'a mut SkillChoice,
    ) -> HookFuture<'a> {
        if choice.skill_id == "alias" {
            "letter".clone_into(&mut choice.skill_id);
        }
        self.note("before_unload", &choice.skill_id)
    }

    fn after_skill_unload<'a>(&'a self, _: &'a Session, gone: &'a UnloadedSkill) -> HookFuture<'a> {
        self.note(
            "after_unload",
            &format!("{}@{}", gone.skill_id, gone.version),
        )
    }
}

async fn hooked(refuses: &'static str, options: ToolOptions) -> (Fake, Conversation, Recorder) {
    let fake = Fake::start();
    fake.state.lock().kits = kits();
    let hooks = Recorder {
        refuses,
        ..Recorder::default()
    };
    let talk = Conversation::with(&fake, options, host(&["add", "multiply"]), hooks.clone()).await;
    (fake, talk, hooks)
}

#[tokio::test]
async fn hooks_fire_on_every_path_and_may_rewrite() {
    let cap = ToolOptions {
        max_loaded_skills: 1,
        ..options()
    };
    let (_fake, mut talk, hooks) = hooked("", cap).await;
    let loaded = talk.load("alias").await;
    assert_eq!(loaded["content"], "rewritten 1.0.0");
    talk.unload("alias").await;
    for (given, text) in [
        (json!(["notes"]), "rewritten 1.0.0"),
        (json!([{"id": "letter"}]), "rewritten 2.0.0"),
    ] {
        let preloaded = talk
            .tools
            .preload(&talk.session, &talk.state, &given)
            .await
            .expect("preloads");
        talk.state.apply(&preloaded.delta);
        let messages = preloaded.messages(Provider::OpenAiChat);
        assert_eq!(loaded_skills::results(&messages), [text]);
    }
    let calls = hooks.calls.lock().expect("no panic").clone();
    assert_eq!(
        calls,
        [
            "before_load letter@1.0.0",
            "after_load letter@1.0.0",
            "before_unload letter",
            "after_unload letter@1.0.0",
            "before_load notes@*",
            "after_load notes@1.0.0",
            "before_load letter@*",
            "before_unload notes",
            "after_load letter@2.0.0",
            "after_unload notes@1.0.0",
        ]
    );
}

#[tokio::test]
async fn a_hook_that_refuses_fails_the_call_in_its_own_words() {
    for (refuses, tool) in [
        ("before_load", "load_skill_md"),
        ("after_load", "load_skill_md"),
        ("before_unload", "unload_skill"),
        ("after_unload", "unload_skill"),
    ] {
        let (_fake, mut talk, _) = hooked(refuses, options()).await;
        if tool == "unload_skill" {
            talk.load("maths").await;
        }
        let refused = talk.refused(tool, json!({"skill_id": "maths"})).await;
        assert_eq!(
            refused,
            ("REFUSED_BY_HOST".into(), format!("{refuses} says no"))
        );
    }
}

#[tokio::test]
async fn a_preload_writes_one_call_message_and_a_result_per_new_skill() {
    let (_fake, mut talk) = conversation(options()).await;
    talk.load("notes").await;
    let given = json!([{"id": "letter", "version": "^1"}, "maths", "notes"]);
    let preloaded = talk
        .tools
        .preload(&talk.session, &talk.state, &given)
        .await
        .expect("preloads");
    let messages = preloaded.messages(Provider::OpenAiChat);
    assert_eq!(messages.len(), 3);
    let calls = messages[0]["tool_calls"].as_array().expect("calls");
    let version = |at: usize| -> Value {
        let arguments = calls[at]["function"]["arguments"].as_str().expect("text");
        serde_json::from_str(arguments).expect("JSON")
    };
    assert_eq!(version(0), json!({"skill_id": "letter", "version": "^1"}));
    assert_eq!(version(1), json!({"skill_id": "maths", "version": "*"}));
    for (call, message) in calls.iter().zip(&messages[1..]) {
        let id = call["id"].as_str().expect("an id");
        let hex = id.strip_prefix("load_skill_").expect("its prefix");
        assert!(
            hex.len() == 8 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{hex}"
        );
        check_fields(
            message,
            &json!({"role": "tool", "tool_call_id": call["id"]}),
        );
        let text = message["content"].as_str().expect("text");
        assert!(text.starts_with("<skill "));
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    talk.state.apply(&preloaded.delta);
    // Real names of tools, on this path as on the other.
    assert_eq!(talk.names().await[7..], ["add", "multiply"]);
    let nothing = talk
        .tools
        .preload(&talk.session, &talk.state, &given)
        .await
        .expect("preloads");
    assert!(nothing.messages(Provider::OpenAiChat).is_empty() && nothing.delta.is_empty());
}
