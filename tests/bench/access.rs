//! Sections `access` and `idle`: what credentials, TLS and the audit log add to a call, connections that wait or are new,
//! and the first command after minutes without any.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use skilld_client::Client;
use skilld_tests::exec::{argv, workspace};
use skilld_tests::{Daemon, Options, SharedDaemon};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls, progress};

/// Maximum time that a token and TLS add to a call on an open connection: 0.15 ms at the median.
const TLS_OVERHEAD: Budget = Budget::Over(150_000);
/// Maximum time that an enforced audit log adds to an exec: 0.1 ms at the median.
const AUDIT_OVERHEAD: Budget = Budget::Over(100_000);
/// Maximum growth of the daemon by [`IDLE_CONNECTIONS`].
const IDLE_CONNECTIONS_BYTES: Budget = Budget::AtMost(64 << 20);
/// Number of idle TLS connections.
const IDLE_CONNECTIONS: usize = 1000;
/// Number of connections of a burst.
const BURST: usize = 100;
/// Interval between staggered connections.
const STAGGER: Duration = Duration::from_millis(200);
/// Number of calls in a batch.
const BATCH: usize = 40;

/// Settings with room for the connections and commands of the section.
fn options() -> Result<Options> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok(daemon_calls::daemon_options()
        .set("pools.default.cpus", &format!("{cpus}.0"))
        .set("execs.count_max", &(2 * BURST).to_string())
        .set("server.connections_max", "2000"))
}

/// Measures calls over TLS with a token, the audit log, idle connections and new ones.
pub(crate) async fn access(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let plain = Daemon::start_with(options()?).await?;
    let shared = SharedDaemon::start_with(options()?.set("audit.file", "")).await?;
    shared.create_token("bench", "user").await?;
    let files = tempfile::tempdir()?;
    let log = files.path().join("audit.log");
    let audited = options()?.set("audit.file", &log.display().to_string());
    let audited = Daemon::start_with(audited).await?;
    let tls = shared.connect().await?;
    for client in [&plain.client, &audited.client, &shared.daemon.client] {
        daemon_calls::wait_until_warm(client, "default").await?;
    }
    let mut rows = overheads(bench, &plain.client, &tls, &audited.client).await?;
    audited.stop().await?;
    rows.extend(cold_connections(bench, &plain, &shared).await?);
    plain.stop().await?;
    rows.push(idle_connections(&shared).await?);
    shared.daemon.stop().await?;
    Ok(rows)
}

/// Compares a call over TLS, and an exec with an audit log, with the same on a Unix socket without either.
async fn overheads(
    bench: &BenchOptions,
    plain: &Client,
    tls: &Client,
    audited: &Client,
) -> Result<Vec<TableRow>> {
    let plain_name = workspace(plain).await?.name;
    let tls_name = workspace(tls).await?.name;
    let audited_name = workspace(audited).await?.name;
    let mut calls = [FigureSeries::times(), FigureSeries::times()];
    let mut execs = [FigureSeries::times(), FigureSeries::times()];
    // Batches take turns, so that a noisy machine disturbs all of them. The first turn warms up and is not counted.
    for turn in 0..=bench.times(50, 10) {
        if turn == 1 {
            calls = [FigureSeries::times(), FigureSeries::times()];
            execs = [FigureSeries::times(), FigureSeries::times()];
        }
        for ((client, name), series) in [(tls, &tls_name), (plain, &plain_name)]
            .into_iter()
            .zip(&mut calls)
        {
            for _ in 0..BATCH {
                let started = Instant::now();
                client.get_workspace(name).await?;
                series.time(started.elapsed())?;
            }
        }
        for ((client, name), series) in [(audited, &audited_name), (plain, &plain_name)]
            .into_iter()
            .zip(&mut execs)
        {
            for _ in 0..BATCH {
                let started = Instant::now();
                daemon_calls::run_exec(client, name, argv(["true"])).await?;
                series.time(started.elapsed())?;
            }
        }
    }
    for (client, name) in [
        (plain, plain_name),
        (tls, tls_name),
        (audited, audited_name),
    ] {
        client.delete_workspace(&name).await?;
    }
    let ([over_tls, over_socket], [with_audit, without_audit]) = (calls, execs);
    Ok(vec![
        TableRow::new(
            "GetWorkspace over TLS with a token",
            &over_tls,
            TLS_OVERHEAD,
        )
        .against("Unix socket without [auth]", &over_socket),
        TableRow::new("exec of true, audit enforced", &with_audit, AUDIT_OVERHEAD)
            .against("without an audit log", &without_audit),
    ])
}

