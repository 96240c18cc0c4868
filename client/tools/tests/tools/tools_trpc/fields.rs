//! Each field of the tools that run something, and what becomes of it.

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_tools::host_tools::HostTools;
use skilld_tools::{ToolOptions, Toolset};

use super::{Talk, file, run, summary};
use crate::conversation::{check_fields, with_fields};

/// All that decides how a command runs is the same whether it is waited for or goes on.
#[tokio::test]
async fn skill_exec_takes_what_skill_run_takes() {
    let more = json!({
        "cwd": "$WORK_DIR/a",
        "env": {"A": "b"},
        "timeout": 7,
        "editor_text": "text",
        "inputs": [{"from": "artifact://a@1", "to": "work/in/"}],
        "output_files": ["out/*"],
        "omit_inline_content": true,
        "artifact_prefix": "p/",
        "save_as_artifacts": true,
        "eof": true,
    });
    let given = with_fields(&run("cat"), &more);
    let mut specs = Vec::new();
    for tool in ["skill_run", "skill_exec"] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        let answers = [
            file("out/a", b"text", 4, true),
            vec![summary(v1::CollectSummary::default())],
        ];
        talk.fake.answer_collections(answers.concat());
        let answer = talk.call(tool, given.clone()).await;
        let result = answer.get("result").unwrap_or(&answer);
        assert_eq!(
            result["staged_inputs"][0]["name"], "work/in/",
            "{tool}: {result}"
        );
        assert_eq!(result["output_files"][0].get("content"), None);
        let spec = talk.spec();
        assert!(spec.env["EDITOR"].ends_with(".sh"), "{tool}");
        let collected = talk.fake.collect_spec();
        let saved = collected.save_as_artifacts.expect("saved");
        assert_eq!(saved.prefix, "p/", "{tool}");
        specs.push((
            spec.shell,
            spec.cwd,
            spec.env["A"].clone(),
            spec.timeout,
            collected.globs,
        ));
    }
    assert_eq!(specs[0], specs[1]);
    assert_eq!(specs[0].1, "$WORK_DIR/a");
}

#[tokio::test]
async fn lines_of_a_first_answer_are_bounded_too() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut arguments = run("cat");
    arguments["stdin"] = "1\n2\n3\n".into();
    arguments["poll_lines"] = 2.into();
    let started = talk.call("skill_exec", arguments).await;
    check_fields(&started, &json!({"output": "1\n2\n", "more": true}));
    let poll = json!({"session_id": started["session_id"], "poll_lines": 1, "yield_ms": 1});
    assert_eq!(talk.call("skill_poll_session", poll).await["output"], "3\n");
}

#[tokio::test]
async fn workspace_exec_starts_where_it_is_told() {
    for (given, cwd) in [
        ("", "$WORKSPACE_DIR"),
        ("work/x", "work/x"),
        ("$WORK_DIR", "$WORK_DIR"),
        ("/out", "/workspace/out"),
        ("/workspace/work", "/workspace/work"),
    ] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        let command = json!({"cmd": "hello", "cwd": given, "env": {"A": "b"}});
        talk.call("workspace_exec", command).await;
        let spec = talk.spec();
        assert_eq!(
            (spec.cwd.as_str(), spec.env["A"].as_str()),
            (cwd, "b"),
            "{given}"
        );
    }
}

#[tokio::test]
async fn workspace_exec_types_and_has_a_terminal_if_it_goes_on() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let command = json!({"command": "cat", "background": true, "stdin": "typed\n", "yield_ms": 1});
    let started = talk.call("workspace_exec", command).await;
    check_fields(&started, &json!({"status": "running", "output": "typed\n"}));
    assert!(talk.spec().terminal.is_none());
    let end = json!({"session_id": started["session_id"], "eof": true, "poll_lines": 1});
    let ended = talk.call("workspace_write_stdin", end).await;
    assert_eq!(ended["status"], "exited", "{ended}");
    assert_eq!(ended.get("result"), None::<&Value>);
    talk.forget();
    talk.call("workspace_exec", json!({"command": "bash", "pty": true}))
        .await;
    assert!(talk.spec().terminal.is_some());
}

fn host_env(variables: &[(&str, &str)]) -> ToolOptions {
    ToolOptions {
        env: variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..ToolOptions::default()
    }
}

/// Returns a call of each kind that takes `env`.
fn calls_with_environment() -> [(&'static str, Value); 4] {
    [
        ("skill_run", run("hello")),
        ("skill_exec", run("cat")),
        ("workspace_exec", json!({"command": "hello"})),
        (
            "workspace_exec",
            json!({"command": "cat", "background": true}),
        ),
    ]
}

#[tokio::test]
async fn the_hosts_environment_lies_beneath_that_of_a_call() {
    let mut talk = Talk::new(host_env(&[("A", "host"), ("B", "host")])).await;
    for (tool, mut arguments) in calls_with_environment() {
        talk.forget();
        arguments["env"] = json!({"A": "call"});
        talk.call(tool, arguments).await;
        let env = talk.spec().env;
        assert_eq!((&*env["A"], &*env["B"]), ("call", "host"), "{tool}");
    }
}

#[tokio::test]
async fn host_variables_that_do_not_fit_are_left_out_and_named() {
    let half = "x".repeat(100 * 1024);
    let mut talk = Talk::new(host_env(&[("LARGE", &half), ("SMALL", "y")])).await;
    for (tool, mut arguments) in calls_with_environment() {
        talk.forget();
        arguments["env"] = json!({"A": half, "B": half});
        let result = talk.call(tool, arguments).await;
        let warnings = result["warnings"].to_string();
        assert!(warnings.contains("left out: LARGE; "), "{tool}: {warnings}");
        let env = talk.spec().env;
        assert_eq!((env.len(), &*env["SMALL"]), (3, "y"), "{tool}");
    }
}

#[tokio::test]
async fn a_changed_variable_of_the_host_reaches_the_next_command() {
    let mut talk = Talk::new(host_env(&[("LEVEL", "1")])).await;
    talk.call("skill_run", run("hello")).await;
    assert_eq!(talk.spec().env["LEVEL"], "1");
    talk.forget();
    let client = talk.fake.client().await;
    let options = host_env(&[("LEVEL", "2")]);
    talk.tools = Toolset::new(client, options, HostTools::new()).expect("options that fit");
    talk.call("skill_run", run("hello")).await;
    assert_eq!(talk.spec().env["LEVEL"], "2");
    let state = talk.fake.state.lock();
    let made = state.workspaces.values().next().expect("one workspace");
    assert!(made.env.is_empty(), "it belongs to each command");
}

#[tokio::test]
async fn an_invalid_variable_of_the_host_fails_no_call() {
    let mut talk = Talk::new(host_env(&[("A-B", "x"), ("GOOD", "y")])).await;
    for (tool, arguments) in [
        ("skill_run", run("hello")),
        ("workspace_exec", json!({"command": "hello"})),
    ] {
        let result = talk.call(tool, arguments).await;
        let said = "the host's variable \"A-B\" was left out: it is no name: letters, digits and _, not beginning with a digit";
        assert_eq!(result["warnings"], json!([said]), "{tool}");
        let env = talk.spec().env;
        assert_eq!((env.len(), &*env["GOOD"]), (1, "y"), "{tool}");
        talk.forget();
    }
}
