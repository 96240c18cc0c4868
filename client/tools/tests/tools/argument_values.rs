//! Values of arguments as clients write them: every argument of every family, as its type and as text.

use serde_json::{Value, json};
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::Family;

use crate::conversation::{Conversation, all_tools, conversation_about, read_calls, with_fields};

async fn conversation(family: Family) -> (Fake, Conversation) {
    let kit = Kit::new("notes", "1.0.0")
        .file("references/a.md", "one\ntwo\n")
        .file("scripts/run.sh", "#!/bin/sh\n");
    conversation_about(vec![kit], all_tools(family)).await
}

/// Calls of every tool that has an argument that is no text, with all of these arguments.
fn calls(family: Family) -> Vec<(String, Value)> {
    read_calls(match family {
        Family::Trpc => {
            r#"
            skill_list {"details": true, "offset": 0}
            skill_list_docs {"skill": "notes", "offset": 0}
            skill_load {"skill": "notes", "docs": ["references/a.md"], "include_all_docs": false}
            skill_select_docs {"skill": "notes", "docs": ["references/a.md"], "include_all_docs": true}
            skill_select_tools {"skill": "notes", "tools": ["read_file"], "include_all_tools": false}
            skill_run {"skill": "notes", "command": "hello", "env": {"A": "1"}, "output_files": ["out/*.txt", "work/[a].csv"], "inputs": [{"from": "artifact://a@1", "pin": true}], "timeout": 7, "save_as_artifacts": true, "omit_inline_content": false}
            skill_exec {"skill": "notes", "command": "cat", "outputs": {"globs": ["out/*"], "inline": true, "max_files": 3}, "stdin": "1\n2\n", "timeout": 7, "tty": false, "eof": true, "yield_ms": 1000, "poll_lines": 1}
            workspace_exec {"command": "hello", "env": {"A": "1"}, "timeout_sec": 7, "yield_time_ms": 0, "background": false, "tty": false}
            read_file {"file_name": "skill://notes/references/a.md", "start_line": 2, "num_lines": 1, "start_byte": 1}
        "#
        }
        Family::Sherma => {
            r#"
            list_skills {"offset": 0}
            list_skill_resources {"skill_id": "notes", "offset": 0}
            load_skill_md {"skill_id": "notes", "reload": true}
            load_skill_resource {"skill_id": "notes", "resource_path": "references/a.md", "offset": 4}
            load_skill_asset {"skill_id": "notes", "asset_path": "references/a.md", "offset": 4}
            run_skill_script {"skill_id": "notes", "script_path": "scripts/run.sh", "argv": ["hello", "10"], "script_args": {"n": 1, "deep": {"a": [null, "1"]}}, "timeout": 1.5}
            search_skills {"query": "notes", "limit": 5, "offset": 0}
        "#
        }
        Family::AgentZero => {
            r#"
            skills_tool {"method": "list", "offset": 0}
            skills_tool {"method": "read_file", "skill_name": "notes", "file_path": "references/a.md", "offset": 4}
            skills_tool {"method": "execute_script", "skill_name": "notes", "script_path": "scripts/run.sh", "argv": ["hello", "10"], "script_args": {"n": 1, "deep": {"a": [null, "1"]}}, "timeout": 2}
        "#
        }
    })
}

/// Writes every value that is no text as JSON text, as some clients of MCP do.
fn as_text(arguments: &Value) -> Value {
    let fields = arguments
        .as_object()
        .expect("an object")
        .iter()
        .map(|(name, value)| {
            let text = if value.is_string() {
                value.clone()
            } else {
                Value::String(value.to_string())
            };
            (name.clone(), text)
        });
    Value::Object(fields.collect())
}

/// Makes a call and returns what came of it: the command and its inputs if one was started, else the result.
async fn outcome(fake: &Fake, talk: &mut Conversation, tool: &str, arguments: Value) -> String {
    let result = talk.ok(tool, arguments).await;
    let requests = fake.staged_inputs();
    fake.calls.take();
    let inputs: Vec<_> = requests.into_iter().map(|request| request.inputs).collect();
    let execs = std::mem::take(&mut fake.state.lock().execs);
    match execs.into_values().next_back() {
        Some(exec) => format!("{:?} {inputs:?}", exec.spec),
        None => result.to_string(),
    }
}

