//! State directories that were copied while their daemon runs, as a backup that is restored beside it would be.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::Client;
use skilld_proto::v1::DrainRequest;
use skilld_tests::{Daemon, binaries, docker, exec, wait};
use tokio::process::Command;

use crate::crash::start::fails;
use crate::crash::{DEADLINE, containers, run_shell};

fn id(state_dir: &Path) -> Result<String> {
    let text = std::fs::read_to_string(state_dir.join("instance"))?;
    Ok(text.lines().next().context("no id")?.to_owned())
}

/// Starts a daemon on a state directory, waits until it is warm, and drains it.
async fn serves(state_dir: &Path, env: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new(binaries::binary("skilld")?);
    command
        .arg("--state-dir")
        .arg(state_dir)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    let endpoint = format!("unix:{}", state_dir.join("skilld.sock").display());
    let client = wait::until("the copy serves", DEADLINE, async || {
        ensure!(child.try_wait()?.is_none(), "it ended");
        let Ok(client) = Client::connect(&endpoint).await else {
            return Ok(None);
        };
        let pool = client.get_pool("default").await;
        Ok(pool.is_ok_and(|pool| pool.warm == 1).then_some(client))
    })
    .await?;
    client
        .drain(DrainRequest {
            remove_workspaces: true,
            refuse_execs: true,
        })
        .await?;
    let pid = i32::try_from(child.id().context("it has ended")?)?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
    ensure!(ended.context("it did not end")??.success(), "it failed");
    Ok(())
}

/// Copies a state directory, until no file vanished meanwhile that the daemon removed.
async fn copy(from: &Path, to: &Path) -> Result<()> {
    wait::until("the copy is whole", DEADLINE, async || {
        if to.exists() {
            std::fs::remove_dir_all(to)?;
        }
        let copied = Command::new("cp").arg("-a").arg(from).arg(to).output();
        Ok(copied.await?.status.success().then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_copied_state_directory_spares_the_originals_workspaces() -> Result<()> {
    let daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    run_shell(&daemon.client, &workspace, "echo before > file").await?;
    daemon.warm(1).await?;
    let before = containers(&daemon).await?;
    let dir = tempfile::tempdir()?;
    let copied = dir.path().join("copy");
    copy(&daemon.state_dir(), &copied).await?;

    let (code, said) = fails(&copied, &daemon.settings(), &[]).await?;
    assert_eq!(code, 1, "{said}");
    for part in ["is a copy of", "--adopt-copy", &daemon.info.instance] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    assert_eq!(containers(&daemon).await?, before);

    let (code, said) = fails(&copied, &daemon.settings(), &["--adopt-copy"]).await?;
    assert_eq!(code, 0, "{said}");
    let adopted = id(&copied)?;
    assert_ne!(adopted, daemon.info.instance);
    assert_eq!(std::fs::read_dir(copied.join("slots"))?.count(), 0);
    serves(&copied, &daemon.settings()).await?;
    assert_eq!(id(&copied)?, adopted);
    assert!(docker::containers(&adopted).await?.is_empty());

    assert_eq!(containers(&daemon).await?, before);
    assert_eq!(
        run_shell(&daemon.client, &workspace, "cat file").await?,
        "before\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn an_empty_instance_file_is_refused_and_workspaces_survive() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    daemon.warm(1).await?;
    let before = containers(&daemon).await?;
    daemon.crash().await?;
    let file = daemon.state_dir().join("instance");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, "")?;
    let (code, said) = fails(&daemon.state_dir(), &daemon.settings(), &[]).await?;
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("is empty") && said.contains("docker ps"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&file)?, "", "nothing was made up");
    assert_eq!(containers(&daemon).await?, before);

    // The remedy of the message: the id that the containers carry, and nothing else.
    std::fs::write(&file, text.lines().next().context("no id")?)?;
    daemon.restart().await?;
    assert_eq!(
        run_shell(&daemon.client, &workspace, "echo here").await?,
        "here\n"
    );
    daemon.stop().await
}