/// Returns the time from nothing to the first output of a command, on a new connection.
async fn first_output(
    client: impl Future<Output = Result<Client>>,
    workspace: &str,
) -> Result<Duration> {
    let started = Instant::now();
    let client = client.await?;
    let before = started.elapsed();
    let totals = daemon_calls::run_exec(&client, workspace, argv(["echo", "hi"])).await?;
    Ok(before + totals.first_output.context("no output")?)
}

/// Measures new connections: one after the other, one every 200 ms, and 100 at once.
async fn cold_connections(
    bench: &BenchOptions,
    plain: &Daemon,
    shared: &SharedDaemon,
) -> Result<Vec<TableRow>> {
    let tls = shared.connect().await?;
    let (ours, theirs) = (
        workspace(&tls).await?.name,
        workspace(&plain.client).await?.name,
    );
    let endpoint = plain.endpoint();
    let unix = async || Ok(Client::connect(&endpoint).await?);
    let mut rows = Vec::new();

    let [mut over_tls, mut over_socket] = [FigureSeries::times(), FigureSeries::times()];
    for _ in 0..bench.times(200, 40) {
        over_tls.time(first_output(shared.connect(), &ours).await?)?;
        over_socket.time(first_output(unix(), &theirs).await?)?;
    }
    rows.push(
        TableRow::new("new TLS connection → first output", &over_tls, Budget::None)
            .against("new Unix connection", &over_socket),
    );

    let [mut over_tls, mut over_socket] = [FigureSeries::times(), FigureSeries::times()];
    let mut tick = interval(STAGGER);
    for _ in 0..bench.times(100, 10) {
        tick.tick().await;
        over_tls.time(first_output(shared.connect(), &ours).await?)?;
        tick.tick().await;
        over_socket.time(first_output(unix(), &theirs).await?)?;
    }
    rows.push(
        TableRow::new("the same, one every 200 ms", &over_tls, Budget::None)
            .against("new Unix connection", &over_socket),
    );

    let [mut over_tls, mut over_socket] = [FigureSeries::times(), FigureSeries::times()];
    for _ in 0..bench.times(5, 1) {
        let burst = (0..BURST).map(|_| first_output(shared.connect(), &ours));
        for time in futures::future::try_join_all(burst).await? {
            over_tls.time(time)?;
        }
        let burst = (0..BURST).map(|_| first_output(unix(), &theirs));
        for time in futures::future::try_join_all(burst).await? {
            over_socket.time(time)?;
        }
    }
    rows.push(
        TableRow::new("the same, 100 at once", &over_tls, Budget::None)
            .against("new Unix connections", &over_socket),
    );
    tls.delete_workspace(&ours).await?;
    plain.client.delete_workspace(&theirs).await?;
    Ok(rows)
}

/// Measures the growth of the daemon by connections that have made one call each.
async fn idle_connections(shared: &SharedDaemon) -> Result<TableRow> {
    let pid = shared.daemon.pid().context("the daemon has ended")?;
    let before = daemon_calls::resident_bytes(pid)?;
    let clients: Vec<Client> = stream::iter(0..IDLE_CONNECTIONS)
        .map(async |_| {
            let client = shared.connect().await?;
            client.get_principal().await?;
            Ok::<_, anyhow::Error>(client)
        })
        .buffer_unordered(16)
        .try_collect()
        .await?;
    let mut growth = FigureSeries::bytes();
    growth.size(daemon_calls::resident_bytes(pid)?.saturating_sub(before))?;
    for client in &clients {
        // Every connection still serves.
        client.get_principal().await?;
    }
    let what = format!("growth of the daemon by {IDLE_CONNECTIONS} idle TLS connections");
    Ok(TableRow::new(&what, &growth, IDLE_CONNECTIONS_BYTES))
}

/// Measures the first command of workspaces in which nothing ran for ten minutes.
pub(crate) async fn idle(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let seconds = bench.times(600, 10);
    let count = bench.times(16, 4);
    let (daemon, names) = crate::fleet::start_fleet(crate::fleet::small_slots(), count).await?;
    let mut warm_up = JoinSet::new();
    for name in names.clone() {
        let client = daemon.client.clone();
        warm_up.spawn(async move { daemon_calls::run_exec(&client, &name, argv(["true"])).await });
    }
    while let Some(ended) = warm_up.join_next().await {
        ended??;
    }
    progress(&format!("  idle for {seconds} s"));
    sleep(Duration::from_secs(u64::try_from(seconds)?)).await;
    let [mut first, mut second] = [FigureSeries::times(), FigureSeries::times()];
    for name in &names {
        for series in [&mut first, &mut second] {
            let started = Instant::now();
            daemon_calls::run_exec(&daemon.client, name, argv(["true"])).await?;
            series.time(started.elapsed())?;
        }
    }
    daemon.stop().await?;
    let what = format!("first exec of true after {seconds} idle seconds");
    Ok(vec![
        TableRow::new(&what, &first, Budget::None).against("the next one", &second),
    ])
}
