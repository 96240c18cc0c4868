//! Every error that a call can meet, in the words that a model gets.

use serde_json::json;
use skilld_tools::ToolOptions;
use tonic::{Code, Status};

use super::{Talk, run};
use crate::conversation::{check_fields, check_warning, refusals};
use skilld_testing::{EVENTS, refusal};

/// Calls of every tool that must fail.
const REFUSALS: &str = r#"
skill_rum {} => UNKNOWN_TOOL unknown tool: skill_rum; there are skill_list,
skill_load {} => INVALID_ARGUMENTS invalid args: skill is required
skill_load {"skill": " "} => INVALID_ARGUMENTS skill is required
skill_load {"skill": "dem"} => UNKNOWN_SKILL unknown skill: dem; did you mean demo or other?
skill_list_tools {} => INVALID_ARGUMENTS skill is required
skill_list_tools {"skill": "x"} => UNKNOWN_SKILL unknown skill: x
skill_list_docs {} => INVALID_ARGUMENTS skill is required
skill_list_docs {"skill": "x"} => UNKNOWN_SKILL unknown skill: x
skill_select_docs {} => INVALID_ARGUMENTS skill is required
skill_select_docs {"skill": "x"} => UNKNOWN_SKILL unknown skill: x
skill_select_tools {} => INVALID_ARGUMENTS skill is required
skill_select_tools {"skill": "x"} => UNKNOWN_SKILL unknown skill: x
skill_run {"skill": "demo"} => INVALID_ARGUMENTS skill and command are required
skill_run {"command": "x"} => INVALID_ARGUMENTS skill and command are required
skill_run {"skill": "demo", "command": " "} => INVALID_ARGUMENTS skill and command are required
skill_run {"skill": "x", "command": "x"} => UNKNOWN_SKILL unknown skill: x
skill_run "{" => INVALID_ARGUMENTS not JSON
skill_run [1] => INVALID_ARGUMENTS not an object
skill_run {"timeout": "soon"} => INVALID_ARGUMENTS timeout must be a whole number, not "soon"
skill_run {"timeout": 1.5} => INVALID_ARGUMENTS timeout must be a whole number, not 1.5
skill_run {"env": {"A": [1]}} => INVALID_ARGUMENTS env.A must be a text, not a list
skill_run {"skill": "demo", "command": "x", "inputs": 5} => INVALID_ARGUMENTS inputs[0] must be an object, not 5
skill_run {"skill": "demo", "command": "x", "editor_text": "x", "env": {"EDITOR": "vi"}} => INVALID_ARGUMENTS editor_text cannot be combined with env.EDITOR
skill_exec {"skill": "demo", "command": "x", "editor_text": "x", "env": {"VISUAL": "vi"}} => INVALID_ARGUMENTS editor_text cannot be combined with env.VISUAL
skill_run {"skill": "demo", "command": "x", "inputs": [{"from": "workspace://missing"}]} => FILE_NOT_FOUND file not found: workspace://missing
skill_exec {} => INVALID_ARGUMENTS skill and command are required
skill_write_stdin {"chars": "x"} => INVALID_ARGUMENTS session_id is required
skill_write_stdin {"session_id": "x"} => UNKNOWN_SESSION unknown session_id: x
skill_poll_session {"session_id": " "} => INVALID_ARGUMENTS session_id is required
skill_poll_session {"session_id": "../w/execs/x"} => UNKNOWN_SESSION unknown session_id
skill_kill_session {} => INVALID_ARGUMENTS session_id is required
skill_kill_session {"session_id": "x"} => UNKNOWN_SESSION unknown session_id: x
workspace_exec {} => INVALID_ARGUMENTS command is required
workspace_write_stdin {"session_id": "x"} => UNKNOWN_SESSION unknown session_id: x
workspace_kill_session {"session_id": "x"} => UNKNOWN_SESSION unknown session_id: x
workspace_save_artifact {} => INVALID_ARGUMENTS path is required
workspace_save_artifact {"path": "../x"} => INVALID_ARGUMENTS must not contain ..
workspace_save_artifact {"path": "skills/a"} => INVALID_ARGUMENTS beneath work/, out/ or runs/
workspace_save_artifact {"path": "out/[a].txt"} => FILE_NOT_FOUND file not found: out/[a].txt
workspace_save_artifact {"path": "out/gone"} => FILE_NOT_FOUND file not found: out/gone
read_file {} => INVALID_ARGUMENTS file_name is required
read_file {"file_name": "x", "start_line": -1} => INVALID_ARGUMENTS start_line must not be negative
read_file {"file_name": "x", "num_lines": -1} => INVALID_ARGUMENTS num_lines must not be negative
read_file {"file_name": "host:///etc/passwd"} => INVALID_ARGUMENTS is none of workspace://
read_file {"file_name": "workspace:///etc/passwd"} => INVALID_ARGUMENTS leads out of the workspace
read_file {"file_name": "workspace://gone"} => FILE_NOT_FOUND file not found: workspace://gone
read_file {"file_name": "artifact://gone@1"} => FILE_NOT_FOUND file not found
read_file {"file_name": "skill://demo/usage"} => FILE_NOT_FOUND did you mean USAGE.md?
read_file {"file_name": "skill://x/a"} => UNKNOWN_SKILL unknown skill: x
read_file {"file_name": "skill://demo"} => INVALID_ARGUMENTS is not skill://name/path
read_file {"file_name": "skill://demo/../x"} => INVALID_ARGUMENTS leads out of the skill
read_file {"file_name": "skill://demo/references"} => INVALID_ARGUMENTS is a folder, not a file
read_file {"file_name": "skill://not a name/x"} => INVALID_ARGUMENTS is no name
read_file {"file_name": "workspace://../x"} => INVALID_ARGUMENTS leads out of the workspace
read_file {"file_name": "out"} => INVALID_ARGUMENTS is a folder, not a file
read_file {"file_name": "artifact://a@99999999999999999999"} => INVALID_ARGUMENTS a version that is no number
skill_load {"skill": "../demo"} => INVALID_ARGUMENTS is no name
read_file {"file_name": "skill://demo/references/picture.png"} => NOT_TEXT not a text file
"#;

