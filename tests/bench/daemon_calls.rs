//! Measured calls to skilld through the client library, and the daemon's memory as the kernel reports it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::Outcome;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::output_event::Content;
use skilld_proto::v1::{ExecSpec, RunExecRequest};
use skilld_tests::{Daemon, Options, usage};

/// Output totals of one exec.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ExecTotals {
    /// Bytes of stdout and stderr.
    pub(crate) bytes: u64,
    /// Number of messages that carried the bytes.
    pub(crate) events: u64,
    /// Time from the call to the first output; `None` without output.
    pub(crate) first_output: Option<Duration>,
    /// Time from the call to the end of its stream.
    pub(crate) end: Duration,
}

/// Settings of a daemon that logs what it logs by default.
pub(crate) fn daemon_options() -> Options {
    Options::default().set("log", "info")
}

/// Runs a command, which has to succeed, to the end of its stream.
pub(crate) async fn run_exec(
    client: &Client,
    workspace: &str,
    spec: ExecSpec,
) -> Result<ExecTotals> {
    let request = RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    run_request(client, request).await
}

/// Makes a RunExec, whose command has to succeed, and reads its stream to the end.
pub(crate) async fn run_request(client: &Client, request: RunExecRequest) -> Result<ExecTotals> {
    let started = Instant::now();
    let mut events = client.run_exec(request).await?;
    let (mut totals, mut result) = (ExecTotals::default(), None);
    while let Some(event) = events.next().await? {
        match event.event {
            Some(Event::Output(output)) => {
                totals.first_output.get_or_insert(started.elapsed());
                if let Some(Content::Data(data)) = output.content {
                    totals.events += 1;
                    totals.bytes += u64::try_from(data.len())?;
                }
            }
            Some(Event::Exited(exited)) => {
                result = exited.result;
            }
            Some(
                Event::Started(_)
                | Event::Heartbeat(_)
                | Event::Closed(_)
                | Event::Workspace(_)
                | Event::Staged(_)
                | Event::File(_)
                | Event::FileData(_)
                | Event::FileEnd(_)
                | Event::Summary(_),
            ) => {}
            Some(Event::Gap(gap)) => anyhow::bail!("output was lost: {gap:?}"),
            None => anyhow::bail!("an empty event"),
        }
    }
    totals.end = started.elapsed();
    let outcome = result.as_ref().and_then(|result| result.outcome());
    ensure!(
        outcome == Some(Outcome::ExitCode(0)),
        "the command ended with {result:?}"
    );
    Ok(totals)
}

/// Polls until a pool has all its warm containers, so that the daemon is idle. The API has no event for it.
pub(crate) async fn wait_until_warm(client: &Client, pool: &str) -> Result<()> {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        tick.tick().await;
        let pool = client.get_pool(pool).await?;
        if pool.warm >= pool.warm_target && pool.booting == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the pool does not fill: {pool:?}"
        );
    }
}

/// Returns the resident bytes of a process.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    usage::resident(pid)
}

/// Returns the largest resident bytes of a daemon since [`reset_peak`].
pub(crate) fn peak_bytes(daemon: &Daemon) -> Result<u64> {
    usage::peak(daemon.pid().context("the daemon has ended")?)
}

/// Resets [`peak_bytes`] to the bytes that are resident now, and returns them.
pub(crate) fn reset_peak(daemon: &Daemon) -> Result<u64> {
    usage::forget_peak(daemon.pid().context("the daemon has ended")?)
}
