//! Commands that go on between calls.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use skilld_client::v1::{CollectSummary, PollExecRequest};
use skilld_tools::state::SessionState;
use skilld_tools::{Session, ToolOptions};
use tonic::Code;

use super::{Talk, file, run, summary};
use crate::conversation::{check_fields, check_warning, tool_call};
use skilld_testing::live::Fault;
use skilld_testing::refusal;

/// Input of the session's command.
fn typed(talk: &Talk, id: &str) -> Vec<u8> {
    let state = talk.fake.state.lock();
    let mut execs = state.execs.iter();
    let found = execs.find(|(name, _)| name.ends_with(id));
    found.expect("is there").1.input.borrow().bytes.clone()
}

async fn started(talk: &mut Talk, command: &str) -> (Value, String) {
    let mut arguments = run(command);
    // Nothing more comes of the fake's programs.
    arguments["yield_ms"] = 1.into();
    let result = talk.call("skill_exec", arguments).await;
    let id = result["session_id"].as_str().expect("an id").to_owned();
    (result, id)
}

#[tokio::test]
async fn a_prompt_comes_once_is_hinted_and_is_answered() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (result, id) = started(&mut talk, "ask").await;
    assert_eq!(
        result,
        json!({"status": "running", "session_id": id, "output": "Name? ", "offset": 0, "next_offset": 6,
               "interaction": {"needs_input": true, "kind": "prompt", "hint": "Name?"}})
    );
    let poll = json!({"session_id": id, "yield_ms": 1});
    let nothing =
        json!({"status": "running", "session_id": id, "output": "", "offset": 6, "next_offset": 6});
    assert_eq!(talk.call("skill_poll_session", poll.clone()).await, nothing);
    let write = json!({"SessionId": id, "chars": "Ada", "yieldTimeMs": 1});
    let half = talk.call("skill_write_stdin", write).await;
    check_fields(&half, &json!({"output": "Ada", "status": "running"}));
    let write = json!({"session_id": id, "submit": true});
    let ended = talk.call("skill_write_stdin", write).await;
    check_fields(
        &ended,
        &json!({"output": "\n", "status": "exited", "exit_code": 3}),
    );
    check_fields(&ended, &json!({"offset": 9, "next_offset": 10}));
    assert_eq!(ended["result"]["stdout"], "Name? Ada\n");
    assert_eq!(ended.get("interaction"), None);
    // The same result later, from the state alone.
    talk.calls();
    let again = talk.call("skill_poll_session", poll).await;
    assert_eq!(again["result"], ended["result"]);
    assert_eq!(talk.calls(), ["ExecService/PollExec"]);
}

#[tokio::test]
async fn initial_stdin_with_eof_ends_the_input() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut arguments = run("cat");
    arguments["stdin"] = "all\n".into();
    arguments["eof"] = true.into();
    let result = talk.call("skill_exec", arguments).await;
    check_fields(&result, &json!({"status": "exited", "output": "all\n"}));
    assert_eq!(result["result"]["stdout"], "all\n");
    let id = result["session_id"].clone();
    let (code, message) = talk
        .refused("skill_write_stdin", json!({"session_id": id, "chars": "x"}))
        .await;
    assert_eq!(code, "SESSION_NOT_RUNNING");
    assert!(message.starts_with("session is not running: "), "{message}");
}

#[tokio::test]
async fn lines_and_bytes_are_bounded_and_the_rest_comes_later() {
    let mut talk = Talk::with_options(|options| options.output_bytes_max = 10).await;
    let (_, id) = started(&mut talk, "cat").await;
    let write = json!({"session_id": id, "chars": "1\n2\n3\n4\n5\n6\n7\n", "poll_lines": 2});
    let first = talk.call("skill_write_stdin", write).await;
    check_fields(&first, &json!({"output": "1\n2\n", "more": true}));
    let poll = json!({"session_id": id, "yield_ms": 1});
    let second = talk.call("skill_poll_session", poll.clone()).await;
    check_fields(&second, &json!({"output": "3\n4\n5\n6\n7\n", "more": true}));
    assert_eq!(talk.call("skill_poll_session", poll).await["output"], "");
}

