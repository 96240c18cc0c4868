//! Sections `many` and `kill`: 32 execs that print at once, many readers of one exec, and the end of a large tree that
//! ignores signals.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use skilld_client::Client;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{AttachExecRequest, ExecSpec, ExitReason, RunExecRequest, StreamOffsets};
use skilld_tests::exec::{argv, attach, stdout, workspace};
use skilld_tests::{Daemon, Options};

use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

const AT_ONCE: u64 = 32;
const RETAINED: u64 = 4 << 20;
const PROCESSES: &str = "400";

/// Program of many processes that ignore signals, half of them in sessions of their own, half of those orphans.
const HOSTILE: &str = "import os, signal, sys, time
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
for number in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        if number % 2:
            os.setsid()
            if number % 4 == 1 and os.fork():
                os._exit(0)
        time.sleep(1000)
        os._exit(0)
print('up', flush=True)
time.sleep(1000)";

fn options() -> Result<Options> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok(daemon_calls::daemon_options().set("pools.default.cpus", &format!("{cpus}.0")))
}

fn zeros(bytes: u64) -> ExecSpec {
    argv(["head", "-c", &bytes.to_string(), "/dev/zero"])
}

/// Measures bytes per second of 32 execs together, the daemon's memory for them, and of 1, 10 and 100 readers of one.
pub(crate) async fn many(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    // Each of the supervisors may hold a copy of the guest's retained output; see `execs.retain_bytes_total`.
    let options = options()?.set("pools.default.memory", "4GiB");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon_calls::wait_until_warm(client, "default").await?;
    let bytes: u64 = if bench.quick { 8 << 20 } else { 32 << 20 };
    let (mut speed, mut memory) = (FigureSeries::speeds(), FigureSeries::bytes());
    for _ in 0..bench.times(5, 2) {
        let before = daemon_calls::reset_peak(&daemon)?;
        let started = Instant::now();
        let runs = (0..AT_ONCE).map(|_| daemon_calls::run_exec(client, &name, zeros(bytes)));
        let ran = try_join_all(runs).await?;
        let all = ran.iter().map(|ran| ran.bytes).sum::<u64>();
        speed.rate(all, started.elapsed())?;
        memory.size(daemon_calls::peak_bytes(&daemon)?.saturating_sub(before))?;
        ensure!(all == AT_ONCE * bytes, "{all} bytes came");
    }
    let what = format!("stdout of {AT_ONCE} execs at once, together");
    let of = "daemon's memory for these streams";
    let mut rows = vec![
        TableRow::new(&what, &speed, Budget::None),
        TableRow::new(of, &memory, Budget::AtMost(64 << 20)),
    ];
    // In the first workspace the output of all these commands competes for `execs.retain_bytes_total`.
    let name = workspace(client).await?.name;
    for readers in [1, 10, 100] {
        rows.push(attached(bench, client, &name, readers).await?);
    }
    daemon.stop().await?;
    Ok(rows)
}

/// Measures readers that attach at once, until all of them have read an exec's output.
async fn attached(
    bench: &BenchOptions,
    client: &Client,
    name: &str,
    readers: u64,
) -> Result<TableRow> {
    let request = RunExecRequest {
        parent: name.to_owned(),
        spec: Some(zeros(RETAINED)),
        ..RunExecRequest::default()
    };
    let mut exec = String::new();
    let mut events = client.run_exec(request).await?;
    while let Some(event) = events.next().await? {
        if let Some(Event::Started(started)) = event.event {
            exec = started.name;
        }
    }
    let mut speed = FigureSeries::speeds();
    for _ in 0..bench.times(10, 3) {
        let started = Instant::now();
        let reads = (0..readers).map(|_| read(client, &exec));
        let read = try_join_all(reads).await?.iter().sum::<u64>();
        speed.rate(read, started.elapsed())?;
        ensure!(read == readers * RETAINED, "{read} bytes came");
    }
    let what = format!("attach by {readers} at once to 4 MiB, together");
    Ok(TableRow::new(&what, &speed, Budget::None))
}

async fn read(client: &Client, exec: &str) -> Result<u64> {
    let request = AttachExecRequest {
        name: exec.to_owned(),
        ..AttachExecRequest::default()
    };
    let (mut events, mut read) = (client.attach_exec(request).await?, 0);
    while let Some(event) = events.next().await? {
        read += u64::try_from(stdout(&event).len())?;
    }
    Ok(read)
}

/// Measures KillExec until its answer, which comes when no process is left. The grace period is minimal, so that only
/// the work is measured.
pub(crate) async fn kill(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let options = options()?.set("execs.kill_grace", "1ms");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon_calls::wait_until_warm(client, "default").await?;
    let mut times = FigureSeries::times();
    for _ in 0..bench.times(20, 5) {
        let request = RunExecRequest {
            parent: name.clone(),
            spec: Some(argv(["python3", "-c", HOSTILE, PROCESSES])),
            ..RunExecRequest::default()
        };
        let mut events = client.run_exec(request).await?;
        let mut exec = String::new();
        loop {
            let event = events.next().await?.context("the stream ended")?;
            // Without a buffer, Python writes the line and its end apart.
            if stdout(&event).starts_with(b"up") {
                break;
            }
            if let Some(Event::Started(started)) = event.event {
                exec = started.name;
            }
        }
        let started = Instant::now();
        client.kill_exec(&exec).await?;
        times.time(started.elapsed())?;
        let ended = attach(client, &exec, StreamOffsets::default()).await?;
        ensure!(ended.reason() == ExitReason::KilledByClient, "{ended:?}");
        ensure!(ended.wall_time() < Duration::from_secs(60), "{ended:?}");
    }
    daemon.stop().await?;
    let what = format!("KillExec of {PROCESSES} hostile processes");
    Ok(vec![TableRow::new(&what, &times, Budget::None)])
}