#[tokio::test]
async fn every_argument_of_every_family_may_be_its_json_text() {
    for family in Family::ALL {
        let (fake, mut talk) = conversation(family).await;
        if family == Family::Sherma {
            // Loading again has another result than loading.
            talk.load("notes").await;
        }
        for (tool, arguments) in calls(family) {
            let text = as_text(&arguments);
            let wanted = outcome(&fake, &mut talk, &tool, arguments).await;
            let read = outcome(&fake, &mut talk, &tool, text.clone()).await;
            assert_eq!(read, wanted, "{tool} {text}");
        }
    }
}

/// Some frameworks have the model give every argument, and it fills in empty ones.
#[tokio::test]
async fn empty_values_of_every_type_count_as_left_out() {
    let script = json!({"script_path": "scripts/run.sh", "argv": ["hello"]});
    for (family, tool, call, empty) in [
        (
            Family::Trpc,
            "skill_run",
            json!({"skill": "notes", "command": "hello"}),
            json!({
                "cwd": "", "env": {}, "stdin": "", "editor_text": "", "output_files": [], "outputs": {}, "inputs": [],
                "timeout": 0, "save_as_artifacts": false, "omit_inline_content": null, "artifact_prefix": "",
            }),
        ),
        (
            Family::Trpc,
            "workspace_exec",
            json!({"command": "hello"}),
            json!({
                "cwd": "", "env": {}, "stdin": "", "timeout_sec": 0, "yield_time_ms": 0, "background": false, "tty": false,
            }),
        ),
        (
            Family::Trpc,
            "read_file",
            json!({"file_name": "skill://notes/references/a.md"}),
            json!({"start_line": 0, "num_lines": 0, "start_byte": 0}),
        ),
        (
            Family::Sherma,
            "run_skill_script",
            with_fields(&script, &json!({"skill_id": "notes"})),
            json!({"version": "", "script_args": {}, "arg_style": "", "stdin": null, "timeout": 0}),
        ),
        (
            Family::AgentZero,
            "skills_tool",
            with_fields(
                &script,
                &json!({"method": "execute_script", "skill_name": "notes"}),
            ),
            json!({"script_args": {}, "arg_style": "", "cwd": "", "stdin": null, "timeout": 0, "offset": 0}),
        ),
    ] {
        let (fake, mut talk) = conversation(family).await;
        let wanted = outcome(&fake, &mut talk, tool, call.clone()).await;
        let read = outcome(&fake, &mut talk, tool, with_fields(&call, &empty)).await;
        assert_eq!(read, wanted, "{tool} {empty}");
    }
}

#[tokio::test]
async fn text_too_long_for_a_command_is_refused_with_a_way_out() {
    let (fake, mut talk) = conversation(Family::Trpc).await;
    let long = "x".repeat(131_072);
    let huge = "x".repeat(1024 * 1024 + 1);
    let way_out = "pass long text with stdin or in a file";
    let command = format!("invalid args: command: 131072 bytes; at most 131071: {way_out}");
    let variable =
        format!("invalid args: env.A with its name: 131074 bytes; at most 131071: {way_out}");
    let stdin = "invalid args: stdin: 1048577 bytes; at most 1048576: stage a file instead";
    for (more, said) in [
        (json!({"command": long}), command.as_str()),
        (json!({"env": {"A": long}}), variable.as_str()),
        (json!({"stdin": huge}), stdin),
    ] {
        for (tool, background) in [
            ("skill_run", false),
            ("skill_exec", false),
            ("workspace_exec", false),
            ("workspace_exec", true),
        ] {
            let call = json!({"skill": "notes", "command": "hello", "background": background});
            let (code, message) = talk.refused(tool, with_fields(&call, &more)).await;
            assert_eq!(
                (code.as_str(), message.as_str()),
                ("INVALID_ARGUMENTS", said),
                "{tool}"
            );
        }
    }
    let state = fake.state.lock();
    assert!(state.workspaces.is_empty() && state.starts == 0);
}

