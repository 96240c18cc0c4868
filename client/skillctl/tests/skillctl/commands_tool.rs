//! `skillctl tool` as a process: every family, sessions in a file, calls side by side, and what an interruption leaves.

#![expect(
    clippy::indexing_slicing,
    reason = "a JSON value without the key is how a test fails"
)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skilld_client::v1;
use skilld_client::v1::collect_outputs_response::Payload;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};

use crate::commands::skillctl;
use skilld_testing::collection_messages::message;
use skilld_testing::mcp::McpServer;
use skilld_testing::skills::Kit;
use skilld_testing::{DEADLINE, Fake, STARTS};

pub(crate) fn fake() -> Fake {
    let fake = Fake::start();
    let kits = ["alpha", "beta", "gamma", "delta"].map(|id| {
        Kit::new(id, "1.0.0")
            .file("SKILL.md", format!("# {id}\n"))
            .file("scripts/run.sh", "#!/bin/sh\n")
    });
    fake.state.lock().kits = kits.into();
    let nothing = Payload::Summary(v1::CollectSummary::default());
    fake.answer_collections(vec![message(nothing)]);
    fake
}

pub(crate) async fn run(fake: &Fake, words: &[&str]) -> Output {
    ended(
        skillctl(fake, words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )
    .await
}

async fn ended(command: &mut Command) -> Output {
    let output = tokio::time::timeout(DEADLINE, command.output()).await;
    output.expect("ends").expect("runs")
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

pub(crate) fn json(output: &Output) -> Value {
    let said = text(&output.stdout);
    serde_json::from_str(said).unwrap_or_else(|_| panic!("{said:?} {:?}", text(&output.stderr)))
}

/// A call that answers.
async fn call(fake: &Fake, name: &str, arguments: &Value, more: &[&str]) -> Value {
    let arguments = arguments.to_string();
    let output = run(fake, &[&["tool", "call", name, &arguments], more].concat()).await;
    let said = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{name}: {said} {}",
        text(&output.stdout)
    );
    json(&output)
}

fn spawn(fake: &Fake, words: &[&str]) -> Child {
    skillctl(fake, words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    let id = child.id().expect("runs");
    let pid = Pid::from_raw(i32::try_from(id).expect("a pid"));
    kill_process(pid.expect("a pid"), signal).expect("is there");
}

/// Lets a daemon that holds its skills go on when two calls beyond so many have asked for one.
pub(crate) async fn answer_both(fake: &Fake, before: usize) {
    fake.calls.wait_for("GetSkill", before + 2).await;
    fake.calls.release();
}

async fn wait(child: Child) -> Output {
    let output = tokio::time::timeout(DEADLINE, child.wait_with_output()).await;
    output.expect("ends").expect("runs")
}

fn state(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).expect("a file");
    serde_json::from_str::<Value>(&text).expect("JSON")["state"].clone()
}

/// A tool and its arguments.
type ToolRequest = (&'static str, Value);

/// For each family: how many tools, how a skill is loaded, what shows that it is, and how it runs something.
fn families() -> [(&'static str, usize, ToolRequest, &'static str, ToolRequest); 3] {
    [
        (
            "trpc",
            16,
            ("skill_load", json!({"skill": "alpha"})),
            "temp:skill:loaded:alpha",
            ("skill_run", json!({"skill": "alpha", "command": "hello"})),
        ),
        (
            "sherma",
            10,
            ("load_skill_md", json!({"skill_id": "alpha"})),
            "__sherma__/alpha",
            (
                "run_skill_script",
                json!({"skill_id": "alpha", "script_path": "scripts/run.sh", "argv": ["hello"]}),
            ),
        ),
        (
            "agent-zero",
            1,
            (
                "skills_tool",
                json!({"method": "load", "skill_name": "alpha"}),
            ),
            "skill:loaded:alpha",
            (
                "skills_tool",
                json!({"method": "execute_script", "skill_name": "alpha", "script_path": "scripts/run.sh", "argv": ["hello"]}),
            ),
        ),
    ]
}

#[tokio::test]
async fn tools_of_every_family_run_from_a_shell_with_a_session_file() {
    for (family, count, (load, arguments), key, (run_tool, run_arguments)) in families() {
        let fake = fake();
        let file = fake.path("chat.json");
        std::fs::write(
            fake.path("options.json"),
            json!({"family": family, "additions": true}).to_string(),
        )
        .expect("writes");
        let more = ["--options", "options.json", "--session-file", "chat.json"];
        let listed = run(
            &fake,
            &[&["-o", "json", "tool", "list"], &more[..]].concat(),
        )
        .await;
        let listed: Value = serde_json::from_slice(&listed.stdout).expect("one object");
        let tools = listed["tools"].as_array().expect("a list").iter();
        let names: Vec<Value> = tools.map(|tool| tool["name"].clone()).collect();
        assert_eq!(names.len(), count, "{family}: {names:?}");
        assert!(names.contains(&json!(load)) && names.contains(&json!(run_tool)));

        let loaded = call(&fake, load, &arguments, &more).await;
        assert!(
            loaded.to_string().contains("# alpha"),
            "{family}: no prompt brings the text: {loaded}"
        );
        assert!(
            state(&file).get(key).is_some(),
            "{family}: {}",
            state(&file)
        );
        let mode = std::fs::metadata(&file)
            .expect("is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{family}");
        let again = call(&fake, load, &arguments, &more).await;
        let ran = call(&fake, run_tool, &run_arguments, &more).await;
        assert!(ran.to_string().contains("hello"), "{family}: {ran}");
        if family == "sherma" {
            assert_eq!(
                again["outcome"], "ALREADY_ACTIVE",
                "the next call knows of the last"
            );
        }
        assert_eq!(
            fake.state.lock().workspaces.len(),
            1,
            "{family}: one for all calls"
        );

        let ended = run(&fake, &["tool", "end", "--session-file", "chat.json"]).await;
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        assert!(
            fake.state.lock().workspaces.is_empty() && !file.exists(),
            "{family}"
        );
        let left: Vec<_> = std::fs::read_dir(fake.dir.path())
            .expect("a directory")
            .flatten()
            .collect();
        assert_eq!(
            left.len(),
            2,
            "{family}: the socket and the options, no lock: {left:?}"
        );
        let gone = run(&fake, &["tool", "end", "--session-file", "chat.json"]).await;
        assert_eq!(gone.status.code(), Some(1));
        assert_eq!(text(&gone.stderr), "error: there is no chat.json\n");
    }
}

#[tokio::test]
async fn the_family_flag_overrides_the_family_of_the_options() {
    let fake = fake();
    std::fs::write(fake.path("o.json"), r#"{"family": "sherma"}"#).expect("writes");
    for (words, first) in [
        (&["--options", "o.json"][..], "list_skills"),
        (
            &["--options", "o.json", "--family", "agent-zero"],
            "skills_tool",
        ),
        (&["--family", "sherma"], "list_skills"),
        (&[], "skill_load"),
    ] {
        let listed = run(&fake, &[&["tool", "list"], words].concat()).await;
        assert!(
            text(&listed.stdout).contains(first),
            "{words:?}: {}",
            text(&listed.stdout)
        );
    }
}

#[tokio::test]
async fn a_call_without_a_session_leaves_no_workspace() {
    let fake = fake();
    for (family, _, _, _, (tool, arguments)) in families() {
        std::fs::write(
            fake.path("o.json"),
            json!({"family": family, "additions": true}).to_string(),
        )
        .expect("writes");
        let ran = call(&fake, tool, &arguments, &["--options", "o.json"]).await;
        assert!(ran.to_string().contains("hello"), "{ran}");
        assert!(fake.state.lock().workspaces.is_empty(), "{family}");
        let refused = run(&fake, &["tool", "call", tool, "{", "--options", "o.json"]).await;
        assert_eq!(refused.status.code(), Some(1), "{family}");
        assert_eq!(json(&refused)["error"], "INVALID_ARGUMENTS", "{family}");
        assert!(fake.state.lock().workspaces.is_empty(), "{family}");
    }
}

#[tokio::test]
async fn an_error_is_json_on_stdout_and_code_1() {
    let fake = fake();
    for (words, code) in [
        (&["no_such_tool", "{}"][..], "UNKNOWN_TOOL"),
        (&["skill_load", r#"{"skill": "nope"}"#], "UNKNOWN_SKILL"),
        (&["skill_load", "[]"], "INVALID_ARGUMENTS"),
    ] {
        let output = run(&fake, &[&["tool", "call"], words].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let error = json(&output);
        assert_eq!(
            (&error["error"], &error["status"]),
            (&json!(code), &json!("failed"))
        );
    }
}

#[tokio::test]
async fn unreadable_options_and_sessions_are_refused_before_any_call() {
    let fake = fake();
    for (file, content, said) in [
        (
            "o.json",
            r#"{"max_skills": 3}"#,
            "holds no options for tools",
        ),
        ("o.json", "[]", "holds no options for tools"),
        ("o.json", r#"{"tools": ["nope"]}"#, "nope"),
        ("s.json", r#"{"app": "a"}"#, "holds no session"),
        (
            "s.json",
            r#"{"app": "a", "session": "b", "more": 1}"#,
            "holds no session",
        ),
    ] {
        std::fs::write(fake.path(file), content).expect("writes");
        let option = if file == "o.json" {
            "--options"
        } else {
            "--session-file"
        };
        let output = run(&fake, &["tool", "call", "skill_list", "{}", option, file]).await;
        assert_eq!(output.status.code(), Some(1), "{content}");
        let error = text(&output.stderr);
        assert!(error.contains(said), "{content}: {error}");
        assert_eq!(
            std::fs::read_to_string(fake.path(file)).expect("is there"),
            content
        );
    }
    let calls = fake.calls.take();
    assert!(calls.iter().all(|call| !call.contains("Skill")));
}

#[tokio::test]
async fn arguments_come_from_stdin_and_are_bounded() {
    let fake = fake();
    // Editors on Windows begin text with this mark.
    std::fs::write(fake.path("o.json"), "\u{feff}{}").expect("writes");
    for (arguments, code) in [
        (r#"{"skill": "alpha"}"#.to_owned(), 0),
        ("\u{feff}{\"skill\": \"alpha\"}".to_owned(), 0),
        (format!("{{\"skill\": \"{}\"}}", "x".repeat(4 << 20)), 1),
    ] {
        let words = ["tool", "call", "skill_load", "-", "--options", "o.json"];
        let mut child = skillctl(&fake, &words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut stdin = child.stdin.take().expect("piped");
        // One that has read enough reads no more.
        drop(stdin.write_all(arguments.as_bytes()).await);
        drop(stdin);
        let output = wait(child).await;
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert_eq!(
            text(&output.stderr).contains("longer than 4.0 MiB"),
            code == 1
        );
    }
}

#[tokio::test]
async fn a_call_repeated_with_its_id_runs_nothing_twice() {
    let fake = fake();
    let arguments = json!({"skill": "alpha", "command": "hello"});
    for _ in 0..2 {
        let ran = call(
            &fake,
            "skill_run",
            &arguments,
            &["--session-file", "s.json", "--id", "c1"],
        )
        .await;
        assert_eq!(ran["stdout"], "hello\n");
    }
    assert_eq!(fake.state.lock().starts, 1);
    call(
        &fake,
        "skill_run",
        &arguments,
        &["--session-file", "s.json"],
    )
    .await;
    assert_eq!(fake.state.lock().starts, 2);
}

#[tokio::test]
async fn calls_side_by_side_lose_nothing_and_keep_the_cap() {
    let fake = fake();
    std::fs::write(
        fake.path("o.json"),
        r#"{"max_loaded_skills": 3, "load_mode": "session"}"#,
    )
    .expect("writes");
    let more = ["--options", "o.json", "--session-file", "s.json"];
    for skill in ["alpha", "beta"] {
        call(&fake, "skill_load", &json!({"skill": skill}), &more).await;
    }
    let before = fake.calls.count("GetSkill");
    fake.calls.hold("GetSkill");
    let calls = ["gamma", "delta"].map(|skill| {
        let arguments = json!({"skill": skill}).to_string();
        spawn(
            &fake,
            &[&["tool", "call", "skill_load", &arguments], &more[..]].concat(),
        )
    });
    answer_both(&fake, before).await;
    for child in calls {
        let output = wait(child).await;
        assert!(output.status.success(), "{}", text(&output.stdout));
    }
    let state = state(&fake.path("s.json"));
    let order = state["skill:loaded_order:"].as_str().expect("an order");
    let mut order: Vec<String> = serde_json::from_str(order).expect("JSON");
    order.sort();
    assert_eq!(order, ["beta", "delta", "gamma"], "{state:#}");
    assert!(state.get("skill:loaded:alpha").is_none(), "{state:#}");
}

#[tokio::test]
async fn a_result_is_printed_though_its_session_cannot_be_kept() {
    let fake = fake();
    call(
        &fake,
        "skill_list",
        &json!({}),
        &["--session-file", "s.json"],
    )
    .await;
    fake.calls.hold("GetSkill");
    let child = spawn(
        &fake,
        &[
            "tool",
            "call",
            "skill_load",
            r#"{"skill": "alpha"}"#,
            "--session-file",
            "s.json",
        ],
    );
    fake.calls.wait_for("GetSkill", 1).await;
    std::fs::remove_file(fake.path("s.json")).expect("is there");
    std::fs::create_dir(fake.path("s.json")).expect("makes");
    fake.calls.release();
    let output = wait(child).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["message"], "loaded: alpha");
    assert!(
        text(&output.stderr).contains("cannot open s.json"),
        "{}",
        text(&output.stderr)
    );
}

#[tokio::test]
async fn an_interrupt_kills_the_calls_command_even_if_it_starts_late() {
    for starts_late in [false, true] {
        for kept in [true, false] {
            let fake = fake();
            if starts_late {
                fake.calls.hold_until(STARTS, "KillExec");
            }
            let arguments = r#"{"skill": "alpha", "command": "forever"}"#;
            let mut words = vec!["tool", "call", "skill_run", arguments];
            if kept {
                words.extend(["--session-file", "s.json"]);
            }
            let child = spawn(&fake, &words);
            fake.calls.wait_for(STARTS, 1).await;
            signal(&child, Signal::INT);
            let output = wait(child).await;
            assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
            let state = fake.state.lock();
            assert!(state.execs.values().all(|exec| *exec.killed.borrow()));
            assert_eq!(state.workspaces.len(), usize::from(kept));
        }
    }
}

#[tokio::test]
async fn a_second_interrupt_does_not_wait_for_the_workspaces_end() {
    let fake = fake();
    fake.calls.hold("DeleteWorkspace");
    let child = spawn(
        &fake,
        &[
            "tool",
            "call",
            "skill_run",
            r#"{"skill": "alpha", "command": "hello"}"#,
        ],
    );
    fake.calls.wait_for("DeleteWorkspace", 1).await;
    signal(&child, Signal::INT);
    let output = wait(child).await;
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(json(&output)["stdout"], "hello\n", "the result was there");
    assert!(
        text(&output.stderr)
            .contains("did not wait for the end of the session with workspace session-")
    );
}

#[tokio::test]
async fn card_server_connections_are_closed_even_in_a_kept_session() {
    let server = McpServer::start(&["echo"]).await;
    let fake = fake();
    let kit = Kit::new("remote", "1.0.0").card(json!({"mcps": {"s": server.entry()}}));
    fake.state.lock().kits.push(kit);
    let options = json!({"family": "sherma", "mcp": {"urls": [server.url]}});
    std::fs::write(fake.path("o.json"), options.to_string()).expect("writes");
    let more = ["--options", "o.json", "--session-file", "s.json"];
    call(
        &fake,
        "load_skill_md",
        &json!({"skill_id": "remote"}),
        &more,
    )
    .await;
    assert_eq!(server.opened(), 1);
    let closed = tokio::time::timeout(DEADLINE, server.has_closed(1)).await;
    closed.expect("is closed");
    // The next call connects anew.
    call(&fake, "echo", &json!({"x": 1}), &more).await;
    let closed = tokio::time::timeout(DEADLINE, server.has_closed(2)).await;
    closed.expect("is closed");
}

#[tokio::test]
async fn control_characters_are_escaped_in_results() {
    let fake = fake();
    let arguments = json!({"skill": "alpha", "command": "a\u{9b}2Jb\u{7f}c"});
    let words = ["tool", "call", "skill_run", &arguments.to_string()];
    let output = run(&fake, &words).await;
    let said = text(&output.stdout);
    assert!(
        !said.chars().any(|char| char.is_control() && char != '\n'),
        "{said:?}"
    );
    assert_eq!(json(&output)["stdout"], "a\u{9b}2Jb\u{7f}c\n");
}

#[tokio::test]
async fn artifacts_of_an_unkept_session_are_named_with_their_command() {
    let fake = fake();
    let staged = b"a".to_vec();
    fake.state.lock().staged.insert("out/a.txt".into(), staged);
    let words = [
        "tool",
        "call",
        "workspace_save_artifact",
        r#"{"path": "out/a.txt"}"#,
    ];
    let saved = run(&fake, &words).await;
    assert_eq!(saved.status.code(), Some(0));
    assert_eq!(json(&saved)["ref"], "artifact://out/a.txt@0");
    let load = "load them with: skillctl artifact load out/a.txt@0 --app skillctl --session ";
    let said = text(&saved.stderr);
    let (_, session) = said.split_once(load).expect(said);
    assert!(!session.trim().is_empty(), "{said}");
    // A session file names the session already.
    let kept = run(&fake, &[&words[..], &["--session-file", "s.json"]].concat()).await;
    assert_eq!(json(&kept)["ref"], "artifact://out/a.txt@1");
    assert_eq!(text(&kept.stderr), "");
}

#[tokio::test]
async fn trpc_agent_variables_restrict_commands_or_are_reported() {
    let fake = fake();
    let call = |variable: (&'static str, &'static str)| {
        let arguments = r#"{"command": "hello there"}"#;
        let mut command = skillctl(&fake, &["tool", "call", "workspace_exec", arguments]);
        command.env(variable.0, variable.1);
        async move { ended(&mut command).await }
    };
    for (variable, restricted) in [
        (("TRPC_AGENT_SKILL_RUN_ALLOWED_COMMANDS", "ls, wc"), true),
        (("TRPC_AGENT_SKILL_RUN_DENIED_COMMANDS", "hello"), true),
        (("TRPC_AGENT_SKILL_RUN_ALLOWED_COMMANDS", "hello"), false),
    ] {
        let output = call(variable).await;
        let is_refused = text(&output.stdout).contains("COMMAND_REFUSED");
        assert_eq!(is_refused, restricted, "{variable:?}");
    }
    let output = call(("SKILLS_CACHE_DIR", "/tmp/cache")).await;
    assert!(output.status.success());
    let note = text(&output.stderr);
    assert!(note.contains("SKILLS_CACHE_DIR is ignored"), "{note}");
}
