//! Every error that a call can meet, in the words that a model gets.

use serde_json::json;
use skilld_tools::ToolOptions;
use tonic::Code;

use super::{Talk, run};
use skilld_testing::refusal;

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn every_error_has_a_code_and_says_what_is_wrong() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let file = ("out/a.txt".to_owned(), b"a".to_vec());
    talk.fake.state.lock().staged.extend([file]);
    for (tool, arguments, code, said) in [
        (
            "skill_rum",
            json!({}),
            "UNKNOWN_TOOL",
            "unknown tool: skill_rum; there are skill_list, ",
        ),
        (
            "skill_load",
            json!({}),
            "INVALID_ARGUMENTS",
            "invalid args: skill is required",
        ),
        (
            "skill_load",
            json!({"skill": " "}),
            "INVALID_ARGUMENTS",
            "skill is required",
        ),
        (
            "skill_load",
            json!({"skill": "dem"}),
            "UNKNOWN_SKILL",
            "unknown skill: dem; did you mean demo or other?",
        ),
        (
            "skill_list_tools",
            json!({}),
            "INVALID_ARGUMENTS",
            "skill is required",
        ),
        (
            "skill_list_tools",
            json!({"skill": "x"}),
            "UNKNOWN_SKILL",
            "unknown skill: x",
        ),
        (
            "skill_list_docs",
            json!({}),
            "INVALID_ARGUMENTS",
            "skill is required",
        ),
        (
            "skill_list_docs",
            json!({"skill": "x"}),
            "UNKNOWN_SKILL",
            "unknown skill: x",
        ),
        (
            "skill_select_docs",
            json!({}),
            "INVALID_ARGUMENTS",
            "skill is required",
        ),
        (
            "skill_select_docs",
            json!({"skill": "x"}),
            "UNKNOWN_SKILL",
            "unknown skill: x",
        ),
        (
            "skill_select_tools",
            json!({}),
            "INVALID_ARGUMENTS",
            "skill is required",
        ),
        (
            "skill_select_tools",
            json!({"skill": "x"}),
            "UNKNOWN_SKILL",
            "unknown skill: x",
        ),
        (
            "skill_run",
            json!({"skill": "demo"}),
            "INVALID_ARGUMENTS",
            "skill and command are required",
        ),
        (
            "skill_run",
            json!({"command": "x"}),
            "INVALID_ARGUMENTS",
            "skill and command are required",
        ),
        (
            "skill_run",
            json!({"skill": "demo", "command": " "}),
            "INVALID_ARGUMENTS",
            "skill and command are required",
        ),
        (
            "skill_run",
            json!({"skill": "x", "command": "x"}),
            "UNKNOWN_SKILL",
            "unknown skill: x",
        ),
        ("skill_run", json!("{"), "INVALID_ARGUMENTS", "not JSON"),
        (
            "skill_run",
            json!([1]),
            "INVALID_ARGUMENTS",
            "not an object",
        ),
        (
            "skill_run",
            json!({"timeout": "5"}),
            "INVALID_ARGUMENTS",
            "timeout must be a whole number, not \"5\"",
        ),
        (
            "skill_run",
            json!({"timeout": 1.5}),
            "INVALID_ARGUMENTS",
            "timeout must be a whole number, not 1.5",
        ),
        (
            "skill_run",
            json!({"env": {"A": 1}}),
            "INVALID_ARGUMENTS",
            "env.A must be a text, not 1",
        ),
        (
            "skill_run",
            json!({"skill": "demo", "command": "x", "editor_text": "x", "env": {"EDITOR": "vi"}}),
            "INVALID_ARGUMENTS",
            "editor_text cannot be combined with env.EDITOR",
        ),
        (
            "skill_exec",
            json!({"skill": "demo", "command": "x", "editor_text": "x", "env": {"VISUAL": "vi"}}),
            "INVALID_ARGUMENTS",
            "editor_text cannot be combined with env.VISUAL",
        ),
        (
            "skill_run",
            json!({"skill": "demo", "command": "x", "inputs": [{"from": "workspace://missing"}]}),
            "FILE_NOT_FOUND",
            "file not found: workspace://missing",
        ),
        (
            "skill_exec",
            json!({}),
            "INVALID_ARGUMENTS",
            "skill and command are required",
        ),
        (
            "skill_write_stdin",
            json!({"chars": "x"}),
            "INVALID_ARGUMENTS",
            "session_id is required",
        ),
        (
            "skill_write_stdin",
            json!({"session_id": "x"}),
            "UNKNOWN_SESSION",
            "unknown session_id: x",
        ),
        (
            "skill_poll_session",
            json!({"session_id": " "}),
            "INVALID_ARGUMENTS",
            "session_id is required",
        ),
        (
            "skill_poll_session",
            json!({"session_id": "../w/execs/x"}),
            "UNKNOWN_SESSION",
            "unknown session_id",
        ),
        (
            "skill_kill_session",
            json!({}),
            "INVALID_ARGUMENTS",
            "session_id is required",
        ),
        (
            "skill_kill_session",
            json!({"session_id": "x"}),
            "UNKNOWN_SESSION",
            "unknown session_id: x",
        ),
        (
            "workspace_exec",
            json!({}),
            "INVALID_ARGUMENTS",
            "command is required",
        ),
        (
            "workspace_exec",
            json!({"command": "x", "cwd": "work/[a]"}),
            "INVALID_ARGUMENTS",
            "glob patterns",
        ),
        (
            "workspace_write_stdin",
            json!({"session_id": "x"}),
            "UNKNOWN_SESSION",
            "unknown session_id: x",
        ),
        (
            "workspace_kill_session",
            json!({"session_id": "x"}),
            "UNKNOWN_SESSION",
            "unknown session_id: x",
        ),
        (
            "workspace_save_artifact",
            json!({}),
            "INVALID_ARGUMENTS",
            "path is required",
        ),
        (
            "workspace_save_artifact",
            json!({"path": "../x"}),
            "INVALID_ARGUMENTS",
            "must not contain ..",
        ),
        (
            "workspace_save_artifact",
            json!({"path": "skills/a"}),
            "INVALID_ARGUMENTS",
            "beneath work/, out/ or runs/",
        ),
        (
            "workspace_save_artifact",
            json!({"path": "out/*"}),
            "INVALID_ARGUMENTS",
            "glob patterns",
        ),
        (
            "workspace_save_artifact",
            json!({"path": "out/gone"}),
            "FILE_NOT_FOUND",
            "file not found: out/gone",
        ),
        (
            "read_file",
            json!({}),
            "INVALID_ARGUMENTS",
            "file_name is required",
        ),
        (
            "read_file",
            json!({"file_name": "x", "start_line": 0}),
            "INVALID_ARGUMENTS",
            "start_line must be greater than 0",
        ),
        (
            "read_file",
            json!({"file_name": "x", "num_lines": -1}),
            "INVALID_ARGUMENTS",
            "num_lines must be greater than 0",
        ),
        (
            "read_file",
            json!({"file_name": "host:///etc/passwd"}),
            "INVALID_ARGUMENTS",
            "is none of workspace://",
        ),
        (
            "read_file",
            json!({"file_name": "workspace:///etc/passwd"}),
            "INVALID_ARGUMENTS",
            "must be relative",
        ),
        (
            "read_file",
            json!({"file_name": "workspace://gone"}),
            "FILE_NOT_FOUND",
            "file not found: workspace://gone",
        ),
        (
            "read_file",
            json!({"file_name": "artifact://gone@1"}),
            "FILE_NOT_FOUND",
            "file not found",
        ),
        (
            "read_file",
            json!({"file_name": "skill://demo/usage"}),
            "FILE_NOT_FOUND",
            "did you mean USAGE.md?",
        ),
        (
            "read_file",
            json!({"file_name": "skill://x/a"}),
            "UNKNOWN_SKILL",
            "unknown skill: x",
        ),
        (
            "read_file",
            json!({"file_name": "skill://demo"}),
            "INVALID_ARGUMENTS",
            "is not skill://name/path",
        ),
        (
            "read_file",
            json!({"file_name": "skill://demo/../x"}),
            "INVALID_ARGUMENTS",
            "leads out of the skill",
        ),
        (
            "read_file",
            json!({"file_name": "skill://demo/references"}),
            "INVALID_ARGUMENTS",
            "is a folder, not a file",
        ),
        (
            "read_file",
            json!({"file_name": "skill://not a name/x"}),
            "INVALID_ARGUMENTS",
            "is no name",
        ),
        (
            "read_file",
            json!({"file_name": "workspace://../x"}),
            "INVALID_ARGUMENTS",
            "leads out of the workspace",
        ),
        (
            "read_file",
            json!({"file_name": "out"}),
            "INVALID_ARGUMENTS",
            "is a folder, not a file",
        ),
        (
            "read_file",
            json!({"file_name": "artifact://a@99999999999999999999"}),
            "INVALID_ARGUMENTS",
            "a version that is no number",
        ),
        (
            "skill_load",
            json!({"skill": "../demo"}),
            "INVALID_ARGUMENTS",
            "is no name",
        ),
        (
            "read_file",
            json!({"file_name": "skill://demo/references/picture.png"}),
            "NOT_TEXT",
            "not a UTF-8 text file",
        ),
    ] {
        let (found, message) = talk.refused(tool, arguments.clone()).await;
        assert_eq!(found, code, "{tool} {arguments}: {message}");
        assert!(message.contains(said), "{tool} {arguments}: {message}");
    }
    assert_eq!(talk.fake.state.lock().starts, 0, "nothing ran");
}

