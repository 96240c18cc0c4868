//! Commands that go on between calls.

use serde_json::{Value, json};
use skilld_client::tools::Options;

use super::{Talk, run};

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
    let mut talk = Talk::new(Options::default()).await;
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
    assert_eq!(
        (&half["output"], &half["status"]),
        (&json!("Ada"), &json!("running"))
    );
    let write = json!({"session_id": id, "submit": true});
    let ended = talk.call("skill_write_stdin", write).await;
    assert_eq!(
        (&ended["output"], &ended["status"], &ended["exit_code"]),
        (&json!("\n"), &json!("exited"), &json!(3))
    );
    assert_eq!(
        (&ended["offset"], &ended["next_offset"]),
        (&json!(9), &json!(10))
    );
    assert_eq!(ended["result"]["stdout"], "Name? Ada\n");
    assert_eq!(ended.get("interaction"), None);
    // The same result later, from the state alone.
    talk.calls();
    let again = talk.call("skill_poll_session", poll).await;
    assert_eq!(again["result"], ended["result"]);
    assert_eq!(talk.calls(), ["ExecService/PollExec"]);
}

#[tokio::test]
async fn what_is_typed_first_may_end_the_input() {
    let mut talk = Talk::new(Options::default()).await;
    let mut arguments = run("cat");
    arguments["stdin"] = "all\n".into();
    arguments["eof"] = true.into();
    let result = talk.call("skill_exec", arguments).await;
    assert_eq!(
        (&result["status"], &result["output"]),
        (&json!("exited"), &json!("all\n"))
    );
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
    let options = Options {
        output_bytes_max: 10,
        ..Options::default()
    };
    let mut talk = Talk::new(options).await;
    let (_, id) = started(&mut talk, "cat").await;
    let write = json!({"session_id": id, "chars": "1\n2\n3\n4\n5\n6\n7\n", "poll_lines": 2});
    let first = talk.call("skill_write_stdin", write).await;
    assert_eq!(
        (&first["output"], &first["more"]),
        (&json!("1\n2\n"), &json!(true))
    );
    let poll = json!({"session_id": id, "yield_ms": 1});
    let second = talk.call("skill_poll_session", poll.clone()).await;
    assert_eq!(
        (&second["output"], &second["more"]),
        (&json!("3\n4\n5\n6\n7\n"), &json!(true))
    );
    assert_eq!(talk.call("skill_poll_session", poll).await["output"], "");
}

#[tokio::test]
async fn waits_are_the_references_and_the_calls() {
    let mut talk = Talk::new(Options::default()).await;
    let (_, id) = started(&mut talk, "ask").await;
    talk.call(
        "skill_poll_session",
        json!({"session_id": id, "yield_ms": 5}),
    )
    .await;
    let write = json!({"session_id": id, "chars": "x", "yield_ms": 999_999});
    talk.call("skill_write_stdin", write).await;
    talk.call("skill_exec", run("ask")).await;
    let waits: Vec<i64> = {
        let state = talk.fake.state.lock();
        let waits = state.polls.iter().map(|poll| poll.wait.unwrap_or_default());
        waits
            .map(|wait| wait.seconds * 1000 + i64::from(wait.nanos) / 1_000_000)
            .collect()
    };
    assert_eq!(waits, [1, 5, 60_000, 1000]);
}

#[tokio::test]
async fn killing_returns_the_end_of_what_was_printed_and_what_it_came_to() {
    let options = Options {
        output_bytes_max: 8,
        ..Options::default()
    };
    let mut talk = Talk::new(options).await;
    let (_, id) = started(&mut talk, "cat").await;
    let write =
        json!({"session_id": id, "chars": "0123456789abcdef", "poll_lines": 1, "yield_ms": 1});
    let seen = talk.call("skill_write_stdin", write).await;
    assert_eq!(seen["output"], "01234567");
    let killed = talk
        .call("skill_kill_session", json!({"session_id": id}))
        .await;
    assert_eq!(
        (&killed["ok"], &killed["status"]),
        (&json!(true), &json!("killed"))
    );
    assert_eq!(
        (&killed["output"], &killed["lost_bytes"]),
        (&json!("cdef"), &json!(4)),
        "{killed}"
    );
    assert_eq!(killed["result"]["reason"], "killed_by_client");
    // Once more it is the same, and the output is not there twice.
    let again = talk
        .call("skill_kill_session", json!({"session_id": id}))
        .await;
    assert_eq!(
        (&again["output"], &again["result"]),
        (&json!(""), &killed["result"])
    );
}

#[tokio::test]
async fn sessions_of_skills_and_of_the_workspace_are_two_kinds() {
    let mut talk = Talk::new(Options::default()).await;
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
    let mut talk = Talk::new(Options::default()).await;
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
    talk.state = skilld_client::state::SessionState::new();
    assert_eq!(
        talk.refused("skill_poll_session", json!({"session_id": id}))
            .await
            .0,
        "UNKNOWN_SESSION"
    );
}

#[tokio::test]
async fn ended_sessions_are_forgotten_in_the_end() {
    let mut talk = Talk::new(Options::default()).await;
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
