//! Sections `fleet` and `flat`: memory of daemon and guests, size of the guest, the time from SIGKILL to serving
//! again, and the daemon's memory over many execs.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use skilld_client::Client;
use skilld_proto::v1::{CreateWorkspaceRequest, ListWorkspacesRequest};
use skilld_tests::exec::{argv, workspace};
use skilld_tests::{Daemon, Options, binaries, docker};
use tokio::task::JoinSet;

use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls, progress};

/// Returns settings with which a host of 8 GiB has room for a hundred workspaces.
pub(crate) fn small_slots() -> Options {
    daemon_calls::daemon_options()
        .set("engine.uid_count", "256")
        .set("pools.default.warm", "0")
        .set("pools.default.max", "128")
        .set("pools.default.memory", "160MiB")
        .set("pools.default.disk", "8MiB")
        .set("pools.default.tmp", "4MiB")
        .set("pools.default.shm", "4MiB")
        .set("pools.default.cpus", "0.5")
        .set("pools.default.pids", "64")
        .set("pools.default.claim_timeout", "60s")
}

/// Starts a daemon and claims a number of workspaces. Returns both, the workspaces by their names.
pub(crate) async fn start_fleet(options: Options, count: usize) -> Result<(Daemon, Vec<String>)> {
    let daemon = Daemon::start_with(options).await?;
    let made: Vec<String> = stream::iter(0..count)
        .map(|_| {
            let request = CreateWorkspaceRequest::default();
            daemon.client.create_workspace(request)
        })
        .buffer_unordered(4)
        .map_ok(|workspace| workspace.name)
        .try_collect()
        .await?;
    progress(&format!("  {count} workspaces"));
    Ok((daemon, made))
}

/// Measures a hundred idle workspaces.
pub(crate) async fn fleet(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let count = bench.times(100, 10);
    let (mut daemon, made) = start_fleet(small_slots(), count).await?;
    let client = daemon.client.clone();
    let (mut daemon_memory, mut guest_memory) = (FigureSeries::bytes(), FigureSeries::bytes());
    daemon_memory.size(daemon_calls::resident_bytes(
        daemon.pid().context("no daemon")?,
    )?)?;
    for name in made.iter().take(10) {
        daemon_calls::run_exec(&client, name, argv(["true"])).await?;
    }
    for pid in guests(&daemon).await? {
        guest_memory.size(daemon_calls::resident_bytes(pid)?)?;
    }
    let mut back = FigureSeries::times();
    for _ in 0..bench.times(7, 2) {
        let started = Instant::now();
        daemon.crash().await?;
        daemon.restart().await?;
        back.time(started.elapsed())?;
        let request = ListWorkspacesRequest {
            page_size: 1000,
            ..ListWorkspacesRequest::default()
        };
        let there = daemon.client.list_workspaces(request).await?.workspaces;
        ensure!(there.len() == count, "{} workspaces are left", there.len());
        let name = made.first().context("no workspace")?;
        daemon_calls::run_exec(&daemon.client, name, argv(["true"])).await?;
    }
    daemon.stop().await?;
    let mut size = FigureSeries::bytes();
    size.size(std::fs::metadata(binaries::guest()?)?.len())?;
    let idle = format!("daemon's memory, {count} idle workspaces");
    let again = format!("daemon SIGKILL → serving, {count} containers");
    Ok(vec![
        TableRow::new(&idle, &daemon_memory, Budget::AtMost(64 << 20)),
        TableRow::new("guest's memory", &guest_memory, Budget::AtMost(5 << 20)),
        TableRow::new("guest's binary", &size, Budget::AtMost(4 << 20)),
        TableRow::new(&again, &back, Budget::AtMost(2_000_000_000)),
    ])
}

/// Returns the host's process ids of the guests of a daemon.
async fn guests(daemon: &Daemon) -> Result<Vec<u32>> {
    let docker = docker::connect()?;
    let mut pids = Vec::new();
    for id in docker::containers(&daemon.info.instance).await? {
        let state = docker.inspect_container(&id, None).await?.state;
        let pid = state.and_then(|state| state.pid).context("no pid")?;
        pids.push(u32::try_from(pid)?);
    }
    Ok(pids)
}

/// Measures the daemon's memory after its first thousands of execs, and after a hundred thousand.
pub(crate) async fn flat(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    const CLIENTS: usize = 8;
    let cpus = std::thread::available_parallelism()?.get();
    let options = daemon_calls::daemon_options().set("pools.default.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let pid = daemon.pid().context("no daemon")?;
    let name = workspace(&daemon.client).await?.name;
    daemon_calls::wait_until_warm(&daemon.client, "default").await?;
    let guests: HashMap<u32, u64> = guests(&daemon)
        .await?
        .into_iter()
        .map(|pid| Ok((pid, daemon_calls::resident_bytes(pid)?)))
        .collect::<Result<_>>()?;
    let (early, late) = (bench.times(10_000, 1_000), bench.times(100_000, 3_000));
    let (mut before, mut after) = (FigureSeries::bytes(), FigureSeries::bytes());
    let mut guest = FigureSeries::bytes();
    for (count, series) in [(early, &mut before), (late - early, &mut after)] {
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let client = Client::connect(&daemon.endpoint()).await?;
            let name = name.clone();
            tasks.spawn(async move {
                for _ in 0..count / CLIENTS {
                    daemon_calls::run_exec(&client, &name, argv(["true"])).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        series.size(daemon_calls::resident_bytes(pid)?)?;
    }
    for pid in guests.keys() {
        guest.size(daemon_calls::resident_bytes(*pid)?)?;
    }
    daemon.stop().await?;
    let what = format!("daemon's memory after {late} execs");
    Ok(vec![
        TableRow::new(&what, &after, Budget::Within(1.05))
            .against(&format!("after {early}"), &before),
        TableRow::new(
            &format!("guest's memory after {late} execs"),
            &guest,
            Budget::None,
        ),
    ])
}