#[tokio::test]
async fn waits_are_the_references_and_the_calls() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "ask").await;
    talk.call(
        "skill_poll_session",
        json!({"session_id": id, "yield_ms": 5}),
    )
    .await;
    let write = json!({"session_id": id, "chars": "x", "yield_ms": 999_999});
    talk.call("skill_write_stdin", write).await;
    talk.call("skill_exec", run("ask")).await;
    let polls = talk.fake.calls.requests::<PollExecRequest>("PollExec");
    let waits: Vec<i64> = polls
        .iter()
        .map(|poll| poll.wait.unwrap_or_default())
        .map(|wait| wait.seconds * 1000 + i64::from(wait.nanos) / 1_000_000)
        .collect();
    assert_eq!(waits, [1, 5, 60_000, 1000]);
}

#[tokio::test]
async fn sessions_of_skills_and_of_the_workspace_are_two_kinds() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, of_skill) = started(&mut talk, "ask").await;
    let command = json!({"command": "ask", "yield_time_ms": 1});
    let result = talk.call("workspace_exec", command).await;
    assert_eq!(result["status"], "running");
    let of_workspace = result["session_id"].clone();
    for (tool, id) in [
        ("workspace_write_stdin", json!(of_skill)),
        ("workspace_kill_session", json!(of_skill)),
        ("skill_write_stdin", of_workspace.clone()),
        ("skill_poll_session", of_workspace.clone()),
        ("skill_kill_session", of_workspace.clone()),
    ] {
        assert_eq!(
            talk.refused(tool, json!({"session_id": id})).await.0,
            "UNKNOWN_SESSION",
            "{tool}"
        );
    }
    let write = json!({"session_id": of_workspace, "chars": "x", "append_newline": true});
    let ended = talk.call("workspace_write_stdin", write).await;
    assert_eq!(
        (&ended["exit_code"], ended.get("result")),
        (&json!(3), None)
    );
}

/// The id is of no use with another session's state, or none.
#[tokio::test]
async fn an_id_of_another_session_is_unknown() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "ask").await;
    for change in ["user", "session", "app"] {
        let mine = talk.session.clone();
        match change {
            "user" => talk.session.user = "bob".into(),
            "session" => talk.session.session = "2".into(),
            _ => talk.session.app = "other".into(),
        }
        for tool in [
            "skill_poll_session",
            "skill_write_stdin",
            "skill_kill_session",
        ] {
            let arguments = json!({"session_id": id, "chars": "x"});
            let unknown = (
                "UNKNOWN_SESSION".to_owned(),
                format!("unknown session_id: {id}"),
            );
            assert_eq!(
                talk.refused(tool, arguments).await,
                unknown,
                "{change} {tool}"
            );
        }
        talk.session = mine;
    }
    talk.state = SessionState::new();
    assert_eq!(
        talk.refused("skill_poll_session", json!({"session_id": id}))
            .await
            .0,
        "UNKNOWN_SESSION"
    );
}

#[tokio::test]
async fn ended_sessions_are_forgotten_in_the_end() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    for _ in 0..20 {
        let mut arguments = run("cat");
        arguments["eof"] = true.into();
        talk.call("skill_exec", arguments).await;
    }
    let kept = talk
        .state
        .iter()
        .filter(|(key, _)| key.starts_with("temp:skill:exec:"));
    assert_eq!(kept.count(), 17);
}

/// However long the texts are that two calls type, and whatever became of the first one's look.
#[tokio::test]
async fn equal_texts_of_two_calls_are_typed_twice_and_a_repeat_once() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "cat").await;
    let write = |text: &str| json!({"session_id": id, "chars": text, "yield_ms": 1});
    let lost = refusal(Code::Internal, "INTERNAL", &[]);
    talk.fake.calls.refuse("PollExec", [lost]);
    talk.id = "c5".into();
    let first = talk.call("skill_write_stdin", write("1\n")).await;
    check_fields(
        &first,
        &json!({"status": "running", "output": "", "offset": 0}),
    );
    check_warning(&first, "its output could not be had yet: ");
    talk.id = "c6".into();
    let before = talk.state.clone();
    let second = talk.call("skill_write_stdin", write("2\n")).await;
    assert_eq!(second["output"], "1\n2\n");
    talk.state = before;
    assert_eq!(talk.call("skill_write_stdin", write("2\n")).await, second);
    assert_eq!(typed(&talk, &id), b"1\n2\n");
    // Side by side, from one state.
    let call = |id: &str, text| tool_call(id, "skill_write_stdin", write(text));
    let (left, right) = tokio::join!(
        talk.tools.call(&talk.session, &talk.state, call("c7", "a")),
        talk.tools.call(&talk.session, &talk.state, call("c8", "b")),
    );
    left.expect("typed");
    right.expect("typed");
    let mut last = typed(&talk, &id).split_off(4);
    last.sort_unstable();
    assert_eq!(last, b"ab");
}