#[tokio::test]
async fn every_error_has_a_code_and_says_what_is_wrong() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let file = ("out/a.txt".to_owned(), b"a".to_vec());
    talk.fake.state.lock().staged.extend([file]);
    for case in refusals(REFUSALS) {
        let (found, message) = talk.refused(case.tool, case.arguments).await;
        assert_eq!(found, case.code, "{}: {message}", case.line);
        assert!(message.contains(case.text), "{}: {message}", case.line);
    }
    assert_eq!(talk.fake.state.lock().starts, 0, "nothing ran");
}

#[tokio::test]
async fn daemon_errors_are_passed_on_with_their_reason() {
    let mut talk = Talk::with_options(|options| options.pool = "full".into()).await;
    let error = talk
        .try_call("skill_run", run("x"))
        .await
        .expect_err("refused")
        .to_json();
    check_fields(
        &error,
        &json!({"error": "DAEMON", "reason": "POOL_EXHAUSTED"}),
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
async fn a_lost_workspace_is_recreated_unless_the_call_had_started() {
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
    check_warning(&again, "the workspace is a new one");
    let later = talk.call("skill_run", run("later")).await;
    assert_eq!(later.get("warnings"), None);
    talk.fake.state.lock().workspaces.clear();
    let result = talk
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    assert_eq!(result["output"], "hello\n");
    // The stream breaks after it began, and then the workspace is gone.
    let lost = refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
    talk.fake.calls.break_after(EVENTS, 1, Some(lost));
    let before = talk.fake.state.lock().starts;
    let lost = talk
        .refused("workspace_exec", json!({"command": "hello again"}))
        .await;
    assert_eq!(lost.0, "WORKSPACE_LOST");
    assert_eq!(talk.fake.state.lock().starts, before + 1);
}

#[tokio::test]
async fn a_run_that_was_accepted_is_never_made_in_a_new_workspace() {
    for (tool, arguments) in [
        ("workspace_exec", json!({"command": "hello"})),
        ("skill_run", run("hello")),
    ] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        talk.call("workspace_exec", json!({"command": "first"}))
            .await;
        // The connection breaks before the first event, and then the workspace is gone.
        let broken = Status::unavailable("the connection broke");
        let lost = refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
        for status in [broken, lost] {
            talk.fake.calls.break_after(EVENTS, 0, Some(status));
        }
        let before = talk.fake.state.lock().starts;
        let (code, _) = talk.refused(tool, arguments).await;
        assert_eq!(code, "WORKSPACE_LOST", "{tool}");
        assert_eq!(talk.fake.state.lock().starts, before + 1, "{tool}");
    }
}
