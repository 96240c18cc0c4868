//! `skillctl tool --workspace`: the tools in a workspace that exists already.

use crate::commands_tool::{fake, json, run, text};

#[tokio::test]
async fn a_given_workspace_is_used_and_neither_made_nor_deleted() {
    let fake = fake();
    let created = run(&fake, &["workspace", "create", "--id", "mine"]).await;
    assert!(created.status.success(), "{}", text(&created.stderr));
    let before = fake.calls.count("CreateWorkspace");
    let skill_run = r#"{"skill": "alpha", "command": "hello"}"#;
    let call = [
        "tool",
        "call",
        "skill_run",
        skill_run,
        "--workspace",
        "mine",
    ];
    let output = run(&fake, &call).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(json(&output)["stdout"], "hello\n");
    assert_eq!(fake.calls.count("CreateWorkspace"), before);
    assert_eq!(fake.calls.count("DeleteWorkspace"), 0);
    // A lost one is not replaced by another.
    let gone = [
        "tool",
        "call",
        "skill_run",
        skill_run,
        "--workspace",
        "gone",
    ];
    let output = run(&fake, &gone).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert_eq!(fake.calls.count("CreateWorkspace"), before);
    // A file is that of one place.
    let dir = tempfile::tempdir().expect("temp dir");
    let file = dir.path().join("chat.json").display().to_string();
    let kept = [&call[..], &["--session-file", &file]].concat();
    let output = run(&fake, &kept).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let other = [
        "tool",
        "list",
        "--workspace",
        "other",
        "--session-file",
        &file,
    ];
    let output = run(&fake, &other).await;
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("is a session in mine, not in other"),
        "{said}"
    );
    let output = run(&fake, &["tool", "end", "--session-file", &file]).await;
    assert!(text(&output.stderr).contains("workspace mine stays"));
    assert_eq!(fake.calls.count("DeleteWorkspace"), 0);
}

#[tokio::test]
async fn an_empty_workspace_is_refused() {
    let fake = fake();
    for command in [&["tool", "list"][..], &["mcp"]] {
        let output = run(&fake, &[command, &["--workspace", ""]].concat()).await;
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(text(&output.stderr).contains("--workspace"));
    }
}