#[tokio::test]
async fn a_program_that_reads_nothing_holds_no_call_up() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "deaf").await;
    let text = "0123456789".repeat(10 * 1024);
    let write = json!({"session_id": id, "chars": text, "eof": true, "yield_ms": 1});
    talk.id = "c5".into();
    let before = talk.state.clone();
    let answer = talk.call("skill_write_stdin", write.clone()).await;
    assert_eq!(answer["unwritten_bytes"], 100 * 1024 - 64 * 1024);
    check_fields(&answer, &json!({"status": "running", "more": null}));
    talk.state = before;
    assert_eq!(talk.call("skill_write_stdin", write).await, answer);
    assert_eq!(typed(&talk, &id), text.as_bytes()[..64 * 1024]);
    // What is typed at the start no more than that.
    let mut arguments = run("deaf");
    arguments["stdin"] = text.clone().into();
    arguments["yield_ms"] = 1.into();
    talk.id = "c6".into();
    let answer = talk.call("skill_exec", arguments).await;
    assert_eq!(answer["unwritten_bytes"], 100 * 1024 - 64 * 1024);
    let background = json!({"command": "deaf", "stdin": text, "background": true});
    let answer = talk.call("workspace_exec", background).await;
    assert_eq!(answer["unwritten_bytes"], 100 * 1024 - 64 * 1024);
}

#[tokio::test]
async fn a_started_session_is_known_even_if_its_first_calls_fail() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let long = json!("x".repeat(1024 * 1024 + 1));
    let mut arguments = run("cat");
    arguments["stdin"] = long.clone();
    for (tool, arguments) in [
        ("skill_exec", arguments),
        (
            "workspace_exec",
            json!({"command": "cat", "stdin": long, "background": true}),
        ),
    ] {
        let (code, message) = talk.refused(tool, arguments).await;
        assert_eq!(code, "INVALID_ARGUMENTS");
        assert!(
            message.contains("1048577 bytes; at most 1048576"),
            "{message}"
        );
    }
    assert_eq!(talk.fake.state.lock().starts, 0, "nothing ran");
    // The write is cut off.
    talk.fake.state.lock().faults.push_back(Fault::Deadline);
    let mut arguments = run("cat");
    arguments["stdin"] = "abcd".into();
    let started = talk.call("skill_exec", arguments).await;
    check_warning(&started, "nobody knows how much of its stdin was written");
    // The first look fails.
    let lost = refusal(Code::Internal, "INTERNAL", &[]);
    talk.fake.calls.refuse("PollExec", [lost]);
    let unseen = talk.call("skill_exec", run("ask")).await;
    assert_eq!(unseen["status"], "running");
    for id in [&started["session_id"], &unseen["session_id"]] {
        let killed = talk
            .call("skill_kill_session", json!({"session_id": id}))
            .await;
        assert_eq!(killed["status"], "killed");
    }
}

#[tokio::test]
async fn characters_are_whole_where_output_is_cut_after_the_end() {
    let mut talk = Talk::with_options(|options| options.output_bytes_max = 9).await;
    let text = "aé€😀".repeat(10);
    let mut arguments = run("cat");
    (arguments["stdin"], arguments["eof"]) = (text.clone().into(), true.into());
    let mut answer = talk.call("skill_exec", arguments).await;
    let poll = json!({"session_id": answer["session_id"]});
    let mut output = String::new();
    loop {
        assert_eq!(answer["status"], "exited");
        output.push_str(answer["output"].as_str().expect("text"));
        if answer["more"] != json!(true) {
            break;
        }
        answer = talk.call("skill_poll_session", poll.clone()).await;
    }
    assert_eq!(output, text);
}

#[tokio::test]
async fn a_prompt_is_seen_whatever_the_other_stream_says() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (result, id) = started(&mut talk, "login").await;
    assert_eq!(
        result,
        json!({"status": "running", "session_id": id, "output": "Name: ", "stderr": "connecting\n",
               "offset": 0, "next_offset": 17,
               "interaction": {"needs_input": true, "kind": "prompt", "hint": "Name:"}})
    );
    let killed = talk
        .call("skill_kill_session", json!({"session_id": id}))
        .await;
    assert_eq!(
        (&killed["output"], killed.get("stderr")),
        (&json!(""), None)
    );
}

/// The last line shown is not the last one that was printed.
#[tokio::test]
async fn truncated_output_is_not_taken_for_a_prompt() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "cat").await;
    let write = json!({"session_id": id, "chars": "files:\na\nb\n", "poll_lines": 1});
    let cut = talk.call("skill_write_stdin", write).await;
    check_fields(&cut, &json!({"output": "files:\n", "more": true}));
    assert_eq!(cut.get("interaction"), None);
}

