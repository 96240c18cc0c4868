//! Clients of other languages at every kind of listener: Python with grpcio, `buf curl`, and skillctl as docs/access.md shows
//! it. The daemon, its containers and its certificates are real.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use skilld_tests::{SharedDaemon, binaries, wait};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::foreign::{LIMIT, output, venv};

/// Runs the Python client with these options and returns what it saw.
async fn python(options: &Value) -> Result<Value> {
    let python = venv::program("python").await?;
    let client = binaries::repository().join("tests/e2e/foreign/access_client.py");
    let mut child = Command::new(python)
        .arg("-B")
        .arg(client)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    stdin.write_all(options.to_string().as_bytes()).await?;
    drop(stdin);
    let ended = tokio::time::timeout(LIMIT, child.wait_with_output()).await??;
    let errors = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{options}: {errors}");
    Ok(serde_json::from_slice(&ended.stdout)?)
}

#[tokio::test]
async fn python_works_with_every_kind_of_credential() -> Result<()> {
    let shared = SharedDaemon::start().await?;
    let token = shared.create_token("py", "user").await?;
    let (cert, key) = shared.issue_client_certificate();
    let web = shared.web_token();
    let socket = format!(
        "unix:{}",
        shared.daemon.state_dir().join("skilld.sock").display()
    );
    let uid = nix::unistd::geteuid();
    let (ca, target) = (shared.ca_file(), &shared.target);
    for (options, id, tenant) in [
        (json!({"target": socket}), format!("uid:{uid}"), "ops"),
        (
            json!({"target": target, "ca": ca, "token": token}),
            "py".to_owned(),
            "a",
        ),
        (
            json!({"target": target, "ca": ca, "token": web}),
            "a-user".to_owned(),
            "a",
        ),
        (
            json!({"target": target, "ca": ca, "cert": cert, "key": key}),
            "spiffe://test/a".to_owned(),
            "a",
        ),
    ] {
        let saw = python(&options).await?;
        assert_eq!(saw["id"], json!(id), "{saw}");
        assert_eq!(
            (&saw["tenant"], &saw["workspace_tenant"]),
            (&json!(tenant), &json!(tenant))
        );
        assert_eq!(saw["output"], "hello\n");
        let info = &saw["details"]["google.rpc.ErrorInfo"];
        assert_eq!(info["reason"], "WORKSPACE_NOT_FOUND", "{saw}");
        let resource = &saw["details"]["google.rpc.ResourceInfo"];
        assert_eq!(resource["resourceType"], "skilld.dev/Workspace", "{saw}");
    }
    let refused = python(&json!({"target": target, "ca": ca})).await;
    let error = refused.err().context("it has no credential")?.to_string();
    assert!(error.contains("UNAUTHENTICATED"), "{error}");
    shared.daemon.stop().await
}

#[tokio::test]
async fn buf_calls_over_tls_with_a_token() -> Result<()> {
    let buf = venv::program("buf").await?;
    let shared = SharedDaemon::start().await?;
    let token = shared.create_token("buf", "observer").await?;
    for version in ["grpc-v1", "grpc-v1alpha"] {
        let header = format!("authorization: Bearer {token}");
        let mut command = Command::new(&buf);
        command
            .args([
                "curl",
                "--protocol",
                "grpc",
                "--reflect-protocol",
                version,
                "--cacert",
            ])
            .arg(shared.ca_file())
            .args(["-H", &header, "--reflect-header", &header])
            .arg(format!(
                "https://{}/skilld.v1.AccessService/GetPrincipal",
                shared.target
            ))
            .env("HOME", shared.path(""));
        let principal: Value = serde_json::from_str(&output(&mut command).await?)?;
        assert_eq!(
            (&principal["id"], &principal["role"]),
            (&json!("buf"), &json!("PRINCIPAL_ROLE_OBSERVER"))
        );
    }
    shared.daemon.stop().await
}

