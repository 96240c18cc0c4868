//! The official MCP client, in Python, against `skillctl mcp`: `mcp_client.py` beside this file.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use skilld_client::v1::ListWorkspacesRequest;
use skilld_tests::{Daemon, binaries, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::foreign::{LIMIT, output, venv};

async fn client(args: &[&str]) -> Result<Value> {
    let mut command = Command::new(venv::program("python").await?);
    command
        .arg("-B")
        .arg(binaries::repository().join("tests/e2e/foreign/mcp_client.py"))
        .args(args);
    Ok(serde_json::from_str(&output(&mut command).await?)?)
}

#[tokio::test]
async fn an_mcp_client_on_stdio_uses_the_skills_and_leaves_nothing() -> Result<()> {
    let daemon = Daemon::start().await?;
    let skillctl = binaries::binary("skillctl")?.display().to_string();
    let saw = client(&["stdio", &skillctl, &daemon.endpoint()]).await?;
    check(&saw).with_context(|| format!("{saw:#}"))?;
    no_workspace(&daemon).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_mcp_client_over_http_uses_the_skills_and_web_pages_do_not() -> Result<()> {
    let daemon = Daemon::start().await?;
    let mut server = Command::new(binaries::binary("skillctl")?)
        .args([
            "--endpoint",
            &daemon.endpoint(),
            "mcp",
            "--http",
            "127.0.0.1:0",
        ])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = BufReader::new(server.stderr.take().context("stderr")?).lines();
    let line = tokio::time::timeout(LIMIT, said.next_line())
        .await??
        .context("it says where it listens")?;
    let url = line
        .strip_prefix("skillctl: serving ")
        .with_context(|| line.clone())?
        .to_owned();
    let saw = client(&["http", &url]).await?;
    assert_eq!(saw["other_origin"], 403);
    check(&saw).with_context(|| format!("{saw:#}"))?;
    // Told to stop, it takes its workspace along.
    let pid = i32::try_from(server.id().context("it runs")?)?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    let ended = tokio::time::timeout(LIMIT, server.wait()).await??;
    ensure!(ended.success(), "{ended}");
    no_workspace(&daemon).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_mcp_client_uses_the_tools_of_every_family() -> Result<()> {
    let daemon = Daemon::start().await?;
    let skillctl = binaries::binary("skillctl")?.display().to_string();
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("options.json");
    std::fs::write(&file, r#"{"additions": true}"#)?;
    let options = file.display().to_string();
    for (family, count) in [("trpc", 17), ("sherma", 11), ("agent-zero", 2)] {
        let endpoint = daemon.endpoint();
        let saw = client(&["family", family, &skillctl, &endpoint, &options]).await?;
        let tools = saw["tools"].as_array().context("tools")?;
        assert_eq!(tools.len(), count, "{family}: {tools:?}");
        let answers = saw["answers"].as_array().context("answers")?;
        for answer in answers {
            ensure!(answer["error"] == false, "{family}: {answer:#}");
            // Lists are lists, or objects where they are shown in parts.
            let tool = answer["tool"].as_str().unwrap_or_default();
            let is_list = tool.contains("list") || tool == "search_skills";
            ensure!(
                answer["schema"]["type"] == "object" || is_list,
                "{family}: {answer:#}"
            );
            ensure!(answer["content"].is_object(), "{family}: {answer:#}");
        }
        let has = |text: &str| {
            answers
                .iter()
                .any(|answer| answer.to_string().contains(text))
        };
        ensure!(has("# python-math"), "{family}: no text of the skill");
        // The tenth Fibonacci number, as every family's result has it.
        let printed = |answer: &Value| answer.pointer("/content/stdout") == Some(&json!("55\n"));
        ensure!(answers.iter().any(printed), "{family}: {saw:#}");
        no_workspace(&daemon).await?;
    }
    daemon.stop().await
}

#[tokio::test]
async fn an_mcp_server_listens_on_loopback_only() -> Result<()> {
    let daemon = Daemon::start().await?;
    let ended = Command::new(binaries::binary("skillctl")?)
        .args([
            "--endpoint",
            &daemon.endpoint(),
            "mcp",
            "--http",
            "0.0.0.0:0",
        ])
        .stdin(Stdio::null())
        .output()
        .await?;
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr)?;
    ensure!(said.contains("0.0.0.0:0 is not on loopback"), "{said}");
    daemon.stop().await
}

fn check(saw: &Value) -> Result<()> {
    let tools = saw["tools"].as_array().context("tools")?;
    for name in ["skill_load", "skill_run", "workspace_exec", "read_file"] {
        assert!(tools.contains(&json!(name)), "{name} is not offered");
    }
    let schemas = saw["schemas"].as_array().context("schemas")?;
    assert!(schemas.iter().all(|kind| kind == "object"));
    assert_eq!(saw["loaded"]["error"], false);
    // No prompt brings it: the result does.
    let content = saw["loaded"]["content"]["content"]
        .as_str()
        .context("the skill's text")?;
    ensure!(content.contains("# csv-report"), "{content}");

    let ran = &saw["ran"]["content"];
    assert_eq!(ran["exit_code"], 0);
    assert_eq!(ran["stdout"], "hello\n");
    assert_eq!(ran["output_files"][0]["name"], "out/hello.txt");
    assert_eq!(ran["output_files"][0]["content"], "hello\n");
    // The text is the same result, for clients that read no structure.
    let text: Value = serde_json::from_str(saw["ran"]["text"].as_str().context("text")?)?;
    assert_eq!(&text, ran);
    let read = saw["read"].to_string();
    ensure!(read.contains("hello"), "{read}");

    check_files(&saw["files"])?;
    let hints = saw["annotations"].as_object().context("annotations")?;
    assert_eq!(hints.len(), tools.len());
    // The client saw nothing to complain of: neither a result beside its schema nor the end of the session.
    assert_eq!(saw["log"], "");

    assert_eq!(saw["failed"]["error"], true);
    let failed = saw["failed"]["text"].as_str().context("text")?;
    ensure!(failed.contains("no-such-skill"), "{failed}");

    let told = saw["progress"].as_array().context("progress")?;
    ensure!(!told.is_empty(), "no progress of a call that waits for it");
    let seconds: Vec<f64> = told.iter().filter_map(|told| told[0].as_f64()).collect();
    assert_eq!(seconds.len(), told.len());
    ensure!(seconds.is_sorted_by(|a, b| a < b), "{told:?}");
    assert_eq!(saw["cancelled"], json!({"began": true, "gone": true}));

    let uris = saw["resources"]["uris"].as_array().context("uris")?;
    let has = |end: &str| {
        uris.iter()
            .any(|uri| uri.as_str().is_some_and(|uri| uri.ends_with(end)))
    };
    ensure!(has("csv-report/SKILL.md"), "{uris:?}");
    let text = saw["resources"]["text"].as_str().context("text")?;
    ensure!(text.contains("name: csv-report"), "{text}");
    assert_eq!(saw["resources"]["binary"], "89504e47");
    ensure!(saw["resources"]["missing"].is_string());
    Ok(())
}

fn check_files(saw: &Value) -> Result<()> {
    assert_eq!(
        saw["wrote"]["content"]["ref"],
        "workspace://work/inputs/p.png"
    );
    assert_eq!(saw["image"], json!(["image", "image/png", true]));
    assert_eq!(saw["other"], "workspace://out/b");
    assert_eq!(saw["ref"], "artifact://out/q.png@0");
    // Links are for clients that ask for them.
    assert_eq!(saw["blocks"], json!(["text"]));
    assert_eq!(saw["artifact"], true);
    let note = saw["note"].as_str().context("a note")?;
    ensure!(
        note.contains("skillctl artifact load out/q.png@0 --app skillctl --session "),
        "{note}"
    );
    let listed = saw["listed"].as_array().context("a list")?;
    for uri in [
        "workspace://out/q.png",
        "workspace://work/inputs/p.png",
        "artifact://out/q.png@0",
    ] {
        ensure!(listed.contains(&json!(uri)), "{uri}: {listed:?}");
    }
    Ok(())
}

/// Waits until the sessions' workspaces are gone. A client that ends its server does not wait until that has happened.
async fn no_workspace(daemon: &Daemon) -> Result<()> {
    wait::until("no workspace is left", LIMIT, async || {
        let request = ListWorkspacesRequest::default();
        let left = daemon.client.list_workspaces(request).await?;
        Ok(left.workspaces.is_empty().then_some(()))
    })
    .await
}
