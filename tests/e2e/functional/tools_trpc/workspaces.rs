//! Workspaces of a conversation: editors side by side, and the loss of a container.
//!
//! Docker: a container is removed beneath a conversation, and the image's own `$EDITOR` runs in another one.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use skilld_client::v1::WorkspaceState;
use skilld_tests::{DefaultDaemon, docker, wait};
use skilld_tools::{ToolCall, ToolOptions};

use super::Talk;

#[tokio::test]
async fn editors_of_commands_side_by_side_are_their_own() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let talk = Talk::new(&daemon, "editors", ToolOptions::default())?;
    let edit = async |number: u32| {
        // Neither opens its editor before both are there.
        let command = format!(
            "cd $WORK_DIR; touch {number}; until [ -e 1 ] && [ -e 2 ]; do sleep 0.01; done; $EDITOR f{number}; cat f{number}"
        );
        let call = ToolCall {
            id: format!("call_{number}"),
            name: "skill_run".into(),
            arguments: json!({"skill": "python-math", "command": command, "editor_text": format!("text {number}")}),
        };
        talk.tools.call(&talk.session, &talk.state, call).await
    };
    let (first, second) = tokio::join!(edit(1), edit(2));
    assert_eq!(first?.result["stdout"], "text 1");
    assert_eq!(second?.result["stdout"], "text 2");
    talk.end().await?;
    daemon.stop().await
}

/// A workspace that was lost stays listed for a while: the session does not wait for that.
#[tokio::test]
async fn a_session_goes_on_when_its_container_was_lost() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut talk = Talk::new(&daemon, "lost", ToolOptions::default())?;
    let run = json!({"skill": "python-math", "command": "echo here"});
    talk.call("skill_run", run.clone()).await?;
    let workspace = talk.session.workspace_id();
    docker::remove(&daemon.container(&workspace)?).await?;
    wait::until(
        "the workspace is lost",
        Duration::from_secs(120),
        async || {
            let found = daemon.client.get_workspace(&workspace).await?;
            Ok((found.state() == WorkspaceState::Failed).then_some(()))
        },
    )
    .await?;
    assert_eq!(talk.call("skill_run", run).await?["stdout"], "here\n");
    let again = talk
        .call("workspace_exec", json!({"command": "echo here"}))
        .await?;
    assert_eq!(again["output"], "here\n");
    talk.end().await?;
    daemon.stop().await
}
