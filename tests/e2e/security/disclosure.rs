//! Tests that the daemon discloses no secret of its callers in what it writes about its work.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{
    CreateWorkspaceRequest, CreateWorkspaceTokenRequest, ErrorReason, ExecSpec, InputSpec,
    StageInputsRequest,
};
use skilld_tests::exec::{run, shell};
use skilld_tests::files::put;
use skilld_tests::http_page::fetch_page;
use skilld_tests::{Options, SharedDaemon, expect_refusal};
use tokio::process::Command;

use crate::security::python;

/// Secrets of a caller, each where only one part of the daemon sees it. All contain this word.
const WORD: &str = "canary";

fn environment(value: &str) -> BTreeMap<String, String> {
    [("PLANTED".to_owned(), format!("{WORD}-{value}"))].into()
}

/// Runs commands that succeed, fail, can't start and are too slow, with a secret in every part of each.
async fn run_commands(client: &skilld_client::Client, workspace: &str) -> Result<()> {
    let echo = "import sys; print(sys.argv[1], sys.stdin.read(), flush=True)";
    for failing in ["", "; sys.exit(3)", "; import os; os.abort()"] {
        let spec = ExecSpec {
            env: environment("exec-value"),
            ..python(
                &format!("{echo}{failing}"),
                &["canary-argument"],
                "canary-stdin",
            )
        };
        let outcome = run(client, workspace, spec).await?;
        ensure!(
            outcome.text() == "canary-argument canary-stdin\n",
            "{outcome:?}"
        );
    }
    let missing = ExecSpec {
        argv: vec![
            format!("/workspace/{WORD}-directory/no-program"),
            format!("{WORD}-argument"),
        ],
        env: environment("exec-value"),
        ..ExecSpec::default()
    };
    let outcome = run(client, workspace, missing).await?;
    ensure!(outcome.result.spawn_failure.is_some(), "{outcome:?}");
    let slow = ExecSpec {
        timeout: std::time::Duration::from_millis(100).try_into().ok(),
        ..shell("echo canary-output; sleep 60 # canary-shell")
    };
    run(client, workspace, slow).await?;
    Ok(())
}

/// Fails to fetch a URL with a secret in its query and in its password.
async fn fetch_input(client: &skilld_client::Client, workspace: &str) -> Result<()> {
    let url = format!("http://user:{WORD}-password@127.0.0.1:1/file?key={WORD}-query");
    let request = StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: vec![InputSpec {
            content: Some(Content::Source(url)),
            ..InputSpec::default()
        }],
        ..StageInputsRequest::default()
    };
    ensure!(client.stage_inputs(request).await.is_err());
    Ok(())
}

/// Calls with a wrong token, which may be the right one of another daemon, and returns it.
async fn call_with_wrong_token(
    shared: &SharedDaemon,
    token: &str,
    workspace: &str,
) -> Result<String> {
    let (id, secret) = token.split_at(token.len() - 43);
    let wrong = format!("{id}{}", secret.chars().rev().collect::<String>());
    tokio::fs::write(shared.path("token"), &wrong).await?;
    let refused = shared.connect().await?.get_workspace(workspace).await;
    expect_refusal(refused, ErrorReason::Unauthenticated)?;
    tokio::fs::write(shared.path("token"), token).await?;
    Ok(wrong)
}

#[tokio::test]
async fn no_secret_of_a_caller_reaches_log_audit_metrics_or_container() -> Result<()> {
    let headers = tempfile::NamedTempFile::new()?;
    std::fs::write(headers.path(), format!("authorization: {WORD}-header\n"))?;
    // No collector listens there, so the daemon reports failures.
    let options = Options::default()
        .set("files.input_urls", "true")
        .set("files.input_private_addresses", "true")
        .set("traces.endpoint", "http://127.0.0.1:1")
        .set("traces.headers_file", &headers.path().display().to_string());
    let mut shared = SharedDaemon::start_with(options).await?;
    let token = shared.create_token("planter", "tenant_admin").await?;
    let client = shared.connect().await?;
    let request = CreateWorkspaceRequest {
        workspace_id: "visible-name".to_owned(),
        env: environment("workspace-value"),
        ..CreateWorkspaceRequest::default()
    };
    let workspace = client.create_workspace(request).await?.name;
    let request = CreateWorkspaceTokenRequest {
        workspace: workspace.clone(),
        ..CreateWorkspaceTokenRequest::default()
    };
    let workspace_token = client.create_workspace_token(request).await?.token;
    run_commands(&client, &workspace).await?;
    fetch_input(&client, &workspace).await?;
    put(&client, &workspace, "work/file", format!("{WORD}-content")).await?;
    let wrong = call_with_wrong_token(&shared, &token, &workspace).await?;

    let container = shared.daemon.container(&workspace)?;
    let inspected = Command::new("docker")
        .args(["inspect", &container])
        .output()
        .await?;
    ensure!(inspected.status.success(), "docker inspect failed");
    let addresses = shared.daemon.metrics_addresses();
    let metrics = fetch_page(addresses.first().context("no metrics")?, "/metrics").await?;
    let listed = shared.daemon.client.list_problems(Default::default());
    let problems = format!("{:?}", listed.await?);
    client.delete_workspace(&workspace).await?;
    // Records of a stop and of an adoption are written, too.
    shared.daemon.crash().await?;
    shared.daemon.restart().await?;
    let written = [
        ("the log", shared.daemon.log()),
        (
            "the audit log",
            tokio::fs::read_to_string(shared.path("audit.log")).await?,
        ),
        ("the metrics", metrics),
        ("the problems", problems),
        ("the container", String::from_utf8(inspected.stdout)?),
    ];
    let name_is_in = |wanted: &str| {
        let found = written.iter().find(|(place, _)| *place == wanted);
        found.is_some_and(|(_, text)| text.contains("visible-name"))
    };
    ensure!(
        name_is_in("the log") && name_is_in("the audit log"),
        "the texts aren't of this workspace"
    );
    let secrets = [
        WORD,
        token.as_str(),
        wrong.as_str(),
        workspace_token.as_str(),
    ];
    for (place, text) in &written {
        for secret in secrets {
            let line = text.lines().find(|line| line.contains(secret));
            ensure!(line.is_none(), "{place} contains {secret}: {line:?}");
        }
    }
    shared.daemon.stop().await
}
