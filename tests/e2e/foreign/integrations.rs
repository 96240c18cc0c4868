//! The examples of docs/integrations.md and docs/tools.md, as they stand there, with a stand-in for the model. Most of the
//! samples for agent frameworks are in `frameworks.rs`.

use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;
use skilld_client::v1::ListWorkspacesRequest;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::foreign::LIMIT;
use crate::foreign::model::{Model, Project};
use crate::foreign::recipes::{Place, blocks};

const DOCUMENT: &str = "docs/integrations.md";

#[tokio::test]
async fn python_loops_over_grpc_let_a_model_use_skills() -> Result<()> {
    let model = Model::start().await?;
    let mut place = Place::new().await?;
    place.env.push(("MODEL_URL", model.url.clone()));
    let made = place.run_of(DOCUMENT, "Skills as tools in Python");
    assert_eq!(made.await?, "");
    for title in [
        "An OpenAI-style loop in Python",
        "An Anthropic-style loop in Python",
    ] {
        let printed = place.run_of(DOCUMENT, title).await?;
        assert_eq!(printed, "It is 354224848179261915075.\n", "{title}");
    }
    place.daemon.stop().await
}

#[tokio::test]
async fn the_ai_sdk_lets_a_model_use_skills() -> Result<()> {
    let project = Project::new().await?;
    project.check_sample(DOCUMENT, "AI SDK").await
}

#[tokio::test]
async fn openai_agents_in_python_let_a_model_use_skills() -> Result<()> {
    let project = Project::new().await?;
    project
        .check_sample(DOCUMENT, "OpenAI Agents in Python")
        .await
}

#[tokio::test]
async fn the_rust_agent_lets_a_model_use_skills() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run_of(DOCUMENT, "Run the Rust example").await?;
    assert!(
        printed.ends_with("It is 354224848179261915075.\n"),
        "{printed}"
    );
    // The model knows the skill, and how to run it, from its prompts alone.
    assert!(
        printed.starts_with("skill_load {\"skill\":\"python-math\"}\nskill_run "),
        "{printed}"
    );
    place.daemon.stop().await
}

#[tokio::test]
async fn skill_tools_are_used_from_a_shell_as_the_document_says() -> Result<()> {
    let place = Place::new().await?;
    let printed = place.run_of("docs/tools.md", "From a shell").await?;
    for part in ["skill_run", "# csv-report", "\"stdout\": \"SKILL.md\\n"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert!(!place.directory.path().join("chat.json").exists());
    let listed = ListWorkspacesRequest::default();
    let left = place
        .daemon
        .client
        .list_workspaces(listed)
        .await?
        .workspaces;
    let names: Vec<&str> = left.iter().map(|left| left.name.as_str()).collect();
    // The one of the place.
    assert_eq!(names, ["workspaces/my-session"]);
    place.daemon.stop().await
}

/// The command of each configuration file starts an MCP server that answers.
#[tokio::test]
async fn configurations_for_mcp_clients_start_a_server() -> Result<()> {
    let place = Place::new().await?;
    let mut started = 0;
    for (language, code) in blocks(DOCUMENT, "Configuration files")? {
        let file: Value = match language.as_str() {
            "json" => serde_json::from_str(&code)?,
            "toml" => toml::from_str(&code)?,
            other => anyhow::bail!("a block of {other}"),
        };
        let servers = ["mcpServers", "servers", "mcp_servers"];
        let server = servers
            .iter()
            .find_map(|key| file.get(key)?.get("skills"))
            .with_context(|| code.clone())?;
        let args = server["args"].as_array().context("args")?;
        let mut child = Command::new(
            place
                .directory
                .path()
                .join("bin")
                .join(server["command"].as_str().context("command")?),
        )
        .args(args.iter().filter_map(Value::as_str))
        .env("SKILLD_ENDPOINT", place.daemon.endpoint())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
        let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
        let mut stdin = child.stdin.take().context("stdin")?;
        stdin.write_all(format!("{hello}\n").as_bytes()).await?;
        let mut said = BufReader::new(child.stdout.take().context("stdout")?).lines();
        let line = tokio::time::timeout(LIMIT, said.next_line()).await??;
        let answer: Value = serde_json::from_str(&line.context("it answers")?)?;
        assert_eq!(answer["result"]["serverInfo"]["name"], "skilld");
        drop(stdin);
        let ended = tokio::time::timeout(LIMIT, child.wait()).await??;
        assert!(ended.success(), "it ends with its client");
        started += 1;
    }
    assert_eq!(started, 3);
    place.daemon.stop().await
}
