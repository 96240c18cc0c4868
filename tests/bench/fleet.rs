//! Sections `fleet` and `flat`: memory of daemon and guests, size of the guest, the time from SIGKILL to serving
//! again, and the daemon's memory over many execs.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use skilld_client::Client;
use skilld_proto::v1::{CreateWorkspaceRequest, ListWorkspacesRequest};
use skilld_tests::exec::{argv, workspace};
use skilld_tests::{Daemon, binaries, docker};
use tokio::task::JoinSet;

use crate::report::{Budget, Row, Series};
use crate::{Wish, ours, progress};

/// A hundred idle workspaces.
pub(crate) async fn fleet(wish: &Wish) -> Result<Vec<Row>> {
    let count = wish.times(100, 10);
    let options = ours::options()
        .set("engine.uid_count", "256")
        .set("pools.default.warm", "0")
        .set("pools.default.max", "128")
        .set("pools.default.memory", "160MiB")
        .set("pools.default.disk", "8MiB")
        .set("pools.default.tmp", "4MiB")
        .set("pools.default.shm", "4MiB")
        .set("pools.default.cpus", "0.5")
        .set("pools.default.pids", "64")
        .set("pools.default.claim_timeout", "60s");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone();
    let made: Vec<String> = stream::iter(0..count)
        .map(|_| client.create_workspace(CreateWorkspaceRequest::default()))
        .buffer_unordered(4)
        .map_ok(|workspace| workspace.name)
        .try_collect()
        .await?;
    progress(&format!("  {count} workspaces"));
    let (mut daemon_memory, mut guest_memory) = (Series::bytes()?, Series::bytes()?);
    daemon_memory.size(ours::resident(daemon.pid().context("no daemon")?)?)?;
    for name in made.iter().take(10) {
        ours::run(&client, name, argv(["true"])).await?;
    }
    for pid in guests(&daemon).await? {
        guest_memory.size(ours::resident(pid)?)?;
    }
    let mut back = Series::times()?;
    for _ in 0..wish.times(7, 2) {
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
        ours::run(&daemon.client, name, argv(["true"])).await?;
    }
    daemon.stop().await?;
    let mut size = Series::bytes()?;
    size.size(std::fs::metadata(binaries::guest()?)?.len())?;
    let idle = format!("daemon's memory, {count} idle workspaces");
    let again = format!("daemon SIGKILL → serving, {count} containers");
    Ok(vec![
        Row::new(&idle, &daemon_memory, Budget::AtMost(64 << 20)),
        Row::new("guest's memory", &guest_memory, Budget::AtMost(5 << 20)),
        Row::new("guest's binary", &size, Budget::AtMost(4 << 20)),
        Row::new(&again, &back, Budget::AtMost(2_000_000_000)),
    ])
}

/// First processes of a daemon's containers, as the host sees them.
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

/// The daemon's memory after its first thousands of execs, and after a hundred thousand.
pub(crate) async fn flat(wish: &Wish) -> Result<Vec<Row>> {
    const CLIENTS: usize = 8;
    let cpus = std::thread::available_parallelism()?.get();
    let options = ours::options().set("pools.default.cpus", &format!("{cpus}.0"));
    let daemon = Daemon::start_with(options).await?;
    let pid = daemon.pid().context("no daemon")?;
    let name = workspace(&daemon.client).await?.name;
    ours::warm(&daemon.client, "default").await?;
    let guests: HashMap<u32, u64> = guests(&daemon)
        .await?
        .into_iter()
        .map(|pid| Ok((pid, ours::resident(pid)?)))
        .collect::<Result<_>>()?;
    let (early, late) = (wish.times(10_000, 1_000), wish.times(100_000, 3_000));
    let (mut before, mut after) = (Series::bytes()?, Series::bytes()?);
    let mut guest = Series::bytes()?;
    for (count, series) in [(early, &mut before), (late - early, &mut after)] {
        let mut tasks = JoinSet::new();
        for _ in 0..CLIENTS {
            let client = Client::connect(&daemon.endpoint()).await?;
            let name = name.clone();
            tasks.spawn(async move {
                for _ in 0..count / CLIENTS {
                    ours::run(&client, &name, argv(["true"])).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        series.size(ours::resident(pid)?)?;
    }
    for pid in guests.keys() {
        guest.size(ours::resident(*pid)?)?;
    }
    daemon.stop().await?;
    let what = format!("daemon's memory after {late} execs");
    Ok(vec![
        Row::new(&what, &after, Budget::Within(1.05)).against(&format!("after {early}"), &before),
        Row::new(
            &format!("guest's memory after {late} execs"),
            &guest,
            Budget::None,
        ),
    ])
}