#[tokio::test]
async fn words_and_stdin_of_a_script_have_the_same_limits() {
    let long = "x".repeat(131_072);
    for (family, tool, call) in [
        (
            Family::Sherma,
            "run_skill_script",
            json!({"skill_id": "notes", "script_path": "scripts/run.sh"}),
        ),
        (
            Family::AgentZero,
            "skills_tool",
            json!({"method": "execute_script", "skill_name": "notes", "script_path": "scripts/run.sh"}),
        ),
    ] {
        let (fake, mut talk) = conversation(family).await;
        let mut words = call.clone();
        words["argv"] = json!(["a", long]);
        let (_, message) = talk.refused(tool, words).await;
        let said = "argv[1]: 131072 bytes; at most 131071: pass long text with stdin";
        assert!(message.contains(said), "{message}");
        let mut stdin = call;
        stdin["stdin"] = json!("x".repeat(1024 * 1024 + 1));
        let (_, message) = talk.refused(tool, stdin).await;
        assert!(
            message.contains("at most 1048576: stage a file"),
            "{message}"
        );
        assert_eq!(fake.state.lock().starts, 0);
    }
}

#[tokio::test]
async fn a_name_with_the_signs_of_a_pattern_is_a_name() {
    let (fake, mut talk) = conversation(Family::Trpc).await;
    {
        let mut state = fake.state.lock();
        for path in ["work/app/[slug]/page.tsx", "out/x{1}.csv"] {
            state.staged.insert(path.to_owned(), b"text\n".to_vec());
        }
    }
    for path in ["work/app/[slug]/page.tsx", "/out/x{1}.csv"] {
        let read = talk.ok("read_file", json!({"file_name": path})).await;
        assert_eq!(read["content"], "text\n", "{path}");
        let saved = talk
            .ok("workspace_save_artifact", json!({"path": path}))
            .await;
        assert_eq!(saved["path"], path.trim_start_matches('/'));
    }
    let shell = json!({"command": "hello", "cwd": "work/app/[slug]"});
    talk.ok("workspace_exec", shell).await;
    let asked = [
        "work/app/[slug]/page.tsx",
        "work/app/[[...sign-in]]/page.tsx",
    ];
    let run = json!({"skill": "notes", "command": "hello", "output_files": asked});
    talk.ok("skill_run", run).await;
    assert_eq!(fake.collect_spec().globs, asked);
}

#[tokio::test]
async fn a_place_in_the_workspace_has_one_notation_for_every_argument() {
    let (fake, mut talk) = conversation(Family::Trpc).await;
    let file = ("out/a.txt".to_owned(), b"text\n".to_vec());
    fake.state.lock().staged.extend([file]);
    for place in [
        "out/a.txt",
        "/out/a.txt",
        "/workspace/out/a.txt",
        "workspace://out/a.txt",
        "workspace:///out/a.txt",
    ] {
        let read = talk.ok("read_file", json!({"file_name": place})).await;
        assert_eq!(read["content"], "text\n", "{place}");
        let saved = talk
            .ok("workspace_save_artifact", json!({"path": place}))
            .await;
        assert_eq!(saved["path"], "out/a.txt", "{place}");
        let run = json!({
            "skill": "notes",
            "command": "hello",
            "output_files": place,
            "inputs": [{"from": place, "to": "/workspace/work/inputs/"}],
        });
        talk.ok("skill_run", run).await;
        assert_eq!(fake.collect_spec().globs, ["out/a.txt"], "{place}");
        let mut requests = fake.staged_inputs();
        let request = requests.pop().expect("inputs");
        fake.calls.take();
        let from = skilld_client::v1::input_spec::Content::Source("workspace://out/a.txt".into());
        let [input] = request.inputs.as_slice() else {
            panic!("{request:?}")
        };
        assert_eq!(input.content, Some(from), "{place}");
        assert_eq!(input.path, "work/inputs/", "{place}");
    }
    let all = json!({"skill": "notes", "command": "hello", "output_files": "/workspace"});
    talk.ok("skill_run", all).await;
    assert_eq!(fake.collect_spec().globs, ["**"]);
}
