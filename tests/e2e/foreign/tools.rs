//! grpcurl and ghz, which `make clients` installs: by reflection, and with the protoset.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_tests::{SharedDaemon, binaries};
use tokio::process::Command;

use crate::foreign::{LIMIT, languages, note, output};

/// Returns the path of a program in PATH; `None` if it is neither there nor required.
fn find_program(name: &str) -> Result<Option<PathBuf>> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|program| program.is_file());
    ensure!(
        found.is_some() || !languages::is_required(),
        "{name} is not in PATH"
    );
    if found.is_none() {
        note(&format!(
            "skipped: {name} is not in PATH; make clients runs it"
        ));
    }
    Ok(found)
}

fn protoset() -> PathBuf {
    binaries::repository().join("proto/skilld.binpb")
}

/// Uses a workspace with grpcurl, whose commands begin and end with these arguments.
async fn use_workspace(grpcurl: &Path, options: &[&str], target: &str) -> Result<()> {
    let call = |method: &str, request: String| {
        let mut command = Command::new(grpcurl);
        command
            .args(options)
            .args(["-d", &request, target, &format!("skilld.v1.{method}")])
            .kill_on_drop(true);
        command
    };
    let created = output(&mut call(
        "WorkspaceService/CreateWorkspace",
        "{}".to_owned(),
    ))
    .await?;
    let created: Value = serde_json::from_str(&created)?;
    let workspace = created["name"].as_str().context("a name")?;
    let request = format!(
        r#"{{"parent": "{workspace}", "format": "OUTPUT_FORMAT_TEXT", "spec": {{"shell": "echo hello; exit 3"}}}}"#
    );
    let events = output(&mut call("ExecService/RunExec", request)).await?;
    assert!(events.contains(r#""text": "hello\n""#), "{events}");
    assert!(events.contains(r#""exitCode": 3"#), "{events}");
    let name = format!(r#"{{"name": "{workspace}"}}"#);
    output(&mut call("WorkspaceService/DeleteWorkspace", name.clone())).await?;
    let mut missing = call("WorkspaceService/GetWorkspace", name);
    let refused = tokio::time::timeout(LIMIT, missing.output()).await??;
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{errors}");
    for words in [
        "NotFound",
        r#""reason": "WORKSPACE_NOT_FOUND""#,
        r#""domain": "skilld.dev""#,
    ] {
        assert!(errors.contains(words), "{words}: {errors}");
    }
    Ok(())
}

#[tokio::test]
async fn grpcurl_calls_by_reflection_and_with_the_protoset() -> Result<()> {
    let Some(grpcurl) = find_program("grpcurl")? else {
        return Ok(());
    };
    let shared = SharedDaemon::start().await?;
    let token = shared.create_token("grpcurl", "user").await?;
    let socket = shared.daemon.state_dir().join("skilld.sock");
    let socket = format!("unix://{}", socket.display());
    let authorization = format!("authorization: Bearer {token}");
    let ca = shared.ca_file().display().to_string();
    let protoset = protoset().display().to_string();
    let (plain, tls) = (["-plaintext"], ["-cacert", &ca, "-H", &authorization]);
    for (target, transport) in [(&socket, &plain[..]), (&shared.target, &tls[..])] {
        use_workspace(&grpcurl, transport, target).await?;
        let with_protoset = [transport, &["-protoset", &protoset]].concat();
        use_workspace(&grpcurl, &with_protoset, target).await?;
    }
    let described = output(
        Command::new(&grpcurl)
            .args(["-protoset", &protoset, "describe"])
            .arg("skilld.v1.ExecSpec"),
    )
    .await?;
    assert!(described.contains("string shell"), "{described}");
    shared.daemon.stop().await
}

#[tokio::test]
async fn ghz_calls_with_the_protoset() -> Result<()> {
    let Some(ghz) = find_program("ghz")? else {
        return Ok(());
    };
    let shared = SharedDaemon::start().await?;
    let token = shared.create_token("ghz", "user").await?;
    let socket = shared.daemon.state_dir().join("skilld.sock");
    let socket = format!("unix://{}", socket.display());
    let metadata = format!(r#"{{"authorization": "Bearer {token}"}}"#);
    let ca = shared.ca_file().display().to_string();
    let (plain, tls) = (["--insecure"], ["--cacert", &ca, "--metadata", &metadata]);
    for (target, transport) in [(&socket, &plain[..]), (&shared.target, &tls[..])] {
        let mut command = Command::new(&ghz);
        command
            .args(transport)
            .arg("--protoset")
            .arg(protoset())
            .args(["--call", "skilld.v1.WorkspaceService/ListWorkspaces"])
            .args(["--data", "{}", "--total", "50", "--concurrency", "4"])
            .args(["--format", "json", target]);
        let report: Value = serde_json::from_str(&output(&mut command).await?)?;
        assert_eq!(report["statusCodeDistribution"]["OK"], 50, "{report}");
    }
    shared.daemon.stop().await
}