#[tokio::test]
async fn a_session_lives_as_long_as_somebody_may_think() {
    let day = 24 * 3600;
    let own = ToolOptions {
        session_timeout: Some(Duration::from_secs(3600)),
        session_idle_timeout: None,
        ..ToolOptions::default()
    };
    for (options, whole, idle) in [
        (ToolOptions::default(), None, Some(900)),
        (own, Some(3600), None),
    ] {
        let mut talk = Talk::new(options).await;
        let shell = json!({"command": "ask", "yield_time_ms": 1});
        for (tool, arguments) in [("skill_exec", run("ask")), ("workspace_exec", shell)] {
            talk.call(tool, arguments.clone()).await;
            let spec = talk.spec();
            let timeout = spec.timeout.expect("as long as the daemon permits").seconds;
            assert_eq!(Some(timeout), whole.or(Some(timeout.max(day))), "{tool}");
            let silence = spec.no_output_timeout.map(|idle| idle.seconds);
            assert_eq!(silence, idle, "{tool}");
            talk.forget();
            let mut timed = arguments;
            timed["timeout"] = 7.into();
            talk.call(tool, timed).await;
            let spec = talk.spec();
            assert_eq!(
                spec.timeout.map(|timeout| timeout.seconds),
                Some(7),
                "{tool}"
            );
            assert_eq!(spec.no_output_timeout, None, "{tool}");
            talk.forget();
        }
        talk.call("skill_run", run("hello")).await;
        let spec = talk.spec();
        assert_eq!(spec.timeout.map(|timeout| timeout.seconds), Some(300));
        assert_eq!(spec.no_output_timeout, None);
    }
}

/// Returns the state with its keys in another order, as a store may give it back.
fn sorted(state: &SessionState) -> SessionState {
    let kept: BTreeMap<&str, &Value> = state.iter().collect();
    serde_json::from_value(json!(kept)).expect("a map")
}

#[tokio::test]
async fn the_latest_sessions_are_known_in_any_order_of_the_state() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut ids = Vec::new();
    for number in 0..20 {
        talk.id = format!("call_{number}");
        let mut arguments = run("cat");
        arguments["eof"] = true.into();
        let ended = talk.call("skill_exec", arguments).await;
        ids.push(ended["session_id"].clone());
        talk.state = sorted(&talk.state);
    }
    for (number, id) in ids.iter().enumerate() {
        let poll = json!({"session_id": id});
        let known = talk.try_call("skill_poll_session", poll).await.is_ok();
        assert_eq!(known, number >= 3, "{number}");
    }
    // Those that nobody saw the end of are not kept for ever either.
    for number in 20..100 {
        talk.id = format!("call_{number}");
        talk.call(
            "workspace_exec",
            json!({"command": "ask", "background": true}),
        )
        .await;
        talk.state = sorted(&talk.state);
    }
    let known = talk
        .state
        .iter()
        .filter(|(key, _)| key.starts_with("temp:skill:exec:"));
    assert_eq!(known.count(), 65);
}

#[tokio::test]
async fn a_result_outlives_the_daemons_memory_of_its_command() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let mut arguments = run("cat");
    (arguments["stdin"], arguments["eof"]) = ("all".into(), true.into());
    let ended = talk.call("skill_exec", arguments).await;
    let id = ended["session_id"].clone();
    talk.forget();
    for tool in ["skill_poll_session", "skill_kill_session"] {
        let later = talk.call(tool, json!({"session_id": id})).await;
        assert_eq!(later["result"], ended["result"], "{tool}");
        assert_eq!(
            (&later["status"], &later["output"], &later["exit_code"]),
            (&json!("exited"), &json!(""), &json!(0)),
            "{tool}"
        );
    }
}

#[tokio::test]
async fn a_start_that_is_repeated_goes_on_where_its_session_is() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.id = "c1".into();
    let (_, id) = started(&mut talk, "ask").await;
    talk.id = "c2".into();
    let write = json!({"session_id": id, "chars": "Ada", "yield_ms": 1});
    talk.call("skill_write_stdin", write).await;
    talk.id = "c1".into();
    let (again, _) = started(&mut talk, "ask").await;
    check_fields(&again, &json!({"output": "", "offset": 9}));
    assert_eq!(talk.fake.state.lock().starts, 1);
}