#[tokio::test]
async fn skillctl_does_what_docs_access_shows() -> Result<()> {
    let shared = SharedDaemon::start().await?;
    shared.create_token("ci-1", "tenant_admin").await?;
    // skillctl gives up a connection after seconds, for which a busy machine may not run the daemon.
    let run = async |args: &[&str]| {
        wait::until("skillctl connects", LIMIT, async || {
            match output(&mut shared.skillctl(args)?).await {
                Err(error) if error.to_string().contains("cannot connect to ") => Ok(None),
                printed => Ok(Some(printed?)),
            }
        })
        .await
    };
    let said = run(&["whoami"]).await?;
    for words in ["ci-1", "tenant: a\n", "tenant_admin", "via:    token"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    run(&["workspace", "create", "--id", "job-7"]).await?;
    let agent = run(&["workspace", "token", "job-7", "--lifetime", "1h"]).await?;
    tokio::fs::write(shared.path("token"), &agent).await?;
    assert_eq!(run(&["exec", "job-7", "echo hello"]).await?, "hello\n");
    let refused = shared.skillctl(&["workspace", "create"])?.output().await?;
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && error.contains("job-7 only"),
        "{error}"
    );
    run(&["workspace", "delete", "job-7"]).await?;

    check_contexts(&shared).await?;

    let log = wait::until("the log has the deletion", LIMIT, async || {
        let log = shared.daemon.log();
        let is_gone = |line: &str| line.contains("workspace is gone") && line.contains("job-7");
        let has_ended = |line: &str| line.contains("exec ended") && line.contains("job-7");
        Ok((log.lines().any(is_gone) && log.lines().any(has_ended)).then_some(log))
    });
    check_log(&log.await?)?;

    // The operator, on the socket.
    let tenants = shared
        .daemon
        .client
        .list_tenant_usages(Default::default())
        .await?
        .tenant_usages;
    let names: Vec<&str> = tenants
        .iter()
        .map(|tenant| tenant.tenant.as_str())
        .collect();
    assert_eq!(names, ["a", "ops"]);
    let log = shared.path("audit.log");
    let verified = output(
        Command::new(binaries::binary("skillctl")?)
            .args(["audit", "verify"])
            .arg(&log),
    )
    .await?;
    assert!(verified.contains("the chain is intact"), "{verified}");
    let text = std::fs::read_to_string(&log)?;
    assert!(text.contains("\"principal\":\"ci-1\"") && !text.contains("echo hello"));
    shared.daemon.stop().await
}

#[tokio::test]
async fn a_workspace_token_is_enough_for_the_tools_of_skillctl() -> Result<()> {
    let shared = SharedDaemon::start().await?;
    shared.create_workspace_token("job-8").await?;
    let run = r#"{"skill": "text-stats", "command": "pwd; echo by token"}"#;
    let tool = ["tool", "call", "skill_run", run, "--workspace", "job-8"];
    let answer: Value = serde_json::from_str(&output(&mut shared.skillctl(&tool)?).await?)?;
    let wanted = "/workspace/skills/text-stats\nby token\n";
    assert_eq!(answer["stdout"], wanted, "{answer}");

    let request = |id: u32, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let client = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    let arguments: Value = serde_json::from_str(run)?;
    let lines = [
        request(1, "initialize", client),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string(),
        request(
            2,
            "tools/call",
            json!({"name": "skill_run", "arguments": arguments}),
        ),
    ];
    let mut server = shared.skillctl(&["mcp", "--workspace", "job-8"])?;
    let mut server = server
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = server.stdin.take().context("stdin")?;
    stdin
        .write_all((lines.join("\n") + "\n").as_bytes())
        .await?;
    let mut answers = BufReader::new(server.stdout.take().context("stdout")?).lines();
    let answered = async {
        while let Some(line) = answers.next_line().await? {
            let answer: Value = serde_json::from_str(&line)?;
            if answer["id"] == 2 {
                return Ok(answer);
            }
        }
        anyhow::bail!("no answer to the call")
    };
    let answer = tokio::time::timeout(LIMIT, answered).await??;
    let stdout = &answer["result"]["structuredContent"]["stdout"];
    assert_eq!(stdout, wanted, "{answer}");
    drop(stdin);
    let ended = tokio::time::timeout(LIMIT, server.wait()).await??;
    ensure!(ended.success(), "{ended}");
    shared.daemon.stop().await
}

/// Checks the commands of skillctl's contexts, with another principal.
async fn check_contexts(shared: &SharedDaemon) -> Result<()> {
    shared.create_token("ci-2", "user").await?;
    let context = Command::new(binaries::binary("skillctl")?)
        .args([
            "context",
            "set",
            "prod",
            "--endpoint",
            &format!("https://{}", shared.target),
            "--ca-file",
        ])
        .arg(shared.ca_file())
        .arg("--token-file")
        .arg(shared.path("token"))
        .env("HOME", shared.path(""))
        .output()
        .await?;
    ensure!(
        context.status.success(),
        "{}",
        String::from_utf8_lossy(&context.stderr)
    );
    let with_context = async |args: &[&str]| {
        let mut command = Command::new(binaries::binary("skillctl")?);
        command.args(args).env("HOME", shared.path(""));
        output(&mut command).await
    };
    with_context(&["context", "use", "prod"]).await?;
    assert!(with_context(&["context", "list"]).await?.contains("*prod"));
    assert!(with_context(&["whoami"]).await?.contains("ci-2"));
    assert!(with_context(&["usage"]).await?.contains("workspaces"));
    Ok(())
}

/// Checks that the daemon's log says who made and deleted the workspace.
fn check_log(log: &str) -> Result<()> {
    for done in [
        "workspace created",
        "exec started",
        "exec ended",
        "workspace is gone",
    ] {
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains(done) && line.contains("job-7"));
        line.with_context(|| format!("no line {done:?}: {log}"))?;
    }
    let created = log
        .lines()
        .find(|line| line.contains("workspace created"))
        .unwrap_or_default();
    for field in ["principal=\"ci-1\"", "tenant=\"a\"", "request_id="] {
        assert!(created.contains(field), "{created}");
    }
    Ok(())
}