#[tokio::test]
async fn what_the_daemon_says_is_passed_on_with_its_reason() {
    let options = ToolOptions {
        pool: "full".into(),
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(options).await;
    let error = talk
        .try_call("skill_run", run("x"))
        .await
        .expect_err("refused");
    let error = error.to_json();
    assert_eq!(
        (&error["error"], &error["reason"]),
        (&json!("DAEMON"), &json!("REASON_POOL_EXHAUSTED"))
    );
}

#[tokio::test]
async fn a_call_id_is_for_one_command() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.id = "call_1".into();
    let first = talk.call("skill_run", run("hello")).await;
    assert_eq!(talk.call("skill_run", run("hello")).await, first);
    assert_eq!(talk.fake.state.lock().starts, 1);
    let taken = talk.refused("skill_run", run("other")).await;
    let said = "the call id \"call_1\" was used before in this session: for another command, or for one that is no longer known";
    assert_eq!(taken, ("CALL_ID_TAKEN".into(), said.into()));
}

/// The daemon says whether something ran: only then nothing is tried again.
#[tokio::test]
async fn a_workspace_that_went_is_made_again_unless_something_ran_in_it() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.call("skill_run", run("hello")).await;
    talk.fake.state.lock().workspaces.clear();
    talk.calls();
    let again = talk.call("skill_run", run("again")).await;
    assert!(
        talk.calls()
            .contains(&"WorkspaceService/CreateWorkspace".to_owned())
    );
    // What is missing in it must not come as a surprise; said once.
    let warning = again["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.starts_with("the workspace is a new one"),
        "{warning}"
    );
    let later = talk.call("skill_run", run("later")).await;
    assert_eq!(later.get("warnings"), None);
    talk.fake.state.lock().workspaces.clear();
    let result = talk
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    assert_eq!(result["output"], "hello\n");
    // The stream breaks after it began, and then the workspace is gone.
    let lost = refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
    talk.fake
        .state
        .lock()
        .breaks
        .push_back(skilld_testing::Break {
            after: 1,
            status: Some(lost),
        });
    let before = talk.fake.state.lock().starts;
    let lost = talk
        .refused("workspace_exec", json!({"command": "hello again"}))
        .await;
    assert_eq!(lost.0, "WORKSPACE_LOST");
    assert_eq!(talk.fake.state.lock().starts, before + 1);
}
