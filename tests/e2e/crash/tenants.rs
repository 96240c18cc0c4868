//! Quotas and usage of tenants, before and after the daemon is killed.

use std::path::Path;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::Client;
use skilld_proto::v1::{ErrorReason, TenantUsage};
use skilld_tests::{Daemon, Options, docker, exec, usage, wait};

use crate::crash::{DEADLINE, expect_status};

/// Starts a daemon on whose socket this user is an admin of tenant `a`, with these quotas.
async fn start(files: &Path, quotas: &str) -> Result<Daemon> {
    let uid = nix::unistd::geteuid();
    let tenants = format!(
        "[tenants.a]\n{quotas}\n[[peers]]\nuid = {uid}\ntenant = \"a\"\nroles = [\"admin\"]\n"
    );
    let path = files.join("tenants.toml");
    std::fs::write(&path, tenants)?;
    let options = Options::default().set("auth.tenants_file", &path.display().to_string());
    Daemon::start_with(options).await
}

/// Returns what the tenant holds of a resource.
fn held(usage: &TenantUsage, resource: &str) -> Option<i64> {
    let mut resources = usage.resources.iter();
    Some(resources.find(|it| it.resource == resource)?.used)
}

/// Returns what the tenant holds of everything that does not belong to its connections.
fn held_all(usage: &TenantUsage) -> Vec<Option<i64>> {
    let resources = ["workspaces", "memory", "cpus", "execs"];
    resources.map(|resource| held(usage, resource)).to_vec()
}

/// Returns the number of execs of all days.
fn ended_execs(usage: &TenantUsage) -> i64 {
    let days = usage.days.iter().flat_map(|day| day.counters.iter());
    let execs = days.flat_map(|counters| counters.execs.iter());
    execs.map(|execs| execs.count).sum()
}

async fn wait_for_held(client: &Client, resource: &str, amount: i64) -> Result<()> {
    wait::until(resource, DEADLINE, async || {
        let usage = client.get_tenant_usage().await?;
        Ok((held(&usage, resource) == Some(amount)).then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn held_amounts_are_exact_after_the_daemon_was_killed() -> Result<()> {
    let files = tempfile::tempdir()?;
    let mut daemon = start(files.path(), "workspaces = 2\nexecs = 4").await?;
    let client = daemon.client.clone();
    let first = exec::workspace(&client).await?.name;
    let second = exec::workspace(&client).await?.name;
    for (workspace, id) in [(&first, "x1"), (&first, "x2"), (&second, "x3")] {
        exec::start(&client, workspace, id, exec::shell("sleep 600")).await?;
    }
    exec::run(&client, &first, exec::shell("true")).await?;
    wait_for_held(&client, "execs", 3).await?;
    let before = client.get_tenant_usage().await?;
    let limits = client
        .get_workspace(&first)
        .await?
        .limits
        .context("limits")?;
    let expected = [2, 2 * limits.memory_bytes, 2 * limits.cpu_millis, 3];
    assert_eq!(held_all(&before), expected.map(Some));

    daemon.crash().await?;
    daemon.restart().await?;
    let client = daemon.client.clone();
    let after = client.get_tenant_usage().await?;
    // Execs of a guest that answers late are counted after the first answer.
    assert_eq!(held_all(&after)[..3], held_all(&before)[..3]);
    wait_for_held(&client, "execs", 3).await?;

    // The quotas count what is held, not what this daemon has started.
    let refused = client.create_workspace(Default::default()).await;
    let quota = (
        String::from("ResourceExhausted"),
        ErrorReason::QuotaExceeded.error_info_name().to_owned(),
    );
    assert_eq!(expect_status(refused)?, quota);
    exec::start(&client, &second, "x4", exec::shell("sleep 600")).await?;
    let refused = exec::start(&client, &second, "x5", exec::shell("true")).await;
    let error = refused
        .err()
        .context("the quota is 4")?
        .downcast::<skilld_client::Error>()?;
    assert_eq!(expect_status(Err::<(), _>(error))?, quota);

    client.kill_exec(&format!("{first}/execs/x1")).await?;
    wait_for_held(&client, "execs", 3).await?;
    client.delete_workspace(&second).await?;
    let usage = client.get_tenant_usage().await?;
    let expected = [1, limits.memory_bytes, limits.cpu_millis, 1];
    assert_eq!(held_all(&usage), expected.map(Some), "after a delete");
    docker::remove(&daemon.container(&first)?).await?;
    wait_for_held(&client, "execs", 0).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_that_ends_without_a_daemon_is_released_and_counted() -> Result<()> {
    let files = tempfile::tempdir()?;
    let mut daemon = start(files.path(), "execs = 1").await?;
    let client = daemon.client.clone();
    let workspace = exec::workspace(&client).await?.name;
    exec::run(&client, &workspace, exec::shell("true")).await?;
    wait_for_held(&client, "execs", 0).await?;
    exec::start(&client, &workspace, "x", exec::argv(["sleep", "600"])).await?;
    wait_for_held(&client, "execs", 1).await?;
    let container = daemon.container(&workspace)?;
    daemon.crash().await?;
    let guest = docker::pid(&container).await?.context("it runs")?;
    let sleep = wait::until("the exec runs", DEADLINE, async || {
        let processes = usage::list_container_processes(u32::try_from(guest)?)?;
        let sleep = processes.iter().find(|process| process.name == "sleep");
        Ok(sleep.map(|process| process.pid))
    })
    .await?;
    kill(Pid::from_raw(i32::try_from(sleep)?), Signal::SIGKILL)?;
    daemon.restart().await?;
    let client = daemon.client.clone();
    wait_for_held(&client, "execs", 0).await?;
    // The killed daemon had not written the first one; the guest still knew both.
    wait::until("both execs are counted", DEADLINE, async || {
        Ok((ended_execs(&client.get_tenant_usage().await?) == 2).then_some(()))
    })
    .await?;
    exec::start(&client, &workspace, "y", exec::shell("true")).await?;
    daemon.stop().await
}