#[tokio::test]
async fn files_that_cannot_be_had_for_a_moment_come_with_a_later_call() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake.answer_collections(Vec::new());
    let mut arguments = run("cat");
    arguments["eof"] = true.into();
    let ended = talk.call("skill_exec", arguments).await;
    let warning = ended["result"]["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.starts_with("its files could not be collected"),
        "{warning}"
    );
    let end = vec![summary(CollectSummary::default())];
    talk.fake
        .answer_collections([file("out/a", b"a", 1, true), end].concat());
    let poll = json!({"session_id": ended["session_id"]});
    let later = talk.call("skill_poll_session", poll.clone()).await;
    assert_eq!(later["result"]["output_files"][0]["name"], "out/a");
    assert_eq!(later["result"].get("warnings"), None);
    talk.calls();
    assert_eq!(
        talk.call("skill_poll_session", poll).await["result"],
        later["result"]
    );
    assert_eq!(talk.calls(), ["ExecService/PollExec"]);
}

/// A token for one workspace may save no artifact.
#[tokio::test]
async fn files_that_may_not_be_saved_are_tried_once() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let refused = refusal(Code::PermissionDenied, "PERMISSION_DENIED", &[]);
    talk.fake.calls.refuse("CollectOutputs", [refused]);
    let mut arguments = run("cat");
    arguments["eof"] = true.into();
    arguments["save_as_artifacts"] = true.into();
    let ended = talk.call("skill_exec", arguments).await;
    check_warning(&ended["result"], "its files could not be collected");
    talk.calls();
    let poll = json!({"session_id": ended["session_id"]});
    let later = talk.call("skill_poll_session", poll).await;
    assert_eq!(later["result"], ended["result"]);
    assert_eq!(talk.calls(), ["ExecService/PollExec"]);
}

#[tokio::test]
async fn one_session_that_is_slow_to_end_holds_up_no_other() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "ask").await;
    talk.fake.calls.hold("CollectOutputs");
    let write = |id: &str| {
        tool_call(
            "",
            "skill_write_stdin",
            json!({"session_id": id, "submit": true}),
        )
    };
    let slow = talk.tools.call(&talk.session, &talk.state, write(&id));
    let others = async {
        talk.fake.calls.wait_for("CollectOutputs", 1).await;
        let other = Session {
            session: "2".into(),
            ..talk.session.clone()
        };
        let state = SessionState::new();
        let ask = tool_call("c1", "skill_exec", run("ask"));
        let answer = talk.tools.call(&other, &state, ask).await;
        answer.expect("goes on").result["output"].clone()
    };
    tokio::select! {
        ended = slow => panic!("{ended:?}"),
        output = others => assert_eq!(output, "Name? "),
    }
}

#[tokio::test]
async fn one_workspace_that_is_slow_to_come_holds_up_no_other() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let other = Session {
        session: "2".into(),
        ..talk.session.clone()
    };
    let state = SessionState::new();
    let call = || tool_call("", "skill_run", run("hello"));
    talk.call("skill_run", run("hello")).await;
    let answer = talk.tools.call(&other, &state, call()).await;
    answer.expect("runs");
    // Both are gone, and the first is not to be had.
    talk.fake.state.lock().workspaces.clear();
    talk.fake.calls.hang_after("CreateWorkspace", 0);
    talk.calls();
    let slow = talk.tools.call(&talk.session, &state, call());
    let others = async {
        // The first answer is the one that hangs.
        while talk.fake.state.lock().workspaces.is_empty() {
            tokio::task::yield_now().await;
        }
        let answer = talk.tools.call(&other, &state, call()).await;
        answer.expect("goes on").result["stdout"].clone()
    };
    tokio::select! {
        ended = slow => panic!("{ended:?}"),
        output = others => assert_eq!(output, "hello\n"),
    }
}

#[tokio::test]
async fn a_state_from_elsewhere_breaks_nothing() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let (_, id) = started(&mut talk, "ask").await;
    let mut state = json!(talk.state);
    let command = &mut state[format!("temp:skill:exec:{id}")];
    command["stdout"] = u64::MAX.into();
    command["stderr"] = u64::MAX.into();
    command["order"] = u64::MAX.into();
    talk.state = serde_json::from_value(state).expect("a map");
    talk.call("skill_exec", run("ask")).await;
    for tool in ["skill_poll_session", "skill_kill_session"] {
        let asked = json!({"session_id": id, "yield_ms": 1});
        let error = talk
            .try_call(tool, asked)
            .await
            .expect_err("is not so long");
        assert_eq!(error.code(), "DAEMON", "{tool}");
    }
}
